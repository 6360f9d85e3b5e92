"""Tables of idle time: by window and cause, by length of gap, and the longest gaps one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.intervals import measure_coverage
from tracekit.model.tables.arrays import (
    Array,
    Coded,
    concatenate_like_arrays,
    repeat_number,
    select_all_rows,
    select_rows,
    trim_all_texts,
)
from tracekit.model.tables.keys import find_largest, sum_by_group, sum_by_keys
from tracekit.model.tables.slots import CAUSES
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import find_launches
from tracekit.process.calls.nesting import find_innermost_host_rows
from tracekit.process.device.windows import DeviceWindows, align_windows_to_device
from tracekit.process.idle_time.causes import DeviceIdle
from tracekit.process.name_filters import look_up_name_codes, make_narrow_coded

Ints = npt.NDArray[np.int64]
Rows = sweeps.Rows

MAX_GAPS = 200
"""Longest gaps of one source that are listed one by one."""

_POWERS = np.int64(1) << np.arange(63)


def sum_idle_time_by_window(trace: Trace, idle: DeviceIdle) -> dict[str, Array]:
    """Compute window, step, stage, cause, gap_count and idle_ns; windows of one name and step are summed.

    The window `capture` is from the first to the last op of the device. Over causes the rows of a window add
    up to its length less its busy time, exactly.
    """
    keys, start, end = list_idle_windows(trace, idle)
    cause, place, gap_count, idle_ns = _measure_idle_time_by_cause(idle, start, end)
    kind = keys["window"].codes
    order = np.lexsort((place, cause, kind[place]))
    rows = place[order]
    return sum_by_keys(
        {**select_all_rows(keys, rows), "cause": make_narrow_coded(cause[order], CAUSES)},
        {"gap_count": gap_count[order], "idle_ns": idle_ns[order]},
    )


WINDOWS = ("capture", "step", "stage")


def list_idle_windows(trace: Trace, idle: DeviceIdle) -> tuple[dict[str, Any], Ints, Ints]:
    """List the capture, every step and every outermost range: (window, step and stage; starts; ends)."""
    of_device: DeviceWindows = trace.derived(align_windows_to_device)
    steps, ranges = of_device.step_rows, of_device.outer_ranges
    start = np.concatenate(([idle.first], steps.ts_ns, ranges.ts_ns))
    end = np.concatenate(([idle.last], steps.end_ns, ranges.end_ns))
    kind = np.repeat(np.arange(len(WINDOWS)), (1, len(steps), len(ranges)))
    no_stage = np.full(1 + len(steps), -1)
    keys = {
        "window": make_narrow_coded(kind, WINDOWS),
        "step": concatenate_like_arrays([repeat_number(None, 1), steps.step, ranges.step]),
        "stage": Coded(np.concatenate((no_stage, ranges.stage.codes)), ranges.stage.texts),
    }
    return keys, start, end


def _measure_idle_time_by_cause(idle: DeviceIdle, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Measure idle time by cause and window: (cause, position of the window, gaps, time), for causes that occur."""
    total = measure_coverage(idle.gaps, start, end)
    none = np.empty(0, np.int64)
    parts = [(none, none, none, none)]
    for cause, name in _iterate_present_causes(idle):
        inside = measure_coverage(idle.causes[name], start, end)
        total = total - inside
        having = idle.shares[name].gap
        begins, ends = idle.gaps.start[having], idle.gaps.end[having]
        before_end = np.searchsorted(begins, end, side="left")
        count = np.maximum(before_end - np.searchsorted(ends, start, side="right"), 0)
        cells = (inside > 0).nonzero()[0]
        parts.append((np.full(len(cells), cause), cells, count[cells], inside[cells]))
    assert (total == 0).all(), "the causes must add up to the idle time of every window"
    cause_of, place, gap_count, idle_ns = map(np.concatenate, zip(*parts, strict=True))
    return cause_of, place, gap_count, idle_ns


def _iterate_present_causes(idle: DeviceIdle) -> Iterator[tuple[int, str]]:
    """Yield (index into `CAUSES`, name) of every cause that occurs."""
    for cause, name in enumerate(CAUSES):
        if name in idle.shares:
            yield cause, name


def find_main_causes(idle: DeviceIdle) -> tuple[Ints, Ints]:
    """Find the largest part of each gap: (index into `CAUSES`, ns); the first of equal ones."""
    cause = np.zeros(len(idle.gaps.start), np.int8)
    longest_ns = np.zeros(len(idle.gaps.start), np.int64)
    for number, name in _iterate_present_causes(idle):
        gap, share = idle.shares[name].gap, idle.shares[name].ns
        is_longer = share > longest_ns[gap]
        gap, share = gap[is_longer], share[is_longer]
        cause[gap], longest_ns[gap] = number, share
    return cause.astype(np.int64), longest_ns


