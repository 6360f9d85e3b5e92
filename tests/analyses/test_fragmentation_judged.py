"""Free pieces of reserved memory judged from tables made by hand: when they are a finding, and what is shown."""

import pytest
from analyses.memory_sections import sheet, verdicts
from made_tables import make_measured

from tracekit.analyses import load_default_thresholds
from tracekit.analyses.memory import fragmentation

MIB = 2**20
OWNER = {"run": "r", "rank": 0, "pid": 7, "source": "a", "memory": "device", "device": 0}
POOL = {**OWNER, "moment": "peak", "pool": "0,0", "kind": "large", "stream": 0, "segment_count": 2}


def pool(reserved=100, used=70, stranded=10, largest=11, request=10, **more):
    """A row of `free_space`, in MiB; by default just so that it is a finding."""
    row = {"reserved_bytes": reserved, "requested_bytes": used, "stranded_bytes": stranded}
    row |= {"free_bytes": reserved - used, "largest_free_bytes": largest, "largest_request_bytes": request}
    return {**POOL, **{name: None if size is None else size * MIB for name, size in row.items()}} | more


def judged(*space, needless=1, levels=({},), **tables):
    steps = [] if needless is None else [{**OWNER, "needless_count": needless}]
    measured = make_measured(
        snapshot_levels=[{**OWNER, "peak_bytes": 9, **row} for row in levels],
        free_space=space, allocator_steps=steps, **tables,
    )  # fmt: skip
    return fragmentation.judge(measured, load_default_thresholds())


def only(section):
    (found,) = section.findings
    return found


def test_memory_that_is_free_in_too_small_pieces_is_a_finding():
    found = only(judged(pool(), needless=3))
    assert (found.rule, found.severity) == ("fragmentation", "medium")
    assert found.claim == "10.0 MiB reserved for rank 0, GPU 0 are free only in pieces of at most 11.0 MiB"
    assert {metric.name: metric.value for metric in found.evidence} == {
        "stranded_bytes": 10 * MIB, "unused_ratio": pytest.approx(0.3), "largest_free_bytes": 11 * MIB,
        "largest_request_bytes": 10 * MIB, "needless_segments": 3,
    }  # fmt: skip
    (place,) = found.places
    assert (place.run, place.source, place.rank, place.device) == ("r", "a", 0, 0)


@pytest.mark.parametrize(
    ("space", "needless"),
    [
        ({"used": 71}, 1),  # less than 30 % is unused
        ({"stranded": 9}, 1),  # less than a tenth is stranded
        ({"largest": 12}, 1),  # 1.2 times the request
        ({}, 0),  # no segment was got needlessly
        ({}, None),
        ({"request": None}, 1),
        ({"pool": "1,0"}, 1),  # a private pool
        ({"memory": "host"}, 1),
        ({"reserved": 0, "used": 0}, 1),
    ],
)
def test_free_memory_is_no_finding_where_one_condition_is_missing(space, needless):
    more = {"levels": [{}, {"memory": "host"}]} if "memory" in space else {}
    assert judged(pool(**space), needless=needless, **more).findings == ()


def test_the_parts_of_all_streams_and_kinds_of_the_default_pool_count_together():
    """70 of 100 are used and 12 stranded; the largest piece is 11."""
    one = pool(reserved=60, used=30, stranded=2, largest=11, request=10)
    other = pool(reserved=40, used=40, stranded=10, largest=3, request=10, kind="small")
    private = pool(reserved=1000, used=1000, stranded=0, largest=900, pool="1,0")
    found = only(judged(one, other, private))
    values = {metric.name: metric.value for metric in found.evidence}
    assert (values["stranded_bytes"], values["largest_free_bytes"]) == (12 * MIB, 11 * MIB)
    assert values["unused_ratio"] == pytest.approx(0.3)


def test_the_allocator_with_most_in_pieces_is_named():
    """By moments and processes: 10, 20 and 15."""
    other = {"rank": 1, "pid": 8, "source": "b"}
    spaces = [pool(), pool(stranded=20, moment="grown", **other), pool(stranded=15, **other)]
    steps = [{**OWNER, "needless_count": 1}, {**OWNER, **other, "needless_count": 2}]
    steps += [{**OWNER, **other, "step": 2, "needless_count": 3}]
    measured = make_measured(
        snapshot_levels=[{**OWNER, "peak_bytes": 9}, {**OWNER, **other}], free_space=spaces, allocator_steps=steps
    )
    found = only(fragmentation.judge(measured, load_default_thresholds()))
    assert "20.0 MiB reserved for rank 1, GPU 0" in found.claim
    assert {metric.name: metric.value for metric in found.evidence}["needless_segments"] == 5


