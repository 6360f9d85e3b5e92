"""Idle time with one mechanism: after a synchronizing call, and at the edges of stages (Q25)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import (
    EMPTY,
    Intervals,
    intersect,
    measure_coverage,
    merge_interval_sets,
    merge_intervals,
    subtract,
)
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Array, select_rows
from tracekit.model.tables.keys import find_distinct, sum_by_group
from tracekit.model.trace import Trace
from tracekit.process.calls.activity import (
    HostActivity,
    SyncCalls,
    find_sync_calls,
    mark_calls_on_launching_threads,
    measure_host_activity,
)
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.idle_time.causes import DeviceIdle, IdleTime, find_stage_time, select_top_stages
from tracekit.process.steps.windows import find_steps_and_stages

Ints = npt.NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class SyncStalls:
    """Stalls: occasions on which a thread that feeds a device synchronized with it, in order of ends.

    An occasion is all calls of one innermost op, or one call outside of ops. Per occasion:
    - `row` (of `host_ops`): its last call; `op`: the outermost op around it, -1 for none.
    - `end_ns`: when it returned; `call_ns`: the time in its calls.
    - `stalled`: whether the device was idle on return; `idle_ns`: idle time due to it, up to the next device
      op.
    - `later_ns`: further time in which the device waits for the host, see `_find_later_waits`.

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

    def __call__(self, trace: Trace) -> tuple[SyncStalls, ...]:
        """Compute the stalls of each device."""
        return tuple(find_sync_stalls(trace, idle) for idle in trace.derived(self.idle_time))


def find_sync_stalls(trace: Trace, idle: DeviceIdle) -> SyncStalls:
    """Find the synchronizing calls, and the idle time between their return and the next device op.

    The idle time ends with the stage in which the call returned, and at the next such call. Data loading,
    garbage collection, profiler overhead and long silence are causes of their own, and are left out.
    """
    calls: SyncCalls = trace.derived(find_sync_calls)
    chosen = mark_calls_on_launching_threads(trace, idle.rows, calls.row).nonzero()[0]
    length = trace.numbers("host_ops", "dur_ns")[calls.row[chosen]]
    end = trace.numbers("host_ops", "ts_ns")[calls.row[chosen]] + length
    gap = np.searchsorted(idle.gaps.start, end, side="right") - 1
    closes = np.append(idle.gaps.end, _NEVER)
    stalled = (gap >= 0) & (end < closes[gap]) & (np.append(idle.after, -1)[gap] >= 0)
    following = np.append(end, _NEVER)[1:]
    last_ns = np.minimum(following, _find_next_stage_edge(trace, end))
    until = np.where(stalled, np.minimum(closes[gap], last_ns), end)
    due = subtract(merge_intervals(end, until), _unite_separately_explained_idle(idle))
    due_ns = measure_coverage(due, end, until)
    later = _find_later_waits(trace, idle, end, until, last_ns, length - due_ns)
    later_ns = measure_coverage(later, until, np.maximum(last_ns, until))
    # Calls are in order of their ends, so the last call of each occasion gives its position.
    last = len(end) - 1 - np.unique(calls.occasion[chosen][::-1], return_index=True)[1]
    number = np.unique(calls.occasion[chosen], return_inverse=True)[1]
    sums = np.zeros((4, len(last)), np.int64)
    for column, values in enumerate((length, stalled, due_ns, later_ns)):
        np.add.at(sums[column], number, values)
    order = np.argsort(last, kind="stable")
    last, (call_ns, times, idle_ns, later_ns) = last[order], sums[:, order]
    row, op = calls.row[chosen[last]], calls.op[chosen[last]]
    lost, after = merge_interval_sets([due, later]), merge_intervals(end, until)
    return SyncStalls(row, op, end[last], call_ns, times > 0, idle_ns, later_ns, lost, after)


AHEAD_NS = 30_000
"""Queue time of a device op that shows that its host is ahead again.

On most real steady traces 99 % of the ops that found their device dry began within 12 to 39 µs of their
launch (simulated: 8 µs), and queued ones waited for 50 µs to 234 ms (medians). On one (MI300X in a virtual
machine) a launch alone takes 32 µs: there hosts count as ahead too early, and the idle time after a call is
underestimated.
"""


