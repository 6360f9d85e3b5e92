"""Are the two sides comparable? What differs besides the change that was made, and what that means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from tracekit.compare.comparison import Difference
from tracekit.compare.sides import Side
from tracekit.metric_kinds import STAGE_TIME
from tracekit.pooling import plain


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of a fingerprint: whether a difference forbids a verdict, and what it means."""

    blocking: bool
    meaning: str


FACTS: dict[str, Fact] = {
    "gpu": Fact(blocking=True, meaning="another GPU is faster or slower by itself"),
    "world_size": Fact(
        blocking=True, meaning="the work of a step is divided by another number of ranks"
    ),
    "roles": Fact(blocking=False, meaning="roles on one side alone are missing on the other"),
    "ranks": Fact(
        blocking=False, meaning="the slowest rank may be among those that one side lacks"
    ),
    "backend": Fact(blocking=False, meaning="another communication library"),
    "versions": Fact(blocking=False, meaning="other versions may be what changed the times"),
    "stages": Fact(blocking=False, meaning="a stage of one side alone is no speedup"),
}

LEAST_COMMON = 0.1
"""Sides whose kernels (or ops) have less than this share of time in common did other work."""


def differences(base: Side, opt: Side) -> tuple[Difference, ...]:
    """What should be alike and is not, the blocking ones first."""
    found = [*_facts(base, opt), *_work(base, opt)]
    return tuple(sorted(found, key=lambda one: (not one.blocking, one.name)))


def _facts(base: Side, opt: Side) -> Iterator[Difference]:
    """Facts that both sides recorded, and differently; unknown is not different."""
    for name, fact in FACTS.items():
        before, after = base.fingerprint.get(name, ""), opt.fingerprint.get(name, "")
        if before and after and before != after:
            yield Difference(name, before, after, fact.blocking, fact.meaning)
        elif name == "gpu" and bool(before) != bool(after) and _times_gpu(base) != _times_gpu(opt):
            none = "no GPU activity recorded"
            yield Difference(
                name,
                before or none,
                after or none,
                blocking=True,
                meaning="only one side was traced on its GPU",
            )


def _times_gpu(side: Side) -> bool:
    """Whether GPU activity was recorded."""
    return any(key[0] == "gpu_busy" for key in side.samples)


def _work(base: Side, opt: Side) -> Iterator[Difference]:
    """Sides that have no stage, or hardly any kernel or op, in common."""
    stages = [{key[1:] for key in side.samples if key[0] == STAGE_TIME} for side in (base, opt)]
    if stages[0] and stages[1] and not stages[0] & stages[1]:
        before, after = (", ".join(sorted(str(stage) for _, stage in found)) for found in stages)
        yield Difference("work", before, after, blocking=True, meaning="no stage is on both sides")
        return
    shares = [_shares(side) for side in (base, opt)]
    if shares[0] is None or shares[1] is None or not (len(shares[0]) and len(shares[1])):
        return
    both = pd.concat(shares, axis=1).fillna(0.0)
    common = float(both.min(axis=1).sum())
    if common < LEAST_COMMON:
        text = f"{common:.0%} of the time in common".replace("%", " %")
        before, after = (str(one.idxmax()) for one in shares if one is not None)
        yield Difference(
            "work", before, after, blocking=True, meaning=f"other kernels and ops: {text}"
        )


def _shares(side: Side) -> pd.Series | None:
    """The share of time by kernel, by op where no GPU was traced; None where names are not known."""
    for table, column in (("kernels", "total_ns"), ("operators", "self_ns")):
        parts = [plain(part[table])[["name", column]] for part in side.measured if part.has(table)]
        if parts and sum(map(len, parts)):
            total = pd.concat(parts).groupby("name")[column].sum().astype(float)
            if total.sum() > 0:
                return total / total.sum()
    return None
