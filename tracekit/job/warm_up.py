"""Which steps count: the first ones of a capture and those that compile are left out, by rule and by name.

The rule looks at what a step held, never at how long it took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from tracekit.job.metric_kinds import STEP_TIME
from tracekit.job.samples import Key, Samples, StepId

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
        gone = {(step_left.run, step_left.step, step_left.part) for step_left in self.steps}
        parts = [
            (
                run,
                [
                    (step, value)
                    for step, value in zip(ids, values, strict=True)
                    if step not in gone
                ],
            )
            for run, ids, values in zip(found.runs, found.steps, found.values, strict=True)
        ]
        left = [(run, pairs) for run, pairs in parts if pairs]
        return Samples(
            found.key,
            tuple(run for run, _ in left),
            tuple(tuple(step for step, _ in pairs) for _, pairs in left),
            tuple(tuple(value for _, value in pairs) for _, pairs in left),
        )


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
    opening, compiling = (_marked(marks, name) for name in (FIRST, COMPILES))
    for ids in steps.steps:
        first_ones = _unless_all([step for step in ids if _is(step, opening)], ids)
        later_steps = [step for step in ids if step not in first_ones]
        busy = _unless_all([step for step in later_steps if _is(step, compiling)], later_steps)
        out += [
            Dropped(*step, _OPENING if step in first_ones else _COMPILING)
            for step in ids
            if step in first_ones or step in busy
        ]
    return LeftOut(tuple(out))


def _unless_all(marked: list[StepId], steps: Sequence[StepId]) -> set[StepId]:
    """The marked steps, none where that would leave nothing."""
    return set(marked) if len(marked) < len(steps) else set()


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
        (str(run), int(step), None if pd.isna(part) else str(part))
        for run, step, part in zip(rows["run"], rows["step"], rows["part"], strict=True)
    }
