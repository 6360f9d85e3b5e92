"""Idle time with one mechanism: after a synchronizing call, and at the edges of stages (Q25)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import (
    EMPTY,
    Intervals,
    covered,
    intersect,
    subtract,
    union,
    union_all,
)
from tracekit.model.keys import distinct, summed
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Array, at_rows
from tracekit.model.trace import Trace
from tracekit.process.calls.activity import (
    HostActivity,
    SyncCalls,
    host_activity,
    on_launching,
    sync_calls,
)
from tracekit.process.calls.launches import Launches, launches
from tracekit.process.idle_time.causes import DeviceIdle, IdleTime, stage_time, top_stages
from tracekit.process.steps.windows import windows

Ints = npt.NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Stalls:
    """Stalls: occasions on which a thread that feeds a device synchronized with it, in order of ends.

    An occasion is all calls of one innermost op, or one call outside of ops. Per occasion:
    - `row` (of `host_ops`): its last call; `op`: the outermost op around it, -1 for none.
    - `end_ns`: when it returned; `call_ns`: the time in its calls.
    - `stalled`: whether the device was idle on return; `idle_ns`: idle time due to it, up to the next device
      op.
    - `later_ns`: further time in which the device waits for the host, see `_later`.

    `lost` is the idle time in `idle_ns` and `later_ns`. `after` is all idle time after calls up to the next
    op, whether due to them or not.
    """

    row: Ints
    op: Ints
    end_ns: Ints
    call_ns: Ints
    stalled: npt.NDArray[np.bool_]
    idle_ns: Ints
    later_ns: Ints
    lost: Intervals
    after: Intervals


@dataclass(frozen=True, slots=True)
class StallTime:
    """Synchronization stalls of every device, in the order of its idle time; pass an instance to `trace.derived`."""

    idle_time: IdleTime

    def __call__(self, trace: Trace) -> tuple[Stalls, ...]:
        """Compute the stalls of each device."""
        return tuple(stalls(trace, idle) for idle in trace.derived(self.idle_time))


def stalls(trace: Trace, idle: DeviceIdle) -> Stalls:
    """Find the synchronizing calls, and the idle time between their return and the next device op.

    The idle time ends with the stage in which the call returned, and at the next such call. Data loading,
    garbage collection, profiler overhead and long silence are causes of their own, and are left out.
    """
    calls: SyncCalls = trace.derived(sync_calls)
    chosen = on_launching(trace, idle.rows, calls.row).nonzero()[0]
    length = trace.numbers("host_ops", "dur_ns")[calls.row[chosen]]
    end = trace.numbers("host_ops", "ts_ns")[calls.row[chosen]] + length
    gap = np.searchsorted(idle.gaps.start, end, side="right") - 1
    closes = np.append(idle.gaps.end, _NEVER)
    stalled = (gap >= 0) & (end < closes[gap]) & (np.append(idle.after, -1)[gap] >= 0)
    following = np.append(end, _NEVER)[1:]
    last_ns = np.minimum(following, _next_edge(trace, end))
    until = np.where(stalled, np.minimum(closes[gap], last_ns), end)
    due = subtract(union(end, until), _elsewhere(idle))
    due_ns = covered(due, end, until)
    later = _later(trace, idle, end, until, last_ns, length - due_ns)
    later_ns = covered(later, until, np.maximum(last_ns, until))
    # Calls are in order of their ends, so the last call of each occasion gives its position.
    last = len(end) - 1 - np.unique(calls.occasion[chosen][::-1], return_index=True)[1]
    number = np.unique(calls.occasion[chosen], return_inverse=True)[1]
    sums = np.zeros((4, len(last)), np.int64)
    for column, values in enumerate((length, stalled, due_ns, later_ns)):
        np.add.at(sums[column], number, values)
    order = np.argsort(last, kind="stable")
    last, (call_ns, times, idle_ns, later_ns) = last[order], sums[:, order]
    row, op = calls.row[chosen[last]], calls.op[chosen[last]]
    lost, after = union_all([due, later]), union(end, until)
    return Stalls(row, op, end[last], call_ns, times > 0, idle_ns, later_ns, lost, after)


AHEAD_NS = 30_000
"""Queue time of a device op that shows that its host is ahead again.

