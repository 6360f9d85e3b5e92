"""Which steps of a run are profiled, and how many captures that makes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Steps to profile, each in its own capture, or consecutive ones in one capture (`continuous`).

    If a run ends early, pass `last` with its last step to close an open capture.

    >>> plan = StepPlan((1, 2, 5), continuous=True)
    >>> [step for step in range(7) if plan.opens(step)], [step for step in range(7) if plan.closes(step)]
    ([1, 5], [2, 5])
    >>> plan.closes(1, last=True), plan.captures(), plan.captures(stages=4)
    (True, 2, 12)
    """

    steps: tuple[int, ...] = ()
    continuous: bool = False

    @classmethod
    def of(cls, steps: Iterable[int] | int | str | None, *, continuous: bool = False) -> StepPlan:
        """Make the plan for these steps, in any order and with repetitions; None means no step.

        A number is a single step; text is parsed as on a command line: `3`, `1,2` or `[1, 2]`. Raises
        `ValueError` for anything else.
        """
        named: Iterable[Any]
        if steps is None:
            named = ()
        elif isinstance(steps, str):
            named = steps.strip().removeprefix("[").removesuffix("]").split(",")
            named = [text for text in map(str.strip, named) if text]
        else:
            named = [steps] if isinstance(steps, int) else steps
        try:
            numbers = {int(step) for step in named}
        except (TypeError, ValueError) as error:
            raise ValueError(f"steps must be whole numbers such as [1,2,5], not {steps!r}") from error
        return cls(tuple(sorted(numbers)), continuous)

    def __contains__(self, step: int) -> bool:
        return step in self.steps

    def opens(self, step: int) -> bool:
        """Whether a capture starts before this step."""
        return step in self.steps and not (self.continuous and step - 1 in self.steps)

    def closes(self, step: int, *, last: bool = False) -> bool:
        """Whether a capture ends after this step; `last`: no step follows, whatever was planned."""
        return step in self.steps and (last or not (self.continuous and step + 1 in self.steps))

    def is_final(self, step: int, *, last: bool = False) -> bool:
        """Whether no later step is profiled: the moment for `finish_hook_cmd`."""
        return step in self.steps and (last or step == max(self.steps))

    def captures(self, stages: int | None = None) -> int:
        """Count the captures that a process makes in total.

        `stages`: the annotated calls per step, if each has its own capture (`discrete`); None if a capture
        covers whole steps.
        """
        if stages is not None:
            return stages * len(self.steps)
        return sum(map(self.opens, self.steps))
