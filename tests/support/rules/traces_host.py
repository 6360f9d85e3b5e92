"""What the rules about the host fire on, and near misses: hand-made, times in whole microseconds."""

from __future__ import annotations

from chrome_builder import annotation, launch, launched, op, step
from rules.firing import Firing, Sources

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def one_by_one(dur, gap, last, count=10):
    """A step that is one `gen`: kernels of `dur`, each launched when the one before it has ended, `gap` earlier."""
    cycle = dur + gap
    rows = []
    for index in range(count):
        length = last if index == count - 1 else dur
        at = max(index * cycle - gap, 0)
        rows += launched("small", at, index * cycle, length, index + 1)
    whole = (count - 1) * cycle + last
    return [step(1, 0, whole), annotation("gen", 0, whole), *rows]


def waiting(*waits, whole=100):
    """Steps of `integers` that each begin with a wait for a batch."""
    rows = []
    for index, wait in enumerate(waits):
        rows += [step(index, index * whole, whole), annotation(LOADER, index * whole, wait)]
    return rows


def asking(*calls, dur=2, whole=1000):
    """Steps 1, 2, … of `integers`, each with so many calls of cudaMalloc."""
    rows = []
    for index, count in enumerate(calls):
        rows.append(step(index + 1, index * whole, whole))
        rows += [launch(index * whole + 10 * k, 100 * index + k, dur, name="cudaMalloc") for k in range(count)]
    return rows


