"""Steps from repetition in a recording without marks: engine iterations, ranges, graph launches, loops.

A window lasts from one begin to the next, so windows also contain the work between ranges. The last one lasts
until its range and the work launched in it have ended.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import find_window_at, merge_intervals
from tracekit.model.records import dataclass
from tracekit.model.stages import is_known_stage, is_possible_stage
from tracekit.model.tables.arrays import Coded
from tracekit.model.tables.keys import QUEUE, group_arrays
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.calls.nesting import build_call_tree
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names
from tracekit.process.steps.engine_batches import is_iteration_name

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LEAST_TIMES = 3
"""Repetitions needed; rarer ranges may be anything."""

LEAST_WORK = 0.8
"""Share of the device work that must be launched in the windows."""

LEAST_COVER = 0.5
"""Share of their time that ranges must cover; otherwise they are parts of what repeats, such as a single op."""

MOST_WINDOWS = 20_000
"""Windows at most; ranges that repeat more often are parts of steps."""

LEAST_GRAPH_OPS = 50
"""Kernels needed per period of graph launches; piecewise graphs of a layer have 10 to 20 kernels."""

MIN_BACKLOG_NS = 1_000_000
"""Shortest delay after a launch that shows that the device was busy with earlier launches."""

_GRAPH_LAUNCH = re.compile("GraphLaunch")
_DIGITS = re.compile(r"\d+")
_LOOP = re.compile(r"enumerate\(DataLoader\)#|Optimizer\.step#")
_PIECE = re.compile(r"layer|block|module|mini|micro|chunk|expert|head", re.IGNORECASE)


@lru_cache(4096)
def mask_numbers(name: str) -> str:
    """Replace the numbers in a name by `#`, to merge ranges that count their calls.

    >>> mask_numbers("FlashAttnFunc, seq = 12, op_id = 345")
    'FlashAttnFunc, seq = #, op_id = #'
    """
    return _DIGITS.sub("#", name)


@dataclass(frozen=True, slots=True, eq=False)
class Repetition:
    """Windows in order of start, how they are known (the `origin` of steps), and the name of what begins them.

    `rows` are the host ranges that are the windows themselves, and therefore not stages.
    """

    ts_ns: Ints
    end_ns: Ints
    origin: str
    name: str
    rows: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _OutermostRanges:
    """Outermost annotated ranges of one thread or stream, in order of start.

    `rows` are those of `host_ops`, empty for ranges of a stream.
    """

    names: Coded
    ts_ns: Ints
    end_ns: Ints
    rows: Ints

    def take(self, places: Ints) -> _OutermostRanges:
        """Select rows."""
        rows = self.rows[places] if len(self.rows) else self.rows
        names = Coded(self.names.codes[places], self.names.texts)
        return _OutermostRanges(names, self.ts_ns[places], self.end_ns[places], rows)


def find_repetition(trace: Trace, stages: Ints) -> Repetition | None:
    """Find the repetition that divides a recording without marks; None without repetition or device work.

    `stages` are the rows of outermost ranges on the step thread that can be stages.
    """
    if not len(trace.numbers("device_ops", "ts_ns")):
        return None
    ranges = _select_host_ranges(trace, stages) if len(stages) else _select_device_ranges(trace)
    present = [ranges.names.texts[code] for code in np.unique(ranges.names.codes).tolist()]
    if sum(is_known_stage(name) for name in present) > 1:
        # Divide by the stages of a training loop, not by the engine iterations inside one of them.
        divided = _repeat_by_turns(trace, ranges)
        if divided is not None:
            return divided
    return (
        _repeat_by_iterations(trace)
        or _repeat_by_ranges(trace, ranges)
        or _repeat_by_graphs(trace)
        or _repeat_by_loop_marks(trace)
    )


def find_work_end(trace: Trace, start: int, end: int) -> int:
    """Find when the last device op launched within a window ends; `start` if there is none."""
    first, last = (
        trace.derived(find_launch_times),
        trace.numbers("device_ops", "ts_ns") + trace.numbers("device_ops", "dur_ns"),
    )
    inside = (first >= start) & (first < end)
    return int(last[inside].max(initial=start))


def find_backlog_end(trace: Trace, start: int) -> int:
    """Find when the work launched from `start` on begins to run, if it was queued for most of the time until then.

    The device was then busy with work launched before the recording began, and that time is not part of this
    work. Returns `start` if the device waited for the host, or nothing was launched.
    """
    links: Launches = trace.derived(find_launches)
    rows = links.linked.nonzero()[0]
    if not len(rows):
        return start
    begins = trace.numbers("device_ops", "ts_ns")
    first = rows[begins[rows].argmin()]
    begin, launched, call = int(begins[first]), int(links.ts_ns[first]), int(links.call[first])
    if call >= 0:
        # A launch that loads code lasts until its work begins: the device waited for it.
        launched += int(trace.numbers("host_ops", "dur_ns")[call])
    return begin if begin - launched > max(launched - start, MIN_BACKLOG_NS) else start


def find_launch_times(trace: Trace) -> Ints:
    """Find when each device op was launched; its begin if unknown; the least int64 if before all known launches.

    A stream works in order: an unlinked op that began before the first op with a recorded launch was launched
    earlier.
    """
    links: Launches = trace.derived(find_launches)
    start = trace.numbers("device_ops", "ts_ns")
    if not links.linked.any():
        return start
    first = start[links.linked].min()
    before = ~links.linked & (start < first)
    issued = np.where(links.linked, links.ts_ns, start)
    return np.where(before, np.iinfo(np.int64).min, issued)


def _repeat_by_iterations(trace: Trace) -> Repetition | None:
    """Find engine iterations on the thread with most of them; of nested ranges, the outermost."""
    names = trace.texts("host_ops", "name")
    is_iteration = mark_rows_of_kind(trace, "host_ops", "range") & mark_wanted_names(names, is_iteration_name)
    rows = is_iteration.nonzero()[0]
    if len(rows) < 2:
        return None
    rows = rows[trace.derived(build_call_tree).nearest(is_iteration, rows) < 0]
    thread = trace.numbers("host_ops", "thread")[rows]
    threads, counts = np.unique(thread, return_counts=True)
    begins = _select_host_ranges(trace, rows[thread == threads[counts.argmax()]])
    if not _has_enough_launched_work(trace, begins):
        return None
    return _make_repeated_windows(trace, begins, "iteration")


def _has_enough_launched_work(trace: Trace, ranges: _OutermostRanges) -> bool:
    """Check whether these ranges launched enough of the device work; otherwise they are parts of what repeats."""
    links: Launches = trace.derived(find_launches)
    if not links.linked.any():
        return True
    dur, issued = trace.numbers("device_ops", "dur_ns")[links.linked], links.ts_ns[links.linked]
    inside = find_window_at(ranges.ts_ns, ranges.end_ns, issued) >= 0
    return int(dur[inside].sum()) >= LEAST_COVER * int(dur.sum())


def _select_host_ranges(trace: Trace, rows: Ints) -> _OutermostRanges:
    """Select host rows as ranges, in order of start."""
    start = trace.numbers("host_ops", "ts_ns")[rows]
    rows = rows[np.argsort(start, kind="stable")]
    start = trace.numbers("host_ops", "ts_ns")[rows]
    names = trace.texts("host_ops", "name")
    end = start + trace.numbers("host_ops", "dur_ns")[rows]
    return _OutermostRanges(Coded(names.codes[rows], names.texts), start, end, rows)


_NO_ROWS = np.empty(0, np.int64)


def _select_device_ranges(trace: Trace) -> _OutermostRanges:
    """Select the outermost projected annotations of the stream on which they cover most time."""
    start, dur = (trace.numbers("device_ranges", name) for name in ("ts_ns", "dur_ns"))
    names = trace.texts("device_ranges", "name")
    queue, _ = group_arrays([trace.nullable("device_ranges", name) for name in QUEUE])
    chosen = mark_wanted_names(names, _is_repeatable_name) & (dur >= 0)
    rows = chosen.nonzero()[0]
    if len(rows):
        totals = np.bincount(queue[rows], dur[rows])
        rows = rows[queue[rows] == totals.argmax()]
        rows = rows[np.lexsort((-dur[rows], start[rows]))]
        before = np.maximum.accumulate(np.append(start[rows[:1]], (start + dur)[rows[:-1]]))
        rows = rows[start[rows] >= before]
    return _OutermostRanges(Coded(names.codes[rows], names.texts), start[rows], (start + dur)[rows], _NO_ROWS)


def _is_repeatable_name(name: str) -> bool:
    """Check whether a range of this name may be a repeating window."""
    return is_iteration_name(name) or is_possible_stage(name)


def _make_repeated_windows(
    trace: Trace, begins: _OutermostRanges, origin: str, until: int = 0, min_share: float = LEAST_WORK
) -> Repetition | None:
    """Make windows from each begin to the next; None for a single one, or if they lack work of the recording.

    The last window lasts until its own range and, if given, `until` have ended, and the work launched by
    then.
    """
    if not 2 <= len(begins.ts_ns) <= MOST_WINDOWS:
        return None
    last, end = int(begins.ts_ns[-1]), max(int(begins.end_ns[-1]), until)
    issued = trace.derived(find_launch_times) if len(begins.rows) else trace.numbers("device_ops", "ts_ns")
    end = max(end, find_work_end(trace, last, end), last + 1)
    if not _has_issued_work(trace, issued, int(begins.ts_ns[0]), end, min_share):
        return None
    patterns = [mask_numbers(name) for name in begins.names.texts]
    counts = np.bincount(begins.names.codes, minlength=len(patterns))
    name = patterns[int(counts.argmax())]
    return Repetition(begins.ts_ns, np.append(begins.ts_ns[1:], end), origin, name, begins.rows)


def _has_issued_work(trace: Trace, issued: Ints, start: int, end: int, min_share: float) -> bool:
    """Check whether this share of the device work was issued in this time."""
    dur = trace.numbers("device_ops", "dur_ns")
    inside = (issued >= start) & (issued < end)
    return int(dur[inside].sum()) >= min_share * int(dur.sum())


def _repeat_by_ranges(trace: Trace, ranges: _OutermostRanges) -> Repetition | None:
    """Find repeating ranges: several that take turns, or one that covers most of its time."""
    if len(ranges.ts_ns) < LEAST_TIMES:
        return None
    divided = _repeat_by_turns(trace, ranges)
    if divided is not None:
        return divided
    code, patterns = _code_range_patterns(ranges)
    counts = np.bincount(code, minlength=len(patterns))
    covered = np.bincount(code, ranges.end_ns - ranges.ts_ns, len(patterns))
    is_piece = np.array([_PIECE.search(name) is not None for name in patterns])
    covered[(counts < LEAST_TIMES) | is_piece] = 0
    leading = int(covered.argmax())
    if not covered[leading] or not _has_enough_cover(ranges, code == leading):
        return None
    return _make_repeated_windows(trace, ranges.take((code == leading).nonzero()[0]), "repeat")


def _code_range_patterns(ranges: _OutermostRanges) -> tuple[Ints, list[str]]:
    """Code the pattern of each range: (codes, patterns)."""
    patterns = sorted({mask_numbers(name) for name in ranges.names.texts})
    code_of = {text: code for code, text in enumerate(patterns)}
    codes = np.array([code_of[mask_numbers(name)] for name in ranges.names.texts], np.int64)
    return codes[ranges.names.codes], patterns


def _repeat_by_turns(trace: Trace, ranges: _OutermostRanges) -> Repetition | None:
    """Make windows of ranges that take turns; the ranges are the stages of the windows."""
    if len(ranges.ts_ns) < LEAST_TIMES:
        return None
    code, patterns = _code_range_patterns(ranges)
    leading = _find_turn_leader(ranges, code, len(patterns))
    if leading is None:
        return None
    begins, until = ranges.take((code == leading).nonzero()[0]), int(ranges.end_ns.max())
    divided = _make_repeated_windows(trace, begins, "repeat", until)
    return None if divided is None else replace(divided, rows=_NO_ROWS)


def _find_turn_leader(ranges: _OutermostRanges, code: Ints, patterns: int) -> int | None:
    """Find the first of several ranges that take turns; None if they do not.

    Ranges that come more or less often, such as a validation every few steps, do not matter. At its ends a
    recording may lack a part of a turn: turns then begin with a range that it lacks.
    """
    counts = np.bincount(code, minlength=patterns)
    covered = np.bincount(code, ranges.end_ns - ranges.ts_ns, patterns)
    most = int(np.bincount(counts, covered)[1:].argmax()) + 1
    takes_turns = (counts == most) | ((counts == most - 1) & (counts > 1))
    chosen = takes_turns[code]
    many = int(takes_turns.sum())
    if many < 2 or most < 2 or not _has_enough_cover(ranges, chosen):
        return None
    order = code[chosen]
    if (counts[takes_turns] == most).all() and many == np.count_nonzero(counts):
        return int(order[0])
    if len(np.unique(order[:-1] * patterns + order[1:])) != many:
        return None
    fewest = counts[takes_turns].min()
    return int(order[(counts[order] == fewest).argmax()])


def _has_enough_cover(ranges: _OutermostRanges, chosen: Mask) -> bool:
    """Check whether ranges cover enough of the time from the first to the last of them."""
    start, end = ranges.ts_ns[chosen], ranges.end_ns[chosen]
    return merge_intervals(start, end).total >= LEAST_COVER * float(end.max() - start.min())


def _repeat_by_loop_marks(trace: Trace) -> Repetition | None:
    """Make windows between PyTorch's own marks of a training loop: data loader or optimizer calls.

    The rarer of the two divides the loop: gradients may be accumulated over several batches, and a batch may
    be used for several updates.
    """
    names = trace.texts("host_ops", "name")
    marks = (mark_rows_of_kind(trace, "host_ops", "range") & mark_wanted_names(names, _LOOP.match)).nonzero()[0]
    if not len(marks):
        return None
    ranges = _select_host_ranges(trace, marks)
    code, patterns = _code_range_patterns(ranges)
    counts = np.bincount(code, minlength=len(patterns))
    frequent = (counts >= LEAST_TIMES).nonzero()[0]
    if not len(frequent):
        return None
    leading = int(frequent[counts[frequent].argmin()])
    begins = ranges.take((code == leading).nonzero()[0])
    ends = trace.numbers("host_ops", "ts_ns") + trace.numbers("host_ops", "dur_ns")
    # The part of the recording before the first update is not a whole step.
    divided = _make_repeated_windows(trace, begins, "repeat", int(ends.max()), LEAST_COVER)
    return None if divided is None else replace(divided, rows=_NO_ROWS)


def _repeat_by_graphs(trace: Trace) -> Repetition | None:
    """Find graph launches that repeat: every window has as many, of graphs of the same sizes."""
    names = trace.texts("host_ops", "name")
    is_graph = mark_rows_of_kind(trace, "host_ops", "runtime") & mark_wanted_names(names, _GRAPH_LAUNCH.search)
    calls = is_graph.nonzero()[0]
    if len(calls) < LEAST_TIMES:
        return None
    calls = calls[np.argsort(trace.numbers("host_ops", "ts_ns")[calls], kind="stable")]
    links: Launches = trace.derived(find_launches)
    linked = links.call[links.call >= 0]
    sizes = np.bincount(linked, minlength=len(names))[calls]
    period = _find_period(sizes)
    if period is None or sizes[:period].sum() < LEAST_GRAPH_OPS:
        return None
    if sizes.sum() < LEAST_COVER * len(links.call):
        return None
    begins = _select_host_ranges(trace, calls[::period])
    divided = _make_repeated_windows(trace, begins, "graph")
    return None if divided is None else replace(divided, rows=_NO_ROWS)


def _find_period(sizes: Ints) -> int | None:
    """Find the number of launches after which sizes repeat, at least `LEAST_TIMES` times; None if they do not.

    >>> _find_period(np.array([300, 300, 300])), _find_period(np.array([9, 70, 9, 70, 9, 70])), _find_period(np.array([1, 2, 3]))
    (1, 2, None)
    """
    for period in range(1, min(len(sizes) // LEAST_TIMES, 512) + 1):
        if (sizes[period:] == sizes[:-period]).all():
            return period
    return None
