"""Call tree of the host: which op runs inside which, and the exclusive time of each op."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.records import dataclass
from tracekit.model.tables.keys import find_distinct
from tracekit.model.trace import Trace
from tracekit.process.name_filters import mark_rows_of_kind

Ints = npt.NDArray[np.int64]
Rows = sweeps.Rows
Mask = npt.NDArray[np.bool_]

NESTED_KINDS = ("op", "runtime", "range")
"""Kinds of rows that form the call tree; overhead and unknown intervals are outside it.

Python functions are outside it too: their clock reads up to a microsecond apart from the clock of the ops
that they call.
"""

FEW_LEVELS = 64
"""Levels of the tree to climb one at a time; deeper climbs use pointer doubling."""


@dataclass(frozen=True, slots=True)
class CallTree:
    """Call tree: for each row of `host_ops` its `parent` (row; -1 at the top or outside the tree).

    At any instant a thread is in the op that started last and still runs.
    """

    parent: Rows
    order: Rows
    """Rows in the tree, sorted by thread, start, longest first."""
    length: Ints | None = None
    """Duration of each row (ns) without the jitter by which it overlaps its neighbor; None if no row overlaps."""

    def nearest(self, wanted: npt.NDArray[np.bool_], rows: Ints) -> Ints:
        """Find the nearest enclosing row that satisfies `wanted`, for each of `rows`; -1 if none does."""
        if sweeps.native is not None:
            ancestors, further = sweeps.find_wanted_ancestors(self.parent, wanted, rows)
            if further:
                ancestors = np.where(ancestors < 0, -1, self._wanted_above(wanted)[ancestors])
            return ancestors
        ancestors = self.parent[rows].astype(np.int64)
        active = (ancestors >= 0).nonzero()[0]
        active = active[~wanted[ancestors[active]]]
        for _ in range(FEW_LEVELS):
            if not len(active):
                return ancestors
            ancestors[active] = self.parent[ancestors[active]]
            active = active[ancestors[active] >= 0]
            active = active[~wanted[ancestors[active]]]
        ancestors[active] = self._wanted_above(wanted)[ancestors[active]]
        return ancestors

    def running(self, rows: Ints, end: Ints, ts_ns: Ints) -> Ints:
        """Find the nearest of each row and its ancestors that still runs at the row's instant; -1 if none."""
        if sweeps.native is not None:
            running, further = sweeps.find_running_ancestors(self.parent, end, ts_ns, rows)
            if not further:
                return running
        running = rows.copy()
        ended = (running >= 0).nonzero()[0]
        ended = ended[end[running[ended]] <= ts_ns[ended]]
        for _ in range(FEW_LEVELS):
            if not len(ended):
                return running
            running[ended] = self.parent[running[ended]]
            ended = ended[running[ended] >= 0]
            ended = ended[end[running[ended]] <= ts_ns[ended]]
        above, latest = ([self.parent], [end])  # 1, 2, 4 … levels up: the ancestor, and the latest end on the way
        while (above[-1] >= 0).any():
            jump, reach = above[-1], latest[-1]
            inside = jump >= 0
            above.append(np.where(inside, jump[jump], -1))
            latest.append(np.where(inside, np.maximum(reach, reach[jump]), reach))
        for jump, reach in zip(reversed(above), reversed(latest), strict=True):
            ended = ended[running[ended] >= 0]
            passed = ended[reach[running[ended]] <= ts_ns[ended]]
            running[passed] = jump[running[passed]]
        return running

    def _wanted_above(self, wanted: npt.NDArray[np.bool_]) -> Ints:
        """Map each row to itself if wanted, else to its nearest wanted ancestor (pointer doubling)."""
        above = np.where(wanted, np.arange(len(wanted)), self.parent)
        while len(open_ := ((above >= 0) & ~wanted[above]).nonzero()[0]):
            above[open_] = above[above[open_]]
        return above


def build_call_tree(trace: Trace) -> CallTree:
    """Build the call tree of all host threads of a trace."""
    return build_call_tree_of_rows(trace, mark_rows_of_kind(trace, "host_ops", *NESTED_KINDS))


