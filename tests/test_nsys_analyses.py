"""The questions that are asked of torch traces, asked of nsys captures: the same answers by the same code."""

import os
from pathlib import Path

import nsys_builder as nsys
import pytest

import tracekit
from tracekit.pipeline import run as pipeline
from tracekit.process.calls.launches import find_launches

QUESTIONS = ("communication", "gpu-time", "kernels", "memory", "steps")
REAL = os.environ.get("TRACEKIT_REAL_DATA")
MS = 1_000_000


def section(report, name):
    return next(s for s in report.sections if s.id == name)


def rows(report, of, name):
    table = next(s for s in section(report, of).sheets if s.name == name)
    return [dict(zip([h.name for h in table.headings], row, strict=True)) for row in table.rows]


def training(path, *, pid=100, rank=0, slow=1.0, steps=(0, 1, 2), part=None):
    """Steps of 10 ms: gen 4 ms with a kernel of 2 ms, update_actor 5 ms with a kernel of 3 ms and an all-reduce of 1."""
    found = [
        nsys.variable("RANK", rank), nsys.variable("WORLD_SIZE", 2), nsys.variable("WG_PREFIX", "actor"),
        nsys.gpu(0), nsys.process("ray::Worker", pid=pid),
    ]  # fmt: skip
    mine = {"pid": pid, "tid": pid}
    for n in steps:
        at, unit = n * 10 * MS, int(slow * MS)
        call = n * 10
        found += [
            nsys.nvtx(f"step {n}", at, at + 9 * MS, **mine),
            nsys.nvtx("generate_sequences", at, at + 4 * MS, **mine),
            *nsys.launched("gemm(float*)", at + 1000, at + MS, at + MS + unit * 2, call + 1, **mine),
            nsys.nvtx("update_actor", at + 4 * MS, at + 9 * MS, kind=60, **mine),
            *nsys.launched("gemm(float*)", at + 4 * MS + 1000, at + 5 * MS, at + 5 * MS + unit * 3, call + 2, **mine),
            *nsys.launched("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", at + 8 * MS, at + 8 * MS + 3000,
                           at + 9 * MS - 1000, call + 3, stream=20, **mine),
        ]  # fmt: skip
    return nsys.write(path, found, duration_ns=max(steps) * 10 * MS + 20 * MS)


def test_steps_stages_and_gpu_times_come_from_nvtx_ranges_and_kernels(tmp_path):
    for rank in (0, 1):
        training(tmp_path / f"worker_process_{100 + rank}.sqlite", pid=100 + rank, rank=rank)
    report = tracekit.analyze(tmp_path, questions=QUESTIONS)
    assert {"ranks 0, 1 of 2", "actor", "steps 0–2"} <= set(report.identity)
    values = {metric.name: metric.value for metric in report.headline}
    assert values["step_wall"] == 9 * MS
    stages = {row["canonical"]: row["wall_ns"] for row in rows(report, "steps", "stages")}
    assert stages == {"gen": 4 * MS, "update_actor": 5 * MS}
    assert values["compute_ratio"] == pytest.approx(5 / 9)


def test_collectives_are_known_by_the_names_of_their_kernels(tmp_path):
    """No NVTX domain of NCCL was recorded. Of each all-reduce 0.996 ms runs with nothing else."""
    report = tracekit.analyze(training(tmp_path / "worker_process_100.sqlite"), questions=QUESTIONS)
    found = section(report, "communication")
    assert found.status == "ok"
    assert "all_reduce" in str([sheet.rows for sheet in found.sheets])
    used = pipeline.measure(pipeline.discover_sources(tmp_path))
    assert used["gpu_time"].query("window == 'step'")["exposed_comm_ns"].tolist() == [996_000] * 3


def test_captures_that_only_nsys_numbers_are_matched_in_order_and_that_is_said(tmp_path):
    for rank, pid in ((0, 100), (1, 101)):
        for part in (1, 2, 3):
            found = [nsys.variable("RANK", rank), nsys.nvtx("update_actor", 1000, 1000 + part * MS, pid=pid, tid=pid)]
            nsys.write(
                tmp_path / f"worker_process_{pid}.{part}.sqlite", found, duration_ns=10 * MS,
                utc_ns=nsys.BASE_NS + part * 10**9,
            )  # fmt: skip
    report = tracekit.analyze(tmp_path, questions=QUESTIONS)
    walls = [row["wall_ns"] for row in rows(report, "steps", "steps")]
    assert walls == [MS, 2 * MS, 3 * MS]
    (caveat,) = section(report, "steps").caveats
    assert "the n-th of every rank are taken for one step" in caveat


