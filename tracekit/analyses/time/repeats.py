"""Spread of every metric over steps and runs: mean, standard deviation and confidence interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.frames import UNIT, sort_by_columns
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.steps.metric_samples import COLUMNS, Key, MetricSamples, collect_metric_samples
from tracekit.job.steps.step_values import list_job_values, list_timed_step_values
from tracekit.job.steps.throughput import compute_work_rates
from tracekit.job.steps.warm_up import LeftOutSteps, find_dropped_steps
from tracekit.model.failed_questions import list_unsound_metrics, select_sound_metrics
from tracekit.model.metrics import METRICS, STAGE_TIME, STEP_TIME, make_devices_caption
from tracekit.model.report import Heading, Metric, Section, Sheet, Unit
from tracekit.model.stats.estimate import Estimate, estimate_side
from tracekit.model.tables.keys import mask_equal, number_frames_alike
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace

MAX_STAGES = 30
"""Maximum number of stages: those with most time, where times are known."""

MAX_ROWS = 200
"""Maximum number of rows of one table: those with the largest means."""

CONFIDENCE_LEVEL = 0.95

STEP_TIMES: Key = (STEP_TIME, None, None)
"""Key of the step times of the whole job."""

SAMPLE_COLUMN_TYPES = dict.fromkeys(COLUMNS, "object") | {"rank": "Int64", "step": "Int64", "value": "Float64"}
"""Types of the columns that recorded metrics and metrics of the job share."""

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
    values = measured.derived(list_timed_step_values).reindex(columns=[*COLUMNS])
    values["run"] = values["run"].where(values["run"].notna(), "")
    all_samples = collect_metric_samples(values)
    step = all_samples.get(STEP_TIMES)
    return step is not None and _has_several_values(find_dropped_steps(all_samples, values, None).filter_samples(step))


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
        yield "runs are taken for repeats of one and the same setting"
    if omitted:
        yield f"{omitted:,} stages that take less time are left out"
    yield from _list_unmeasured_metrics(measured)


NOT_REPEATED = "a single step counts: nothing was repeated"


def _has_one_step_only(measured: Measurements) -> bool:
    """Check whether all values are of one step of one run."""
    values = measured.derived(list_job_values), select_sound_metrics(measured)
    steps = np.concatenate(number_frames_alike(UNIT, *values))
    return int(steps.max(initial=0)) == 0


def select_steady_samples(measured: Measurements) -> tuple[dict[Key, MetricSamples], LeftOutSteps, int]:
    """Select the samples of steps that count: (samples by metric, steps left out, number of stages left out)."""
    frames = [measured.derived(list_job_values).reindex(columns=[*COLUMNS])]
    metrics = select_sound_metrics(measured)
    if len(metrics):
        frames.append(metrics[[*COLUMNS]])
    parts = [_keep_longest_stages(frame[frame["name"].isin(list(METRICS)) | frame["stage"].isna()]) for frame in frames]
    values = pd.concat([frame.astype(SAMPLE_COLUMN_TYPES) for frame, _ in parts], ignore_index=True)
    values["run"] = values["run"].where(values["run"].notna(), "")
    all_samples = collect_metric_samples(values)
    left_out = find_dropped_steps(all_samples, values, None)
    kept_values = {
        key: remaining for key, sampled in all_samples.items() if (remaining := left_out.filter_samples(sampled)).runs
    }
    rates = compute_work_rates(kept_values, _find_common_world_size(measured))
    return {**kept_values, **rates}, left_out, max(omitted for _, omitted in parts)


def _list_unmeasured_metrics(measured: Measurements) -> Iterator[str]:
    """List the metrics that an error of tracekit left unmeasured, in whole or part."""
    titles = [METRICS[name].title for name in METRICS if name in list_unsound_metrics(measured)]
    if titles:
        yield f"an error of tracekit left these unmeasured: {', '.join(titles)}"


def _keep_longest_stages(rows: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Keep the rows of the `MAX_STAGES` longest stages and of no stage: (rows, number of stages left out)."""
    staged = rows[rows["stage"].notna()]
    timed = staged["name"].isin([name for name, kind in METRICS.items() if kind.unit == "ns"])
    size = staged["value"].where(timed, 0).astype("Float64").groupby(staged["stage"]).sum()
    ranked = size.sort_index(key=lambda names: names.astype(str)).sort_values(ascending=False, kind="stable")
    longest_stages = set(ranked.index[:MAX_STAGES])
    inside = rows["stage"].isna() | rows["stage"].isin(longest_stages)
    return rows[inside], len(ranked) - len(longest_stages)


def _find_common_world_size(measured: Measurements) -> int | None:
    """Find the number of ranks that all processes agree on; None if they differ or did not record it."""
    sizes = measured["captures"]["world_size"].dropna().unique()
    return int(sizes[0]) if len(sizes) == 1 and sizes[0] > 0 else None


