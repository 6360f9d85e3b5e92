"""Time of an RL run by stage, from the log alone: disjoint stages, their shares and their trends."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import make_run_heading
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.run_log.generation_tail import measure_generation_tail, measure_recorded_tail
from tracekit.job.run_log.gpu_headroom import LEAST_HEADROOM, MOST_HEADROOM, measure_reserved_peak
from tracekit.job.run_log.lengths import choose_step_lengths
from tracekit.job.run_log.run_table import make_logged_run_sheet
from tracekit.job.run_log.schedules import LEAST_CHANGE, predict_schedules
from tracekit.job.run_log.stages import (
    LoggedStage,
    LoggedSteps,
    find_logged_period,
    list_logged_steps,
)
from tracekit.model.recording.rl_frameworks import FRAMEWORKS
from tracekit.model.report import Metric, Section, Sheet
from tracekit.model.stats.equal_length import measure_drift_at_equal_length
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Coded, choose_narrowest, select_rows
from tracekit.model.tables.columns import NAME, STEP
from tracekit.model.tables.frame import Frame, from_rows
from tracekit.model.text.labels import choose_plural, join_first_few
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity, format_ranges

RUN_LOG = Table(
    "run_log",
    "one number of a step that questions about the run's log use",
    {
        **KEYS,
        "part": Column("int64", "Part of the log, from 0; a restart begins a new one."),
        "step": STEP,
        "name": NAME,
        "value": Column("Float64", "Value as logged."),
    },
)

RUN_SETTINGS = Table(
    "run_settings",
    "one setting of an RL run that findings name",
    {
        **KEYS,
        "key": Column("category", "Name of the setting, such as trainer.test_freq."),
        "value": Column("category", "Number, switch or word, as written; other values are not kept."),
        "origin": Column("category", "The log that printed it, or the file next to the log."),
    },
)

MOST_VALUES = 1_000_000
"""Maximum number of values per log: the latest."""

_REGISTERED = frozenset(name for framework in FRAMEWORKS for name in framework.list_names())
_USED_NAMES = re.compile(
    r"timing_s/|timing/|timeperf/|time/step_|perf/|train/timing/|fully_async/|separate_async/|training/off_policy/|"
    r"(?:training|validation)/(?:off_policy|filter_groups|rollout_failure)/evicted_samples\Z|"
    r"global_seqlen/|(?:prompt|response)_length/|performance/|memory/cpu/|ray/node|system/(?:tps|step)\Z|"
    r"num_turns/|rollout/(?:response_len|num_samples)|step_time\Z|queue_wait_time_s|weight_sync_time_s|completions/|"
    r"train/(?:total_num_tokens|global_valid_toks|mean_gen_tokens|max_gen_tokens|step_time|completions/)|"
    r"timing_per_image_ms/|(?:\w+/)?perf/(?:cpu_memory_used_gb|max_memory_reserved_gb)\Z"
)


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the values of a log that any question about it uses."""
    if not trace.has("log_values"):
        return {}
    names = trace.texts("log_values", "name")
    is_used = np.array([*(name in _REGISTERED or _USED_NAMES.match(name) is not None for name in names.texts), False])
    rows = np.flatnonzero(is_used[names.codes])[-MOST_VALUES:]
    used, codes = np.unique(names.codes[rows], return_inverse=True)
    return {
        **_copy_logged_settings(trace),
        "run_log": {
            "part": trace.numbers("log_values", "part")[rows],
            "step": select_rows(trace.nullable("log_values", "step"), rows),
            "name": Coded(codes.astype(choose_narrowest(len(used))), tuple(names.texts[code] for code in used)),
            "value": select_rows(trace.nullable("log_values", "value"), rows),
        },
    }


