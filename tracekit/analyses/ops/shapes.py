"""Cost of operators by input shape, and including the operators that they call (definition M9)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.analyses import Analysis
from tracekit.job.frames import make_run_heading
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.model.report import Metric, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Nullable
from tracekit.model.tables.columns import CALL_COUNT, NAME, SELF_LAUNCHES, SHAPE_COUNT
from tracekit.model.tables.frame import Frame, Ints, max_of, sum_of, texts, where
from tracekit.model.tables.keys import count_by_group, number_keys, sum_by_group
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.calls.nesting import find_innermost_host_rows, measure_exclusive_host_times
from tracekit.process.name_filters import list_present_codes, make_narrow_coded, mark_rows_of_kind
from tracekit.process.ops.shapes import (
    DIMS,
    TYPES,
    InputShapes,
    MatrixProducts,
    collect_input_shapes,
    find_launch_threads,
    find_matrix_products,
    find_nearest_or_self,
    merge_calls,
    sum_device_work,
    sum_during_calls,
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
        "flop_count": Column("Int64", "FLOPs of all calls by their shapes; <NA> where no formula is known."),
    },
)

OPERATOR_TOTALS = Table(
    "operator_totals",
    "one op name in one source, with everything inside its calls",
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


Rows = npt.NDArray[np.integer[Any]]

MAX_SHAPES = 4_000
"""Most (op, shape) rows of one source: those with most self time, host and device; the rest is pooled by op."""

MAX_TEXT = 300
"""Longer shapes (lists of hundreds of tensors) are cut."""

NOT_RECORDED = "input shapes were not recorded: profile with record_shapes=True"


class Instants(NamedTuple):
    """Events at instants on threads: device launches or memory operations, with their ops."""

    thread: Ints
    ts_ns: Ints
    op: Ints
    values: tuple[Ints, ...]


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum up ops by name with all that ran inside them, and by name and input shape with their own part."""
    rows = np.flatnonzero(mark_rows_of_kind(trace, "host_ops", "op"))
    if not len(rows):
        return {}
    names = trace.texts("host_ops", "name")
    present, group = list_present_codes(names.codes[rows], len(names.texts))
    work, memory = _find_launches(trace), _find_memory_operations(trace)
    tables: dict[str, Mapping[str, Any]] = {
        "operator_totals": {
            "name": make_narrow_coded(present, names.texts),
            "count": count_by_group(group, len(present)),
            **_sum_inclusive(trace, rows, group, len(present), work, memory, with_totals=True),
        }
    }
    recorded: InputShapes = trace.derived(collect_input_shapes)
    if recorded.dims:
        tables["operator_shapes"] = _sum_shapes(trace, rows, work, memory)
    return tables


def _find_launches(trace: Trace) -> Instants | None:
    """Return the launches of device ops; None where no device was recorded."""
    if not trace.has("device_ops"):
        return None
    links: Launches = trace.derived(find_launches)
    dur = trace.numbers("device_ops", "dur_ns")
    return Instants(find_launch_threads(trace), links.ts_ns, links.op, (dur, np.ones_like(dur)))


def _find_memory_operations(trace: Trace) -> Instants | None:
    """Return allocations and frees; None where memory was not profiled."""
    if not trace.has("memory_ops"):
        return None
    recorded = trace.nullable("memory_ops", "size_bytes")
    size = np.where(recorded.missing, 0, recorded.values)
    thread = trace.numbers("memory_ops", "thread")
    ts = trace.numbers("memory_ops", "ts_ns")
    is_op = mark_rows_of_kind(trace, "host_ops", "op")
    op = find_nearest_or_self(trace, is_op, find_innermost_host_rows(trace, thread, ts))
    values = (np.maximum(size, 0), np.maximum(-size, 0))
    return Instants(thread.astype(np.int64), ts, op, values)


def _sum_inclusive(
    trace: Trace,
    rows: Ints,
    group: Rows,
    count: int,
    work: Instants | None,
    memory: Instants | None,
    *,
    with_totals: bool,
) -> dict[str, Any]:
    """Sum up the wall time of each group, and launches and allocations during it; recursion counts once."""
    call_sums = merge_calls(trace, rows, group, count)
    out: dict[str, Any] = {"total_ns": call_sums.total_ns}
    for what, names in (
        (work, ("device_total_ns", "launch_total_count")),
        (memory, ("allocated_total_bytes", "freed_total_bytes")),
    ):
        if what is None:
            continue
        counted = slice(None) if with_totals else slice(1)
        sums = sum_during_calls(call_sums, what.thread, what.ts_ns, *what.values[counted])
        out |= dict(zip(names[counted], sums, strict=True))
    return out


