"""NVTX ranges of an Nsight Systems export: read once for all processes, then selected by process."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables import HOST_OP_KINDS
from tracekit.model.tables.arrays import Coded
from tracekit.model.trace import Note, NoteSeverity
from tracekit.readers.chrome.scan import Sparse, choose_code_type
from tracekit.readers.nsys.content import MAX_NS, ExportClock, find_capture_year
from tracekit.readers.nsys.nvtx import arguments as nsys_nvtx_args
from tracekit.readers.nsys.nvtx import rows as nsys_nvtx_rows
from tracekit.readers.nsys.nvtx.rows import TABLE, NvtxRows
from tracekit.readers.nsys.sqlite.connection import ExportDatabase, has_table_columns
from tracekit.readers.nsys.sqlite.expressions import MISSING

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

CATEGORY, MARK, THREAD_NAME, DOMAIN = 33, 34, 39, 75
RANGES = (59, 60, 70, 71)
"""Event types of ranges: push/pop and start/end, each also with registered strings."""

OPEN_WITHIN_NS = 1_000
"""A range that ends this close to the recording's end was still open."""

SOON_NS = 5_000_000
"""Longest time in ns from a recording's start to the start of the range that triggered it.

Measured: at most 1.3 ms, while a program takes 56 ms to its first range.
"""

LAST_TO_END_WITH_RANGE = 2022
"""Last year of nsys whose recordings end in the same instant as the capture range.

Later recordings end some microseconds after it, so the range has an end.
"""

FEW_PAIRS = 2**16
"""Up to this many (thread, domain) pairs, categories are looked up per pair instead of per range."""

DEFAULT_CATEGORY, OP_CATEGORY = "nvtx", "cpu_op"
_NOTHING = np.empty(0, np.int64)
_OP, _RANGE = HOST_OP_KINDS.index("op"), HOST_OP_KINDS.index("range")

_NOTES: tuple[tuple[NoteSeverity, str, str], ...] = (
    ("info", "open-ranges", "NVTX ranges were still open when the recording ended: they count in no statistic"),
    ("warning", "no-time", "NVTX ranges without a usable start time were left out"),
    ("warning", "bad-duration", "NVTX ranges with an end that cannot be: their durations count as 0"),
    ("warning", "no-name", "NVTX ranges whose name cannot be read"),
    ("info", "negative-time", "NVTX ranges begin before the recording does"),
    (
        "info",
        "capture-range",
        "the range that began first ended with a late recording: it counts as the captured one, and complete",
    ),
)
"""Severity, code and text of notes with a count per process; the code is the key of the count."""


@dataclass(frozen=True, slots=True)
class NvtxRanges:
    """Ranges of all processes, sorted by start, longest first, then thread and name.

    `thread`, `name` (-1: not readable) and `cat` are codes into `gtids` (the profiler's thread ids, -1 unknown),
    `names` and `cats`; `kind` into `HOST_OP_KINDS`. `is_open` ranges were still open when the recording
    ended; their `dur_ns` is a lower bound. `args` refer to positions in this order.
    """

    ts_ns: Ints
    dur_ns: Ints
    thread: npt.NDArray[Any]
    name: npt.NDArray[Any]
    cat: npt.NDArray[Any]
    kind: npt.NDArray[np.int8]
    is_open: Bools
    gtids: Ints
    names: list[str]
    cats: list[str]
    args: Mapping[str, Sparse]
    thread_names: Mapping[int, str]
    """Thread names by the profiler's thread id."""
    counts: Mapping[tuple[str, int], int]
    """Counts by (note code or `marks`, process)."""


@dataclass(frozen=True, slots=True)
class NvtxHostRows:
    """Ranges of one process as rows of `host_ops`, without `id` and `thread`.

    `kind` are codes into `HOST_OP_KINDS`, `tid` is -1 if unknown, `args` refer to positions.
    """

    ts_ns: Ints
    dur_ns: Ints
    name: Coded
    kind: npt.NDArray[np.int8]
    cat: Coded
    tid: Codes
    args: Mapping[str, Sparse] = field(default_factory=dict[str, Sparse])


