"""Device work of an export: kernels, copies, fills, CUDA graphs, and synchronisation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.note_codes import OVERLONG
from tracekit.model.records import dataclass
from tracekit.model.tables import DEVICE_OP_KINDS, TABLES
from tracekit.model.tables.arrays import Coded, Columns, Nullable, select_rows
from tracekit.model.text.labels import join_phrase
from tracekit.model.trace import Note, Want
from tracekit.readers.chrome.classes import COMMUNICATION
from tracekit.readers.chrome.scan import Sparse
from tracekit.readers.device_times import DeviceOpTimes, DeviceTimeRepair
from tracekit.readers.nsys.content import ExportClock
from tracekit.readers.nsys.gather import (
    ByProcess,
    NameTable,
    ProcessRows,
    gather_rows_by_process,
    is_wanted_argument,
    make_nullable_integers,
    make_sparse_argument,
    make_text_column,
    narrow_nullable_integers,
    repeat_nullable_value,
    repeat_value,
    sort_rows_and_starts,
    sort_rows_by_start,
    write_column_sql,
)
from tracekit.readers.nsys.numbering import list_distinct_integers, list_distinct_rows
from tracekit.readers.nsys.sqlite.blocks import Ints
from tracekit.readers.nsys.sqlite.connection import ExportDatabase, has_table_columns, quote_identifier
from tracekit.readers.nsys.sqlite.database import read_small_table
from tracekit.readers.nsys.sqlite.expressions import MISSING
from tracekit.readers.nsys.times import number_streams

KERNEL, MEMCPY, MEMSET, GRAPH, SYNC = (
    f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "SYNCHRONIZATION")
)
CONTEXTS = ("TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_NULL_STREAM")

_KIND = {name: code for code, name in enumerate(DEVICE_OP_KINDS)}
_PLAIN_WAYS = ("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
_UNIFIED = 11
"""First copy kind of unified memory; its driver makes these copies."""
_WAYS = dict(enumerate((*_PLAIN_WAYS, "HtoD", "DtoH", "DtoD"), 1))
_MEMORIES = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
_SYNCS = ("Unknown Sync", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")
_NO_STREAM = 2**32 - 1
_NONE = 1023
"""Value of an unrecorded field in a packed key."""


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """Device work of all processes, in parts. `labels` are the texts of name codes.

    `contexts` are the devices of (process, context) from the work itself, if requested.
    """

    processes: ByProcess
    labels: list[str | None]
    args: tuple[str, ...]
    contexts: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    recorded: Mapping[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """Devices of (process, context) from the export's context tables."""

    def shared(self, pid: int) -> list[int]:
        """List the devices on which a process has several contexts."""
        devices = Counter(device for (process, _), device in self.recorded.items() if process == pid)
        return [device for device, count in devices.items() if count > 1]


Check = Callable[[DeviceOpTimes], DeviceTimeRepair]
"""Function that finds device ops with impossible times."""


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """A table of one process, its arguments by position, and counts of irregular rows by kind."""

    columns: Columns
    args: Mapping[str, Sparse]
    odd: Mapping[str, int]
    notes: tuple[Note, ...] = ()


def has_device_work(db: ExportDatabase) -> bool:
    """Check whether the export has a table of device work, even if it is empty."""
    return any(table in db.columns for table in (KERNEL, MEMCPY, MEMSET, GRAPH))


def read(db: ExportDatabase, clock: ExportClock, want: Want) -> DeviceRows:
    """Read the device work of all processes, with the wanted arguments and nullable columns."""
    names, processes = NameTable(), ByProcess()
    contexts: dict[tuple[int, int], int] = {}
    looks = want.table("syncs") and SYNC in db.columns and not read_recorded_contexts(db)
    keys = tuple(key for key in _ARGUMENTS if is_wanted_argument(want.args, key))
    for table, kind in ((KERNEL, "kernel"), (MEMCPY, "memcpy"), (MEMSET, "memset"), (GRAPH, "kernel")):
        if table not in db.columns:
            continue
        sql = _write_device_columns_sql(db, table, want, keys)
        source = {KERNEL: "string", MEMCPY: "copy", MEMSET: "fill", GRAPH: "graph"}[table]
        optional = ("device", "stream", "correlation", "size", *keys)
        change = _make_device_converter(names, source, _KIND[kind], optional)
        look = None
        if looks and table != GRAPH and has_table_columns(db, table, "contextId", "deviceId"):
            sql |= {_CONTEXT: quote_identifier("contextId"), _OF_CONTEXT: quote_identifier("deviceId")}
            look = partial(_record_context_devices, contexts)
        gather_rows_by_process(db, table, sql, processes, clock, change, on_device=True, look=look)
    labels = names.labels(db, {"copy": _name_copy, "fill": _name_fill, "graph": _name_graph})
    return DeviceRows(processes, labels, keys, contexts, read_recorded_contexts(db))


