"""Throughput: time of steps and stages per token, sample or image, and their rate per second (Q22)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tracekit.job.steps.metric_samples import Key, MetricSamples, StepId
from tracekit.model.errors import TracekitError
from tracekit.model.metrics import PER_WORK, STAGE_TIME, STEP_TIME
from tracekit.model.records import dataclass

Floats = npt.NDArray[np.float64]

MOST_WORK = 1e15
"""Most tokens, samples or images of a step."""


def compute_work_rates(
    samples_by_key: Mapping[Key, MetricSamples], ranks: int | None, time: str = STEP_TIME, stage_time: str = STAGE_TIME
) -> dict[Key, MetricSamples]:
    """Compute the time per unit of work (ns), and the rate per second and rank, for each known count of work.

    Times are those of the step and of each stage. Rates are of the step, where the number of ranks is known. Only steps
    with a known count take part. The mean of a run's values is Σ time over Σ work (or Σ work over Σ time and ranks), and
    they spread like that ratio: a step that is long because it has more work adds no spread.
    """
    out: dict[Key, MetricSamples] = {}
    for work, (per_one, a_second) in PER_WORK.items():
        counts = _map_work_counts(samples_by_key.get((work, None, None)))
        if not counts:
            continue
        for key, times in samples_by_key.items():
            if key[0] != (time if key[2] is None else stage_time):
                continue
            runs = list(_list_runs_with_work(times, counts))
            if not runs:
                continue
            rates = [_linearize_ratio_of_sums(run.ns, run.work) for run in runs]
            out |= _make_rate_samples((per_one, *key[1:]), runs, rates)
            if ranks and key[2] is None:
                rates = [_linearize_ratio_of_sums(run.work, run.ns) * 1e9 / ranks for run in runs]
                out |= _make_rate_samples((a_second, *key[1:]), runs, rates)
    return out


def parse_work_counts(text_by_name: Mapping[str, str | None]) -> tuple[Mapping[str, float], ...]:
    """Parse counts per step such as `4096` (both sides) or `4096,8192`: (before, after) by name.

    >>> parse_work_counts({"tokens": "4096", "images": "8,16", "samples": None})
    ({'tokens': 4096.0, 'images': 8.0}, {'tokens': 4096.0, 'images': 16.0})
    """
    counts = {name: _parse_work_count_pair(name, text) for name, text in text_by_name.items() if text is not None}
    return tuple({name: pair[side] for name, pair in counts.items()} for side in (0, 1))


def _parse_work_count_pair(name: str, text: str) -> tuple[float, float]:
    """Parse both counts of a text.

    Raises `TracekitError` unless the text is one or two positive numbers.
    """
    try:
        numbers = [float(number) for number in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(0 < number <= MOST_WORK for number in numbers):
        raise TracekitError(
            f"--{name} {text}: must be one or two positive numbers of {name} per step",
            f"--{name} 4096; if the sides differ, --{name} 4096,8192",
        )
    return numbers[0], numbers[-1]


def _map_work_counts(samples: MetricSamples | None) -> dict[StepId, float]:
    """Map each step with a known amount of work to it."""
    if samples is None:
        return {}
    return {
        step: value
        for ids, values in zip(samples.steps, samples.values, strict=True)
        for step, value in zip(ids, values, strict=True)
        if value > 0
    }


@dataclass(frozen=True, slots=True)
class _RunWithWork:
    """Steps of a run with known work: their times and amounts of work."""

    name: str
    steps: tuple[StepId, ...]
    ns: Floats
    work: Floats


def _list_runs_with_work(times: MetricSamples, counts: Mapping[StepId, float]) -> Iterator[_RunWithWork]:
    """List the runs that have a step with known work, and that took time."""
    for name, ids, values in zip(times.runs, times.steps, times.values, strict=True):
        times_ns = {step: ns for step, ns in zip(ids, values, strict=True) if step in counts}
        if sum(times_ns.values()) > 0:
            work = np.array([counts[step] for step in times_ns], np.float64)
            ns = np.array([*times_ns.values()], np.float64)
            yield _RunWithWork(name, tuple(times_ns), ns, work)


def _make_rate_samples(key: Key, runs: Sequence[_RunWithWork], rates: Sequence[Floats]) -> dict[Key, MetricSamples]:
    """Make the samples of the rates of all runs under their key."""
    names, steps = tuple(run.name for run in runs), tuple(run.steps for run in runs)
    return {key: MetricSamples(key, names, steps, tuple(tuple(rate.tolist()) for rate in rates))}


def _linearize_ratio_of_sums(over: Floats, under: Floats) -> Floats:
    """Compute values whose mean is Σ over / Σ under, each offset by the deviation of its step from that ratio."""
    ratio = over.sum() / under.sum()
    away: Floats = ratio + (over - ratio * under) / under.mean()
    return away
