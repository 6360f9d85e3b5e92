"""What keeps the host from its work: loaders (R04), the driver's allocator (R21), the optimizer (R26), compiling (R28)."""

import os
from pathlib import Path

import pytest
from chrome_builder import annotation, launch, launched, op, step, write
from rules.firing import write_sources
from rules.host_report import STEP, evidence, of, on, table, verdicts
from rules.traces_host import ADAM, LOADER, asking, updating, waiting

from tracekit.analyses.ops import optimizer
from tracekit.analyses.time import data_loading, host, interruptions
from tracekit.job.idle_time.loader_waits import sum_loader_waits
from tracekit.job.steps.steady_steps import drop_left_out_steps
from tracekit.job.steps.warm_up import _OPENING, DroppedStep
from tracekit.pipeline.run import Options, analyze_uncached

QUESTIONS = ("data-loading", "host", "interruptions", "optimizer")

REAL = os.environ.get("TRACEKIT_REAL_DATA")
needs_data = pytest.mark.skipif(REAL is None, reason="real profiles are not here")


# R04


def test_a_wait_behind_gpu_work_is_low(tmp_path):
    """The loader takes 20 of 100, the GPU works all the time: nothing would be given back."""
    rows = waiting(20, 20, 20)
    rows += [row for k in range(3) for row in launched("k", 100 * k, 100 * k, 100, k + 1)]
    (found,) = on(tmp_path, rows, "data-loader-wait")
    assert (found.severity, found.cost_ns) == ("low", 0)
    assert found.caveats


def test_only_the_idle_part_of_a_wait_is_given_back(tmp_path):
    """The GPU works until 12 of a wait of 20; two devices: idle is when neither runs anything."""
    rows = waiting(20, 20, 20)
    for k in range(3):
        rows += launched("k", 100 * k, 100 * k, 8, 2 * k + 1)
        rows += launched("k", 100 * k, 100 * k + 6, 6, 2 * k + 2, device=1)
    (found,) = on(tmp_path, rows, "data-loader-wait")
    assert (found.severity, found.cost_ns, found.cost_ratio) == ("medium", 8_000, 0.08)
    assert evidence(found)["wait_ns"] == 20_000


def test_the_rank_that_waits_longest_is_named(tmp_path):
    files = {0: waiting(5, 6, 6), 1: waiting(5, 10, 10)}
    (found,) = on(tmp_path, files, "data-loader-wait")
    assert found.claim == "10 % of the step is spent waiting for the data loader on rank 1"
    assert found.places[0].rank == 1


def test_the_first_step_is_left_out_once(tmp_path):
    """Waits of 0, 0, 0, 30 and 0 in steps of 100; the first step compiles, so does not count: 30 of four steps, not of three."""
    path = write_sources(tmp_path, waiting(0, 0, 0, 30, 0))
    measured = analyze_uncached(path, Options(jobs=1, questions=("data-loading",))).measurements
    first = DroppedStep(measured["steps"]["run"].iloc[0], 0, None, _OPENING)
    rows = sum_loader_waits(drop_left_out_steps(measured, (first,)))
    assert rows["steps"].tolist() == [4]
    assert rows["wait_ns"].tolist() == [7_500]
    assert sum_loader_waits(measured)["wait_ns"].tolist() == [7_500]


def test_a_single_step_is_judged_as_it_is(tmp_path):
    assert on(tmp_path, waiting(5), "data-loader-wait")


def test_a_loader_that_works_in_another_thread_makes_no_step_wait(tmp_path):
    rows = [step(k, 100 * k, 100) for k in range(3)]
    rows += [annotation(LOADER, 100 * k, 60, tid=77) for k in range(3)]
    assert on(tmp_path, rows, "data-loader-wait") == []


def test_a_loader_within_a_loader_waits_once(tmp_path):
    inner = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    rows = [step(1, 0, 100), annotation(LOADER, 0, 30), annotation(inner, 5, 20)]
    found = table(tmp_path, rows, data_loading, "loader_waits")
    assert found[["name", "wait_ns", "count"]].values.tolist() == [[LOADER, 30_000, 1]]


def test_without_a_loader_the_rule_does_not_apply(tmp_path):
    ((answer, reason),) = verdicts(write(tmp_path / "a.json", asking(1)), "data-loader-wait")
    assert answer == "not applicable"
    assert "DataLoader" in reason


# R21 and R28


def test_a_call_within_a_call_and_stream_ordered_calls_do_not_count(tmp_path):
    rows = [step(1, 0, 100), launch(1, 1, 10, name="cudaMalloc"), launch(2, 2, 3, name="cuMemAlloc_v2")]
    rows += [launch(20, 3, 5, name="cudaMallocAsync"), launch(30, 4, 5, name="cudaFreeAsync_v11020")]
    rows += [launch(40, 5, 5, name="hipFree")]
    found = table(tmp_path, rows, interruptions, "interruptions").set_index("name")
    assert found["dur_ns"].to_dict() == {"cudaMalloc": 10_000, "hipFree": 5_000}


