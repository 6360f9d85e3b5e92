"""What ran on a device at each instant, shared out: each nanosecond of a window goes to one op.

At an instant the ops of the first class that runs count. Between two neighbouring times at which any op
begins or ends, k of them get 1/k of the time each, in whole nanoseconds; the rest, less than k, goes to the one
that ends last, of equal ones to the one that began first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

FREE_PAIRS = 2**22
"""So many pairs of an op and a window are always worked out, beside four for every op."""


class Shares(NamedTuple):
    """How much of a window an op got: positions of both, which may come several times.

    `begun` is 1 once for each window in which the op begins, else 0.
    """

    op: Ints
    window: Ints
    begun: Ints
    ns: Ints


def shared(
    ops: tuple[Ints, Ints, Ints], low: Ints, high: Ints, ties: Sequence[Ints] = ()
) -> Shares:
    """The time of each op in each window [low[i], high[i]): over ops, what they cover of the window.

    `ops` are starts, ends, and classes, 0 being the first. Of ops with one start and one end the one that
    `numpy.lexsort(ties)` puts first counts as the one that began first.
    """
    order = np.argsort(ops[0], kind="stable")
    start, kind = ops[0][order], ops[2][order]
    end = np.maximum(ops[1][order], start)
    sweep = _swept(start, end, kind, low, high)
    op, window, begins = _pairs(start, end, low, high)
    first, last, lows, highs = sweep.places
    begin = np.maximum(first[op], lows[window])
    until = np.maximum(np.minimum(last[op], highs[window]), begin)
    ns = sweep.sums[kind[op], until] - sweep.sums[kind[op], begin]
    parts = [(op, window, begins.astype(np.int64), ns)]
    for at, (ts, rest) in enumerate(sweep.rests):
        if len(ts):
            mine = np.flatnonzero(kind == at)
            owner = _longest(start[mine], end[mine], [tie[order[mine]] for tie in ties], ts)
            window, place = beginning(ts, low, high)
            parts.append((mine[owner[place]], window, np.zeros(len(place), np.int64), rest[place]))
    op, window, counts, ns = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Shares(order[op], window, counts, ns)


class _Sweep(NamedTuple):
    """All starts, ends and window edges in order of time, and what an op of each class gets until each of them.

    `places` are those of starts, ends, low and high edges; `sums[class, place]` the time that an op which runs
    all along has got before it; `rests` the times and remainders of each class that are not in the sums.
    """

    places: tuple[Ints, Ints, Ints, Ints]
    sums: npt.NDArray[np.int64]
    rests: list[tuple[Ints, Ints]]


def _swept(start: Ints, end: Ints, kind: Ints, low: Ints, high: Ints) -> _Sweep:
    """The sweep over the ops, in order of start, and the edges of the windows."""
    times = np.concatenate((start, end, low, high))
    sequence = np.argsort(times, kind="stable")
    place = np.empty(len(times), np.int64)
    place[sequence] = np.arange(len(times))
    times = times[sequence]
    length = np.diff(times, append=times[-1:])
    bounds = np.cumsum([len(start), len(end), len(low)])
    first, last, lows, highs = np.split(place, bounds)
    kinds = int(kind.max(initial=0)) + 1
    sums = np.zeros((kinds, len(times) + 1), np.int64)
    rests = []
    free = np.ones(len(times), np.bool_)
    for at in range(kinds):
        mine = np.flatnonzero(kind == at)
        change = np.zeros(len(times), np.int8)
        change[first[mine]], change[last[mine]] = 1, -1
        running = np.cumsum(change, dtype=np.int64)
        each = np.where(free & (running > 0), length, 0)
        several = np.flatnonzero((running > 1) & (each > 0))
        each[several], rest = np.divmod(each[several], running[several])
        np.cumsum(each, out=sums[at, 1:])
        rests.append((times[several[rest > 0]], rest[rest > 0]))
        free &= running == 0
    return _Sweep((first, last, lows, highs), sums, rests)


def _longest(start: Ints, end: Ints, ties: Sequence[Ints], ts_ns: Ints) -> Ints:
    """For each instant at which any op runs, the one that ends last of those that have begun."""
    order = np.lexsort((*ties, end, start))
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    rises = np.concatenate((np.ones(1, np.bool_), reach[1:] > reach[:-1]))
    longest = np.maximum.accumulate(np.where(rises, np.arange(len(end)), 0))
    begun = np.searchsorted(start, ts_ns, side="right") - 1
    assert (end[longest[begun]] > ts_ns).all(), "an op that has ended gets no time"
    return order[longest[begun]]


def _pairs(
    start: Ints, end: Ints, low: Ints, high: Ints
) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """(op, window, whether it begins there): where an op begins in a window or lies over its start.

    The ops are in order of start.
    """
    window, op = beginning(start, low, high)
    order = np.argsort(low, kind="stable")
    edges = low[order]
    over, place = spread(np.searchsorted(edges, start, side="right"), np.searchsorted(edges, end))
    begins = np.repeat((True, False), (len(op), len(over)))
    return np.concatenate((op, over)), np.concatenate((window, order[place])), begins


def beginning(start: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """(window, position) for every one of the ascending starts that lies in a window [low[i], high[i])."""
    return spread(np.searchsorted(start, low), np.searchsorted(start, high))


def spread(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """(i, number) for every number in each half-open [low[i], high[i]).

    >>> spread(np.array([3, 0]), np.array([5, 1]))
    (array([0, 0, 1]), array([3, 4, 0]))
    """
    size = np.maximum(high - low, 0)
    of = np.repeat(np.arange(len(low)), size)
    return of, np.arange(len(of)) - np.repeat(np.cumsum(size) - size - low, size)


def affordable(start: Ints, end: Ints, low: Ints, high: Ints) -> npt.NDArray[np.bool_]:
    """Which windows can be shared out: the first ones, as far as four pairs an op and `FREE_PAIRS` go.

    All of them, unless thousands overlap one another or ops lie over thousands of them.
    """
    most = 4 * len(start) + FREE_PAIRS
    if len(start) * len(low) <= most:
        return np.ones(len(low), np.bool_)
    starts, ends = np.sort(start), np.sort(np.maximum(start, end))
    begun = np.searchsorted(starts, low)
    inside = np.maximum(np.searchsorted(starts, high) - begun, 0)
    over = np.maximum(begun - np.searchsorted(ends, low, side="right"), 0)
    kept: npt.NDArray[np.bool_] = np.cumsum(inside + over) <= most
    return kept
