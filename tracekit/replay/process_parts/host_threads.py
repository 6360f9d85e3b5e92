"""Host threads of a graph: an instant at every begin and end of a row, and the time from one to the next."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.records import dataclass
from tracekit.model.sweeps import count_below
from tracekit.model.tables.arrays import Coded
from tracekit.model.tables.keys import find_distinct, number_keys
from tracekit.model.trace import Trace
from tracekit.process.host.phases import find_step_thread
from tracekit.process.host.tree import HOLDER, HostThreadRows, build_host_tree
from tracekit.process.steps.windows import find_steps_and_stages
from tracekit.replay.edges import CALL, HOST_GAP, HOST_ROW, EdgeList, Ints, Mask, Numbers


@dataclass(frozen=True, slots=True, eq=False)
class CallPaths:
    """Distinct call paths: the row that each ends in (`name`, `holder`), and the path around it (-1: none).

    A path comes after the path around it. `holder` indexes `HOLDERS`.
    """

    parent: Numbers
    name: Coded
    holder: npt.NDArray[np.int8]

    def __len__(self) -> int:
        """Count the paths."""
        return len(self.parent)


@dataclass(frozen=True, slots=True, eq=False)
class HostThreads:
    """Instants of the host threads of a process, by thread and time.

    - `path`: what the thread does from each instant to the next (a row of `paths`; -1: nothing recorded).
    - `spent_ns`: time from the instant before, of the same thread; 0 for the first of a thread. Waits are taken off it.
    - `quiet`: the thread shows no work from this instant on: no row, or only one that names what is around it.
    - `places`: place of each instant on the axis of `rows`.
    """

    time: Ints
    thread: npt.NDArray[np.int32]
    path: Numbers
    paths: CallPaths
    spent_ns: Ints
    quiet: Mask
    rows: HostThreadRows
    places: Ints

    def find_instants(self, thread: npt.NDArray[np.integer], ts_ns: Ints) -> Ints:
        """Find the last instant of each thread at or before a time; -1 if the thread has none."""
        found = count_below(self.places, _lift(self.rows, thread, ts_ns), right=True) - 1
        found[(found >= 0) & (self.thread[found] != thread)] = -1
        return found


def build_host_threads(trace: Trace) -> HostThreads:
    """Build the instants of all host threads, with the call path of each segment."""
    rows = build_host_tree(trace, has_samples=False)
    places = _insert_places(rows.edges, find_distinct(_list_step_bounds(trace, rows)))
    span = rows.axis.span if rows.axis.points is None else 2 * len(rows.axis.points) + 1
    lane = places // span - 1
    time, thread = rows.axis.times(lane, places), lane.astype(np.int32)
    running = rows.find_running(lane, time)
    path_of_row, paths = _number_paths(rows)
    path = np.where(running >= 0, path_of_row[running], -1).astype(np.int32) if len(rows.begin) else _none(time)
    spent = np.zeros(len(time), np.int64)
    follows = _mark_followers(thread)
    spent[follows] = np.diff(time)[follows[1:]]
    quiet = path < 0
    quiet[~quiet] = _mark_quiet_paths(rows, running[~quiet])
    return HostThreads(time, thread, path, paths, spent, quiet, rows, places)


def _insert_places(places: Ints, more: Ints) -> Ints:
    """Insert distinct places among ascending ones."""
    at = count_below(places, more)
    is_new = np.append(places, -1)[at] != more
    inserted: Ints = np.insert(places, at[is_new], more[is_new])
    return inserted


def _none(like: Ints) -> Numbers:
    return np.full(len(like), -1, np.int32)


def _lift(rows: HostThreadRows, thread: npt.NDArray[np.integer], time: Ints) -> Ints:
    """Place instants of threads on one axis."""
    return rows.axis.lift(thread.astype(np.int64), time)


def _list_step_bounds(trace: Trace, rows: HostThreadRows) -> Ints:
    """List the begins and ends of steps as places on the thread that names them."""
    steps, thread = trace.derived(find_steps_and_stages).step_rows, trace.derived(find_step_thread)
    if thread is None:
        threads, counts = np.unique(rows.thread, return_counts=True)
        if not len(threads):
            return np.empty(0, np.int64)
        thread = int(threads[counts.argmax()])
    times = np.concatenate((steps.ts_ns, steps.end_ns))
    return _lift(rows, np.full(len(times), thread, np.int64), times)


def _mark_followers(thread: npt.NDArray[np.int32]) -> Mask:
    """Mark instants that follow another of their thread."""
    follows = np.zeros(len(thread), np.bool_)
    follows[1:] = thread[1:] == thread[:-1]
    return follows


def _number_paths(rows: HostThreadRows) -> tuple[Numbers, CallPaths]:
    """Assign a number to the call path of each row: (number of each row, paths)."""
    count = len(rows.begin)
    holder = rows.holder.astype(np.int64)
    key = (rows.name.codes.astype(np.int64) + 1) * 64 + holder
    parent = rows.tree.parent
    numbered = None
    if sweeps.native is not None and count:
        numbered = sweeps.number_call_paths(parent, np.arange(count), key)
    if numbered is None:
        numbered = _number_paths_by_depth(parent, key)
    number, first = numbered
    above = parent[first]
    around = np.where(above >= 0, number[above], -1).astype(np.int32)
    name = Coded(rows.name.codes[first], rows.name.texts)
    return number, CallPaths(around, name, rows.holder[first])


def _number_paths_by_depth(parent: npt.NDArray[np.integer], key: Ints) -> tuple[Numbers, Ints]:
    """Number the paths level by level, in the order of their first rows."""
    depth = np.zeros(len(parent), np.int64)
    above = parent.astype(np.int64)
    while (inside := above >= 0).any():
        depth[inside] += 1
        above[inside] = parent[above[inside]]
    group = np.full(len(parent) + 1, -1, np.int64)
    known = 0
    for level in range(int(depth.max(initial=-1)) + 1):
        rows = np.flatnonzero(depth == level)
        around = group[parent[rows]] + 1
        distinct, number = number_keys(around * (int(key.max()) + 1) + key[rows])
        group[rows] = known + number
        known += len(distinct)
    _, first, number = np.unique(group[:-1], return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return place[number], first[order]


NAMES_OF_WORK = ("gloo:", "mpi:", "ucc:", "nccl:", "enumerate(DataLoader)")
"""Ranges in which a thread works without a row inside."""


def _mark_quiet_paths(rows: HostThreadRows, running: Ints) -> Mask:
    """Mark rows that do not show work of their thread: ranges around nothing, and Python frames that wait for a thread."""
    works = np.array([text.startswith(NAMES_OF_WORK) for text in rows.name.texts] or [False])
    only_names = np.isin(rows.holder, (HOLDER["range"],)) & ~works[rows.name.codes] if len(rows.begin) else rows.waits
    waits = rows.waits & np.isin(rows.holder, (HOLDER["python"], HOLDER["off_cpu"], HOLDER["system"]))
    quiet: Mask = (only_names | waits)[running]
    return quiet


def add_host_edges(threads: HostThreads, edges: EdgeList) -> None:
    """Add the edges that follow each thread."""
    follows, kind = classify_host_edges(threads.thread, threads.path, threads.paths)
    edges.add(follows - 1, follows, threads.spent_ns[follows], kind, threads.path[follows - 1])


def classify_host_edges(thread: Numbers, path: Numbers, paths: CallPaths) -> tuple[Ints, npt.NDArray[np.int8]]:
    """List the edges that follow each thread: (instants that they lead to, kinds). Each leads from the instant before."""
    follows = np.flatnonzero(_mark_followers(thread))
    is_call = np.isin(paths.holder, (HOLDER["call"], HOLDER["sync"]))
    kind_of_path = np.append(np.where(is_call, CALL, HOST_ROW), HOST_GAP).astype(np.int8)
    return follows, kind_of_path[path[follows - 1]]
