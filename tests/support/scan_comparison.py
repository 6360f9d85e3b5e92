"""Where two scans of one file differ; and documents cut from real traces to scan."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tracekit.model.errors import TraceFormatError
from tracekit.readers.chrome import stream as chrome_stream
from tracekit.readers.chrome.scan import Codes, ScanOptions, Sparse, TraceScan

LABELS = ("ph", "cat", "name", "pid", "tid")
TIMES = ("ts_ns", "dur_ns", "has_ts", "has_dur")
_EVENT = re.compile(rb'\{\s*"(?:ph|name)"\s*:')


def differences(one: TraceScan | str, other: TraceScan | str) -> list[str]:
    """What differs between two scans or the messages of their errors, types and bits included."""
    if isinstance(one, str) or isinstance(other, str):
        return [] if one == other else [f"{_summary(one)} != {_summary(other)}"]
    found = [name for name in LABELS if not _same_codes(getattr(one, name), getattr(other, name))]
    found += [name for name in TIMES if not _same_array(getattr(one, name), getattr(other, name))]
    for group in ("args", "fields"):
        left, right = getattr(one, group), getattr(other, group)
        found += [f"{group}: {key!r} in one only" for key in left.keys() ^ right.keys()]
        found += [
            f"{group}[{key!r}]: {_column(left[key])} != {_column(right[key])}"
            for key in left.keys() & right.keys()
            if not _same_sparse(left[key], right[key])
        ]
    for name in ("losses", "skipped", "size_bytes", "meta"):
        left, right = getattr(one, name), getattr(other, name)
        if repr(left) != repr(right):
            found.append(f"{name}: {left!r} != {right!r}")
    return found


def scan_or_error(path: Path, keep: ScanOptions, *, pure: bool) -> TraceScan | str:
    """The scan, or the message of the only error that may be raised."""
    try:
        return chrome_stream.scan_trace(path, keep, pure=pure)
    except TraceFormatError as error:
        return str(error)


def real_documents(text: bytes, size_bytes: int) -> Iterator[bytes]:
    """Small traces of about `size_bytes` made from the events of a large one."""
    starts = [match.start() for match in _EVENT.finditer(text)]
    position = 0
    while position < len(starts):
        first = position
        while position < len(starts) and starts[position] - starts[first] < size_bytes:
            position += 1
        if position == len(starts):
            return
        events = text[starts[first] : starts[position]].rstrip().rstrip(b",")
        yield (
            b'{\n  "schemaVersion": 1,\n  "baseTimeNanoseconds": 1712195495000000000,\n'
            b'  "traceEvents": [\n  ' + events + b'\n  ],\n  "traceName": "a.json"\n}\n'
        )


def _summary(result: TraceScan | str) -> str:
    return result if isinstance(result, str) else f"{len(result.ts_ns)} rows, {result.losses}"


def _same_array(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def _same_codes(one: Codes, other: Codes) -> bool:
    return _same_array(one.codes, other.codes) and _typed(one.values) == _typed(other.values)


def _same_sparse(one: Sparse, other: Sparse) -> bool:
    return (
        _same_array(one.rows, other.rows)
        and _same_array(one.values, other.values)
        and _typed(one.categories) == _typed(other.categories)
    )


def _typed(values: list | None) -> list[tuple[type, str]] | None:
    return None if values is None else [(type(value), repr(value)) for value in values]


def _column(column: Sparse) -> str:
    return f"{column.rows[:4]} {column.values.dtype} {column.values[:4]} {column.categories}"[:300]