def _find_later_waits(
    trace: Trace, idle: DeviceIdle, end: Ints, until: Ints, last_ns: Ints, lead_ns: Ints
) -> Intervals:
    """Find when the device waits for the host after the op that follows a call, until the host is ahead again.

    The host has lost its lead by waiting in the calls, and would have launched all later work as much
    earlier. So at most `lead_ns` counts per chain of calls between which the host never got ahead, the
    earliest first.
    """
    if not len(end):
        return EMPTY
    links: Launches = trace.derived(find_launches)
    launch = links.ts_ns[idle.rows]
    is_ahead = links.linked[idle.rows]
    is_ahead &= trace.numbers("device_ops", "ts_ns")[idle.rows] - launch >= AHEAD_NS
    leads = np.append(np.sort(launch[is_ahead]), _NEVER)
    stop = np.minimum(last_ns, leads[np.searchsorted(leads[:-1], end)])
    # The latency of a launch is hidden too while the host is ahead.
    names = ("host_op", "host_none", "host_sync", "kernel_wait")
    stalled = until > end
    behind = merge_intervals(until[stalled], np.maximum(stop, until)[stalled])
    waits = intersect(merge_interval_sets([idle.causes[name] for name in names]), behind)
    is_first = np.append(True, stop[:-1] < end[1:])
    chain = np.cumsum(is_first) - 1
    lost_ns = np.maximum(sum_by_group(chain, lead_ns, int(chain[-1]) + 1), 0)
    # Waits after two calls never touch: idle time of its own follows each call that stalls.
    of_wait = chain[np.searchsorted(end, waits.start, side="right") - 1]
    length = waits.end - waits.start
    before = np.cumsum(length) - length
    before -= before[np.searchsorted(of_wait, of_wait)]
    counted = np.clip(lost_ns[of_wait] - before, 0, length)
    return merge_intervals(waits.start, waits.start + counted)


def _unite_separately_explained_idle(idle: DeviceIdle) -> Intervals:
    """Unite idle time that has a cause of its own."""
    names = (*("host_start_up", "host_loader", "host_gc"), *("host_overhead", "host_silent", "host_code"))
    return merge_interval_sets([idle.causes[name] for name in names])


def _find_next_stage_edge(trace: Trace, ts_ns: Ints) -> Ints:
    """Find the first start or end of a stage after each instant."""
    stages = trace.derived(select_top_stages)
    edges = find_distinct(np.concatenate((stages.ts_ns, stages.end_ns)))
    edges = np.append(edges, _NEVER)
    return edges[np.searchsorted(edges[:-1], ts_ns, side="right")]


def measure_stage_edges(trace: Trace, idle: DeviceIdle, after_sync: Intervals) -> dict[str, Array]:
    """Measure the edges between stages: from the end of a stage to the first device op that the next one launched.

    One row per edge. Only stages of one step follow one another: between steps another process may have the
    device. If the next stage launches nothing here, the edge ends where that stage begins, since it leaves
    the device alone by design. Columns: step, stage, next_stage, and the times of the measured table
    `measure_stage_edges`.
    """
    stages = trace.derived(select_top_stages)
    start, end = stages.ts_ns, stages.end_ns
    pairs = _find_followed_stages(trace, start)
    first_op = _find_first_op_of_stages(trace, idle.rows, start[pairs + 1], end[pairs + 1])
    low = np.maximum.accumulate(end)[pairs] if len(end) else end
    high = np.maximum(np.minimum(first_op, end[pairs + 1]), low)
    causes = idle.causes
    pauses = merge_interval_sets([causes["host_silent"], causes["host_code"]])
    inside_stages = intersect(pauses, trace.derived(find_stage_time))
    # Work that is already launched does not wait for the preparation of the next stage.
    names = ("host_start_up", "host_loader", "host_gc", "sync", "other")
    elsewhere = (causes[name] for name in names)
    explained = merge_interval_sets([*elsewhere, inside_stages])
    unexplained = subtract(idle.gaps, explained)
    did: HostActivity = trace.derived(measure_host_activity)
    busy_host = intersect(unexplained, merge_interval_sets([did.op, causes["host_sync"], causes["host_overhead"]]))
    synced = intersect(unexplained, after_sync)
    within = np.maximum(low, start[pairs + 1])
    inside = measure_coverage(unexplained, within, np.maximum(high, within))
    stalled = measure_coverage(synced, within, np.maximum(high, within))
    assert (stalled <= inside).all(), "what follows a call inside a stage is inside it"
    return {
        "step": select_rows(stages.step, pairs),
        "stage": select_rows(stages.stage, pairs),
        "next_stage": select_rows(stages.stage, pairs + 1),
        "ts_ns": low,
        "edge_ns": high - low,
        "idle_ns": measure_coverage(idle.gaps, low, high),
        "explained_ns": measure_coverage(explained, low, high),
        "inside_ns": inside,
        "after_sync_ns": stalled,
        "host_ns": measure_coverage(busy_host, low, high),
    }


def _find_followed_stages(trace: Trace, start: Ints) -> Ints:
    """Find the stages (start times, in order) that another stage of the same step follows."""
    steps = trace.derived(find_steps_and_stages).step_rows.ts_ns
    step = np.searchsorted(steps, start, side="right")
    is_followed: npt.NDArray[np.bool_] = (step[1:] == step[:-1]) & (step[1:] > 0)
    return is_followed.nonzero()[0]


def find_stage_openings(trace: Trace, rows: Ints) -> Ints:
    """Find when the edges between stages end on the device of these ops: the starts of the first ops of stages."""
    stages = trace.derived(select_top_stages)
    start, end = stages.ts_ns, stages.end_ns
    following = _find_followed_stages(trace, start) + 1
    return _find_first_op_of_stages(trace, rows, start[following], end[following])


def _find_first_op_of_stages(trace: Trace, rows: Ints, start: Ints, end: Ints) -> Ints:
    """Find when the first device op that each stage launched begins; the stage's start if it launched none."""
    links: Launches = trace.derived(find_launches)
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
