"""What does the speedup of one stage make of the step, if all else stays as it is? Amdahl's law, with the interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log

from tracekit.compare.comparison import Change
from tracekit.compare.origins import Attribution
from tracekit.model.labels import phrase
from tracekit.model.metrics import STAGE_TIME
from tracekit.model.units import show, speedup

ASSUMES = (
    "Step from this alone: 1 / (1 − p + p / ratio), p being the part of the step before that its longest rank spends "
    "in the stage, each instant counted for one stage. It assumes that this rank holds up the step, that the stage "
    "comes as often as before and that all else takes as long as before; the interval is that of the stage, p is taken "
    "as known."
)
"""What stands under the stages where the step from one of them alone is shown."""

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
    shares = {}
    for stage in origin.stage_times:
        shares[stage.role, stage.stage] = stage.base / origin.base
    return tuple(
        _with_step(change, shares.get((change.role, change.stage or ""))) for change in changes
    )


def _with_step(change: Change, share: float | None) -> Change:
    """The change of a stage with the step from it alone; as it is where its part of the step is not known."""
    if change.name != STAGE_TIME or change.word == "not comparable":
        return change
    if change.ratio is None or not share or not 0 < share <= 1 + _ROUNDING:
        return change
    part = min(share, 1.0)
    return replace(
        change,
        step_ratio=step_ratio(part, change.ratio),
        step_low=_bound(part, change.low),
        step_high=_bound(part, change.high),
    )


def _bound(share: float, ratio: float | None) -> float | None:
    """`step_ratio` of a bound that may be unknown."""
    return None if ratio is None else step_ratio(share, ratio)


def largest(changes: Sequence[Change], step: str = "step") -> Iterator[str]:
    """The stage that alone changes the step most, in words; nothing where no interval is clear of 1.

    `step` is what to call the step that was attributed.
    """
    effects = []
    for change in changes:
        if change.step_ratio is not None and change.step_ratio > 0 and _clear_of_one(change):
            effects.append((abs(log(change.step_ratio)), change.title, change))
    if not effects:
        return
    _, title, stage = max(effects, key=lambda effect: effect[:2])
    name = phrase(stage.role, title)
    doubt = "inconclusive: " if stage.word == "inconclusive" else ""
    of_stage = factor(stage.ratio, stage.low, stage.high)
    whole_step = factor(stage.step_ratio, stage.step_low, stage.step_high)
    yield f"{doubt}{name} {of_stage} → {step} {whole_step} from this alone"


def _clear_of_one(change: Change) -> bool:
    """Whether the interval of a ratio lies wholly above or wholly below 1."""
    if change.low is None or change.high is None:
        return False
    return 1 < change.low <= change.high or 0 < change.low <= change.high < 1


def factor(ratio: float | None, low: float | None, high: float | None) -> str:
    """A ratio with its interval in words; one below 1 is turned round: 1.10× slower, never 0.91× faster.

    >>> factor(0.5, 0.4, 0.8), factor(1.25, None, None)
    ('2.00× slower [1.25×, 2.50×]', '1.25× faster')
    """
    if ratio is None or not ratio > 0:
        return ""
    if not (low and low > 0 and high and high > 0):
        return speedup(ratio)
    if ratio < 1:
        low, high = 1 / low, 1 / high
    low, high = sorted((low, high))
    return f"{speedup(ratio)} [{show(low, 'factor')}, {show(high, 'factor')}]"
