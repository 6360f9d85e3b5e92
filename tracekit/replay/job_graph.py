"""The dependency graph of a job: the graphs of its processes on one clock, joined where they meet in collectives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracekit.job.collectives.matching import CLOCK, list_matched_collectives, measure_clock_offsets
from tracekit.model.records import dataclass
from tracekit.model.system.freed_memory import release_freed_memory
from tracekit.model.tables import TABLES, concatenate_table_parts
from tracekit.model.tables.arrays import Coded
from tracekit.model.trace import Measurements, Source, add_key_columns
from tracekit.replay.edges import (
    ARRIVAL,
    DEVICE_KINDS,
    HOST_KINDS,
    OWN_LENGTH,
    TRANSFER,
    EdgeList,
    Edges,
    Ints,
    Mask,
    Numbers,
    concatenate_edges,
    make_empty_edges,
    mark_kinds,
)
from tracekit.replay.process_graph import ProcessGraph
from tracekit.replay.same_place_waits import add_same_place_waits
from tracekit.replay.settle import SettledGraph, settle_graph

ONE_HOST_NS = 1_000_000
"""Clocks of one host that seem closer than this are one clock: ranks leave a collective apart."""
CERTAIN_SIGMAS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """Matched collectives: the arrival instant of each, and for every member its process, row, and instants.

    A member's `arrival` is the instant at which the last member arrives.
    """

    arrival: Numbers
    process: Ints
    begin: Numbers
    end: Numbers
    op: Ints
    group: Ints
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class JobGraph:
    """Graph of all processes of a job. Instants of process p are those from `first[p]` on; owners of edges likewise.

    `first_path` and `first_op` number the paths and ops of all processes; the last element of each is the total.
    `unmatched` counts collectives that take their own time, because no other rank was seen to meet in them.
    """

    processes: tuple[ProcessGraph, ...]
    first: Ints
    first_path: Ints
    first_op: Ints
    settled: SettledGraph
    meeting: Meeting
    unmatched: int
    offset_ns: Ints

    @property
    def time(self) -> Ints:
        """Recorded time of each instant, on the common clock."""
        return self.settled.time

    @property
    def edges(self) -> Edges:
        """All edges."""
        return self.settled.edges

    def process_of(self, instants: Numbers) -> Ints:
        """Find the process of each instant; the number of processes for arrivals of collectives."""
        return np.searchsorted(self.first, instants, side="right") - 1


def join_processes(graphs: Iterable[ProcessGraph]) -> JobGraph:
    """Join the graphs of the processes of one job.

    Edges of the processes are taken over and freed one by one: a generator of graphs saves their memory.
    """
    processes, taken = _take_over_edges(graphs)
    first = _count_up([len(graph.time) for graph in processes])
    first_path = _count_up([len(graph.paths) for graph in processes])
    first_op = _count_up([len(graph.ops) for graph in processes])
    matching = _match_meetings(processes)
    for number, offset in enumerate(matching.offset_ns.tolist()):
        processes[number] = _shift_clock(processes[number], offset)
    listed = EdgeList()
    time = np.concatenate([graph.time for graph in processes]) if processes else np.empty(0, np.int64)
    meeting, arrivals, unmatched = _join_collectives(processes, first, first_op, matching, time, listed)
    time = np.concatenate((time, arrivals))
    add_same_place_waits(processes, first, first_op, listed)
    for number, graph in enumerate(processes):
        processes[number] = _share_times(graph, time[first[number] : first[number + 1]])
    edges = _free_host_meetings(_join_edges(taken, listed.build()), meeting)
    release_freed_memory()
    settled = settle_graph(time, edges)
    return JobGraph(tuple(processes), first, first_path, first_op, settled, meeting, unmatched, matching.offset_ns)


_NO_EDGES = EdgeList().build()
"""Edges of a process whose edges are among those of the job."""


_BATCH = 2**20
"""Edges of processes that are kept apart: so many edges are one block of memory, which is returned once it is freed."""


def _take_over_edges(graphs: Iterable[ProcessGraph]) -> tuple[list[ProcessGraph], list[Edges]]:
    """Take the edges of processes, numbered as those of the job: (processes without edges, edges in batches by target)."""
    processes: list[ProcessGraph] = []
    batches: list[Edges] = []
    parts: list[Edges] = []
    first = first_path = first_op = 0
    for graph in graphs:
        parts.append(_renumber_edges(_sort_edges(graph.edges), first, first_path, first_op))
        processes.append(replace(graph, edges=_NO_EDGES))
        first, first_path, first_op = first + len(graph.time), first_path + len(graph.paths), first_op + len(graph.ops)
        if sum(len(part.kind) for part in parts) >= _BATCH:
            batches.append(concatenate_edges(parts))
            parts = []
    return processes, [*batches, concatenate_edges(parts)]


def _sort_edges(edges: Edges) -> Edges:
    """Sort edges by target: replays read them in this order."""
    return edges.take(np.argsort(edges.target, kind="stable"))


def _join_edges(parts: list[Edges], extra: Edges) -> Edges:
    """Join the edges of parts with those of their targets in `extra`, sorted by target; each part is dropped once it is copied."""
    extra = _sort_edges(extra)
    edges = make_empty_edges(len(extra.kind) + sum(len(part.kind) for part in parts))
    begin = taken = 0
    while parts:
        part = parts.pop(0)
        until = int(np.searchsorted(extra.target, part.target[-1:].max(initial=-1), side="right")) if parts else None
        more = extra.take(slice(taken, until))
        is_extra = np.zeros(len(part.kind) + len(more.kind), np.bool_)
        is_extra[np.searchsorted(part.target, more.target, side="right") + np.arange(len(more.kind))] = True
        columns: list[Any] = [column[begin : begin + len(is_extra)] for column in edges]
        for column, values, extra_values in zip(columns, part, more, strict=True):
            column[is_extra] = extra_values
            column[~is_extra] = values
        begin, taken = begin + len(is_extra), taken + len(more.kind)
    return edges


def _count_up(sizes: Sequence[int]) -> Ints:
    return np.concatenate(([0], np.cumsum(np.array(sizes, np.int64))))


def _renumber_edges(edges: Edges, first: int, first_path: int, first_op: int) -> Edges:
    """Number the instants and owners of a process's edges as those of the job."""
    shift = np.where(mark_kinds(edges.kind, *DEVICE_KINDS), first_op, first_path)
    owner = np.where(edges.owner >= 0, edges.owner + shift, -1).astype(np.int32)
    source, target = (column + np.int32(first) for column in (edges.source, edges.target))
    return edges._replace(source=source, target=target, owner=owner)


