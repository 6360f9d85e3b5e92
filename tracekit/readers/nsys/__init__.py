"""SQLite exports of Nsight Systems: one Trace a process, in the tables that every reader fills."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracekit.discover import complete
from tracekit.discover.manifests import without_manifest
from tracekit.model.codes import Data, Reason
from tracekit.model.errors import refused
from tracekit.model.tables import TABLES
from tracekit.model.trace import Note, NoteSeverity, Source, Trace, Want
from tracekit.process.memory.levels import DRIVER
from tracekit.readers.chrome.scan import Sparse
from tracekit.readers.nsys import content as nsys_content
from tracekit.readers.nsys import device as nsys_device
from tracekit.readers.nsys import host as nsys_host
from tracekit.readers.nsys import identity as nsys_identity
from tracekit.readers.nsys import metrics as nsys_metrics
from tracekit.readers.nsys import nvtx as nsys_nvtx
from tracekit.readers.nsys.contents import CALL_NOUNS, Contents, contents
from tracekit.readers.nsys.database import MISSING, Database, damage_notes, opened
from tracekit.readers.nsys.gather import UNKNOWN, same, whole_numbers
from tracekit.readers.nsys.memory import MemoryOps
from tracekit.readers.nsys.nvtx import HostRows
from tracekit.readers.nsys.opening import MAGIC

WINDOW = "nsys capture"

_ODD: Mapping[str, tuple[NoteSeverity, str]] = {
    "no-time": ("warning", "{} without a usable start time were left out"),
    "no-duration": ("warning", "{} without a usable end count as 0 long"),
    "bad-duration": ("warning", "negative or impossible durations of {} count as 0"),
    "negative-time": ("info", "{} began before the recording did"),
    "no-name": ("warning", "{} without a name: its text is not in the file"),
}
_MAX_ROWS = 2**31 - 1


def sniff(head: bytes) -> bool:
    """Whether a file begins like an SQLite database, or like one of which the first page was never written."""
    return head.startswith(MAGIC) or (len(head) >= 512 and not head[:512].strip(b"\0"))


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """The Traces of the file, one a process, with the tables of `want`. Raises `TraceFormatError`, nothing else.

    `on_bytes` is called with the bytes read so far. Processes are told apart by the tables that are read.
    """

    def advance(share: float) -> None:
        if on_bytes is not None:
            on_bytes(int(source.size_bytes * share))

    with opened(Path(source.path)) as db:
        file_contents = contents(db, want, advance)
        traces = [_trace(db, file_contents, pid, source, want) for pid in file_contents.pids]
        of_file = [replace(note, source=source.name) for note in file_contents.notes]
        of_file += damage_notes(db, source.name)
    advance(1)
    return [
        replace(trace, notes=_said_once(trace.notes, traces[:number], () if number else of_file))
        for number, trace in enumerate(traces)
    ]


def _said_once(
    notes: Collection[Note], before: Collection[Trace], first: Collection[Note]
) -> tuple[Note, ...]:
    """The notes of a process without what the profiler said of no process in particular, if that was noted before."""
    told_before = {(n.code, n.message, n.count) for trace in before for n in trace.notes}
    codes_before = ("profiler-warning", "no-gpu-rows")
    fresh = [
        n
        for n in notes
        if n.code not in codes_before or (n.code, n.message, n.count) not in told_before
    ]
    return (*first, *fresh)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A Trace in the making."""

    source: Source
    want: Want
    pid: int
    tables: dict[str, pd.DataFrame] = field(default_factory=dict[str, pd.DataFrame])
    args: dict[str, Sparse] = field(default_factory=dict[str, Sparse])
    notes: list[Note] = field(default_factory=list[Note])


