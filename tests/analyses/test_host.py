"""In how many pieces the host works: ops, launches and launch gaps by step and stage; R03; any trace gives sections."""

import os
from pathlib import Path

import numpy as np
import pytest
from chrome_builder import annotation, kernel, launch, launched, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import traces_host
from rules.firing import write_sources
from rules.host_report import RULES, STEP, evidence, frame_of, load, of, on, report, table
from rules.traces_host import LOADER, one_by_one

import tracekit
from tracekit.analyses import load_default_thresholds
from tracekit.analyses.ops import optimizer
from tracekit.analyses.rules import find_rule
from tracekit.analyses.time import data_loading, host, interruptions
from tracekit.model.intervals import merge_intervals
from tracekit.pipeline import run as pipeline
from tracekit.process.host.phases import classify_host_rows, measure_uncovered_time

QUESTIONS = ("data-loading", "host", "interruptions", "optimizer")

REAL = os.environ.get("TRACEKIT_REAL_DATA")
needs_data = pytest.mark.skipif(REAL is None, reason="real profiles are not here")


# The rules on their traces


@pytest.mark.parametrize("name", RULES)
def test_it_fires_with_the_numbers_worked_out_by_hand(tmp_path, name):
    expected = traces_host.FIRES[name]
    (found,) = on(tmp_path, expected.rows, name)
    assert (found.claim, found.severity) == (expected.claim, expected.severity)
    assert found.cost_ns == expected.cost_ns
    assert found.cost_ratio == pytest.approx(expected.cost_ratio)
    assert evidence(found) == pytest.approx(expected.evidence)
    assert found.advice
    assert found.places
    assert find_rule(name).id == name


@pytest.mark.parametrize("name", RULES)
def test_a_near_miss_does_not_fire(tmp_path, name):
    assert on(tmp_path, traces_host.NEAR_MISSES[name], name) == []


@pytest.mark.parametrize("name", RULES)
def test_on_its_trace_no_other_rule_fires(tmp_path, name):
    path = write_sources(tmp_path, traces_host.FIRES[name].rows)
    assert {f.rule for f in report(path, None).findings} == {name}


# What is counted


def test_leaf_ops_calls_and_launches_of_a_step_and_its_stages(tmp_path):
    """gen: aten::linear (30) around aten::addmm (20) and the launch; then add (4). update: one mul of 12 on another thread."""
    rows = [
        step(3, 0, 100), annotation("gen", 0, 50), annotation("actor_update", 50, 50),
        op("aten::linear", 1, 30), op("aten::addmm", 5, 20), *launched("gemm", 10, 15, 40, 1),
        op("aten::add", 40, 4), op("aten::mul", 60, 12, tid=101),
    ]  # fmt: skip
    found = table(tmp_path, rows, host, "host_counts")
    found = found.set_index("stage").loc[[np.nan, "gen", "actor_update"]]
    assert found["window"].tolist() == ["step", "stage", "stage"]
    assert found["step"].tolist() == [3, 3, 3]
    assert found["wall_ns"].tolist() == [100_000, 50_000, 50_000]
    assert found["leaf_count"].tolist() == [3, 2, 1]
    assert found["leaf_ns"].tolist() == [36_000, 24_000, 12_000]
    assert found["call_count"].tolist() == [3, 2, 1]
    # Calls of 30, 4 and 12 µs; of gen 30 and 4: 17 in the middle.
    assert found["call_p50_ns"].tolist() == [12_000, 17_000, 12_000]
    # Short is only the add: the mul of another thread takes nobody's time but its own, and is longer.
    assert found["short_ns"].tolist() == [4_000, 4_000, 0]
    assert found["launch_count"].tolist() == [1, 1, 0]
    assert found["kernel_count"].tolist() == [1, 1, 0]
    assert found["kernel_ns"].tolist() == [40_000, 40_000, 0]
    assert found["kernel_p50_ns"].isna().tolist() == [False, False, True]


