"""Cost of the optimizer: `Optimizer.step` by its calls, ops and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import divide_or_none, make_label_headings, phrase_run
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_longest_instances
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.job.stages.windows import count_steps_of_processes
from tracekit.model.intervals import measure_coverage
from tracekit.model.report import Finding, Instance, Metric, Place, Section, Sheet, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Coded, make_nullable_numbers
from tracekit.model.tables.columns import LONGEST, NAME, PLACE
from tracekit.model.tables.frame import (
    Frame,
    Ints,
    choose,
    count_of,
    count_rows,
    divide,
    median_of,
    numbers,
    sum_of,
    where,
)
from tracekit.model.tables.keys import PROCESS, sum_by_group, sum_by_keys
from tracekit.model.text.changes import write_change, write_name_pattern
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.calls.nesting import CallTree, build_call_tree
from tracekit.process.extremes import find_longest_by_keys
from tracekit.process.host.phases import (
    SHORT_NS,
    HostPhases,
    build_host_windows,
    classify_host_rows,
    mark_single_kernels,
    number_devices_by_appearance,
    unite_device_busy_time,
)
from tracekit.process.name_filters import map_coded_values

OPTIMIZER_STEPS = Table(
    "optimizer_steps",
    "the Optimizer.step calls of one optimizer in one step",
    {
        **KEYS,
        **PLACE,
        "name": NAME,
        "count": Column("int64", "Calls of Optimizer.step."),
        "dur_ns": Column("int64", "Σ their wall time on the host."),
        "tensor_count": Column("Int64", "Tensors updated: the call count that most op names share; <NA> if unclear."),
        "call_count": Column("int64", "Ops that Optimizer.step called itself."),
        "leaf_count": Column("int64", "Ops without an op inside them."),
        "leaf_ns": Column("int64", "Σ duration of those."),
        "kernel_count": Column("Int64", "Kernels launched in it; <NA> without a device."),
        "short_kernel_count": Column("Int64", "Those of less than 10 µs."),
        "kernel_ns": Column("Int64", "Σ duration of the kernels."),
        "idle_ns": Column("Int64", "Idle between the first and the last kernel of a call, Σ over devices."),
        **LONGEST,
    },
)


COUNTED = ("count", "dur_ns", "call_count", "leaf_count", "leaf_ns")
ON_DEVICE = ("kernel_count", "short_kernel_count", "kernel_ns", "idle_ns")

MIN_TENSORS = 8
"""A call count of fewer is not a loop over tensors."""

AGREEING = 0.8
"""The count of tensors is believed if this share of the ops occurs a whole number of times per tensor."""

FUSED_PASSES, LEAST_PASSES = 7, 2
"""A fused update passes over each tensor at most seven times: it reads weight, gradient and two moments, and writes all but the
gradient. A kernel of a single operator passes over it at least twice, to read it and to write it."""

USUAL_PASSES = 2.5
"""Passes of one kernel on average over the eight of AdamW: mul 2, lerp 3, mul 2, addcmul 3, sqrt 2, div 2, add 2, addcdiv 4."""

NO_OPTIMIZER = "no Optimizer.step was recorded"


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum up the Optimizer.step calls by step and optimizer, with the ops and kernels inside them."""
    if not trace.has("host_ops"):
        return {}
    side, where = trace.derived(classify_host_rows), trace.derived(build_host_windows)
    rows = np.flatnonzero(side.optimizer)
    if not len(rows):
        return {"optimizer_steps": {}}
    tree: CallTree = trace.derived(build_call_tree)
    start = trace.numbers("host_ops", "ts_ns")
    dur = trace.numbers("host_ops", "dur_ns")
    slot = np.full(len(start), -1, np.int64)
    slot[rows] = np.arange(len(rows))
    inside = np.flatnonzero(side.op & (side.within_optimizer >= 0))
    # The optimizer itself calls an op if no other op encloses it.
    direct = inside[tree.nearest(side.op | side.optimizer, inside) == side.within_optimizer[inside]]
    leaves = inside[side.leaf[inside]]
    owner = side.within_optimizer[leaves]
    names = trace.texts("host_ops", "name")
    steps = where.steps_of(where.step_at(start[rows]))
    keys = {**steps, "name": Coded(names.codes[rows], names.texts)}
    counts = {
        "count": np.ones(len(rows), np.int64),
        "dur_ns": dur[rows],
        "call_count": np.bincount(slot[side.within_optimizer[direct]], minlength=len(rows)),
        "leaf_count": np.bincount(slot[owner], minlength=len(rows)),
        "leaf_ns": sum_by_group(slot[owner], dur[leaves], len(rows)),
        **_sum_kernels_of_calls(trace, slot, len(rows)),
    }
    table: dict[str, Any] = {**sum_by_keys(keys, counts), **find_longest_by_keys(keys, start[rows], dur[rows])}
    name = map_coded_values(table["name"].codes.astype(np.int64), names.texts, str)
    tensors = {
        names.texts[code]: _count_tensors(names.codes[leaves[names.codes[owner] == code]], int(calls))
        for code, calls in zip(*np.unique(names.codes[rows], return_counts=True), strict=True)
    }
    tensor_count = make_nullable_numbers([tensors[each] for each in name.tolist()])
    return {"optimizer_steps": {**table, "name": name, "tensor_count": tensor_count}}


