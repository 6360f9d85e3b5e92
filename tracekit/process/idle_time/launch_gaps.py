"""Launch gaps: time in which a device waits for the launch of a single kernel or copy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import Intervals, covered, subtract, union, union_all
from tracekit.model.keys import distinct, is_one_of, ordered
from tracekit.model.trace import Trace
from tracekit.process.calls.activity import (
    HostActivity,
    SyncCalls,
    host_activity,
    on_launching,
    sync_calls,
)
from tracekit.process.calls.launches import launches
from tracekit.process.host.phases import (
    PAUSE_NS,
    SHORT_NS,
    HostSide,
    device_places,
    host_side,
    single_ops,
)
from tracekit.process.idle_time.stalls import opening_ns

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NEVER = np.iinfo(np.int64).max

AT_ONCE_NS = 1_000
"""A kernel that begins before its launch returns, or so soon after, had nothing to wait for but the launch.

Not a fine point: with 0 or 5 µs the launch gaps of real traces with more than 3 ms of them differ by 1 % as a rule, by 1.6 % at most.
"""


def launch_gaps(trace: Trace) -> list[Intervals]:
    """Per device, the time in which it waits for the launch of a single kernel or copy (the launch-bound idle of Q6).

    A gap before an op whose launch began after the device ran dry, or which began as soon as it was launched: nothing
    else can have held it back; less what the device takes between two ops that were queued. Not counted: gaps longer than
    `PAUSE_NS`, before a graph, within Optimizer.step, before the first op of a stage that follows another
    one, and with a loading, collecting, compiling, capturing or allocating call in them, which have causes, and rules, of
    their own; nor, where a gap begins within a synchronising call or as it returns, as much time as the host lost in it.
    """
    if not trace.has("device_ops", "host_ops"):
        return []
    side, links = trace.derived(host_side), trace.derived(launches)
    start = trace.numbers("device_ops", "ts_ns")
    end = start + trace.numbers("device_ops", "dur_ns")
    single = single_ops(trace) & (links.call >= 0)
    single[single] = side.within_optimizer[links.call[single]] < 0
    set_up, waits = _setting_up(trace, side), _waits(trace, side)
    call_end = trace.numbers("host_ops", "ts_ns") + trace.numbers("host_ops", "dur_ns")
    returned = np.where(links.call >= 0, np.append(call_end, 0)[links.call], _NEVER)
    number = trace.derived(device_places)
    by_device = []
    for device in distinct(number):
        rows = (number == device).nonzero()[0]
        rows = rows[ordered(start[rows], ~single[rows])]
        before = np.concatenate((start[rows[:1]], np.maximum.accumulate(end[rows])[:-1]))
        length = start[rows] - before
        is_gap = (length > 0) & (length <= PAUSE_NS) & single[rows]
        begin = before + _between_queued_ns(trace, rows, length, returned[rows] < before)
        begin = np.maximum(begin, before + _waited_ns(waits, before))
        bound = is_gap & (begin < start[rows])
        bound &= (links.ts_ns[rows] >= before) | (start[rows] <= returned[rows] + AT_ONCE_NS)
        bound &= ~is_one_of(start[rows], opening_ns(trace, rows))
        bound[bound] = covered(set_up, before[bound], start[rows][bound]) == 0
        by_device.append(subtract(union(begin[bound], start[rows][bound]), waits))
    return by_device


def _waited_ns(waits: Intervals, ts_ns: Ints) -> Ints:
    """How long the wait lasts that each instant lies in or follows; 0 outside all."""
    if not len(waits.start):
        return np.zeros(len(ts_ns), np.int64)
    last = np.searchsorted(waits.start, ts_ns, side="right") - 1
    inside = (last >= 0) & (ts_ns <= waits.end[last])
    return np.where(inside, waits.end[last] - waits.start[last], 0)


def _between_queued_ns(trace: Trace, rows: Ints, length: Ints, queued: Mask) -> int:
    """What this device takes between two ops of a stream of which the second was launched before the first ended: the median."""
    stream = trace.nullable("device_ops", "stream").values[rows]
    same = np.append(False, stream[1:] == stream[:-1])
    gaps_ns = length[queued & same & (length > 0) & (length < SHORT_NS)]
    return int(np.median(gaps_ns)) if len(gaps_ns) else 0


def _setting_up(trace: Trace, side: HostSide) -> Intervals:
    """When a launching thread is in a call that explains a gap by itself, loads or collects."""
    rows = (side.allocator | side.compiling | side.graph_capture | side.loader).nonzero()[0]
    did: HostActivity = trace.derived(host_activity)
    calls = _launching_calls(trace, rows)
    return union_all([calls, did.loader, did.collection])


def _waits(trace: Trace, side: HostSide) -> Intervals:
    """When a launching thread is in a call that waits for a device: a gap that begins as it returns follows it."""
    syncs: SyncCalls = trace.derived(sync_calls)
    waits = side.sync.copy()
    waits[syncs.row] = True
    return _launching_calls(trace, waits.nonzero()[0])


def _launching_calls(trace: Trace, rows: Ints) -> Intervals:
    """When these calls run, as far as they are of threads that launch work."""
    all_ops = np.arange(len(trace.numbers("device_ops", "ts_ns")))
    rows = rows[on_launching(trace, all_ops, rows)]
    start, dur = (trace.numbers("host_ops", name)[rows] for name in ("ts_ns", "dur_ns"))
    return union(start, start + np.maximum(dur, 1))
