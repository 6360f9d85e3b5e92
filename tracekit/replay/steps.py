"""Steps of a graph: when each begins and ends on each process, recorded or after a change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    of_process = _concatenate(process)
    return JobSteps(
        of_process,
        _concatenate(number),
        _concatenate(begin).astype(np.int32),
        _concatenate(end).astype(np.int32),
        _concatenate(works).astype(np.int32),
        _concatenate(low),
        _concatenate(first),
        _concatenate(last),
        _concatenate(blocks),
        owners[of_process],
        roles[of_process],
    )


def _concatenate(parts: Sequence[npt.NDArray[Any]]) -> Ints:
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
    """Mean step in ns.

    A step lasts from the completion of the one before it to its own; means are over the ranks of a role, and the role that
    takes longest counts.
    """

    mean_ns: float


def measure_step_times(steps: JobSteps, time: Ints) -> StepTimes:
    """Measure the mean step at these times of the instants."""
    done = find_completion(steps, time)
    spent: dict[tuple[int, int], int] = {}
    numbers: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for block in np.unique(steps.block).tolist():
        rows = np.flatnonzero(steps.block == block)
        key = int(steps.role[rows[0]]), int(steps.owner[rows[0]])
        length = int(done[rows].max()) - int(_find_begin(steps, time, int(rows[0])))
        spent[key] = spent.get(key, 0) + length
        # A step without a number is one of its own.
        each = zip(steps.number[rows].tolist(), rows.tolist(), strict=True)
        numbers.setdefault(key, set()).update((number, row if number < 0 else 0) for number, row in each)
    by_role: dict[int, list[float]] = {}
    for (role, owner), length in spent.items():
        by_role.setdefault(role, []).append(length / len(numbers[role, owner]))
    return StepTimes(max((sum(each) / len(each) for each in by_role.values()), default=0.0))


def find_completion(steps: JobSteps, time: Ints) -> Ints:
    """Find when each step is complete: the host has left it, and the ops launched in it have ended."""
    done = time[steps.end]
    for row in range(len(steps)):
        launched = steps.work[steps.first_work[row] : steps.last_work[row]]
        if len(launched):
            done[row] = max(int(done[row]), int(time[launched].max()))
    return done


def _find_begin(steps: JobSteps, time: Ints, row: int) -> int:
    """Find when a step begins: with its mark, or when the work launched before it has ended, if that is later."""
    begin = int(time[steps.begin[row]])
    earlier = steps.work[steps.earlier_work[row] : steps.first_work[row]]
    return max(begin, int(time[earlier].max())) if len(earlier) else begin
