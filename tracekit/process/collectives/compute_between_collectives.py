"""Compute of a process between synchronizing collectives, by stage (quantity Q7).

Own work is wall time less the time blocked in collectives. A device is blocked while a collective runs and no
compute kernel does. A host is blocked from the end of its last op to the end of the awaited collective: a gap
between ops in which no collective ends is Python at work, even with collectives in flight.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import (
    EMPTY,
    Intervals,
    covered,
    intersect,
    subtract,
    union,
    window_at,
)
from tracekit.model.keys import distinct, numbered, of_arrays, summed
from tracekit.model.records import dataclass
from tracekit.model.remembered import remembered
from tracekit.model.tables.arrays import Array, Columns, Nullable, at_rows, joined
from tracekit.model.trace import Trace
from tracekit.process.collectives.names import ROOTED
from tracekit.process.collectives.table import Collectives, collectives
from tracekit.process.device.windows import DeviceWindows, device_windows
from tracekit.process.name_filters import is_named, named, of_kind
from tracekit.process.steps.windows import Spans

Ints = npt.NDArray[np.int64]

MAX_ARRIVALS = 20_000
"""Synchronizing collectives of one device that end a segment at most; the earliest are kept."""

_waits = remembered(
    re.compile(r"_?c10d(?:_functional)?::|record_param_comms|(?:nccl|gloo|mpi|ucc):").match
)
"""Ops inside which a host waits for a collective, or queues one."""

BACKWARD = "autograd::engine::evaluate_function"
"""Prefix of the names of backward-pass ops."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Columns of the measured tables `arrivals` and `segments`; `cut` counts the arrivals beyond the cap."""

    arrivals: Columns
    segments: Columns
    cut: int


@dataclass(frozen=True, slots=True)
class Pieces:
    """Steps and outermost stages as disjoint pieces in order."""

    step: Nullable
    stage: npt.NDArray[np.object_]
    start: Ints
    end: Ints


def segments(trace: Trace) -> Segments:
    """Measure the segments on each device that ran collectives, or on the host if none did."""
    recorded: Collectives = trace.derived(collectives)
    pieces = _pieces(trace)
    device = recorded.nullable("device")
    code, first = of_arrays([device])
    none = Nullable(np.zeros(1, np.int64), np.ones(1, np.bool_))
    devices = [at_rows(device, first[[number]]) for number in range(len(first))] or [none]
    arrivals, worked, cut = [], [], 0
    for number, of_device in enumerate(devices):
        rows = (code == number).nonzero()[0]
        start = recorded.numbers("ts_ns")[rows]
        end = start + recorded.numbers("dur_ns")[rows]
        if recorded.on_device:
            blocked = subtract(union(start, end), _computing(trace, of_device))
        else:
            blocked = _blocked_host(trace, start, end)
        came = _arrivals(recorded, rows, start, end, blocked)
        cut += max(len(came["ts_ns"]) - MAX_ARRIVALS, 0)
        came = {name: at_rows(array, slice(MAX_ARRIVALS)) for name, array in came.items()}
        arrivals.append(_on(of_device, came))
        worked.append(_on(of_device, _worked(pieces, came["ts_ns"], blocked)))
    return Segments(_together(arrivals), _together(worked), cut)


