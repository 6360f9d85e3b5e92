"""Spread of every metric over steps and runs: mean, standard deviation and confidence interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import UNIT
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.steps.metric_samples import COLUMNS, Key, MetricSamples, collect_samples
from tracekit.job.steps.step_values import list_times_and_marks, list_values_of_job
from tracekit.job.steps.throughput import compute_work_rates
from tracekit.job.steps.warm_up import LeftOutSteps, find_steps_to_drop
from tracekit.model.failed_questions import keep_sound_metrics, list_unsound_metrics
from tracekit.model.metrics import METRICS, STAGE_TIME, STEP_TIME, make_devices_caption
from tracekit.model.report import Heading, Metric, Section, Sheet, Unit
from tracekit.model.stats.estimate import Estimate, estimate_side
from tracekit.model.tables.arrays import repeat_text
from tracekit.model.tables.frame import Frame, choose, concat, from_rows, sum_of
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace

MAX_STAGES = 30
"""Maximum number of stages: those with most time, where times are known."""

MAX_ROWS = 200
"""Maximum number of rows of one table: those with the largest means."""

CONFIDENCE_LEVEL = 0.95

STEP_TIMES: Key = (STEP_TIME, None, None)
"""Key of the step times of the whole job."""

_METRIC_GROUPS: tuple[tuple[str, str, Unit], ...] = (
    ("times", "Times of a step", "ns"),
    ("rates", "Rates", ""),
    ("counts", "Counts of a step", "count"),
    ("bytes", "Bytes of a step", "bytes"),
)


def measure(_trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure no table: `judge` reads the tables of other analyses."""
    return {}


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Report n, mean, standard deviation, min, max and interval of every named metric.

    Ranks are reduced within a step first. The repeated unit is the run if there are several runs, else the step.
    """
    if not (_has_repeated_step_times(measured) or _has_repeated_values(measured)):
        return ANALYSIS.skipped(NOT_REPEATED)
    return ANALYSIS.answered(
        metrics=lambda: _list_mean_step_metrics(_get_step_time_samples(measured)),
        sheets=lambda: _make_repeat_tables(measured),
        caveats=lambda: _list_repeat_caveats(measured),
    )


def _has_repeated_step_times(measured: Measurements) -> bool:
    """Check whether several steps count, from step times alone, which avoids computing all other metrics."""
    values = _label_unnamed_runs(list_times_and_marks(measured)).with_columns(role=None, rank=None, stage=None)
    samples = collect_samples(values)
    step = samples.get(STEP_TIMES)
    return step is not None and _has_several_values(find_steps_to_drop(samples, values, None).filter_samples(step))


def _label_unnamed_runs(values: Frame) -> Frame:
    """Label the values of a run without a name with an empty one."""
    return values.with_columns(run=choose(values.is_missing("run"), repeat_text("", len(values)), values["run"]))


def _has_repeated_values(measured: Measurements) -> bool:
    """Check whether any metric has several values."""
    if _has_one_step_only(measured):
        return False
    kept, _, _ = measured.derived(select_steady_samples)
    return any(_has_several_values(values) for values in kept.values())


def _has_several_values(values: MetricSamples) -> bool:
    """Check whether the samples are of several runs or several steps."""
    return len(values.runs) > 1 or any(len(of_run) > 1 for of_run in values.values[:1])


def _get_step_time_samples(measured: Measurements) -> MetricSamples | None:
    """Get the times of the steps that count; None without any."""
    kept, _, _ = measured.derived(select_steady_samples)
    return kept.get(STEP_TIMES)


def _make_repeat_tables(measured: Measurements) -> tuple[Sheet, ...]:
    """Make the tables of metrics and of the steps that do not count."""
    kept, left_out, _ = measured.derived(select_steady_samples)
    return select_filled_sheets(
        *_make_estimate_tables(_list_metric_estimates(kept)), _make_left_out_step_table(left_out)
    )


def _list_repeat_caveats(measured: Measurements) -> Iterator[str]:
    """List the assumptions, and the stages and metrics left out."""
    step = _get_step_time_samples(measured)
    _, _, omitted = measured.derived(select_steady_samples)
    if step is not None and len(step.runs) > 1:
        yield "runs are treated as repeats of the same setting"
    if omitted:
        yield f"{omitted:,} stages that take less time are left out"
    yield from _list_unmeasured_metrics(measured)


NOT_REPEATED = "only one counted step: nothing was repeated"


def _has_one_step_only(measured: Measurements) -> bool:
    """Check whether all values are of one step of one run."""
    values = measured.derived(list_values_of_job), keep_sound_metrics(measured)
    return len(concat([rows.select(*UNIT) for rows in values]).group_by(*UNIT)) <= 1


def select_steady_samples(measured: Measurements) -> tuple[dict[Key, MetricSamples], LeftOutSteps, int]:
    """Select the samples of steps that count: (samples by metric, steps left out, number of stages left out)."""
    tables = measured.derived(list_values_of_job).with_columns(rank=None), keep_sound_metrics(measured)
    parts = [_keep_longest_stages(rows.select(*COLUMNS)) for rows in tables]
    values = _label_unnamed_runs(concat([rows for rows, _ in parts]))
    all_samples = collect_samples(values)
    left_out = find_steps_to_drop(all_samples, values, None)
    kept_values = {
        key: remaining for key, sampled in all_samples.items() if (remaining := left_out.filter_samples(sampled)).runs
    }
    rates = compute_work_rates(kept_values, _find_common_world_size(measured))
    return {**kept_values, **rates}, left_out, max(omitted for _, omitted in parts)


def _list_unmeasured_metrics(measured: Measurements) -> Iterator[str]:
    """List the metrics that an error of tracekit left unmeasured, in whole or part."""
    titles = [METRICS[name].title for name in METRICS if name in list_unsound_metrics(measured)]
    if titles:
        yield f"an error in tracekit left these unmeasured: {', '.join(titles)}"


def _keep_longest_stages(rows: Frame) -> tuple[Frame, int]:
    """Keep the metrics of the `MAX_STAGES` longest stages and of no stage: (rows, number of stages left out)."""
    rows = rows.filter(rows.is_in("name", METRICS) | rows.is_missing("stage"))
    staged = rows.filter(~rows.is_missing("stage"))
    is_time = staged.is_in("name", [name for name, kind in METRICS.items() if kind.unit == "ns"])
    size = np.where(is_time, staged.number("value", missing=0), 0)
    ranked = staged.group_by("stage").agg(size=sum_of(size)).sort("size", "stage", descending=["size"])
    longest = ranked.head(MAX_STAGES).values("stage")
    return rows.filter(rows.is_missing("stage") | rows.is_in("stage", longest)), len(ranked) - len(longest)


def _find_common_world_size(measured: Measurements) -> int | None:
    """Find the number of ranks that all processes agree on; None if they differ or did not record it."""
    sizes = set(measured.frame("captures").values("world_size")) - {None}
    return next(iter(sizes)) if len(sizes) == 1 and min(sizes) > 0 else None


def _list_metric_estimates(samples_by_key: Mapping[Key, MetricSamples]) -> Frame:
    """List the estimate of each metric, one row per metric; metrics that are always 0 are left out."""
    rows = []
    for (name, role, stage), values in samples_by_key.items():
        kind = METRICS[name]
        estimate = _estimate_metric(values)
        if estimate is None or not (estimate.least or estimate.most):
            continue
        rows.append(
            (
                *(name, role, stage, kind.title, kind.unit, estimate.runs, estimate.steps, estimate.mean, estimate.sd),
                estimate.sd / abs(estimate.mean) if estimate.sd is not None and estimate.mean else None,
                *(estimate.least, estimate.most),
                *((None,) * 3 if kind.exact else (_clip_interval_low(estimate), estimate.high, estimate.label)),
            )
        )
    columns = ("name", "role", "stage", "title", "unit", "runs", "steps", "mean", "sd")
    table = from_rows((*columns, "spread", "least", "most", "low", "high", "covers"), rows)
    return table.sort("mean", "name", descending=["mean"])


def _estimate_metric(metric_samples: MetricSamples) -> Estimate | None:
    """Estimate one metric; None for values that no clock could have measured."""
    try:
        return estimate_side(metric_samples.values, level=CONFIDENCE_LEVEL)
    except ValueError:
        return None


def _clip_interval_low(interval: Estimate) -> float | None:
    """Clip the lower end of the interval at 0, since times, counts and bytes cannot be negative."""
    return None if interval.low is None else max(interval.low, 0.0)


def _make_estimate_tables(rows: Frame) -> Iterator[Sheet]:
    """Make the table of the step and its stages, then a table per group of metrics."""
    yield _make_step_time_estimates(rows)
    for group in _METRIC_GROUPS:
        yield _make_unit_estimate_table(rows, *group)


def _make_step_time_estimates(rows: Frame) -> Sheet:
    """Make the table of the step and its stages."""
    times = rows.filter(rows.is_in("name", [STEP_TIME, STAGE_TIME]))
    times = times.take(np.argsort(~times.equals("name", STEP_TIME), kind="stable"))
    title = choose(times.equals("name", STAGE_TIME), times["stage"], times["title"])
    return _make_estimate_table(
        "repeats", "Step and stages", times.with_columns(title=title, stage=None), "ns", first="stage"
    )


def _make_unit_estimate_table(rows: Frame, name: str, title: str, unit: Unit) -> Sheet:
    """Make the table of all other metrics of one unit, metrics of whole steps first."""
    of_unit = rows.filter(~rows.is_in("name", [STEP_TIME, STAGE_TIME]) & rows.equals("unit", unit))
    of_unit = of_unit.take(np.argsort(~of_unit.is_missing("stage"), kind="stable"))
    unit_sheet = _make_estimate_table(f"repeats-{name}", title, of_unit, unit, first="metric")
    return replace(unit_sheet, caption=make_devices_caption(of_unit.values("name")))


def _make_estimate_table(name: str, title: str, rows: Frame, unit: Unit, *, first: str) -> Sheet:
    """Make one table of estimates."""
    headings = (
        Heading("title", first),
        *parse_headings("""
            role | role
            stage | stage
            runs | runs | count
            steps | steps | count | That count, of all runs.
        """),
        Heading("mean", "mean", unit, "Mean over runs of their means."),
        Heading("sd", "sd", unit, "Of the means of runs; of steps with a single run."),
        Heading("spread", "sd / mean", "ratio"),
        Heading("least", "min", unit, "Of single steps."),
        Heading("most", "max", unit, "Of single steps."),
        Heading("low", "95 % CI low", unit, "Lower end of the 95 % confidence interval of the mean, 0 at least."),
        Heading("high", "95 % CI high", unit, "Upper end of the 95 % confidence interval of the mean."),
        Heading("covers", "CI covers"),
    )
    return make_sheet(name, title, headings, rows, max_rows=MAX_ROWS)


def _make_left_out_step_table(left_out: LeftOutSteps) -> Sheet:
    """Make the table of steps that do not count, with the reason."""
    rows = [(step.run, step.step, step.part, step.reason) for step in left_out.steps]
    table = from_rows(("run", "step", "part", "reason"), rows)
    headings = parse_headings("""
        run | run
        step | step | id
        part | capture
        reason | reason
    """)
    return make_sheet("repeats-left-out", "Steps left out", headings, table, max_rows=MAX_ROWS)


def _list_mean_step_metrics(step: MetricSamples | None) -> Iterator[Metric]:
    """List the mean step with its interval, and its spread."""
    estimate = None if step is None else _estimate_metric(step)
    if estimate is None:
        return
    covers = f"95 % CI, {estimate.label}"
    yield Metric(
        "mean_step",
        estimate.mean,
        "ns",
        "lower",
        _clip_interval_low(estimate),
        estimate.high,
        "mean counted step",
        covers,
    )
    if estimate.sd is not None and estimate.mean:
        label = f"standard deviation of {estimate.unit}s"
        yield Metric("step_spread", estimate.sd / estimate.mean, "ratio", "lower", label=label)


ANALYSIS = Analysis(
    id="repeats",
    title="How much do steps and runs differ?",
    reads=(),
    rests_on=("interruptions", "logged", "metrics", "out_of_memory", "snapshot_levels"),
    every_step=True,
    measure=measure,
    judge=judge,
)
