"""Timers and token counts of the driver's log, compared with the stages in the traces (Q1, Q22)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.driver_log import describe_unused_logs, find_logged_steps, get_timer_seconds, map_run_driver_logs
from tracekit.job.frames import divide_or_none, make_run_heading, phrase_run
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.stages.matrix import list_stage_cells, list_units_with_cells
from tracekit.model.report import Heading, Metric, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Coded, Nullable, choose_narrowest, select_rows
from tracekit.model.tables.columns import NAME, STEP
from tracekit.model.tables.frame import Frame, from_rows, max_of
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace

LOGGED = Table(
    "logged",
    "one timer, token count, throughput or load that a driver's log gives for one step",
    {
        **KEYS,
        "ts_ns": Column("Int64", "When it was logged, ns since the Unix epoch; <NA> where the log has no times."),
        "part": Column("int64", "Part of the log, from 0; a restart begins a new one."),
        "step": STEP,
        "name": NAME,
        "value": Column("Float64", "Value as logged."),
        "dur_ns": Column("Int64", "The value of a timer, ns; <NA> for other values."),
    },
)


MAX_LOGGED = 500_000
"""Maximum number of values per log: timers first, then the latest."""

_LOGGED_NAMES = (
    r"timing_s/|timing/|perf/|(?:train/)?global_valid_(?:toks|seqs)|global_seqlen/mean|train/.*tok|"
    r"cpu/|gpu/[0-9]{1,4}/"  # machine metrics of `capture.metrics.MetricsLogger`
)


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the timers, token counts, throughputs and load of a driver's log; empty for any other source."""
    if not trace.has("log_values"):
        return {}
    names = trace.texts("log_values", "name")
    units = np.array([*(get_timer_seconds(name) or 0.0 for name in names.texts), 0.0])
    is_named = np.array([*(re.match(_LOGGED_NAMES, name) is not None for name in names.texts), False])
    rows = np.flatnonzero((is_named | (units > 0))[names.codes])
    is_timer = units[names.codes[rows]] > 0
    if len(rows) > MAX_LOGGED:
        order = np.lexsort((-trace.numbers("log_values", "line")[rows], ~is_timer))[:MAX_LOGGED]
        order.sort()
        rows, is_timer = rows[order], is_timer[order]
    used, codes = np.unique(names.codes[rows], return_inverse=True)
    values = select_rows(trace.nullable("log_values", "value"), rows)
    seconds = np.where(values.missing, np.nan, values.values) * units[names.codes[rows]]
    sound = is_timer & (seconds >= 0) & (seconds < 1e9)
    dur = np.rint(np.where(sound, seconds, 0) * 1e9).astype(np.int64)
    return {
        "logged": {
            "ts_ns": select_rows(trace.nullable("log_values", "ts_ns"), rows),
            "part": trace.numbers("log_values", "part")[rows],
            "step": select_rows(trace.nullable("log_values", "step"), rows),
            "name": Coded(codes.astype(choose_narrowest(len(used))), tuple(names.texts[code] for code in used)),
            "value": values,
            "dur_ns": Nullable(dur, ~sound),
        }
    }


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Report the stages in the driver's log next to the same steps in the traces, and the machine's load."""
    if not map_run_driver_logs(measured):
        return ANALYSIS.skipped("no driver log given or found next to the profile")
    cells, units = list_stage_cells(measured), list_units_with_cells(measured)
    return ANALYSIS.answered(
        metrics=lambda: _compute_token_rate(measured, units),
        sheets=lambda: select_filled_sheets(
            _make_log_comparison_table(measured, cells, units), _make_machine_log_table(measured)
        ),
        caveats=lambda: _list_driver_log_caveats(measured, units),
    )


def _make_log_comparison_table(measured: Measurements, cells: Frame, units: Frame) -> Sheet:
    """Make the table of stages in traces and log: profiled steps, and the other steps of the log."""
    rows: list[tuple[Any, ...]] = []
    cells = cells.filter(cells.equals("state", "measured"))
    for run, log in map_run_driver_logs(measured).items():
        cells_of_run, units_of_run = (frame.filter(frame.equals("run", run)) for frame in (cells, units))
        numbered = find_logged_steps(units_of_run, log)
        for stage in dict.fromkeys([*cells_of_run.values("canonical"), *log.stage_times.values("canonical")]):
            of_stage = cells_of_run.filter(cells_of_run.equals("canonical", stage))
            longest = _select_steps(of_stage, numbered).group_by("step", "part").agg(wall_ns=max_of("wall_ns"))
            rows.append((run, stage, *_average_step_times(longest, log.map_stage_ns(stage), numbered)))
        traced = _select_steps(units_of_run.filter(~units_of_run.equals("origin", "stage")), numbered)
        rows.append((run, "(step)", *_average_step_times(traced, log.step_ns, numbered)))
    times = from_rows(("run", "canonical", "trace_ns", "same_ns", "ratio", "other_ns", "other_steps"), rows)
    times = times.filter(~times.is_missing("same_ns") | ~times.is_missing("other_ns"))
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            canonical | stage
            trace_ns | trace | ns | Longest rank, mean over the steps of the traces.
            same_ns | log, same steps | ns | Mean time by the driver's timer.
            ratio | log / trace | number | Dispatch, waiting and profiler overhead make it more than 1.
            other_ns | log, other steps | ns | Median of the logged steps outside the traces.
            other_steps | other steps | count
        """),
    )
    caption = "The driver's timers include dispatch and, in profiled steps, the cost of starting, stopping and exporting the profiler."
    return make_sheet("log", "Comparison with the driver log", headings, times, caption=caption)


