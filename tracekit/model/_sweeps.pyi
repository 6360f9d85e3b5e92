# What the passes over times and keys show to `sweeps.py`: arrays of int64 in one piece; the last ones are written to.

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Threads: TypeAlias = npt.NDArray[np.int32 | np.int64]
Rows: TypeAlias = npt.NDArray[np.int32 | np.int64]

# How much of disjoint intervals in order lies before each point.
def covered_before(start: Ints, end: Ints, points: Ints, before: Ints, /) -> None: ...

# How many of ascending values are below each point, or not above it.
def places_left(values: Ints, points: Ints, place: Ints, /) -> None: ...
def places_right(values: Ints, points: Ints, place: Ints, /) -> None: ...

# What a sparse column, whose rows ascend, holds at ascending rows, and where it holds nothing.
def values_at(
    rows: npt.NDArray[np.int32], values: Ints, asked: Ints, found: Ints, missing: npt.NDArray[np.bool_], /
) -> None: ...

# The last window to begin before each point, in order of start, if it holds the point; else -1.
def windows(start: Ints, end: Ints, points: Ints, window: Ints, /) -> None: ...

# The union of intervals in order of start, and how many intervals it has; -1 where they are in another order.
def join(start: Ints, end: Ints, low: Ints, high: Ints, /) -> int: ...

# The points of two sets whose state (in a) + 2 * (in b) is kept: its bit is set in the last item of `low`.
def combine(a_start: Ints, a_end: Ints, b_start: Ints, b_end: Ints, low: Ints, high: Ints, /) -> int: ...

# The length of the union of the intervals of each group, in order of start; `reach` is the least number at first.
def united(start: Ints, end: Ints, group: Ints, reach: Ints, totals: Ints, /) -> None: ...

# For each the last one before it that ends after it begins, -1 for none.
def last_reaching(start: Ints, end: Ints, last: Ints, /) -> None: ...

# The distinct keys, ascending, and the place of each key among them; how many there are, -1 where they lie far apart.
def numbered(keys: Ints, distinct: Ints, place: Ints, /) -> int: ...

# The number of each key in order of appearance, and the first row of each; how many there are, -1 for no answer.
def appearing(keys: Ints, place: Ints, first: Ints, /) -> int: ...

# The last of the rows in order of start that has each asked key and does not start after the limit, or else the first of that
# key, -1 for none; how many were asked, -1 for rows in another order and keys that collide. Keys may be of int32.
def latest(keys: Rows, starts: Ints, asked: Rows, limit: Ints, row: Ints, /) -> int: ...

# Rows, or those that a mask of all of them holds, by thread and start, of those that start together the longest first; -1 where
# threads have other numbers than 0 to 65535, and where too many start together. `thread` may be of int32, and so may `order`.
# Quick where rows are nearly in order.
def by_thread(
    rows: Ints | npt.NDArray[np.bool_], thread: Threads, start: Ints, length: Ints, order: Rows, /
) -> int: ...

# The sums of the values of each group, added to the totals; a group below 0 counts nowhere. `group` may be of int32.
def summed(group: Rows, values: Ints, totals: Ints, /) -> None: ...

# The nearest row above each that is wanted, -1 for none; how many are not there yet after 64 steps.
# `parent` may be of int32.
def nearest(parent: Rows, wanted: npt.NDArray[np.bool_], rows: Ints, above: Ints, /) -> int: ...

# Each row, or the nearest above it, that ends after the time; how many are not there yet after 64 steps.
# `parent` may be of int32.
def running(parent: Rows, end: Ints, times: Ints, rows: Ints, /) -> int: ...

# Unites the intervals of each group on every thread, `rows` in order of thread and start, and of the type of `group`, which may
# be of int32, as may `thread`: adds up their lengths, and where
# there is room gives start, end (an instant lasts 1 ns) and the first row of each; how many these are.
def outermost(
    rows: Rows,
    thread: Threads,
    start: Ints,
    length: Ints,
    group: Rows,
    totals: Ints,
    low: Ints,
    high: Ints,
    first: Rows,
    /,
) -> int: ...

# What an op of its class (of at most 64) had got before each op started, then before each ended, and one of each class before
# every other edge (a row a class, which is one longer), by the numbers of starts, ends and other edges in order of time; and
# the places, classes and remainders of what could not be shared out: how many.
def swept(
    sequence: Ints, times: Ints, kind: Ints, got: Ints, edges: Ints, place: Ints, of_class: Ints, remainder: Ints, /
) -> int: ...

