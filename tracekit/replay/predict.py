"""Predicted steps: the graph timed again with changes, one after the other and each alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracekit.model.records import dataclass
from tracekit.replay.changes import ChangeError, RunChange
from tracekit.replay.changing.apply import Touched, apply_change, count_touched
from tracekit.replay.changing.selection import JobIndex
from tracekit.replay.contention import Contention, measure_contention, rescale_kernels
from tracekit.replay.edges import Ints, Numbers, Weights
from tracekit.replay.job_graph import JobGraph
from tracekit.replay.paths import (
    NO_ADDED,
    AddedEdges,
    Ordering,
    Timing,
    reorder_instants,
    sort_added_edges,
    time_instants,
)
from tracekit.replay.steps import JobSteps, StepTimes, measure_step_times

CONTENTION_ROUNDS = 2
"""Replays after which kernels get the length that the collectives at the same time allow."""


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """Effect of a change: the step after it and all changes before it, and the step with this change alone, ns.

    `weight` and `timing` are those of the graph with all changes so far; `added` has the source and target of added edges.
    `contention` has the measured slowdown of kernels during collectives; it changed the length of `rescaled` kernels.
    """

    change: RunChange
    touched: Touched
    step: StepTimes
    alone_ns: float
    timing: Timing
    weight: Ints
    added: tuple[Numbers, Numbers]
    contention: Contention | None = None
    rescaled: int = 0


def time_changed_graph(
    job: JobGraph, weights: Weights, contention: Contention | None, *, lists_deciders: bool = True
) -> tuple[Timing, int]:
    """Time the graph with changed weights: (times, number of kernels with another length than the changes alone give).

    With `contention`, kernels are as long as the collectives at the same time let them be, after the changes. Raises
    `ChangeError` if added edges contradict the order of the run.
    """
    ordering, added = _order_graph(job, weights)
    if ordering.acyclic < len(job.time):
        raise ChangeError("the changed order of work contradicts itself", "select less, for example one range")

    # What waited for something, and after the change waits for nothing, delays nothing: it keeps no recorded time.
    def time_edges(weight: Ints) -> Timing:
        decided = job.settled.timing.decider
        return time_instants(
            ordering, job.edges.source, weight, job.time, added, decided, lists_deciders=lists_deciders
        )

    weight = weights.weight
    timing, count = time_edges(weight), 0
    for _ in range(CONTENTION_ROUNDS if contention is not None else 0):
        assert contention is not None, "rounds need a factor"
        rescaled = rescale_kernels(job, contention, weights.weight, timing.time)
        count = int((rescaled != weights.weight).sum())
        if np.array_equal(rescaled, weight):
            break
        weight = rescaled
        timing = time_edges(weight)
    return timing, count


def _order_graph(job: JobGraph, weights: Weights) -> tuple[Ordering, AddedEdges]:
    """Order the graph with the added edges; the last order is kept for the same edges."""
    ordering, edges, added = job.settled.ordering, job.edges, join_added(weights)
    if not len(added[0]):
        return ordering, NO_ADDED
    in_order, known = sort_added_edges(*added), weights.ordered
    if known is None or not all(map(np.array_equal, known[0], added[:2])):
        known = weights.ordered = added[:2], reorder_instants(ordering, edges.source, edges.target, in_order)
    return known[1], in_order


def join_added(weights: Weights) -> tuple[Numbers, Numbers, Ints]:
    """Concatenate the edges that changes added: (source, target, weight)."""
    if not weights.added:
        return np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int64)
    source, target, weight = (np.concatenate(column) for column in zip(*weights.added, strict=True))
    return source.astype(np.int32), target.astype(np.int32), weight


def predict_changes(job: JobGraph, steps: JobSteps, changes: Sequence[RunChange]) -> list[Prediction]:
    """Predict the step with the first change, with the first two, and so on. Raises `ChangeError`."""
    index, contention = JobIndex(job), measure_contention(job)
    so_far = Weights(job.edges.weight.copy())
    predictions = []
    for place, change in enumerate(changes):
        mark = so_far.mark()
        apply_change(index, so_far, change)
        touched = count_touched(index, so_far, mark)
        timing, rescaled = time_changed_graph(job, so_far, contention)
        step = measure_step_times(steps, timing.time)
        alone = step.mean_ns
        if place:
            weights = Weights(job.edges.weight.copy())
            apply_change(index, weights, change)
            alone = measure_step_times(steps, time_changed_graph(job, weights, contention)[0].time).mean_ns
        added = join_added(so_far)[:2]
        weight = so_far.weight.copy()
        predictions.append(Prediction(change, touched, step, alone, timing, weight, added, contention, rescaled))
    return predictions
