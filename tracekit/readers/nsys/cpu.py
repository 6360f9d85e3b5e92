"""CPU data of an export: call-stack samples and thread scheduling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.note_codes import Data
from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Columns
from tracekit.model.tables.keys import group_arrays, look_up_keys
from tracekit.model.tables.raw import THREAD_STATES
from tracekit.model.trace import Note
from tracekit.readers.nsys.content import ExportClock
from tracekit.readers.nsys.gather import (
    ByProcess,
    NameTable,
    ProcessRows,
    gather_rows_by_process,
    make_text_column,
    sort_rows_by_start,
    write_column_sql,
    write_thread_sql,
)
from tracekit.readers.nsys.sqlite.blocks import Ints, read_column_blocks
from tracekit.readers.nsys.sqlite.connection import ExportDatabase, has_table_columns
from tracekit.readers.nsys.sqlite.expressions import MISSING

Codes = npt.NDArray[np.int32]

SAMPLES, CHAINS, SWITCHES = "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS", "SCHED_EVENTS"

_NOUNS = {SAMPLES: "samples of the CPU", SWITCHES: "records of threads on a CPU"}

MAX_FRAMES = 12
"""Most functions read per sample, from the innermost outwards."""

MAX_NAME, MAX_PATH = 200, 1_000
"""Most characters of a function name, and of a sample's whole path."""

_NO_FILE = "[Unknown]"

_WAITING, _READY, _UNKNOWN = (THREAD_STATES.index(state) for state in ("waiting", "ready", "unknown"))
_ENDED = -1

_STATES = {1: _READY, 2: _WAITING, 3: _WAITING, 4: _WAITING, 5: _ENDED, 7: _WAITING, 8: _WAITING}
"""State of a thread that leaves the CPU, by the profiler's state number. Other numbers are unknown."""


@dataclass(frozen=True, slots=True)
class CpuRows:
    """CPU rows of all processes. Codes of `name` and `path` refer to `names` and `paths`; `notes` are about the file."""

    processes: ByProcess = field(default_factory=ByProcess)
    names: Sequence[str | None] = ()
    paths: Sequence[str | None] = ()
    notes: tuple[Note, ...] = ()


def read_cpu_samples(db: ExportDatabase, clock: ExportClock) -> CpuRows | None:
    """Read the CPU samples; None if none were taken."""
    if SAMPLES not in db.columns:
        return None
    if not has_table_columns(db, SAMPLES, "start", "globalTid"):
        return _make_empty_cpu_rows(SAMPLES)
    processes = ByProcess()
    cells = {"tid": write_thread_sql(db, SAMPLES), "key": write_column_sql(db, SAMPLES, "id")}
    gather_rows_by_process(db, SAMPLES, cells, processes, clock, dict)
    keys, code, names, paths = _read_call_chains(db)
    for process in processes.values():
        key = process.column("key")
        place, has_chain = look_up_keys(keys, key)
        chain = np.append(code, len(names))[np.where(has_chain, place, len(keys))]
        process.parts["chain"].append(chain)
    return CpuRows(processes, [*names, None], [*paths, None])


def read_thread_switches(db: ExportDatabase, clock: ExportClock) -> CpuRows | None:
    """Read when threads were scheduled in and out; None if not recorded."""
    if SWITCHES not in db.columns:
        return None
    if not has_table_columns(db, SWITCHES, "start", "isSchedIn", "globalTid"):
        return _make_empty_cpu_rows(SWITCHES)
    processes = ByProcess()
    cells = {
        "tid": write_thread_sql(db, SWITCHES),
        "enters": write_column_sql(db, SWITCHES, "isSchedIn"),
        "state": write_column_sql(db, SWITCHES, "threadState"),
    }
    gather_rows_by_process(db, SWITCHES, cells, processes, clock, dict)
    return CpuRows(processes)


def list_cpu_threads(cpu: CpuRows | None, pid: int) -> set[int]:
    """List the thread numbers of a process that have rows."""
    if cpu is None or pid not in cpu.processes:
        return set()
    parts = cpu.processes[pid].parts.get("tid", [])
    return {tid for part in parts for tid in np.unique(part).tolist()} - {MISSING}


def make_cpu_samples(cpu: CpuRows, pid: int, threads: Sequence[int]) -> tuple[Columns, list[Note]]:
    """Build (`make_cpu_samples` of one process with ids from 0, notes). Releases the process's rows."""
    process = cpu.processes.pop(pid, ProcessRows())
    tid, ts, chain = (process.column(name) for name in ("tid", "ts_ns", "chain"))
    known_rows = np.flatnonzero(tid != MISSING)
    rows = known_rows[sort_rows_by_start(ts[known_rows], tid[known_rows], chain[known_rows])]
    codes = chain[rows].astype(np.int32)
    table = {
        "id": np.arange(len(rows), dtype=np.int32),
        "ts_ns": ts[rows],
        "thread": _find_cpu_thread_indices(tid[rows], threads),
        "name": make_text_column(codes, cpu.names or [None]),
        "path": make_text_column(codes, cpu.paths or [None]),
    }
    return TABLES["cpu_samples"].cast(table, len(rows)), _note_cpu_row_losses(
        SAMPLES, process, len(tid) - len(known_rows)
    )


