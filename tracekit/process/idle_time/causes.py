"""Causes of device idle time: every idle gap, and its parts by cause (definition M6).

In a gap the device waits for the op that ends it. Until that op is launched it waits for the host (`host_*`,
by host activity). After that it waits for another stream (`sync`), for its own start-up (`kernel_wait`) or
for an unrecorded reason (`other`). An op without a known launch is `unknown`; no further op until the
recording ends is `after_last`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.intervals import (
    EMPTY,
    Intervals,
    find_gaps,
    intersect,
    make_disjoint,
    merge_interval_sets,
    merge_intervals,
    subtract,
)
from tracekit.model.records import dataclass
from tracekit.model.stages import is_possible_stage
from tracekit.model.tables.arrays import Nullable
from tracekit.model.tables.keys import look_up_keys, number_keys, order_with_ties
from tracekit.model.tables.slots import CAUSES
from tracekit.model.trace import Trace
from tracekit.process.calls.activity import (
    HostActivity,
    SyncCalls,
    find_sync_calls,
    mark_calls_on_launching_threads,
    measure_host_activity,
)
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.device.busy import group_rows_by_device
from tracekit.process.name_filters import mark_wanted_names
from tracekit.process.steps.stage_lookup import select_outer_ranges
from tracekit.process.steps.start_up import find_start_up_calls
from tracekit.process.steps.windows import StageWindows, StepsAndStages, find_steps_and_stages

Ints = npt.NDArray[np.int64]
Rows = sweeps.Rows
Mask = npt.NDArray[np.bool_]

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class IdleCauseShares:
    """Time (`ns`) of one cause by number of the `gap`, ascending; gaps without the cause are left out."""

    gap: Rows
    ns: Rows


@dataclass(frozen=True, slots=True)
class DeviceIdle:
    """Idle time of one device over all steps, stages and device work of its trace.

    `rows` are its sound ops (rows of `device_ops`), which run from `first` to `last`. Per gap: the op that
    ended `before` it and the op that begins `after` it, -1 for none. `causes` are the parts of the gaps by
    cause; `shares` is the time of each gap by cause, for causes that occur.
    """

    device: int | None
    rows: Ints
    first: int
    last: int
    gaps: Intervals
    before: Rows
    after: Rows
    causes: Mapping[str, Intervals]
    shares: Mapping[str, IdleCauseShares]


@dataclass(frozen=True, slots=True)
class IdleTime:
    """Idle time of every device; pass an instance to `trace.derived`. Devices of unknown number come last.

    An op that was launched in time and begins within `kernel_wait_ns` is starting up. A host without any
    record for `silence_ns` is silent.
    """

    kernel_wait_ns: int
    silence_ns: int

    def __call__(self, trace: Trace) -> tuple[DeviceIdle, ...]:
        """Compute gaps and causes of every device; the causes add up to the gaps exactly."""
        device = trace.nullable("device_ops", "device")
        by_device = group_rows_by_device(device)
        return tuple(self._of_device(trace, number, rows) for number, rows in by_device)

    def _of_device(self, trace: Trace, number: int | None, rows: Ints) -> DeviceIdle:
        """Compute the idle time of one device, from the first window or op to the last."""
        start = trace.numbers("device_ops", "ts_ns")[rows]
        end = start + trace.numbers("device_ops", "dur_ns")[rows]
        first, last = int(start.min()), int(end.max())
        low, high = _find_idle_time_bounds(trace, first, last)
        idle = find_gaps(merge_intervals(start, end), low, high)
        before, after = _find_ops_around_gaps(trace, rows[end > start], idle)
        links: Launches = trace.derived(find_launches)
        ended = after >= 0
        is_linked = ended & links.linked[after]
        issued = links.ts_ns[after] + _measure_code_loading(trace, links.call[after])
        ready = np.where(is_linked, np.clip(issued, idle.start, idle.end), idle.start)
        is_held = is_linked & _mark_gaps_held_by_stream_wait(trace, number, rows, idle, after)
        after_ready = idle.end - ready
        soon = is_linked & ~is_held & (after_ready < self.kernel_wait_ns)
        causes = {
            **self._by_host(trace, rows, merge_intervals(idle.start, ready), idle),
            "sync": _unite_chosen_gaps(ready, idle.end, is_held),
            "kernel_wait": _unite_chosen_gaps(ready, idle.end, soon),
            "other": _unite_chosen_gaps(ready, idle.end, is_linked & ~is_held & ~soon),
            "unknown": _unite_chosen_gaps(idle.start, idle.end, ended & ~is_linked),
            "after_last": _unite_chosen_gaps(idle.start, idle.end, ~ended),
        }
        assert set(causes) == set(CAUSES)
        assert sum(part.total for part in causes.values()) == idle.total, "causes must add up"
        shares = {
            name: _share_gaps_of_cause(idle, of_cause) for name, of_cause in causes.items() if len(of_cause.start)
        }
        return DeviceIdle(number, rows, first, last, idle, before, after, causes, shares)

    def _by_host(self, trace: Trace, rows: Ints, waiting: Intervals, idle: Intervals) -> dict[str, Intervals]:
        """Split the time that a device waits for the host by host activity; the first match counts."""
        did: HostActivity = trace.derived(measure_host_activity)
        inside = [
            intersect(waiting, part)
            for part in (
                trace.derived(find_start_up_calls).time,
                did.loader,
                did.collection,
                _find_launching_thread_syncs(trace, rows),
                did.overhead,
                did.op,
            )
        ]
        starting, loader, collection, sync, overhead, op = make_disjoint(inside)
        # Python between two launches is part of launching; only in long gaps does the device wait for it.
        code = intersect(subtract(waiting, merge_interval_sets(inside)), _select_long_pauses(idle, self.silence_ns))
        code = intersect(code, did.code)
        nothing = subtract(waiting, merge_interval_sets([*inside, code]))
        frame = trace.derived(find_stage_time)
        # Judge a pause that crosses the edge of a stage separately on either side.
        pauses = (intersect(nothing, frame), subtract(nothing, frame))
        silent = merge_interval_sets([_select_long_pauses(pause, self.silence_ns) for pause in pauses])
        return {
            "host_start_up": starting,
            "host_loader": loader,
            "host_gc": collection,
            "host_sync": sync,
            "host_overhead": overhead,
            "host_op": op,
            "host_code": code,
            "host_none": subtract(nothing, silent),
            "host_silent": silent,
        }


def _measure_code_loading(trace: Trace, calls: Ints) -> Ints:
    """Compute how long each launching call loads code before it launches: the whole of a first call, else 0."""
    first_calls = trace.derived(find_start_up_calls).row
    first_calls = first_calls[first_calls >= 0]
    if not len(first_calls):
        return np.zeros(len(calls), np.int64)
    length = np.zeros(len(trace.numbers("host_ops", "dur_ns")) + 1, np.int64)
    length[first_calls] = trace.numbers("host_ops", "dur_ns")[first_calls]
    return length[calls]


def _share_gaps_of_cause(idle: Intervals, part: Intervals) -> IdleCauseShares:
    """Compute how much of each gap is in a part of all gaps."""
    gap = sweeps.count_below(idle.start, part.start, right=True) - 1
    first = np.concatenate((gap[:1] == gap[:1], gap[1:] != gap[:-1])).nonzero()[0]
    shares = np.add.reduceat(part.end - part.start, first)
    # int32 halves the memory if no gap exceeds two seconds.
    narrow = shares.astype(np.int32) if int(shares.max(initial=0)) < 2**31 else shares
    return IdleCauseShares(gap[first].astype(sweeps.choose_row_type(len(idle.start))), narrow)


def select_top_stages(trace: Trace) -> StageWindows:
    """Select the outermost ranges that can be stages: no data loading, optimizer call or mini-batch."""
    ranges = trace.derived(select_outer_ranges)
    return ranges.take(mark_wanted_names(ranges.stage, is_possible_stage).nonzero()[0])


def find_stage_time(trace: Trace) -> Intervals:
    """Find the time inside stages; inside steps if no stage is annotated."""
    stages = trace.derived(select_top_stages)
    spans = stages if len(stages) else trace.derived(find_steps_and_stages).step_rows
    return merge_intervals(spans.ts_ns, spans.end_ns)


def _find_last_device_end(trace: Trace) -> int:
    """Find when the last device op ends."""
    return int((trace.numbers("device_ops", "ts_ns") + trace.numbers("device_ops", "dur_ns")).max())


def _find_idle_time_bounds(trace: Trace, first: int, last: int) -> tuple[int, int]:
    """Find the first start and last end over windows and ops of the device, and ends of ops of other devices.

    If the host runs ahead, windows last until the work of all devices is done (`device.windows`).
    """
    last = max(last, trace.derived(_find_last_device_end))
    recorded: StepsAndStages = trace.derived(find_steps_and_stages)
    for spans in (recorded.step_rows, recorded.stage_rows):
        if len(spans):
            first = min(first, int(spans.ts_ns.min()))
            last = max(last, int(spans.end_ns.max()))
    return first, last


def _find_ops_around_gaps(trace: Trace, rows: Ints, idle: Intervals) -> tuple[Rows, Rows]:
    """Find the ops around each gap: (op that ends at its start, op that begins at its end); -1 for none.

    Of several ops that begin together, take the one launched first: before it nothing was ready to run.
    """
    links: Launches = trace.derived(find_launches)
    start = trace.numbers("device_ops", "ts_ns")[rows]
    end = start + trace.numbers("device_ops", "dur_ns")[rows]
    name = trace.derived(rank_device_op_names)[rows]
    launch = np.where(links.linked[rows], links.ts_ns[rows], _NEVER)
    by_start = order_with_ties(start, launch, name, rows)
    by_end = order_with_ties(end, name, -rows)
    padded = np.append(rows, -1).astype(sweeps.choose_row_type(len(start)))
    place = sweeps.count_below(start[by_start], idle.end)
    after = padded[np.append(by_start, len(rows))[place]]
    place = sweeps.count_below(end[by_end], idle.start, right=True)
    before = padded[np.append(len(rows), by_end)[place]]
    return before, after


def rank_device_op_names(trace: Trace) -> Rows:
    """Rank the name of each device op among all names; -1 without a name."""
    names = trace.texts("device_ops", "name")
    by_name = np.argsort(np.argsort(np.array(names.texts, object)))
    ranks: Rows = np.append(by_name, -1).astype(np.int32).take(names.codes)
    return ranks


def _mark_gaps_held_by_stream_wait(trace: Trace, device: int | None, rows: Ints, idle: Intervals, after: Rows) -> Mask:
    """Mark gaps that end with an op whose stream had to wait: a wait came after the stream's previous launch."""
    is_held = np.zeros(len(after), np.bool_)
    wait_device, wait_stream = (trace.nullable("syncs", name) for name in ("device", "stream"))
    is_wait = mark_wanted_names(trace.texts("syncs", "name"), lambda name: "wait" in name.lower())
    waits = (is_wait & ~wait_stream.missing & _mark_rows_of_device(wait_device, device)).nonzero()[0]
    streams = trace.nullable("device_ops", "stream")
    links: Launches = trace.derived(find_launches)
    asks = ((after >= 0) & links.linked[after]).nonzero()[0]
    asks = asks[~streams.missing[after[asks]]]
    if not len(waits) or not len(asks):
        return is_held
    stream, wait_ns = streams.values[after[asks]], trace.numbers("syncs", "ts_ns")[waits]
    last_wait = _find_latest_time_before(wait_stream.values[waits], wait_ns, stream, idle.end[asks])
    queued = rows[links.linked[rows] & ~streams.missing[rows]]
    last_launch = _find_latest_time_before(
        streams.values[queued], links.ts_ns[queued], stream, links.ts_ns[after[asks]]
    )
    is_held[asks] = last_wait > last_launch
    return is_held


