"""Timelines cut to a range of time, and rows that overlap without nesting."""

import numpy as np
import pytest
from chrome_builder import HOST_PID, kernel, launched, memory, op, step, write
from cli.exports import LEAD_US, STEP, arrow, named, processes, rows_of, two_ranks
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model.errors import TracekitError
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.timeline import document
from tracekit.pipeline.timeline.overlaps import assign_nesting_tracks
from tracekit.pipeline.timeline.time_ranges import TimeRange, parse_time_range


def export_range(folder, target, text):
    return document.export_timeline(folder, target, pipeline.Options(jobs=1), time_range=parse_time_range(text))


def check_timeline(rows):
    """Slices of each track nest, and every arrow has both ends on a slice."""
    tracks, arrows = {}, {}
    for row in rows:
        if row["ph"] == "X":
            tracks.setdefault((row["pid"], row["tid"]), []).append((row["ts"], -row["dur"]))
        elif row["ph"] in "stf":
            arrows.setdefault((row["cat"], row["id"]), []).append(row)
    for slices in tracks.values():
        ends = []
        for begin, negative in sorted(slices):
            while ends and ends[-1] <= begin:
                ends.pop()
            assert not ends or begin - negative <= ends[-1]
            ends.append(begin - negative)
    for ends in arrows.values():
        assert {row["ph"] for row in ends} >= {"s", "f"}
        for row in ends:
            slices = tracks[row["pid"], row["tid"]]
            assert any(begin <= row["ts"] <= begin - negative for begin, negative in slices)
    named_tracks = {(row["pid"], row["tid"]) for row in rows if row.get("name") == "thread_name"}
    assert tracks.keys() <= named_tracks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.250s:1.310s", TimeRange(1_250_000_000, 1_310_000_000)),
        ("12ms:40ms", TimeRange(12_000_000, 40_000_000)),
        ("0:2500", TimeRange(0, 2500)),
        ("1,842 ms:2 s", TimeRange(1_842_000_000, 2_000_000_000)),
        ("step 3", TimeRange(step=3)),
    ],
)
def test_ranges_are_read_as_reports_print_times(text, expected):
    assert parse_time_range(text) == expected


@pytest.mark.parametrize("text", ["", "12ms", "40ms:12ms", "5:5", "a:b", "step", "-5ms:3ms", "12:40:50"])
def test_a_malformed_or_empty_range_is_refused(text):
    with pytest.raises(TracekitError) as error:
        parse_time_range(text)
    assert error.value.hint


def test_rows_across_the_edges_are_clipped_and_those_outside_left_out(tmp_path):
    # Times in µs: the step 0–100, the stage 10–70, gemm 30–40.125 on stream 7 and 55–65 on stream 9.
    done = export_range(two_ranks(tmp_path / "in"), tmp_path / "out.json", "35us:60us")
    found, rows = rows_of(tmp_path / "out.json")
    names = processes(rows)
    of_rank_0 = [r for r in named(rows, "gemm") if names[r["pid"]] == "rank 0 · GPU 0"]
    assert [(r["ts"] - LEAD_US, float(r["dur"])) for r in of_rank_0] == [(35, 5.125), (55, 5.0)]
    assert of_rank_0[0]["args"]["clipped_before_ns"] == 5_000
    assert "clipped_after_ns" not in of_rank_0[0]["args"]
    assert of_rank_0[1]["args"]["clipped_after_ns"] == 5_000
    # On each rank two kernels, the launch at 50, the step and the stage; the op and the launch at 22 are outside.
    assert done.rows == {"host_ops": 6, "device_ops": 4}
    assert found["tracekit"]["range"] == {"start_ns": 35_000, "end_ns": 60_000}
    assert {(row["ts"] - LEAD_US >= 35, row["ts"] + row["dur"] - LEAD_US <= 60) for row in rows if row["ph"] == "X"} == {(True, True)}  # fmt: skip
    check_timeline(rows)


