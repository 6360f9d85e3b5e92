"""Selections of host time: edges of host threads by the rows, pauses and windows that they are in."""

from __future__ import annotations

import re

import numpy as np

from tracekit.process.host.tree import HOLDER
from tracekit.replay.changes import Selection
from tracekit.replay.changing.selection import MICRO, JobIndex, evaluate_in_chunks, find_path_begins, mark_windows
from tracekit.replay.edges import HOST_KINDS, SYNC_RETURN, Edges, Ints, Mask, Numbers, Rows
from tracekit.replay.process_parts.host_threads import NAMES_OF_WORK

_SHOWS_NO_WORK = [HOLDER[name] for name in ("range", "python", "gc", "off_cpu", "sample")]
_SHOWS_WORK = f"^(?:{'|'.join(map(re.escape, NAMES_OF_WORK))})"


def select_host_edges(index: JobIndex, where: Selection, *, returns: bool = False) -> Rows:
    """Select edges of host threads; with `returns` also what calls cost after what they waited for."""
    return index.recall((select_host_edges, where, returns), lambda: list_host_edges(index, where, returns=returns))


def list_host_edges(index: JobIndex, where: Selection, *, returns: bool) -> Rows:
    """List edges of host threads as `select_host_edges` does, and forget them."""
    job = index.job
    edges, rows = job.edges, index.list_edges(*HOST_KINDS)
    if returns:
        rows = np.concatenate((rows, index.list_edges(SYNC_RETURN)))

    def mark(rows: Rows) -> Mask:
        path, time = edges.owner[rows], job.time[edges.target[rows]] - 1
        return mark_windows(index, where, index.find_edge_processes(rows), time) & _mark_paths(index, where, path)

    chosen = evaluate_in_chunks(rows, mark)
    if where.after:
        chosen &= _mark_silence_after(index, where.after, rows)
    if where.at_least_us:
        chosen &= _measure_stretches(edges, rows, chosen) >= where.at_least_us * MICRO
    if where.before:
        begins = find_path_begins(index, where.before)
        chosen &= begins[edges.target[rows]]
    selected: Rows = rows[chosen]
    return selected


def _mark_paths(index: JobIndex, where: Selection, path: Numbers) -> Mask:
    """Mark paths that lead to a selected row, through one, and show no work if silence is selected."""
    chosen = np.ones(len(path), np.bool_)
    if where.row:
        chosen &= index.match_paths(where.row)[path]
    if where.by:
        chosen &= index.match_within(where.by)[path]
    if where.silent:
        chosen &= _mark_silent_paths(index, path)
    return chosen


def _mark_silent_paths(index: JobIndex, path: Numbers) -> Mask:
    """Mark paths that show no work: no row, or one that only names what runs."""
    is_silent: Mask = (path < 0) | np.isin(np.append(index.holder, -1)[path], _SHOWS_NO_WORK)
    return is_silent & ~index.match_within(_SHOWS_WORK)[path]


def _mark_silence_after(index: JobIndex, pattern: str, rows: Rows) -> Mask:
    """Mark the edges of stretches of silent host time that begin where a row of a matching name ends."""
    edges = index.job.edges
    order = np.argsort(edges.target[rows], kind="stable")
    path = edges.owner[rows[order]]
    is_silent = _mark_silent_paths(index, path)
    follows = np.append(False, edges.source[rows[order[1:]]] == edges.target[rows[order[:-1]]])
    begins = is_silent & ~(follows & np.append(False, is_silent[:-1]))
    matches = np.append(False, index.match_within(pattern)[path[:-1]]) & follows
    first = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    marked = np.zeros(len(rows), np.bool_)
    marked[order] = is_silent & matches[first]
    return marked


def find_repeated_calls(index: JobIndex, where: Selection) -> tuple[Rows, Rows]:
    """Find calls that follow a call of the same selection without other work between: (edges of the calls, of gaps before them)."""
    edges = index.job.edges
    rows = index.list_edges(*HOST_KINDS)
    rows = rows[np.argsort(edges.target[rows], kind="stable")]
    path = edges.owner[rows]
    is_call = index.match_within(where.row or "")[path]
    is_silent = ~is_call & _mark_silent_paths(index, path)
    chosen = mark_windows(index, where, index.find_edge_processes(rows), index.job.time[edges.target[rows]] - 1)
    chosen &= is_call | is_silent
    follows = np.append(False, edges.source[rows[1:]] == edges.target[rows[:-1]])[: len(rows)]
    begins = chosen & ~(follows & np.append(False, chosen[:-1])[: len(rows)])
    stretch = np.cumsum(begins) - 1
    fresh = chosen & is_call & find_path_begins(index, where.row or "")[edges.source[rows]]
    number = np.cumsum(fresh)
    before = np.append(number[begins] - fresh[begins], 0)[stretch]
    last = np.append(np.maximum.reduceat(number, np.flatnonzero(begins)) if begins.any() else number[:0], 0)[stretch]
    number = number - before
    calls = chosen & is_call & (number > 1)
    gaps = chosen & is_silent & (number > 0) & (number < last - before)
    return rows[calls], rows[gaps]


def _measure_stretches(edges: Edges, rows: Rows, chosen: Mask) -> Ints:
    """Measure the stretch of consecutive chosen edges of a thread that each edge is in."""
    length = np.zeros(len(rows), np.int64)
    places = np.flatnonzero(chosen)
    if not len(places):
        return length
    places = places[np.argsort(edges.target[rows[places]], kind="stable")]
    source, target = edges.source[rows[places]], edges.target[rows[places]]
    stretch = np.cumsum(np.append(True, source[1:] != target[:-1])) - 1
    sums = np.bincount(stretch, weights=np.maximum(edges.weight[rows[places]], 0)).astype(np.int64)
    length[places] = sums[stretch]
    return length
