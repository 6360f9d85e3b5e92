"""Which calls make the host wait for the GPU, and what idle time follows them? (definition M16, cause of Q6)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import label_headings, same_text, summed, text_or_none
from tracekit.job.idle import DAMAGED, SyncBound, idle_time, sync_bound
from tracekit.job.stage_windows import WHERE, each_gpu_step, placed, whole
from tracekit.job.tables import as_headings, sheet
from tracekit.model.report import Finding, Place, Section, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import arrays_of
from tracekit.model.tables.columns import DEVICE, STAGE, STEP, WINDOW
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show
from tracekit.process.by_name import named
from tracekit.process.idle import DeviceIdle
from tracekit.process.stage_at import range_at, row_at
from tracekit.process.stalls import stalls
from tracekit.process.steps import Windows, step_of, windows

SYNC_STALLS = Table(
    "sync_stalls",
    "synchronising calls of one kind in the windows of one name, and the idle time that follows them",
    {
        **KEYS,
        "device": DEVICE,
        "window": WINDOW,
        "step": STEP,
        "stage": STAGE,
        "call": Column(
            "category",
            "Synchronising call, the last one in its op; <NA> for the kinds beyond the cap.",
        ),
        "op": Column("category", "Outermost op around it, where there is one."),
        "count": Column("int64", "How often; all calls of one innermost op are one."),
        "call_ns": Column("int64", "Σ duration of the calls."),
        "stall_count": Column(
            "int64", "Of these, how often the device was idle when a call returned."
        ),
        "idle_ns": Column(
            "int64",
            "Idle time from their return to the next device op, neither data loading nor silence.",
        ),
    },
)


MAX_KINDS = 1_000
"""Most rows of one device in one source; kinds beyond it, the cheapest, are summed without their names."""

SUMMED = ("count", "call_ns", "stall_count", "idle_ns")


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Synchronising calls by step and by stage, call and op, with the idle time that follows them."""
    if not trace.has("device_ops"):
        return {}
    frames = [_of_device(trace, idle) for idle in trace.derived(idle_time())]
    if not frames:
        return {"sync_stalls": {}}
    table = pd.concat(frames, ignore_index=True)
    return {"sync_stalls": arrays_of(table)}


