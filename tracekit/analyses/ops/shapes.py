"""What do operators cost by the shape of their inputs, and with all that runs inside them? (definition M9)"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.frames import count_distinct, grouped, ordered, run_heading
from tracekit.job.tables import as_headings, sheet, with_rows
from tracekit.model.keys import counted, numbered, summed
from tracekit.model.report import Metric, Section
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Nullable
from tracekit.model.tables.columns import CALL_COUNT, NAME, SELF_LAUNCHES, SHAPE_COUNT
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.calls.launches import Launches, launches
from tracekit.process.calls.nesting import innermost, own_times
from tracekit.process.name_filters import narrow, numbered_codes, of_kind
from tracekit.process.ops.shapes import (
    DIMS,
    TYPES,
    Products,
    Shapes,
    calls,
    device_work,
    during,
    launch_threads,
    nearest_or_self,
    products,
    shapes,
)

OPERATOR_SHAPES = Table(
    "operator_shapes",
    "one op name with one input shape in one source",
    {
        **KEYS,
        "name": NAME,
        "dims": Column("category", "Input Dims as recorded; <NA> for the pooled rest of the op."),
        "types": Column("category", "Input type as recorded."),
        "shape_count": SHAPE_COUNT,
        "count": CALL_COUNT,
        "total_ns": Column("int64", "Wall time on its threads; recursion counted once."),
        "self_ns": Column("int64", "Wall time less that of direct children."),
        "device_total_ns": Column("Int64", "Σ duration of device ops launched during it."),
        **SELF_LAUNCHES,
        "allocated_total_bytes": Column("Int64", "Bytes allocated during it."),
        "allocated_bytes": Column("Int64", "Bytes allocated while it was the innermost op."),
        "flop_count": Column(
            "Int64", "FLOPs of all calls by their shapes; <NA> where no formula is known."
        ),
    },
)

OPERATOR_TOTALS = Table(
    "operator_totals",
    "one op name in one source, with all that ran inside its calls",
    {
        **KEYS,
        "name": NAME,
        "count": CALL_COUNT,
        "total_ns": Column("int64", "Wall time on its threads; recursion counted once."),
        "device_total_ns": Column("Int64", "Σ duration of device ops launched during it."),
        "launch_total_count": Column("Int64", "Device ops launched during it."),
        "allocated_total_bytes": Column("Int64", "Bytes allocated during it."),
        "freed_total_bytes": Column("Int64", "Bytes freed during it."),
    },
)


Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.integer[Any]]

MAX_SHAPES = 4_000
"""Most (op, shape) of one source kept one by one: those with most time of their own, host and device."""

MAX_TEXT = 300
"""Longer texts of shapes (lists of hundreds of tensors) are cut."""

NOT_RECORDED = "input shapes were not recorded: profile with record_shapes=True"


class Instants(NamedTuple):
    """What happened at instants on threads: device launches and memory operations, with their ops."""

    thread: Ints
    ts_ns: Ints
    op: Ints
    values: tuple[Ints, ...]


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Ops by name with all that ran inside them, and by name and input shape with their own part."""
    rows = np.flatnonzero(of_kind(trace, "host_ops", "op"))
    if not len(rows):
        return {}
    names = trace.texts("host_ops", "name")
    present, group = numbered_codes(names.codes[rows], len(names.texts))
    work, memory = _launched(trace), _memory(trace)
    tables: dict[str, Mapping[str, Any]] = {
        "operator_totals": {
            "name": narrow(present, names.texts),
            "count": counted(group, len(present)),
            **_inclusive(trace, rows, group, len(present), work, memory, whole=True),
        }
    }
    recorded: Shapes = trace.derived(shapes)
    if recorded.dims:
        tables["operator_shapes"] = _by_shape(trace, rows, work, memory)
    return tables


