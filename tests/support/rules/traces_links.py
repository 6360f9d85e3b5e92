"""Traces on which the rule about slow links fires (R35), and a near miss; times in whole microseconds."""

from __future__ import annotations

from chrome_builder import launched, step
from rules.firing import Firing, Sources
from rules.traces_communication import nccl


def two_links(usual, slow, count=4, hidden=False, before=0):
    """One step of 1000 of four ranks: after 900 of compute, messages of 1 MiB in two groups, which take `usual` and `slow`.

    Compute runs all the time where it hides them; they begin `before` earlier than it ends.
    """
    ranks = {}
    for rank in range(4):
        members = (0, 1) if rank < 2 else (2, 3)
        each = usual if rank < 2 else slow
        rows = [step(1, 0, 1000), *launched("gemm", 0, 0, 1000 if hidden else 900, 1)]
        for number in range(count):
            start = 900 - before + number * each
            rows += nccl("allreduce", 1 + number, start, each, 2 + number, 2**20, ranks=members)
        ranks[rank] = rows
    return ranks


FIRES: dict[str, Firing] = {
    # 1 MiB in 21 and in 10 µs; what two ranks send crosses the wire once. Four times 11 µs of 1000 in one of two groups.
    "slow-link": Firing(
        two_links(10, 21), "ranks 2, 3 are on a slow link: all_reduce moves 49.9 GB/s, the other group of its kind 105 GB/s",
        "medium", 44_000, 0.044,
        {"gb_per_s": 2**20 / 21_000, "usual_gb_per_s": 2**20 / 10_000, "excess_ns": 44_000},
    ),
}  # fmt: skip

NEAR_MISSES: dict[str, Sources] = {
    # Exactly half of the usual rate.
    "slow-link": two_links(10, 20)
}
