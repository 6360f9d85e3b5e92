"""The tables of a scanned Chrome trace, each built from the rows of its classes."""

from __future__ import annotations

from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables import DEVICE_OP_KINDS, HOST_OP_KINDS, TABLES
from tracekit.model.tables.arrays import Coded, Columns, Nullable
from tracekit.readers.chrome.arena import Arena
from tracekit.readers.chrome.classes import CLASS_CODE, CLASS_NAMES
from tracekit.readers.chrome.scan import Codes, Scan, Sparse, smallest_type, with_zeros

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scratch:
    """Room for one value of every row, used again for each column: new memory costs more than the work."""

    number: Ints
    missing: npt.NDArray[np.bool_]
    code: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Rows:
    """A scan with absolute times and the class of each row; a row without a place in time is `ignored`."""

    scan: Scan
    ts_ns: Ints
    dur_ns: Ints
    classes: npt.NDArray[np.int8]
    thread: npt.NDArray[np.int32]
    thread_ids: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]
    """Per thread the codes of its pid and tid."""
    scratch: Scratch
    arena: Arena

    def of(self, *classes: str) -> Ints:
        """The rows of these classes, in file order."""
        if len(classes) == 1:
            return np.flatnonzero(self.classes == CLASS_CODE[classes[0]])
        wanted = np.zeros(len(CLASS_NAMES), np.bool_)
        wanted[[CLASS_CODE[name] for name in classes]] = True
        return np.flatnonzero(wanted.take(self.classes))


def host_ops(rows: Rows) -> Columns | None:
    """Host intervals; None for a trace of devices alone."""
    positions = rows.of(*HOST_OP_KINDS)
    if not len(positions) and len(rows.of(*DEVICE_OP_KINDS)):
        return None
    scan = rows.scan
    return TABLES["host_ops"].cast(
        {
            **_timed(rows, positions),
            "kind": _kind(rows, positions, HOST_OP_KINDS),
            "cat": category(rows, scan.cat, positions),
            "pid": _whole(rows, scan.pid, positions),
            "tid": _whole(rows, scan.tid, positions),
            "thread": rows.arena.take(rows.thread, positions),
            "correlation": _argument(rows, positions, "correlation"),
            "external_id": _argument(rows, positions, "External id", "external id"),
        }
    )


def device_ops(rows: Rows) -> Columns | None:
    """Device work; None where there is none: the profiler saw no device, which is not an idle one."""
    positions = rows.of(*DEVICE_OP_KINDS)
    if not len(positions):
        return None
    return TABLES["device_ops"].cast(
        {
            **_timed(rows, positions),
            "kind": _kind(rows, positions, DEVICE_OP_KINDS),
            **_queue(rows, positions),
            "correlation": _argument(rows, positions, "correlation"),
            "external_id": _argument(rows, positions, "External id", "external id"),
            "size_bytes": _argument(rows, positions, "bytes"),
        }
    )


def device_ranges(rows: Rows) -> Columns | None:
    """Annotations that the profiler projected on a device."""
    positions = rows.of("device_range")
    if not len(positions):
        return None
    return TABLES["device_ranges"].cast(
        {
            **_timed(rows, positions),
            **_queue(rows, positions),
            "external_id": _argument(rows, positions, "External id", "external id"),
        }
    )


def syncs(rows: Rows) -> Columns | None:
    """Synchronisation records of devices."""
    positions = rows.of("sync")
    if not len(positions):
        return None
    return TABLES["syncs"].cast(
        {
            **_timed(rows, positions),
            **_queue(rows, positions),
            "correlation": _argument(rows, positions, "correlation"),
        }
    )


def windows(rows: Rows) -> Columns | None:
    """Spans that a profiler says it recorded."""
    positions = rows.of("window")
    if not len(positions):
        return None
    return TABLES["windows"].cast(_timed(rows, positions))


def python_calls(rows: Rows) -> Columns | None:
    """Calls of Python functions; None where none was recorded."""
    positions = rows.of("python", "python_call")
    if not len(positions):
        return None
    return TABLES["python_calls"].cast(
        {**_timed(rows, positions), "thread": rows.arena.take(rows.thread, positions)}
    )


def memory_ops(rows: Rows) -> Columns | None:
    """Allocations and frees; None unless memory was profiled."""
    positions = rows.of("memory")
    if not len(positions):
        return None
    scan = rows.scan
    return TABLES["memory_ops"].cast(
        {
            "id": positions.astype(np.int32),
            "ts_ns": rows.arena.take(rows.ts_ns, positions),
            "pid": _whole(rows, scan.pid, positions),
            "tid": _whole(rows, scan.tid, positions),
            "thread": rows.arena.take(rows.thread, positions),
            "device_type": _argument(rows, positions, "Device Type"),
            "device": _argument(rows, positions, "Device Id"),
            "size_bytes": _argument(rows, positions, "Bytes"),
            "allocated_bytes": _argument(rows, positions, "Total Allocated"),
            "reserved_bytes": _argument(rows, positions, "Total Reserved"),
        }
    )


