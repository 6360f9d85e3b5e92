"""The breakdown by time, worked out by hand and on real files by an independent brute force."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from chrome_builder import annotation, kernel, launch, memcpy, memset, op, step, write
from columns import columns_of
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import breakdown_of, breakdowns

import tracekit
from tracekit.analyses.time import gpu_time
from tracekit.analyses.time.gpu_time import (
    _describe_busy_stages,
    _group_idle_stages_by_cause,
    _is_idle_by_host,
    breakdown,
    measure,
)
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Columns
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.process.device.busy import PARTS, break_down_device_windows, compute_busy_intervals

QUESTIONS = ("gpu-time",)

BREAKDOWNS = breakdowns()
REAL = os.environ.get("TRACEKIT_REAL_DATA")


def load(tmp_path, rows, name="rank0.json"):
    return tracekit.load(write(tmp_path / name, rows))


def by_device(device_ops):
    """The breakdown of a frame of device ops, as a frame."""
    return breakdown(columns_of(device_ops)).frame()


def test_parts_by_priority_worked_by_hand(tmp_path):
    """compute 0-10 and 40-50; nccl 5-25; copy 20-45; fill 44-60; nothing 60-70; compute 70-80 (all in µs)."""
    rows = [
        kernel("gemm", 0, 10), kernel("ncclDevKernel_AllReduce", 5, 20, stream=9),
        memcpy("Memcpy HtoD (Pinned -> Device)", 20, 25, 1000), kernel("gemm", 40, 10),
        memset(44, 16, 64), kernel("gemm", 70, 10),
    ]  # fmt: skip
    found = by_device(load(tmp_path, rows)["device_ops"]).iloc[0]
    assert found["window_ns"] == 80_000
    assert found["compute_ns"] == 30_000
    assert found["exposed_comm_ns"] == 15_000
    assert found["exposed_memcpy_ns"] == 15_000
    assert found["exposed_memset_ns"] == 10_000
    assert found["idle_ns"] == 10_000
    assert found["comm_ns"] == 20_000
    assert found["overlap_ns"] == 5_000
    assert found["busy_ns"] == 70_000


def test_each_gpu_of_a_file_has_a_breakdown_of_its_own(tmp_path):
    rows = [kernel("a", 0, 10, device=0), kernel("b", 0, 30, device=1), kernel("c", 20, 10, device=0)]
    found = by_device(load(tmp_path, rows)["device_ops"])
    assert found["device"].tolist() == [0, 1]
    assert found["idle_ns"].tolist() == [10_000, 0]


def test_no_device_ops_give_an_empty_breakdown():
    assert len(breakdown(TABLES["device_ops"].no_rows())) == 0


def test_steps_and_stages_are_windows_by_time(tmp_path):
    """The kernel is launched in step 1 and runs half in step 2: by time each has its half, as the host does not run ahead in most."""
    rows = [
        *(step(number, 100 * (number - 1), 100) for number in range(1, 6)),
        annotation("gen", 0, 60),
        launch(10, 1),
        kernel("k", 50, 100, 1),
    ]
    table = TABLES["gpu_time"]
    columns = measure(load(tmp_path, rows))["gpu_time"]
    frame = Columns(len(columns["ts_ns"]), columns).frame()
    assert list(frame["window"]) == ["capture", *["step"] * 5, "stage"]
    assert list(frame["compute_ns"]) == [100_000, 50_000, 50_000, 0, 0, 0, 10_000]
    assert list(frame["window_ns"]) == [*[100_000] * 6, 60_000]
    assert list(frame["op_count"]) == [1, 1, 1, 0, 0, 0, 1]
    assert set(frame) <= set(table.columns)


ops = st.lists(
    st.tuples(st.sampled_from(["k", "nccl", "copy", "fill"]), st.integers(0, 50), st.integers(0, 20), st.integers(0, 1)),
    min_size=1, max_size=15,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(ops, st.integers(-5, 40), st.integers(0, 40))
def test_the_parts_and_idle_add_up_to_any_window(tmp_path_factory, drawn, start, length):
    make = {
        "k": lambda t, d, g: kernel("gemm", t, d, device=g),
        "nccl": lambda t, d, g: kernel("ncclKernel", t, d, device=g),
        "copy": lambda t, d, g: memcpy("Memcpy DtoD (Device -> Device)", t, d, 1, device=g),
        "fill": lambda t, d, g: memset(t, d, 1, device=g),
    }
    rows = [make[kind](t, d, g) for kind, t, d, g in drawn]
    trace = load(tmp_path_factory.mktemp("t"), rows)
    whole = by_device(trace["device_ops"])
    assert (whole[[*PARTS, "idle_ns"]].sum(axis=1) == whole["window_ns"]).all()
    state = compute_busy_intervals(*(trace.array("device_ops", name) for name in ("ts_ns", "dur_ns", "kind")))
    base = int(trace["device_ops"]["ts_ns"].min())
    part = break_down_device_windows(state, np.array([base + start * 1000]), np.array([base + (start + length) * 1000]))
    assert sum(int(part[name][0]) for name in (*PARTS, "idle_ns")) == length * 1000


@pytest.mark.parametrize("name", BREAKDOWNS)
def test_real_files_match_the_brute_force_to_the_nanosecond(name):
    expected = breakdown_of(name)
    trace = tracekit.load(BREAKDOWNS[name])
    device_ops = trace["device_ops"]
    found = by_device(device_ops)
    assert len(found) == 1
    row = found.iloc[0]
    figures = {
        "window_us": "window_ns", "busy_us": "busy_ns", "compute_us": "compute_ns", "comm_us": "comm_ns",
        "exposed_comm_us": "exposed_comm_ns", "exposed_memcpy_us": "exposed_memcpy_ns",
        "exposed_memset_us": "exposed_memset_ns", "idle_us": "idle_ns",
    }  # fmt: skip
    assert {k: int(row[v]) for k, v in figures.items()} == {k: round(expected[k] * 1000) for k in figures}
    assert len(device_ops) == expected["GPU_events"]
    assert round(100 * row["busy_ns"] / row["window_ns"], 2) == expected["util_pct"]
    overlap = None if row["comm_ns"] == 0 else round(100 * row["overlap_ns"] / row["comm_ns"], 3)
    assert overlap == expected["overlap_pct"]
    copies = device_ops[device_ops["kind"] == "memcpy"]
    assert int(copies["size_bytes"].sum()) == expected["memcpy_bytes"]


def test_a_step_may_launch_more_than_its_wall_but_never_be_busier_than_it():
    if REAL is None:
        pytest.skip("real profiles are not here")
    path = next(Path(REAL, "chrome/hta/ns_resolution_trace").glob("*.gz"))
    measured = analyze_uncached(path, Options(questions=QUESTIONS)).measurements
    steps, time = measured["steps"], measured["gpu_time"]
    assert (steps["work_busy_ns"] > steps["dur_ns"]).any()
    by_time = time[time["window"] == "step"]
    assert (by_time["window_ns"] - by_time["idle_ns"] <= by_time["window_ns"]).all()
    assert (by_time[[*PARTS, "idle_ns"]].sum(axis=1) == by_time["window_ns"]).all()


STEP_WALLS = {
    "kineto_tb_plugin/samples/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz":
        (5, [176078, 173992, 176918, 181259, 176468, 164261]),
    "kineto_tb_plugin/samples/resnet50_num_workers_0/worker0.1623143566756.pt.trace.json.gz":
        (16, [159363, 149046, 148659, 151733, 153205, 155725]),
    "kineto_tb_plugin/samples/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz":
        (5, [181565, 123884, 126824, 126272, 163461, 116146]),
    "kineto_tb_plugin/samples/resnet50_num_workers_4/worker0.1623213129365.pt.trace.json.gz":
        (16, [160076, 121940, 123110, 117820, 127064, 206514]),
    "hta/nccl_parser_config/nccl_data.json.gz": (4, [222442.2, 219726.9, 224936.2]),
    "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz":
        (101, [35115.9, 72077.5, 95697.3, 95551.1, 95699.0]),
    "hta/trace_diff/control/control.json.gz": (1009, [75473, 76940, 76212, 76727, 78473, 81120]),
    "hta/negative_queue_length_values_check/rank0.json.gz":
        (550, [209748, 216483, 216119, 215467, 216216]),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(STEP_WALLS))
def test_step_walls_of_real_files_are_the_known_ones(name):
    if REAL is None:
        pytest.skip("real profiles are not here")
    first, walls = STEP_WALLS[name]
    steps = analyze_uncached(Path(REAL) / "chrome" / name, Options(questions=QUESTIONS)).measurements["steps"]
    assert steps["step"].tolist() == list(range(first, first + len(walls)))
    digits = 1 if any(isinstance(wall, float) for wall in walls) else 3
    assert [round(ns / 1000, digits) for ns in steps["dur_ns"]] == walls


def test_host_ops_alone_are_no_gpu_time(tmp_path):
    assert measure(load(tmp_path, [op("a", 0, 5)])) == {}


def idle_stage(name, window_ns, idle_ns):
    """A stage of so many ns, idle for so many."""
    gpu_time = {"window_ns": window_ns, "idle_ns": idle_ns, "busy_ratio": (window_ns - idle_ns) / window_ns}
    return SimpleNamespace(name=name, gpu_time=gpu_time)


def test_up_to_four_idle_stages_are_named_and_the_first_three_of_more():
    stages = [idle_stage(f"s{number} of run a", 100, 10 * number) for number in (9, 8, 7, 6, 5)]
    assert _describe_busy_stages(stages[:1], " of run a") == "GPUs are busy 10 % of s9 of run a"
    assert _describe_busy_stages(stages[:2], " of run a") == "GPUs are busy 10 % of s9 and 20 % of s8 of run a"
    four = "GPUs are busy 10 % of s9, 20 % of s8, 30 % of s7 and 40 % of s6 of run a"
    assert _describe_busy_stages(stages[:4], " of run a") == four
    five = "GPUs are busy 10 % of s9, 20 % of s8, 30 % of s7 and at most 50 % of 2 other stages of run a"
    assert _describe_busy_stages(stages, " of run a") == five


@pytest.mark.parametrize(
    ("holder", "idle_ns", "after_ns", "is_by_host"),
    [
        ("function", 600, 100, True), ("function", 600, 101, False), ("function", 499, 0, False),
        ("op", 500, 0, True), ("nothing", 900, 0, False), ("device", 900, 0, False), (None, 900, 0, False),
    ],
)  # fmt: skip
def test_a_place_of_the_host_explains_a_capture_with_half_its_idle_time(
    monkeypatch, holder, idle_ns, after_ns, is_by_host
):
    """1000 ns are idle; those after the last work are not the place's."""
    culprit = None if holder is None else SimpleNamespace(holder=holder, idle_ns=idle_ns)
    monkeypatch.setattr(gpu_time, "_find_idle_culprit", lambda *_: culprit)
    monkeypatch.setattr(gpu_time, "sum_judged_idle_by_cause", lambda _: {("run", None, None, "after_last"): after_ns})
    window = SimpleNamespace(key=("run", None, None), gpu_time={"idle_ns": 1000})
    assert _is_idle_by_host(None, window) is is_by_host


@pytest.mark.parametrize("is_recorded", [True, False])
def test_stages_of_one_owner_that_one_place_keeps_idle_are_a_group_the_most_idle_first(monkeypatch, is_recorded):
    """Without records of who was busy, each stage is a group of its own."""
    places = {"gen": "load", "ref": "load", "update": None, "other": "load"}

    def find_culprit(_, window):
        place = places[window.key]
        return None if place is None else SimpleNamespace(holder="op", place=place)

    monkeypatch.setattr(gpu_time, "find_culprit_of_window", find_culprit)
    stages = [
        SimpleNamespace(key=key, owner=(owner,), gpu_time={"idle_ns": idle_ns})
        for key, owner, idle_ns in (("gen", "a", 10), ("update", "a", 50), ("ref", "a", 30), ("other", "b", 5))
    ]
    groups = _group_idle_stages_by_cause(SimpleNamespace(has=lambda *_: is_recorded), stages)
    named = [[stage.key for stage in group] for group in groups]
    alone = [["gen"], ["update"], ["ref"], ["other"]]
    assert named == ([["ref", "gen"], ["update"], ["other"]] if is_recorded else alone)
