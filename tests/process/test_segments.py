"""Own and blocked time between synchronizing collectives. Traces in microseconds, results in nanoseconds."""

from typing import NamedTuple

import pandas as pd
import pytest
from chrome_builder import BACKWARD, annotation, kernel, launched, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit
from tracekit.process.collectives import compute_between_collectives as module
from tracekit.process.collectives.compute_between_collectives import measure_collective_segments
from tracekit.process.steps.windows import find_steps_and_stages

RUNLOOP = 102


class Frames(NamedTuple):
    arrivals: pd.DataFrame
    segments: pd.DataFrame
    cut: int


def found(tmp_path, rows):
    return frames(tracekit.load(write(tmp_path / "rank0.json", rows)))


def frames(trace):
    part = measure_collective_segments(trace)
    return Frames(part.arrivals.frame(), part.segments.frame(), part.cut)


def gloo(start, end, op="all_reduce", tid=RUNLOOP):
    return annotation(f"gloo:{op}", start, end - start, tid=tid)


def table(part, *names):
    return [tuple(row) for row in part[list(names)].itertuples(index=False)]


def test_a_host_is_blocked_from_its_last_op_until_the_collective_ends(tmp_path):
    """Works 40, waits until 100, works on: 60 of 150 are blocked."""
    rows = [step(1, 0, 150), op("mm", 0, 40), gloo(30, 100), op("mm", 105, 45)]
    part = found(tmp_path, rows)
    assert table(part.arrivals, "segment", "ts_ns", "dur_ns", "blocked_ns")[0][2:] == (70_000, 60_000)
    # Until it comes, at 30, it has done 30; the 10 in flight are work, and so are the 50 after the wait.
    assert table(part.segments, "segment", "own_ns", "blocked_ns") == [
        (0, 30_000, 0), (1, 60_000, 60_000),
    ]  # fmt: skip


def test_gaps_in_which_no_collective_ends_are_work(tmp_path):
    """Python runs between the ops while the collective is in flight; only the last gap is a wait."""
    rows = [step(1, 0, 100), op("mm", 0, 10), op("mm", 20, 30), gloo(5, 80), op("mm", 80, 20)]
    part = found(tmp_path, rows)
    assert part.arrivals["blocked_ns"].tolist() == [30_000]
    assert part.segments["own_ns"].sum() == 70_000


@pytest.mark.parametrize(("start", "end", "blocked_us"), [(10, 83, 60), (22, 82, 58), (10, 84, 0)])
def test_a_library_may_record_an_end_late(tmp_path, start, end, blocked_us):
    """The thread goes on at 80, after a gap of 60: 3 µs of it are 5 %."""
    rows = [step(1, 0, 100), op("mm", 0, 20), op("mm", 80, 20), gloo(start, end)]
    assert found(tmp_path, rows).segments["blocked_ns"].sum() == blocked_us * 1_000


@pytest.mark.parametrize(
    ("start", "gap", "late", "is_blocked"),
    [
        (20, 83_000, 4_291, True),  # as a verl run on two cores recorded it: 5.2 % of the gap
        (20, 83_000, 5_000, True),
        (20, 83_000, 5_001, False),
        (20, 60, 15, True),  # a quarter of the gap
        (20, 60, 16, False),
        (10, 60, 4, False),  # the collective began earlier: other work went on since
    ],
)
def test_a_thread_that_lost_its_core_records_the_end_a_time_slice_late(tmp_path, start, gap, late, is_blocked):
    """The thread falls silent when the collective begins, at 20, and goes on before its end is recorded."""
    until = 20 + gap
    rows = [step(1, 0, until + 20), op("mm", 0, 20), op("mm", until, 20), gloo(start, until + late)]
    assert found(tmp_path, rows).segments["blocked_ns"].sum() == (gap * 1_000 if is_blocked else 0)


