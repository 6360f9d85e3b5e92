"""Reserved memory by part, and finding R22, on allocators of which all is known."""

import pytest
from memory_builder import Allocator, frame, pickled, snapshot
from snapshot_traces import MIB, loaded, report, rows, section, table, written

from tracekit.analyses.memory import fragmentation

QUESTIONS = ("allocator", "fragmentation", "memory-peak")
SUMS = ["reserved_bytes", "requested_bytes", "free_bytes", "releasable_bytes", "stranded_bytes", "largest_free_bytes"]  # fmt: skip


def space(tmp_path, *allocators):
    made = table(fragmentation.measure(loaded(tmp_path, *allocators)), "free_space")
    return made.set_index(["moment", "stream", "kind"])


def in_pieces(freed=(1, 3, 5), request=12 * MIB):
    """Ten blocks of 4 MiB in two segments of 20, some of them freed, and one more request."""
    allocator = Allocator()
    blocks = [allocator.alloc(4 * MIB, [frame("load")]) for _ in range(10)]
    for at in freed:
        allocator.free(blocks[at])
    if request:
        allocator.alloc(request, [frame("gather")])
    return allocator


def finding(tmp_path, allocator):
    made = report(written(tmp_path, {1: allocator}))
    return next((f for f in made.findings if f.rule == "fragmentation"), None)


def test_the_parts_at_the_end_and_at_the_peak_are_those_worked_out_by_hand(tmp_path):
    found = space(tmp_path, in_pieces(request=0))
    # 40 MiB in two segments, three pieces of 4 free; all were in use at the peak.
    assert found.loc[("end", 0, "large"), SUMS].tolist() == [40 * MIB, 28 * MIB, 12 * MIB, 0, 12 * MIB, 4 * MIB]  # fmt: skip
    assert found.loc[("peak", 0, "large"), SUMS].tolist() == [40 * MIB, 40 * MIB, 0, 0, 0, 0]
    # Before the second segment: the first one, full.
    assert found.loc[("grown", 0, "large"), SUMS].tolist() == [20 * MIB, 20 * MIB, 0, 0, 0, 0]


def test_a_segment_without_a_block_in_use_is_releasable_and_not_stranded(tmp_path):
    found = space(tmp_path, in_pieces(freed=(0, 1, 2, 3, 4, 6), request=0))
    assert found.loc[("end", 0, "large"), SUMS].tolist() == [40 * MIB, 16 * MIB, 24 * MIB, 20 * MIB, 4 * MIB, 20 * MIB]  # fmt: skip


def test_streams_and_kinds_are_apart(tmp_path):
    allocator = Allocator()
    allocator.alloc(1000)
    allocator.alloc(1000, stream=7)
    allocator.alloc(3 * MIB, stream=7)
    found = space(tmp_path, allocator).loc["end"]
    assert found["reserved_bytes"].to_dict() == {(7, "large"): 20 * MIB, (0, "small"): 2 * MIB, (7, "small"): 2 * MIB}  # fmt: skip
    # 1,000 bytes occupy 1,024.
    assert found["internal_bytes"].to_dict() == {(7, "large"): 0, (0, "small"): 24, (7, "small"): 24}  # fmt: skip


def test_segments_that_grow_in_place_leave_no_pieces_to_look_at(tmp_path):
    made = snapshot(in_pieces(request=0))
    for segment in made["segments"]:
        segment["is_expandable"] = True
    found = report(written(tmp_path, {1: pickled(made)}))
    one = section(found, "fragmentation")
    assert [(v.answer, v.reason) for v in one.verdicts] == [("not applicable", "expandable segments")]  # fmt: skip
    assert {r["when"] for r in rows(one, "reserved_parts")} == {"at the end"}


def test_the_finding_names_what_is_stranded_and_the_largest_piece(tmp_path):
    found = finding(tmp_path, in_pieces())
    assert found.claim == "12.0 MiB reserved for rank 0, GPU 0 are free only in pieces of at most 4.00 MiB"
    assert found.places[0].rank == 0
    assert found.severity == "medium"


@pytest.mark.parametrize(
    "allocator",
    [
        # One byte more than is free in all.
        in_pieces(request=12 * MIB + 1),
        # 2 of 10 blocks: 20 % of what is reserved.
        in_pieces(freed=(1, 3), request=8 * MIB),
        # Nothing was asked for that had needed more.
        in_pieces(request=4 * MIB),
        in_pieces(request=0),
        # A whole segment is free, and given to the request.
        in_pieces(freed=(0, 1, 2, 3, 4), request=12 * MIB),
    ],
    ids=["too-little-free", "little-unused", "it-fitted", "nothing-asked", "one-piece"],
)
def test_much_free_memory_alone_is_no_finding(tmp_path, allocator):
    assert finding(tmp_path, allocator) is None


def test_free_memory_that_could_be_given_back_is_no_finding(tmp_path):
    """Half is free when the reserved memory grows, but all of it in a segment that nothing keeps."""
    allocator = Allocator()
    allocator.alloc(40 * MIB)
    allocator.free(allocator.alloc(40 * MIB))
    allocator.alloc(42 * MIB)
    assert finding(tmp_path, allocator) is None


def test_whether_the_largest_requests_would_fit(tmp_path):
    allocator = in_pieces(request=0)
    allocator.alloc(700, [frame("small", "/job/a.py", 3)])
    found = section(report(written(tmp_path, {1: allocator})), "fragmentation")
    told = [(r["size_bytes"], r["request_count"], r["site"], r["answer"]) for r in rows(found, "requests")]  # fmt: skip
    assert told == [(4 * MIB, 10, "job/train.py:1 load", "fits"), (700, 1, "job/a.py:3 small", "fits")]
    full = Allocator()
    full.alloc(30 * MIB)
    (row,) = rows(section(report(written(tmp_path, {1: full})), "fragmentation"), "requests")
    assert row["answer"] == "needs memory from the driver"


def test_the_map_shows_runs_of_blocks_of_one_state(tmp_path):
    allocator = in_pieces(freed=(1, 2, 5), request=0)
    waits = allocator.alloc(1000)
    allocator.free(waits, wait=True)
    (chart,) = section(report(written(tmp_path, {1: allocator})), "fragmentation").charts
    assert chart.kind == "extents"
    assert chart.rows == ("20.0 MiB large", "20.0 MiB large", "2.00 MiB small")
    told = sorted((row, chart.series[s], a, b) for row, s, a, b in chart.marks)
    used, free, waiting = "in use", "free", "waiting for other streams"
    assert told == sorted(
        [
            (0, used, 0, 4 * MIB), (0, free, 4 * MIB, 12 * MIB), (0, used, 12 * MIB, 20 * MIB),
            (1, free, 0, 4 * MIB), (1, used, 4 * MIB, 20 * MIB),
            (2, waiting, 0, 1024), (2, free, 1024, 2 * MIB),
        ]
    )  # fmt: skip
    assert chart.omitted == 0


def test_a_map_of_many_segments_is_bounded(tmp_path):
    allocator = Allocator()
    for size in range(60):
        allocator.alloc((12 + 2 * size) * MIB)
    made = table(fragmentation.measure(loaded(tmp_path, allocator)), "segment_map")
    assert made["segment"].nunique() == 48
    assert made["segment_bytes"].min() == (12 + 2 * 12) * MIB
    assert set(made["omitted_count"]) == {12}
