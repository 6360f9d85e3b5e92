"""Steps left out of comparisons: stubs, warm-up steps and those that compile, by rule and by name.

The rules look at the content of a step, never at its length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracekit.job.steps.metric_samples import Key, MetricSamples, StepId
from tracekit.model.metrics import CUT_OFF, RAN_AHEAD, STEP_TIME, WITHOUT_WORK
from tracekit.model.records import dataclass
from tracekit.model.tables.frame import Frame

FIRST, COMPILES = "first_of_window", "compilations"
_OPENING, _COMPILING = "warm-up step", "compiles or loads code"
_EMPTY, _AHEAD = ("cut off, with almost no device work", "out of step with its device work: the host ran ahead")
_OPEN = "last recorded step; its end is unknown"
INCOMPLETE = "incomplete on some rank"
"""Reason for leaving out a step that a rank lacks, or for which the work of a rank is lost."""

COMPARED_ONLY = frozenset([_COMPILING])
"""Reasons to leave a step out of comparisons only: its time is part of the cost of a run."""


@dataclass(frozen=True, slots=True)
class DroppedStep:
    """A step left out of the comparison, with the reason."""

    run: str
    step: int | None
    part: str | None
    reason: str

    @property
    def is_without_work(self) -> bool:
        """Whether it has no work that a sum over all steps would miss."""
        return self.reason == _EMPTY

    @property
    def ran_ahead(self) -> bool:
        """Whether it is left out because its host ran ahead of the device."""
        return self.reason == _AHEAD

    @property
    def is_incomplete(self) -> bool:
        """Whether it is left out because some rank lacks it."""
        return self.reason == INCOMPLETE

    @property
    def is_first(self) -> bool:
        """Whether it is left out as the first step (warm-up), whatever its content."""
        return self.reason == _OPENING


@dataclass(frozen=True, slots=True)
class LeftOutSteps:
    """The steps that are left out."""

    steps: tuple[DroppedStep, ...]

    def filter_samples(self, samples: MetricSamples) -> MetricSamples:
        """Filter samples to the remaining steps; a run without any is dropped."""
        gone = {(step.run, step.step, step.part) for step in self.steps}
        runs, steps, values = [], [], []
        for run, ids, levels in zip(samples.runs, samples.steps, samples.values, strict=True):
            pairs = zip(ids, levels, strict=True)
            left = {step: value for step, value in pairs if step not in gone}
            if left:
                runs.append(run)
                steps.append(tuple(left))
                values.append(tuple(left.values()))
        return MetricSamples(samples.key, tuple(runs), tuple(steps), tuple(values))


def find_steps_to_drop(samples_by_key: Mapping[Key, MetricSamples], marks: Frame, first: int | None) -> LeftOutSteps:
    """Find the steps to leave out: the first `first` of every run, or by rule if None.

    The rules, in order: stubs without device work, a last window without a known end, steps in which other device work
    ran than was launched, the first step after a profiler began, and steps that compile or load code. A rule that would
    leave no step is skipped, as all steps of the run are like that. The first step is also kept where device work cannot
    distinguish the steps, because its work then runs in the others.
    """
    steps = samples_by_key.get((STEP_TIME, None, None))
    if steps is None:
        return LeftOutSteps(())
    out: list[DroppedStep] = []
    if first is not None:
        for ids in steps.steps:
            out += [DroppedStep(*step, f"one of the first {first}") for step in ids[:first]]
        return LeftOutSteps(tuple(out))
    marked = _map_marked_steps(marks, [name for name, _ in _DROP_RULES])
    for ids in steps.steps:
        reasons = _list_drop_reasons(ids, marked)
        out += [DroppedStep(*step, reasons[step]) for step in ids if step in reasons]
    return LeftOutSteps(tuple(out))


def _list_drop_reasons(ids: Sequence[StepId], marked: Mapping[str, set[StepId]]) -> dict[StepId, str]:
    """List the steps of one run that are left out, each with its first reason."""
    reasons: dict[StepId, str] = {}
    for name, reason in _DROP_RULES:
        remaining = [step for step in ids if step not in reasons]
        works_elsewhere = _select_marked_steps(remaining, marked[RAN_AHEAD])
        if name == FIRST and 1 < len(remaining) == len(works_elsewhere):
            continue
        reasons.update(dict.fromkeys(_select_marked_unless_all(remaining, marked[name]), reason))
    return reasons


_DROP_RULES = ((WITHOUT_WORK, _EMPTY), (CUT_OFF, _OPEN), (RAN_AHEAD, _AHEAD), (FIRST, _OPENING), (COMPILES, _COMPILING))
"""Marks and their reasons, in order."""


def _select_marked_unless_all(steps: Sequence[StepId], marks: set[StepId]) -> set[StepId]:
    """Select the steps with a mark, none if that would leave no step."""
    marked = _select_marked_steps(steps, marks)
    return set() if len(marked) == len(steps) else marked


def _select_marked_steps(steps: Sequence[StepId], marks: set[StepId]) -> set[StepId]:
    """Select the steps with a mark."""
    return {step for step in steps if _is_step_marked(step, marks)}


def _is_step_marked(step: StepId, marked: set[StepId]) -> bool:
    """Check whether a step has a mark; if either has no part, any part matches."""
    run, number, part = step
    if part is None:
        return any(mark[:2] == (run, number) for mark in marked)
    return step in marked or (run, number, None) in marked


def _map_marked_steps(marks: Frame, names: Sequence[str]) -> Mapping[str, set[StepId]]:
    """Map each of these marks to its steps."""
    steps: dict[str, set[StepId]] = {name: set() for name in names}
    rows = marks.filter(marks.is_in("name", names) & ~marks.is_missing("step"))
    for row in rows.rows("name", "run", "step", "part"):
        steps[row["name"]].add((str(row["run"]), row["step"], row["part"]))
    return steps