def _of_device(trace: Trace, idle: DeviceIdle) -> pd.DataFrame:
    """The calls of the threads that feed one device."""
    stall_rows, host = stalls(trace, idle), trace.get("host_ops")
    within: Windows = trace.derived(windows)
    frame = pd.DataFrame(
        {
            "step": step_of(within.steps, stall_rows.end_ns),
            "in_step": row_at(within.steps, stall_rows.end_ns) >= 0,
            "stage": range_at(trace, stall_rows.end_ns),
            "call": named(host["name"], stall_rows.row),
            "op": named(host["name"], stall_rows.op),
            "count": 1,
            "call_ns": stall_rows.call_ns,
            "stall_count": stall_rows.stalled.astype(np.int64),
            "idle_ns": stall_rows.idle_ns,
        }
    )
    in_step = frame[frame["in_step"]].assign(stage=None)
    parts = {"step": in_step, "stage": frame[frame["stage"].notna()]}
    by = ["window", "step", "stage", "call", "op"]
    both = pd.concat([p.assign(window=w) for w, p in parts.items()], ignore_index=True)
    sums = both.groupby(by, dropna=False, sort=True)[[*SUMMED]].sum().reset_index()
    cut = sums.sort_values(["idle_ns", "count"], ascending=False, kind="stable").index[MAX_KINDS:]
    if len(cut):
        sums.loc[cut, ["call", "op"]] = None
        sums = sums.groupby(by, dropna=False, sort=True)[[*SUMMED]].sum().reset_index()
    assert int(sums["idle_ns"].sum()) == int(both["idle_ns"].sum())
    sums = sums.assign(device=pd.array([idle.device] * len(sums), dtype="Int64"))
    texts = dict.fromkeys(("window", "stage", "call", "op"), object)
    sums = sums.astype({**texts, "step": "Int64"})
    return sums.where(sums.notna(), None).astype(
        {"step": "Int64", "device": "Int64", **dict.fromkeys(SUMMED, "int64")}
    )


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Synchronising calls by stage and op; finding R02."""
    if not measured.has("sync_stalls") or not len(measured["gpu_time"]):
        return ANALYSIS.skipped("no GPU activity was recorded")
    if not len(whole(measured, "gpu_time")):
        return ANALYSIS.skipped(DAMAGED)
    rows = placed(measured, "sync_stalls")
    unseen = tuple(_without_host(measured))
    if not len(rows):
        reason = "no synchronising call was recorded in a step or stage"
        return ANALYSIS.skipped(reason, verdicts=unseen or (Verdict(ANALYSIS.rules[0], "clear"),))
    sync_windows = sync_bound(measured, thresholds.of("host-sync-stalls"))
    return ANALYSIS.answered(
        sheets=(_calls(measured, rows),),
        findings=tuple(_finding(sync_window, rows, thresholds) for sync_window in sync_windows),
        verdicts=unseen,
    )


def _without_host(measured: Measurements) -> list[Verdict]:
    """Runs whose GPU sources hold nothing of the host."""
    captures = measured["captures"]
    captures = captures[captures["device_op_count"] > 0]
    hosts = captures.groupby("run", sort=False)["host_op_count"].sum()
    return [
        Verdict(
            ANALYSIS.rules[0],
            "insufficient data",
            "no host activity was recorded",
            text_or_none(run),
        )
        for run in hosts.index[hosts == 0]
    ]


def _calls(measured: Measurements, rows: pd.DataFrame) -> Any:
    """What synchronises, by stage, per step and GPU; the most idle time first."""
    table = each_gpu_step(measured, summed(rows, [*WHERE, "op", "call"], SUMMED), SUMMED)
    table = table.sort_values(
        ["idle_ns", "call_ns", "op", "call"], ascending=[False, False, True, True], kind="stable"
    )
    headings = (
        *label_headings(measured),
        *as_headings("""
            canonical | stage
            op | op | text | Outermost op around the call.
            call | call
            count | calls | count | Per step and GPU; a copy and the wait for it in one op count once.
            stall_count | to an idle GPU | count | Calls that returned to an idle GPU, per step and GPU.
            idle_ns | idle after | ns | Idle from the return to the next device op, per step and GPU.
            call_ns | time in calls | ns | Σ duration, per step and GPU: mostly the GPU's own work.
        """),
    )
    return sheet(
        "sync_calls",
        "Synchronising calls",
        headings,
        table,
        max_rows=100,
        caption="The time in a call is no loss: the GPU works meanwhile. The idle time after it is.",
    )


def _finding(one: SyncBound, rows: pd.DataFrame, thresholds: Thresholds) -> Finding:
    """R02: calls after which the GPU has nothing to do until the host has launched again."""
    window = one.window
    idle, ratio = window.per_step(one.idle_ns)
    stalls_per_step = window.steps.mean(one.stall_count)
    same = [same_text(rows[name], value) for name, value in zip(WHERE, window.key, strict=True)]
    of_window = rows[same[0] & same[1] & same[2]]
    by_op = summed(of_window, ["op", "call"], ["count", "idle_ns"])
    by_op = by_op.sort_values(["idle_ns", "count"], ascending=False, kind="stable").head(3)
    tops = [
        (
            text_or_none(r["op"]) or text_or_none(r["call"]) or "calls of other kinds",
            text_or_none(r["call"]),
        )
        for r in by_op.to_dict("records")
    ]
    share = window.share(one.idle_ns)
    return Finding(
        "host-sync-stalls",
        thresholds.severity(ratio),
        f"{stalls_per_step:,.0f} synchronising calls per step leave GPUs idle for {show(share, 'ratio')} of {window.name}",
        f"avoid those of {tops[0][0]}: keep scalars on the device and read them once per step, not per micro-batch",
        (
            evidence("sync_count", window.steps.mean(one.count), "calls per step and GPU"),
            evidence("stall_count", stalls_per_step, "to an idle GPU"),
            evidence("idle_ns", round(idle), "idle after them, per step"),
            evidence("idle_ratio", share, "of the stage"),
        ),
        tuple(
            Place(
                role=window.role,
                stage=window.canonical,
                name=name if call in (None, name) else f"{name} ({call})",
            )
            for name, call in tops
        ),
        round(idle),
        ratio,
        ("upper bound: the host's work before the next launch may take its time anyway",),
    )


ANALYSIS = Analysis(
    id="syncs",
    title="Which calls make the host wait for the GPU?",
    reads=("host_ops", "device_ops", "syncs"),
    writes=(SYNC_STALLS,),
    rests_on=("gpu_time",),
    rules=("host-sync-stalls",),
    thresholds={
        "host-sync-stalls": {
            # Idle time after synchronising calls, until the next device op, as a share of a stage (of the step where there is none),
            "stage_ratio": 0.03,
            # with at least so many calls per step in it that return to an idle device.
            "syncs_per_step": 20,
        },
    },
    measure=measure,
    judge=judge,
)