def _list_metric_estimates(samples_by_key: Mapping[Key, MetricSamples]) -> pd.DataFrame:
    """List the estimate of each metric, one row per metric; metrics that are always 0 are left out."""
    rows = []
    for (name, role, stage), values in samples_by_key.items():
        kind = METRICS[name]
        estimate = _estimate_metric(values)
        if estimate is None or not (estimate.least or estimate.most):
            continue
        rows.append(
            {
                "name": name,
                "role": role,
                "stage": stage,
                "title": kind.title,
                "unit": kind.unit,
                "runs": estimate.runs,
                "steps": estimate.steps,
                "mean": estimate.mean,
                "sd": estimate.sd,
                "spread": estimate.sd / abs(estimate.mean) if estimate.sd is not None and estimate.mean else None,
                "least": estimate.least,
                "most": estimate.most,
                "low": None if kind.exact else _clip_interval_low(estimate),
                "high": None if kind.exact else estimate.high,
                "covers": None if kind.exact else estimate.label,
            }
        )
    columns = ["name", "role", "stage", "title", "unit", "runs", "steps", "mean", "sd", "spread"]
    out = pd.DataFrame(rows, columns=[*columns, "least", "most", "low", "high", "covers"])
    numbers = dict.fromkeys(("mean", "sd", "spread", "least", "most", "low", "high"), "Float64")
    return sort_by_columns(out.astype(numbers), mean=False, name=True).reset_index(drop=True)


def _estimate_metric(metric_samples: MetricSamples) -> Estimate | None:
    """Estimate one metric; None for values that no clock could have measured."""
    try:
        return estimate_side(metric_samples.values, level=CONFIDENCE_LEVEL)
    except ValueError:
        return None


def _clip_interval_low(interval: Estimate) -> float | None:
    """Clip the lower end of the interval at 0, since times, counts and bytes cannot be negative."""
    return None if interval.low is None else max(interval.low, 0.0)


def _make_estimate_tables(rows: pd.DataFrame) -> Iterator[Sheet]:
    """Make the table of the step and its stages, then a table per group of metrics."""
    yield _make_step_time_estimates(rows)
    for group in _METRIC_GROUPS:
        yield _make_unit_estimate_table(rows, *group)


def _make_step_time_estimates(rows: pd.DataFrame) -> Sheet:
    """Make the table of the step and its stages."""
    times = rows[rows["name"].isin([STEP_TIME, STAGE_TIME])]
    times = times.assign(title=times["stage"].where(times["name"] == STAGE_TIME, times["title"]))
    times = times.sort_values("name", key=lambda names: names != STEP_TIME, kind="stable")
    return _make_estimate_table("repeats", "Step and stages", times.assign(stage=None), "ns", first="stage")


def _make_unit_estimate_table(rows: pd.DataFrame, name: str, title: str, unit: Unit) -> Sheet:
    """Make the table of all other metrics of one unit, metrics of whole steps first."""
    is_other = ~rows["name"].isin([STEP_TIME, STAGE_TIME]).to_numpy(np.bool_)
    of_whole, chosen = (rows["stage"].isna().to_numpy(np.bool_), is_other & mask_equal(rows["unit"], unit))
    places = np.flatnonzero(chosen & of_whole), np.flatnonzero(chosen & ~of_whole)
    of_unit = rows.iloc[np.concatenate(places)]
    unit_sheet = _make_estimate_table(f"repeats-{name}", title, of_unit, unit, first="metric")
    return replace(unit_sheet, caption=make_devices_caption(of_unit["name"]))


def _make_estimate_table(name: str, title: str, rows: pd.DataFrame, unit: Unit, *, first: str) -> Sheet:
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
        Heading("sd", "sd", unit, "Of the means of runs; of steps where there is one run."),
        Heading("spread", "sd / mean", "ratio"),
        Heading("least", "min", unit, "Of single steps."),
        Heading("most", "max", unit, "Of single steps."),
        Heading("low", "from", unit, "Lower end of the 95 % interval of the mean, 0 at least."),
        Heading("high", "to", unit, "Upper end of the 95 % interval of the mean."),
        Heading("covers", "interval covers"),
    )
    return make_sheet(name, title, headings, rows, max_rows=MAX_ROWS)


def _make_left_out_step_table(left_out: LeftOutSteps) -> Sheet:
    """Make the table of steps that do not count, with the reason."""
    columns = ["run", "step", "part", "reason"]
    rows = [(step.run, step.step, step.part, step.reason) for step in left_out.steps]
    frame = pd.DataFrame(rows, columns=columns).astype({"step": "Int64"})
    headings = parse_headings("""
        run | run
        step | step | id
        part | capture
        reason | left out because it is
    """)
    return make_sheet("repeats-left-out", "Steps that do not count", headings, frame, max_rows=MAX_ROWS)


def _list_mean_step_metrics(step: MetricSamples | None) -> Iterator[Metric]:
    """List the mean step with its interval, and its spread."""
    estimate = None if step is None else _estimate_metric(step)
    if estimate is None:
        return
    covers = f"95 % interval, {estimate.label}"
    yield Metric(
        "mean_step",
        estimate.mean,
        "ns",
        "lower",
        _clip_interval_low(estimate),
        estimate.high,
        "mean step that counts",
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
