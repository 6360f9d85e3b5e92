"""What does the optimizer cost? Optimizer.step by its calls, ops and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import (
    apart,
    each_run,
    in_run,
    label_headings,
    number_or_none,
    ordered,
    same_text,
    share_of,
    text_or_none,
    units,
    whole_if_exact,
)
from tracekit.job.stages.windows import steps_of
from tracekit.job.tables import as_headings, sheet
from tracekit.model.intervals import covered
from tracekit.model.keys import PROCESS, records, row_dicts, summed, sums_of
from tracekit.model.report import Finding, Metric, Place, Section, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Coded, numbers_or_none
from tracekit.model.tables.columns import NAME, PLACE
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show
from tracekit.process.calls.launches import Launches, launches
from tracekit.process.calls.nesting import Nesting, nesting
from tracekit.process.host.phases import (
    SHORT_NS,
    HostSide,
    device_busy,
    device_places,
    host_side,
    host_windows,
    single_kernels,
)
from tracekit.process.name_filters import by_value

OPTIMIZER_STEPS = Table(
    "optimizer_steps",
    "the Optimizer.step calls of one optimizer in one step",
    {
        **KEYS,
        **PLACE,
        "name": NAME,
        "count": Column("int64", "Calls of Optimizer.step."),
        "dur_ns": Column("int64", "Σ their wall time on the host."),
        "tensor_count": Column(
            "Int64",
            "Tensors updated: the call count that most op names share; <NA> if unclear.",
        ),
        "call_count": Column("int64", "Ops that Optimizer.step called itself."),
        "leaf_count": Column("int64", "Ops without an op inside them."),
        "leaf_ns": Column("int64", "Σ duration of those."),
        "kernel_count": Column("Int64", "Kernels launched in it; <NA> without a device."),
        "short_kernel_count": Column("Int64", "Those of less than 10 µs."),
        "kernel_ns": Column("Int64", "Σ duration of the kernels."),
        "idle_ns": Column(
            "Int64", "Idle between the first and the last kernel of a call, Σ over devices."
        ),
    },
)


Ints = npt.NDArray[np.int64]

COUNTED = ("count", "dur_ns", "call_count", "leaf_count", "leaf_ns")
ON_DEVICE = ("kernel_count", "short_kernel_count", "kernel_ns", "idle_ns")

MIN_TENSORS = 8
"""A count that fewer ops have tells of no loop over tensors."""

AGREEING = 0.8
"""Share of the ops whose names come a whole number of times per tensor, for the number to be believed."""

FUSED_PASSES, LEAST_PASSES = 7, 2
"""What a fused update passes over of each tensor, at most: it reads weight, gradient and two moments, and writes all but the
gradient. A kernel of a single operator passes over it twice at least, to read it and to write it."""

NO_OPTIMIZER = "no Optimizer.step was recorded"


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """The Optimizer.step calls by step and optimizer, with what runs inside them."""
    if not trace.has("host_ops"):
        return {}
    side, where = trace.derived(host_side), trace.derived(host_windows)
    rows = np.flatnonzero(side.optimizer)
    if not len(rows):
        return {"optimizer_steps": {}}
    tree: Nesting = trace.derived(nesting)
    start = trace.numbers("host_ops", "ts_ns")
    dur = trace.numbers("host_ops", "dur_ns")
    slot = np.full(len(start), -1, np.int64)
    slot[rows] = np.arange(len(rows))
    inside = np.flatnonzero(side.op & (side.within_optimizer >= 0))
    # An op is called by the optimizer itself where nothing but it encloses it.
    direct = inside[tree.nearest(side.op | side.optimizer, inside) == side.within_optimizer[inside]]
    leaves = inside[side.leaf[inside]]
    owner = side.within_optimizer[leaves]
    names = trace.texts("host_ops", "name")
    steps = where.steps_of(where.step_at(start[rows]))
    keys = {**steps, "name": Coded(names.codes[rows], names.texts)}
    counts = {
        "count": np.ones(len(rows), np.int64),
        "dur_ns": dur[rows],
        "call_count": _count(slot[side.within_optimizer[direct]], len(rows)),
        "leaf_count": _count(slot[owner], len(rows)),
        "leaf_ns": summed(slot[owner], dur[leaves], len(rows)),
        **_on_device(trace, slot, len(rows)),
    }
    table: dict[str, Any] = sums_of(keys, counts)
    name = by_value(table["name"].codes.astype(np.int64), names.texts, str)
    tensors = {
        names.texts[code]: _tensors(names.codes[leaves[names.codes[owner] == code]], int(calls))
        for code, calls in zip(*np.unique(names.codes[rows], return_counts=True), strict=True)
    }
    tensor_count = numbers_or_none(list(map(tensors.__getitem__, name.tolist())))
    columns = {"name": name, "tensor_count": tensor_count}
    return {"optimizer_steps": {**table, **columns}}


def _count(group: Ints, size: int) -> Ints:
    return np.bincount(group, minlength=size)


def _tensors(names: Ints, calls: int) -> int | None:
    """How many tensors an optimizer updates: the count per call that most of its op names have.

    Each tensor takes every op once, or a few times; of counts that equally many names have, the
    smallest. None where the ops do not come in such multiples, or too few of them to tell.
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


