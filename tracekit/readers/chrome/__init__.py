"""Chrome traces as PyTorch's profiler (Kineto) writes them: from bytes to a Trace.

`RECOVERY.md` in this folder is the grammar. `stream` reads a file into columns, `classes` classifies
its rows, and `tables` builds the tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.discover import apply_file_facts
from tracekit.model.inputs.note_codes import NO_EVENTS, NO_TIMES, Data
from tracekit.model.tables import HOST_OP_KINDS
from tracekit.model.tables.arrays import Columns, Frames
from tracekit.model.trace import Note, NoteSeverity, Source, Trace, Want
from tracekit.readers import unpack
from tracekit.readers.chrome import processes
from tracekit.readers.chrome import stream as chrome_stream
from tracekit.readers.chrome import tables as chrome_tables
from tracekit.readers.chrome import times as chrome_times
from tracekit.readers.chrome.classes import CLASS_CODE, PHASES, classify_rows
from tracekit.readers.chrome.producers import count_recorded_rows, note_filtered
from tracekit.readers.chrome.scan import Codes, ScanOptions, TraceScan
from tracekit.readers.chrome.tables import TABLE_PLANS, ChromeRows, build_planned_tables, convert_codes_to_integers
from tracekit.readers.loss import DataLoss

ARGUMENTS = (
    *("correlation", "External id", "external id", "device", "stream", "bytes", "Bytes"),
    *("Device Type", "Device Id", "Total Allocated", "Total Reserved", "Collective name", "name"),
)
"""Arguments that the tables are built from: read whatever `Want.args` requests."""

STACK_ARGUMENTS = ("Call stack", "Module Hierarchy")

_BESIDES_PYTHON = tuple(kind for kind in HOST_OP_KINDS if kind != "python")

MODULE_CALLS = ("nn.Module: ",)
"""Name prefix of the Python functions that are calls of a model's modules: few, and read by default."""

OTHER_TABLES: Mapping[str, Callable[[ChromeRows], Columns | None]] = {
    "counters": chrome_tables.build_counter_table,
    "flows": chrome_tables.build_flow_table,
    "threads": chrome_tables.build_thread_table,
}
"""Tables that are not built column by column as those of `TABLE_PLANS` are."""

COUNTED_ROWS = 2**18
"""Rows counted at a time, because numpy widens the thread numbers to count them."""

LOSSES: Mapping[str, str] = {
    "truncated": "the file ends inside the event array; every complete element before it was read",
    "damaged": "damaged text was passed over",
    "repaired": "elements of invalid JSON were repaired",
    "not-an-event": "elements that are no objects were passed over",
    **unpack.LOSSES,
    "too-long": "elements beyond the size limit were passed over",
    "metadata": "metadata outside the event array could not be read",
}
"""Message to the user for each kind of `DataLoss`."""


