"""Traces on which the rules about communication fire (R06, R07), and near misses; times in whole microseconds."""

from __future__ import annotations

from chrome_builder import annotation, launched, step
from rules.firing import Firing, Sources

LARGE = 65_536
"""Bytes of the smallest message that is not small."""


def nccl(name, at, start, dur, correlation, nelems, dtype="Byte", ranks=(0, 1), **args):
    """A collective kernel with its launch and the metadata that NCCL's recorder gives it."""
    told = {
        "Collective name": name, "In msg nelems": nelems, "Out msg nelems": nelems, "Group size": len(ranks),
        "dtype": dtype, "In split size": "[]", "Out split size": "[]", "Process Group Name": "0",
        "Process Group Ranks": str(list(ranks)),
    }  # fmt: skip
    return launched(f"ncclDevKernel_{name}", at, start, dur, correlation, stream=9, **(told | args))


def hardly_overlapped(compute=950, each=25, count=2):
    """One step of 1000 that is one update: compute from its start, collectives of `each` from 940 on."""
    rows = [step(1, 0, 1000), annotation("actor_update", 0, 1000), *launched("gemm", 0, 0, compute, 1)]
    for number in range(count):
        rows += nccl("allreduce", 1 + number, 940 + number * each, each, 2 + number, 2**20)
    return rows


def small_ones(size, count=2, large=8, each=5, name="allreduce"):
    """One step of 1000: compute until 990 hides `large` collectives of 64 KiB, then `count` of `size` bytes."""
    rows = [step(1, 0, 1000), *launched("gemm", 0, 0, 990, 1)]
    for number in range(large):
        rows += nccl("allreduce", 1 + number, 10 + 60 * number, 50, 10 + number, LARGE)
    for number in range(count):
        rows += nccl(name, 20 + number, 990 + number * each, each, 100 + number, size)
    return rows


FIRES: dict[str, Firing] = {
    # Communication 940-990, compute until 950: 10 of 50 hidden; 50 of 1000 is 5 %, 40 exposed is 4 %.
    # Two messages of 1 MiB in 25 µs each: 2 MiB / 50 µs = 41.9 GB/s, times 2(n−1)/n = 1 on two ranks.
    "no-comm-overlap": Firing(
        hardly_overlapped(), "20 % of the communication of update_actor overlaps with compute", "medium", 40_000, 0.04,
        {"overlap_ratio": 0.2, "comm_ratio": 0.05, "size_bytes": 2**21, "busbw": 2**21 / 50_000},
    ),
    # 2 of 10 are one byte less than 64 KiB; they take 10 of 1000, and nothing runs beside them.
    "small-collectives": Firing(
        small_ones(LARGE - 1), "2 of 10 collectives move less than 64.0 KiB each", "low", 10_000, 0.01,
        {"small_ratio": 0.2, "small_count": 2, "small_ns": 10_000},
    ),
}  # fmt: skip

NEAR_MISSES: dict[str, Sources] = {
    # 15 of 50 are hidden: exactly 30 %.
    "no-comm-overlap": hardly_overlapped(compute=955),
    # Exactly 64 KiB.
    "small-collectives": small_ones(LARGE),
}
