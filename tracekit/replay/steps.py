"""Steps of a graph: when each begins and ends on each process, recorded or after a change."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tracekit.model.records import dataclass
from tracekit.replay.edges import Ints, Mask, Numbers
from tracekit.replay.job_graph import JobGraph


@dataclass(frozen=True, slots=True, eq=False)
class JobSteps:
    """Counted steps of all processes, by process and time: number (-1: none), and the instants of begin and end.

    `work[first_work:last_work]` are the ends of the ops that a step launched, `work[earlier_work:first_work]` of those before.
    """

    process: Ints
    number: Ints
    begin: Numbers
    end: Numbers
    work: Numbers
    earlier_work: Ints
    first_work: Ints
    last_work: Ints

    def __len__(self) -> int:
        """Count the steps of all processes."""
        return len(self.process)


def list_job_steps(job: JobGraph, counts: Callable[[int, int | None], bool] | None = None) -> JobSteps:
    """List the steps of all processes for which `counts(process, number)` holds (all without it), in order of time."""
    process, number, begin, end = [], [], [], []
    works, low, first, last, count = [], [], [], [], 0
    for place, graph in enumerate(job.processes):
        steps = graph.steps
        numbers = np.where(steps.number.missing, -1, steps.number.values)
        chosen: Mask = np.ones(len(numbers), np.bool_)
        if counts is not None:
            chosen[:] = [counts(place, None if value < 0 else value) for value in numbers.tolist()]
        rows = np.flatnonzero(chosen)
        rows = rows[np.argsort(graph.time[steps.begin[rows]], kind="stable")]
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
    columns = [np.concatenate(column) if column else np.empty(0, np.int64) for column in (process, number, begin, end)]
    ranges = [np.concatenate(column) if column else np.empty(0, np.int64) for column in (low, first, last)]
    work = np.concatenate(works) if works else np.empty(0, np.int32)
    return JobSteps(columns[0], columns[1], columns[2].astype(np.int32), columns[3].astype(np.int32), work, *ranges)


def _list_launched_work(job: JobGraph, process: int) -> tuple[Numbers, Ints]:
    """List the launched ops of a process by launch: (instants of their ends, times of their launches)."""
    graph = job.processes[process]
    launched = np.flatnonzero(graph.ops.is_launched)
    launched = launched[np.argsort(graph.ops.launch_ns[launched], kind="stable")]
    ends = job.first[process] + graph.host_count + 2 * launched + 1
    return ends.astype(np.int32), graph.ops.launch_ns[launched]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Mean step in ns: from the begin of the first step to the end of the last, per step, and over processes.

    `by_process` has the mean of each process with steps.
    """

    mean_ns: float
    by_process: dict[int, float]


def measure_step_times(steps: JobSteps, time: Ints) -> StepTimes:
    """Measure the steps at these times of the instants: from the completion of one step to that of the next."""
    by_process = {}
    for process in np.unique(steps.process).tolist():
        rows = np.flatnonzero(steps.process == process)
        end = find_completion(steps, time, rows)
        by_process[process] = (int(end.max()) - int(_find_begin(steps, time, rows[0]))) / len(rows)
    mean = sum(by_process.values()) / len(by_process) if by_process else 0.0
    return StepTimes(mean, by_process)


def find_completion(steps: JobSteps, time: Ints, rows: Ints) -> Ints:
    """Find when steps are complete: the host has left them, and the ops launched until then have ended."""
    done = time[steps.end[rows]]
    for place, row in enumerate(rows.tolist()):
        launched = steps.work[steps.first_work[row] : steps.last_work[row]]
        if len(launched):
            done[place] = max(int(done[place]), int(time[launched].max()))
    return done


def _find_begin(steps: JobSteps, time: Ints, row: int) -> int:
    """Find when a step begins: with its mark, or when the work launched before it has ended, if that is later."""
    begin = int(time[steps.begin[row]])
    earlier = steps.work[steps.earlier_work[row] : steps.first_work[row]]
    return max(begin, int(time[earlier].max())) if len(earlier) else begin