On most real steady traces 99 % of the ops that found their device dry began within 12 to 39 µs of their
launch (simulated: 8 µs), and queued ones waited for 50 µs to 234 ms (medians). On one (MI300X in a virtual
machine) a launch alone takes 32 µs: there hosts count as ahead too early, and the idle time after a call is
underestimated.
"""


def _later(
    trace: Trace, idle: DeviceIdle, end: Ints, until: Ints, last_ns: Ints, lead_ns: Ints
) -> Intervals:
    """Find when the device waits for the host after the op that follows a call, until the host is ahead again.

    The host has lost its lead by waiting in the calls, and would have launched all later work as much
    earlier. So at most `lead_ns` counts per chain of calls between which the host never got ahead, the
    earliest first.
    """
    if not len(end):
        return EMPTY
    links: Launches = trace.derived(launches)
    launch = links.ts_ns[idle.rows]
    is_ahead = links.linked[idle.rows]
    is_ahead &= trace.numbers("device_ops", "ts_ns")[idle.rows] - launch >= AHEAD_NS
    leads = np.append(np.sort(launch[is_ahead]), _NEVER)
    stop = np.minimum(last_ns, leads[np.searchsorted(leads[:-1], end)])
    # The latency of a launch is hidden too while the host is ahead.
    names = ("host_op", "host_none", "host_sync", "kernel_wait")
    stalled = until > end
    behind = union(until[stalled], np.maximum(stop, until)[stalled])
    waits = intersect(union_all([idle.causes[name] for name in names]), behind)
    is_first = np.append(True, stop[:-1] < end[1:])
    chain = np.cumsum(is_first) - 1
    lost_ns = np.maximum(summed(chain, lead_ns, int(chain[-1]) + 1), 0)
    # Waits after two calls never touch: idle time of its own follows each call that stalls.
    of_wait = chain[np.searchsorted(end, waits.start, side="right") - 1]
    length = waits.end - waits.start
    before = np.cumsum(length) - length
    before -= before[np.searchsorted(of_wait, of_wait)]
    counted = np.clip(lost_ns[of_wait] - before, 0, length)
    return union(waits.start, waits.start + counted)


def _elsewhere(idle: DeviceIdle) -> Intervals:
    """Unite idle time that has a cause of its own."""
    names = (
        *("host_start_up", "host_loader", "host_gc"),
        *("host_overhead", "host_silent", "host_code"),
    )
    return union_all([idle.causes[name] for name in names])


def _next_edge(trace: Trace, ts_ns: Ints) -> Ints:
    """Find the first start or end of a stage after each instant."""
    stages = trace.derived(top_stages)
    edges = distinct(np.concatenate((stages.ts_ns, stages.end_ns)))
    edges = np.append(edges, _NEVER)
    return edges[np.searchsorted(edges[:-1], ts_ns, side="right")]


def stage_edges(trace: Trace, idle: DeviceIdle, after_sync: Intervals) -> dict[str, Array]:
    """Measure the edges between stages: from the end of a stage to the first device op that the next one launched.

    One row per edge. Only stages of one step follow one another: between steps another process may have the
    device. If the next stage launches nothing here, the edge ends where that stage begins, since it leaves
    the device alone by design. Columns: step, stage, next_stage, and the times of the measured table
    `stage_edges`.
    """
    stages = trace.derived(top_stages)
    start, end = stages.ts_ns, stages.end_ns
    pairs = _followed(trace, start)
    first_op = _first_op(trace, idle.rows, start[pairs + 1], end[pairs + 1])
    low = np.maximum.accumulate(end)[pairs] if len(end) else end
    high = np.maximum(np.minimum(first_op, end[pairs + 1]), low)
    causes = idle.causes
    pauses = union_all([causes["host_silent"], causes["host_code"]])
    inside_stages = intersect(pauses, trace.derived(stage_time))
    # Work that is already launched does not wait for the preparation of the next stage.
    names = ("host_start_up", "host_loader", "host_gc", "sync", "other")
    elsewhere = (causes[name] for name in names)
    explained = union_all([*elsewhere, inside_stages])
    unexplained = subtract(idle.gaps, explained)
    did: HostActivity = trace.derived(host_activity)
    busy_host = intersect(
        unexplained, union_all([did.op, causes["host_sync"], causes["host_overhead"]])
    )
    synced = intersect(unexplained, after_sync)
    within = np.maximum(low, start[pairs + 1])
    inside = covered(unexplained, within, np.maximum(high, within))
    stalled = covered(synced, within, np.maximum(high, within))
    assert (stalled <= inside).all(), "what follows a call inside a stage is inside it"
    return {
        "step": at_rows(stages.step, pairs),
        "stage": at_rows(stages.stage, pairs),
        "next_stage": at_rows(stages.stage, pairs + 1),
        "edge_ns": high - low,
        "idle_ns": covered(idle.gaps, low, high),
        "explained_ns": covered(explained, low, high),
        "inside_ns": inside,
        "after_sync_ns": stalled,
        "host_ns": covered(busy_host, low, high),
    }


def _followed(trace: Trace, start: Ints) -> Ints:
    """Find the stages (start times, in order) that another stage of the same step follows."""
    steps = trace.derived(windows).step_rows.ts_ns
    step = np.searchsorted(steps, start, side="right")
    is_followed: npt.NDArray[np.bool_] = (step[1:] == step[:-1]) & (step[1:] > 0)
    return is_followed.nonzero()[0]


def opening_ns(trace: Trace, rows: Ints) -> Ints:
    """Find when the edges between stages end on the device of these ops: the starts of the first ops of stages."""
    stages = trace.derived(top_stages)
    start, end = stages.ts_ns, stages.end_ns
    following = _followed(trace, start) + 1
    return _first_op(trace, rows, start[following], end[following])


def _first_op(trace: Trace, rows: Ints, start: Ints, end: Ints) -> Ints:
    """Find when the first device op that each stage launched begins; the stage's start if it launched none."""
    links: Launches = trace.derived(launches)
    rows = rows[links.linked[rows]]
    rows = rows[np.argsort(links.ts_ns[rows], kind="stable")]
    low = np.searchsorted(links.ts_ns[rows], start, side="left")
    high = np.searchsorted(links.ts_ns[rows], end, side="left")
    first = start.copy()
    with_ops = (high > low).nonzero()[0]
    if len(with_ops):
        begins = np.append(trace.numbers("device_ops", "ts_ns")[rows], _NEVER)
        bounds = np.stack((low[with_ops], high[with_ops]), axis=1).ravel()
        first[with_ops] = np.minimum.reduceat(begins, bounds)[::2]
    return first
