"""Rollout engines by their own logs: throughput, requests, KV cache, preemptions; and the machine's GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.engines.records import (
    Bools,
    EngineRecord,
    count_preemptions_by_window,
    list_engine_records,
    mark_tails,
    measure_engine_headline,
)
from tracekit.job.engines.tables import (
    draw_engines,
    list_engine_caveats,
    make_engine_table,
    make_engine_time_table,
    make_engine_totals_table,
    make_sampled_gpu_table,
    make_sampled_process_table,
)
from tracekit.job.frames import phrase_run
from tracekit.job.report.tables import select_filled_sheets
from tracekit.model.records import dataclass
from tracekit.model.report import Finding, Metric, Place, Section, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.frame import Frame, count_rows, last_of, max_of, mean_of, min_of, sum_of
from tracekit.model.text.labels import choose_plural
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.engine_samples import make_engine_samples

_WHO = {
    "system": Column("category", "Writer of the log: vllm | sglang | nvidia-smi | nvidia-smi pmon | dcgm."),
    "engine": Column("category", "Engine or GPU, as in `engine_log`."),
}

ENGINE_SAMPLES = Table(
    "engine_samples",
    "the state of one rollout engine at one moment, by its log or a scrape",
    {
        **KEYS,
        **_WHO,
        "line": Column("int64", "Line of the log."),
        "ts_ns": Column("Int64", "When, ns on the log's own clock."),
        "running": Column("Float64", "Requests that run."),
        "waiting": Column("Float64", "Requests that wait in the engine's queue."),
        "kv_ratio": Column("Float64", "Share of the KV cache in use."),
        "generation_tokens_per_s": Column("Float64", "Generated tokens per second since the last sample."),
        "prompt_tokens_per_s": Column("Float64", "Prompt tokens per second since the last sample."),
        "prefix_hit_ratio": Column("Float64", "Prefix-cache hits over the latest queries."),
        "preemptions": Column("Float64", "Requests preempted or retracted since the last sample."),
    },
)

ENGINE_LEVELS = Table(
    "engine_levels",
    "one quantity of an engine's or a machine's log over the whole log",
    {
        **KEYS,
        **_WHO,
        "key": Column("category", "Quantity, as in `engine_log`."),
        "kind": Column("category", "level | count | total | setting, as in `engine_log`."),
        "count": Column("int64", "Values in the log."),
        "mean": Column("Float64", "Mean of the values."),
        "low": Column("Float64", "Lowest value."),
        "high": Column("Float64", "Highest value."),
        "last": Column("Float64", "Last value."),
        "sum": Column("Float64", "Sum of the values."),
    },
)

MAX_PLACES = 8


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the samples of every engine and the levels of every quantity; empty for any other source."""
    if not trace.row_count("engine_log"):
        return {}
    names = ("line", "ts_ns", "system", "engine", "key", "kind", "value")
    rows = Frame({name: trace.array("engine_log", name) for name in names}, trace.row_count("engine_log"))
    value = rows.number("value")
    levels = rows.group_by("system", "engine", "key", "kind").agg(
        count=count_rows(),
        mean=mean_of(value),
        low=min_of(value),
        high=max_of(value),
        last=last_of(value),
        sum=sum_of(value),
    )
    samples = make_engine_samples(rows.filter(rows.is_in("system", ("vllm", "sglang"))))
    return {"engine_levels": levels.columns, **({"engine_samples": samples} if samples else {})}


