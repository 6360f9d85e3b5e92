"""Which host ops cost the host, launch the GPU's work and take memory? (definition M9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.analyses import Analysis
from tracekit.job.frames import make_run_heading
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.model import sweeps
from tracekit.model.intervals import measure_group_unions
from tracekit.model.report import Heading, Metric, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Coded
from tracekit.model.tables.columns import HOST_OP_KINDS, NAME, SELF_LAUNCHES
from tracekit.model.tables.frame import Frame, Ints, sum_of, where
from tracekit.model.tables.keys import count_by_group, number_keys, sum_by_group
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.calls.nesting import build_call_tree, find_innermost_host_rows, measure_exclusive_host_times
from tracekit.process.device.devices import number_devices
from tracekit.process.name_filters import list_present_codes, make_narrow_coded, mark_rows_of_kind
from tracekit.process.ops.shapes import find_nearest_or_self

OPERATORS = Table(
    "operators",
    "one host op name in one source",
    {
        **KEYS,
        "kind": Column("category", "As in host_ops.", HOST_OP_KINDS),
        "name": NAME,
        "count": Column("int64", "Calls."),
        "total_ns": Column("int64", "Wall time on its threads; a call within a call of the same name counts once."),
        "self_ns": Column("int64", "Wall time less that of direct children."),
        **SELF_LAUNCHES,
        "allocated_bytes": Column("Int64", "Bytes allocated while it was the innermost op."),
        "freed_bytes": Column("Int64", "Bytes freed while it was the innermost op."),
    },
)


Rows = npt.NDArray[np.integer[Any]]

KINDS = ("op", "runtime", "range")


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum up time, launched work and memory of every op, call and range by name."""
    is_chosen = mark_rows_of_kind(trace, "host_ops", *KINDS)
    if not is_chosen.any():
        return {}
    names, kinds = trace.texts("host_ops", "name"), trace.texts("host_ops", "kind")
    width = len(names.texts) + 1
    present, slot = _number_kinds_and_names(is_chosen, kinds, names)
    count = len(present)
    return {
        "operators": {
            "kind": make_narrow_coded(present // width, kinds.texts),
            "name": make_narrow_coded(present % width - 1, names.texts),
            "count": count_by_group(slot, count),
            "total_ns": _sum_wall_times(trace, slot, count),
            # Not cached: without recorded shapes no other analysis needs it.
            "self_ns": sum_by_group(slot, measure_exclusive_host_times(trace), count),
            **_sum_launched_work(trace, slot, count),
            **_sum_memory_of_ops(trace, slot, count),
        }
    }


def _number_kinds_and_names(is_chosen: npt.NDArray[np.bool_], kinds: Coded, names: Coded) -> tuple[Ints, Rows]:
    """Group rows by kind and name: (key of each group, ascending; group of each row, -1 for none).

    A key is the code of the kind · (names + 1) + the code of the name + 1.
    """
    width = len(names.texts) + 1
    room = width * len(kinds.texts)
    key = kinds.codes.astype(np.min_scalar_type(-room - 1))
    key *= width
    key += names.codes
    key += 1
    key[~is_chosen] = -1
    present, slot = list_present_codes(key, room)
    if present[0] < 0:
        present, slot = present[1:], slot - 1
    return present, slot


def _sum_wall_times(trace: Trace, slot: Rows, count: int) -> Ints:
    """Sum up the wall time of each group: on each thread the union of its intervals, so recursion counts once."""
    thread = trace.numbers("host_ops", "thread")
    start, dur = trace.numbers("host_ops", "ts_ns"), trace.numbers("host_ops", "dur_ns")
    if sweeps.native is not None:
        in_order = trace.derived(build_call_tree).order
        return sweeps.measure_outermost_times(in_order, thread, start, dur, slot, count)
    rows = np.flatnonzero(slot >= 0)
    pairs, pair = number_keys(thread[rows].astype(np.int64) * count + slot[rows])
    totals = measure_group_unions(start[rows], start[rows] + dur[rows], pair, len(pairs))
    return sum_by_group(pairs % count, totals, count)


def _sum_launched_work(trace: Trace, slot: Rows, count: int) -> dict[str, Any]:
    """Sum up device ops launched while an op was innermost: count, Σ duration, union per device."""
    if not trace.has("device_ops"):
        return {}
    of_trace = trace.derived(number_devices)
    links: Launches = trace.derived(find_launches)
    # A call outside any op counts as its own op: work launched from plain Python must not vanish.
    owner = np.where(links.op >= 0, links.op, links.call)
    linked = np.flatnonzero(owner >= 0)
    group = slot[owner[linked]].astype(np.int64)
    linked, group = linked[group >= 0], group[group >= 0]
    start = trace.numbers("device_ops", "ts_ns")[linked]
    dur, width = trace.numbers("device_ops", "dur_ns")[linked], max(len(of_trace), 1)
    pairs, compact = number_keys(group * width + of_trace.number[linked])
    busy = measure_group_unions(start, start + dur, compact, len(pairs))
    return {
        "launch_count": np.bincount(group, minlength=count),
        "device_ns": sum_by_group(group, dur, count),
        "device_busy_ns": sum_by_group(pairs // width, busy, count),
    }


def _sum_memory_of_ops(trace: Trace, slot: Rows, count: int) -> dict[str, Any]:
    """Sum up bytes allocated and freed while an op was innermost; empty unless memory was profiled."""
    if not trace.has("memory_ops"):
        return {}
    recorded = trace.nullable("memory_ops", "size_bytes")
    rows = np.flatnonzero(~recorded.missing)
    thread = trace.numbers("memory_ops", "thread")[rows]
    ts = trace.numbers("memory_ops", "ts_ns")[rows]
    size, is_op = recorded.values[rows], mark_rows_of_kind(trace, "host_ops", "op")
    owner = find_nearest_or_self(trace, is_op, find_innermost_host_rows(trace, thread, ts))
    group = np.where(owner >= 0, slot[owner], np.int64(-1))
    has_slot = group >= 0
    return {
        "allocated_bytes": sum_by_group(group[has_slot], np.maximum(size, 0)[has_slot], count),
        "freed_bytes": sum_by_group(group[has_slot], np.maximum(-size, 0)[has_slot], count),
    }


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Rank operators of all processes by host time, by launched device time and by memory."""
    operators = measured.frame("operators")
    operators = operators.filter(operators.equals("kind", "op"))
    if not len(operators):
        return ANALYSIS.skipped("no host op was recorded")
    pooled = _pool_operators(operators)
    calls = int(pooled["count"].sum())
    return ANALYSIS.answered(
        metrics=(Metric("operator_calls", calls, "count", label="operator calls"),),
        sheets=lambda: select_filled_sheets(*_make_operator_sheets(measured, pooled)),
    )


POOLED = (
    *("count", "total_ns", "self_ns", "launch_count", "device_ns", "device_busy_ns"),
    *("allocated_bytes", "freed_bytes"),
)
"""Columns that are added up over processes."""

_CAPTION = "Whole recording, warm-up included."

HOST_HEADINGS = parse_headings("""
    self_ns | self | ns | Time less that of ops and calls inside it, over all processes.
    self_ratio | share | ratio | Of the host ops' own time.
    total_ns | total | ns | Recursion counted once.
""")
GPU_HEADINGS = parse_headings("""
    device_ns | GPU Σ | ns | Σ duration of device ops launched by the op itself.
    device_busy_ns | GPU busy | ns | The same, overlaps counted once per GPU.
    launch_count | launches | count
""")
MEMORY_HEADINGS = parse_headings("""
    allocated_bytes | allocated | bytes | Bytes allocated while the op was innermost.
    freed_bytes | freed | bytes | Bytes freed while the op was innermost.
    net_bytes | net | bytes | Allocated less freed; not a leak if freed later by other ops.
""")


def _pool_operators(operators: Frame) -> Frame:
    """Pool operators over processes: one row per run and name."""
    pooled = operators.group_by("run", "name").agg(**{name: sum_of(name) for name in POOLED})
    self_ns = int(pooled["self_ns"].sum())
    net_bytes = pooled.integers("allocated_bytes") - pooled.integers("freed_bytes")
    return pooled.with_columns(
        self_ratio=pooled["self_ns"] / self_ns if self_ns else None,
        net_bytes=where(~pooled.is_missing("allocated_bytes"), net_bytes),
    )


def _make_operator_sheets(measured: Measurements, pooled: Frame) -> Iterator[Sheet]:
    """List operators by their host time, by the GPU time that they launch and by the memory that they allocate."""
    launching = pooled.filter(pooled.integers("launch_count") > 0)
    allocating = pooled.filter(pooled.integers("allocated_bytes") > 0)
    first, calls = Heading("name", "operator"), Heading("count", "calls", "count")
    for name, title, headings, operators in (
        ("host_time", "their own host time", HOST_HEADINGS, pooled),
        ("gpu_time", "the GPU time they launch", GPU_HEADINGS, launching),
        ("memory", "the memory they allocate", MEMORY_HEADINGS, allocating),
    ):
        cost, columns = headings[0].name, (*make_run_heading(measured), first, *headings, calls)
        most_first = operators.sort(cost, "name", descending=[cost])
        is_host = any(heading.name == "self_ratio" for heading in columns)
        caption = _CAPTION + " Share: of the own time of all host ops." * is_host
        yield make_sheet(f"operators_by_{name}", f"Operators by {title}", columns, most_first, caption=caption)


ANALYSIS = Analysis(
    id="operators",
    title="Which operators cost the host and feed the GPU?",
    reads=("host_ops",),
    writes=(OPERATORS,),
    measure=measure,
    judge=judge,
)
