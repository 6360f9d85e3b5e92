"""Limits, sums and texts that the rules on a run's log share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tracekit.job.run_log.stages import LoggedSteps, list_logged_steps
from tracekit.job.run_log.values import Floats
from tracekit.model.report import Finding, Metric, Place, Verdict
from tracekit.model.trace import Measurements

MOST_STEPS_RATIO = 0.8
"""Share of the steady steps that must exceed half of a limit: the rest is a matter of single steps."""


def judge_logs(
    measured: Measurements, rules: tuple[str, ...], find: Callable[[LoggedSteps], Iterator[Finding | Verdict]]
) -> tuple[Finding | Verdict, ...]:
    """Judge the log of each run; with fewer than 6 steady steps the rules abstain."""
    outcomes: list[Finding | Verdict] = []
    for steps in list_logged_steps(measured):
        if steps.counted.is_enough:
            outcomes += find(steps)
        else:
            reason = f"{steps.counted.steady_count} of at least 6 steps without warm-up, validation and checkpoint"
            outcomes += [Verdict(rule, "insufficient data", reason, steps.log.run) for rule in rules]
    return tuple(outcomes)


def reaches_limit(values: Floats, limit: float) -> bool:
    """Check whether the median reaches a limit and most values reach half that limit.

    >>> reaches_limit(np.array([0.2, 0.2, 0.1]), 0.15), reaches_limit(np.array([0.0, 0.0, 9.0]), 0.15)
    (True, False)
    """
    known = values[np.isfinite(values)]
    if not len(known) or float(np.median(known)) < limit:
        return False
    return float((known >= limit / 2).mean()) >= MOST_STEPS_RATIO


def compute_known_median(values: Floats) -> float:
    """Compute the median of the known values."""
    return float(np.median(values[np.isfinite(values)]))


def divide_by_step(steps: LoggedSteps, seconds: Floats) -> Floats:
    """Divide seconds by row by the step time, in the steady steps."""
    steady = steps.counted.steady
    return seconds[steady] / steps.step_s[steady]


def convert_seconds_to_ns(seconds: float) -> int:
    """Convert seconds to whole ns."""
    return round(seconds * 1e9)


def list_gpu_hour_evidence(steps: LoggedSteps, seconds_per_step: float) -> tuple[Metric, ...]:
    """List the GPU-hours of a time per step over all logged steps; empty if the number of GPUs is unknown."""
    hours = steps.compute_gpu_hours(seconds_per_step)
    if hours is None:
        return ()
    price = steps.compute_price(hours)
    money = () if price is None else (Metric("price", price, "", "lower", label="at the given price of a GPU-hour"),)
    return (
        Metric("gpu_hours", hours, "", "lower", label=f"GPU-hours over {len(steps.log)} steps on {steps.gpus} GPUs"),
        *money,
    )


def list_coverage_evidence(steps: LoggedSteps) -> tuple[Metric, ...]:
    """List the number of steps behind a finding."""
    return (Metric("steady_steps", steps.counted.steady_count, "count", label="steps without warm-up and chores"),)


def place_in_log(steps: LoggedSteps, stage: str | None = None, step: int | None = None) -> tuple[Place, ...]:
    """Make the place of a finding: its log, and a stage or step."""
    return (Place(source=steps.log.source, run=steps.log.run, stage=stage, step=step),)