@dataclass(frozen=True, slots=True)
class EngineOutcome:
    """Outcome of a rule on one engine: a finding without its place, or an abstention.

    `weight` orders the engines: the worst one gives the numbers of the finding.
    """

    record: EngineRecord
    weight: float
    judged: Finding | Verdict


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Report every engine and GPU by its log; judge R60, R61 and R62. None without such a log."""
    if not measured.row_count("engine_levels"):
        return None
    records = list_engine_records(measured)
    judged: list[Finding | Verdict] = []
    for find in (_find_preemption, _find_starved, _find_queue):
        outcomes = [outcome for record in records if (outcome := find(record, thresholds)) is not None]
        judged += _merge_engines(measured, outcomes, len(records))
    return ANALYSIS.answered(
        judged=judged,
        metrics=lambda: measure_engine_headline(measured),
        sheets=lambda: select_filled_sheets(
            make_engine_time_table(measured, records),
            make_engine_table(measured, records),
            make_engine_totals_table(measured),
            make_sampled_gpu_table(measured),
            make_sampled_process_table(measured),
        ),
        caveats=lambda: list_engine_caveats(records),
        charts=lambda: draw_engines(records),
    )


def _merge_engines(
    measured: Measurements, outcomes: Sequence[EngineOutcome], count: int
) -> Iterator[Finding | Verdict]:
    """Merge the outcomes of one rule per run: the finding of the worst engine, with all engines as places."""
    by_run: dict[str | None, list[EngineOutcome]] = {}
    for outcome in outcomes:
        by_run.setdefault(outcome.record.run, []).append(outcome)
    for run, of_run in by_run.items():
        fired = [outcome for outcome in of_run if isinstance(outcome.judged, Finding)]
        if not fired:
            yield of_run[0].judged
            continue
        worst = max(fired, key=lambda outcome: outcome.weight)
        assert isinstance(worst.judged, Finding), "only findings fired"
        where = f" ({worst.record.title}" + (f" and {len(fired) - 1} more)" if len(fired) > 1 else ")")
        yield replace(
            worst.judged,
            claim=f"{worst.judged.claim}{where if count > 1 else ''}{phrase_run(measured, run)}",
            places=tuple(
                Place(source=o.record.source, name=o.record.title, run=run)
                for o in sorted(fired, key=lambda o: -o.weight)[:MAX_PLACES]
            ),
        )


def _find_preemption(record: EngineRecord, thresholds: Thresholds) -> EngineOutcome | None:
    """Find R60: requests are preempted again and again because the KV cache is full."""
    limit = thresholds.of("kv-preemption")
    windows = count_preemptions_by_window(record)
    if windows is None:
        return _abstain_without_counts(record, limit)
    fires = (windows.counts > 0) & (windows.per_minute > limit["per_minute"])
    if fires.sum() < limit["min_windows"]:
        return None
    inside = fires[windows.of_sample] & record.has_state
    lost = _estimate_lost_throughput(record, windows.counts[windows.of_sample] > 0, inside)
    busy_s = float(record.covered_s[record.is_busy].sum())
    share = float(record.covered_s[inside & record.is_busy].sum()) / busy_s if busy_s else 0.0
    preempted = int(np.nansum(record.levels["preemptions"]))
    rate = float(windows.counts[fires].sum() / (fires.sum() * windows.length_s) * 60)
    word = "retracted" if record.system == "sglang" else "preempted"
    claim = f"{preempted:,} {choose_plural(preempted, 'request')} {word} as the KV cache is full, {rate:.3g} per minute"
    cost = share * lost if lost is not None else share * limit["assumed_loss_ratio"]
    if lost is not None and lost > 0:
        claim += f"; generation throughput {format_quantity(lost, 'ratio')} lower meanwhile"
    evidence = [
        Metric("preempted", preempted, "count", "lower", label=f"requests {word}"),
        Metric("per_minute", rate, "", "lower", label="per minute, in windows with any"),
        Metric("time_ratio", share, "ratio", "lower", label="share of the time with requests"),
        Metric("kv_ratio", record.middle("kv_ratio", inside), "ratio", label="KV cache in use then, median"),
    ]
    if lost is not None:
        label = "lower generation throughput then (bound of the gain)"
        evidence.append(Metric("lost_ratio", lost, "ratio", "lower", label=label))
    finding = Finding(
        "kv-preemption",
        thresholds.severity(cost),
        claim,
        _advise_less_kv(record),
        tuple(evidence),
        caveats=(
            "the throughput before is that of other requests: shorter contexts generate faster",
            "fewer concurrent requests use less KV cache and may generate more slowly: compare tokens/s",
        ),
    )
    return EngineOutcome(record, cost, finding)


def _abstain_without_counts(record: EngineRecord, limit: Mapping[str, float]) -> EngineOutcome | None:
    """Abstain where the KV cache fills up and the log does not count preemptions."""
    full = record.levels["kv_ratio"][~np.isnan(record.levels["kv_ratio"])]
    if not len(full) or full.max() < limit["kv_ratio"]:
        return None
    if record.at_s is None:
        reason = f"{record.title}: scrapes without times give no rate (print `date +%s` before each scrape)"
    else:
        reason = f"{record.title}: the KV cache fills up and the log counts no preemptions (scrape vllm:num_preemptions_total)"
    return EngineOutcome(record, 0.0, Verdict("kv-preemption", "insufficient data", reason, record.run))


def _estimate_lost_throughput(record: EngineRecord, preempted: Bools, inside: Bools) -> float | None:
    """Estimate by how much generation is slower while preempting: medians of comparable samples; None without any.

    Comparable samples have no preemption in their window and run at least half as many requests.
    """
    rate, running = record.levels["generation_tokens_per_s"], record.levels["running"]
    then = record.middle("generation_tokens_per_s", inside)
    many = record.middle("running", inside)
    if then is None or many is None:
        return None
    others = record.has_state & ~preempted & (np.nan_to_num(running) >= many / 2) & ~np.isnan(rate)
    if others.sum() < MIN_COMPARED:
        return None
    usual = float(np.median(rate[others]))
    return max(0.0, 1 - then / usual) if usual > 0 else None


def _find_starved(record: EngineRecord, thresholds: Thresholds) -> EngineOutcome | None:
    """Find R61: the engine runs few requests, none wait, and the KV cache is nearly empty."""
    limit = thresholds.of("engine-starved")
    kept = record.is_busy & record.has_state & ~mark_tails(record, limit["tail_ratio"])
    kept &= ~np.isnan(record.levels["kv_ratio"]) & ~np.isnan(record.levels["waiting"])
    if kept.sum() < limit["min_samples"]:
        return None
    running_peak, basis = _find_batch_limit(record)
    if running_peak is None:
        return None
    levels = record.levels
    few = kept & (levels["waiting"] == 0) & (levels["kv_ratio"] < limit["kv_ratio"])
    few &= levels["running"] < limit["running_ratio"] * running_peak
    share = float(record.covered_s[few].sum() / record.covered_s[kept].sum())
    if share <= limit["time_ratio"]:
        return None
    running = record.middle("running", few)
    claim = (
        f"the engine runs {running:.0f} of {running_peak:.0f} possible requests and none wait, for "
        f"{format_quantity(share, 'ratio')} of its time with requests"
    )
    advice = (
        "send more requests at once: verl rollout.agent.num_workers (8) if the client is the limit, more prompts per "
        "step, or fewer engines (fewer replicas, larger share of the requests each)"
    )
    finding = Finding(
        "engine-starved",
        "medium",
        claim,
        advice,
        (
            Metric("time_ratio", share, "ratio", "lower", label="share of the time with requests, ends left out"),
            Metric("running", running, "count", "higher", label="running requests then, median"),
            Metric("limit", running_peak, "count", label=basis),
            Metric("kv_ratio", record.middle("kv_ratio", few), "ratio", label="KV cache in use then, median"),
        ),
        caveats=("tools between the turns of an agent also leave the engine with few requests",),
    )
    return EngineOutcome(record, share, finding)


def _find_batch_limit(record: EngineRecord) -> tuple[float | None, str]:
    """Find the most requests that the engine may run at once, and how it is known; None if unknown."""
    for name in ("max_num_seqs", "max_running_requests"):
        if record.settings.get(name):
            return record.settings[name], f"{name}, by the log"
    if record.system == "vllm":
        return DEFAULT_MAX_NUM_SEQS, "max_num_seqs, vLLM's default (the log does not name it)"
    return None, ""


def _find_queue(record: EngineRecord, thresholds: Thresholds) -> EngineOutcome | None:
    """Find R62: requests wait although the KV cache has room."""
    limit = thresholds.of("engine-queue")
    kept = (
        record.is_busy & record.has_state & ~np.isnan(record.levels["kv_ratio"]) & ~np.isnan(record.levels["waiting"])
    )
    if kept.sum() < limit["min_samples"]:
        return None
    levels = record.levels
    running_peak = float(levels["running"][kept].max())
    full = kept & (levels["waiting"] > 0) & (levels["kv_ratio"] < limit["kv_ratio"])
    full &= levels["running"] >= limit["running_ratio"] * running_peak
    share = float(record.covered_s[full].sum() / record.covered_s[kept].sum())
    if share <= limit["time_ratio"]:
        return None
    waiting, kv = record.middle("waiting", full), record.middle("kv_ratio", full)
    claim = (
        f"{waiting:.0f} requests wait while {running_peak:.0f} run and the KV cache is {format_quantity(kv, 'ratio')} full, for "
        f"{format_quantity(share, 'ratio')} of the time with requests"
    )
    finding = Finding(
        "engine-queue",
        "medium",
        claim,
        _advise_larger_batch(record, running_peak),
        (
            Metric("time_ratio", share, "ratio", "lower", label="share of the time with requests"),
            Metric("waiting", waiting, "count", "lower", label="waiting requests then, median"),
            Metric("running", running_peak, "count", label="most running requests"),
            Metric("kv_ratio", kv, "ratio", label="KV cache in use then, median"),
        ),
        caveats=(
            "a larger batch makes each decode iteration slower; the bound is the room in the KV cache",
            "prompts that arrive faster than they are processed also wait: see the prompt tokens/s",
        ),
    )
    return EngineOutcome(record, share, finding)


def _format_setting(record: EngineRecord, name: str, default: str) -> str:
    """Format a setting with its present value, or with its default."""
    if name in record.settings:
        return f"{name} (now {record.settings[name]:g})"
    return f"{name} (default {default})"


def _advise_less_kv(record: EngineRecord) -> str:
    """Advise on settings of the engine that leave each request more KV cache."""
    if record.system == "sglang":
        return (
            f"lower {_format_setting(record, 'max_running_requests', 'by the free memory')}; raise "
            f"{_format_setting(record, 'schedule_conservativeness', '1.0')} or "
            f"{_format_setting(record, 'mem_fraction_static', 'by the free memory')}; limit response lengths"
        )
    return (
        f"lower {_format_setting(record, 'max_num_seqs', f'{DEFAULT_MAX_NUM_SEQS:.0f}')}; raise "
        f"{_format_setting(record, 'gpu_memory_utilization', '0.9, 0.5 in verl')}; kv_cache_dtype=fp8; limit response "
        "lengths (max_response_length)"
    )


def _advise_larger_batch(record: EngineRecord, running_peak: float) -> str:
    """Advise on the setting that limits the batch."""
    if record.system == "sglang":
        return f"raise {_format_setting(record, 'max_running_requests', 'by the free memory')}, or add engines"
    budget = _format_setting(record, "max_num_batched_tokens", "8192 in verl")
    return (
        f"raise {_format_setting(record, 'max_num_seqs', f'{DEFAULT_MAX_NUM_SEQS:.0f}')} above {running_peak:.0f}; if prompts are "
        f"the limit, raise {budget}; or add engines"
    )


DEFAULT_MAX_NUM_SEQS = 256.0
"""vLLM's default, as verl passes it."""