def test_stages_of_one_name_in_a_step_are_one_row(tmp_path):
    rows = [step(1, 0, 100), annotation("gen", 0, 20), annotation("gen", 40, 30)]
    rows += [op("a", 1, 2), op("a", 41, 2), op("a", 80, 2)]
    found = table(tmp_path, rows, host, "host_counts")
    assert found["stage"].tolist()[1:] == ["gen"]
    assert found["wall_ns"].tolist() == [100_000, 50_000]
    assert found["leaf_count"].tolist() == [3, 2]


def test_without_a_device_nothing_is_said_of_kernels(tmp_path):
    path = write(tmp_path / "rank0.json", [step(1, 0, 100), op("a", 1, 2)])
    section = next(s for s in report(path).sections if s.id == "host")
    names = {heading.name for heading in section.sheets[0].headings}
    assert not names & {"kernel_count_each", "gap_ratio", "launch_count_each", "kernel_p50_ns"}
    text = tracekit.render(report(path), "md")
    assert "launch gaps" not in text


def test_kernels_of_graphs_are_counted_apart(tmp_path):
    rows = [step(1, 0, 100), annotation("gen", 0, 100), launch(1, 1, name="cudaGraphLaunch")]
    rows += [kernel("k", 10 + 5 * k, 4, 1) for k in range(3)] + launched("gemm", 30, 40, 20, 2)
    row = table(tmp_path, rows, host, "host_counts").iloc[0]
    assert row[["graph_kernel_count", "kernel_count", "kernel_ns"]].tolist() == [3, 1, 20_000]
    assert row["launch_count"] == 2


def test_a_driver_call_within_a_runtime_call_is_one_launch(tmp_path):
    rows = [step(1, 0, 100), launch(1, 1, dur=10), launch(2, 1, dur=4, name="cuLaunchKernel")]
    rows += [launch(20, 9, dur=1, name="cudaLaunchHostFunc"), kernel("k", 30, 5, 1)]
    assert table(tmp_path, rows, host, "host_counts")["launch_count"].tolist() == [1]


# R03


def test_launch_gaps_are_a_tenth_of_the_stage(tmp_path):
    """9 of 90 µs fire; 9 of 91 do not."""
    assert on(tmp_path / "a", one_by_one(8, 1, last=9), "launch-bound")
    assert on(tmp_path / "b", one_by_one(8, 1, last=10), "launch-bound") == []


def test_kernels_that_wait_in_the_queue_are_not_launch_bound(tmp_path):
    """The same gaps, but every launch came before the kernel before it had ended."""
    rows = one_by_one(8, 1, last=9)
    early = [r | {"ts": 0} if r["cat"] == "cuda_runtime" else r for r in rows]
    assert on(tmp_path, early, "launch-bound") == []


@pytest.mark.parametrize("name", ["cudaGraphLaunch", "hipGraphLaunch"])
def test_gaps_between_graphs_are_not_meant(tmp_path, name):
    rows = one_by_one(8, 1, last=9)
    rows = [r | {"name": name} if r["cat"] == "cuda_runtime" else r for r in rows]
    assert on(tmp_path, rows, "launch-bound") == []


@pytest.mark.parametrize("name", ["cudaStreamSynchronize", "cudaMemcpy", "cudaMalloc", "cuModuleLoadData"])  # fmt: skip
def test_gaps_with_a_cause_of_their_own_are_not_meant(tmp_path, name):
    rows = one_by_one(8, 1, last=9)
    calls = [launch(9 * k + 7, 100 + k, dur=2, name=name) for k in range(9)]
    assert on(tmp_path, [*rows, *calls], "launch-bound") == []


def test_a_pause_of_the_host_is_no_launch_gap(tmp_path):
    """Kernels of 5 µs every 1.1 ms: the host is away, not launching. At 900 µs apart it is."""
    assert on(tmp_path / "a", one_by_one(5, 1100, last=5), "launch-bound") == []
    assert on(tmp_path / "b", one_by_one(5, 900, last=5), "launch-bound")


def test_the_kernels_of_the_optimizer_are_judged_by_their_own_rule(tmp_path):
    rows = [*one_by_one(8, 1, last=9), annotation(STEP, 0, 90)]
    assert on(tmp_path, rows, "launch-bound") == []


