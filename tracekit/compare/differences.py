"""Are the two sides comparable? What differs besides the change that was made, and what that means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import log, log1p

import pandas as pd

from tracekit.compare.comparison import Difference
from tracekit.compare.gate_rules import amount
from tracekit.compare.sides import Side
from tracekit.job.frames import plain
from tracekit.job.metric_kinds import METRICS, PER_WORK, STAGE_TIME
from tracekit.job.samples import Samples
from tracekit.model.stats.speedup import speedup
from tracekit.model.stats.verdict import LEAST_EFFECT, verdict


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
    "profiler options": Fact(
        blocking=False,
        meaning="what a profiler records besides slows the run: the times hold that too",
    ),
    "number types": Fact(
        blocking=False, meaning="matrix products of other types: other speed, and other numbers"
    ),
    "stages": Fact(blocking=False, meaning="a stage of one side alone is no speedup"),
}

LEAST_COMMON = 0.1
"""Sides whose kernels (or ops) have less than this share of time in common did other work."""


MAX_NAME = 60
"""Characters of a kernel's name that are told: its arguments fill lines."""


def differences(base: Side, opt: Side) -> tuple[Difference, ...]:
    """What should be alike and is not, the blocking ones first."""
    found = [*_facts(base, opt), *_work(base, opt), *_amounts(base, opt)]
    return tuple(sorted(found, key=lambda one: (not one.blocking, one.name)))


def forbids(found: Iterable[Difference]) -> bool:
    """Whether something forbids every verdict; other amounts of work forbid those on whole times alone."""
    return any(one.blocking and one.name not in PER_WORK for one in found)


def uneven(found: Iterable[Difference]) -> bool:
    """Whether the steps of one side hold so much more work that whole times cannot be compared."""
    return any(one.blocking and one.name in PER_WORK for one in found)


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
        before, after = (f"mostly {short(str(one.idxmax()))}" for one in shares if one is not None)
        yield Difference(
            "work", before, after, blocking=True, meaning=f"other kernels and ops: {text}"
        )


def short(name: str) -> str:
    """The beginning of a name, by which it is known."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def _amounts(base: Side, opt: Side) -> Iterator[Difference]:
    """Counts of work that differ by more than matters; blocking where that is no chance of the steps."""
    for name, (per_one, _) in PER_WORK.items():
        sides = [side.samples.get((name, None, None)) for side in (base, opt)]
        if sides[0] is None or sides[1] is None or not all(map(_positive, sides)):
            continue
        found = speedup(sides[0].values, sides[1].values)
        if abs(log(found.ratio)) <= log1p(LEAST_EFFECT):
            continue
        said = verdict(found, assume_independent_steps=True)
        clear = found.se == 0.0 or said.word in ("regression", "improvement")
        title = METRICS[per_one].title
        meaning = (
            f"a step holds other work: compare the {title}, not the step"
            if clear
            else f"it may be chance: see the {title} as well as the step"
        )
        before, after = (f"{amount(one.mean, 'count')} a step" for one in (found.base, found.opt))
        yield Difference(name, before, after, blocking=clear, meaning=meaning)


def _positive(found: Samples | None) -> bool:
    return found is not None and all(value > 0 for run in found.values for value in run)


def _shares(side: Side) -> pd.Series | None:
    """The share of time by kernel, by op where no GPU was traced; None where names are not known."""
    for table, column in (("kernels", "total_ns"), ("operators", "self_ns")):
        parts = [plain(part[table])[["name", column]] for part in side.measured if part.has(table)]
        if parts and sum(map(len, parts)):
            total = pd.concat(parts).groupby("name")[column].sum().astype(float)
            if total.sum() > 0:
                return total / total.sum()
    return None
