"""Settling a graph: the recorded times become its solution, and time that no edge explains becomes a residual."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracekit.model.records import dataclass
from tracekit.replay.edges import ARRIVAL, LAUNCH, STREAM_GAP, Edges, Ints
from tracekit.replay.paths import Ordering, Timing, order_instants, time_instants


@dataclass(frozen=True, slots=True, eq=False)
class SettledGraph:
    """A graph whose longest paths are the recorded times. `residual_ns` is the part of each weight without an explanation."""

    time: Ints
    edges: Edges
    residual_ns: Ints
    ordering: Ordering
    timing: Timing
    dropped: int


class _Ordered(NamedTuple):
    edges: Edges
    ordering: Ordering
    dropped: int


def settle_graph(time: Ints, edges: Edges) -> SettledGraph:
    """Settle a graph: make the recorded times its longest paths.

    Inferred edges on cycles are dropped, weights that would move a recorded time are shortened, and what is missing is put
    on the edge that nearly explains it.
    """
    edges, ordering, dropped = _drop_cycles(time, edges)
    # A job of a thousand ranks has ten million edges: columns are changed in place, and freed once used.
    weight = time[edges.target]
    weight -= time[edges.source]
    np.minimum(edges.weight, weight, out=weight)
    edges = edges._replace(weight=weight)
    reached = np.full(len(time), np.iinfo(np.int64).min // 2, np.int64)
    arrival = time[edges.source]
    arrival += weight
    np.maximum.at(reached, edges.target, arrival)
    has_edge = np.zeros(len(time), np.bool_)
    has_edge[edges.target] = True
    missing = np.where(has_edge, time - reached, 0)
    del reached, has_edge
    short = np.flatnonzero(missing[edges.target] > 0)
    residual = np.zeros(len(weight), np.int64)
    if len(short):
        order = short[np.lexsort((arrival[short], edges.target[short]))]
        last = order[np.append(np.diff(edges.target[order]) != 0, [True])]
        residual[last] = missing[edges.target[last]]
        weight += residual
    del arrival, missing
    timing = time_instants(ordering, edges.source, edges.weight, time)
    assert np.array_equal(timing.time, time), "a settled graph gives back every recorded time"
    return SettledGraph(time, edges, residual, ordering, Timing(time, timing.decider), dropped)


def _drop_cycles(time: Ints, edges: Edges) -> _Ordered:
    """Drop edges until none lead back to where they come from: inferred ones first, then arrivals, gaps and launches."""
    dropped = 0
    while True:
        ordering = order_instants(len(time), edges.source, edges.target)
        if ordering.acyclic == len(time):
            return _Ordered(edges, ordering, dropped)
        is_left = np.zeros(len(time), np.bool_)
        is_left[ordering.order[ordering.acyclic :]] = True
        inside = is_left[edges.source] & is_left[edges.target]
        bad = inside & edges.inferred
        if not bad.any():
            bad = inside & np.isin(edges.kind, (ARRIVAL, STREAM_GAP, LAUNCH))
        if not bad.any():
            bad = inside & (time[edges.source] >= time[edges.target])
        dropped += int(bad.sum())
        edges = edges.take(~bad)
