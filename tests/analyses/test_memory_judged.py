"""Peaks and levels of memory judged from tables made by hand: cards, imbalance, headline, and the tables shown."""

import pytest
from analyses.memory_sections import sheet, verdicts
from made_tables import make_measured

from tracekit.analyses import load_default_thresholds
from tracekit.analyses.memory import memory
from tracekit.model.inputs.facts import Facts
from tracekit.process.memory.levels import DRIVER, SNAPSHOT

MIB = 2**20
OWNER = {"run": "r", "source": "rank0", "rank": 0, "device_type": 1, "device": 0}
CARD = 1000 * MIB


def peak(allocated, reserved=None, **more):
    """A row of `memory_peaks`, in MiB."""
    return {
        **OWNER, "peak_bytes": allocated * MIB, "reserved_peak_bytes": None if reserved is None else reserved * MIB
    } | more  # fmt: skip


def of_rank(rank, **more):
    return {"rank": rank, "source": f"rank{rank}", **more}


def judged(*peaks, card=CARD, **tables):
    """The section on these peaks, on cards of this size."""
    measured = make_measured(facts=Facts(device_memory=card), memory_peaks=peaks, **tables)
    return memory.judge(measured, load_default_thresholds())


def evidence(found):
    return {metric.name: metric.value for metric in found.evidence}


def test_a_card_is_near_its_limit_from_nine_tenths_on_and_the_fullest_is_named():
    """Of 1,000 MiB: 899 is not near, 900 is, 1,000 is all of it."""
    assert judged(peak(1, 899)).findings == ()
    (found,) = judged(peak(1, 900)).findings
    assert (found.rule, found.severity) == ("memory-near-limit", "medium")
    assert found.claim == "GPU 0 of rank 0 has 90 % of its memory reserved"
    stage = {"reserved_stage": "actor_update", "role": "actor"}
    rows = [peak(1, 950, **of_rank(0, role="actor")), peak(1, 1000, **of_rank(1), **stage), peak(1, 10, **of_rank(2))]
    (found,) = (one for one in judged(*rows).findings if one.rule == "memory-near-limit")
    assert found.claim == "GPU 0 of rank 1 actor has 100 % of its memory reserved during update_actor"
    assert found.severity == "high"
    assert evidence(found) == {
        "reserved_ratio": 1, "reserved_bytes": 1000 * MIB, "card_bytes": CARD, "devices": 2,
    }  # fmt: skip
    assert [(place.rank, place.device, place.source, place.stage) for place in found.places] == [
        (1, 0, "rank1", "actor_update"), (0, 0, "rank0", None),
    ]  # fmt: skip


def test_more_reserved_than_the_card_has_is_a_wrong_size():
    """The other card, which may well be of that size, is judged."""
    section = judged(peak(1, 1001), peak(1, 980, **of_rank(1)))
    assert verdicts(section)["memory-near-limit"] == (
        "insufficient data",
        "reserved memory exceeds the GPU's size (given)",
    )
    (found,) = section.findings
    assert (evidence(found)["devices"], evidence(found)["reserved_bytes"]) == (1, 980 * MIB)
    assert "memory-near-limit" in verdicts(judged(peak(1, 1001)))
    assert "memory-near-limit" not in verdicts(judged(peak(1, 1000)))


def test_a_limit_cannot_be_judged_without_reserved_memory_or_the_size_of_the_card():
    assert verdicts(judged(peak(1, None)))["memory-near-limit"] == (
        "insufficient data", "reserved memory was not recorded",
    )  # fmt: skip
    one_known = judged(peak(1, None), peak(1, 5, **of_rank(1)), card=None)
    assert verdicts(one_known)["memory-near-limit"] == (
        "insufficient data", "device size unknown, give --device-memory",
    )  # fmt: skip
    host = peak(1, device_type=0, device=-1)
    assert verdicts(judged(host))["memory-near-limit"][0] == "not applicable"
    assert verdicts(judged(host, peak(1, None)))["memory-near-limit"][0] == "insufficient data"


def test_a_host_s_memory_is_not_compared_with_a_card():
    assert judged(peak(1, 990, device_type=0, device=0), peak(1, 5)).findings == ()


