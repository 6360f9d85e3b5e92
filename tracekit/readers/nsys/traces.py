"""Assembly of an export's Traces: one per process, built lazily."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.discover import apply_file_facts
from tracekit.discover.manifests import drop_manifest_facts
from tracekit.model.errors import make_format_error
from tracekit.model.inputs.note_codes import OVERLONG, Data, Reason
from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Coded, Columns, Frames, Nullable, trim_texts
from tracekit.model.tables.keys import look_up_keys
from tracekit.model.trace import Note, NoteSeverity, Source, Trace, Want
from tracekit.process.memory.levels import DRIVER
from tracekit.readers import device_times
from tracekit.readers.chrome.scan import Sparse
from tracekit.readers.nsys import content as nsys_content
from tracekit.readers.nsys import cpu as nsys_cpu
from tracekit.readers.nsys import device as nsys_device
from tracekit.readers.nsys import host as nsys_host
from tracekit.readers.nsys import identity as nsys_identity
from tracekit.readers.nsys import metrics as nsys_metrics
from tracekit.readers.nsys import times as nsys_times
from tracekit.readers.nsys.contents import CALL_NOUNS, ExportContents, read_export_contents
from tracekit.readers.nsys.gather import UNKNOWN, get_known_pid, make_nullable_integers, repeat_nullable_value
from tracekit.readers.nsys.memory import MemoryOps
from tracekit.readers.nsys.numbering import list_distinct_integers
from tracekit.readers.nsys.nvtx import ranges as nsys_nvtx
from tracekit.readers.nsys.nvtx.ranges import NvtxHostRows
from tracekit.readers.nsys.sqlite.connection import ExportDatabase, note_export_damage, open_export
from tracekit.readers.nsys.sqlite.expressions import MISSING
from tracekit.readers.nsys.sqlite.pages import DamagedPagesError

WINDOW = "nsys capture"

_ODD: Mapping[str, tuple[NoteSeverity, str]] = {
    "no-time": ("warning", "{} without a usable start time were left out"),
    "no-duration": ("warning", "{} without a usable end count as 0 long"),
    "bad-duration": ("warning", "negative or impossible durations of {} count as 0"),
    OVERLONG: ("data_loss", "{} longer than the whole capture were left out"),
    "negative-time": ("info", "{} began before the recording did"),
    "no-name": ("warning", "{} without a name: its text is not in the file"),
}
_OF_NO_PROCESS = ("profiler-warning", "no-gpu-rows")
_MAX_ROWS = 2**31 - 1


def yield_process_traces(
    source: Source, want: Want, on_bytes: Callable[[int], None] | None = None
) -> Iterator[tuple[Trace, int]]:
    """Yield each Trace of the file, one per process, with the number of Traces that follow. Raises only `TraceFormatError`.

    Traces are built lazily, because the raw rows take a third of the memory. `on_bytes` is called with the bytes read so
    far. Processes are identified from the tables that are read.
    """

    def advance(share: float) -> None:
        if on_bytes is not None:
            on_bytes(int(source.size_bytes * share))

    trace_count = 0
    try:
        for trace_of_process in _yield_traces(source, want, advance, with_pages=True):
            trace_count += 1
            yield trace_of_process
            del trace_of_process
    except DamagedPagesError:
        yield from islice(_yield_traces(source, want, advance, with_pages=False), trace_count, None)


def _yield_traces(
    source: Source, want: Want, advance: Callable[[float], None], *, with_pages: bool
) -> Iterator[tuple[Trace, int]]:
    """Yield the Traces. Raises `DamagedPagesError` if pages are read directly and are inconsistent."""
    with open_export(Path(source.path), with_pages=with_pages) as db:
        file_contents = read_export_contents(db, want, advance)
        advance(1)
        of_file = [replace(note, source=source.name) for note in file_contents.notes]
        damage: set[str] = set()
        of_no_process: set[tuple[str, str, int | None]] = set()
        for following, pid in zip(count(len(file_contents.pids) - 1, -1), file_contents.pids):
            owner = _find_range_owner(file_contents, pid)
            ranges = _select_process_ranges(file_contents, owner)
            if file_contents.ranges is not None:
                fewer = nsys_nvtx.drop_process_ranges(file_contents.ranges, owner)
                file_contents = replace(file_contents, ranges=fewer)
            trace = _make_process_trace(db, file_contents, ranges, pid, source, want)
            trace = _drop_repeated_notes(trace, of_no_process)
            of_file += _yield_new_notes(note_export_damage(db, source.name), damage)
            yield replace(trace, notes=(*of_file, *trace.notes)), following
            of_file = []
            # Release it before the next Trace is built.
            del trace


def _yield_new_notes(notes: Iterable[Note], noted: set[str]) -> Iterator[Note]:
    """Yield the notes that are not in `noted`, and add them to it."""
    for note in notes:
        content = f"{note.code} {note.data}"
        if content not in noted:
            yield note
        noted.add(content)


def _drop_repeated_notes(trace: Trace, noted: set[tuple[str, str, int | None]]) -> Trace:
    """Drop notes about the whole machine that an earlier Trace already has."""
    fresh = [note for note in trace.notes if (note.code, note.message, note.count) not in noted]
    of_no_process = [note for note in fresh if note.code in _OF_NO_PROCESS]
    noted.update((note.code, note.message, note.count) for note in of_no_process)
    return replace(trace, notes=tuple(fresh))


@dataclass(frozen=True, slots=True)
class _TraceDraft:
    """A Trace under construction."""

    source: Source
    want: Want
    pid: int
    tables: dict[str, Columns] = field(default_factory=dict[str, Columns])
    args: dict[str, Sparse] = field(default_factory=dict[str, Sparse])
    notes: list[Note] = field(default_factory=list[Note])


@dataclass(frozen=True, slots=True)
class _ProcessRanges:
    """Ranges of one process: the `complete` ones, in a list that the consumer empties, and the still open ones.

    `count` is the number of both, `tids` are their threads.
    """

    complete: list[NvtxHostRows] = field(default_factory=list[NvtxHostRows])
    opens: NvtxHostRows | None = None
    count: int = 0
    tids: frozenset[int] = frozenset()


def _make_process_trace(
    db: ExportDatabase, file_contents: ExportContents, ranges: _ProcessRanges, pid: int, source: Source, want: Want
) -> Trace:
    """Build the Trace of one process."""
    draft = _TraceDraft(source, want, pid)
    if file_contents.ranges is not None:
        draft.notes.extend(nsys_nvtx.note_nvtx_ranges(file_contents.ranges, _find_range_owner(file_contents, pid)))
    memory = _get_process_memory(file_contents, pid)
    threads = _list_thread_numbers(file_contents, pid, ranges.tids, memory)
    if want.table("host_ops") and (ranges.complete or nsys_host.has_call_tables(db)):
        _add_host_ops(draft, file_contents, ranges.complete, threads)
    if ranges.opens is not None and want.table("open_ranges"):
        _add_table(draft, "open_ranges", nsys_host.make_open_ranges(ranges.opens, pid, threads))
    _add_device_tables(draft, file_contents)
    if memory is not None:
        draft.notes.extend(memory.notes)
        _add_table(draft, "memory_ops", _make_memory_ops(memory, pid, threads.index(UNKNOWN)))
    _add_table(draft, "counters", _make_gpu_counters(db, file_contents, pid))
    _add_cpu_tables(draft, file_contents, threads)
    if want.table("windows"):
        _add_table(draft, "windows", _make_capture_window(file_contents))
    rows = _count_draft_rows(draft)
    if want.table("host_ops") and want.table("device_ops"):
        draft.notes.extend(_note_missing_tables(db, draft, ranges.count))
    if want.table("threads"):
        named = {} if file_contents.ranges is None else file_contents.ranges.thread_names
        draft.tables["threads"] = nsys_host.make_threads(db, pid, threads, named)
    draft.notes.extend(nsys_content.read_profiler_warnings(db, get_known_pid(pid)))
    identity = file_contents.identities.get(pid, nsys_identity.ProcessIdentity())
    facts = {
        "host": nsys_identity.read_host_name(db),
        **nsys_identity.make_identity_facts(identity, get_known_pid(pid)),
    }
    return Trace(
        apply_file_facts(_make_process_source(source, file_contents, pid, identity), facts),
        Frames(draft.tables),
        tuple(replace(note, source=source.name) for note in draft.notes),
        _make_trace_metadata(db, file_contents, pid, identity) | {"element_count": rows},
        draft.args,
    )


def _list_thread_numbers(
    file_contents: ExportContents, pid: int, of_ranges: Iterable[int], memory: MemoryOps | None
) -> list[int]:
    """List the thread numbers of a process, ascending. Memory operations have an unknown thread."""
    tids = nsys_host.list_calling_threads(file_contents.calls, pid)
    tids.update(of_ranges)
    if memory is not None:
        tids.add(UNKNOWN)
    for cpu in (file_contents.cpu_samples, file_contents.switches):
        tids.update(nsys_cpu.list_cpu_threads(cpu, pid))
    return sorted(tids)


def _note_missing_tables(db: ExportDatabase, draft: _TraceDraft, range_count: int) -> list[Note]:
    """Note the tables that a process with this many ranges should have but does not."""
    tables = draft.tables
    counts = {
        "api_count": _count_rows_of_kind(draft, "host_ops", "runtime"),
        "device_op_count": len(tables.get("device_ops", ())),
        "range_count": range_count,
    }
    return [
        *nsys_content.note_expected_data_missing(db, get_known_pid(draft.pid), **counts),
        *_note_unmatched_launches(tables),
    ]


def _count_draft_rows(draft: _TraceDraft) -> int:
    """Count the rows of all tables added so far."""
    return sum(len(columns) for columns in draft.tables.values())


def _count_rows_of_kind(draft: _TraceDraft, table: str, kind: str) -> int:
    """Count the rows of a kind in a table."""
    return int(_mark_columns_of_kind(draft.tables[table], kind).sum()) if table in draft.tables else 0


def _mark_columns_of_kind(columns: Columns, kind: str) -> npt.NDArray[np.bool_]:
    """Mark the rows of a kind."""
    kinds = columns["kind"]
    assert isinstance(kinds, Coded), "kinds are texts"
    is_of_kind: npt.NDArray[np.bool_] = kinds.codes == kinds.texts.index(kind)
    return is_of_kind


def _add_table(
    draft: _TraceDraft, name: str, columns: Columns | None, args: Mapping[str, Sparse] | None = None
) -> None:
    """Add a table, numbering its rows after those of earlier tables. None adds nothing."""
    if columns is None:
        return
    first = _count_draft_rows(draft)
    if first + len(columns) > _MAX_ROWS:
        problem = f"more than {_MAX_ROWS:,} rows of one process"
        raise make_format_error(draft.source.path, Reason("too-many", problem, Data(most=_MAX_ROWS)))
    if first:
        ids = columns["id"]
        assert isinstance(ids, np.ndarray), "no row lacks its number"
        ids += np.int32(first)
    for key, column in (args or {}).items():
        draft.args[key] = replace(column, rows=column.rows + np.int32(first))
    draft.tables[name] = columns


def _select_process_ranges(file_contents: ExportContents, owner: int | None) -> _ProcessRanges:
    """Select the ranges of one process (None: all)."""
    ranges = file_contents.ranges
    if ranges is None:
        return _ProcessRanges()
    complete = nsys_nvtx.select_complete_ranges(ranges, owner)
    opens = nsys_nvtx.select_open_ranges(ranges, owner)
    count = len(complete.ts_ns) + len(opens.ts_ns)
    tids = frozenset(tid for rows in (complete, opens) for tid in list_distinct_integers(rows.tid))
    return _ProcessRanges([complete], opens, count, tids)


def _find_range_owner(file_contents: ExportContents, pid: int) -> int | None:
    """Find the process whose ranges to select; None (all, also unknown ones) if the file has only one process."""
    return None if len(file_contents.pids) == 1 else pid


def _add_host_ops(
    draft: _TraceDraft, file_contents: ExportContents, ranges: list[NvtxHostRows], threads: Sequence[int]
) -> None:
    """Add `host_ops`."""
    for noun, calls in zip(CALL_NOUNS, file_contents.calls, strict=True):
        draft.notes.extend(_note_odd_rows(nsys_host.count_odd_calls(calls, draft.pid), noun))
    host = nsys_host.make_host_ops(file_contents.calls, ranges, draft.pid, threads, draft.want)
    _add_table(draft, "host_ops", host.columns, host.args)


def _add_device_tables(draft: _TraceDraft, file_contents: ExportContents) -> None:
    """Add `device_ops` and `syncs`. A process without such rows gets no tables."""
    if file_contents.device is not None and draft.pid in file_contents.device.processes:
        clock = file_contents.clock
        longest_ns = None if clock.end_ns is None else clock.end_ns - clock.start_ns
        device = nsys_device.make_device_ops(file_contents.device, draft.pid, longest_ns, _make_time_check(draft))
        draft.notes.extend((*_note_odd_rows(device.odd, "rows of GPU work"), *device.notes))
        if len(device.columns):
            _add_table(draft, "device_ops", device.columns, device.args)
    if file_contents.syncs is not None and draft.pid in file_contents.syncs.processes:
        syncs = nsys_device.make_syncs(file_contents.syncs, draft.pid, file_contents.contexts)
        draft.notes.extend(_note_odd_rows(syncs.odd, "synchronisation records"))
        if len(syncs.columns):
            _add_table(draft, "syncs", syncs.columns)


def _make_time_check(draft: _TraceDraft) -> nsys_device.Check | None:
    """Build the check of device times against the process's calls; None if calls are not read."""
    if not draft.want.table("host_ops"):
        return None
    calls = nsys_times.extract_launch_calls(draft.tables.get("host_ops"))
    no_ids = np.empty(0, np.int64)
    return lambda ops: device_times.check_device_times(ops, calls, no_ids, draft.source.name)


