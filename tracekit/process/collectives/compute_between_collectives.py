"""Compute of a process between synchronizing collectives, by stage (quantity Q7).

Own work is wall time less the time blocked in collectives. A device is blocked while a collective runs and no
compute kernel does. A host is blocked from the end of its last op to the end of the awaited collective: a gap
between ops in which no collective ends is Python at work, even with collectives in flight.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import (
    EMPTY,
    Intervals,
    find_window_at,
    intersect,
    measure_coverage,
    merge_intervals,
    subtract,
)
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Array, Columns, Nullable, concatenate_like_arrays, select_rows
from tracekit.model.tables.keys import find_distinct, group_arrays, number_keys, sum_by_group
from tracekit.model.trace import Trace
from tracekit.process.collectives.names import ROOTED
from tracekit.process.collectives.table import Collectives, list_collectives
from tracekit.process.device.windows import DeviceWindows, align_windows_to_device
from tracekit.process.name_filters import look_up_names, mark_rows_of_kind, mark_wanted_names
from tracekit.process.steps.windows import TimeWindows

Ints = npt.NDArray[np.int64]

MAX_ARRIVALS = 20_000
"""Synchronizing collectives of one device that end a segment at most; the earliest are kept."""

_is_collective_wait_name = lru_cache(4096)(
    re.compile(r"_?c10d(?:_functional)?::|record_param_comms|(?:nccl|gloo|mpi|ucc):").match
)
"""Ops inside which a host waits for a collective, or queues one."""

LATE_END = 0.05
"""Share of a gap by which a collective that is in flight during the gap may end after it.

Two ranks with a core each recorded ends up to 2.3 % of the wait late.
"""

TIME_SLICE_NS = 5_000_000
"""Longest delay of a recorded end where the gap begins with the collective: the library's thread lost its core.

The scheduler gives the core back after a time slice, whatever the length of the wait. Ends of waits of 0.6 to 83 ms in
nine runs of four processes on two cores were up to 4.6 ms late.
"""

LATE_SLICE_SHARE = 0.25
"""Largest such delay as a share of the gap: a gap that ends without regard to the collective rarely ends so close to it."""

BACKWARD = "autograd::engine::evaluate_function"
"""Prefix of the names of backward-pass ops."""


@dataclass(frozen=True, slots=True)
class CollectiveSegments:
    """Columns of the measured tables `arrivals` and `segments`; `cut` counts the arrivals beyond the cap."""

    arrivals: Columns
    segments: Columns
    cut: int


@dataclass(frozen=True, slots=True)
class StagePieces:
    """Steps and outermost stages as disjoint pieces in order."""

    step: Nullable
    stage: npt.NDArray[np.object_]
    start: Ints
    end: Ints


def measure_collective_segments(trace: Trace) -> CollectiveSegments:
    """Measure the segments on each device that ran collectives, or on the host if none did."""
    recorded: Collectives = trace.derived(list_collectives)
    pieces = _split_into_stage_pieces(trace)
    device = recorded.nullable("device")
    code, first = group_arrays([device])
    none = Nullable(np.zeros(1, np.int64), np.ones(1, np.bool_))
    devices = [select_rows(device, first[[number]]) for number in range(len(first))] or [none]
    arrivals, worked, cut = [], [], 0
    for number, of_device in enumerate(devices):
        rows = (code == number).nonzero()[0]
        start = recorded.numbers("ts_ns")[rows]
        end = start + recorded.numbers("dur_ns")[rows]
        if recorded.on_device:
            blocked = subtract(merge_intervals(start, end), _find_compute_spans(trace, of_device))
        else:
            blocked = _find_collective_waits_on_host(trace, start, end)
        came = _list_arrivals(recorded, rows, start, end, blocked)
        cut += max(len(came["ts_ns"]) - MAX_ARRIVALS, 0)
        came = {name: select_rows(array, slice(MAX_ARRIVALS)) for name, array in came.items()}
        arrivals.append(_add_device_column(of_device, came))
        worked.append(_add_device_column(of_device, _measure_own_work(pieces, came["ts_ns"], blocked)))
    return CollectiveSegments(_concatenate_devices(arrivals), _concatenate_devices(worked), cut)


def _add_device_column(device: Nullable, columns: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the device to which all rows belong."""
    same = np.zeros(len(next(iter(columns.values()))), np.int64)
    return {**columns, "device": select_rows(device, same)}


