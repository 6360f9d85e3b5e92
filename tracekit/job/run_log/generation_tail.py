"""The tail of generation: how much longer its longest sample takes than the mean one, or than most recorded requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracekit.job.engines.requests import RequestTimes, list_request_times
from tracekit.job.run_log.stages import LoggedSteps
from tracekit.job.run_log.values import Floats
from tracekit.model.records import dataclass
from tracekit.model.tables.frame import Ints
from tracekit.model.trace import Measurements

_SAMPLE = "timing_s/agent_loop/generate_sequences/"


@dataclass(frozen=True, slots=True)
class GenerationTail:
    """The share of generation by which the longest sample exceeds the mean one, by row of the log."""

    ratio: Floats
    basis: str


def measure_generation_tail(steps: LoggedSteps) -> GenerationTail | None:
    """Measure the tail by times of samples, or by lengths of answers where times are not logged; None without either."""
    mean, most = steps.log.get_first(f"{_SAMPLE}mean"), steps.log.get_first(f"{_SAMPLE}max")
    basis = "times of samples"
    if mean is None or most is None:
        framework = steps.log.framework
        mean, most = steps.log.get_first(*framework.mean_length), steps.log.get_first(*framework.longest)
        basis = "lengths of answers"
    if mean is None or most is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        return GenerationTail(np.where(most > 0, 1 - mean / most, np.nan), basis)


LEAST_REQUESTS = 20
"""Fewest requests of a step for a 95th percentile below the longest."""


@dataclass(frozen=True, slots=True)
class RecordedTail:
    """The 95th percentile of recorded requests and the longest, ns: medians of `steps` steps.

    `ratio` is the median of the one over the other. Without recorded steps, all requests count as one.
    """

    ratio: float
    p95_ns: float
    longest_ns: float
    requests: int
    unit: str
    steps: int | None


def measure_recorded_tail(measured: Measurements, run: str | None) -> RecordedTail | None:
    """Measure the tail of the requests that a run recorded; None without enough requests.

    Agents' runs count where tools were recorded too, requests otherwise.
    """
    sources = [times for times in list_request_times(measured) if times.run == run]
    if not sources:
        return None
    unit = max(sources, key=lambda times: len(times.total_ns)).unit
    total, step = _join_requests([times for times in sources if times.unit == unit])
    groups = [group for group in _split_by_step(total, step) if len(group) >= LEAST_REQUESTS]
    if not groups:
        return None
    p95 = np.array([np.percentile(group, 95) for group in groups])
    longest = np.array([group.max() for group in groups])
    ratio, p95_ns, longest_ns = (float(np.median(values)) for values in (p95 / longest, p95, longest))
    return RecordedTail(ratio, p95_ns, longest_ns, sum(map(len, groups)), unit, len(groups) if step[0] >= 0 else None)


def _join_requests(sources: Sequence[RequestTimes]) -> tuple[Floats, Ints]:
    """Join the requests of all sources: (times, steps). Where steps are recorded, requests without one are left out."""
    total = np.concatenate([times.total_ns for times in sources])
    step = np.concatenate([times.step for times in sources])
    kept = step >= 0 if (step >= 0).any() else np.ones(len(step), np.bool_)
    return total[kept], step[kept]


def _split_by_step(total: Floats, step: Ints) -> list[Floats]:
    """Split the times of requests by step; without steps all are together."""
    order = np.argsort(step, kind="stable")
    return np.split(total[order], np.flatnonzero(np.diff(step[order])) + 1)
