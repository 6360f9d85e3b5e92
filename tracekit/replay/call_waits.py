"""Calls that wait for the device: which op each waited for, and how much of the call was waiting.

Most traces do not record this. The rules are those of the runtime's documentation, as far as times confirm them.
"""

from __future__ import annotations

import re

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Coded, Nullable, select_rows
from tracekit.model.tables.keys import find_distinct
from tracekit.model.trace import Trace
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names
from tracekit.replay.device_ops import MICRO, DeviceOps, mark_copies_to_host
from tracekit.replay.edges import QUEUE, SYNC_RETURN, EdgeList, Ints, Mask
from tracekit.replay.host_threads import HostThreads
from tracekit.replay.recorded_waits import RecordedWaits

_EVENT = re.compile(r"(?:cuda|hip)EventSynchronize|cuEventSynchronize")
_STREAM = re.compile(r"(?:cuda|hip)StreamSynchronize|cuStreamSynchronize")
_DEVICE = re.compile(r"(?:cuda|hip)DeviceSynchronize|cuCtxSynchronize|(?:cuda|hip)Free(?:Host)?$|(?:cuda|hip)HostFree")
_FREE = re.compile(r"(?:cuda|hip)(?:Host)?Free")

_NOT_SYNC, _EVENT_SYNC, _STREAM_SYNC, _DEVICE_SYNC = range(4)

LONG_NS = 8 * MICRO
"""Shorter calls did not wait, unless they synchronize."""
RETURN_NS = 15 * MICRO
"""Longest time from the end of an op to the return of the event wait that it ended, or of the launch that it let into the queue."""
AT_ONCE_NS = 20 * MICRO
"""A synchronization this soon after a copy of its thread waits for that copy."""
EARLY_RETURN_NS = 10 * MICRO
"""A blocking copy may return this much before its op is recorded to end."""
EXPLAINED_NS, LATE_SHARE = 30 * MICRO, 0.2
"""A synchronization that returns this soon after the op, or after this share of its length, has no time of its own beyond the usual."""
SKEW_SHARE = 0.05
"""An op of the stream that a call waited for, as recorded, may seem to end this share of the call after its return."""
OWN_COST_NS, RETURNED_NS, DEFAULT_COST_NS = 6 * MICRO, 4 * MICRO, 5 * MICRO
LOOK_BACK = 64
"""Ops before the return that are tried."""
CHANCE = 0.02
"""Share of the event waits by which a copy that all seem to wait for may end after their return."""
DEFAULT_QUEUE, LEAST_QUEUE = 1024, 200
"""Launches that the device takes before a launch has to wait, and the least that counts as measured."""


@dataclass(frozen=True, slots=True, eq=False)
class _Calls:
    """Runtime calls that may have waited, in order of start. `op` is the first op that each launched, -1 for none."""

    begin: Ints
    end: Ints
    thread: Ints
    sync: Ints
    is_free: Mask
    usual_ns: Ints
    op: Ints
    stream: Ints
    end_instant: Ints
    correlation: Nullable

    def __len__(self) -> int:
        return len(self.begin)


class _Launched:
    """Launched ops in the order of their launches, and all ops in the order of their ends."""

    def __init__(self, ops: DeviceOps) -> None:
        launched = np.flatnonzero(ops.is_launched)
        self.order = launched[np.argsort(ops.launch_ns[launched], kind="stable")]
        self.at_ns = ops.launch_ns[self.order]
        self.is_launched, self.launch_ns = ops.is_launched, ops.launch_ns
        self.by_end = np.argsort(ops.end, kind="stable")
        self.ends = ops.end[self.by_end]
        self.copies = self.order[mark_copies_to_host(ops)[self.order]]
        self.copies_at_ns, self.copy_ends = ops.launch_ns[self.copies], np.append(ops.end[self.copies], 0)

    def mark_launched_before(self, op: Ints, ts_ns: Ints) -> Mask:
        """Mark ops that were launched before a time; those without a launch were before the recording began."""
        mask: Mask = ~self.is_launched[op] | (self.launch_ns[op] < ts_ns)
        return mask

    def count_before(self, ts_ns: Ints) -> Ints:
        """Count the ops launched up to each time."""
        return np.searchsorted(self.at_ns, ts_ns, side="right")