def _copy_logged_settings(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Copy the settings of the run; no table without any."""
    if not trace.row_count("log_settings"):
        return {}
    return {"run_settings": {name: trace.texts("log_settings", name) for name in ("key", "value", "origin")}}


def judge(measured: Measurements, _thresholds: Thresholds) -> Section | None:
    """Report the disjoint stages of each log; None without a log."""
    logs = list_logged_steps(measured)
    if not logs:
        return None
    return ANALYSIS.answered(
        metrics=lambda: tuple(_list_log_metrics(logs)),
        sheets=lambda: select_filled_sheets(
            _make_logged_stage_sheet(measured, logs),
            make_logged_run_sheet(measured, logs),
            _make_schedule_sheet(measured, logs),
            _make_setting_sheet(measured, logs),
        ),
        caveats=lambda: tuple(_list_stage_caveats(logs, measured.facts.device_memory)),
    )


def _list_log_metrics(logs: tuple[LoggedSteps, ...]) -> Iterator[Metric]:
    """List the step time and the throughput of the first log, and the time that no timer covers."""
    for steps in logs[:1]:
        steady = steps.counted.steady
        if not steady.any():
            continue
        yield Metric("logged_step", float(np.median(steps.step_s[steady])) * 1e9, "ns", "lower", label="step, median")
        rate = steps.get_steady(*steps.log.framework.throughput)
        if rate is not None:
            yield Metric("tokens_per_s_per_gpu", float(np.nanmedian(rate)), "", "higher", label="tokens/s/GPU, median")
        share = float(np.median(steps.residual_s[steady] / steps.step_s[steady]))
        yield Metric("untimed_ratio", share, "ratio", "lower", label="in no timer")


def _make_logged_stage_sheet(measured: Measurements, logs: tuple[LoggedSteps, ...]) -> Sheet:
    """Make the table of disjoint stages; the rows of a run add up to its wall time."""
    rows = [row for steps in logs for row in _list_stage_rows(steps)]
    names = (
        "run",
        "stage",
        "mean_ns",
        "share_ratio",
        "median_ns",
        "iqr_ns",
        "trend_ratio",
        "gpu_hours",
        "price",
        "how",
    )
    table: Frame = from_rows(names, rows)
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            stage | stage
            mean_ns | per step | ns | Mean over the counted steps; of validation and checkpoints over all steps. Steps without the stage are included, so the rows below the first add up to it.
            share_ratio | share | ratio | Part of the wall time.
            median_ns | median | ns | Over the steps that have it, without warm-up.
            iqr_ns | IQR | ns | Range of the middle half.
            trend_ratio | trend | ratio | Change over the run at equal length; — where noise or length may explain it.
            gpu_hours | GPU-hours | number | This time per step, times the number of logged steps and of GPUs; that of the first row includes steps that ran again after a restart.
            price | cost | number | Price of the GPU-hours.
            how | note
        """),
    )
    is_again = any(len(steps.first_tries_s) for steps in logs)
    again = " The GPU-hours of the first row include the tries that ran again." if is_again else ""
    caption = f"{_describe_all_counted_steps(logs)} Stages are disjoint and add up to the first row.{again}"
    return make_sheet("logged_stages", "Stages of the step", headings, table, caption=caption)


def _make_schedule_sheet(measured: Measurements, logs: tuple[LoggedSteps, ...]) -> Sheet:
    """Make the table of the step under other schedules: those that differ by 1 % or more, or claim nothing."""
    rows = []
    for steps in logs:
        tail = measure_generation_tail(steps)
        known = np.array([]) if tail is None else tail.ratio[steps.counted.steady]
        known = known[np.isfinite(known)]
        if not len(known) or not steps.counted.is_enough:
            continue
        step_s = float(np.median(steps.step_s[steps.counted.steady]))
        recorded = measure_recorded_tail(measured, steps.log.run)
        for scheduled in predict_schedules(steps, float(np.clip(np.median(known), 0, 1)), recorded):
            change = None if scheduled.step_s is None else scheduled.step_s / step_s - 1
            if change is None or abs(change) >= LEAST_CHANGE:
                step_ns = None if scheduled.step_s is None else round(scheduled.step_s * 1e9)
                rows.append((steps.log.run, scheduled.schedule, step_ns, change, scheduled.assumption))
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            schedule | schedule
            step_ns | step, at least | ns | The median step if all assumptions are true.
            change_ratio | change | ratio
            assumption | assumption
        """),
    )
    caption = "Bounds from the stages of the log, not a replay."
    names = ("run", "schedule", "step_ns", "change_ratio", "assumption")
    return make_sheet("schedules", "The step under other schedules", headings, from_rows(names, rows), caption=caption)


def _make_setting_sheet(measured: Measurements, logs: tuple[LoggedSteps, ...]) -> Sheet:
    """Make the table of the known settings of each run."""
    settings = [(steps.log.run, steps.settings[key]) for steps in logs for key in sorted(steps.settings)]
    rows = [(run, setting.key, setting.value, setting.origin) for run, setting in settings]
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            key | setting
            value | value
            origin | from
        """),
    )
    caption = "Settings that findings name; others are not kept."
    table = from_rows(("run", "key", "value", "origin"), rows)
    return make_sheet("settings", "Settings of the run", headings, table, caption=caption)


