"""Busy time of a device by class of work, in total and per window.

Definitions M2 to M4: an exclusive part is time in which its class runs and no class before it does, in the
order of `PARTS`. The parts and idle time add up to the window, in integer nanoseconds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.intervals import Intervals, covered, exclusive, intersect, union, union_all
from tracekit.model.keys import distinct
from tracekit.model.tables.arrays import Coded, Nullable, bare

Ints = npt.NDArray[np.int64]

PARTS = ("compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "exposed_memset_ns")
_CLASS_OF_PART = ("kernel", "collective", "memcpy", "memset")


class Running(NamedTuple):
    """Busy intervals of one device: exclusive slots (order of `PARTS`), communication, overlap, sorted bounds."""

    slots: list[Intervals]
    comm: Intervals
    overlap: Intervals
    start: Ints
    end: Ints


def rows_by_device(device: Nullable) -> list[tuple[int | None, Ints]]:
    """List (device, rows of its ops) by device number; ops of an unknown device come last."""
    recorded = ~device.missing
    numbers = distinct(device.values[recorded]).tolist()
    rows: list[tuple[int | None, Ints]] = [
        (number, (recorded & (device.values == number)).nonzero()[0]) for number in numbers
    ]
    unknown = device.missing.nonzero()[0]
    return [*rows, (None, unknown)] if len(unknown) else rows


def running(ops: pd.DataFrame) -> Running:
    """Compute the busy intervals of one device from its ops."""
    kind = bare(ops["kind"].array)
    assert isinstance(kind, Coded), "kinds are coded"
    return running_of(ops["ts_ns"].to_numpy(), ops["dur_ns"].to_numpy(), kind)


def running_of(start: Ints, length: Ints, kind: Coded) -> Running:
    """Compute the busy intervals of one device from the starts, lengths and kinds of its ops."""
    end = start + length
    codes = [kind.texts.index(name) for name in _CLASS_OF_PART]
    unions = [union(start[kind.codes == code], end[kind.codes == code]) for code in codes]
    return Running(
        exclusive(unions),
        unions[1],
        intersect(unions[1], unions[0]),
        np.sort(start, kind="stable"),
        np.sort(end, kind="stable"),
    )


def by_window(state: Running, start: Ints, end: Ints) -> dict[str, Any]:
    """Measure the breakdown of each window [start[i], end[i]): the measured columns of `gpu_time`."""
    parts = {part: covered(slot, start, end) for part, slot in zip(PARTS, state.slots, strict=True)}
    busy = sum(parts.values(), np.zeros(len(start), np.int64))
    idle = end - start - busy
    all_busy = covered(union_all(state.slots), start, end)
    assert (busy == all_busy).all(), "the exclusive parts must add up to the busy time"
    assert (idle >= 0).all(), "the busy time must fit into the window"
    touching = np.searchsorted(state.start, end, "left") - np.searchsorted(
        state.end, start, "right"
    )
    return {
        "ts_ns": start,
        "window_ns": end - start,
        **parts,
        "idle_ns": idle,
        "comm_ns": covered(state.comm, start, end),
        "overlap_ns": covered(state.overlap, start, end),
        "op_count": np.maximum(touching, 0),
    }


MAX_BINS = 200


def by_bin(state: Running) -> dict[str, Any]:
    """Measure ts_ns, window_ns and busy_ns of at most `MAX_BINS` equal bins from first start to last end."""
    first, last = (int(state.start[0]), int(state.end[-1])) if len(state.start) else (0, 0)
    width = max(-(-(last - first) // MAX_BINS), 1)
    start = np.arange(first, last, width, dtype=np.int64)
    end = np.minimum(start + width, last)
    covered_by_any = union_all(state.slots)
    busy = covered(covered_by_any, start, end)
    assert int(busy.sum()) == covered_by_any.total, "the pieces must add up to the busy time"
    return {"ts_ns": start, "window_ns": end - start, "busy_ns": busy}
