"""Logs of RL runs with known truth (`tests/data/cases/rl_runs`): what one log, or two, answer without a profile."""

import math
from functools import cache
from pathlib import Path

import pytest
from command_line import invoke

from tracekit.pipeline.comparing import compare_paths
from tracekit.pipeline.options import Options
from tracekit.pipeline.run import analyze_uncached

RUNS = Path(__file__).parents[1] / "data" / "cases" / "rl_runs"


@cache
def report_of(name):
    return analyze_uncached(RUNS / name, Options(jobs=1)).report


def rules_of(name):
    return [finding.rule for finding in report_of(name).findings]


def evidence_of(name, rule):
    (found,) = [finding for finding in report_of(name).findings if finding.rule == rule]
    return {metric.name: metric.value for metric in found.evidence}


def stages_of(name):
    """The rows of the first table by stage."""
    sheet = report_of(name).overview
    names = [heading.name for heading in sheet.headings]
    return {row[names.index("stage")]: dict(zip(names, row, strict=True)) for row in sheet.rows}


def test_a_trainer_that_waits_for_samples():
    """Wait 52.7 % of the step, 24 GPUs, and nothing else."""
    assert "read as a driver's log: 24 steps of verl fully async, 24 GPUs" in report_of("01_trainer_wait").identity
    assert rules_of("01_trainer_wait") == ["trainer-wait"]
    found = evidence_of("01_trainer_wait", "trainer-wait")
    assert found["wait_ratio"] == pytest.approx(0.527, abs=0.01)
    assert found["rollouter_idle_ratio"] == pytest.approx(0.018, abs=0.002)
    assert stages_of("01_trainer_wait")["gen"]["how"] == "the trainer waits for samples"


def test_a_price_of_gpu_hours_is_the_cost_of_stages_and_findings():
    """24 GPUs wait for 58.8 s in each of 24 steps: 9.4 GPU-hours, at 2.5 each."""
    report = analyze_uncached(RUNS / "01_trainer_wait", Options(jobs=1, gpu_hour_price=2.5)).report
    evidence = {metric.name: metric.value for metric in report.findings[0].evidence}
    assert evidence["gpu_hours"] == pytest.approx(58.8 * 24 * 24 / 3600, abs=0.02)
    assert evidence["price"] == pytest.approx(2.5 * evidence["gpu_hours"])
    result = invoke("analyze", RUNS / "01_trainer_wait", "--gpu-hour-price", "2.5")
    assert result.exit_code == 0
    assert "cost" in result.stdout
    assert invoke("analyze", RUNS / "01_trainer_wait", "--gpu-hour-price", "0").exit_code == 2


def test_host_memory_that_grows():
    """4.6 GiB per step with a noise of 1.2, in the quoted numbers of a console."""
    assert rules_of("02_host_ram_growth") == ["host-memory-growth"]
    found = evidence_of("02_host_ram_growth", "host-memory-growth")
    assert found["growth_bytes"] / 2**30 == pytest.approx(4.6, rel=0.03)


def test_validation_and_checkpoints_are_amortized_with_their_period():
    """82 s every 5 steps between steps are 8.0 % of the wall time, 45 s every 10 steps in them 2.2 %; no spike."""
    assert rules_of("04_validation_every_5") == ["logged-chores"]
    found = evidence_of("04_validation_every_5", "logged-chores")
    assert (found["wall_ratio"], found["period_steps"]) == (pytest.approx(0.080, abs=0.001), 5)
    stages = stages_of("04_validation_every_5")
    assert stages["save"]["share_ratio"] == pytest.approx(0.022, abs=0.001)
    assert (stages["test"]["how"], stages["save"]["how"]) == ("every 5 steps, between steps", "every 10 steps")


def test_a_tail_of_generation_and_tools():
    """Generation 81 % of the step, tail 0.89; in odd steps the slowest sample is in tools for 59 %."""
    assert rules_of("09_generation_tail") == ["generation-tail", "tool-tail"]
    tail, tool = (evidence_of("09_generation_tail", rule) for rule in ("generation-tail", "tool-tail"))
    assert tail["tail_ratio"] == pytest.approx(0.89, abs=0.01)
    assert tail["generation_ratio"] == pytest.approx(0.81, abs=0.01)
    assert tool["tool_ratio"] == pytest.approx(0.59, abs=0.01)


