"""Launch delays and queue depth of device work: definition M11."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import merge_intervals
from tracekit.model.tables.arrays import Nullable, select_rows
from tracekit.model.tables.keys import group_arrays, number_keys, sort_in_groups, sum_by_group
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.idle_time.causes import DeviceIdle
from tracekit.process.steps.stage_lookup import find_range_codes_at

Ints = npt.NDArray[np.int64]

FULL_QUEUE = 1024
"""Ops that a stream queues before a launch blocks."""

MAX_STREAMS = 64
"""Streams of one device that are described at most, those with most ops."""


def measure_launch_delays(trace: Trace, idle: DeviceIdle) -> Mapping[str, Any]:
    """Measure launch delays per stage, and for all: from a launching call's end to its first op's start.

    In the row of all, the stage is missing.

    Columns: stage, count, negative_count, p50_ns, p95_ns, max_ns. A call that launches many ops (a graph)
    counts once, by the first of them. Ops known only by their external id have no launching call.
    """
    links: Launches = trace.derived(find_launches)
    rows = idle.rows[links.call[idle.rows] >= 0]
    calls, number = number_keys(links.call[rows])
    begins = np.full(len(calls), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(begins, number, trace.numbers("device_ops", "ts_ns")[rows])
    called = trace.numbers("host_ops", "ts_ns")[calls]
    delay = begins - called - trace.numbers("host_ops", "dur_ns")[calls]
    of_call = find_range_codes_at(trace, called)
    in_stage = of_call.codes >= 0
    # All delays again, as the last group.
    stage = np.concatenate((of_call.codes[in_stage], np.full(len(delay), len(of_call.texts))))
    both = np.concatenate((delay[in_stage], delay))
    texts = np.array([*of_call.texts, None], object)
    codes, group = number_keys(stage)
    count = np.bincount(group, minlength=len(codes))
    first = np.cumsum(count) - count
    negative = np.bincount(group[both < 0], minlength=len(codes))
    ascending = sort_in_groups(group, both)
    none_missing = np.zeros(len(codes), np.bool_)
    columns = {
        "stage": texts[codes],
        "count": count,
        "negative_count": negative,
        "max_ns": ascending[first + count - 1],
        "p50_ns": Nullable(_compute_group_quantile(ascending, first, count, 0.5), none_missing),
        "p95_ns": Nullable(_compute_group_quantile(ascending, first, count, 0.95), none_missing),
    }
    names = texts[codes].tolist()
    by_stage = sorted(range(len(codes)), key=lambda place: (names[place] is None, names[place] or ""))
    return {name: select_rows(array, by_stage) for name, array in columns.items()}


def _compute_group_quantile(values: Ints, first: Ints, count: Ints, share: float) -> npt.NDArray[np.float64]:
    """Compute the quantile of each group of ascending values, with linear interpolation."""
    position = share * (count - 1)
    low = np.floor(position).astype(np.int64)
    below = values[first + low].astype(np.float64)
    above = values[first + np.minimum(low + 1, count - 1)].astype(np.float64)
    between: npt.NDArray[np.float64] = below + (above - below) * (position - low)
    return between


def measure_launch_queues(trace: Trace, idle: DeviceIdle) -> Mapping[str, Any]:
    """Measure launched and unfinished ops over time: a row per stream with the columns of `queues`; {} for none."""
    links: Launches = trace.derived(find_launches)
    rows = idle.rows[links.linked[idle.rows]]
    stream = select_rows(trace.nullable("device_ops", "stream"), rows)
    number, row = group_arrays([stream])
    in_order = np.lexsort((stream.values[row], stream.missing[row]))
    counts = np.bincount(number, minlength=len(row))[in_order]
    largest = np.sort(np.argsort(-counts, kind="stable")[:MAX_STREAMS])
    start, op_start = links.ts_ns[rows], trace.numbers("device_ops", "ts_ns")[rows]
    end = op_start + trace.numbers("device_ops", "dur_ns")[rows]
    by_queue = []
    for place in in_order[largest].tolist():
        in_queue = number == place
        by_queue.append(_measure_queue_depth(start[in_queue], end[in_queue]))
    depths = {name: np.array([depth[name] for depth in by_queue]) for name in next(iter(by_queue), ())}
    return {"stream": select_rows(stream, row[in_order[largest]]), **depths} if by_queue else {}


def _measure_queue_depth(launched: Ints, finished: Ints) -> Mapping[str, int]:
    """Measure the depth of one queue, weighted by time."""
    # Clock jitter may show an op as finished before its launch: it was queued for no time.
    finished = np.maximum(finished, launched)
    times = np.concatenate((launched, finished))
    order = np.argsort(times, kind="stable")
    depth = np.cumsum(np.repeat(np.array([1, -1]), len(launched))[order])
    times = times[order]
    length = np.diff(times)
    depth = depth[:-1]
    reached = np.cumsum(sum_by_group(depth, length, int(depth.max(initial=0)) + 1))
    span = int(times[-1] - times[0])
    assert merge_intervals(launched, finished).total == int(length[depth > 0].sum())

    def exceeded_less(numerator: int, denominator: int) -> int:
        """Find the depth that the queue exceeds for less than the rest of this fraction of the time."""
        if not span:
            return 0
        # Use integers: a share of a capture of days would lose nanoseconds as a float.
        place = np.searchsorted(reached, -(-span * numerator // denominator), side="left")
        return int(place)

    return {
        "count": len(launched),
        "span_ns": span,
        "p50_count": exceeded_less(1, 2),
        "p95_count": exceeded_less(19, 20),
        "max_count": int(depth[length > 0].max()) if (length > 0).any() else 0,
        "full_ns": int(length[depth >= FULL_QUEUE].sum()),
    }
