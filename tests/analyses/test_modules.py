"""Time by module: rows of nn.Module, annotated wrappers, recorded hierarchies."""

import os
from pathlib import Path

import pandas as pd
import pytest
from analyses.in_depth import report_of, section
from chrome_builder import annotation, launched, op, write
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit
from tracekit.analyses.modules import measure

REAL = os.environ.get("TRACEKIT_REAL_DATA")


def call(name, ts, dur):
    return op(f"nn.Module: {name}", ts, dur) | {"cat": "python_function"}


def modules(trace, origin="python"):
    found = pd.DataFrame({n: pd.Series(v) for n, v in measure(trace)["modules"].items()})
    found = found.astype({"origin": object, "module": object})
    return found[found["origin"] == origin].set_index("module")


def load(tmp_path, rows, **want):
    return tracekit.load(write(tmp_path / "rank0.json", rows), **{"python": True, **want})


def block(**_):
    """Block_0 0-100 calls Linear_0 10-40 and Linear_1 50-70; 8 launched by Block itself, 20 and 30 inside."""
    return [
        call("Block_0", 0, 100), call("Linear_0", 10, 30), call("Linear_1", 50, 20),
        op("aten::mm", 15, 10), *launched("k", 16, 200, 20, 1),
        op("aten::mm", 55, 10), *launched("k", 56, 230, 30, 2),
        op("aten::add", 80, 10), *launched("k", 81, 270, 8, 3),
    ]  # fmt: skip


def test_a_module_has_its_own_part_and_that_of_the_modules_it_calls(tmp_path):
    found = modules(load(tmp_path, block()))
    columns = [
        "instance_count",
        "count",
        "total_ns",
        "self_ns",
        "device_ns",
        "device_total_ns",
        "launch_count",
    ]
    assert found.loc["Block", columns].tolist() == [1, 1, 100_000, 50_000, 8_000, 58_000, 1]
    assert found.loc["Linear", columns].tolist() == [2, 2, 50_000, 50_000, 50_000, 50_000, 2]


def test_what_runs_outside_all_modules_is_in_none(tmp_path):
    rows = [*block(), op("aten::mm", 300, 10), *launched("k", 301, 400, 99, 9)]
    assert modules(load(tmp_path, rows))["device_ns"].sum() == 58_000


def test_a_module_within_its_like_counts_once_in_the_total(tmp_path):
    rows = [call("Seq_0", 0, 100), call("Seq_1", 10, 50), op("x", 20, 5), *launched("k", 21, 200, 7, 1)]  # fmt: skip
    row = modules(load(tmp_path, rows)).loc["Seq"]
    assert (row["count"], row["total_ns"], row["device_total_ns"]) == (2, 100_000, 7_000)


def test_without_a_gpu_launched_work_is_unknown(tmp_path):
    row = modules(load(tmp_path, [call("Linear_0", 0, 10)])).loc["Linear"]
    assert row[["device_ns", "device_total_ns", "launch_count"]].isna().all()


def test_annotated_wrappers_are_kept_apart_from_modules(tmp_path):
    rows = [annotation("FSDP::pre_forward (layers.0)", 0, 10), annotation("FSDP::pre_forward (layers.1)", 20, 30)]  # fmt: skip
    found = modules(load(tmp_path, [*rows, *block()]), "range")
    assert found[["instance_count", "count", "total_ns"]].loc["FSDP::pre_forward"].tolist() == [2, 2, 40_000]  # fmt: skip
    assert "Block" not in found.index


def test_a_recorded_hierarchy_gives_the_module_of_each_op(tmp_path):
    told = {"Module Hierarchy": "SELF(Net)::forward.fc(Linear)::forward"}
    rows = [op("aten::mm", 0, 10, **told), *launched("k", 1, 20, 5, 1), op("aten::add", 30, 4, **{"Module Hierarchy": ""})]  # fmt: skip
    row = modules(load(tmp_path, rows, stacks=True), "hierarchy").loc["Linear"]
    assert (row["count"], row["device_ns"]) == (1, 5_000)
    assert pd.isna(row["total_ns"])


def test_nothing_recorded_is_skipped_with_what_to_do(tmp_path):
    found = section(report_of(tmp_path, block()), "modules")
    assert (found.status, "python=True" in found.reason) == ("skipped", True)
    assert measure(tracekit.load(write(tmp_path / "a.json", [op("mm", 0, 1)]))) == {}


calls = st.lists(
    st.tuples(st.sampled_from(["A_0", "A_1", "B_0"]), st.integers(0, 80), st.integers(0, 40)), max_size=8
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(calls, st.integers(0, 10**6))
def test_own_parts_add_up_to_the_time_in_modules_wherever_zero_is(tmp_path_factory, drawn, zero):
    folder = tmp_path_factory.mktemp("t")
    rows = [op("aten::mm", zero, 200), *launched("k", zero + 1, zero + 300, 9, 1)]
    rows += [call(name, zero + at, dur) for name, at, dur in drawn]
    found = measure(load(folder, rows))
    inside = {now for _, at, dur in drawn for now in range(at, at + dur)}
    if not drawn:
        assert found == {}
        return
    # The op around them is in none; the modules are all that runs on top of it.
    assert sum(found["modules"]["self_ns"]) == 1000 * len(inside)


def test_modules_of_a_real_file_hold_all_that_was_launched_in_the_model():
    """168 Linear layers launch 336 kernels; the model holds the work of all its modules."""
    if REAL is None:
        pytest.skip("real profiles are not here")
    path = Path(REAL) / "chrome/tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    found = modules(tracekit.load(path, python=True))
    assert found.loc["Linear", ["instance_count", "count", "launch_count"]].tolist() == [168, 168, 336]  # fmt: skip
    assert found.loc["Qwen2Model", "device_total_ns"] == found["device_ns"].sum()
