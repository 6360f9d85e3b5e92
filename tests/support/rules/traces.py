"""For every rule one hand-made trace on which it fires, and a near miss just beyond its threshold.

Times are whole microseconds. `FIRES` also says what the finding must claim and what it would give back.
"""

from __future__ import annotations

from chrome_builder import annotation, kernel, launch, launched, memcpy, op, step
from rules import (
    traces_communication,
    traces_drift,
    traces_engines,
    traces_hangs,
    traces_host,
    traces_idle,
    traces_links,
    traces_matmuls,
    traces_memory,
    traces_rl,
    traces_rollout,
    traces_run_log,
    traces_snapshots,
    traces_stragglers,
)
from rules.firing import Firing, Sources

MIB = 2**20


def busy_in_gen(busy, stage=50, whole=100):
    """Two steps of `integers`, each beginning with a `gen` of `stage` in which one kernel runs for `busy`."""
    return [
        row
        for number in (0, 1)
        for row in (
            step(number, number * whole, whole),
            annotation("gen", number * whole, stage),
            *launched("k", number * whole + 1, number * whole + 2, busy, number + 1),
        )
    ]


def exposed_in_update(exposed, hidden=5):
    """One step that is one update of 100: compute until 95, a collective that outlasts it by `exposed`."""
    return [
        step(1, 0, 100), annotation("actor_update", 0, 100),
        *launched("gemm", 0, 0, 95, 1),
        *launched("ncclDevKernel_AllReduce", 1, 95 - hidden, hidden + exposed, 2, stream=9),
    ]  # fmt: skip


def pageable(size, dur, pinned=True, steps=2):
    """So many steps of 100 ms, in each one pageable copy before the compute; the pinned one beside it takes 100 µs a MiB."""
    rows = []
    for number in range(steps):
        at = number * 100_000
        begin = at + dur + 10
        rows += [step(number, at, 100_000)]
        rows += launched("gemm", at, begin, 100_000 - dur - 10, 90 + number)
        rows += [launch(at + 1, 2 * number + 1)]
        rows += [memcpy("Memcpy HtoD (Pageable -> Device)", at + 10, dur, size, 2 * number + 1)]
        if pinned:
            rows += [launch(at + 2, 2 * number + 2)]
            rows += [memcpy("Memcpy HtoD (Pinned -> Device)", at + 50_000, 100, MIB, 2 * number + 2)]
    return rows


def steps_of(*durations):
    """Steps one after the other, on a host that does nothing else."""
    starts = [sum(durations[:index]) for index in range(len(durations))]
    return [step(i + 1, at, dur) for i, (at, dur) in enumerate(zip(starts, durations, strict=True))]


def unlinked(without_launch, whole=100):
    """`integers` of GPU time, of which so much was launched by nobody who was seen."""
    return [
        op("aten::mm", 0, 2 * whole),
        *launched("seen", 1, 10, whole - without_launch, 1),
        kernel("unseen", 10 + whole - without_launch, without_launch),
    ]


FIRES: dict[str, Firing] = {
    # 39 of the stage's 50 are busy; the other 11 of each step of 100 are idle.
    "low-gpu-utilization": Firing(
        busy_in_gen(39),
        "GPUs are busy 78 % of gen; idle time by kind: nothing recorded 91 %, runtime call 9.1 %", "high", 11_000, 0.11,
        {"busy_ratio": 0.78, "idle_ns": 11_000},
    ),
    # 5 of 100 exposed; 5 of the collective's 10 are hidden.
    "exposed-communication": Firing(
        exposed_in_update(5), "5.0 % of update_actor is exposed communication", "medium", 5_000, 0.05,
        {"exposed_comm_ratio": 0.05, "overlap_ratio": 0.5},
    ),
    # 1 MiB a step in 500 µs, beside which nothing runs: 0.5 of 100 ms.
    "pageable-copies": Firing(
        pageable(MIB, 500), "2 H2D copies use pageable host memory", "info", 400_000, 0.004,
        {"pageable_bytes": MIB, "gb_per_s": MIB / 500_000, "pinned_gb_per_s": MIB / 100_000},
    ),
    # 29 steps of 100 and one of 131: mean 3031 / 30, excess 31 / 30, standard deviation 31 / √30.
    "step-variance": Firing(
        steps_of(*[100] * 29, 131), "the longest step takes 1.31 times the median", "low", 1_033, 31 / 3031,
        {"max_over_median": 1.31, "variation": 31 / 30**0.5 / (3031 / 30)},
    ),
    # 6 of 100 µs have no launch.
    "profiling-artefact": Firing(
        unlinked(6),
        "1 of 1 sources has over 5.0 % of GPU time without a recorded launch: its op is unknown, and its stage is known only by GPU annotation or by run time",
        "info", None, None, {"sources": 1},
    ),
}  # fmt: skip

NEAR_MISSES: dict[str, Sources] = {
    # Exactly 80 % busy.
    "low-gpu-utilization": busy_in_gen(40),
    # 4 of 100.
    "exposed-communication": exposed_in_update(4),
    # One byte less than 1 MiB, and half a per cent of the step.
    "pageable-copies": pageable(MIB - 1, 500),
    # Exactly 1.3 times the median; the variation is 5.4 %.
    "step-variance": steps_of(*[100] * 29, 130),
    # Exactly 5 %.
    "profiling-artefact": unlinked(5),
}

PARTS = (
    traces_communication,
    traces_drift,
    traces_engines,
    traces_hangs,
    traces_host,
    traces_idle,
    traces_links,
    traces_matmuls,
    traces_memory,
    traces_rl,
    traces_rollout,
    traces_run_log,
    traces_snapshots,
    traces_stragglers,
)
for part in PARTS:
    assert not FIRES.keys() & part.FIRES.keys()
    FIRES |= part.FIRES
    NEAR_MISSES |= part.NEAR_MISSES