def _concatenate_devices(parts: list[Mapping[str, Any]]) -> Columns:
    """Concatenate the rows of several devices."""
    arrays: dict[str, Array] = {name: concatenate_like_arrays([part[name] for part in parts]) for name in parts[0]}
    return Columns(len(arrays["segment"]), arrays)


def _find_compute_spans(trace: Trace, device: Nullable) -> Intervals:
    """Find when compute kernels run on a device."""
    of_op = trace.nullable("device_ops", "device")
    is_own = of_op.missing
    if not device.missing[0]:
        is_own = ~of_op.missing & (of_op.values == device.values[0])
    chosen = mark_rows_of_kind(trace, "device_ops", "kernel") & is_own
    start = trace.numbers("device_ops", "ts_ns")[chosen]
    return merge_intervals(start, start + trace.numbers("device_ops", "dur_ns")[chosen])


def find_host_blocked_spans(trace: Trace) -> Intervals:
    """Find when the host waits for a collective of its own; empty if the collectives run on a device."""
    recorded: Collectives = trace.derived(list_collectives)
    if recorded.on_device:
        return EMPTY
    start = recorded.numbers("ts_ns")
    return _find_collective_waits_on_host(trace, start, start + recorded.numbers("dur_ns"))


def _find_collective_waits_on_host(trace: Trace, start: Ints, end: Ints) -> Intervals:
    """Find when the threads that compute wait for a collective: in gaps in which one ends, until it does.

    A thread of the library may record an end only after the waiting thread continues (`compute_late_end_slack`).
    """
    if not len(start):
        return EMPTY
    flying, by_end = merge_intervals(start, end), np.argsort(end, kind="stable")
    begins, ends = start[by_end], end[by_end]
    idle = subtract(merge_intervals(start.min(keepdims=True), end.max(keepdims=True)), _find_host_compute_spans(trace))
    last = np.searchsorted(ends, idle.end, side="right") - 1
    until = np.where(last >= 0, ends[last], idle.start)
    following = np.minimum(last + 1, len(ends) - 1)
    slack, delay = compute_late_end_slack(idle.end - idle.start, idle.start - begins[following])
    is_late = (ends[following] - idle.end <= delay) & (begins[following] <= idle.start + slack)
    until = np.where(is_late, idle.end, until)
    return intersect(merge_intervals(idle.start, np.maximum(until, idle.start)), flying)


def compute_late_end_slack(gap_ns: Ints, since_begin_ns: Ints) -> tuple[Ints, Ints]:
    """Compute how far the begin of a collective may miss that of a gap, and its end that of the gap, ns.

    `since_begin_ns` is the time from the begin of the collective to that of the gap. The end may be late by `LATE_END` of
    the gap, or by a time slice if the gap begins with the collective: the thread issued it and fell silent.
    """
    slack = (LATE_END * gap_ns).astype(np.int64)
    slice_ns = np.minimum(TIME_SLICE_NS, (LATE_SLICE_SHARE * gap_ns).astype(np.int64))
    return slack, np.where(np.abs(since_begin_ns) <= slack, np.maximum(slack, slice_ns), slack)


def _find_host_compute_spans(trace: Trace) -> Intervals:
    """Find when the busiest thread, or one that runs the backward pass, is in an op that does not communicate."""
    rows = mark_rows_of_kind(trace, "host_ops", "op").nonzero()[0]
    if not len(rows):
        return EMPTY
    names = trace.texts("host_ops", "name")
    waits = mark_wanted_names(names, _is_collective_wait_name)[rows]
    backward = mark_wanted_names(names, lambda name: name.startswith(BACKWARD))[rows]
    start = trace.numbers("host_ops", "ts_ns")[rows]
    end = start + trace.numbers("host_ops", "dur_ns")[rows]
    threads, thread = number_keys(trace.numbers("host_ops", "thread")[rows].astype(np.int64))
    busy_ns = [merge_intervals(start[thread == n], end[thread == n]).total for n in range(len(threads))]
    is_chosen = np.bincount(thread[backward], minlength=len(threads)) > 0
    is_chosen[int(np.argmax(busy_ns))] = True
    chosen = is_chosen[thread]
    working = merge_intervals(start[chosen & ~waits], end[chosen & ~waits])
    return subtract(working, merge_intervals(start[chosen & waits], end[chosen & waits]))


