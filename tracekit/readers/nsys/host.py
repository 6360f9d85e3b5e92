"""Host side of an export: CUDA calls, operating system calls, profiler overhead, and NVTX ranges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables import HOST_OP_KINDS, TABLES
from tracekit.model.tables.arrays import Coded, Columns, Nullable, concatenate_like_arrays, select_rows
from tracekit.model.trace import Want
from tracekit.readers.chrome.scan import Sparse
from tracekit.readers.nsys.content import ExportClock
from tracekit.readers.nsys.gather import (
    UNKNOWN,
    ByProcess,
    NameTable,
    ProcessRows,
    gather_rows_by_process,
    get_known_pid,
    make_nullable_integers,
    make_text_column,
    narrow_nullable_integers,
    repeat_nullable_value,
    repeat_value,
    sort_rows_and_starts,
    strip_call_version,
    write_column_sql,
    write_thread_sql,
)
from tracekit.readers.nsys.numbering import list_distinct_integers
from tracekit.readers.nsys.nvtx.ranges import NvtxHostRows
from tracekit.readers.nsys.sqlite.blocks import Ints
from tracekit.readers.nsys.sqlite.connection import ExportDatabase, has_table_columns
from tracekit.readers.nsys.sqlite.database import read_small_table, read_texts_by_id
from tracekit.readers.nsys.sqlite.expressions import MISSING

RUNTIME, OSRT = "CUPTI_ACTIVITY_KIND_RUNTIME", "OSRT_API"
OVERHEADS = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")

CATEGORIES = ("cuda_runtime", "cuda_driver", "os_runtime", "overhead")
_RUNTIME, _DRIVER, _OS, _OVERHEAD = range(4)
_KINDS = np.array([HOST_OP_KINDS.index(kind) for kind in ("runtime", "runtime", "other", "overhead")], np.int8)
_DRIVER_CLASS = 1
"""Event class of driver calls. All other classes in the table are runtime calls."""


@dataclass(frozen=True, slots=True)
class HostCalls:
    """Calls of all processes, in parts. `labels` are the texts of name codes."""

    processes: ByProcess
    labels: list[str | None]


@dataclass(frozen=True, slots=True)
class HostTable:
    """`make_host_ops` of one process, and the arguments of its ranges by row."""

    columns: Columns
    args: Mapping[str, Sparse]


def read_cuda_calls(db: ExportDatabase, clock: ExportClock) -> HostCalls:
    """Read the CUDA runtime and driver calls of all processes."""
    names, processes = NameTable(), ByProcess()
    if RUNTIME in db.columns:
        driver = f"iif({write_column_sql(db, RUNTIME, 'eventClass')} is {_DRIVER_CLASS}, {_DRIVER}, {_RUNTIME})"
        sql = {"correlation": f"nullif({write_column_sql(db, RUNTIME, 'correlationId')}, 0)", "cat": driver}
        _gather_calls(db, RUNTIME, sql, processes, clock, names, _RUNTIME)
    labels = names.labels(db, {})
    return HostCalls(processes, [None if name is None else strip_call_version(name) for name in labels])


def read_other_calls(db: ExportDatabase, clock: ExportClock) -> tuple[HostCalls, HostCalls]:
    """Read (operating system calls, profiler overhead) of all processes."""
    both_calls = []
    for tables, kind in (((OSRT,), _OS), (OVERHEADS, _OVERHEAD)):
        names, processes = NameTable(), ByProcess()
        for table in tables:
            if table in db.columns:
                _gather_calls(db, table, {}, processes, clock, names, kind)
        both_calls.append(HostCalls(processes, names.labels(db, {})))
    return both_calls[0], both_calls[1]


def has_call_tables(db: ExportDatabase) -> bool:
    """Check whether the export has a table of calls, even if it is empty."""
    return RUNTIME in db.columns or OSRT in db.columns


def count_odd_calls(calls: HostCalls, pid: int) -> Mapping[str, int]:
    """Count the irregular calls of one process by kind of irregularity."""
    return calls.processes.get(pid, ProcessRows()).odd


def make_host_ops(
    calls: Sequence[HostCalls], ranges: list[NvtxHostRows], pid: int, threads: Sequence[int], want: Want
) -> HostTable:
    """Build `make_host_ops` of one process with ids from 0, sorted by start, longest first. Releases `calls` and `ranges`.

    `threads` are the numbers of all threads of the process, ascending; the column `thread` is an index into them.
    `want` decides whether the thread numbers themselves are filled.
    """
    parts = [_make_call_columns(calls_of_kind, pid) for calls_of_kind in calls]
    before = sum(len(part["ts_ns"]) for part in parts)
    range_args: Mapping[str, Sparse] = {}
    if ranges:
        range_args = ranges[0].args
        parts.append(_make_range_columns(ranges.pop()))
    ts, dur = _pop_column(parts, "ts_ns"), _pop_column(parts, "dur_ns")
    tid, kind = _pop_column(parts, "tid"), _pop_column(parts, "kind")
    name, cat = (_join_text_columns([part.pop(column) for part in parts]) for column in ("name", "cat"))
    positions, starts = sort_rows_and_starts(ts, partial(_make_host_tie_keys, dur, tid, kind, name))
    del ts
    columns: dict[str, Any] = {
        "id": np.arange(len(positions), dtype=np.int32),
        "ts_ns": starts,
        "dur_ns": dur[positions],
        "name": select_rows(name, positions),
        "kind": Coded(kind[positions], HOST_OP_KINDS),
        "cat": select_rows(cat, positions),
        "pid": repeat_nullable_value(get_known_pid(pid), len(positions)),
    }
    # Release each column before building the next.
    del starts, dur, kind, name, cat
    columns["thread"] = thread = _find_thread_indices(tid[positions], threads)
    columns["tid"] = repeat_nullable_value(None, len(thread))
    if want.column("tid"):
        columns["tid"] = look_up_thread_numbers(np.array(threads, np.int64), thread)
    del tid
    columns["correlation"] = narrow_nullable_integers(
        make_nullable_integers(_pop_column(parts, "correlation")[positions])
    )
    columns["external_id"] = repeat_nullable_value(None, len(positions))
    args: dict[str, Sparse] = {}
    if range_args:
        place = np.empty(len(positions), np.int32)
        place[positions] = columns["id"]
        args = {key: _move_host_argument(argument, place[before:]) for key, argument in range_args.items()}
    return HostTable(TABLES["host_ops"].cast(columns), args)


def _make_host_tie_keys(
    dur: Ints, tid: npt.NDArray[np.int32], kind: npt.NDArray[np.int8], name: Coded, rows: Ints
) -> tuple[npt.NDArray[Any], ...]:
    """Build the sort keys of rows that start at the same time."""
    return -dur[rows], tid[rows], kind[rows], _rank_alphabetically(name.texts)[name.codes[rows]]


def make_open_ranges(ranges: NvtxHostRows, pid: int, threads: Sequence[int]) -> Columns:
    """Build `make_open_ranges` of one process with ids from 0."""
    thread = _find_thread_indices(ranges.tid, threads)
    return TABLES["open_ranges"].cast(
        {
            "id": np.arange(len(ranges.ts_ns), dtype=np.int32),
            "ts_ns": ranges.ts_ns,
            "dur_ns": ranges.dur_ns,
            "name": ranges.name,
            "cat": ranges.cat,
            "pid": repeat_nullable_value(get_known_pid(pid), len(ranges.ts_ns)),
            "tid": look_up_thread_numbers(np.array(threads, np.int64), thread),
            "thread": thread,
        }
    )


def make_threads(db: ExportDatabase, pid: int, tids: Sequence[int], named: Mapping[int, str]) -> Columns:
    """Build `threads` of one process. Names set through NVTX (`named`, by thread id) take precedence."""
    process = _read_process_name(db, pid)
    names = _read_thread_names(db, pid, process)
    for gtid, name in named.items():
        if (gtid >> 24) & _LAST_24 == pid:
            names[gtid & _LAST_24] = name
    return TABLES["threads"].cast(
        {
            "thread": np.arange(len(tids), dtype=np.int32),
            "pid": repeat_nullable_value(get_known_pid(pid), len(tids)),
            "tid": look_up_thread_numbers(np.array(tids, np.int64), np.arange(len(tids))),
            "name": [names.get(tid) for tid in tids],
            "process_name": [process] * len(tids),
        },
        len(tids),
    )


def list_calling_threads(calls: Sequence[HostCalls], pid: int) -> set[int]:
    """List the numbers of threads that made calls."""
    tids: set[int] = set()
    for kind_of_calls in calls:
        if pid in kind_of_calls.processes:
            for part in kind_of_calls.processes[pid].parts.get("tid", []):
                tids.update(list_distinct_integers(part))
    return tids


def look_up_thread_numbers(tids: Ints, thread: npt.NDArray[np.integer[Any]]) -> Nullable:
    """Look up thread numbers by index into `tids`; missing for an unknown thread."""
    if len(tids) < 2 or UNKNOWN in tids:
        return make_nullable_integers(np.where(tids == UNKNOWN, MISSING, tids)[thread])
    # All are known and fit in 24 bits.
    return Nullable(tids.astype(np.int32)[thread], np.broadcast_to(np.False_, len(thread)))


def _find_thread_indices(tid: npt.NDArray[np.int32], threads: Sequence[int]) -> npt.NDArray[np.int32]:
    """Find the index of each thread among all threads of the process."""
    if len(threads) == 1:
        return np.zeros(len(tid), np.int32)
    return np.searchsorted(np.array(threads, np.int32), tid).astype(np.int32)


_LAST_24 = 0xFFFFFF
_Part = dict[str, Any]


def _gather_calls(
    db: ExportDatabase,
    table: str,
    sql: Mapping[str, str],
    into: ByProcess,
    clock: ExportClock,
    names: NameTable,
    category_: int,
) -> None:
    """Add the rows of one table of calls to their processes."""

    def change(block: dict[str, Ints]) -> dict[str, npt.NDArray[Any]]:
        codes = names.coded("string", block.pop("key"))
        tid = block["tid"]
        tid[tid == MISSING] = UNKNOWN
        if "cat" not in block:
            block["cat"] = repeat_value(category_, len(codes))
        return {**block, "name": codes}

    cells = {"key": write_column_sql(db, table, "nameId"), "tid": write_thread_sql(db, table), **sql}
    gather_rows_by_process(db, table, cells, into, clock, change)


def _make_call_columns(calls: HostCalls, pid: int) -> _Part:
    """Build the columns of one process's calls. Removes them from `calls`."""
    of_process = calls.processes.pop(pid, ProcessRows())
    ts = of_process.column("ts_ns")
    cat = of_process.column("cat", np.int8)
    correlation = of_process.column("correlation")
    if not len(correlation):
        correlation = repeat_value(MISSING, len(ts))
    return {
        "ts_ns": ts,
        "dur_ns": of_process.column("dur_ns"),
        "tid": of_process.column("tid", np.int32),
        "kind": _KINDS[cat],
        "cat": make_text_column(cat.astype(np.int32), CATEGORIES),
        "name": make_text_column(of_process.column("name", np.int32), calls.labels),
        "correlation": correlation,
    }