def _on(device: Nullable, columns: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the device to which all rows belong."""
    same = np.zeros(len(next(iter(columns.values()))), np.int64)
    return {**columns, "device": at_rows(device, same)}


def _together(parts: list[Mapping[str, Any]]) -> Columns:
    """Concatenate the rows of several devices."""
    arrays: dict[str, Array] = {name: joined([part[name] for part in parts]) for name in parts[0]}
    return Columns(len(arrays["segment"]), arrays)


def _computing(trace: Trace, device: Nullable) -> Intervals:
    """Find when compute kernels run on a device."""
    of_op = trace.nullable("device_ops", "device")
    is_own = of_op.missing
    if not device.missing[0]:
        is_own = ~of_op.missing & (of_op.values == device.values[0])
    chosen = of_kind(trace, "device_ops", "kernel") & is_own
    start = trace.numbers("device_ops", "ts_ns")[chosen]
    return union(start, start + trace.numbers("device_ops", "dur_ns")[chosen])


def blocked_on_host(trace: Trace) -> Intervals:
    """Find when the host waits for a collective of its own; empty if the collectives run on a device."""
    recorded: Collectives = trace.derived(collectives)
    if recorded.on_device:
        return EMPTY
    start = recorded.numbers("ts_ns")
    return _blocked_host(trace, start, start + recorded.numbers("dur_ns"))


def _blocked_host(trace: Trace, start: Ints, end: Ints) -> Intervals:
    """Find when the threads that compute wait for a collective: in gaps in which one ends, until it does."""
    if not len(start):
        return EMPTY
    flying, ends = union(start, end), np.sort(end)
    idle = subtract(union(start.min(keepdims=True), end.max(keepdims=True)), _working(trace))
    last = np.searchsorted(ends, idle.end, side="right") - 1
    until = np.where(last >= 0, ends[last], idle.start)
    return intersect(union(idle.start, np.maximum(until, idle.start)), flying)


def _working(trace: Trace) -> Intervals:
    """Find when the busiest thread, or one that runs the backward pass, is in an op that does not communicate."""
    rows = of_kind(trace, "host_ops", "op").nonzero()[0]
    if not len(rows):
        return EMPTY
    names = trace.texts("host_ops", "name")
    waits = is_named(names, _waits)[rows]
    backward = is_named(names, lambda name: name.startswith(BACKWARD))[rows]
    start = trace.numbers("host_ops", "ts_ns")[rows]
    end = start + trace.numbers("host_ops", "dur_ns")[rows]
    threads, thread = numbered(trace.numbers("host_ops", "thread")[rows].astype(np.int64))
    busy_ns = [union(start[thread == n], end[thread == n]).total for n in range(len(threads))]
    is_chosen = np.bincount(thread[backward], minlength=len(threads)) > 0
    is_chosen[int(np.argmax(busy_ns))] = True
    chosen = is_chosen[thread]
    working = union(start[chosen & ~waits], end[chosen & ~waits])
    return subtract(working, union(start[chosen & waits], end[chosen & waits]))


def _arrivals(
    recorded: Collectives, rows: Ints, start: Ints, end: Ints, blocked: Intervals
) -> dict[str, Any]:
    """List the collectives that may wait for other ranks, by start, each with its share of the blocked time.

    If several are in flight, the time goes to the one that began first, since it is awaited first.
    """
    order = np.argsort(start, kind="stable")
    start, end, rows = start[order], end[order], rows[order]
    reach = np.maximum.accumulate(end)
    before = np.concatenate((start[:1], reach[:-1]))
    slot = np.clip(before, start, np.maximum(end, start))
    blocked_inside = covered(blocked, slot, end)
    assert int(blocked_inside.sum()) == blocked.total, (
        "blocked time must be that of the collectives"
    )
    is_arrival = recorded.numbers("synchronising")[rows]
    is_arrival = is_arrival | np.isin(recorded.numbers("op")[rows], ROOTED)
    arrived = rows[is_arrival]
    names = ("group", "op", "ordinal", "ts_ns", "dur_ns")
    return {
        "segment": np.arange(len(arrived), dtype=np.int64),
        **{name: at_rows(recorded.rows[name], arrived) for name in names},
        "blocked_ns": blocked_inside[is_arrival],
    }


def _pieces(trace: Trace) -> Pieces:
    """Split steps and outermost stages into disjoint pieces in order."""
    of_device: DeviceWindows = trace.derived(device_windows)
    steps, stages = of_device.step_rows, of_device.outer_ranges
    bounds = [_disjoint(spans) for spans in (steps, stages)]
    cuts = distinct(np.concatenate([side for pair in bounds for side in pair]))
    start, end = cuts[:-1], cuts[1:]
    step, stage = (window_at(*pair, start) for pair in bounds)
    is_placed = (step >= 0) | (stage >= 0)
    return Pieces(
        steps.numbers(step[is_placed]),
        named(stages.stage, stage[is_placed]),
        start[is_placed],
        end[is_placed],
    )


def _disjoint(spans: Spans) -> tuple[Ints, Ints]:
    """Clip windows (in order of start) to begin after those before them: (start, end); some become empty."""
    start, end = spans.ts_ns, spans.end_ns
    reach = np.maximum.accumulate(end)
    start = np.maximum(start, np.concatenate((start[:1], reach[:-1])))
    return start, np.maximum(start, end)


def _worked(pieces: Pieces, arrived: Ints, blocked: Intervals) -> dict[str, Any]:
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
    lost = covered(blocked, begin, until)
    own_ns = until - begin - lost
    assert (own_ns >= 0).all(), "no process is blocked for longer than the time it has"
    assert int((until - begin).sum()) == int((end - start).sum()), "segments must fill the windows"
    step, stage = at_rows(pieces.step, piece), pieces.stage[piece]
    number, row = of_arrays([segment, step, stage])
    return {
        "segment": segment[row],
        "step": at_rows(step, row),
        "stage": stage[row],
        "own_ns": summed(number, own_ns, len(row)),
        "blocked_ns": summed(number, lost, len(row)),
    }
