"""Operators by input shape: their own part, all that runs inside them, and the FLOPs their shapes tell."""

import os
from pathlib import Path

import pandas as pd
import pytest
from analyses.in_depth import report_of, result_of, rows_of, section
from chrome_builder import BACKWARD, kernel, launch, launched, memory, op, write
from hypothesis import given, settings
from hypothesis import strategies as st
from rules.traces_matmuls import shaped

import tracekit
from tracekit.analyses.ops import operators as by_name
from tracekit.analyses.ops import shapes as module
from tracekit.analyses.ops.shapes import measure
from tracekit.model.tables import TABLES

QUESTIONS = ("forward-batches", "matmuls", "modules", "operators", "shapes", "unfused")

REAL = os.environ.get("TRACEKIT_REAL_DATA")


def table(trace, name):
    return TABLES[name].frame(measure(trace)[name])


def of(tmp_path, rows, name):
    frame = table(tracekit.load(write(tmp_path / "rank0.json", rows)), name)
    return frame.astype({"name": object})


def by_shape(tmp_path, rows):
    frame = of(tmp_path, rows, "operator_shapes")
    return frame.astype({"dims": object}).set_index(["name", "dims"])


A, B = "[[2,3],[3,5]]", "[[4,3],[3,5]]"


def two_shapes():
    """mm of two shapes: 40 and 10 of GPU time, 20 and 30 of host time; linear around the first."""
    return [
        shaped("aten::linear", 0, 50, [[2, 3], [5, 3]]),
        shaped("aten::mm", 10, 20, [[2, 3], [3, 5]]), *launched("gemm", 12, 100, 40, 1),
        *launched("bias", 40, 150, 5, 2),
        shaped("aten::mm", 60, 30, [[4, 3], [3, 5]]), *launched("gemm", 62, 160, 10, 3),
    ]  # fmt: skip


def test_each_shape_of_an_op_is_a_row_of_its_own(tmp_path):
    found = by_shape(tmp_path, two_shapes())
    columns = ["count", "self_ns", "total_ns", "device_ns", "device_busy_ns", "launch_count", "shape_count"]
    # Of 20 the launch takes 2; of 30 too.
    assert found.loc[("aten::mm", A), columns].tolist() == [1, 18_000, 20_000, 40_000, 40_000, 1, 1]
    assert found.loc[("aten::mm", B), columns].tolist() == [1, 28_000, 30_000, 10_000, 10_000, 1, 1]


def test_the_total_of_an_op_holds_what_runs_inside_it(tmp_path):
    """linear launches 5 itself and holds the 40 of mm."""
    found = by_shape(tmp_path, two_shapes()).loc[("aten::linear", "[[2,3],[5,3]]")]
    assert (found["device_ns"], found["device_total_ns"]) == (5_000, 45_000)
    totals = of(tmp_path, two_shapes(), "operator_totals").set_index("name")
    assert totals.loc["aten::linear", ["device_total_ns", "launch_total_count"]].tolist() == [45_000, 2]  # fmt: skip
    assert totals.loc["aten::mm", ["device_total_ns", "launch_total_count"]].tolist() == [50_000, 2]


def test_flops_stand_at_the_innermost_op_whose_shapes_tell_them(tmp_path):
    """2·2·3·5 and 2·4·3·5 at mm; linear multiplies the same, and is not counted again."""
    found = by_shape(tmp_path, two_shapes())["flop_count"]
    assert found[("aten::mm", A)] == 60
    assert found[("aten::mm", B)] == 120
    assert pd.isna(found[("aten::linear", "[[2,3],[5,3]]")])