def test_python_in_the_first_eighth_of_a_collective_is_work(tmp_path):
    """The thread goes on at 30, 70 before the collective ends, and waits for it from 50 on."""
    rows = [step(1, 0, 120), op("mm", 0, 20), op("mm", 30, 20), gloo(20, 100), op("mm", 100, 20)]
    assert found(tmp_path, rows).segments["blocked_ns"].sum() == 50_000


@pytest.mark.parametrize("name", ["_c10d_functional::wait_tensor", "c10d::barrier"])
def test_an_op_that_waits_for_a_collective_is_no_work(tmp_path, name):
    rows = [step(1, 0, 100), op("outer", 0, 100), op(name, 40, 40), gloo(30, 80)]
    assert found(tmp_path, rows).segments["blocked_ns"].sum() == 40_000


def test_work_of_the_backward_thread_is_work(tmp_path):
    """The step thread has nothing to do from 20 on; the backward pass runs until 70."""
    name = "autograd::engine::evaluate_function: MmBackward0"
    rows = [step(1, 0, 100), op("mm", 0, 20), op("mm", 95, 5), gloo(30, 90)]
    rows += [op(name, 20, 50, tid=BACKWARD)]
    assert found(tmp_path, rows).segments["blocked_ns"].sum() == 20_000


def test_work_of_a_thread_that_is_neither_the_busiest_nor_of_the_backward_pass_is_none(tmp_path):
    """The step thread works 40, the backward pass from 20 to 50; a third from 50 to 75, while both wait until 80."""
    name = "autograd::engine::evaluate_function: MmBackward0"
    rows = [step(1, 0, 100), op("mm", 0, 20), op("mm", 80, 20), gloo(30, 80)]
    rows += [op(name, 20, 30, tid=BACKWARD), op("mm", 50, 25, tid=105)]
    assert found(tmp_path, rows).segments["blocked_ns"].sum() == 30_000


def test_of_several_in_flight_the_first_to_begin_is_awaited(tmp_path):
    """Blocked from 20 to 90: until 70 in the first, then in the second; no instant counts twice."""
    rows = [step(1, 0, 100), op("mm", 0, 20), gloo(10, 70), gloo(15, 90, tid=103), op("mm", 90, 10)]
    part = found(tmp_path, rows)
    assert part.arrivals["blocked_ns"].tolist() == [50_000, 20_000]
    assert part.segments["blocked_ns"].sum() == 70_000


def test_a_device_is_blocked_while_a_collective_runs_and_no_kernel_does(tmp_path):
    rows = [step(1, 0, 100), *launched("gemm", 0, 0, 50, 1)]
    rows += launched("ncclDevKernel_AllReduce_Sum", 1, 40, 60, 2, stream=9)
    part = found(tmp_path, rows)
    assert table(part.arrivals, "device", "blocked_ns") == [(0, 50_000)]
    assert table(part.segments, "segment", "own_ns", "blocked_ns") == [
        (0, 40_000, 0), (1, 10_000, 50_000),
    ]  # fmt: skip


def test_two_devices_are_never_one(tmp_path):
    """A kernel of device 1 hides nothing of device 0; each has the whole step to itself."""
    rows = [step(1, 0, 100), op("mm", 0, 100)]
    rows += [kernel("ncclDevKernel_AllReduce_Sum", 10, 50, 1), kernel("gemm", 10, 50, 2, device=1)]
    rows += [kernel("ncclDevKernel_AllReduce_Sum", 60, 40, 3, device=1)]
    part = found(tmp_path, rows)
    sums = part.segments.groupby("device")[["own_ns", "blocked_ns"]].sum()
    assert table(sums.reset_index(), "device", "own_ns", "blocked_ns") == [
        (0, 50_000, 50_000), (1, 60_000, 40_000),
    ]  # fmt: skip


