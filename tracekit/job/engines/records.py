"""Samples of rollout engines from their logs: running and waiting requests, and use of the KV cache over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.report import Better, Metric
from tracekit.model.tables.frame import Frame
from tracekit.model.trace import Measurements
from tracekit.process.engine_samples import SAMPLED_LEVELS

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MAX_GAP = 3.0
"""Longest time that one sample stands for, in typical intervals: engines log nothing while they are idle."""

WINDOW_S = 10.0
"""Shortest window in which preemptions are counted, s: the interval of vLLM's statistics."""

SYSTEM_TITLES = {"vllm": "vLLM", "sglang": "SGLang"}


@dataclass(frozen=True, slots=True, eq=False)
class EngineRecord:
    """The samples of one engine in one log, in order; NaN where a sample lacks a level.

    `at_s` is the time since the first sample (None: the log has no times). `covered_s` is the time that each sample
    stands for; without times it is 1 for each. `levels` has one array per name of `SAMPLED_LEVELS`. `settings` are the
    configured values that the log names.
    """

    run: str | None
    source: str
    system: str
    engine: str
    start_ns: int | None
    at_s: Floats | None
    covered_s: Floats
    gap_before: Bools
    levels: dict[str, Floats]
    settings: dict[str, float]

    @property
    def is_busy(self) -> Bools:
        """Samples with requests."""
        return (np.nan_to_num(self.levels["running"]) > 0) | (np.nan_to_num(self.levels["waiting"]) > 0)

    @property
    def has_state(self) -> Bools:
        """Samples that give the running requests; lines about preemptions alone do not."""
        return ~np.isnan(self.levels["running"])

    @property
    def title(self) -> str:
        """Name of the engine with its system: `vLLM 0`."""
        return f"{SYSTEM_TITLES.get(self.system, self.system)} {self.engine}"

    def average(self, name: str, among: Bools | None = None) -> float | None:
        """Average a level over the time that samples stand for; None if no sample has it."""
        values = self.levels[name]
        known = ~np.isnan(values) & (self.covered_s > 0)
        if among is not None:
            known &= among
        if not known.any():
            return None
        return float(np.average(values[known], weights=self.covered_s[known]))

    def count_preemptions(self) -> int | None:
        """Count the preempted requests; None if the log does not count them."""
        counts = self.levels["preemptions"]
        return None if np.isnan(counts).all() else int(np.nansum(counts))

    def middle(self, name: str, among: Bools) -> float | None:
        """Take the median of a level over these samples; None if none has it."""
        values = self.levels[name][among]
        values = values[~np.isnan(values)]
        return float(np.median(values)) if len(values) else None


def list_engine_records(measured: Measurements) -> list[EngineRecord]:
    """List the engines of all logs, in the order of the logs."""
    return measured.derived(_make_engine_records)


def _make_engine_records(measured: Measurements) -> list[EngineRecord]:
    samples = measured.frame("engine_samples")
    if not len(samples):
        return []
    facts = measured.frame("engine_levels")
    facts = facts.filter(facts.equals("kind", "setting"))
    return [_make_record(rows, facts) for rows in samples.group_by("run", "source", "system", "engine").frames()]


def _make_record(rows: Frame, facts: Frame) -> EngineRecord:
    """Make the record of one engine from its samples, and the settings of its log."""
    run, source, system, engine = (rows.values(name)[0] for name in ("run", "source", "system", "engine"))
    levels = {name: rows.number(name) for name in SAMPLED_LEVELS}
    is_timed = ~rows.is_missing("ts_ns")
    start_ns, at_s = None, None
    if is_timed.all():
        ts_ns = rows.integers("ts_ns")
        start_ns = int(ts_ns.min())
        at_s = (ts_ns - start_ns) / 1e9
    has_state = ~np.isnan(levels["running"])
    covered, gap = _measure_covered_time(at_s, has_state)
    in_log = facts.filter(facts.equals("source", source) & facts.equals("run", run) & facts.equals("system", system))
    # A log names its settings once, often under another process than the engine's.
    settings: dict[str, Any] = dict(zip(in_log.values("key"), in_log.values("last"), strict=True))
    return EngineRecord(run, source, system, engine, start_ns, at_s, covered, gap, levels, settings)


def _measure_covered_time(at_s: Floats | None, has_state: Bools) -> tuple[Floats, Bools]:
    """Measure the time that each sample with a state stands for, and mark those after a gap.

    A sample describes the interval since the one before it; after a gap of idleness, a typical interval.
    """
    covered, gap = np.zeros(len(has_state)), np.zeros(len(has_state), np.bool_)
    if at_s is None:
        covered[has_state] = 1.0
        return covered, gap
    times = at_s[has_state]
    steps = np.diff(times)
    positive = steps[steps > 0]
    usual = float(np.median(positive)) if len(positive) else 1.0
    steps = np.concatenate([[usual], steps])
    is_gap = (steps > MAX_GAP * usual) | (steps < 0)
    covered[has_state] = np.where(is_gap, usual, steps)
    gap[has_state] = is_gap
    return covered, gap