def test_only_arrows_with_both_ends_in_the_range_stay(tmp_path):
    rows = [*STEP, *arrow(7, 22, 30), *arrow(8, 50, 55, 9)]
    for text, starts in (("0:100us", {22, 50}), ("25us:60us", {50}), ("52us:60us", set())):
        export_range(two_ranks(tmp_path / "in", rows), tmp_path / "out.json", text)
        _, drawn = rows_of(tmp_path / "out.json")
        check_timeline(drawn)
        assert {int(row["ts"] - LEAD_US) for row in drawn if row["ph"] == "s"} == starts


def test_counters_begin_with_their_last_value(tmp_path):
    rows = [op("aten::mm", 0, 90), memory(3, 512, 4096), memory(20, -512, 3584), memory(60, 512, 4096)]
    write(tmp_path / "in" / "a.json", rows, rank=0, world_size=1)
    export_range(tmp_path / "in", tmp_path / "out.json", "30us:80us")
    _, drawn = rows_of(tmp_path / "out.json")
    assert [(r["ts"] - LEAD_US, r["args"]["bytes"]) for r in drawn if r["ph"] == "C"] == [(30, 3584), (60, 4096)]
    assert [r["ts"] - LEAD_US for r in drawn if r["name"] == "[memory]"] == [60]


def test_a_step_is_a_range(tmp_path):
    rows = [step(3, 0, 100), *launched("a", 10, 20, 5, 1), step(4, 100, 50), *launched("b", 110, 120, 5, 2)]
    write(tmp_path / "in" / "a.json", rows, rank=0, world_size=1)
    found = export_range(tmp_path / "in", tmp_path / "out.json", "step 4")
    document_, drawn = rows_of(tmp_path / "out.json")
    assert document_["tracekit"]["range"] == {"start_ns": 100_000, "end_ns": 150_000}
    assert not named(drawn, "a")
    assert named(drawn, "b")
    assert found.rows["device_ops"] == 1
    with pytest.raises(TracekitError, match="no such step") as error:
        export_range(tmp_path / "in", tmp_path / "out.json", "step 9")
    assert "3 to 4" in error.value.hint
    with pytest.raises(TracekitError, match="lasts 150"):
        export_range(tmp_path / "in", tmp_path / "out.json", "1s:2s")


def test_ops_that_overlap_without_nesting_get_tracks_of_their_own(tmp_path):
    kernels = [kernel("a", 0, 10, 7), kernel("b", 5, 10, 7), kernel("c", 12, 8, 7), kernel("inner", 6, 2, 7)]
    ops = [op("x", 0, 10), op("y", 5, 10)]
    flows = [
        {"cat": "ac2g", "name": "ac2g", "id": 1, "ph": "s", "pid": HOST_PID, "tid": HOST_PID, "ts": 5},
        {"cat": "ac2g", "name": "ac2g", "id": 1, "ph": "f", "pid": 0, "tid": 7, "ts": 12, "bp": "e"},
    ]
    write(tmp_path / "in" / "a.json", [*kernels, *ops, *flows], rank=0, world_size=1)
    document.export_timeline(tmp_path / "in", tmp_path / "out.json", pipeline.Options(jobs=1))
    _, drawn = rows_of(tmp_path / "out.json")
    check_timeline(drawn)
    track = {row["name"]: row["tid"] for row in drawn if row["ph"] == "X"}
    assert track["a"] == track["inner"] == 7
    assert len({track["a"], track["b"], track["c"]}) == 3
    labels = {row["tid"]: row["args"]["name"] for row in drawn if row["name"] == "thread_name"}
    assert (labels[track["b"]], labels[track["c"]]) == ("stream 7 (overlap 1)", "stream 7 (overlap 2)")
    # The arrow from y to c follows both.
    assert {row["tid"] for row in drawn if row["ph"] in "sf"} == {track["y"], track["c"]}


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)),
        max_size=40,
    )
)
def test_the_rows_of_every_track_nest(drawn):
    track, start, length = (np.array([row[k] for row in drawn], np.int64) for k in range(3))
    further = assign_nesting_tracks(track, start, length)
    spans = list(zip(track, further, start, start + length, strict=True))
    for one in spans:
        for other in spans:
            if one[:2] == other[:2]:
                assert not one[2] < other[2] < one[3] < other[3]
    if all(not a < c < b < d for t, _, a, b in spans for u, _, c, d in spans if t == u):
        assert not further.any()
