"""Private pools of memory snapshots: named, and held against no limit; a leak before the request that failed of it."""

import pytest
from memory_builder import MIB, Allocator, DeviceFullError, frame, pickled, snapshot, stack

from tracekit.pipeline.options import Options
from tracekit.pipeline.run import analyze_uncached
from tracekit.process.memory.pools import classify_frame_purpose

GIB = 2**30
VLLM = "/opt/vllm/v1/worker/gpu_worker.py"
WEIGHTS = [frame("create_weights", "/opt/vllm/linear.py"), frame("load_model", VLLM)]
KV = [frame("zeros", "x.cpp"), frame("initialize_from_config", VLLM)]
GRAPH = [frame("graph_capture", "/opt/vllm/compilation/cuda_graph.py")]


def segment(size, in_use, pool, frames, address):
    """One segment with a block in use at its start, and the rest free."""
    parts = [
        {"address": address, "size": in_use, "requested_size": in_use, "state": "active_allocated", "frames": frames},
        {"address": address + in_use, "size": size - in_use, "requested_size": 0, "state": "inactive", "frames": []},
    ]  # fmt: skip
    return {
        "device": 0, "address": address, "total_size": size, "allocated_size": in_use, "active_size": in_use,
        "requested_size": in_use, "stream": 0, "segment_type": "large", "segment_pool_id": pool,
        "is_expandable": False, "frames": frames, "blocks": [p for p in parts if p["size"]],
    }  # fmt: skip


def report_on(folder, *pools, **options):
    """The report on a snapshot of these (GiB reserved, GiB in use, pool, frames)."""
    made, address = [], 0x7F00_0000_0000
    for reserved, in_use, pool, frames in pools:
        made.append(segment(int(reserved * GIB), int(in_use * GIB), pool, frames, address))
        address += 1 << 40
    data = {"segments": made, "device_traces": [[]]}
    (folder / "torch_memory_rank0_pid7.pickle").write_bytes(pickled(data))
    return analyze_uncached(folder, Options(jobs=1, **options)).report


def pools_in(report):
    """The sheet of pools, by pool."""
    (section,) = [s for s in report.sections if s.id == "memory-peak"]
    rows = [row for sheet in section.sheets if sheet.name == "memory_pools" for row in sheet.rows]
    return {row[0]: row[1:] for row in rows}


SLEEPING = ((100, 76, (0, 0), stack("forward")), (24, 14, (0, 1), WEIGHTS), (64, 64, (0, 2), KV), (3, 3, (0, 3), GRAPH))


def test_pools_of_a_sleeping_engine_are_told_apart_and_bounded(tmp_path):
    """88 of 191 GiB are of the engine: the device holds 103 to 191."""
    report = report_on(tmp_path, *SLEEPING)
    assert list(pools_in(report)) == [
        "default pool",
        "private pool (0,2), KV cache",
        "private pool (0,1), weights",
        "private pool (0,3), CUDA graphs",
    ]
    engine, bounds = report.cautions
    assert engine == (
        "88.0 GiB of the 191 GiB that PyTorch counts for rank 0, GPU 0 are in pools of a serving engine "
        "(weights 24.0 GiB, KV cache 64.0 GiB): while it sleeps, they use no memory"
    )
    assert bounds == (
        "rank 0, GPU 0 uses between 103 GiB and 191 GiB: pools may be unmapped, which PyTorch still counts; compare with nvidia-smi"
    )
    assert report.findings == ()


@pytest.mark.parametrize("size", [140 * GIB, 200 * GIB])
def test_no_limit_is_held_against_memory_that_may_be_unmapped(tmp_path, size):
    """191 GiB counted: over 140, and within 5 % of 200."""
    report = report_on(tmp_path, *SLEEPING, device_memory=size)
    assert report.findings == ()
    (section,) = [s for s in report.sections if s.id == "memory-peak"]
    assert not {metric.name for metric in section.metrics} & {"card_ratio", "reserved_ratio"}
    assert not any("not that of this device" in caveat for caveat in section.caveats)
    said = any("at least 51.0 GiB are unmapped" in text for text in report.cautions)
    assert said == (size == 140 * GIB)


