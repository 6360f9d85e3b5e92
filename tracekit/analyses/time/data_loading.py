"""Waits of steps for data loaders, and GPU idle time during them (definition M16)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import (
    in_run,
    label_headings,
    same_text,
    text_or_none,
    units,
    whole_or_none,
)
from tracekit.job.idle_time.call_tree import within
from tracekit.job.idle_time.loader_waits import by_rank, long_waits
from tracekit.job.tables import as_headings, sheet, with_rows
from tracekit.model.intervals import covered, intersect, union, union_all
from tracekit.model.keys import of_arrays, summed
from tracekit.model.report import Finding, Place, Ranked, Section, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import all_at_rows, at_rows, trimmed
from tracekit.model.tables.columns import NAME, PLACE
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show
from tracekit.process.host.phases import (
    HostWindows,
    device_busy,
    host_side,
    host_windows,
    step_thread,
    uncounted,
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
        "max_ns": Column("int64", "Longest of them."),
        "idle_ns": Column("Int64", "Of wait_ns, while none of the process' devices ran anything."),
    },
)


NO_LOADER = "no wait for a torch DataLoader was recorded"


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum the waits for data loaders on the step thread by step and loader, with the GPU idle time during them."""
    if not trace.has("host_ops"):
        return {}
    rows = np.flatnonzero(trace.derived(host_side).loader)
    if (thread := trace.derived(step_thread)) is not None:
        rows = rows[trace.numbers("host_ops", "thread")[rows] == thread]
    if not len(rows):
        return {"loader_waits": {}}
    start = trace.numbers("host_ops", "ts_ns")[rows]
    dur = trace.numbers("host_ops", "dur_ns")[rows]
    where: HostWindows = trace.derived(host_windows)
    name = trimmed(at_rows(trace.texts("host_ops", "name"), rows))
    columns = {**where.steps_of(where.step_at(start)), "name": name}
    group, first = of_arrays(list(columns.values()))
    wait_ns, longest_ns = uncounted(start, start + dur), np.zeros(len(first), np.int64)
    np.maximum.at(longest_ns, group, dur)
    sums = {"count": np.bincount(group), "wait_ns": summed(group, wait_ns, len(first))}
    if trace.has("device_ops"):
        busy = union_all(list(trace.derived(device_busy).values()))
        working = intersect(busy, union(start, start + dur))
        # Each wait counts only its last `wait_ns`, the part no earlier wait covers: overlapping waits count once.
        idle_ns = wait_ns - covered(working, start + dur - wait_ns, start + dur)
        sums["idle_ns"] = summed(group, idle_ns, len(first))
    return {"loader_waits": {**all_at_rows(columns, first), **sums, "max_ns": longest_ns}}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report waits by loader and rank, without the first recorded step of each process; judge R04."""
    if not measured.has("loader_waits"):
        return ANALYSIS.skipped("no host activity was recorded")
    if not measured.row_count("loader_waits"):
        return ANALYSIS.skipped(NO_LOADER)
    rows = units(measured["loader_waits"])
    waits = by_rank(measured)
    return ANALYSIS.answered(
        sheets=lambda: with_rows(_sheet(measured, waits)),
        findings=tuple(_waits(measured, waits, thresholds)),
        verdicts=tuple(_without(measured, rows)),
    )


def _sheet(measured: Measurements, waits: pd.DataFrame) -> Any:
    """Make the table of loaders by rank, longest wait first."""
    headings = (
        *label_headings(measured),
        *as_headings("""
            rank | rank | id
            name | loader
            wait_ns | wait | ns | Per step, mean over the steps but the first recorded.
            share_ratio | of step | ratio | Of the mean step wall.
            idle_ns | GPU idle in it | ns | Of the wait, while none of the process' GPUs ran anything.
            max_ns | longest | ns | Longest single wait, the first step included.
            count | batches | count | Per step.
            steps | steps | count | Steps that the mean is of.
        """),
    )
    return sheet(
        "loader_waits",
        "Waiting for data loaders",
        headings,
        waits,
        ranked=Ranked("wait_ns", apart=("run", "role", "name")),
    )


def _without(measured: Measurements, rows: pd.DataFrame) -> Iterator[Verdict]:
    """List runs without a data loader, where other runs have one."""
    for run in units(measured["steps"])["run"].drop_duplicates():
        if not same_text(rows["run"], run).any():
            reason = NO_LOADER + in_run(measured, run)
            yield Verdict("data-loader-wait", "not applicable", reason)


def _waits(
    measured: Measurements, waits: pd.DataFrame, thresholds: Thresholds
) -> Iterator[Finding]:
    """Find R04: per run and loader, the rank that waits longest.

    The other ranks wait for that rank at the next collective, so its wait is the cost.
    """
    limit = thresholds.of("data-loader-wait")
    for run, of_run in long_waits(waits, limit).groupby("run", dropna=False, sort=False):
        for _, same in of_run.groupby("name", dropna=False, sort=False):
            row = same.iloc[0]
            wait, idle = float(row["wait_ns"]), row["idle_ns"]
            step_ns = wait / float(row["share_ratio"])
            cost = wait if pd.isna(idle) else float(idle)
            severity = thresholds.severity(cost / step_ns)
            hidden = not pd.isna(idle) and cost < wait / 2
            rank = whole_or_none(row["rank"])
            culprit = within(measured, run, row["role"], str(row["name"]))
            ranks = waits["rank"][
                same_text(waits["run"], run) & same_text(waits["role"], row["role"])
            ]
            who = f" on rank {rank}" if rank is not None and len(set(ranks)) > 1 else ""
            yield Finding(
                "data-loader-wait",
                # The wait is long enough to report even if GPU work hides most of it: at least low.
                "low" if severity == "info" else severity,
                f"{show(float(row['share_ratio']), 'ratio')} of the step is spent waiting for the data loader{who}"
                + ("" if culprit is None else f", most in {culprit.place}")
                + in_run(measured, run),
                _advice(str(row["name"])),
                (
                    evidence("wait_ns", round(wait), "wait per step"),
                    evidence("idle_ns", None if pd.isna(idle) else round(cost), "GPU idle in it"),
                    evidence("max_ns", int(row["max_ns"]), "longest wait"),
                ),
                (_place(row, rank),),
                round(cost),
                cost / step_ns,
                ("most of the wait is behind GPU work and costs little now",) if hidden else (),
            )


def _place(row: pd.Series[Any], rank: int | None) -> Place:
    """Locate a wait: run, role, rank and loader."""
    run, role = text_or_none(row["run"]), text_or_none(row["role"])
    return Place(run=run, role=role, rank=rank, name=str(row["name"]))


def _advice(name: str) -> str:
    """Advise on a loader by its class name, which shows whether it uses worker processes."""
    if "SingleProcess" in name:
        return "load in the background: num_workers > 0 (this loader works in the training process), pin_memory, prefetch_factor"
    return "more workers or a larger prefetch_factor; cheaper transforms; look at storage and at the collate function"


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
            "wait_ratio": 0.05,
        },
    },
    measure=measure,
    judge=judge,
)
