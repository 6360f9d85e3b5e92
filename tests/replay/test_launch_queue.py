"""Simulated jobs whose host waits for room in the launch queue: the step with a faster device lets the host go on earlier."""

import pytest
from jobsim.job import Fault, Job
from replay.simulations import simulate_job

from tracekit.replay import call_waits
from tracekit.replay.edges import QUEUE

CLOCK = Fault("straggler_clock", {"clock": 1.6}, stage="adv")
LAUNCHES = 3_000
"""One after the other, in 11 µs each, of kernels that take 30 µs at full clock: the host is ahead until the queue is full."""


def simulate_full_queue(depth):
    job = Job(
        "full queue", ranks=2, steps=3, tiny=LAUNCHES, tiny_ns=30_000, eager_tiny=True, queue_depth=depth, faults=(CLOCK,)
    )  # fmt: skip
    return simulate_job(job)


def measure_error(simulation):
    """The error of the step without the fault, as a share of the recorded step."""
    return abs(simulation.predict() - simulation.truth["step_ns_without"]) / simulation.truth["step_ns"]


@pytest.mark.parametrize("depth", [1024, 300])
def test_the_step_is_predicted_for_a_host_that_waits_for_the_launch_queue(depth):
    simulation = simulate_full_queue(depth)
    assert simulation.truth["all_faults_ns"] > 0.3 * simulation.truth["step_ns"]
    waits = [graph.waits for graph in simulation.graph.processes]
    assert [(each.queue, each.queue_is_measured) for each in waits] == [(depth, True)] * 2
    deciding = simulation.graph.settled.timing.decider
    assert (simulation.graph.edges.kind[deciding[deciding >= 0]] == QUEUE).sum() > LAUNCHES
    assert measure_error(simulation) <= 0.001


@pytest.mark.parametrize(("depth", "error"), [(1024, 0.01), (300, 0.1)])
def test_without_the_rule_of_the_launch_queue_the_step_is_wrong(monkeypatch, depth, error):
    monkeypatch.setattr(call_waits, "_add_launch_queue", lambda *_: None)
    assert measure_error(simulate_full_queue(depth)) > error