def counters(rows: Rows) -> Columns | None:
    """Counter samples; every argument of one is a series of its own, `<counter>.<argument>`."""
    positions = rows.of("counter")
    if not len(positions):
        return None
    name = rows.scan.name
    samples: list[tuple[Ints, npt.NDArray[np.object_], npt.NDArray[np.float64]]] = []
    for key, column in rows.scan.args.items():
        values, is_number = _numbers(column, len(rows.ts_ns))
        hit = positions[is_number[positions]]
        if len(hit):
            used, inverse = np.unique(name.codes[hit], return_inverse=True)
            series = [f"{name.values[code]}.{key}" if code >= 0 else key for code in used.tolist()]
            samples.append((hit, np.array(series, object)[inverse], values[hit]))
    if not samples:
        return None
    ids, names, values = map(np.concatenate, zip(*samples, strict=True))
    order = np.argsort(ids, kind="stable")
    return TABLES["counters"].cast(
        {
            "id": ids[order].astype(np.int32),
            "ts_ns": rows.ts_ns[ids[order]],
            "name": names[order],
            "value": values[order],
        }
    )


def flows(rows: Rows) -> Columns | None:
    """Ends of arrows between intervals."""
    positions = rows.of("flow")
    if not len(positions):
        return None
    scan = rows.scan
    phase = np.array([{"s": "start", "f": "end"}.get(str(p), "step") for p in scan.ph.values])
    return TABLES["flows"].cast(
        {
            "id": positions.astype(np.int32),
            "ts_ns": rows.arena.take(rows.ts_ns, positions),
            "cat": category(rows, scan.cat, positions),
            "phase": phase[scan.ph.codes[positions]],
            "flow": integers(rows, scan.fields.get("id"), positions),
            "thread": rows.arena.take(rows.thread, positions),
        }
    )


def threads(rows: Rows) -> Columns:
    """Every (pid, tid) that occurs, with the names that metadata rows give; the last name counts."""
    scan = rows.scan
    pids, tids = rows.thread_ids
    count = len(pids)
    thread_names: list[str | None] = [None] * count
    process_names: dict[int, str] = {}
    labels = scan.args.get("name")
    label_of: dict[int, str] = {}
    if labels:
        label_of = dict(zip(labels.rows.tolist(), _labels(labels), strict=True))
    for row in rows.of("meta").tolist():
        kind, label = _value(scan.name, row), label_of.get(row)
        if kind == "thread_name" and label is not None:
            thread_names[rows.thread[row]] = label
        elif kind == "process_name" and label is not None:
            process_names[int(scan.pid.codes[row])] = label
    return TABLES["threads"].cast(
        {
            "thread": np.arange(count, dtype=np.int32),
            "pid": whole(scan.pid, pids),
            "tid": whole(scan.tid, tids),
            "name": thread_names,
            "process_name": list(map(process_names.get, pids.tolist())),
        },
        count,
    )


