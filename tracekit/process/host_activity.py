"""What the host was doing when: data loading, garbage collection, synchronising calls, ops, nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.intervals import Intervals, union
from tracekit.model.stages import is_collective
from tracekit.model.trace import Trace
from tracekit.process.by_name import is_named
from tracekit.process.launches import Launches, launches
from tracekit.process.nesting import nesting

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_LOADER = re.compile(r"enumerate\(DataLoader\)")
_COLLECTION = re.compile(r"\bgc\b|garbage.?collect", re.IGNORECASE)
_WAITS_FOR_DEVICE = re.compile(
    r"(stream|device|event|context|ctx|thread)_?synchronize", re.IGNORECASE
)
_COPY_CALL = re.compile(r"memcpy", re.IGNORECASE)
_ASYNC = re.compile(r"async", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HostActivity:
    """When any host thread was doing what; the sets may overlap one another.

    `op` holds ops, runtime calls and collectives; ranges that only name a stage are no activity.
    """

    loader: Intervals
    collection: Intervals
    overhead: Intervals
    op: Intervals


def host_activity(trace: Trace) -> HostActivity:
    """What all host threads together did, as unions."""
    host = trace.get("host_ops")
    kind = host["kind"].astype("str").to_numpy()
    loader = is_named(host["name"], lambda name: _LOADER.match(name) is not None)
    collection = is_named(host["name"], lambda name: _COLLECTION.search(name) is not None)
    collection &= np.isin(kind, ("range", "op", "other"))
    collective = is_named(host["name"], is_collective) & (kind == "range")
    busy = np.isin(kind, ("op", "runtime")) | collective
    return HostActivity(
        _union(host, loader),
        _union(host, collection),
        _union(host, kind == "overhead"),
        _union(host, busy),
    )


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
    host = trace.get("host_ops")
    runtime = (host["kind"] == "runtime").to_numpy()
    chosen = is_named(host["name"], _synchronises) & runtime
    chosen[_waited_copies(trace)] = True
    rows = np.flatnonzero(chosen)
    end = host["ts_ns"].to_numpy()[rows] + host["dur_ns"].to_numpy()[rows]
    rows = rows[np.lexsort((rows, end))]
    is_op = (host["kind"] == "op").to_numpy()
    tree = trace.derived(nesting)
    inner = tree.nearest(is_op, rows)
    outer = inner.copy()
    climbing = np.flatnonzero(outer >= 0)
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
    device, host = trace.get("device_ops"), trace.get("host_ops")
    if not len(device) or not len(host):
        return np.empty(0, np.int64)
    links: Launches = trace.derived(launches)
    pageable = is_named(device["name"], lambda name: "pageable" in name.lower())
    rows = np.flatnonzero(pageable & (device["kind"] == "memcpy").to_numpy() & (links.call >= 0))
    call: Ints = links.call[rows]
    returned = host["ts_ns"].to_numpy()[call] + host["dur_ns"].to_numpy()[call]
    ended = device["ts_ns"].to_numpy()[rows] + device["dur_ns"].to_numpy()[rows]
    waiting_calls: Ints = call[returned >= ended]
    return waiting_calls


def launching_threads(trace: Trace, rows: Ints) -> Mask:
    """Per row of `host_ops`: whether its thread launched any of these device ops.

    Only such threads can leave the device without work; a watchdog that waits for it cannot.
    """
    host = trace.get("host_ops")
    links: Launches = trace.derived(launches)
    launched_by = np.where(links.call[rows] >= 0, links.call[rows], links.op[rows])
    thread = host["thread"].to_numpy()
    return np.isin(thread, np.unique(thread[launched_by[launched_by >= 0]]))


def _union(host: pd.DataFrame, chosen: Mask) -> Intervals:
    start = host["ts_ns"].to_numpy()[chosen]
    return union(start, start + host["dur_ns"].to_numpy()[chosen])
