"""GPU counters sampled by nsys: levels by stage and over time (SM and tensor activity …)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.analyses import Analysis
from tracekit.job.frames import has_epoch_times, make_run_heading, name_stages, phrase_run
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.model.report import Chart, Heading, Metric, Section
from tracekit.model.system.lazy_pandas import pd
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import get_frame_arrays
from tracekit.model.tables.columns import NAME, STAGE, STEP, TS
from tracekit.model.tables.frame import Frame, divide, max_of, sum_of, texts
from tracekit.model.text.patterns import compile_lazily
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.steps.stage_lookup import find_window_row_at, make_outer_stage_frame
from tracekit.process.steps.windows import find_step_row_at, find_steps_and_stages

COUNTER_LEVELS = Table(
    "counter_levels",
    "one counter in the whole recording, in one step, or in all outermost stages of one name in a step",
    {
        **KEYS,
        "window": Column("category", "capture | step | stage.", ("capture", "step", "stage")),
        "step": STEP,
        "stage": STAGE,
        "name": NAME,
        "sample_count": Column("int64", "Samples taken in it."),
        "sum": Column("Float64", "Their sum, in the counter's own unit."),
        "max": Column("Float64", "The highest of them."),
        "zero_count": Column("int64", "Samples that are 0."),
    },
)

COUNTER_CURVE = Table(
    "counter_curve",
    "one counter in one stretch of time",
    {
        **KEYS,
        "name": NAME,
        "ts_ns": TS,
        "mean": Column("Float64", "Mean of the samples in it, in the counter's own unit."),
    },
)


MAX_COUNTERS = 500
"""Maximum number of counters per source: those with most samples."""

MAX_STAGES = 2_000
"""Maximum number of stage names per source: the first ones."""

CURVE_POINTS, CHART_SERIES = 300, 12

_KNOWN_COUNTERS = (
    ("sm_active", compile_lazily(r"\bSMs? Active\b", re.IGNORECASE)),
    ("tensor_active", compile_lazily(r"\bTensor (?:Core )?(?:Pipe )?Active\b", re.IGNORECASE)),
    ("dram_read", compile_lazily(r"\bDRAM (?:Read )?Bandwidth\b|\bDRAM Read\b", re.IGNORECASE)),
    ("sm_issue", compile_lazily(r"\bSM Issue\b", re.IGNORECASE)),
)
"""Counters of GPU utilization by pattern of their name, in percent."""


def classify_counter(name: str) -> str | None:
    """Classify a counter as one of those that are drawn and compared; None for others.

    >>> classify_counter("GPU 0 SMs Active [Throughput %]"), classify_counter("GPU 1 PCIe RX Throughput [Throughput %]")
    ('sm_active', None)
    """
    return next((key for key, pattern in _KNOWN_COUNTERS if pattern.search(name)), None)


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the count, sum, maximum and zeros of every counter's samples by window, and its curve."""
    if not trace.has("counters"):
        return {}
    rows = trace["counters"]
    rows = rows[rows["value"].notna().to_numpy()]
    codes = rows["name"].cat.codes.to_numpy()
    often = np.argsort(-np.bincount(codes[codes >= 0], minlength=1), kind="stable")[:MAX_COUNTERS]
    rows = rows[np.isin(codes, often)]
    frame = pd.DataFrame(
        {
            "name": rows["name"].to_numpy(),
            "ts_ns": rows["ts_ns"].to_numpy(),
            "value": rows["value"].to_numpy(np.float64),
        }
    )
    frame["name"] = pd.Categorical(frame["name"]).remove_unused_categories()
    levels = _measure_counter_levels(trace, frame)
    return {
        "counter_levels": get_frame_arrays(levels),
        "counter_curve": _measure_counter_curve(frame),
        **_average_counter_metrics(levels),
    }


def _measure_counter_levels(trace: Trace, rows: pd.DataFrame) -> pd.DataFrame:
    """Measure the levels in the recording, in every step, and in the outermost stages of every step."""
    ts = rows["ts_ns"].to_numpy()
    steps, stages = (trace.derived(find_steps_and_stages).steps, trace.derived(make_outer_stage_frame))
    in_step, in_stage = (find_step_row_at(steps, ts) if len(steps) else ts * 0 - 1, find_window_row_at(stages, ts))
    number = np.append(steps["step"].to_numpy(np.int64, na_value=-1), -1)[in_step]
    name = np.append(stages["stage"].cat.codes.to_numpy().astype(np.int64), -1)[in_stage]
    name[name >= MAX_STAGES] = -1
    parts = [
        ("capture", np.ones(len(ts), np.bool_), number * 0 - 1, name * 0 - 1),
        ("step", in_step >= 0, number, name * 0 - 1),
        ("stage", name >= 0, number, name),
    ]
    names = stages["stage"].cat.categories
    levels = [
        _sum_counter_samples(rows[inside], step[inside], stage[inside], names, what)
        for what, inside, step, stage in parts
    ]
    return pd.concat(levels, ignore_index=True)


