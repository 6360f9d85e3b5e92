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
from tracekit.process.calls.segments import ThreadAxis, ThreadSegments

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

OFF_CPU = {"waiting": "(off the CPU: waiting)", "ready": "(off the CPU: wants to run)", "unknown": "(off the CPU)"}
"""Text for a thread off the CPU, by its state."""

UNNAMED = "(on the CPU)"
"""Text for a sample without a known function."""


@dataclass(frozen=True, slots=True)
class CpuSegments:
    """CPU segments in order of thread and time; `at_ns` is an instant at which each is known, `name` its text.

    `off`: the thread is off the CPU. `ready`: it is off the CPU and wants to run.
    """

    segments: ThreadSegments
    at_ns: Ints
    name: Coded
    off: Mask
    ready: Mask


def make_cpu_segments(trace: Trace) -> CpuSegments:
    """Turn CPU samples and recorded thread states into segments."""
    samples = _spread_samples(trace)
    states = _sort_rows_of_threads(trace, "thread_states")
    start, dur = (trace.numbers("thread_states", name)[states] for name in ("ts_ns", "dur_ns"))
    thread = trace.numbers("thread_states", "thread").astype(np.int64)[states]
    off = ThreadSegments(start, start + dur, thread, states)
    pieces = _merge_cpu_segments(off, samples)
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
    ready = is_off & (code == _find_text_code(state.texts, "ready"))
    name = Coded(code, (*texts, UNNAMED, *names.texts))
    return CpuSegments(pieces, at_ns, name, is_off, ready)


def _spread_samples(trace: Trace) -> ThreadSegments:
    """Compute the segment that each sample covers; `origin` is its row."""
    rows = _sort_rows_of_threads(trace, "cpu_samples")
    start = trace.numbers("cpu_samples", "ts_ns")[rows]
    thread = trace.numbers("cpu_samples", "thread").astype(np.int64)[rows]
    follows = thread[1:] == thread[:-1]
    apart = (start[1:] - start[:-1])[follows]
    if not len(apart):
        # The sampling interval is unknown, so samples are instants and cover no time.
        return ThreadSegments(*(np.empty(0, np.int64) for _ in ThreadSegments._fields))
    end = start + int(np.median(apart))
    end[:-1][follows] = np.minimum(end[:-1], start[1:])[follows]
    lasts = end > start
    return ThreadSegments(start[lasts], end[lasts], thread[lasts], rows[lasts])


def _sort_rows_of_threads(trace: Trace, table: str) -> Ints:
    """Sort the rows of a table by thread and time."""
    return np.lexsort((trace.numbers(table, "ts_ns"), trace.numbers(table, "thread")))


def _merge_cpu_segments(off: ThreadSegments, samples: ThreadSegments) -> ThreadSegments:
    """Merge off-CPU and sample segments without overlap; off-CPU time wins.

    `origin` is the position among the off-CPU segments, then among the samples.
    """
    both = [np.concatenate(pair) for pair in zip(off, samples, strict=True)]
    times = np.concatenate((both[0], both[1]))
    threads = np.concatenate((both[2], both[2]))
    axis = ThreadAxis.build((times,), int(threads.max(initial=0)))
    first = np.unique(axis.lift(threads, times), return_index=True)[1]
    start, thread = times[first][:-1], threads[first][:-1]
    end = np.where(thread == threads[first][1:], times[first][1:], start)
    in_off = _find_enclosing_segments(axis, off, thread, start)
    in_sample = _find_enclosing_segments(axis, samples, thread, start)
    origin = np.where(in_off >= 0, in_off, np.where(in_sample >= 0, len(off.start) + in_sample, -1))
    chosen = (origin >= 0) & (end > start)
    return ThreadSegments(start[chosen], end[chosen], thread[chosen], origin[chosen])


def _find_enclosing_segments(axis: ThreadAxis, segments: ThreadSegments, thread: Ints, ts_ns: Ints) -> Ints:
    """Find the segment that contains each instant of a thread; -1 for none."""
    if not len(segments.start):
        return np.full(len(thread), -1, np.int64)
    begin = axis.lift(segments.thread, segments.start)
    place = np.searchsorted(begin, axis.lift(thread, ts_ns), side="right") - 1
    holds = (place >= 0) & (segments.thread[place] == thread) & (segments.end[place] > ts_ns)
    return np.where(holds, place, -1)


def _find_text_code(texts: tuple[str, ...], text: str) -> int:
    """Look up the code of a text; -1 if it does not occur."""
    return texts.index(text) if text in texts else -1
