"""The step under other schedules of the same stages, as a graph of stages with stated assumptions: bounds, not promises."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracekit.job.run_log.stages import LoggedSteps
from tracekit.model.records import dataclass

LEAST_CHANGE = 0.01
"""Smallest share of the step by which a schedule has to differ."""


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """The step under one schedule, in seconds: at least so long if the assumption is true."""

    schedule: str
    step_s: float
    assumption: str


def predict_schedules(steps: LoggedSteps, tail_ratio: float) -> Iterator[ScheduledStep]:
    """Predict the median step of a synchronous trainer under other schedules; nothing for any other trainer.

    `tail_ratio` is the share of generation in which more GPUs do not help.
    """
    gen = steps.sum_stage_seconds("gen", waits=False)
    steady = steps.counted.steady
    if gen is None or steps.mode.is_async or not steady.any():
        return
    gen_s, step_s = float(np.median(gen[steady])), float(np.median(steps.step_s[steady]))
    if steps.gpus is not None and steps.gpus > 1:
        pools_s, rollout = split_pools(gen_s, step_s - gen_s, tail_ratio, steps.gpus)
        assumption = (
            f"{rollout} of {steps.gpus} GPUs generate while the others train; work scales with GPUs, and the tail of generation "
            f"({tail_ratio:.0%}) takes as long on any number"
        )
        yield ScheduledStep("one step off, on separate GPUs", pools_s, assumption)
    sync = steps.sum_stage_seconds("update_weights")
    if sync is not None:
        sync_s = float(np.median(sync[steady]))
        yield ScheduledStep("weight sync in the background", step_s - sync_s, "no stage gets slower meanwhile")


def split_pools(gen_s: float, train_s: float, tail_ratio: float, gpus: int) -> tuple[float, int]:
    """Split the GPUs between generation and training for the shortest step: (seconds, GPUs that generate).

    Both parts scale with their GPUs, the tail of generation does not. Without a tail no split beats one after the other.

    >>> split_pools(60.0, 60.0, 0.0, 8), split_pools(60.0, 60.0, 0.5, 8)
    ((120.0, 4), (110.0, 3))
    """
    rollout = np.arange(1, gpus)
    generation = gen_s * (tail_ratio + (1 - tail_ratio) * gpus / rollout)
    training = train_s * gpus / (gpus - rollout)
    longest = np.maximum(generation, training)
    best = int(longest.argmin())
    return float(longest[best]), int(rollout[best])
