"""Rows of an export split by process, in the narrowest integer types.

One pass over a table serves all processes of the file. Each column is stored as a list of parts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Coded, Nullable
from tracekit.readers.chrome.scan import Sparse, choose_code_type
from tracekit.readers.nsys.content import ExportClock
from tracekit.readers.nsys.numbering import ValueNumbering, list_distinct_integers
from tracekit.readers.nsys.sqlite.blocks import Ints, read_column_blocks
from tracekit.readers.nsys.sqlite.connection import ExportDatabase, has_table_columns, quote_identifier
from tracekit.readers.nsys.sqlite.database import Bools, read_texts_by_id
from tracekit.readers.nsys.sqlite.expressions import MISSING

UNKNOWN = -1
"""Process or thread of a row that does not record it."""
TIME_LIMIT = 2**61
"""Bound of clock, start and duration. The sum of three values below it cannot overflow."""

ABSENT = "NULL"
"""SQL for a column that a table does not have."""

_VERSION = re.compile(r"_v[0-9]{4,}(_ptsz|_ptds)?\Z")


@dataclass(frozen=True, slots=True)
class ProcessRows:
    """Rows of one process: parts of each column, and counts of irregular rows by kind."""

    parts: defaultdict[str, list[npt.NDArray[Any]]] = field(default_factory=lambda: defaultdict(list))
    odd: Counter[str] = field(default_factory=Counter[str])

    def column(self, name: str, dtype: Any = np.int64) -> npt.NDArray[Any]:
        """Concatenate and release a column. Empty if it does not exist."""
        parts = self.parts.pop(name, [])
        return np.concatenate([np.empty(0, dtype), *parts], dtype=dtype)


ByProcess = dict[int, ProcessRows]


def get_known_pid(pid: int) -> int | None:
    """Convert `UNKNOWN` to None."""
    return None if pid == UNKNOWN else pid


@dataclass(frozen=True, slots=True)
class NameTable:
    """Codes of names, by (kind of key, key)."""

    codes: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    numbers: dict[str, tuple[ValueNumbering, list[int]]] = field(
        default_factory=dict[str, tuple[ValueNumbering, list[int]]]
    )
    """Numbering of the keys of each kind, and the code of each number."""

    def coded(self, kind: str, keys: Ints) -> npt.NDArray[np.int32]:
        """Assign codes to these keys."""
        numbers, codes = self.numbers.setdefault(kind, (ValueNumbering(), []))
        number = numbers.coded(keys)
        for key in numbers.values[len(codes) :].tolist():
            codes.append(self.codes.setdefault((kind, key), len(self.codes)))
        return np.array(codes, np.int32)[number]

    def labels(self, db: ExportDatabase, text_sources: Mapping[str, Callable[[int], str]]) -> list[str | None]:
        """Look up the text of every code: in StringIds for keys of kind `string`, else through `text_sources`; None if unknown."""
        ids = [key for kind, key in self.codes if kind == "string" and key != MISSING]
        label_texts = read_texts_by_id(db, "StringIds", "id", "value", ids)
        text_of: dict[str, Callable[[int], str | None]] = {"string": label_texts.get, **text_sources}
        return [text_of[kind](key) for kind, key in self.codes]


def write_column_sql(db: ExportDatabase, table: str, *names: str) -> str:
    """Build SQL for the first of these columns that is not NULL; `ABSENT` if the table has none."""
    present = [quote_identifier(name) for name in names if has_table_columns(db, table, name)]
    if len(present) > 1:
        return f"coalesce({', '.join(present)})"
    return "".join(present) or ABSENT


def write_pid_sql(db: ExportDatabase, table: str) -> str:
    """Build SQL for the pid of a row, NULL if not recorded."""
    name = "globalPid" if has_table_columns(db, table, "globalPid") else "globalTid"
    return f"nullif(({write_column_sql(db, table, name)} >> 24) & 16777215, 0)"


def write_thread_sql(db: ExportDatabase, table: str) -> str:
    """Build SQL for the thread number of a row."""
    return f"{write_column_sql(db, table, 'globalTid')} & 16777215"


def gather_rows_by_process(
    db: ExportDatabase,
    table: str,
    sql: Mapping[str, str],
    into: ByProcess,
    clock: ExportClock,
    change: Callable[[dict[str, Ints]], dict[str, npt.NDArray[Any]]],
    *,
    on_device: bool = False,
    look: Callable[[Ints, dict[str, Ints]], None] | None = None,
) -> None:
    """Add the rows of a table that have a time to their processes.

    The columns are `ts_ns`, `dur_ns`, and those of `sql` after `change` converted each block. `look` is called with the
    processes and columns of all rows before that. On a device, a time of 0 to 0 means that it was not available.
    """
    start_sql, end_sql = write_column_sql(db, table, "start"), write_column_sql(db, table, "end")
    # Durations have fewer digits than ends, which makes them cheaper to read.
    times = {"start": start_sql, "length": f"{end_sql} - {start_sql}"}
    expressions = {"pid": write_pid_sql(db, table), **times, **sql}
    for block in read_column_blocks(db, table, (), expressions=expressions):
        pid, start, length = (block.pop(name) for name in ("pid", "start", "length"))
        pid[pid == MISSING] = UNKNOWN
        dur, odd = _check_row_durations(start, length, clock, on_device=on_device)
        lost = odd["no-time"]
        if look is not None:
            look(pid, block)
        columns = change(block)
        start[lost] = 0
        columns |= {"ts_ns": start + clock.base_ns, "dur_ns": dur}
        any_odd = {what for what, which in odd.items() if which.any()}
        owners = list_distinct_integers(pid)
        complete = len(owners) == 1 and "no-time" not in any_odd
        for owner in owners:
            selected = pid == owner
            process = into.setdefault(owner, ProcessRows())
            for what, which in odd.items():
                process.odd[what] += 0
                if what in any_odd:
                    process.odd[what] += int(np.count_nonzero(which & selected))
            kept = None if complete else np.flatnonzero(selected & ~lost)
            for name, values in columns.items():
                process.parts[name].append(_copy_narrowed(values, kept))


def _check_row_durations(
    start: Ints, length: Ints, clock: ExportClock, *, on_device: bool
) -> tuple[Ints, dict[str, Bools]]:
    """Check durations: (duration of each row, masks of irregular rows by kind). Impossible durations become 0."""
    lost = (start <= -TIME_LIMIT) | (start >= TIME_LIMIT)
    if on_device:
        lost |= (start == 0) & (length == 0)
    unknown = length == MISSING
    bad = ~unknown & ~lost & ((length < 0) | (length >= TIME_LIMIT - np.where(lost, 0, start)))
    odd = {
        "no-time": lost,
        "no-duration": unknown & ~lost,
        "bad-duration": bad,
        "negative-time": (start < clock.start_ns) & ~lost,
    }
    return np.where(lost | unknown | bad, 0, length), odd


def merge_unknown_process(processes: ByProcess, pids: Sequence[int]) -> None:
    """Merge rows of unknown processes into the only known one. Without a known one, all rows are of an unknown process."""
    if len(pids) > 1:
        return
    target, sources = UNKNOWN, [*processes]
    if pids:
        target, sources = pids[0], [UNKNOWN]
    for pid in sources:
        if pid == target or pid not in processes:
            continue
        other = processes.pop(pid)
        into = processes.setdefault(target, ProcessRows())
        for name, parts in other.parts.items():
            into.parts[name].extend(parts)
        into.odd.update(other.odd)


def repeat_value(value: int, length: int) -> Ints:
    """Repeat a value without allocating memory per row."""
    return np.broadcast_to(np.int64(value), length)


def make_nullable_integers(values: Ints) -> Nullable:
    """Convert to a nullable integer column, missing where `MISSING`. May change `values` in place."""
    if len(values) and values.min() == values.max():
        return repeat_nullable_value(None if values[0] == MISSING else int(values[0]), len(values))
    missing = values == MISSING
    if not missing.any():
        return Nullable(values, np.broadcast_to(np.False_, len(values)))
    values[missing] = 0
    return Nullable(values, missing)


def narrow_nullable_integers(column: Nullable) -> Nullable:
    """Convert to int32 if the numbers fit."""
    values = column.values
    if not len(values) or not values.strides[0] or values.min() < ~_MOST[np.int32]:
        return column
    if values.max() > _MOST[np.int32]:
        return column
    return Nullable(values.astype(np.int32), column.missing)


def repeat_nullable_value(value: int | None, length: int) -> Nullable:
    """Build a nullable integer column with the same value in all rows (None: missing), without memory per row."""
    return Nullable(np.broadcast_to(np.int64(value or 0), length), np.broadcast_to(np.bool_(value is None), length))


def make_text_column(codes: npt.NDArray[np.int32], labels: Sequence[str | None]) -> Coded:
    """Build a text column from codes, with only the texts in use, sorted."""
    used = np.bincount(codes, minlength=len(labels)) > 0
    occurring = set(compress(labels, used.tolist()))
    texts_ = sorted(label for label in occurring if label is not None)
    place: dict[str | None, int] = {text: number for number, text in enumerate(texts_)}
    table = np.array([place.get(label, -1) for label in labels] or [-1], choose_code_type(len(texts_)))
    return Coded(table[codes], tuple(texts_))


def sort_rows_by_start(ts_ns: Ints, *keys: npt.NDArray[Any]) -> Ints:
    """Sort rows by start, then by the `keys`, the first key first."""
    return sort_rows_and_starts(ts_ns, lambda rows: [key[rows] for key in keys])[0]


def sort_rows_and_starts(ts_ns: Ints, keys: Callable[[Ints], Sequence[npt.NDArray[Any]]]) -> tuple[Ints, Ints]:
    """Sort rows by start: (row order, sorted starts). Ties are broken by `keys(rows)`."""
    by_start = np.argsort(ts_ns, kind="stable")
    starts = ts_ns[by_start]
    same_start = starts[1:] == starts[:-1]
    if not same_start.any():
        return by_start, starts
    tied = np.zeros(len(starts), np.bool_)
    tied[1:] = same_start
    tied[:-1] |= same_start
    positions = np.flatnonzero(tied)
    rows = by_start[positions]
    by_start[positions] = rows[np.lexsort([*reversed(keys(rows)), starts[positions]])]
    return by_start, starts


def make_sparse_argument(values: Ints, ids: npt.NDArray[np.int32], text: Callable[[int], str] | None) -> Sparse | None:
    """Build a sparse argument from the known `values`, as numbers or texts; None if none is known."""
    is_known = values != MISSING
    if not is_known.any():
        return None
    rows, numbers = ids[is_known], values[is_known]
    if text is None:
        return Sparse(rows, numbers)
    # Categories in order of first use, as in every reader.
    used, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    by_use = np.argsort(first)
    rank = np.empty(len(used), np.int32)
    rank[by_use] = np.arange(len(used), dtype=np.int32)
    return _merge_equal_texts(rows, rank[inverse], [text(key) for key in used[by_use].tolist()])


def strip_call_version(name: str) -> str:
    """Strip the interface version from the name of a CUDA call.

    >>> strip_call_version("cudaLaunchKernel_v7000"), strip_call_version("cudaMemcpyAsync_v3020_ptsz"), strip_call_version("cuMemAlloc_v2")
    ('cudaLaunchKernel', 'cudaMemcpyAsync', 'cuMemAlloc_v2')
    """
    return _VERSION.sub("", name)


def is_wanted_argument(args: Collection[str] | None, key: str) -> bool:
    """Check whether an argument is wanted. None wants all."""
    return args is None or key in args


def _merge_equal_texts(rows: npt.NDArray[np.int32], codes: npt.NDArray[np.int32], labels: list[str]) -> Sparse:
    """Build a sparse text column, merging equal texts."""
    place: dict[str, int] = {}
    table = np.array([place.setdefault(label, len(place)) for label in labels], np.int32)
    return Sparse(rows, table[codes], [*place])


def _copy_narrowed(values: npt.NDArray[Any], kept_rows: Ints | None) -> npt.NDArray[Any]:
    """Copy the kept rows (None: all) in the smallest integer type that holds them."""
    if len(values) > 0 and not values.strides[0]:
        return np.broadcast_to(values[0], len(values) if kept_rows is None else len(kept_rows))
    if kept_rows is not None:
        values = values.take(kept_rows)
    if not len(values):
        return values
    low, high = int(values.min()), int(values.max())
    for kind, most in _MOST.items():
        if ~most <= low and high <= most:
            return values.astype(kind)
    return values


_MOST = {np.int8: 2**7 - 1, np.int16: 2**15 - 1, np.int32: 2**31 - 1}
"""Largest integer of each type; the smallest is its complement."""
