"""Detection of recorded times that cannot be true, on bare arrays; readers repair or drop such rows.

A time counts as impossible only where the rest of the recording contradicts it. Host and device clocks that
differ by microseconds, and kernels that overlap by design, stay as recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import compute_running_max
from tracekit.model.tables.keys import order_by_group

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SECOND_NS, DAY_NS = 10**9, 86_400 * 10**9
"""Distance that makes a row at time zero (a second) or any row (a day) suspicious; no capture pauses that long."""

ZERO_DISTANCE = 100
"""Factor: a row at time zero that lasts is real unless all others are this many times their own span away."""

SKEW_NS, SKEW_RATIO = 10**6, 1e-3
"""Tolerance between host and device clocks: a millisecond, and drift of a thousandth of the recording."""

OVERLONG_TIMES = 10
"""Factor: a device op is impossible if it lasts this many times the length of the whole recording."""

JITTER_NS = 2_000
"""Tolerance for the order of ends in one stream: times round to microseconds, and copy engines have their own clock."""


def find_far_rows(start: Ints) -> Mask:
    """Find rows a day or more away from where most rows are."""
    far = np.zeros(len(start), np.bool_)
    if len(start) < 2 or int(start.max()) - int(start.min()) < DAY_NS:
        return far
    order = np.argsort(start, kind="stable")
    cluster = np.concatenate(([0], np.cumsum(np.diff(start[order]) >= DAY_NS)))
    far[order] = cluster != np.bincount(cluster).argmax()
    return far


def find_rows_at_time_zero(start: Ints, end: Ints, is_known: Mask) -> Mask:
    """Find rows that start at exactly 0 while the rest of the trace is elsewhere; only rows with a known time count.

    Times are as written in the file. A trace that really begins at 0 continues from there: its rows are not
    this far apart.
    """
    at_zero = (start == 0) & is_known
    rest = (start != 0) & is_known
    if not at_zero.any() or not rest.any():
        return np.zeros(len(start), np.bool_)
    first, last = int(start[rest].min()), int(end[rest].max())
    distance = np.maximum(first - end, -last)
    length = np.where(end > start, ZERO_DISTANCE * (last - first), last - first)
    return np.asarray(at_zero & (distance > np.maximum(length, SECOND_NS)), np.bool_)


def find_overlong_ops(dur_ns: Ints, recorded: Sequence[tuple[Ints, Ints]], start: Ints) -> Mask:
    """Find device ops many times as long as the recording, bounded by (starts, ends) of host rows and other starts.

    Without host rows there is no bound. A last kernel may run for some time after the host has ended.
    """
    recorded = [(starts, ends) for starts, ends in recorded if len(starts)]
    if not recorded or not len(dur_ns):
        return np.zeros(len(dur_ns), np.bool_)
    first = min(int(start.min()), *(int(starts.min()) for starts, _ in recorded))
    last = max(int(start.max()), *(int(ends.max()) for _, ends in recorded))
    return np.asarray(dur_ns > OVERLONG_TIMES * max(last - first, 1), np.bool_)


def find_ops_before_launch(lag_ns: Ints, recorded_ns: int) -> Mask:
    """Find device ops that start before the call that launched them, by more than the clocks may differ.

    `lag_ns` is the time from the start of the call to the start of the op. If most ops are early, the clocks
    differ, not the ops.
    """
    if not len(lag_ns):
        return np.zeros(0, np.bool_)
    skew = min(0, int(np.median(lag_ns)))
    return lag_ns < skew - SKEW_NS - int(SKEW_RATIO * recorded_ns)


def has_overlapping_stream_ops(start: Ints, end: Ints, stream: Ints) -> bool:
    """Check whether any op ends after the next one of its stream starts, by more than jitter; usually none does."""
    if len(start) < 2:
        return False
    # Rows of one stream are mostly in order; few streams sort in a pass or two.
    low, high = int(stream.min()), int(stream.max())
    order = np.argsort(stream.astype(np.min_scalar_type(high)) if low >= 0 else stream, kind="stable")
    begin, number = start[order], stream[order]
    same = number[1:] == number[:-1]
    if (same & (begin[1:] < begin[:-1])).any():
        order = order_by_group(stream, start)
        begin = start[order]
    reach = end[order] - JITTER_NS
    return bool((same & (reach[:-1] > begin[1:])).any())


def find_late_stream_ends(
    start: Ints, end: Ints, stream: Ints, launch: Ints, *, may_overlap: Mask, is_in_order: bool
) -> tuple[Ints, Ints]:
    """Find device ops that outlast a later op of their stream: (their rows, the ends to cut them to).

    A stream runs its work in order, so an op that ends after its successor ended has a late end: cut it at
    the start of its successor. Overlap by design stays:
    - Ops of one `launch` (a CUDA graph) run concurrently: only ops of another launch count as successors. -1
      is unknown.
    - An op that `may_overlap` (programmatic dependent launch) runs concurrently with the op before it.
    - Two neighbors that overlap and end in order stay as recorded, since their union is the same, unless the
      device is
      known to run strictly `is_in_order` (ROCm).
    """
    nothing = np.empty(0, np.int64)
    if not has_overlapping_stream_ops(start, end, stream):
        return nothing, nothing
    # Of two ops that start together, the one that ends first is first.
    order = np.lexsort((end, start, stream))
    stream, start, end, launch = stream[order], start[order], end[order], launch[order]
    same = stream[1:] == stream[:-1]
    count = len(order)
    is_new = np.ones(count + 1, np.bool_)
    is_new[1:-1] = ~same | (launch[1:] != launch[:-1]) | (launch[1:] < 0)
    successor = _find_next_true(is_new)
    reach = _find_earliest_stream_end(end, stream)
    has_successor = _is_in_same_stream(stream, successor)
    place = np.minimum(successor, count - 1)
    beyond = successor + may_overlap[order][place]
    is_late = _is_in_same_stream(stream, beyond)
    is_late &= reach[np.minimum(beyond, count - 1)] < end - JITTER_NS
    if is_in_order:
        is_late |= start[place] < end - JITTER_NS
    late = (is_late & has_successor & (stream >= 0)).nonzero()[0]
    return order[late], np.maximum(start[place[late]], start[late])


MIN_ALIKE = 3
"""Sound ops of one name needed for a typical duration of that name."""


def compute_typical_durations(name: npt.NDArray[Any], dur_ns: Ints, is_sound: Mask, asked: Ints) -> Ints:
    """Compute the median duration of the sound ops with each asked row's name; int64's maximum if too few."""
    usual = np.full(len(asked), np.iinfo(np.int64).max, np.int64)
    names, group = np.unique(name[asked], return_inverse=True)
    place = np.minimum(np.searchsorted(names, name), len(names) - 1)
    rows = ((names[place] == name) & is_sound).nonzero()[0] if len(names) else asked[:0]
    if not len(rows):
        return usual
    order = np.lexsort((dur_ns[rows], place[rows]))
    durations, of_name = dur_ns[rows][order], place[rows][order]
    count = np.bincount(of_name, minlength=len(names))
    middle = np.cumsum(count) - count + (count - 1) // 2
    median = durations[np.minimum(middle, len(durations) - 1)]
    return np.where(count >= MIN_ALIKE, median, np.iinfo(np.int64).max)[group]


def _find_next_true(mask: Mask) -> Ints:
    """Find the next true position of the mask after each position but the last; the last position counts as true."""
    places = np.where(mask, np.arange(len(mask)), len(mask) - 1)
    following: Ints = np.minimum.accumulate(places[::-1])[::-1][1:]
    return following


def _find_earliest_stream_end(end: Ints, stream: Ints) -> Ints:
    """Find the earliest end of each op and all later ops of its stream."""
    number = np.zeros(len(stream), np.int64)
    np.cumsum(stream[:0:-1] != stream[-2::-1], out=number[1:])
    earliest: Ints = -compute_running_max(-end[::-1], number)[::-1]
    return earliest


def _is_in_same_stream(stream: Ints, place: npt.NDArray[Any]) -> Mask:
    """Check whether an op exists at each of these positions, and is in the stream of the asking op."""
    inside = place < len(stream)
    inside &= stream[np.minimum(place, len(stream) - 1)] == stream
    return np.asarray(inside, np.bool_)