def test_recursion_counts_once_in_what_runs_inside(tmp_path):
    """f calls itself; the 30 launched in the inner call and the 5 in the outer one are 35, not 65."""
    rows = [op("f", 0, 100), op("f", 10, 50), *launched("k", 20, 200, 30, 1), *launched("k", 80, 300, 5, 2)]  # fmt: skip
    row = of(tmp_path, rows, "operator_totals").set_index("name").loc["f"]
    assert row[["count", "total_ns", "device_total_ns", "launch_total_count"]].tolist() == [2, 100_000, 35_000, 2]  # fmt: skip


def test_work_launched_at_once_on_another_thread_is_not_inside(tmp_path):
    rows = [op("f", 0, 100), op("g", 0, 100, tid=BACKWARD), *launched("k", 20, 200, 30, 1, tid=BACKWARD)]  # fmt: skip
    totals = of(tmp_path, rows, "operator_totals").set_index("name")["device_total_ns"]
    assert totals.to_dict() == {"f": 0, "g": 30_000}


def test_times_that_lie_hours_apart_change_nothing(tmp_path):
    """Another op 23 hours later on another thread; from a day on the reader leaves such rows out."""
    ages = 23 * 3600 * 10**6
    far = [shaped("f", ages + 10 * i, 5, [[i]], tid=200 + i) for i in range(20)]
    far += launched("k", ages + 1, ages + 20, 7, 99, tid=200)
    near, both = (by_shape(tmp_path / "a", two_shapes()), by_shape(tmp_path / "b", [*two_shapes(), *far]))
    for column in ("total_ns", "device_total_ns", "device_ns", "self_ns"):
        assert both.loc[near.index, column].tolist() == near[column].tolist()
    assert both.loc[("f", "[[0]]"), ["total_ns", "device_total_ns"]].tolist() == [5_000, 7_000]


def test_memory_of_an_op_and_of_all_inside_it(tmp_path):
    """empty takes 500 inside linear, which takes 100 itself; 30 are freed."""
    rows = [
        shaped("linear", 0, 100, [[2]]), shaped("empty", 10, 20, [[3]]),
        memory(15, 500, 500), memory(50, 100, 600), memory(55, -30, 570), memory(200, 9, 579),
    ]  # fmt: skip
    found = by_shape(tmp_path, rows)
    assert found["allocated_bytes"].to_dict() == {("linear", "[[2]]"): 100, ("empty", "[[3]]"): 500}
    assert found["allocated_total_bytes"].to_dict() == {("linear", "[[2]]"): 600, ("empty", "[[3]]"): 500}  # fmt: skip
    totals = of(tmp_path, rows, "operator_totals").set_index("name")
    assert totals["freed_total_bytes"].to_dict() == {"linear": 30, "empty": 0}


def test_work_on_two_streams_is_busy_once_and_on_two_gpus_twice(tmp_path):
    """0-40 and 20-50 on two streams: Σ 70, busy 50; on GPU 1 another 30."""
    rows = [shaped("mm", 0, 99, [[2]]), launch(1, 1), launch(3, 2), launch(5, 3)]
    rows += [kernel("a", 10, 40, 1, stream=7), kernel("b", 30, 30, 2, stream=8)]
    rows += [kernel("c", 20, 30, 3, device=1)]
    row = by_shape(tmp_path, rows).iloc[0]
    assert row[["device_ns", "device_busy_ns", "device_total_ns"]].tolist() == [100_000, 80_000, 100_000]  # fmt: skip


def test_beyond_the_cap_the_shapes_with_least_time_are_pooled_by_op(tmp_path, monkeypatch):
    """Of four shapes of f (10, 20, 30, 40 of its own) and one of g (5) two are kept; nothing is lost."""
    monkeypatch.setattr(module, "MAX_SHAPES", 2)
    rows = [shaped("f", 100 * i, 10 * i, [[i]]) for i in (1, 2, 3, 4)] + [shaped("g", 900, 5, [[1]])]  # fmt: skip
    found = of(tmp_path, rows, "operator_shapes")
    told = [(r["name"], None if pd.isna(r["dims"]) else r["dims"], r["shape_count"], r["count"], r["self_ns"]) for r in found.to_dict("records")]  # fmt: skip
    assert sorted(told, key=str) == sorted(
        [("f", "[[3]]", 1, 1, 30_000), ("f", "[[4]]", 1, 1, 40_000), ("f", None, 2, 2, 30_000), ("g", None, 1, 1, 5_000)],
        key=str,
    )  # fmt: skip