def read_nvtx_ranges(db: ExportDatabase, clock: ExportClock, args: Collection[str] | None = None) -> NvtxRanges | None:
    """Read the ranges of a file; None if NVTX was not recorded. `args` names the wanted arguments, None for all."""
    if not has_table_columns(db, TABLE, "start", "eventType"):
        return None
    rows = nsys_nvtx_rows.read(db, with_rows=nsys_nvtx_args.is_any_argument_wanted(db, args))
    pid_of = extract_pids(rows.gtids)
    counts: dict[tuple[str, int], int] = {}
    count = partial(_count_by_process, counts, rows.thread, pid_of)
    start, end = rows.start, rows.end
    is_range = np.isin(rows.type, np.array(RANGES, np.int16))
    placed = (start > -MAX_NS) & (start < MAX_NS)
    count("marks", rows.type == MARK)
    count("no-time", is_range & ~placed)
    last = max(_find_latest_time(start), _find_latest_time(end)) if clock.end_ns is None else clock.end_ns
    thread_names, before = _read_nvtx_thread_names(rows), _find_early_processes(rows, clock)
    positions = np.flatnonzero(is_range & placed).astype(np.int32)
    ts, until = start[positions], end[positions]
    # Release columns as soon as they are used: there are millions of ranges.
    rows = replace(rows, start=_NOTHING, end=_NOTHING)
    del start, end, is_range, placed
    count("negative-time", positions[ts < clock.start_ns])
    count("no-name", positions[rows.name[positions] < 0])
    is_open, unsound = _mark_open_and_unsound(ts, until, clock)
    count("bad-duration", positions[unsound])
    # Without a recorded end, no range ends with it: no time reaches MAX_NS.
    ends_with_it = until == (MAX_NS if clock.end_ns is None else clock.end_ns)
    captured = np.flatnonzero(is_open & ends_with_it)
    pid = pid_of[rows.thread[positions[captured]]]
    is_captured = _is_capture_range(captured, ts, pid, before, clock.start_ns + SOON_NS)
    captured = captured[is_captured]
    if (find_capture_year(db) or 0) <= LAST_TO_END_WITH_RANGE:
        count("capture-range", positions[captured])
        is_open[captured] = False
    until[is_open] = np.maximum(last, ts[is_open])
    until[unsound] = ts[unsound]
    order = _sort_nvtx_ranges(rows, positions, ts, until).astype(np.int32)
    positions, ts, until, is_open = _reorder_columns(order, positions, ts, until, is_open)
    del order
    count("open-ranges", positions[is_open])
    cat, cats = _find_range_categories(rows, positions)
    # A name with a tail is torch's own only in the default domain.
    ops = np.append(rows.is_op, [False])[rows.name[positions]] & (cat == 0)
    cat[ops] = 1
    until -= ts
    ts += clock.base_ns
    return NvtxRanges(
        ts,
        until,
        rows.thread[positions].astype(choose_code_type(len(rows.gtids))),
        rows.name[positions].astype(choose_code_type(len(rows.names))),
        cat.astype(choose_code_type(len(cats))),
        np.where(ops, np.int8(_OP), np.int8(_RANGE)),
        is_open,
        rows.gtids,
        rows.names,
        cats,
        nsys_nvtx_args.read(db, rows, positions, args),
        thread_names,
        counts,
    )


def _mark_open_and_unsound(ts: Ints, until: Ints, clock: ExportClock) -> tuple[Bools, Bools]:
    """Mark ranges without an own end, and ranges with an impossible end."""
    open_from = MAX_NS if clock.end_ns is None else clock.end_ns - OPEN_WITHIN_NS
    is_open = (until == MISSING) | ((until >= open_from) & (until < MAX_NS) & (until >= ts))
    return is_open, ~is_open & ((until < ts) | (until >= MAX_NS))


def _count_by_process(
    counts: dict[tuple[str, int], int], thread: Codes, pid_of: npt.NDArray[np.int64], what: str, which: Bools | Codes
) -> None:
    """Add the number of these rows to the counts of each process."""
    if which.dtype == np.bool_ and not which.any():
        return
    number = np.bincount(thread[which], minlength=len(pid_of))
    for code in np.flatnonzero(number).tolist():
        key = (what, int(pid_of[code]))
        counts[key] = counts.get(key, 0) + int(number[code])


def select_complete_ranges(all_ranges: NvtxRanges, pid: int | None) -> NvtxHostRows:
    """Select the complete ranges of one process (None: all), for `host_ops`."""
    return _make_range_rows(all_ranges, np.flatnonzero(_mark_process_ranges(all_ranges, pid) & ~all_ranges.is_open))


def select_open_ranges(all_ranges: NvtxRanges, pid: int | None) -> NvtxHostRows:
    """Select the still open ranges of one process (None: all), for `open_ranges`."""
    return _make_range_rows(all_ranges, np.flatnonzero(_mark_process_ranges(all_ranges, pid) & all_ranges.is_open))


