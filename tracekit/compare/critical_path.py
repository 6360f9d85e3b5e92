"""The critical paths of two sides by kind of work and by op: the work that decided the length of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracekit.model.records import dataclass
from tracekit.replay.path_owners import PathOwner, PathOwners
from tracekit.replay.what_if_tables import OTHERS

MAX_OPS = 50
"""Most rows or ops with a change of their own; others are summed."""


@dataclass(frozen=True, slots=True)
class PathPart:
    """Time on the critical path of both sides, in ns per counted step, of a kind of work, or of a row or op of that kind."""

    kind: str
    name: str | None
    base: float
    opt: float
    difference: float


@dataclass(frozen=True, slots=True)
class CriticalPathChange:
    """The critical paths of both sides in ns per counted step, means over runs. The kinds add up to them, and so do the ops.

    The shares are those of the path that no dependency explains.
    """

    base: float
    opt: float
    kinds: tuple[PathPart, ...]
    ops: tuple[PathPart, ...]
    base_unexplained: float
    opt_unexplained: float
    base_runs: int
    opt_runs: int
    base_steps: int
    opt_steps: int


def compare_critical_paths(base: Sequence[PathOwners], opt: Sequence[PathOwners]) -> CriticalPathChange | None:
    """Compare the critical paths of the runs of two sides, the largest change first; None if a side has no run."""
    if not base or not opt:
        return None
    before, after = (_average_owners(side) for side in (base, opt))
    return CriticalPathChange(
        base=_average([path.step_ns for path in base]),
        opt=_average([path.step_ns for path in opt]),
        kinds=_list_parts(_sum_kinds(before), _sum_kinds(after)),
        ops=_limit_parts(_list_parts(before, after)),
        base_unexplained=_average([path.residual_share for path in base]),
        opt_unexplained=_average([path.residual_share for path in opt]),
        base_runs=len(base),
        opt_runs=len(opt),
        base_steps=sum(path.steps for path in base),
        opt_steps=sum(path.steps for path in opt),
    )


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _average_owners(paths: Sequence[PathOwners]) -> dict[PathOwner, float]:
    """Average the time of each owner over the runs of a side."""
    owners = dict.fromkeys(owner for path in paths for owner in path.ns)
    return {owner: _average([path.ns.get(owner, 0.0) for path in paths]) for owner in owners}


def _sum_kinds(ns: Mapping[PathOwner, float]) -> dict[PathOwner, float]:
    """Sum the times of owners by kind."""
    sums: dict[PathOwner, float] = {}
    for (kind, _), value in ns.items():
        sums[kind, None] = sums.get((kind, None), 0.0) + value
    return sums


def _list_parts(base: Mapping[PathOwner, float], opt: Mapping[PathOwner, float]) -> tuple[PathPart, ...]:
    """List the times of both sides, the largest change first."""
    parts = []
    for kind, name in dict.fromkeys((*base, *opt)):
        before, after = base.get((kind, name), 0.0), opt.get((kind, name), 0.0)
        parts.append(PathPart(kind, name, before, after, after - before))
    return tuple(sorted(parts, key=lambda part: (-abs(part.difference), -part.base, part.kind, part.name or "")))


def _limit_parts(parts: tuple[PathPart, ...]) -> tuple[PathPart, ...]:
    """Keep the largest changes, and sum the others."""
    rest = parts[MAX_OPS:]
    if not rest:
        return parts
    sums = [sum(getattr(part, name) for part in rest) for name in ("base", "opt", "difference")]
    return (*parts[:MAX_OPS], PathPart(OTHERS, f"{len(rest)} more", *sums))