def _shift_clock(graph: ProcessGraph, offset_ns: int) -> ProcessGraph:
    """Subtract an offset from all times of a process."""
    if not offset_ns:
        return graph
    ops = replace(
        graph.ops,
        start=graph.ops.start - offset_ns,
        end=graph.ops.end - offset_ns,
        launch_ns=graph.ops.launch_ns - offset_ns,
        return_ns=graph.ops.return_ns - offset_ns,
    )
    stages = replace(graph.stages, ts_ns=graph.stages.ts_ns - offset_ns)
    return replace(graph, time=graph.time - offset_ns, ops=ops, stages=stages)


def _share_times(graph: ProcessGraph, time: Ints) -> ProcessGraph:
    """Take the times of a process and of its ops from those of the job: they are not kept twice."""
    of_ops = time[graph.host_count :]
    return replace(graph, time=time, ops=replace(graph.ops, start=of_ops[::2], end=of_ops[1::2]))


@dataclass(frozen=True, slots=True, eq=False)
class _Matching:
    """Per collective of all processes, one after the other: its process, row there, and match (-1: none)."""

    process: Ints
    row: Ints
    match: Ints
    group: Ints
    groups: tuple[str, ...]
    offset_ns: Ints


def _match_meetings(processes: Sequence[ProcessGraph]) -> _Matching:
    """Match the collectives of all processes, and compare their clocks."""
    table = TABLES["collectives"]
    parts = [add_key_columns(table, graph.meetings.rows.arrays, graph.source) for graph in processes]
    sizes = [len(part) for part in parts]
    process = np.repeat(np.arange(len(parts)), sizes)
    row = np.concatenate([np.arange(size) for size in sizes]) if sizes else np.empty(0, np.int64)
    offsets = np.zeros(len(processes), np.int64)
    if not sum(sizes):
        none = np.empty(0, np.int64)
        return _Matching(process, row, none, none, (), offsets)
    sources = tuple(graph.source for graph in processes)
    measured = Measurements({"collectives": concatenate_table_parts(table, parts)}, sources)
    matched = list_matched_collectives(measured)
    group = matched["group"]
    offsets[:] = _find_offsets(measured, sources)
    match = _pair_messages(matched["op"], group.codes.astype(np.int64), process, matched.integers("match", -1))
    return _Matching(process, row, match, group.codes.astype(np.int64), group.texts, offsets)


def _pair_messages(op: Coded, group: Ints, process: Ints, match: Ints) -> Ints:
    """Match the sends of each of two processes with the receipts of the other; messages of larger groups match nothing.

    Rows are in order of start within each process.
    """
    names = np.array([*op.texts, ""], object)[op.codes]
    is_send, is_receive = names == "send", names == "recv"
    match = np.where(is_send | is_receive, -1, match)
    following = int(match.max(initial=-1)) + 1
    for number in np.unique(group[is_send]).tolist():
        inside = (group == number) & (is_send | is_receive)
        members = np.unique(process[inside]).tolist()
        if len(members) != 2:
            continue
        for sender, receiver in (members, members[::-1]):
            sent = np.flatnonzero(inside & is_send & (process == sender))
            received = np.flatnonzero(inside & is_receive & (process == receiver))
            if len(sent) == len(received):
                match[sent] = match[received] = following + np.arange(len(sent))
                following += len(sent)
    return match