def build_call_tree_of_rows(trace: Trace, rows: Ints | Mask) -> CallTree:
    """Build the call tree of some rows of `host_ops` (row numbers or a mask); other rows are outside it."""
    start, thread = trace.numbers("host_ops", "ts_ns"), trace.numbers("host_ops", "thread")
    dur = trace.numbers("host_ops", "dur_ns")
    order = sort_rows_by_thread(rows, thread, start, dur)
    parent = find_parent_rows(order, thread, start, dur)
    return CallTree(*_unnest_jittered_neighbors(parent, order, start, dur, trace.derived(measure_time_resolution)))


def _unnest_jittered_neighbors(
    parent: Rows, order: Rows, start: Ints, dur: Ints, jitter_ns: int
) -> tuple[Rows, Rows, Ints | None]:
    """Move each row that begins in the last `jitter_ns` of another row, and clearly outlasts it, out of that row.

    A recorded end is a rounded start plus a rounded duration, so it may come after the start of the next op.
    Rows at most as long as the jitter stay inside, since they may really be nested.
    """
    end = start + dur

    def is_neighbour(rows: Rows, above: Rows) -> Mask:
        """Check whether a row only overlaps its parent by jitter, and outlasts it."""
        inside = above >= 0
        overlap = end[above] - start[rows]
        return inside & (overlap <= jitter_ns) & (end[rows] - end[above] > jitter_ns)

    rows = order[is_neighbour(order, parent[order])]
    if not len(rows):
        return parent, order, None
    repaired, cut, above = parent.copy(), end.copy(), parent[rows]
    climbing = np.arange(len(rows))
    while len(climbing):
        np.minimum.at(cut, above[climbing], start[rows[climbing]])
        above[climbing] = parent[above[climbing]]
        climbing = climbing[is_neighbour(rows[climbing], above[climbing])]
    repaired[rows] = above
    return repaired, order, np.maximum(cut - start, 0)


def find_parent_rows(rows: Rows, thread: npt.NDArray[np.int32], start: Ints, dur: Ints) -> Rows:
    """Find the row that encloses each row, -1 for none; `rows` (in the order of `sort_by_start`) form the tree."""
    if sweeps.native is not None:
        return sweeps.find_parents(rows, thread, start, dur)
    parent = np.full(len(start), -1, sweeps.choose_row_type(len(start)))
    if len(rows):
        up = find_last_reaching(*_lift_to_one_axis(thread[rows], start[rows], start[rows] + dur[rows]))
        parent[rows] = np.where(up >= 0, rows[up], -1)
    return parent


def measure_exclusive_host_times(trace: Trace) -> Ints:
    """Compute the exclusive time of each row of `host_ops` (ns): its duration without the rows inside it."""
    start, dur = trace.numbers("host_ops", "ts_ns"), trace.numbers("host_ops", "dur_ns")
    return measure_exclusive_times_in_tree(trace.derived(build_call_tree), start, dur)


def measure_exclusive_times_in_tree(tree: CallTree, start: Ints, dur: Ints) -> Ints:
    """Compute exclusive times in one tree: each instant belongs to the row that started last and still runs.

    The times add up to each thread's busy time even if ops overlap without nesting (recorded ends jitter by
    up to a microsecond).
    """
    if tree.length is not None:
        dur = tree.length
    if sweeps.native is not None:
        return sweeps.compute_own_times(tree.order, tree.parent, start, dur)
    rows, own = tree.order, dur.copy()
    place = np.full(len(start) + 1, -1, np.int64)
    place[rows] = np.arange(len(rows))
    own[rows] -= _measure_child_cover(place[tree.parent[rows]], start[rows], start[rows] + dur[rows])
    return own


def find_innermost_host_rows(trace: Trace, thread: npt.NDArray[np.int32], ts_ns: Ints) -> Ints:
    """Find the innermost row of `host_ops` that runs at each instant of a thread; -1 for none."""
    return find_innermost_rows_in_tree(trace, trace.derived(build_call_tree), thread, ts_ns)