def _trace(db: Database, found: Contents, pid: int, source: Source, want: Want) -> Trace:
    """The Trace of one process."""
    draft, known_pid = _Draft(source, want, pid), None if pid == UNKNOWN else pid
    ranges, opens = _ranges(draft, found)
    memory = _memory(found, pid)
    tids = nsys_host.tids_of(found.calls, pid)
    for host_rows in (ranges, opens):
        tids |= set(np.unique(host_rows.tid).tolist()) if host_rows is not None else set()
    threads = sorted(tids | {UNKNOWN} if memory is not None else tids)
    if want.table("host_ops") and (ranges is not None or nsys_host.recorded(db)):
        _add_host(draft, found, ranges, threads)
    if opens is not None and want.table("open_ranges"):
        _add(draft, "open_ranges", nsys_host.open_ranges(opens, pid, threads))
    _add_device(draft, found)
    if memory is not None:
        draft.notes.extend(memory.notes)
        _add(draft, "memory_ops", _memory_ops(memory, known_pid, threads.index(UNKNOWN)))
    _add(draft, "counters", _counters(db, found, pid))
    if want.table("windows"):
        _add(draft, "windows", _window(found))
    rows = _row_count(draft)
    if want.table("host_ops") and want.table("device_ops"):
        counts = {
            "api_count": _count(draft, "host_ops", "runtime"),
            "device_op_count": len(draft.tables.get("device_ops", ())),
            "range_count": sum(len(r.ts_ns) for r in (ranges, opens) if r is not None),
        }
        draft.notes.extend(
            (*nsys_content.absences(db, known_pid, **counts), *_unmatched(draft.tables))
        )
    if want.table("threads"):
        named = found.ranges.thread_names if found.ranges is not None else {}
        draft.tables["threads"] = nsys_host.threads(db, pid, threads, named)
    draft.notes.extend(nsys_content.diagnostics(db, known_pid))
    identity = found.identities.get(pid, nsys_identity.Identity())
    facts = {"host": nsys_identity.hostname(db), **nsys_identity.facts(identity, known_pid)}
    return Trace(
        complete(_of_process(source, found, pid, identity), facts),
        draft.tables,
        tuple(replace(note, source=source.name) for note in draft.notes),
        _meta(db, found, pid, identity) | {"element_count": rows},
        draft.args,
    )


def _row_count(draft: _Draft) -> int:
    return sum(map(len, draft.tables.values()))


def _count(draft: _Draft, table: str, kind: str) -> int:
    """How many rows of a kind a table has."""
    return int((draft.tables[table]["kind"] == kind).sum()) if table in draft.tables else 0


def _add(
    draft: _Draft, name: str, frame: pd.DataFrame | None, args: Mapping[str, Sparse] | None = None
) -> None:
    """Add a table, its rows numbered after those of the tables before it; None is not recorded."""
    if frame is None:
        return
    first = _row_count(draft)
    if first + len(frame) > _MAX_ROWS:
        problem = f"more than {_MAX_ROWS:,} rows of one process"
        raise refused(draft.source.path, Reason("too-many", problem, Data(most=_MAX_ROWS)))
    if first:
        frame["id"] = frame["id"].to_numpy() + np.int32(first)
    for key, column in (args or {}).items():
        draft.args[key] = replace(column, rows=column.rows + np.int32(first))
    draft.tables[name] = frame


def _ranges(draft: _Draft, found: Contents) -> tuple[HostRows | None, HostRows | None]:
    """(the complete ranges, those still open at the end) of one process."""
    if found.ranges is None:
        return None, None
    # Ranges of an unknown process are those of the only one.
    whose = None if len(found.pids) == 1 else draft.pid
    draft.notes.extend(nsys_nvtx.notes(found.ranges, whose))
    return (
        nsys_nvtx.of_process(found.ranges, whose),
        nsys_nvtx.open_of_process(found.ranges, whose),
    )


def _add_host(
    draft: _Draft, found: Contents, ranges: HostRows | None, threads: Sequence[int]
) -> None:
    """Add `host_ops`."""
    for noun, calls in zip(CALL_NOUNS, found.calls, strict=True):
        draft.notes.extend(_odd(nsys_host.odd(calls, draft.pid), noun))
    host = nsys_host.host_ops(found.calls, ranges, draft.pid, threads)
    _add(draft, "host_ops", host.frame, host.args)


def _add_device(draft: _Draft, found: Contents) -> None:
    """Add `device_ops` and `syncs`; a process without such rows used no device as far as is known."""
    if found.device is not None and draft.pid in found.device.processes:
        device = nsys_device.device_ops(found.device, draft.pid)
        draft.notes.extend(_odd(device.odd, "rows of GPU work"))
        _add(draft, "device_ops", device.frame if len(device.frame) else None, device.args)
    if found.syncs is not None and draft.pid in found.syncs.processes:
        syncs = nsys_device.syncs(found.syncs, draft.pid, found.contexts)
        draft.notes.extend(_odd(syncs.odd, "synchronisation records"))
        _add(draft, "syncs", syncs.frame if len(syncs.frame) else None)


def _of_process(
    source: Source, found: Contents, pid: int, identity: nsys_identity.Identity
) -> Source:
    """The source as far as what its name says holds for one of its processes."""
    if source.pid is not None and len(found.pids) > 1 and pid != source.pid:
        # The name is that of another process of the file, or of its launcher.
        another = source.pid in found.pids
        source = replace(source, pid=None, rank=None if another else source.rank)
        source = replace(without_manifest(source), accounts=())
    if source.role is not None or any(account.pid == pid for account in source.accounts):
        return source
    return replace(source, role=identity.role)


