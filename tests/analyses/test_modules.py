"""Time by module: rows of nn.Module, annotated wrappers, recorded hierarchies."""

import gzip
import json
import os
from pathlib import Path

import pandas as pd
import pytest
from analyses.in_depth import report_of, rows_of, section
from chrome_builder import annotation, launched, op, write
from hypothesis import given, settings
from hypothesis import strategies as st
from rules.host_report import frame_of

import tracekit
from tracekit.analyses.ops.modules import measure

QUESTIONS = ("modules",)

REAL = os.environ.get("TRACEKIT_REAL_DATA")


def call(name, ts, dur):
    return op(f"nn.Module: {name}", ts, dur) | {"cat": "python_function"}


def modules(trace, origin="python"):
    found = frame_of(measure(trace)["modules"])
    found = found.astype({"origin": object, "module": object})
    return found[found["origin"] == origin].set_index("module")


def load(tmp_path, rows, **want):
    return tracekit.load(write(tmp_path / "rank0.json", rows), **want)


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
    columns = ["instance_count", "count", "total_ns", "self_ns", "device_ns", "device_total_ns", "launch_count"]
    assert found.loc["Block", columns].tolist() == [1, 1, 100_000, 50_000, 8_000, 58_000, 1]
    assert found.loc["Linear", columns].tolist() == [2, 2, 50_000, 50_000, 50_000, 50_000, 2]


def test_classes_come_by_their_own_time_and_beyond_the_cap_those_of_least_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("tracekit.analyses.ops.modules.MAX_CLASSES", 2)
    rows = [call("Small_0", 0, 10), call("Large_0", 20, 30), call("Middle_0", 60, 20), op("aten::mm", 25, 5)]
    trace = load(tmp_path, rows)
    assert modules(trace)["self_ns"].to_dict() == {"Large": 30_000, "Middle": 20_000}
    assert measure(trace)["modules"]["module"].tolist() == ["Large", "Middle"]


def test_what_runs_outside_all_modules_is_in_none(tmp_path):
    rows = [*block(), op("aten::mm", 300, 10), *launched("k", 301, 400, 99, 9)]
    assert modules(load(tmp_path, rows))["device_ns"].sum() == 58_000


def test_a_module_within_its_like_counts_once_in_the_total(tmp_path):
    rows = [call("Seq_0", 0, 100), call("Seq_1", 10, 50), op("x", 20, 5), *launched("k", 21, 200, 7, 1)]  # fmt: skip
    row = modules(load(tmp_path, rows)).loc["Seq"]
    assert (row["count"], row["total_ns"], row["device_total_ns"]) == (2, 100_000, 7_000)


def test_without_a_gpu_launched_work_is_unknown(tmp_path):
    row = modules(load(tmp_path, [op("mm", 0, 9), call("Linear_0", 0, 10)])).loc["Linear"]
    assert row[["device_ns", "device_total_ns", "launch_count"]].isna().all()


def test_annotated_wrappers_are_kept_apart_from_modules(tmp_path):
    rows = [annotation("FSDP::pre_forward (layers.0)", 0, 10), annotation("FSDP::pre_forward (layers.1)", 20, 30)]  # fmt: skip
    found = modules(load(tmp_path, [*rows, *block()]), "range")
    assert found[["instance_count", "count", "total_ns"]].loc["FSDP::pre_forward"].tolist() == [2, 2, 40_000]  # fmt: skip
    assert "Block" not in found.index


def test_the_sheet_counts_calls_and_tells_the_share_of_gpu_time_in_modules(tmp_path):
    """58 of 100 of GPU time."""
    rows = [*block(), op("aten::mm", 300, 10), *launched("k", 301, 400, 42, 9)]
    (sheet,) = section(report_of(tmp_path, rows), "modules").sheets
    assert sheet.name == "modules_python"
    assert [heading.title for heading in sheet.headings if heading.name == "count"] == ["calls"]
    assert "58 % of the GPU time was launched in calls of modules." in sheet.caption


def test_a_recorded_hierarchy_gives_the_module_of_each_op(tmp_path):
    told = {"Module Hierarchy": "SELF(Net)::forward.fc(Linear)::forward"}
    rows = [op("aten::mm", 0, 10, **told), *launched("k", 1, 20, 5, 1), op("aten::add", 30, 4, **{"Module Hierarchy": ""})]  # fmt: skip
    row = modules(load(tmp_path, rows, stacks=True), "hierarchy").loc["Linear"]
    assert (row["count"], row["device_ns"]) == (1, 5_000)
    assert pd.isna(row["total_ns"])


def test_all_python_functions_tell_the_same_of_modules(tmp_path):
    rows = [call("Block_0", 0, 100), *block()[1:], op("train.py(3): loop", 0, 200) | {"cat": "python_function"}]  # fmt: skip
    pd.testing.assert_frame_equal(modules(load(tmp_path, rows, python=True)), modules(load(tmp_path, rows)))  # fmt: skip


