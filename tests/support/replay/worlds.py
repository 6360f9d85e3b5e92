"""Simulated worlds that are not max-plus: what one kernel or transfer takes depends on what else happens then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from jobsim.faults import job_of
from replay.simulations import Simulation, simulate_job

from tracekit.replay import predict
from tracekit.replay.contention import measure_contention

WORLDS: dict[str, dict[str, Any]] = {
    "contention": {"slowdown": 0.6},
    "rising clock": {"rising_clock": 0.3},
    "jitter": {"jitter_ns": 60_000},
    "all three": {"slowdown": 0.3, "rising_clock": 0.15, "jitter_ns": 40_000},
}
"""Settings of the job in each world."""


class WorldErrors(NamedTuple):
    """Errors of a predicted step as shares of the recorded one: with contention as measured, and without it.

    `factor` is what was measured, None if nothing was.
    """

    step: float
    without: float
    factor: float | None


def simulate_in_world(kind: str, world: str, seed: int = 0) -> Simulation:
    """Simulate a job with a kind of fault in a world."""
    return simulate_job(replace(job_of(kind, "small", seed), **WORLDS[world], _behaviours={}))


def measure_world_errors(kind: str, world: str, seed: int = 0) -> WorldErrors:
    """Measure the errors of the predicted step without the faults of a kind."""
    simulation = simulate_in_world(kind, world, seed)
    step, true = simulation.truth["step_ns"], simulation.truth["step_ns_without"]
    measured = measure_contention(simulation.graph)
    predicted, without = simulation.predict(), _predict_without_contention(simulation)
    return WorldErrors(abs(predicted - true) / step, abs(without - true) / step, measured and measured.factor)


def _predict_without_contention(simulation: Simulation) -> float:
    measure = predict.measure_contention
    predict.measure_contention = lambda job: None
    try:
        return simulation.predict()
    finally:
        predict.measure_contention = measure
