"""Who launched what, on hand-made traces."""

import numpy as np
from chrome_builder import BACKWARD, kernel, launch, launched, op, step, write

import tracekit
from tracekit.process.calls.launches import LINKS, find_latest_match, find_launches
from tracekit.process.device.work_per_window import measure_work_per_window
from tracekit.process.slice_trace import slice_trace
from tracekit.process.steps.windows import find_steps_and_stages


def load(tmp_path, rows, **meta):
    return tracekit.load(write(tmp_path / "rank0.json", rows, **meta))


def names(trace, rows):
    host = trace["host_ops"]
    return [host["name"].iloc[row] if row >= 0 else None for row in rows]


def test_a_kernel_belongs_to_the_op_around_the_call_with_its_correlation(tmp_path):
    trace = load(tmp_path, [op("aten::mm", 0, 10), *launched("gemm", 3, 50, 5, 1)])
    found = find_launches(trace)
    assert names(trace, found.call) == ["cudaLaunchKernel"]
    assert names(trace, found.op) == ["aten::mm"]
    assert (found.ts_ns - trace["host_ops"]["ts_ns"].min()).tolist() == [3_000]


def test_every_kernel_of_a_graph_goes_to_its_one_launch(tmp_path):
    rows = [launch(0, 9, name="cudaGraphLaunch"), *(kernel(f"k{i}", 10 + i, 1, 9) for i in range(4))]
    trace = load(tmp_path, rows)
    assert names(trace, find_launches(trace).call) == ["cudaGraphLaunch"] * 4


def test_of_calls_with_one_correlation_the_last_one_before_the_kernel_counts(tmp_path):
    rows = [launch(0, 5, name="first"), launch(20, 5, name="second"), launch(90, 5, name="late")]
    trace = load(tmp_path, [*rows, kernel("k", 30, 5, 5), kernel("early", -5, 2, 5)])
    assert names(trace, find_launches(trace).call) == ["second", "first"]


def test_a_call_that_is_the_first_row_of_the_host_is_not_looked_for_again(tmp_path):
    """No op is around it, and the one with the kernel's external id did not launch it."""
    rows = [launch(0, 5), op("aten::mul", 3, 2, **{"External id": 77}), kernel("k", 20, 5, 5, **{"External id": 77})]
    trace = load(tmp_path, rows)
    found = find_launches(trace)
    assert names(trace, found.op) == [None]
    assert LINKS[found.link[0]] == "correlation"


def test_without_correlation_the_external_id_leads_to_the_op(tmp_path):
    rows = [op("aten::mul", 0, 10, **{"External id": 77}), kernel("k", 20, 5, **{"External id": 77})]
    trace = load(tmp_path, rows)
    found = find_launches(trace)
    assert LINKS[found.link[0]] == "external_id"
    assert names(trace, found.op) == ["aten::mul"]


def test_a_kernel_launched_before_the_window_is_unlinked_not_lost(tmp_path):
    trace = load(tmp_path, [op("aten::mul", 0, 10), kernel("k", 20, 5, 404), kernel("bare", 30, 5)])
    found = find_launches(trace)
    assert found.linked.tolist() == [False, False]
    assert len(trace["device_ops"]) == 2


def test_work_counts_for_the_window_of_its_launch_on_any_thread(tmp_path):
    rows = [
        step(1, 0, 100), step(2, 100, 100),
        *launched("forward", 10, 90, 40, 1),
        *launched("backward", 50, 120, 30, 2, tid=BACKWARD),
        *launched("second", 110, 140, 20, 3),
    ]  # fmt: skip
    trace = load(tmp_path, rows)
    steps = find_steps_and_stages(trace).steps
    start = steps["ts_ns"].to_numpy()
    work = measure_work_per_window(trace, start, start + steps["dur_ns"].to_numpy())
    assert work["launch_count"].tolist() == [2, 1]
    assert work["work_ns"].tolist() == [70_000, 20_000]
    # forward 90-130 and backward 120-150 overlap for 10 µs: busy counts them once.
    assert work["work_busy_ns"].values.tolist() == [60_000, 20_000]


def test_two_gpus_are_never_merged_into_one_busy_time(tmp_path):
    rows = [step(1, 0, 100), launch(5, 1), launch(6, 2)]
    rows += [kernel("a", 10, 20, 1, device=0), kernel("b", 10, 20, 2, device=1)]
    trace = load(tmp_path, rows)
    start = find_steps_and_stages(trace).steps["ts_ns"].to_numpy()
    assert measure_work_per_window(trace, start, start + 100_000)["work_busy_ns"].values.tolist() == [40_000]


def test_cutting_to_a_step_keeps_its_host_time_and_what_it_launched(tmp_path):
    rows = [
        step(1, 0, 100), step(2, 100, 100), op("a", 10, 5), op("b", 110, 5),
        *launched("one", 20, 130, 5, 11), *launched("two", 120, 150, 5, 12),
        kernel("orphan", 160, 5), kernel("other step", 60, 5), kernel("earlier", 125, 5, 3),
    ]  # fmt: skip
    part = slice_trace(load(tmp_path, rows), frozenset({2}), None)
    assert set(part["host_ops"]["name"]) == {"ProfilerStep#2", "b", "cudaLaunchKernel"}
    assert part["device_ops"]["name"].tolist() == ["two", "orphan"]
    assert [note.count for note in part.notes if note.code == "unlinked-left-out"] == [1]


def test_cutting_to_a_step_that_is_not_there_leaves_nothing(tmp_path):
    assert slice_trace(load(tmp_path, [step(1, 0, 100)]), frozenset({7}), None) is None


def test_where_no_host_was_recorded_nothing_is_launched_by_anything(tmp_path):
    trace = load(tmp_path, [kernel("k", 20, 5, 1), kernel("k", 30, 5)])
    found = find_launches(trace)
    assert (found.call.tolist(), found.op.tolist()) == ([-1, -1], [-1, -1])
    assert (found.linked.tolist(), found.ts_ns.tolist()) == ([False] * 2, [0] * 2)


def test_the_last_of_a_key_that_started_in_time_counts_else_the_first_and_minus_one_is_no_such_key():
    keys, starts = np.array([4, 4, 6]), np.array([10, 20, 10])
    asked, limit = np.array([4, 4, 4, 5, 6]), np.array([9, 10, 30, 99, 5])
    assert find_latest_match(keys, starts, asked, limit).tolist() == [0, 0, 1, -1, 2]
    assert find_latest_match(keys[:0], starts[:0], asked, limit).tolist() == [-1] * 5