def _select_steps(rows: Frame, numbered: list[int]) -> Frame:
    """Select the rows of these steps; all rows without any."""
    return rows.filter(np.isin(rows.integers("step", missing=-1), numbered)) if numbered else rows


def _average_step_times(
    traced: Frame, logged: Mapping[int, int], numbered: list[int]
) -> tuple[float | None, float | None, float | None, float | None, int]:
    """Average traced and logged times: the cells of a row after the stage."""
    traced_ns = traced.integers("wall_ns")
    trace_ns = float(traced_ns.mean()) if len(traced_ns) else None
    same = [logged[step] for step in numbered if step in logged]
    same_ns = float(np.mean(same)) if same else None
    unmatched = [dur_ns for step, dur_ns in logged.items() if step not in numbered]
    other_ns = float(np.median(unmatched)) if unmatched else None
    return trace_ns, same_ns, divide_or_none(same_ns, trace_ns), other_ns, len(unmatched)


def _compute_token_rate(measured: Measurements, units: Frame) -> list[Metric]:
    """Compute tokens per second over the steps that log and traces share; empty if either is unknown."""
    tokens = seconds = 0.0
    for run, log in map_run_driver_logs(measured).items():
        of_run = units.filter(units.equals("run", run) & units.equals("origin", "file"))
        steps = [step for step in find_logged_steps(of_run, log) if step in log.work["tokens"]]
        both = of_run.filter(np.isin(of_run.integers("step", missing=-1), steps))
        tokens += sum(log.work["tokens"][step] for step in both.values("step"))
        seconds += float(both["wall_ns"].sum()) / 1e9
    if not tokens or not seconds:
        return []
    label = "tokens per second, as logged over the steps in trace"
    return [Metric("tokens_per_s", tokens / seconds, "", "higher", label=label)]


def _list_driver_log_caveats(measured: Measurements, units: Frame) -> list[str]:
    """List the caveats on the comparison."""
    known_logs = map_run_driver_logs(measured)
    caveats = []
    for run, log in known_logs.items():
        of_run = units.filter(units.equals("run", run))
        if len(of_run) and not find_logged_steps(of_run, log):
            caveats.append(f"the traces do not identify their steps in {log.source}{phrase_run(measured, run)}")
    return [*caveats, *describe_unused_logs(measured)]


