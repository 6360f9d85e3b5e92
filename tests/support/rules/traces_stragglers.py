"""Traces of three ranks with gloo collectives on which R09 and R10 fire, and near misses.

Each rank works, then waits in a collective that ends on all ranks at once: 5 µs after the last has come.
Times are whole microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chrome_builder import annotation, op, step
from rules.firing import Firing, Sources

RUNLOOP = 102
TRANSFER = 5


def rank_group(
    work: Sequence[Sequence[Sequence[int]]], segment: int = 100, stage: str = "actor_update"
) -> dict[int, list[dict[str, Any]]]:
    """The ranks' rows where `work[step][k][rank]` is done before the k-th collective of a step.

    Every segment is `segment` long: what is left of it after the transfer is nobody's work, in no stage.
    """
    ranks = range(len(work[0][0]))
    rows: dict[int, list[dict[str, Any]]] = {rank: [] for rank in ranks}
    at = 0
    for number, segments in enumerate(work, start=1):
        begin = at
        for own in segments:
            end = at + max(own) + TRANSFER
            for rank in ranks:
                rows[rank] += [
                    op("aten::mm", at, own[rank]),
                    annotation("gloo:all_reduce", at + own[rank], end - at - own[rank], tid=RUNLOOP),
                ]
            at = max(end, at + segment)
        for rank in ranks:
            rows[rank] += [step(number, begin, at - begin), annotation(stage, begin, at - begin)]
    return rows


def late_by(excess: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    """Four like steps of ten segments of 100: rank 2 works 50 and `excess` before the first collectives;
    before the others it works 50, as the others do, but for rank 0 and rank 1 by turns, which work 51.
    """
    late = [[50, 50, 50 + more] for more in excess]
    turn = ([51, 50, 50], [50, 51, 50])
    return rank_group([late + [list(turn[k % 2]) for k in range(10 - len(late))]] * 4)


def turns(others: int, longest: Sequence[int] = (0, 1, 2)) -> dict[int, list[dict[str, Any]]]:
    """A step for each of `longest`, of ten segments: that rank works 100, the other two `others`."""
    return rank_group([[[100 if rank == who else others for rank in range(3)]] * 10 for who in longest], 105)


FIRES: dict[str, Firing] = {
    # Rank 2 waits least in each of four steps, which one of three does by chance in 3 of 81 recordings
    # (that is 3/4 of what may be wrong: it may be from some step on, too). In each step it
    # works 52 more before six collectives, ranks 0 and 1 2 more before the rest: they wait 52 for it. It waits 4 for
    # them, they wait 2 for one another: 50 less.
    "straggler": Firing(
        late_by([9, 9, 9, 9, 8, 8]),
        "rank 2 keeps the others waiting: 52.0 µs per step, mostly in update_actor: the same calls of aten::mm take 1.10 times as long, with more work in each, or slower",
        "medium", 52_000, 0.052,
        {"last_ratio": 1.0, "chance_ratio": 3 / 81 / 0.75, "late_ns": 50_000},
    ),
    # Own work of 1000, 850 and 850 in each step: (1000 - 900) / 1000. The two wait 15 before ten collectives.
    "rank-imbalance": Firing(
        turns(85),
        "ranks work unequally, with a changing slowest rank: 10 % less than the longest on average, mostly in update_actor",
        "high", 150_000, 150 / 1050,
        {"imbalance_ratio": 0.1, "constant_ratio": 1 / 3},
    ),
}  # fmt: skip

NEAR_MISSES: dict[str, Sources] = {
    # As late, in three steps of four: rank 0 is later in the last.
    "straggler": rank_group([[[50, 50, 59]] * 6 + [[50, 50, 50]] * 4] * 3 + [[[60, 50, 50]] * 6 + [[50, 50, 50]] * 4]),
    # (1000 - 906.7) / 1000: 9.3 %.
    "rank-imbalance": turns(86),
}
