"""Tables of a scanned Chrome trace, each built from the rows of its classes.

All tables are built together, column by column. The source of a column is freed before the next column,
so a large trace is never stored twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.records import dataclass
from tracekit.model.tables import DEVICE_OP_KINDS, HOST_OP_KINDS, TABLES
from tracekit.model.tables.arrays import Coded, Columns, Nullable, broadcast_value
from tracekit.readers.chrome.classes import CLASS_CODE, CLASS_NAMES
from tracekit.readers.chrome.scan import Codes, Sparse, choose_code_type, fill_missing_with_zeros

Ints = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class ChromeRows:
    """Absolute times, texts and arguments of a scan, and the class of each row.

    A row without a usable time is `ignored`.
    """

    times: dict[str, Ints]
    """`ts_ns` and `dur_ns`."""
    labels: dict[str, Codes]
    """`ph`, `cat` and `name`."""
    classes: npt.NDArray[np.int8]
    thread: npt.NDArray[np.signedinteger[Any]]
    thread_pid: Nullable
    """Pid of every thread, as `thread_tid`; values other than integers are missing."""
    thread_tid: Nullable
    thread_process: npt.NDArray[np.int32]
    """Process number of every thread."""
    args: Mapping[str, Sparse]
    fields: Mapping[str, Sparse]
    made: dict[tuple[str, str], Any] = field(default_factory=dict[tuple[str, str], Any])
    """Columns of all rows of a table that were built early; valid while the rows' classes do not change."""

    def find_rows(self, *classes: str) -> Ints:
        """Find the rows of these classes, in file order."""
        return self.is_of(*classes).nonzero()[0]

    def is_of(self, *classes: str) -> npt.NDArray[np.bool_]:
        """Check for each row whether it is of these classes."""
        if len(classes) == 1:
            return np.asarray(self.classes == CLASS_CODE[classes[0]], np.bool_)
        wanted = np.zeros(len(CLASS_NAMES), np.bool_)
        wanted[[CLASS_CODE[name] for name in classes]] = True
        return wanted[self.classes]


ColumnMaker = Callable[[ChromeRows, Ints], Any]
"""Builder of one column for the given rows."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """Plan of a table: the classes of its rows, and a builder for each column."""

    classes: tuple[str, ...]
    columns: Mapping[str, ColumnMaker]


def _make_row_ids(_: ChromeRows, positions: Ints) -> npt.NDArray[np.int32]:
    """Make row ids: positions in the file."""
    return positions.astype(np.int32)


def _take_row_times(name: str, rows: ChromeRows, positions: Ints) -> Ints:
    """Take the times of these rows."""
    return _take_positions(rows.times[name], positions)


def _take_row_labels(name: str, rows: ChromeRows, positions: Ints) -> Coded:
    """Take the texts of these rows."""
    return take_used_labels(rows.labels[name], positions)


def _take_row_threads(rows: ChromeRows, positions: Ints) -> npt.NDArray[np.int32]:
    """Take the thread numbers of these rows."""
    return _take_positions(rows.thread, positions).astype(np.int32, copy=False)


def _take_row_pids(rows: ChromeRows, positions: Ints) -> Nullable:
    """Take the pids of these rows."""
    return _take_thread_numbers(rows.thread_pid, rows, positions)


def _take_row_tids(rows: ChromeRows, positions: Ints) -> Nullable:
    """Take the tids of these rows."""
    return _take_thread_numbers(rows.thread_tid, rows, positions)


def _take_thread_numbers(numbers: Nullable, rows: ChromeRows, positions: Ints) -> Nullable:
    """Take a number of each row's thread."""
    thread = _take_positions(rows.thread, positions)
    return Nullable(_take_positions(numbers.values, thread), _take_positions(numbers.missing, thread))


def _take_row_kinds(kinds: tuple[str, ...], rows: ChromeRows, positions: Ints) -> Coded:
    """Convert the classes of these rows to a table's kinds, which are consecutive classes."""
    first = CLASS_CODE[kinds[0]]
    assert CLASS_NAMES[first : first + len(kinds)] == kinds
    codes = _take_positions(rows.classes, positions)
    codes -= np.int8(first)
    return Coded(codes, kinds)


def _take_argument_integers(keys: tuple[str, ...], rows: ChromeRows, positions: Ints) -> Nullable:
    """Take the integers of the first of these arguments that occurs in the trace."""
    return take_sparse_integers(next((rows.args[key] for key in keys if key in rows.args), None), positions)


