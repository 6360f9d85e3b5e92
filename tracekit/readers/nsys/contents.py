"""Everything that is read of an export, before it is put together as Traces, and whose processes it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tracekit.model.trace import Note, Want
from tracekit.readers.nsys import content as nsys_content
from tracekit.readers.nsys import device as nsys_device
from tracekit.readers.nsys import host as nsys_host
from tracekit.readers.nsys import identity as nsys_identity
from tracekit.readers.nsys import memory as nsys_memory
from tracekit.readers.nsys import metrics as nsys_metrics
from tracekit.readers.nsys import metrics_json as nsys_metrics_json
from tracekit.readers.nsys import nvtx as nsys_nvtx
from tracekit.readers.nsys import payloads as nsys_payloads
from tracekit.readers.nsys.content import Clock
from tracekit.readers.nsys.database import Database
from tracekit.readers.nsys.device import DeviceRows
from tracekit.readers.nsys.gather import UNKNOWN, folded
from tracekit.readers.nsys.host import Calls
from tracekit.readers.nsys.identity import Identity
from tracekit.readers.nsys.memory import MemoryOps
from tracekit.readers.nsys.nvtx import Ranges
from tracekit.readers.nsys.samples import Samples

CALL_NOUNS = ("CUDA calls", "calls of the operating system", "records of the profiler's own work")


@dataclass(frozen=True, slots=True)
class Contents:
    """What was read, for all processes; None for a table that is not wanted or was not recorded.

    `pids` are the processes that get a Trace, `UNKNOWN` among them for rows that do not say whose they are.
    `calls` are in the order of `CALL_NOUNS`. `notes` are about the file.
    """

    clock: Clock
    pids: tuple[int, ...]
    device: DeviceRows | None
    syncs: DeviceRows | None
    contexts: Mapping[tuple[int, int], int]
    calls: tuple[Calls, ...]
    ranges: Ranges | None
    memory: Mapping[int, MemoryOps] | None
    samples: Samples | None
    used: Mapping[int, frozenset[int]]
    identities: Mapping[int, Identity]
    notes: tuple[Note, ...]


def contents(db: Database, want: Want, advance: Callable[[float], None]) -> Contents:
    """What of the file is wanted; `advance` is told the share that is done."""
    clock, notes = nsys_content.clock(db)
    device = syncs = None
    if want.table("device_ops") and nsys_device.recorded(db):
        device = nsys_device.read(db, clock, want)
    advance(0.3)
    if want.table("syncs") and nsys_device.SYNC in db.columns:
        syncs = nsys_device.read_syncs(db, clock)
    contexts = {} if syncs is None else nsys_device.devices_of_contexts(db)
    host = want.table("host_ops")
    calls = (nsys_host.read_cuda(db, clock), *nsys_host.read_other(db, clock)) if host else ()
    advance(0.6)
    ranges = nsys_nvtx.ranges(db, clock, want.args) if host or want.table("open_ranges") else None
    advance(0.9)
    memory = nsys_memory.read(db, clock) if want.table("memory_ops") else None
    samples = None
    if want.table("counters"):
        samples = nsys_metrics.read(db, clock)
        notes += nsys_metrics_json.unread(db)

    used = {} if device is None else nsys_device.used(device)
    profiled = {*used, *(memory or ()), *(nsys_nvtx.processes(ranges) if ranges else ())}
    profiled |= calls[0].processes.keys() if calls else set()
    without_work = set(calls[1].processes) if calls else set()
    pids, left_out = _processes(profiled, without_work)
    if left_out:
        text = "processes with nothing but calls of the operating system are left out"
        notes.append(Note("info", "other-processes", text, count=left_out))
    for rows in (device, syncs, *calls):
        if rows is not None:
            folded(rows.processes, [pid for pid in pids if pid != UNKNOWN])
    if len(used) == 1 and UNKNOWN in used and len(pids) == 1:
        used = {pids[0]: used[UNKNOWN]}
    known_pids = [pid for pid in pids if pid != UNKNOWN]
    identities = nsys_identity.identities(db, known_pids, nsys_payloads.ranks(db), sorted(used))
    notes += nsys_identity.notes(identities)
    if samples is not None:
        notes += samples.notes
    return Contents(
        clock,
        pids,
        device,
        syncs,
        contexts,
        calls,
        ranges,
        memory,
        samples,
        used,
        identities,
        tuple(notes),
    )


def _processes(profiled: set[int], others: set[int]) -> tuple[tuple[int, ...], int]:
    """(the processes that get a Trace, how many are left out): those with more than calls of the system."""
    pids = sorted(profiled - {UNKNOWN})
    if len(pids) > 1:
        pids += [UNKNOWN] if UNKNOWN in profiled else []
    if pids:
        return tuple(pids), len(others - {*pids, UNKNOWN})
    system = sorted(others - {UNKNOWN})
    # Where nothing else was recorded, the file is taken as a whole.
    return (tuple(system) if len(system) == 1 and not profiled else (UNKNOWN,)), 0
