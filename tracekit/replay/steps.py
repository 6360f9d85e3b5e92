"""Steps of a graph: when each begins and ends on each process, recorded or after a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.replay.edges import Ints, Mask, Numbers
from tracekit.replay.job_graph import JobGraph


@dataclass(frozen=True, slots=True, eq=False)
class JobSteps:
    """Counted steps of all processes, by process and time: number (-1: none), and the instants of begin and end.

    `work[first_work:last_work]` are the ends of the ops that a step launched, `work[earlier_work:first_work]` of those before.
    Steps of one `block` follow one another without a step between. `owner` numbers the processes, which may have several
    files, and `role` the roles of the job.
    """

    process: Ints
    number: Ints
    begin: Numbers
    end: Numbers
    work: Numbers
    earlier_work: Ints
    first_work: Ints
    last_work: Ints
    block: Ints
    owner: Ints
    role: Ints

    def __len__(self) -> int:
        """Count the steps of all processes."""
        return len(self.process)


def list_job_steps(job: JobGraph, counts: Callable[[int, int | None], bool] | None = None) -> JobSteps:
    """List the steps of all processes for which `counts(process, number)` holds (all without it), in order of time."""
    process, number, begin, end = [], [], [], []
    works, low, first, last, count = [], [], [], [], 0
    blocks: list[Ints] = []
    owners, roles = _number_owners(job)
    for place, graph in enumerate(job.processes):
        steps = graph.steps
        numbers = np.where(steps.number.missing, -1, steps.number.values)
        chosen: Mask = np.ones(len(numbers), np.bool_)
        if counts is not None:
            chosen[:] = [counts(place, None if value < 0 else value) for value in numbers.tolist()]
        in_order = np.argsort(graph.time[steps.begin], kind="stable")
        position = np.flatnonzero(chosen[in_order])
        rows = in_order[position]
        blocks.append(position - np.arange(len(position)) + _BLOCKS_OF_PROCESS * place)
        process.append(np.full(len(rows), place))
        number.append(numbers[rows])
        begin.append(steps.begin[rows] + job.first[place])
        end.append(steps.end[rows] + job.first[place])
        work, launch_ns = _list_launched_work(job, place)
        bounds = [np.searchsorted(launch_ns, graph.time[instants[rows]]) for instants in (steps.begin, steps.end)]
        works.append(work)
        low.append(np.full(len(rows), count))
        first.append(bounds[0] + count)
        last.append(bounds[1] + count)
        count += len(work)
    of_process = _join_arrays(process)
    return JobSteps(
        of_process,
        _join_arrays(number),
        _join_arrays(begin).astype(np.int32),
        _join_arrays(end).astype(np.int32),
        _join_arrays(works).astype(np.int32),
        _join_arrays(low),
        _join_arrays(first),
        _join_arrays(last),
        _join_arrays(blocks),
        owners[of_process],
        roles[of_process],
    )


def _join_arrays(parts: Sequence[npt.NDArray[Any]]) -> Ints:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


_BLOCKS_OF_PROCESS = 2**40
"""Room for the blocks of one process among those of all."""


def list_whole_recordings(job: JobGraph) -> JobSteps:
    """List the recording of each process as one capture without a number, for runs without steps."""
    process = np.array(
        [place for place in range(len(job.processes)) if job.first[place + 1] > job.first[place]], np.int64
    )
    mine = [np.arange(job.first[place], job.first[place + 1], dtype=np.int32) for place in process.tolist()]
    begin = np.array([instants[job.time[instants].argmin()] for instants in mine], np.int32)
    end = np.array([instants[job.time[instants].argmax()] for instants in mine], np.int32)
    nothing = np.zeros(len(process), np.int64)
    owners, roles = _number_owners(job)
    work = np.empty(0, np.int32), nothing, nothing, nothing
    return JobSteps(process, nothing - 1, begin, end, *work, process, owners[process], roles[process])


def _number_owners(job: JobGraph) -> tuple[Ints, Ints]:
    """Number the processes of a job, which may have several files, and their roles."""
    owners: dict[tuple[object, ...], int] = {}
    roles: dict[object, int] = {}
    numbers = []
    for place, graph in enumerate(job.processes):
        source = graph.source
        known = source.rank is not None or source.pid is not None
        key = (source.role, source.replica, source.rank, source.host, source.pid) if known else (place,)
        owner = owners.setdefault(key, len(owners))
        numbers.append((owner, roles.setdefault(source.role, len(roles))))
    both = np.array(numbers, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _list_launched_work(job: JobGraph, process: int) -> tuple[Numbers, Ints]:
    """List the launched ops of a process by launch: (instants of their ends, times of their launches)."""
    graph = job.processes[process]
    launched = np.flatnonzero(graph.ops.is_launched)
    launched = launched[np.argsort(graph.ops.launch_ns[launched], kind="stable")]
    ends = job.first[process] + graph.host_count + 2 * launched + 1
    return ends.astype(np.int32), graph.ops.launch_ns[launched]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Mean step in ns, and each step by its number; a step without a number has a negative one of its own.

    A step lasts from the completion of the one before it to its own; means are over the ranks of a role, and the role that
    takes longest counts.
    """

    mean_ns: float
    by_number: Mapping[int, float]