def _launched(trace: Trace) -> Instants | None:
    """The launches of device ops; None where no device was recorded."""
    if not trace.has("device_ops"):
        return None
    links: Launches = trace.derived(launches)
    dur = trace.numbers("device_ops", "dur_ns")
    return Instants(launch_threads(trace), links.ts_ns, links.op, (dur, np.ones_like(dur)))


def _memory(trace: Trace) -> Instants | None:
    """Allocations and frees; None where memory was not profiled."""
    if not trace.has("memory_ops"):
        return None
    recorded = trace.nullable("memory_ops", "size_bytes")
    size = np.where(recorded.missing, 0, recorded.values)
    thread = trace.numbers("memory_ops", "thread")
    ts = trace.numbers("memory_ops", "ts_ns")
    is_op = of_kind(trace, "host_ops", "op")
    op = nearest_or_self(trace, is_op, innermost(trace, thread, ts))
    values = (np.maximum(size, 0), np.maximum(-size, 0))
    return Instants(thread.astype(np.int64), ts, op, values)


def _inclusive(
    trace: Trace,
    rows: Ints,
    group: Rows,
    count: int,
    work: Instants | None,
    memory: Instants | None,
    *,
    whole: bool,
) -> dict[str, Any]:
    """Wall time of each group, and what was launched and allocated during it; recursion counts once."""
    call_sums = calls(trace, rows, group, count)
    out: dict[str, Any] = {"total_ns": call_sums.total_ns}
    for what, names in (
        (work, ("device_total_ns", "launch_total_count")),
        (memory, ("allocated_total_bytes", "freed_total_bytes")),
    ):
        if what is None:
            continue
        counted = slice(None) if whole else slice(1)
        sums = during(call_sums, what.thread, what.ts_ns, *what.values[counted])
        out |= dict(zip(names[counted], sums, strict=True))
    return out


