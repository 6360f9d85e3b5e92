"""Which steps count: the first ones of a capture and those that compile are left out, by rule and by name.

The rule looks at what a step held, never at how long it took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

import numpy as np
import pandas as pd

from tracekit.job.steps.metric_samples import Key, Samples, StepId
from tracekit.model.keys import records
from tracekit.model.metrics import CUT_OFF, RAN_AHEAD, STEP_TIME, WITHOUT_WORK
from tracekit.model.records import dataclass

FIRST, COMPILES = "first_of_window", "compilations"
_OPENING, _COMPILING = "the first after the profiler began", "compiles or loads code"
_EMPTY, _AHEAD = (
    "cut off, with next to no device work",
    "out of step with its device work: the host ran ahead",
)
_OPEN = "the last that was recorded, whose end nothing tells"
INCOMPLETE = "not recorded whole on every rank"
"""Why a step is left out that other ranks went on to, or of which the work of one rank is lost."""

COMPARED_ONLY = frozenset([_COMPILING])
"""Reasons for which a step is left out of comparisons, although its time is part of what a run costs."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A step that is left out of the comparison, and why."""

    run: str
    step: int | None
    part: str | None
    reason: str

    @property
    def is_without_work(self) -> bool:
        """Whether it holds no work that a sum over all steps would have from it."""
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
        """Whether it is left out for being the first, whatever it held."""
        return self.reason == _OPENING


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The steps that are left out, and what is left of samples without them."""

    steps: tuple[Dropped, ...]

    def kept(self, found: Samples) -> Samples:
        """The samples without these steps; a run of which nothing is left is gone."""
        gone = set(map(attrgetter("run", "step", "part"), self.steps))
        runs, steps, values = [], [], []
        for run, ids, levels in zip(found.runs, found.steps, found.values, strict=True):
            pairs = zip(ids, levels, strict=True)
            left = {step: value for step, value in pairs if step not in gone}
            if left:
                runs.append(run)
                steps.append(tuple(left))
                values.append(tuple(left.values()))
        return Samples(found.key, tuple(runs), tuple(steps), tuple(values))


def dropped(found: Mapping[Key, Samples], marks: pd.DataFrame, first: int | None) -> LeftOut:
    """The steps to leave out: the first `first` of every run, or with None by what is known of them.

    By rule these are stubs without device work, steps in which other device work ran than was launched, the first
    step after a profiler began, and then steps that compile or load code. Where that is all that is left it stays:
    then that is what the steps of the run are like; and where device work tells no step from the others, the first
    one stays too, as its work runs in those.
    """
    steps = found.get((STEP_TIME, None, None))
    if steps is None:
        return LeftOut(())
    out: list[Dropped] = []
    if first is not None:
        for ids in steps.steps:
            out += [Dropped(*step, f"one of the first {first}") for step in ids[:first]]
        return LeftOut(tuple(out))
    marked = _marked(marks, [name for name, _ in _RULES])
    for ids in steps.steps:
        reasons = _reasons(ids, marked)
        out += [Dropped(*step, reasons[step]) for step in ids if step in reasons]
    return LeftOut(tuple(out))


def _reasons(ids: Sequence[StepId], marked: Mapping[str, set[StepId]]) -> dict[StepId, str]:
    """The steps of one run that are left out, each with the first reason for that."""
    reasons: dict[StepId, str] = {}
    for name, reason in _RULES:
        remaining = [step for step in ids if step not in reasons]
        works_elsewhere = _carrying(remaining, marked[RAN_AHEAD])
        if name == FIRST and 1 < len(remaining) == len(works_elsewhere):
            continue
        reasons.update(dict.fromkeys(_unless_all(remaining, marked[name]), reason))
    return reasons


_RULES = (
    (WITHOUT_WORK, _EMPTY),
    (CUT_OFF, _OPEN),
    (RAN_AHEAD, _AHEAD),
    (FIRST, _OPENING),
    (COMPILES, _COMPILING),
)
"""The marks and what they say, in order."""


def _unless_all(steps: Sequence[StepId], marks: set[StepId]) -> set[StepId]:
    """The steps that carry a mark, none where that would leave nothing."""
    marked = _carrying(steps, marks)
    return set() if len(marked) == len(steps) else marked


def _carrying(steps: Sequence[StepId], marks: set[StepId]) -> set[StepId]:
    """The steps that carry a mark."""
    return {step for step in steps if _is(step, marks)}


def _is(step: StepId, marked: set[StepId]) -> bool:
    """Whether a step carries a mark; where either names no part, any part will do."""
    run, number, part = step
    if part is None:
        return any(mark[:2] == (run, number) for mark in marked)
    return step in marked or (run, number, None) in marked


def _marked(marks: pd.DataFrame, names: Sequence[str]) -> Mapping[str, set[StepId]]:
    """The steps that carry each of these marks."""
    steps: dict[str, set[StepId]] = {name: set() for name in names}
    rows = marks[marks["name"].isin(names).to_numpy(np.bool_)]
    for name, run, step, part in records(rows, ("name", "run", "step", "part")):
        if step is not None:
            steps[name].add((str(run), int(step), part))
    return steps
