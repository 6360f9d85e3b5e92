"""Tree of all recorded host activity: ops, calls, ranges, system calls, Python functions, CPU segments.

Unlike the call tree of `calls.nesting` it includes rows of every kind, so it finds the deepest row on a
thread at any instant.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.intervals import Intervals, find_window_at
from tracekit.model.records import dataclass
from tracekit.model.sweeps import count_below
from tracekit.model.tables.arrays import Coded, broadcast_value, choose_narrowest, concatenate_like_arrays
from tracekit.model.tables.columns import HOST_OP_KINDS
from tracekit.model.tables.keys import drop_repeats, find_distinct, group_arrays
from tracekit.model.tables.slots import HOLDERS
from tracekit.model.trace import Trace
from tracekit.process.calls.activity import COLLECTION, COLLECTION_ROW, SyncCalls, find_sync_calls
from tracekit.process.calls.nesting import (
    CallTree,
    build_call_tree,
    find_last_reaching,
    sort_by_start,
    sort_rows_by_thread,
)
from tracekit.process.calls.segments import ThreadAxis, ThreadSegments
from tracekit.process.host.cpu_samples import CpuSegments, make_cpu_segments
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names
from tracekit.process.steps.stage_lookup import select_outer_ranges
from tracekit.process.steps.start_up import find_start_up_calls
from tracekit.process.steps.windows import find_steps_and_stages

Ints = npt.NDArray[np.int64]
Rows = sweeps.Rows
Mask = npt.NDArray[np.bool_]

HOLDER = {name: number for number, name in enumerate(HOLDERS)}

_HOLDER_OF_KIND = {
    "op": "op",
    "runtime": "call",
    "range": "range",
    "python": "python",
    "overhead": "profiler",
    "other": "system",
}

_MAY_COLLECT = np.isin(HOLDERS, ("range", "op", "system", "profiler"))
_RUNS_INSIDE = np.isin(HOLDERS, ("op", "call", "sync", "python"))


_WAITS = re.compile(
    r"(?:.*/)?threading\.py\(\d+\): (?:wait|join|acquire|_wait_for_tstate_lock)$"
    r"|(?:.*/)?queue\.py\(\d+\): get$|(?:.*/)?selectors\.py\(\d+\): select$"
    r"|(?:.*/)?multiprocessing/\w+\.py\(\d+\): (?:wait|poll|_poll|recv|recv_bytes|get|join)$"
    r"|(?:.*/)?concurrent/futures/_base\.py\(\d+\): (?:result|wait)$"
    r"|<(?:built-in )?method (?:acquire|poll|select|join|recv|wait) of (?!.*\b(?:str|bytes|Event|Stream) object)"
    r"|<built-in method run_backward\b|(?:.*/)?autograd/graph\.py\(\d+\): _engine_run_backward$"
    r"|enumerate\(DataLoader\)"
    r"|(?:pthread_(?:cond|join|mutex|rwlock|barrier|timedjoin)\w*|sem_(?:timed|clock)?wait|p?poll|e?poll_p?wait"
    r"|p?select|futex\w*|sigwait\w*|wait(?:id|pid|3|4)?)$"
)
"""Names of rows that wait for another thread or process; idle time in them is traced to other threads first."""


_HOLDS = re.compile(
    r"(?:cuda|cu|hip)(?:Memcpy(?!\w*Async)|Malloc|Free|Host(?:Alloc|Malloc|Free|Register)|Mem(?:Alloc|Free|Create|Map|HostAlloc)"
    r"|Module|Library|DeviceReset|CtxCreate)(?!\w*Async)"
)

JITTER_NS = 1_000
"""Time by which the end of a row may exceed the end of the row around it, ns."""

TABLES = ("python_calls", "host_ops")
"""Tables of host rows; of rows with the same bounds, those of the first table enclose the others."""


@dataclass(frozen=True, slots=True)
class HostThreadRows:
    """Rows of all threads, by thread, start, longest first: `begin` on an axis, `end` in ns, parents in `tree`.

    - `holder` indexes `HOLDERS`.
    - `waits`: other threads may have the work meanwhile.
    - `frame`: the row only names a step or stage; others run inside it.
    - `holds`: a call that keeps a device from starting its queued work.
    - `recorded`: not a CPU segment; each CPU segment is inside the deepest row of its time.
    - `edges`: starts and ends of rows on the axis, all of them or those in the requested time.
    """

    begin: Ints
    end: Ints
    thread: Ints
    name: Coded
    holder: npt.NDArray[np.int8]
    waits: Mask
    frame: Mask
    holds: Mask
    recorded: Mask
    tree: CallTree
    axis: ThreadAxis
    edges: Ints

    def find_running(self, thread: Ints, ts_ns: Ints) -> Ints:
        """Find the row that began last on a thread and still runs, at each instant; -1 for none."""
        if not len(self.begin):
            return np.full(len(ts_ns), -1, np.int64)
        place = count_below(self.begin, self.axis.lift(thread, ts_ns), right=True) - 1
        place[(place >= 0) & (self.thread[place] != thread)] = -1
        return self.tree.running(place, self.end, ts_ns)

    def cut(self, segments: ThreadSegments) -> ThreadSegments:
        """Split segments at the edges of rows, so each piece is within one row at every depth; `origin`: the segment."""
        edge, size = self._edges_within(segments)
        behind = np.cumsum(size)
        first = behind - size
        origin, thread = np.repeat(np.arange(len(size)), size), np.repeat(segments.thread, size)
        if len(origin) == len(size):
            return segments._replace(origin=origin)
        # The first piece of each segment comes before its first edge, so `place` is wrong there only.
        place = np.arange(len(origin)) - np.repeat(first + 1 - edge, size)
        start = self.axis.times(thread, self.edges.take(place, mode="clip"))
        start[first] = segments.start
        end = np.empty(len(start), np.int64)
        end[:-1] = start[1:]
        end[behind - 1] = segments.end
        return ThreadSegments(start, end, thread, origin)

    def _edges_within(self, segments: ThreadSegments) -> tuple[Ints, Ints]:
        """Find the edges inside each segment: (first edge, number of pieces)."""
        low = count_below(self.edges, self.axis.lift(segments.thread, segments.start), right=True)
        high = count_below(self.edges, self.axis.lift(segments.thread, segments.end))
        return low, np.where(segments.thread < 0, 0, np.maximum(high - low, 0)) + 1

    def cut_and_found(self, segments: ThreadSegments) -> tuple[Ints, Ints, Rows, Ints]:
        """Split segments and find their rows: (start, end, row of each piece; first piece of each segment).

        Same result as `cut` followed by `find_running`, in one pass.
        """
        if sweeps.native is not None and self.axis.points is None:
            edge, size = self._edges_within(segments)
            first = np.cumsum(size) - size
            base = (segments.thread + 1) * self.axis.span
            axis = np.array([self.axis.low, self.axis.span])
            rows = self.begin, self.end, self.tree.parent
            of_segments = segments.start, segments.end, base, edge, first
            pieces = sweeps.cut_segments(self.edges, rows, axis, of_segments, int(size.sum()))
            if pieces is not None:
                return *pieces, first
        part = self.cut(segments)
        first = np.searchsorted(part.origin, np.arange(len(segments.start)))
        return part.start, part.end, self.find_running(part.thread, part.start), first


EDGES_AT_ONCE = 2**17
"""Rows whose starts and ends are processed at a time, to bound memory."""


def build_host_tree(trace: Trace, within: Intervals | None = None, *, has_samples: bool = True) -> HostThreadRows:
    """Build the tree of all rows that last; segments are cut at all row bounds, or only those `within` some time.

    Without `has_samples` it contains only recorded rows, no CPU segments.
    """
    start, dur, thread = (_concatenate_host_column(trace, column) for column in ("ts_ns", "dur_ns", "thread"))
    rows = _find_lasting_host_rows(trace, thread, start, dur)
    pieces = make_cpu_segments(trace) if has_samples else None
    of_cpu = _NO_SEGMENTS if pieces is None else pieces.segments
    last = max(int(thread.max(initial=0)), int(of_cpu.thread.max(initial=0)))
    axis = ThreadAxis.build((start, start + dur, of_cpu.start, of_cpu.end), last)
    begin, end, parent = _place_rows_on_axis(axis, rows, (thread, start, dur))
    thread = thread[rows]
    del start, dur
    names, waits, frame, holder = _describe_host_rows(trace)
    name, frame, holder = Coded(names.codes[rows], names.texts), frame[rows], holder[rows]
    only_frame = _mark_step_and_stage_frames(frame, parent, holder)
    waits, holds = waits[rows], mark_wanted_names(name, _HOLDS.match)
    recorded, tree = broadcast_value(np.True_, len(rows)), CallTree(parent, _NOTHING)
    del rows, names, frame
    # CPU segments may be anywhere.
    edges = _list_row_edges(axis, thread, begin, end, None if len(of_cpu.start) else within)
    of_rows = name, holder, waits, only_frame, holds, recorded, tree
    host = HostThreadRows(begin, end, thread, *of_rows, axis, edges)
    return host if pieces is None or not len(of_cpu.start) else _add_cpu_segments(host, pieces)


def _find_lasting_host_rows(trace: Trace, thread: Ints, start: Ints, dur: Ints) -> Rows:
    """Find the rows of both tables that last, each once, by thread, start, longest first."""
    is_lasting, tree = dur > 0, trace.derived(build_call_tree)
    if len(tree.order) == len(dur):
        # Every recorded row is in the call tree.
        return tree.order if is_lasting.all() else tree.order[is_lasting[tree.order]]
    if trace.has("python_calls"):
        # Module calls are in both tables.
        ops = slice(len(trace.numbers("python_calls", "ts_ns")), None)
        is_lasting[ops] &= ~mark_rows_of_kind(trace, "host_ops", "python")
    return sort_rows_by_thread(is_lasting, thread, start, dur)


def _list_row_edges(axis: ThreadAxis, thread: Ints, begin: Ints, end: Ints, within: Intervals | None) -> Ints:
    """List when rows start and end, sorted on the axis: those `within` some time, or all."""
    parts = [_NOTHING]
    for first in range(0, len(begin), EDGES_AT_ONCE):
        part = slice(first, first + EDGES_AT_ONCE)
        for times in (axis.times(thread[part], begin[part]), end[part]):
            inside = np.arange(len(times))
            if within is not None:
                inside = (find_window_at(within.start, within.end, times) >= 0).nonzero()[0]
            parts.append(axis.lift(thread[part][inside], times[inside]))
    edges = np.concatenate(parts)
    del parts
    edges.sort()
    return drop_repeats(edges)


_NOTHING = np.empty(0, np.int64)
_NO_SEGMENTS = ThreadSegments(_NOTHING, _NOTHING, _NOTHING, _NOTHING)


def _place_rows_on_axis(axis: ThreadAxis, rows: Rows, spans: tuple[Ints, Ints, Ints]) -> tuple[Ints, Ints, Rows]:
    """Place rows (by thread, start, longest first) on the axis: (position, end, enclosing row or -1).

    An enclosing row must outlast the inner one, except for clock jitter. Otherwise a range that outlives the
    call that opened it would seem to be inside that call.
    """
    if sweeps.native is not None and axis.points is None:
        end, begin, parent = sweeps.place_on_lanes(rows, spans, np.array([axis.low, axis.span, JITTER_NS]))
        return begin, end, parent
    thread, start, dur = (column[rows] for column in spans)
    end = start + dur
    begin, until = axis.lift(thread, start), axis.lift(thread, end)
    jitter = JITTER_NS if axis.points is None else 1
    above = find_last_reaching(np.maximum(begin, until - jitter), until) if len(rows) else _NOTHING
    return begin, end, above.astype(sweeps.choose_row_type(len(rows)))


def _add_cpu_segments(host: HostThreadRows, pieces: CpuSegments) -> HostThreadRows:
    """Add CPU segments below the deepest row of their time.

    A sample counts only while its thread is in the row in which it was taken.
    """
    part = host.cut(pieces.segments)
    row, off = host.find_running(part.thread, part.start), pieces.off[part.origin]
    taken_in = host.find_running(part.thread, pieces.at_ns[part.origin])
    chosen = (off | (row == taken_in)).nonzero()[0]
    part = ThreadSegments(*(column[chosen] for column in part))
    row, off, ready = row[chosen], off[chosen], pieces.ready[part.origin]
    only_frame = np.append(host.frame, True)[row]
    holder = np.append(host.holder, -1)[row]
    tells_nothing = only_frame | np.isin(holder, [-1, HOLDER["range"]])
    holder[tells_nothing] = np.where(off, HOLDER["off_cpu"], HOLDER["sample"])[tells_nothing]
    waits = ~ready & (np.append(host.waits, False)[row] | (off & only_frame))
    started = host.axis.times(host.thread, host.begin)
    times = zip((started, host.end, host.thread), part[:3], strict=True)
    start, end, thread = map(np.concatenate, times)
    order = sort_by_start(thread, start, end)
    place = np.empty(len(order) + 1, np.int64)
    place[order], place[-1] = np.arange(len(order)), -1
    above = place[np.concatenate((host.tree.parent, row))][order]
    lifted = [host.axis.lift(part.thread, times) for times in (part.start, part.end)]
    name = concatenate_like_arrays([host.name, Coded(pieces.name.codes[part.origin], pieces.name.texts)])
    assert isinstance(name, Coded), "names are texts"
    nothing = np.zeros(len(row), np.bool_)
    frame, holds, recorded = (
        np.concatenate(pair)[order]
        for pair in ((host.frame, nothing), (host.holds, np.append(host.holds, False)[row]), (host.recorded, nothing))
    )
    return HostThreadRows(
        np.concatenate((host.begin, lifted[0]))[order],
        end[order],
        thread[order],
        Coded(name.codes[order], name.texts),
        np.concatenate((host.holder, holder))[order],
        np.concatenate((host.waits, waits))[order],
        frame,
        holds,
        recorded,
        CallTree(above, np.arange(len(order))),
        host.axis,
        find_distinct(np.concatenate((host.edges, *lifted))),
    )


def _mark_step_and_stage_frames(frame: npt.NDArray[np.int8], parent: Rows, holder: npt.NDArray[np.int8]) -> Mask:
    """Mark rows that only name a step or stage: steps, and outermost ranges around ops, calls or functions."""
    only_frame = frame > 1
    is_range = np.append(frame == 1, False)  # last element: no row
    only_frame[parent[(is_range[parent] & _RUNS_INSIDE[holder]).nonzero()[0]]] = True
    return only_frame


def _concatenate_host_column(trace: Trace, column: str) -> Ints:
    """Concatenate a column of Python functions and of ops."""
    columns = [trace.numbers(table, column) for table in TABLES]
    return np.concatenate(columns) if len(columns[0]) else columns[1]


def _describe_host_rows(trace: Trace) -> tuple[Coded, Mask, npt.NDArray[np.int8], npt.NDArray[np.int8]]:
    """Describe Python functions, then ops: (names, waits, frames: 2 for steps and 1 for outermost ranges, holder)."""
    names = concatenate_like_arrays([trace.texts(table, "name") for table in TABLES])
    assert isinstance(names, Coded), "names are texts"
    first = len(trace.numbers("python_calls", "ts_ns"))
    holder = np.full(len(names), HOLDER["python"], np.int8)
    codes = [HOLDER[_HOLDER_OF_KIND[kind]] for kind in HOST_OP_KINDS]
    kinds = trace.texts("host_ops", "kind")
    holder[first:] = np.array([*codes, HOLDER["system"]], np.int8)[kinds.codes]
    calls: SyncCalls = trace.derived(find_sync_calls)
    holder[first + calls.row] = HOLDER["sync"]
    python = holder == HOLDER["python"]
    collects = mark_wanted_names(names, COLLECTION.search) & _MAY_COLLECT[holder]
    holder[collects | (python & mark_wanted_names(names, COLLECTION_ROW.match))] = HOLDER["gc"]
    waits = mark_wanted_names(names, _WAITS.match)
    frame = np.zeros(len(names), np.int8)
    frame[first:] = mark_window_rows(trace)
    calls_once = trace.derived(find_start_up_calls).row
    holder[first + calls_once[calls_once >= 0]] = HOLDER["first_call"]
    return names, waits, frame, holder


def mark_window_rows(trace: Trace) -> npt.NDArray[np.int8]:
    """Mark rows of `host_ops` that are the ranges of steps (2) and outermost ranges (1)."""
    steps, ranges = (trace.derived(find_steps_and_stages).step_rows, trace.derived(select_outer_ranges))
    rows = mark_rows_of_kind(trace, "host_ops", "range").nonzero()[0]
    start, dur = (trace.numbers("host_ops", name)[rows] for name in ("ts_ns", "dur_ns"))
    starts, durs = (
        np.concatenate((getattr(ranges, name), getattr(steps, name), column))
        for name, column in (("ts_ns", start), ("dur_ns", dur))
    )
    number, _ = group_arrays([starts, durs])
    of_range, of_step, of_row = np.split(number, np.cumsum((len(ranges), len(steps))))
    frame = np.zeros(len(trace.numbers("host_ops", "ts_ns")), np.int8)
    frame[rows[np.isin(of_row, of_range)]] = 1
    frame[rows[np.isin(of_row, of_step)]] = 2
    return frame


def shorten_texts(names: Coded, shorten: Callable[[str], str]) -> Coded:
    """Shorten texts; equal short texts share one code."""
    code_of: dict[str, int] = {}
    place = [code_of.setdefault(shorten(text), len(code_of)) for text in names.texts]
    return Coded(np.array([*place, -1], choose_narrowest(len(code_of)))[names.codes], tuple(code_of))