def _count_tensors(names: Ints, calls: int) -> int | None:
    """Count the tensors that an optimizer updates: the count per call that most of its op names have.

    Each tensor takes every op once, or a few times; of counts that equally many names have, the
    smallest. None if the ops do not occur in such multiples, or are too few.
    """
    _, counts = np.unique(names, return_counts=True)
    each = counts // calls
    each = each[each >= MIN_TENSORS]
    if not len(each):
        return None
    values, names_with = np.unique(each, return_counts=True)
    tensors = int(values[names_with.argmax()])
    in_step = counts[counts % (tensors * calls) == 0].sum()
    return tensors if in_step >= AGREEING * counts.sum() else None


def _sum_kernels_of_calls(trace: Trace, slot: Ints, size: int) -> dict[str, Any]:
    """Sum up the kernels launched in each call, and the idle time of their devices between the first and the last."""
    if not trace.has("device_ops"):
        return {}
    side: HostPhases = trace.derived(classify_host_rows)
    links: Launches = trace.derived(find_launches)
    chosen = np.flatnonzero(mark_single_kernels(trace) & (links.call >= 0))
    owner = side.within_optimizer[links.call[chosen]]
    chosen, owner = chosen[owner >= 0], slot[owner[owner >= 0]]
    number, dur = (trace.derived(number_devices_by_appearance), trace.numbers("device_ops", "dur_ns")[chosen])
    start = trace.numbers("device_ops", "ts_ns")[chosen]
    idle = np.zeros(size, np.int64)
    for device, busy in trace.derived(unite_device_busy_time).items():
        on_this = np.flatnonzero(number[chosen] == device)
        if not len(on_this):
            continue
        first = np.full(size, np.iinfo(np.int64).max)
        last = np.full(size, np.iinfo(np.int64).min)
        np.minimum.at(first, owner[on_this], start[on_this])
        np.maximum.at(last, owner[on_this], start[on_this] + dur[on_this])
        has = last >= first
        idle[has] += (last - first)[has] - measure_coverage(busy, first[has], last[has])
    return {
        "kernel_count": np.bincount(owner, minlength=size),
        "short_kernel_count": np.bincount(owner[dur < SHORT_NS], minlength=size),
        "kernel_ns": sum_by_group(owner, dur, size),
        "idle_ns": idle,
    }


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Pool optimizers of all ranks and steps by name; finding R26."""
    if not measured.has("optimizer_steps"):
        return ANALYSIS.skipped("no host activity was recorded")
    calls = measured.frame("optimizer_steps")
    if not len(calls):
        return ANALYSIS.skipped(NO_OPTIMIZER)
    pooled = _pool_optimizers(measured, calls)
    return ANALYSIS.answered(
        sheets=lambda: (_make_optimizer_sheet(measured, pooled),),
        findings=tuple(_find_unfused_optimizers(measured, pooled, thresholds)),
        verdicts=tuple(_list_optimizer_abstentions(measured, pooled)),
    )


def _pool_optimizers(measured: Measurements, calls: Frame) -> Frame:
    """Pool optimizers over ranks and steps: one row per run, role and optimizer, most time first.

    process_steps: steps of all processes that have it; `each_…`: mean per call of Optimizer.step.
    """
    by_optimizer = calls.group_by("run", "role", "name")
    pooled = by_optimizer.agg(
        **{name: sum_of(name) for name in COUNTED + ON_DEVICE},
        tensor_count=median_of("tensor_count"),
        rows=count_rows(),
        rows_on_device=count_of("kernel_count"),
    )
    on_device = pooled["rows_on_device"] == pooled["rows"]
    pooled = pooled.with_columns(**{name: where(on_device, pooled[name]) for name in ON_DEVICE})
    averaged = ("call_count", "leaf_count", "kernel_count", "short_kernel_count")
    each = {f"each_{name}": divide(pooled[name], pooled["count"]) for name in averaged}
    updates = choose(on_device, each["each_kernel_count"], each["each_call_count"])
    steps = [count_steps_of_processes(measured, rows.select(*PROCESS)) for rows in by_optimizer.frames()]
    process_steps = np.array([max(existing.count, 1) for existing in steps])
    step_ns = numbers([existing.step_ns for existing in steps])
    pooled = pooled.with_columns(
        **each,
        per_tensor=divide(updates, pooled["tensor_count"]),
        process_steps=process_steps,
        step_ns=step_ns,
        dur_each_ns=pooled["dur_ns"] / process_steps,
        share_ratio=divide(pooled["dur_ns"] / process_steps, step_ns),
    )
    return pooled.sort("dur_ns", "name", descending=["dur_ns"])


def _make_optimizer_sheet(measured: Measurements, pooled: Frame) -> Sheet:
    """List optimizers by host time."""
    times = pooled["count"] / pooled["process_steps"]
    if (times == np.round(times)).all():
        times = times.astype(np.int64)
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            name | optimizer
            dur_each_ns | time | ns | Host time in Optimizer.step per step and process.
            share_ratio | of step | ratio | Of the mean step wall.
            times | times | count | Optimizer.step calls per step and process.
            tensor_count | tensors | count | Tensors it updates, by the counts of its ops.
            each_call_count | calls | count | Ops that one Optimizer.step calls itself.
            each_leaf_count | ops | count | Innermost ops in one Optimizer.step.
            each_kernel_count | kernels | count | Kernels launched in one Optimizer.step.
            each_short_kernel_count | short kernels | count | Of less than 10 µs.
            per_tensor | per tensor | number | Kernels per tensor; where no GPU was recorded, calls per tensor.
        """),
    )
    return make_sheet("optimizer", "Optimizers by host time", headings, pooled.with_columns(times=times))


