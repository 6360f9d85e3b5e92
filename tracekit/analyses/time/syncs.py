"""Calls that make the host wait for the GPU, and the GPU idle time after them (definition M16, cause of Q6; R02)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import make_label_headings, phrase_run
from tracekit.job.idle_time.call_tree import format_python_frame
from tracekit.job.idle_time.causes import DAMAGED_REASON, make_idle_time_measurement
from tracekit.job.idle_time.host_syncs import SyncBoundRole, find_sync_bound_roles
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_cost_instances
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.job.stages.windows import (
    STAGE_KEY,
    StageWindow,
    divide_by_gpu_steps,
    list_rows_of_windows,
    list_undamaged_rows,
)
from tracekit.model.report import Finding, Place, Section, Sheet, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Array, Coded, concatenate_parts, repeat_number, select_rows, trim_all_texts
from tracekit.model.tables.columns import DEVICE, STAGE, STEP, WINDOW
from tracekit.model.tables.frame import Frame, sum_of
from tracekit.model.tables.keys import sort_rows_by_keys, sum_by_keys
from tracekit.model.text.changes import write_change, write_name_pattern
from tracekit.model.text.labels import choose_plural
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.host.user_code_frames import find_user_code_around
from tracekit.process.idle_time.causes import DeviceIdle
from tracekit.process.idle_time.stalls import StallTime, SyncStalls
from tracekit.process.name_filters import look_up_name_codes, make_narrow_coded
from tracekit.process.steps.stage_lookup import find_range_codes_at
from tracekit.process.steps.windows import find_steps_and_stages

SYNC_STALLS = Table(
    "sync_stalls",
    "synchronizing calls of one kind in the windows of one name, and the idle time that follows them",
    {
        **KEYS,
        "device": DEVICE,
        "window": WINDOW,
        "step": STEP,
        "stage": STAGE,
        "call": Column("category", "Synchronizing call, the last one in its op; <NA> for the kinds beyond the cap."),
        "op": Column("category", "Outermost op around it, if any."),
        "place": Column(
            "category",
            "Innermost function of the program around it, otherwise the innermost range other than a step or stage; <NA> where neither is recorded.",
        ),
        "count": Column("int64", "How often; all calls of one innermost op are one."),
        "call_ns": Column("int64", "Σ duration of the calls."),
        "stall_count": Column("int64", "Calls that returned to an idle device."),
        "idle_ns": Column(
            "int64", "Idle time from their return to the next device op, without data loading and long host pauses."
        ),
        "later_ns": Column(
            "int64",
            "Later waits of the device for the host, until the host is ahead again; at most the time lost in the calls.",
        ),
    },
)


MAX_KINDS = 1_000
"""Maximum rows per device and source; further (cheapest) kinds are summed without call, op and place."""

SYNC_SUM_COLUMNS = ("count", "call_ns", "stall_count", "idle_ns", "later_ns")


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum synchronizing calls by step, stage, call and op, with the GPU idle time after them."""
    if not trace.has("device_ops"):
        return {}
    by_device = zip(
        trace.derived(make_idle_time_measurement()), trace.derived(StallTime(make_idle_time_measurement())), strict=True
    )
    tables = [_sum_device_sync_stalls(trace, idle, calls) for idle, calls in by_device]
    return {"sync_stalls": trim_all_texts(concatenate_parts(tables))}


