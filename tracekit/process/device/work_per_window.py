"""Device work of each host window, assigned by launch where one is recorded (M8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import measure_group_unions
from tracekit.model.tables.arrays import Nullable
from tracekit.model.trace import Trace
from tracekit.process.device.devices import number_devices
from tracekit.process.device.placement import Placement, place_device_ops

Ints = npt.NDArray[np.int64]

MAX_WINDOW_ROWS = 50_000_000
"""Device ops united at most over all windows of a source; windows that all overlap would take too long."""


def measure_work_per_window(trace: Trace, start: Ints, end: Ints) -> Mapping[str, Any]:
    """Measure `launch_count`, `work_ns` and `work_busy_ns` of each window from the device ops placed in it.

    A launch from any thread counts (backward runs on another thread); an op without a launch is where
    `place_device_ops` puts it. Missing if no device was recorded.
    """
    if not trace.has("device_ops"):
        unknown = Nullable(np.zeros(len(start), np.int64), np.ones(len(start), np.bool_))
        return {"launch_count": unknown, "work_ns": unknown, "work_busy_ns": unknown}
    rows, low, high = _find_issued_ops(trace, start, end)
    dur = trace.numbers("device_ops", "dur_ns")[rows]
    sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(dur)))
    busy = _measure_busy_time_per_window(trace, rows, dur, low, high)
    return {"launch_count": high - low, "work_ns": sums[high] - sums[low], "work_busy_ns": busy}


def find_work_ends(trace: Trace, start: Ints, end: Ints) -> Nullable:
    """Find when the last device op placed in each window ends; missing for windows without ops."""
    if not trace.has("device_ops") or not len(start):
        return Nullable(np.zeros(len(start), np.int64), np.ones(len(start), np.bool_))
    rows, low, high = _find_issued_ops(trace, start, end)
    ends = trace.numbers("device_ops", "ts_ns")[rows] + trace.numbers("device_ops", "dur_ns")[rows]
    # One extra value lets a window end at the last op. Only even pairs of bounds are used.
    bounds = np.stack((low, high), axis=1).ravel()
    latest = np.maximum.reduceat(np.append(ends, np.iinfo(np.int64).min), bounds)[::2]
    is_empty = low == high
    return Nullable(np.where(is_empty, 0, latest), is_empty)


def _find_issued_ops(trace: Trace, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Sort device ops by placement and find those of each window: (rows, first position, position after the last)."""
    place: Placement = trace.derived(place_device_ops)
    rows = place.is_placed.nonzero()[0]
    rows = rows[np.argsort(place.ts_ns[rows], kind="stable")]
    issued_ns = place.ts_ns[rows]
    low = np.searchsorted(issued_ns, start, side="left")
    high = np.maximum(np.searchsorted(issued_ns, end, side="left"), low)
    return rows, low, high


def _measure_busy_time_per_window(trace: Trace, of_place: Ints, dur: Ints, low: Ints, high: Ints) -> Nullable:
    """Measure the union per device of the ops `of_place[low:high]` of each window, summed over devices.

    Windows may nest, so an op counts once for each. Windows beyond `MAX_WINDOW_ROWS` in total are missing.
    """
    start = trace.numbers("device_ops", "ts_ns")[of_place]
    end = start + dur
    of_trace = trace.derived(number_devices)
    number, width = of_trace.number[of_place], max(len(of_trace), 1)
    size = high - low
    bound = np.cumsum(size)
    totals = np.zeros(len(low), np.int64)
    affordable = bound <= MAX_WINDOW_ROWS
    for chosen in np.array_split(affordable.nonzero()[0], 1 + int(bound[-1:].sum()) // 2**21):
        window = np.repeat(np.arange(len(chosen)), size[chosen])
        first = np.repeat(low[chosen] - np.cumsum(size[chosen]) + size[chosen], size[chosen])
        rows = first + np.arange(len(first))
        group = window * width + number[rows]
        by_device = measure_group_unions(start[rows], end[rows], group, len(chosen) * width)
        totals[chosen] = by_device.reshape(len(chosen), width).sum(axis=1)
    return Nullable(totals, ~affordable)
