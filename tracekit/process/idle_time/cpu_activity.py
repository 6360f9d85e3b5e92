"""Time of a process without a device: by activity, by thread and by Python function."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import (
    Intervals,
    covered,
    exclusive,
    subtract,
    union,
    union_all,
    union_totals,
)
from tracekit.model.keys import largest, numbered, summed, sums_of
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Array, at_rows, joined, repeated_number, trimmed_all
from tracekit.model.tables.slots import CPU_ACTIVITIES
from tracekit.model.trace import Trace
from tracekit.process.calls.activity import HostActivity, host_activity
from tracekit.process.calls.garbage_collection import collection_spans
from tracekit.process.calls.nesting import by_start, nested
from tracekit.process.collectives.compute_between_collectives import blocked_on_host
from tracekit.process.idle_time.tables import WINDOWS
from tracekit.process.name_filters import narrow, numbered_codes, of_kind
from tracekit.process.steps.stage_lookup import outer_ranges
from tracekit.process.steps.windows import windows

Ints = npt.NDArray[np.int64]

HOST_TABLES = ("host_ops", "python_calls")
"""Tables of host-thread rows."""

MAX_THREADS = 100
"""Threads of one source listed at most, the busiest."""

MAX_FRAMES = 500
"""Python functions of one source listed at most, those with most self time."""


@dataclass(frozen=True)
class CpuTime:
    """Activity of the host; pass an instance to `trace.derived`. `silence_ns` without any record is silence."""

    silence_ns: int

    def __call__(self, trace: Trace) -> dict[str, Array]:
        """Compute window, step, stage, activity and time_ns; activities add up to the window."""
        parts = split_activity(trace, self.silence_ns)
        keys, start, end = _cpu_windows(trace)
        inside = np.stack([covered(part, start, end) for part in parts])
        assert (inside.sum(axis=0) == end - start).all(), "activities must fill every window"
        activity, place = inside.nonzero()
        order = np.lexsort((activity, place))
        activity, place = activity[order], place[order]
        rows = {name: at_rows(column, place) for name, column in keys.items()}
        columns = {**rows, "activity": narrow(activity, CPU_ACTIVITIES)}
        return trimmed_all(sums_of(columns, {"time_ns": inside[activity, place]}))


def split_activity(trace: Trace, silence_ns: int) -> list[Intervals]:
    """Split the recorded time of the process into disjoint sets, one for each of `CPU_ACTIVITIES`."""
    activity: HostActivity = trace.derived(host_activity)
    recorded = [
        trace.derived(collection_spans),
        activity.loader,
        trace.derived(blocked_on_host),
        union_all([activity.op, activity.overhead]),
        activity.code,
    ]
    first, last = _extent(trace)
    parts = exclusive(recorded)
    rest = subtract(union(first, last), union_all(parts))
    is_long = rest.end - rest.start >= silence_ns
    silent = Intervals(rest.start[is_long], rest.end[is_long])
    return [*parts, Intervals(rest.start[~is_long], rest.end[~is_long]), silent]


def _extent(trace: Trace) -> tuple[Ints, Ints]:
    """Find the first start and last end of all steps, ranges, host ops and Python functions."""
    steps, ranges = trace.derived(windows).step_rows, trace.derived(outer_ranges)
    op, call = (trace.numbers(table, "ts_ns") for table in HOST_TABLES)
    op_ns, call_ns = (trace.numbers(table, "dur_ns") for table in HOST_TABLES)
    starts = np.concatenate((steps.ts_ns, ranges.ts_ns, op, call))
    ends = np.concatenate((steps.end_ns, ranges.end_ns, op + op_ns, call + call_ns))
    return starts.min(keepdims=True), ends.max(keepdims=True)


def _cpu_windows(trace: Trace) -> tuple[dict[str, Any], Ints, Ints]:
    """List the capture, every step and every outermost range: (window, step and stage; starts; ends)."""
    steps, ranges = trace.derived(windows).step_rows, trace.derived(outer_ranges)
    first, last = _extent(trace)
    start = np.concatenate((first, steps.ts_ns, ranges.ts_ns))
    end = np.concatenate((last, steps.end_ns, ranges.end_ns))
    kind = np.repeat(np.arange(len(WINDOWS)), (1, len(steps), len(ranges)))
    stage = np.concatenate((np.full(1 + len(steps), -1), ranges.stage.codes))
    keys = {
        "window": narrow(kind, WINDOWS),
        "step": joined([repeated_number(None, 1), steps.step, ranges.step]),
        "stage": narrow(stage, ranges.stage.texts),
    }
    return keys, start, end


def thread_times(trace: Trace) -> dict[str, Array]:
    """Measure how long each thread was in an op: thread, name, count, op_ns, window_ns; the busiest first."""
    rows = of_kind(trace, "host_ops", "op", "runtime").nonzero()[0]
    if not len(rows):
        return {}
    start = trace.numbers("host_ops", "ts_ns")[rows]
    end = start + trace.numbers("host_ops", "dur_ns")[rows]
    threads, thread = numbered(trace.numbers("host_ops", "thread")[rows].astype(np.int64))
    busy = [union(start[thread == n], end[thread == n]).total for n in range(len(threads))]
    op_ns = np.array(busy, np.int64)
    first, last = _extent(trace)
    chosen = largest(op_ns, MAX_THREADS)
    chosen = chosen[np.argsort(-op_ns[chosen], kind="stable")]
    recorded = trace.numbers("threads", "thread")
    place = np.full(max(int(recorded.max(initial=0)), int(threads.max(initial=0))) + 1, -1)
    place[recorded] = np.arange(len(recorded))
    rows_of_threads = place[threads[chosen]]
    names, tids = trace.texts("threads", "name"), trace.nullable("threads", "tid")
    padded = np.append(names.codes.astype(np.int64), -1)
    return {
        "tid": at_rows(tids, rows_of_threads),
        "name": narrow(padded[rows_of_threads], names.texts),
        "count": np.bincount(thread, minlength=len(threads))[chosen],
        "op_ns": op_ns[chosen],
        "window_ns": np.full(len(chosen), int(last[0] - first[0])),
    }


def frame_times(trace: Trace) -> dict[str, Array]:
    """List the Python functions with most self time: name, count, self_ns, total_ns.

    The time of the ops that a function calls is self time, since ops are not Python functions.
    """
    start, dur = (trace.numbers("python_calls", name) for name in ("ts_ns", "dur_ns"))
    if not len(start):
        return {}
    thread = trace.numbers("python_calls", "thread")
    parent = nested(by_start(thread, start, start + dur), thread, start, dur).astype(np.int64)
    self_ns = np.maximum(dur - summed(parent, dur, len(start)), 0)
    names = trace.texts("python_calls", "name")
    present, slot = numbered_codes(names.codes, len(names.texts))
    count = len(present)
    # A recursive function counts once: take the union of its calls on a thread.
    pairs, pair = numbered(thread.astype(np.int64) * count + slot)
    totals = union_totals(start, start + dur, pair, len(pairs))
    total_ns = summed(pairs % count, totals, count)
    own_ns = summed(slot, self_ns, count)
    chosen = largest(own_ns, MAX_FRAMES)
    chosen = chosen[np.argsort(-own_ns[chosen], kind="stable")]
    return {
        "name": narrow(present[chosen], names.texts),
        "count": np.bincount(slot, minlength=count)[chosen],
        "self_ns": own_ns[chosen],
        "total_ns": total_ns[chosen],
    }