def _sum_device_sync_stalls(trace: Trace, idle: DeviceIdle, calls: SyncStalls) -> dict[str, Array]:
    """Sum the synchronizing calls of the threads that launch work on one device."""
    steps = trace.derived(find_steps_and_stages).step_rows
    in_step, stage = steps.row_at(calls.end_ns) >= 0, find_range_codes_at(trace, calls.end_ns)
    in_stage = stage.codes >= 0
    rows = np.concatenate((np.flatnonzero(in_step), np.flatnonzero(in_stage)))
    sizes = (np.count_nonzero(in_step), np.count_nonzero(in_stage))
    is_stage = np.repeat((False, True), sizes)
    names = trace.texts("host_ops", "name")
    keys: dict[str, Array] = {
        "window": make_narrow_coded(is_stage, ("step", "stage")),
        "step": select_rows(steps.number_at(calls.end_ns), rows),
        "stage": Coded(np.where(is_stage, stage.codes[rows], -1), stage.texts),
        "call": Coded(look_up_name_codes(names, calls.row[rows]), names.texts),
        "op": Coded(look_up_name_codes(names, calls.op[rows]), names.texts),
        "place": select_rows(find_user_code_around(trace, calls.row), rows),
    }
    values = {
        "count": np.ones(len(rows), np.int64),
        "call_ns": calls.call_ns[rows],
        "stall_count": calls.stalled[rows].astype(np.int64),
        "idle_ns": calls.idle_ns[rows],
        "later_ns": calls.later_ns[rows],
    }
    sums: Any = sort_rows_by_keys(sum_by_keys(trim_all_texts(keys), values), tuple(keys))
    cheap = np.lexsort((-sums["count"], -sums["idle_ns"]))[MAX_KINDS:]
    if len(cheap):
        for name in ("call", "op", "place"):
            sums[name].codes[cheap] = -1
        both = {name: sums[name] for name in keys}
        sums = sort_rows_by_keys(sum_by_keys(both, {name: sums[name] for name in SYNC_SUM_COLUMNS}), tuple(keys))
    assert int(sums["idle_ns"].sum()) == int(values["idle_ns"].sum())
    return {**sums, "device": repeat_number(idle.device, len(sums["count"]))}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report synchronizing calls by stage and op; judge R02."""
    if not measured.has("sync_stalls") or not measured.row_count("gpu_time"):
        return ANALYSIS.skipped("no GPU activity was recorded")
    if not len(list_undamaged_rows(measured, "gpu_time")):
        return ANALYSIS.skipped(DAMAGED_REASON)
    rows = list_rows_of_windows(measured, "sync_stalls")
    unseen = tuple(_list_runs_without_host_ops(measured))
    if not len(rows):
        reason = "no synchronizing call was recorded in a step or stage"
        return ANALYSIS.skipped(reason, verdicts=unseen or (Verdict(ANALYSIS.rules[0], "clear"),))
    bound = find_sync_bound_roles(measured, thresholds.of("host-sync-stalls"))
    return ANALYSIS.answered(
        sheets=lambda: (_make_sync_call_table(measured, rows),),
        findings=tuple(_report_sync_stalls(measured, role, thresholds) for role in bound),
        verdicts=unseen,
    )


def _list_runs_without_host_ops(measured: Measurements) -> list[Verdict]:
    """List verdicts on runs whose GPU sources have no host activity."""
    captures = measured.frame("captures")
    on_gpu = captures.filter(captures["device_op_count"] > 0)
    by_run = on_gpu.group_by("run").agg(host_op_count=sum_of("host_op_count"))
    return [
        Verdict(ANALYSIS.rules[0], "insufficient data", "no host activity was recorded", run)
        for run in by_run.filter(by_run["host_op_count"] == 0).values("run")
    ]


def _make_sync_call_table(measured: Measurements, rows: Frame) -> Sheet:
    """Make the table of synchronizing calls by stage, per step and GPU, most idle time first."""
    by_call = rows.group_by(*STAGE_KEY, "op", "call").agg(**{name: sum_of(name) for name in SYNC_SUM_COLUMNS})
    table = divide_by_gpu_steps(measured, by_call, SYNC_SUM_COLUMNS)
    table = table.sort("idle_ns", "call_ns", "op", "call", descending=["idle_ns", "call_ns"])
    return make_sheet(
        "sync_calls",
        "Synchronizing calls",
        (
            *make_label_headings(measured),
            *parse_headings("""
            canonical | stage
            op | op | text | Outermost op around the call.
            call | call
            count | calls | count | Per step and GPU; a copy and the wait for it in one op count once.
            stall_count | to an idle GPU | count | Calls that returned to an idle GPU, per step and GPU.
            idle_ns | idle after | ns | Idle from the return to the next device op, per step and GPU.
            later_ns | idle later | ns | Later waits of the GPU for the host, until the host is ahead again, per step and GPU.
            call_ns | time in calls | ns | Σ duration, per step and GPU: mostly the GPU's own work.
        """),
        ),
        table,
        max_rows=100,
        caption="A call costs nothing while the GPU works; the idle time after it does.",
    )


def _report_sync_stalls(measured: Measurements, role: SyncBoundRole, thresholds: Thresholds) -> Finding:
    """Report R02: synchronizing calls after which the GPU idles until the host has launched again."""
    calls, window = role.calls, role.windows[0]
    idle, (lost, ratio) = window.per_step(role.sum("idle_ns"))[0], window.per_step(role.lost_ns)
    stalls_per_step = window.steps.mean(role.sum("stall_count"))
    sums = {name: sum_of(name) for name in ("count", "stall_count", "idle_ns")}
    by_op = calls.group_by("canonical", "op", "call").agg(**sums)
    most = by_op.sort("idle_ns", "count", descending=["idle_ns", "count"]).head(3)
    tops = [(row["canonical"], row["op"] or row["call"] or "calls of other kinds", row["call"]) for row in most.rows()]
    place = _locate_sync_calls(calls)
    return Finding(
        "host-sync-stalls",
        thresholds.severity(ratio),
        f"{stalls_per_step:,.0f} synchronizing calls per step leave GPUs idle for"
        f" {format_quantity(role.idle_ratio, 'ratio')} of {_name_windows(measured, role)}"
        + (f", most in {place}" if place else ""),
        f"avoid those of {tops[0][1]}: keep scalars on the device and read them once per step instead of per micro-batch",
        (
            make_evidence_metric("sync_count", window.steps.mean(role.sum("count")), "calls per step and GPU"),
            make_evidence_metric("stall_count", stalls_per_step, "to an idle GPU"),
            make_evidence_metric("idle_ns", round(idle), "idle after them, per step"),
            make_evidence_metric("later_ns", round(lost - idle), "until the host is ahead again"),
            make_evidence_metric(
                "idle_ratio", role.idle_ratio, f"of the {choose_plural(len(role.windows), 'stage', 'stages')}"
            ),
        ),
        tuple(
            Place(
                run=window.run,
                role=window.role,
                stage=stage,
                name=name if call in (None, name) else f"{name} ({call})",
            )
            for stage, name, call in tops
        ),
        round(lost),
        ratio,
        changes=tuple(change for each in role.windows for change in _write_sync_changes(each, by_op)),
        instances=pick_cost_instances(measured, calls, "idle_ns"),
    )


def _name_windows(measured: Measurements, role: SyncBoundRole) -> str:
    """Name the stages with the calls; those after the second by their number."""
    first, *others = role.windows
    if not others:
        return first.name
    named = others[0].canonical if len(others) == 1 else f"{len(others)} other stages"
    return f"{first.canonical} and {named}{phrase_run(measured, first.run)}"


def _write_sync_changes(window: StageWindow, by_op: Frame) -> Iterator[str]:
    """List the changes of the fix in one stage: these ops, and calls outside any op, no longer wait for the device.

    Calls of a kind that returns to an idle device at most once per step keep their wait: the program reads a result there.
    """
    stage = window.canonical
    of_stage = by_op.filter(by_op.equals("canonical", stage) & (by_op["idle_ns"] > 0))
    often = [row for row in of_stage.rows() if window.steps.mean(row["stall_count"]) > 1]
    ops = [row["op"] for row in often if row["op"]]
    calls = [row["call"] for row in often if not row["op"] and row["call"]]
    if ops:
        yield write_change("unwait", stage=stage, by=write_name_pattern(ops))
    if calls:
        yield write_change("unwait", stage=stage, row=write_name_pattern(calls))


def _locate_sync_calls(rows: Frame) -> str | None:
    """Locate the function or range with more than half of the idle time after these calls; None without one."""
    sums = rows.filter(~rows.is_missing("place")).group_by("place").agg(idle_ns=sum_of("idle_ns"))
    most = sums.filter(2 * sums["idle_ns"] > rows["idle_ns"].sum()).values("place")
    return format_python_frame(most[0]) if most else None


ANALYSIS = Analysis(
    id="syncs",
    title="Which calls make the host wait for the GPU?",
    reads=("host_ops", "device_ops", "syncs", "python_calls"),
    writes=(SYNC_STALLS,),
    rests_on=("gpu_time",),
    rules=("host-sync-stalls",),
    thresholds={
        "host-sync-stalls": {
            # Idle time after synchronizing calls, until the next device op, as a share of a stage (of the step where there is none),
            "stage_ratio": 0.03,
            # with at least this many calls per step that return to an idle device, in all such stages of a role.
            "syncs_per_step": 20,
            # Idle time after calls of the same ops in another stage, as a share of it, from which the finding includes them.
            "alike_ratio": 0.01,
        }
    },
    measure=measure,
    judge=judge,
)
