"""Host activity over time: data loading, garbage collection, synchronizing calls, ops, or none."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.intervals import Intervals, merge_interval_sets, merge_intervals
from tracekit.model.records import dataclass
from tracekit.model.stages import (
    STAGES,
    get_canonical_stage,
    is_collective_range,
    parse_numbered_step,
    parse_profiler_step,
)
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.calls.nesting import build_call_tree
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_LOADER = re.compile(r"enumerate\(DataLoader\)")


def is_data_loader_name(name: str) -> bool:
    """Check whether a range of this name is a wait for the data loader."""
    return _LOADER.match(name) is not None


_WAITS_FOR_DEVICE = re.compile(r"(stream|device|event|context|ctx|thread)_?synchronize", re.IGNORECASE)
_COPY_CALL = re.compile(r"memcpy", re.IGNORECASE)
_ASYNC = re.compile(r"async", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HostActivity:
    """Activity of all host threads over time; the sets may overlap.

    `op` has ops, runtime calls and collectives. `code` has Python functions, and ranges with no op and no
    other range inside. Ranges that only name a step or stage do not count as activity.
    """

    loader: Intervals
    collection: Intervals
    overhead: Intervals
    op: Intervals
    code: Intervals


def measure_host_activity(trace: Trace) -> HostActivity:
    """Measure the activity of all host threads, as unions of intervals."""
    names = trace.texts("host_ops", "name")
    collective = mark_wanted_names(names, is_collective_range) & mark_rows_of_kind(trace, "host_ops", "range")
    busy = mark_rows_of_kind(trace, "host_ops", "op", "runtime") | collective
    return HostActivity(
        _unite_chosen_rows(trace, mark_wanted_names(names, is_data_loader_name)),
        trace.derived(find_garbage_collections),
        _unite_chosen_rows(trace, mark_rows_of_kind(trace, "host_ops", "overhead")),
        _unite_chosen_rows(trace, busy),
        merge_interval_sets([_unite_chosen_rows(trace, _find_leaf_ranges(trace, busy)), _find_python_activity(trace)]),
    )


def _find_leaf_ranges(trace: Trace, busy: Mask) -> Mask:
    """Find ranges with nothing inside that are neither collective, data loading nor step or stage."""
    ranges = mark_rows_of_kind(trace, "host_ops", "range") & ~busy
    names = trace.texts("host_ops", "name")
    ranges &= mark_wanted_names(
        names, lambda name: parse_profiler_step(name) is None and parse_numbered_step(name) is None
    )
    # Rows at the top or outside the tree have the parent -1, which marks the extra last element.
    encloses = np.zeros(len(ranges) + 1, np.bool_)
    encloses[trace.derived(build_call_tree).parent] = True
    return ranges & ~encloses[:-1] & ~_mark_stage_rows(trace)


def _mark_stage_rows(trace: Trace) -> Mask:
    """Mark rows with the name of a known stage."""
    role = trace.source.role
    return mark_wanted_names(trace.texts("host_ops", "name"), lambda name: get_canonical_stage(name, role) in STAGES)


def _find_python_activity(trace: Trace) -> Intervals:
    """Find when any recorded Python function ran."""
    every_call = np.ones(len(trace.numbers("python_calls", "ts_ns")), np.bool_)
    return _unite_chosen_rows(trace, every_call, "python_calls")


@dataclass(frozen=True, slots=True)
class SyncCalls:
    """Calls in which the host waits for the device, in order of their ends.

    Per call: `row` of `host_ops`; `op`, the outermost op around it (-1: none); and `occasion`, a number
    shared by the calls of one innermost op (a copy and the wait for it are one occasion).
    """

    row: Ints
    op: Ints
    occasion: Ints


def find_sync_calls(trace: Trace) -> SyncCalls:
    """Find stream, device and event synchronizations, blocking copies, and pageable copies that the host waited for.

    An asynchronous copy counts if its memory is pageable and the call returned after the copy ended.
    """
    runtime = mark_rows_of_kind(trace, "host_ops", "runtime")
    chosen = mark_wanted_names(trace.texts("host_ops", "name"), _is_synchronizing_call_name) & runtime
    chosen[_find_waited_copies(trace)] = True
    rows = chosen.nonzero()[0]
    rows = rows[np.lexsort((rows, _compute_row_ends(trace, "host_ops", rows)))]
    is_op = mark_rows_of_kind(trace, "host_ops", "op")
    tree = trace.derived(build_call_tree)
    inner = tree.nearest(is_op, rows)
    outer = inner.copy()
    climbing = (outer >= 0).nonzero()[0]
    while len(climbing):
        above = tree.nearest(is_op, outer[climbing])
        climbing, above = climbing[above >= 0], above[above >= 0]
        outer[climbing] = above
    return SyncCalls(rows, outer, np.where(inner >= 0, inner, -2 - rows))


def _is_synchronizing_call_name(name: str) -> bool:
    """Check whether a runtime call of this name returns only when the device is done."""
    if _WAITS_FOR_DEVICE.search(name):
        return True
    return _COPY_CALL.search(name) is not None and _ASYNC.search(name) is None


def _find_waited_copies(trace: Trace) -> Ints:
    """Find calls (rows of `host_ops`) that copied pageable memory and returned after their copy had ended."""
    names = trace.texts("device_ops", "name")
    if not len(names) or not len(trace.texts("host_ops", "name")):
        return np.empty(0, np.int64)
    links: Launches = trace.derived(find_launches)
    pageable = mark_wanted_names(names, lambda name: "pageable" in name.lower())
    rows = (pageable & mark_rows_of_kind(trace, "device_ops", "memcpy") & (links.call >= 0)).nonzero()[0]
    call: Ints = links.call[rows]
    returned = _compute_row_ends(trace, "host_ops", call)
    ended = _compute_row_ends(trace, "device_ops", rows)
    waiting_calls: Ints = call[returned >= ended]
    return waiting_calls


def _compute_row_ends(trace: Trace, table: str, rows: Ints) -> Ints:
    """Compute when these rows of a table end, ns."""
    ends: Ints = trace.numbers(table, "ts_ns")[rows] + trace.numbers(table, "dur_ns")[rows]
    return ends


def mark_calls_on_launching_threads(trace: Trace, rows: Ints, calls: Ints) -> Mask:
    """Mark the calls (rows of `host_ops`) that run on a thread that launched any of these device ops.

    Only such threads can leave the device without work; a watchdog that waits for the device cannot.
    """
    links: Launches = trace.derived(find_launches)
    launched_by = np.where(links.call[rows] >= 0, links.call[rows], links.op[rows])
    thread = trace.numbers("host_ops", "thread")
    launches_work = np.zeros(int(thread.max(initial=-1)) + 1, np.bool_)
    launches_work[thread[launched_by[launched_by >= 0]]] = True
    is_of_launching: Mask = launches_work[thread[calls]]
    return is_of_launching


def _unite_chosen_rows(trace: Trace, chosen: Mask, table: str = "host_ops") -> Intervals:
    """Compute the union of the chosen rows of a table."""
    start, dur = trace.numbers(table, "ts_ns"), trace.numbers(table, "dur_ns")
    if sweeps.native is not None:
        low, high, is_whole = sweeps.merge_chosen_rows(chosen, start, dur)
        return Intervals(low, high) if is_whole else merge_intervals(low, high)
    rows = chosen.nonzero()[0]
    start = start[rows]
    return merge_intervals(start, start + dur[rows])


COLLECTION = re.compile(r"\bgc\b|\bpython_gc\b|garbage.?collect", re.IGNORECASE)
"""Names of ranges around a collection: a program's own, `gc gen2`, and `python_gc` of `gc.callbacks`."""

COLLECTION_ROW = re.compile(r"Python GC\Z|<built-in (?:function|method) collect\b")
"""Names of Python functions that collect: the rows of `record_python_gc_info`, and manual calls of `gc.collect()`."""


def find_garbage_collections(trace: Trace) -> Intervals:
    """Find when any recorded collection runs; overlapping records count once."""
    is_range = mark_wanted_names(trace.texts("host_ops", "name"), COLLECTION.search)
    is_range &= mark_rows_of_kind(trace, "host_ops", "range", "op", "other")
    is_row = mark_wanted_names(trace.texts("python_calls", "name"), COLLECTION_ROW.match)
    starts, ends = [], []
    for table, chosen in (("host_ops", is_range), ("python_calls", is_row)):
        rows = chosen.nonzero()[0]
        start = trace.numbers(table, "ts_ns")[rows]
        starts.append(start)
        ends.append(start + trace.numbers(table, "dur_ns")[rows])
    return merge_intervals(np.concatenate(starts), np.concatenate(ends))