def drop_process_ranges(all_ranges: NvtxRanges, pid: int | None) -> NvtxRanges:
    """Drop the ranges of one process (None: all). Counts are kept."""
    kept = np.flatnonzero(~_mark_process_ranges(all_ranges, pid))
    return replace(
        all_ranges,
        ts_ns=all_ranges.ts_ns[kept],
        dur_ns=all_ranges.dur_ns[kept],
        thread=all_ranges.thread[kept],
        name=all_ranges.name[kept],
        cat=all_ranges.cat[kept],
        kind=all_ranges.kind[kept],
        is_open=all_ranges.is_open[kept],
        args=_renumber_range_args(all_ranges, kept),
    )


def count_process_ranges(all_ranges: NvtxRanges) -> dict[int, int]:
    """Count the ranges of each process, including open ones; -1 is the unknown process."""
    number = np.bincount(all_ranges.thread, minlength=len(all_ranges.gtids))
    total: dict[int, int] = {}
    for pid, count in zip(extract_pids(all_ranges.gtids).tolist(), number.tolist(), strict=True):
        if count:
            total[pid] = total.get(pid, 0) + count
    return total


def note_nvtx_ranges(all_ranges: NvtxRanges, pid: int | None) -> list[Note]:
    """Build the notes on the ranges of one process (None: all)."""
    range_notes = []
    for severity, code, text in _NOTES:
        number = get_nvtx_count(all_ranges, code, pid)
        if number:
            range_notes.append(Note(severity, code, text, count=number))
    return range_notes


def get_nvtx_count(all_ranges: NvtxRanges, what: str, pid: int | None) -> int:
    """Count `what` (a note code or `marks`) in one process (None: all)."""
    return sum(n for (code, p), n in all_ranges.counts.items() if code == what and pid in (None, p))


def extract_pids(gtids: Ints) -> Ints:
    """Extract the pid from the profiler's thread ids, -1 if unknown."""
    return np.where(gtids >= 0, (gtids >> 24) & 0xFFFFFF, -1)


def _mark_process_ranges(all_ranges: NvtxRanges, pid: int | None) -> Bools:
    """Mark the ranges of a process."""
    if pid is None:
        return np.ones(len(all_ranges.ts_ns), np.bool_)
    of_process: Bools = (extract_pids(all_ranges.gtids) == pid)[all_ranges.thread]
    return of_process


def _make_range_rows(all_ranges: NvtxRanges, positions: Ints) -> NvtxHostRows:
    """Build the rows of these ranges, with their arguments."""
    tids = np.where(all_ranges.gtids >= 0, all_ranges.gtids & 0xFFFFFF, -1).astype(np.int32)
    return NvtxHostRows(
        all_ranges.ts_ns[positions],
        all_ranges.dur_ns[positions],
        _code_used_names(all_ranges.name[positions], all_ranges.names),
        all_ranges.kind[positions],
        _code_used_names(all_ranges.cat[positions], all_ranges.cats),
        tids[all_ranges.thread[positions]],
        _renumber_range_args(all_ranges, positions),
    )


def _renumber_range_args(all_ranges: NvtxRanges, positions: Ints) -> dict[str, Sparse]:
    """Renumber the arguments of these ranges by position among them. Omits arguments that none has."""
    args: dict[str, Sparse] = {}
    if not all_ranges.args:
        return args
    new = np.full(len(all_ranges.ts_ns), -1, np.int32)
    new[positions] = np.arange(len(positions), dtype=np.int32)
    for key, column in all_ranges.args.items():
        of_process = new[column.rows] >= 0
        if of_process.any():
            args[key] = nsys_nvtx_args.compact_sparse_column(
                new[column.rows][of_process], column.values[of_process], column.categories
            )
    return args


def _code_used_names(codes: npt.NDArray[Any], names: list[str]) -> Coded:
    """Code names with only the texts in use, in the order of `names`."""
    used = np.zeros(len(names) + 1, np.bool_)
    used[codes] = True  # -1, no name, marks the last entry
    used_codes = np.flatnonzero(used[:-1])
    # An operator and another range may have the same name.
    place: dict[str, int] = {}
    places = [place.setdefault(names[code], len(place)) for code in used_codes.tolist()]
    renumber = np.full(len(names) + 1, -1, choose_code_type(len(place)))
    renumber[used_codes] = places
    return Coded(renumber[codes], tuple(place))


def _find_latest_time(times: Ints) -> int:
    """Find the latest usable time; `-MAX_NS` if there is none."""
    return int(times[times < MAX_NS].max(initial=-MAX_NS))


