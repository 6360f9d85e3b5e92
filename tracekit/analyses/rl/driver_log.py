"""Timers and token counts of the driver's log, compared with the stages in the traces (Q1, Q22)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.driver_log import TIMER, map_run_driver_logs, match_logged_steps
from tracekit.job.frames import find_equal_rows, make_run_heading, phrase_run
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.stages.matrix import build_stage_cells, list_timed_units
from tracekit.model.report import Heading, Metric, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.columns import NAME, STEP
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace

LOGGED = Table(
    "logged",
    "one timer, token count, throughput or load that a driver's log gives for one step",
    {
        **KEYS,
        "step": STEP,
        "name": NAME,
        "value": Column("Float64", "Value as logged."),
        "dur_ns": Column("Int64", "The value of a timer, ns; <NA> for what is no timer."),
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
    rows = trace["log_values"]
    names = rows["name"].cat.categories.to_series()
    is_kept = names.str.match(_LOGGED_NAMES).to_numpy(np.bool_)
    timer = np.array([*(TIMER.match(n) is not None or n == "perf/time_per_step" for n in names), False])
    codes = rows["name"].cat.codes.to_numpy()
    rows = rows[np.array([*is_kept, False])[codes]]
    is_timer = timer[rows["name"].cat.codes.to_numpy()]
    if len(rows) > MAX_LOGGED:
        order = np.lexsort((-rows["line"].to_numpy(), ~is_timer))[:MAX_LOGGED]
        order.sort()
        rows, is_timer = rows.iloc[order], is_timer[order]
    value = rows["value"].to_numpy(np.float64, na_value=np.nan)
    sound = is_timer & (value >= 0) & (value < 1e9)
    dur = np.rint(np.where(sound, value, 0) * 1e9).astype(np.int64)
    return {
        "logged": {
            "step": rows["step"].array,
            "name": rows["name"].array.remove_unused_categories(),
            "value": rows["value"].array,
            "dur_ns": pd.arrays.IntegerArray(dur, ~sound),
        }
    }


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Report the stages in the driver's log next to the same steps in the traces, and the machine's load."""
    known_logs = map_run_driver_logs(measured)
    if not known_logs:
        return ANALYSIS.skipped("no driver's log was given or found beside the profile")
    all_cells, walls = build_stage_cells(measured), list_timed_units(measured)
    return ANALYSIS.answered(
        metrics=lambda: _compute_token_rate(measured, walls),
        sheets=lambda: select_filled_sheets(
            *filter(None, (_make_log_comparison_table(measured, all_cells, walls), make_machine_log_sheet(measured)))
        ),
        caveats=lambda: _list_driver_log_caveats(measured, walls),
    )