def _write_device_columns_sql(db: ExportDatabase, table: str, want: Want, keys: Sequence[str]) -> dict[str, str]:
    """Build SQL for the wanted columns of a table."""
    sql = {"key": _write_name_key_sql(db, table)}
    if want.column("device"):
        sql["device"] = write_column_sql(db, table, "deviceId")
    if want.column("stream"):
        sql["stream"] = write_column_sql(db, table, "streamId")
    # Times are checked against the calls that launched the work.
    if want.column("correlation") or want.table("host_ops"):
        sql["correlation"] = f"nullif({write_column_sql(db, table, 'correlationId')}, 0)"
    if table in (MEMCPY, MEMSET) and want.column("size_bytes"):
        sql["size"] = write_column_sql(db, table, "bytes")
    for key in keys:
        if (value_sql := _ARGUMENTS[key].sql(db, table)) is not None:
            sql[key] = value_sql
    return sql


def make_device_ops(
    device_rows: DeviceRows, pid: int, longest_ns: int | None = None, check: Check | None = None
) -> DeviceTable:
    """Build `make_device_ops` of one process with ids from 0, sorted by start. Removes its rows from `device_rows`.

    Drops ops longer than the capture (`longest_ns`, if known) and the ops that `check` rejects.
    """
    of_process = device_rows.processes.pop(pid, ProcessRows())
    ts, dur = of_process.column("ts_ns"), of_process.column("dur_ns")
    codes, kind = of_process.column("name", np.int32), of_process.column("kind", np.int8)
    shared = [bool(COMMUNICATION.search(label or "")) for label in device_rows.labels]
    collective = np.array([*shared, False])[codes] & (kind == _KIND["kernel"])
    kind[collective] = _KIND["collective"]
    name = make_text_column(codes, device_rows.labels)
    device, stream = of_process.column("device"), of_process.column("stream")
    positions, starts = sort_rows_and_starts(ts, partial(_take_tied_rows, (dur, device, stream, kind, name.codes)))
    overlong = 0
    if longest_ns is not None and longest_ns > 0 and int(dur.max(initial=0)) > longest_ns:
        is_kept = dur[positions] <= longest_ns
        overlong = int(np.count_nonzero(~is_kept))
        positions, starts = positions[is_kept], starts[is_kept]
    correlation, lengths = of_process.column("correlation"), dur[positions]
    left_out, notes = np.empty(0, np.int64), tuple[Note, ...]()
    if check is not None and len(positions):
        streams = number_streams(device[positions], stream[positions], device_rows.shared(pid))
        ids = correlation[positions]
        names = name.codes[positions]
        repair = check(DeviceOpTimes(starts, lengths, names, streams, Nullable(ids, ids == MISSING)))
        lengths[repair.cut], left_out, notes = repair.dur_ns, repair.left_out, repair.notes
    if len(left_out):
        kept = [np.delete(column, left_out) for column in (positions, starts, lengths)]
        positions, starts, lengths = kept
    columns: dict[str, Any] = {
        "id": np.arange(len(positions), dtype=np.int32),
        "ts_ns": starts,
        "dur_ns": lengths,
        "name": select_rows(name, positions),
        "kind": Coded(kind[positions], DEVICE_OP_KINDS),
        "device": make_nullable_integers(device[positions]),
        "stream": make_nullable_integers(stream[positions]),
    }
    odd = {**of_process.odd, "no-name": int(np.count_nonzero(name.codes < 0)), OVERLONG: overlong}
    # Release each column before building the next.
    del ts, starts, dur, lengths, codes, kind, name, device, stream, collective
    columns["correlation"] = narrow_nullable_integers(make_nullable_integers(correlation[positions]))
    del correlation
    columns["external_id"] = repeat_nullable_value(None, len(positions))
    columns["size_bytes"] = make_nullable_integers(of_process.column("size")[positions])
    args: dict[str, Sparse] = {}
    for key in device_rows.args:
        argument = make_sparse_argument(of_process.column(key)[positions], columns["id"], _ARGUMENTS[key].text)
        if argument is not None:
            args[key] = argument
    return DeviceTable(TABLES["device_ops"].cast(columns), args, odd, notes)


def _take_tied_rows(columns: Sequence[npt.NDArray[Any]], rows: Ints) -> list[npt.NDArray[Any]]:
    """Take these rows of each column."""
    return [column[rows] for column in columns]


