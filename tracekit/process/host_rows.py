"""All that is recorded of the host threads in one tree: ops, calls, ranges, the system's calls, Python functions.

Unlike `nesting` it holds every kind of row, so that at any instant it knows the deepest thing on a thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.intervals import Intervals, spread
from tracekit.model.keys import distinct, is_one_of, of_arrays
from tracekit.model.tables.arrays import Array, Coded, joined
from tracekit.model.tables.columns import HOST_OP_KINDS
from tracekit.model.tables.slots import HOLDERS
from tracekit.model.trace import Trace
from tracekit.process.by_name import is_named, of_kind
from tracekit.process.cpu_rows import CpuPieces, cpu_pieces
from tracekit.process.host_activity import COLLECTION, SyncCalls, sync_calls
from tracekit.process.launches import Launches, launches
from tracekit.process.nesting import Nesting, by_start, in_order, last_reaching
from tracekit.process.stage_at import outer_ranges
from tracekit.process.steps import windows
from tracekit.process.thread_axis import Axis, Segments, divided

Ints = npt.NDArray[np.int64]
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

_COLLECTS = re.compile(r"<built-in (?:function|method) collect\b.*|(?:.*/)?gc\.py\(\d+\)")

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
"""What a thread is in while another one, or another process, has the work: of such names others are looked at first."""


_HOLDS = re.compile(
    r"(?:cuda|cu|hip)(?:Memcpy(?!\w*Async)|Malloc|Free|Host(?:Alloc|Malloc|Free|Register)|Mem(?:Alloc|Free|Create|Map|HostAlloc)"
    r"|Module|Library|DeviceReset|CtxCreate)(?!\w*Async)"
)

FIRST_CALL_NS, FIRST_CALL_TIMES = 1_000_000, 20
"""A first call takes at least so long, and so many times as long as calls of its name do as a rule."""

MAX_FIRST_CALLS = 100
"""So many long calls are looked at one by one."""

JITTER_NS = 1_000
"""By so much the end of a row may lie after that of what encloses it."""

TABLES = ("python_calls", "host_ops")
"""Of rows that begin and end at once, those of the first table enclose the others."""


@dataclass(frozen=True, slots=True)
class HostRows:
    """Rows of all threads, by thread, start, longest first; `tree` holds their parents.

    `holder` indexes `HOLDERS`; `waits`: others may have the work meanwhile; `frame`: it only says which step or
    stage it is, and others run inside it; `holds`: a call that keeps a device from beginning what it has. `edges` are all starts and ends on one axis, that may be cut at.
    `recorded`: no piece of what is known of CPUs, of which each lies within what was the deepest row without it.
    """

    start: Ints
    end: Ints
    thread: Ints
    name: Coded
    holder: npt.NDArray[np.int8]
    waits: Mask
    frame: Mask
    holds: Mask
    recorded: Mask
    tree: Nesting
    axis: Axis
    begin: Ints
    edges: Ints

    def at(self, thread: Ints, ts_ns: Ints) -> Ints:
        """For each instant on a thread the row that began last there and still runs; -1 for none."""
        if not len(self.start):
            return np.full(len(ts_ns), -1, np.int64)
        place = np.searchsorted(self.begin, self.axis.lift(thread, ts_ns), side="right") - 1
        place[(place >= 0) & (self.thread[place] != thread)] = -1
        return self.tree.running(place, self.end, ts_ns)

    def cut(self, whole: Segments) -> Segments:
        """The same segments in pieces, each within one row of its thread at every depth; `origin` the place in `whole`."""
        low = np.searchsorted(self.edges, self.axis.lift(whole.thread, whole.start), side="right")
        high = np.searchsorted(self.edges, self.axis.lift(whole.thread, whole.end), side="left")
        of_segment, edge = spread(low, np.where(whole.thread < 0, low, high))
        start, origin = divided(whole.start, of_segment, self.axis.times(self.edges[edge]))
        is_last = np.append(origin[1:] != origin[:-1], True)[: len(origin)]
        end = np.where(is_last, whole.end[origin], np.append(start[1:], 0)[: len(start)])
        return Segments(start, end, whole.thread[origin], origin)


def host_rows(trace: Trace, asked: Intervals | None = None) -> HostRows:
    """The rows of a trace that last; what is to be `cut` lies within the time that is `asked` of (None: any)."""
    names, waits, frame, holder = _described(trace)
    start, dur, thread = (_both(trace, column) for column in ("ts_ns", "dur_ns", "thread"))
    chosen = np.flatnonzero(dur > 0)
    if trace.has("python_calls"):
        # Calls of modules stand in both tables.
        twice = np.zeros(len(start), np.bool_)
        twice[len(trace.numbers("python_calls", "ts_ns")) :] = of_kind(trace, "host_ops", "python")
        chosen = chosen[~twice[chosen]]
    rows = in_order(chosen, thread, start, dur)
    del chosen
    start, end, thread = start[rows], dur[rows], thread[rows]
    end += start
    pieces = cpu_pieces(trace)
    of_cpu = pieces.segments
    axis = _axis(start, end, thread, of_cpu)
    begin, until = axis.lift(thread, start), axis.lift(thread, end)
    is_asked = None if len(of_cpu.start) else asked
    edges = _edges((begin, until), (start, end), is_asked)
    # What encloses a row outlasts it, but for as much as clocks jitter; else a range that outlives the call
    # that opened it would seem to lie in that call for good.
    jitter = JITTER_NS if axis.points is None else 1
    parent = np.empty(0, np.int64)
    if len(rows):
        parent = last_reaching(np.maximum(begin, until - jitter), until)
    del until
    tree = Nesting(parent, np.empty(0, np.int64), np.empty(0, np.int64))
    name = Coded(names.codes[rows], names.texts)
    holds = is_named(name, _HOLDS.match)
    only_frame = (frame[rows] > 1) | ((frame[rows] > 0) & _enclosing(parent, holder[rows]))
    recorded = np.ones(len(rows), np.bool_)
    of_rows = holder[rows], waits[rows], only_frame, holds, recorded, tree
    host = HostRows(start, end, thread, name, *of_rows, axis, begin, edges)
    return _with_cpu(host, pieces) if len(of_cpu.start) else host


def _axis(start: Ints, end: Ints, thread: Ints, of_cpu: Segments) -> Axis:
    """The axis of all these times on their threads."""
    last = max(int(thread.max(initial=0)), int(of_cpu.thread.max(initial=0)))
    ends = [
        extreme
        for times in (start, end, of_cpu.start, of_cpu.end)
        if len(times)
        for extreme in (times.min(), times.max())
    ]
    axis = Axis.of(np.array(ends, np.int64), last)
    if axis.points is None:
        return axis
    return Axis.of(np.concatenate((start, end, of_cpu.start, of_cpu.end)), last)


def _edges(lifted: tuple[Ints, Ints], times: tuple[Ints, Ints], asked: Intervals | None) -> Ints:
    """The distinct places, ascending, of the starts and ends of rows that lie in the time that is asked of (None: all)."""
    if asked is None:
        return distinct(np.concatenate(lifted))
    inside = []
    for places, ts_ns in zip(lifted, times, strict=True):
        interval = sweeps.places(asked.start, ts_ns, right=True) - 1
        is_inside = interval >= 0
        if len(asked.start):
            is_inside &= ts_ns < asked.end[interval]
        inside.append(places[is_inside])
    return distinct(np.concatenate(inside))


def _with_cpu(host: HostRows, pieces: CpuPieces) -> HostRows:
    """The same rows, and below the deepest of each instant what is known of CPUs.

    A sample counts while its thread is in the row in which it was taken.
    """
    part = host.cut(pieces.segments)
    row, off = host.at(part.thread, part.start), pieces.off[part.origin]
    taken_in = host.at(part.thread, pieces.at_ns[part.origin])
    chosen = np.flatnonzero(off | (row == taken_in))
    part = Segments(*(column[chosen] for column in part))
    row, off, ready = row[chosen], off[chosen], pieces.ready[part.origin]
    only_frame = np.append(host.frame, True)[row]
    holder = np.append(host.holder, -1)[row]
    tells_nothing = only_frame | np.isin(holder, [-1, HOLDER["range"]])
    holder[tells_nothing] = np.where(off, HOLDER["off_cpu"], HOLDER["sample"])[tells_nothing]
    waits = ~ready & (np.append(host.waits, False)[row] | (off & only_frame))
    times = zip((host.start, host.end, host.thread), part[:3], strict=True)
    start, end, thread = map(np.concatenate, times)
    order = by_start(thread, start, end)
    place = np.empty(len(order) + 1, np.int64)
    place[order], place[-1] = np.arange(len(order)), -1
    above = place[np.concatenate((host.tree.parent, row))][order]
    lifted = [host.axis.lift(part.thread, times) for times in (part.start, part.end)]
    name = joined([host.name, Coded(pieces.name.codes[part.origin], pieces.name.texts)])
    assert isinstance(name, Coded), "names are texts"
    nothing = np.zeros(len(row), np.bool_)
    frame, holds, recorded = (
        np.concatenate(pair)[order]
        for pair in (
            (host.frame, nothing),
            (host.holds, np.append(host.holds, False)[row]),
            (host.recorded, nothing),
        )
    )
    return HostRows(
        start[order],
        end[order],
        thread[order],
        Coded(name.codes[order], name.texts),
        np.concatenate((host.holder, holder))[order],
        np.concatenate((host.waits, waits))[order],
        frame,
        holds,
        recorded,
        Nesting(above, np.empty(0, np.int64), np.empty(0, np.int64)),
        host.axis,
        np.concatenate((host.begin, lifted[0]))[order],
        distinct(np.concatenate((host.edges, *lifted))),
    )


def _enclosing(parent: Ints, holder: npt.NDArray[np.int8]) -> Mask:
    """Which rows have an op, a call or a Python function just inside them."""
    encloses = np.zeros(len(parent), np.bool_)
    works = np.isin(holder, [HOLDER[name] for name in ("op", "call", "sync", "python")])
    encloses[parent[(parent >= 0) & works]] = True
    return encloses


def _both(trace: Trace, column: str) -> Ints:
    """A column of Python functions, then of ops."""
    if not len(trace.numbers("python_calls", column)):
        return trace.numbers("host_ops", column)
    return np.concatenate([trace.numbers(table, column) for table in TABLES])


def _described(trace: Trace) -> tuple[Coded, Mask, npt.NDArray[np.int8], npt.NDArray[np.int8]]:
    """(names, which rows wait, which are steps (2) or outermost ranges (1), what each is), of Python functions and then of ops."""
    first = len(trace.numbers("python_calls", "ts_ns"))
    names: Array = trace.texts("host_ops", "name")
    if first:
        names = joined([trace.texts(table, "name") for table in TABLES])
    assert isinstance(names, Coded), "names are texts"
    holder = np.full(len(names), HOLDER["python"], np.int8)
    codes = [HOLDER[_HOLDER_OF_KIND[kind]] for kind in HOST_OP_KINDS]
    kinds = trace.texts("host_ops", "kind")
    holder[first:] = np.array([*codes, HOLDER["system"]], np.int8)[kinds.codes]
    calls: SyncCalls = trace.derived(sync_calls)
    holder[first + calls.row] = HOLDER["sync"]
    python = holder == HOLDER["python"]
    collects = is_named(names, COLLECTION.search) & np.isin(
        holder, [HOLDER[name] for name in ("range", "op", "system", "profiler")]
    )
    holder[collects | (python & is_named(names, _COLLECTS.match))] = HOLDER["gc"]
    waits = is_named(names, _WAITS.match)
    frame = np.zeros(len(names), np.int8)
    frame[first:] = frame_rows(trace)
    first_calls = first + _first_calls(trace)
    holder[first_calls[holder[first_calls] == HOLDER["call"]]] = HOLDER["first_call"]
    return names, waits, frame, holder


def _first_calls(trace: Trace) -> Ints:
    """Rows of `host_ops`: calls far longer than others of their name, the first of that name or to launch that kernel."""
    dur, names = trace.numbers("host_ops", "dur_ns"), trace.texts("host_ops", "name").codes
    calls = np.flatnonzero(of_kind(trace, "host_ops", "runtime"))
    long = calls[dur[calls] >= FIRST_CALL_NS]
    if not len(long):
        return long
    is_first = np.zeros(len(dur), np.bool_)
    start = trace.numbers("host_ops", "ts_ns")
    in_order = calls[np.argsort(start[calls], kind="stable")]
    is_first[in_order[np.unique(names[in_order], return_index=True)[1]]] = True
    links: Launches = trace.derived(launches)
    ops = np.flatnonzero(links.call >= 0)
    ops = ops[np.argsort(links.ts_ns[ops], kind="stable")]
    kernels = trace.texts("device_ops", "name").codes[ops]
    is_first[links.call[ops[np.unique(kernels, return_index=True)[1]]]] = True
    chosen = []
    for row in long[is_first[long]][:MAX_FIRST_CALLS].tolist():
        others = dur[calls[(names[calls] == names[row]) & (calls != row)]]
        if not len(others) or dur[row] >= FIRST_CALL_TIMES * np.median(others):
            chosen.append(row)
    return np.array(chosen, np.int64)


def frame_rows(trace: Trace) -> npt.NDArray[np.int8]:
    """Which rows of `host_ops` are the ranges that the steps (2) and the outermost ranges (1) were made of."""
    steps, ranges = trace.derived(windows).step_rows, trace.derived(outer_ranges)
    rows = np.flatnonzero(of_kind(trace, "host_ops", "range"))
    start, dur = (trace.numbers("host_ops", name)[rows] for name in ("ts_ns", "dur_ns"))
    # Only what begins with one of them can be one of them.
    near = np.flatnonzero(is_one_of(start, np.concatenate((ranges.ts_ns, steps.ts_ns))))
    rows, start, dur = rows[near], start[near], dur[near]
    starts, durs = (
        np.concatenate((getattr(ranges, name), getattr(steps, name), column))
        for name, column in (("ts_ns", start), ("dur_ns", dur))
    )
    number, _ = of_arrays([starts, durs])
    of_range, of_step, of_row = np.split(number, np.cumsum((len(ranges), len(steps))))
    frame = np.zeros(len(trace.numbers("host_ops", "ts_ns")), np.int8)
    frame[rows[np.isin(of_row, of_range)]] = 1
    frame[rows[np.isin(of_row, of_step)]] = 2
    return frame


def labels(names: Coded, shorten: Callable[[str], str]) -> Coded:
    """The same rows with shortened texts, equal ones with one code."""
    code_of: dict[str, int] = {}
    place = [code_of.setdefault(shorten(text), len(code_of)) for text in names.texts]
    codes = np.array([*place, -1], np.int64)[names.codes]
    return Coded(codes, tuple(code_of))
