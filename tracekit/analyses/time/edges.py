"""GPU idle time between one stage and the next (definition Q25)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import make_label_headings, phrase_run
from tracekit.job.idle_time.causes import (
    DAMAGED_REASON,
    find_owners_idle_at_edges,
    list_edge_rows,
    make_idle_time_measurement,
)
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_instances
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.job.stages.windows import NO_STEPS, count_gpu_steps, divide_by_gpu_steps, list_undamaged_rows
from tracekit.model.report import Finding, Instance, Place, Section, Sheet, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Array, concatenate_parts, repeat_number, trim_all_texts
from tracekit.model.tables.columns import DEVICE, LONGEST, STEP
from tracekit.model.tables.frame import Frame, sum_of
from tracekit.model.tables.keys import sum_by_keys
from tracekit.model.text.changes import write_change
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.extremes import find_longest_by_keys
from tracekit.process.idle_time.causes import DeviceIdle
from tracekit.process.idle_time.stalls import StallTime, SyncStalls, measure_stage_edges

STAGE_EDGES = Table(
    "stage_edges",
    "between a stage and the first device op of the next one in the same step",
    {
        **KEYS,
        "device": DEVICE,
        "step": STEP,
        "stage": Column("category", "Stage that ended, as recorded."),
        "next_stage": Column("category", "Stage that follows, as recorded."),
        "count": Column("int64", "How often in the step."),
        "edge_ns": Column("int64", "From the end of the stage to that op."),
        "idle_ns": Column("int64", "Part of it with an idle device."),
        "explained_ns": Column(
            "int64",
            "Of the idle time: data loading, garbage collection, long host pauses inside the next "
            "stage, or the next op was launched already.",
        ),
        "inside_ns": Column("Int64", "Of the rest: inside the next stage."),
        "after_sync_ns": Column("int64", "Of that: after a synchronizing call returned."),
        "host_ns": Column("int64", "Of idle less explained: host calls or ops were recorded."),
        **LONGEST,
    },
)


EDGE_TIME_COLUMNS = ("edge_ns", "idle_ns", "explained_ns", "inside_ns", "after_sync_ns", "host_ns")
STAGE_PAIR_KEYS = ("run", "role", "canonical", "next_canonical")


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum the edges between consecutive stages of a step, by pair of stages."""
    if not trace.has("device_ops"):
        return {}
    by_device = zip(
        trace.derived(make_idle_time_measurement()), trace.derived(StallTime(make_idle_time_measurement())), strict=True
    )
    tables = [_sum_device_stage_edges(trace, idle, calls) for idle, calls in by_device]
    return {"stage_edges": trim_all_texts(concatenate_parts(tables))}


def _sum_device_stage_edges(trace: Trace, idle: DeviceIdle, calls: SyncStalls) -> dict[str, Array]:
    """Sum the edges of one device by step and pair of stages."""
    edges = measure_stage_edges(trace, idle, calls.after)
    keys = {name: edges[name] for name in ("step", "stage", "next_stage")}
    times = {name: np.asarray(edges[name]) for name in EDGE_TIME_COLUMNS}
    sums = sum_by_keys(keys, {"count": np.ones(len(edges["edge_ns"]), np.int64), **times})
    longest = find_longest_by_keys(keys, np.asarray(edges["ts_ns"]), times["edge_ns"])
    return {**sums, **longest, "device": repeat_number(idle.device, len(sums["count"]))}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report idle time from the end of each stage to the first device op of the next stage; judge R15."""
    if not measured.has("stage_edges") or not measured.row_count("gpu_time"):
        return ANALYSIS.skipped("no GPU activity was recorded")
    on_gpu = list_undamaged_rows(measured, "gpu_time")
    if not len(on_gpu):
        return ANALYSIS.skipped(DAMAGED_REASON)
    rows = list_edge_rows(measured, thresholds.of("host-sync-stalls"))
    if not len(rows):
        return ANALYSIS.skipped("no step of one process contains two stages")
    without = [
        Verdict(ANALYSIS.rules[0], "not applicable", "no step of one process contains two stages", run)
        for run in sorted({*on_gpu.values("run")} - {*rows.values("run")})
    ]
    return ANALYSIS.answered(
        sheets=lambda: (_make_stage_edge_table(measured, rows),),
        findings=tuple(_find_stage_edge_idle(measured, rows, thresholds)),
        verdicts=tuple(without),
    )


def _make_stage_edge_table(measured: Measurements, rows: Frame) -> Sheet:
    """Make the table of stage pairs, per step and GPU, most idle time first."""
    names = ("count", "edge_ns", "idle_ns", "explained_ns", "host_ns", "unseen_ns")
    sums = rows.group_by(*STAGE_PAIR_KEYS).agg(**{name: sum_of(name) for name in names})
    table = divide_by_gpu_steps(measured, sums, names)
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            canonical | after
            next_canonical | before
            count | times | count | Per step.
            edge_ns | edge | ns | From the end of the one to the first device op of the other, per step and GPU.
            idle_ns | GPU idle | ns | Idle part of it.
            host_ns | host busy | ns | Of the idle time: host ops or calls were recorded.
            unseen_ns | unknown host time | ns | Of the idle time: nothing of the host was recorded.
            explained_ns | other cause | ns | Of the idle time: data loading, garbage collection, long host pauses inside the stage, or launched already.
        """),
    )
    table = table.sort("idle_ns", "canonical", "next_canonical", descending=["idle_ns"])
    return make_sheet(
        "stage_edges",
        "Between stages",
        headings,
        table,
        max_rows=100,
        caption="Stages of one step on one process. If the next stage launches nothing, idle time counts up to its start.",
    )


