"""Time of a process without a device: by activity, by thread and by Python function."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import (
    Intervals,
    make_disjoint,
    measure_coverage,
    measure_group_unions,
    merge_interval_sets,
    merge_intervals,
    subtract,
)
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Array, concatenate_like_arrays, repeat_number, select_rows, trim_all_texts
from tracekit.model.tables.keys import find_largest, number_keys, sum_by_group, sum_by_keys
from tracekit.model.tables.slots import CPU_ACTIVITIES
from tracekit.model.trace import Trace
from tracekit.process.calls.activity import HostActivity, find_garbage_collections, measure_host_activity
from tracekit.process.calls.nesting import find_parent_rows, sort_by_start
from tracekit.process.collectives.compute_between_collectives import find_host_blocked_spans
from tracekit.process.idle_time.tables import WINDOWS
from tracekit.process.name_filters import list_present_codes, make_narrow_coded, mark_rows_of_kind
from tracekit.process.steps.stage_lookup import select_outer_ranges
from tracekit.process.steps.windows import find_steps_and_stages

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
        parts = split_cpu_activity(trace, self.silence_ns)
        keys, start, end = _list_cpu_windows(trace)
        inside = np.stack([measure_coverage(part, start, end) for part in parts])
        assert (inside.sum(axis=0) == end - start).all(), "activities must fill every window"
        activity, place = inside.nonzero()
        order = np.lexsort((activity, place))
        activity, place = activity[order], place[order]
        rows = {name: select_rows(column, place) for name, column in keys.items()}
        columns = {**rows, "activity": make_narrow_coded(activity, CPU_ACTIVITIES)}
        return trim_all_texts(sum_by_keys(columns, {"time_ns": inside[activity, place]}))


def split_cpu_activity(trace: Trace, silence_ns: int) -> list[Intervals]:
    """Split the recorded time of the process into disjoint sets, one for each of `CPU_ACTIVITIES`."""
    activity: HostActivity = trace.derived(measure_host_activity)
    recorded = [
        trace.derived(find_garbage_collections),
        activity.loader,
        trace.derived(find_host_blocked_spans),
        merge_interval_sets([activity.op, activity.overhead]),
        activity.code,
    ]
    first, last = _find_cpu_recording_bounds(trace)
    parts = make_disjoint(recorded)
    rest = subtract(merge_intervals(first, last), merge_interval_sets(parts))
    is_long = rest.end - rest.start >= silence_ns
    silent = Intervals(rest.start[is_long], rest.end[is_long])
    return [*parts, Intervals(rest.start[~is_long], rest.end[~is_long]), silent]


def _find_cpu_recording_bounds(trace: Trace) -> tuple[Ints, Ints]:
    """Find the first start and last end of all steps, ranges, host ops and Python functions."""
    steps, ranges = (trace.derived(find_steps_and_stages).step_rows, trace.derived(select_outer_ranges))
    op, call = (trace.numbers(table, "ts_ns") for table in HOST_TABLES)
    op_ns, call_ns = (trace.numbers(table, "dur_ns") for table in HOST_TABLES)
    starts = np.concatenate((steps.ts_ns, ranges.ts_ns, op, call))
    ends = np.concatenate((steps.end_ns, ranges.end_ns, op + op_ns, call + call_ns))
    return starts.min(keepdims=True), ends.max(keepdims=True)


def _list_cpu_windows(trace: Trace) -> tuple[dict[str, Any], Ints, Ints]:
    """List the capture, every step and every outermost range: (window, step and stage; starts; ends)."""
    steps, ranges = (trace.derived(find_steps_and_stages).step_rows, trace.derived(select_outer_ranges))
    first, last = _find_cpu_recording_bounds(trace)
    start = np.concatenate((first, steps.ts_ns, ranges.ts_ns))
    end = np.concatenate((last, steps.end_ns, ranges.end_ns))
    kind = np.repeat(np.arange(len(WINDOWS)), (1, len(steps), len(ranges)))
    stage = np.concatenate((np.full(1 + len(steps), -1), ranges.stage.codes))
    keys = {
        "window": make_narrow_coded(kind, WINDOWS),
        "step": concatenate_like_arrays([repeat_number(None, 1), steps.step, ranges.step]),
        "stage": make_narrow_coded(stage, ranges.stage.texts),
    }
    return keys, start, end


def measure_thread_times(trace: Trace) -> dict[str, Array]:
    """Measure how long each thread was in an op: thread, name, count, op_ns, window_ns; the busiest first."""
    rows = mark_rows_of_kind(trace, "host_ops", "op", "runtime").nonzero()[0]
    if not len(rows):
        return {}
    start = trace.numbers("host_ops", "ts_ns")[rows]
    end = start + trace.numbers("host_ops", "dur_ns")[rows]
    threads, thread = number_keys(trace.numbers("host_ops", "thread")[rows].astype(np.int64))
    busy = [merge_intervals(start[thread == n], end[thread == n]).total for n in range(len(threads))]
    op_ns = np.array(busy, np.int64)
    first, last = _find_cpu_recording_bounds(trace)
    chosen = find_largest(op_ns, MAX_THREADS)
    chosen = chosen[np.argsort(-op_ns[chosen], kind="stable")]
    recorded = trace.numbers("threads", "thread")
    place = np.full(max(int(recorded.max(initial=0)), int(threads.max(initial=0))) + 1, -1)
    place[recorded] = np.arange(len(recorded))
    rows_of_threads = place[threads[chosen]]
    names, tids = trace.texts("threads", "name"), trace.nullable("threads", "tid")
    padded = np.append(names.codes.astype(np.int64), -1)
    return {
        "tid": select_rows(tids, rows_of_threads),
        "name": make_narrow_coded(padded[rows_of_threads], names.texts),
        "count": np.bincount(thread, minlength=len(threads))[chosen],
        "op_ns": op_ns[chosen],
        "window_ns": np.full(len(chosen), int(last[0] - first[0])),
    }


def measure_frame_times(trace: Trace) -> dict[str, Array]:
    """List the Python functions with most self time: name, count, self_ns, total_ns.

    The time of the ops that a function calls is self time, since ops are not Python functions.
    """
    start, dur = (trace.numbers("python_calls", name) for name in ("ts_ns", "dur_ns"))
    if not len(start):
        return {}
    thread = trace.numbers("python_calls", "thread")
    parent = find_parent_rows(sort_by_start(thread, start, start + dur), thread, start, dur).astype(np.int64)
    self_ns = np.maximum(dur - sum_by_group(parent, dur, len(start)), 0)
    names = trace.texts("python_calls", "name")
    present, slot = list_present_codes(names.codes, len(names.texts))
    count = len(present)
    # A recursive function counts once: take the union of its calls on a thread.
    pairs, pair = number_keys(thread.astype(np.int64) * count + slot)
    totals = measure_group_unions(start, start + dur, pair, len(pairs))
    total_ns = sum_by_group(pairs % count, totals, count)
    own_ns = sum_by_group(slot, self_ns, count)
    chosen = find_largest(own_ns, MAX_FRAMES)
    chosen = chosen[np.argsort(-own_ns[chosen], kind="stable")]
    return {
        "name": make_narrow_coded(present[chosen], names.texts),
        "count": np.bincount(slot, minlength=count)[chosen],
        "self_ns": own_ns[chosen],
        "total_ns": total_ns[chosen],
    }