def make_gap_histogram(idle: DeviceIdle, main: Ints) -> dict[str, Array]:
    """Count the gaps between first and last op by powers of two; `main` is the largest cause of each gap.

    Columns: cause, low_ns, gap_count, idle_ns.
    """
    # An op of zero length at either end does not divide the gap around it.
    start = np.maximum(idle.gaps.start, idle.first)
    end = np.maximum(np.minimum(idle.gaps.end, idle.last), start)
    between = end > start
    place = np.searchsorted(_POWERS, end - start, side="right") - 1
    count = np.zeros((len(CAUSES), len(_POWERS)), np.int64)
    total = np.zeros((len(CAUSES), len(_POWERS)), np.int64)
    cells = np.bincount(main[between] * len(_POWERS) + place[between], minlength=count.size)
    count += cells.reshape(count.shape)
    cut = ((start > idle.gaps.start) | (end < idle.gaps.end)).nonzero()[0]
    for number, name in _iterate_present_causes(idle):
        share = np.zeros(len(start), np.int64)
        share[idle.shares[name].gap] = idle.shares[name].ns
        share[cut] = measure_coverage(idle.causes[name], start[cut], end[cut])
        total[number] = sum_by_group(place[between], share[between], len(_POWERS))
    cause, bin_ = np.nonzero(count + total)
    return {
        "cause": make_narrow_coded(cause, CAUSES),
        "low_ns": _POWERS[bin_],
        "gap_count": count[cause, bin_],
        "idle_ns": total[cause, bin_],
    }


def list_longest_gaps(
    trace: Trace, devices: Sequence[DeviceIdle], main: Sequence[tuple[Ints, Ints]]
) -> dict[str, Array]:
    """List the longest gaps of all devices (columns of `idle_gaps`); `main` is from `find_main_causes`."""
    all_gaps = map(_describe_longest_gaps, devices, range(len(devices)), main)
    parts = [gaps for gaps in all_gaps if len(gaps[0])]
    if not parts:
        return {}
    place, start, length, cause, cause_ns, before, after = map(np.concatenate, zip(*parts, strict=True))
    rows = np.lexsort((place, start, -length))[:MAX_GAPS]
    start, length, cause = start[rows], length[rows], cause[rows]
    of_device: DeviceWindows = trace.derived(align_windows_to_device)
    names, ranges = trace.texts("device_ops", "name"), of_device.outer_ranges
    waits = np.char.startswith(np.array(CAUSES), "host_")[cause]
    inside = _find_host_op_in_gaps(trace, after[rows], start, start + length, waits)
    numbers = concatenate_like_arrays([repeat_number(idle.device, 1) for idle in devices])
    texts = {
        "stage": Coded(look_up_name_codes(ranges.stage, ranges.row_at(start)), ranges.stage.texts),
        "before": Coded(look_up_name_codes(names, before[rows]), names.texts),
        "after": Coded(look_up_name_codes(names, after[rows]), names.texts),
        "host": inside,
    }
    return {
        "device": select_rows(numbers, place[rows]),
        "ts_ns": start,
        "dur_ns": length,
        "cause": make_narrow_coded(cause, CAUSES),
        "cause_ns": cause_ns[rows],
        "step": of_device.step_rows.number_at(start),
        **trim_all_texts(texts),
    }


def _describe_longest_gaps(idle: DeviceIdle, place: int, main: tuple[Ints, Ints]) -> tuple[Rows, ...]:
    """Describe the longest gaps of a device: (device position, start, length, cause, its part, op before, op after)."""
    length = idle.gaps.end - idle.gaps.start
    rows = find_largest(length, MAX_GAPS)
    columns = (idle.gaps.start, length, *main, idle.before, idle.after)
    return np.full(len(rows), place), *(column[rows] for column in columns)


def _find_host_op_in_gaps(trace: Trace, after: Ints, start: Ints, end: Ints, waits: npt.NDArray[np.bool_]) -> Coded:
    """Find the host op that the launching thread was in halfway through the gap's wait for the next launch.

    If the gap is not such a wait (not `waits`), halfway through the rest. None if unknown.
    """
    links, names = trace.derived(find_launches), trace.texts("host_ops", "name")
    call = np.where(links.call[after] >= 0, links.call[after], links.op[after])
    waiting = ((after >= 0) & (call >= 0)).nonzero()[0]
    launch = np.clip(links.ts_ns[after], start, end)
    low, high = np.where(waits, start, launch), np.where(waits, launch, end)
    midway = np.full(len(after), -1, np.int64)
    thread = trace.numbers("host_ops", "thread")[call[waiting]]
    midway[waiting] = find_innermost_host_rows(trace, thread, (low + (high - low) // 2)[waiting])
    return Coded(look_up_name_codes(names, midway), names.texts)
