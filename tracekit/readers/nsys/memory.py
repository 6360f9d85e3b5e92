"""GPU memory of an Nsight Systems export: CUDA allocations and frees."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.system.lazy_pandas import pd
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
    columns = {}
    for name, values in recorded.values.items():
        missing = recorded.missing[name]
        columns[name] = values if missing is None else np.where(missing, MISSING, values)
    frame = pd.DataFrame(columns, copy=False).rename(columns={"memoryOperationType": "what"})
    pid = frame.pop("globalPid").to_numpy()
    frame["pid"] = np.where(pid >= 0, (pid >> 24) & 0xFFFFFF, -1)
    frame["deviceId"] = frame["deviceId"].clip(lower=-1)
    odd: dict[str, pd.Series[int]] = {}
    timed = frame["start"].between(-MAX_NS, MAX_NS, inclusive="neither")
    on_host = frame["memKind"].isin(_HOST_KINDS)
    sound = frame["what"].isin((ALLOCATED, FREED))
    sound &= (frame["what"] == FREED) | frame["bytes"].between(0, _MAX_BYTES)
    for code, which in (("no-time", ~timed), ("host-memory", timed & on_host), ("bad-size", timed & ~on_host & ~sound)):
        odd[code] = frame.loc[which, "pid"].value_counts()
    frame = _add_held_sizes(frame[timed & ~on_host & sound])
    orphan = frame["size"] == MISSING
    odd["memory-relative"] = frame.loc[orphan, "pid"].value_counts()
    frame = frame[~orphan]
    frame["held"] = frame.groupby(["pid", "deviceId"], sort=False)["size"].cumsum()
    return _split_memory_by_process(frame, odd, clock)


def _add_held_sizes(frame: pd.DataFrame) -> pd.DataFrame:
    """Sort by time and add `size`, the change in held bytes; `MISSING` if unknown."""
    # At equal times frees sort first: an address is reused only after its free.
    by = ["pid", "start", "what", "deviceId", "address", "bytes"]
    frame = frame.sort_values(by, ascending=[True, True, False, True, True, True], kind="stable")
    before = frame.groupby(["pid", "deviceId", "address"], sort=False)
    earlier_bytes = before["bytes"].shift(1, fill_value=MISSING).to_numpy()
    was = before["what"].shift(1, fill_value=FREED).to_numpy()
    freed = (frame["what"] == FREED).to_numpy()
    is_known = (was == ALLOCATED) & (frame["address"] != MISSING).to_numpy()
    size = np.where(freed, np.where(is_known, -earlier_bytes, MISSING), frame["bytes"])
    return frame.assign(size=size)


def _split_memory_by_process(
    frame: pd.DataFrame, odd: Mapping[str, pd.Series[int]], clock: ExportClock
) -> dict[int, MemoryOps]:
    """Split the rows by process, with notes on each."""
    pid = frame["pid"].to_numpy()
    counted = {code: counts.to_dict() for code, counts in odd.items()}
    of_odd = (counts.index.to_numpy(np.int64) for counts in odd.values())
    pids = np.unique(np.concatenate([pid, *of_odd])).tolist()
    columns = [frame[name].to_numpy() for name in ("start", "deviceId", "size", "held")]
    columns[0] = columns[0] + clock.base_ns
    low, high = np.searchsorted(pid, pids, "left"), np.searchsorted(pid, pids, "right")
    by_pid = {}
    for number, first, last in zip(pids, low.tolist(), high.tolist(), strict=True):
        notes = []
        for code, (severity, text) in _ODD.items():
            if number in counted[code]:
                notes.append(Note(severity, code, text, count=counted[code][number]))
        ts, device, size, levels = (column[first:last] for column in columns)
        by_pid[number] = MemoryOps(ts, device, size, levels, tuple(notes))
    return by_pid
