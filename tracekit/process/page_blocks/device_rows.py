"""Rows of devices on the page: their ops as boxes, and one timeline with the state of each device at any instant."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.tables.arrays import select_rows
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.device.busy import DeviceBusyIntervals
from tracekit.process.device.placement import BEFORE, Placement, place_device_ops
from tracekit.process.idle_time.causes import DeviceIdle
from tracekit.process.page_blocks.boxes import RowBoxes, find_cells
from tracekit.process.page_blocks.call_paths import number_launch_paths, shorten_page_name
from tracekit.process.page_blocks.columns import PageTexts, PathTable
from tracekit.process.page_blocks.idle_segments import order_causes
from tracekit.process.page_blocks.windows import PageWindows

Ints = npt.NDArray[np.int64]

_KIND_NUMBERS = {"collective": 1, "memcpy": 2, "memset": 2}

IDLE_STATE = 4
"""State of the first cause of idle time; those before it are compute, communication, copies and fills."""


def list_device_boxes(trace: Trace, windows: PageWindows, names: PageTexts, paths: PathTable) -> RowBoxes:
    """List all device ops of a trace as boxes."""
    start, length = (trace.numbers("device_ops", column) for column in ("ts_ns", "dur_ns"))
    links: Launches = trace.derived(find_launches)
    place: Placement = trace.derived(place_device_ops)
    kind = trace.texts("device_ops", "kind")
    kinds = np.array([*(_KIND_NUMBERS.get(text, 0) for text in kind.texts), 0])[kind.codes]
    stream = trace.nullable("device_ops", "stream")
    is_placed = place.how != BEFORE
    delay = np.where(links.linked & (start >= links.ts_ns), start - links.ts_ns + 1, 0)
    return RowBoxes(
        start,
        length,
        kinds,
        np.where(stream.missing | (stream.values < 0), 0, stream.values),
        names.add_column(trace.texts("device_ops", "name"), shorten_page_name),
        number_launch_paths(trace, np.where(links.op >= 0, links.op, links.call), names, paths),
        np.where(is_placed, windows.launched_steps.or_start_at(place.ts_ns), -1),
        np.where(is_placed, windows.launched_stages.row_at(place.ts_ns), -1),
        find_cells(start, windows.steps.ts_ns),
        delay,
    )


def select_boxes(boxes: RowBoxes, rows: Ints) -> RowBoxes:
    """Select some of the boxes."""
    return RowBoxes(*(select_rows(column, rows) for column in boxes))


def make_device_timeline(busy: DeviceBusyIntervals, idle: DeviceIdle) -> dict[str, Ints]:
    """Make one timeline of the states of a device: start and state of each stretch, until the next one begins.

    The timeline covers all windows and ops of the device without a hole; its last stretch has no state (0).
    """
    cause_start, cause = order_causes(idle)
    starts = [part.start for part in busy.slots]
    start = np.concatenate((*starts, cause_start))
    state = np.concatenate((np.repeat(np.arange(IDLE_STATE), [len(part) for part in starts]), cause + IDLE_STATE)) + 1
    order = np.argsort(start, kind="stable")
    end = max([int(part.end[-1]) for part in (*busy.slots, idle.gaps) if len(part.end)], default=idle.last)
    total = sum(part.total for part in busy.slots) + idle.gaps.total
    assert not len(start) or total == end - int(start[order[0]]), "a device is busy or idle, never both"
    return {
        "timeline.start": np.append(start[order], end),
        "timeline.state": np.append(state[order], 0),
        "comm.start": busy.comm.start,
        "comm.length": busy.comm.end - busy.comm.start,
    }