def list_used_devices(device_rows: DeviceRows) -> dict[int, frozenset[int]]:
    """List the devices that each process used."""
    devices: dict[int, frozenset[int]] = {}
    for pid, of_process in device_rows.processes.items():
        numbers = set[int]()
        for part in of_process.parts.get("device", []):
            numbers.update(list_distinct_integers(part[part >= 0]))
        devices[pid] = frozenset(numbers)
    return devices


def read_sync_rows(db: ExportDatabase, clock: ExportClock) -> DeviceRows:
    """Read the synchronisation records of all processes."""
    names, processes = NameTable(), ByProcess()
    if SYNC in db.columns:
        sql = {
            "context": write_column_sql(db, SYNC, "contextId"),
            "device": write_column_sql(db, SYNC, "deviceId"),
            "stream": f"nullif({write_column_sql(db, SYNC, 'streamId')}, {_NO_STREAM})",
            "correlation": f"nullif({write_column_sql(db, SYNC, 'correlationId')}, 0)",
            "key": write_column_sql(db, SYNC, "syncType"),
        }
        gather_rows_by_process(db, SYNC, sql, processes, clock, _make_device_converter(names, "sync", 0, ()))
    return DeviceRows(processes, names.labels(db, {"sync": _name_sync}), ())


def make_syncs(sync_rows: DeviceRows, pid: int, devices: Mapping[tuple[int, int], int]) -> DeviceTable:
    """Build `syncs` of one process. `devices` maps (process, context) to the device, because the recorded device is wrong."""
    of_process = sync_rows.processes.pop(pid, ProcessRows())
    ts, dur = of_process.column("ts_ns"), of_process.column("dur_ns")
    contexts, device = of_process.column("context"), of_process.column("device")
    used, inverse = np.unique(contexts, return_inverse=True)
    device_of_context = np.array([devices.get((pid, key), MISSING) for key in used.tolist()], np.int64)
    device_of_context = device_of_context[inverse]
    device = np.where(device_of_context == MISSING, device, device_of_context)
    stream, correlation = of_process.column("stream"), of_process.column("correlation")
    name = make_text_column(of_process.column("name", np.int32), sync_rows.labels)
    positions = sort_rows_by_start(ts, dur, device, stream, name.codes)
    columns = {
        "id": np.arange(len(positions), dtype=np.int32),
        "ts_ns": ts[positions],
        "dur_ns": dur[positions],
        "name": select_rows(name, positions),
        "device": make_nullable_integers(device[positions]),
        "stream": make_nullable_integers(stream[positions]),
        "correlation": make_nullable_integers(correlation[positions]),
    }
    return DeviceTable(TABLES["syncs"].cast(columns), {}, of_process.odd)


def read_recorded_contexts(db: ExportDatabase) -> dict[tuple[int, int], int]:
    """Read the device of every (process, context) from the context tables."""
    pairs: dict[tuple[int, int], int] = {}
    for table in CONTEXTS:
        if has_table_columns(db, table, "processId", "contextId", "deviceId"):
            for process, context, device in read_small_table(db, table, ("processId", "contextId", "deviceId")):
                if all(isinstance(value, int) for value in (process, context, device)):
                    pairs.setdefault((process, context), device)
    return pairs


_CONTEXT, _OF_CONTEXT = "context of work", "device of context"


def _record_context_devices(contexts: dict[tuple[int, int], int], pid: Ints, block: dict[str, Ints]) -> None:
    """Record the first device on which each context of these rows ran work."""
    columns = [pid, block.pop(_CONTEXT), block.pop(_OF_CONTEXT)]
    for process, context, device in list_distinct_rows(columns):
        if MISSING not in (context, device):
            contexts.setdefault((process, context), device)


def _make_device_converter(
    names: NameTable, source: str, kind: int, optional: tuple[str, ...]
) -> Callable[[dict[str, Ints]], dict[str, npt.NDArray[Any]]]:
    """Build a function that converts a block: name keys to codes, the kind, and columns that this table lacks."""

    def change(block: dict[str, Ints]) -> dict[str, npt.NDArray[Any]]:
        length = len(block["key"])
        codes = names.coded(source, block.pop("key"))
        lacking = {name: repeat_value(MISSING, length) for name in optional if name not in block}
        return {**block, **lacking, "name": codes, "kind": np.full(length, kind, np.int8)}

    return change


