"""Host time in traces without GPU rows: activity by stage, threads, Python functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import make_label_headings, make_run_heading
from tracekit.job.idle_time.causes import make_idle_time_measurement
from tracekit.job.idle_time.cpu_time import sum_cpu_time_by_stage
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.model.report import Heading, Metric, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.columns import NAME, STAGE, STEP, TID, WINDOW
from tracekit.model.tables.frame import sum_of, texts
from tracekit.model.tables.slots import CPU_ACTIVITIES, CPU_ACTIVITY_TITLES
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.idle_time.cpu_activity import HOST_TABLES, CpuTime, measure_frame_times, measure_thread_times

CPU_TIME = Table(
    "cpu_time",
    "time of a process without a device in one window, by activity: over activities it is the window",
    {
        **KEYS,
        "window": WINDOW,
        "step": STEP,
        "stage": STAGE,
        "activity": Column("category", "Activity of the host at an instant.", CPU_ACTIVITIES),
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
        "self_ns": Column("int64", "Time outside the Python functions that it calls, ops included."),
        "total_ns": Column("int64", "Wall time on its threads; recursion counts once."),
    },
)


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure activity, threads and Python functions of a trace without device rows."""
    is_recorded = any(len(trace.numbers(table, "ts_ns")) for table in HOST_TABLES)
    if trace.has("device_ops") or not is_recorded:
        return {}
    tables = {
        "cpu_time": CpuTime(make_idle_time_measurement().silence_ns)(trace),
        "cpu_threads": measure_thread_times(trace),
        "cpu_frames": measure_frame_times(trace),
    }
    return {name: columns for name, columns in tables.items() if columns}


def judge(measured: Measurements, _: Thresholds) -> Section | None:
    """Report the time of processes without GPU rows; None if every process has GPU rows."""
    if not measured.row_count("cpu_time"):
        return None
    return ANALYSIS.answered(
        metrics=lambda: _list_cpu_activity_metrics(measured),
        sheets=lambda: select_filled_sheets(
            _make_cpu_activity_table(measured), _make_cpu_thread_table(measured), _make_python_function_table(measured)
        ),
    )


def _list_cpu_activity_metrics(measured: Measurements) -> Iterator[Metric]:
    """List the share of the steps in each activity."""
    rows = sum_cpu_time_by_stage(measured)
    total = int(rows["time_ns"].sum())
    for activity in CPU_ACTIVITIES if total else ():
        time_ns = int(rows["time_ns"][rows.equals("activity", activity)].sum())
        if time_ns:
            title = CPU_ACTIVITY_TITLES[activity][0]
            yield make_evidence_metric(f"{activity}_ratio", time_ns / total, title, better="neither")


def _make_cpu_activity_table(measured: Measurements) -> Sheet:
    """Make the table of stages with the share of each activity, longest first."""
    rows = sum_cpu_time_by_stage(measured)
    sums = {name: sum_of(rows["time_ns"] * rows.equals("activity", name)) for name in CPU_ACTIVITIES}
    stages = rows.group_by("run", "role", "canonical").agg(window_ns=sum_of("time_ns"), **sums)
    shown = [name for name in CPU_ACTIVITIES if stages[name].any()]
    shares = {name: stages[name] / np.maximum(stages["window_ns"], 1) for name in shown}
    names = [stage or "(outside any stage)" for stage in stages.values("canonical")]
    table = stages.with_columns(stage=texts(names), **shares).sort("window_ns", "stage", descending=["window_ns"])
    headings = (
        *make_label_headings(measured),
        Heading("stage", "stage"),
        Heading("window_ns", "wall Σ", "ns", "Summed over ranks and steps."),
        *(Heading(name, CPU_ACTIVITY_TITLES[name][0], "ratio", CPU_ACTIVITY_TITLES[name][1]) for name in shown),
    )
    caption = "Each instant counts once, for the first column that applies."
    return make_sheet("cpu_time", "Host time by activity", headings, table, caption=caption)


def _make_cpu_thread_table(measured: Measurements) -> Sheet:
    """Make the table of threads by their time in ops."""
    by_thread = measured.frame("cpu_threads").group_by("run", "role", "rank", "pid", "tid", "name")
    threads = by_thread.agg(op_ns=sum_of("op_ns"), window_ns=sum_of("window_ns"), count=sum_of("count"))
    threads = threads.with_columns(busy_ratio=threads["op_ns"] / np.maximum(threads["window_ns"], 1))
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            rank | rank | id
            tid | thread | id
            name | name
            op_ns | in ops | ns | Time in at least one op or runtime call.
            busy_ratio | utilization | ratio | Of the time from the first to the last activity of the process.
            count | ops | count
        """),
    )
    table = threads.sort("op_ns", "rank", "tid", descending=["op_ns"])
    return make_sheet("cpu_threads", "Threads by time in ops", headings, table)


_CAPTION = "Whole recording, warm-up included."


def _make_python_function_table(measured: Measurements) -> Sheet:
    """Make the table of Python functions by self time, over all processes of a run."""
    by_name = measured.frame("cpu_frames").group_by("run", "name")
    functions = by_name.agg(count=sum_of("count"), self_ns=sum_of("self_ns"), total_ns=sum_of("total_ns"))
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            name | Python function
            self_ns | self | ns | Outside the Python functions that it calls; the ops that it calls are included.
            total_ns | total | ns | Recursion counted once.
            count | calls | count
        """),
    )
    table = functions.sort("self_ns", "name", descending=["self_ns"])
    return make_sheet("cpu_frames", "Python functions by their own time", headings, table, caption=_CAPTION)


ANALYSIS = Analysis(
    id="cpu",
    title="What did the host do?",
    reads=HOST_TABLES,
    writes=(CPU_TIME, CPU_THREADS, CPU_FRAMES),
    measure=measure,
    judge=judge,
)