def _on_device(trace: Trace, slot: Ints, size: int) -> dict[str, Any]:
    """The kernels launched in each call, and what their devices idle from the first to the last of them."""
    if not trace.has("device_ops"):
        return {}
    side: HostSide = trace.derived(host_side)
    links: Launches = trace.derived(launches)
    chosen = np.flatnonzero(single_kernels(trace) & (links.call >= 0))
    owner = side.within_optimizer[links.call[chosen]]
    chosen, owner = chosen[owner >= 0], slot[owner[owner >= 0]]
    number, dur = trace.derived(device_places), trace.numbers("device_ops", "dur_ns")[chosen]
    start = trace.numbers("device_ops", "ts_ns")[chosen]
    idle = np.zeros(size, np.int64)
    for device, busy in trace.derived(device_busy).items():
        on_this = np.flatnonzero(number[chosen] == device)
        if not len(on_this):
            continue
        first = np.full(size, np.iinfo(np.int64).max)
        last = np.full(size, np.iinfo(np.int64).min)
        np.minimum.at(first, owner[on_this], start[on_this])
        np.maximum.at(last, owner[on_this], start[on_this] + dur[on_this])
        has = last >= first
        idle[has] += (last - first)[has] - covered(busy, first[has], last[has])
    return {
        "kernel_count": _count(owner, size),
        "short_kernel_count": _count(owner[dur < SHORT_NS], size),
        "kernel_ns": summed(owner, dur, size),
        "idle_ns": idle,
    }


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Optimizers of all ranks and steps pooled by name; finding R26."""
    if not measured.has("optimizer_steps"):
        return ANALYSIS.skipped("no host activity was recorded")
    if not measured.row_count("optimizer_steps"):
        return ANALYSIS.skipped(NO_OPTIMIZER)
    rows = units(measured["optimizer_steps"])
    pooled = _pool(measured, rows)
    return ANALYSIS.answered(
        sheets=lambda: (_sheet(measured, pooled),),
        findings=tuple(_unfused(measured, pooled, thresholds)),
        verdicts=tuple(_abstains(measured, rows, pooled)),
    )


def _pool(measured: Measurements, rows: pd.DataFrame) -> pd.DataFrame:
    """One row a (run, role, optimizer): Σ over ranks and steps, its tensors, and what one call holds on average.

    step_count: steps of all processes that have it; `each_…`: per call of Optimizer.step.
    """
    by = ["run", "role", "name"]
    optimizers = []
    for of_optimizer in apart(rows, by):
        who = dict(zip(by, next(records(of_optimizer, by)), strict=True))
        steps = steps_of(measured, of_optimizer[[*PROCESS]])
        has_kernels = of_optimizer["kernel_count"].notna().all()
        tensors = of_optimizer["tensor_count"].dropna()
        optimizers.append(
            {
                **who,
                **{name: int(of_optimizer[name].sum()) for name in COUNTED},
                **{
                    name: int(of_optimizer[name].sum()) if has_kernels else None
                    for name in ON_DEVICE
                },
                "tensor_count": int(tensors.median()) if len(tensors) else None,
                "process_steps": max(steps.count, 1),
                "step_ns": steps.step_ns,
            }
        )
    pooled = pd.DataFrame(optimizers).astype(dict.fromkeys([*ON_DEVICE, "tensor_count"], "Int64"))
    calls = pooled["count"].astype("Float64")
    for name in ("call_count", "leaf_count", "kernel_count", "short_kernel_count"):
        pooled[f"each_{name}"] = pooled[name].astype("Float64") / calls
    tensors = pooled["tensor_count"].astype("Float64")
    on_device = pooled["each_kernel_count"].notna()
    pooled["per_tensor"] = (
        pooled["each_kernel_count"].where(on_device, pooled["each_call_count"]) / tensors
    )
    pooled["dur_each_ns"] = pooled["dur_ns"] / pooled["process_steps"]
    pooled["share_ratio"] = pooled["dur_each_ns"] / pooled["step_ns"].astype("Float64")
    return ordered(pooled, dur_ns=False, name=True)


def _sheet(measured: Measurements, pooled: pd.DataFrame) -> Any:
    """Optimizers by host time."""
    optimizers = pooled.copy()
    optimizers["times"] = whole_if_exact(
        optimizers["count"].astype("Float64") / optimizers["process_steps"].astype("Float64")
    )
    headings = (
        *label_headings(measured),
        *as_headings("""
            name | optimizer
            dur_each_ns | time | ns | Host time in Optimizer.step per step and process.
            share_ratio | of step | ratio | Of the mean step wall.
            times | times | count | Optimizer.step calls per step and process.
            tensor_count | tensors | count | Tensors it updates, as the counts of its ops tell.
            each_call_count | calls | count | Ops that one Optimizer.step calls itself.
            each_leaf_count | ops | count | Innermost ops in one Optimizer.step.
            each_kernel_count | kernels | count | Kernels launched in one Optimizer.step.
            each_short_kernel_count | short kernels | count | Of less than 10 µs.
            per_tensor | per tensor | number | Kernels per tensor; where no GPU was recorded, calls per tensor.
        """),
    )
    return sheet("optimizer", "Optimizers by host time", headings, optimizers)


def _abstains(
    measured: Measurements, rows: pd.DataFrame, pooled: pd.DataFrame
) -> Iterator[Verdict]:
    """Runs without an optimizer, and those whose optimizer works on the host beside a GPU."""
    for run in units(measured["steps"])["run"].drop_duplicates():
        if not same_text(rows["run"], run).any():
            yield Verdict(ANALYSIS.rules[0], "not applicable", NO_OPTIMIZER + in_run(measured, run))
    for run, of_run in each_run(pooled):
        if of_run["kernel_count"].eq(0).fillna(value=False).all():
            reason = "Optimizer.step launches no kernel: the optimizer works on the host"
            yield Verdict(ANALYSIS.rules[0], "not applicable", reason + in_run(measured, run))


def _unfused(
    measured: Measurements, pooled: pd.DataFrame, thresholds: Thresholds
) -> Iterator[Finding]:
    """R26: optimizers that update tensor by tensor, in several kernels (without a GPU: ops) each."""
    limit = thresholds.of("unfused-optimizer")
    for row in row_dicts(pooled):
        on_device = not pd.isna(row["kernel_count"])
        has_many = (
            not pd.isna(row["per_tensor"]) and row["per_tensor"] >= limit["kernels_per_tensor"]
        )
        short = on_device and row["each_short_kernel_count"] > limit["short_kernels"]
        if not (has_many or short) or (on_device and not row["kernel_count"]):
            continue
        advice = "construct the optimizer with fused=True"
        if on_device:
            lost_ns, what, count = (
                row["idle_ns"] + _read_again_ns(row),
                "kernels",
                row["each_kernel_count"],
            )
            short_count = float(row["each_short_kernel_count"])
            advice += " (foreach=True where it has no fused form)"
            caveat = "counted is what the GPU idles between its kernels, and what these read and write more often than a fused one, at least"
        else:
            lost_ns, what = max(row["dur_ns"] - row["leaf_ns"], 0), "ops"
            count, short_count = row["each_call_count"], None
            caveat = "upper bound: host time of Optimizer.step outside its innermost ops"
        lost_ns = float(lost_ns) / row["process_steps"]
        ratio = share_of(lost_ns, row["step_ns"])
        over = "" if pd.isna(row["tensor_count"]) else f" for {int(row['tensor_count']):,} tensors"
        name = str(row["name"]).partition("#")[2] or str(row["name"])
        whose = _whose(row, pooled) + in_run(measured, row["run"])
        per_tensor, label = number_or_none(row["per_tensor"]), f"{what} per tensor"
        yield Finding(
            "unfused-optimizer",
            thresholds.severity(ratio),
            f"{name} takes {_count_text(float(count))} {what}{over}{whose}",
            advice,
            (
                Metric("per_tensor", per_tensor, "", "lower", label=label),
                Metric("short_kernels", short_count, "count", "lower", label="kernels under 10 µs"),
                evidence("dur_ns", round(row["dur_each_ns"]), "Optimizer.step per step"),
            ),
            (Place(role=text_or_none(row["role"]), name=str(row["name"])),),
            round(lost_ns),
            ratio,
            (caveat,),
        )


def _read_again_ns(row: Mapping[Any, Any]) -> float:
    """What kernels of single operators take, at least, because each reads and writes its tensor again."""
    if pd.isna(row["per_tensor"]) or row["per_tensor"] * LEAST_PASSES <= FUSED_PASSES:
        return 0.0
    spared = 1 - FUSED_PASSES / (LEAST_PASSES * float(row["per_tensor"]))
    return float(row["kernel_ns"]) * spared


def _whose(row: Mapping[Any, Any], pooled: pd.DataFrame) -> str:
    """How a claim names the role, where optimizers of several roles have this name."""
    same = pooled[same_text(pooled["run"], row["run"]) & (pooled["name"] == row["name"])]
    role = text_or_none(row["role"])
    return f" in {role}" if role is not None and len(same) > 1 else ""


def _count_text(count: float) -> str:
    """A mean count: 290, or 28.5."""
    return f"{int(count):,}" if count.is_integer() else show(count, "count")


ANALYSIS = Analysis(
    id="optimizer",
    title="What does the optimizer cost?",
    bases={"unfused-optimizer": "bound"},
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
        },
    },
    measure=measure,
    judge=judge,
)
