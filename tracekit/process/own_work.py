"""What a process did on its own between the synchronising collectives, by stage (quantity Q7).

Own work is wall time less the time blocked in collectives. A device is blocked while a collective runs
and no compute kernel does. A host is blocked from where its last op ended to where the awaited collective
does: a gap between ops in which no collective ends is Python at work, whatever is in flight behind it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.intervals import (
    EMPTY,
    Intervals,
    covered,
    intersect,
    subtract,
    union,
    window_at,
)
from tracekit.model.trace import Trace
from tracekit.process.by_name import is_named
from tracekit.process.collectives import Collectives, collectives
from tracekit.process.sound import sound_device_ops
from tracekit.process.stage_at import outermost_ranges
from tracekit.process.steps import windows

Ints = npt.NDArray[np.int64]

MAX_ARRIVALS = 20_000
"""Most synchronising collectives of one device that end a segment; beyond it the earliest."""

_WAITS = re.compile(r"_?c10d(?:_functional)?::|record_param_comms|(?:nccl|gloo|mpi|ucc):")
"""Ops inside which a host waits for a collective, or queues one."""

BACKWARD = "autograd::engine::evaluate_function"
"""How the names of the ops of the backward pass begin."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Columns of the measured tables `arrivals` and `segments`; `cut` arrivals were beyond the cap."""

    arrivals: pd.DataFrame
    segments: pd.DataFrame
    cut: int


def segments(trace: Trace) -> Segments:
    """The segments of a trace, on each device that ran collectives; on the host where none did."""
    recorded: Collectives = trace.derived(collectives)
    pieces = _pieces(trace)
    codes, devices = pd.factorize(recorded.frame["device"], use_na_sentinel=False)
    if not len(devices):
        codes, devices = np.empty(0, np.int64), pd.Index(pd.array([pd.NA], dtype="Int64"))
    arrivals, worked, cut = [], [], 0
    for code, device in enumerate(devices):
        of_process = recorded.frame[codes == code]
        start = of_process["ts_ns"].to_numpy(np.int64)
        end = start + of_process["dur_ns"].to_numpy(np.int64)
        if recorded.on_device:
            blocked = subtract(union(start, end), _computing(trace, device))
        else:
            blocked = _blocked_host(trace, start, end)
        came = _arrivals(of_process, start, end, blocked)
        cut += max(len(came) - MAX_ARRIVALS, 0)
        arrivals.append(came.iloc[:MAX_ARRIVALS])
        worked.append(_worked(pieces, came["ts_ns"].to_numpy()[:MAX_ARRIVALS], blocked))
        for frames in (arrivals, worked):
            number = pd.array([device] * len(frames[-1]), dtype="Int64")
            frames[-1] = frames[-1].assign(device=number)
    return Segments(
        pd.concat(arrivals, ignore_index=True), pd.concat(worked, ignore_index=True), cut
    )


def _computing(trace: Trace, device: object) -> Intervals:
    """When compute kernels run on a device."""
    ops = trace.derived(sound_device_ops)
    code, numbers = pd.factorize(ops["device"], use_na_sentinel=False)
    same = np.array([str(number) == str(device) for number in numbers], np.bool_)
    ops = ops[(ops["kind"] == "kernel").to_numpy() & same[code]]
    start = ops["ts_ns"].to_numpy()
    return union(start, start + ops["dur_ns"].to_numpy())


def _blocked_host(trace: Trace, start: Ints, end: Ints) -> Intervals:
    """When the threads that compute wait for a collective: in gaps in which one ends, until it does."""
    if not len(start):
        return EMPTY
    flying, ends = union(start, end), np.sort(end)
    idle = subtract(union(start.min(keepdims=True), end.max(keepdims=True)), _working(trace))
    last = np.searchsorted(ends, idle.end, side="right") - 1
    until = np.where(last >= 0, ends[last], idle.start)
    return intersect(union(idle.start, np.maximum(until, idle.start)), flying)