# The row that encloses each op, where there is one; `rows` are in order of thread, start, longest first, and of the type of
# `parent`, which may be of int32, as may `thread`.
def nest(rows: Rows, thread: Threads, start: Ints, length: Ints, parent: Rows, /) -> None: ...

# Takes from `own`, the lengths, what those in each op cover; `rows` and `parent` are as `nest` has them.
def own_times(rows: Rows, start: Ints, length: Ints, parent: Rows, own: Ints, /) -> None: ...

# How many rows enclose each, by the place of what encloses it; the most of them, -1 where a row stands before that.
# `parent` may be of int32.
def depths(parent: Rows, depth: npt.NDArray[np.int32], /) -> int: ...

# Marks all that encloses what is marked. `parent` may be of int32.
def mark_enclosing(parent: Rows, marked: npt.NDArray[np.bool_], /) -> None: ...

# The number of the path of each of the ascending `rows`: alike where their keys are, and those of all that encloses them
# among the rows; how many there are, -1 for keys that collide. `first` is the place of the first row of each. `parent` may be
# of int32.
def paths(parent: Rows, rows: Ints, key: Ints, number: npt.NDArray[np.int32], first: Ints, /) -> int: ...

# Segments in pieces, cut at `edges` from number `edge` on, with the row that each piece is in, -1 for none; how many of them
# are not found after 64 steps up. All on an axis (`axis`: the first time, how many) of which lanes that begin at `base` are
# threads; `begin` is where rows begin on it, and `first` which of the pieces is the first of each segment. `parent` and `row`
# may be of int32.
def pieces(
    edges: Ints,
    begin: Ints,
    until: Ints,
    parent: Rows,
    axis: Ints,
    seg_start: Ints,
    seg_end: Ints,
    base: Ints,
    edge: Ints,
    first: Ints,
    start: Ints,
    end: Ints,
    row: Rows,
    /,
) -> int: ...

# The pieces of a node that begin between the same two of the ascending `points`, those that stand apart for themselves and
# those below 0 nowhere: the first piece and the sum of the lengths of each, and how many there are, which may be more than there
# is room for. `of_node` has room for a number a node; `node` may be of int32.
def pooled(start: Ints, end: Ints, node: Rows, points: Ints, of_node: Ints, first: Ints, length: Ints, /) -> int: ...

# The union of the chosen rows, in order of start; how many intervals it has, which may be more than there is room for. Of rows
# in another order that of each run of rows in order, and -1 less the number of all their intervals.
def join_chosen(chosen: npt.NDArray[np.bool_], start: Ints, length: Ints, low: Ints, high: Ints, /) -> int: ...

# For each asked group the latest of its times before the limit; -1 where times or limits do not ascend. Groups are numbers from
# `low` (one value) on; `last` has a place for each and one besides, all with what stands for no time.
def latest_before(group: Ints, time: Ints, asked: Ints, limit: Ints, low: Ints, last: Ints, latest: Ints, /) -> int: ...

# The nodes of pieces by window, in order of appearance: the window, the first piece, in how many gaps they lie, the sum of
# lengths; how many these are, which may be more than there is room for. Pieces are in order of start, a piece without a node
# is refused; `seen` has room for three numbers a node.
def in_windows(
    start: Ints,
    gap: Ints,
    node: Ints,
    length: Ints,
    low: Ints,
    high: Ints,
    seen: Ints,
    window: Ints,
    first: Ints,
    gaps: Ints,
    ns: Ints,
    /,
) -> int: ...

# Rows in order of thread and start: the end of each, where it begins on an axis (`axis`: its first time, its length), on which
# thread follows thread, and the last one before it that ends after it begins and not earlier by `axis[2]` than it.
# Rows, threads and what encloses a row may be of int32.
def lanes(
    rows: Rows, thread: Threads, start: Ints, length: Ints, axis: Ints, ended: Ints, begin: Ints, parent: Rows, /
) -> None: ...

# The row that each asked thread is in innermost at each time, -1 for none, and how many are not there yet after 64 steps up;
# `rows` are in order of thread and start, and of the type of `parent`. Both may be of int32, and so may threads.
def innermost(
    rows: Rows, thread: Threads, start: Ints, length: Ints, parent: Rows, asked: Threads, times: Ints, row: Ints, /
) -> int: ...