def _meta(
    db: Database, found: Contents, pid: int, identity: nsys_identity.Identity
) -> dict[str, Any]:
    """What is known of the file and the process, under fixed keys; Kineto's where it has any."""
    group = {
        "rank": identity.rank,
        "world_size": identity.world_size,
        "backend": identity.backend,
    }
    group = {key: value for key, value in group.items() if value is not None}
    used = found.used.get(pid, frozenset())
    gpus = nsys_content.device_properties(db, None if pid == UNKNOWN else pid, used)
    whose = None if len(found.pids) == 1 else pid
    marks = 0 if found.ranges is None else nsys_nvtx.counted(found.ranges, "marks", whose)
    return {
        **nsys_content.meta(db),
        "absolute_time": found.clock.absolute,
        **({"deviceProperties": gpus} if gpus else {}),
        **({"mark_count": marks} if marks else {}),
        **({"distributedInfo": group} if group else {}),
    }


def _odd(counts: Mapping[str, int], noun: str) -> list[Note]:
    """Notes about rows that are odd."""
    return [
        Note(_ODD[what][0], what, _ODD[what][1].format(noun), count=number)
        for what, number in counts.items()
        if number
    ]


def _unmatched(tables: Mapping[str, pd.DataFrame]) -> list[Note]:
    """A note about device work of which no launch was recorded, where launches were."""
    if "device_ops" not in tables or "host_ops" not in tables:
        return []
    host = tables["host_ops"]
    calls = host["correlation"].array[(host["kind"] == "runtime").to_numpy()].dropna()
    if not len(calls):
        return []
    device = tables["device_ops"]["correlation"].to_numpy(np.int64, na_value=MISSING)
    count = int(np.count_nonzero(~np.isin(device, calls.to_numpy(np.int64))))
    text = "device ops without the call that launched them, as of those launched before the recording began"
    return [Note("info", "unmatched-launches", text, count=count)] if count else []


def _memory(found: Contents, pid: int) -> MemoryOps | None:
    """What is recorded of the GPU memory of a process; of an unknown process it is that of the only one."""
    if found.memory is None:
        return None
    of_unknown = found.memory.get(UNKNOWN) if len(found.pids) == 1 else None
    return found.memory.get(pid, of_unknown)


def _memory_ops(memory: MemoryOps, pid: int | None, thread: int) -> pd.DataFrame:
    """`memory_ops`: what was got from the driver, which does not say on which thread."""
    length = len(memory.ts_ns)
    return TABLES["memory_ops"].frame(
        {
            "id": np.arange(length, dtype=np.int32),
            "ts_ns": memory.ts_ns,
            "pid": same(pid, length),
            "thread": np.full(length, thread, np.int32),
            "device_type": same(DRIVER, length),
            "device": whole_numbers(np.where(memory.device < 0, MISSING, memory.device)),
            "size_bytes": whole_numbers(memory.size_bytes.copy()),
            "reserved_bytes": whole_numbers(memory.reserved_bytes.copy()),
        },
        length,
    )


def _counters(db: Database, found: Contents, pid: int) -> pd.DataFrame | None:
    """`counters`: the samples of the GPUs of this process; None where there are none."""
    if found.samples is None:
        return None
    gpus = {
        user_pid: nsys_content.gpu_numbers(
            db, None if user_pid == UNKNOWN else user_pid, found.used.get(user_pid, frozenset())
        )
        for user_pid in found.pids
    }
    positions = nsys_metrics.owners(found.samples, gpus).get(pid)
    if positions is None or not len(positions):
        return None
    codes = found.samples.name[positions]
    names = pd.Index(found.samples.names, dtype="str")
    value = found.samples.value[positions]
    return TABLES["counters"].frame(
        {
            "id": np.arange(len(positions), dtype=np.int32),
            "ts_ns": found.samples.ts_ns[positions],
            "name": pd.Categorical.from_codes(codes, categories=names).remove_unused_categories(),
            "value": pd.arrays.FloatingArray(value, np.zeros(len(positions), np.bool_)),
        }
    )


def _window(found: Contents) -> pd.DataFrame | None:
    """`windows`: the capture; None where its end is not known."""
    clock = found.clock
    if clock.end_ns is None or clock.end_ns < clock.start_ns:
        return None
    return TABLES["windows"].frame(
        {
            "id": np.zeros(1, np.int32),
            "ts_ns": np.array([clock.base_ns + clock.start_ns]),
            "dur_ns": np.array([clock.end_ns - clock.start_ns]),
            "name": [WINDOW],
        }
    )
