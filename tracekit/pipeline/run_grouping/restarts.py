"""Restart detection: whether two processes must belong to two launches of one program.

After a restart, one place in the job is held by two processes one after the other, or by one pid that repeats its
steps. (In containers pids start over, and a recreated profiler restarts its step count.) RL roles look similar, because
several processes of one rank take turns on a GPU, but they run other stages. A job resumed from a checkpoint runs other
steps. Neither counts as another run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import product
from operator import attrgetter
from typing import Any

import pandas as pd

from tracekit.model.keys import iterate_records
from tracekit.model.labels import normalize_label_words
from tracekit.model.records import dataclass
from tracekit.model.stages import RL_STAGES, get_canonical_stage, get_scope_stage

MIN_LAUNCH_NS = 10**9
"""Minimum time from the end of a process to its successor's first capture; `import torch` takes 1.6 s of CPU."""

_JOB_PLACE_COLUMNS = ("tool", "role", "replica", "rank")
_SPAN_COLUMNS = ("run", "host", "pid", *_JOB_PLACE_COLUMNS, "scope", "part", "source", "ts_ns", "dur_ns")

ProcessKey = tuple[str, str | None, int]
"""(run, host, pid)."""
JobPlace = tuple[str, str | None, int | None, int | None]
"""The position of a process in the job: (tool, role, replica, rank)."""


@dataclass(frozen=True, slots=True)
class ProcessSpan:
    """One process from its first capture to its last, with the steps and stages in them.

    `lap` counts how often its pid repeated steps before.
    """

    place: JobPlace
    host: str | None
    pid: int
    lap: int
    start_ns: int
    end_ns: int
    steps: frozenset[int]
    stages: frozenset[str]

    @property
    def rank(self) -> int | None:
        """The rank, if known."""
        return self.place[-1]


def make_job_place(tool: str, role: str | None, replica: int | None, rank: int | None) -> JobPlace:
    """Make the place of a process in the job, with a normalized role."""
    return (tool, None if role is None else normalize_label_words(role), replica, rank)


def list_process_spans(
    captures: pd.DataFrame, steps: pd.DataFrame, stages: pd.DataFrame, named_steps: Mapping[str, int | None]
) -> dict[str, list[ProcessSpan]]:
    """For each source, list its processes with an absolute clock, each spanning all its captures in the run.

    A step number in the source's name takes precedence: the profiler's own count starts over with each capture.
    """
    clocked = captures[captures["absolute_time"] & captures["pid"].notna()].sort_values("ts_ns")
    steps_of, stages_of = (_list_distinct_values(steps, "step"), _list_distinct_values(stages, "stage"))
    laps: dict[ProcessKey, list[ProcessSpan]] = {}
    sources: dict[tuple[ProcessKey, int], list[str]] = {}
    for row in iterate_records(clocked, [*_SPAN_COLUMNS]):
        run, host, pid, tool, role, replica, rank, scope, part, source, ts_ns, dur_ns = row
        of_source = (source, pid)
        named_step = named_steps.get(source)
        own_steps = steps_of.get(of_source, set()) if named_step is None else {named_step}
        names = {get_scope_stage(scope), *stages_of.get(of_source, ())} - {None}
        span = ProcessSpan(
            make_job_place(tool, role, replica, rank),
            host,
            pid,
            0,
            ts_ns,
            ts_ns + dur_ns,
            frozenset(step for step in own_steps if step is not None),
            frozenset(get_canonical_stage(name, role) for name in names if name is not None),
        )
        lap = _add_capture(laps.setdefault((run, host, pid), []), span, is_numbered=part is not None)
        sources.setdefault(((run, host, pid), lap), []).append(source)
    spans: dict[str, list[ProcessSpan]] = {}
    for (process, lap), names_of in sources.items():
        for source in names_of:
            spans.setdefault(source, []).append(laps[process][lap])
    return spans


def _add_capture(laps: list[ProcessSpan], span: ProcessSpan, *, is_numbered: bool) -> int:
    """Add a capture to the laps of its process, and return its lap; repeated steps start a new lap.

    `is_numbered`: the file name numbers the captures of a process, so all belong to one run.
    """
    if not laps or (not is_numbered and _is_repeating_steps(laps[-1], span)):
        laps.append(replace(span, lap=len(laps)))
        return len(laps) - 1
    last = laps[-1]
    laps[-1] = replace(
        last, end_ns=max(last.end_ns, span.end_ns), steps=last.steps | span.steps, stages=last.stages | span.stages
    )
    return len(laps) - 1


def _is_repeating_steps(last: ProcessSpan, span: ProcessSpan) -> bool:
    """Check whether a capture repeats steps of its process without doing other stages."""
    is_same_work = bool(last.stages & span.stages) or not last.stages | span.stages
    return bool(last.steps & span.steps) and is_same_work and _is_relaunched(last, span)


def _list_distinct_values(frame: pd.DataFrame, column: str) -> dict[tuple[str, int], set[Any]]:
    """List the distinct values of a column for each (source, pid)."""
    values: dict[tuple[str, int], set[Any]] = {}
    rows = frame[["source", "pid", column]].drop_duplicates()
    for source, pid, value in iterate_records(rows, ["source", "pid", column]):
        values.setdefault((source, pid), set()).add(value)
    return values


def find_relaunch(
    spans: Collection[ProcessSpan], other_spans: Collection[ProcessSpan]
) -> tuple[ProcessSpan, ProcessSpan] | None:
    """Find two processes, one per side, that must belong to two launches, the earlier first; None without a pair."""
    for pair in product(spans, other_spans):
        earlier, later = sorted(pair, key=attrgetter("start_ns"))
        is_same = (earlier.host, earlier.pid, earlier.lap) == (later.host, later.pid, later.lap)
        if not is_same and _is_relaunched(earlier, later):
            return earlier, later
    return None


def _is_relaunched(earlier: ProcessSpan, later: ProcessSpan) -> bool:
    """Check whether the later process repeats the work of the earlier one after it ended."""
    if later.start_ns - earlier.end_ns < MIN_LAUNCH_NS:
        return False
    are_other_steps = bool(earlier.steps and later.steps) and not earlier.steps & later.steps
    is_shared = bool(earlier.stages & later.stages)
    are_roles = not is_shared and not (earlier.stages | later.stages).isdisjoint(RL_STAGES)
    if are_other_steps or are_roles:
        return False
    # Processes of unknown rank may be different ranks; on one host these run a step at the same time.
    is_same_work = is_shared or bool(earlier.steps & later.steps)
    return earlier.rank is not None or (earlier.host == later.host and is_same_work)