def test_the_first_two_steps_may_ask_for_memory(tmp_path):
    assert on(tmp_path, asking(50, 50, 0, 0), "allocator-calls") == []


def test_a_capture_of_the_first_steps_alone_says_nothing(tmp_path):
    path = write(tmp_path / "rank0.json", asking(50, 50))
    for name in ("allocator-calls", "recompilation"):
        ((answer, reason),) = verdicts(path, name)
        assert answer == "insufficient data"
        assert "first 2" in reason


def test_a_step_whose_number_is_higher_is_steady_even_if_it_is_the_first_recorded(tmp_path):
    rows = [step(551, 0, 1000)] + [launch(10 * k, k, 3, name="cudaFree") for k in range(5)]
    (found,) = on(tmp_path, rows, "allocator-calls")
    assert found.cost_ns == 15_000


def test_one_long_call_a_step_counts_by_its_time(tmp_path):
    """cudaFree of 88 µs in steps of 1,000 µs: 8.8 % of every step, far less often than five times; 29 µs: not."""
    (found,) = on(tmp_path, asking(50, 50, 1, 1, dur=88), "allocator-calls")
    assert (found.cost_ns, found.cost_ratio) == (88_000, pytest.approx(0.088))
    assert found.claim == "steady steps call the driver for memory 1.0 times per step"
    assert on(tmp_path / "short", asking(50, 50, 1, 1, dur=29), "allocator-calls") == []


@pytest.mark.parametrize("call", ["hipGraphInstantiate", "cuGraphInstantiateWithFlags", "cudaStreamEndCapture"])
def test_a_graph_that_is_made_ready_is_no_compilation(tmp_path, call):
    rows = [step(3, 0, 1000), launch(10, 1, 30, name=call)]
    (found,) = on(tmp_path, rows)
    assert (found.rule, found.cost_ns) == ("graph-capture", 30_000)


@pytest.mark.parametrize(("stage", "severity"), [("gen", "low"), ("update_actor", "high")])
def test_what_is_emptied_on_purpose_around_the_rollout_is_low(tmp_path, stage, severity):
    """Five calls of 30 µs in a step of 1000: 15 %."""
    rows = [step(3, 0, 1000), annotation(stage, 0, 400), annotation("ref", 400, 400)]
    rows += [launch(40 * k, k, 30, name="cudaFree") for k in range(5)]
    (found,) = on(tmp_path, rows, "allocator-calls")
    assert (found.severity, found.cost_ratio) == (severity, 0.15)
    assert any("on purpose" in text for text in found.caveats) == (severity == "low")


@pytest.mark.parametrize(
    "name",
    ["compile_fx.<locals>.fw_compiler_base (dynamo_timed)", "CachingAutotuner.benchmark_all_configs (dynamo_timed)"],
)  # fmt: skip
def test_names_of_compilation(tmp_path, name):
    rows = [step(3, 0, 1000), op(name, 10, 30)]
    (found,) = on(tmp_path, rows, "recompilation")
    assert found.cost_ns == 30_000


@pytest.mark.parametrize("name", ["cuModuleLoadData", "cuLibraryLoadData", "hipModuleLoad"])
def test_loading_modules_counts_as_compilation(tmp_path, name):
    rows = [step(3, 0, 1000), launch(10, 1, 30, name=name)]
    assert on(tmp_path, rows, "recompilation")


@pytest.mark.parametrize(
    "name",
    ["TorchDynamo Cache Lookup", "Torch-Compiled Region: 0/1", "CompiledFunctionBackward", "triton_poi_fused_add_0",
     "## Call CompiledFxGraph fpabc ##", "aten::compiled_autograd"],
)  # fmt: skip
def test_running_what_is_compiled_is_no_compilation(tmp_path, name):
    rows = [step(3, 0, 1000), op(name, 10, 300)]
    assert on(tmp_path, rows, "recompilation") == []


def test_compiling_threads_side_by_side_take_their_time_once(tmp_path):
    name = "async_compile.wait (dynamo_timed)"
    rows = [step(3, 0, 1000), op(name, 0, 60), op(name, 30, 60, tid=101), op(name, 40, 10, tid=102)]
    (found,) = on(tmp_path, rows, "recompilation")
    assert found.cost_ns == 90_000


def test_names_beyond_the_cap_are_counted_together(tmp_path):
    rows = [step(3, 0, 10_000)]
    rows += [op(f"shape{k} (dynamo_timed)", 10 * k, 9 if k < 50 else 2) for k in range(60)]
    found = table(tmp_path, rows, interruptions, "interruptions").set_index("name")
    assert len(found) == 51
    assert found.loc["(others)", ["count", "dur_ns"]].tolist() == [10, 20_000]
    assert found["count"].sum() == 60


# R26


def test_a_fused_optimizer_is_clear_although_it_touches_a_scalar_for_each_tensor(tmp_path):
    """One fused op around three innermost ops per tensor: two calls for 8 tensors."""
    rows = [step(1, 0, 1000), annotation(STEP, 10, 200), op("aten::_foreach_add_", 11, 90)]
    rows += [op("aten::_fused_adamw_", 110, 90)]
    rows += [op(n, 12 + 9 * t + 3 * k, 2) for t in range(8) for k, n in enumerate(ADAM[:3])]
    found = table(tmp_path, rows, optimizer, "optimizer_steps").iloc[0]
    assert found[["tensor_count", "call_count", "leaf_count"]].tolist() == [8, 2, 25]
    assert on(tmp_path, rows, "unfused-optimizer") == []


