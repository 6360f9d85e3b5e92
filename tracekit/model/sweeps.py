"""Wrappers of single-pass algorithms in C over sorted times and keys; the C module is optional.

`native` is None without it; callers then use a slower path with the same results.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.integer[Any]]
"""Row indices, of the type from `choose_row_type`."""

_LEAST = np.iinfo(np.int64).min

MOST_GROUPS = 2**16
"""Use a direct-address table up to this many groups (plus one per row)."""


def _import_native() -> Any:
    """Import the C module; None if it was not built."""
    try:
        return import_module("tracekit.model._sweeps")
    except ImportError:
        return None


native = _import_native()


def choose_row_type(count: int) -> type[np.int32 | np.int64]:
    """Choose int32 if `count` row indices fit in it, else int64."""
    if count > 2**31:
        return np.int64
    return np.int32


def measure_covered_before(start: Ints, end: Ints, points: Ints) -> Ints:
    """Measure how much of sorted disjoint intervals is before each point."""
    before = np.empty(len(points), np.int64)
    native.covered_before(make_int64(start), make_int64(end), make_int64(points), before)
    return before


def count_below(values: Ints, points: Ints, *, right: bool = False) -> Ints:
    """Count the ascending values below each point (`right`: not above it); fast if points are nearly sorted."""
    if native is None or values.dtype != np.int64 or points.dtype != np.int64:
        return np.searchsorted(values, points, side="right" if right else "left")
    place = np.empty(len(points), np.int64)
    (native.places_left, native.places_right)[right](make_int64(values), make_int64(points), place)
    return place


def look_up_sparse(rows: npt.NDArray[np.int32], values: Ints, asked: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Look up `values` of ascending `rows` at the ascending rows `asked`: (values or 0, mask of missing ones)."""
    column_values, missing = np.zeros(len(asked), np.int64), np.ones(len(asked), np.bool_)
    if native is not None:
        of_rows = np.ascontiguousarray(rows, np.int32), make_int64(values), make_int64(asked)
        native.values_at(*of_rows, column_values, missing)
    elif len(rows):
        place = np.minimum(np.searchsorted(rows, asked), len(rows) - 1)
        missing = rows[place] != asked
        column_values[~missing] = values[place[~missing]]
    return column_values, missing


def find_last_windows(start: Ints, end: Ints, points: Ints) -> Ints:
    """Find, for each point, the last started window that contains it; -1 for none. Windows are sorted by start."""
    window = np.empty(len(points), np.int64)
    native.windows(make_int64(start), make_int64(end), make_int64(points), window)
    return window


def merge_sorted_intervals(start: Ints, end: Ints) -> tuple[Ints, Ints] | None:
    """Merge intervals sorted by start into disjoint ones; None if they are not sorted."""
    low, high = np.empty(len(start), np.int64), np.empty(len(start), np.int64)
    count = native.join(make_int64(start), make_int64(end), low, high)
    if count < 0:
        return None
    return _take_first(low, count), _take_first(high, count)


def merge_chosen_rows(chosen: npt.NDArray[np.bool_], start: Ints, length: Ints) -> tuple[Ints, Ints, bool]:
    """Merge the chosen rows (start, length) into disjoint intervals; the flag is False if rows were not sorted by start.

    Unsorted rows are merged within each sorted run, one run after the other; few runs if rows are nearly sorted.
    """
    columns = np.ascontiguousarray(chosen), make_int64(start), make_int64(length)
    nothing = np.empty(0, np.int64)
    count = native.join_chosen(*columns, nothing, nothing)
    room = max(count, -1 - count)
    low, high = np.empty(room, np.int64), np.empty(room, np.int64)
    native.join_chosen(*columns, low, high)
    return low, high, count >= 0


def combine_interval_states(a: tuple[Ints, Ints], b: tuple[Ints, Ints], states: int) -> tuple[Ints, Ints]:
    """Select the points of two sets of disjoint intervals whose state (in a) + 2 · (in b) is a bit of `states`."""
    room = 2 * (len(a[0]) + len(b[0])) + 1
    low, high = np.empty(room, np.int64), np.empty(room, np.int64)
    low[-1] = states
    count = native.combine(*(make_int64(times) for times in (*a, *b)), low, high)
    return _take_first(low, count), _take_first(high, count)


def measure_unions(start: Ints, end: Ints, group: Ints, count: int) -> Ints:
    """Measure the union of the intervals of each group 0 … count-1; intervals are sorted by start."""
    totals, reach = np.zeros(count, np.int64), np.full(count, _LEAST)
    native.united(make_int64(start), make_int64(end), make_int64(group), reach, totals)
    return totals


