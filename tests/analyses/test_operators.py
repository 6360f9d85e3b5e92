"""Operators: host time of their own, work they launched, memory they took."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from chrome_builder import BACKWARD, annotation, kernel, launch, launched, memory, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import PAIRS

import tracekit
from tracekit.analyses.ops.operators import _number_kinds_and_names, measure
from tracekit.model import sweeps
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Coded
from tracekit.pipeline.run import Options, analyze_uncached

QUESTIONS = ("operators",)

REAL = os.environ.get("TRACEKIT_REAL_DATA")
EXAMPLES = Path(__file__).parents[2] / "examples"


def operators(trace):
    """The measured rows by (kind, name)."""
    found = TABLES["operators"].frame(measure(trace)["operators"])
    return found.astype({"kind": object, "name": object}).set_index(["kind", "name"])


def of(tmp_path, rows, name="rank0.json"):
    return operators(tracekit.load(write(tmp_path / name, rows)))


def sheets(path):
    section = next(
        s for s in analyze_uncached(path, Options(jobs=1, questions=QUESTIONS)).report.sections if s.id == "operators"
    )
    return {
        sheet.name: [dict(zip([h.name for h in sheet.headings], r, strict=True)) for r in sheet.rows]
        for sheet in section.sheets
    }


def python(name, ts, dur):
    return op(name, ts, dur) | {"cat": "python_function"}


def test_own_time_is_the_duration_less_that_of_direct_children(tmp_path):
    """linear 0-100 holds t 10-20 and addmm 30-90, which holds a launch 40-45 and view 50-60."""
    rows = [
        op("linear", 0, 100), op("t", 10, 10), op("addmm", 30, 60), launch(40, 1, dur=5), op("view", 50, 10),
    ]  # fmt: skip
    found = of(tmp_path, rows)
    assert found["self_ns"].to_dict() == {
        ("op", "linear"): 30_000, ("op", "t"): 10_000, ("op", "addmm"): 45_000,
        ("op", "view"): 10_000, ("runtime", "cudaLaunchKernel"): 5_000,
    }  # fmt: skip
    assert found.loc[("op", "linear"), "total_ns"] == 100_000
    assert found["count"].tolist() == [1] * 5


def test_recursion_is_counted_once_in_the_total(tmp_path):
    """f 0-100 calls itself 10-60 and 20-30; it runs again 200-210: 110 in all, not 170."""
    rows = [op("f", 0, 100), op("f", 10, 50), op("f", 20, 10), op("f", 200, 10)]
    row = of(tmp_path, rows).loc[("op", "f")]
    assert (row["count"], row["total_ns"], row["self_ns"]) == (4, 110_000, 110_000)


def test_the_same_op_at_once_on_two_threads_takes_the_time_of_both(tmp_path):
    row = of(tmp_path, [op("f", 0, 50), op("f", 20, 50, tid=BACKWARD)]).loc[("op", "f")]
    assert (row["total_ns"], row["self_ns"]) == (100_000, 100_000)


def test_work_belongs_to_the_innermost_op_around_its_launch(tmp_path):
    """mm launches 40 itself; linear only the 5 of its bias."""
    rows = [
        op("linear", 0, 100), op("mm", 10, 50), *launched("gemm", 20, 200, 40, 1), *launched("bias", 70, 300, 5, 2),
    ]  # fmt: skip
    found = of(tmp_path, rows)
    assert found.loc[("op", "mm"), "device_ns"] == 40_000
    assert found.loc[("op", "linear"), "device_ns"] == 5_000
    assert found.loc[("op", "linear"), "launch_count"] == 1


def test_work_on_two_streams_at_once_is_busy_once_and_on_two_gpus_twice(tmp_path):
    """0-40 and 20-50 on two streams of GPU 0: Σ 70, busy 50. On GPU 1 10-40: another 30."""
    rows = [op("mm", 0, 99), launch(1, 1), launch(3, 2), launch(5, 3)]
    rows += [kernel("a", 10, 40, 1, stream=7), kernel("b", 30, 30, 2, stream=8)]
    rows += [kernel("c", 20, 30, 3, device=1)]
    row = of(tmp_path, rows).loc[("op", "mm")]
    assert (row["launch_count"], row["device_ns"], row["device_busy_ns"]) == (3, 100_000, 80_000)


def test_what_plain_python_launches_is_the_calls_own(tmp_path):
    rows = [annotation("gen", 0, 50), *launched("k", 5, 10, 20, 1), kernel("orphan", 30, 7)]
    found = of(tmp_path, rows)
    assert found.loc[("runtime", "cudaLaunchKernel"), "device_ns"] == 20_000
    assert found["device_ns"].sum() == 20_000


def test_an_op_longer_than_the_capture_adds_no_device_time(tmp_path):
    rows = [op("mm", 0, 100), *launched("k", 1, 10, 20, 1), *launched("corrupt", 3, 40, 9_999, 2)]
    row = of(tmp_path, rows).loc[("op", "mm")]
    assert (row["launch_count"], row["device_ns"], row["device_busy_ns"]) == (1, 20_000, 20_000)


def test_without_a_gpu_launched_work_is_unknown_not_zero(tmp_path):
    row = of(tmp_path, [op("mm", 0, 100)]).loc[("op", "mm")]
    assert row[["launch_count", "device_ns", "device_busy_ns"]].isna().all()
    assert "operators_by_gpu_time" not in sheets(tmp_path)


def test_memory_belongs_to_the_op_that_was_innermost_then(tmp_path):
    """empty, inside linear, takes 500; linear itself 100 and gives 30 back; the call takes 7 for linear."""
    rows = [
        op("linear", 0, 100), op("empty", 10, 20), launch(60, 1, dur=10),
        memory(15, 500, 500), memory(50, 100, 600), memory(55, -30, 570), memory(65, 7, 577), memory(200, 9, 586),
    ]  # fmt: skip
    found = of(tmp_path, rows)
    taken = found[["allocated_bytes", "freed_bytes"]]
    assert taken.loc[("op", "empty")].tolist() == [500, 0]
    assert taken.loc[("op", "linear")].tolist() == [107, 30]
    assert taken.loc[("runtime", "cudaLaunchKernel")].tolist() == [0, 0]


def test_memory_is_told_apart_by_thread(tmp_path):
    """At 20 forward runs on one thread and backward on the other."""
    rows = [
        op("forward", 0, 50), op("backward", 10, 50, tid=BACKWARD),
        memory(20, 300, 300), memory(20, 40, 340, tid=BACKWARD), memory(55, -5, 335, tid=BACKWARD),
    ]  # fmt: skip
    found = of(tmp_path, rows)
    assert found.loc[("op", "forward"), ["allocated_bytes", "freed_bytes"]].tolist() == [300, 0]
    assert found.loc[("op", "backward"), ["allocated_bytes", "freed_bytes"]].tolist() == [40, 5]


def test_memory_that_was_not_profiled_is_unknown(tmp_path):
    write(tmp_path / "rank0.json", [op("mm", 0, 9)])
    assert "allocated_bytes" not in measure(tracekit.load(tmp_path / "rank0.json"))["operators"]
    assert "operators_by_memory" not in sheets(tmp_path)


def test_rows_of_python_functions_change_nothing(tmp_path):
    """They are not read unless asked for; read, they are no operators and own no launch."""
    rows = [op("mm", 10, 50), *launched("k", 20, 100, 30, 1)]
    frames = [python("train.py(1): step", 0, 90), python("nn.Module: Linear_0", 15, 40)]
    plain = of(tmp_path, rows)
    path = write(tmp_path / "python.json", [*rows, *frames])
    pd.testing.assert_frame_equal(operators(tracekit.load(path)), plain)
    read = operators(tracekit.load(path, python=True))
    columns = ["count", "total_ns", "launch_count", "device_ns"]
    pd.testing.assert_frame_equal(read[columns], plain[columns])


def test_ranges_and_calls_are_measured_but_only_ops_are_shown(tmp_path):
    write(tmp_path / "rank0.json", [annotation("gen", 0, 90), op("mm", 0, 50), launch(10, 1)])
    (found,) = sheets(tmp_path).values()
    assert [row["name"] for row in found] == ["mm"]


def test_ranks_are_added(tmp_path):
    for rank, dur in ((0, 10), (1, 30)):
        write(tmp_path / f"rank{rank}.json", [op("mm", 0, dur), *launched("k", 1, 50, dur, 1)])
    found = sheets(tmp_path)
    (host,), (device,) = found["operators_by_host_time"], found["operators_by_gpu_time"]
    # Each launch call takes 2 of its op's time.
    assert (host["count"], host["total_ns"], host["self_ns"]) == (2, 40_000, 36_000)
    assert (host["self_ratio"], device["device_ns"]) == (1, 40_000)


nested = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(0, 30), st.booleans()), min_size=1, max_size=14
)


@settings(max_examples=40, deadline=None)
@given(nested)
def test_own_times_add_up_to_the_time_each_thread_is_in_an_op(tmp_path_factory, drawn):
    rows = [op(n, ts, dur, tid=BACKWARD if second else 100) for n, ts, dur, second in drawn]
    found = of(tmp_path_factory.mktemp("t"), rows)
    inside = {
        (second, now) for _, ts, dur, second in drawn for now in range(ts, ts + dur)
    }  # fmt: skip
    assert found["self_ns"].sum() == 1000 * len(inside)
    for name in found.index.get_level_values("name"):
        mine = {(s, now) for n, ts, dur, s in drawn if n == name for now in range(ts, ts + dur)}
        assert found.loc[("op", name), "total_ns"] == 1000 * len(mine)
    assert found["count"].sum() == len(drawn)


def test_the_simulated_run_launches_what_its_maker_says(tmp_path):
    """All linked device time has an owner: an op, or the call itself."""
    truth = json.loads((EXAMPLES / "simulated_gpu" / "truth.json").read_text())["ranks"]["0"]
    path = next((EXAMPLES / "simulated_gpu" / "outputs" / "profile").glob("*rank0*"))
    steps = truth["steps"].values()
    expected = sum(
        step["by_launch"].get(f"{kind}_sum_ns", 0) for step in steps for kind in ("compute", "comm", "memcpy", "memset")
    )
    assert operators(tracekit.load(path))["device_ns"].sum() == expected


def test_device_time_of_a_real_file_is_that_of_its_linked_kernels():
    from tracekit.process.calls.launches import find_launches

    real = Path(REAL or "") / "chrome" / "hta/nccl_parser_config/nccl_data.json.gz"
    trace = tracekit.load(real if REAL else PAIRS / "unfused_optimizer.pt.trace.json.xz")
    found = operators(trace)
    linked = find_launches(trace).linked
    assert found["device_ns"].sum() == trace["device_ops"]["dur_ns"][linked].sum()
    assert found["launch_count"].sum() == linked.sum() > 3_000
    assert (found["self_ns"] <= found["total_ns"]).all()


def test_a_step_annotation_is_no_operator(tmp_path):
    found = of(tmp_path, [step(1, 0, 100), op("mm", 0, 10)])
    assert set(found.index) == {("op", "mm"), ("range", "ProfilerStep#1")}


def test_all_questions_find_the_same_without_the_passes_in_c(monkeypatch):
    path = EXAMPLES / "simulated_gpu/outputs/profile/simulated_rank0.pt.trace.json.gz"
    native = analyze_uncached(path, Options(cache=False)).measurements
    monkeypatch.setattr(sweeps, "native", None)
    plain = analyze_uncached(path, Options(cache=False)).measurements
    assert native.tables.keys() == plain.tables.keys()
    for name in native.tables:
        pd.testing.assert_frame_equal(native[name], plain[name])


def test_all_questions_find_the_same_however_many_rows_are_looked_at_at_once(monkeypatch):
    path = EXAMPLES / "simulated_gpu/outputs/profile/simulated_rank0.pt.trace.json.gz"
    whole = analyze_uncached(path, Options(cache=False)).measurements
    for name, count in (
        ("model.tables.keys.COUNT_CHUNK_ROWS", 7), ("process.name_filters.MANY_ROWS", 0), ("process.host.tree.EDGES_AT_ONCE", 5),
        ("process.ops.shapes.CALLS_AT_ONCE", 3), ("readers.chrome.COUNTED_ROWS", 9),
    ):  # fmt: skip
        monkeypatch.setattr(f"tracekit.{name}", count)
    in_parts = analyze_uncached(path, Options(cache=False)).measurements
    assert whole.tables.keys() == in_parts.tables.keys()
    for name in whole.tables:
        pd.testing.assert_frame_equal(whole[name], in_parts[name])


def test_rows_without_a_name_are_a_group_and_rows_left_out_are_none():
    kinds, names = (
        Coded(np.array([0, 0, 1, 0], np.int8), ("op", "range")),
        Coded(np.array([-1, 0, 0, 0], np.int8), ("mm",)),
    )
    present, slot = _number_kinds_and_names(np.array([True, True, True, False]), kinds, names)
    assert (present.tolist(), slot.tolist()) == ([0, 1, 3], [0, 1, 2, -1])
    present, slot = _number_kinds_and_names(np.ones(4, np.bool_), kinds, names)
    assert (present.tolist(), slot.tolist()) == ([0, 1, 3], [0, 1, 2, 1])


@pytest.mark.parametrize("count", [126, 127, 128, 129])
def test_as_many_names_as_a_byte_has_numbers_are_apart(count):
    names = Coded(np.arange(count).astype(np.int16), tuple(f"op{number}" for number in range(count)))
    kinds = Coded(np.zeros(count, np.int8), ("op",))
    present, slot = _number_kinds_and_names(np.ones(count, np.bool_), kinds, names)
    assert (present.tolist(), slot.tolist()) == (list(range(1, count + 1)), list(range(count)))