def _working(trace: Trace) -> Intervals:
    """When the busiest thread, or one that runs the backward pass, is in an op that is no communication."""
    host = trace.get("host_ops")
    host = host[(host["kind"] == "op").to_numpy()]
    waits = is_named(host["name"], _WAITS.match)
    backward = is_named(host["name"], lambda name: name.startswith(BACKWARD))
    start = host["ts_ns"].to_numpy()
    end = start + host["dur_ns"].to_numpy()
    thread = host["thread"].to_numpy()
    working, longest = EMPTY, -1
    chosen = np.zeros(len(host), np.bool_)
    for number in np.unique(thread):
        on_thread = thread == number
        if backward[on_thread].any():
            chosen |= on_thread
        total = union(start[on_thread], end[on_thread]).total
        if total > longest:
            working, longest, busiest = union(start[on_thread], end[on_thread]), total, on_thread
    if longest < 0:
        return EMPTY
    chosen |= busiest
    working = union(start[chosen & ~waits], end[chosen & ~waits])
    return subtract(working, union(start[chosen & waits], end[chosen & waits]))


def _arrivals(frame: pd.DataFrame, start: Ints, end: Ints, blocked: Intervals) -> pd.DataFrame:
    """The synchronising collectives in order of start, each with the blocked time that is its own.

    Where several are in flight, the time is that of the one that began first: it is awaited first.
    """
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    before = np.concatenate((start[:1], reach[:-1]))
    slot = np.clip(before, start, np.maximum(end, start))
    blocked_inside = covered(blocked, slot, end)
    assert int(blocked_inside.sum()) == blocked.total, (
        "blocked time must be that of the collectives"
    )
    out = frame.iloc[order].assign(blocked_ns=blocked_inside)
    out = out[out["synchronising"].to_numpy(np.bool_)].reset_index(drop=True)
    out.insert(0, "segment", np.arange(len(out), dtype=np.int64))
    return out[["segment", "group", "op", "ordinal", "ts_ns", "dur_ns", "blocked_ns"]]


def _pieces(trace: Trace) -> pd.DataFrame:
    """Steps and outermost stages as disjoint pieces in order: step, stage, start, end."""
    steps, stages = trace.derived(windows).steps, trace.derived(outermost_ranges)
    bounds = [_disjoint(frame) for frame in (steps, stages)]
    cuts = np.unique(np.concatenate([side for pair in bounds for side in pair]))
    start, end = cuts[:-1], cuts[1:]
    step, stage = (window_at(*pair, start) for pair in bounds)
    is_placed = (step >= 0) | (stage >= 0)
    number = pd.array([*steps["step"], pd.NA], dtype="Int64")
    name = np.array([*stages["stage"], None], object)
    return pd.DataFrame(
        {
            "step": number[step[is_placed]],
            "stage": name[stage[is_placed]],
            "start": start[is_placed],
            "end": end[is_placed],
        }
    )


def _disjoint(frame: pd.DataFrame) -> tuple[Ints, Ints]:
    """Start and end of rows in order of start, each less the time of those before it; some are empty then."""
    start = frame["ts_ns"].to_numpy(np.int64)
    end = start + frame["dur_ns"].to_numpy(np.int64)
    reach = np.maximum.accumulate(end)
    start = np.maximum(start, np.concatenate((start[:1], reach[:-1])))
    return start, np.maximum(start, end)


def _worked(pieces: pd.DataFrame, arrived: Ints, blocked: Intervals) -> pd.DataFrame:
    """The rows of `segments`: the pieces cut where the process arrived, own and blocked time in each."""
    start, end = pieces["start"].to_numpy(np.int64), pieces["end"].to_numpy(np.int64)
    first = np.searchsorted(arrived, start, side="right")
    last = np.searchsorted(arrived, end, side="left")
    count = np.maximum(last - first, 0) + 1
    piece = np.repeat(np.arange(len(pieces)), count)
    segment = np.arange(len(piece)) - np.repeat(np.cumsum(count) - count, count) + first[piece]
    bound = np.append(arrived, np.iinfo(np.int64).max)
    begin = np.maximum(start[piece], np.where(segment > 0, bound[segment - 1], start[piece]))
    until = np.minimum(end[piece], bound[segment])
    lost = covered(blocked, begin, until)
    own_ns = until - begin - lost
    assert (own_ns >= 0).all(), "no process is blocked for longer than the time it has"
    assert int((until - begin).sum()) == int((end - start).sum()), "segments must fill the windows"
    frame = pd.DataFrame(
        {
            "segment": segment,
            "step": pieces["step"].array[piece],
            "stage": pieces["stage"].to_numpy(object)[piece],
            "own_ns": own_ns,
            "blocked_ns": lost,
        }
    )
    grouped = frame.groupby(["segment", "step", "stage"], dropna=False, sort=False)
    return grouped[["own_ns", "blocked_ns"]].sum().reset_index()
