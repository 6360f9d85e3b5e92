"""Load on the CPU cores of the hosts of a run: a replay takes host time as constant, which shared cores make it not.

Where ranks have fewer cores than there are processes, or threads are seen to wait for a core, a change that frees a core
makes other ranks faster than predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from tracekit.discover.selection import parse_numbers
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.sources import Source
from tracekit.model.records import dataclass
from tracekit.model.text.labels import choose_plural
from tracekit.model.trace import Trace
from tracekit.model.units import format_quantity

MOST_READY = 0.1
"""Share of the time in which threads could run that they may spend waiting for a core, before nothing is predicted."""
LEAST_RUNNABLE_NS = 10_000_000
"""Shorter times of running threads are not judged."""
MOST_CORES = 2**16
"""No host has more cores."""

UNKNOWN_CORES = (
    "the work runs on the CPU, and the number of cores is not recorded: "
    "ranks that share cores slow each other down, which is not modeled"
)


class HostLoad(NamedTuple):
    """Cores that a process may use (empty: unknown), and the time in which its threads ran or waited for a core.

    Without a record of the scheduler `ready_ns` is None.
    """

    cores: frozenset[int]
    running_ns: int
    ready_ns: int | None


@dataclass(frozen=True, slots=True)
class HostContention:
    """Whether processes of a run compete for CPU cores; `reason` in words, with numbers. Empty if they do not."""

    state: Literal["contended", "free", "unknown"]
    reason: str = ""


def measure_host_load(trace: Trace) -> HostLoad:
    """Measure how long the threads of a process ran, and how long they waited for a core."""
    cores = _read_cores(trace)
    if not trace.has("thread_states"):
        return HostLoad(cores, 0, None)
    start, dur = (trace.numbers("thread_states", name) for name in ("ts_ns", "dur_ns"))
    thread, state = trace.numbers("thread_states", "thread"), trace.texts("thread_states", "state")
    is_ready = np.array([*(text == "ready" for text in state.texts), False])[state.codes]
    span = np.zeros(int(thread.max(initial=-1)) + 1, np.int64)
    first, last = span + np.iinfo(np.int64).max, span + np.iinfo(np.int64).min
    np.minimum.at(first, thread, start)
    np.maximum.at(last, thread, start + dur)
    known = last > first
    off_ns = int(dur.sum())
    return HostLoad(cores, max(int((last - first)[known].sum()) - off_ns, 0), int(dur[is_ready].sum()))


def _read_cores(trace: Trace) -> frozenset[int]:
    """Read the cores that a process may use, from its manifest or its report; empty if unknown."""
    if trace.source.cores is not None:
        try:
            return parse_numbers(trace.source.cores)
        except TracekitError:
            return frozenset()
    count = trace.meta.get("cpu_cores")
    return frozenset(range(count)) if isinstance(count, int) and 0 < count <= MOST_CORES else frozenset()


def judge_host_contention(sources: Sequence[Source], loads: Sequence[HostLoad], *, on_host: bool) -> HostContention:
    """Judge whether the processes of a run compete for CPU cores.

    `on_host`: the work of the run runs on the CPU, not on devices.
    """
    crowded = _describe_crowded_host(sources, loads)
    if crowded:
        return HostContention("contended", crowded)
    waiting = _describe_run_queue(loads)
    if waiting:
        return HostContention("contended", waiting)
    is_known = all(load.cores for load in loads)
    if on_host and not is_known:
        return HostContention("unknown", UNKNOWN_CORES)
    return HostContention("free" if is_known else "unknown")


def _describe_crowded_host(sources: Sequence[Source], loads: Sequence[HostLoad]) -> str:
    """Describe the host with most processes per core, if it has more processes than cores."""
    processes: dict[str | None, set[tuple[Any, ...]]] = {}
    cores: dict[str | None, set[int]] = {}
    for place, (source, load) in enumerate(zip(sources, loads, strict=True)):
        known = source.rank is not None or source.pid is not None
        processes.setdefault(source.host, set()).add((source.role, source.rank, source.pid) if known else (place,))
        cores.setdefault(source.host, set()).update(load.cores)
    crowded = [host for host, numbers in cores.items() if 0 < len(numbers) < len(processes[host])]
    if not crowded:
        return ""
    host = max(crowded, key=lambda host: len(processes[host]) / len(cores[host]))
    where = f" on {host}" if host else ""
    count = f"{len(cores[host])} {choose_plural(len(cores[host]), 'core')}"
    return f"{len(processes[host])} processes{where} share {count}"


def _describe_run_queue(loads: Sequence[HostLoad]) -> str:
    """Describe how long threads waited for a core, if that is a large share of the time in which they could run."""
    ready = sum(load.ready_ns or 0 for load in loads)
    runnable = ready + sum(load.running_ns for load in loads if load.ready_ns is not None)
    if runnable < LEAST_RUNNABLE_NS or ready <= MOST_READY * runnable:
        return ""
    return (
        f"threads waited for a core {format_quantity(ready / runnable, 'ratio', 2)} of the time in which they could run"
    )
