"""Waits of steps for data loaders, and GPU idle time during them (definition M16)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import make_label_headings, phrase_run
from tracekit.job.idle_time.call_tree import find_culprit_below
from tracekit.job.idle_time.loader_waits import select_long_loader_waits, sum_loader_waits
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_instances
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.model.intervals import intersect, measure_coverage, merge_interval_sets, merge_intervals
from tracekit.model.report import Finding, Instance, Place, Ranked, Section, Sheet, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import select_all_rows, select_rows, trim_texts
from tracekit.model.tables.columns import NAME, PLACE
from tracekit.model.tables.frame import Frame
from tracekit.model.tables.keys import group_arrays, sum_by_group
from tracekit.model.text.changes import write_change, write_name_pattern
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.extremes import find_longest_by_keys
from tracekit.process.host.phases import (
    HostWindows,
    build_host_windows,
    classify_host_rows,
    find_step_thread,
    measure_uncovered_time,
    unite_device_busy_time,
)

LOADER_WAITS = Table(
    "loader_waits",
    "the waits for one data loader in one step",
    {
        **KEYS,
        **PLACE,
        "name": NAME,
        "count": Column("int64", "Batches taken on the step thread."),
        "wait_ns": Column("int64", "Wall time of taking them."),
        "max_ns": Column("int64", "Longest wait."),
        "idle_ns": Column("Int64", "Of wait_ns, while none of the process' devices ran anything."),
        "max_ts_ns": Column("int64", "Start of the longest wait."),
    },
)


NO_LOADER = "no wait for a torch DataLoader was recorded"


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum the waits for data loaders on the step thread by step and loader, with the GPU idle time during them."""
    if not trace.has("host_ops"):
        return {}
    rows = np.flatnonzero(trace.derived(classify_host_rows).loader)
    if (thread := trace.derived(find_step_thread)) is not None:
        rows = rows[trace.numbers("host_ops", "thread")[rows] == thread]
    if not len(rows):
        return {"loader_waits": {}}
    start = trace.numbers("host_ops", "ts_ns")[rows]
    dur = trace.numbers("host_ops", "dur_ns")[rows]
    where: HostWindows = trace.derived(build_host_windows)
    name = trim_texts(select_rows(trace.texts("host_ops", "name"), rows))
    columns = {**where.steps_of(where.step_at(start)), "name": name}
    group, first = group_arrays(list(columns.values()))
    wait_ns, longest_ns = measure_uncovered_time(start, start + dur), np.zeros(len(first), np.int64)
    np.maximum.at(longest_ns, group, dur)
    sums = {"count": np.bincount(group), "wait_ns": sum_by_group(group, wait_ns, len(first))}
    if trace.has("device_ops"):
        busy = merge_interval_sets(list(trace.derived(unite_device_busy_time).values()))
        working = intersect(busy, merge_intervals(start, start + dur))
        # Each wait counts only its last `wait_ns`, the part no earlier wait covers: overlapping waits count once.
        idle_ns = wait_ns - measure_coverage(working, start + dur - wait_ns, start + dur)
        sums["idle_ns"] = sum_by_group(group, idle_ns, len(first))
    sums |= {"max_ns": longest_ns, "max_ts_ns": find_longest_by_keys(columns, start, dur)["longest_ts_ns"]}
    return {"loader_waits": {**select_all_rows(columns, first), **sums}}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report waits by loader and rank, without the first recorded step of each process; judge R04."""
    if not measured.has("loader_waits"):
        return ANALYSIS.skipped("no host activity was recorded")
    if not measured.row_count("loader_waits"):
        return ANALYSIS.skipped(NO_LOADER)
    waits = sum_loader_waits(measured)
    return ANALYSIS.answered(
        sheets=lambda: select_filled_sheets(_make_loader_wait_table(measured, waits)),
        findings=tuple(_find_loader_waits(measured, waits, thresholds)),
        verdicts=tuple(_list_runs_without_loader(measured)),
    )


def _make_loader_wait_table(measured: Measurements, waits: Frame) -> Sheet:
    """Make the table of loaders by rank, longest wait first."""
    return make_sheet(
        "loader_waits",
        "Waiting for data loaders",
        (
            *make_label_headings(measured),
            *parse_headings("""
            rank | rank | id
            name | loader
            wait_ns | wait | ns | Per step, mean over the steps but the first recorded.
            share_ratio | of step | ratio | Of the mean step wall.
            idle_ns | GPU idle in it | ns | Of the wait, while none of the process' GPUs ran anything.
            max_ns | longest | ns | Longest single wait, the first step included.
            count | batches | count | Per step.
            steps | steps | count | Steps that the mean is of.
        """),
        ),
        waits,
        ranked=Ranked("wait_ns", apart=("run", "role", "name")),
    )


def _list_runs_without_loader(measured: Measurements) -> Iterator[Verdict]:
    """List runs without a data loader, where other runs have one."""
    loading = set(measured.frame("loader_waits").values("run"))
    for run in measured.frame("steps").distinct("run").values("run"):
        if run not in loading:
            yield Verdict("data-loader-wait", "not applicable", NO_LOADER + phrase_run(measured, run))


def _find_loader_waits(measured: Measurements, waits: Frame, thresholds: Thresholds) -> Iterator[Finding]:
    """Find R04: per run and loader, the rank that waits longest.

    The other ranks wait for that rank at the next collective, so its wait is the cost.
    """
    limit = thresholds.of("data-loader-wait")
    for of_run in select_long_loader_waits(waits, limit).group_by("run").frames():
        for row in of_run.distinct("name").rows():
            run, role, rank, name = row["run"], row["role"], row["rank"], row["name"]
            wait, idle = row["wait_ns"], row["idle_ns"]
            step_ns = wait / row["share_ratio"]
            cost = wait if idle is None else idle
            severity = thresholds.severity(cost / step_ns)
            hidden = idle is not None and cost < wait / 2
            culprit = find_culprit_below(measured, (run, role), name)
            ranks = waits.filter(waits.equals("run", run) & waits.equals("role", role)).distinct("rank")
            who = f" on rank {rank}" if rank is not None and len(ranks) > 1 else ""
            yield Finding(
                "data-loader-wait",
                # The wait is long enough to report even if GPU work hides most of it: at least low.
                "low" if severity == "info" else severity,
                f"{format_quantity(row['share_ratio'], 'ratio')} of the step is spent waiting for the data loader{who}"
                + ("" if culprit is None else f", most in {culprit.place}")
                + phrase_run(measured, run),
                _advise_on_loader(name),
                (
                    make_evidence_metric("wait_ns", round(wait), "wait per step"),
                    make_evidence_metric("idle_ns", None if idle is None else round(cost), "GPU idle in it"),
                    make_evidence_metric("max_ns", row["max_ns"], "longest wait"),
                ),
                (Place(run=run, role=role, rank=rank, name=name),),
                round(cost),
                cost / step_ns,
                ("most of the wait overlaps with GPU work and costs little now",) if hidden else (),
                changes=(write_change("set", "host", by=write_name_pattern([name]), to_us=0),),
                instances=_pick_waits(measured, row),
            )


def _pick_waits(measured: Measurements, wait: Mapping[str, Any]) -> tuple[Instance, ...]:
    """Pick the longest wait of this rank for this loader, and the median of the longest ones of its steps."""
    rows = measured.frame("loader_waits")
    for name in ("run", "role", "rank", "name"):
        rows = rows.filter(rows.equals(name, wait[name]))
    return pick_instances(rows.with_columns(ts_ns=rows["max_ts_ns"]), "max_ns", length="max_ns")


def _advise_on_loader(name: str) -> str:
    """Advise on a loader by its class name, which shows whether it uses worker processes."""
    if "SingleProcess" in name:
        return "load in the background: num_workers > 0 (this loader works in the training process), pin_memory, prefetch_factor"
    return "more workers or a larger prefetch_factor; cheaper transforms; check storage and the collate function"


ANALYSIS = Analysis(
    id="data-loading",
    title="How long do steps wait for data?",
    reads=("host_ops",),
    writes=(LOADER_WAITS,),
    rests_on=("gpu_time", "idle_blame", "idle_frames"),
    rules=("data-loader-wait",),
    thresholds={
        "data-loader-wait": {
            # Waiting for a data loader as a share of the step, on the rank that waits longest.
            "wait_ratio": 0.05
        }
    },
    measure=measure,
    judge=judge,
)