def _list_optimizer_abstentions(measured: Measurements, pooled: Frame) -> Iterator[Verdict]:
    """List runs without an optimizer, and runs whose optimizer works on the host beside a GPU."""
    for run in measured.frame("steps").distinct("run").values("run"):
        if not pooled.equals("run", run).any():
            yield Verdict(ANALYSIS.rules[0], "not applicable", NO_OPTIMIZER + phrase_run(measured, run))
    for of_run in pooled.group_by("run").frames():
        if (of_run.integers("kernel_count", missing=-1) == 0).all():
            reason = "Optimizer.step launches no kernel: the optimizer works on the host"
            reason += phrase_run(measured, of_run.values("run")[0])
            yield Verdict(ANALYSIS.rules[0], "not applicable", reason)


def _find_unfused_optimizers(measured: Measurements, pooled: Frame, thresholds: Thresholds) -> Iterator[Finding]:
    """R26: optimizers that update tensor by tensor, in several kernels (without a GPU: ops) each."""
    limit = thresholds.of("unfused-optimizer")
    for row in pooled.rows():
        per_tensor, short_count = row["per_tensor"], row["each_short_kernel_count"]
        on_device = row["kernel_count"] is not None
        has_many = per_tensor is not None and per_tensor >= limit["kernels_per_tensor"]
        has_short = on_device and short_count > limit["short_kernels"]
        if not (has_many or has_short) or row["kernel_count"] == 0:
            continue
        advice = "create the optimizer with fused=True"
        if on_device:
            lost_ns = row["idle_ns"] + _estimate_reread_ns(row)
            what, verb, count = "kernels", "launches", row["each_kernel_count"]
            advice += " (foreach=True if it has no fused version)"
        else:
            lost_ns = max(row["dur_ns"] - row["leaf_ns"], 0)
            what, verb, count = "ops", "runs", row["each_call_count"]
        lost_ns = lost_ns / row["process_steps"]
        ratio = divide_or_none(lost_ns, row["step_ns"])
        tensors = row["tensor_count"]
        over = "" if tensors is None else f" for {tensors:,} tensors"
        name = row["name"].partition("#")[2] or row["name"]
        of_whom = _name_optimizer_role(row, pooled) + phrase_run(measured, row["run"])
        yield Finding(
            "unfused-optimizer",
            thresholds.severity(ratio),
            f"{name} {verb} {_format_mean_count(count)} {what}{over}{of_whom}",
            advice,
            (
                Metric("per_tensor", per_tensor, "", "lower", label=f"{what} per tensor"),
                Metric("short_kernels", short_count, "count", "lower", label="kernels under 10 µs"),
                make_evidence_metric("dur_ns", round(row["dur_each_ns"]), "Optimizer.step per step"),
            ),
            (Place(run=row["run"], role=row["role"], name=row["name"]),),
            round(lost_ns),
            ratio,
            changes=tuple(_write_optimizer_changes(row, on_device=on_device)),
            instances=_pick_optimizer_steps(measured, row),
        )


