"""Exclusive time of a process without a device: each instant goes to the innermost op of the step thread."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import list_starts_in_windows, mask_affordable_windows, merge_intervals
from tracekit.model.keys import find_distinct, number_keys
from tracekit.model.stages import is_collective_range
from tracekit.model.tables.slots import CLASSES
from tracekit.model.trace import Trace
from tracekit.process.calls.nesting import build_call_tree_of_rows, find_innermost_rows_in_tree
from tracekit.process.calls.op_paths import number_op_paths
from tracekit.process.collectives.compute_between_collectives import BACKWARD
from tracekit.process.exclusive_time.time_shares import NO_OP, NONE, TimeShares, merge_time_shares, number_share_keys
from tracekit.process.host.phases import find_step_thread
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names
from tracekit.process.steps.stage_lookup import find_stage_codes_at, select_outer_stages

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MAX_THREADS = 8
"""Threads examined at most: the step thread, and those that run the backward pass."""

_IN_FLIGHT = re.compile(r"(?:gloo|mpi|ucc):")
"""Ranges that last as long as a collective that the host carries out, on any thread."""


def compute_host_slots(trace: Trace, low: Ints, high: Ints) -> tuple[list[TimeShares], Ints]:
    """Compute the time shares of each window on the host: (shares, a row of `host_ops` for each path).

    At each instant the innermost op of the step thread counts; if it is in none, that of a thread which runs
    the backward pass; if that is in none, the collective that they wait for. Windows that are too expensive
    to compute are left out.
    """
    start = trace.numbers("host_ops", "ts_ns")
    collective = mark_wanted_names(trace.texts("host_ops", "name"), is_collective_range)
    lanes = _list_compute_threads(trace, collective)
    flying = _list_collectives_in_flight(trace)
    cuts = _list_host_slot_cuts(trace, [low, high], np.concatenate((*lanes, flying)))
    row = np.full(len(cuts), -1, np.int64)
    for lane in lanes:
        free = (row < 0).nonzero()[0]
        thread = np.repeat(trace.numbers("host_ops", "thread")[lane[:1]], len(free))
        row[free] = find_innermost_rows_in_tree(trace, build_call_tree_of_rows(trace, lane), thread, cuts[free])
    ops = np.concatenate(lanes)
    nothing = (row < 0).nonzero()[0]
    work = ops[~collective[ops]]
    row[nothing] = _find_awaited_collectives(trace, flying, work, cuts[nothing])
    begins = np.diff(row, prepend=-2) != 0
    is_flight = np.zeros(len(start) + 1, np.bool_)
    is_flight[flying] = True
    is_flight[ops] = False
    begins &= (row < 0) | is_flight[row]
    ts = np.concatenate((cuts, start[ops]))
    order = np.argsort(ts, kind="stable")
    ts = ts[order]
    row = np.concatenate((row, ops))[order]
    ns = np.concatenate((np.diff(cuts, append=cuts[-1:]), np.zeros(len(ops), np.int64)))[order]
    count = np.concatenate((begins, np.ones(len(ops), np.bool_)))[order].astype(np.int64)
    shared_windows = mask_affordable_windows(ts, ts, low, high).nonzero()[0]
    window, place = list_starts_in_windows(ts, low[shared_windows], high[shared_windows])
    keys, key, path_rows = _build_host_slot_keys(trace, ts, row, collective)
    return [merge_time_shares(TimeShares(keys, shared_windows[window], key[place], count[place], ns[place]))], path_rows


def _build_host_slot_keys(trace: Trace, ts_ns: Ints, row: Ints, collective: Bools) -> tuple[Ints, Ints, Ints]:
    """Build the keys of host time: (distinct keys, key at each instant, a row of `host_ops` for each path)."""
    rows, place = number_keys(row)
    path, path_rows = np.full(len(rows), NO_OP), np.empty(0, np.int64)
    has_row = rows >= 0
    path[has_row], path_rows = number_op_paths(trace, rows[has_row])
    kind = np.where(np.append(collective, False)[rows], _COLLECTIVE, _HOST)
    kind = np.where(has_row, kind, _NO_OP)
    none = np.full(len(ts_ns), NONE, np.int64)
    keys, key = number_share_keys((find_stage_codes_at(trace, ts_ns), kind[place], none, path[place], none))
    return keys, key, path_rows


_COLLECTIVE, _HOST, _NO_OP = (CLASSES.index(name) for name in ("collective", "host", "no_op"))


def _list_compute_threads(trace: Trace, collective: Bools) -> list[Ints]:
    """List ops and collectives (rows of `host_ops`) of the step thread, then of each thread of the backward pass."""
    names = trace.texts("host_ops", "name")
    thread, op = trace.numbers("host_ops", "thread"), mark_rows_of_kind(trace, "host_ops", "op")
    first = trace.derived(find_step_thread)
    if first is None:
        threads, counts = np.unique(thread[op] if op.any() else thread, return_counts=True)
        first = int(threads[counts.argmax()]) if len(threads) else -1
    backward = op & mark_wanted_names(names, lambda name: name.startswith(BACKWARD))
    backward_threads, counts = np.unique(thread[backward & (thread != first)], return_counts=True)
    backward_threads = backward_threads[np.argsort(-counts, kind="stable")][: MAX_THREADS - 1]
    chosen = op | (collective & mark_rows_of_kind(trace, "host_ops", "range"))
    return [(chosen & (thread == number)).nonzero()[0] for number in (first, *backward_threads.tolist())]


def _list_collectives_in_flight(trace: Trace) -> Ints:
    """List the rows of `host_ops` that last as long as a collective, sorted by end."""
    names = trace.texts("host_ops", "name")
    is_range = mark_rows_of_kind(trace, "host_ops", "range")
    rows = (mark_wanted_names(names, _IN_FLIGHT.match) & is_range).nonzero()[0]
    if not len(rows):
        return rows
    start, length = (trace.numbers("host_ops", name)[rows] for name in ("ts_ns", "dur_ns"))
    rank = np.argsort(np.argsort(np.array(names.texts, object)))[names.codes[rows]]
    return rows[np.lexsort((rank, start, start + length))]


def _list_host_slot_cuts(trace: Trace, edges: list[Ints], rows: Ints) -> Ints:
    """List every instant at which a window, a stage or any of these rows begins or ends."""
    stages = trace.derived(select_outer_stages)
    start, length = (trace.numbers("host_ops", name)[rows] for name in ("ts_ns", "dur_ns"))
    of_stages = (stages.ts_ns, stages.end_ns)
    return find_distinct(np.concatenate((*edges, start, start + length, *of_stages)))


def _find_awaited_collectives(trace: Trace, flying: Ints, work: Ints, ts_ns: Ints) -> Ints:
    """Find the collective (row of `host_ops`) that is awaited at each instant outside of work; -1 for none.

    In a gap in which collectives end, the host waits until the last of them ends: for the one that ends next,
    while any is in flight. A gap in which none ends is Python at work.
    """
    if not len(flying) or not len(ts_ns):
        return np.full(len(ts_ns), -1, np.int64)
    start = trace.numbers("host_ops", "ts_ns")
    end = start + trace.numbers("host_ops", "dur_ns")
    busy = merge_intervals(start[work], end[work])
    resumes = np.append(busy.start, np.iinfo(np.int64).max)[np.searchsorted(busy.start, ts_ns)]
    begun, ended = np.sort(start[flying]), end[flying]
    following = np.searchsorted(ended, ts_ns, side="right")
    ends_in_time = np.append(ended, np.iinfo(np.int64).max)[following] <= resumes
    running = np.searchsorted(begun, ts_ns, side="right") > following
    is_awaited = ends_in_time & running & (following < len(flying))
    return np.where(is_awaited, np.append(flying, -1)[following], -1)
