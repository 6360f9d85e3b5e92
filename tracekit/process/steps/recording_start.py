"""Start of the work in a recording without marks: after start-up, and after waits in progress when it began.

Three things can come first: start-up calls; a call that waits for work launched before the recording; a
collective that waits for a rank whose recording had not begun. None of them is a cost of the work that
follows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import Intervals, measure_coverage, merge_intervals
from tracekit.model.records import dataclass
from tracekit.model.trace import Trace
from tracekit.process.calls.activity import SyncCalls, find_sync_calls, mark_calls_on_launching_threads
from tracekit.process.name_filters import mark_rows_of_kind
from tracekit.process.steps.start_up import StartUpCalls, find_start_up_calls, unite_device_time

Ints = npt.NDArray[np.int64]

MIN_WAIT_NS = 1_000_000
"""Shortest wait at the start of a recording that is cut off."""

SOON = 0.1
"""A call that begins within this share of its own length from the start counts as in progress."""

MOST_WORK_BEFORE = 0.1
"""Largest share of device work before the start; a device with more was already at work, or is awaited."""

LEAST_SHARE = 0.5
"""Share of time that start-up calls must take, from the first to the last."""

SKEW_TIMES, LEAST_OTHERS = 100, 3
"""A first collective is a recording skew if it takes this many times the median of at least this many others."""


@dataclass(frozen=True, slots=True)
class EarlyWait:
    """Call or collective in progress when the recording began: row of `host_ops` or `device_ops`, and its time."""

    row: int
    ts_ns: int
    dur_ns: int
    usual_ns: int = -1

    @property
    def end_ns(self) -> int:
        """Time of its return."""
        return self.ts_ns + self.dur_ns


def find_work_begin(trace: Trace, begin_ns: int) -> int:
    """Find when the work of a recording that begins at `begin_ns` starts; `begin_ns` if nothing precedes it."""
    begin = begin_ns
    wait = trace.derived(find_early_wait)
    if wait is not None:
        begin = max(begin, wait.end_ns)
    return max(begin, _find_start_up_end(trace, begin_ns))


def _find_start_up_end(trace: Trace, begin_ns: int) -> int:
    """Find the end of the last call up to which start-up takes most of the time; `begin_ns` if there is none."""
    calls: StartUpCalls = trace.derived(find_start_up_calls)
    if not len(calls.ts_ns):
        return begin_ns
    busy = trace.derived(unite_device_time)
    time = calls.time
    begun = int(np.searchsorted(time.start, begin_ns))
    time = Intervals(time.start[begun:], time.end[begun:])
    worked = _measure_busy_time_until(busy, time.start)
    is_early = worked <= MOST_WORK_BEFORE * busy.total
    if not len(time.start) or not is_early[0]:
        return begin_ns
    taken = np.cumsum(time.end - time.start)
    is_most = taken >= LEAST_SHARE * (time.end - time.start[0])
    # Some work has to follow.
    last_work = int(trace.numbers("device_ops", "ts_ns").max())
    places = (is_most & (time.end <= last_work) & (taken >= MIN_WAIT_NS)).nonzero()[0]
    return int(time.end[places[-1]]) if len(places) else begin_ns


def _measure_busy_time_until(busy: Intervals, ts_ns: Ints) -> Ints:
    """Measure the busy time before each instant."""
    first = int(busy.start[0]) if len(busy.start) else 0
    return measure_coverage(busy, np.full(len(ts_ns), min(first, int(ts_ns.min(initial=first)))), ts_ns)


def find_early_wait(trace: Trace) -> EarlyWait | None:
    """Find the first call that waits for work launched before the recording, while no recorded work runs."""
    calls: SyncCalls = trace.derived(find_sync_calls)
    if not len(calls.row) or not len(trace.numbers("device_ops", "ts_ns")):
        return None
    start, dur = (trace.numbers("host_ops", name) for name in ("ts_ns", "dur_ns"))
    counted = ~mark_rows_of_kind(trace, "host_ops", "overhead", "python", "other")
    begin = int(start.min(where=counted, initial=np.iinfo(np.int64).max))
    every_op = np.arange(len(trace.numbers("device_ops", "ts_ns")))
    rows = calls.row[mark_calls_on_launching_threads(trace, every_op, calls.row)]
    rows = rows[(dur[rows] >= MIN_WAIT_NS) & (start[rows] - begin <= SOON * dur[rows])]
    if not len(rows):
        return None
    row = int(rows[start[rows].argmin()])
    wait = EarlyWait(row, int(start[row]), int(dur[row]))
    busy = measure_coverage(unite_device_time(trace), start[[row]], np.array([wait.end_ns]))
    return wait if int(busy[0]) <= MOST_WORK_BEFORE * wait.dur_ns else None


def find_early_collective(trace: Trace) -> EarlyWait | None:
    """Find a first collective that takes a hundred times as long as others of its name, before other work.

    It waits for a rank whose recording begins later. If ranks begin to record one after another, the first
    collective of the early ranks lasts until the last rank has begun.
    """
    is_collective = mark_rows_of_kind(trace, "device_ops", "collective")
    dur, start = trace.numbers("device_ops", "dur_ns"), trace.numbers("device_ops", "ts_ns")
    names = trace.texts("device_ops", "name").codes
    long = (is_collective & (dur >= MIN_WAIT_NS)).nonzero()[0]
    if not len(long):
        return None
    row = int(long[start[long].argmin()])
    others = (is_collective & (names == names[row])).nonzero()[0]
    is_first = int(start[others].min()) == int(start[row])
    other_durations = dur[others[others != row]]
    if not is_first or len(other_durations) < LEAST_OTHERS:
        return None
    usual = int(np.median(other_durations))
    if dur[row] < SKEW_TIMES * usual:
        return None
    rest = np.arange(len(dur)) != row
    work = merge_intervals(start[rest], (start + dur)[rest])
    before = _measure_busy_time_until(work, start[[row]])
    is_early = int(before[0]) <= MOST_WORK_BEFORE * work.total
    return EarlyWait(row, int(start[row]), int(dur[row]), usual) if is_early else None
