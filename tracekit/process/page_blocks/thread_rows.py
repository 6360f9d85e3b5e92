"""Rows of host threads on the page, for processes without device work: outermost ops as boxes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.model.stages import is_collective_range
from tracekit.model.tables.arrays import Coded, select_rows
from tracekit.model.tables.keys import sum_by_group
from tracekit.model.trace import Trace
from tracekit.process.calls.nesting import build_call_tree
from tracekit.process.device.busy import DeviceBusyIntervals, compute_busy_intervals
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names
from tracekit.process.page_blocks.boxes import RowBoxes, find_cells
from tracekit.process.page_blocks.call_paths import shorten_page_name
from tracekit.process.page_blocks.columns import PageTexts
from tracekit.process.page_blocks.windows import PageWindows

Ints = npt.NDArray[np.int64]

MAX_THREAD_ROWS = 8
"""Host threads of one process with a row at most: those with most time in ops."""


_KINDS = ("kernel", "collective", "memcpy", "memset")


class ThreadBoxes(NamedTuple):
    """Outermost ops of one host thread."""

    thread: int
    boxes: RowBoxes


def list_thread_boxes(trace: Trace, windows: PageWindows, names: PageTexts) -> list[ThreadBoxes]:
    """List the outermost ops and collectives of each host thread that runs most."""
    is_op = mark_rows_of_kind(trace, "host_ops", "op") & (trace.numbers("host_ops", "dur_ns") > 0)
    recorded = trace.texts("host_ops", "name")
    is_op |= mark_rows_of_kind(trace, "host_ops", "range") & mark_wanted_names(recorded, is_collective_range)
    rows = is_op.nonzero()[0]
    rows = rows[trace.derived(build_call_tree).nearest(is_op, rows) < 0]
    thread = trace.numbers("host_ops", "thread")[rows].astype(np.int64)
    length = trace.numbers("host_ops", "dur_ns")[rows]
    total = sum_by_group(thread, length, int(thread.max(initial=-1)) + 1)
    busiest = np.argsort(-total, kind="stable")[:MAX_THREAD_ROWS]
    busiest = np.sort(busiest[total[busiest] > 0])
    number = names.add_column(select_rows(recorded, rows), shorten_page_name)
    kind = mark_wanted_names(select_rows(recorded, rows), is_collective_range).astype(np.int64)
    start = trace.numbers("host_ops", "ts_ns")[rows]
    none = np.zeros(len(rows), np.int64)
    boxes = RowBoxes(
        start,
        length,
        kind,
        none,
        number,
        none,
        windows.launched_steps.or_start_at(start),
        windows.launched_stages.row_at(start),
        find_cells(start, windows.steps.ts_ns),
        none,
    )
    return [
        ThreadBoxes(of_thread, RowBoxes(*(column[thread == of_thread] for column in boxes)))
        for of_thread in busiest.tolist()
    ]


def make_thread_busy_intervals(boxes: RowBoxes) -> DeviceBusyIntervals:
    """Make the exclusive parts of a thread, as those of a device: ops, then collectives; copies and fills are empty."""
    return compute_busy_intervals(boxes.start, boxes.length, Coded(boxes.kind, _KINDS))


def make_thread_timeline(busy: DeviceBusyIntervals) -> dict[str, Ints]:
    """Make the timeline of one thread, as `make_device_timeline`; time in no op has no state (0)."""
    parts = busy.slots
    start = np.concatenate([column for part in parts for column in part])
    numbers = [number for kind in range(1, len(parts) + 1) for number in (kind, 0)]
    state = np.repeat(numbers, [len(part.start) for part in parts for _ in range(2)])
    # Where one stretch ends as the next begins, the end comes first, so that the state of the next counts.
    order = np.lexsort((state > 0, start))
    return {
        "timeline.start": start[order],
        "timeline.state": state[order],
        "comm.start": busy.comm.start,
        "comm.length": busy.comm.end - busy.comm.start,
    }
