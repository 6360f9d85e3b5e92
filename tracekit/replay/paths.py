"""Longest paths through a dependency graph: order its instants, time them, and walk back along what decided.

The C module is optional: `native` is None without it, and slower loops give the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]
"""Numbers of instants and of edges."""

NEVER = -(2**61)
"""Weight of an edge that a change removed; lower weights mean the same."""

UNLIMITED = 2**62
"""Slack of an edge from which no path leads to the end, and the latest time of such an instant."""


def _import_paths() -> Any:
    """Import the C module; None if it was not built."""
    try:
        return import_module("tracekit.replay._paths")
    except ImportError:
        return None


native = _import_paths()


class Ordering(NamedTuple):
    """Edges by the instant that they lead to, and a topological order of the instants.

    The edges into instant i are `incoming[first[i]:first[i + 1]]`, or those of this range where `incoming` is empty, because
    the edges are sorted by target. `acyclic` counts the instants outside all cycles;
    those on or behind a cycle are last in `order`.
    """

    first: Numbers
    incoming: Numbers
    order: Numbers
    acyclic: int

    def list_incoming(self) -> list[int]:
        """List the edges in order of their targets."""
        return self.incoming.tolist() or list(range(int(self.first[-1])))


class AddedEdges(NamedTuple):
    """Edges that follow those of a graph, sorted by target; `number` is the place of each among those that were added."""

    source: Numbers
    target: Numbers
    weight: Ints
    number: Numbers


_NONE = np.empty(0, np.int32)
NO_ADDED = AddedEdges(_NONE, _NONE, np.empty(0, np.int64), _NONE)
"""No added edges."""


class Timing(NamedTuple):
    """Time of each instant, and the edge that decides it (-1: none)."""

    time: Ints
    decider: Numbers


def order_instants(count: int, source: Numbers, target: Numbers) -> Ordering:
    """Order `count` instants so that every edge leads to a later one, as far as no cycle prevents it."""
    first, order = np.empty(count + 1, np.int32), np.empty(count, np.int32)
    is_sorted = not (target[1:] < target[:-1]).any()
    incoming = np.empty(0 if is_sorted else len(source), np.int32)
    if native is not None:
        return Ordering(first, incoming, order, native.order(source, target, first, incoming, order))
    first[0] = 0
    np.cumsum(np.bincount(target, minlength=count), out=first[1:])
    if not is_sorted:
        incoming[:] = np.argsort(target, kind="stable")
    return Ordering(first, incoming, order, _order_slowly(source, target, order))


def reorder_instants(ordering: Ordering, source: Numbers, target: Numbers, added: AddedEdges) -> Ordering:
    """Order the instants of a graph with added edges; the edges into each instant are those of the graph alone."""
    order = np.empty(len(ordering.order), np.int32)
    by_number = np.argsort(added.number)
    more = added.source[by_number], added.target[by_number]
    if native is not None:
        acyclic = native.reorder(source, target, *more, order)
    else:
        acyclic = _order_slowly(np.concatenate((source, more[0])), np.concatenate((target, more[1])), order)
    return ordering._replace(order=order, acyclic=acyclic)


def _order_slowly(source: Numbers, target: Numbers, order: Numbers) -> int:
    """Write a topological order; return the number of instants outside all cycles."""
    count = len(order)
    entering = np.bincount(target, minlength=count)
    leaving = np.argsort(source, kind="stable")
    starts = np.searchsorted(source[leaving], np.arange(count + 1))
    targets, open_edges = target[leaving].tolist(), entering.tolist()
    waiting, done = np.flatnonzero(entering == 0)[::-1].tolist(), []
    while waiting:
        at = waiting.pop()
        done.append(at)
        for place in range(starts[at], starts[at + 1]):
            open_edges[targets[place]] -= 1
            if not open_edges[targets[place]]:
                waiting.append(targets[place])
    order[: len(done)] = done
    order[len(done) :] = np.flatnonzero(np.array(open_edges, np.int64) > 0)
    return len(done)


def sort_added_edges(source: Numbers, target: Numbers, weight: Ints) -> AddedEdges:
    """Sort added edges by target."""
    number = np.argsort(target, kind="stable").astype(np.int32)
    return AddedEdges(source[number], target[number], weight[number], number)


def time_instants(
    ordering: Ordering,
    source: Numbers,
    weight: Ints,
    recorded: Ints,
    added: AddedEdges = NO_ADDED,
    decided: Numbers = NO_ADDED.number,
    *,
    lists_deciders: bool = True,
) -> Timing:
    """Time each instant: the latest time that an edge into it demands, or its recorded time without an edge.

    Without `lists_deciders`, the result has no deciding edges. An instant that an edge `decided` before is at 0 without one, or at the first of all times if that is earlier.
    """
    time, decider = np.empty(len(recorded), np.int64), np.empty(len(recorded) if lists_deciders else 0, np.int32)
    graph = ordering.order, ordering.first, ordering.incoming, source, weight, recorded, decided
    if native is not None:
        native.longest(*graph, *added, time, decider)
        return Timing(time, decider)
    if len(decided):
        recorded = np.where(decided < 0, recorded, recorded.min(initial=0))
    edges, sources, weights = ordering.list_incoming(), source.tolist(), weight.tolist()
    into: dict[int, list[int]] = {}
    for target, number in sorted(zip(added.target.tolist(), added.number.tolist(), strict=True)):
        into.setdefault(target, []).append(len(source) + number)
    by_number = np.argsort(added.number)
    sources += added.source[by_number].tolist()
    weights += added.weight[by_number].tolist()
    first, times, deciders = ordering.first.tolist(), recorded.tolist(), [-1] * len(recorded)
    for at in ordering.order.tolist():
        reached = [
            (times[sources[edge]] + weights[edge], -edge)
            for edge in (*edges[first[at] : first[at + 1]], *into.get(at, ()))
            if weights[edge] > NEVER
        ]
        if reached:
            times[at], edge = max(reached)
            deciders[at] = -edge
    time[:], decider[:] = times, deciders[: len(decider)]
    return Timing(time, decider)


def settle_weights(ordering: Ordering, source: Numbers, target: Numbers, weight: Ints, time: Ints) -> SpentTime:
    """Change weights in place to make the times the longest paths: return the time that was added to edges.

    Edges that lead beyond the time of their instant are shortened. Where all fall short, the closest edge is lengthened, and
    the last one of several.
    """
    if native is not None:
        # Memory that is not written to is not taken.
        edge, ns = np.empty(len(time), np.int32), np.empty(len(time), np.int64)
        count = native.settle(ordering.first, ordering.incoming, source, time, weight, edge, ns)
        return _sum_pieces(edge[:count], ns[:count])
    most = time[target] - time[source]
    np.minimum(weight, most, out=weight)
    short = most - weight
    order = np.lexsort((-np.arange(len(short)), short, target))
    closest = order[np.diff(target[order], prepend=-1) != 0]
    lengthened = np.sort(closest[short[closest] > 0])
    weight[lengthened] = most[lengthened]
    return SpentTime(lengthened.astype(np.int32), short[lengthened])


class SpentTime(NamedTuple):
    """Time in ns by edge: `edge` ascends, and `ns` is above 0."""

    edge: Numbers
    ns: Ints


_ROOM = 4096
"""Pieces of a walk for which room is made at first."""


def walk_back(timing: Timing, source: Numbers, instants: Numbers, low: Ints, high: Ints) -> tuple[SpentTime, int]:
    """Walk back from each of the instants along the deciding edges: (time of the edges within [low, high), time before all).

    The times of each walk add up to `high - low` if it begins at `high` or later.
    """
    if native is None:
        return _walk_back_slowly(timing, source, instants, low, high)
    walks = np.ascontiguousarray(instants, np.int32), *(np.ascontiguousarray(limit, np.int64) for limit in (low, high))
    count = _ROOM
    while True:
        edge, ns, before = np.empty(count, np.int32), np.empty(count, np.int64), np.zeros(1, np.int64)
        room, count = count, native.walk(*walks, *timing, source, edge, ns, before)
        if count <= room:
            return _sum_pieces(edge[:count], ns[:count]), int(before[0])


def _walk_back_slowly(
    timing: Timing, source: Numbers, instants: Numbers, low: Ints, high: Ints
) -> tuple[SpentTime, int]:
    pieces, before = [], 0
    time, decider, sources = timing.time.tolist(), timing.decider.tolist(), source.tolist()
    for here, lowest, highest in zip(instants.tolist(), low.tolist(), high.tolist(), strict=True):
        until = min(time[here], highest)
        while until > lowest:
            edge = decider[here]
            if edge < 0:
                before += until - lowest
                break
            here = sources[edge]  # noqa: PLW2901 - the walk goes on from there
            begin = max(time[here], lowest)
            if begin < until:
                pieces.append((edge, until - begin))
                until = begin
    listed = np.array(pieces, np.int64).reshape(-1, 2)
    return _sum_pieces(listed[:, 0].astype(np.int32), listed[:, 1]), before


def _sum_pieces(edge: Numbers, ns: Ints) -> SpentTime:
    """Sum pieces by edge."""
    order = np.argsort(edge, kind="stable")
    edge, ns = edge[order], ns[order]
    first = np.flatnonzero(np.diff(edge, prepend=-1))
    return SpentTime(edge[first], np.add.reduceat(ns, first) if len(first) else ns)


def join_spent_times(parts: Sequence[SpentTime]) -> SpentTime:
    """Sum times by edge."""
    edges, times = ([part[column] for part in parts] for column in (0, 1))
    none = np.empty(0, np.int32), np.empty(0, np.int64)
    return _sum_pieces(np.concatenate((none[0], *edges)), np.concatenate((none[1], *times)))


def measure_slack(ordering: Ordering, source: Numbers, target: Numbers, weight: Ints, time: Ints, end: int) -> Ints:
    """Measure the slack of each edge: by how much its weight can grow before it delays the instant `end`.

    It is the latest start minus the earliest start. Removed edges, and edges that lead to no path to `end`, are `UNLIMITED`.
    """
    latest = np.full(len(time), UNLIMITED, np.int64)
    latest[end] = time[end]
    if native is not None:
        native.limit(ordering.order, ordering.first, ordering.incoming, source, weight, latest)
    else:
        _limit_instants(ordering, source, weight, latest)
    limit = latest[target]
    exists = (limit < UNLIMITED) & (weight > NEVER)
    return np.where(exists, limit - np.where(exists, time[source] + weight, 0), UNLIMITED)


def _limit_instants(ordering: Ordering, source: Numbers, weight: Ints, latest: Ints) -> None:
    """Limit each instant by the latest times of the instants that it leads to."""
    edges, sources, weights = ordering.list_incoming(), source.tolist(), weight.tolist()
    first, limits = ordering.first.tolist(), latest.tolist()
    for at in reversed(ordering.order.tolist()):
        for edge in edges[first[at] : first[at + 1]] if limits[at] < UNLIMITED else ():
            if weights[edge] > NEVER:
                limits[sources[edge]] = min(limits[sources[edge]], limits[at] - weights[edge])
    latest[:] = limits
