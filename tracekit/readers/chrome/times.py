"""Rows of a Chrome trace with impossible times: dropped or shortened before tables are built."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.note_codes import IMPOSSIBLE_TIMES, OVERLONG, Data
from tracekit.model.tables import DEVICE_OP_KINDS, HOST_OP_KINDS
from tracekit.model.tables.arrays import Nullable, select_rows
from tracekit.model.tables.keys import group_arrays, mask_members
from tracekit.model.trace import Note
from tracekit.process.impossible_times import DAY_NS, find_far_rows, find_overlong_ops, find_rows_at_time_zero
from tracekit.readers import device_times
from tracekit.readers.chrome.classes import CLASS_CODE
from tracekit.readers.chrome.tables import TABLE_PLANS, ChromeRows, take_sparse_integers
from tracekit.readers.device_times import BEGIN_CAPTURE, END_CAPTURE, KERNEL_LAUNCH

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_UNTIMED = ("meta", "ignored")


def find_stranded_rows(rows: ChromeRows, base_ns: int) -> Mask:
    """Find rows at the file's time zero (`base_ns`), or a day away from all others, if the rest is not."""
    ts = rows.times["ts_ns"]
    stranded = np.zeros(len(ts), np.bool_)
    if not len(ts) or (int(ts.max()) - int(ts.min()) < DAY_NS and not (ts == base_ns).any()):
        return stranded
    # Rows without a time are also at zero, so exclude them.
    is_timed = ~rows.is_of(*_UNTIMED)
    at_zero = (ts == base_ns) & is_timed
    timed = (is_timed & ~at_zero).nonzero()[0]
    stranded[timed] = find_far_rows(ts[timed])
    if at_zero.any():
        start = ts - base_ns
        stranded |= find_rows_at_time_zero(start, start + rows.times["dur_ns"], is_timed & ~stranded)
    return stranded


def repair_row_times(rows: ChromeRows, stranded: Mask, source: str) -> Iterator[Note]:
    """Drop rows with impossible times and shorten late ends, in place; yields notes on the changes.

    `stranded` rows are always dropped. A stranded device op with a sound launch is counted with its launch.
    """
    positions = rows.find_rows(*DEVICE_OP_KINDS)
    lost_ids = np.empty(0, np.int64)
    if stranded.any():
        lost_ids = yield from _drop_stranded_rows(rows, stranded, positions, source)
        positions = rows.find_rows(*DEVICE_OP_KINDS)
    if not len(positions) and not len(lost_ids):
        return
    ops = _collect_device_ops(rows, positions)
    result = device_times.check_device_times(ops, collect_runtime_calls(rows), lost_ids, source)
    cut = positions[result.cut]
    if len(result.left_out):
        rows.classes[positions[result.left_out]] = CLASS_CODE["ignored"]
        rows.made.clear()
        positions = np.delete(positions, result.left_out)
    if len(cut):
        # Safe in place: the durations are not shared.
        rows.times["dur_ns"][cut] = result.dur_ns
    yield from result.notes
    yield from _drop_overlong_ops(rows, positions, source)


def _drop_stranded_rows(rows: ChromeRows, stranded: Mask, positions: Ints, source: str) -> Generator[Note, None, Ints]:
    """Drop stranded rows in place; yields a note, returns the ids of sound launches whose kernels they include."""
    lost = positions[stranded[positions]]
    at_zero = rows.times["dur_ns"] == 0
    rows.classes[stranded] = CLASS_CODE["ignored"]
    ids = take_sparse_integers(rows.args.get("correlation"), lost)
    calls = collect_runtime_calls(rows)
    linked = ~ids.missing & mask_members(ids.values, calls.correlation[calls.named(KERNEL_LAUNCH)])
    is_counted = stranded.copy()
    is_counted[lost[linked]] = False
    count = int(np.count_nonzero(is_counted))
    if count:
        message = f"{count:,} rows at time zero or days from all others were left out"
        zeros = int(np.count_nonzero(is_counted & at_zero))
        data = Data(zero=zeros, far=count - zeros)
        yield Note("data_loss", IMPOSSIBLE_TIMES, message, source, count, data=data)
    return ids.values[linked]