def _add_cpu_tables(draft: _TraceDraft, file_contents: ExportContents, threads: Sequence[int]) -> None:
    """Add `cpu_samples` and `thread_states`."""
    if file_contents.cpu_samples is not None:
        samples, notes = nsys_cpu.make_cpu_samples(file_contents.cpu_samples, draft.pid, threads)
        draft.notes.extend(notes)
        _add_table(draft, "cpu_samples", samples if len(samples) else None)
    if file_contents.switches is not None:
        clock = file_contents.clock
        states, notes = nsys_cpu.make_thread_states(file_contents.switches, draft.pid, threads, clock)
        draft.notes.extend(notes)
        _add_table(draft, "thread_states", states if len(states) else None)


def _make_process_source(
    source: Source, file_contents: ExportContents, pid: int, identity: nsys_identity.ProcessIdentity
) -> Source:
    """Limit the source's name-based facts to those valid for this process."""
    if source.pid is not None and len(file_contents.pids) > 1 and pid != source.pid:
        # The name belongs to another process of the file, or to its launcher.
        if source.pid in file_contents.pids:
            source = replace(source, rank=None)
        source = replace(drop_manifest_facts(replace(source, pid=None)), accounts=())
    if source.role is not None or any(account.pid == pid for account in source.accounts):
        return source
    return replace(source, role=identity.role)