def _find_stage_edge_idle(measured: Measurements, rows: Frame, thresholds: Thresholds) -> list[Finding]:
    """Find R15: GPUs that idle between the end of one stage and the first work of the next."""
    limit = thresholds.of("stage-edge-idle")
    existing = count_gpu_steps(measured)
    findings = []
    waiting = find_owners_idle_at_edges(measured, rows, limit)
    for of_owner in rows.group_by("run", "role").frames():
        owner = run, role = of_owner.values("run")[0], of_owner.values("role")[0]
        if owner not in waiting:
            continue
        (idle, ratio), steps = waiting[owner], existing.get(owner, NO_STEPS)
        by_edge = of_owner.group_by(*STAGE_PAIR_KEYS).agg(claimed_ns=sum_of("claimed_ns"))
        tops = list(by_edge.sort("claimed_ns", descending=["claimed_ns"]).head(3).rows())
        first = tops[0]
        unseen = steps.mean(int(of_owner["unseen_ns"].sum()))
        findings.append(
            Finding(
                "stage-edge-idle",
                thresholds.severity(ratio),
                f"GPUs are idle {format_quantity(idle, 'ns')} per step between stages, mostly from {first['canonical']}"
                f" to {first['next_canonical']}{phrase_run(measured, run)}",
                "prepare and dispatch the next stage's inputs while the GPU still runs the current one",
                (
                    make_evidence_metric("edge_idle_ns", round(idle), "idle at edges per step"),
                    make_evidence_metric(
                        "largest_edge_ns",
                        round(steps.mean(first["claimed_ns"])),
                        f"{first['canonical']} to {first['next_canonical']}",
                    ),
                    make_evidence_metric("unseen_ns", round(unseen), "no host activity recorded"),
                ),
                tuple(
                    Place(
                        run=run, role=role, stage=r["next_canonical"], name=f"{r['canonical']} to {r['next_canonical']}"
                    )
                    for r in tops
                ),
                round(idle),
                ratio,
                ("mostly unknown host time: this trace does not contain other processes (dispatch, reward)",)
                if 2 * unseen > idle
                else (),
                changes=(write_change("set", "host", stage="", to_us=0),),
                instances=_pick_edges(of_owner),
            )
        )
    return findings


def _pick_edges(rows: Frame) -> tuple[Instance, ...]:
    """Pick the longest edge of the rows with most and with median idle time; each is before its stage's first work."""
    edges = rows.with_columns(ts_ns=rows["longest_ts_ns"])
    return pick_instances(edges, "claimed_ns", length="longest_ns", stage=None)


ANALYSIS = Analysis(
    id="stage-edges",
    title="Are GPUs idle between one stage and the next?",
    reads=("host_ops", "device_ops", "syncs"),
    writes=(STAGE_EDGES,),
    rests_on=("gpu_time", "sync_stalls"),
    rules=("stage-edge-idle",),
    thresholds={
        "stage-edge-idle": {
            # Idle time from the end of stages to the first device op of the next ones, as a share of the step.
            "step_ratio": 0.03
        }
    },
    measure=measure,
    judge=judge,
)