def make_thread_states(
    cpu: CpuRows, pid: int, threads: Sequence[int], clock: ExportClock
) -> tuple[Columns, list[Note]]:
    """Build (`make_thread_states` of one process with ids from 0, notes). Releases the process's rows."""
    process = cpu.processes.pop(pid, ProcessRows())
    tid, ts, enters, state = (process.column(name) for name in ("tid", "ts_ns", "enters", "state"))
    known_rows = np.flatnonzero((tid != MISSING) & (enters != MISSING))
    unusable = len(tid) - len(known_rows)
    # At equal times, switch-outs sort before switch-ins.
    known_rows = known_rows[np.lexsort((enters[known_rows] != 0, ts[known_rows], tid[known_rows]))]
    tid, ts, enters = tid[known_rows], ts[known_rows], enters[known_rows] != 0
    state = _map_thread_states(state[known_rows])
    is_last = np.append(tid[1:] != tid[:-1], True)[: len(tid)]
    end = np.append(ts[1:], 0)[: len(tid)]
    returns = np.append(enters[1:], False)[: len(tid)] & ~is_last
    if clock.end_ns is not None:
        end[is_last] = clock.base_ns + clock.end_ns
        returns |= is_last
    leaves = ~enters & (state != _ENDED)
    rows = np.flatnonzero(leaves & returns & (end > ts))
    rows = rows[sort_rows_by_start(ts[rows], tid[rows])]
    table = {
        "id": np.arange(len(rows), dtype=np.int32),
        "ts_ns": ts[rows],
        "dur_ns": end[rows] - ts[rows],
        "thread": _find_cpu_thread_indices(tid[rows], threads),
        "state": make_text_column(state[rows].astype(np.int32), THREAD_STATES),
    }
    lost = int(np.count_nonzero(leaves & ~returns))
    return TABLES["thread_states"].cast(table, len(rows)), _note_cpu_row_losses(SWITCHES, process, unusable + lost)


def _map_thread_states(number: Ints) -> Ints:
    """Map the profiler's state numbers to positions in `THREAD_STATES`."""
    state = np.full(len(number), _UNKNOWN, np.int64)
    for recorded, place in _STATES.items():
        state[number == recorded] = place
    return state


def _find_cpu_thread_indices(tid: Ints, threads: Sequence[int]) -> npt.NDArray[np.int32]:
    """Find the index of each thread among all threads of the process."""
    return np.searchsorted(np.array(threads, np.int64), tid).astype(np.int32)


def _make_empty_cpu_rows(table: str) -> CpuRows:
    """Build an empty result with a note on the missing columns."""
    text = f"{_NOUNS[table]} are not read: the table {table} has no column for their time or thread"
    return CpuRows(notes=(Note("warning", "cpu-columns", text, data=Data(table=table)),))


def _note_cpu_row_losses(table: str, process: ProcessRows, unusable: int) -> list[Note]:
    """Build notes on dropped rows of one process."""
    notes = []
    if untimed := process.odd["no-time"]:
        text = f"{_NOUNS[table]} without a usable time were left out"
        notes.append(Note("warning", "no-time", text, count=untimed))
    if unusable:
        text = f"{_NOUNS[table]} that do not say of which thread, or until when, were left out"
        notes.append(Note("info", "cpu-rows", text, count=unusable, data=Data(table=table)))
    return notes


def _read_call_chains(db: ExportDatabase) -> tuple[Ints, Ints, list[str | None], list[str | None]]:
    """Read call chains: (sample ids ascending, code of each; per code the innermost function and the full path)."""
    names = NameTable()
    parts = list(_read_chain_frames(db, names))
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64), [], []
    key, depth, symbol, module = (np.concatenate(column) for column in zip(*parts, strict=True))
    keys, place = np.unique(key, return_inverse=True)
    frames = np.full((2, MAX_FRAMES, len(keys)), -1, np.int32)
    frames[0, depth, place], frames[1, depth, place] = symbol, module
    number, first = group_arrays([frame for of_kind in frames for frame in of_kind])
    functions = _FrameTexts(names.labels(db, {}))
    symbols, modules = frames[:, :, first].transpose(0, 2, 1).tolist()
    chains = [
        [functions.function(*frame) for frame in zip(*both, strict=True)] for both in zip(symbols, modules, strict=True)
    ]
    paths = [" > ".join(name for name in reversed(chain) if name)[-MAX_PATH:] or None for chain in chains]
    return keys, number, [chain[0] for chain in chains], paths


def _read_chain_frames(db: ExportDatabase, names: NameTable) -> Iterator[tuple[Ints, Ints, Codes, Codes]]:
    """Yield (sample, depth, function code, module code) of the innermost functions, in blocks."""
    if not has_table_columns(db, CHAINS, "id", "symbol", "stackDepth"):
        return
    recorded = ("id", "stackDepth", "symbol", "module", "unresolved")
    cells = {name: write_column_sql(db, CHAINS, name) for name in recorded}
    for block in read_column_blocks(db, CHAINS, (), expressions=cells):
        key, depth, symbol, module, unresolved = (block[name] for name in recorded)
        nameless = (unresolved != MISSING) & (unresolved != 0)
        rows = np.flatnonzero((depth >= 0) & (depth < MAX_FRAMES) & (key != MISSING))
        symbols = names.coded("string", np.where(nameless, MISSING, symbol)[rows])
        yield key[rows], depth[rows], symbols, names.coded("string", module[rows])


@dataclass(frozen=True, slots=True)
class _FrameTexts:
    """Texts of function and module codes."""

    labels: list[str | None]

    def function(self, symbol: int, module: int) -> str | None:
        """Name a function, or its module if the function is unknown; None if neither is known.

        If both are the same text, it is the profiler's remark on the sample, not a function.
        """
        name = self.labels[symbol] if symbol >= 0 else None
        file = self.labels[module] if module >= 0 else None
        if name:
            return name[:MAX_NAME] if name != file else None
        if not file or file == _NO_FILE:
            return None
        return f"({file.rpartition('/')[2][:MAX_NAME]}, name unknown)"
