"""Interval arithmetic: sets of half-open intervals [start, end) in integer nanoseconds.

An `Intervals` is sorted and disjoint, with a gap between neighbors; zero-length input adds nothing. Every function takes
and returns int64 arrays and does not loop over intervals.

Shared time (`share_time`): at each instant only ops of the first class that runs count.
Between two neighboring starts or ends, k ops get 1/k of the time each in whole nanoseconds. The remainder (less than k)
goes to the op that ends last; among equal ones, to the op that began first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.tables.keys import find_distinct, order_by_group

Ints = npt.NDArray[np.int64]

FREE_PAIRS = 2**22
"""Number of (op, window) pairs that are always computed, in addition to four per op."""


MOST_CLASSES = 64
"""Maximum number of op classes that the C pass supports."""


class Intervals(NamedTuple):
    """Sorted, disjoint intervals; `start[i] < end[i] < start[i + 1]`."""

    start: Ints
    end: Ints

    @property
    def total(self) -> int:
        """Covered length."""
        return int((self.end - self.start).sum())


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def merge_intervals(start: Ints, end: Ints) -> Intervals:
    """Merge [start[i], end[i]) into disjoint intervals; touching ones are joined.

    >>> merge_intervals(np.array([5, 0, 1, 9]), np.array([6, 2, 3, 9]))
    Intervals(start=array([0, 5]), end=array([3, 6]))
    """
    if len(start) == 0:
        return EMPTY
    if sweeps.native is not None and (joined := sweeps.merge_sorted_intervals(start, end)) is not None:
        return Intervals(*joined)
    solid = end > start
    if not solid.all():
        start, end = start[solid], end[solid]
    if len(start) == 0:
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        if sweeps.native is not None:
            return merge_intervals(start, end)
    reach = np.maximum.accumulate(end)
    opens = (start[1:] > reach[:-1]).nonzero()[0] + 1
    first = np.concatenate(([0], opens))
    last = np.concatenate((opens - 1, [len(start) - 1]))
    return Intervals(start[first], reach[last])


def merge_interval_sets(sets: Sequence[Intervals]) -> Intervals:
    """Merge several sets into their union."""
    sets = [s for s in sets if len(s.start)]
    if len(sets) < 2:
        return next(iter(sets), EMPTY)
    return merge_intervals(np.concatenate([s.start for s in sets]), np.concatenate([s.end for s in sets]))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Intersect two sets."""
    if not len(a.start) or not len(b.start):
        return EMPTY
    return _select_states(a, b, np.array([False, False, False, True]))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Subtract `b` from `a`."""
    if not len(a.start) or not len(b.start):
        return a
    return _select_states(a, b, np.array([False, True, False, False]))


def find_gaps(a: Intervals, start: int, end: int) -> Intervals:
    """Find the parts of [start, end) that `a` does not cover."""
    return subtract(merge_intervals(np.array([start]), np.array([end])), a)


def _select_states(a: Intervals, b: Intervals, keep: npt.NDArray[np.bool_]) -> Intervals:
    """Select the points whose state (in a) + 2·(in b) is in `keep`; at one point ends are counted with starts."""
    if sweeps.native is not None:
        states = int(np.packbits(keep, bitorder="little")[0])
        return Intervals(*sweeps.combine_interval_states(a, b, states))
    times = np.concatenate((a.start, a.end, b.start, b.end))
    step = np.repeat(np.array([1, -1, 2, -2], np.int8), [len(a.start), len(a.end), len(b.start), len(b.end)])
    order = np.argsort(times, kind="stable")
    times, state = times[order], np.cumsum(step[order], dtype=np.int8)
    wanted = keep[state[:-1]] & (times[1:] > times[:-1])
    return merge_intervals(times[:-1][wanted], times[1:][wanted])


def measure_coverage(a: Intervals, start: Ints, end: Ints) -> Ints:
    """Measure how much of each window [start[i], end[i]) `a` covers; windows may overlap."""
    inside: Ints = _measure_before(a, np.maximum(start, end)) - _measure_before(a, start)
    return np.maximum(inside, 0)


def line_up_lanes(line: Ints, begin: Ints, end: Ints) -> Iterator[tuple[npt.NDArray[np.bool_], Ints]]:
    """Yield (mask of intervals, shift of their times) that places many lines one after the other on one line.

    `line` is the line number of each interval. Usually there is one part; several if the total would not fit in 64 bits.

    >>> [(which.tolist(), shift.tolist()) for which, shift in line_up_lanes(
    ...     np.array([0, 1, 1]), np.array([7, 3, 5]), np.array([9, 4, 9]))]
    [([True, True, True], [-7, 0, 0])]
    """
    count = int(line.max(initial=-1)) + 1
    low, high = np.full(count, _LAST), np.full(count, -_LAST)
    np.minimum.at(low, line, np.minimum(begin, end))
    np.maximum.at(high, line, np.maximum(begin, end))
    length = np.where(high >= low, high.astype(np.float64) - low + 1, 0.0)
    part = np.floor(np.cumsum(length) / (_LAST // 2)).astype(np.int64)
    for number in range(int(part.max(initial=-1)) + 1):
        lines = ((part == number) & (length > 0)).nonzero()[0]
        size = high[lines] - low[lines] + 1
        shift = np.zeros(count, np.int64)
        shift[lines] = np.cumsum(size) - size - low[lines]
        chosen = np.isin(line, lines)
        if chosen.any():
            yield chosen, shift[line[chosen]]


_LAST = np.int64(1 << 62)
"""Bound of the absolute value of any time in a trace."""


def find_window_at(start: Ints, end: Ints, points: Ints) -> Ints:
    """Find, for each point, the last started window that contains it; -1 for none. Windows are sorted by start.

    >>> find_window_at(np.array([0, 5]), np.array([3, 9]), np.array([2, 3, 8]))
    array([ 0, -1,  1])
    """
    if not len(start):
        return np.full(len(points), -1, np.int64)
    if sweeps.native is not None:
        return sweeps.find_last_windows(start, end, points)
    window = sweeps.count_below(start, points, right=True) - 1
    return np.where((window >= 0) & (points < end[window]), window, -1)


def _measure_before(a: Intervals, points: Ints) -> Ints:
    """Measure how much of `a` is before each point."""
    if len(a.start) == 0:
        return np.zeros(len(points), np.int64)
    if sweeps.native is not None:
        return sweeps.measure_covered_before(a.start, a.end, points)
    length = a.end - a.start
    less_start = np.cumsum(length) - length - a.start
    index = np.searchsorted(a.start, points, side="right") - 1
    before: Ints = less_start[index] + np.minimum(points, a.end[index])
    before[index < 0] = 0
    return before


def make_disjoint(sets: Sequence[Intervals]) -> list[Intervals]:
    """Subtract from each set all sets before it; the results are disjoint and cover the union."""
    slots, seen = [], EMPTY
    for later, current in enumerate(sets, start=1):
        slots.append(subtract(current, seen))
        if any(len(other.start) for other in sets[later:]):
            seen = merge_interval_sets([seen, current])
    return slots


def measure_group_unions(start: Ints, end: Ints, group: Ints, count: int) -> Ints:
    """Measure the union of the intervals of each group 0 … count-1."""
    if sweeps.native is not None:
        if len(start) > 1 and (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            start, end, group = start[order], end[order], group[order]
        return sweeps.measure_unions(start, end, group, count)
    totals = np.zeros(count, np.int64)
    solid = end > start
    start, end, group = start[solid], end[solid], group[solid]
    if len(start) == 0:
        return totals
    order = order_by_group(group, start)
    start, end, group = start[order], end[order], group[order]
    reach = compute_running_max(end, group)
    before = np.empty_like(reach)
    before[0] = start[0]
    before[1:] = np.where(group[1:] == group[:-1], reach[:-1], start[1:])
    np.add.at(totals, group, np.maximum(end - np.maximum(start, before), 0))
    return totals


def compute_running_max(values: Ints, group: Ints) -> Ints:
    """Compute the running maximum of `values`, restarting at each new value of the sorted `group`."""
    low, span = int(values.min()), int(values.max() - values.min()) + 1
    if (int(group[-1]) + 1) * span < 2**62:
        lift = group * span - low
        return np.maximum.accumulate(values + lift) - lift
    ascending = find_distinct(values)
    lift = group * len(ascending)
    return ascending[np.maximum.accumulate(np.searchsorted(ascending, values) + lift) - lift]


def compute_running_sums(values: Ints, group: npt.NDArray[np.integer[Any]]) -> Ints:
    """Compute the running sum of `values`, restarting at each new value of the sorted `group`.

    >>> compute_running_sums(np.array([5, 2, 4]), np.array([0, 0, 1]))
    array([5, 7, 4])
    """
    is_first = np.ones(len(group), np.bool_)
    np.not_equal(group[1:], group[:-1], out=is_first[1:])
    first = is_first.nonzero()[0]
    total = np.cumsum(values)
    return total - np.repeat(total[first] - values[first], np.diff(first, append=len(group)))


class OpShares(NamedTuple):
    """The time of ops in windows, as (op, window) pairs that may repeat.

    `begun` is 1 once per window in which the op begins, else 0.
    """

    op: Ints
    window: Ints
    begun: Ints
    ns: Ints


def share_time(
    ops: tuple[Ints, Ints, Ints],
    low: Ints,
    high: Ints,
    ties: Callable[[Ints], Sequence[npt.NDArray[Any]]],
) -> OpShares:
    """Divide the covered time of each window [low[i], high[i]) among the ops that run in it (rules: module docstring).

    `ops` are starts, ends and classes; class 0 has priority. Among ops with the same start and end, the one that
    `numpy.lexsort(ties(…))` of their indices puts first counts as the one that began first.
    """
    start, end, kind = ops
    order = None
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end, kind = start[order], end[order], kind[order]
    end = np.maximum(end, start)
    sweep = _sweep_ops(start, end, kind, low, high)
    op, window, begins = _pair_ops_with_windows(start, end, low, high)
    ns = _compute_op_shares(sweep, (start, end, kind), low, high, op, window)
    parts = [(op, window, begins.astype(np.int64), ns)]
    for number, (ts, remainder) in enumerate(sweep.rests):
        if len(ts):
            of_class = (kind == number).nonzero()[0]
            places = of_class
            if order is not None:
                places = order[of_class]
            owner = _find_longest_running(start[of_class], end[of_class], ties(places), ts)
            window, place = list_starts_in_windows(ts, low, high)
            parts.append((of_class[owner[place]], window, np.zeros(len(place), np.int64), remainder[place]))
    op, window, counts, ns = (np.concatenate(column) for column in zip(*parts, strict=True))
    if order is not None:
        op = order[op]
    return OpShares(op, window, counts, ns)


def _compute_op_shares(
    sweep: sweeps.SweepResult, ops: tuple[Ints, Ints, Ints], low: Ints, high: Ints, op: Ints, window: Ints
) -> Ints:
    """Compute the time of each (op, window) pair from a sweep."""
    start, end, kind = ops
    lows, highs = sweep.edges[:, : len(low)], sweep.edges[:, len(low) :]
    before = np.where(start[op] >= low[window], sweep.started[op], lows[kind[op], window])
    until = np.where(end[op] <= high[window], sweep.ended[op], highs[kind[op], window])
    lasts = np.minimum(end[op], high[window]) > np.maximum(start[op], low[window])
    return np.where(lasts, until - before, 0)


def _sweep_ops(start: Ints, end: Ints, kind: Ints, low: Ints, high: Ints) -> sweeps.SweepResult:
    """Sweep over the ops, sorted by start, and the edges of the windows."""
    times = np.concatenate((start, end, low, high))
    sequence = np.argsort(times, kind="stable")
    times = times[sequence]
    kinds = int(kind.max(initial=0)) + 1
    if sweeps.native is not None and kinds <= MOST_CLASSES:
        return sweeps.sweep_class_times(sequence, times, kind, kinds)
    place = np.empty(len(times), np.int64)
    place[sequence] = np.arange(len(times))
    first, last, edges = np.split(place, (len(start), 2 * len(start)))
    sums = np.zeros((kinds, len(times) + 1), np.int64)
    rests = []
    length = np.diff(times, append=times[-1:])
    free = np.ones(len(times), np.bool_)
    for number in range(kinds):
        of_class = (kind == number).nonzero()[0]
        change = np.zeros(len(times), np.int8)
        change[first[of_class]], change[last[of_class]] = 1, -1
        running = np.cumsum(change, dtype=np.int64)
        each = np.where(free & (running > 0), length, 0)
        several = ((running > 1) & (each > 0)).nonzero()[0]
        each[several], remainder = np.divmod(each[several], running[several])
        np.cumsum(each, out=sums[number, 1:])
        rests.append((times[several[remainder > 0]], remainder[remainder > 0]))
        free &= running == 0
    return sweeps.SweepResult(sums[kind, first], sums[kind, last], sums[:, edges], rests)


def _find_longest_running(start: Ints, end: Ints, ties: Sequence[npt.NDArray[Any]], ts_ns: Ints) -> Ints:
    """Find, for each instant at which any op runs, the started op that ends last."""
    order = np.lexsort((*ties, end, start))
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    rises = np.concatenate((np.ones(1, np.bool_), reach[1:] > reach[:-1]))
    longest = np.maximum.accumulate(np.where(rises, np.arange(len(end)), 0))
    begun = np.searchsorted(start, ts_ns, side="right") - 1
    assert (end[longest[begun]] > ts_ns).all(), "an op that has ended gets no time"
    return order[longest[begun]]


def _pair_ops_with_windows(start: Ints, end: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """List (op, window, begins): pairs where an op begins in a window, or covers its start.

    The ops must be sorted by start.
    """
    window, op = list_starts_in_windows(start, low, high)
    order = np.argsort(low, kind="stable")
    edges = low[order]
    over, place = expand_ranges(np.searchsorted(edges, start, side="right"), np.searchsorted(edges, end))
    begins = np.repeat((True, False), (len(op), len(over)))
    return np.concatenate((op, over)), np.concatenate((window, order[place])), begins


def list_starts_in_windows(start: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """List (window, index) for each of the ascending starts in each window [low[i], high[i])."""
    return expand_ranges(np.searchsorted(start, low), np.searchsorted(start, high))


def expand_ranges(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """List (i, number) for every integer in each half-open [low[i], high[i]).

    >>> expand_ranges(np.array([3, 0]), np.array([5, 1]))
    (array([0, 0, 1]), array([3, 4, 0]))
    """
    size = np.maximum(high - low, 0)
    row = np.repeat(np.arange(len(low)), size)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(size) - size - low, size)


def mask_affordable_windows(start: Ints, end: Ints, low: Ints, high: Ints) -> npt.NDArray[np.bool_]:
    """Mask the windows whose time can be shared: the first ones, up to four pairs per op plus `FREE_PAIRS`.

    This is all of them, unless thousands overlap one another or ops cover thousands of them.
    """
    limit = 4 * len(start) + FREE_PAIRS
    if len(start) * len(low) <= limit:
        return np.ones(len(low), np.bool_)
    starts, ends = np.sort(start), np.sort(np.maximum(start, end))
    begun = np.searchsorted(starts, low)
    inside = np.maximum(np.searchsorted(starts, high) - begun, 0)
    over = np.maximum(begun - np.searchsorted(ends, low, side="right"), 0)
    shared_out: npt.NDArray[np.bool_] = np.cumsum(inside + over) <= limit
    return shared_out