def many_kernels(count, dur, gap=1):
    """A step of back-to-back short kernels in a long stage, launched before it needs them."""
    rows = [launch(k, k + 1, dur=1) for k in range(count)]
    start = count + 10
    rows += [kernel("k", start + k * (dur + gap), dur, k + 1) for k in range(count)]
    return [step(1, 0, start + count * (dur + gap)), *rows]


@pytest.mark.parametrize(("count", "dur", "fires"), [(5001, 4, True), (5000, 4, False), (5001, 5, False)])  # fmt: skip
def test_a_step_of_over_five_thousand_kernels_below_five_microseconds(tmp_path, count, dur, fires):
    found = on(tmp_path, many_kernels(count, dur), "launch-bound")
    assert [f.claim for f in found] == ["the step launches 5,001 kernels of 4.00 µs on average one by one"] * fires  # fmt: skip
    # They were all launched in time: nothing would be given back.
    assert [(f.cost_ns, f.severity) for f in found] == [(0, "info")] * fires


@pytest.mark.parametrize(("count", "dur", "fires"), [(5001, 4, True), (5000, 4, False), (5001, 5, False)])  # fmt: skip
def test_without_a_device_ops_are_counted(tmp_path, count, dur, fires):
    """5001 calls of two ops of 4 µs, one every 10: 20,004 of 100,000 µs."""
    rows = [step(1, 0, 100_000), annotation("gen", 0, 100_000)]
    rows += [op(("aten::add", "aten::mul")[k % 2], 10 * k, dur) for k in range(count)]
    assert on(tmp_path / "a", rows, "launch-bound") == []
    found = on(tmp_path / "b", rows, "small-ops")
    assert bool(found) == fires
    if fires:
        assert found[0].cost_ns == 20_004_000
        assert found[0].places[0].stage == "gen"
        assert "GPU" not in found[0].claim


def loop_of(names, stage="gen", between=()):
    """A step of 20 ms: a call of 4 µs of each name, one every 10 µs, and rows between."""
    calls = [op(name, 10 * place, 4) for place, name in enumerate(names)]
    return [step(1, 0, 20_000), annotation(stage, 0, 15_000), *calls, *between]


@pytest.mark.parametrize(
    ("rows", "fires"),
    [
        (loop_of(["aten::add"] * 200), True),
        (loop_of(["aten::add"] * 200, stage=STEP), False),
        (loop_of(["aten::add", "aten::mul"] * 100), False),
        (loop_of(["aten::add"] * 200, between=[op("aten::mm", 995, 4)]), True),
        (loop_of(["aten::add"] * 180, between=[op("aten::mm", 895, 4)]), False),
        ([*loop_of(["aten::add"] * 200), kernel("k", 0, 5)], False),
    ],
)
def test_calls_of_one_op_in_a_row_are_a_loop(tmp_path, rows, fires):
    """200 calls take 1,994 of 20,000 µs; the first of each loop is kept. Another op cuts a loop in two."""
    assert bool(on(tmp_path, rows, "small-ops")) == fires


def test_a_loop_saves_what_its_calls_take_after_the_first(tmp_path):
    (found,) = [f for f in report(write(tmp_path / "a.json", loop_of(["aten::add"] * 200)), None).findings if f.saving]
    assert (found.rule, found.saving.alone_ns) == ("small-ops", 1_990_000)


def test_the_time_of_the_optimizers_calls_is_not_given_back_twice(tmp_path):
    rows = [step(1, 0, 100_000), annotation(STEP, 0, 50_000)]
    rows += [op(("aten::add", "aten::mul")[k % 2], 10 * k, 4) for k in range(6000)]
    (found,) = on(tmp_path, rows, "small-ops")
    # 1000 of the 6000 begin after 50,000 µs.
    assert found.cost_ns == 4_000_000


def test_the_gaps_of_two_gpus_are_averaged(tmp_path):
    """Device 0 waits 9 of 90 for launches, device 1 never: 5 %, below 10 %."""
    rows = [*one_by_one(8, 1, last=9), launch(0, 500), kernel("long", 0, 90, 500, device=1)]
    assert on(tmp_path, rows, "launch-bound") == []