def _take_device_or_stream(key: str, drawn: ColumnMaker, rows: ChromeRows, positions: Ints) -> Nullable:
    """Take the device or stream: from an argument, else from the lane of the row.

    Profilers draw device rows with the device as pid and the stream as tid.
    """
    recorded: Nullable = _take_argument_integers((key,), rows, positions)
    if not recorded.missing.any():
        return recorded
    place: Nullable = drawn(rows, positions)
    values = np.where(recorded.missing, place.values, recorded.values)
    return Nullable(values, recorded.missing & place.missing)


_START: Mapping[str, ColumnMaker] = {"id": _make_row_ids, "ts_ns": partial(_take_row_times, "ts_ns")}
_TIMED: Mapping[str, ColumnMaker] = {
    **_START,
    "dur_ns": partial(_take_row_times, "dur_ns"),
    "name": partial(_take_row_labels, "name"),
}
_ON_THREAD: Mapping[str, ColumnMaker] = {"pid": _take_row_pids, "tid": _take_row_tids, "thread": _take_row_threads}
_ON_DEVICE: Mapping[str, ColumnMaker] = {
    "device": partial(_take_device_or_stream, "device", _take_row_pids),
    "stream": partial(_take_device_or_stream, "stream", _take_row_tids),
}
_CORRELATION: Mapping[str, ColumnMaker] = {"correlation": partial(_take_argument_integers, ("correlation",))}
_EXTERNAL: Mapping[str, ColumnMaker] = {"external_id": partial(_take_argument_integers, ("External id", "external id"))}

TABLE_PLANS: Mapping[str, TablePlan] = {
    "host_ops": TablePlan(
        HOST_OP_KINDS,
        {
            **_TIMED,
            "kind": partial(_take_row_kinds, HOST_OP_KINDS),
            "cat": partial(_take_row_labels, "cat"),
            **_ON_THREAD,
            **_CORRELATION,
            **_EXTERNAL,
        },
    ),
    "device_ops": TablePlan(
        DEVICE_OP_KINDS,
        {
            **_TIMED,
            "kind": partial(_take_row_kinds, DEVICE_OP_KINDS),
            **_ON_DEVICE,
            **_CORRELATION,
            **_EXTERNAL,
            "size_bytes": partial(_take_argument_integers, ("bytes",)),
        },
    ),
    "device_ranges": TablePlan(("device_range",), {**_TIMED, **_ON_DEVICE, **_EXTERNAL}),
    "syncs": TablePlan(("sync",), {**_TIMED, **_ON_DEVICE, **_CORRELATION}),
    "memory_ops": TablePlan(
        ("memory",),
        {
            **_START,
            **_ON_THREAD,
            "device_type": partial(_take_argument_integers, ("Device Type",)),
            "device": partial(_take_argument_integers, ("Device Id",)),
            "size_bytes": partial(_take_argument_integers, ("Bytes",)),
            "allocated_bytes": partial(_take_argument_integers, ("Total Allocated",)),
            "reserved_bytes": partial(_take_argument_integers, ("Total Reserved",)),
        },
    ),
    "windows": TablePlan(("window",), _TIMED),
    "python_calls": TablePlan(("python", "python_call"), {**_TIMED, "thread": _take_row_threads}),
}

_IN_TURN = (
    *("ts_ns", "dur_ns", "id", "name", "cat", "kind", "pid", "tid", "device", "stream", "thread"),
    *("correlation", "external_id", "size_bytes"),
    *("device_type", "allocated_bytes", "reserved_bytes"),
)
"""Order in which columns are built."""


def build_planned_tables(
    rows: ChromeRows, names: Collection[str], is_asked: Callable[[str], bool]
) -> dict[str, Columns]:
    """Build the named tables that have rows; consumes `rows`.

    Without device rows the profiler saw no device, which is not an idle one. A table without rows is
    therefore left out, except the `host_ops` of a trace without device work. A nullable column that was
    not requested is missing in every row.
    """
    of_tables = {n: rows.find_rows(*TABLE_PLANS[n].classes) for n in TABLE_PLANS if n in names}
    has_device_ops = rows.is_of(*DEVICE_OP_KINDS).any()
    of_tables = {
        n: positions for n, positions in of_tables.items() if len(positions) or (n == "host_ops" and not has_device_ops)
    }
    arrays: dict[str, dict[str, Any]] = {name: {} for name in of_tables}
    for column in _IN_TURN:
        for name, positions in of_tables.items():
            if column in TABLE_PLANS[name].columns:
                if is_asked(column) or not TABLES[name].columns[column].nullable:
                    arrays[name][column] = _build_planned_column(name, column, rows, positions)
                else:
                    arrays[name][column] = _make_missing_column(len(positions))
        rows.times.pop(column, None)
        rows.labels.pop(column, None)
    return {name: TABLES[name].cast(arrays[name], len(positions)) for name, positions in of_tables.items()}


