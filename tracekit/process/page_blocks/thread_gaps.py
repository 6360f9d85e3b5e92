"""Gaps of the main thread of a process without a device: no op runs on the thread, by activity of the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import Intervals, find_gaps, intersect, merge_interval_sets
from tracekit.model.tables.slots import CPU_ACTIVITIES
from tracekit.model.thresholds import load_shared_thresholds
from tracekit.model.trace import Trace
from tracekit.process.host.phases import find_step_thread
from tracekit.process.idle_time.causes import DeviceIdle
from tracekit.process.idle_time.cpu_activity import split_cpu_activity
from tracekit.process.page_blocks.boxes import RowBoxes
from tracekit.process.page_blocks.thread_rows import ThreadBoxes
from tracekit.process.page_blocks.windows import PageWindows

Ints = npt.NDArray[np.int64]


def put_main_thread_first(trace: Trace, threads: Sequence[ThreadBoxes]) -> list[ThreadBoxes]:
    """Put the main thread first: the one that annotates the steps, otherwise the one with most time in ops."""
    of_steps = trace.derived(find_step_thread)
    busy = [(thread != of_steps, -int(boxes.length.sum())) for thread, boxes in threads]
    main = busy.index(min(busy)) if busy else 0
    return [*threads[main : main + 1], *threads[:main], *threads[main + 1 :]]


def find_thread_gaps(trace: Trace, boxes: RowBoxes, parts: Sequence[Intervals], windows: PageWindows) -> DeviceIdle:
    """Find the gaps of a thread from its first step or op to the last, with the activity of the host as their cause.

    `parts` are when its ops run, `before` and `after` are positions in `boxes`.
    """
    steps, end = windows.steps, boxes.start + boxes.length
    first = int(min(np.min(column) for column in (steps.ts_ns, boxes.start) if len(column)))
    last = int(max(np.max(column) for column in (steps.end_ns, end) if len(column)))
    gaps = find_gaps(merge_interval_sets(parts), first, last)
    silence_ns = int(load_shared_thresholds().values["host-silence"]["silence_ns"])
    activities = split_cpu_activity(trace, silence_ns)
    causes = {name: intersect(gaps, of_name) for name, of_name in zip(CPU_ACTIVITIES, activities, strict=True)}
    assert sum(part.total for part in causes.values()) == gaps.total, "causes must add up"
    before, after = _find_boxes_around(boxes, gaps)
    return DeviceIdle(None, np.empty(0, np.int64), first, last, gaps, before, after, causes, {})


def _find_boxes_around(boxes: RowBoxes, gaps: Intervals) -> tuple[Ints, Ints]:
    """Find the box that ends last before each gap, and the first one that begins after it; -1 for none."""
    end = boxes.start + boxes.length
    by_end, by_start = np.argsort(end, kind="stable"), np.argsort(boxes.start, kind="stable")
    last = np.searchsorted(end[by_end], gaps.start, side="right") - 1
    following = np.searchsorted(boxes.start[by_start], gaps.end)
    before = np.where(last >= 0, np.append(by_end, -1)[last], -1)
    return before, np.append(by_start, -1)[following]
