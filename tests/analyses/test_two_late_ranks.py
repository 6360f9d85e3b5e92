"""Ranks that are late for different causes: each is named with its own, and their costs add up to what both cost."""

import changed_jobs
import pytest
from jobsim.engine import run
from jobsim.job import Fault, Job
from jobsim.truth import truth

from tracekit.pipeline.run import Options, analyze_uncached

MS = 1_000_000
CLOCK = ("clock", {"clock": 1.15}, "the same kernels take 1.1")
PAIRS = {
    "pageable": ("pageable", {"batch_bytes": 14 * 2**20, "pageable": True}, "Pageable"),
    "fp32": ("fp32", {"fp32": True}, "sgemm"),
    "late_start": ("late_start", {"late_ns": 10 * MS}, "no host activity is recorded for 10"),
}


def report_and_truth(tmp_path, faults, **settings):
    planted = tuple(Fault(kind, change, ranks) for (kind, change, _), ranks in faults)
    job = Job("two", ranks=8, steps=5, faults=planted, seed=5, **settings)
    changed_jobs.write(changed_jobs.documents_of(job), tmp_path)
    report = analyze_uncached(tmp_path, Options(jobs=1, cache=False)).report
    return [f for f in report.findings if f.rule == "straggler"], truth(job, run(job))


def ranks_of(finding):
    return {place.rank for place in finding.places}


def _of_pairs():
    first, *rest = PAIRS
    return [first, *(pytest.param(other, marks=pytest.mark.slow) for other in rest)]


@pytest.mark.parametrize("other", _of_pairs())
def test_each_of_two_late_ranks_is_named_with_its_own_cause(tmp_path, other):
    pair = PAIRS[other]
    late, figures = report_and_truth(tmp_path, [(CLOCK, (1,)), (pair, (3,))])
    by_rank = {frozenset(ranks_of(finding)): finding for finding in late}
    assert by_rank.keys() == {frozenset({1}), frozenset({3})}
    assert CLOCK[2] in by_rank[frozenset({1})].claim
    assert pair[2] in by_rank[frozenset({3})].claim
    total = sum(finding.cost_ns for finding in late)
    assert total == pytest.approx(figures["all_faults_ns"], rel=0.1)


@pytest.mark.slow
def test_ranks_that_are_late_for_one_cause_stay_together(tmp_path):
    late, figures = report_and_truth(tmp_path, [(CLOCK, (1, 3))])
    (finding,) = late
    assert ranks_of(finding) == {1, 3}
    assert finding.cost_ns == pytest.approx(figures["all_faults_ns"], rel=0.1)


@pytest.mark.slow
def test_of_three_late_ranks_those_of_one_cause_stay_together(tmp_path):
    late, _ = report_and_truth(tmp_path, [(CLOCK, (1, 6)), (PAIRS["late_start"], (3,))])
    assert sorted(map(sorted, map(ranks_of, late))) == [[1, 6], [3]]
