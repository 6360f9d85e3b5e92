"""Weight sync, offloading, log-probs and micro-batches: a trace on which each rule fires, and a near miss.

Times are whole microseconds.
"""

from __future__ import annotations

from math import sqrt

from chrome_builder import annotation, launch, launched, memcpy, step
from rules.firing import Firing, Sources

MIB = 2**20


def sync_of(wall, whole=1000):
    """Two steps of `integers` without a GPU, each ending with a weight sync."""
    return [
        row
        for number in (0, 1)
        for row in (
            step(number, number * whole, whole),
            annotation("gen", number * whole, whole - wall),
            annotation("update_weights", (number + 1) * whole - wall, wall),
        )
    ]


def offload_of(each, whole=100_000, memory="Pinned"):
    """One step of compute, at the end of it a copy in and a copy out of 30 MiB, each of `each`."""
    start = whole - 2 * each
    return [
        step(1, 0, whole), *launched("gemm", 0, 0, start, 1),
        launch(10, 2), memcpy(f"Memcpy HtoD ({memory} -> Device)", start, each, 30 * MIB, 2),
        launch(20, 3), memcpy(f"Memcpy DtoH (Device -> {memory})", start + each, each, 30 * MIB, 3),
    ]  # fmt: skip


def update_of(mini_batches, log_prob=100, whole=1000):
    """One step without a GPU: a log-prob pass, then an update of so many mini-batches."""
    length = (whole - log_prob - 100) // mini_batches
    return [
        step(1, 0, whole), annotation("actor_compute_log_prob", 0, log_prob),
        annotation("actor_update", log_prob, whole - log_prob),
        *(annotation(f"mini_batch{i}", log_prob + 10 + i * length, length) for i in range(mini_batches)),
    ]  # fmt: skip


def batches_of(*lengths, kind="micro"):
    """One step that is one update; each batch launches one kernel of that length, one after the other."""
    rows, at = [], 0
    for number, length in enumerate(lengths):
        rows += [annotation(f"{kind}_batch{number}", at, length - 8)]
        rows += launched("gemm", at + 1, at + 10, length, number + 1)
        at += length
    return [step(1, 0, at + 20), annotation("actor_update", 0, at + 20), *rows]


def validating(length):
    """Five steps, one after the other: an update of 900 that a kernel fills, and in the second and fourth a validation that one fills."""
    rows, at = [], 0
    for number in range(1, 6):
        begin, parts = (at, [("update_actor", 900), *([("testing", length)] if number % 2 == 0 else [])])
        for place, (name, dur) in enumerate(parts):
            rows.append(annotation(name, at, dur))
            rows += launched("gemm", at, at, dur, 10 * number + place)
            at += dur
        rows.append(step(number, begin, at - begin))
    return rows


FIRES: dict[str, Firing] = {
    # The first step does not count: 2 · 100 of 4 · 900 + 2 · 100 = 3,800.
    "periodic-stage": Firing(
        validating(100), "test (testing) takes 100 µs every 2 steps: 5.3 % of the time", "medium", 50_000, 200 / 3_800,
        {"stage_ns": 100_000, "step_count": 2},
    ),
    # 50 of each step of 1000; nothing says how much is moved.
    "weight-sync": Firing(
        sync_of(50), "weight sync takes 5.0 % of the step", "medium", 50_000, 0.05,
        {"sync_wall": 50_000, "sync_ratio": 0.05, "sync_bytes": None, "transfers": None,
         "gb_per_s": None, "best_gb_per_s": None},
    ),
    # Two copies of 1.5 ms in a step of 100 ms, after the compute; 30 MiB in 1.5 ms each.
    "offload": Firing(
        offload_of(1_500), "exposed H2D/D2H copies take 3.0 % of the step", "medium",
        3_000_000, 0.03,
        {"exposed_ns": 3_000_000, "htod_bytes": 30 * MIB, "dtoh_bytes": 30 * MIB,
         "htod_gb_per_s": 30 * MIB / 1_500_000, "dtoh_gb_per_s": 30 * MIB / 1_500_000, "pageable_bytes": 0},
    ),
    # A tenth of the step, but never more than low.
    "redundant-log-prob": Firing(
        update_of(1), "old_log_prob runs as a separate pass although each step has a single update", "low",
        100_000, 0.1, {"old_log_prob_wall": 100_000, "mini_batches": 1},
    ),
    # 19 of 4000 and one of 999, a little less than a quarter of the median. With n - 1 lengths a and one b the sample
    # standard deviation is |a - b| / √n; the mean is 3849.95. The step is 76,999 + 20 long.
    "ragged-micro-batches": Firing(
        batches_of(*[4_000] * 19, 999),
        "micro-batches of update_actor: 1 of 20 take less than 25 % of the median", "low", 999_000, 999 / 77_019,
        {"variation": 3_001 / sqrt(20) / 3_849.95, "nearly_empty": 1, "batches": 20, "longest": 4_000_000,
         "shortest": 999_000},
    ),
}  # fmt: skip

NEAR_MISSES: dict[str, Sources] = {
    # 2 · 36 of 4 · 900 + 2 · 36 = 3,672: 1.96 %.
    "periodic-stage": validating(36),
    # 49 of 1000.
    "weight-sync": sync_of(49),
    # 2998 of 100,000.
    "offload": offload_of(1_499),
    # Two mini-batches.
    "redundant-log-prob": update_of(2),
    # Exactly a quarter of the median; the variation is 17 %.
    "ragged-micro-batches": batches_of(*[4_000] * 19, 1_000),
}
