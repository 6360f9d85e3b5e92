"""GPU memory of an Nsight Systems export: CUDA allocations and frees."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import compute_running_sums
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import select_all_rows
from tracekit.model.tables.keys import find_distinct, group_arrays
from tracekit.model.trace import Note, NoteSeverity
from tracekit.readers.nsys.content import MAX_NS, ExportClock
from tracekit.readers.nsys.sqlite.connection import ExportDatabase, has_table_columns
from tracekit.readers.nsys.sqlite.database import read_integer_columns
from tracekit.readers.nsys.sqlite.expressions import MISSING

Ints = npt.NDArray[np.int64]

TABLE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
ALLOCATED, FREED = 0, 1
_HOST_KINDS = (0, 1)
"""Pageable and pinned host memory, which does not occupy the GPU."""

_MAX_BYTES = 2**50

_ODD: Mapping[str, tuple[NoteSeverity, str]] = {
    "no-time": ("warning", "memory operations without a usable time were left out"),
    "host-memory": ("info", "allocations of host memory are not shown"),
    "bad-size": ("warning", "memory operations of an unknown kind or an impossible size were left out"),
    "memory-relative": (
        "info",
        "memory was freed that was taken before the recording began: levels count from its start",
    ),
}
_COLUMNS = ("start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType")


@dataclass(frozen=True, slots=True)
class MemoryOps:
    """GPU allocations and frees of one process in time order: rows for `memory_ops`.

    `size_bytes` is negative for a free. `reserved_bytes` is the amount that the process holds on that GPU afterwards,
    counted from the start of the recording. `device` is -1 if not recorded.
    """

    ts_ns: Ints
    device: Ints
    size_bytes: Ints
    reserved_bytes: Ints
    notes: tuple[Note, ...] = ()


def read(db: ExportDatabase, clock: ExportClock) -> dict[int, MemoryOps] | None:
    """Read memory operations by pid (-1: unknown); None if GPU memory was not recorded.

    A free releases the last allocation at its address. A free without one releases memory from before the recording; it is
    dropped and counted.
    """
    if not has_table_columns(db, TABLE, "start", "bytes", "memoryOperationType"):
        return None
    recorded = read_integer_columns(db, TABLE, _COLUMNS)
    events: dict[str, Ints] = {}
    for name, values in recorded.values.items():
        missing = recorded.missing[name]
        events[name] = values if missing is None else np.where(missing, MISSING, values)
    owner = events.pop("globalPid")
    events["pid"] = np.where(owner >= 0, (owner >> 24) & 0xFFFFFF, -1)
    events["deviceId"] = np.maximum(events["deviceId"], -1)
    start, size, action = (events[name] for name in ("start", "bytes", "memoryOperationType"))
    timed = (start > -MAX_NS) & (start < MAX_NS)
    on_host = np.isin(events["memKind"], _HOST_KINDS)
    sound = (action == FREED) | ((action == ALLOCATED) & (size >= 0) & (size <= _MAX_BYTES))
    odd = {"no-time": ~timed, "host-memory": timed & on_host, "bad-size": timed & ~on_host & ~sound}
    counts = {code: _count_events_by_pid(events["pid"][rows]) for code, rows in odd.items()}
    events = _sort_memory_events(select_all_rows(events, timed & ~on_host & sound))
    change = _find_held_changes(events)
    is_orphan = change == MISSING
    counts["memory-relative"] = _count_events_by_pid(events["pid"][is_orphan])
    events = select_all_rows({**events, "change": change}, ~is_orphan)
    return _split_memory_by_process(events, counts, clock)


def _count_events_by_pid(pids: Ints) -> dict[int, int]:
    """Count the events of each process."""
    distinct, counts = np.unique(pids, return_counts=True)
    return dict(zip(distinct.tolist(), counts.tolist(), strict=True))


def _sort_memory_events(events: Mapping[str, Ints]) -> dict[str, Ints]:
    """Sort by process and time. At equal times frees come first: an address is reused only after its free."""
    ties = [events[name] for name in ("bytes", "address", "deviceId")]
    return select_all_rows(events, np.lexsort((*ties, -events["memoryOperationType"], events["start"], events["pid"])))


def _find_held_changes(events: Mapping[str, Ints]) -> Ints:
    """Find the change in held bytes of each event; `MISSING` if unknown."""
    block, _ = group_arrays([events[name] for name in ("pid", "deviceId", "address")])
    order = np.argsort(block, kind="stable")
    is_pair = block[order[1:]] == block[order[:-1]]
    before, after = order[:-1][is_pair], order[1:][is_pair]
    action, size = events["memoryOperationType"], events["bytes"]
    change = np.where(action == FREED, MISSING, size)
    is_known = (action[after] == FREED) & (action[before] == ALLOCATED) & (events["address"][after] != MISSING)
    change[after[is_known]] = -size[before[is_known]]
    return change


def _sum_held_bytes(events: Mapping[str, Ints]) -> Ints:
    """Sum the changes up to each event on its device."""
    device, _ = group_arrays([events[name] for name in ("pid", "deviceId")])
    order = np.argsort(device, kind="stable")
    held = np.empty(len(order), np.int64)
    held[order] = compute_running_sums(events["change"][order], device[order])
    return held


def _split_memory_by_process(
    events: Mapping[str, Ints], odd: Mapping[str, Mapping[int, int]], clock: ExportClock
) -> dict[int, MemoryOps]:
    """Split the rows by process, with notes on each."""
    pid = events["pid"]
    pids = sorted({*find_distinct(pid).tolist()}.union(*odd.values()))
    columns = [events["start"] + clock.base_ns, events["deviceId"], events["change"], _sum_held_bytes(events)]
    low, high = np.searchsorted(pid, pids, "left"), np.searchsorted(pid, pids, "right")
    by_pid = {}
    for number, first, last in zip(pids, low.tolist(), high.tolist(), strict=True):
        notes = []
        for code, (severity, text) in _ODD.items():
            if number in odd[code]:
                notes.append(Note(severity, code, text, count=odd[code][number]))
        ts, device, size, levels = (column[first:last] for column in columns)
        by_pid[number] = MemoryOps(ts, device, size, levels, tuple(notes))
    return by_pid
