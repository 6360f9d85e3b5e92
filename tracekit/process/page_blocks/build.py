"""The data of the explorer page for one process, built in the worker that has its tables in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.page_blocks import PageBlocks
from tracekit.model.intervals import EMPTY, merge_interval_sets
from tracekit.model.tables.arrays import select_rows
from tracekit.model.trace import Trace
from tracekit.process.device.busy import compute_busy_intervals
from tracekit.process.host.tree import HostThreadRows, build_host_tree
from tracekit.process.idle_time.causes import DeviceIdle
from tracekit.process.page_blocks.boxes import RowBoxes, make_lanes, sort_boxes, sum_boxes
from tracekit.process.page_blocks.call_paths import shorten_page_name
from tracekit.process.page_blocks.columns import PageTexts, PathTable, narrow_numbers
from tracekit.process.page_blocks.device_rows import list_device_boxes, make_device_timeline, select_boxes
from tracekit.process.page_blocks.host_rows import make_host_columns
from tracekit.process.page_blocks.idle_segments import list_idle_segments, make_gap_columns, select_longest_gaps
from tracekit.process.page_blocks.memory_blocks import build_memory_blocks
from tracekit.process.page_blocks.memory_curves import make_memory_curve
from tracekit.process.page_blocks.thread_gaps import find_thread_gaps, put_main_thread_first
from tracekit.process.page_blocks.thread_rows import list_thread_boxes, make_thread_busy_intervals, make_thread_timeline
from tracekit.process.page_blocks.windows import PageWindows, make_page_windows, make_step_columns

Ints = npt.NDArray[np.int64]
Parts = dict[str, Ints]

TIMES = (
    *("step.start", "range.start", "timeline.start", "comm.start", "kernel.start"),
    *("gap.start", "host.start", "curve.start"),
)
"""Columns of instants, which count from `base_ns` once packed."""


def build_page_blocks(trace: Trace, devices: Sequence[DeviceIdle]) -> PageBlocks:
    """Build the data of one process or memory snapshot; `devices` is the idle time of its devices, as in the report."""
    if not trace.has("host_ops") and not trace.has("device_ops"):
        return build_memory_blocks(trace)
    names, paths = PageTexts(), PathTable()
    windows = make_page_windows(trace, names)
    rows, host = (
        _describe_devices(trace, devices, windows, (names, paths))
        if devices
        else _describe_threads(trace, windows, (names, paths))
    )
    columns = _merge_row_parts([*rows, make_host_columns(host, names, paths), paths.make_columns()])
    return _pack_page_columns(trace, columns, names)


def _describe_devices(
    trace: Trace, devices: Sequence[DeviceIdle], windows: PageWindows, tables: tuple[PageTexts, PathTable]
) -> tuple[list[Parts], HostThreadRows]:
    """Describe the row of each device, and the gaps of all: (parts, host rows)."""
    names, paths = tables
    host = build_host_tree(trace, merge_interval_sets([idle.gaps for idle in devices]), has_samples=True)
    boxes = list_device_boxes(trace, windows, names, paths)
    parts: list[Parts] = []
    gaps: list[Parts] = []
    segments: list[Parts] = []
    cut = list_idle_segments(trace, host, devices, names, paths)
    for row, (idle, pieces) in enumerate(zip(devices, cut, strict=True)):
        of_row = select_boxes(boxes, idle.rows)
        kind = select_rows(trace.texts("device_ops", "kind"), idle.rows)
        busy = compute_busy_intervals(of_row.start, of_row.length, kind)
        number = -1 if idle.device is None else idle.device
        timeline = make_device_timeline(busy, idle)
        parts.append(_describe_row(row, (0, number, -1), of_row, windows))
        parts.append({**timeline, **make_step_columns(windows.steps, busy.slots, row), **_count_stretches(timeline)})
        parts.append(make_memory_curve(trace, idle.device))
        for made, columns in zip((gaps, segments), make_gap_columns(idle, pieces, boxes.name, row), strict=True):
            made.append(columns)
    kept, dropped = select_longest_gaps(_merge_row_parts(gaps), _merge_row_parts(segments))
    return [*parts, kept, {"gap.dropped": np.array(dropped)}], host


def _describe_threads(
    trace: Trace, windows: PageWindows, tables: tuple[PageTexts, PathTable]
) -> tuple[list[Parts], HostThreadRows]:
    """Describe the row of each host thread, and the gaps of the main one: (parts, host rows)."""
    names, paths = tables
    threads = put_main_thread_first(trace, list_thread_boxes(trace, windows, names))
    busy = [make_thread_busy_intervals(boxes) for _, boxes in threads]
    idle = find_thread_gaps(trace, threads[0].boxes, busy[0].slots, windows) if threads else None
    host = build_host_tree(trace, EMPTY if idle is None else idle.gaps, has_samples=True)
    parts: list[Parts] = []
    for row, ((thread, boxes), of_row) in enumerate(zip(threads, busy, strict=True)):
        timeline = make_thread_timeline(of_row) if row or idle is None else make_device_timeline(of_row, idle)
        parts.append(_describe_row(row, (1, -1, thread), boxes, windows))
        parts.append({**timeline, **make_step_columns(windows.steps, of_row.slots, row), **_count_stretches(timeline)})
        parts.append({"row.curves": np.zeros(1, np.int64)})
    if idle is None:
        return parts, host
    (pieces,) = list_idle_segments(trace, host, [idle], names, paths)
    gaps, segments = make_gap_columns(idle, pieces, threads[0].boxes.name, 0)
    kept, dropped = select_longest_gaps(gaps, segments)
    return [*parts, kept, {"gap.dropped": np.array(dropped)}], host


def _describe_row(row: int, label: tuple[int, int, int], boxes: RowBoxes, windows: PageWindows) -> Parts:
    """Describe one row: its label (kind, device, thread), lanes, ranges, boxes and sums."""
    lanes, lane = make_lanes(boxes)
    count = len(windows.ranges["range.start"])
    sorted_boxes, sums = sort_boxes(boxes, lane), sum_boxes(boxes, row * count)
    sizes = {
        "row.lanes": len(lanes["lane.kind"]),
        "row.ranges": count,
        "row.kernels": len(boxes.start),
        "row.sums": len(sums["sum.count"]),
    }
    labels = {"row.kind": label[0], "row.device": label[1] + 1, "row.thread": label[2] + 1}
    return {
        **{name: np.array([value]) for name, value in (labels | sizes).items()},
        **lanes,
        **windows.ranges,
        **sorted_boxes,
        **sums,
    }


def _count_stretches(timeline: Parts) -> Parts:
    """Count the stretches of the timeline of one row."""
    return {
        "row.stretches": np.array([len(timeline["timeline.start"])]),
        "row.comm": np.array([len(timeline["comm.start"])]),
    }


def _merge_row_parts(parts: Sequence[Parts]) -> Parts:
    """Concatenate columns by name, in order of the parts."""
    columns: dict[str, list[Ints]] = {}
    for part in parts:
        for name, column in part.items():
            columns.setdefault(name, []).append(column)
    return {name: np.concatenate(arrays) if len(arrays) > 1 else arrays[0] for name, arrays in columns.items()}


def _pack_page_columns(trace: Trace, columns: Parts, names: PageTexts) -> PageBlocks:
    """Pack the columns of a process in the narrowest types, times from the earliest instant."""
    times = [columns[name] for name in TIMES if name in columns]
    base = min((int(column.min()) for column in times if len(column)), default=0)
    numbers = {name: narrow_numbers(column - base if name in TIMES else column) for name, column in columns.items()}
    return PageBlocks(trace.source, base, numbers, names.list_texts(), _list_thread_names(trace))


def _list_thread_names(trace: Trace) -> tuple[str, ...]:
    """List the names of the host threads by number; a thread without a name has its id."""
    count = int(trace.numbers("host_ops", "thread").max(initial=-1)) + 1
    labels = [f"thread {number}" for number in range(count)]
    names, ids = trace.texts("threads", "name"), trace.nullable("threads", "tid")
    places = zip(trace.numbers("threads", "thread").tolist(), names.codes.tolist(), ids.values.tolist(), strict=True)
    for thread, code, number in places:
        if 0 <= thread < count:
            labels[thread] = shorten_page_name(names.texts[code]) if code >= 0 else f"thread {number}"
    return tuple(labels)
