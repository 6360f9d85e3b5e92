"""What does the speedup of one stage make of the step, if all else stays as it is? Amdahl's law, with the interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log

from tracekit.compare.comparison import Change
from tracekit.compare.origins import Attribution
from tracekit.job.metric_kinds import STAGE_TIME
from tracekit.model.units import show, speedup

ASSUMES = (
    "Step from this alone: 1 / (1 − p + p / ratio), p being the part of the step before that its longest rank spends "
    "in the stage, each instant counted for one stage. It assumes that this rank holds up the step, that the stage "
    "comes as often as before and that all else takes as long as before; the interval is that of the stage, p is taken "
    "as known."
)
"""What stands under the stages where the step from one of them alone is told."""

_ROUNDING = 1e-9
"""A stage that fills the step may seem to be more of it by so much."""


def step_ratio(share: float, ratio: float) -> float:
    """How many times less a step takes if `share` of it is `ratio` times faster.

    >>> step_ratio(0.5, 2.0), step_ratio(1.0, 3.0), step_ratio(0.0, 3.0)
    (1.3333333333333333, 3.0, 1.0)
    """
    return 1 / (1 - share + share / ratio)


def with_steps(changes: Sequence[Change], origin: Attribution | None) -> tuple[Change, ...]:
    """The changes, every stage that has a ratio and a part of the attributed step with the step from it alone."""
    if origin is None or not origin.base > 0:
        return tuple(changes)
    shares = {(one.role, one.stage): one.base / origin.base for one in origin.stage_times}
    return tuple(_with_step(one, shares.get((one.role, one.stage or ""))) for one in changes)


def _with_step(change: Change, share: float | None) -> Change:
    barred = change.name != STAGE_TIME or change.word == "not comparable"
    if barred or change.ratio is None or not share or not 0 < share <= 1 + _ROUNDING:
        return change
    point, low, high = (
        None if value is None else step_ratio(min(share, 1.0), value)
        for value in (change.ratio, change.low, change.high)
    )
    return replace(change, step_ratio=point, step_low=low, step_high=high)


def largest(changes: Sequence[Change], step: str = "step") -> Iterator[str]:
    """The stage that alone changes the step most, in words; nothing where no interval is clear of 1.

    `step` is what to call the step that was attributed.
    """
    sure = [
        (abs(log(one.step_ratio)), one)
        for one in changes
        if one.step_ratio is not None and one.step_ratio > 0
        if one.low is not None and one.high is not None
        if 1 < one.low <= one.high or 0 < one.low <= one.high < 1
    ]
    if sure:
        _, one = max(sure, key=lambda pair: (pair[0], pair[1].title))
        name = f"{one.role} {one.title}" if one.role else one.title
        stage = factor(one.ratio, one.low, one.high)
        unsure = "inconclusive: " if one.word == "inconclusive" else ""
        yield f"{unsure}{name} {stage} → {step} {factor(one.step_ratio, one.step_low, one.step_high)} from this alone"


def factor(ratio: float | None, low: float | None, high: float | None) -> str:
    """A ratio with its interval in words; below 1 it is told the other way round: 1.10× slower, never 0.91× faster.

    >>> factor(0.5, 0.4, 0.8), factor(1.25, None, None)
    ('2.00× slower [1.25×, 2.50×]', '1.25× faster')
    """
    if ratio is None or not ratio > 0:
        return ""
    slower = ratio < 1
    shown = sorted(1 / bound if slower else bound for bound in (low, high) if bound and bound > 0)
    ends = f" [{show(shown[0], 'factor')}, {show(shown[1], 'factor')}]" if len(shown) == 2 else ""
    return speedup(ratio) + ends