@pytest.mark.parametrize("name", ["10_balanced_quiet", "03_length_drift/before", "03_length_drift/after_same_code"])
def test_runs_without_a_fault_have_no_finding(name):
    assert rules_of(name) == []


def test_other_schedules_are_bounds_with_their_assumptions():
    """Generation of 368 s of 452.5 s dominates: no claim of overlap; at p95, 3.0 times the mean, it takes 27 % as long."""
    sheet = next(s for s in report_of("09_generation_tail").section("run-log").sheets if s.name == "schedules")
    rows = {row[0]: row[1:] for row in sheet.rows}
    for schedule in ("one step off, on separate GPUs", "fully async, on separate GPUs"):
        step_ns, change, assumption = rows[schedule]
        assert (step_ns, change) == (None, None)
        assert "no claim: generation is 81 % of the step" in assumption
    step_ns, change, assumption = rows["generation tail cut at p95"]
    cut = 452.5 - 368.0 * (1 - math.log(20) * 1_500 / 16_384)
    assert step_ns / 1e9 == pytest.approx(cut, rel=0.02)
    assert change == pytest.approx(cut / 452.5 - 1, abs=0.02)
    assert "answers end at 4,494 tokens" in assumption
    step_ns, _, assumption = rows["weight sync in the background"]
    assert step_ns / 1e9 == pytest.approx(452.5 - 5.5, rel=0.01)
    assert "no stage gets slower meanwhile" in assumption
    # The trainer of an async run already generates meanwhile.
    assert not [s for s in report_of("01_trainer_wait").section("run-log").sheets if s.name == "schedules"]


@pytest.mark.parametrize("name", ["01_trainer_wait", "04_validation_every_5", "09_generation_tail"])
def test_the_stages_of_the_first_table_add_up_to_the_wall_time(name):
    stages = stages_of(name)
    wall = stages.pop("(step, wall)")["mean_ns"]
    assert sum(row["mean_ns"] for row in stages.values()) == pytest.approx(wall, abs=len(stages))


def lengths_of(after):
    base, opt = RUNS / "03_length_drift" / "before", RUNS / "03_length_drift" / after
    comparison = compare_paths([base], [opt], Options(jobs=1)).comparison
    return comparison, {change.stage: change for change in comparison.lengths.changes}


def test_the_same_code_is_not_slower_because_answers_are_longer():
    """33.6 % slower raw, 0 % at equal length; the lengths hardly overlap, so there is no verdict."""
    comparison, changes = lengths_of("after_same_code")
    step = changes[None]
    assert step.raw == pytest.approx(0.336, abs=0.01)
    assert step.change == pytest.approx(0.0, abs=0.005)
    assert comparison.lengths.overlap <= 0.05
    assert (step.word, comparison.verdict) == ("inconclusive", "not comparable")


def test_faster_training_is_seen_at_equal_length():
    """12 % faster training per token: the step is 20 % longer raw, and 4.4 % shorter at equal length."""
    comparison, changes = lengths_of("after_faster")
    step = changes[None]
    assert (step.raw, step.change) == (pytest.approx(0.205, abs=0.01), pytest.approx(-0.044, abs=0.004))
    assert step.low <= -0.044 <= step.high
    assert (step.word, step.note) == ("improvement", "by extrapolation")
    assert changes["update_actor"].change == pytest.approx(-0.12, abs=0.005)
    assert changes["gen"].word == "no change"
    # One run per side: the verdict of the comparison allows for noise between runs.
    assert comparison.headline.ratio == pytest.approx(1 / (1 - 0.044), abs=0.005)
    assert comparison.headline.reason == "one run per side"


def test_a_log_alone_exits_with_0_and_names_its_trainer():
    result = invoke("analyze", RUNS / "01_trainer_wait" / "fully_async.jsonl")
    assert result.exit_code == 0
    assert "24 steps of verl fully async, 24 GPUs" in result.stdout


def test_whatif_of_a_log_names_the_command_with_its_bounds():
    result = invoke("whatif", RUNS / "09_generation_tail")
    assert result.exit_code == 2
    assert "tracekit analyze PATH -v" in " ".join(result.stderr.split())