def test_the_default_pool_is_held_against_the_card(tmp_path):
    """The near miss: the same frames in the default pool are of an engine without sleep mode."""
    default = [(*part[:2], (0, 0), part[3]) for part in SLEEPING]
    report = report_on(tmp_path, *default, device_memory=200 * GIB)
    assert report.cautions == ()
    (section,) = [s for s in report.sections if s.id == "memory-peak"]
    shares = {metric.name: metric.value for metric in section.metrics}
    assert shares["reserved_ratio"] == pytest.approx(191 / 200)


@pytest.mark.parametrize(
    ("pool", "frames", "name"),
    [
        ((0, 7), stack("allocate_kv"), "private pool (0,7) (a CUDA graph or torch.cuda.MemPool)"),
        ((0, 7), [], "private pool (0,7) (a CUDA graph or torch.cuda.MemPool)"),
        ((0, 7), GRAPH, "private pool (0,7), CUDA graphs"),
        ((5, 0), stack("allocate_kv"), "private pool (5,0), CUDA graphs"),
    ],
)
def test_a_pool_that_reserves_far_more_than_it_uses_is_named(tmp_path, pool, frames, name):
    report = report_on(tmp_path, (0.25, 0.125, (0, 0), stack("train")), (4, 0.0625, pool, frames))
    assert report.cautions[0] == f"{name} of rank 0, GPU 0: 4.00 GiB reserved, 64.0 MiB in use"


def test_a_graph_pool_that_is_in_use_needs_no_word(tmp_path):
    report = report_on(tmp_path, (10, 9, (0, 0), stack("train")), (3, 3, (0, 3), GRAPH))
    assert report.cautions == ()


@pytest.mark.parametrize(
    ("name", "file", "kind"),
    [
        ("load_model_with_memory_saver", "sglang/srt/model_loader/load_model_utils.py", "paused region"),
        ("load_model", "/x/sglang/srt/model_executor/model_runner.py", "paused region"),
        ("load_model", "/job/model_runner.py", "engine weights"),
        ("capture_model", "/opt/vllm/v1/worker/gpu_model_runner.py", "graph"),
        ("nccl_allocate", "symm.cpp", "communication"),
        ("use_memory_pool", "/opt/vllm/device_allocator/cumem.py", None),
        ("forward", "/job/train.py", None),
    ],
)
def test_frames_say_what_memory_is_for(name, file, kind):
    assert classify_frame_purpose(name, file) == kind


def leaking(folder, steps, kept_mib, capacity_mib=400):
    """Steps that each use 100 MiB and keep some MiB; the device is full before they end."""
    allocator = Allocator(capacity=capacity_mib * MIB)
    try:
        for number in range(1, steps + 1):
            allocator.annotate(f"ProfilerStep#{number}", "START")
            work = allocator.alloc(100 * MIB, stack("forward"))
            if kept_mib:
                allocator.alloc(kept_mib * MIB, stack("remember"))
            allocator.free(work)
            allocator.annotate(f"ProfilerStep#{number}", "END")
        allocator.alloc(300 * MIB, stack("evaluate"))
    except DeviceFullError:
        pass
    (folder / "snapshot_rank0.pickle").write_bytes(pickled(snapshot(allocator)))
    return analyze_uncached(folder, Options(jobs=1)).report


def test_a_leak_comes_before_the_request_that_failed_because_of_it(tmp_path):
    """30 MiB more in each step until 400 are gone."""
    first, second = leaking(tmp_path, 20, 30).findings
    assert (first.rule, first.severity) == ("memory-growth", "high")
    assert "remember" in first.claim
    assert "30.0 MiB more per step" in first.claim
    assert (second.rule, second.severity) == ("out-of-memory", "medium")
    assert "were kept from step to step by" in second.claim
    assert second.advice.startswith("fix the growth first")


def test_without_a_leak_the_failed_request_is_first(tmp_path):
    """The near miss: nothing is kept, and 300 MiB do not fit beside 200 held by others."""
    (finding,) = leaking(tmp_path, 8, 0, capacity_mib=250).findings
    assert (finding.rule, finding.severity) == ("out-of-memory", "high")
    assert finding.advice.startswith("lower the micro-batch")