def _build_planned_column(table: str, column: str, rows: ChromeRows, positions: Ints) -> Any:
    """Build a column of a table, or return and release the one that was built early."""
    known = rows.made.pop((table, column), None)
    return TABLE_PLANS[table].columns[column](rows, positions) if known is None else known


def _make_missing_column(length: int) -> Nullable:
    """Make a column of missing numbers that takes the memory of one."""
    return Nullable(broadcast_value(np.int64(0), length), broadcast_value(np.True_, length))


def build_counter_table(rows: ChromeRows) -> Columns | None:
    """Build the table of counter samples; each argument is a series of its own, `<counter>.<argument>`."""
    positions = rows.find_rows("counter")
    if not len(positions):
        return None
    name = rows.labels["name"]
    ts_ns = rows.times["ts_ns"]
    samples: list[tuple[Ints, npt.NDArray[np.object_], npt.NDArray[np.float64]]] = []
    for key, column in rows.args.items():
        values, is_number = _expand_sparse_numbers(column, len(ts_ns))
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
        {"id": ids[order].astype(np.int32), "ts_ns": ts_ns[ids[order]], "name": names[order], "value": values[order]}
    )


def build_flow_table(rows: ChromeRows) -> Columns | None:
    """Build the table of flows: the ends of arrows between intervals."""
    positions = rows.find_rows("flow")
    if not len(positions):
        return None
    ph = rows.labels["ph"]
    phase = np.array([{"s": "start", "f": "end"}.get(str(p), "step") for p in ph.values])
    return TABLES["flows"].cast(
        {
            "id": _make_row_ids(rows, positions),
            "ts_ns": _take_row_times("ts_ns", rows, positions),
            "cat": _take_row_labels("cat", rows, positions),
            "phase": phase[ph.codes[positions]],
            "flow": take_sparse_integers(rows.fields.get("id"), positions),
            "thread": _take_row_threads(rows, positions),
        }
    )


def build_thread_table(rows: ChromeRows) -> Columns:
    """Build the table of threads: every (pid, tid), with names from metadata rows; the last name wins."""
    count, process_names = len(rows.thread_process), find_process_names(rows)
    thread_names: list[str | None] = [None] * count
    for row, label in _find_metadata_names(rows, "thread_name"):
        thread_names[rows.thread[row]] = label
    return TABLES["threads"].cast(
        {
            "thread": np.arange(count, dtype=np.int32),
            "pid": rows.thread_pid,
            "tid": rows.thread_tid,
            "name": thread_names,
            "process_name": [process_names.get(process) for process in rows.thread_process.tolist()],
        },
        count,
    )


def find_process_names(rows: ChromeRows) -> dict[int, str]:
    """Map process numbers (`ChromeRows.thread_process`) to names from metadata rows; the last name wins."""
    named = _find_metadata_names(rows, "process_name")
    return {int(rows.thread_process[rows.thread[row]]): label for row, label in named}


def _find_metadata_names(rows: ChromeRows, kind: str) -> Iterator[tuple[int, str]]:
    """Yield (row, name) of each metadata row of this kind that has a name."""
    labels = rows.args.get("name")
    label_of: dict[int, str] = {}
    if labels:
        label_of = dict(zip(labels.rows.tolist(), _format_sparse_values(labels), strict=True))
    for row in rows.find_rows("meta").tolist():
        label = label_of.get(row)
        if label is not None and _get_row_value(rows.labels["name"], row) == kind:
            yield row, label