def test_time_is_that_of_the_stage_and_step_it_lies_in(tmp_path):
    """The collective comes at 70, in `update`; before it are 20 of gen, 10 of nothing, 40 of update."""
    rows = [step(1, 0, 100), annotation("gen", 0, 20), annotation("update_actor", 30, 70)]
    rows += [op("mm", 0, 70), gloo(70, 90), op("mm", 90, 30), step(2, 100, 20)]
    part = found(tmp_path, rows)
    rows = [tuple("" if v is None or v != v else v for v in row)
            for row in table(part.segments.astype(object).where(part.segments.notna(), None),
                             "segment", "step", "stage", "own_ns", "blocked_ns")]  # fmt: skip
    assert rows == [
        (0, 1, "gen", 20_000, 0), (0, 1, "", 10_000, 0), (0, 1, "update_actor", 40_000, 0),
        (1, 1, "update_actor", 10_000, 20_000), (1, 2, "", 20_000, 0),
    ]  # fmt: skip


def test_time_in_several_steps_is_that_of_the_first_to_begin(tmp_path):
    """The second lies within the first; the third begins within it and goes on for 20 after it."""
    rows = [step(1, 0, 100), step(2, 10, 10), step(3, 50, 70), op("mm", 0, 120)]
    part = found(tmp_path, rows)
    assert table(part.segments, "step", "own_ns") == [(1, 100_000), (3, 20_000)]


def test_what_does_not_synchronise_blocks_but_ends_no_segment(tmp_path):
    rows = [step(1, 0, 100), op("mm", 0, 20), gloo(20, 60, "send"), op("mm", 60, 40)]
    part = found(tmp_path, rows)
    assert len(part.arrivals) == 0
    assert table(part.segments, "segment", "own_ns", "blocked_ns") == [(0, 60_000, 40_000)]


def test_without_collectives_all_is_own_work(tmp_path):
    part = found(tmp_path, [step(1, 0, 100), op("mm", 0, 20)])
    assert table(part.segments, "own_ns", "blocked_ns") == [(100_000, 0)]
    assert len(part.arrivals) == 0


def test_arrivals_beyond_the_cap_are_counted_and_the_time_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_ARRIVALS", 2)
    rows = [step(1, 0, 100), *(gloo(20 * k, 20 * k + 5) for k in range(5))]
    part = found(tmp_path, rows)
    assert (len(part.arrivals), part.cut) == (2, 3)
    assert part.segments[["own_ns", "blocked_ns"]].sum().sum() == 100_000


TIMES = st.integers(0, 60)
ROWS = st.lists(
    st.one_of(
        st.builds(step, st.integers(1, 2), TIMES, TIMES),
        st.builds(annotation, st.sampled_from(("gen", "ref")), TIMES, TIMES),
        st.builds(op, st.sampled_from(("mm", "c10d::x")), TIMES, TIMES),
        st.builds(lambda at, dur: gloo(at, at + dur), TIMES, TIMES),
        st.builds(lambda at, dur: gloo(at, at + dur, "broadcast", 103), TIMES, TIMES),
        st.builds(kernel, st.sampled_from(("gemm", "ncclDevKernel_AllReduce")), TIMES, TIMES,
                  st.none(), st.integers(0, 1)),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(ROWS)
def test_own_and_blocked_time_add_up_to_steps_and_stages(tmp_path_factory, rows):
    trace = tracekit.load(write(tmp_path_factory.mktemp("any") / "rank0.json", rows))
    part, windows_of = frames(trace), find_steps_and_stages(trace)
    both = [windows_of.steps, windows_of.stages[windows_of.stages["parent"].isna()]]
    instants = {
        instant
        for frame in both
        for begin, dur in zip(frame["ts_ns"], frame["dur_ns"], strict=True)
        for instant in range(int(begin) // 1000, (int(begin) + int(dur)) // 1000)
    }
    for _, mine in part.segments.groupby("device", dropna=False):
        assert mine[["own_ns", "blocked_ns"]].sum().sum() == 1000 * len(instants)
        assert (mine["own_ns"] >= 0).all()
        assert (mine["blocked_ns"] >= 0).all()
    assert (part.arrivals["blocked_ns"] <= part.arrivals["dur_ns"]).all()