def _pick_optimizer_steps(measured: Measurements, optimizer: Mapping[str, Any]) -> tuple[Instance, ...]:
    """Pick the longest call of this optimizer, and the median of the longest ones of each step."""
    rows = measured.frame("optimizer_steps")
    for name in ("run", "role", "name"):
        rows = rows.filter(rows.equals(name, optimizer[name]))
    return pick_longest_instances(rows)


def _write_optimizer_changes(row: Mapping[str, Any], *, on_device: bool) -> Iterator[str]:
    """List the changes of the fix: one launch for all tensors, which are read and written once."""
    optimizer = write_name_pattern([row["name"]])
    yield write_change("graph", by=optimizer)
    if on_device and row["kernel_ns"]:
        passes = USUAL_PASSES * (row["per_tensor"] or 0)
        yield write_change("fuse", by=optimizer, factor=FUSED_PASSES / passes if passes > FUSED_PASSES else None)


def _estimate_reread_ns(row: Mapping[str, Any]) -> float:
    """Estimate the least time that kernels of single operators spend on reading and writing tensors again."""
    if row["per_tensor"] is None or row["per_tensor"] * LEAST_PASSES <= FUSED_PASSES:
        return 0.0
    spared = 1 - FUSED_PASSES / (LEAST_PASSES * row["per_tensor"])
    return float(row["kernel_ns"] * spared)


def _name_optimizer_role(row: Mapping[str, Any], pooled: Frame) -> str:
    """Name the role in a claim if optimizers of several roles have this name."""
    is_alike = pooled.equals("run", row["run"]) & pooled.equals("name", row["name"])
    return f" in {row['role']}" if row["role"] is not None and is_alike.sum() > 1 else ""


def _format_mean_count(count: float) -> str:
    """Format a mean count: 290, or 28.5."""
    return f"{int(count):,}" if count.is_integer() else format_quantity(count, "count")


ANALYSIS = Analysis(
    id="optimizer",
    title="How long does the optimizer take?",
    reads=("host_ops",),
    writes=(OPTIMIZER_STEPS,),
    rests_on=("gpu_time",),
    rules=("unfused-optimizer",),
    thresholds={
        "unfused-optimizer": {
            # Kernels per tensor in one Optimizer.step (without a GPU: ops that it calls per tensor),
            "kernels_per_tensor": 4,
            # or kernels of less than 10 µs in one Optimizer.step.
            "short_kernels": 200,
        }
    },
    measure=measure,
    judge=judge,
)