def find_innermost_rows_in_tree(trace: Trace, tree: CallTree, thread: npt.NDArray[np.int32], ts_ns: Ints) -> Ints:
    """Find the innermost row of one tree that runs at each instant of a thread; -1 for none.

    The search starts at the row that started last before the instant and climbs to the nearest ancestor that
    still runs: every row that runs at the instant already ran when that row started.
    """
    rows = tree.order
    if not len(rows) or not len(ts_ns):
        return np.full(len(ts_ns), -1, np.int64)
    starts, threads = trace.numbers("host_ops", "ts_ns"), trace.numbers("host_ops", "thread")
    lengths = trace.numbers("host_ops", "dur_ns")
    if sweeps.native is not None:
        spans = (threads, starts, lengths)
        inside = sweeps.find_innermost_rows(rows, spans, tree.parent, thread, ts_ns)
        if inside is not None:
            return inside
    ends = starts + lengths
    of_all = np.concatenate((threads[rows], thread))
    times = np.concatenate((starts[rows], ts_ns))
    lifted, _ = _lift_to_one_axis(of_all, times, np.concatenate((ends[rows], ts_ns)))
    place = np.searchsorted(lifted[: len(rows)], lifted[len(rows) :], side="right") - 1
    innermost = rows[place].astype(np.int64)
    innermost[(place < 0) | (threads[innermost] != thread)] = -1
    return tree.running(innermost, ends, ts_ns)


def find_enclosing_intervals(
    lane: npt.NDArray[Any], start: Ints, end: Ints, at_lane: npt.NDArray[Any], first: Ints, last: Ints
) -> Ints:
    """Find the interval of the same lane that contains each span [first, last) and began last; -1 for none.

    Of intervals that begin together, the shortest wins; of equal intervals, the last. A span lasts at least 1
    ns.
    """
    count = len(start)
    holder = np.full(len(first), -1, np.int64)
    if not count or not len(first):
        return holder
    lanes = np.concatenate((lane, at_lane))
    starts = np.concatenate((start, first))
    ends = np.concatenate((end, np.maximum(last, first + 1)))
    order = sort_by_start(lanes, starts, ends)
    begin, until = _lift_to_one_axis(lanes[order], starts[order], ends[order])
    is_span = order >= count
    # A span asks which interval reaches its last instant. Its own end is its begin, so it encloses nothing.
    up = find_last_reaching(np.where(is_span, until - 1, begin), np.where(is_span, begin, until))
    spans = is_span.nonzero()[0]
    holder[order[spans] - count] = np.where(up[spans] >= 0, order[up[spans]], -1)
    return holder


def sort_rows_by_thread(rows: Ints | Mask, thread: npt.NDArray[Any], start: Ints, dur: Ints) -> Rows:
    """Sort rows (numbers or a mask) by thread, start, longest first, position."""
    if sweeps.native is not None:
        ordered = sweeps.sort_by_thread(rows, thread, start, dur)
        if ordered is not None:
            return ordered
    if rows.dtype == np.bool_:
        rows = rows.nonzero()[0]
    order = rows[sort_by_start(thread[rows], start[rows], start[rows] + dur[rows])] if len(rows) else rows
    return order.astype(sweeps.choose_row_type(len(start)))


def sort_by_start(thread: npt.NDArray[Any], start: Ints, end: Ints) -> Ints:
    """Compute the order by thread, start, longest first, position; stable, and fast on nearly sorted input."""
    order: Ints = np.argsort(start, kind="stable")
    narrow = thread.astype(np.int16) if len(thread) and thread.max() < 2**15 else thread
    order = order[np.argsort(narrow[order], kind="stable")]
    starts, threads = start[order], narrow[order]
    tied = (starts[1:] == starts[:-1]) & (threads[1:] == threads[:-1])
    if tied.any():
        group = np.concatenate(([0], np.cumsum(~tied)))
        tied_rows = (np.concatenate((tied, [False])) | np.concatenate(([False], tied))).nonzero()[0]
        sub = order[tied_rows]
        order[tied_rows] = sub[np.lexsort((sub, -end[sub], group[tied_rows]))]
    return order