def _mark_rows_of_device(device: Nullable, number: int | None) -> Mask:
    """Mark rows of this device, or of an unrecorded one."""
    return device.missing | (device.values == number) if number is not None else device.missing


def _find_latest_time_before(group: Ints, ts_ns: Ints, asked: Ints, limit_ns: Ints) -> Ints:
    """Find the latest time of each asked group before the limit; the least int64 for none."""
    if sweeps.native is not None:
        known = sweeps.find_latest_times(group, ts_ns, asked, limit_ns)
        if known is not None:
            return known
    distinct, number = number_keys(group)
    low, high = int(min(ts_ns.min(), limit_ns.min())), int(max(ts_ns.max(), limit_ns.max()))
    span = high - low + 1
    if span * (len(distinct) + 1) < 2**62:
        lifted = np.sort(number * span + (ts_ns - low))
        of_group, is_present = look_up_keys(distinct, asked)
        place = sweeps.count_below(lifted, of_group * span + (limit_ns - low)) - 1
        fits = is_present & (place >= 0) & (lifted[place] >= of_group * span)
        return np.where(fits, lifted[place] - of_group * span + low, np.iinfo(np.int64).min)
    count = len(asked)
    groups, times = np.concatenate((asked, group)), np.concatenate((limit_ns, ts_ns))
    is_asked = np.arange(len(groups)) >= count
    order = np.lexsort((is_asked, times, groups))
    place = np.where(is_asked[order], np.arange(len(order)), -1)
    latest = np.maximum.accumulate(place)
    asks = (~is_asked[order]).nonzero()[0]
    source = order[latest[asks]]
    fits = (latest[asks] >= 0) & (groups[source] == groups[order[asks]])
    latest_end = np.full(count, np.iinfo(np.int64).min, np.int64)
    latest_end[order[asks]] = np.where(fits, times[source], np.iinfo(np.int64).min)
    return latest_end


def _find_launching_thread_syncs(trace: Trace, rows: Ints) -> Intervals:
    """Find when a thread that launches these device ops was in a synchronizing call."""
    calls: SyncCalls = trace.derived(find_sync_calls)
    waits = calls.row[mark_calls_on_launching_threads(trace, rows, calls.row)]
    start = trace.numbers("host_ops", "ts_ns")[waits]
    return merge_intervals(start, start + trace.numbers("host_ops", "dur_ns")[waits])


def _unite_chosen_gaps(start: Ints, end: Ints, chosen: Mask) -> Intervals:
    """Unite the chosen intervals."""
    return merge_intervals(start[chosen], end[chosen]) if len(start) else EMPTY


def _select_long_pauses(pauses: Intervals, length: int) -> Intervals:
    """Select the pauses of at least some length."""
    long_enough = pauses.end - pauses.start >= length
    return Intervals(pauses.start[long_enough], pauses.end[long_enough])