MIN_COMPARED = 3
"""Fewest samples without preemptions that the throughput is compared with."""

ANALYSIS = Analysis(
    id="engine-log",
    title="How busy were the rollout engines, by their logs?",
    reads=("engine_log",),
    writes=(ENGINE_SAMPLES, ENGINE_LEVELS),
    rules=("kv-preemption", "engine-starved", "engine-queue"),
    thresholds={
        "kv-preemption": {
            # More preemptions per minute than this, over the last minute,
            "per_minute": 1,
            # in at least this many windows (of 10 s, or of one sample if that is longer).
            "min_windows": 3,
            # From this use of the KV cache, a log without counts of preemptions is not judged clear.
            "kv_ratio": 0.95,
            # Assumed loss of throughput for the severity where no comparable samples exist.
            "assumed_loss_ratio": 0.1,
        },
        "engine-starved": {
            # No request waits, fewer run than this share of the most possible,
            "running_ratio": 0.25,
            # and less of the KV cache is in use than this,
            "kv_ratio": 0.30,
            # for more than this share of the time with requests,
            "time_ratio": 0.30,
            # without this last share of each generation.
            "tail_ratio": 0.20,
            # Minimum number of samples.
            "min_samples": 10,
        },
        "engine-queue": {
            # Requests wait, and at least this share of the most running requests run,
            "running_ratio": 0.90,
            # while less of the KV cache is in use than this,
            "kv_ratio": 0.60,
            # for more than this share of the time with requests.
            "time_ratio": 0.30,
            # Minimum number of samples.
            "min_samples": 10,
        },
    },
    measure=measure,
    judge=judge,
)