def test_nothing_recorded_is_skipped_with_what_to_do(tmp_path):
    loop = op("train.py(3): loop", 0, 200) | {"cat": "python_function"}
    found = section(report_of(tmp_path, [op("mm", 0, 1), loop]), "modules")
    assert found.status == "skipped"
    assert "with_stack=True" in found.reason
    assert measure(tracekit.load(tmp_path / "rank0.json")) == {}


def test_the_share_is_of_all_gpu_time_of_the_sources_that_tell_of_modules(tmp_path):
    """58 of the 100 that rank 0 ran were launched in modules; the 900 of rank 1, which tells of none, count nowhere."""
    rows = [*block(), op("aten::mm", 300, 10), *launched("k", 301, 400, 42, 9)]
    other = [op("aten::mm", 0, 10), *launched("k", 1, 20, 900, 1)]
    found = section(report_of(tmp_path, {0: rows, 1: other}, ("modules", "attribution")), "modules")
    (sheet,) = found.sheets
    shares = {row["module"]: row["device_ratio"] for row in rows_of(found, "modules_python")}
    assert shares == {"Block": 0.08, "Linear": 0.5}
    assert sheet.caption.startswith("Over all processes and steps. 58 % of the GPU time")


def test_without_a_gpu_no_share_is_shown(tmp_path):
    found = section(report_of(tmp_path, [op("mm", 0, 9), call("Net_0", 0, 10)]), "modules")
    (row,) = rows_of(found, "modules_python")
    assert row.get("device_ratio") is None
    assert "GPU" not in found.sheets[0].caption


def test_calls_on_a_thread_of_their_own_do_not_claim_that_nothing_was_launched(tmp_path):
    """Where a profiler puts the calls on thread 0, what they launched is unknown and no zero."""
    rows = [row | {"tid": 0} if row["cat"] == "python_function" else row for row in block()]
    found = modules(load(tmp_path, rows))
    assert found["self_ns"].tolist() == [50_000, 50_000]
    assert found[["device_ns", "device_total_ns", "launch_count"]].isna().all(axis=None)


def test_ends_that_jitter_move_no_work_between_modules(tmp_path):
    """Each Linear is recorded to end before the op within it does, and to begin after it.

    What an op launches belongs to the module that runs when the launch begins.
    """
    rows = [
        call("Block_0", 0, 100), call("Linear_0", 11, 28), op("aten::mm", 10, 30), *launched("k", 16, 200, 20, 1),
        op("aten::add", 40, 10), *launched("k", 41, 270, 8, 3),
    ]  # fmt: skip
    found = modules(load(tmp_path, rows))
    assert found["device_ns"].to_dict() == {"Block": 8_000, "Linear": 20_000}
    assert found["self_ns"].to_dict() == {"Block": 72_000, "Linear": 28_000}


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


needs_data = pytest.mark.skipif(REAL is None, reason="real profiles are not here")
H100 = "chrome/tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
B200 = "chrome/tracelens/b200/eager_trace.json.gz"


@needs_data
def test_modules_of_a_real_file_hold_all_that_was_launched_in_the_model():
    """168 Linear layers launch 336 kernels; the model holds the work of all its modules."""
    found = modules(tracekit.load(Path(REAL) / H100))
    assert found.loc["Linear", ["instance_count", "count", "launch_count"]].tolist() == [168, 168, 336]  # fmt: skip
    assert found.loc["Qwen2Model", "device_total_ns"] == found["device_ns"].sum()


@needs_data
@pytest.mark.parametrize("name", [H100, B200])
def test_gpu_time_of_every_class_of_a_real_file_is_that_of_kernels_launched_in_its_calls(name):
    """Counted here from the document itself: calls by name, launches by correlation, on one thread."""
    document = json.loads(gzip.decompress((Path(REAL) / name).read_bytes()))
    rows = [row for row in document["traceEvents"] if row.get("ph") == "X"]
    spans = {}
    for row in rows:
        if row["name"].startswith("nn.Module: "):
            kind = row["name"].removeprefix("nn.Module: ").rpartition("_")[0]
            spans.setdefault(kind, []).append((row["ts"], row["ts"] + row["dur"], row["tid"]))
    begins = {
        row["args"]["correlation"]: (row["ts"], row["tid"])
        for row in rows
        if row.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in row["args"]
    }
    expected = dict.fromkeys(spans, 0)
    for row in rows:
        if row.get("cat") in DEVICE and row["args"]["correlation"] in begins:
            at, thread = begins[row["args"]["correlation"]]
            for kind, calls_of in spans.items():
                if any(low <= at < high and thread == tid for low, high, tid in calls_of):
                    expected[kind] += round(row["dur"] * 1000)
    found = modules(tracekit.load(Path(REAL) / name))
    assert found["device_total_ns"].to_dict() == expected
    assert found["count"].to_dict() == {kind: len(some) for kind, some in spans.items()}