def sniff(head: bytes) -> bool:
    """Check whether uncompressed text begins like a Chrome trace.

    A memory snapshot may begin the same way; its reader is asked first.
    """
    return chrome_stream.is_chrome_trace_head(head)


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the file's Trace with the tables of `want`, or one Trace per rank of a merged file.

    `on_bytes` is called with counts of compressed bytes as they are read. Raises only `TraceFormatError`.
    """
    scan = chrome_stream.scan_trace(Path(source.path), _choose_scan_options(want), on_bytes=on_bytes)
    base, base_is_odd = _parse_base_time(scan.meta)
    labelled = processes.find_rank_labels(scan.pid)
    pid = scan.pid if labelled is None else Codes(scan.pid.codes, list(labelled.pids))
    rows, notes = _make_chrome_rows(scan, pid, base, source)
    if want.table("python_calls") and not want.python:
        _separate_python_calls(rows, is_kept=want.modules)
    if not want.python and not rows.is_of(*_BESIDES_PYTHON).any():
        # Module calls alone do not show that the host was recorded.
        rows.classes[rows.classes == CLASS_CODE["python"]] = CLASS_CODE["ignored"]
    if base_is_odd:
        message = "baseTimeNanoseconds is no time: times are relative"
        notes.append(Note("warning", "base-time", message, source.name))
    # If no event is usable, report the cause once instead of once per kind of row.
    useless = list(_note_unusable_trace(scan, rows, source.name))
    notes = [*note_scan_losses(scan.losses, source.name), *(useless or notes)]
    meta = {
        **_replace_surrogates(scan.meta),
        "absolute_time": int(scan.ts_ns.max(initial=0)) > 10**17,
        "element_count": len(scan.ts_ns) + sum(scan.skipped.values()),
        "skipped_count": dict(scan.skipped),
        "text_bytes": scan.size_bytes,
        **count_recorded_rows(scan, rows),
    }
    del scan
    stranded = chrome_times.find_stranded_rows(rows, base)
    if (filtered := note_filtered(rows, source.name)) is not None:
        notes.append(filtered)
    if labelled is None:
        facts = {**_read_process_facts(meta), **_find_main_pid(rows, pid)}
        notes += _repair_or_reject_rows(rows, stranded, facts, notes, source.name)
        return [_make_chrome_trace(apply_file_facts(source, facts), want, rows, notes, meta)]
    of_rows = np.take(labelled.rank_of_pid, pid.codes, mode="wrap")
    notes.append(processes.note_merged_ranks(labelled.ranks, source.name))
    unlabelled = (of_rows < 0) & ~rows.is_of("meta", "ignored")
    if unlabelled.any():
        message = "elements of processes without a rank label were left out"
        count = int(np.count_nonzero(unlabelled))
        notes.append(Note("warning", "no-rank-label", message, source.name, count))
    traces = []
    for place, rank in enumerate(labelled.ranks):
        is_kept = of_rows == place
        part = processes.select_rank_rows(rows, is_kept)
        own_notes = [*notes, *chrome_times.repair_row_times(part, stranded & is_kept, source.name)]
        notes = []
        facts = {**_read_process_facts(meta), **_find_main_pid(part, pid), "rank": rank.number}
        own_source = replace(apply_file_facts(replace(source, rank=None), facts), topology=rank.topology)
        own_meta = {**meta, "element_count": int(np.count_nonzero(is_kept))}
        traces.append(_make_chrome_trace(own_source, want, part, own_notes, own_meta))
    return traces


def _repair_or_reject_rows(
    rows: ChromeRows, stranded: npt.NDArray[np.bool_], facts: dict[str, object], notes: Sequence[Note], name: str
) -> list[Note]:
    """Drop rows with impossible times; drop all rows if two processes wrote the file.

    In the latter case, `facts` loses its rank. Returns notes on the dropped rows.
    """
    if any(note.code == "damaged" for note in notes):
        interleaved = processes.find_interleaved_processes(chrome_times.collect_runtime_calls(rows), name)
        if interleaved is not None:
            rows.classes[:] = CLASS_CODE["ignored"]
            facts.pop("rank", None)
            return [interleaved]
    return list(chrome_times.repair_row_times(rows, stranded, name))


def _make_chrome_trace(
    source: Source, want: Want, rows: ChromeRows, notes: Sequence[Note], meta: Mapping[str, Any]
) -> Trace:
    """Build the Trace of one process; consumes `rows`."""
    args = rows.args
    if want.args is not None and want.columns is not None:
        args = {key: column for key, column in args.items() if key in want.args}
    return Trace(source, Frames(_make_chrome_tables(rows, want)), tuple(notes), meta, args)


def _make_chrome_tables(rows: ChromeRows, want: Want) -> dict[str, Columns]:
    """Build the tables of `want`; consumes `rows`."""
    tables = {}
    for name, build in OTHER_TABLES.items():
        if want.table(name) and (columns := build(rows)) is not None:
            tables[name] = columns
    tables |= build_planned_tables(rows, {name for name in TABLE_PLANS if want.table(name)}, want.column)
    return {name: tables[name] for name in _TABLE_ORDER if name in tables}


_TABLE_ORDER = (
    *("host_ops", "device_ops", "device_ranges", "syncs", "memory_ops", "counters", "flows"),
    *("windows", "python_calls", "threads"),
)


def _choose_scan_options(want: Want) -> ScanOptions:
    """Choose the arguments, rows and fields that the scan keeps."""
    keep = ScanOptions(args=None, skip_args=(), skip_cats=(), keep_names=())
    if want.args is not None:
        keep = replace(keep, args=tuple(dict.fromkeys((*ARGUMENTS, *want.args))))
    if not want.stacks:
        keep = replace(keep, skip_args=STACK_ARGUMENTS)
    if not want.python and not want.table("python_calls"):
        keep = replace(keep, skip_cats=("python_function",))
    if want.modules and want.table("host_ops"):
        keep = replace(keep, keep_names=MODULE_CALLS)
    # Of the keys outside `args`, only the table of flows uses any.
    return replace(keep, fields=want.table("flows"))


def _separate_python_calls(rows: ChromeRows, *, is_kept: bool) -> None:
    """Move Python functions to a class of their own; with `is_kept`, calls of modules stay among the ops."""
    python = rows.classes == CLASS_CODE["python"]
    if is_kept and python.any():
        names = rows.labels["name"]
        is_call = [isinstance(text, str) and text.startswith(MODULE_CALLS) for text in names.values]
        python &= ~np.array([*is_call, False], np.bool_)[names.codes]
    rows.classes[python] = CLASS_CODE["python_call"]


_SURROGATE = re.compile("[\ud800-\udfff]")


def _replace_surrogates(value: Any) -> Any:
    """Replace lone surrogates in metadata by U+FFFD, because no table and no file can contain them."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_replace_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(item) for key, item in value.items()}
    return value