def _list_arrivals(recorded: Collectives, rows: Ints, start: Ints, end: Ints, blocked: Intervals) -> dict[str, Any]:
    """List the collectives that may wait for other ranks, by start, each with its share of the blocked time.

    If several are in flight, the time goes to the one that began first, since it is awaited first.
    """
    order = np.argsort(start, kind="stable")
    start, end, rows = start[order], end[order], rows[order]
    reach = np.maximum.accumulate(end)
    before = np.concatenate((start[:1], reach[:-1]))
    slot = np.clip(before, start, np.maximum(end, start))
    blocked_inside = measure_coverage(blocked, slot, end)
    assert int(blocked_inside.sum()) == blocked.total, "blocked time must be that of the collectives"
    is_arrival = recorded.numbers("synchronising")[rows]
    is_arrival = is_arrival | np.isin(recorded.numbers("op")[rows], ROOTED)
    arrived = rows[is_arrival]
    names = ("group", "op", "ordinal", "ts_ns", "dur_ns")
    return {
        "segment": np.arange(len(arrived), dtype=np.int64),
        **{name: select_rows(recorded.rows[name], arrived) for name in names},
        "blocked_ns": blocked_inside[is_arrival],
    }


def _split_into_stage_pieces(trace: Trace) -> StagePieces:
    """Split steps and outermost stages into disjoint pieces in order."""
    of_device: DeviceWindows = trace.derived(align_windows_to_device)
    steps, stages = of_device.step_rows, of_device.outer_ranges
    bounds = [_clip_overlapping_windows(spans) for spans in (steps, stages)]
    cuts = find_distinct(np.concatenate([side for pair in bounds for side in pair]))
    start, end = cuts[:-1], cuts[1:]
    step, stage = (find_window_at(*pair, start) for pair in bounds)
    is_placed = (step >= 0) | (stage >= 0)
    return StagePieces(
        steps.numbers(step[is_placed]), look_up_names(stages.stage, stage[is_placed]), start[is_placed], end[is_placed]
    )


def _clip_overlapping_windows(spans: TimeWindows) -> tuple[Ints, Ints]:
    """Clip windows (in order of start) to begin after those before them: (start, end); some become empty."""
    start, end = spans.ts_ns, spans.end_ns
    reach = np.maximum.accumulate(end)
    start = np.maximum(start, np.concatenate((start[:1], reach[:-1])))
    return start, np.maximum(start, end)


def _measure_own_work(pieces: StagePieces, arrived: Ints, blocked: Intervals) -> dict[str, Any]:
    """Compute the rows of `segments`: pieces cut at each arrival, with own and blocked time."""
    start, end = pieces.start, pieces.end
    first = np.searchsorted(arrived, start, side="right")
    last = np.searchsorted(arrived, end, side="left")
    count = np.maximum(last - first, 0) + 1
    piece = np.repeat(np.arange(len(start)), count)
    segment = np.arange(len(piece)) - np.repeat(np.cumsum(count) - count, count) + first[piece]
    bound = np.append(arrived, np.iinfo(np.int64).max)
    begin = np.maximum(start[piece], np.where(segment > 0, bound[segment - 1], start[piece]))
    until = np.minimum(end[piece], bound[segment])
    lost = measure_coverage(blocked, begin, until)
    own_ns = until - begin - lost
    assert (own_ns >= 0).all(), "no process is blocked for longer than the time it has"
    assert int((until - begin).sum()) == int((end - start).sum()), "segments must fill the windows"
    step, stage = select_rows(pieces.step, piece), pieces.stage[piece]
    number, row = group_arrays([segment, step, stage])
    return {
        "segment": segment[row],
        "step": select_rows(step, row),
        "stage": stage[row],
        "own_ns": sum_by_group(number, own_ns, len(row)),
        "blocked_ns": sum_by_group(number, lost, len(row)),
    }
