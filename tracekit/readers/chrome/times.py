"""Rows of a Chrome trace with impossible times: dropped or shortened before tables are built."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tracekit.model.codes import IMPOSSIBLE_TIMES, OVERLONG, Data
from tracekit.model.keys import is_one_of, of_arrays
from tracekit.model.tables import DEVICE_OP_KINDS, HOST_OP_KINDS
from tracekit.model.tables.arrays import Nullable, at_rows
from tracekit.model.trace import Note
from tracekit.process.impossible_times import DAY_NS, far_rows, overlong_ops, zero_rows
from tracekit.readers import device_times
from tracekit.readers.chrome.classes import CLASS_CODE
from tracekit.readers.chrome.tables import PLANS, Rows, integers
from tracekit.readers.device_times import BEGIN_CAPTURE, END_CAPTURE, KERNEL_LAUNCH

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_UNTIMED = ("meta", "ignored")


def find_stranded(rows: Rows, base_ns: int) -> Mask:
    """Find rows at the file's time zero (`base_ns`), or a day away from all others, if the rest is not."""
    ts = rows.times["ts_ns"]
    stranded = np.zeros(len(ts), np.bool_)
    if not len(ts) or (int(ts.max()) - int(ts.min()) < DAY_NS and not (ts == base_ns).any()):
        return stranded
    # Rows without a time are also at zero, so exclude them.
    is_timed = ~rows.is_of(*_UNTIMED)
    at_zero = (ts == base_ns) & is_timed
    timed = (is_timed & ~at_zero).nonzero()[0]
    stranded[timed] = far_rows(ts[timed])
    if at_zero.any():
        start = ts - base_ns
        stranded |= zero_rows(start, start + rows.times["dur_ns"], is_timed & ~stranded)
    return stranded


def repair(rows: Rows, stranded: Mask, source: str) -> Iterator[Note]:
    """Drop rows with impossible times and shorten late ends, in place; yields notes on the changes.

    `stranded` rows are always dropped. A stranded device op with a sound launch is counted with its launch.
    """
    positions = rows.of(*DEVICE_OP_KINDS)
    lost_ids = np.empty(0, np.int64)
    if stranded.any():
        lost_ids = yield from _leave_out(rows, stranded, positions, source)
        positions = rows.of(*DEVICE_OP_KINDS)
    if not len(positions) and not len(lost_ids):
        return
    ops = _ops(rows, positions)
    result = device_times.repair(ops, calls_of(rows), lost_ids, source)
    cut = positions[result.cut]
    if len(result.left_out):
        rows.classes[positions[result.left_out]] = CLASS_CODE["ignored"]
        rows.made.clear()
        positions = np.delete(positions, result.left_out)
    if len(cut):
        # Safe in place: the durations are not shared.
        rows.times["dur_ns"][cut] = result.dur_ns
    yield from result.notes
    yield from _without_overlong(rows, positions, source)


def _leave_out(
    rows: Rows, stranded: Mask, positions: Ints, source: str
) -> Generator[Note, None, Ints]:
    """Drop stranded rows in place; yields a note, returns the ids of sound launches whose kernels they include."""
    lost = positions[stranded[positions]]
    at_zero = rows.times["dur_ns"] == 0
    rows.classes[stranded] = CLASS_CODE["ignored"]
    ids = integers(rows.args.get("correlation"), lost)
    calls = calls_of(rows)
    linked = ~ids.missing & is_one_of(ids.values, calls.correlation[calls.named(KERNEL_LAUNCH)])
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


def _without_overlong(rows: Rows, positions: Ints, source: str) -> Iterator[Note]:
    """Drop device ops that outlast the whole recording, in place; yields a note on them."""
    ts, dur = rows.times["ts_ns"], rows.times["dur_ns"]
    start, length = ts[positions], dur[positions]
    # Cheap test first: the recording lasts at least from the first start to the last.
    if not len(start) or int(length.max()) <= int(np.ptp(start)):
        return
    bounds = [rows.of(*kinds) for kinds in (_HOST, ("window",))]
    if not len(bounds[0]):
        return
    wrong = overlong_ops(length, [(ts[own], ts[own] + dur[own]) for own in bounds], start)
    if wrong.any():
        rows.classes[positions[wrong]] = CLASS_CODE["ignored"]
        rows.made.clear()
        message = "device ops longer than the whole recording were left out"
        yield Note("data_loss", OVERLONG, message, source, int(wrong.sum()))


_OF_OPS = ("device", "stream", "correlation")


def _ops(rows: Rows, positions: Ints) -> device_times.Ops:
    """Collect the device ops at these rows; columns that their table also needs are kept for it."""
    columns = PLANS["device_ops"].columns
    made = {name: columns[name](rows, positions) for name in _OF_OPS}
    rows.made.update({("device_ops", name): column for name, column in made.items()})
    return device_times.Ops(
        rows.times["ts_ns"][positions],
        rows.times["dur_ns"][positions],
        rows.labels["name"].codes[positions],
        _stream_number(made["device"], made["stream"]),
        made["correlation"],
    )


def _stream_number(device: Nullable, stream: Nullable) -> Ints:
    """Assign a number to each stream of each device; -1 where the stream is not recorded."""
    numbers = (device.values, stream.values)
    is_small = all(int(n.min(initial=0)) >= 0 and int(n.max(initial=0)) < 2**31 for n in numbers)
    number: Ints
    if is_small and not device.missing.any():
        number = device.values * (int(stream.values.max(initial=0)) + 1) + stream.values
    else:
        number, _ = of_arrays([device, stream])
    return np.where(stream.missing, -1, number) if stream.missing.any() else number


def calls_of(rows: Rows) -> device_times.Calls:
    """Collect the runtime calls with a correlation id, and the captures into graphs."""
    positions = rows.of("runtime")
    labels = rows.labels["name"]
    names = tuple(map(str, labels.values))
    codes, ts = labels.codes[positions], rows.times["ts_ns"][positions]
    captures = tuple(_times_of(ts, codes, names, edge) for edge in (BEGIN_CAPTURE, END_CAPTURE))
    correlation = integers(rows.args.get("correlation"), positions)
    if correlation.missing.any():
        known = (~correlation.missing).nonzero()[0]
        positions, codes, ts = positions[known], codes[known], ts[known]
        correlation = at_rows(correlation, known)
    return device_times.Calls(
        ts,
        correlation.values,
        lambda: rows.thread_process[rows.thread[positions]].astype(np.int64),
        codes,
        names,
        (captures[0], captures[1]),
    )


def _times_of(ts_ns: Ints, codes: Ints, names: Sequence[str], pattern: re.Pattern[str]) -> Ints:
    """Select the start times of calls with a name of this pattern."""
    matches = device_times.has_name(names, pattern)
    return ts_ns[matches[codes]] if matches.any() else ts_ns[:0]