def compiling(*durations, whole=1000):
    """Steps 1, 2, … of `integers`, each compiling for so long; half of that is timed by name once more."""
    rows = []
    for index, dur in enumerate(durations):
        rows.append(step(index + 1, index * whole, whole))
        if dur:
            rows.append(op("_compile.compile_inner (dynamo_timed)", index * whole, dur))
            rows.append(op("compile_fx_inner (dynamo_timed)", index * whole + 1, dur // 2))
    return rows


def capturing(*durations, whole=1000):
    """Steps 1, 2, … of `integers`, each making a graph ready for so long."""
    rows = []
    for index, dur in enumerate(durations):
        rows.append(step(index + 1, index * whole, whole))
        if dur:
            rows.append(launch(index * whole + 10, index, dur, name="cudaGraphInstantiate"))
    return rows


def updating(names, tensors=8, dur=2, wall=100, whole=1000):
    """A step with an Optimizer.step of `wall` that runs each op once for every tensor."""
    rows = [step(1, 0, whole), annotation("Optimizer.step#AdamW.step", 10, wall)]
    rows += [
        op(name, 10 + 3 * (tensor * len(names) + at), dur) for tensor in range(tensors) for at, name in enumerate(names)
    ]
    return rows


ADAM = ("aten::mul_", "aten::lerp_", "aten::sqrt", "aten::addcdiv_")


def warming_up(*loading, whole=1000):
    """Steps 1, 2, … of `integers`, all of them device work, each loading code for so long."""
    rows = []
    for index, dur in enumerate(loading):
        at = index * whole
        rows += [step(index + 1, at, whole), *launched("gemm", at + 1, at + 1, whole - 2, 2 * index + 1)]
        if dur:
            rows.append(launch(at + 10, 2 * index + 2, dur, name="cuLibraryLoadData"))
    return rows


def collecting(*spans, whole=1000):
    """A step of `integers` on a host alone, with garbage collected at (start, duration), one row inside another's range."""
    rows = [step(1, 0, whole)]
    for start, dur in spans:
        rows += [annotation("gc gen2", start, dur), annotation("python_gc", start + 1, dur - 1)]
    return rows


def looping(count, between=2):
    """A step of 100 ms with `count` calls of 8 µs in a row and `between` µs between, after one long call."""
    calls = [op("aten::add", 1000 + (8 + between) * number, 8) for number in range(count)]
    return [step(1, 0, 100_000), annotation("update_actor", 0, 90_000), op("aten::mm", 0, 1000), *calls]


FIRES: dict[str, Firing] = {
    # 102 calls, one every 10 µs: the last ends 1018 µs after the begin of the first. 101 of 102 parts are 1,008,019.6 ns.
    "small-ops": Firing(
        looping(102), "a step makes 102 calls of aten::add one after the other, 8.00 µs each, in update_actor",
        "low", 1_008_020, 0.0100802,
        {"calls": 102, "mean_call_ns": 8_000, "loop_ns": 1_018_000},
    ),
    # 9 kernels of 8 and one of 9 µs, nine gaps of 1 µs: 9 of 90 µs; the median of ten is 8 µs.
    "launch-bound": Firing(
        one_by_one(8, 1, last=9), "gen launches 10 kernels of 8.10 µs on average one by one", "high", 9_000, 0.10,
        {"kernels": 10, "median_kernel_ns": 8_000, "gap_ratio": 0.10, "gap_ns": 9_000},
    ),
    # 5 of 100 in each step after the first, in which the loader starts.
    "data-loader-wait": Firing(
        waiting(50, 5, 5), "5.0 % of the step is spent waiting for the data loader", "medium", 5_000, 0.05,
        {"wait_ns": 5_000, "idle_ns": None, "max_ns": 50_000},
    ),
    # After two steps, five calls of 2 µs in each step of 1000: 10 µs, 1 %.
    "allocator-calls": Firing(
        asking(50, 50, 5, 5), "steady steps call the driver for memory 5.0 times per step", "low", 10_000, 0.01,
        {"calls": 5, "dur_ns": 10_000},
    ),
    # 8 tensors times 4 ops of 2 µs = 64 of the 100 µs; the other 36 are 3.6 % of 1000.
    "unfused-optimizer": Firing(
        updating(ADAM), "AdamW.step runs 32 ops for 8 tensors", "medium", 36_000, 0.036,
        {"per_tensor": 4, "short_kernels": None, "dur_ns": 100_000},
    ),
    # After two steps, 20 µs in one of two steps of 1000: 10 µs a step. The inner name lies within the outer one.
    "recompilation": Firing(
        compiling(500, 300, 20, 0), "code is still compiled or loaded in 1 of 2 steady steps", "low", 10_000, 0.01,
        {"compilations": 0.5, "dur_ns": 10_000},
    ),
    # Step 1 is warm-up step: 100 µs there of steps of 1000.
    "start-up": Firing(
        warming_up(100, 0, 0), "warm-up: first calls take 100 µs of step 1, not counted: cuLibraryLoadData",
        "info", None, None, {"start_up_ns": 100_000},
    ),
    # 6 and 4 µs of 1000, each told twice.
    "garbage-collection": Firing(
        collecting((100, 6), (500, 4)), "the host spends 10.0 µs of 1.00 ms per step on garbage collection (2 collections)",
        "low", 10_000, 0.01, {"collection_ns": 10_000, "collections": 2, "longest_ns": 6_000},
    ),
    # After two steps, 20 µs in one of two steps of 1000: 10 µs a step.
    "graph-capture": Firing(
        capturing(500, 300, 20, 0), "graphs are still captured in 1 of 2 steady steps", "low", 10_000, 0.01,
        {"captures": 0.5, "dur_ns": 10_000},
    ),
}  # fmt: skip

NEAR_MISSES: dict[str, Sources] = {
    # 99 calls in a row are no loop, though they take 1.1 % of the step.
    "small-ops": looping(99, between=3),
    # Launch gaps of 45 in 295 µs, but the median kernel is exactly 25 µs.
    "launch-bound": one_by_one(25, 5, last=25),
    # 4 of 100.
    "data-loader-wait": waiting(50, 4, 4),
    # Four calls a step, for 1.2 % of it.
    "allocator-calls": asking(50, 50, 4, 4, dur=3),
    # 3 per tensor.
    "unfused-optimizer": updating(ADAM[:3]),
    # 19 µs in two steps: 0.95 %.
    "recompilation": compiling(500, 300, 19, 0),
    # 9.9 % of a step.
    "start-up": warming_up(99, 0, 0),
    # 9 of 1000.
    "garbage-collection": collecting((100, 5), (500, 4)),
    # As long.
    "graph-capture": capturing(500, 300, 19, 0),
}
