"""Predicted steps: the graph timed again with changes, one after the other and each alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracekit.model.records import dataclass
from tracekit.replay.apply import Touched, Weights, apply_change
from tracekit.replay.changes import ChangeError, RunChange
from tracekit.replay.edges import Ints, Numbers
from tracekit.replay.job_graph import JobGraph
from tracekit.replay.paths import Timing, order_instants, time_instants
from tracekit.replay.selection import JobIndex
from tracekit.replay.steps import JobSteps, StepTimes, measure_step_times


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """Effect of a change: the step after it and all changes before it, and the step with this change alone, ns.

    `weight` and `timing` are those of the graph with all changes so far; `added` has the source and target of added edges.
    """

    change: RunChange
    touched: Touched
    step: StepTimes
    alone_ns: float
    timing: Timing
    weight: Ints
    added: tuple[Numbers, Numbers]


def time_changed_graph(job: JobGraph, weights: Weights) -> Timing:
    """Time the graph with changed weights. Raises `ChangeError` if added edges contradict the order of the run."""
    edges = job.edges
    if not weights.added:
        return time_instants(job.settled.ordering, edges.source, np.ascontiguousarray(weights.weight), job.time)
    added = _join_added(weights)
    source, target = np.concatenate((edges.source, added[0])), np.concatenate((edges.target, added[1]))
    weight = np.concatenate((weights.weight, added[2]))
    ordering = order_instants(len(job.time), source, target)
    if ordering.acyclic < len(job.time):
        raise ChangeError("the changed order of work contradicts itself", "select less, for example one range")
    return time_instants(ordering, source, weight, job.time)


def _join_added(weights: Weights) -> tuple[Numbers, Numbers, Ints]:
    """Concatenate the edges that changes added: (source, target, weight)."""
    if not weights.added:
        return np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int64)
    source, target, weight = (np.concatenate(column) for column in zip(*weights.added, strict=True))
    return source.astype(np.int32), target.astype(np.int32), weight


def predict_changes(job: JobGraph, steps: JobSteps, changes: Sequence[RunChange]) -> list[Prediction]:
    """Predict the step with the first change, with the first two, and so on. Raises `ChangeError`."""
    index = JobIndex(job)
    so_far = Weights(job.edges.weight.copy(), [])
    predictions = []
    for place, change in enumerate(changes):
        touched = apply_change(index, so_far, change)
        timing = time_changed_graph(job, so_far)
        step = measure_step_times(steps, timing.time)
        alone = step.mean_ns
        if place:
            weights = Weights(job.edges.weight.copy(), [])
            apply_change(index, weights, change)
            alone = measure_step_times(steps, time_changed_graph(job, weights).time).mean_ns
        added = _join_added(so_far)[:2]
        predictions.append(Prediction(change, touched, step, alone, timing, so_far.weight.copy(), added))
    return predictions
