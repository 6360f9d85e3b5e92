"""What a person read of the recordings of this project, of one H200 (`tests/data/gpu`)."""

from __future__ import annotations

from benchmarks.readings.gpu import GpuReading

PAIRS, STEPS = "tests/data/gpu/pairs/", (4, 5, 6)
OTHERS = "tests/data/gpu/"

OWN_READINGS = (
    GpuReading(
        path=PAIRS + "base.pt.trace.json.xz", steps=STEPS, rules=("launch-bound",), place="forward",
        why="5.8 ms of kernels in a step of 21 ms: every launch waits for an op of the host, most in backward and forward",
    ),
    GpuReading(
        path=PAIRS + "launch_bound.pt.trace.json.xz", steps=STEPS, rules=("launch-bound",), place="forward",
        why="240 kernels of 2.7 µs in 20 ms, and nothing but ops of the host between them",
    ),
    GpuReading(
        path=PAIRS + "host_pause.pt.trace.json.xz", steps=STEPS, rules=("stage-edge-idle",), place="backward to optimizer",
        why="sleep for 10 ms after backward, before the range optimizer begins; the GPU has nothing to do",
    ),
    GpuReading(
        path=PAIRS + "pageable.pt.trace.json.xz", steps=STEPS, rules=("pageable-copies", "launch-bound"), place="",
        mentions=("pageable-copies",),
        why="a copy of 64 MiB from pageable memory takes 8 ms in which nothing else runs; the rest of the step is launches",
    ),
    GpuReading(
        path=PAIRS + "unfused_optimizer.pt.trace.json.xz", steps=STEPS, rules=("unfused-optimizer", "launch-bound"), place="",
        mentions=("unfused-optimizer",),
        why="576 of 780 kernels are of the optimizer, in 11 of 28 ms",
    ),
    GpuReading(
        path=PAIRS + "unfused_attention.pt.trace.json.xz", steps=STEPS, rules=("launch-bound",), place="forward",
        mentions=("unfused-operators",),
        why="softmax, scaling and two products for each attention; still idle for two thirds of the step",
    ),
    GpuReading(
        path=PAIRS + "empty_cache.pt.trace.json.xz", steps=STEPS, rules=("allocator-calls", "launch-bound"), place="",
        mentions=("allocator-calls",),
        why="cudaMalloc and cudaFree 78 times per step, in 8 of 32 ms",
    ),
    GpuReading(
        path=PAIRS + "side_copy.pt.trace.json.xz", steps=STEPS, rules=("launch-bound", "offload"), place="",
        why="256 MiB from pinned memory in a second stream at 54 GB/s, alone for 4 of its 4.9 ms; the rest is launches",
    ),
    GpuReading(
        path=PAIRS + "zero_fill.pt.trace.json.xz", steps=STEPS, rules=("launch-bound",), place="backward",
        why="72 fills more, in backward's accumulation too: 312 kernels",
    ),
    GpuReading(
        path=PAIRS + "item.pt.trace.json.xz", steps=STEPS, rules=("launch-bound",), place="backward",
        why="six reads per step wait for a GPU that is idle anyway: backward is launched one by one",
    ),
    GpuReading(
        path=PAIRS + "wait_side.pt.trace.json.xz", steps=STEPS, rules=("launch-bound",), place="backward",
        why="a spinning kernel of 5.3 ms in a second stream hides the optimizer's launches, not those of backward",
    ),
    GpuReading(
        path=OTHERS + "no_marks/plain_fused.pt.trace.json.xz", loop="Optimizer.step#AdamW.step", steps=(1, 2, 3, 4),
        rules=("launch-bound",), place="",
        why="190 kernels of 4.5 µs in 12.7 ms; no marks, five optimizer steps",
        argued=(("no idle time of 0.71 ms", "it began 0.25 ms before the first window, and is listed whole: 0.96 ms"),),
    ),
)  # fmt: skip
"""The recordings of which the reading is the report's; `loader`, `fp32` and `plain_unfused` are not, yet."""