def find_last_reaching_interval(start: Ints, end: Ints) -> Ints:
    """Find, for each interval, the last one before it that ends after it begins; -1 for none."""
    last = np.empty(len(start), np.int64)
    native.last_reaching(make_int64(start), make_int64(end), last)
    return last


def number_dense_keys(keys: Ints) -> tuple[Ints, Ints] | None:
    """Assign numbers to keys: (distinct keys ascending, index of each key among them); None if they are far apart."""
    distinct, place = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    count = native.numbered(make_int64(keys), distinct, place)
    if count < 0:
        return None
    return _take_first(distinct, count), place


def number_by_appearance(keys: Ints) -> tuple[Ints, Ints] | None:
    """Assign numbers to keys in order of appearance: (number of each row, first row of each number); None if keys collide."""
    place, first = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    count = native.appearing(make_int64(keys), place, first)
    if count < 0:
        return None
    return place, _take_first(first, count)


def find_latest_rows(keys: Rows, starts: Ints, asked: Rows, limit: Ints) -> Ints | None:
    """Find, for each asked key, its last row that did not start after the limit, else its first row; -1 for none.

    `keys` are sorted by start. None if starts do not ascend, or if keys collide.
    """
    row = np.empty(len(asked), np.int64)
    count = native.latest(_make_contiguous(keys), make_int64(starts), _make_contiguous(asked), make_int64(limit), row)
    return row if count >= 0 else None


def find_latest_times(group: Ints, times: Ints, asked: Ints, limit: Ints) -> Ints | None:
    """Find, for each asked group, its latest time before the limit; the smallest int64 for none.

    None if times or limits do not ascend, or if group numbers are far apart.
    """
    low = int(group.min(initial=0))
    room = int(group.max(initial=0)) - low + 1
    if room > len(group) + MOST_GROUPS:
        return None
    last, latest_times = np.full(room + 1, _LEAST), np.empty(len(asked), np.int64)
    columns = [make_int64(values) for values in (group, times, asked, limit, np.array([low]))]
    count = native.latest_before(*columns, last, latest_times)
    return latest_times if count >= 0 else None


def sort_by_thread(
    rows: Ints | npt.NDArray[np.bool_], thread: npt.NDArray[np.integer[Any]], start: Ints, length: Ints
) -> Rows | None:
    """Sort rows (indices, or a mask) by thread, start, longest first.

    None if thread numbers are unsuitable, or if too many rows start together.
    """
    asked: npt.NDArray[Any] = np.ascontiguousarray(rows)
    count = len(rows)
    if rows.dtype == np.bool_:
        count = int(np.count_nonzero(rows))
    else:
        asked = make_int64(asked)
    order = np.empty(count, choose_row_type(len(start)))
    columns = _make_contiguous(thread), make_int64(start), make_int64(length)
    ordered_count = native.by_thread(asked, *columns, order)
    return order if ordered_count >= 0 else None


def sum_groups_natively(group: Rows, values: Ints, count: int) -> Ints:
    """Sum values by group 0 … count-1; negative groups are ignored."""
    totals = np.zeros(count, np.int64)
    native.summed(_make_contiguous(group), make_int64(values), totals)
    return totals


def find_wanted_ancestors(parent: Rows, wanted: npt.NDArray[np.bool_], rows: Ints) -> tuple[Ints, int]:
    """Find the nearest wanted ancestor of each row (-1 for none), and count the rows whose search is incomplete."""
    above = np.empty(len(rows), np.int64)
    return above, native.nearest(_make_contiguous(parent), np.ascontiguousarray(wanted), make_int64(rows), above)


def find_running_ancestors(parent: Rows, end: Ints, times: Ints, rows: Ints) -> tuple[Ints, int]:
    """Find, for each row, itself or the nearest ancestor that ends after its time (-1 for none).

    Also counts the rows whose search is incomplete.
    """
    still = np.array(rows, np.int64)
    return still, native.running(_make_contiguous(parent), make_int64(end), make_int64(times), still)


def measure_outermost_times(
    rows: Rows, thread: npt.NDArray[np.integer[Any]], start: Ints, length: Ints, group: Rows, count: int
) -> Ints:
    """Measure the time in which any op of each group runs, summed over threads; rows are sorted by thread and start."""
    totals, none = np.zeros(count, np.int64), np.empty(0, np.int64)
    columns = _convert_group_columns(rows, thread, start, length, group)
    native.outermost(*columns, totals, none, none, none)
    return totals


