"""The peak of memory judged from tables made by hand: headline, caveats, places, purposes and how much is explained."""

import pytest
from analyses.memory_sections import sheet
from made_tables import make_measured

from tracekit.analyses import load_default_thresholds
from tracekit.analyses.memory import memory_peak
from tracekit.model.inputs.facts import Facts

MIB = 2**20
OWNER = {"run": "r", "rank": 0, "pid": 7, "source": "a", "memory": "device", "device": 0}
LEVELS = {**OWNER, "alloc_count": 5, "entry_count": 9}


def site(size, where=None, **more):
    """A row of `live_sites` at the peak."""
    return {**OWNER, "moment": "peak", "size_bytes": size, "site": where, "block_count": 1, "stack_count": 1} | more


def judged(sites, *others, card=None, **levels):
    """The section on these places of one snapshot, and on other snapshots of lower peaks."""
    peak = sum(row["size_bytes"] for row in sites if row["moment"] == "peak")
    snapshots = [{**LEVELS, "peak_bytes": peak, **levels}, *({**LEVELS, **other} for other in others)]
    measured = make_measured(facts=Facts(device_memory=card), snapshot_levels=snapshots, live_sites=sites)
    return memory_peak.judge(measured, load_default_thresholds())


def shown(section, name, *columns):
    return [tuple(row.get(column) for column in columns) for row in sheet(section, name)]


def names(section):
    return [one.name for one in section.sheets]


def test_the_headline_is_the_highest_peak_with_its_shares_of_the_card():
    """400 of 1,000 MiB are requested and 500 reserved; 300 of the 400 have a line of Python."""
    sites = [
        site(100 * MIB, "f", kind="user"),
        site(200 * MIB, "g", kind="library"),
        site(100 * MIB, "h", kind="native"),
    ]
    section = judged(sites, {"peak_bytes": 5, "source": "b"}, card=1000 * MIB, reserved_peak_bytes=500 * MIB)
    assert [(m.name, m.value, m.better) for m in section.metrics] == [
        ("peak_requested", 400 * MIB, "lower"), ("card_ratio", 0.4, "lower"), ("reserved_ratio", 0.5, "lower"),
        ("named_ratio", 0.75, "higher"),
    ]  # fmt: skip
    assert section.metrics[1].label == "of GPU memory (1,000 MiB, given)"
    assert [m.name for m in judged(sites, card=1000 * MIB).metrics] == ["peak_requested", "card_ratio", "named_ratio"]
    assert [m.name for m in judged(sites, reserved_peak_bytes=1).metrics] == ["peak_requested", "named_ratio"]
    assert [m.name for m in judged([], card=1000 * MIB).metrics] == ["peak_requested"]


@pytest.mark.parametrize(
    ("levels", "others", "caveats"),
    [
        ({}, (), []),
        ({"alloc_count": 0}, (), ["snapshots without a history show"]),
        ({"alloc_count": 1}, ({"alloc_count": 0, "source": "b"},), ["snapshots without a history show"]),
        ({"reserved_peak_bytes": 100 * MIB}, (), []),
        ({"reserved_peak_bytes": 100 * MIB + 1}, (), ["reserved memory exceeds the GPU's size"]),
        (
            {"reserved_peak_bytes": 1},
            ({"reserved_peak_bytes": 101 * MIB, "source": "b"},),
            ["reserved memory exceeds the GPU's size"],
        ),
        ({"off_bytes": 3}, ({"off_bytes": -2048, "source": "b"},), ["a history and its blocks disagree by 2.00 KiB"]),
        ({"off_bytes": 1}, (), ["a history and its blocks disagree by 1 B"]),
        ({"unsound_count": 1000}, ({"unsound_count": 500, "source": "b"},), ["1,500 entries have no size"]),
    ],
)
def test_what_limits_the_peak_is_said(levels, others, caveats):
    found = judged([site(5, "f")], *others, card=100 * MIB, **levels).caveats
    assert found[0].startswith("bytes are requested sizes unless a heading names another")
    assert len(found) == 1 + len(caveats)
    for said, begin in zip(found[1:], caveats, strict=True):
        assert said.startswith(begin)


def test_every_snapshot_has_its_peak_and_the_highest_is_looked_into():
    other = {
        "peak_bytes": 60 * MIB, "source": "b", "peak_step": 4, "peak_stage": "actor_update", "entry_count": 3,
        "end_requested_bytes": 10, "end_allocated_bytes": 16, "reserved_peak_bytes": 80 * MIB,
        "peak_reserved_bytes": 70 * MIB, "base_bytes": 2, "rank": 1,
    }  # fmt: skip
    host = {"memory": "host", "device": None, "peak_bytes": 900 * MIB, "source": "c"}
    section = judged([site(100 * MIB, "f")], other, host, card=200 * MIB)
    columns = ("who", "source", "peak_bytes", "card_ratio", "stage", "peak_step", "reserved_ratio", "rounding_bytes")
    assert shown(section, "snapshot_peaks", *columns) == [
        ("rank 0, GPU 0", "a", 100 * MIB, 0.5, None, None, None, None),
        ("rank 1, GPU 0", "b", 60 * MIB, 0.3, "update_actor", 4, 0.4, 6),
        ("rank 0, pinned host memory", "c", 900 * MIB, None, None, None, None, None),
    ]
    assert (
        next(one for one in section.sheets if one.name == "live_peak").title
        == "Requested memory in use at the peak of rank 0, GPU 0"
    )


