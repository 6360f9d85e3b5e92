"""Real runs of gloo on a CPU with one fault planted in each (`examples/make_gloo_faults.py`): who is named, and who is not."""

import json
from functools import cache
from pathlib import Path
from statistics import mean, median

import pytest

from tracekit.pipeline.options import Options
from tracekit.pipeline.run import analyze_uncached

RUNS = Path(__file__).parent / "data" / "gloo_faults"


@cache
def findings(fault):
    """All that is found in a run, most recoverable first."""
    report = analyze_uncached(RUNS / fault, Options(jobs=1, cache=False)).report
    return report.findings


def late(fault):
    """What R09 says."""
    return [finding for finding in findings(fault) if finding.rule == "straggler"]


def mean_ns(fault, rank, stage):
    """How long a rank is in a stage, mean over steps, by the clock of the run itself."""
    steps = json.loads((RUNS / fault / "truth.json").read_text())["ranks"][rank]
    return sum(step[stage] for step in steps) / len(steps)


@pytest.mark.parametrize("fault", ["clean", "contention_clean", "rotating"])
def test_nobody_is_late_where_nobody_is(fault):
    """In `rotating` all are late in turn."""
    assert late(fault) == []


@pytest.mark.parametrize("fault", ["clean", "contention_clean"])
def test_what_else_is_said_of_a_clean_run_is_true_by_its_own_clock(fault):
    """Steps of so small a run on shared cores do differ, and its weight sync does take long: both are said, and no more."""
    said = {finding.rule: finding for finding in findings(fault) if finding.cost_ns}
    ranks = json.loads((RUNS / fault / "truth.json").read_text())["ranks"]
    walls = [max(step["step_ns"] for step in of_step) for of_step in zip(*ranks, strict=True)]
    variance = {metric.name: metric.value for metric in said["step-variance"].evidence}
    assert variance["max_over_median"] == pytest.approx(max(walls) / median(walls), rel=0.02)
    syncs = [step["update_weights"] for of_rank in ranks for step in of_rank]
    assert 0 < said["weight-sync"].cost_ns <= mean(syncs)
    assert said.keys() <= {"step-variance", "weight-sync", "rank-imbalance"}


def test_ranks_that_take_turns_are_told_as_such():
    first = findings("rotating")[0]
    assert first.rule == "rank-imbalance"
    assert "with a changing slowest rank" in first.claim


def test_a_rank_that_collects_garbage_is_named_first():
    """Nothing of the collection is recorded: the pause is told, and not what it is."""
    first = findings("gc")[0]
    assert (first.rule, [place.rank for place in first.places]) == ("straggler", [2])
    assert "mostly in update_actor: no host activity is recorded" in first.claim
    # What the stage takes longer than in the clean run, by the clock of the run itself.
    longer_ns = mean_ns("gc", 0, "update_actor") - mean_ns("clean", 0, "update_actor")
    assert first.cost_ns == pytest.approx(longer_ns, rel=0.15)


def test_the_loader_of_one_rank_is_named_with_the_rank():
    """120 ms a batch on rank 1; the others wait for it in `adv`."""
    first = findings("loader_one_rank")[0]
    assert first.rule == "data-loader-wait"
    assert "on rank 1" in first.claim
    assert 110e6 < first.cost_ns < 160e6
    assert [(f.places[0].rank, f.severity) for f in late("loader_one_rank")] == [(1, "info")]


@pytest.mark.parametrize(
    ("fault", "rule", "planted_ns"),
    [
        ("loader_one_rank", "data-loader-wait", 120e6),
        ("rotating", "rank-imbalance", 120e6),
        ("one_pause", "straggler", 100e6),
    ],
)
def test_a_fix_saves_what_was_planted(fault, rule, planted_ns):
    """The loader's 128 sleeps a step last longer than asked for."""
    (first,) = [finding for finding in findings(fault) if finding.rank == 1]
    assert first.rule == rule
    assert first.saving.alone_ns == pytest.approx(planted_ns, rel=0.06)


def test_one_pause_is_told_with_its_rank_step_and_length():
    """Rank 3 sleeps for 400 ms in the third of four steps: 100 ms a step."""
    (pause,) = late("one_pause")
    assert pause.claim.startswith("a pause of rank 3 keeps the others waiting: ")
    assert "in step 3, mostly in ref" in pause.claim
    assert pause.cost_ns == pytest.approx(100e6, rel=0.05)
    assert mean_ns("one_pause", 3, "ref") == pytest.approx(100e6, rel=0.05)


def test_a_rank_whose_core_is_shared_is_named_and_not_said_to_have_more_work():
    """Four busy processes on the core of rank 1."""
    first = findings("contention")[0]
    assert (first.rule, [place.rank for place in first.places]) == ("straggler", [1])
    assert "more work" not in first.claim
