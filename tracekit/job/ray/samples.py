"""Samples of Ray's tasks for a comparison: the length of each timeline, and time, length and number of tasks by function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tracekit.job.ray.tasks import RayRun, list_ray_runs
from tracekit.job.steps.metric_samples import Key, MetricSamples
from tracekit.model.intervals import merge_intervals
from tracekit.model.metrics import RAY_FUNCTION_COUNT, RAY_FUNCTION_TIME, RAY_SPAN, RAY_TASK_TIME
from tracekit.model.trace import Measurements


def collect_ray_samples(measured: Measurements) -> dict[str, dict[Key, float]]:
    """Collect the values of each timeline: {run: {metric: value}}. Several timelines of one run are numbered."""
    values: dict[str, dict[Key, float]] = {}
    for run in list_ray_runs(measured):
        name = str(run.run)
        name = name if name not in values else f"{name} ({len(values) + 1})"
        values[name] = dict(_list_ray_values(run))
    return values


def _list_ray_values(run: RayRun) -> Iterator[tuple[Key, float]]:
    """List the values of one timeline: its length, and each function's."""
    yield (RAY_SPAN, None, None), float(run.span_ns)
    for tasks in run.tasks.group_by("name").frames():
        start, dur = tasks.integers("ts_ns"), tasks.integers("dur_ns")
        running = merge_intervals(start, start + dur)
        name = tasks.values("name")[0]
        yield (RAY_FUNCTION_TIME, None, name), float((running.end - running.start).sum())
        yield (RAY_TASK_TIME, None, name), float(np.median(dur))
        yield (RAY_FUNCTION_COUNT, None, name), float(len(tasks))


def join_ray_samples(values: Mapping[str, Mapping[Key, float]]) -> dict[Key, MetricSamples]:
    """Join the values of runs by metric: one value per run."""
    keys = dict.fromkeys(key for of_run in values.values() for key in of_run)
    samples = {}
    for key in keys:
        runs = tuple(run for run, of_run in values.items() if key in of_run)
        steps = tuple(((run, None, None),) for run in runs)
        samples[key] = MetricSamples(key, runs, steps, tuple((values[run][key],) for run in runs))
    return samples
