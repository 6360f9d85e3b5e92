"""The plan: fixes in the order in which they bring most, each on top of those before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from tracekit.model.records import dataclass
from tracekit.model.report import Saving
from tracekit.model.system.freed_memory import release_freed_memory
from tracekit.model.units import format_quantity
from tracekit.replay.changes import ChangeError, RunChange
from tracekit.replay.changing.apply import apply_change
from tracekit.replay.changing.selection import JobIndex
from tracekit.replay.contention import Contention, measure_contention
from tracekit.replay.edges import Weights
from tracekit.replay.job_graph import JobGraph
from tracekit.replay.ledger import find_critical_path
from tracekit.replay.paths import Timing
from tracekit.replay.predict import join_added, time_changed_graph
from tracekit.replay.steps import JobSteps, StepTimes, measure_step_times

LITTLE = 0.2
"""A fix that saves less than this share of its saving alone is behind another."""

MOST_RESIDUAL = 0.2
"""No step is predicted where a larger share of the critical path has no explanation."""

NEARLY = 0.9
"""Fixes that save at least this share of the most are nearly equal: the first of them is next."""

LEAST = 0.001
"""Share of the step below which a fix hardly matters."""


@dataclass(frozen=True, slots=True)
class Fix:
    """A fix: the changes that it makes to the run, and its name. One that `is_last` is planned after all others."""

    name: str
    changes: tuple[RunChange, ...]
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class PlannedFix:
    """A fix of the plan, its place among those given, and its saving."""

    fix: Fix
    place: int
    saving: Saving


@dataclass(frozen=True, slots=True)
class Plan:
    """Fixes in order, the recorded step, and why other fixes could not be predicted: (place, reason).

    `contention` has the measured slowdown of kernels during collectives, where it changed a kernel.
    """

    recorded_ns: float
    fixes: tuple[PlannedFix, ...]
    refused: tuple[tuple[int, str], ...]
    contention: Contention | None = None

    @property
    def step_ns(self) -> float:
        """The step with all fixes."""
        return self.fixes[-1].saving.step_ns if self.fixes else self.recorded_ns


def plan_fixes(job: JobGraph, steps: JobSteps, fixes: Sequence[Fix]) -> Plan:
    """Plan fixes greedily: the next is the one that gives the shortest step on top of those chosen, or nearly so.

    Fixes that hardly matter, alone or last, are last, in the order of their savings alone.
    Changes of a fix that this run refuses are left out; a fix without any other is refused.
    """
    planner = _Planner(job, steps)
    fixes = list(fixes)
    alone, refused = {}, []
    for place, fix in enumerate(fixes):
        try:
            fixes[place] = planner.keep_possible_changes(fix)
            alone[place] = planner.time_alone(fixes[place])
        except ChangeError as error:
            refused.append((place, error.problem))
    last = _measure_last_savings(planner, {place: fixes[place] for place in alone})
    chosen: list[int] = []
    planned: list[PlannedFix] = []
    before = planner.recorded_ns
    for best in _choose_order(planner, fixes, alone, last, chosen):
        earlier = [fixes[place] for place in chosen]
        step_ns = planner.time([*earlier, fixes[best]])
        most = planner.recorded_ns - alone[best]
        low_ns, high_ns = planner.measure_spread(fixes[best])
        behind = None
        if before - step_ns < LITTLE * most and most > 0:
            behind = planner.find_blocking_fix(fixes[best], earlier)
        saving = Saving(
            number=len(chosen) + 1,
            alone_ns=most,
            after_ns=before - step_ns,
            last_ns=last[best],
            before_ns=before,
            step_ns=step_ns,
            recorded_ns=planner.recorded_ns,
            low_ns=low_ns,
            high_ns=high_ns,
            behind=behind,
        )
        planned.append(PlannedFix(fixes[best], best, saving))
        chosen.append(best)
        before = step_ns
    return Plan(planner.recorded_ns, tuple(planned), tuple(refused), planner.applied)


def _measure_last_savings(planner: _Planner, fixes: Mapping[int, Fix]) -> dict[int, float]:
    """Measure what each fix saves once all others are made, the last first: sets of fixes then begin alike."""
    everything = planner.time(list(fixes.values())) if fixes else 0.0
    others = {place: [fixes[other] for other in fixes if other != place] for place in [*fixes][::-1]}
    return {place: planner.time(rest) - everything for place, rest in others.items()}


def _choose_order(
    planner: _Planner,
    fixes: Sequence[Fix],
    alone: Mapping[int, float],
    last: Mapping[int, float],
    chosen: Sequence[int],
) -> Iterator[int]:
    """Choose the next fix on top of those `chosen`, which the caller extends."""
    least = LEAST * planner.recorded_ns
    large = [place for place in alone if max(planner.recorded_ns - alone[place], last[place]) >= least]
    small = [place for place in alone if place not in large]
    while large:
        first = [place for place in large if not fixes[place].is_last] or large
        earlier = [fixes[done] for done in chosen]
        step_ns = {place: planner.time([*earlier, fixes[place]]) for place in first}
        before = planner.time(earlier)
        most = before - min(step_ns.values())
        best = next(place for place in first if before - step_ns[place] >= (NEARLY * most if most > 0 else most))
        large.remove(best)
        yield best
    yield from sorted(small, key=lambda place: (alone[place], place))


class _Planner:
    """Times the graph with sets of fixes; each set once. The weights are those of the last set: the next undoes where it differs."""

    def __init__(self, job: JobGraph, steps: JobSteps) -> None:
        self.job, self.steps, self.index = job, steps, JobIndex(job)
        self.contention: Contention | None = measure_contention(job)
        release_freed_memory()
        self.applied: Contention | None = None
        self._weights = Weights(job.edges.weight.copy())
        self._made: list[tuple[Fix, tuple[int, int]]] = []
        self._recorded = measure_step_times(steps, job.time)
        self._known: dict[tuple[int, ...], StepTimes] = {(): self._recorded}

    @property
    def recorded_ns(self) -> float:
        """The mean step as recorded."""
        return self._recorded.mean_ns

    def time(self, fixes: Sequence[Fix]) -> float:
        """Time the mean step with these fixes, in this order. Raises `ChangeError`."""
        return self._time_steps(fixes).mean_ns

    def time_alone(self, fix: Fix) -> float:
        """Time the mean step with one fix. Raises `ChangeError` if too much of the critical path has no explanation then."""
        weights = self._change_weights([fix])
        timing, rescaled = time_changed_graph(self.job, weights, self.contention)
        path = find_critical_path(self.job, self.steps, timing, join_added(weights)[:2])
        share = path.covered_residual_share
        if share > MOST_RESIDUAL:
            percent = format_quantity(share, "ratio", 2)
            raise ChangeError(f"{percent} of the critical path after the fix is unexplained", "")
        return self._remember_steps([fix], timing, rescaled).mean_ns

    def measure_spread(self, fix: Fix) -> tuple[float, float]:
        """Measure the least and the most that a fix takes off a recorded step."""
        before, after = self._recorded.by_number, self._time_steps([fix]).by_number
        savings = [before[number] - ns for number, ns in after.items() if number in before]
        return min(savings, default=0.0), max(savings, default=0.0)

    def _time_steps(self, fixes: Sequence[Fix]) -> StepTimes:
        """Time the steps with fixes; a fix whose order of work contradicts that of those before it changes nothing."""
        key = tuple(map(id, fixes))
        if key not in self._known:
            try:
                weights = self._change_weights(fixes)
                timing, rescaled = time_changed_graph(self.job, weights, self.contention, lists_deciders=False)
            except ChangeError:
                if len(fixes) == 1:
                    raise
                self._known[key] = self._time_steps(fixes[:-1])
            else:
                self._remember_steps(fixes, timing, rescaled)
        return self._known[key]

    def _remember_steps(self, fixes: Sequence[Fix], timing: Timing, rescaled: int) -> StepTimes:
        """Measure the steps with fixes, and remember them."""
        self.applied = self.contention if rescaled else self.applied
        steps = self._known[tuple(map(id, fixes))] = measure_step_times(self.steps, timing.time)
        return steps

    def find_blocking_fix(self, fix: Fix, earlier: Sequence[Fix]) -> int | None:
        """Find the number, from 1, of the first earlier fix after which this one saves little; None if none does so alone."""
        alone = self.recorded_ns - self.time([fix])
        for number, other in enumerate(earlier, 1):
            if self.time([other]) - self.time([other, fix]) < LITTLE * alone:
                return number
        return None

    def keep_possible_changes(self, fix: Fix) -> Fix:
        """Keep the changes of a fix that this run does not refuse. Raises `ChangeError` if it refuses all."""
        weights, possible, refused = self._change_weights([]), [], []
        mark = weights.mark()
        for change in fix.changes:
            try:
                apply_change(self.index, weights, change)
            except ChangeError as error:
                refused.append(error)
            else:
                possible.append(change)
        weights.undo(mark)
        if refused and not possible:
            raise refused[0]
        return replace(fix, changes=tuple(possible))

    def _change_weights(self, fixes: Sequence[Fix]) -> Weights:
        """Change the weights by each fix in turn; changes that find nothing left after other fixes are skipped."""
        made, weights = self._made, self._weights
        kept = next((at for at, (fix, _) in enumerate(made) if at >= len(fixes) or fix is not fixes[at]), len(made))
        if kept < len(made):
            weights.undo(made[kept][1])
            del made[kept:]
        for fix in fixes[kept:]:
            made.append((fix, weights.mark()))
            for change in fix.changes:
                with suppress(ChangeError):
                    apply_change(self.index, weights, change)
        return weights