def _sum_counter_samples(
    rows: pd.DataFrame, step: npt.NDArray[np.int64], stage: npt.NDArray[np.int64], names: Any, window: str
) -> pd.DataFrame:
    """Sum these samples by step, stage and counter."""
    keyed = rows.assign(step=step, stage=stage, zero=rows["value"].eq(0))
    grouped = keyed.groupby(["step", "stage", "name"], observed=True, sort=True)
    sums = grouped.agg(
        sample_count=("value", "size"), sum=("value", "sum"), max=("value", "max"), zero_count=("zero", "sum")
    ).reset_index()
    step_numbers = sums["step"].to_numpy(np.int64)
    return pd.DataFrame(
        {
            "window": np.full(len(sums), window, object),
            "step": pd.arrays.IntegerArray(step_numbers, step_numbers < 0),
            "stage": np.array([*names, None], object)[sums["stage"].to_numpy()],
            "name": sums["name"].astype(object),
            "sample_count": sums["sample_count"].astype(np.int64),
            "sum": sums["sum"].astype("Float64"),
            "max": sums["max"].astype("Float64"),
            "zero_count": sums["zero_count"].astype(np.int64),
        }
    )


def _measure_counter_curve(rows: pd.DataFrame) -> Mapping[str, Any]:
    """Average the counters to draw over at most `CURVE_POINTS` intervals of equal length."""
    drawn = [str(n) for n in rows["name"].cat.categories if classify_counter(str(n))]
    drawn_rows = rows[rows["name"].isin(drawn)]
    if not len(drawn_rows):
        return {}
    ts = drawn_rows["ts_ns"].to_numpy()
    first = int(ts.min())
    width = max(-(-(int(ts.max()) - first + 1) // CURVE_POINTS), 1)
    means = (
        drawn_rows.assign(stretch=(ts - first) // width, name=drawn_rows["name"].astype(object))
        .groupby(["name", "stretch"], sort=True)["value"]
        .mean()
        .reset_index()
    )
    return {
        "name": means["name"].to_numpy(object),
        "ts_ns": first + means["stretch"].to_numpy(np.int64) * width,
        "mean": means["value"].astype("Float64").array,
    }


def _average_counter_metrics(levels: pd.DataFrame) -> Mapping[str, Mapping[str, Any]]:
    """Average SM and tensor activity by step as `metrics` rows, as a ratio, for compare and gates."""
    steps = levels[levels["window"].eq("step")]
    metric_names = pd.Series([classify_counter(name) for name in steps["name"]], index=steps.index, dtype=object)
    counted_steps = steps[metric_names.isin(ANALYSIS.metrics)].assign(metric=metric_names)
    if not len(counted_steps):
        return {}
    sums = counted_steps.groupby(["step", "metric"], dropna=False)[["sum", "sample_count"]].sum().reset_index()
    return {
        "metrics": {
            "step": sums["step"].astype("Int64").array,
            "name": sums["metric"].to_numpy(object),
            "value": (sums["sum"] / sums["sample_count"] / 100).astype("Float64").array,
        }
    }


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:  # noqa: ARG001
    """Report every counter over the recording and by stage, with charts of GPU utilization.

    Only nsys samples counters; None without an nsys source.
    """
    if not any(source.tool == "nsys" for source in measured.sources):
        return None
    if not measured.row_count("counter_levels"):
        return ANALYSIS.skipped("no counter was sampled (nsys profile --gpu-metrics-devices=all records them)")
    levels = measured.frame("counter_levels")
    of_capture = _pool_counter_levels(levels.filter(levels.equals("window", "capture")), "run", "name")
    staged = _select_known_counters(levels.filter(levels.equals("window", "stage")))
    staged = staged.with_columns(canonical=name_stages(staged, any_range=True))
    by_stage = _pool_counter_levels(staged, "run", "canonical", "name")
    sheets = [make_sheet("counters", "Counters", _make_counter_headings(measured), of_capture)]
    if len(by_stage):
        headings = _make_counter_headings(measured, Heading("canonical", "stage"))
        sheets.append(make_sheet("counters_by_stage", "Counters by stage", headings, by_stage))
    return ANALYSIS.answered(
        metrics=lambda: _list_counter_metrics(measured, of_capture),
        sheets=sheets,
        charts=lambda: _draw_counter_curves(measured),
    )


def _make_counter_headings(measured: Measurements, *more: Heading) -> tuple[Heading, ...]:
    """Make the headings of the tables of counters."""
    return (
        *make_run_heading(measured),
        *more,
        *parse_headings("""
            name | counter
            mean | mean | number | Mean of its samples, in the counter's own unit.
            max | highest | number
            zero_ratio | at 0 | ratio | Samples that are 0, of all.
            sample_count | samples | count
        """),
    )


def _pool_counter_levels(levels: Frame, *by: str) -> Frame:
    """Pool the levels by these keys; every sample of every process has the same weight."""
    pooled = levels.group_by(*by).agg(
        sample_count=sum_of("sample_count"), sum=sum_of("sum"), zero_count=sum_of("zero_count"), max=max_of("max")
    )
    mean, zero_ratio = (divide(pooled[name], pooled["sample_count"]) for name in ("sum", "zero_count"))
    return pooled.with_columns(mean=mean, zero_ratio=zero_ratio).sort(*by)


def _list_counter_metrics(measured: Measurements, levels: Frame) -> Iterator[Metric]:
    """List the mean of each known counter over all GPUs of a run."""
    levels = _select_known_counters(levels)
    by_run = levels.filter(levels.is_in("known", ANALYSIS.metrics)).group_by("run", "known")
    sums = by_run.agg(sum=sum_of("sum"), sample_count=sum_of("sample_count"))
    for row in sums.sort("run", "known").rows():
        share = row["sum"] / row["sample_count"] / 100
        label = row["known"].replace("_", " ") + phrase_run(measured, row["run"])
        yield Metric(row["known"], share, "ratio", "higher", label=label)


def _select_known_counters(rows: Frame) -> Frame:
    """Select the counters that are drawn and compared, with their kind as `known`."""
    rows = rows.with_columns(known=texts([classify_counter(name or "") for name in rows.values("name")]))
    return rows.filter(~rows.is_missing("known"))


def _draw_counter_curves(measured: Measurements) -> Iterator[Chart]:
    """Draw each known counter over time, one line per GPU."""
    curve = measured.frame("counter_curve")
    one_clock = has_epoch_times(measured, curve)
    several = bool(make_run_heading(measured))
    for of_kind in _select_known_counters(curve).group_by("known").frames():
        kind = of_kind.values("known")[0]
        lines = list(of_kind.sort("run", "host", "name").group_by("run", "host", "name").frames())
        marks: list[tuple[int | float | None, ...]] = []
        for number, line in enumerate(lines[:CHART_SERIES]):
            start = int((of_kind if one_clock else line)["ts_ns"].min())
            since_start = (line["ts_ns"] - start).tolist()
            marks += [(number, ts, value) for ts, value in zip(since_start, line.values("mean"), strict=True)]
        yield Chart(
            f"counter-{kind}",
            f"{kind.replace('_', ' ')} over time",
            "lines",
            tuple(marks),
            tuple(_label_counter_line(line, several=several) for line in lines[:CHART_SERIES]),
            unit="",
            caption="Mean of each stretch of time, in the counter's own unit."
            + ("" if one_clock else " Clocks cannot be compared: every line begins at its own zero."),
            omitted=sum(len(line) for line in lines[CHART_SERIES:]),
        )


def _label_counter_line(line: Frame, *, several: bool) -> str:
    """Label a line with its run where there are several, its host and its counter."""
    names = ("run", "host", "name") if several else ("host", "name")
    parts = next(line.rows(*names)).values()
    return " ".join(part for part in parts if part is not None)


ANALYSIS = Analysis(
    id="counters",
    title="What did the GPUs' own counters say?",
    reads=("counters", "host_ops"),
    writes=(COUNTER_LEVELS, COUNTER_CURVE, "metrics"),
    metrics=("sm_active", "tensor_active"),
    measure=measure,
    judge=judge,
    whole_recording=True,
)