_HOST = tuple(kind for kind in HOST_OP_KINDS if kind != "python")


def _drop_overlong_ops(rows: ChromeRows, positions: Ints, source: str) -> Iterator[Note]:
    """Drop device ops that outlast the whole recording, in place; yields a note on them."""
    ts, dur = rows.times["ts_ns"], rows.times["dur_ns"]
    start, length = ts[positions], dur[positions]
    # Cheap test first: the recording lasts at least from the first start to the last.
    if not len(start) or int(length.max()) <= int(np.ptp(start)):
        return
    bounds = [rows.find_rows(*kinds) for kinds in (_HOST, ("window",))]
    if not len(bounds[0]):
        return
    wrong = find_overlong_ops(length, [(ts[own], ts[own] + dur[own]) for own in bounds], start)
    if wrong.any():
        rows.classes[positions[wrong]] = CLASS_CODE["ignored"]
        rows.made.clear()
        message = "device ops longer than the whole recording were left out"
        yield Note("data_loss", OVERLONG, message, source, int(wrong.sum()))


_OF_OPS = ("device", "stream", "correlation")


def _collect_device_ops(rows: ChromeRows, positions: Ints) -> device_times.DeviceOpTimes:
    """Collect the device ops at these rows; columns that their table also needs are kept for it."""
    columns = TABLE_PLANS["device_ops"].columns
    made = {name: columns[name](rows, positions) for name in _OF_OPS}
    rows.made.update({("device_ops", name): column for name, column in made.items()})
    return device_times.DeviceOpTimes(
        rows.times["ts_ns"][positions],
        rows.times["dur_ns"][positions],
        rows.labels["name"].codes[positions],
        _number_device_streams(made["device"], made["stream"]),
        made["correlation"],
    )


def _number_device_streams(device: Nullable, stream: Nullable) -> Ints:
    """Assign a number to each stream of each device; -1 where the stream is not recorded."""
    numbers = (device.values, stream.values)
    is_small = all(int(n.min(initial=0)) >= 0 and int(n.max(initial=0)) < 2**31 for n in numbers)
    number: Ints
    if is_small and not device.missing.any():
        number = device.values * (int(stream.values.max(initial=0)) + 1) + stream.values
    else:
        number, _ = group_arrays([device, stream])
    return np.where(stream.missing, -1, number) if stream.missing.any() else number


def collect_runtime_calls(rows: ChromeRows) -> device_times.LaunchCalls:
    """Collect the runtime calls with a correlation id, and the captures into graphs."""
    positions = rows.find_rows("runtime")
    labels = rows.labels["name"]
    names = tuple(str(value) for value in labels.values)
    codes, ts = labels.codes[positions], rows.times["ts_ns"][positions]
    captures = tuple(_select_call_times(ts, codes, names, edge) for edge in (BEGIN_CAPTURE, END_CAPTURE))
    correlation = take_sparse_integers(rows.args.get("correlation"), positions)
    if correlation.missing.any():
        known = (~correlation.missing).nonzero()[0]
        positions, codes, ts = positions[known], codes[known], ts[known]
        correlation = select_rows(correlation, known)
    return device_times.LaunchCalls(
        ts,
        correlation.values,
        lambda: rows.thread_process[rows.thread[positions]].astype(np.int64),
        codes,
        names,
        (captures[0], captures[1]),
    )


def _select_call_times(ts_ns: Ints, codes: Ints, names: Sequence[str], pattern: re.Pattern[str]) -> Ints:
    """Select the start times of calls with a name of this pattern."""
    matches = device_times.match_call_names(names, pattern)
    return ts_ns[matches[codes]] if matches.any() else ts_ns[:0]