def _convert_group_columns(
    rows: Rows, thread: npt.NDArray[np.integer[Any]], start: Ints, length: Ints, group: Rows
) -> tuple[npt.NDArray[np.integer[Any]], ...]:
    """Convert the columns for `native.outermost`: rows and groups of one type."""
    of_group = _make_contiguous(group)
    in_order = np.ascontiguousarray(rows, of_group.dtype)
    return in_order, _make_contiguous(thread), make_int64(start), make_int64(length), of_group


def list_united_calls(
    rows: Rows, thread: npt.NDArray[np.integer[Any]], start: Ints, length: Ints, group: Rows, count: int
) -> tuple[Ints, Ints, Ints, Rows]:
    """Measure like `measure_outermost_times`, and list (start, end, first row) of the intervals in which a group runs.

    An instant lasts 1 ns.
    """
    totals = np.zeros(count, np.int64)
    low, high = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    first = np.empty(len(rows), choose_row_type(len(start)))
    columns = _convert_group_columns(rows, thread, start, length, group)
    united_count = native.outermost(*columns, totals, low, high, first)
    return (totals, _take_first(low, united_count), _take_first(high, united_count), _take_first(first, united_count))


def find_parents(rows: Rows, thread: npt.NDArray[np.integer[Any]], start: Ints, length: Ints) -> Rows:
    """Find the parent of each row, -1 for none; `rows` are sorted by thread, start, longest first.

    Rows that are not in `rows` get -1.
    """
    parent = np.full(len(start), -1, choose_row_type(len(start)))
    in_order = np.ascontiguousarray(rows, parent.dtype)
    native.nest(in_order, _make_contiguous(thread), make_int64(start), make_int64(length), parent)
    return parent


def compute_own_times(rows: Rows, parent: Rows, start: Ints, length: Ints) -> Ints:
    """Compute the self time of each row; `rows` are in the order of `find_parents`, and `parent` is its result."""
    own_ns = make_int64(length).copy()
    in_order = np.ascontiguousarray(rows, parent.dtype)
    native.own_times(in_order, make_int64(start), make_int64(length), _make_contiguous(parent), own_ns)
    return own_ns


def find_innermost_rows(
    rows: Rows,
    spans: tuple[npt.NDArray[np.integer[Any]], Ints, Ints],
    parent: Rows,
    asked: npt.NDArray[np.integer[Any]],
    times: Ints,
) -> Ints | None:
    """Find the innermost row of each asked thread at each time, -1 for none; None if ops are nested very deeply.

    `spans` are the thread, start and length of every row; `rows` are sorted by thread and start.
    """
    thread, start, length = spans
    row = np.empty(len(times), np.int64)
    above = _make_contiguous(parent)
    in_order = np.ascontiguousarray(rows, above.dtype)
    columns = in_order, _make_contiguous(thread), make_int64(start), make_int64(length), above
    further = native.innermost(*columns, _make_contiguous(asked), make_int64(times), row)
    return None if further else row


class SweepResult(NamedTuple):
    """Cumulated time of one op per class: at the start and end of each op for its class, at other edges for all classes.

    `edges` has one row per class. `rests` lists the times and remainders of each class that are not included.
    """

    started: Ints
    ended: Ints
    edges: Ints
    rests: list[tuple[Ints, Ints]]


def sweep_class_times(sequence: Ints, times: Ints, kind: Ints, kinds: int) -> SweepResult:
    """Cumulate the time of one op of each class up to each time.

    `sequence` contains indices sorted by `times`: first starts of ops, then their ends, then other edges.
    """
    ops = len(kind)
    got = np.empty(2 * ops, np.int64)
    edges = np.empty((kinds, len(times) - 2 * ops + 1), np.int64)
    place, of_class, remainder = (np.empty(len(times), np.int64) for _ in range(3))
    columns = make_int64(sequence), make_int64(times), make_int64(kind)
    count = native.swept(*columns, got, edges.reshape(-1), place, of_class, remainder)
    place, of_class, remainder = place[:count], of_class[:count], remainder[:count]
    rests = []
    for number in range(kinds):
        which = (of_class == number).nonzero()[0]
        rests.append((times[place[which]], remainder[which]))
    return SweepResult(got[:ops], got[ops:], edges[:, :-1], rests)