# Whatever comes


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=30)


@given(intervals)
def test_uncounted_parts_add_up_to_the_union(drawn):
    start = np.array([s for s, _ in drawn], np.int64)
    end = start + np.array([d for _, d in drawn], np.int64)
    own = measure_uncovered_time(start, end)
    assert own.sum() == merge_intervals(start, end).total
    assert (own <= end - start).all()


EVERYTHING = [
    *one_by_one(8, 1, last=9), annotation(LOADER, 1, 30), annotation(STEP, 40, 20), op("aten::mul_", 41, 3),
    op("x (dynamo_timed)", 5, 20), launch(30, 90, 4, name="cudaMalloc"), op("aten::add", 70, 2, tid=101),
]  # fmt: skip


@settings(max_examples=6, deadline=None)
@given(st.permutations(EVERYTHING), st.integers(-5, 5))
def test_the_order_of_rows_and_the_clock_change_nothing(tmp_path_factory, rows, days):
    def measured(rows, base):
        path = write(tmp_path_factory.mktemp("t") / "rank0.json", rows, base_ns=base)
        trace = tracekit.load(path)
        found = {}
        for module in (host, interruptions, data_loading, optimizer):
            for name, columns in module.measure(trace).items():
                frame = frame_of(columns)
                instants = frame.filter(like="ts_ns").columns
                frame[instants] -= base
                found[module.ANALYSIS.id, name] = frame.astype(str).to_dict("list")
        return found

    base = 1_700_000_000_000_000_000
    assert measured(rows, base + days * 86_400_000_000_000) == measured(EVERYTHING, base)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [step(1, 0, 0)],
        [step(1, 0, 100), annotation(STEP, 0, 0), annotation(LOADER, 0, 0)],
        [kernel("k", 0, 5), kernel("k", 9, 5, device=None)],
        [step(1, 0, 100), step(1, 50, 100), op("a", 60, 10**13), op("a", -5, 3)],
        [annotation(STEP, 0, 50), annotation(LOADER, 60, 9), op("x (dynamo_timed)", 70, 9)],
        [step(1, 0, 100), op("", 1, 2), op("Optimizer.step#", 3, 9), launch("x", "y", dur="z")],
        [launch(0, 1, name="cudaMalloc"), *launched("k", 5, 6, 10**12, 2)],
    ],
)
def test_odd_traces_give_sections(tmp_path, rows):
    path = write(tmp_path / "rank0.json", [*rows, {"ph": "M", "name": "process_name", "pid": 1}])
    try:
        pipeline.discover_sources(path)
        out = report(path)
    except tracekit.TracekitError:
        return
    assert {"host", "interruptions", "data-loading", "optimizer"} <= {s.id for s in out.sections}
    tracekit.render(out, "md")


def test_the_leaf_test_is_about_ops_only(tmp_path):
    """A runtime call within an op does not make it an inner op."""
    trace = load(tmp_path, [op("aten::mm", 0, 10), launch(2, 1)])
    assert trace["host_ops"]["name"][classify_host_rows(trace).leaf].tolist() == ["aten::mm"]


# Real traces


def gloo(name):
    return Path(REAL) / "chrome" / "gloo_cpu" / name


@pytest.mark.slow
@needs_data
def test_eight_hundred_scalar_adds_are_found_and_clean_runs_are_not():
    (found,) = of(gloo("fault_tiny_ops"), "small-ops")
    assert (found.severity, found.places[0].stage) == ("info", "update_actor")
    assert 5_100 < evidence(found)["ops"] < 5_200
    for name in ("base_run1", "base_mem", "fault_leak", "straggler", "verl_like_perstep"):
        assert of(gloo(name), "launch-bound", "small-ops", "data-loader-wait", "recompilation") == []


@needs_data
def test_every_threshold_of_ours_is_used_by_its_page():
    for name in RULES:
        for key in load_default_thresholds().of(name):
            assert key in tracekit.analyses.rules.read_rule_page(name)
