"""Settling a graph: the recorded times become its solution, and time that no edge explains becomes a residual."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracekit.model.records import dataclass
from tracekit.replay.edges import ARRIVAL, LAUNCH, STREAM_GAP, Edges, Ints, Numbers
from tracekit.replay.paths import Ordering, SpentTime, Timing, order_instants, settle_weights, time_instants


@dataclass(frozen=True, slots=True, eq=False)
class SettledGraph:
    """A graph whose longest paths are the recorded times. `residual` is the part of the weights without an explanation, by edge."""

    time: Ints
    edges: Edges
    residual: SpentTime
    ordering: Ordering
    timing: Timing
    dropped: int

    def find_residuals(self, edges: Numbers) -> Ints:
        """Find the part of the weight of each edge that nothing explains."""
        known, ns = self.residual
        if not len(known):
            return np.zeros(len(edges), np.int64)
        place = np.minimum(np.searchsorted(known, edges), len(known) - 1)
        return np.where(known[place] == edges, ns[place], 0)


class _Ordered(NamedTuple):
    edges: Edges
    ordering: Ordering
    dropped: int


def settle_graph(time: Ints, edges: Edges) -> SettledGraph:
    """Settle a graph: make the recorded times its longest paths. The weights are changed in place.

    Inferred edges on cycles are dropped, weights that would move a recorded time are shortened, and what is missing is put
    on the edge that nearly explains it.
    """
    edges, ordering, dropped = _drop_cycles(time, edges)
    residual = settle_weights(ordering, edges.source, edges.target, edges.weight, time)
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
