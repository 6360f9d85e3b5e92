"""Amdahl's law: the step speedup from one stage alone if all other work stays the same, with its interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log

from tracekit.compare.comparison import Change
from tracekit.compare.wall_time.attribution_rows import Attribution
from tracekit.model.metrics import STAGE_TIME
from tracekit.model.text.labels import join_phrase
from tracekit.model.units import format_quantity, format_speedup

ASSUMES = (
    "Step from this alone: 1 / (1 − p + p / ratio), where p is the share of the step before that its longest rank "
    "spends in the stage. Each instant counts for one stage. The formula assumes that this rank determines the step "
    "time, that the stage runs as often as before, and that all other work takes as long as before. The interval is "
    "that of the stage; p is taken as known."
)
"""Note under the stages table when it shows the step speedup from one stage alone."""

_ROUNDING = 1e-9
"""Rounding error by which a stage that fills the step may exceed it."""


def apply_amdahls_law(share: float, ratio: float) -> float:
    """Compute the speedup of a step when `share` of it becomes `ratio` times faster.

    >>> apply_amdahls_law(0.5, 2.0), apply_amdahls_law(1.0, 3.0), apply_amdahls_law(0.0, 3.0)
    (1.3333333333333333, 3.0, 1.0)
    """
    return 1 / (1 - share + share / ratio)


def add_step_speedups(changes: Sequence[Change], origin: Attribution | None) -> tuple[Change, ...]:
    """Add the step speedup from each stage alone to the changes.

    Only stages with a ratio and a known share of the attributed step get one.
    """
    if origin is None or not origin.base > 0:
        return tuple(changes)
    shares = {(stage.role, stage.stage): stage.base / origin.base for stage in origin.stage_times}
    return tuple(_add_step_speedup(change, shares.get((change.role, change.stage or ""))) for change in changes)


def _add_step_speedup(change: Change, share: float | None) -> Change:
    """Add the step speedup to the change of one stage, unless the stage's share of the step is unknown."""
    if change.name != STAGE_TIME or change.word == "not comparable":
        return change
    if change.ratio is None or not share or not 0 < share <= 1 + _ROUNDING:
        return change
    part = min(share, 1.0)
    return replace(
        change,
        step_ratio=apply_amdahls_law(part, change.ratio),
        step_low=_apply_amdahls_law_to_bound(part, change.low),
        step_high=_apply_amdahls_law_to_bound(part, change.high),
    )


def _apply_amdahls_law_to_bound(share: float, ratio: float | None) -> float | None:
    """Compute the step speedup of an interval bound; None if the bound is unknown."""
    return None if ratio is None else apply_amdahls_law(share, ratio)


def describe_largest_stage_effect(changes: Sequence[Change], step: str = "step") -> Iterator[str]:
    """Describe the stage that changes the step most on its own; empty if no interval excludes 1.

    `step` names the step that was attributed.
    """
    effects = []
    for change in changes:
        if change.step_ratio is not None and change.step_ratio > 0 and _excludes_one(change):
            effects.append((abs(log(change.step_ratio)), change.title, change))
    if not effects:
        return
    _, title, stage = max(effects, key=lambda effect: effect[:2])
    name = join_phrase(stage.role, title)
    doubt = "inconclusive: " if stage.word == "inconclusive" else ""
    if is_of_steps_alone(stage):
        of_stage = format_speedup_with_interval(stage.ratio, None, None)
        whole_step = format_speedup_with_interval(stage.step_ratio, None, None)
    else:
        of_stage = format_speedup_with_interval(stage.ratio, stage.low, stage.high)
        whole_step = format_speedup_with_interval(stage.step_ratio, stage.step_low, stage.step_high)
    yield f"{doubt}{name} {of_stage} → {step} {whole_step} from this alone"


def is_of_steps_alone(change: Change) -> bool:
    """Whether an inconclusive change has an interval of the steps of one run per side, which gives no evidence about other runs."""
    return change.word == "inconclusive" and change.label.startswith("within-run")


def _excludes_one(change: Change) -> bool:
    """Check whether the interval of a ratio excludes 1."""
    if change.low is None or change.high is None:
        return False
    return 1 < change.low <= change.high or 0 < change.low <= change.high < 1


def format_speedup_with_interval(ratio: float | None, low: float | None, high: float | None) -> str:
    """Format a ratio with its interval. Ratios below 1 are inverted: 1.10× slower, never 0.91× faster.

    >>> format_speedup_with_interval(0.5, 0.4, 0.8), format_speedup_with_interval(1.25, None, None)
    ('2.00× slower [1.25×, 2.50×]', '1.25× faster')
    """
    if ratio is None or not ratio > 0:
        return ""
    if not (low and low > 0 and high and high > 0):
        return format_speedup(ratio)
    if ratio < 1:
        low, high = 1 / low, 1 / high
    low, high = sorted((low, high))
    return f"{format_speedup(ratio)} [{format_quantity(low, 'factor')}, {format_quantity(high, 'factor')}]"