_NAME = re.compile(r"(?:cpu|gpu/([0-9]{1,4}))/(utilisation_percent|memory_used_bytes)")
_VERLS_MEMORY = "perf/cpu_memory_used_gb"
"""Host memory that verl logs, in units of 2**30 bytes."""

_HEADINGS = (
    Heading("place", "of"),
    Heading("busy", "busy", "ratio", "Mean of the logged values of its steps."),
    Heading("least", "least busy", "ratio", "The step in which it was least busy."),
    Heading("most", "most busy", "ratio"),
    Heading("used_bytes", "memory used", "bytes", "Mean over the steps."),
    Heading("first_bytes", "first", "bytes", "In the first step."),
    Heading("last_bytes", "last", "bytes", "In the last step."),
    Heading("most_bytes", "most", "bytes"),
    Heading("steps", "steps", "count", "Steps with a value in the log."),
)


def _make_machine_log_table(measured: Measurements) -> Sheet:
    """Make the table of utilisation and memory of the host and every GPU of each log.

    Logs have samples at step ends. The activity of a GPU within a step is in the traces.
    """
    rows = []
    for run, log in map_run_driver_logs(measured).items():
        for place, levels in sorted(_map_machine_levels(measured, run, log.source).items()):
            name = "host" if place < 0 else f"GPU {place}"
            rows.append(
                (run, place, name, *_summarize_machine_levels(levels.get("busy", {}), levels.get("memory", {})))
            )
    table = from_rows(("run", "order", *(heading.name for heading in _HEADINGS)), rows)
    caption = "At the end of each step. A GPU counts as busy while any kernel runs, however small; a host by the mean of its cores."
    headings = (*make_run_heading(measured), *_HEADINGS)
    return make_sheet("machine", "The machine, as logged", headings, table.sort("run", "order"), caption=caption)


def _map_machine_levels(measured: Measurements, run: str, source: str) -> dict[int, dict[str, dict[int, float]]]:
    """Map the host (-1) and each GPU in the log of a run to its levels: by quantity, then by step."""
    logged = measured.frame("logged")
    logged = logged.filter(logged.equals("run", run) & logged.equals("source", source) & ~logged.is_missing("step"))
    by_place: dict[int, dict[str, dict[int, float]]] = {}
    for levels in logged.sort("name", "step").group_by("name").frames():
        quantity = _parse_machine_metric(levels.values("name")[0] or "")
        if quantity is None:
            continue
        place, what, scale = quantity
        value = levels.number("value") * scale
        sound = (value >= 0) & (value <= (1.0 if what == "busy" else 2**60))
        by_step = dict(zip(levels.integers("step")[sound].tolist(), value[sound].tolist(), strict=True))
        if by_step:
            by_place.setdefault(place, {}).setdefault(what, by_step)
    return by_place


def _parse_machine_metric(name: str) -> tuple[int, str, float] | None:
    """Parse a metric name: (GPU, -1 for the host; quantity; factor to our unit); None if it is not a machine metric."""
    if name == _VERLS_MEMORY:
        return -1, "memory", 2.0**30
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    place = int(match[1] or -1)
    if match[2].startswith("util"):
        return place, "busy", 0.01
    return place, "memory", 1.0


def _summarize_machine_levels(busy: Mapping[int, float], memory: Mapping[int, float]) -> tuple[float | None, ...]:
    """Summarize the levels by step of the host or a GPU: the cells of its row after the first."""
    shares, sizes = list(busy.values()), list(memory.values())
    return (
        *((float(np.mean(shares)), min(shares), max(shares)) if shares else (None,) * 3),
        *((float(np.mean(sizes)), sizes[0], sizes[-1], max(sizes)) if sizes else (None,) * 4),
        len({*busy, *memory}),
    )


ANALYSIS = Analysis(
    id="driver-log",
    title="Do the driver's timers and the traces agree?",
    reads=("log_values",),
    writes=(LOGGED,),
    measure=measure,
    judge=judge,
)