def _make_log_comparison_table(measured: Measurements, all_cells: pd.DataFrame, walls: pd.DataFrame) -> Sheet:
    """Make the table of stages in traces and log: profiled steps, and the other steps of the log."""
    rows = []
    for run, log in map_run_driver_logs(measured).items():
        of_run = walls[find_equal_rows(walls["run"], run)]
        numbered = match_logged_steps(of_run, log)
        cells_of = all_cells[find_equal_rows(all_cells["run"], run) & (all_cells["state"] == "measured")]
        for stage in dict.fromkeys([*cells_of["canonical"], *log.stages["canonical"]]):
            times = log.get_stage_times(stage)
            stage_cells = cells_of[cells_of["canonical"] == stage]
            if numbered:
                stage_cells = stage_cells[stage_cells["step"].isin(numbered)]
            longest = stage_cells.groupby(["step", "part"], dropna=False)["wall_ns"].max()
            same, unmatched = times[times.index.isin(numbered)], times[~times.index.isin(numbered)]
            rows.append((run, stage, longest.mean(), same.mean(), unmatched.median(), len(unmatched)))
        step = log.steps
        same, unmatched = step[step.index.isin(numbered)], step[~step.index.isin(numbered)]
        in_trace = of_run[of_run["step"].isin(numbered)] if numbered else of_run
        in_trace = in_trace[in_trace["origin"] != "stage"]
        rows.append((run, "(step)", in_trace["wall_ns"].mean(), same.mean(), unmatched.median(), len(unmatched)))
    names = ("run", "canonical", "trace_ns", "same_ns", "other_ns", "other_steps")
    out = pd.DataFrame(rows, columns=list(names))
    out = out.astype(dict.fromkeys(("trace_ns", "same_ns", "other_ns"), "Float64"))
    out = out[out["same_ns"].notna() | out["other_ns"].notna()]
    out["ratio"] = (out["same_ns"] / out["trace_ns"].where(out["trace_ns"] > 0)).astype("Float64")
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            canonical | stage
            trace_ns | trace | ns | Longest rank, mean over the steps of the traces.
            same_ns | log, same steps | ns | What the driver timed, mean.
            ratio | log / trace | number | Dispatch, waiting and what the profiler adds make it more than 1.
            other_ns | log, other steps | ns | Median of the logged steps that are not known to be in the traces.
            other_steps | other steps | count
        """),
    )
    caption = "The driver's timers include dispatch and, in profiled steps, what starting, stopping and exporting the profiler costs."
    return make_sheet("log", "Beside the driver's log", headings, out, caption=caption)


def _compute_token_rate(measured: Measurements, walls: pd.DataFrame) -> list[Metric]:
    """Compute tokens per second over the steps that log and traces share; empty if either is unknown."""
    tokens = seconds = 0.0
    for run, log in map_run_driver_logs(measured).items():
        of_run = walls[find_equal_rows(walls["run"], run) & (walls["origin"] == "file")]
        counts = log.counts["tokens"]
        both = of_run[of_run["step"].isin(set(match_logged_steps(of_run, log)) & set(counts.index))]
        tokens += float(counts.reindex(both["step"].astype(int)).sum())
        seconds += float(both["wall_ns"].sum()) / 1e9
    if not tokens or not seconds:
        return []
    label = "tokens per second, as logged over the steps in trace"
    return [Metric("tokens_per_s", tokens / seconds, "", "higher", label=label)]


def _list_driver_log_caveats(measured: Measurements, walls: pd.DataFrame) -> list[str]:
    """List the caveats on the comparison."""
    known_logs = map_run_driver_logs(measured)
    caveats = []
    for run, log in known_logs.items():
        of_run = walls[find_equal_rows(walls["run"], run)]
        if len(of_run) and not match_logged_steps(of_run, log):
            caveats.append(f"the traces do not say which steps of {log.source} they are{phrase_run(measured, run)}")
    used = {log.source for log in known_logs.values()}
    unused = set(measured["logged"]["source"].dropna()) - used
    if unused:
        caveats.append(f"{len(unused)} more logs of the same runs were not used")
    return caveats


_NAME = re.compile(r"(?:cpu|gpu/([0-9]{1,4}))/(utilisation_percent|memory_used_bytes)")
_VERLS_MEMORY = "perf/cpu_memory_used_gb"
"""Host memory that verl logs, in units of 2**30 bytes."""

_HEADINGS = (
    Heading("place", "of"),
    Heading("busy", "busy", "ratio", "Mean of what the log says of its steps."),
    Heading("least", "least busy", "ratio", "The step in which it was least busy."),
    Heading("most", "most busy", "ratio"),
    Heading("used_bytes", "memory used", "bytes", "Mean over the steps."),
    Heading("first_bytes", "first", "bytes", "In the first of these steps."),
    Heading("last_bytes", "last", "bytes", "In the last of these steps."),
    Heading("most_bytes", "most", "bytes"),
    Heading("steps", "steps", "count", "Steps of which the log says any of it."),
)


def make_machine_log_sheet(measured: Measurements) -> Sheet | None:
    """Make the table of utilisation and memory of the host and every GPU of each log; None without such metrics.

    Logs have samples at step ends. The activity of a GPU within a step is in the traces.
    """
    rows = [
        row
        for run, log in map_run_driver_logs(measured).items()
        for row in _list_machine_log_rows(measured, run, log.source)
    ]
    if not rows:
        return None
    frame = pd.DataFrame(rows).sort_values(["run", "order"], kind="stable")
    caption = "At the end of each step. A GPU counts as busy while any kernel runs, however small; a host by the mean of its cores."
    headings = (*make_run_heading(measured), *_HEADINGS)
    return make_sheet("machine", "The machine, as logged", headings, frame.drop(columns="order"), caption=caption)


def _list_machine_log_rows(measured: Measurements, run: object, source: str) -> list[dict[str, object]]:
    """List a row for the host and for each GPU in the log of a run."""
    rows = measured["logged"]
    rows = rows[find_equal_rows(rows["run"], run) & (rows["source"] == source) & rows["step"].notna()]
    by_place: dict[int, dict[str, pd.Series[float]]] = {}
    for name, levels in rows.groupby("name", sort=True):
        quantity = _parse_machine_metric(str(name))
        if quantity is None:
            continue
        place, what, scale = quantity
        value = levels.set_index("step")["value"].astype("float64") * scale
        sound = (value >= 0) & (value <= (1.0 if what == "busy" else 2**60))
        by_step = value[sound].groupby(level=0).last()
        if len(by_step):
            by_place.setdefault(place, {}).setdefault(what, by_step)
    return [_make_machine_log_row(run, place, parts) for place, parts in sorted(by_place.items())]


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


def _make_machine_log_row(run: object, place: int, parts: Mapping[str, pd.Series[float]]) -> dict[str, object]:
    """Make the row of the host (-1) or a GPU, reduced over its steps."""
    nothing: pd.Series[Any] = pd.Series([], dtype="float64")
    busy, memory = parts.get("busy", nothing), parts.get("memory", nothing)
    row: dict[str, object] = {"run": run, "order": place, "place": "host" if place < 0 else f"GPU {place}"}
    row |= dict.fromkeys(("busy", "least", "most", "used_bytes", "first_bytes", "last_bytes", "most_bytes"))
    if len(busy):
        row |= {"busy": busy.mean(), "least": busy.min(), "most": busy.max()}
    if len(memory):
        row |= {"used_bytes": memory.mean(), "most_bytes": memory.max()}
        row |= {"first_bytes": memory.iloc[0], "last_bytes": memory.iloc[-1]}
    return row | {"steps": len(busy.index.union(memory.index))}


ANALYSIS = Analysis(
    id="driver-log",
    title="What did the driver time, and do the traces agree?",
    reads=("log_values",),
    writes=(LOGGED,),
    measure=measure,
    judge=judge,
)