def _describe_all_counted_steps(logs: tuple[LoggedSteps, ...]) -> str:
    """Describe the steps behind the means of all logs: once, or by run where they differ."""
    runs: dict[str, list[str]] = {}
    for steps in logs:
        runs.setdefault(_describe_counted_steps(steps), []).append(str(steps.log.run))
    if len(runs) == 1:
        return f"{next(iter(runs))}."
    return f"{'; '.join(f'{join_first_few(names, MOST_NAMED_RUNS)}: {text}' for text, names in runs.items())}."


MOST_NAMED_RUNS = 3
"""Most runs named with the steps that count."""


def _describe_counted_steps(steps: LoggedSteps) -> str:
    """Describe the steps behind the means of one log; those of some stages include the steps that do not count."""
    counted, profiled = steps.counted.counted, steps.counted.profiled
    count, first = int(counted.sum()), int((~counted & ~profiled).sum())
    of_starts = f" of {steps.restarts + 1:,} starts" if steps.restarts else ""
    left_out = [f"the first {first:,}{of_starts}"] if first else []
    if profiled.any():
        numbers = format_ranges(steps.log.step[profiled].tolist())
        left_out.append(f"profiled {choose_plural(int(profiled.sum()), 'step')} {numbers}")
    without = f" without {' and '.join(left_out)}" if left_out else ""
    periodic = [stage.canonical for stage in steps.stages if stage.is_added and steps.is_averaged_over_all(stage)]
    of_all = f" ({', '.join(dict.fromkeys(periodic))}: of all {len(steps.log):,})" if periodic and left_out else ""
    return f"Mean of {count:,} {choose_plural(count, 'step')}{without}{of_all}"


def _list_stage_rows(steps: LoggedSteps) -> Iterator[tuple[Any, ...]]:
    """List the rows of one run: the wall time of a step, its stages by time, then time in no timer."""
    counted = steps.counted.counted
    if not counted.any():
        return
    costs = [(steps.average_stage_seconds(stage), stage) for stage in steps.stages if stage.is_added]
    costs = sorted(((mean_s, stage) for mean_s, stage in costs if mean_s), key=lambda cost: -cost[0])
    residual_s = float(steps.residual_s[counted].mean())
    wall_s = sum(mean_s for mean_s, _ in costs) + residual_s
    median, iqr = _summarize_seconds(steps.step_s[steps.counted.steady])
    trend = _measure_stage_trend(steps, steps.step_s)
    hours = steps.compute_run_gpu_hours()
    yield (
        steps.log.run,
        "(step, wall)",
        round(wall_s * 1e9),
        1.0,
        median,
        iqr,
        trend,
        hours,
        steps.compute_price(hours),
        "",
    )
    if len(steps.first_tries_s):
        yield _make_first_tries_row(steps)
    for mean_s, stage in costs:
        yield _make_stage_row(steps, stage, mean_s, wall_s)
    share, hours = residual_s / wall_s, steps.compute_gpu_hours(residual_s)
    yield (
        steps.log.run,
        "(in no timer)",
        round(residual_s * 1e9),
        share,
        None,
        None,
        None,
        hours,
        steps.compute_price(hours),
        _describe_longest_gap(steps),
    )


def _make_first_tries_row(steps: LoggedSteps) -> tuple[Any, ...]:
    """Make the row of the tries that ran again after a restart: no part of a step, but of the GPU-hours."""
    hours = steps.compute_lost_gpu_hours()
    count, lost_ns = len(steps.first_tries_s), float(steps.first_tries_s.sum()) * 1e9
    note = f"first tries of {count:,} {choose_plural(count, 'step')}: {format_quantity(lost_ns, 'ns')} in all"
    return steps.log.run, "(run again)", None, None, None, None, None, hours, steps.compute_price(hours), note


def _describe_longest_gap(steps: LoggedSteps) -> str:
    """Describe the counted step with more than half of the time in no timer; empty if no step has."""
    counted = steps.counted.counted
    residual = np.where(counted, steps.residual_s, 0.0)
    longest = int(np.argmax(residual))
    share = residual[longest] / residual.sum() if residual.sum() > 0 else 0.0
    if counted.sum() < 2 or share <= 0.5:
        return ""
    return f"{format_quantity(float(share), 'ratio')} in step {steps.log.step[longest]}"


def _make_stage_row(steps: LoggedSteps, stage: LoggedStage, mean_s: float, wall_s: float) -> tuple[Any, ...]:
    """Make the row of one stage."""
    counted = steps.counted.counted
    known = stage.seconds[counted]
    median, iqr = _summarize_seconds(known[known > 0])
    trend = None if stage.is_wait or stage.where == "outside" else _measure_stage_trend(steps, stage.seconds)
    return (
        steps.log.run,
        stage.canonical,
        round(mean_s * 1e9),
        mean_s / wall_s,
        median,
        iqr,
        trend,
        steps.compute_gpu_hours(mean_s),
        steps.compute_price(steps.compute_gpu_hours(mean_s)),
        _describe_stage(steps, stage),
    )