def test_places_are_listed_with_most_first_and_say_why_they_have_no_name():
    sites = [
        site(10, "a.py:1 f", kind="user", oldest_ns=5),
        site(20, "mm", kind="native", block_count=3, stack_count=2),
        site(30, "b.py:2 g", kind="user", origin="before"),
        site(5, kind="unknown", origin="before"),
        site(4, kind="empty"),
        site(3, kind="unknown"),
        site(2, kind="unknown", origin="freed"),
        site(1, kind="unknown", origin="rest"),
    ]
    section = judged(sites)
    columns = ("where", "size_bytes", "share_ratio", "since", "block_count", "stack_count", "oldest_ns")
    before = "before the recording"
    assert shown(section, "live_peak", *columns) == [
        ("b.py:2 g", 30, 0.4, before, 1, 1, None),
        ("mm (no Python frame)", 20, 20 / 75, None, 3, 2, None),
        ("a.py:1 f", 10, 10 / 75, None, 1, 1, 5),
        ("allocated before the recording, without a stack", 5, 5 / 75, before, 1, 1, None),
        ("no Python frame: an empty stack was recorded", 4, 4 / 75, None, 1, 1, None),
        ("no stack was recorded", 3, 3 / 75, None, 1, 1, None),
        ("allocated before the recording, freed in it: who asked is not recorded", 2, 2 / 75, None, 1, 1, None),
        ("smaller ones", 1, 1 / 75, None, 1, 1, None),
    ]
    (one,) = (one for one in section.sheets if one.name == "live_peak")
    assert one.caption == "a: shares sum to 100 %."


def test_the_memory_at_the_peak_is_summed_by_how_its_place_is_known():
    kinds = [("recorded", kind) for kind in ("user", "library", "native", "empty", "unknown")]
    kinds += [("before", kind) for kind in ("user", "library", "native", "empty", "unknown")]
    kinds += [("freed", "unknown"), ("rest", "unknown")]
    sizes = {pair: 2**place for place, pair in enumerate(reversed(kinds))}
    named = ("user", "library", "native")
    section = judged(
        [
            site(size, kind if kind in named else None, origin=origin, kind=kind)
            for (origin, kind), size in sizes.items()
        ]
    )
    assert shown(section, "live_known", "known", "size_bytes") == [
        ("by a line of the program", 2048),
        ("by a line of an installed package", 1024),
        ("no Python frame", 512),
        ("no Python frame: empty stack", 256),
        ("no stack recorded", 128),
        ("allocated before the recording, known by its block", 64 + 32 + 16),
        ("allocated before the recording, no stack", 8 + 4),
        ("allocated before the recording, freed in it: who asked is not recorded", 2),
        ("smaller ones", 1),
    ]
    assert sum(share for (share,) in shown(section, "live_known", "share_ratio")) == pytest.approx(1)


def test_forty_places_are_listed_and_of_more_the_smallest_are_one_row():
    for count, last in ((40, "f40"), (41, "all others")):
        section = judged([site(100 - n, f"f{n}") for n in range(1, count + 1)])
        rows = shown(section, "live_peak", "where", "size_bytes", "block_count", "stack_count")
        assert len(rows) == 40
        assert rows[38][0] == "f39"
        assert rows[-1] == (last, *((60, 1, 1) if count == 40 else (60 + 59, 2, 2)))


def test_purposes_are_listed_if_any_is_known():
    known = [
        site(60, "f", category="weights", basis="metadata"), site(20, "g", category="weights", basis="metadata"),
        site(10, "h", category="gen", basis="stage"), site(10, "i", basis="none"),
    ]  # fmt: skip
    columns = ("category", "how", "size_bytes", "share_ratio")
    assert shown(judged(known), "live_categories", *columns) == [
        ("weights", "the program's own text", 80, 0.8),
        ("gen", "annotated range when allocated", 10, 0.1),
        ("not told", None, 10, 0.1),
    ]
    assert "live_categories" not in names(judged([site(10, "i", basis="none")]))


def test_memory_at_the_end_is_listed_where_a_history_tells_it_from_the_peak():
    sites = [site(10, "f"), site(4, "g", moment="end")]
    assert shown(judged(sites), "live_end", "where", "size_bytes", "share_ratio") == [("g", 4, 1)]
    assert "live_end" not in names(judged(sites, alloc_count=0))


def test_places_of_other_snapshots_are_not_those_of_the_peak():
    sites = [site(10, "f"), {**site(7, "g", source="b"), "moment": "end"}]
    assert "live_end" not in names(judged(sites))
    assert memory_peak.judge(make_measured(), load_default_thresholds()) is None


def test_pools_are_listed_where_there_are_several():
    pools = [{**OWNER, "pool": None, "class": "default", "reserved_bytes": 5, "segment_count": 1}]
    pools.append({**pools[0], "pool": "(0, 1)", "class": "graph", "reserved_bytes": 3})
    for count in (1, 2):
        measured = make_measured(
            snapshot_levels=[{**LEVELS, "peak_bytes": 4}], live_sites=[site(4, "f")], memory_pools=pools[:count]
        )
        section = memory_peak.judge(measured, load_default_thresholds())
        assert ("memory_pools" in names(section)) is (count == 2)
