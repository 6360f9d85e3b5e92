"""The switches of simulated jobs: what each changes, and that it leaves all else as it was."""

import gzip
import json
from dataclasses import replace

import pytest
from jobsim import kineto, recorded
from jobsim.engine import run
from jobsim.faults import ALL_KINDS, job_of, job_of_several
from jobsim.job import Fault, Job
from jobsim.rank import COMPUTE, PIPE
from jobsim.switches import SWITCHES
from jobsim.truth import common_steps, make, mean_step, truth

MS = 1_000_000
SMALL = Job("small", ranks=2, steps=3)
QUIET = {"noise": 0.0, "host_noise": 0.0, "step_spread": 0.0, "rank_spread": 0.0}


def names(rank):
    return {row.name for row in rank.host_rows}


def recorded_under(switch, job=SMALL):
    chosen = SWITCHES[switch]
    return chosen.record(job, run(chosen.change(job)))


def test_stages_and_step_ranges_are_dropped_and_the_work_stays():
    whole = run(SMALL)[0]
    bare = recorded_under("no_ranges")[0]
    assert {"gen", "update_actor", "micro_batch0", "ProfilerStep#3"} <= names(whole)
    assert not {"gen", "update_actor", "micro_batch0", "ProfilerStep#3"} & names(bare)
    assert bare.device_rows == whole.device_rows
    assert "ProfilerStep#3" in names(recorded_under("no_stages")[0])
    assert "gen" in names(recorded_under("no_marks")[0])


@pytest.mark.parametrize(("switch", "marked", "kept"), [("short_rank", [3, 4], [3, 4]), ("late_rank", [4, 5], [5])])
def test_one_rank_has_a_step_less(switch, marked, kept):
    """The first step of a rank does not count, also where the others began earlier."""
    steps = sorted(rank.kept_steps for rank in recorded_under(switch))
    assert steps == sorted([[3, 4, 5], kept])
    (short,) = [rank for rank in recorded_under(switch) if len(rank.kept_steps) < 3]
    marks = sorted(name for name in names(short) if name.startswith("ProfilerStep"))
    assert marks == [f"ProfilerStep#{step}" for step in marked]


def test_a_recording_from_the_middle_of_a_step_has_no_mark_of_it_and_no_work_from_before():
    whole, half = run(SMALL)[0], recorded_under("half_step")[0]
    _, start, end = whole.steps[0]
    assert "ProfilerStep#3" not in names(half)
    assert min(call[3] for call in half.calls) >= (start + end) // 2
    launched = {call[5] for call in half.calls}
    assert {row.correlation for row in half.device_rows} <= launched


def test_a_fault_of_a_rank_that_was_not_recorded_is_no_cost():
    """Pauses of 8 ms on rank 0 and 5 ms on rank 1, in different steps: only that of a recorded rank can be found."""
    faults = [Fault("pause", {"pauses": (ns,)}, (rank,), (rank + 4,)) for rank, ns in ((0, 8 * MS), (1, 5 * MS))]
    job = Job("two", ranks=2, steps=3, faults=tuple(faults), **QUIET)
    ranks = run(job)
    costs = [truth(job, ranks, None, kept)["all_faults_ns"] for kept in (ranks, ranks[:1], ranks[1:], [])]
    assert costs == pytest.approx([6.5 * MS, 4 * MS, 2.5 * MS, 0], abs=0.02 * MS)


def test_a_missing_rank_is_a_healthy_one():
    for seed in range(6):
        job = job_of("straggler_clock", "small", seed)
        left = {rank.rank for rank in recorded.drop_rank(job, run(job))}
        assert len(left) == 3
        assert {*job.faults[0].ranks} <= left


def test_a_cut_file_ends_within_a_late_step(tmp_path):
    figures = make(job_of("sleeping_loader"), tmp_path, "cut_file")
    (cut,) = (tmp_path / "profile").glob("*.json")
    assert len([*(tmp_path / "profile").glob("*.json.gz")]) == 3
    with pytest.raises(json.JSONDecodeError):
        json.loads(cut.read_text())
    assert cut.read_text().count('"cat": "kernel"') > 1_000
    assert figures["steps_that_count"] in ([4, 5], [4])


def test_steps_that_a_rank_lacks_do_not_count():
    job, ranks = SMALL, run(SMALL)
    assert common_steps(job, ranks, {}) == [4, 5]
    assert common_steps(job, ranks, {1: 1}) == [4]
    ranks[0].kept_steps = [3, 4]
    assert common_steps(job, ranks, {}) == [4]


def test_clocks_differ_by_host_under_skew():
    job = SWITCHES["skew_ms"].change(Job("four", ranks=4))
    skews = [kineto.skew(job, rank) for rank in range(4)]
    assert skews[0] == skews[1] == 0
    assert skews[2] == skews[3]
    assert 0 < abs(skews[2]) <= 20 * MS
    hosts = [kineto.head(rank)["host_name"] for rank in run(replace(job, steps=1, _behaviours={}))]
    assert hosts == ["simulated-host-0"] * 2 + ["simulated-host-1"] * 2


def test_names_change_and_nothing_else_does():
    whole, renamed = run(SMALL)[0], recorded_under("renamed")[0]
    assert "policy_training" in names(renamed)
    assert not names(renamed) & {"gen", "update_actor"}
    assert [row[2:] for row in renamed.device_rows] == [row[2:] for row in whole.device_rows]