def test_one_rank_that_needs_a_fifth_more_than_the_median_is_told():
    """Peaks of 600, 500 and 400 of 1,000: 100 above the median, a fifth of it."""
    ranks = [peak(level, **of_rank(rank)) for rank, level in enumerate((500, 600, 400))]
    ranks[1] |= {"peak_stage": "actor_update"}
    (found,) = judged(*ranks).findings
    assert (found.rule, found.severity) == ("memory-imbalance", "low")
    assert found.claim == "GPU 0 of rank 1 needs 20 % more memory than the median of 3 devices"
    assert evidence(found) == {
        "skew_ratio": 0.2, "peak_bytes": 600 * MIB, "median_bytes": 500 * MIB, "card_ratio": 0.6,
    }  # fmt: skip
    (place,) = found.places
    assert (place.run, place.rank, place.device, place.source, place.stage) == ("r", 1, 0, "rank1", "actor_update")


@pytest.mark.parametrize(
    ("levels", "card", "rules"),
    [
        ((600, 500, 400), 1200, ["memory-imbalance"]),  # half of the card
        ((600, 500, 400), 1201, []),
        ((599, 500, 400), 1000, []),  # less than a fifth more
        ((600, 0, 0), 1000, []),  # no median to compare with
        ((3, 1), 4, ["memory-imbalance"]),  # two devices are enough: 3 of a median of 2
        ((2, 1), 4, ["memory-imbalance"]),
    ],
)
def test_an_imbalance_needs_a_fifth_above_the_median_and_half_of_the_card(levels, card, rules):
    rows = [peak(level, **of_rank(rank)) for rank, level in enumerate(levels)]
    assert [found.rule for found in judged(*rows, card=card * MIB).findings] == rules


def test_ranks_that_hold_next_to_nothing_are_compared_too():
    rows = [peak(600), *(peak(0, **of_rank(rank)) | {"peak_bytes": 1} for rank in (1, 2))]
    assert [found.rule for found in judged(*rows).findings] == ["memory-imbalance"]


def test_an_imbalance_cannot_be_judged_of_one_device_nor_of_relative_levels():
    assert verdicts(judged(peak(9)))["memory-imbalance"] == ("not applicable", "GPU memory of one device only")
    actor = judged(peak(9, role="actor"), peak(1, role="critic", **of_rank(1)))
    assert {v.reason for v in actor.verdicts if v.rule == "memory-imbalance"} == {
        "GPU memory of one device only of actor", "GPU memory of one device only of critic",
    }  # fmt: skip
    two = judged(peak(900), peak(1, relative=True, **of_rank(1)))
    assert verdicts(two)["memory-imbalance"] == (
        "insufficient data", "levels are relative to the start of the recording",
    )  # fmt: skip
    two = judged(peak(900), peak(1, **of_rank(1)), card=None)
    assert verdicts(two)["memory-imbalance"] == ("insufficient data", "device size unknown, give --device-memory")
    sizes = [{"run": "r", "source": f"rank{rank}", "rank": rank, "device": device, "size_bytes": CARD}
             for rank, device in ((0, 0), (1, 3))]  # fmt: skip
    two = judged(peak(900), peak(1, **of_rank(1)), card=None, device_sizes=sizes)
    assert verdicts(two)["memory-imbalance"] == ("insufficient data", "device size unknown, give --device-memory")
    host = {"device_type": 0, "device": -1}
    two = judged(peak(900, **host), peak(1, **of_rank(1, **host)))
    assert verdicts(two)["memory-imbalance"] == ("not applicable", "no GPU memory was recorded")


def test_the_headline_is_the_highest_peak_of_any_gpu():
    section = judged(peak(9, 50), peak(7, 70, **of_rank(1)), peak(500, 600, device_type=0, device=-1))
    assert [(m.name, m.value, m.better) for m in section.metrics] == [
        ("peak_allocated", 9 * MIB, "lower"), ("peak_reserved", 70 * MIB, "lower"),
    ]  # fmt: skip
    assert section.metrics[0].label == "peak allocated on one GPU"
    (metric,) = judged(peak(9)).metrics
    assert metric.name == "peak_allocated"
    assert judged(peak(9, device_type=0, device=-1)).metrics == ()
    (metric,) = judged(peak(8, device_type=None)).metrics
    assert metric.value == 8 * MIB