def _sum_shapes(trace: Trace, rows: Ints, work: Instants | None, memory: Instants | None) -> dict[str, Any]:
    """Make one row per (name, dims, types); beyond the cap the rest of each op is pooled."""
    names, recorded = trace.texts("host_ops", "name"), trace.derived(collect_input_shapes)
    own_ns = trace.derived(measure_exclusive_host_times)[rows]
    width = len(recorded.dims) + 1
    key = names.codes[rows].astype(np.int64) * width + recorded.number[rows] + 1
    keys, fine = number_keys(key)
    slot = np.full(len(names), -1, np.int64)
    slot[rows] = fine
    weight = sum_by_group(fine, own_ns, len(keys))
    if work is not None:
        weight += sum_by_group(_look_up_slots(slot, work.op), work.values[0], len(keys))
    is_kept = np.zeros(len(keys), np.bool_)
    is_kept[np.argsort(-weight, kind="stable")[:MAX_SHAPES]] = True
    # The rest of an op has the key after all shapes of that op.
    coarse = np.where(is_kept, keys * 2, (keys // width) * width * 2 + 1)
    last, of_fine = number_keys(coarse)
    group, count = of_fine[fine], len(last)
    slot[rows] = group
    number = np.where(last % 2 == 0, last // 2 % width - 1, -1)
    dims = np.array([*(text[:MAX_TEXT] for text in recorded.dims), None], object)
    types = np.array([*(t and t[:MAX_TEXT] for t in recorded.types), None], object)
    out: dict[str, Any] = {
        "name": make_narrow_coded(last // 2 // width, names.texts),
        "dims": dims[number],
        "types": types[number],
        "shape_count": np.bincount(of_fine, minlength=count),
        "count": np.bincount(group, minlength=count),
        **_sum_inclusive(trace, rows, group, count, work, memory, with_totals=False),
        "self_ns": _sum_self_times(own_ns, group, count),
        "flop_count": _sum_flops(trace, slot, count),
    }
    if work is not None:
        launched_slot = _look_up_slots(slot, work.op)
        launched, dur, busy = sum_device_work(trace, launched_slot, count)
        out |= {"launch_count": launched, "device_ns": dur, "device_busy_ns": busy}
    if memory is not None:
        out["allocated_bytes"] = sum_by_group(_look_up_slots(slot, memory.op), memory.values[0], count)
    return out


def _look_up_slots(slot: Ints, op: Ints) -> Ints:
    """Return the group of each op row; -1 for row -1."""
    return np.where(op >= 0, slot[op], -1)


def _sum_self_times(own_ns: Ints, group: Ints, count: int) -> Ints:
    """Sum up the self time of each group."""
    self_ns = sum_by_group(group, own_ns, count)
    assert int(self_ns.sum()) == int(own_ns.sum()), "no own time may be lost by grouping"
    return self_ns


def _sum_flops(trace: Trace, slot: Ints, count: int) -> Nullable:
    """Sum up the FLOPs of each group; missing without a known formula or where an op inside counts them."""
    recorded: MatrixProducts = trace.derived(find_matrix_products)
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
    sums = sum_by_group(slot[chosen], exact[recorded.number[chosen]], count)
    return Nullable(sums, ~is_known)


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Pool operators of all processes by input shape, and with all that runs inside them."""
    totals = measured.frame("operator_totals")
    if not len(totals):
        return ANALYSIS.skipped("no host op was recorded")
    on_device = not totals.is_missing("device_total_ns").all()
    has_memory = not totals.is_missing("allocated_total_bytes").all()
    by_shape = measured.frame("operator_shapes")
    if not (len(by_shape) or on_device or has_memory):
        return ANALYSIS.skipped(NOT_RECORDED)
    distinct = len(by_shape.distinct("run", "name", "dims", "types"))
    metrics = (Metric("operator_shapes", distinct, "count", label="operators by input shape"),)
    return ANALYSIS.answered(
        metrics=metrics if distinct else (),
        sheets=lambda: select_filled_sheets(
            _make_shape_sheet(measured, by_shape, on_device=on_device),
            _make_inclusive_sheet(measured, totals, on_device=on_device),
        ),
        caveats=() if distinct else (NOT_RECORDED,),
    )


SUMMED_OF_SHAPES = (
    *("count", "total_ns", "self_ns", "device_total_ns", "device_ns", "device_busy_ns"),
    *("launch_count", "allocated_bytes", "flop_count"),
)
SUMMED_OF_TOTALS = (
    *("count", "total_ns", "device_total_ns", "launch_total_count"),
    *("allocated_total_bytes", "freed_total_bytes"),
)


def _make_shape_sheet(measured: Measurements, rows: Frame, *, on_device: bool) -> Sheet:
    """List operators by name and shape, by launched GPU time; without a GPU by their own host time."""
    sums = {name: sum_of(name) for name in SUMMED_OF_SHAPES}
    by_shape = rows.group_by("run", "name", "dims", "types")
    pooled = by_shape.agg(**sums, shape_count=max_of("shape_count"))
    cost = "device_ns" if on_device else "self_ns"
    pooled = pooled.filter(pooled.integers(cost) > 0)
    pooled = pooled.sort(cost, "self_ns", "name", descending=[cost, "self_ns"])
    counts = pooled.values("shape_count")
    shapes_of = zip(pooled.values("dims"), counts, strict=True)
    pooled = pooled.with_columns(
        shape=texts([format_shapes(dims, count) for dims, count in shapes_of]),
        type=texts([format_types(types) for types in pooled.values("types")]),
        gflop=where(~pooled.is_missing("flop_count"), pooled.number("flop_count") / 1e9),
    )
    device = parse_headings("""
        device_ns | GPU self | ns | Σ duration of device ops that the op launched itself.
        device_busy_ns | GPU busy | ns | The same, overlaps counted once per GPU.
        device_total_ns | GPU total | ns | Σ duration of device ops launched during the op.
        launch_count | launches | count | Launched by the op itself.
    """)
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            name | operator
            shape | input shapes | text | — has no shape.
            type | types
            count | calls | count
        """),
        *(device if on_device else ()),
        *parse_headings("""
            self_ns | host self | ns | Host time less that of ops and calls inside it.
            total_ns | host total | ns | Recursion counted once.
            allocated_bytes | allocated | bytes | Bytes allocated while the op was innermost.
            gflop | GFLOP | number | 10⁹ FLOPs of all calls, from their shapes; — where no formula is known.
        """),
    )
    return make_sheet(
        "operators_by_shape",
        "Operators by input shape",
        headings,
        pooled,
        caption="Over all processes and steps. FLOPs count at the innermost operator with known shapes.",
    )


def _make_inclusive_sheet(measured: Measurements, totals: Frame, *, on_device: bool) -> Sheet:
    """List operators with all that ran inside their calls."""
    sums = {name: sum_of(name) for name in SUMMED_OF_TOTALS}
    pooled = totals.group_by("run", "name").agg(**sums)
    cost = "device_total_ns" if on_device else "allocated_total_bytes"
    pooled = pooled.filter(pooled.integers(cost) > 0).sort(cost, "name", descending=[cost])
    device = parse_headings("""
        device_total_ns | GPU total | ns | Σ duration of device ops launched during the op.
        launch_total_count | launches | count | Launched during the op.
    """)
    return make_sheet(
        "operators_inclusive",
        "Operators with everything inside them",
        (
            *make_run_heading(measured),
            *parse_headings("""
            name | operator
            count | calls | count
        """),
            *(device if on_device else ()),
            *parse_headings("""
            total_ns | host total | ns | Recursion counted once.
            allocated_total_bytes | allocated | bytes | Bytes allocated during the op.
            freed_total_bytes | freed | bytes | Bytes freed during the op.
        """),
        ),
        pooled,
        caption="An operator and those inside it both count the same work: the rows do not add up.",
    )


def format_shapes(dims: object, count: int = 1) -> str:
    """Format recorded shapes for people, without inputs that are not tensors.

    >>> format_shapes("[[1024],[8944,1024],[],[]]"), format_shapes(None, 3), format_shapes("[[],[]]")
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
    return ", ".join(sizes for entry in shape_list if (sizes := _format_sizes(entry))) or "—"


def _format_sizes(entry: object) -> str:
    """Format the sizes of one tensor, or of a list of tensors."""
    if not isinstance(entry, list):
        return ""
    if any(isinstance(inner, list) for inner in entry):
        return f"({', '.join(sizes for inner in entry if (sizes := _format_sizes(inner)))})"
    return "×".join(str(size) for size in entry)


def format_types(types: object) -> str | None:
    """Format the distinct types of tensors, in order; None without tensors.

    >>> format_types('["c10::BFloat16","c10::BFloat16","Scalar",""]')
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
    title="Which operators take the time, by input shape and in total?",
    reads=("host_ops", "device_ops", "memory_ops"),
    args=(DIMS, TYPES),
    writes=(OPERATOR_SHAPES, OPERATOR_TOTALS),
    measure=measure,
    judge=judge,
)
