"""Device ops of a graph: each starts after its launch and its predecessor on the stream, and after what it waited for.

Weights of edges that do not decide are typical values of their kind: they decide once something else is faster.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Coded
from tracekit.model.tables.keys import QUEUE, find_distinct, group_arrays
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.device.transfers import parse_copy_direction
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names
from tracekit.replay.edges import COPY, KERNEL, LAUNCH, OVERLAP, STREAM_GAP, STREAM_WAIT, EdgeList, Ints, Mask, Numbers
from tracekit.replay.host_threads import HostThreads
from tracekit.replay.recorded_waits import LaunchedOps, RecordedWaits

MICRO = 1_000

FOUND_IDLE_NS = 60 * MICRO
"""Longest time from launch to start of an op that found its stream idle, for the typical launch latency."""
BACK_TO_BACK_NS = 5 * MICRO
"""Longest gap between ops of a stream that counts as back to back, for the typical gap."""
DEFAULT_LATENCY_NS, DEFAULT_GAP_NS = 3 * MICRO, 1 * MICRO
LATE_NS = 2 * MICRO
"""An op later than this, by its launch and its stream, waited for something else."""
AFTER_OTHER_STREAM_NS, AFTER_FOR_COPIES_NS = 6 * MICRO, 15 * MICRO
"""Longest time from the end of an op of another stream to the start of the op that waited for it; collectives and copies take longer."""
LOOK_BACK = 4
"""Latest ends of other ops that are tried."""

_UNKNOWN = -(2**60)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceOps:
    """Device ops by start: what ran, where, and how it was launched.

    - `row`: row of `device_ops` of the trace; -1 once the graph was packed.
    - `call_begin`, `call_end`: instants of the launching call, -1 where unknown; `launch_path`: its call path.
    - `launch_ns`, `return_ns`: when the launch began and returned, valid with a launch.
    - `previous`: op before it on its stream, -1 for the first.
    - `waited_for`: op of another stream that it waited for, as far as times show it; -1 for none.
    """

    row: Ints
    start: Ints
    end: Ints
    stream: npt.NDArray[np.int32]
    name: Coded
    is_copy: Mask
    is_collective: Mask
    call_begin: Numbers
    call_end: Numbers
    launch_path: Numbers
    launch_ns: Ints
    return_ns: Ints
    previous: Ints
    waited_for: Ints

    def __len__(self) -> int:
        """Count the ops."""
        return len(self.start)

    @property
    def is_launched(self) -> Mask:
        """Mask of ops with a known launch."""
        mask: Mask = self.call_begin >= 0
        return mask


class _Launching:
    """How each op was launched: reference time of the latency, and its typical value."""

    def __init__(self, ops: DeviceOps, call_end_ns: Ints, call_name: Ints) -> None:
        is_launched = ops.is_launched
        self.ends_late = is_launched & (call_end_ns > ops.start)
        self.from_ns = np.where(self.ends_late, ops.launch_ns, call_end_ns)
        self.from_instant = np.where(self.ends_late, ops.call_begin, ops.call_end)
        lag = ops.start - self.from_ns
        before = np.where(ops.previous >= 0, ops.end[ops.previous] if len(ops) else 0, _UNKNOWN)
        found_idle = is_launched & (before <= self.from_ns + MICRO) & (lag < FOUND_IDLE_NS)
        self.typical_ns = np.zeros(len(ops), np.int64)
        for late in (False, True):
            of_kind = is_launched & (self.ends_late == late)
            usual = _take_median(lag[of_kind & found_idle], DEFAULT_LATENCY_NS)
            for name in find_distinct(call_name[of_kind]).tolist():
                of_call = of_kind & (call_name == name)
                self.typical_ns[of_call] = _take_median(lag[of_call & found_idle], usual)


def _take_median(values: Ints, default: int) -> int:
    if not len(values):
        return default
    middle = (len(values) - 1) // 2, len(values) // 2
    low, high = np.partition(values, middle)[list(middle)].tolist()
    return int((low + high) / 2)


def list_device_ops(trace: Trace, threads: HostThreads) -> DeviceOps:
    """List the device ops of a trace by start, with their launches and predecessors."""
    start, dur = trace.numbers("device_ops", "ts_ns"), trace.numbers("device_ops", "dur_ns")
    order = np.lexsort((start + dur, start))
    start, end = start[order], (start + dur)[order]
    queue, _ = group_arrays([trace.nullable("device_ops", name) for name in QUEUE])
    stream = queue[order].astype(np.int32)
    names = trace.texts("device_ops", "name")
    links: Launches = trace.derived(find_launches)
    issued = np.where(links.call >= 0, links.call, links.op)[order]
    call_begin, call_end, path = _find_launch_instants(trace, threads, issued, start)
    launch_ns, return_ns = (
        np.where(call_begin >= 0, np.append(threads.time, 0)[instants], 0) for instants in (call_begin, call_end)
    )
    return DeviceOps(
        order,
        start,
        end,
        stream,
        Coded(names.codes[order], names.texts),
        mark_rows_of_kind(trace, "device_ops", "memcpy")[order],
        mark_rows_of_kind(trace, "device_ops", "collective")[order],
        call_begin,
        call_end,
        path,
        launch_ns,
        return_ns,
        find_previous_ops(stream, start),
        np.full(len(order), -1, np.int64),
    )


def list_launched_ops(trace: Trace, ops: DeviceOps) -> LaunchedOps:
    """List the launched ops in the order of their launches; a stream without a number is -1."""
    launched = np.flatnonzero(ops.is_launched)
    order = launched[np.argsort(ops.launch_ns[launched], kind="stable")]
    stream = trace.nullable("device_ops", "stream")
    recorded = np.where(stream.missing, -1, stream.values)[ops.row[order]]
    return LaunchedOps(order, ops.launch_ns[order], recorded.astype(np.int64))


def _find_launch_instants(
    trace: Trace, threads: HostThreads, issued: Ints, start: Ints
) -> tuple[Numbers, Numbers, Numbers]:
    """Find the instants at which the launching row of each op begins and ends, and its call path; -1 where unknown.

    A row that begins after the op cannot have launched it.
    """
    none = np.full(len(issued), -1, np.int32)
    if not len(threads.time) or not len(issued):
        return none, none, none
    host = {name: trace.numbers("host_ops", name) for name in ("ts_ns", "dur_ns", "thread")}
    known = np.flatnonzero((issued >= 0) & (np.append(host["ts_ns"], 0)[issued] <= start))
    row = issued[known]
    begin = threads.find_instants(host["thread"][row], host["ts_ns"][row])
    end = threads.find_instants(host["thread"][row], host["ts_ns"][row] + host["dur_ns"][row])
    of_call_begin, of_call_end, path = none.copy(), none.copy(), none.copy()
    of_call_begin[known], of_call_end[known] = begin, np.where(begin >= 0, end, -1)
    path[known] = np.where(begin >= 0, threads.path[begin], -1)
    return of_call_begin, of_call_end, path


def find_previous_ops(stream: npt.NDArray[np.int32], start: Ints) -> Ints:
    """Find the op before each on its stream; ops are in order of start."""
    order = np.argsort(stream, kind="stable")
    previous = np.full(len(start), -1, np.int64)
    same = stream[order][1:] == stream[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def add_device_edges(
    threads: HostThreads, ops: DeviceOps, first: int, edges: EdgeList, recorded: RecordedWaits
) -> DeviceOps:
    """Add the edges into starts and through ops, and return the ops with `waited_for`.

    Instant `first + 2 k` is the start of op k, the next one its end. Ends of collectives are left to the job.
    """
    count = len(ops)
    if not count:
        return ops
    starts = first + 2 * np.arange(count)
    ends, op = starts + 1, np.arange(count)
    launching = _measure_launching(threads, ops)
    has_previous = ops.previous >= 0
    before = np.where(has_previous, ops.end[ops.previous], _UNKNOWN)
    overlaps = has_previous & (before > ops.start)
    gap = _measure_typical_gaps(ops, before, launching, overlaps)
    by_launch = np.where(ops.is_launched, launching.from_ns + launching.typical_ns, _UNKNOWN)
    by_stream = np.where(has_previous & ~overlaps, before + gap, _UNKNOWN)
    ready = np.maximum(by_launch, by_stream)
    late = np.where(ready > _UNKNOWN, ops.start - ready, 0)
    is_inferred = (late > LATE_NS) & ~overlaps
    is_inferred[recorded.waiting] = False
    waited_for = _find_awaited_ops(ops, ready, np.flatnonzero(is_inferred))
    launched = np.flatnonzero(ops.is_launched)
    edges.add(launching.from_instant[launched], starts[launched], launching.typical_ns[launched], LAUNCH, launched)
    follows = np.flatnonzero(has_previous & ~overlaps)
    edges.add(ends[ops.previous[follows]], starts[follows], gap[follows], STREAM_GAP, follows)
    over = np.flatnonzero(overlaps)
    edges.add(starts[ops.previous[over]], starts[over], ops.start[over] - ops.start[ops.previous[over]], OVERLAP, over)
    waits = np.flatnonzero(waited_for >= 0)
    lag = ops.start[waits] - ops.end[waited_for[waits]]
    edges.add(ends[waited_for[waits]], starts[waits], lag, STREAM_WAIT, waits, inferred=True)
    _add_recorded_waits(ops, recorded, late, starts, waited_for, edges)
    plain = np.flatnonzero(~ops.is_collective)
    kind = np.where(ops.is_copy[plain], COPY, KERNEL)
    edges.add(starts[plain], ends[plain], (ops.end - ops.start)[plain], kind, op[plain])
    columns = {name: getattr(ops, name) for name in DeviceOps.__dataclass_fields__}
    return DeviceOps(**{**columns, "waited_for": waited_for})


def _add_recorded_waits(
    ops: DeviceOps, recorded: RecordedWaits, late: Ints, starts: Ints, waited_for: Ints, edges: EdgeList
) -> None:
    """Add the recorded waits of ops, and the one that ended last to `waited_for` where it decided.

    A wait that did not decide gets the usual delay: it decides once other work is faster.
    """
    waiting, awaited = recorded.waiting, recorded.awaited
    lag = ops.start[waiting] - ops.end[awaited]
    # Clocks of streams agree: an op that starts before the end of another did not wait for it.
    waiting, awaited, lag = waiting[lag >= 0], awaited[lag >= 0], lag[lag >= 0]
    slow = (ops.is_collective | ops.is_copy)[waiting]
    decided = (late[waiting] > LATE_NS) & (lag <= np.where(slow, AFTER_FOR_COPIES_NS, AFTER_OTHER_STREAM_NS))
    weight = np.where(decided, lag, np.minimum(lag, DEFAULT_GAP_NS))
    edges.add(starts[awaited] + 1, starts[waiting], weight, STREAM_WAIT, waiting)
    order = np.flatnonzero(decided)[np.argsort(ops.end[awaited[decided]], kind="stable")]
    waited_for[waiting[order]] = awaited[order]


def _measure_launching(threads: HostThreads, ops: DeviceOps) -> _Launching:
    """Measure the launch latency of each op from the begin or end of its call."""
    if not len(threads.time):
        none = np.zeros(len(ops), np.int64)
        return _Launching(ops, none, none)
    end_ns = np.where(ops.is_launched, threads.time[ops.call_end], 0)
    name = threads.paths.name.codes[ops.launch_path].astype(np.int64) if len(threads.paths) else ops.launch_path
    return _Launching(ops, end_ns, np.where(ops.launch_path >= 0, name, -1))


def _measure_typical_gaps(ops: DeviceOps, before: Ints, launching: _Launching, overlaps: Mask) -> Ints:
    """Measure the usual gap between ops of each stream that were launched in time."""
    gap = np.full(len(ops), DEFAULT_GAP_NS, np.int64)
    in_time = (ops.previous >= 0) & ~overlaps & (ops.start - before <= BACK_TO_BACK_NS)
    in_time &= ~ops.is_launched | (launching.from_ns + launching.typical_ns <= before)
    for stream in find_distinct(ops.stream).tolist():
        of_stream = ops.stream == stream
        gap[of_stream] = _take_median((ops.start - before)[of_stream & in_time], DEFAULT_GAP_NS)
    return gap


def _find_awaited_ops(ops: DeviceOps, ready: Ints, asked: Ints) -> Ints:
    """Find the op of another stream whose end each late op waited for: the latest that ends shortly before its start."""
    awaited = np.full(len(ops), -1, np.int64)
    if len(find_distinct(ops.stream)) < 2 or not len(asked):
        return awaited
    by_end = np.argsort(ops.end, kind="stable")
    place = np.searchsorted(ops.end[by_end], ops.start[asked], side="right") - 1
    slow = ops.is_collective | ops.is_copy
    limit = np.where(slow, AFTER_FOR_COPIES_NS, AFTER_OTHER_STREAM_NS)
    for back in range(LOOK_BACK):
        is_open = (awaited[asked] < 0) & (place >= back)
        op = asked[is_open]
        other = by_end[place[is_open] - back]
        fits = (ops.stream[other] != ops.stream[op]) & (ops.start[op] - ops.end[other] <= limit[op])
        fits &= (ops.end[other] > ready[op]) & (other != op)
        fits &= ~ops.is_launched[other] | ~ops.is_launched[op] | (ops.launch_ns[other] <= ops.launch_ns[op])
        awaited[op[fits]] = other[fits]
    return awaited


def mark_copies_to_host(ops: DeviceOps) -> Mask:
    """Mark copies from device to host."""
    return ops.is_copy & mark_wanted_names(ops.name, _goes_to_host)


def _goes_to_host(name: str) -> bool:
    return parse_copy_direction(name)[0] == "DtoH"
