"""Device work of an export: kernels, copies, fills, CUDA graphs, and synchronisation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.codes import OVERLONG
from tracekit.model.labels import phrase
from tracekit.model.records import dataclass
from tracekit.model.tables import DEVICE_OP_KINDS, TABLES
from tracekit.model.tables.arrays import Coded, Columns, Nullable, at_rows
from tracekit.model.trace import Note, Want
from tracekit.readers.chrome.classes import COMMUNICATION
from tracekit.readers.chrome.scan import Sparse
from tracekit.readers.device_times import Ops, Repair
from tracekit.readers.nsys.content import Clock
from tracekit.readers.nsys.database import MISSING, Database, Ints, has, quoted, rows
from tracekit.readers.nsys.gather import (
    ByProcess,
    Names,
    Process,
    category,
    column,
    constant,
    gather,
    in_order,
    narrowed,
    order,
    same,
    sparse,
    wanted,
    whole_numbers,
)
from tracekit.readers.nsys.numbering import distinct_rows, distinct_values
from tracekit.readers.nsys.times import number_streams

KERNEL, MEMCPY, MEMSET, GRAPH, SYNC = (
    f"CUPTI_ACTIVITY_KIND_{name}"
    for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "SYNCHRONIZATION")
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
        devices = Counter(
            device for (process, _), device in self.recorded.items() if process == pid
        )
        return [device for device, count in devices.items() if count > 1]


Check = Callable[[Ops], Repair]
"""Function that finds device ops with impossible times."""


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """A table of one process, its arguments by position, and counts of irregular rows by kind."""

    columns: Columns
    args: Mapping[str, Sparse]
    odd: Mapping[str, int]
    notes: tuple[Note, ...] = ()


def recorded(db: Database) -> bool:
    """Check whether the export has a table of device work, even if it is empty."""
    return any(table in db.columns for table in (KERNEL, MEMCPY, MEMSET, GRAPH))


def read(db: Database, clock: Clock, want: Want) -> DeviceRows:
    """Read the device work of all processes, with the wanted arguments and nullable columns."""
    names, processes = Names(), ByProcess()
    contexts: dict[tuple[int, int], int] = {}
    looks = want.table("syncs") and SYNC in db.columns and not recorded_contexts(db)
    keys = tuple(key for key in _ARGUMENTS if wanted(want.args, key))
    for table, kind in (
        (KERNEL, "kernel"),
        (MEMCPY, "memcpy"),
        (MEMSET, "memset"),
        (GRAPH, "kernel"),
    ):
        if table not in db.columns:
            continue
        sql = _cells(db, table, want, keys)
        source = {KERNEL: "string", MEMCPY: "copy", MEMSET: "fill", GRAPH: "graph"}[table]
        optional = ("device", "stream", "correlation", "size", *keys)
        change = _changer(names, source, _KIND[kind], optional)
        look = None
        if looks and table != GRAPH and has(db, table, "contextId", "deviceId"):
            sql |= {_CONTEXT: quoted("contextId"), _OF_CONTEXT: quoted("deviceId")}
            look = partial(_look_at_contexts, contexts)
        gather(db, table, sql, processes, clock, change, on_device=True, look=look)
    labels = names.labels(db, {"copy": _copy_name, "fill": _fill_name, "graph": _graph_name})
    return DeviceRows(processes, labels, keys, contexts, recorded_contexts(db))


def _cells(db: Database, table: str, want: Want, keys: Sequence[str]) -> dict[str, str]:
    """Build SQL for the wanted columns of a table."""
    sql = {"key": _key(db, table)}
    if want.column("device"):
        sql["device"] = column(db, table, "deviceId")
    if want.column("stream"):
        sql["stream"] = column(db, table, "streamId")
    # Times are checked against the calls that launched the work.
    if want.column("correlation") or want.table("host_ops"):
        sql["correlation"] = f"nullif({column(db, table, 'correlationId')}, 0)"
    if table in (MEMCPY, MEMSET) and want.column("size_bytes"):
        sql["size"] = column(db, table, "bytes")
    for key in keys:
        if (value_sql := _ARGUMENTS[key].sql(db, table)) is not None:
            sql[key] = value_sql
    return sql


def device_ops(
    found: DeviceRows, pid: int, longest_ns: int | None = None, check: Check | None = None
) -> DeviceTable:
    """Build `device_ops` of one process with ids from 0, sorted by start. Removes its rows from `found`.

    Drops ops longer than the capture (`longest_ns`, if known) and the ops that `check` rejects.
    """
    of_process = found.processes.pop(pid, Process())
    ts, dur = of_process.column("ts_ns"), of_process.column("dur_ns")
    codes, kind = of_process.column("name", np.int32), of_process.column("kind", np.int8)
    shared = [bool(COMMUNICATION.search(label or "")) for label in found.labels]
    collective = np.array([*shared, False])[codes] & (kind == _KIND["kernel"])
    kind[collective] = _KIND["collective"]
    name = category(codes, found.labels)
    device, stream = of_process.column("device"), of_process.column("stream")
    positions, starts = in_order(ts, partial(_at, (dur, device, stream, kind, name.codes)))
    overlong = 0
    if longest_ns is not None and longest_ns > 0 and int(dur.max(initial=0)) > longest_ns:
        is_kept = dur[positions] <= longest_ns
        overlong = int(np.count_nonzero(~is_kept))
        positions, starts = positions[is_kept], starts[is_kept]
    correlation, lengths = of_process.column("correlation"), dur[positions]
    left_out, notes = np.empty(0, np.int64), tuple[Note, ...]()
    if check is not None and len(positions):
        streams = number_streams(device[positions], stream[positions], found.shared(pid))
        ids = correlation[positions]
        names = name.codes[positions]
        repair = check(Ops(starts, lengths, names, streams, Nullable(ids, ids == MISSING)))
        lengths[repair.cut], left_out, notes = repair.dur_ns, repair.left_out, repair.notes
    if len(left_out):
        kept = [np.delete(column, left_out) for column in (positions, starts, lengths)]
        positions, starts, lengths = kept
    columns: dict[str, Any] = {
        "id": np.arange(len(positions), dtype=np.int32),
        "ts_ns": starts,
        "dur_ns": lengths,
        "name": at_rows(name, positions),
        "kind": Coded(kind[positions], DEVICE_OP_KINDS),
        "device": whole_numbers(device[positions]),
        "stream": whole_numbers(stream[positions]),
    }
    odd = {**of_process.odd, "no-name": int(np.count_nonzero(name.codes < 0)), OVERLONG: overlong}
    # Release each column before building the next.
    del ts, starts, dur, lengths, codes, kind, name, device, stream, collective
    columns["correlation"] = narrowed(whole_numbers(correlation[positions]))
    del correlation
    columns["external_id"] = same(None, len(positions))
    columns["size_bytes"] = whole_numbers(of_process.column("size")[positions])
    args: dict[str, Sparse] = {}
    for key in found.args:
        argument = sparse(of_process.column(key)[positions], columns["id"], _ARGUMENTS[key].text)
        if argument is not None:
            args[key] = argument
    return DeviceTable(TABLES["device_ops"].cast(columns), args, odd, notes)


def _at(columns: Sequence[npt.NDArray[Any]], rows: Ints) -> list[npt.NDArray[Any]]:
    """Take these rows of each column."""
    return [column[rows] for column in columns]


def used(found: DeviceRows) -> dict[int, frozenset[int]]:
    """List the devices that each process used."""
    devices: dict[int, frozenset[int]] = {}
    for pid, of_process in found.processes.items():
        numbers = set[int]()
        for part in of_process.parts.get("device", []):
            numbers.update(distinct_values(part[part >= 0]))
        devices[pid] = frozenset(numbers)
    return devices


def read_syncs(db: Database, clock: Clock) -> DeviceRows:
    """Read the synchronisation records of all processes."""
    names, processes = Names(), ByProcess()
    if SYNC in db.columns:
        sql = {
            "context": column(db, SYNC, "contextId"),
            "device": column(db, SYNC, "deviceId"),
            "stream": f"nullif({column(db, SYNC, 'streamId')}, {_NO_STREAM})",
            "correlation": f"nullif({column(db, SYNC, 'correlationId')}, 0)",
            "key": column(db, SYNC, "syncType"),
        }
        gather(db, SYNC, sql, processes, clock, _changer(names, "sync", 0, ()))
    return DeviceRows(processes, names.labels(db, {"sync": _sync_name}), ())


def syncs(found: DeviceRows, pid: int, devices: Mapping[tuple[int, int], int]) -> DeviceTable:
    """Build `syncs` of one process. `devices` maps (process, context) to the device, because the recorded device is wrong."""
    of_process = found.processes.pop(pid, Process())
    ts, dur = of_process.column("ts_ns"), of_process.column("dur_ns")
    contexts, device = of_process.column("context"), of_process.column("device")
    used, inverse = np.unique(contexts, return_inverse=True)
    device_of_context = np.array(
        [devices.get((pid, key), MISSING) for key in used.tolist()], np.int64
    )
    device_of_context = device_of_context[inverse]
    device = np.where(device_of_context == MISSING, device, device_of_context)
    stream, correlation = of_process.column("stream"), of_process.column("correlation")
    name = category(of_process.column("name", np.int32), found.labels)
    positions = order(ts, dur, device, stream, name.codes)
    columns = {
        "id": np.arange(len(positions), dtype=np.int32),
        "ts_ns": ts[positions],
        "dur_ns": dur[positions],
        "name": at_rows(name, positions),
        "device": whole_numbers(device[positions]),
        "stream": whole_numbers(stream[positions]),
        "correlation": whole_numbers(correlation[positions]),
    }
    return DeviceTable(TABLES["syncs"].cast(columns), {}, of_process.odd)


def recorded_contexts(db: Database) -> dict[tuple[int, int], int]:
    """Read the device of every (process, context) from the context tables."""
    pairs: dict[tuple[int, int], int] = {}
    for table in CONTEXTS:
        if has(db, table, "processId", "contextId", "deviceId"):
            for process, context, device in rows(db, table, ("processId", "contextId", "deviceId")):
                if all(isinstance(value, int) for value in (process, context, device)):
                    pairs.setdefault((process, context), device)
    return pairs


_CONTEXT, _OF_CONTEXT = "context of work", "device of context"


def _look_at_contexts(
    contexts: dict[tuple[int, int], int], pid: Ints, block: dict[str, Ints]
) -> None:
    """Record the first device on which each context of these rows ran work."""
    columns = [pid, block.pop(_CONTEXT), block.pop(_OF_CONTEXT)]
    for process, context, device in distinct_rows(columns):
        if MISSING not in (context, device):
            contexts.setdefault((process, context), device)


def _changer(
    names: Names, source: str, kind: int, optional: tuple[str, ...]
) -> Callable[[dict[str, Ints]], dict[str, npt.NDArray[Any]]]:
    """Build a function that converts a block: name keys to codes, the kind, and columns that this table lacks."""

    def change(block: dict[str, Ints]) -> dict[str, npt.NDArray[Any]]:
        length = len(block["key"])
        codes = names.coded(source, block.pop("key"))
        lacking = {name: constant(MISSING, length) for name in optional if name not in block}
        return {**block, **lacking, "name": codes, "kind": np.full(length, kind, np.int8)}

    return change


def _key(db: Database, table: str) -> str:
    """Build SQL for the name key of a row."""
    if table == KERNEL:
        return column(db, table, "demangledName", "shortName", "mangledName")
    if table == GRAPH:
        return column(db, table, "graphId")
    if table == MEMSET:
        return _bounded(db, table, "memKind")
    way, source, target = (_bounded(db, table, name) for name in ("copyKind", "srcKind", "dstKind"))
    return f"({way} << 20) | ({source} << 10) | {target}"


def _bounded(db: Database, table: str, name: str) -> str:
    """Build SQL for a small number in a column."""
    return f"(coalesce({column(db, table, name)}, {_NONE}) & {_NONE})"


def _copy_name(key: int) -> str:
    """Name a copy as Kineto does, from its packed direction and memory kinds."""
    way, source, target = key >> 20, (key >> 10) & _NONE, key & _NONE
    name = phrase("Memcpy", _WAYS.get(way))
    if way in _WAYS and way >= _UNIFIED:
        return f"{name} (Unified Memory)"
    if _NONE in (source, target):
        return name
    return f"{name} ({_memory(source)} -> {_memory(target)})"


def _fill_name(key: int) -> str:
    """Name a memset as Kineto does, from its memory kind."""
    return "Memset" if key == _NONE else f"Memset ({_memory(key)})"


def _graph_name(key: int) -> str:
    """Name a CUDA graph by its id."""
    return "CUDA graph" if key == MISSING else f"CUDA graph {key}"


def _sync_name(key: int) -> str:
    """Name a synchronisation record by its type."""
    return dict(enumerate(_SYNCS)).get(key, _SYNCS[0])


def _memory(kind: int) -> str:
    """Name a memory kind as Kineto does."""
    return dict(enumerate(_MEMORIES)).get(kind, "Unknown")


@dataclass(frozen=True, slots=True)
class _Argument:
    """A recorded argument: SQL (None if the table lacks it), and a text function if it is not a number."""

    sql: Callable[[Database, str], str | None]
    text: Callable[[int], str] | None = None


def _plain(name: str, *tables: str) -> _Argument:
    """Build an argument for a numeric column of these tables (none given: all)."""

    def sql(db: Database, table: str) -> str | None:
        if (tables and table not in tables) or not has(db, table, name):
            return None
        return column(db, table, name)

    return _Argument(sql)


def _three(letter: str) -> _Argument:
    """Build an argument for three numbers in Kineto's form: `[16, 1, 1]`."""
    names = tuple(f"{letter}{axis}" for axis in "XYZ")

    def sql(db: Database, table: str) -> str | None:
        if table != KERNEL or not has(db, table, *names):
            return None
        x, y, z = (column(db, table, name) for name in names)
        return f"(({x} & {_MOST_X}) << 32) | (({y} & {_MOST_YZ}) << 16) | ({z} & {_MOST_YZ})"

    return _Argument(sql, lambda key: f"[{key >> 32}, {key >> 16 & 0xFFFF}, {key & 0xFFFF}]")


_MOST_X, _MOST_YZ = 2**31 - 1, 2**16 - 1
"""Largest grid that CUDA allows per axis. Blocks are smaller."""


def _shared(db: Database, table: str) -> str | None:
    """Build SQL for the total shared memory of a kernel; None if the table lacks it."""
    names = ("staticSharedMemory", "dynamicSharedMemory")
    if table != KERNEL or not has(db, table, *names):
        return None
    return " + ".join(column(db, table, name) for name in names)


def _memory_of(name: str) -> _Argument:
    """Build an argument for the memory kind in a column of copies."""
    return _Argument(_plain(name, MEMCPY).sql, _memory)


_ARGUMENTS: Mapping[str, _Argument] = {
    "grid": _three("grid"),
    "block": _three("block"),
    "registers per thread": _plain("registersPerThread", KERNEL),
    "shared memory": _Argument(_shared),
    "graph node id": _plain("graphNodeId"),
    "graph id": _plain("graphId", GRAPH),
    "context": _plain("contextId"),
    "src": _memory_of("srcKind"),
    "dst": _memory_of("dstKind"),
}
"""Arguments beyond the columns, under Kineto's names."""