def _make_contiguous(numbers: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
    """Make the numbers contiguous; int32 stays int32, others become int64."""
    return np.ascontiguousarray(numbers) if numbers.dtype == np.int32 else make_int64(numbers)


def compute_depths(parent: Rows) -> tuple[npt.NDArray[np.int32], int] | None:
    """Compute (nesting depth of each row, maximum depth); None if a row comes before its parent."""
    depth = np.empty(len(parent), np.int32)
    deepest = native.depths(_make_contiguous(parent), depth)
    return None if deepest < 0 else (depth, deepest)


def mark_ancestors(parent: Rows, marked: npt.NDArray[np.bool_]) -> None:
    """Mark all ancestors of marked rows in place; parents come before their children."""
    native.mark_enclosing(_make_contiguous(parent), marked)


def number_call_paths(parent: Rows, rows: Ints, key: Ints) -> tuple[npt.NDArray[np.int32], Ints] | None:
    """Assign numbers to the paths of ascending rows: (path of each row, first row of each path); None if keys collide.

    Two rows have the same path if their keys, and those of their ancestors among the rows, are equal.
    """
    number, first = np.empty(len(rows), np.int32), np.empty(len(rows), np.int64)
    count = native.paths(_make_contiguous(parent), make_int64(rows), make_int64(key), number, first)
    return None if count < 0 else (number, _take_first(first, count))


def cut_segments(
    edges: Ints, rows: tuple[Ints, Ints, Rows], axis: Ints, segments: tuple[Ints, Ints, Ints, Ints, Ints], count: int
) -> tuple[Ints, Ints, Rows] | None:
    """Cut segments into `count` pieces (start, end, row), row -1 for none; None if rows are nested too deeply.

    `rows` are (start on the axis, end, parent). `axis` is (first time, length). `segments` are (start, end, start of its
    thread's lane, first edge that cuts it, its first piece).
    """
    begin, until, parent = rows
    start, end, row = (np.empty(count, dtype) for dtype in (np.int64, np.int64, parent.dtype))
    of_rows = make_int64(begin), make_int64(until), _make_contiguous(parent)
    columns = [make_int64(values) for values in (axis, *segments)]
    too_deep = native.pieces(make_int64(edges), *of_rows, *columns, start, end, row)
    return None if too_deep else (start, end, row)


def pool_pieces(start: Ints, end: Ints, node: Rows, count: int, points: Ints) -> tuple[Ints, Ints]:
    """Pool pieces of one node that begin between the same two points: (first piece, total length).

    Nodes are 0 … count-1; negative ones are ignored. Pieces with other points between them stay separate.
    """
    columns = (
        make_int64(start),
        make_int64(end),
        _make_contiguous(node),
        make_int64(points),
        np.empty(count, np.int64),
    )
    nothing = np.empty(0, np.int64)
    room = native.pooled(*columns, nothing, nothing)
    first, length = np.empty(room, np.int64), np.empty(room, np.int64)
    native.pooled(*columns, first, length)
    return first, length


class WindowNodes(NamedTuple):
    """The nodes in each window, in order of appearance: their `first` piece, the number of `gaps`, and their time."""

    window: Ints
    first: Ints
    gaps: Ints
    ns: Ints


def group_pieces_by_window(pieces: tuple[Ints, Ints, Ints, Ints], count: int, low: Ints, high: Ints) -> WindowNodes:
    """Group the pieces that begin in each window [low[i], high[i]) by node 0 … count-1.

    `pieces` are (start, gap, node, length), sorted by start.
    """
    columns = [make_int64(values) for values in (*pieces, low, high)]
    seen = np.empty(3 * count, np.int64)
    room = native.in_windows(*columns, seen, *(seen[:0] for _ in range(4)))
    nodes = WindowNodes(*(np.empty(room, np.int64) for _ in range(4)))
    native.in_windows(*columns, seen, *nodes)
    return nodes


def place_on_lanes(
    rows: Rows, spans: tuple[npt.NDArray[np.integer[Any]], Ints, Ints], axis: Ints
) -> tuple[Ints, Ints, Rows]:
    """Place rows on one axis with thread after thread: (end, position on the axis, parent or -1).

    `rows` are sorted by thread, start, longest first. `spans` are the thread, start and length of every row. `axis` is the
    first time, the length of a lane, and how much earlier than a row its parent may end.
    """
    thread, start, length = spans
    end, begin = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    parent = np.empty(len(rows), choose_row_type(len(rows)))
    columns = (
        _make_contiguous(rows),
        _make_contiguous(thread),
        make_int64(start),
        make_int64(length),
        make_int64(axis),
    )
    native.lanes(*columns, end, begin, parent)
    return end, begin, parent


def make_int64(values: npt.NDArray[np.integer[Any]]) -> Ints:
    """Convert the values to contiguous int64."""
    return np.ascontiguousarray(values, np.int64)


def _take_first(values: Rows, count: int) -> Any:
    """Take the first values; as a copy if most of the memory would be wasted."""
    if 2 * count > len(values):
        return values[:count]
    return values[:count].copy()