def _make_range_columns(ranges: NvtxHostRows) -> _Part:
    """Build the columns of one process's ranges."""
    return {
        "ts_ns": ranges.ts_ns,
        "dur_ns": ranges.dur_ns,
        "tid": ranges.tid,
        "kind": ranges.kind,
        "cat": ranges.cat,
        "name": ranges.name,
        "correlation": repeat_value(MISSING, len(ranges.ts_ns)),
    }


def _pop_column(parts: Sequence[_Part], name: str) -> npt.NDArray[Any]:
    """Concatenate a column of all parts, removing it from them."""
    return np.concatenate([part.pop(name) for part in parts])


def _join_text_columns(parts: Sequence[Coded]) -> Coded:
    """Concatenate text columns."""
    united = concatenate_like_arrays(parts)
    assert isinstance(united, Coded), "texts"
    return united


def _rank_alphabetically(names: Sequence[str]) -> Ints:
    """Rank each name alphabetically, with -1 at the end for a missing name."""
    place = np.full(len(names) + 1, -1, np.int64)
    place[np.argsort(np.array(names, object), kind="stable")] = np.arange(len(names))
    return place


def _move_host_argument(argument: Sparse, place: npt.NDArray[np.int32]) -> Sparse:
    """Move an argument to new rows."""
    moved = place[argument.rows]
    positions = np.argsort(moved, kind="stable")
    return Sparse(moved[positions], argument.values[positions], argument.categories)