def test_the_sheet_names_shapes_and_types_as_a_person_reads_them(tmp_path):
    report = report_of(tmp_path, two_shapes())
    first = rows_of(section(report, "shapes"), "operators_by_shape")[0]
    assert (first["name"], first["shape"], first["type"]) == ("aten::mm", "2×3, 3×5", "BFloat16")
    assert (first["device_ns"], first["gflop"]) == (40_000, 60 / 1e9)


def test_without_shapes_and_gpu_and_memory_there_is_nothing_to_add(tmp_path):
    found = section(report_of(tmp_path, [op("mm", 0, 9)]), "shapes")
    assert (found.status, "record_shapes=True" in found.reason) == ("skipped", True)


def test_a_host_alone_has_no_words_about_gpus(tmp_path):
    """Shapes recorded, no device: host time orders the rows."""
    rows = [shaped("f", 0, 10, [[1]]), shaped("g", 20, 30, [[1]])]
    found = section(report_of(tmp_path, rows), "shapes")
    assert [row["name"] for row in rows_of(found, "operators_by_shape")] == ["g", "f"]
    assert "GPU" not in repr((found.sheets[0].headings, found.caveats, found.metrics))


@pytest.mark.parametrize(("calls", "flops"), [(1, 2**61), (2, None)])
def test_flops_that_might_not_fit_are_unknown(tmp_path, calls, flops):
    """2 · 2⁶⁰ of each call; a sum from 2⁶² on is not made."""
    square = [[2**20, 2**20], [2**20, 2**20]]
    rows = [shaped("aten::mm", 100 * number, 20, square) for number in range(calls)]
    (found,) = of(tmp_path, rows, "operator_shapes")["flop_count"]
    assert (None if pd.isna(found) else found) == flops


def test_with_a_gpu_operators_come_by_the_gpu_time_of_all_inside_them(tmp_path):
    found = section(report_of(tmp_path, two_shapes()), "shapes")
    rows = rows_of(found, "operators_inclusive")
    columns = ("name", "count", "device_total_ns", "launch_total_count", "total_ns")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("aten::mm", 2, 50_000, 2, 50_000), ("aten::linear", 1, 45_000, 2, 50_000),
    ]  # fmt: skip
    assert [metric.value for metric in found.metrics] == [3]
    assert found.caveats == ()
    shapes = [(row["name"], row["shape"]) for row in rows_of(found, "operators_by_shape")]
    assert shapes == [("aten::mm", "2×3, 3×5"), ("aten::mm", "4×3, 3×5"), ("aten::linear", "2×3, 5×3")]
    idle = [*two_shapes(), shaped("aten::idle", 300, 10, [[1]])]
    shown = section(report_of(tmp_path / "idle", idle), "shapes")
    assert "aten::idle" not in [row["name"] for row in rows_of(shown, "operators_by_shape")]
    assert (module.format_shapes(None, 2), module.format_shapes(None, 1)) == ("2 other shapes", "—")


def test_without_a_gpu_operators_come_by_the_bytes_allocated_inside_them(tmp_path):
    """A memory event without a size counts nowhere, and an op that allocates nothing is not shown."""
    unsized = memory(28, 7, 3_507)
    del unsized["args"]["Bytes"]
    rows = [op("f", 0, 10), memory(5, 1_000, 1_000), op("g", 20, 10), memory(25, 3_000, 4_000)]
    rows += [memory(27, -500, 3_500), unsized, op("h", 40, 5)]
    found = section(report_of(tmp_path, rows), "shapes")
    shown = rows_of(found, "operators_inclusive")
    columns = ("name", "allocated_total_bytes", "freed_total_bytes")
    assert [tuple(row[name] for name in columns) for row in shown] == [("g", 3_000, 500), ("f", 1_000, 0)]
    assert "device_total_ns" not in shown[0]
    assert found.caveats == (module.NOT_RECORDED,)
    assert found.metrics == ()