def number_threads(
    scan: Scan,
) -> tuple[npt.NDArray[np.int32], tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
    """(the thread of every row, the codes of each thread's pid and tid); pids in the order of first use."""
    width = len(scan.tid.values) + 1
    room = (len(scan.pid.values) + 1) * width
    pair: npt.NDArray[Any] = scan.pid.codes.astype(np.int32 if room < 2**31 else np.int64)
    pair += 1
    pair *= width
    pair += scan.tid.codes
    pair += 1
    if room > max(4 * len(pair), 2**20):
        used, inverse = np.unique(pair, return_inverse=True)
        thread = inverse.astype(np.int32)
    else:
        occurs = np.zeros(room, np.bool_)
        occurs[pair] = True
        used = np.flatnonzero(occurs)
        table = np.zeros(room, np.int32)
        table[used] = np.arange(len(used), dtype=np.int32)
        thread = table.take(pair)
    return thread, ((used // width - 1).astype(np.int32), (used % width - 1).astype(np.int32))


def _timed(rows: Rows, at: Ints) -> dict[str, Any]:
    return {
        "id": rows.arena.copy(at, np.int32),
        "ts_ns": rows.arena.take(rows.ts_ns, at),
        "dur_ns": rows.arena.take(rows.dur_ns, at),
        "name": category(rows, rows.scan.name, at),
    }


def _kind(rows: Rows, at: Ints, kinds: tuple[str, ...]) -> Coded:
    """The classes of these rows as the closed set of a table's kinds, which are consecutive classes."""
    first = CLASS_CODE[kinds[0]]
    assert CLASS_NAMES[first : first + len(kinds)] == kinds
    codes = rows.classes.take(at) - np.int8(first)
    return Coded(codes, kinds)


def _queue(rows: Rows, at: Ints) -> dict[str, Any]:
    """Device and stream: as arguments, else where the profiler drew the row (pid is the device then)."""
    return {
        "device": _either(_argument(rows, at, "device"), _whole(rows, rows.scan.pid, at)),
        "stream": _either(_argument(rows, at, "stream"), _whole(rows, rows.scan.tid, at)),
    }


def _either(first: Nullable, second: Nullable) -> Nullable:
    """`first` where it is known, else `second`."""
    if not first.missing.any():
        return first
    values = np.where(first.missing, second.values, first.values)
    return Nullable(values, first.missing & second.missing)


def category(rows: Rows, column: Codes, at: Ints) -> Coded:
    """The text of these rows, with only the categories that they use."""
    codes = column.codes.take(at, out=rows.scratch.code[: len(at)], mode="clip")
    used = np.zeros(len(column.values) + 1, np.bool_)
    used[codes] = True  # -1, no value, marks the last place
    used = used[:-1]
    texts = list(map(str, compress(column.values, used.tolist())))
    small = smallest_type(len(texts))
    renumber = np.full(len(used) + 1, -1, small)
    renumber[:-1][used] = np.arange(len(texts))
    numbered = renumber.take(codes, out=rows.arena.empty(len(at), small), mode="wrap")
    assert len(set(texts)) == len(texts), "a text has one code"
    return Coded(numbered, tuple(texts))


def whole(column: Codes, codes: npt.NDArray[np.int32]) -> Nullable:
    """The integers that these codes of a column stand for; anything else (`"Spans"`) is missing."""
    number, missing = _as_whole(column)
    return Nullable(number[codes], missing[codes])


def _whole(rows: Rows, column: Codes, at: Ints) -> Nullable:
    """As `whole`, for these rows."""
    number, missing = _as_whole(column)
    codes = column.codes.take(at, out=rows.scratch.code[: len(at)], mode="clip")
    return Nullable(
        number.take(codes, out=rows.arena.empty(len(at), np.int64), mode="wrap"),
        missing.take(codes, out=rows.arena.empty(len(at), np.bool_), mode="wrap"),
    )


def _as_whole(column: Codes) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """(integer, whether there is none) for every code of a column, and last for -1."""
    number, is_integer = with_zeros([*map(_int64, column.values), None], np.int64)
    return number, ~is_integer


def _argument(rows: Rows, at: Ints, *keys: str) -> Nullable:
    """The integers of the first of these arguments that occurs at all, for these rows."""
    args = rows.scan.args
    column = next((args[key] for key in keys if key in args), None)
    return integers(rows, column, at)


def integers(rows: Rows, column: Sparse | None, at: Ints) -> Nullable:
    """A sparse column's integers for these rows, missing elsewhere; integers written as text count."""
    if column is None:
        return Nullable(np.zeros(len(at), np.int64), np.ones(len(at), np.bool_))
    values, is_known = _as_int64(column)
    number, missing = rows.scratch.number, rows.scratch.missing
    number.fill(0)
    missing.fill(1)
    number[column.rows] = values
    missing[column.rows] = False if is_known is None else ~is_known
    return Nullable(rows.arena.take(number, at), rows.arena.take(missing, at))


def _as_int64(column: Sparse) -> tuple[Ints, npt.NDArray[np.bool_] | None]:
    """(the values as int64, which of them are integers in its range; None for all)."""
    values = column.values
    if column.categories is not None:
        number, is_integer = with_zeros(list(map(_int64, column.categories)), np.int64)
        return number[values], is_integer[values]
    if values.dtype == np.int64:
        return values, None
    if values.dtype == np.uint64:
        fits = values < 2**63
    else:
        fits = (np.abs(values) < 2**53) & (values == np.floor(values))
    return np.where(fits, values, 0).astype(np.int64), fits


def _numbers(column: Sparse, length: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """(value, known) of a sparse column for every row; text is not a number here."""
    number, is_number = np.zeros(length, np.float64), np.zeros(length, np.bool_)
    if column.categories is None:
        finite = np.isfinite(column.values)
        number[column.rows[finite]] = column.values[finite]
        is_number[column.rows[finite]] = True
    else:
        numbers, is_known = with_zeros(list(map(_plain_number, column.categories)), np.float64)
        number[column.rows] = numbers[column.values]
        is_number[column.rows] = is_known[column.values]
    return number, is_number


def _plain_number(value: object) -> float | None:
    """A number as it is, None for anything else, truth values included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def _labels(column: Sparse) -> list[str]:
    """The value of each of a column's rows as text."""
    labels = column.values.tolist()
    if column.categories is not None:
        labels = map(column.categories.__getitem__, labels)
    return list(map(str, labels))


def _value(column: Codes, row: int) -> object:
    code = int(column.codes[row])
    if code < 0:
        return None
    return column.values[code]


def _int64(value: object) -> int | None:
    """An int64, also when written as text or, exactly, as a float; None for all else."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if (
        isinstance(value, str)
        and len(value) <= 20
        and value.removeprefix("-").isascii()
        and value.removeprefix("-").isdigit()
    ):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    if not -(2**63) <= value < 2**63:
        return None
    return value