def _parse_base_time(meta: Mapping[str, Any]) -> tuple[int, bool]:
    """Parse the file's time zero: (Unix ns, whether the recorded value is not a time)."""
    base = meta.get("baseTimeNanoseconds", 0)
    if isinstance(base, str) and re.fullmatch(r"-?[0-9]{1,19}", base):
        base = int(base)
    if isinstance(base, float) and base.is_integer():
        base = int(base)
    if isinstance(base, bool) or not isinstance(base, int) or abs(base) > 2**61:
        return 0, True
    return base, False


def _make_chrome_rows(scan: TraceScan, pid: Codes, base: int, source: Source) -> tuple[ChromeRows, list[Note]]:
    """Build the classified rows with absolute times, and notes on those left out."""
    notes: list[Note] = []

    def note(code: str, message: str, which: npt.NDArray[np.bool_]) -> None:
        count = int(np.count_nonzero(which))
        if count:
            notes.append(Note("warning", code, message, source.name, count))

    classes, phase = classify_rows(scan)
    # Base, start and duration are each bounded by 2**61, so their sum cannot overflow.
    placed, dur, has_dur = scan.has_ts, scan.dur_ns, scan.has_dur
    if not _is_in_bounds(scan.ts_ns, -(2**61), 2**61):
        placed = placed & (scan.ts_ns < 2**61) & (scan.ts_ns > -(2**61))
    thread, (pids, tids) = chrome_tables.number_threads(pid, scan.tid)
    if (phase >= PHASES.index("B")).any():
        dur, has_dur, unpaired = _pair_scanned_events(scan, phase, thread, placed)
        note("unpaired", "begin and end events without each other were left out", unpaired)
        classes[unpaired] = CLASS_CODE["ignored"]
    solid = (classes < CLASS_CODE["device_range"]) & placed
    note("no-duration", "elements without a usable duration count as 0", solid & ~has_dur)
    if not _is_in_bounds(dur, 0, 2**61):
        bad_dur = has_dur & ((dur < 0) | (dur > 2**61))
        note("bad-duration", "negative or impossible durations count as 0", bad_dur & solid)
        dur = np.where(bad_dur, 0, dur)
    if not placed.all():
        lost = ~(placed | (classes == CLASS_CODE["meta"]))
        note("no-time", "elements without a usable start time were left out", lost & (phase >= 0))
        classes[lost] = CLASS_CODE["ignored"]
    note("phase", "elements of a phase that is not read were left out", phase == -1)
    ts = scan.ts_ns
    ts += base  # in place: the scan is not shared, and a copy would cost memory
    rows = ChromeRows(
        times={"ts_ns": ts, "dur_ns": dur},
        labels={"ph": scan.ph, "cat": scan.cat, "name": scan.name},
        classes=classes,
        thread=thread,
        thread_pid=convert_codes_to_integers(pid, pids),
        thread_tid=convert_codes_to_integers(scan.tid, tids),
        thread_process=pids,
        args=scan.args,
        fields=scan.fields,
    )
    return rows, notes


