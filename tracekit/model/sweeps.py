"""Passes over times in order and over keys, in C where it could be built: what one step an interval finds.

`native` is None without it; those who ask for a pass have another way then, with the same results.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.integer[Any]]
"""Numbers of rows, in the type of `row_type`."""

_LEAST = np.iinfo(np.int64).min

MOST_GROUPS = 2**16
"""So many numbers, and as many as there are rows besides, have a place each."""


def _installed() -> Any:
    """The passes that are written in C; None where they could not be built."""
    try:
        return import_module("tracekit.model._sweeps")
    except ImportError:
        return None


native = _installed()


def row_type(count: int) -> type[np.int32 | np.int64]:
    """The type of the numbers of so many rows: that of half the memory where it has all of them."""
    if count > 2**31:
        return np.int64
    return np.int32


def covered_before(start: Ints, end: Ints, points: Ints) -> Ints:
    """How much of disjoint intervals in order lies before each point."""
    before = np.empty(len(points), np.int64)
    native.covered_before(plain(start), plain(end), plain(points), before)
    return before


def places(values: Ints, points: Ints, *, right: bool = False) -> Ints:
    """How many of ascending values are below each point (`right`: not above it); quick where points are nearly in order."""
    if native is None or values.dtype != np.int64 or points.dtype != np.int64:
        return np.searchsorted(values, points, side="right" if right else "left")
    place = np.empty(len(points), np.int64)
    (native.places_left, native.places_right)[right](plain(values), plain(points), place)
    return place


def values_at(
    rows: npt.NDArray[np.int32], values: Ints, asked: Ints
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """(the values of the asked rows, 0 where `rows` do not hold one; which these are); all rows ascend."""
    column_values, missing = np.zeros(len(asked), np.int64), np.ones(len(asked), np.bool_)
    if native is not None:
        of_rows = np.ascontiguousarray(rows, np.int32), plain(values), plain(asked)
        native.values_at(*of_rows, column_values, missing)
    elif len(rows):
        place = np.minimum(np.searchsorted(rows, asked), len(rows) - 1)
        missing = rows[place] != asked
        column_values[~missing] = values[place[~missing]]
    return column_values, missing


def windows(start: Ints, end: Ints, points: Ints) -> Ints:
    """For each point the window, of those in order of start, that began last and holds it; -1 for none."""
    window = np.empty(len(points), np.int64)
    native.windows(plain(start), plain(end), plain(points), window)
    return window


def joined(start: Ints, end: Ints) -> tuple[Ints, Ints] | None:
    """The union of intervals in order of start as disjoint ones; None where they are in another order."""
    low, high = np.empty(len(start), np.int64), np.empty(len(start), np.int64)
    count = native.join(plain(start), plain(end), low, high)
    if count < 0:
        return None
    return _cut(low, count), _cut(high, count)


def joined_rows(
    chosen: npt.NDArray[np.bool_], start: Ints, length: Ints
) -> tuple[Ints, Ints, bool]:
    """The union of the chosen rows, which last so long, as disjoint intervals, and whether it is that.

    Else that of each run of rows in order of start, one run after the other: few where rows are nearly in order.
    """
    columns = np.ascontiguousarray(chosen), plain(start), plain(length)
    nothing = np.empty(0, np.int64)
    count = native.join_chosen(*columns, nothing, nothing)
    room = max(count, -1 - count)
    low, high = np.empty(room, np.int64), np.empty(room, np.int64)
    native.join_chosen(*columns, low, high)
    return low, high, count >= 0


def combined(a: tuple[Ints, Ints], b: tuple[Ints, Ints], states: int) -> tuple[Ints, Ints]:
    """The points of two sets of disjoint intervals whose state (in a) + 2 · (in b) is a bit of `states`."""
    room = 2 * (len(a[0]) + len(b[0])) + 1
    low, high = np.empty(room, np.int64), np.empty(room, np.int64)
    low[-1] = states
    count = native.combine(*map(plain, (*a, *b)), low, high)
    return _cut(low, count), _cut(high, count)


def united(start: Ints, end: Ints, group: Ints, count: int) -> Ints:
    """For each group 0 … count-1 the length of the union of its intervals, which are in order of start."""
    totals, reach = np.zeros(count, np.int64), np.full(count, _LEAST)
    native.united(plain(start), plain(end), plain(group), reach, totals)
    return totals


def last_reaching(start: Ints, end: Ints) -> Ints:
    """For each interval the last one before it that ends after it begins, -1 for none."""
    last = np.empty(len(start), np.int64)
    native.last_reaching(plain(start), plain(end), last)
    return last


def numbered(keys: Ints) -> tuple[Ints, Ints] | None:
    """(the distinct keys, ascending; for each key its place among them); None where they lie far apart."""
    distinct, place = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    count = native.numbered(plain(keys), distinct, place)
    if count < 0:
        return None
    return _cut(distinct, count), place


def appearing(keys: Ints) -> tuple[Ints, Ints] | None:
    """(the number of each key in order of appearance, the first row of each); None for keys that collide."""
    place, first = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    count = native.appearing(plain(keys), place, first)
    if count < 0:
        return None
    return place, _cut(first, count)


def latest(keys: Rows, starts: Ints, asked: Rows, limit: Ints) -> Ints | None:
    """For each asked key the last of `keys`, in order of start, that is it and did not start after the limit.

    Else the first that is it, -1 for none; None where starts do not ascend, or keys collide.
    """
    row = np.empty(len(asked), np.int64)
    count = native.latest(_narrow(keys), plain(starts), _narrow(asked), plain(limit), row)
    return row if count >= 0 else None


def latest_before(group: Ints, times: Ints, asked: Ints, limit: Ints) -> Ints | None:
    """For each asked group the latest of its times before the limit, the least integer for none.

    None where times or limits do not ascend, or the numbers of groups lie far apart.
    """
    low = int(group.min(initial=0))
    room = int(group.max(initial=0)) - low + 1
    if room > len(group) + MOST_GROUPS:
        return None
    last, latest_times = np.full(room + 1, _LEAST), np.empty(len(asked), np.int64)
    columns = map(plain, (group, times, asked, limit, np.array([low])))
    count = native.latest_before(*columns, last, latest_times)
    return latest_times if count >= 0 else None


def by_thread(
    rows: Ints | npt.NDArray[np.bool_],
    thread: npt.NDArray[np.integer[Any]],
    start: Ints,
    length: Ints,
) -> Rows | None:
    """The rows, or those that a mask holds, by thread, start, longest first.

    None where threads have odd numbers, or too many rows start together.
    """
    asked: npt.NDArray[Any] = np.ascontiguousarray(rows)
    count = len(rows)
    if rows.dtype == np.bool_:
        count = int(np.count_nonzero(rows))
    else:
        asked = plain(asked)
    order = np.empty(count, row_type(len(start)))
    columns = map(plain, (start, length))
    ordered_count = native.by_thread(asked, _narrow(thread), *columns, order)
    return order if ordered_count >= 0 else None


def summed(group: Rows, values: Ints, count: int) -> Ints:
    """Sums by group, which are 0 … count-1; one below 0 counts nowhere."""
    totals = np.zeros(count, np.int64)
    native.summed(_narrow(group), plain(values), totals)
    return totals


def nearest(parent: Rows, wanted: npt.NDArray[np.bool_], rows: Ints) -> tuple[Ints, int]:
    """(the nearest row above each that is wanted, -1 for none; how many of them are not there yet)."""
    above = np.empty(len(rows), np.int64)
    return above, native.nearest(_narrow(parent), np.ascontiguousarray(wanted), plain(rows), above)


def running(parent: Rows, end: Ints, times: Ints, rows: Ints) -> tuple[Ints, int]:
    """(each row, or the nearest above it, that ends after its time, -1 for none; how many are not there yet)."""
    still = np.array(rows, np.int64)
    return still, native.running(_narrow(parent), plain(end), plain(times), still)


def outermost(
    rows: Rows,
    thread: npt.NDArray[np.integer[Any]],
    start: Ints,
    length: Ints,
    group: Rows,
    count: int,
) -> Ints:
    """For each group the time in which any op of it runs, on every thread; `rows` are in order of thread and start."""
    totals, none = np.zeros(count, np.int64), np.empty(0, np.int64)
    columns = _grouped(rows, thread, start, length, group)
    native.outermost(*columns, totals, none, none, none)
    return totals


def _grouped(
    rows: Rows, thread: npt.NDArray[np.integer[Any]], start: Ints, length: Ints, group: Rows
) -> tuple[npt.NDArray[np.integer[Any]], ...]:
    """The columns as `native.outermost` takes them: rows and groups of one type."""
    of_group = _narrow(group)
    in_order = np.ascontiguousarray(rows, of_group.dtype)
    return in_order, _narrow(thread), plain(start), plain(length), of_group


def united_calls(
    rows: Rows,
    thread: npt.NDArray[np.integer[Any]],
    start: Ints,
    length: Ints,
    group: Rows,
    count: int,
) -> tuple[Ints, Ints, Ints, Rows]:
    """The same times, and (start, end, first row) of the intervals in which a group runs; an instant lasts 1 ns."""
    totals = np.zeros(count, np.int64)
    low, high = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    first = np.empty(len(rows), row_type(len(start)))
    columns = _grouped(rows, thread, start, length, group)
    united_count = native.outermost(*columns, totals, low, high, first)
    return totals, _cut(low, united_count), _cut(high, united_count), _cut(first, united_count)


def nested(rows: Rows, thread: npt.NDArray[np.integer[Any]], start: Ints, length: Ints) -> Rows:
    """The row that encloses each, -1 for none, for `rows` in order of thread, start, longest first; none encloses another row."""
    parent = np.full(len(start), -1, row_type(len(start)))
    in_order = np.ascontiguousarray(rows, parent.dtype)
    native.nest(in_order, _narrow(thread), plain(start), plain(length), parent)
    return parent


def own_times(rows: Rows, parent: Rows, start: Ints, length: Ints) -> Ints:
    """The time of each row that none in it takes; `rows` are in the order of `nested`, `parent` is what that gives."""
    own_ns = plain(length).copy()
    in_order = np.ascontiguousarray(rows, parent.dtype)
    native.own_times(in_order, plain(start), plain(length), _narrow(parent), own_ns)
    return own_ns


def innermost(
    rows: Rows,
    spans: tuple[npt.NDArray[np.integer[Any]], Ints, Ints],
    parent: Rows,
    asked: npt.NDArray[np.integer[Any]],
    times: Ints,
) -> Ints | None:
    """The row that each asked thread is in innermost at each time, -1 for none; None where ops lie very deep.

    `spans` are the thread, start and length of every row; `rows` are in order of thread and start.
    """
    thread, start, length = spans
    row = np.empty(len(times), np.int64)
    above = _narrow(parent)
    in_order = np.ascontiguousarray(rows, above.dtype)
    columns = in_order, _narrow(thread), plain(start), plain(length), above
    further = native.innermost(*columns, _narrow(asked), plain(times), row)
    return None if further else row


class Swept(NamedTuple):
    """What an op of each class has got: before each op starts and ends, one of its class; at other edges, one of every class.

    `edges` has a row a class. `rests` are the times and remainders of each class that are not in it.
    """

    started: Ints
    ended: Ints
    edges: Ints
    rests: list[tuple[Ints, Ints]]


def swept(sequence: Ints, times: Ints, kind: Ints, kinds: int) -> Swept:
    """What an op of each class has got before each time.

    `sequence` are the numbers of the starts of ops, then their ends, then other edges, in order of `times`.
    """
    ops = len(kind)
    got = np.empty(2 * ops, np.int64)
    edges = np.empty((kinds, len(times) - 2 * ops + 1), np.int64)
    place, of_class, remainder = (np.empty(len(times), np.int64) for _ in range(3))
    columns = map(plain, (sequence, times, kind))
    count = native.swept(*columns, got, edges.reshape(-1), place, of_class, remainder)
    place, of_class, remainder = place[:count], of_class[:count], remainder[:count]
    rests = []
    for number in range(kinds):
        which = (of_class == number).nonzero()[0]
        rests.append((times[place[which]], remainder[which]))
    return Swept(got[:ops], got[ops:], edges[:, :-1], rests)


def _narrow(numbers: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
    """The numbers in one piece, in half as many bytes where they come so."""
    return np.ascontiguousarray(numbers) if numbers.dtype == np.int32 else plain(numbers)


def depths(parent: Rows) -> tuple[npt.NDArray[np.int32], int] | None:
    """(how many rows enclose each, the most of them); None where a row stands before what encloses it."""
    depth = np.empty(len(parent), np.int32)
    deepest = native.depths(_narrow(parent), depth)
    return None if deepest < 0 else (depth, deepest)


def mark_enclosing(parent: Rows, marked: npt.NDArray[np.bool_]) -> None:
    """Nothing; all that encloses what is marked is marked as well. What encloses a row stands before it."""
    native.mark_enclosing(_narrow(parent), marked)


def paths(parent: Rows, rows: Ints, key: Ints) -> tuple[npt.NDArray[np.int32], Ints] | None:
    """(the number of the path of each of ascending rows, the place of the first row of each); None for keys that collide.

    Two rows have one path where their keys are alike, and those of what encloses them among the rows.
    """
    number, first = np.empty(len(rows), np.int32), np.empty(len(rows), np.int64)
    count = native.paths(_narrow(parent), plain(rows), plain(key), number, first)
    return None if count < 0 else (number, _cut(first, count))


def pieces(
    edges: Ints,
    rows: tuple[Ints, Ints, Rows],
    axis: Ints,
    segments: tuple[Ints, Ints, Ints, Ints, Ints],
    count: int,
) -> tuple[Ints, Ints, Rows] | None:
    """(start, end, row) of so many pieces of segments, -1 for no row; None where rows lie too deep for a look from each piece.

    `rows` are (where each begins on the axis, its end, what encloses it), `axis` its first time and how many there are,
    `segments` (start, end, where the lane of its thread begins, the first edge that cuts it, its first piece).
    """
    begin, until, parent = rows
    start, end, row = (np.empty(count, dtype) for dtype in (np.int64, np.int64, parent.dtype))
    of_rows = plain(begin), plain(until), _narrow(parent)
    columns = map(plain, (axis, *segments))
    too_deep = native.pieces(plain(edges), *of_rows, *columns, start, end, row)
    return None if too_deep else (start, end, row)


def pooled(start: Ints, end: Ints, node: Rows, count: int, points: Ints) -> tuple[Ints, Ints]:
    """(the first of the pieces of one node that begin between the same two points, the sum of their lengths).

    Nodes are 0 … count-1, a piece below 0 counts nowhere. Pieces of a node with such of other points between them stay apart.
    """
    columns = plain(start), plain(end), _narrow(node), plain(points), np.empty(count, np.int64)
    nothing = np.empty(0, np.int64)
    room = native.pooled(*columns, nothing, nothing)
    first, length = np.empty(room, np.int64), np.empty(room, np.int64)
    native.pooled(*columns, first, length)
    return first, length


class InWindows(NamedTuple):
    """The nodes of pieces by window, in order of appearance: the `first` piece of each, in how many `gaps` they lie, their time."""

    window: Ints
    first: Ints
    gaps: Ints
    ns: Ints


def in_windows(
    pieces: tuple[Ints, Ints, Ints, Ints], count: int, low: Ints, high: Ints
) -> InWindows:
    """The nodes, which are 0 … count-1, of the pieces that begin in each window [low[i], high[i]).

    `pieces` are (start, gap, node, length), in order of start.
    """
    columns, seen = list(map(plain, (*pieces, low, high))), np.empty(3 * count, np.int64)
    room = native.in_windows(*columns, seen, *(seen[:0] for _ in range(4)))
    nodes = InWindows(*(np.empty(room, np.int64) for _ in range(4)))
    native.in_windows(*columns, seen, *nodes)
    return nodes


def lanes(
    rows: Rows, spans: tuple[npt.NDArray[np.integer[Any]], Ints, Ints], axis: Ints
) -> tuple[Ints, Ints, Rows]:
    """(end, place on the axis, what encloses it, -1 for none) of rows in order of thread, start, longest first.

    `spans` are the thread, start and length of every row; `axis` the first time and the length of one on which thread
    follows thread, and by how much what encloses a row may end before it.
    """
    thread, start, length = spans
    end, begin = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    parent = np.empty(len(rows), row_type(len(rows)))
    columns = _narrow(rows), _narrow(thread), plain(start), plain(length), plain(axis)
    native.lanes(*columns, end, begin, parent)
    return end, begin, parent


def plain(values: npt.NDArray[np.integer[Any]]) -> Ints:
    """The values as int64 in one piece."""
    return np.ascontiguousarray(values, np.int64)


def _cut(values: Rows, count: int) -> Any:
    """The first of the values, in memory of their own where most of it would be of no use."""
    if 2 * count > len(values):
        return values[:count]
    return values[:count].copy()
