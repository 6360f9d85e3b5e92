"""The plan: fixes in the order in which they bring most, each on top of those before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracekit.model.records import dataclass
from tracekit.replay.apply import Weights, apply_change
from tracekit.replay.changes import ChangeError, RunChange
from tracekit.replay.contention import Contention, measure_contention
from tracekit.replay.job_graph import JobGraph
from tracekit.replay.predict import time_changed_graph
from tracekit.replay.selection import JobIndex
from tracekit.replay.steps import JobSteps, measure_step_times

LITTLE = 0.2
"""A fix that saves less than this share of what it saves alone is behind another."""


@dataclass(frozen=True, slots=True)
class Fix:
    """A fix: the changes that it makes to the run, and its name."""

    name: str
    changes: tuple[RunChange, ...]


@dataclass(frozen=True, slots=True)
class PlannedFix:
    """A fix of the plan, in ns per step.

    - `step_ns`: the step with this fix and all before it.
    - `alone_ns`: what it saves alone; `last_ns`: what it saves once all others are made.
    - `place`: place of the fix among those given.
    - `behind`: number of the earlier fix, from 1, that leaves it little to save; None if no single one does.
    """

    fix: Fix
    place: int
    step_ns: float
    gain_ns: float
    alone_ns: float
    last_ns: float
    behind: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Fixes in order, the recorded step, and why other fixes could not be predicted, by their place.

    `contention` has the measured slowdown of kernels during collectives, where it changed a kernel.
    """

    recorded_ns: float
    fixes: tuple[PlannedFix, ...]
    refused: tuple[tuple[int, str], ...]
    contention: Contention | None = None


def plan_fixes(job: JobGraph, steps: JobSteps, fixes: Sequence[Fix]) -> Plan:
    """Plan fixes greedily: the next is the one that gives the shortest step on top of those chosen."""
    planner = _Planner(job, steps)
    alone, refused = {}, []
    for place, fix in enumerate(fixes):
        try:
            alone[place] = planner.time([fix])
        except ChangeError as error:
            refused.append((place, error.problem))
    open_: list[int] = list(alone)
    chosen: list[int] = []
    planned: list[PlannedFix] = []
    everything = planner.time([fixes[place] for place in open_]) if open_ else planner.recorded_ns
    while open_:
        results = {place: planner.time([*(fixes[done] for done in chosen), fixes[place]]) for place in open_}
        best = min(open_, key=lambda place: (results[place], place))
        open_.remove(best)
        others = [fixes[place] for place in alone if place != best]
        last = planner.time(others) - everything if others else planner.recorded_ns - alone[best]
        before = planned[-1].step_ns if planned else planner.recorded_ns
        gain, most = before - results[best], planner.recorded_ns - alone[best]
        behind = None
        if gain < LITTLE * most and most > 0:
            behind = planner.find_blocking_fix(fixes[best], [fixes[place] for place in chosen])
        planned.append(PlannedFix(fixes[best], best, results[best], gain, most, last, behind))
        chosen.append(best)
    return Plan(planner.recorded_ns, tuple(planned), tuple(refused), planner.applied)


class _Planner:
    """Times the graph with sets of fixes; each set once."""

    def __init__(self, job: JobGraph, steps: JobSteps) -> None:
        self.job, self.steps, self.index = job, steps, JobIndex(job)
        self.contention: Contention | None = measure_contention(job)
        self.applied: Contention | None = None
        self.recorded_ns = measure_step_times(steps, job.time).mean_ns
        self._known: dict[tuple[int, ...], float] = {}

    def time(self, fixes: Sequence[Fix]) -> float:
        """Time the mean step with these fixes, in this order. Raises `ChangeError`."""
        key = tuple(id(fix) for fix in fixes)
        if key not in self._known:
            weights = Weights(np.array(self.job.edges.weight), [])
            for fix in fixes:
                self._apply(weights, fix, is_first=len(fixes) == 1)
            timing, rescaled = time_changed_graph(self.job, weights, self.contention)
            self.applied = self.contention if rescaled else self.applied
            self._known[key] = measure_step_times(self.steps, timing.time).mean_ns
        return self._known[key]

    def find_blocking_fix(self, fix: Fix, earlier: Sequence[Fix]) -> int | None:
        """Find the number, from 1, of the first earlier fix after which this one saves little; None if none does so alone."""
        alone = self.recorded_ns - self.time([fix])
        for number, other in enumerate(earlier, 1):
            if self.time([other]) - self.time([other, fix]) < LITTLE * alone:
                return number
        return None

    def _apply(self, weights: Weights, fix: Fix, *, is_first: bool) -> None:
        """Apply the changes of a fix; after other fixes, changes that find nothing left are skipped."""
        refused = []
        for change in fix.changes:
            try:
                apply_change(self.index, weights, change)
            except ChangeError as error:
                refused.append(error)
        if is_first and len(refused) == len(fix.changes):
            raise refused[0]
