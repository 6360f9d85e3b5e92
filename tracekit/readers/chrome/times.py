"""Rows of a Chrome trace whose times cannot be true: left out or cut before any table is made of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tracekit.model.codes import IMPOSSIBLE_TIMES, Data
from tracekit.model.keys import of_arrays
from tracekit.model.tables import DEVICE_OP_KINDS, HOST_OP_KINDS
from tracekit.model.trace import Note
from tracekit.process.impossible_times import DAY_NS, far_rows, overlong_ops, zero_rows
from tracekit.readers import device_times
from tracekit.readers.chrome.classes import CLASS_CODE
from tracekit.readers.chrome.tables import PLANS, Rows, integers

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_UNTIMED = ("meta", "ignored")


def find_stranded(rows: Rows, base_ns: int) -> Mask:
    """Find the rows at time zero of the file (`base_ns`), or a day away from all others, where the rest is not."""
    ts = rows.times["ts_ns"]
    is_timed = ~rows.is_of(*_UNTIMED)
    stranded = np.zeros(len(ts), np.bool_)
    at_zero = (ts == base_ns) & is_timed
    has_zeros = bool(at_zero.any())
    if not has_zeros and not _spans_days(ts, is_timed):
        return stranded
    timed = (is_timed & ~at_zero).nonzero()[0]
    stranded[timed] = far_rows(ts[timed])
    if has_zeros:
        start = ts - base_ns
        stranded |= zero_rows(start, start + rows.times["dur_ns"], is_timed & ~stranded)
    return stranded


def _spans_days(ts: Ints, is_timed: Mask) -> bool:
    """Whether rows with a time are a day or more apart."""
    low = np.min(ts, where=is_timed, initial=np.iinfo(np.int64).max)
    high = np.max(ts, where=is_timed, initial=np.iinfo(np.int64).min)
    return int(high) - int(low) >= DAY_NS


def repair(rows: Rows, stranded: Mask, source: str) -> Iterator[Note]:
    """Leave out rows with impossible times and cut late ends, in place; yields what was done.

    `stranded` rows go in any case. A device op among them whose launch is sound counts with its launch.
    """
    of_devices = stranded & rows.is_of(*DEVICE_OP_KINDS)
    lost = of_devices.nonzero()[0]
    at_zero = stranded & (rows.times["dur_ns"] == 0)
    rows.classes[stranded] = CLASS_CODE["ignored"]
    lost_ids = integers(rows.args.get("correlation"), lost)
    result = None
    positions = rows.of(*DEVICE_OP_KINDS)
    if len(positions) or len(lost):
        calls = calls_of(rows)
        result = device_times.repair(
            _ops(rows, positions), calls, lost_ids.values[~lost_ids.missing], source
        )
        linked = np.isin(lost_ids.values, calls.correlation[calls.is_launch]) & ~lost_ids.missing
        stranded[lost[linked]] = False
    count = int(np.count_nonzero(stranded))
    if count:
        message = f"{count:,} rows at time zero or days from all others were left out"
        zeros = int(np.count_nonzero(stranded & at_zero))
        data = Data(zero=zeros, far=count - zeros)
        yield Note("data_loss", IMPOSSIBLE_TIMES, message, source, count, data=data)
    if result is not None:
        rows.classes[positions[result.left_out]] = CLASS_CODE["ignored"]
        if len(result.cut):
            # Durations may be those of the scan, which nobody else has.
            rows.times["dur_ns"][positions[result.cut]] = result.dur_ns
        yield from result.notes
        yield from _without_overlong(rows, positions, source)


_HOST = tuple(kind for kind in HOST_OP_KINDS if kind != "python")


def _without_overlong(rows: Rows, positions: Ints, source: str) -> Iterator[Note]:
    """Count the duration of device ops that outlast the whole recording as 0, in place; yields a note on them."""
    ts, dur = rows.times["ts_ns"], rows.times["dur_ns"]
    longest = int(dur[positions].max(initial=0))
    host = rows.of(*_HOST)
    # Few recordings hold an op as long as the host was active: only then every row is looked at.
    if not len(host) or longest <= int(ts[host[-1]]) - int(ts[host[0]]):
        return
    windows = rows.of("window")
    recorded = [(ts[of_kind], ts[of_kind] + dur[of_kind]) for of_kind in (host, windows)]
    wrong = positions[overlong_ops(dur[positions], recorded, ts[positions])]
    if len(wrong):
        dur[wrong] = 0
        message = "device ops longer than the whole recording count as 0"
        yield Note("warning", "bad-duration", message, source, len(wrong))


def _ops(rows: Rows, positions: Ints) -> device_times.Ops:
    """The device ops at these rows."""
    columns = PLANS["device_ops"].columns
    device, stream = (columns[name](rows, positions) for name in ("device", "stream"))
    number, _ = of_arrays([device, stream])
    if stream.missing.any():
        number = np.where(stream.missing, -1, number)
    return device_times.Ops(
        rows.times["ts_ns"][positions],
        rows.times["dur_ns"][positions],
        rows.labels["name"].codes[positions],
        number,
        columns["correlation"](rows, positions),
    )


def calls_of(rows: Rows) -> device_times.Calls:
    """The runtime calls with a correlation id, and the captures into graphs."""
    positions = rows.of("runtime")
    names = rows.labels["name"]
    flags = device_times.name_flags(list(map(str, names.values)))
    codes, ts = names.codes[positions], rows.times["ts_ns"][positions]
    begins = ts[flags["begins"][codes]]
    ends = ts[flags["ends"][codes]]
    correlation = integers(rows.args.get("correlation"), positions)
    known = ~correlation.missing
    codes = codes[known]
    return device_times.Calls(
        ts[known],
        correlation.values[known],
        rows.thread_process[rows.thread[positions[known]]].astype(np.int64),
        flags["is_launch"][codes],
        flags["is_extended"][codes],
        is_hip=bool(flags["is_hip"][codes].any()),
        captures=(begins, ends),
    )
