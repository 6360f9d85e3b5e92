"""Whether two processes can only be of two launches of one program: before and after a change, or killed and begun anew.

One place in the job is then held by one process after the other, or by one pid that passes the same steps again (in
containers pids begin anew, and so do the steps of a profiler that a program makes anew). The roles of reinforcement learning do that too,
as several processes of one rank take turns on a GPU; they do other stages. A job that goes on from a checkpoint
does other steps. Neither is taken for another run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import product
from operator import attrgetter
from typing import Any

import pandas as pd

from tracekit.model.keys import records
from tracekit.model.labels import words
from tracekit.model.records import dataclass
from tracekit.model.stages import RL_STAGES, canonical, scope_stage

LAUNCH_NS = 10**9
"""A process that begins after another has ended captures nothing sooner: `import torch` alone takes 1.6 s of CPU here."""

_OF_JOB = ("tool", "role", "replica", "rank")
_CAPTURED = ("run", "host", "pid", *_OF_JOB, "scope", "part", "source", "ts_ns", "dur_ns")

Process = tuple[str, str | None, int]
"""Run, host and pid."""
Place = tuple[str, str | None, int | None, int | None]
"""What a process is of the job: tool, role, replica and rank."""


@dataclass(frozen=True, slots=True)
class ProcessSpan:
    """One process from its first capture to its last, and the steps and stages in them.

    `lap` counts how often its pid had passed one of its steps before.
    """

    place: Place
    host: str | None
    pid: int
    lap: int
    start_ns: int
    end_ns: int
    steps: frozenset[int]
    stages: frozenset[str]

    @property
    def rank(self) -> int | None:
        """Its rank, where that is known."""
        return self.place[-1]


def place_of(tool: str, role: str | None, replica: int | None, rank: int | None) -> Place:
    """The place of a process in the job, its role in one spelling."""
    return (tool, None if role is None else words(role), replica, rank)


def process_spans(
    captures: pd.DataFrame,
    steps: pd.DataFrame,
    stages: pd.DataFrame,
    named_steps: Mapping[str, int | None],
) -> dict[str, list[ProcessSpan]]:
    """For each source the processes in it whose clock counts from the epoch, each over all its captures in its run.

    The step that the name of a source tells is the job's: what the profiler counts begins anew with every capture.
    """
    clocked = captures[captures["absolute_time"] & captures["pid"].notna()].sort_values("ts_ns")
    steps_of, stages_of = _different(steps, "step"), _different(stages, "stage")
    laps: dict[Process, list[ProcessSpan]] = {}
    sources: dict[tuple[Process, int], list[str]] = {}
    for row in records(clocked, [*_CAPTURED]):
        run, host, pid, tool, role, replica, rank, scope, part, source, ts_ns, dur_ns = row
        of_source = (source, pid)
        named_step = named_steps.get(source)
        own_steps = steps_of.get(of_source, set()) if named_step is None else {named_step}
        names = {scope_stage(scope), *stages_of.get(of_source, ())} - {None}
        span = ProcessSpan(
            place_of(tool, role, replica, rank),
            host,
            pid,
            0,
            ts_ns,
            ts_ns + dur_ns,
            frozenset(step for step in own_steps if step is not None),
            frozenset(canonical(name, role) for name in names if name is not None),
        )
        lap = _added(laps.setdefault((run, host, pid), []), span, is_numbered=part is not None)
        sources.setdefault(((run, host, pid), lap), []).append(source)
    spans: dict[str, list[ProcessSpan]] = {}
    for (process, lap), names_of in sources.items():
        for source in names_of:
            spans.setdefault(source, []).append(laps[process][lap])
    return spans


def _added(laps: list[ProcessSpan], span: ProcessSpan, *, is_numbered: bool) -> int:
    """The place of a capture among the laps of its process, which it may begin: where it passes steps of the last one again.

    Names that number the captures of a process say that they are of one run.
    """
    if not laps or (not is_numbered and _passes_again(laps[-1], span)):
        laps.append(replace(span, lap=len(laps)))
        return len(laps) - 1
    last = laps[-1]
    laps[-1] = replace(
        last,
        end_ns=max(last.end_ns, span.end_ns),
        steps=last.steps | span.steps,
        stages=last.stages | span.stages,
    )
    return len(laps) - 1


def _passes_again(last: ProcessSpan, span: ProcessSpan) -> bool:
    """Whether a capture holds steps that its process had passed, and no other stages of them."""
    is_same_work = bool(last.stages & span.stages) or not last.stages | span.stages
    return bool(last.steps & span.steps) and is_same_work and _launched_again(last, span)


def _different(frame: pd.DataFrame, column: str) -> dict[tuple[str, int], set[Any]]:
    """The different values of a column for each process in each source."""
    values: dict[tuple[str, int], set[Any]] = {}
    rows = frame[["source", "pid", column]].drop_duplicates()
    for source, pid, value in records(rows, ["source", "pid", column]):
        values.setdefault((source, pid), set()).add(value)
    return values


def relaunch(
    spans: Collection[ProcessSpan], other_spans: Collection[ProcessSpan]
) -> tuple[ProcessSpan, ProcessSpan] | None:
    """Two processes of one place, one of each, that are of two launches, the earlier first; None where none need be."""
    for pair in product(spans, other_spans):
        earlier, later = sorted(pair, key=attrgetter("start_ns"))
        is_same = (earlier.host, earlier.pid, earlier.lap) == (later.host, later.pid, later.lap)
        if not is_same and _launched_again(earlier, later):
            return earlier, later
    return None


def _launched_again(earlier: ProcessSpan, later: ProcessSpan) -> bool:
    """Whether the later process did the work of the earlier one anew, after that had ended."""
    if later.start_ns - earlier.end_ns < LAUNCH_NS:
        return False
    are_other_steps = bool(earlier.steps and later.steps) and not earlier.steps & later.steps
    is_shared = bool(earlier.stages & later.stages)
    are_roles = not is_shared and not (earlier.stages | later.stages).isdisjoint(RL_STAGES)
    if are_other_steps or are_roles:
        return False
    # Processes of unknown rank may be of two ranks, which do not pass a step at two times on one machine.
    is_same_work = is_shared or bool(earlier.steps & later.steps)
    return earlier.rank is not None or (earlier.host == later.host and is_same_work)
