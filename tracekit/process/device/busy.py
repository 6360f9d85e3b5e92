"""Busy time of a device by class of work, in total and per window.

Definitions M2 to M4: an exclusive part is time in which its class runs and no class before it does, in the
order of `PARTS`. The parts and idle time add up to the window, in integer nanoseconds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import (
    Intervals,
    intersect,
    make_disjoint,
    measure_coverage,
    merge_interval_sets,
    merge_intervals,
)
from tracekit.model.tables.arrays import Coded, Nullable
from tracekit.model.tables.keys import find_distinct

Ints = npt.NDArray[np.int64]

PARTS = ("compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "exposed_memset_ns")
_CLASS_OF_PART = ("kernel", "collective", "memcpy", "memset")


class DeviceBusyIntervals(NamedTuple):
    """Busy intervals of one device: exclusive slots (order of `PARTS`), communication, overlap, sorted bounds."""

    slots: list[Intervals]
    comm: Intervals
    overlap: Intervals
    start: Ints
    end: Ints


def group_rows_by_device(device: Nullable) -> list[tuple[int | None, Ints]]:
    """List (device, rows of its ops) by device number; ops of an unknown device come last."""
    recorded = ~device.missing
    numbers = find_distinct(device.values[recorded]).tolist()
    rows: list[tuple[int | None, Ints]] = [
        (number, (recorded & (device.values == number)).nonzero()[0]) for number in numbers
    ]
    unknown = device.missing.nonzero()[0]
    return [*rows, (None, unknown)] if len(unknown) else rows


def compute_busy_intervals(start: Ints, length: Ints, kind: Coded) -> DeviceBusyIntervals:
    """Compute the busy intervals of one device from the starts, lengths and kinds of its ops."""
    end = start + length
    codes = [kind.texts.index(name) for name in _CLASS_OF_PART]
    unions = [merge_intervals(start[kind.codes == code], end[kind.codes == code]) for code in codes]
    return DeviceBusyIntervals(
        make_disjoint(unions),
        unions[1],
        intersect(unions[1], unions[0]),
        np.sort(start, kind="stable"),
        np.sort(end, kind="stable"),
    )


def break_down_device_windows(state: DeviceBusyIntervals, start: Ints, end: Ints) -> dict[str, Any]:
    """Measure the breakdown of each window [start[i], end[i]): the measured columns of `gpu_time`."""
    parts = {part: measure_coverage(slot, start, end) for part, slot in zip(PARTS, state.slots, strict=True)}
    busy = sum(parts.values(), np.zeros(len(start), np.int64))
    idle = end - start - busy
    all_busy = measure_coverage(merge_interval_sets(state.slots), start, end)
    assert (busy == all_busy).all(), "the exclusive parts must add up to the busy time"
    assert (idle >= 0).all(), "the busy time must fit into the window"
    touching = np.searchsorted(state.start, end, "left") - np.searchsorted(state.end, start, "right")
    return {
        "ts_ns": start,
        "window_ns": end - start,
        **parts,
        "idle_ns": idle,
        "comm_ns": measure_coverage(state.comm, start, end),
        "overlap_ns": measure_coverage(state.overlap, start, end),
        "op_count": np.maximum(touching, 0),
    }


MAX_BINS = 200


def bin_device_busy_time(state: DeviceBusyIntervals) -> dict[str, Any]:
    """Measure ts_ns, window_ns and busy_ns of at most `MAX_BINS` equal bins from first start to last end."""
    first, last = (int(state.start[0]), int(state.end[-1])) if len(state.start) else (0, 0)
    width = max(-(-(last - first) // MAX_BINS), 1)
    start = np.arange(first, last, width, dtype=np.int64)
    end = np.minimum(start + width, last)
    covered_by_any = merge_interval_sets(state.slots)
    busy = measure_coverage(covered_by_any, start, end)
    assert int(busy.sum()) == covered_by_any.total, "the pieces must add up to the busy time"
    return {"ts_ns": start, "window_ns": end - start, "busy_ns": busy}
