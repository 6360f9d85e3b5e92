"""Checks of an export's device times against launches and streams, in the form that `device_times` takes."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tracekit.model.tables.arrays import Coded, Columns, Nullable
from tracekit.readers import device_times
from tracekit.readers.device_times import BEGIN_CAPTURE, END_CAPTURE, LaunchCalls

Ints = npt.NDArray[np.int64]

NO_CALLS = LaunchCalls(
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    lambda: np.empty(0, np.int64),
    np.empty(0, np.int64),
    (),
    (np.empty(0, np.int64), np.empty(0, np.int64)),
)


def extract_launch_calls(host: Columns | None) -> LaunchCalls:
    """Extract the runtime calls with a correlation id and the stream captures of one process. `host` is its `host_ops`."""
    if host is None:
        return NO_CALLS
    name, kind, correlation = host["name"], host["kind"], host["correlation"]
    assert isinstance(name, Coded), "names are texts"
    assert isinstance(kind, Coded), "kinds are texts"
    assert isinstance(correlation, Nullable), "rows may lack it"
    ts_ns = np.asarray(host["ts_ns"], np.int64)
    is_call = kind.codes == kind.texts.index("runtime")
    begins, ends = (_find_call_times(ts_ns, is_call, name, pattern) for pattern in (BEGIN_CAPTURE, END_CAPTURE))
    rows = np.flatnonzero(is_call > correlation.missing)
    return LaunchCalls(
        ts_ns[rows],
        correlation.values[rows].astype(np.int64, copy=False),
        lambda: np.zeros(len(rows), np.int64),
        name.codes[rows],
        name.texts,
        (begins, ends),
    )


def _find_call_times(ts_ns: Ints, is_call: npt.NDArray[np.bool_], name: Coded, pattern: re.Pattern[str]) -> Ints:
    """Find the start times of calls whose name matches the pattern."""
    matches = device_times.match_call_names(name.texts, pattern)
    return ts_ns[matches[name.codes] & is_call] if matches.any() else ts_ns[:0]


def number_streams(device: Ints, stream: Ints, shared: Iterable[int]) -> Ints:
    """Assign a number to each stream of each device; -1 if unknown.

    Stream numbers count per context. On a device with several contexts (`shared`), they do not identify a stream.
    """
    used = [*shared]
    if len(stream) and not used and int(stream.min()) >= 0 and int(device.min()) >= 0:
        width, count = int(stream.max()) + 1, int(device.max()) + 1
        if count == 1:
            return stream
        if width * count < 2**62:
            return device * width + stream
    is_known = (stream >= 0) & (device >= 0) & ~np.isin(device, used)
    if not is_known.any():
        return np.full(len(stream), -1, np.int64)
    _, number = np.unique(np.stack([device, stream]), axis=1, return_inverse=True)
    return np.where(is_known, number.ravel(), -1)