def _describe_stage(steps: LoggedSteps, stage: LoggedStage) -> str:
    """Describe a stage: a wait, its period, and whether it is outside the step's own time."""
    parts = ["the trainer waits for samples"] if stage.is_wait else []
    present = int((stage.seconds > 0).sum())
    if stage.nested_steps:
        parts.append(f"within other timers in {stage.nested_steps} of {stage.nested_steps + present} steps")
    elif present < len(steps.log):
        period = find_logged_period(steps, stage)
        parts.append(f"every {period} steps" if period else f"in {present} of {len(steps.log)} steps")
    if stage.where == "outside":
        parts.append("between steps")
    return ", ".join(parts)


def _summarize_seconds(seconds: Any) -> tuple[int | None, int | None]:
    """Summarize times: median and interquartile range in ns; None without any."""
    if not len(seconds):
        return None, None
    low, middle, high = np.percentile(seconds, (25, 50, 75))
    return round(float(middle) * 1e9), round(float(high - low) * 1e9)


def _measure_stage_trend(steps: LoggedSteps, seconds: Any) -> float | None:
    """Measure the change of a time over the run at equal length; None where it is not certain."""
    rows = steps.counted.steady & (seconds > 0)
    lengths = choose_step_lengths(steps, rows)
    if lengths is None or rows.sum() < MIN_TREND_STEPS:
        return None
    drift = measure_drift_at_equal_length(lengths, seconds[rows], np.flatnonzero(rows).astype(np.float64))
    if drift is None or not drift.is_told_apart or drift.p >= MOST_TREND_P:
        return None
    return drift.change


MIN_TREND_STEPS = 10
"""Fewest steps for a trend."""

MOST_TREND_P = 0.01
"""Largest probability of a trend by chance."""


def _list_stage_caveats(logs: tuple[LoggedSteps, ...], device_memory: int | None) -> Iterator[str]:
    """List the timers that are not added, logs whose timers exceed their steps, and GPU memory near its limits."""
    for steps in logs:
        yield from _describe_gpu_headroom(steps, device_memory)
        nested = [_name_nested_stage(steps, stage) for stage in steps.stages if stage.where == "nested"]
        if nested:
            yield f"within other timers, not added: {', '.join(nested)}"
        beside = [stage.label for stage in steps.stages if stage.where == "overlapping"]
        if beside:
            yield f"parallel to the step, not added: {', '.join(beside)}"


def _name_nested_stage(steps: LoggedSteps, stage: LoggedStage) -> str:
    """Name a stage within other timers, with the number of its steps if it is added in others."""
    is_split = any(other.nested_steps and other.label == stage.label for other in steps.stages)
    return f"{stage.label} (in {int((stage.seconds > 0).sum())} of {len(steps.log)} steps)" if is_split else stage.label


def _describe_gpu_headroom(steps: LoggedSteps, device_memory: int | None) -> Iterator[str]:
    """Describe GPU memory that is short or unused, by the highest peak of any role and the size that the user gave.

    A peak above the size contains unmapped memory, which says nothing about headroom.
    """
    peak = measure_reserved_peak(steps)
    if peak is None or device_memory is None:
        return
    headroom = 1 - peak / device_memory
    if not 0 <= headroom < LEAST_HEADROOM and headroom <= MOST_HEADROOM:
        return
    present = steps.settings.get("actor_rollout_ref.rollout.gpu_memory_utilization")
    now = "" if present is None else f" (now {present.value})"
    key = (
        f"actor_rollout_ref.rollout.gpu_memory_utilization{now}" if steps.is_verl else "the share of the rollout engine"
    )
    what = f"smaller micro-batches or less of {key} avoid an OOM"
    if headroom > MOST_HEADROOM:
        what = f"larger micro-batches, or more of {key}, may use it"
    size, most = format_quantity(device_memory, "bytes"), format_quantity(peak, "bytes")
    yield (
        f"GPU memory: PyTorch reserved at most {most} of {size}, {format_quantity(headroom, 'ratio')} is left: {what}; "
        "other processes on the GPU are not counted"
    )


ANALYSIS = Analysis(
    id="run-log",
    title="Where does the time go, by the run's log?",
    reads=("log_values", "log_settings"),
    writes=(RUN_LOG, RUN_SETTINGS),
    rests_on=("request_times",),
    every_step=True,
    measure=measure,
    judge=judge,
)
