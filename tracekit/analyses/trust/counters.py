"""GPU counters sampled by nsys: levels by stage and over time (SM and tensor activity …)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import has_epoch_times, make_run_heading, name_stages, phrase_run
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.model.report import Chart, Heading, Metric, Section
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Coded, Nullable, select_rows, trim_texts
from tracekit.model.tables.columns import NAME, STAGE, STEP, TS
from tracekit.model.tables.frame import Frame, concat, count_rows, divide, max_of, mean_of, sum_of, texts
from tracekit.model.text.patterns import compile_lazily
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.name_filters import look_up_name_codes, mark_wanted_names
from tracekit.process.steps.stage_lookup import select_outer_stages
from tracekit.process.steps.windows import find_steps_and_stages

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
        "max": Column("Float64", "The highest sample."),
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
    samples = _select_frequent_counters(trace)
    levels = _measure_counter_levels(trace, samples)
    return {
        "counter_levels": levels.columns,
        "counter_curve": _measure_counter_curve(samples),
        **_average_counter_metrics(levels),
    }


def _select_frequent_counters(trace: Trace) -> Frame:
    """Select the known samples of the counters with most of them: name, ts_ns and value."""
    names, value = trace.texts("counters", "name"), trace.nullable("counters", "value")
    is_known = ~value.missing & (names.codes >= 0)
    count = np.bincount(names.codes[is_known], minlength=len(names.texts))
    often = np.argsort(-count, kind="stable")[:MAX_COUNTERS]
    rows = (is_known & np.isin(names.codes, often)).nonzero()[0]
    return Frame(
        {
            "name": trim_texts(select_rows(names, rows)),
            "ts_ns": trace.numbers("counters", "ts_ns")[rows],
            "value": value.values[rows],
        },
        len(rows),
    )


def _measure_counter_levels(trace: Trace, samples: Frame) -> Frame:
    """Measure the levels in the recording, in every step, and in the outermost stages of every step."""
    steps, stages = trace.derived(find_steps_and_stages).step_rows, trace.derived(select_outer_stages)
    in_step = steps.or_start_at(samples["ts_ns"])
    step = steps.numbers(in_step)
    stage = look_up_name_codes(stages.stage, stages.row_at(samples["ts_ns"]))
    stage[stage >= MAX_STAGES] = -1
    placed = samples.with_columns(step=np.where(step.missing, -1, step.values), stage=stage)
    levels = concat(
        [
            _sum_counter_samples(samples.with_columns(step=-1, stage=-1), "capture"),
            _sum_counter_samples(placed.with_columns(stage=-1).filter(in_step >= 0), "step"),
            _sum_counter_samples(placed.filter(stage >= 0), "stage"),
        ]
    )
    return levels.with_columns(
        step=Nullable(levels["step"], levels["step"] < 0),
        stage=trim_texts(Coded(levels["stage"], stages.stage.texts)),
    )


def _sum_counter_samples(samples: Frame, window: str) -> Frame:
    """Sum these samples by step, stage and counter."""
    sums = samples.group_by("step", "stage", "name").agg(
        sample_count=count_rows(),
        sum=sum_of("value"),
        max=max_of("value"),
        zero_count=sum_of(samples["value"] == 0),
    )
    return sums.sort("step", "stage", "name").with_columns(window=window)


def _measure_counter_curve(samples: Frame) -> Mapping[str, Any]:
    """Average the counters to draw over at most `CURVE_POINTS` intervals of equal length."""
    drawn = samples.filter(mark_wanted_names(samples["name"], classify_counter))
    if not len(drawn):
        return {}
    ts = drawn["ts_ns"]
    first = int(ts.min())
    width = max(-(-(int(ts.max()) - first + 1) // CURVE_POINTS), 1)
    stretches = drawn.with_columns(stretch=(ts - first) // width).group_by("name", "stretch")
    means = stretches.agg(mean=mean_of("value")).sort("name", "stretch")
    return {
        "name": trim_texts(means["name"]),
        "ts_ns": first + means["stretch"] * width,
        "mean": means["mean"],
    }


def _average_counter_metrics(levels: Frame) -> Mapping[str, Mapping[str, Any]]:
    """Average SM and tensor activity by step as `metrics` rows, as a ratio, for compare and gates."""
    known = _select_known_counters(levels.filter(levels.equals("window", "step")))
    counted = known.filter(known.is_in("known", ANALYSIS.metrics))
    if not len(counted):
        return {}
    by_step = counted.group_by("step", "known").agg(sum=sum_of("sum"), sample_count=sum_of("sample_count"))
    sums = by_step.sort("step", "known")
    return {
        "metrics": {
            "step": sums["step"],
            "name": trim_texts(sums["known"]),
            "value": sums["sum"] / sums["sample_count"] / 100,
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
            + ("" if one_clock else " Clocks cannot be compared: every line starts at its own zero."),
            omitted=sum(len(line) for line in lines[CHART_SERIES:]),
        )


def _label_counter_line(line: Frame, *, several: bool) -> str:
    """Label a line with its run where there are several, its host and its counter."""
    names = ("run", "host", "name") if several else ("host", "name")
    parts = next(line.rows(*names)).values()
    return " ".join(part for part in parts if part is not None)


ANALYSIS = Analysis(
    id="counters",
    title="What did the GPU hardware counters measure?",
    reads=("counters", "host_ops"),
    writes=(COUNTER_LEVELS, COUNTER_CURVE, "metrics"),
    metrics=("sm_active", "tensor_active"),
    measure=measure,
    judge=judge,
    whole_recording=True,
)