def test_the_end_alone_tells_nothing_of_pieces():
    end = pool(moment="end")
    assert verdicts(judged(end))["fragmentation"] == (
        "insufficient data", "no history of allocations was recorded",
    )  # fmt: skip
    growing = pool(moment="end", expandable_count=1)
    assert verdicts(judged(growing))["fragmentation"] == ("not applicable", "expandable segments")
    both = {"source": "b", "pid": 8}
    section = judged(growing, end | both, levels=[{}, both])
    assert verdicts(section)["fragmentation"][0] == "insufficient data"
    section = judged(growing, pool(moment="end", expandable_count=2, **both), levels=[{}, both])
    assert verdicts(section)["fragmentation"][0] == "not applicable"
    assert section.findings == ()


def test_each_run_is_judged_for_itself():
    other = {"run": "other", "source": "b"}
    captures = [{"run": "r", "source": "a"}, other]
    section = judged(pool(), pool(moment="end", **other), levels=[{}, other], captures=captures)
    assert only(section).claim.endswith("pieces of at most 11.0 MiB (run r)")
    assert verdicts(section)["fragmentation"][1] == "no history of allocations was recorded (run other)"


def test_without_snapshots_or_segments_there_is_nothing_to_judge():
    assert fragmentation.judge(make_measured(), load_default_thresholds()) is None
    assert judged().reason == "no segments were recorded"


def test_the_parts_of_what_is_reserved_have_their_shares():
    rows = [pool(internal_bytes=5, releasable_bytes=7), pool(0, 0, 0, 0, moment="end")]
    columns = ("who", "when", "reserved_bytes", "unused_ratio", "internal_bytes", "releasable_bytes", "segment_count")
    shown = sheet(judged(*rows), "reserved_parts")
    assert [tuple(row.get(column) for column in columns) for row in shown] == [
        ("rank 0, GPU 0", "at the peak", 100 * MIB, pytest.approx(0.3), 5, 7, 2),
        ("rank 0, GPU 0", "at the end", 0, None, None, 0, 2),
    ]


def test_the_pools_of_the_highest_peak_are_listed_one_by_one():
    """Of 30 MiB free the largest piece is 11."""
    mine = [pool(), pool(moment="end", used=100, pool="1,0")]
    other = pool(source="b")
    shown = sheet(judged(*mine, other, levels=[{}, {"source": "b", "peak_bytes": 1}]), "pools")
    assert [(row["when"], row["pool"], row["free_bytes"], row["index_ratio"]) for row in shown] == [
        ("at the peak", "0,0", 30 * MIB, pytest.approx(1 - 11 / 30)), ("at the end", "1,0", 0, None),
    ]  # fmt: skip


def test_requests_that_fit_at_the_end_are_told_apart():
    requests = [{**POOL, "size_bytes": size, "fits": fits} for size, fits in ((9, False), (5, True))]
    requests = [{key: row[key] for key in row if key not in ("moment", "segment_count")} for row in requests]
    shown = sheet(judged(pool(), requests=requests), "requests")
    assert [(row["size_bytes"], row["answer"]) for row in shown] == [(9, "needs memory from the driver"), (5, "fits")]


def test_the_map_of_segments_is_of_the_highest_peak():
    run = {**OWNER, "pool": "0,0", "kind": "large", "stream": 0, "segment_bytes": 20 * MIB, "omitted_count": 4}
    runs = [
        {**run, "segment": 5, "state": "inactive", "start_bytes": 0, "end_bytes": 3},
        {**run, "segment": 2, "state": "active", "start_bytes": 1, "end_bytes": 7, "segment_bytes": 40 * MIB},
        {**run, "segment": 5, "state": "pending", "start_bytes": 3, "end_bytes": 9},
        {**run, "segment": 0, "source": "b", "omitted_count": 9},
    ]
    levels = [{}, {"source": "b", "peak_bytes": 1}]
    (chart,) = judged(pool(), segment_map=runs, levels=levels).charts
    assert chart.rows == ("40.0 MiB large", "20.0 MiB large")
    assert chart.marks == ((1, 2, 0, 3), (0, 0, 1, 7), (1, 1, 3, 9))
    assert chart.series == ("in use", "waiting for other streams", "free")
    assert chart.omitted == 4
    assert judged(pool(), segment_map=runs[3:], levels=levels).charts == ()