@dataclass(frozen=True, slots=True)
class CallWaits:
    """Number of calls that waited for an op, and the length of the launch queue, measured or assumed."""

    count: int
    queue: int
    queue_is_measured: bool


def add_call_waits(
    trace: Trace, threads: HostThreads, ops: DeviceOps, first: int, edges: EdgeList, recorded: RecordedWaits
) -> CallWaits:
    """Add the edges from ops to the calls that waited for them, and take the waits off the host's own time.

    `first` is the instant of the start of the first op. Recorded waits replace those that the rules infer.
    """
    if not len(ops) or not len(threads.time):
        return CallWaits(0, DEFAULT_QUEUE, queue_is_measured=False)
    calls, launched = _list_calls(trace, threads, ops), _Launched(ops)
    awaited = np.full(len(calls), -1, np.int64)
    _find_blocking_copies(calls, ops, awaited)
    _find_events(calls, ops, launched, awaited)
    _find_streams(calls, ops, launched, awaited)
    _find_device(calls, launched, awaited)
    of_record = recorded.find_of_calls(calls.correlation)
    awaited[of_record >= 0] = of_record[of_record >= 0]
    awaited[(awaited >= 0) & (ops.end[awaited] > calls.end + _allow_skew(calls)) & (calls.sync != _NOT_SYNC)] = -1
    _add_returns(calls, ops, awaited, (of_record < 0, threads, first), edges)
    lengths = _measure_queue(calls, ops, launched, awaited)
    queue = int(np.bincount(lengths).argmax()) if len(lengths) >= 3 else 0
    is_measured = queue >= LEAST_QUEUE
    _add_launch_queue(ops, launched, queue if is_measured else DEFAULT_QUEUE, threads, first, edges)
    return CallWaits(int((awaited >= 0).sum()), queue if is_measured else DEFAULT_QUEUE, is_measured)


def _list_calls(trace: Trace, threads: HostThreads, ops: DeviceOps) -> _Calls:
    """List the runtime calls that synchronize or are long."""
    names = trace.texts("host_ops", "name")
    sync = np.zeros(len(names), np.int64)
    for kind, pattern in ((_EVENT_SYNC, _EVENT), (_STREAM_SYNC, _STREAM), (_DEVICE_SYNC, _DEVICE)):
        sync[mark_wanted_names(names, pattern.match)] = kind
    is_runtime = mark_rows_of_kind(trace, "host_ops", "runtime")
    start, dur = trace.numbers("host_ops", "ts_ns"), trace.numbers("host_ops", "dur_ns")
    usual = _measure_usual_cost(names, dur, is_runtime)
    rows = np.flatnonzero(is_runtime & ((dur > LONG_NS) | (sync > 0)) & (dur > 0))
    rows = rows[np.argsort(start[rows], kind="stable")]
    thread = trace.numbers("host_ops", "thread")[rows]
    begin_instant = threads.find_instants(thread, start[rows])
    op_at = np.full(len(threads.time) + 1, -1, np.int64)
    launched = np.flatnonzero(ops.is_launched)[::-1]
    op_at[ops.call_begin[launched]] = launched
    is_free = mark_wanted_names(names, _FREE.match)[rows]
    return _Calls(
        start[rows],
        (start + dur)[rows],
        thread.astype(np.int64),
        sync[rows],
        is_free,
        usual[rows],
        op_at[begin_instant],
        _look_up_streams(trace, rows, ops),
        threads.find_instants(thread, (start + dur)[rows]),
        select_rows(trace.nullable("host_ops", "correlation"), rows),
    )


