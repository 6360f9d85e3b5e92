"""Which steps count: the first ones of a capture and those that compile are left out, by rule and by name.

The rule looks at what a step held, never at how long it took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import pandas as pd

from tracekit.job.frames import text_or_none
from tracekit.job.samples import Key, Samples, StepId
from tracekit.model.metrics import STEP_TIME

FIRST, COMPILES = "first_of_window", "compilations"
_OPENING, _COMPILING = "the first after the profiler began", "compiles or loads code"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A step that is left out of the comparison, and why."""

    run: str
    step: int | None
    part: str | None
    reason: str


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

    By rule these are the first step after a profiler began and then steps that compile or load code. Where
    all that is left compiles it stays: then that is what the steps of the run are like.
    """
    steps = found.get((STEP_TIME, None, None))
    if steps is None:
        return LeftOut(())
    out: list[Dropped] = []
    if first is not None:
        for ids in steps.steps:
            out += [Dropped(*step, f"one of the first {first}") for step in ids[:first]]
        return LeftOut(tuple(out))
    opening, compiling = _marked(marks, FIRST), _marked(marks, COMPILES)
    for ids in steps.steps:
        first_ones = _unless_all(ids, opening)
        busy = _unless_all([step for step in ids if step not in first_ones], compiling)
        for step in ids:
            if step in first_ones:
                out.append(Dropped(*step, _OPENING))
            elif step in busy:
                out.append(Dropped(*step, _COMPILING))
    return LeftOut(tuple(out))


def _unless_all(steps: Sequence[StepId], marks: set[StepId]) -> set[StepId]:
    """The steps that carry a mark, none where that would leave nothing."""
    marked = {step for step in steps if _is(step, marks)}
    return set() if len(marked) == len(steps) else marked


def _is(step: StepId, marked: set[StepId]) -> bool:
    """Whether a step carries a mark; where either names no part, any part will do."""
    run, number, part = step
    if part is None:
        return any(mark[:2] == (run, number) for mark in marked)
    return step in marked or (run, number, None) in marked


def _marked(marks: pd.DataFrame, name: str) -> set[StepId]:
    """The steps that carry a mark."""
    rows = marks[(marks["name"] == name) & marks["step"].notna()]
    return {
        (str(run), int(step), text_or_none(part))
        for run, step, part in zip(rows["run"], rows["step"], rows["part"], strict=True)
    }