def _find_offsets(measured: Measurements, sources: Sequence[Source]) -> list[int]:
    """Find what to subtract from the times of each process, from when it left collectives."""
    clocks = {
        tuple(row[name] for name in CLOCK): (row["offset_ns"], row["uncertainty_ns"])
        for row in measure_clock_offsets(measured).rows(*CLOCK, "offset_ns", "uncertainty_ns")
    }
    hosts = {source.host for source in sources}
    is_one_host = len(hosts) == 1 and None not in hosts
    offsets = []
    for source in sources:
        offset, spread = clocks.get(tuple(getattr(source, name) for name in CLOCK), (0, 0))
        is_same = is_one_host and abs(offset) < ONE_HOST_NS
        offsets.append(0 if is_same or abs(offset) <= CERTAIN_SIGMAS * spread else int(offset))
    return offsets


def _join_collectives(
    processes: Sequence[ProcessGraph],
    first: Ints,
    first_op: Ints,
    matching: _Matching,
    time: Ints,
    listed: EdgeList,
) -> tuple[Meeting, Ints, int]:
    """Add an arrival instant for each matched collective: (meetings, times of the arrivals, unmatched collectives).

    A collective ends on each rank a transfer after the last rank arrived. Where a rank left before another arrived, the
    ranks did not wait for each other, and each row takes its own time.
    """
    begin, end, op = (_take_instants(processes, name) for name in ("begin", "end", "op"))
    owner_op = np.where(op >= 0, op + first_op[matching.process], -1)
    known = begin >= 0
    begin = np.where(known, begin + first[matching.process], -1)
    end = np.where(known, end + first[matching.process], -1)
    rows = np.flatnonzero(known & (matching.match >= 0))
    match, number = np.unique(matching.match[rows], return_inverse=True)
    latest = np.full(len(match), np.iinfo(np.int64).min)
    np.maximum.at(latest, number, time[begin[rows]])
    is_late = time[end[rows]] <= latest[number]
    on_host = op[rows] < 0
    apart = np.zeros(len(match), np.bool_)
    apart[number[is_late & ~on_host]] = True
    members = np.bincount(number, minlength=len(match))
    apart |= members < 2
    meets = ~apart[number]
    rows, number = rows[meets], number[meets]
    kept, number = np.unique(number, return_inverse=True)
    arrivals = latest[kept]
    arrival = (int(first[-1]) + number).astype(np.int32)
    waits = time[end[rows]] > arrivals[number]
    listed.add(begin[rows], arrival, 0, ARRIVAL, owner_op[rows])
    of = rows[waits]
    listed.add(arrival[waits], end[of], time[end[of]] - arrivals[number[waits]], TRANSFER, owner_op[of])
    on_device = op[rows] >= 0
    listed.add(begin[rows[on_device]], end[rows[on_device]], 0, OWN_LENGTH, owner_op[rows[on_device]])
    meeting = Meeting(
        arrival,
        matching.process[rows],
        begin[rows].astype(np.int32),
        end[rows].astype(np.int32),
        owner_op[rows],
        matching.group[rows],
        matching.groups,
    )
    alone = _add_lone_collectives(processes, first, first_op, owner_op[rows[on_device]], listed)
    return meeting, arrivals, alone


def _take_instants(processes: Sequence[ProcessGraph], name: str) -> Ints:
    """Take a column of the meetings of all processes."""
    columns = [getattr(graph.meetings, name)[: len(graph.meetings.rows)] for graph in processes]
    return np.concatenate(columns).astype(np.int64) if columns else np.empty(0, np.int64)


def _add_lone_collectives(
    processes: Sequence[ProcessGraph], first: Ints, first_op: Ints, met: Ints, listed: EdgeList
) -> int:
    """Add the length of every collective op that meets nobody; return how many there are."""
    total = int(first_op[-1])
    is_lone = np.zeros(total, np.bool_)
    starts, lengths = np.zeros(total, np.int64), np.zeros(total, np.int64)
    for number, graph in enumerate(processes):
        mine = slice(int(first_op[number]), int(first_op[number + 1]))
        is_lone[mine] = graph.ops.is_collective
        starts[mine] = first[number] + graph.host_count + 2 * np.arange(len(graph.ops))
        lengths[mine] = graph.ops.end - graph.ops.start
    is_lone[met] = False
    rows = np.flatnonzero(is_lone)
    listed.add(starts[rows], starts[rows] + 1, lengths[rows], TRANSFER, rows)
    return len(rows)


def _free_host_meetings(edges: Edges, meeting: Meeting) -> Edges:
    """Take the wait for other ranks off the host rows that carry out a collective."""
    on_host = meeting.op < 0
    if not on_host.any():
        return edges
    waits: Mask = np.zeros(int(max(edges.target.max(initial=0), meeting.end.max(initial=0))) + 1, np.bool_)
    waits[edges.target[edges.kind == TRANSFER]] = True
    ends: Mask = np.zeros(len(waits), np.bool_)
    ends[meeting.end[on_host]] = True
    free = mark_kinds(edges.kind, *HOST_KINDS) & (ends & waits)[edges.target]
    return edges._replace(weight=np.where(free, 0, edges.weight))