def _by_shape(
    trace: Trace, rows: Ints, work: Instants | None, memory: Instants | None
) -> dict[str, Any]:
    """One row a (name, dims, types); beyond the cap the rest of each op together."""
    names, recorded = trace.texts("host_ops", "name"), trace.derived(shapes)
    own_ns = trace.derived(own_times)[rows]
    width = len(recorded.dims) + 1
    key = names.codes[rows].astype(np.int64) * width + recorded.number[rows] + 1
    keys, fine = numbered(key)
    slot = np.full(len(names), -1, np.int64)
    slot[rows] = fine
    weight = summed(fine, own_ns, len(keys))
    if work is not None:
        weight += summed(_slot_of(slot, work.op), work.values[0], len(keys))
    is_kept = np.zeros(len(keys), np.bool_)
    is_kept[np.argsort(-weight, kind="stable")[:MAX_SHAPES]] = True
    # The rest of an op goes by the key beyond all shapes of that op.
    coarse = np.where(is_kept, keys * 2, (keys // width) * width * 2 + 1)
    last, of_fine = numbered(coarse)
    group, count = of_fine[fine], len(last)
    slot[rows] = group
    number = np.where(last % 2 == 0, last // 2 % width - 1, -1)
    dims = np.array([*(text[:MAX_TEXT] for text in recorded.dims), None], object)
    types = np.array([*(t and t[:MAX_TEXT] for t in recorded.types), None], object)
    out: dict[str, Any] = {
        "name": narrow(last // 2 // width, names.texts),
        "dims": dims[number],
        "types": types[number],
        "shape_count": np.bincount(of_fine, minlength=count),
        "count": np.bincount(group, minlength=count),
        **_inclusive(trace, rows, group, count, work, memory, whole=False),
        "self_ns": _self(own_ns, group, count),
        "flop_count": _flops(trace, slot, count),
    }
    if work is not None:
        launched_slot = _slot_of(slot, work.op)
        launched, dur, busy = device_work(trace, launched_slot, count)
        out |= {"launch_count": launched, "device_ns": dur, "device_busy_ns": busy}
    if memory is not None:
        out["allocated_bytes"] = summed(_slot_of(slot, memory.op), memory.values[0], count)
    return out


def _slot_of(slot: Ints, op: Ints) -> Ints:
    """The group of each op row; -1 for row -1."""
    return np.where(op >= 0, slot[op], -1)


def _self(own_ns: Ints, group: Ints, count: int) -> Ints:
    self_ns = summed(group, own_ns, count)
    assert int(self_ns.sum()) == int(own_ns.sum()), "no own time may be lost by grouping"
    return self_ns


def _flops(trace: Trace, slot: Ints, count: int) -> Nullable:
    """FLOPs of each group; NA where no formula is known or where they are counted at an op inside."""
    recorded: Products = trace.derived(products)
    rows = np.flatnonzero(recorded.number >= 0)
    per_call = np.array([product.flops for _, product in recorded.products], float)
    number = recorded.number[rows]
    rough = np.bincount(slot[rows], per_call[number], minlength=count) if len(rows) else None
    is_known = np.zeros(count, np.bool_)
    is_known[slot[rows]] = True
    if rough is None or not len(recorded.products):
        return Nullable(np.zeros(count, np.int64), ~is_known)
    is_known &= rough < 2.0**62
    exact = np.array([product.flops for _, product in recorded.products], np.int64)
    chosen = rows[is_known[slot[rows]]]
    sums = summed(slot[chosen], exact[recorded.number[chosen]], count)
    return Nullable(sums, ~is_known)


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Operators of all processes pooled, by input shape and with all that runs inside them."""
    if not measured.row_count("operator_totals"):
        return ANALYSIS.skipped("no host op was recorded")
    totals = measured["operator_totals"]
    on_device = bool(totals["device_total_ns"].notna().any())
    has_memory = bool(totals["allocated_total_bytes"].notna().any())
    if not (measured.row_count("operator_shapes") or on_device or has_memory):
        return ANALYSIS.skipped(NOT_RECORDED)
    by_shape = measured["operator_shapes"]
    distinct = count_distinct(by_shape, ["run", "name", "dims", "types"])
    metrics = (Metric("operator_shapes", distinct, "count", label="operators by input shape"),)
    return ANALYSIS.answered(
        metrics=metrics if distinct else (),
        sheets=lambda: with_rows(
            _shape_sheet(measured, by_shape, on_device), _total_sheet(measured, totals, on_device)
        ),
        caveats=() if len(by_shape) else (NOT_RECORDED,),
    )


def _shape_sheet(measured: Measurements, rows: pd.DataFrame, on_device: bool) -> Any:
    """Operators by name and shape: the GPU time they launch first, without a GPU their own host time."""
    keys = ["run", "name", "dims", "types"]
    sums = [
        "count",
        "total_ns",
        "self_ns",
        "device_total_ns",
        "device_ns",
        "device_busy_ns",
        "launch_count",
        "allocated_bytes",
        "flop_count",
    ]
    sums_of = {name: (name, "known_sum") for name in sums}
    pooled = grouped(rows, keys, **sums_of, shape_count=("shape_count", "max"))
    pooled["shape"] = [
        shown(dims, count)
        for dims, count in zip(pooled["dims"], pooled["shape_count"], strict=True)
    ]
    pooled["type"] = [shown_types(text) for text in pooled["types"]]
    pooled["gflop"] = pooled["flop_count"].astype("Float64") / 1e9
    by = "device_ns" if on_device else "self_ns"
    pooled[by] = pooled[by].astype("Int64").fillna(0)
    pooled = ordered(pooled, **{by: False, "self_ns": False, "name": True})
    device = as_headings("""
        device_ns | GPU self | ns | Σ duration of device ops that the op launched itself.
        device_busy_ns | GPU busy | ns | The same, overlaps counted once per GPU.
        device_total_ns | GPU total | ns | Σ duration of device ops launched during the op.
        launch_count | launches | count | Launched by the op itself.
    """)
    headings = (
        *run_heading(measured),
        *as_headings("""
            name | operator
            shape | input shapes | text | — has no shape.
            type | types
            count | calls | count
        """),
        *(device if on_device else ()),
        *as_headings("""
            self_ns | host self | ns | Host time less that of ops and calls inside it.
            total_ns | host total | ns | Recursion counted once.
            allocated_bytes | allocated | bytes | Bytes allocated while the op was innermost.
            gflop | GFLOP | number | 10⁹ FLOPs of all calls, from their shapes; — where no formula is known.
        """),
    )
    return sheet(
        "operators_by_shape",
        "Operators by input shape",
        headings,
        pooled[(pooled[by] > 0).to_numpy(np.bool_)],
        caption="Over all processes and steps. FLOPs stand at the innermost operator whose shapes tell them.",
    )


def _total_sheet(measured: Measurements, rows: pd.DataFrame, on_device: bool) -> Any:
    """Operators with all that ran inside their calls."""
    sums = [
        "count",
        "total_ns",
        "device_total_ns",
        "launch_total_count",
        "allocated_total_bytes",
        "freed_total_bytes",
    ]
    pooled = grouped(rows, ["run", "name"], **{name: (name, "known_sum") for name in sums})
    by = "device_total_ns" if on_device else "allocated_total_bytes"
    pooled = pooled[(pooled[by].astype("Int64").fillna(0) > 0).to_numpy(np.bool_)]
    pooled = ordered(pooled, **{by: False, "name": True})
    device = as_headings("""
        device_total_ns | GPU total | ns | Σ duration of device ops launched during the op.
        launch_total_count | launches | count | Launched during the op.
    """)
    headings = (
        *run_heading(measured),
        *as_headings("""
            name | operator
            count | calls | count
        """),
        *(device if on_device else ()),
        *as_headings("""
            total_ns | host total | ns | Recursion counted once.
            allocated_total_bytes | allocated | bytes | Bytes allocated during the op.
            freed_total_bytes | freed | bytes | Bytes freed during the op.
        """),
    )
    return sheet(
        "operators_inclusive",
        "Operators with all that runs inside them",
        headings,
        pooled,
        caption="An operator and those inside it both count the same work: the rows do not add up.",
    )


def shown(dims: object, count: int = 1) -> str:
    """Recorded shapes as a person reads them; inputs that are no tensors are left out.

    >>> shown("[[1024],[8944,1024],[],[]]"), shown(None, 3), shown("[[],[]]")
    ('1024, 8944×1024', '3 other shapes', '—')
    """
    if not isinstance(dims, str):
        return f"{count:,} other shapes" if count > 1 else "—"
    try:
        shape_list = json.loads(dims)
    except (ValueError, RecursionError):
        return dims
    if not isinstance(shape_list, list):
        return dims
    return ", ".join(text for text in map(_one, shape_list) if text) or "—"


def _one(entry: object) -> str:
    if not isinstance(entry, list):
        return ""
    if any(isinstance(inner, list) for inner in entry):
        return f"({', '.join(text for text in map(_one, entry) if text)})"
    return "×".join(str(size) for size in entry)


def shown_types(types: object) -> str | None:
    """The distinct types of tensors, in order; None if there are none.

    >>> shown_types('["c10::BFloat16","c10::BFloat16","Scalar",""]')
    'BFloat16'
    """
    try:
        type_list = json.loads(types) if isinstance(types, str) else None
    except (ValueError, RecursionError):
        return None
    texts = [str(t).removeprefix("c10::") for t in type_list] if isinstance(type_list, list) else []
    return ", ".join(dict.fromkeys(t for t in texts if t and t not in _NO_TENSOR)) or None


_NO_TENSOR = ("Scalar", "ScalarList", "Int", "Bool", "Double", "GenericList", "Device")


ANALYSIS = Analysis(
    id="shapes",
    title="What do operators cost by input shape, and with all that runs inside them?",
    reads=("host_ops", "device_ops", "memory_ops"),
    args=(DIMS, TYPES),
    writes=(OPERATOR_SHAPES, OPERATOR_TOTALS),
    measure=measure,
    judge=judge,
)