def test_numbered_captures_with_step_ranges_take_their_numbers_from_these(tmp_path):
    for part, n in ((1, 7), (2, 9)):
        training(tmp_path / f"worker_process_100.{part}.sqlite", steps=(n,))
    report = tracekit.analyze(tmp_path, questions=QUESTIONS)
    assert [row["step"] for row in rows(report, "steps", "steps")] == [7, 9]
    (caveat,) = section(report, "steps").caveats
    assert "the ranges `step n` in it identify" in caveat


def test_memory_is_what_was_got_from_the_driver_never_called_what_pytorch_allocated(tmp_path):
    found = [
        nsys.nvtx("update_actor", 0, 50_000), nsys.gpu(0),
        nsys.memory(1000, 2 * 2**20, 0x1000), nsys.memory(2000, 20 * 2**20, 0x2000),
        nsys.memory(3000, 20 * 2**20, 0x2000, free=True), nsys.memory(4000, 2**20, 0x3000),
        *nsys.launched("gemm", 5000, 8000, 9000, 1),
    ]  # fmt: skip
    nsys.write(tmp_path / "worker_process_100.sqlite", found, duration_ns=100_000)
    used = pipeline.measure(pipeline.discover_sources(tmp_path))
    (peak,) = used["memory_peaks"].to_dict("records")
    assert (peak["device_type"], peak["peak_bytes"]) == (101, 22 * 2**20)
    report = pipeline.judge(used)
    assert "cudaMalloc on GPU 0" in str([sheet.rows for sheet in section(report, "memory").sheets])


def test_whole_graphs_without_kernels_of_their_own_count_as_busy(tmp_path):
    found = [
        nsys.nvtx("gen", 0, 100_000), nsys.api("cudaGraphLaunch_v10000", 1000, 3000, 1),
        nsys.graph(10_000, 60_000, 1),
    ]  # fmt: skip
    nsys.write(tmp_path / "worker_process_100.sqlite", found, duration_ns=200_000)
    times = pipeline.measure(pipeline.discover_sources(tmp_path))["gpu_time"]
    assert times[times["window"] == "capture"]["compute_ns"].tolist() == [50_000]


def test_two_directories_of_nsys_are_compared_and_gated(tmp_path, call):
    """Steps of 9 ms against 4.5 ms, four runs of three steps each, that differ by some per cent."""
    for side, slow in (("base", 1.0), ("opt", 0.5)):
        for run in range(4):
            found = [nsys.variable("RANK", 0)]
            for n in range(3):
                length = int(slow * (9 + 0.1 * run + 0.05 * n) * MS)
                found += [
                    nsys.nvtx(f"step {n}", n * 20 * MS, n * 20 * MS + length),
                    nsys.nvtx("update_actor", n * 20 * MS, n * 20 * MS + length),
                ]
            path = tmp_path / side / f"run{run}" / "worker_process_100.sqlite"
            nsys.write(path, found, duration_ns=80 * MS)
    base, opt = tmp_path / "base", tmp_path / "opt"
    assert "2.00× faster [1." in call("compare", base, opt).output
    assert call("compare", base, opt, "--fail-on", "step_time>3%").exit_code == 0
    slower = call("compare", opt, base, "--fail-on", "step_time>3%")
    assert (slower.exit_code, "gate: fail" in slower.output) == (1, True)


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
def test_two_gpus_of_one_report_are_kept_apart_and_joined_with_their_own_launches():
    folder = Path(str(REAL)) / "nsys/GindaChen_nsys-ai"
    found = pipeline.discover_sources(folder / "mfu_2gpu_before.sqlite")
    traces = list(pipeline.read_source(found.sources[0], lambda _: None, pipeline.list_wanted_inputs()))
    assert [set(trace["device_ops"]["device"]) for trace in traces] == [{0}, {1}]
    kernels = linked = 0
    for trace in traces:
        is_kernel = trace["device_ops"]["kind"].isin(("kernel", "collective")).to_numpy()
        kernels += int(is_kernel.sum())
        linked += int(trace.derived(find_launches).linked[is_kernel].sum())
    assert (kernels, linked) == (4010, 3986)


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
def test_a_real_pair_gives_a_verdict_with_its_caveat(call):
    folder = Path(str(REAL)) / "nsys/GindaChen_nsys-ai"
    text = call("compare", folder / "mfu_2gpu_before.sqlite", folder / "mfu_2gpu_after.sqlite").output
    assert "inconclusive (one run per side): 1.13× slower" in text
    assert "range FSDP::pre_forward" in text
    assert "step 300 ms" not in text  # a recording is no step