def test_ops_that_come_twice_per_tensor_do_not_double_the_tensors(tmp_path):
    rows = updating((*ADAM, "aten::mul_", "aten::mul_"), wall=150)
    found = table(tmp_path, rows, optimizer, "optimizer_steps").iloc[0]
    assert (found["tensor_count"], found["call_count"]) == (8, 48)


@pytest.mark.parametrize("names", [{"a": 9, "b": 13, "c": 8, "d": 31}, {"a": 7, "b": 7}])
def test_counts_that_tell_of_no_loop_give_no_number_of_tensors(tmp_path, names):
    rows = [step(1, 0, 1000), annotation(STEP, 0, 900)]
    every = [name for name, count in names.items() for _ in range(count)]
    rows += [op(name, 3 * k, 2) for k, name in enumerate(every)]
    assert table(tmp_path, rows, optimizer, "optimizer_steps")["tensor_count"].isna().all()


def updating_on_gpu(kernels, dur, every):
    """Optimizer.step of 8 tensors with so many kernels, one every `every` µs."""
    rows = updating(("aten::mul_",), whole=20_000)
    rows[1] = annotation(STEP, 10, 9000)
    for k in range(kernels):
        rows += launched("k", 50 + k * every, 52 + k * every, dur, k + 1)
    return rows


@pytest.mark.parametrize(("kernels", "fires"), [(32, True), (31, False)])
def test_on_a_gpu_kernels_per_tensor_are_counted(tmp_path, kernels, fires):
    """32 kernels of 20 every 30 µs: 31 gaps of 10 from the first to the last; 4 a tensor pass over it 8 times instead of 7."""
    found = on(tmp_path, updating_on_gpu(kernels, 20, 30), "unfused-optimizer")
    assert [f.cost_ns for f in found] == [(310 + 32 * 20 // 8) * 1000] * fires
    assert [evidence(f)["per_tensor"] for f in found] == [4] * fires


@pytest.mark.parametrize(("kernels", "dur", "fires"), [(201, 9, True), (200, 9, False), (201, 10, False)])  # fmt: skip
def test_over_two_hundred_short_kernels_are_unfused_whatever_the_tensors(tmp_path, kernels, dur, fires):
    rows = [r for r in updating_on_gpu(kernels, dur, 12) if r["name"] != "aten::mul_"]
    assert bool(on(tmp_path, rows, "unfused-optimizer")) == fires


def test_an_optimizer_on_the_host_beside_a_gpu_is_not_judged(tmp_path):
    rows = [*updating(ADAM), *launched("gemm", 200, 210, 700, 1)]
    path = write(tmp_path / "rank0.json", rows)
    assert of(path, "unfused-optimizer") == []
    ((answer, reason),) = verdicts(path, "unfused-optimizer")
    assert (answer, "on the host" in reason) == ("not applicable", True)


def test_annotations_that_were_recorded_as_ops_are_no_ops(tmp_path):
    """Profilers of 2021: Optimizer.step and the loader are ops like any other."""
    rows = [
        r | {"cat": "cpu_op"} if r["name"].startswith(("Optimizer", "enumerate")) else r
        for r in [*updating(ADAM), annotation(LOADER, 200, 60)]
    ]
    assert {f.rule for f in on(tmp_path, rows)} == {"unfused-optimizer", "data-loader-wait"}
    assert table(tmp_path, rows, host, "host_counts")["call_count"].tolist() == [32]


# Real traces


def gloo(name):
    return Path(REAL) / "chrome" / "gloo_cpu" / name


@needs_data
@pytest.mark.parametrize("name", [
    "base_run1",
    *(pytest.param(n, marks=pytest.mark.slow) for n in ("base_run2", "base_run3", "fault_leak", "fault_tiny_ops")),
])  # fmt: skip
def test_adam_without_foreach_is_found_and_its_tensors_counted(name):
    (found,) = of(gloo(name), "unfused-optimizer")
    assert found.claim == "AdamW.step runs 290 ops for 29 tensors"
    assert evidence(found)["per_tensor"] == 10


@needs_data
@pytest.mark.parametrize("name", [
    "opt_run1", *(pytest.param(n, marks=pytest.mark.slow) for n in ("opt_run2", "opt_run3")),
])  # fmt: skip
def test_with_fused_adam_nothing_is_found(name):
    assert of(gloo(name)) == []


@needs_data
def test_workers_took_the_wait_for_data_away():
    samples = Path(REAL) / "chrome" / "kineto_tb_plugin" / "samples"
    (found,) = of(samples / "resnet50_num_workers_0", "data-loader-wait")
    assert found.severity == "high"
    assert "num_workers" in found.advice
    assert of(samples / "resnet50_num_workers_4", "data-loader-wait") == []
