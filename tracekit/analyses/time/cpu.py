"""Host time in traces without GPU rows: activity by stage, threads, Python functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import grouped, label_headings, ordered, run_heading
from tracekit.job.idle_time.causes import idle_time
from tracekit.job.idle_time.cpu_time import cpu_windows
from tracekit.job.tables import as_headings, sheet, with_rows
from tracekit.model.report import Heading, Metric, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.columns import NAME, STAGE, STEP, TID, WINDOW
from tracekit.model.tables.slots import CPU_ACTIVITIES, CPU_ACTIVITY_TITLES
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.idle_time.cpu_activity import HOST_TABLES, CpuTime, frame_times, thread_times

CPU_TIME = Table(
    "cpu_time",
    "time of a process without a device in one window, by activity: over activities it is the window",
    {
        **KEYS,
        "window": WINDOW,
        "step": STEP,
        "stage": STAGE,
        "activity": Column("category", "What the host does at an instant.", CPU_ACTIVITIES),
        "time_ns": Column("int64", "Time of that activity in the windows of this step and name."),
    },
)

CPU_THREADS = Table(
    "cpu_threads",
    "a thread of a process without a device",
    {
        **KEYS,
        "tid": TID,
        "name": Column("category", "Thread name, where recorded."),
        "count": Column("int64", "Ops and runtime calls on it."),
        "op_ns": Column("int64", "Time in at least one of them."),
        "window_ns": Column("int64", "From the first to the last activity of the process."),
    },
)

CPU_FRAMES = Table(
    "cpu_frames",
    "a Python function of a process without a device",
    {
        **KEYS,
        "name": NAME,
        "count": Column("int64", "Calls."),
        "self_ns": Column(
            "int64", "Time outside the Python functions that it calls, ops included."
        ),
        "total_ns": Column("int64", "Wall time on its threads; recursion counts once."),
    },
)


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure activity, threads and Python functions of a trace without device rows."""
    is_recorded = any(len(trace.numbers(table, "ts_ns")) for table in HOST_TABLES)
    if trace.has("device_ops") or not is_recorded:
        return {}
    tables = {
        "cpu_time": CpuTime(idle_time().silence_ns)(trace),
        "cpu_threads": thread_times(trace),
        "cpu_frames": frame_times(trace),
    }
    return {name: columns for name, columns in tables.items() if columns}


def judge(measured: Measurements, _: Thresholds) -> Section | None:
    """Report the time of processes without GPU rows; None if every process has GPU rows."""
    if not measured.row_count("cpu_time"):
        return None
    return ANALYSIS.answered(
        metrics=lambda: _metrics(measured),
        sheets=lambda: with_rows(
            _activity_sheet(measured), _thread_sheet(measured), _frame_sheet(measured)
        ),
    )


def _metrics(measured: Measurements) -> Iterator[Metric]:
    """List the share of the steps in each activity."""
    rows = cpu_windows(measured)
    total = int(rows["time_ns"].sum())
    if not total:
        return
    for activity in CPU_ACTIVITIES:
        time_ns = int(rows.loc[rows["activity"] == activity, "time_ns"].sum())
        if time_ns:
            title = CPU_ACTIVITY_TITLES[activity][0]
            yield evidence(f"{activity}_ratio", time_ns / total, title, better="neither")


def _activity_sheet(measured: Measurements) -> Sheet:
    """Make the table of stages with the share of each activity, longest first."""
    rows = cpu_windows(measured)
    keys = ["run", "role", "canonical"]
    stages = grouped(rows, keys, window_ns=("time_ns", "sum"))
    for activity in CPU_ACTIVITIES:
        of_activity = grouped(rows[rows["activity"] == activity], keys, part=("time_ns", "sum"))
        merged = stages[keys].merge(of_activity, on=keys, how="left")["part"]
        stages[activity] = merged.fillna(0).to_numpy(np.float64) / stages["window_ns"].clip(lower=1)
    stages["stage"] = stages["canonical"].where(stages["canonical"].notna(), "(outside any stage)")
    shown = [a for a in CPU_ACTIVITIES if stages[a].sum()]
    headings = (
        *label_headings(measured),
        Heading("stage", "stage"),
        Heading("window_ns", "wall Σ", "ns", "Summed over ranks and steps."),
        *(Heading(a, CPU_ACTIVITY_TITLES[a][0], "ratio", CPU_ACTIVITY_TITLES[a][1]) for a in shown),
    )
    table = ordered(stages, window_ns=False, stage=True)
    caption = "Each instant counts once, for the first column that applies."
    return sheet("cpu_time", "Host time by activity", headings, table, caption=caption)


def _thread_sheet(measured: Measurements) -> Sheet:
    """Make the table of threads by their time in ops."""
    keys = ["run", "role", "rank", "pid", "tid", "name"]
    sums = {name: (name, "sum") for name in ("op_ns", "window_ns", "count")}
    rows = grouped(measured["cpu_threads"], keys, **sums)
    rows["busy_ratio"] = rows["op_ns"] / rows["window_ns"].clip(lower=1)
    headings = (
        *label_headings(measured),
        *as_headings("""
            rank | rank | id
            tid | thread | id
            name | name
            op_ns | in ops | ns | Time in at least one op or runtime call.
            busy_ratio | utilization | ratio | Of the time from the first to the last activity of the process.
            count | ops | count
        """),
    )
    table = ordered(rows, op_ns=False, rank=True, tid=True)
    return sheet("cpu_threads", "Threads by time in ops", headings, table)


def _frame_sheet(measured: Measurements) -> Sheet:
    """Make the table of Python functions by self time, over all processes of a run."""
    if not measured.row_count("cpu_frames"):
        return sheet("cpu_frames", "", (), pd.DataFrame())
    rows = measured["cpu_frames"]
    sums = {name: (name, "sum") for name in ("count", "self_ns", "total_ns")}
    pooled = grouped(rows, ["run", "name"], **sums)
    headings = (
        *run_heading(measured),
        *as_headings("""
            name | Python function
            self_ns | self | ns | Outside the Python functions that it calls; the ops that it calls are included.
            total_ns | total | ns | Recursion counted once.
            count | calls | count
        """),
    )
    table = ordered(pooled, self_ns=False, name=True)
    return sheet("cpu_frames", "Python functions by their own time", headings, table)


ANALYSIS = Analysis(
    id="cpu",
    title="What did the host do?",
    reads=HOST_TABLES,
    writes=(CPU_TIME, CPU_THREADS, CPU_FRAMES),
    measure=measure,
    judge=judge,
)