def _write_name_key_sql(db: ExportDatabase, table: str) -> str:
    """Build SQL for the name key of a row."""
    if table == KERNEL:
        return write_column_sql(db, table, "demangledName", "shortName", "mangledName")
    if table == GRAPH:
        return write_column_sql(db, table, "graphId")
    if table == MEMSET:
        return _write_small_number_sql(db, table, "memKind")
    way, source, target = (_write_small_number_sql(db, table, name) for name in ("copyKind", "srcKind", "dstKind"))
    return f"({way} << 20) | ({source} << 10) | {target}"


def _write_small_number_sql(db: ExportDatabase, table: str, name: str) -> str:
    """Build SQL for a small number in a column."""
    return f"(coalesce({write_column_sql(db, table, name)}, {_NONE}) & {_NONE})"


def _name_copy(key: int) -> str:
    """Name a copy as Kineto does, from its packed direction and memory kinds."""
    way, source, target = key >> 20, (key >> 10) & _NONE, key & _NONE
    name = join_phrase("Memcpy", _WAYS.get(way))
    if way in _WAYS and way >= _UNIFIED:
        return f"{name} (Unified Memory)"
    if _NONE in (source, target):
        return name
    return f"{name} ({_name_memory_kind(source)} -> {_name_memory_kind(target)})"


def _name_fill(key: int) -> str:
    """Name a memset as Kineto does, from its memory kind."""
    return "Memset" if key == _NONE else f"Memset ({_name_memory_kind(key)})"


def _name_graph(key: int) -> str:
    """Name a CUDA graph by its id."""
    return "CUDA graph" if key == MISSING else f"CUDA graph {key}"


def _name_sync(key: int) -> str:
    """Name a synchronisation record by its type."""
    return dict(enumerate(_SYNCS)).get(key, _SYNCS[0])


def _name_memory_kind(kind: int) -> str:
    """Name a memory kind as Kineto does."""
    return dict(enumerate(_MEMORIES)).get(kind, "Unknown")


@dataclass(frozen=True, slots=True)
class _DeviceArgument:
    """A recorded argument: SQL (None if the table lacks it), and a text function if it is not a number."""

    sql: Callable[[ExportDatabase, str], str | None]
    text: Callable[[int], str] | None = None


def _make_column_argument(name: str, *tables: str) -> _DeviceArgument:
    """Build an argument for a numeric column of these tables (none given: all)."""

    def sql(db: ExportDatabase, table: str) -> str | None:
        if (tables and table not in tables) or not has_table_columns(db, table, name):
            return None
        return write_column_sql(db, table, name)

    return _DeviceArgument(sql)


def _make_axes_argument(letter: str) -> _DeviceArgument:
    """Build an argument for three numbers in Kineto's form: `[16, 1, 1]`."""
    names = tuple(f"{letter}{axis}" for axis in "XYZ")

    def sql(db: ExportDatabase, table: str) -> str | None:
        if not has_table_columns(db, table, *names):
            return None
        x, y, z = (write_column_sql(db, table, name) for name in names)
        return f"(({x} & {_MOST_X}) << 32) | (({y} & {_MOST_YZ}) << 16) | ({z} & {_MOST_YZ})"

    return _DeviceArgument(sql, lambda key: f"[{key >> 32}, {key >> 16 & 0xFFFF}, {key & 0xFFFF}]")


_MOST_X, _MOST_YZ = 2**31 - 1, 2**16 - 1
"""Largest grid that CUDA allows per axis. Blocks are smaller."""


def _write_shared_memory_sql(db: ExportDatabase, table: str) -> str | None:
    """Build SQL for the total shared memory of a kernel; None if the table lacks it."""
    names = ("staticSharedMemory", "dynamicSharedMemory")
    if not has_table_columns(db, table, *names):
        return None
    return " + ".join(write_column_sql(db, table, name) for name in names)


def _make_memory_argument(name: str) -> _DeviceArgument:
    """Build an argument for the memory kind in a column of copies."""
    return _DeviceArgument(_make_column_argument(name, MEMCPY).sql, _name_memory_kind)


_ARGUMENTS: Mapping[str, _DeviceArgument] = {
    "grid": _make_axes_argument("grid"),
    "block": _make_axes_argument("block"),
    "registers per thread": _make_column_argument("registersPerThread", KERNEL),
    "shared memory": _DeviceArgument(_write_shared_memory_sql),
    "graph node id": _make_column_argument("graphNodeId"),
    "graph id": _make_column_argument("graphId", GRAPH),
    "context": _make_column_argument("contextId"),
    "src": _make_memory_argument("srcKind"),
    "dst": _make_memory_argument("dstKind"),
}
"""Arguments beyond the columns, under Kineto's names."""
