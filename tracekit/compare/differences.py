"""Comparability of two sides: differences other than the change under test, and their meaning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import log, log1p

import pandas as pd

from tracekit.compare.comparison import Difference
from tracekit.compare.gate_rules import amount
from tracekit.compare.sides import Side, all_positive
from tracekit.model.metrics import METRICS, PER_WORK, STAGE_TIME
from tracekit.model.records import dataclass
from tracekit.model.stats.speedup import Speedup, speedup
from tracekit.model.stats.verdict import LEAST_EFFECT, verdict


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of a fingerprint: the meaning of a difference, and whether it forbids a verdict."""

    meaning: str
    blocking: bool = False


FACTS: dict[str, Fact] = {
    "gpu": Fact("another GPU is faster or slower by itself", blocking=True),
    "world_size": Fact("the work of a step is divided by another number of ranks", blocking=True),
    "roles": Fact("roles on one side alone are missing on the other"),
    "ranks": Fact("the slowest rank may be among those that one side lacks"),
    "backend": Fact("another communication library"),
    "versions": Fact("other versions may be what changed the times"),
    "profiler options": Fact(
        "what a profiler records besides slows the run: the times hold that too"
    ),
    "number types": Fact("matrix products of other types: other speed, and other numbers"),
    "stages": Fact("a stage of one side alone is no speedup"),
}

_ONE_GPU_TRACED = Fact("only one side was traced on its GPU", blocking=True)

LEAST_COMMON = 0.1
"""Smallest share of kernel (or op) time in common; sides with less did different work."""

MAX_NAME = 60
"""Longest kernel name shown, in characters; kernel arguments fill whole lines."""


def differences(base: Side, opt: Side) -> tuple[Difference, ...]:
    """List the properties that should be equal and are not, the blocking ones first."""
    unlike = [*_facts(base, opt), *_work(base, opt), *_amounts(base, opt)]
    return tuple(sorted(unlike, key=lambda difference: (not difference.blocking, difference.name)))


def forbids(differences: Iterable[Difference]) -> bool:
    """Check whether a difference forbids every verdict.

    Different amounts of work forbid only verdicts on whole times.
    """
    return any(unlike.blocking and unlike.name not in PER_WORK for unlike in differences)


def uneven(differences: Iterable[Difference]) -> bool:
    """Check whether the work per step differs so much that whole times cannot be compared."""
    return any(unlike.blocking and unlike.name in PER_WORK for unlike in differences)


def _facts(base: Side, opt: Side) -> Iterator[Difference]:
    """List facts that both sides recorded with different values; an unknown value is not a difference."""
    for name, fact in FACTS.items():
        before, after = base.fingerprint.get(name, ""), opt.fingerprint.get(name, "")
        if before and after and before != after:
            yield _difference(name, before, after, fact)
        elif name == "gpu" and bool(before) != bool(after) and _times_gpu(base) != _times_gpu(opt):
            nothing = "no GPU activity recorded"
            yield _difference(name, before or nothing, after or nothing, _ONE_GPU_TRACED)


def _difference(name: str, base: str, opt: str, fact: Fact) -> Difference:
    return Difference(name, base, opt, fact.blocking, fact.meaning)


def _times_gpu(side: Side) -> bool:
    """Check whether GPU activity was recorded."""
    return any(name == "gpu_busy" for name, _, _ in side.samples)


def _work(base: Side, opt: Side) -> Iterator[Difference]:
    """Find sides that share no stage, or hardly any kernel or op."""
    base_stages, opt_stages = _stages(base), _stages(opt)
    if base_stages and opt_stages and not base_stages & opt_stages:
        before, after = _stage_names(base_stages), _stage_names(opt_stages)
        yield Difference("work", before, after, blocking=True, meaning="no stage is on both sides")
        return
    base_shares, opt_shares = _shares(base), _shares(opt)
    if base_shares is None or opt_shares is None:
        return
    both = pd.concat([base_shares, opt_shares], axis=1).fillna(0.0)
    common = float(both.min(axis=1).sum())
    if common < LEAST_COMMON:
        yield Difference(
            "work",
            f"mostly {short(str(base_shares.idxmax()))}",
            f"mostly {short(str(opt_shares.idxmax()))}",
            blocking=True,
            meaning=f"other kernels and ops: {common:.0%} of the time in common".replace("%", " %"),
        )


def _stages(side: Side) -> set[tuple[str | None, str | None]]:
    """Collect the (role, name) of every timed stage."""
    return {(role, stage) for name, role, stage in side.samples if name == STAGE_TIME}


def _stage_names(stages: Iterable[tuple[str | None, str | None]]) -> str:
    """Join the names of stages in order."""
    return ", ".join(sorted(str(stage) for _, stage in stages))


def short(name: str) -> str:
    """Shorten a kernel name to its beginning."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def _amounts(base: Side, opt: Side) -> Iterator[Difference]:
    """List work counts that differ by more than matters; blocking if step-to-step chance does not explain it."""
    for name, (per_one, _) in PER_WORK.items():
        before, after = base.samples.get((name, None, None)), opt.samples.get((name, None, None))
        if before is None or after is None or not (all_positive(before) and all_positive(after)):
            continue
        ratio = speedup(before.values, after.values)
        if abs(log(ratio.ratio)) <= log1p(LEAST_EFFECT):
            continue
        title = METRICS[per_one].title
        clear = _clear(ratio)
        meaning = f"it may be chance: see the {title} as well as the step"
        if clear:
            meaning = f"a step holds other work: compare the {title}, not the step"
        yield Difference(
            name, _a_step(ratio.base.mean), _a_step(ratio.opt.mean), blocking=clear, meaning=meaning
        )


def _clear(ratio: Speedup) -> bool:
    """Check whether a work count differs by more than chance, treating steps as runs."""
    judgement = verdict(ratio, assume_independent_steps=True)
    return ratio.se == 0.0 or judgement.word in ("regression", "improvement")


def _a_step(count: float) -> str:
    return f"{amount(count, 'count')} a step"


def _shares(side: Side) -> pd.Series | None:
    """Compute the share of time per kernel, or per op if no GPU was traced; None if names are unknown."""
    for table, column in (("kernels", "total_ns"), ("operators", "self_ns")):
        parts = [part[table][["name", column]] for part in side.measured if part.has(table)]
        if parts and any(map(len, parts)):
            total = pd.concat(parts).groupby("name")[column].sum().astype(float)
            if total.sum() > 0:
                return total / total.sum()
    return None