def number_threads(
    pid: Codes, tid: Codes
) -> tuple[npt.NDArray[np.signedinteger[Any]], tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
    """Assign a number to each thread: (thread of every row, codes of each thread's pid and tid).

    Threads are ordered by pid code, that is by first use. Thread numbers have the smallest type that
    fits all pairs of codes.
    """
    width = len(tid.values) + 1
    room = (len(pid.values) + 1) * width
    pair: npt.NDArray[Any] = pid.codes.astype(np.min_scalar_type(-room - 1))
    pair += 1
    pair *= width
    pair += tid.codes
    pair += 1
    if room > max(4 * len(pair), 2**20):
        used, inverse = np.unique(pair, return_inverse=True)
        thread = inverse.astype(np.int32)
    else:
        occurs = np.zeros(room, np.bool_)
        occurs[pair] = True
        used = occurs.nonzero()[0]
        table = np.zeros(room, np.int32)
        table[used] = np.arange(len(used), dtype=np.int32)
        thread = table.astype(pair.dtype)[pair]
    return thread, ((used // width - 1).astype(np.int32), (used % width - 1).astype(np.int32))


def _take_positions(column: npt.NDArray[Any], positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Take `column[positions]`; no position may be negative or too large."""
    return column.take(positions, mode="clip")  # faster than bounds checks: looks at each index once


def take_used_labels(column: Codes, positions: Ints) -> Coded:
    """Take the texts of these rows, with only the categories that they use."""
    codes = _take_positions(column.codes, positions)
    used = np.zeros(len(column.values) + 1, np.bool_)
    used[codes] = True  # code -1 (no value) marks the last element
    used = used[:-1]
    texts = [str(value) for value in compress(column.values, used.tolist())]
    small = choose_code_type(len(texts))
    renumber = np.full(len(used) + 1, -1, small)
    renumber[:-1][used] = np.arange(len(texts))
    assert len(set(texts)) == len(texts), "a text has one code"
    return Coded(renumber[codes], tuple(texts))


def convert_codes_to_integers(column: Codes, codes: npt.NDArray[np.int32]) -> Nullable:
    """Convert codes to the integers that their values stand for; other values (`"Spans"`) are missing."""
    integers = [_convert_value_to_int64(value) for value in column.values]
    number, is_integer = fill_missing_with_zeros([*integers, None], np.int64)
    return Nullable(number[codes], ~is_integer[codes])


def take_sparse_integers(column: Sparse | None, positions: Ints) -> Nullable:
    """Take a sparse column's integers for these ascending rows, missing elsewhere.

    Integers written as text count.
    """
    if column is None:
        return Nullable(np.zeros(len(positions), np.int64), np.ones(len(positions), np.bool_))
    values, is_known = _convert_sparse_to_int64(column)
    rows = column.rows
    if is_known is not None and not is_known.all():
        rows, values = rows[is_known], values[is_known]
    return Nullable(*sweeps.look_up_sparse(rows, values, positions))


def _convert_sparse_to_int64(column: Sparse) -> tuple[Ints, npt.NDArray[np.bool_] | None]:
    """Convert a sparse column to (int64 values, whether each is an integer in range; None: all are)."""
    values = column.values
    if column.categories is not None:
        integers = [_convert_value_to_int64(value) for value in column.categories]
        number, is_integer = fill_missing_with_zeros(integers, np.int64)
        return number[values], is_integer[values]
    if values.dtype == np.int64:
        return values, None
    if values.dtype == np.uint64:
        fits = values < 2**63
    else:
        fits = (np.abs(values) < 2**53) & (values == np.floor(values))
    return np.where(fits, values, 0).astype(np.int64), fits


def _expand_sparse_numbers(column: Sparse, length: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Expand a sparse column to (value of every row, whether it is a number); text is not a number here."""
    number, is_number = np.zeros(length, np.float64), np.zeros(length, np.bool_)
    if column.categories is None:
        finite = np.isfinite(column.values)
        number[column.rows[finite]] = column.values[finite]
        is_number[column.rows[finite]] = True
    else:
        accepted = [_accept_number(value) for value in column.categories]
        numbers, is_known = fill_missing_with_zeros(accepted, np.float64)
        number[column.rows] = numbers[column.values]
        is_number[column.rows] = is_known[column.values]
    return number, is_number


def _accept_number(value: object) -> float | None:
    """Accept a number; None for anything else, including booleans."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def _format_sparse_values(column: Sparse) -> list[str]:
    """Convert the values of a sparse column to text."""
    categories = column.categories
    return [str(value if categories is None else categories[value]) for value in column.values.tolist()]


def _get_row_value(column: Codes, row: int) -> object:
    """Get the value of a row; None if absent."""
    code = int(column.codes[row])
    if code < 0:
        return None
    return column.values[code]


def _convert_value_to_int64(value: object) -> int | None:
    """Convert an integer, its text or an exact float to int64; None for other values."""
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
