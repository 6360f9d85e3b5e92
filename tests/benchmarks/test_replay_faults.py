"""The fixes that findings propose, in the simulation: worked by hand, or equal to the same job without its fault."""

import json
from dataclasses import replace

import pytest
from benchmarks.replay_faults import Outcome, make_table
from jobsim.engine import run
from jobsim.faults import job_of
from jobsim.job import Fault, Job
from jobsim.proposals import read_proposal
from jobsim.truth import counted, mean_step

MS = 1_000_000
QUIET = {"noise": 0.0, "host_noise": 0.0, "step_spread": 0.0, "rank_spread": 0.0}


def step_of(job, *changes):
    """The mean step of a job with these fixes."""
    proposal = read_proposal([json.dumps(change) for change in changes])
    assert proposal is not None
    return mean_step(run(replace(job, proposal=proposal)), counted(job))


def quiet_job(change, **settings):
    return Job("planted", ranks=2, steps=2, faults=(Fault("planted", change),), **QUIET, **settings)


@pytest.mark.parametrize(
    ("where", "saved"),
    [
        ({"at_least_us": 1_000}, 14 * MS),
        ({"at_least_us": 6_000}, 8 * MS),  # the other pause lasts 6 ms less 1 ns
        ({"at_least_us": 1_000, "stage": "update_actor"}, 14 * MS),
        ({"at_least_us": 1_000, "stage": "gen"}, 0),
    ],
)
def test_a_silence_that_is_long_enough_is_gone(where, saved):
    job = quiet_job({"pauses": (8 * MS, 6 * MS - 1)})
    change = {"do": "set", "on": "host", "silent": True, "to_us": 0, **where}
    assert step_of(job) - step_of(job, change) == pytest.approx(saved, abs=2_000)


def test_a_call_that_does_not_wait_leaves_the_host_its_own_work():
    """24 checks for NaN a step: without the waits the host still launches their kernels."""
    job = job_of("nan_checks")
    slow, fast = step_of(job), mean_step(run(job.without(*job.faults)), counted(job))
    freed = step_of(job, {"do": "unwait", "stage": "update_actor", "by": "^aten::item$"})
    elsewhere = step_of(job, {"do": "unwait", "stage": "gen", "by": "^aten::item$"})
    other_call = step_of(job, {"do": "unwait", "stage": "update_actor", "row": "^cudaDeviceSynchronize$"})
    assert fast < freed < slow == elsewhere == other_call


def test_a_graph_takes_the_host_time_of_launches():
    """As the same kernels in a graph that the job launches itself, and without the host time of the other ops of the stage."""
    job = quiet_job({"tiny_eager": True}, tiny=300, tokens=512)
    graphs = mean_step(run(job.without(*job.faults)), counted(job))
    saved = step_of(job) - step_of(job, {"do": "graph", "stage": "adv"})
    assert step_of(job) - graphs < saved < step_of(job) - graphs + 0.3 * MS


def test_overlap_that_is_proposed_is_that_of_a_job_that_overlaps():
    job = job_of("exposed_communication")
    slow, fast = step_of(job), mean_step(run(job.without(*job.faults)), counted(job))
    stages = ("old_log_prob", "ref", "update_actor")
    changes = [{"do": "prefetch", "on": "collective", "stage": stage, "op": "AllGather"} for stage in stages]
    changes.append({"do": "hide", "on": "collective", "stage": "update_actor", "op": "ReduceScatter"})
    assert slow - step_of(job, *changes) == pytest.approx(slow - fast, rel=0.01)
    assert step_of(job, *changes) < step_of(job, *changes[:3]) < step_of(job, changes[0]) < slow


def test_gradients_that_accumulate_are_reduced_once():
    job = job_of("frequent_reduction")
    fast = mean_step(run(job.without(*job.faults)), counted(job))
    change = {"do": "accumulate", "on": "collective", "stage": "update_actor", "op": "ReduceScatter"}
    assert step_of(job, change) == fast < step_of(job)


def test_requests_of_a_tail_take_their_share_of_full_batches():
    """12 iterations of 4 requests, 0.6 ms each, are one of at least 57 requests and 0.9 ms."""
    job = quiet_job({"tail": 12})
    change = {"do": "scale", "on": "range", "requests_below": 32.0, "factor": 0.1}
    saved = step_of(job) - step_of(job, change)
    assert saved == pytest.approx(12 * 0.6 * MS - 0.9 * MS, rel=0.05)
    assert step_of(job, change | {"requests_below": 4.0}) == step_of(job)


def test_weights_that_are_sent_at_once_are_as_fast_as_in_few_buckets():
    job = job_of("slow_weight_sync")
    slow, fast = step_of(job), mean_step(run(job.without(*job.faults)), counted(job))
    change = {"do": "scale", "on": "host", "stage": "update_weights", "factor": 0.1}
    assert slow - step_of(job, change) == pytest.approx(slow - fast, rel=0.05)


@pytest.mark.parametrize(
    "change",
    [
        {"do": "equalise", "on": "device", "rank": [1]},
        {"do": "scale", "on": "host", "stage": "gen", "factor": 0.5},
        {"do": "set", "on": "host", "stage": "gen", "silent": True, "to_us": 5},
        {"do": "set", "on": "host", "silent": True, "to_us": 0, "rank": [1]},
        {"do": "unwait", "stage": "gen", "range": "micro"},
        {"do": "hide", "on": "collective", "op": "AllReduce", "by": "AccumulateGrad"},
        {"do": "graph", "by": "."},
    ],
)
def test_a_fix_that_the_simulation_cannot_carry_out_is_not_read(change):
    known = {"do": "graph", "stage": "adv"}
    assert read_proposal([json.dumps(known)]) is not None
    assert read_proposal([json.dumps(each) for each in (known, change)]) is None


def test_the_table_has_the_largest_errors_and_the_least_reach():
    outcomes = [
        Outcome("slow_cores", 0.03, 0.01, 0.9, 0.1, 0.04, "launch-bound"),
        Outcome("slow_cores", 0.05, 0.02, 0.8, 0.2, 0.06, "launch-bound"),
        Outcome("drift", 0.04, 0.03, 0.1, None, None, "drift"),
    ]
    lines = [*make_table(outcomes)]
    assert lines[4].split() == ["slow_cores", "4.0%", "2.0%", "90.0%", "10.0%", "6.0%", "launch-bound"]
    assert lines[5].split() == ["drift", "4.0%", "3.0%", "10.0%", "—", "—", "drift"]
    assert lines[-2].endswith("3 jobs, median 80.0%, p95 89.0%, largest 90.0%, within 25 %: 33.3%")
    assert lines[-1].endswith("3 jobs, median 6.0%, p95 9.6%, largest 10.0%, within 25 %: 100.0%")