def _make_trace_metadata(
    db: ExportDatabase, file_contents: ExportContents, pid: int, identity: nsys_identity.ProcessIdentity
) -> dict[str, Any]:
    """Build the metadata of the file and the process under fixed keys; Kineto's keys if it has them."""
    group = {"rank": identity.rank, "world_size": identity.world_size, "backend": identity.backend}
    meta = {**nsys_content.read_export_metadata(db), "absolute_time": file_contents.clock.absolute}
    used = file_contents.used.get(pid, frozenset())
    if gpus := nsys_content.read_device_properties(db, get_known_pid(pid), used):
        meta["deviceProperties"] = gpus
    if file_contents.ranges is not None:
        marks = nsys_nvtx.get_nvtx_count(file_contents.ranges, "marks", _find_range_owner(file_contents, pid))
        if marks:
            meta["mark_count"] = marks
    if group := nsys_content.drop_unknown_facts(group):
        meta["distributedInfo"] = group
    return meta


def _note_odd_rows(counts: Mapping[str, int], noun: str) -> list[Note]:
    """Build notes on irregular rows."""
    notes = []
    for what, number in counts.items():
        if number:
            severity, text = _ODD[what]
            notes.append(Note(severity, what, text.format(noun), count=number))
    return notes


def _note_unmatched_launches(tables: Mapping[str, Columns]) -> list[Note]:
    """Note device ops without a recorded launch, if launches were recorded."""
    if "device_ops" not in tables or "host_ops" not in tables:
        return []
    host, device = (tables[name]["correlation"] for name in ("host_ops", "device_ops"))
    assert isinstance(host, Nullable), "rows may lack it"
    assert isinstance(device, Nullable), "rows may lack it"
    calls = np.sort(host.values[~host.missing & _mark_columns_of_kind(tables["host_ops"], "runtime")])
    if not len(calls):
        return []
    _, has_call = look_up_keys(calls, device.values)
    count = int(np.count_nonzero(~has_call | device.missing))
    if not count:
        return []
    text = "device ops without the call that launched them, as of those launched before the recording began"
    return [Note("info", "unmatched-launches", text, count=count)]


