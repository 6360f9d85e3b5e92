"""The only overlap arithmetic: sets of half-open intervals [start, end) in integer nanoseconds.

An `Intervals` is sorted and disjoint, gaps between any two; zero-length input adds nothing.
Every function takes and returns int64 arrays and loops over nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.grouping import by_group

Ints = npt.NDArray[np.int64]


class Intervals(NamedTuple):
    """Sorted, disjoint intervals; `start[i] < end[i] < start[i + 1]`."""

    start: Ints
    end: Ints

    @property
    def total(self) -> int:
        """Covered length."""
        return int((self.end - self.start).sum())


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: Ints, end: Ints) -> Intervals:
    """The points covered by any [start[i], end[i]), as disjoint intervals; touching ones are joined.

    >>> union(np.array([5, 0, 1, 9]), np.array([6, 2, 3, 9]))
    Intervals(start=array([0, 5]), end=array([3, 6]))
    """
    solid = end > start
    if not solid.all():
        start, end = start[solid], end[solid]
    if len(start) == 0:
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    opens = np.flatnonzero(start[1:] > reach[:-1]) + 1
    first = np.concatenate(([0], opens))
    last = np.concatenate((opens - 1, [len(start) - 1]))
    return Intervals(start[first], reach[last])


def union_all(sets: Sequence[Intervals]) -> Intervals:
    """The points covered by any of the sets."""
    sets = [s for s in sets if len(s.start)]
    if len(sets) < 2:
        return sets[0] if sets else EMPTY
    return union(np.concatenate([s.start for s in sets]), np.concatenate([s.end for s in sets]))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """The points covered by both."""
    if not len(a.start) or not len(b.start):
        return EMPTY
    return _where(a, b, np.array([False, False, False, True]))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The points covered by `a` and not by `b`."""
    if not len(a.start) or not len(b.start):
        return a
    return _where(a, b, np.array([False, True, False, False]))


def gaps(a: Intervals, start: int, end: int) -> Intervals:
    """The points of [start, end) that `a` does not cover."""
    return subtract(union(np.array([start]), np.array([end])), a)


def _where(a: Intervals, b: Intervals, keep: npt.NDArray[np.bool_]) -> Intervals:
    """The points whose state (in a) + 2·(in b) is kept; at one point ends are counted with starts."""
    times = np.concatenate((a.start, a.end, b.start, b.end))
    step = np.repeat(
        np.array([1, -1, 2, -2], np.int8), [len(a.start), len(a.end), len(b.start), len(b.end)]
    )
    order = np.argsort(times, kind="stable")
    times, state = times[order], np.cumsum(step[order], dtype=np.int8)
    kept = keep[state[:-1]] & (times[1:] > times[:-1])
    return union(times[:-1][kept], times[1:][kept])


def covered(a: Intervals, start: Ints, end: Ints) -> Ints:
    """For each window [start[i], end[i]), how much of it `a` covers. Windows may overlap one another."""
    inside: Ints = _before(a, np.maximum(start, end)) - _before(a, start)
    return np.maximum(inside, 0)


def window_at(start: Ints, end: Ints, points: Ints) -> Ints:
    """For each point, which window, of those in order of start, began last and holds it; -1 for none.

    >>> window_at(np.array([0, 5]), np.array([3, 9]), np.array([2, 3, 8]))
    array([ 0, -1,  1])
    """
    if not len(start):
        return np.full(len(points), -1, np.int64)
    at = np.searchsorted(start, points, side="right") - 1
    return np.where((at >= 0) & (points < end[at]), at, -1)


def _before(a: Intervals, points: Ints) -> Ints:
    """For each point, how much of `a` lies before it."""
    if len(a.start) == 0:
        return np.zeros(len(points), np.int64)
    sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(a.end - a.start)))
    index = np.searchsorted(a.start, points, side="right") - 1
    inside = np.minimum(points, a.end[index]) - a.start[index]
    before: Ints = np.where(index >= 0, sums[index] + inside, 0)
    return before


def exclusive(sets: Sequence[Intervals]) -> list[Intervals]:
    """Each set less all sets before it: slots that do not overlap and together cover the union."""
    slots, seen = [], EMPTY
    for later, current in enumerate(sets, start=1):
        slots.append(subtract(current, seen))
        if any(len(rest.start) for rest in sets[later:]):
            seen = union_all([seen, current])
    return slots


def union_totals(start: Ints, end: Ints, group: Ints, count: int) -> Ints:
    """For each group 0 … count-1, the length of the union of its intervals."""
    totals = np.zeros(count, np.int64)
    solid = end > start
    start, end, group = start[solid], end[solid], group[solid]
    if len(start) == 0:
        return totals
    order = by_group(group, start)
    start, end, group = start[order], end[order], group[order]
    reach = _running_max(end, group)
    before = np.empty_like(reach)
    before[0] = start[0]
    before[1:] = np.where(group[1:] == group[:-1], reach[:-1], start[1:])
    np.add.at(totals, group, np.maximum(end - np.maximum(start, before), 0))
    return totals


def _running_max(values: Ints, group: Ints) -> Ints:
    """The running maximum of `values`, begun anew at each new value of the sorted `group`."""
    low, span = int(values.min()), int(values.max() - values.min()) + 1
    if (int(group[-1]) + 1) * span < 2**62:
        lift = group * span - low
        return np.maximum.accumulate(values + lift) - lift
    distinct = np.unique(values)
    lift = group * len(distinct)
    return distinct[np.maximum.accumulate(np.searchsorted(distinct, values) + lift) - lift]