def measure_step_times(steps: JobSteps, time: Ints) -> StepTimes:
    """Measure the steps at these times of the instants."""
    length, number = _measure_row_lengths(steps, time), steps.number.copy()
    unnumbered = number < 0
    number[unnumbered] = -1 - np.flatnonzero(unnumbered)
    owned: dict[tuple[int, int], dict[int, int]] = {}
    rows = zip(steps.role.tolist(), steps.owner.tolist(), number.tolist(), length.tolist(), strict=True)
    for role, owner, step, ns in rows:
        of_owner = owned.setdefault((role, owner), {})
        of_owner[step] = of_owner.get(step, 0) + ns
    by_role: dict[int, list[dict[int, int]]] = {}
    for (role, _), of_owner in owned.items():
        by_role.setdefault(role, []).append(of_owner)
    longest, mean_ns = _find_longest_role(list(by_role.values()))
    listed: dict[int, list[int]] = {}
    for of_owner in longest:
        for step, ns in of_owner.items():
            listed.setdefault(step, []).append(ns)
    return StepTimes(mean_ns, {step: sum(each) / len(each) for step, each in listed.items()})


def _find_longest_role(roles: Sequence[list[dict[int, int]]]) -> tuple[list[dict[int, int]], float]:
    """Find the role with the longest mean step: the steps of its ranks, and their mean."""
    most: tuple[list[dict[int, int]], float] = ([], 0.0)
    for ranks in roles:
        mean_ns = sum(sum(steps.values()) / len(steps) for steps in ranks) / len(ranks)
        if mean_ns > most[1]:
            most = ranks, mean_ns
    return most


def _measure_row_lengths(steps: JobSteps, time: Ints) -> Ints:
    """Measure how long each step of each process takes beyond the ones before it."""
    done, ends = find_completion(steps, time), time[steps.work]
    first, distance = np.diff(steps.block, prepend=-1) != 0, 1
    while distance < len(done) and (follows := steps.block[distance:] == steps.block[:-distance]).any():
        done[distance:] = np.where(follows, np.maximum(done[distance:], done[:-distance]), done[distance:])
        distance *= 2
    earlier = _find_latest(ends, steps.earlier_work[first], steps.first_work[first])
    before = np.append(done[:1], done[:-1])
    # A step without one before it begins with its mark, or when the work launched before it has ended, if that is later.
    before[first] = np.maximum(time[steps.begin[first]], earlier)
    return done - before


def find_completion(steps: JobSteps, time: Ints) -> Ints:
    """Find when each step is complete: the host has left it, and the ops launched in it have ended."""
    return np.maximum(time[steps.end], _find_latest(time[steps.work], steps.first_work, steps.last_work))


def _find_latest(ends: Ints, low: Ints, high: Ints) -> Ints:
    """Find the latest of the ends from each low to below its high; the first time of all without any."""
    latest = np.full(len(low), np.iinfo(np.int64).min)
    some = np.flatnonzero(high > low)
    if len(some):
        bounds = np.stack((low[some], high[some]), 1).reshape(-1)
        latest[some] = np.maximum.reduceat(np.append(ends, latest[0]), bounds)[::2]
    return latest
