"""Raw contents of an export for all processes, read before Traces are built, and the processes that own them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace

from tracekit.model.records import dataclass
from tracekit.model.trace import Note, Want
from tracekit.readers.nsys import content as nsys_content
from tracekit.readers.nsys import cpu as nsys_cpu
from tracekit.readers.nsys import device as nsys_device
from tracekit.readers.nsys import host as nsys_host
from tracekit.readers.nsys import identity as nsys_identity
from tracekit.readers.nsys import memory as nsys_memory
from tracekit.readers.nsys import metrics as nsys_metrics
from tracekit.readers.nsys import metrics_json as nsys_metrics_json
from tracekit.readers.nsys.content import ExportClock
from tracekit.readers.nsys.cpu import CpuRows
from tracekit.readers.nsys.device import DeviceRows
from tracekit.readers.nsys.gather import UNKNOWN, merge_unknown_process
from tracekit.readers.nsys.host import HostCalls
from tracekit.readers.nsys.identity import ProcessIdentity
from tracekit.readers.nsys.memory import MemoryOps
from tracekit.readers.nsys.nvtx import payloads as nsys_payloads
from tracekit.readers.nsys.nvtx import ranges as nsys_nvtx
from tracekit.readers.nsys.nvtx.ranges import NvtxRanges
from tracekit.readers.nsys.samples import GpuSamples
from tracekit.readers.nsys.sqlite.connection import ExportDatabase

CALL_NOUNS = ("CUDA calls", "calls of the operating system", "records of the profiler's own work")


@dataclass(frozen=True, slots=True)
class ExportContents:
    """Everything read from a file, for all processes. None for a table that is not wanted or not recorded.

    `pids` are the processes that get a Trace, including `UNKNOWN` for rows without a process. `calls` are in the order of
    `CALL_NOUNS`. `notes` are about the file.
    """

    clock: ExportClock
    pids: tuple[int, ...] = ()
    device: DeviceRows | None = None
    syncs: DeviceRows | None = None
    contexts: Mapping[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    calls: tuple[HostCalls, ...] = ()
    ranges: NvtxRanges | None = None
    memory: Mapping[int, MemoryOps] | None = None
    samples: GpuSamples | None = None
    cpu_samples: CpuRows | None = None
    switches: CpuRows | None = None
    used: Mapping[int, frozenset[int]] = field(default_factory=dict[int, frozenset[int]])
    identities: Mapping[int, ProcessIdentity] = field(default_factory=dict[int, ProcessIdentity])
    notes: tuple[Note, ...] = ()


def read_export_contents(db: ExportDatabase, want: Want, advance: Callable[[float], None]) -> ExportContents:
    """Read the wanted tables of a file. Calls `advance` with the share of work done."""
    clock, notes = nsys_content.read_export_clock(db)
    tables = _read_wanted_tables(db, want, clock, advance)
    if want.table("counters"):
        notes += nsys_metrics_json.note_unread_generic_events(db)
    used = {} if tables.device is None else nsys_device.list_used_devices(tables.device)
    pids, left_out = _choose_traced_processes(*_find_row_owners(tables, used))
    if left_out:
        text = "processes with nothing but calls of the operating system are left out"
        notes.append(Note("info", "other-processes", text, count=left_out))
    known_pids = [pid for pid in pids if pid != UNKNOWN]
    cpu = [rows for rows in (tables.cpu_samples, tables.switches) if rows is not None]
    notes += [note for rows in cpu for note in rows.notes]
    for rows in (tables.device, tables.syncs, *tables.calls, *cpu):
        if rows is not None:
            merge_unknown_process(rows.processes, known_pids)
    if len(pids) == 1 and [*used] == [UNKNOWN]:
        used = {pids[0]: used[UNKNOWN]}
    identities = nsys_identity.identify_processes(db, known_pids, nsys_payloads.find_nccl_ranks(db), sorted(used))
    notes += nsys_identity.note_rank_rules(identities)
    if tables.samples is not None:
        notes += tables.samples.notes
    return replace(tables, pids=pids, used=used, identities=identities, notes=tuple(notes))


def _read_wanted_tables(
    db: ExportDatabase, want: Want, clock: ExportClock, advance: Callable[[float], None]
) -> ExportContents:
    """Read the wanted tables for all processes, before rows without a process are assigned."""
    tables = ExportContents(clock)
    if want.table("device_ops") and nsys_device.has_device_work(db):
        tables = replace(tables, device=nsys_device.read(db, clock, want))
    advance(0.3)
    if want.table("syncs") and nsys_device.SYNC in db.columns:
        contexts = nsys_device.read_recorded_contexts(db)
        if not contexts:
            little = replace(want, args=(), columns=frozenset())
            contexts = (tables.device or nsys_device.read(db, clock, little)).contexts
        tables = replace(tables, syncs=nsys_device.read_sync_rows(db, clock), contexts=contexts)
    if want.table("host_ops"):
        calls = (nsys_host.read_cuda_calls(db, clock), *nsys_host.read_other_calls(db, clock))
        tables = replace(tables, calls=calls)
    advance(0.6)
    if want.table("host_ops") or want.table("open_ranges"):
        tables = replace(tables, ranges=nsys_nvtx.read_nvtx_ranges(db, clock, want.args))
    advance(0.9)
    if want.table("memory_ops"):
        tables = replace(tables, memory=nsys_memory.read(db, clock))
    if want.table("counters"):
        tables = replace(tables, samples=nsys_metrics.read(db, clock))
    if want.table("cpu_samples"):
        tables = replace(tables, cpu_samples=nsys_cpu.read_cpu_samples(db, clock))
    if want.table("thread_states"):
        tables = replace(tables, switches=nsys_cpu.read_thread_switches(db, clock))
    return tables


def _find_row_owners(tables: ExportContents, used: Collection[int]) -> tuple[set[int], set[int]]:
    """Find (processes with ranges, CUDA calls or GPU work; processes with operating system calls)."""
    profiled = {*used, *(tables.memory or ())}
    if tables.ranges is not None:
        profiled.update(nsys_nvtx.count_process_ranges(tables.ranges))
    if not tables.calls:
        for cpu in (tables.cpu_samples, tables.switches):
            profiled.update(() if cpu is None else cpu.processes)
        return profiled, set()
    cuda, system, _ = tables.calls
    return profiled | cuda.processes.keys(), set(system.processes)


def _choose_traced_processes(profiled: set[int], system_pids: set[int]) -> tuple[tuple[int, ...], int]:
    """Choose the processes that get a Trace: (pids, number left out). Those with only operating system calls are left out."""
    pids = sorted(profiled - {UNKNOWN})
    left_out = len(system_pids - {*pids, UNKNOWN})
    if len(pids) > 1 and UNKNOWN in profiled:
        pids.append(UNKNOWN)
    if pids:
        return tuple(pids), left_out
    if left_out == 1 and not profiled:
        return tuple(system_pids - {UNKNOWN}), 0
    # Nothing else was recorded: the whole file is one process.
    return (UNKNOWN,), 0
