"""Whether two processes can only be of two launches of one program: before and after a change, or killed and begun anew.

One place in the job is then held by one process after the other. The roles of reinforcement learning do that too,
as several processes of one rank take turns on a GPU; they do other stages. A job that goes on from a checkpoint
does other steps. Neither is taken for another run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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

_PROCESS = ("run", "host", "pid")
_CAPTURED = (*_PROCESS, "tool", "role", "replica", "rank", "scope", "source", "ts_ns", "dur_ns")

Process = tuple[str, str | None, int]
"""Run, host and pid."""
Place = tuple[str, str | None, int | None, int | None]
"""What a process is of the job: tool, role, replica and rank."""


@dataclass(frozen=True, slots=True)
class ProcessSpan:
    """One process from its first capture to its last, and the steps and stages in them."""

    place: Place
    host: str | None
    pid: int
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
    clocked = captures[captures["absolute_time"] & captures["pid"].notna()]
    sources: dict[Process, list[str]] = {}
    ends: dict[Process, list[tuple[int, int]]] = {}
    places: dict[Process, Place] = {}
    steps_of = _different(steps, "step")
    stages_of = _different(stages, "stage")
    for row in records(clocked, [*_CAPTURED]):
        run, host, pid, tool, role, replica, rank, scope, source, ts_ns, dur_ns = row
        process = (run, host, pid)
        places.setdefault(process, place_of(tool, role, replica, rank))
        sources.setdefault(process, []).append(source)
        ends.setdefault(process, []).append((ts_ns, ts_ns + dur_ns))
        stages_of.setdefault(process, set()).add(scope_stage(scope))
    spans: dict[str, list[ProcessSpan]] = {}
    for process, place in places.items():
        starts_ns, ends_ns = zip(*ends[process], strict=True)
        steps_in_names = {named_steps.get(source) for source in sources[process]}
        own_steps = steps_in_names - {None} or steps_of.get(process, set())
        names = {canonical(stage, place[1]) for stage in stages_of[process] - {None}}
        span = ProcessSpan(
            place,
            process[1],
            process[2],
            min(starts_ns),
            max(ends_ns),
            frozenset(step for step in own_steps if step is not None),
            frozenset(names),
        )
        for source in sources[process]:
            spans.setdefault(source, []).append(span)
    return spans


def _different(frame: pd.DataFrame, column: str) -> dict[Process, set[Any]]:
    """The different values of a column for each process."""
    values: dict[Process, set[Any]] = {}
    rows = frame[[*_PROCESS, column]].drop_duplicates()
    for run, host, pid, value in records(rows, [*_PROCESS, column]):
        values.setdefault((run, host, pid), set()).add(value)
    return values


def relaunch(
    spans: Collection[ProcessSpan], other_spans: Collection[ProcessSpan]
) -> tuple[ProcessSpan, ProcessSpan] | None:
    """Two processes of one place, one of each, that are of two launches, the earlier first; None where none need be."""
    for pair in product(spans, other_spans):
        earlier, later = sorted(pair, key=attrgetter("start_ns"))
        if earlier.pid != later.pid and _launched_again(earlier, later):
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
