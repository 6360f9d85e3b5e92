"""Traces for the rules about idle GPU time: synchronizing calls, stage edges, silent hosts. Whole microseconds."""

from __future__ import annotations

from chrome_builder import annotation, launch, launched, op, step
from rules.firing import Firing, Sources


def synchronised(idle=3, calls=20, stage=2000):
    """A stage of kernels of 100 less `idle`, each waited for by `.item()`; the next starts `idle` after its return."""
    rows = [step(1, 0, stage), annotation("update_actor", 0, stage), *launched("gemm", 0, 0, 100 - idle, 1)]
    for number in range(1, calls + 1):
        back = 100 * number - idle
        rows += [op("aten::item", back - 90, 90), op("aten::_local_scalar_dense", back - 89, 89)]
        rows += [launch(back - 88, 1000 + number, 88, name="cudaStreamSynchronize")]
        rows += launched("gemm", back + 1, 100 * number, 100 - idle, 1 + number)
    return rows


def between_stages(idle=30):
    """A step of 1000: the GPU works through `old_log_prob`, waits, and works through `update_actor`."""
    return [
        step(1, 0, 1000), annotation("old_log_prob", 0, 400), annotation("update_actor", 400 + idle, 600 - idle),
        *launched("gemm", 0, 0, 400, 1), *launched("gemm", 400 + idle, 400 + idle, 600 - idle, 2),
    ]  # fmt: skip


def silent(pause=20_000, whole=2_000_000):
    """A step that is one update: the GPU waits for `pause` in the middle, while nothing is recorded of the host."""
    half = 1_000_000
    return [
        step(1, 0, whole), annotation("update_actor", 0, whole),
        *launched("gemm", 0, 0, half, 1), *launched("gemm", half + pause, half + pause, whole - half - pause, 2),
    ]  # fmt: skip


FIRES: dict[str, Firing] = {
    # 20 calls, 3 of idle time after each: 60 of 2000.
    "host-sync-stalls": Firing(
        synchronised(), "20 synchronizing calls per step leave GPUs idle for 3.0 % of update_actor",
        "medium", 60_000, 0.03,
        {"sync_count": 20, "stall_count": 20, "idle_ns": 60_000, "later_ns": 0, "idle_ratio": 0.03},
    ),
    # 30 of 1000 between the end of one stage and the first kernel of the next.
    "stage-edge-idle": Firing(
        between_stages(), "GPUs are idle 30.0 µs per step between stages, mostly from old_log_prob to update_actor",
        "medium", 30_000, 0.03,
        {"edge_idle_ns": 30_000, "largest_edge_ns": 30_000, "unseen_ns": 30_000},
    ),
    # 20 ms of 2 s.
    "host-silence": Firing(
        silent(), "GPUs wait 20.0 ms of 2,000 ms per step while no host activity is recorded in update_actor",
        "low", 20_000_000, 0.01,
        {"silent_ns": 20_000_000, "longest_ns": 20_000_000},
    ),
}  # fmt: skip

NEAR_MISSES: dict[str, Sources] = {
    # The same calls and idle time in a stage that is longer by one: 60 of 2001.
    "host-sync-stalls": synchronised(stage=2001),
    # 29 of 1000.
    "stage-edge-idle": between_stages(29),
    # One microsecond less than 1 % of the step.
    "host-silence": silent(19_999),
}
