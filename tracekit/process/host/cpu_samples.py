"""What is known of CPUs as pieces of time on host threads: the function that a sample found, and being off the CPU.

A sample stands for the time until the next one of its thread, at most for as long as two samples of a
thread are apart as a rule, and not for what its thread was off the CPU.
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
"""What a thread on no CPU is said to do, by its state."""

UNNAMED = "(on the CPU)"
"""What a thread is said to do where of a sample no function is known."""


@dataclass(frozen=True, slots=True)
class CpuPieces:
    """Pieces in order of thread and time; `at_ns` is an instant at which each is known, `name` says what it is.

    `off`: the thread is on no CPU; `ready`: and wants one.
    """

    segments: Segments
    at_ns: Ints
    name: Coded
    off: Mask
    ready: Mask


def cpu_pieces(trace: Trace) -> CpuPieces:
    """What samples and records of threads on CPUs tell."""
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
    """For what time each sample stands; `origin` its row."""
    rows = _ordered(trace, "cpu_samples")
    start = trace.numbers("cpu_samples", "ts_ns")[rows]
    thread = trace.numbers("cpu_samples", "thread").astype(np.int64)[rows]
    follows = thread[1:] == thread[:-1]
    apart = (start[1:] - start[:-1])[follows]
    if not len(apart):
        # How far samples are apart is not known: each is an instant.
        return Segments(*(np.empty(0, np.int64) for _ in Segments._fields))
    end = start + int(np.median(apart))
    end[:-1][follows] = np.minimum(end[:-1], start[1:])[follows]
    lasts = end > start
    return Segments(start[lasts], end[lasts], thread[lasts], rows[lasts])


def _ordered(trace: Trace, table: str) -> Ints:
    """The rows of a table by thread and time."""
    return np.lexsort((trace.numbers(table, "ts_ns"), trace.numbers(table, "thread")))


def _disjoint(off: Segments, samples: Segments) -> Segments:
    """All of these without what is both; `origin` the place among those off the CPU, then the samples."""
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
    """For each instant on a thread the place of the segment that holds it; -1 for none."""
    if not len(segments.start):
        return np.full(len(thread), -1, np.int64)
    begin = axis.lift(segments.thread, segments.start)
    place = np.searchsorted(begin, axis.lift(thread, ts_ns), side="right") - 1
    holds = (place >= 0) & (segments.thread[place] == thread) & (segments.end[place] > ts_ns)
    return np.where(holds, place, -1)


def _place(texts: tuple[str, ...], text: str) -> int:
    """The code of a text, -1 where it does not occur."""
    return texts.index(text) if text in texts else -1