def _sort_nvtx_ranges(rows: NvtxRows, positions: Codes, ts: Ints, until: Ints) -> Ints:
    """Sort by start, longest first, thread, name. Exporters guarantee no order."""
    order = np.argsort(ts, kind="stable")
    sorted_ts = ts[order]
    tied = sorted_ts[1:] == sorted_ts[:-1]
    if tied.any():
        several = np.flatnonzero(np.append(tied, [False]) | np.append([False], tied))
        sub = order[several]
        name = np.append(np.argsort(np.argsort(np.array(rows.names, object))), [-1])
        gtid = rows.gtids[rows.thread[positions[sub]]]
        domain = rows.domains[rows.domain[positions[sub]]]
        keys = (domain, name[rows.name[positions[sub]]], gtid, -until[sub], ts[sub])
        order[several] = sub[np.lexsort(keys)]
    return order


def _reorder_columns(order: Codes, *columns: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
    """Reorder the columns. Returns them unchanged if they are already sorted, as exporters usually write them."""
    if not (order[1:] < order[:-1]).any():
        return columns
    return tuple(column[order] for column in columns)


def _find_range_categories(rows: NvtxRows, positions: Codes) -> tuple[Codes, list[str]]:
    """Find (category codes, categories): each range's domain name, or the default category.

    A domain is named by the row that created it in the same process; hand-made extracts lack those rows.
    """
    pid_of = extract_pids(rows.gtids)
    width = max(len(rows.domains), 1)
    place = np.unique(pid_of, return_inverse=True)[1]
    # One number per (process, domain) pair.
    keys = place.astype(np.int64) * width
    named = np.flatnonzero((rows.type == DOMAIN) & (rows.name >= 0))
    # Sorted by name, so the result does not depend on row order if a domain has several names.
    named_keys = keys[rows.thread[named]] + rows.domain[named]
    names = [rows.names[code] for code in rows.name[named].tolist()]
    pairs = sorted(zip(names, named_keys.tolist(), strict=True))
    texts = {key: name for name, key in pairs if name}
    cats = [DEFAULT_CATEGORY, OP_CATEGORY, *sorted({*texts.values()} - {DEFAULT_CATEGORY})]
    # A domain may be named like the category of operators: its own code comes later and counts.
    number = {name: code for code, name in enumerate(cats)}
    sorted_keys = sorted(texts)
    code = np.array([*(number.get(texts[key], 0) for key in sorted_keys), 0], np.int32)

    def category(category_keys: Ints) -> Codes:
        slot = np.searchsorted(np.array(sorted_keys, np.int64), category_keys)
        hit = np.array([*sorted_keys, -1], np.int64)[slot] == category_keys
        return np.where(hit, code[slot], np.int32(0))

    if len(keys) * width > FEW_PAIRS:
        return category(keys[rows.thread[positions]] + rows.domain[positions]), cats
    of_pair = category((keys[:, np.newaxis] + np.arange(width)).ravel())
    return of_pair[rows.thread[positions].astype(np.int32) * width + rows.domain[positions]], cats


def _read_nvtx_thread_names(rows: NvtxRows) -> dict[int, str]:
    """Read thread names set through NVTX. Of several, the last in time is kept."""
    positions = np.flatnonzero((rows.type == THREAD_NAME) & (rows.name >= 0))
    positions = positions[np.lexsort((rows.name[positions], rows.start[positions]))]
    gtids = rows.gtids[rows.thread[positions]].tolist()
    names = [rows.names[code] for code in rows.name[positions].tolist()]
    return {gtid: name for gtid, name in zip(gtids, names, strict=True) if gtid >= 0 and name}


def _find_early_processes(rows: NvtxRows, clock: ExportClock) -> Ints:
    """Find the processes that ran before the recording: those that created domains, categories or thread names."""
    early = (rows.start < clock.start_ns) & (rows.start > -MAX_NS)
    early &= np.isin(rows.type, np.array((CATEGORY, THREAD_NAME, DOMAIN), np.int16))
    return np.unique(extract_pids(rows.gtids)[rows.thread[early]])


def _is_capture_range(ends: Ints, ts: Ints, pid: Ints, before: Ints, begun: int) -> Bools:
    """Mark the range that triggered the capture, among those that end exactly with the recording (`ends`).

    It is the only range that began first, either in a process that ran `before` the recording or too soon (before
    `begun`) for a program to have started since. A first range in a delayed capture that never ends looks the same;
    a note mentions it.
    """
    if not len(ends):
        return np.zeros(0, np.bool_)
    first = ts.min()
    is_only_one = np.count_nonzero(ts == first) == 1
    captured: Bools = (ts[ends] == first) & (np.isin(pid, before) | (first <= begun)) & is_only_one
    return captured
