"""Sessions: when the runs of a side ran, and whether two sides ran so far apart that the machine may have changed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tracekit.model.tables.frame import max_of, min_of
from tracekit.model.trace import Measurements

RunSpan = tuple[str, int, int]
"""Name of a run, and its first and last instant in ns since the Unix epoch."""

SESSION_GAP_NS = 3_600_000_000_000
"""Runs with a longer pause between them are of different sessions."""

LEAST_SESSIONS = 4
"""Sessions from which the spread between sessions is known."""


def list_run_spans(measured: Measurements) -> tuple[RunSpan, ...]:
    """List the span of every run whose clock counts from the Unix epoch, by name."""
    captures = measured.frame("captures")
    captures = captures.filter(captures["absolute_time"])
    by_run = captures.with_columns(end_ns=captures["ts_ns"] + captures["dur_ns"]).group_by("run")
    spans = by_run.agg(start_ns=min_of("ts_ns"), end_ns=max_of("end_ns")).sort("run")
    return tuple(zip(spans.values("run"), spans.values("start_ns"), spans.values("end_ns"), strict=True))


def list_pauses(spans: Sequence[RunSpan]) -> list[int]:
    """List the pauses between runs in order of time, in ns; overlapping runs have none.

    >>> list_pauses([("b", 30, 40), ("a", 0, 10)])
    [20]
    """
    pauses, latest = [], None
    for _, start, end in sorted(spans, key=lambda span: span[1:]):
        if latest is not None:
            pauses.append(max(start - latest, 0))
        latest = end if latest is None else max(latest, end)
    return pauses


def count_sessions(spans: Sequence[RunSpan]) -> int:
    """Count the sessions of these runs."""
    return sum(pause >= SESSION_GAP_NS for pause in list_pauses(spans)) + bool(spans)


def measure_session_gap(base: Sequence[RunSpan], opt: Sequence[RunSpan]) -> int | None:
    """Measure the pause between two sides of different sessions in ns; None if their sessions are not known to differ.

    All runs of one side ran before all of the other, and the pause between is a session's and longer than any within a side.
    """
    if not base or not opt:
        return None
    first, second = sorted((base, opt), key=lambda side: min(start for _, start, _ in side))
    gap = min(start for _, start, _ in second) - max(end for _, _, end in first)
    longest = max([*list_pauses(base), *list_pauses(opt)], default=0)
    return gap if gap >= SESSION_GAP_NS and gap > longest else None


def has_overlapping_runs(spans: Sequence[RunSpan]) -> bool:
    """Whether some of these runs ran at the same time."""
    return any(later[1] < earlier[2] for earlier, later in pairwise(sorted(spans, key=lambda span: span[1:])))