@pytest.mark.parametrize(
    ("kinds", "name", "value"),
    [
        ({1: 5, SNAPSHOT: 7, DRIVER: 9}, "peak_allocated", 5),
        ({SNAPSHOT: 7, DRIVER: 9}, "peak_requested", 7),
        ({DRIVER: 9}, "peak_allocated", 9),
    ],
)
def test_what_an_allocator_counts_goes_before_what_is_requested_and_the_driver_s_comes_last(kinds, name, value):
    (metric,) = judged(*(peak(level, device_type=kind) for kind, level in kinds.items())).metrics
    assert (metric.name, metric.value) == (name, value * MIB)


def test_several_files_of_a_process_are_one_row_with_the_highest_of_each():
    """The most allocated is in the second file, the most reserved in the first."""
    first = peak(5, 50, source="a", peak_stage="gen", reserved_stage="gen", peak_op="aten::mm", peak_step=1)
    second = peak(8, 40, source="b", peak_stage="actor_update", peak_op="aten::add", peak_step=2)
    third = peak(7, None, **of_rank(1), relative=True)
    shown = sheet(judged(first, second, third), "memory_peaks")
    assert [(row["who"], row["peak_bytes"], row["reserved_peak_bytes"]) for row in shown] == [
        ("rank 0", 8 * MIB, 50 * MIB), ("rank 1", 7 * MIB, None),
    ]  # fmt: skip
    assert [(row["stage"], row["peak_op"], row["peak_step"], row["basis"]) for row in shown] == [
        ("update_actor", "aten::add", 2, None), (None, None, None, "relative"),
    ]  # fmt: skip
    assert [(row["card_ratio"], row["card_origin"]) for row in shown] == [(0.05, "given"), (None, "given")]


@pytest.mark.parametrize(
    ("rows", "caveats"),
    [
        ([peak(5)], []),
        ([peak(5), peak(4, relative=True, **of_rank(1))], ["relative levels start at 0 with the recording"]),
        ([peak(5, device_type=SNAPSHOT)], ["levels of snapshots are requested bytes"]),
        ([peak(5, unsound_count=1), peak(5, unsound_count=2, **of_rank(1))], ["3 samples have no size"]),
        (
            [peak(5, omitted_stage_count=1), peak(5, omitted_stage_count=4, **of_rank(1))],
            ["a source has 4 more stages than the limit"],
        ),
    ],
)
def test_what_limits_the_peaks_is_said(rows, caveats):
    found = judged(*rows).caveats
    assert len(found) == len(caveats)
    for said, begin in zip(found, caveats, strict=True):
        assert said.startswith(begin)


def level_row(low, end, high, **more):
    return {**OWNER, "floor_bytes": low, "end_bytes": end, "peak_bytes": high, "dur_ns": 10} | more


def test_the_levels_of_a_stage_are_the_highest_and_the_lowest_of_all_steps_and_processes():
    stages = [
        level_row(3, 5, 9, stage="gen", step=1, reserved_bytes=20),
        level_row(2, 6, 8, stage="gen", step=2, reserved_bytes=10),
        level_row(4, 4, 7, stage="gen", step=1, **of_rank(1)),
        level_row(1, 1, 12, stage="actor_update", step=1),
        level_row(None, None, None, stage="ref", step=1),
    ]
    shown = sheet(judged(peak(1), memory_stages=stages), "memory_stages")
    columns = ("canonical", "peak_bytes", "floor_bytes", "end_bytes", "reserved_bytes", "processes")
    assert [tuple(row[name] for name in columns) for row in shown] == [
        ("update_actor", 12, 1, 1, None, 1),
        ("gen", 9, 2, 6, 20, 2),
    ]


def test_steps_are_listed_by_process_and_files_of_snapshots_are_not():
    steps = [
        level_row(3, 5, 9, step=1, **of_rank(1)),
        level_row(2, 6, 8, step=1),
        level_row(None, None, None, step=2),
        level_row(1, 1, 1, device_type=SNAPSHOT),
        level_row(1, 2, 4, step=3, device_type=SNAPSHOT),
    ]
    shown = sheet(judged(peak(1), memory_steps=steps), "memory_steps")
    assert sorted((row["who"], row["memory"], row["step"], row["floor_bytes"]) for row in shown) == [
        ("rank 0", "GPU 0", 1, 2), ("rank 0", "GPU 0 (snapshot)", 3, 1), ("rank 1", "GPU 0", 1, 3),
    ]  # fmt: skip
