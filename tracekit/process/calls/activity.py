"""What the host was doing when: data loading, garbage collection, synchronising calls, ops, nothing."""

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
    """Whether a range of this name is a wait for the data loader."""
    return _LOADER.match(name) is not None


_WAITS_FOR_DEVICE = re.compile(
    r"(stream|device|event|context|ctx|thread)_?synchronize", re.IGNORECASE
)
_COPY_CALL = re.compile(r"memcpy", re.IGNORECASE)
_ASYNC = re.compile(r"async", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HostActivity:
    """When any host thread was doing what; the sets may overlap one another.

    `op` holds ops, runtime calls and collectives, `code` Python functions and ranges with no other range and no
    op in them; ranges that only name a step or stage are no activity.
    """

    loader: Intervals
    collection: Intervals
    overhead: Intervals
    op: Intervals
    code: Intervals


def host_activity(trace: Trace) -> HostActivity:
    """What all host threads together did, as unions."""
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
    """Which ranges have nothing in them, and are no collective, no data loading and no step."""
    ranges = of_kind(trace, "host_ops", "range") & ~busy
    names = trace.texts("host_ops", "name")
    ranges &= is_named(
        names, lambda name: profiler_step(name) is None and numbered_step(name) is None
    )
    # What is outside the tree, or at its top, has the parent -1: it marks the place behind the last row.
    encloses = np.zeros(len(ranges) + 1, np.bool_)
    encloses[trace.derived(nesting).parent] = True
    return ranges & ~encloses[:-1] & ~_is_stage(trace)


def _is_stage(trace: Trace) -> Mask:
    """Which rows have the name of a stage that is known."""
    role = trace.source.role
    return is_named(trace.texts("host_ops", "name"), lambda name: canonical(name, role) in STAGES)


def _python(trace: Trace) -> Intervals:
    """When any Python function ran, as far as they were recorded."""
    every_call = np.ones(len(trace.numbers("python_calls", "ts_ns")), np.bool_)
    return _union(trace, every_call, "python_calls")


@dataclass(frozen=True, slots=True)
class SyncCalls:
    """Calls in which the host waits for the device, in order of their ends.

    Per call: `row` of `host_ops`, `op` the outermost op around it (-1: none), and `occasion`, a number
    that calls of one innermost op share: a copy and the wait for it are one.
    """

    row: Ints
    op: Ints
    occasion: Ints


def sync_calls(trace: Trace) -> SyncCalls:
    """Stream, device and event synchronisations, blocking copies, and pageable copies that were waited for.

    An asynchronous copy counts when its memory is pageable and the call returned after the copy ended.
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
    """Whether a runtime call of this name returns only when the device is done."""
    if _WAITS_FOR_DEVICE.search(name):
        return True
    return _COPY_CALL.search(name) is not None and _ASYNC.search(name) is None


def _waited_copies(trace: Trace) -> Ints:
    """Rows of `host_ops`: calls that copied pageable memory and returned after their copy had ended."""
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
    """When these rows of a table end."""
    ends: Ints = trace.numbers(table, "ts_ns")[rows] + trace.numbers(table, "dur_ns")[rows]
    return ends


def on_launching(trace: Trace, rows: Ints, calls: Ints) -> Mask:
    """Which of these calls (rows of `host_ops`) are of a thread that launched any of these device ops.

    Only such threads can leave the device without work; a watchdog that waits for it cannot.
    """
    links: Launches = trace.derived(launches)
    launched_by = np.where(links.call[rows] >= 0, links.call[rows], links.op[rows])
    thread = trace.numbers("host_ops", "thread")
    launches_work = np.zeros(int(thread.max(initial=-1)) + 1, np.bool_)
    launches_work[thread[launched_by[launched_by >= 0]]] = True
    is_of_launching: Mask = launches_work[thread[calls]]
    return is_of_launching


def _union(trace: Trace, chosen: Mask, table: str = "host_ops") -> Intervals:
    """When any of these rows of a table runs."""
    start, dur = trace.numbers(table, "ts_ns"), trace.numbers(table, "dur_ns")
    if sweeps.native is not None:
        low, high, is_whole = sweeps.joined_rows(chosen, start, dur)
        return Intervals(low, high) if is_whole else union(low, high)
    rows = chosen.nonzero()[0]
    start = start[rows]
    return union(start, start + dur[rows])