@dataclass(frozen=True, slots=True, eq=False)
class PreemptionWindows:
    """Preemptions of one engine in windows of equal length; `of_sample` is the window of each sample."""

    length_s: float
    counts: Floats
    per_minute: Floats
    of_sample: npt.NDArray[np.int64]


def count_preemptions_by_window(record: EngineRecord) -> PreemptionWindows | None:
    """Count preemptions in windows, and their rate over the last minute at each; None without times or counts."""
    counts = record.levels["preemptions"]
    if record.at_s is None or np.isnan(counts).all():
        return None
    timed = record.covered_s[record.covered_s > 0]
    length = max(WINDOW_S, float(np.median(timed)) if len(timed) else 0.0)
    of_sample = np.maximum(record.at_s // length, 0).astype(np.int64)
    by_window, places = np.unique(of_sample, return_inverse=True)
    sums = np.bincount(places, weights=np.nan_to_num(counts), minlength=len(by_window)).astype(np.float64)
    minute = max(1, round(60 / length))
    before = np.searchsorted(by_window, by_window - minute, side="right")
    running = np.concatenate([[0.0], np.cumsum(sums)])
    rate = (running[1:] - running[before]) / (minute * length) * 60
    return PreemptionWindows(length, sums, rate, places)


def mark_tails(record: EngineRecord, share: float) -> Bools:
    """Mark the last `share` of the time of every generation: busy samples without a gap between them.

    Every generation ends with few requests, so its end does not show the engine's load.
    """
    busy = record.is_busy & record.has_state
    rows = np.flatnonzero(record.has_state)
    begins = record.gap_before[rows] | ~busy[rows] | ~np.concatenate([[False], busy[rows][:-1]])
    number = np.cumsum(begins)
    covered = np.where(busy[rows], record.covered_s[rows], 0.0)
    total = np.bincount(number, weights=covered)
    done = np.cumsum(covered)
    first = np.concatenate([[0.0], np.cumsum(total)[:-1]])[number]
    tail = np.zeros(len(busy), np.bool_)
    tail[rows] = busy[rows] & (done - first > (1 - share) * total[number] + 1e-9)
    return tail


def measure_engine_headline(measured: Measurements) -> tuple[Metric, ...]:
    """Measure the numbers of the first screen: throughput, requests and KV cache, over all engines."""
    busy = [record for record in list_engine_records(measured) if record.is_busy.any()]
    # A scrape of an engine whose log is given too would count its requests twice.
    busy = [record for record in busy if record.at_s is not None and record.has_state.sum() > 1] or busy
    several = f", {len(busy)} engines" if len(busy) > 1 else ""
    kv = _average_by_engine(busy, "kv_ratio")
    counts = [c for record in busy if (c := record.count_preemptions()) is not None]
    metrics = (
        _sum_level(busy, "generation_tokens_per_s", f"tokens/s generated{several}", "higher"),
        _sum_level(busy, "running", "requests running", "neither"),
        _sum_level(busy, "waiting", "waiting", "lower"),
        Metric("kv_ratio", max(kv, default=None), "ratio", label="KV cache in use"),
        Metric("prefix_hit_ratio", _find_last_hit_ratio(busy), "ratio", "higher", label="prefix hits"),
        Metric("preempted", sum(counts) if counts else None, "count", "lower", label="preempted"),
    )
    return tuple(metric for metric in metrics if metric.value is not None)


def _average_by_engine(records: Sequence[EngineRecord], name: str) -> list[float]:
    """Average a level over the time with requests, for every engine that has it."""
    return [value for record in records if (value := record.average(name, record.is_busy)) is not None]


def _sum_level(records: Sequence[EngineRecord], name: str, label: str, better: Better) -> Metric:
    """Sum a level over engines, averaged over the time with requests."""
    values = _average_by_engine(records, name)
    return Metric(f"engine_{name}", sum(values) if values else None, "", better, label=label)


def _find_last_hit_ratio(records: Sequence[EngineRecord]) -> float | None:
    """Average the last known hit ratios of the engines; None if none logs it."""
    last = [
        known[-1]
        for r in records
        if len(known := r.levels["prefix_hit_ratio"][~np.isnan(r.levels["prefix_hit_ratio"])])
    ]
    return float(np.mean(last)) if last else None