def _measure_usual_cost(names: Coded, dur: Ints, is_runtime: Mask) -> Ints:
    """Measure the lower quartile of the calls of each name: what a call costs that does not wait."""
    usual = np.full(len(dur), DEFAULT_COST_NS, np.int64)
    rows = np.flatnonzero(is_runtime)
    order = rows[np.lexsort((dur[rows], names.codes[rows]))]
    codes = names.codes[order]
    begin = np.flatnonzero(np.diff(codes, prepend=-2))
    count = np.diff(np.append(begin, len(order)))
    quartile = dur[order[np.minimum(begin + count // 4, len(order) - 1)]] if len(order) else begin
    several = count > 3
    usual[order] = np.repeat(np.where(several, quartile, DEFAULT_COST_NS), count)
    return usual


def _look_up_streams(trace: Trace, rows: Ints, ops: DeviceOps) -> Ints:
    """Look up the stream that each call synchronized, by its record; -1 without one."""
    found = np.full(len(rows), -1, np.int64)
    if not trace.has("syncs") or not len(rows):
        return found
    key, stream = trace.nullable("syncs", "correlation"), trace.nullable("syncs", "stream")
    known = np.flatnonzero(~key.missing & ~stream.missing)
    called = select_rows(trace.nullable("host_ops", "correlation"), rows)
    order = known[np.argsort(key.values[known], kind="stable")]
    if not len(order):
        return found
    place = np.minimum(np.searchsorted(key.values[order], called.values), len(order) - 1)
    hit = np.flatnonzero((key.values[order[place]] == called.values) & ~called.missing)
    recorded = trace.nullable("device_ops", "stream")
    number_of = {
        int(value): int(ops.stream[op])
        for op, value in zip(*_first_of_each(np.where(recorded.missing, -1, recorded.values)[ops.row]), strict=True)
    }
    values = stream.values[order[place[hit]]].tolist()
    found[hit] = [number_of.get(int(value), -1) if value >= 0 else -1 for value in values]
    return found


def _first_of_each(values: Ints) -> tuple[list[int], list[int]]:
    """List the first place of each distinct value, and the values."""
    distinct, first = np.unique(values, return_index=True)
    return first.tolist(), distinct.tolist()


def _find_blocking_copies(calls: _Calls, ops: DeviceOps, awaited: Ints) -> None:
    """Find calls that return after the op that they launched: it starts inside the call and ends with it.

    Launches of kernels do not wait, however long they take, unless most of them do (`CUDA_LAUNCH_BLOCKING`).
    """
    own = np.flatnonzero((calls.sync == _NOT_SYNC) & (calls.op >= 0))
    op = calls.op[own]
    start, end, begin, until = ops.start[op], ops.end[op], calls.begin[own], calls.end[own]
    inside = (begin < end) & (end <= until)
    barely = ops.is_copy[op] & (end - begin > AT_ONCE_NS) & (end <= until + EARLY_RETURN_NS)
    blocks = (start < until) & (inside | barely)
    is_kernel = ~ops.is_copy[op]
    if not _blocks_launches(ops):
        blocks &= ~is_kernel
    awaited[own[blocks]] = op[blocks]


def _blocks_launches(ops: DeviceOps) -> bool:
    """Check whether most launches of kernels return only after their kernel."""
    launched = np.flatnonzero(ops.is_launched & ~ops.is_copy & ~ops.is_collective)
    return bool(len(launched)) and bool((ops.end[launched] <= ops.return_ns[launched]).mean() > 0.5)


def _find_events(calls: _Calls, ops: DeviceOps, launched: _Launched, awaited: Ints) -> None:
    """Find what event waits waited for: an op that ends shortly before the return, a copy to the host first.

    A call whose event had happened waits for the same copy as calls like it, the n-th last; but for one that had ended when
    nearly all such calls returned.
    """
    rows = np.flatnonzero(calls.sync == _EVENT_SYNC)
    if not len(rows):
        return
    to_host = mark_copies_to_host(ops)
    place = np.searchsorted(launched.ends, calls.end[rows], side="right") - 1
    # In a short call the end of an op shows nothing: it may have ended by chance.
    is_open = calls.end[rows] - calls.begin[rows] > LONG_NS
    for back in range(LOOK_BACK):
        is_open &= place >= back
        at = np.maximum(place - back, 0)
        end = launched.ends[at]
        is_open &= (calls.end[rows] - end < RETURN_NS) & (end > calls.begin[rows])
        if not is_open.any():
            break
        op = launched.by_end[at]
        fits = is_open & launched.mark_launched_before(op, calls.begin[rows])
        first = fits & ((awaited[rows] < 0) | to_host[op])
        awaited[rows[first]] = op[first]
        is_open &= ~(fits & to_host[op])
    met = rows[(awaited[rows] >= 0) & to_host[awaited[rows]]]
    later = np.searchsorted(launched.copies_at_ns, calls.begin[met], side="right")
    own = np.searchsorted(launched.copies_at_ns, ops.launch_ns[awaited[met]], side="right")
    usual = int(np.bincount(np.maximum(later - own, 0)).argmax()) if len(met) else 0
    blocked = rows[awaited[rows] < 0]
    last = np.searchsorted(launched.copies_at_ns, calls.begin[blocked], side="right") - 1
    least = _count_running_copies(calls.end[blocked], launched, last)
    usual = max(usual, int(np.quantile(least, 1 - CHANCE, method="higher")) if len(least) else 0)
    nth = last - usual
    known = nth >= 0
    awaited[blocked[known]] = launched.copies[nth[known]]


def _count_running_copies(returned_ns: Ints, launched: _Launched, last: Ints) -> Ints:
    """Count the latest copies, from the `last` one back, that still ran when each call returned."""
    running = np.zeros(len(last), np.int64)
    for _ in range(LOOK_BACK):
        goes_on = (last >= running) & (launched.copy_ends[np.maximum(last - running, 0)] > returned_ns)
        if not goes_on.any():
            break
        running += goes_on
    return running


def _allow_skew(calls: _Calls) -> Ints:
    """Find by how much an op may seem to end after the call that waited for its stream: clocks of host and device differ."""
    skew: Ints = np.where(calls.stream >= 0, SKEW_SHARE * (calls.end - calls.begin), 0).astype(np.int64)
    return skew


def _find_streams(calls: _Calls, ops: DeviceOps, launched: _Launched, awaited: Ints) -> None:
    """Find what stream synchronizations waited for: a copy just before, else the last op of a stream that ends in time."""
    rows = np.flatnonzero(calls.sync == _STREAM_SYNC)
    before = launched.count_before(calls.begin[rows])
    rows, before = rows[before > 0], before[before > 0]
    if not len(rows):
        return
    last = launched.order[before - 1]
    is_copy = ops.is_copy[last] & (calls.begin[rows] - ops.launch_ns[last] < 2 * AT_ONCE_NS)
    is_copy &= (calls.stream[rows] < 0) | (ops.stream[last] == calls.stream[rows])
    awaited[rows[is_copy]] = last[is_copy]
    rows = rows[~is_copy]
    best = np.full(len(rows), -1, np.int64)
    for stream in find_distinct(ops.stream).tolist():
        of_stream = launched.order[ops.stream[launched.order] == stream]
        place = np.searchsorted(ops.launch_ns[of_stream], calls.begin[rows], side="right") - 1
        op = of_stream[np.maximum(place, 0)] if len(of_stream) else best
        fits = (place >= 0) & (op >= 0) & (ops.end[op] <= calls.end[rows] + _allow_skew(calls)[rows])
        fits &= (calls.stream[rows] < 0) | (calls.stream[rows] == stream)
        fits &= (best < 0) | (ops.end[op] > ops.end[best])
        best = np.where(fits, op, best)
    awaited[rows] = best


def _find_device(calls: _Calls, launched: _Launched, awaited: Ints) -> None:
    """Find what device synchronizations waited for: the last end before the return, of an op launched before."""
    rows = np.flatnonzero(calls.sync == _DEVICE_SYNC)
    place = np.searchsorted(launched.ends, calls.end[rows], side="right") - 1
    for back in range(LOOK_BACK):
        is_open = (awaited[rows] < 0) & (place >= back)
        if not is_open.any():
            break
        op = launched.by_end[np.maximum(place - back, 0)]
        fits = is_open & launched.mark_launched_before(op, calls.begin[rows])
        awaited[rows[fits]] = op[fits]


def _add_returns(
    calls: _Calls, ops: DeviceOps, awaited: Ints, where: tuple[Mask, HostThreads, int], edges: EdgeList
) -> None:
    """Add the edge from each awaited op to the return of its call; the call keeps only its own cost.

    `where` has the mask of calls whose wait is inferred, the threads, and the instant of the start of the first op.
    """
    is_inferred, threads, first = where
    rows = np.flatnonzero(awaited >= 0)
    op, end = awaited[rows], calls.end[rows]
    length, after = end - calls.begin[rows], end - ops.end[op]
    explains = calls.is_free[rows] | (after < np.maximum(EXPLAINED_NS, LATE_SHARE * length))
    explains |= calls.sync[rows] == _NOT_SYNC
    waits = (ops.end[op] > calls.begin[rows]) & explains
    own = np.minimum(np.minimum(calls.usual_ns[rows], length), OWN_COST_NS)
    at = calls.end_instant[rows]
    threads.spent_ns[at[waits]] = np.maximum(threads.spent_ns[at[waits]] - (length - own)[waits], 0)
    weight = np.where(waits, after, np.minimum(after, RETURNED_NS))
    source, path = first + 2 * op + 1, threads.path[np.maximum(at - 1, 0)]
    edges.add(source, at, weight, SYNC_RETURN, path, inferred=is_inferred[rows])


def _measure_queue(calls: _Calls, ops: DeviceOps, launched: _Launched, awaited: Ints) -> Ints:
    """Measure how many launches were under way at each launch that returned just after the end of an op."""
    before = launched.count_before(calls.begin)
    rows = np.flatnonzero((calls.sync == _NOT_SYNC) & (calls.op >= 0) & (awaited < 0) & (before >= DEFAULT_QUEUE // 2))
    place = np.searchsorted(launched.ends, calls.end[rows], side="right") - 1
    rows, place = rows[place >= 0], place[place >= 0]
    end = launched.ends[place]
    fits = (end > calls.begin[rows]) & (calls.end[rows] - end < RETURN_NS)
    fits &= calls.end[rows] - calls.begin[rows] > RETURNED_NS // MICRO * calls.usual_ns[rows]
    rows = rows[fits]
    launches = np.searchsorted(launched.at_ns, calls.begin[rows])
    finished = np.searchsorted(np.sort(ops.end[launched.order]), calls.begin[rows], side="right")
    under_way: Ints = np.maximum(launches - finished, 0)
    return under_way


def _add_launch_queue(
    ops: DeviceOps, launched: _Launched, queue: int, threads: HostThreads, first: int, edges: EdgeList
) -> None:
    """Add the launch queue: a launch returns only when the op `queue` launches before has ended."""
    if len(launched.order) <= queue:
        return
    before, op = launched.order[:-queue], launched.order[queue:]
    at = ops.call_end[op]
    returned = threads.time[at]
    holds = ops.end[before] <= returned
    _, once = np.unique(at[holds], return_index=True)
    before, op = before[holds][once], op[holds][once]
    at, returned, begin = ops.call_end[op], threads.time[ops.call_end[op]], ops.launch_ns[op]
    waits = (returned - begin > LONG_NS) & (ops.end[before] > begin) & (returned - ops.end[before] < RETURN_NS)
    cut = np.minimum(threads.spent_ns[at], np.maximum(returned - begin - RETURNED_NS, 0))
    threads.spent_ns[at] -= np.where(waits, cut, 0)
    weight = np.where(waits, returned - ops.end[before], 0)
    edges.add(first + 2 * before + 1, at, weight, QUEUE, ops.launch_path[op], inferred=True)