drawn_ops = st.lists(
    st.tuples(st.sampled_from("fg"), st.integers(0, 80), st.integers(0, 40), st.integers(1, 3), st.integers(0, 9)),
    min_size=1,
    max_size=10,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(drawn_ops, st.integers(0, 10**6))
def test_shapes_add_up_to_the_operators_and_time_zero_does_not_matter(tmp_path_factory, drawn, zero):
    folder = tmp_path_factory.mktemp("t")
    rows = []
    for number, (name, at, dur, size, work) in enumerate(drawn, 1):
        rows += [shaped(name, zero + at, dur, [[size]]), *launched("k", zero + at, zero + 200, work, number)]  # fmt: skip
    trace = tracekit.load(write(folder / "rank0.json", rows))
    fine = table(trace, "operator_shapes").astype({"name": object}).groupby("name")
    names = TABLES["operators"].frame(by_name.measure(trace)["operators"])
    names = names[names["kind"] == "op"].astype({"name": object}).set_index("name").sort_index()
    for column in ("count", "self_ns", "device_ns", "launch_count"):
        assert fine[column].sum().to_dict() == names[column].to_dict()
    moved = [row | {"ts": row["ts"] - zero} for row in rows]
    again = tracekit.load(write(folder / "rank1.json", moved))
    for name in ("operator_shapes", "operator_totals"):
        pd.testing.assert_frame_equal(table(trace, name), table(again, name))
    whole = table(trace, "operator_totals").astype({"name": object}).set_index("name").sort_index()
    assert (whole["device_total_ns"] >= names["device_ns"]).all()
    assert (whole["total_ns"] == names["total_ns"]).all()


HOSTILE = st.one_of(
    st.none(), st.integers(), st.text(max_size=5), st.floats(allow_nan=False),
    st.lists(st.lists(st.one_of(st.integers(-1, 2**62), st.text(max_size=2), st.lists(st.integers(0, 4), max_size=2)), max_size=4), max_size=4),
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["aten::mm", "aten::bmm", "aten::_softmax", "aten::copy_", "aten::_log_softmax", "aten::linear", "aten::scaled_dot_product_attention", "x"]), HOSTILE, HOSTILE), min_size=1, max_size=8))  # fmt: skip
def test_no_recorded_argument_breaks_a_question(tmp_path_factory, drawn):
    rows = []
    for number, (name, dims, types) in enumerate(drawn, 1):
        rows += [op(name, 10 * number, 8, **{"Input Dims": dims, "Input type": types})]
        rows += launched("k", 10 * number + 1, 10 * number + 2, 3, number)
    path = write(tmp_path_factory.mktemp("t") / "rank0.json", rows)
    result_of(path, ("shapes", "matmuls", "unfused", "forward-batches", "modules"))


def test_a_real_file_adds_up_to_its_operators():
    if REAL is None:
        pytest.skip("real profiles are not here")
    name = "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    trace = tracekit.load(Path(REAL) / "chrome" / name)
    fine = table(trace, "operator_shapes")
    names = TABLES["operators"].frame(by_name.measure(trace)["operators"])
    names = names[names["kind"] == "op"]
    for column in ("count", "self_ns", "device_ns", "allocated_bytes"):
        assert fine[column].sum() == names[column].sum()
    # 168 linear layers launch 336 kernels.
    whole = table(trace, "operator_totals").astype({"name": object}).set_index("name").loc["aten::linear"]  # fmt: skip
    assert (whole["count"], whole["launch_total_count"]) == (168, 336)
