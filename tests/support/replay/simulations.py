"""Simulated jobs, replayed with the change that undoes their faults, beside the same job simulated without them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from jobsim.faults import job_of
from jobsim.job import Fault, Job
from jobsim.truth import make
from replay.graphs import read_graphs
from replay.remedies import changes_of

from tracekit.replay.changes import RunChange, make_change
from tracekit.replay.job_graph import JobGraph, join_processes
from tracekit.replay.predict import predict_changes
from tracekit.replay.steps import JobSteps, list_job_steps, measure_step_times


class Simulation(NamedTuple):
    """A simulated job, its truth, its graph and its counted steps."""

    job: Job
    truth: dict[str, Any]
    graph: JobGraph
    steps: JobSteps

    @property
    def recorded_ns(self) -> float:
        """The recorded step."""
        return measure_step_times(self.steps, self.graph.time).mean_ns

    def predict(self, *faults: Fault) -> float:
        """The predicted step without faults (all without a choice), in ns."""
        return self.predict_changes(*changes_of(self.job, *faults))

    def predict_changes(self, *changes) -> float:
        """The predicted step with changes, in ns."""
        made = [change if isinstance(change, RunChange) else make_change(change) for change in changes]
        return predict_changes(self.graph, self.steps, made)[-1].step.mean_ns


def simulate_job(job: Job) -> Simulation:
    """Simulate a job, and read what it recorded."""
    with TemporaryDirectory() as folder:
        truth = make(job, Path(folder))
        graph = join_processes(read_graphs(Path(folder) / "profile"))
    steps = list_job_steps(graph, lambda _, number: number in truth["steps_that_count"])
    return Simulation(job, truth, graph, steps)


@cache
def simulate_clean_job() -> Simulation:
    """A job without faults, for changes that a test invents; kept as it is never changed."""
    return simulate_job(Job("clean"))


class Errors(NamedTuple):
    """Errors of a prediction, as shares: of the step, and of the true gain (None below 1 % of the step)."""

    step: float
    gain: float | None


def measure_errors(kind: str, seed: int) -> Errors:
    """Errors of the predicted step without the faults of a kind."""
    simulation = simulate_job(job_of(kind, "small", seed))
    step, true = simulation.truth["step_ns"], simulation.truth["step_ns_without"]
    predicted, gain = simulation.predict(), step - true
    return Errors(abs(predicted - true) / step, abs(predicted - true) / gain if gain >= 0.01 * step else None)
