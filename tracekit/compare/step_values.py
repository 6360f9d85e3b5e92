"""The time of every single step of a side, also of those that do not count."""

from __future__ import annotations

from collections.abc import Iterator

from tracekit.compare.comparison import StepValue
from tracekit.compare.sides import Side


def step_values(*sides: Side) -> Iterator[StepValue]:
    """Side by side and run by run, the steps in their order."""
    for side in sides:
        every = side.every_step
        if every is None:
            continue
        gone = {(one.run, one.step, one.part) for one in side.dropped}
        for run, ids, values in zip(every.runs, every.steps, every.values, strict=True):
            for step, value in zip(ids, values, strict=True):
                yield StepValue(side.name, run, step[1], value, step not in gone)
