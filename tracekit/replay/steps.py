"""Steps of a graph: when each begins and ends on each process, recorded or after a change."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tracekit.model.records import dataclass
from tracekit.replay.edges import Ints, Mask, Numbers
from tracekit.replay.job_graph import JobGraph


@dataclass(frozen=True, slots=True, eq=False)
class JobSteps:
    """Counted steps of all processes, by process and time: number (-1: none), and the instants of begin and end."""

    process: Ints
    number: Ints
    begin: Numbers
    end: Numbers

    def __len__(self) -> int:
        """Count the steps of all processes."""
        return len(self.process)


def list_job_steps(job: JobGraph, counts: Callable[[int, int | None], bool] | None = None) -> JobSteps:
    """List the steps of all processes for which `counts(process, number)` holds (all without it), in order of time."""
    process, number, begin, end = [], [], [], []
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
    columns = [np.concatenate(column) if column else np.empty(0, np.int64) for column in (process, number, begin, end)]
    return JobSteps(columns[0], columns[1], columns[2].astype(np.int32), columns[3].astype(np.int32))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Mean step in ns: from the begin of the first step to the end of the last, per step, and over processes.

    `by_process` has the mean of each process with steps.
    """

    mean_ns: float
    by_process: dict[int, float]


def measure_step_times(steps: JobSteps, time: Ints) -> StepTimes:
    """Measure the steps at these times of the instants."""
    by_process = {}
    for process in np.unique(steps.process).tolist():
        rows = np.flatnonzero(steps.process == process)
        length = int(time[steps.end[rows]].max() - time[steps.begin[rows]].min())
        by_process[process] = length / len(rows)
    mean = sum(by_process.values()) / len(by_process) if by_process else 0.0
    return StepTimes(mean, by_process)
