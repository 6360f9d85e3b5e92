"""The step under other schedules of the same stages, as a graph of stages with stated assumptions: bounds, not promises."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracekit.job.run_log.generation_tail import RecordedTail
from tracekit.job.run_log.stages import LoggedSteps
from tracekit.model.records import dataclass
from tracekit.model.text.labels import choose_plural
from tracekit.model.units import format_quantity

LEAST_CHANGE = 0.01
"""Smallest share of the step by which a schedule has to differ."""

MOST_GENERATION = 0.5
"""Share of generation in the step from which it dominates: overlap with training was measured to save nothing there."""

P95_OF_MEAN = float(np.log(20))
"""95th percentile of an exponential distribution over its mean: 3.0."""


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """The step under one schedule, in seconds: at least so long if the assumption is true; None where none is claimed."""

    schedule: str
    step_s: float | None
    assumption: str


@dataclass(frozen=True, slots=True)
class _StageTimes:
    """Median times of a synchronous step: the whole, generation, and the share of generation that is its tail."""

    step_s: float
    gen_s: float
    tail_ratio: float

    @property
    def train_s(self) -> float:
        return self.step_s - self.gen_s


def predict_schedules(
    steps: LoggedSteps, tail_ratio: float, recorded: RecordedTail | None = None
) -> Iterator[ScheduledStep]:
    """Predict the median step of a synchronous trainer under other schedules; nothing for any other trainer.

    `tail_ratio` is the share of generation in which more GPUs do not help, `recorded` the tail of recorded requests.
    """
    gen = steps.sum_stage_seconds("gen", waits=False)
    steady = steps.counted.steady
    if gen is None or steps.mode.is_async or not steady.any():
        return
    times = _StageTimes(float(np.median(steps.step_s[steady])), float(np.median(gen[steady])), tail_ratio)
    yield from _predict_overlap(times, steps.gpus)
    yield from _predict_recorded_cut(times, recorded) if recorded else _predict_tail_cut(steps, times)
    sync = steps.sum_stage_seconds("update_weights")
    if sync is not None:
        sync_s = float(np.median(sync[steady]))
        assumption = "no stage gets slower meanwhile, and answers begin with the weights of the step before"
        yield ScheduledStep("weight sync in the background", times.step_s - sync_s, assumption)


_ONE_STEP_POOLS, _ASYNC_POOLS = "one step off, on separate GPUs", "fully async, on separate GPUs"


def _predict_overlap(times: _StageTimes, gpus: int | None) -> Iterator[ScheduledStep]:
    """Predict generation and training at the same time on separate GPUs; no step where generation dominates."""
    share = times.gen_s / times.step_s
    if share >= MOST_GENERATION:
        reason = f"no claim: generation is {format_quantity(share, 'ratio')} of the step, and where it dominates, overlap was measured to save nothing"
        yield ScheduledStep(_ONE_STEP_POOLS, None, reason)
        yield ScheduledStep(_ASYNC_POOLS, None, reason)
        return
    if gpus is None or gpus < 2:
        return
    step_s, rollout = split_pools(times.gen_s, times.train_s, times.tail_ratio, gpus)
    split = f"{rollout} of {gpus} GPUs generate while the others train; work scales with GPUs"
    tail = format_quantity(times.tail_ratio, "ratio")
    yield ScheduledStep(
        _ONE_STEP_POOLS, step_s, f"{split}, and the tail of generation ({tail}) takes as long on any number"
    )
    step_s, rollout = split_pools(times.gen_s * (1 - times.tail_ratio), times.train_s, 0.0, gpus)
    split = f"{rollout} of {gpus} GPUs generate while the others train; work scales with GPUs"
    yield ScheduledStep(
        _ASYNC_POOLS, step_s, f"{split}, and the tail ({tail}) of a batch is hidden by the next; samples are older"
    )


@dataclass(frozen=True, slots=True)
class TailCut:
    """Answers that end at the 95th percentile: its length in tokens, the mean and the longest answer now."""

    limit: float
    mean: float
    longest: float

    @property
    def saved_ratio(self) -> float:
        """Share of generation that is saved if generation lasts as long as its longest answer."""
        return 1 - self.limit / self.longest


def measure_tail_cut(steps: LoggedSteps) -> TailCut | None:
    """Measure the cut of answers at their 95th percentile, if lengths fall off exponentially.

    None if no answer is longer, or lengths are unknown.
    """
    framework = steps.log.framework
    mean, longest = steps.get_steady(*framework.mean_length), steps.get_steady(*framework.longest)
    if mean is None or longest is None:
        return None
    cut = TailCut(P95_OF_MEAN * float(np.nanmedian(mean)), float(np.nanmedian(mean)), float(np.nanmedian(longest)))
    return cut if cut.limit < cut.longest else None


def _predict_tail_cut(steps: LoggedSteps, times: _StageTimes) -> Iterator[ScheduledStep]:
    """Predict generation that ends with its 95th percentile; nothing if no answer is longer, or lengths are unknown."""
    cut = measure_tail_cut(steps)
    if cut is None:
        return
    assumption = (
        f"answers end at {cut.limit:,.0f} tokens: 5 % are longer, if lengths of a mean of {cut.mean:,.0f} fall off "
        f"exponentially; generation lasts as long as its longest answer, which has {cut.longest:,.0f}"
    )
    yield ScheduledStep(_TAIL_CUT, times.step_s - times.gen_s * cut.saved_ratio, assumption)


_TAIL_CUT = "generation tail cut at p95"


def _predict_recorded_cut(times: _StageTimes, recorded: RecordedTail) -> Iterator[ScheduledStep]:
    """Predict generation that ends with the 95th percentile of the recorded requests."""
    unit = choose_plural(recorded.requests, recorded.unit)
    where = (
        "without steps" if recorded.steps is None else f"of {recorded.steps:,} {choose_plural(recorded.steps, 'step')}"
    )
    p95, longest = (format_quantity(round(value), "ns") for value in (recorded.p95_ns, recorded.longest_ns))
    assumption = (
        f"generation ends after the 95th percentile of its {recorded.unit}s, {p95}, and lasts as long as the longest, "
        f"{longest}: by {recorded.requests:,} recorded {unit} {where}"
    )
    yield ScheduledStep(_TAIL_CUT, times.step_s - times.gen_s * (1 - recorded.ratio), assumption)


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
