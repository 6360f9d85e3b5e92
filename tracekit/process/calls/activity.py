"""Host activity over time: data loading, garbage collection, synchronizing calls, ops, or none."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.intervals import Intervals, union, union_all
from tracekit.model.records import dataclass
from tracekit.model.stages import STAGES, canonical, is_collective, numbered_step, profiler_step
from tracekit.model.trace import Trace
from tracekit.process.calls.garbage_collection import collection_spans
from tracekit.process.calls.launches import Launches, launches
from tracekit.process.calls.nesting import nesting
from tracekit.process.name_filters import is_named, of_kind

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_LOADER = re.compile(r"enumerate\(DataLoader\)")


def is_loading(name: str) -> bool:
    """Check whether a range of this name is a wait for the data loader."""
    return _LOADER.match(name) is not None


_WAITS_FOR_DEVICE = re.compile(
    r"(stream|device|event|context|ctx|thread)_?synchronize", re.IGNORECASE
)
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


def host_activity(trace: Trace) -> HostActivity:
    """Measure the activity of all host threads, as unions of intervals."""
    names = trace.texts("host_ops", "name")
    collective = is_named(names, is_collective) & of_kind(trace, "host_ops", "range")
    busy = of_kind(trace, "host_ops", "op", "runtime") | collective
    return HostActivity(
        _union(trace, is_named(names, is_loading)),
        trace.derived(collection_spans),
        _union(trace, of_kind(trace, "host_ops", "overhead")),
        _union(trace, busy),
        union_all([_union(trace, _leaf_ranges(trace, busy)), _python(trace)]),
    )


def _leaf_ranges(trace: Trace, busy: Mask) -> Mask:
    """Find ranges with nothing inside that are neither collective, data loading nor step or stage."""
    ranges = of_kind(trace, "host_ops", "range") & ~busy
    names = trace.texts("host_ops", "name")
    ranges &= is_named(
        names, lambda name: profiler_step(name) is None and numbered_step(name) is None
    )
    # Rows at the top or outside the tree have the parent -1, which marks the extra last element.
    encloses = np.zeros(len(ranges) + 1, np.bool_)
    encloses[trace.derived(nesting).parent] = True
    return ranges & ~encloses[:-1] & ~_is_stage(trace)


def _is_stage(trace: Trace) -> Mask:
    """Mark rows with the name of a known stage."""
    role = trace.source.role
    return is_named(trace.texts("host_ops", "name"), lambda name: canonical(name, role) in STAGES)


def _python(trace: Trace) -> Intervals:
    """Find when any recorded Python function ran."""
    every_call = np.ones(len(trace.numbers("python_calls", "ts_ns")), np.bool_)
    return _union(trace, every_call, "python_calls")


@dataclass(frozen=True, slots=True)
class SyncCalls:
    """Calls in which the host waits for the device, in order of their ends.

    Per call: `row` of `host_ops`; `op`, the outermost op around it (-1: none); and `occasion`, a number
    shared by the calls of one innermost op (a copy and the wait for it are one occasion).
    """

    row: Ints
    op: Ints
    occasion: Ints


def sync_calls(trace: Trace) -> SyncCalls:
    """Find stream, device and event synchronizations, blocking copies, and pageable copies that the host waited for.

    An asynchronous copy counts if its memory is pageable and the call returned after the copy ended.
    """
    runtime = of_kind(trace, "host_ops", "runtime")
    chosen = is_named(trace.texts("host_ops", "name"), _synchronises) & runtime
    chosen[_waited_copies(trace)] = True
    rows = chosen.nonzero()[0]
    rows = rows[np.lexsort((rows, _ends(trace, "host_ops", rows)))]
    is_op = of_kind(trace, "host_ops", "op")
    tree = trace.derived(nesting)
    inner = tree.nearest(is_op, rows)
    outer = inner.copy()
    climbing = (outer >= 0).nonzero()[0]
    while len(climbing):
        above = tree.nearest(is_op, outer[climbing])
        climbing, above = climbing[above >= 0], above[above >= 0]
        outer[climbing] = above
    return SyncCalls(rows, outer, np.where(inner >= 0, inner, -2 - rows))


def _synchronises(name: str) -> bool:
    """Check whether a runtime call of this name returns only when the device is done."""
    if _WAITS_FOR_DEVICE.search(name):
        return True
    return _COPY_CALL.search(name) is not None and _ASYNC.search(name) is None


def _waited_copies(trace: Trace) -> Ints:
    """Find calls (rows of `host_ops`) that copied pageable memory and returned after their copy had ended."""
    names = trace.texts("device_ops", "name")
    if not len(names) or not len(trace.texts("host_ops", "name")):
        return np.empty(0, np.int64)
    links: Launches = trace.derived(launches)
    pageable = is_named(names, lambda name: "pageable" in name.lower())
    rows = (pageable & of_kind(trace, "device_ops", "memcpy") & (links.call >= 0)).nonzero()[0]
    call: Ints = links.call[rows]
    returned = _ends(trace, "host_ops", call)
    ended = _ends(trace, "device_ops", rows)
    waiting_calls: Ints = call[returned >= ended]
    return waiting_calls


def _ends(trace: Trace, table: str, rows: Ints) -> Ints:
    """Compute when these rows of a table end, ns."""
    ends: Ints = trace.numbers(table, "ts_ns")[rows] + trace.numbers(table, "dur_ns")[rows]
    return ends


def on_launching(trace: Trace, rows: Ints, calls: Ints) -> Mask:
    """Mark the calls (rows of `host_ops`) that run on a thread that launched any of these device ops.

    Only such threads can leave the device without work; a watchdog that waits for the device cannot.
    """
    links: Launches = trace.derived(launches)
    launched_by = np.where(links.call[rows] >= 0, links.call[rows], links.op[rows])
    thread = trace.numbers("host_ops", "thread")
    launches_work = np.zeros(int(thread.max(initial=-1)) + 1, np.bool_)
    launches_work[thread[launched_by[launched_by >= 0]]] = True
    is_of_launching: Mask = launches_work[thread[calls]]
    return is_of_launching


def _union(trace: Trace, chosen: Mask, table: str = "host_ops") -> Intervals:
    """Compute the union of the chosen rows of a table."""
    start, dur = trace.numbers(table, "ts_ns"), trace.numbers(table, "dur_ns")
    if sweeps.native is not None:
        low, high, is_whole = sweeps.joined_rows(chosen, start, dur)
        return Intervals(low, high) if is_whole else union(low, high)
    rows = chosen.nonzero()[0]
    start = start[rows]
    return union(start, start + dur[rows])
