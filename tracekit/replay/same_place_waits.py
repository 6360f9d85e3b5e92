"""Waits that did not decide: what is seen to wait once waits at the same place of every step and rank.

Times show only the waits that held something up. Once the op waited for is slower, or the rest is faster, the others
hold too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracekit.replay.edges import STREAM_WAIT, EdgeList, Ints, Mask
from tracekit.replay.process_graph import ProcessGraph
from tracekit.replay.process_parts.device_ops import MICRO

INPUT_LAG_NS = 1_500
"""Longest typical time from the end of the compute op that a collective reads to its start."""


class _Places(NamedTuple):
    """Launched collectives of all processes: process, op, ordinal in the step, number of compute ops launched before, class."""

    process: Ints
    op: Ints
    ordinal: Ints
    before: Ints
    kind: Ints


class _Ops(NamedTuple):
    """Ops of all processes, those of process p from `first[p]` on: start, end, and the op of the process that each waited for.

    Their instants are those of process p from `instant[p]` on.
    """

    start: Ints
    end: Ints
    awaited: Ints
    first: Ints
    instant: Ints


def add_same_place_waits(processes: Sequence[ProcessGraph], first: Ints, first_op: Ints, listed: EdgeList) -> None:
    """Add the waits of compute for collectives, and of collectives for compute, that hold wherever they could be seen."""
    computes = [_list_compute_ops(graph) for graph in processes]
    places = _list_places(processes, computes)
    if not len(places.op):
        return
    base = first[:-1] + np.array([graph.host_count for graph in processes])
    start, end, awaited = (
        np.concatenate([getattr(graph.ops, name) for graph in processes]) for name in ("start", "end", "waited_for")
    )
    ops = _Ops(start, end, awaited, first_op, base)
    _add_waits_for_collectives(computes, places, ops, listed)
    _add_waits_for_compute(computes, places, ops, listed)


def _list_compute_ops(graph: ProcessGraph) -> Ints:
    """List the launched ops of the stream with most compute, in the order of their launches."""
    ops = graph.ops
    rows: Ints = np.flatnonzero(~ops.is_collective & ops.is_launched)
    if not len(rows):
        return rows
    rows = rows[ops.stream[rows] == np.bincount(ops.stream[rows]).argmax()]
    in_order: Ints = rows[np.argsort(ops.launch_ns[rows], kind="stable")]
    return in_order


def _list_places(processes: Sequence[ProcessGraph], computes: Sequence[Ints]) -> _Places:
    """List the places of the launched collectives of all processes."""
    parts = []
    kinds: dict[tuple[str | None, str | None], int] = {}
    for number, (graph, compute) in enumerate(zip(processes, computes, strict=True)):
        ops = graph.ops
        op = np.flatnonzero(ops.is_collective & ops.is_launched & (not graph.records_waits))
        op = op[np.argsort(ops.launch_ns[op], kind="stable")]
        begins = np.sort(graph.time[graph.steps.begin])
        step = np.searchsorted(begins, ops.launch_ns[op], side="right")
        ordinal = np.arange(len(op)) - np.searchsorted(step, step)
        before = np.searchsorted(ops.launch_ns[compute], ops.launch_ns[op], side="right")
        parts.append((np.full(len(op), number), op, ordinal, before, _classify(graph, op, kinds)))
    return (
        _Places(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        if parts
        else _Places(*[np.empty(0, np.int64)] * 5)
    )


def _classify(graph: ProcessGraph, op: Ints, kinds: dict[tuple[str | None, str | None], int]) -> Ints:
    """Number the class of each collective: the outermost range around its launch, and its kernel."""
    outermost = _find_outermost_names(graph)
    path, name = graph.ops.launch_path[op], graph.ops.name
    pairs, number = np.unique(np.stack((outermost[path], name.codes[op].astype(np.int64))), axis=1, return_inverse=True)
    texts = graph.paths.name.texts
    keys = [
        (texts[a] if a >= 0 else None, name.texts[b] if b >= 0 else None) for a, b in zip(*pairs.tolist(), strict=True)
    ]
    return np.array([kinds.setdefault(key, len(kinds)) for key in keys], np.int64)[number.reshape(-1)]


def _find_outermost_names(graph: ProcessGraph) -> Ints:
    """Find the name (code) of the outermost range below the step of each path; the last element is for no path."""
    paths = graph.paths
    names_step = np.array([_names_step(text) for text in paths.name.texts] or [False])
    code = paths.name.codes.astype(np.int64)
    top = (paths.parent < 0) | names_step[code[paths.parent]]
    top &= ~names_step[code]
    ancestor = np.append(np.where(top, np.arange(len(paths)), paths.parent), -1)
    while not np.array_equal(ancestor, further := ancestor[ancestor]):
        ancestor = further
    outermost: Ints = np.append(code, -1)[ancestor]
    return outermost


def _names_step(name: str) -> bool:
    return name.startswith("ProfilerStep")


def _add_waits_for_collectives(computes: Sequence[Ints], places: _Places, ops: _Ops, listed: EdgeList) -> None:
    """Add the waits of compute ops for collectives at every place where one was seen and none contradicts it."""
    seen = _list_seen_waits(computes, places, ops)
    if not len(seen):
        return
    distinct = np.unique(seen, axis=0)
    order = np.lexsort((distinct[:, 1], distinct[:, 0]))
    distinct = distinct[order]
    low = np.searchsorted(distinct[:, 0], places.ordinal, side="left")
    count = np.searchsorted(distinct[:, 0], places.ordinal, side="right") - low
    place = np.repeat(np.arange(len(places.op)), count)
    pair = np.arange(len(place)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(low, count)
    position = places.before[place] + distinct[pair, 1]
    target, fits = _look_up_compute(computes, places.process[place], position)
    place, pair, target = place[fits], pair[fits], target[fits]
    lag = _measure_lags(places, ops, place, target)
    contradicted = np.zeros(len(distinct), np.bool_)
    contradicted[pair[lag < 0]] = True
    awaited = ops.awaited[ops.first[places.process[place]] + target]
    new = ~contradicted[pair] & (awaited != places.op[place])
    place, target, lag = place[new], target[new], lag[new]
    _add_edges(ops, places.process[place], (places.op[place], target), np.minimum(lag, MICRO), listed)


def _measure_lags(places: _Places, ops: _Ops, place: Ints, target: Ints) -> Ints:
    """Measure the time from the end of the collective of each place to the start of a compute op; negative if it started before."""
    first = ops.first[places.process[place]]
    lag: Ints = ops.start[first + target] - ops.end[first + places.op[place]]
    return lag


def _list_seen_waits(computes: Sequence[Ints], places: _Places, ops: _Ops) -> Ints:
    """List the waits of compute ops for collectives: (ordinal of the collective, compute ops launched between)."""
    place_of = np.full(len(ops.start) + 1, -1, np.int64)
    place_of[ops.first[places.process] + places.op] = np.arange(len(places.op))
    process = np.repeat(np.arange(len(computes)), [len(compute) for compute in computes])
    position = np.concatenate([np.arange(len(compute)) for compute in computes])
    awaited = ops.awaited[ops.first[process] + np.concatenate(computes)]
    place = place_of[np.where(awaited >= 0, ops.first[process] + awaited, -1)]
    seen = np.flatnonzero(place >= 0)
    place = place[seen]
    return np.stack((places.ordinal[place], position[seen] - places.before[place]), 1)


def _look_up_compute(computes: Sequence[Ints], process: Ints, position: Ints) -> tuple[Ints, Mask]:
    """Look up the compute op at a position of a process: (op, whether there is one)."""
    sizes = np.array([len(compute) for compute in computes])
    begin = np.cumsum(sizes) - sizes
    every = np.concatenate(computes)
    fits: Mask = (position >= 0) & (position < sizes[process])
    return np.where(fits, np.append(every, 0)[np.where(fits, begin[process] + position, 0)], -1), fits


def _add_waits_for_compute(computes: Sequence[Ints], places: _Places, ops: _Ops, listed: EdgeList) -> None:
    """Add the wait of each collective for the compute op launched before it, if no collective of its class contradicts it."""
    source, fits = _look_up_compute(computes, places.process, places.before - 1)
    rows = np.flatnonzero(fits)
    first, source = ops.first[places.process[rows]], source[rows]
    lag = ops.start[first + places.op[rows]] - ops.end[first + source]
    contradicted = np.zeros(int(places.kind.max(initial=-1)) + 1, np.bool_)
    contradicted[places.kind[rows[lag < 0]]] = True
    new = ~contradicted[places.kind[rows]] & (ops.awaited[first + places.op[rows]] != source)
    rows, source, lag = rows[new], source[new], lag[new]
    _add_edges(ops, places.process[rows], (source, places.op[rows]), np.minimum(lag, INPUT_LAG_NS), listed)


def _add_edges(ops: _Ops, process: Ints, pair: tuple[Ints, Ints], lag: Ints, listed: EdgeList) -> None:
    """Add waits of ops for ops of the same process."""
    instant, (source, target) = ops.instant[process], pair
    owner = ops.first[process] + target
    listed.add(instant + 2 * source + 1, instant + 2 * target, lag, STREAM_WAIT, owner, inferred=True)