def _get_process_memory(file_contents: ExportContents, pid: int) -> MemoryOps | None:
    """Find the GPU memory of a process. Memory of an unknown process belongs to the only process."""
    if file_contents.memory is None:
        return None
    of_unknown = file_contents.memory.get(UNKNOWN) if len(file_contents.pids) == 1 else None
    return file_contents.memory.get(pid, of_unknown)


def _make_memory_ops(memory: MemoryOps, pid: int, thread: int) -> Columns:
    """Build `memory_ops` from driver allocations, which have no thread."""
    length = len(memory.ts_ns)
    return TABLES["memory_ops"].cast(
        {
            "id": np.arange(length, dtype=np.int32),
            "ts_ns": memory.ts_ns,
            "pid": repeat_nullable_value(get_known_pid(pid), length),
            "thread": np.full(length, thread, np.int32),
            "device_type": repeat_nullable_value(DRIVER, length),
            "device": make_nullable_integers(np.where(memory.device < 0, MISSING, memory.device)),
            "size_bytes": make_nullable_integers(memory.size_bytes.copy()),
            "reserved_bytes": make_nullable_integers(memory.reserved_bytes.copy()),
        },
        length,
    )


def _make_gpu_counters(db: ExportDatabase, file_contents: ExportContents, pid: int) -> Columns | None:
    """Build `counters`: GPU metric samples of this process's GPUs; None if there are none."""
    if file_contents.samples is None:
        return None
    gpus = {}
    for user_pid in file_contents.pids:
        used = file_contents.used.get(user_pid, frozenset())
        gpus[user_pid] = nsys_content.map_gpu_numbers(db, get_known_pid(user_pid), used)
    positions = nsys_metrics.assign_samples_to_processes(file_contents.samples, gpus).get(pid)
    if positions is None or not len(positions):
        return None
    value = file_contents.samples.value[positions]
    names = Coded(file_contents.samples.name[positions], tuple(file_contents.samples.names))
    return TABLES["counters"].cast(
        {
            "id": np.arange(len(positions), dtype=np.int32),
            "ts_ns": file_contents.samples.ts_ns[positions],
            "name": trim_texts(names),
            "value": Nullable(value, np.zeros(len(positions), np.bool_)),
        }
    )


def _make_capture_window(file_contents: ExportContents) -> Columns | None:
    """Build `windows`: the capture; None if its end is unknown."""
    clock = file_contents.clock
    if clock.end_ns is None or clock.end_ns < clock.start_ns:
        return None
    return TABLES["windows"].cast(
        {
            "id": np.zeros(1, np.int32),
            "ts_ns": np.array([clock.base_ns + clock.start_ns]),
            "dur_ns": np.array([clock.end_ns - clock.start_ns]),
            "name": [WINDOW],
        }
    )
