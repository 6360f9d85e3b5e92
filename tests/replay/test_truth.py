"""Predictions beside the truth: a simulated job replayed without its fault, and the same job simulated without it.

The simulator shares no code with the replay. The change states the parameter of the fault: this measures the graph, and
not what a rule guesses of the fault.
"""

import numpy as np
import pytest
from jobsim.faults import ALL_KINDS
from jobsim.job import Fault, Job
from replay.remedies import REMEDIES
from replay.simulations import measure_errors, simulate_job

FAST = (
    "straggler_clock", "slow_link", "pageable_copies", "silent_pause", "item_in_loop", "gc_random_rank",
    "late_loader_worker", "second_compilation", "exposed_communication", "nan_checks", "two_slow_ranks",
)  # fmt: skip

UNKNOWN_WAITS = {"eager_decode": 0.4}
"""Kinds with a larger error of the gain, and its limit.

`eager_decode`: the host is late, so none of its event waits had to wait. The replay assumes that each waits for the copy
just before it, as the one wait seen, that after the last iteration, does; the engine waits for the copy before that.
"""


def test_every_kind_of_fault_has_a_remedy():
    """Faults of `three_at_once` are those of three other kinds; `two_slow_ranks` names its two."""
    assert set(ALL_KINDS) - {"three_at_once", "two_slow_ranks"} == set(REMEDIES) - {
        "clock_of_one_of_two", "copies_of_one_of_two",
    }  # fmt: skip


@pytest.mark.parametrize("kind", FAST)
def test_the_step_without_a_fault_is_predicted(kind):
    errors = measure_errors(kind, 0)
    assert errors.step <= 0.002
    assert errors.gain is not None
    assert errors.gain <= 0.02


def test_what_costs_no_counted_step_brings_nothing():
    """Code is loaded in the first step, which does not count."""
    errors = measure_errors("first_calls", 0)
    assert (errors.step, errors.gain) == (pytest.approx(0, abs=1e-5), None)


@pytest.mark.slow
def test_the_steps_without_faults_are_predicted():
    """All kinds: the limits that the design demands of the distribution; `tests/benchmarks/replay_faults.py` draws more jobs."""
    errors = {kind: measure_errors(kind, 0) for kind in ALL_KINDS}
    steps = np.array([error.step for error in errors.values()])
    gains = {kind: error.gain for kind, error in errors.items() if error.gain is not None}
    shares = np.array([*gains.values()])
    assert np.median(steps) <= 0.002
    assert np.quantile(steps, 0.95) <= 0.01
    assert steps.max() <= 0.03
    assert len(shares) >= 60
    assert np.median(shares) <= 0.01
    assert np.quantile(shares, 0.95) <= 0.1
    assert {kind: gain for kind, gain in gains.items() if gain > UNKNOWN_WAITS.get(kind, 0.25)} == {}


# Faults behind others: to undo the smaller one brings nothing

CLOCK = {"clock": 1.3}
BEHIND = {
    "a lower clock behind a lower one": (
        Fault("straggler_clock", CLOCK, (0,)), Fault("straggler_clock", {"clock": 1.12}, (1,)),
    ),
    "casts behind a lower clock": (
        Fault("straggler_clock", CLOCK, (0,)),
        Fault("casts", {"casts": 1}, (2,), stage="update_actor"),
    ),
    "a late start behind a later one": (
        Fault("late_start", {"late_ns": 9_000_000}, (1,)), Fault("late_start", {"late_ns": 4_000_000}, (3,)),
    ),
    "a pause behind a longer one": (
        Fault("silent_pause", {"pauses": (9_000_000,)}, (1,), stage="update_actor"),
        Fault("silent_pause", {"pauses": (5_000_000,)}, (2,), stage="update_actor"),
    ),
    "more tokens behind a lower clock": (
        Fault("straggler_clock", CLOCK, (0,)), Fault("more_tokens", {"tokens": 1.1}, (1,)),
    ),
    "a longer rollout behind a longer one": (
        Fault("rollout_tail", {"tail": 15}, (0,), stage="gen"), Fault("rollout_tail", {"tail": 8}, (3,), stage="gen"),
    ),
    "rewards behind later ones": (
        Fault("reward_on_first_rank", {"reward_ns": 9_000_000}, (0,), stage="reward"),
        Fault("reward_on_first_rank", {"reward_ns": 6_000_000}, (2,), stage="reward"),
    ),
    "garbage behind a lower clock": (
        Fault("straggler_clock", CLOCK, (0,)),
        Fault("gc_one_rank", {"gc_at": ("ref",), "gc_ns": 1_500_000}, (3,), stage="ref"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BEHIND)
def test_a_fault_behind_another_brings_nothing(name):
    front, behind = BEHIND[name]
    simulation = simulate_job(Job(name, reward="reward" in front.kind, faults=(front, behind)))
    step, costs = simulation.truth["step_ns"], [fault["cost_ns"] for fault in simulation.truth["faults"]]
    assert abs(costs[1]) <= 0.001 * step, "the simulated fault is behind the other"
    assert abs(simulation.recorded_ns - simulation.predict(behind)) <= 0.005 * step
    together = simulation.truth["step_ns_without"]
    assert simulation.predict(front, behind) == pytest.approx(together, rel=0.002)
    assert simulation.predict(front) == pytest.approx(step - costs[0], rel=0.002)
