"""CPU samples and off-CPU time as segments of host threads.

A sample covers the time until the next sample of its thread, but at most the median interval between samples,
and never time in which its thread was off the CPU.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Coded
from tracekit.model.trace import Trace
from tracekit.process.calls.segments import Axis, Segments

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

OFF_CPU = {
    "waiting": "(off the CPU: waiting)",
    "ready": "(off the CPU: wants to run)",
    "unknown": "(off the CPU)",
}
"""Text for a thread off the CPU, by its state."""

UNNAMED = "(on the CPU)"
"""Text for a sample without a known function."""


@dataclass(frozen=True, slots=True)
class CpuPieces:
    """CPU segments in order of thread and time; `at_ns` is an instant at which each is known, `name` its text.

    `off`: the thread is off the CPU. `ready`: it is off the CPU and wants to run.
    """

    segments: Segments
    at_ns: Ints
    name: Coded
    off: Mask
    ready: Mask


def cpu_pieces(trace: Trace) -> CpuPieces:
    """Turn CPU samples and recorded thread states into segments."""
    samples = _samples(trace)
    states = _ordered(trace, "thread_states")
    start, dur = (trace.numbers("thread_states", name)[states] for name in ("ts_ns", "dur_ns"))
    thread = trace.numbers("thread_states", "thread").astype(np.int64)[states]
    off = Segments(start, start + dur, thread, states)
    pieces = _disjoint(off, samples)
    is_off = pieces.origin < len(off.start)
    state = trace.texts("thread_states", "state")
    texts = [OFF_CPU[name] for name in state.texts]
    names = trace.texts("cpu_samples", "name")
    row = np.concatenate((off.origin, samples.origin))[pieces.origin]
    code = np.full(len(row), len(texts), np.int64)
    code[is_off] = state.codes[row[is_off]]
    found = names.codes[row[~is_off]].astype(np.int64)
    code[~is_off] = len(texts) + 1 + found
    at_ns = pieces.start.copy()
    at_ns[~is_off] = trace.numbers("cpu_samples", "ts_ns")[row[~is_off]]
    ready = is_off & (code == _place(state.texts, "ready"))
    name = Coded(code, (*texts, UNNAMED, *names.texts))
    return CpuPieces(pieces, at_ns, name, is_off, ready)


def _samples(trace: Trace) -> Segments:
    """Compute the segment that each sample covers; `origin` is its row."""
    rows = _ordered(trace, "cpu_samples")
    start = trace.numbers("cpu_samples", "ts_ns")[rows]
    thread = trace.numbers("cpu_samples", "thread").astype(np.int64)[rows]
    follows = thread[1:] == thread[:-1]
    apart = (start[1:] - start[:-1])[follows]
    if not len(apart):
        # The sampling interval is unknown, so samples are instants and cover no time.
        return Segments(*(np.empty(0, np.int64) for _ in Segments._fields))
    end = start + int(np.median(apart))
    end[:-1][follows] = np.minimum(end[:-1], start[1:])[follows]
    lasts = end > start
    return Segments(start[lasts], end[lasts], thread[lasts], rows[lasts])


def _ordered(trace: Trace, table: str) -> Ints:
    """Sort the rows of a table by thread and time."""
    return np.lexsort((trace.numbers(table, "ts_ns"), trace.numbers(table, "thread")))


def _disjoint(off: Segments, samples: Segments) -> Segments:
    """Merge off-CPU and sample segments without overlap; off-CPU time wins.

    `origin` is the position among the off-CPU segments, then among the samples.
    """
    both = [np.concatenate(pair) for pair in zip(off, samples, strict=True)]
    times = np.concatenate((both[0], both[1]))
    threads = np.concatenate((both[2], both[2]))
    axis = Axis.of((times,), int(threads.max(initial=0)))
    first = np.unique(axis.lift(threads, times), return_index=True)[1]
    start, thread = times[first][:-1], threads[first][:-1]
    end = np.where(thread == threads[first][1:], times[first][1:], start)
    in_off = _holding(axis, off, thread, start)
    in_sample = _holding(axis, samples, thread, start)
    origin = np.where(in_off >= 0, in_off, np.where(in_sample >= 0, len(off.start) + in_sample, -1))
    chosen = (origin >= 0) & (end > start)
    return Segments(start[chosen], end[chosen], thread[chosen], origin[chosen])


def _holding(axis: Axis, segments: Segments, thread: Ints, ts_ns: Ints) -> Ints:
    """Find the segment that contains each instant of a thread; -1 for none."""
    if not len(segments.start):
        return np.full(len(thread), -1, np.int64)
    begin = axis.lift(segments.thread, segments.start)
    place = np.searchsorted(begin, axis.lift(thread, ts_ns), side="right") - 1
    holds = (place >= 0) & (segments.thread[place] == thread) & (segments.end[place] > ts_ns)
    return np.where(holds, place, -1)


def _place(texts: tuple[str, ...], text: str) -> int:
    """Look up the code of a text; -1 if it does not occur."""
    return texts.index(text) if text in texts else -1