def _read_process_name(db: ExportDatabase, pid: int) -> str | None:
    """Read the name of a process. The table covers the whole host."""
    names = read_small_table(db, "PROCESSES", ("name",), where="pid = ?", parameters=(pid,), limit=100)
    return min((name for (name,) in names if isinstance(name, str) and name), default=None)


def _read_thread_names(db: ExportDatabase, pid: int, process: str | None) -> dict[int, str]:
    """Read thread names from the system. Of several, prefers one that differs from the process name."""
    if not has_table_columns(db, "ThreadNames", "globalTid", "nameId"):
        return {}
    condition = "typeof(globalTid) = 'integer' AND (globalTid >> 24) & 16777215 = ?"
    recorded = read_small_table(db, "ThreadNames", ("globalTid", "nameId"), condition, (pid,))
    id_pairs = [(int(gtid) & _LAST_24, key) for gtid, key in recorded if isinstance(key, int)]
    labels = read_texts_by_id(db, "StringIds", "id", "value", [key for _, key in id_pairs])
    names_of: defaultdict[int, set[str]] = defaultdict(set)
    for tid, key in id_pairs:
        if labels.get(key):
            names_of[tid].add(labels[key])
    names = {}
    for tid, choices in names_of.items():
        names[tid] = min(choices, key=lambda name: (name == process, name))
    return names