def _lift_to_one_axis(thread: npt.NDArray[np.int32], start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Map starts and ends to one axis on which threads follow one another without touching."""
    first, span = int(start.min()), int(end.max() - start.min()) + 1
    if span * (int(thread.max()) + 1) < 2**62:
        offset = thread.astype(np.int64) * span - first
        return start + offset, end + offset
    points = find_distinct(np.concatenate((start, end)))
    offset = thread.astype(np.int64) * (len(points) + 1)
    return np.searchsorted(points, start) + offset, np.searchsorted(points, end) + offset


def find_last_reaching(start: Ints, end: Ints) -> Ints:
    """Find, for each i, the last j < i with end[j] > start[i]; -1 if there is none.

    Searches a pyramid of block maxima: all i climb and descend it together, level by level.
    """
    if sweeps.native is not None:
        return sweeps.find_last_reaching_interval(start, end)
    count = len(start)
    reaching = np.full(count, -1, np.int64)
    direct = (end[:-1] > start[1:]).nonzero()[0] + 1
    reaching[direct] = direct - 1
    active = (end[:-1] <= start[1:]).nonzero()[0] + 1
    maxima = [end]
    position = active - 1
    hits: list[tuple[Ints, Ints]] = []
    level = 0
    while len(active):
        top = maxima[level]
        odd = (position & 1) == 1
        reaches = np.zeros(len(active), np.bool_)
        reaches[odd] = top[position[odd] - 1] > start[active[odd]]
        hits.append((active[reaches], position[reaches] - 1))
        going = ~reaches & (position > 1)
        active, position = active[going], position[going] >> 1
        level += 1
        if len(active):
            maxima.append(_compute_pairwise_max(top))
    blocks = np.empty(0, np.int64)
    seekers = np.empty(0, np.int64)
    for depth in range(len(hits) - 1, -1, -1):
        if len(seekers):
            right = np.minimum(2 * blocks + 1, len(maxima[depth]) - 1)
            blocks = np.where(maxima[depth][right] > start[seekers], right, 2 * blocks)
        seekers = np.concatenate((seekers, hits[depth][0]))
        blocks = np.concatenate((blocks, hits[depth][1]))
    reaching[seekers] = blocks
    return reaching


def _compute_pairwise_max(values: Ints) -> Ints:
    """Compute the maxima of neighboring pairs; an odd last value stays as it is."""
    if len(values) % 2:
        values = np.append(values, values[-1])
    return np.maximum(values[0::2], values[1::2])


def _find_latest_subtree_end(up: Ints, end: Ints) -> Ints:
    """Compute the latest end of each interval and its descendants (pointer doubling)."""
    reach, above = end.copy(), up
    while len(below := (above >= 0).nonzero()[0]):
        np.maximum.at(reach, above[below], reach[below])
        above = np.where(above >= 0, above[above], -1)
    return reach


def _measure_child_cover(up: Ints, start: Ints, end: Ints) -> Ints:
    """Compute how much of each interval its descendants cover (ns).

    A child starts only after everything inside its elder siblings has ended. The spans [start, latest end of
    the subtree) of siblings are therefore disjoint, and their lengths can be added.
    """
    reach = end.copy()
    late = (up >= 0).nonzero()[0]
    late = late[reach[late] > reach[up[late]]]
    for _ in range(FEW_LEVELS):
        if not len(late):
            break
        above = up[late]
        np.maximum.at(reach, above, reach[late])
        late = np.unique(above[up[above] >= 0])
        late = late[reach[late] > reach[up[late]]]
    if len(late):
        reach = _find_latest_subtree_end(up, end)
    covered = np.zeros(len(start), np.int64)
    child = (up >= 0).nonzero()[0]
    inside = np.minimum(reach[child], end[up[child]]) - start[child]
    np.add.at(covered, up[child], inside)
    return covered


MICROSECOND = 1_000
"""Coarsest clock of any profiler, ns."""

FEW_FRACTIONS, ROWS_A_FRACTION = 10, 8
"""Coarse clock: at most this many distinct fractions of a microsecond, at least this many rows for each."""


def measure_time_resolution(trace: Trace) -> int:
    """Measure the finest difference between times of the host rows: 1 to 1,000 ns.

    A double that holds microseconds since 1970 resolves a quarter of a microsecond; some writers round to a
    tenth.
    """
    start = trace.numbers("host_ops", "ts_ns")
    if not len(start):
        return 1
    fractions = np.bincount((start - start[0]) % MICROSECOND, minlength=MICROSECOND).nonzero()[0]
    if len(fractions) <= FEW_FRACTIONS and len(start) >= ROWS_A_FRACTION * len(fractions):
        return int(np.diff(fractions, append=MICROSECOND).max())
    return int(np.gcd.reduce(np.append(fractions, MICROSECOND)))