@pytest.mark.parametrize("switch", [name for name, each in SWITCHES.items() if each.several == 1])
def test_every_switch_leaves_readable_traces_and_a_truth(switch, tmp_path):
    fault = Fault("sleeping_loader", {"loader_ns": 8 * MS})
    figures = make(Job("two", ranks=2, steps=4, faults=(fault,)), tmp_path, switch)
    assert figures["switch"] == switch
    assert 0.03 < figures["all_faults_ns"] / figures["step_ns"] < 0.2
    for path in (tmp_path / "profile").glob("*.json.gz"):
        assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def test_the_first_stage_of_a_pipeline_sends_and_the_second_waits():
    """Two micro-batches of four: the second stage has computed nothing until the first has done its part of one."""
    job = Job("pipe", ranks=2, steps=1, pipeline=2, **QUIET)
    first, second = run(job)
    assert {"nccl:send 0->1", "nccl:recv 0<-1"} <= names(first)
    assert {"nccl:recv 1<-0", "nccl:send 1->0"} <= names(second)
    sent, received = ([r.end for r in rank.device_rows if r.stream == PIPE] for rank in (first, second))
    assert sent == received


def test_generators_do_not_train_and_trainers_do_not_generate():
    trainer, generator = run(Job("aside", ranks=2, steps=1, async_rollout=True))
    assert "update_actor" in names(trainer)
    assert "gen" not in names(trainer)
    assert "gen" in names(generator)
    assert "update_actor" not in names(generator)
    ends = [[seen.end for seen in rank.collectives if seen.name == "broadcast"] for rank in (trainer, generator)]  # fmt: skip
    assert len(ends[0]) == len(ends[1]) == 4


def test_a_host_that_runs_ahead_waits_only_in_some_steps():
    job = SWITCHES["host_ahead"].change(Job("ahead", ranks=2, steps=6))
    (rank, _) = run(job)
    waits = [call[3] for call in rank.calls if call[1] == "cudaStreamSynchronize"]
    by_step = {step: sum(start <= at < end for at in waits) for step, start, end in rank.steps}
    assert [step for step, count in by_step.items() if count] == [3, 6]
    # The mean of a step is that of the device, not of the host.
    busy = sum(r.end - r.start for r in rank.device_rows if r.stream == COMPUTE) / 6
    assert mean_step([rank], [4, 5, 6, 7, 8]) == pytest.approx(busy, rel=0.08)


def test_compute_lasts_longer_while_a_collective_transfers():
    quiet = Job("calm", ranks=2, steps=1, **QUIET)
    calm, slowed = run(quiet)[0], run(replace(quiet, contention=0.5, _behaviours={}))[0]
    lasting = [sum(r.end - r.start for r in rank.device_rows if r.stream == COMPUTE) for rank in (calm, slowed)]  # fmt: skip
    assert 1.002 < lasting[1] / lasting[0] < 1.2


def test_a_validation_comes_every_second_step():
    ranks = run(Job("periodic", ranks=2, steps=4, validate_every=2, checkpoint_every=3))
    rows = [row for row in ranks[0].host_rows if row.name in ("testing", "save_checkpoint")]
    steps = [(row.name, step) for row in rows for step, start, end in ranks[0].steps if start <= row.start < end]
    assert steps == [("save_checkpoint", 3), ("testing", 4), ("testing", 6), ("save_checkpoint", 6)]


def test_several_faults_are_priced_by_kind():
    job = job_of_several(("sleeping_loader", "silent_pause"))
    figures = truth(job, run(job))
    loader = job.faults[0].change["loader_ns"]
    assert figures["costs"] == {"sleeping_loader": loader, "silent_pause": 8 * MS}
    assert figures["all_faults_ns"] == loader + 8 * MS


def test_faults_that_change_the_same_are_not_combined():
    assert job_of_several(("straggler_clock", "drift")) is None
    assert job_of_several(("tiny_kernels", "slow_cores")) is None


@pytest.mark.parametrize("kind", ["hot_expert", "kv_preemption", "slow_pipeline_stage", "object_broadcast", "shared_gpu"])  # fmt: skip
def test_some_of_the_newer_kinds_cost_what_is_worth_finding(kind):
    job = job_of(kind)
    figures = truth(job, run(job))
    assert 0.02 <= figures["all_faults_ns"] / figures["step_ns"] <= 0.25


def test_noise_of_worlds_does_not_depend_on_what_is_planted():
    """A pause of 8 ms costs 8 ms in noisy batches, links and clocks too."""
    fault = Fault("pause", {"pauses": (8 * MS,)})
    for change in (
        {"batch_spread": 0.1},
        {"link_noise": 0.3},
        {"wander": 0.02},
        {"loader_jitter_ns": MS},
        {"tail_spread": 3},
    ):
        job = Job("noisy", ranks=2, steps=3, faults=(fault,), **change)
        assert truth(job, run(job))["all_faults_ns"] == pytest.approx(8 * MS, abs=60_000), change


def test_every_kind_has_a_name_of_its_own():
    kinds = {kind: {fault.kind for fault in job_of(kind).faults} for kind in ALL_KINDS}
    assert all(planted == {kind} or len(planted) == 2 for kind, planted in kinds.items())
