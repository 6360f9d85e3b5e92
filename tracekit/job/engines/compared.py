"""Samples of rollout engines for a comparison: throughput, requests, KV cache and preemptions in windows of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tracekit.job.engines.records import SYSTEM_TITLES, Bools, EngineRecord, Floats, list_engine_records
from tracekit.job.steps.metric_samples import Key, MetricSamples
from tracekit.model.metrics import ENGINE_METRICS
from tracekit.model.trace import Measurements

Places = npt.NDArray[np.int64]
"""Window of each sample."""

LEAST_WINDOW_S = 10.0
"""Shortest window, s: the interval of vLLM's statistics."""

MOST_WINDOWS = 500
"""Most windows per run; longer runs have longer windows."""

_SUMMED = {
    "engine_throughput": "generation_tokens_per_s",
    "engine_running": "running",
    "engine_waiting": "waiting",
}
"""Metrics that are summed over the engines of a run, by level."""


def collect_engine_samples(measured: Measurements) -> dict[Key, MetricSamples]:
    """Collect the samples of each metric of engines: a value per window in which any engine has requests, by run.

    Levels are summed over engines; the use of the KV cache is averaged. Preemptions are per minute.
    """
    by_run: dict[str, list[EngineRecord]] = {}
    for record in list_engine_records(measured):
        if record.is_busy.any():
            by_run.setdefault(str(record.run), []).append(record)
    values = {run: _sample_run(_drop_scrapes(records)) for run, records in by_run.items()}
    return join_engine_samples({run: of_run for run, of_run in values.items() if of_run})


def join_engine_samples(values: dict[str, dict[str, tuple[float, ...]]]) -> dict[Key, MetricSamples]:
    """Join the values of runs by metric."""
    samples: dict[Key, MetricSamples] = {}
    for name in ENGINE_METRICS:
        of_metric = {run: of_run[name] for run, of_run in values.items() if of_run.get(name)}
        if of_metric:
            key: Key = (name, None, None)
            steps = tuple(tuple((run, at, None) for at in range(len(row))) for run, row in of_metric.items())
            samples[key] = MetricSamples(key, tuple(of_metric), steps, tuple(of_metric.values()))
    return samples


def map_engine_settings(measured: Measurements) -> dict[str, str]:
    """Map the settings that the logs of engines name, and their system, to the values; several values are joined."""
    values: dict[str, set[str]] = {}
    for record in list_engine_records(measured):
        values.setdefault("system", set()).add(SYSTEM_TITLES.get(record.system, record.system))
        for name, value in record.settings.items():
            values.setdefault(name, set()).add(f"{value:g}")
    return {name: " / ".join(sorted(texts)) for name, texts in sorted(values.items())}


def _drop_scrapes(records: Sequence[EngineRecord]) -> Sequence[EngineRecord]:
    """Drop single scrapes where a log of the same run exists: they would count its requests twice."""
    return [record for record in records if record.at_s is not None and record.has_state.sum() > 1] or records


def _sample_run(records: Sequence[EngineRecord]) -> dict[str, tuple[float, ...]]:
    """Sample the metrics of one run in windows."""
    places, count, seconds = _place_engine_samples(records)
    busy = np.zeros(count, np.bool_)
    for record, place in zip(records, places, strict=True):
        busy[place[record.is_busy & record.has_state]] = True
    found: dict[str, tuple[float, ...]] = {}
    for name, level in _SUMMED.items():
        total = _sum_by_window(records, places, level, count)
        known = busy & ~np.isnan(total)
        found[name] = tuple(total[known].tolist())
    kv = [_average_by_window(record, place, "kv_ratio", count) for record, place in zip(records, places, strict=True)]
    found["engine_kv_ratio"] = tuple(_average_over_engines(kv, busy).tolist())
    if seconds is not None:
        found["engine_preemptions"] = tuple(_count_by_minute(records, places, busy, seconds))
    return found


def _place_engine_samples(records: Sequence[EngineRecord]) -> tuple[list[Places], int, float | None]:
    """Number the window of each sample: (by engine, count of windows, their length; None without times)."""
    starts = [record.start_ns for record in records if record.start_ns is not None]
    times = [
        record.at_s + (record.start_ns - min(starts)) / 1e9
        for record in records
        if record.at_s is not None and record.start_ns is not None
    ]
    if len(times) < len(records):
        lengths = [len(record.covered_s) for record in records]
        return [np.arange(length) for length in lengths], max(lengths), None
    span = max(float(at.max()) for at in times)
    usual = max(
        float(np.median(record.covered_s[record.covered_s > 0])) for record in records if record.has_state.any()
    )
    seconds = max(LEAST_WINDOW_S, usual, span / MOST_WINDOWS)
    return [np.maximum(at // seconds, 0).astype(np.int64) for at in times], int(span // seconds) + 1, seconds


def _average_by_window(record: EngineRecord, place: Places, level: str, count: int) -> Floats:
    """Average a level of one engine by window over the time that samples stand for; NaN where unknown."""
    values = record.levels[level]
    known = ~np.isnan(values) & (record.covered_s > 0)
    weight = np.bincount(place[known], weights=record.covered_s[known], minlength=count)
    total = np.bincount(place[known], weights=(values * record.covered_s)[known], minlength=count)
    return np.asarray(np.divide(total, weight, out=np.full(count, np.nan), where=weight > 0))


def _sum_by_window(records: Sequence[EngineRecord], places: Iterable[Places], level: str, count: int) -> Floats:
    """Sum a level over engines by window; an engine without a sample has no requests. NaN where no engine has one."""
    parts = [_average_by_window(record, place, level, count) for record, place in zip(records, places, strict=True)]
    total = np.nansum(parts, axis=0)
    return np.asarray(np.where(np.isnan(parts).all(axis=0), np.nan, total))


def _average_over_engines(parts: Sequence[Floats], busy: Bools) -> Floats:
    """Average a level over the engines that have it, in busy windows."""
    known = ~np.isnan(parts)
    counts = known.sum(axis=0)
    return np.asarray((np.nansum(parts, axis=0) / np.maximum(counts, 1))[busy & (counts > 0)])


def _count_by_minute(
    records: Sequence[EngineRecord], places: Sequence[Places], busy: Bools, seconds: float
) -> Iterator[float]:
    """Count the preemptions per minute in busy windows; nothing if no engine counts them."""
    counted = [place for record, place in zip(records, places, strict=True) if record.count_preemptions() is not None]
    if not counted:
        return
    total = np.zeros(len(busy))
    for record, place in zip(records, places, strict=True):
        total += np.bincount(place, weights=np.nan_to_num(record.levels["preemptions"]), minlength=len(busy))
    yield from (total[busy] / seconds * 60).tolist()
