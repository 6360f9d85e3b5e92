"""The window of a timeline: rows that cross its edges are clipped, samples begin with their last value before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.tables.frame import Frame, concat
from tracekit.model.trace import SparseColumn
from tracekit.model.units import format_quantity
from tracekit.pipeline.timeline.lanes import LEAD_NS
from tracekit.pipeline.timeline.time_ranges import TimeRange

Ints = npt.NDArray[np.int64]

CLIPPED_START, CLIPPED_END = "clipped_before_ns", "clipped_after_ns"
"""Arguments of a clipped row: its time before, and after the window."""


@dataclass(frozen=True, slots=True)
class DrawnWindow:
    """The drawn part of the timeline, [start_ns, end_ns) in its times."""

    start_ns: int
    end_ns: int

    def shift(self, shift_ns: int) -> DrawnWindow:
        """Convert to the times of a source, which is drawn at its times less `shift_ns`."""
        return DrawnWindow(self.start_ns + shift_ns, self.end_ns + shift_ns)

    def touches(self, begin: Ints, length: Ints) -> npt.NDArray[np.bool_]:
        """Mark the intervals that overlap the window; an instant counts at its time."""
        inside: npt.NDArray[np.bool_] = (begin < self.end_ns) & (begin + np.maximum(length, 1) > self.start_ns)
        return inside


@dataclass(frozen=True, slots=True)
class _ClippedTimes:
    """Time that the clipped rows lost, in the form of recorded arguments."""

    rows: npt.NDArray[np.int32]
    values: Ints
    categories: list[Any] | None = None


def resolve_time_range(asked: TimeRange, steps: Frame, end_ns: int) -> DrawnWindow:
    """Convert a range to timeline times; `steps` have step, begin and end in these, and the timeline ends at `end_ns`."""
    length = format_quantity(end_ns - LEAD_NS, "ns")
    if asked.step is None:
        if asked.start_ns >= end_ns - LEAD_NS:
            raise TracekitError(f"range {asked}: the recording lasts {length}", "name a range within it")
        return DrawnWindow(LEAD_NS + asked.start_ns, LEAD_NS + asked.end_ns)
    rows = steps.filter(steps.equals("step", asked.step))
    if not len(rows):
        known = sorted({step for step in steps.values("step") if step is not None})
        hint = f"it has steps {known[0]} to {known[-1]}" if known else "name times instead, such as 12ms:40ms"
        raise TracekitError(f"range {asked}: the recording has no such step", hint)
    return DrawnWindow(int(rows["begin"].min()), max(int(rows["end"].max()), int(rows["begin"].min()) + 1))


def clip_rows(rows: Frame, window: DrawnWindow) -> Frame:
    """Keep the rows that overlap the window, and clip those that cross its edges."""
    if "dur_ns" not in rows.columns:
        return rows.filter(window.touches(rows["ts_ns"], np.zeros(len(rows), np.int64)))
    length = np.maximum(rows["dur_ns"], 0)
    kept = rows.filter(window.touches(rows["ts_ns"], length))
    begin = np.maximum(kept["ts_ns"], window.start_ns)
    end = np.minimum(kept["ts_ns"] + np.maximum(kept["dur_ns"], 0), window.end_ns)
    return kept.with_columns(ts_ns=begin, dur_ns=np.maximum(end - begin, 0))


def list_clipped_times(tables: Mapping[str, Frame], window: DrawnWindow) -> Mapping[str, SparseColumn]:
    """List how much of each clipped row is before the window and after it, by the ids of the rows."""
    timed = [rows.select("id", "ts_ns", "dur_ns") for rows in tables.values() if "dur_ns" in rows.columns]
    if not timed:
        return {}
    rows = concat(timed)
    rows = rows.filter(window.touches(rows["ts_ns"], np.maximum(rows["dur_ns"], 0))).sort("id")
    before = window.start_ns - rows["ts_ns"]
    after = rows["ts_ns"] + rows["dur_ns"] - window.end_ns
    columns: dict[str, SparseColumn] = {}
    for name, lost in ((CLIPPED_START, before), (CLIPPED_END, after)):
        places = np.flatnonzero(lost > 0)
        columns[name] = _ClippedTimes(rows.integers("id")[places].astype(np.int32), lost[places])
    return columns


def keep_samples(rows: Frame, window: DrawnWindow, *by: str) -> Frame:
    """Keep the samples in the window; each series begins with its last value before, drawn at the window's start."""
    ts = rows["ts_ns"]
    inside = (ts >= window.start_ns) & (ts < window.end_ns)
    before = rows.take(np.flatnonzero(ts < window.start_ns)).sort("ts_ns")
    last = before.take(np.arange(len(before))[::-1]).distinct(*by)
    return concat([last.with_columns(ts_ns=np.full(len(last), window.start_ns)), rows.filter(inside)]).sort("ts_ns")


def keep_inner_flows(flows: Frame, ends_in: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Mark the ends of the arrows that are complete: every end is in the window, and there are several."""
    number = flows.group_by("cat", "flow").number
    count = np.bincount(number)
    whole = (np.bincount(number, ends_in) == count) & (count > 1)
    kept: npt.NDArray[np.bool_] = whole[number]
    return kept
