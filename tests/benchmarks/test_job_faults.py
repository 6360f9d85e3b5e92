"""Some faults of simulated jobs come out right today, and the benchmark says so for the right reasons."""

import sys

import pytest
from benchmarks import job_faults
from benchmarks.job_expected import EXPECTED, tells
from benchmarks.job_faults import case, works, works_under
from benchmarks.job_scores import is_within, score, totals
from jobsim.clean import CLEAN
from jobsim.faults import ALL_KINDS, KINDS, job_of

from tracekit.analyses.rules import RULES

RIGHT_TODAY = ("sleeping_loader", "fp32_gemm", "unaligned_gemm", "exposed_communication", "rollout_tail")  # fmt: skip
MS = 1_000_000


def test_every_kind_has_an_expectation_of_rules_that_exist():
    planted = {fault.kind for kind in ALL_KINDS for fault in job_of(kind).faults}
    assert EXPECTED.keys() == planted
    named = {rule for each in EXPECTED.values() for rule in each.rules + each.also}
    assert named <= {rule.id for rule in RULES}


def test_the_matrix_holds_every_kind_and_every_clean_job():
    todo = [*works([], 3, ["small", "large"])]
    assert len(todo) == len(set(todo)) == 6 * len(KINDS) + len(CLEAN)
    assert [*works(["drift"], 1, ["small"])] == [("drift", "small", 0, "none")]


@pytest.mark.parametrize("kind", RIGHT_TODAY)
def test_a_fault_is_named_first_for_what_it_costs(kind):
    row = case((kind, "small", 0, "none"))
    assert row["first"], row["findings"]
    assert row["named"]
    assert is_within(row["ratio"]), row["ratio"]
    assert row["claimed"] <= 1.25


@pytest.mark.parametrize("name", ["plain", "random_tokens", "clocks_apart"])
def test_a_clean_job_is_silent(name):
    row = case((name, "clean", 0, "none"))
    assert [each for each in row["findings"] if each["severity"] != "info"] == []
    assert totals([], [row], 0.1)["silent"] == 1


def finding(rule, ns, words="", severity="medium"):
    return {"rule": rule, "severity": severity, "ns": ns, "claim": words, "words": words}


FAULT = {"ranks": [2], "stage": "update_actor", "place": "aten::item"}


def truth(cost_ns):
    return {"all_faults_ns": cost_ns, "step_ns": 100 * MS, "faults": [FAULT]}


def test_a_fault_is_named_by_rule_and_place_and_first_only_by_its_cause():
    """10 ms: the symptom of 8 ms stands first, the cause of 9 ms names the rank: 0.9 of the truth, 1.7 claimed."""
    findings = [finding("host-silence", 8 * MS), finding("straggler", 9 * MS, "rank 2 is late")]
    scored = score("straggler_clock", truth(10 * MS), findings)
    assert scored.pop("parts")[0]["cost"] == 10 * MS
    assert scored == {
        "named": True, "by_rule": True, "first": False, "ratio": 0.9, "claimed": 1.7, "top": "host-silence",
    }  # fmt: skip


def test_another_rank_blamed_is_not_named_and_information_does_not_count():
    blamed = [finding("straggler", 9 * MS, "rank 3 is late")]
    scored = score("straggler_clock", truth(10 * MS), blamed)
    assert (scored["named"], scored["by_rule"], scored["ratio"]) == (False, True, None)
    quiet = [finding("straggler", 9 * MS, "rank 2 is late", severity="info")]
    scored = score("straggler_clock", truth(10 * MS), quiet)
    assert (scored["named"], scored["claimed"], scored["top"]) == (False, 0, "silent")


def test_findings_of_one_rule_on_several_stages_are_one_estimate():
    parts = [finding("no-tensor-cores", 4 * MS, stage) for stage in ("ref", "update_actor")]
    scored = score("fp32_gemm", truth(8 * MS) | {"faults": [FAULT | {"stage": "ref"}]}, parts)
    assert (scored["ratio"], scored["first"]) == (1.0, True)


@pytest.mark.parametrize(
    ("text", "wanted", "held"),
    [
        ("rank 2 is late", "@rank", True),
        ("rank 12 is late", "@rank", False),
        ("2 copies of rank 1, 2.0 µs each", "@rank", False),
        ("ranks 0–3 are late", "@rank", True),
        ("ranks 0, 1 and 2 are late", "@rank", True),
        ("rank 1. | step 2.", "@rank", False),
        ("in update_actor", "@stage", True),
        ("aten::mm", "@place|mm", True),
        ("aten::mm", "@place", False),
    ],
)
def test_words_of_a_place(text, wanted, held):
    assert tells(text, wanted, FAULT) == held


@pytest.mark.parametrize(("ratio", "near"), [(0.75, True), (1.25, True), (0.74, False), (1.26, False), (None, False)])  # fmt: skip
def test_an_estimate_is_near_within_a_quarter(ratio, near):
    assert is_within(ratio) == near


def test_the_command_prints_a_line_a_kind_and_the_totals(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["job_faults.py", "--only", "sleeping_loader,two_ranks", "--seeds", "1", "--sizes", "small", "--jobs", "1", "--misses", "--json", str(tmp_path / "rows.json")])  # fmt: skip
    job_faults.main()
    out = capsys.readouterr().out
    assert "sleeping_loader" in out
    assert "clean jobs: 1" in out
    assert "named 100.0% (required 95%), first 100.0% (85%)" in out
    assert (tmp_path / "rows.json").stat().st_size > 1_000