def _pair_scanned_events(
    scan: TraceScan,
    phase: npt.NDArray[np.int8],
    thread: npt.NDArray[np.signedinteger[Any]],
    placed: npt.NDArray[np.bool_],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Pair begin with end events.

    Returns (durations of all rows, whether each is known, whether a row is a begin or end without its partner).
    """
    is_begin, is_end = (phase == PHASES.index(letter) for letter in "BE")
    is_whole = not scan.skipped
    begins, ends, lengths = pair_begins_with_ends(
        scan.ts_ns, thread, is_begin & placed, is_end & placed, is_complete=is_whole
    )
    dur, has_dur = scan.dur_ns.copy(), scan.has_dur.copy()
    dur[begins], has_dur[begins] = lengths, True
    unpaired = is_begin | is_end
    unpaired[begins] = unpaired[ends] = False
    return dur, has_dur, unpaired


Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def pair_begins_with_ends(
    ts_ns: Ints, thread: npt.NDArray[Any], is_begin: Mask, is_end: Mask, *, is_complete: bool
) -> tuple[Ints, Ints, Ints]:
    """Pair begin and end events: (rows of begins, rows of their ends, durations in ns).

    An end closes the last open begin of its thread. Unless all events were read (`is_complete`), threads
    with unequal counts of the two are left out, because an end may belong to a begin that was not read.
    """
    rows = (is_begin | is_end).nonzero()[0]
    step = np.where(is_begin[rows], 1, -1)
    if not is_complete:
        balance = np.bincount(thread[rows], weights=step)
        whole = balance[thread[rows]] == 0
        rows, step = rows[whole], step[whole]
    order = np.lexsort((ts_ns[rows], thread[rows]))
    rows, step = rows[order], step[order]
    level = np.cumsum(step)
    level[step < 0] += 1
    # On one level of a thread, begins and ends alternate: a begin directly before an end is a pair.
    order = np.lexsort((level, thread[rows]))
    rows, step, level = rows[order], step[order], level[order]
    closes = (step[:-1] > 0) & (step[1:] < 0) & (level[:-1] == level[1:])
    closes &= thread[rows[:-1]] == thread[rows[1:]]
    first = closes.nonzero()[0]
    begins, ends = rows[first], rows[first + 1]
    return begins, ends, ts_ns[ends] - ts_ns[begins]


def _note_unusable_trace(scan: TraceScan, rows: ChromeRows, name: str) -> Iterator[Note]:
    """Yield a note on a trace without events, or without any that has a usable time."""
    is_meta = rows.classes == CLASS_CODE["meta"]
    if scan.skipped or not (is_meta | (rows.classes == CLASS_CODE["ignored"])).all():
        return
    count = len(is_meta) - int(np.count_nonzero(is_meta))
    if not count:
        if not scan.losses:
            yield Note("warning", NO_EVENTS, "an empty capture: it holds no event", name)
        return
    without = {
        "start (ts)": count - int(np.count_nonzero(scan.has_ts[~is_meta])),
        "phase (ph)": int(np.count_nonzero(scan.ph.codes[~is_meta] < 0)),
    }
    lacking = " and ".join(f"{number:,} have no {what}" for what, number in without.items() if number)
    message = f"none of its {count:,} events can be used: {lacking or 'none is of a kind that is read'}"
    no_start, no_phase = without.values()
    data = Data(no_start=no_start, no_phase=no_phase)
    yield Note("error", NO_TIMES, message, name, count, data=data)


def _is_in_bounds(values: npt.NDArray[np.int64], low: int, high: int) -> bool:
    """Check whether all values are between these bounds, inclusive."""
    return not len(values) or (low <= int(values.min()) and int(values.max()) <= high)


def _read_process_facts(meta: Mapping[str, Any]) -> dict[str, object]:
    """Read the facts about the process from the metadata: rank, world size, backend, host."""
    facts: dict[str, object] = {"host": meta.get("host_name")}
    distributed = meta.get("distributedInfo")
    if isinstance(distributed, dict):
        facts["rank"] = distributed.get("rank")
        facts["world_size"] = distributed.get("world_size")
        facts["backend"] = distributed.get("backend")
    return {name: value for name, value in facts.items() if value is not None}


def _find_main_pid(rows: ChromeRows, pid: Codes) -> dict[str, object]:
    """Find the pid with most host rows, if any has one."""
    counts = np.zeros(len(pid.values) + 1, np.int64)
    np.add.at(
        counts, rows.thread_process, _count_host_rows_by_thread(rows)
    )  # rows without a pid are counted in the last element
    if not counts[:-1].any():
        return {}
    value = pid.values[int(counts[:-1].argmax())]
    return {"pid": int(value) if isinstance(value, str) and value.isdecimal() else value}


def _count_host_rows_by_thread(rows: ChromeRows) -> npt.NDArray[np.int64]:
    """Count the ops, ranges and runtime calls of each thread, in chunks to bound memory."""
    is_host = rows.is_of("op", "range", "runtime")
    of_thread = np.zeros(len(rows.thread_process), np.int64)
    for first in range(0, len(is_host), COUNTED_ROWS):
        part = slice(first, first + COUNTED_ROWS)
        of_thread += np.bincount(rows.thread[part][is_host[part]], minlength=len(of_thread))
    return of_thread


def note_scan_losses(losses: tuple[DataLoss, ...], name: str) -> list[Note]:
    """Describe losses in notes: kind, size and position."""
    notes = []
    for loss in losses:
        severity: NoteSeverity = "data_loss"
        if loss.kind in ("repaired", "metadata"):
            severity = "warning"
        text = f"{LOSSES[loss.kind]} ({loss.size_bytes:,} bytes, from byte {loss.offset:,})"
        data = Data(size_bytes=loss.size_bytes)
        notes.append(Note(severity, loss.kind, text, name, loss.count, loss.offset, data))
    return notes
