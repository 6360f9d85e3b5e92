"""The same job recorded otherwise: the finding on a late rank stays, and no other comes."""

import re

import changed_jobs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobsim.clean import clean_job
from jobsim.faults import KINDS, job_of
from jobsim.job import Fault, Job

from tracekit.pipeline.run import Options, analyze_uncached

MS = 1_000_000
STEPS = 8
LAST = 3 + STEPS - 1
LATE = {"clock": {"clock": 1.13}, "pause": {"gc_at": ("update_actor",), "gc_ns": 12 * MS}, "none": {}}


def late_job(change, rank=1):
    faults = (Fault(change, LATE[change], (rank,)),) if LATE[change] else ()
    return Job(change, ranks=4, steps=STEPS, faults=faults, seed=5)


def report_on(folder):
    return analyze_uncached(folder, Options(jobs=1, cache=False)).report


def loud(report):
    """What is said of time: a note on damaged files is right where one is damaged."""
    return [f for f in report.findings if f.severity != "info" and f.rule != "profiling-artefact"]


# A rank that is cut, or has fewer steps


CUT = [("clock", 1, 3)]
"""What is wrong with rank 1, the rank that is cut, and how many of its last steps are missing; nightly all of them."""
ALL_CUT = [(change, rank, missing) for change in LATE for rank in (1, 2) for missing in (1, 3, 5)]


def _cuts():
    rest = [pytest.param(*cut, marks=pytest.mark.slow) for cut in ALL_CUT if cut not in CUT]
    return [*(pytest.param(*cut) for cut in CUT), *rest]


@pytest.mark.parametrize(("change", "rank", "missing"), _cuts())
def test_a_rank_with_fewer_steps_changes_no_finding(tmp_path, change, rank, missing):
    documents = changed_jobs.documents_of(late_job(change))
    whole = loud(report_on(changed_jobs.write(documents, tmp_path / "whole")))
    documents[rank] = changed_jobs.until_step(documents[rank], LAST - missing + 1)
    report = report_on(changed_jobs.write(documents, tmp_path / "fewer"))
    assert [f.rule for f in loud(report)] == [f.rule for f in whole]
    for before, after in zip(whole, loud(report), strict=True):
        assert {place.rank for place in after.places} == {place.rank for place in before.places}
        assert after.cost_ns == pytest.approx(before.cost_ns, rel=0.1)
    assert "incomplete on some rank" in " ".join(report.identity)


@pytest.mark.parametrize(
    ("change", "rank"),
    [("clock", 1), pytest.param("pause", 2, marks=pytest.mark.slow), pytest.param("none", 2, marks=pytest.mark.slow)],
)
def test_a_file_that_ends_in_its_device_rows_changes_no_finding(tmp_path, change, rank):
    documents = changed_jobs.documents_of(late_job(change))
    whole = loud(report_on(changed_jobs.write(documents, tmp_path / "whole")))
    folder = changed_jobs.write(documents, tmp_path / "cut")
    (folder / f"rank{rank}.pt.trace.json.gz").unlink()
    text = changed_jobs.cut_at(documents[rank], LAST - 2)
    (folder / f"rank{rank}.pt.trace.json").write_text(text)
    report = report_on(folder)
    (replay,) = report.replays
    caveat = f"rank{rank}.pt.trace.json is incomplete: fixes are predicted as if it was not recorded"
    assert (replay.refusal, replay.cautions[:1]) == ("", (caveat,))
    after = [f for f in loud(report) if f.rule in {finding.rule for finding in whole}]
    assert [f.rule for f in after] == [f.rule for f in whole]
    for before, now in zip(whole, after, strict=True):
        assert {place.rank for place in now.places} == {place.rank for place in before.places}
        assert now.cost_ns == pytest.approx(before.cost_ns, rel=0.1)


def test_where_ranks_share_no_step_all_steps_count(tmp_path):
    """Ranks 0 and 1 show steps 3 to 6, ranks 2 and 3 steps 7 to 10."""
    documents = changed_jobs.documents_of(late_job("none"))
    halves = [changed_jobs.until_step(each, 7) for each in documents[:2]]
    halves += [changed_jobs.from_step(each, 7) for each in documents[2:]]
    report = report_on(changed_jobs.write(halves, tmp_path))
    assert "not recorded whole" not in " ".join(report.identity)


# Clocks


def on_two_hosts(documents, fast_ns):
    half = len(documents) // 2
    return [
        changed_jobs.on_host(changed_jobs.with_clock(each, fast_ns * (rank >= half)), f"host-{rank >= half}")
        for rank, each in enumerate(documents)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def recordings():
    jobs = {kind: job_of(kind) for kind in ("straggler_clock", "rollout_tail", "gc_all_ranks")}
    jobs["plain"] = clean_job("plain")
    return {name: changed_jobs.documents_of(job) for name, job in jobs.items()}


def said(documents, folder):
    """What is said of all but the clocks: rules, amounts, claims without the digits that rounding may change."""
    findings = loud(report_on(changed_jobs.write(documents, folder)))
    return [(f.rule, {place.rank for place in f.places}, re.sub(r"[\d.]+", "", f.claim)) for f in findings], [
        f.cost_ns for f in findings
    ]


@pytest.mark.parametrize(
    ("name", "fast_ns"),
    [
        ("straggler_clock", 20_000),
        pytest.param("rollout_tail", 10 * MS, marks=pytest.mark.slow),
        pytest.param("gc_all_ranks", -3_000 * MS, marks=pytest.mark.slow),
    ],
)
def test_a_clock_that_is_off_changes_no_finding(tmp_path, recordings, name, fast_ns):
    still = said(on_two_hosts(recordings[name], 0), tmp_path / "still")
    moved = said(on_two_hosts(recordings[name], fast_ns), tmp_path / "moved")
    assert moved[0] == still[0]
    assert moved[1] == pytest.approx(still[1], rel=0.02)


@settings(max_examples=3, deadline=None)
@given(exponent=st.integers(3, 10), sign=st.sampled_from([-1, 1]), factor=st.integers(1, 9))
def test_a_clock_that_is_off_by_anything_says_nothing_of_a_clean_job(
    recordings, tmp_path_factory, exponent, sign, factor
):
    """µs to tens of seconds."""
    documents = on_two_hosts(recordings["plain"], sign * factor * 10**exponent)
    assert said(documents, tmp_path_factory.mktemp("clean")) == ([], [])


# No stages

NEED_STAGES = {
    # A small part of the step, and much of one stage.
    *("item_in_loop", "tiny_kernels", "eager_decode"),
    # Known by the stage of its name.
    "slow_weight_sync",
}
QUICK = ("silent_pause", "pageable_copies")


def _of_kinds():
    quick = [pytest.param(kind) for kind in QUICK]
    return quick + [pytest.param(k, marks=pytest.mark.slow) for k in KINDS if k not in QUICK]


@pytest.mark.parametrize("kind", _of_kinds())
def test_a_fault_is_named_without_the_annotations_of_stages(tmp_path, kind):
    from benchmarks import job_expected, job_faults

    job = job_of(kind)
    documents = [changed_jobs.without_stages(each) for each in changed_jobs.documents_of(job)]
    report = report_on(changed_jobs.write(documents, tmp_path))
    assert not [remark for remark in report.remarks if remark.severity == "error"]
    assert not [section for section in report.sections if section.status == "failed"]
    if kind in NEED_STAGES:
        return
    expected, fault = job_expected.EXPECTED[kind], vars(job.faults[0])
    places = [place for place in expected.places if place != "@stage"]
    rules = expected.rules + expected.also
    assert [
        finding
        for finding in report.findings
        if (not expected.rules or finding.rule in rules)
        and all(job_expected.tells(job_faults.words(finding), place, fault) for place in places)
    ], [finding.claim for finding in report.findings]


@pytest.mark.parametrize("kind", ["recompilation", "drift"])
def test_a_fault_without_stages_nor_step_marks_leaves_no_error(tmp_path, kind):
    documents = [
        changed_jobs.without_steps(changed_jobs.without_stages(each))
        for each in changed_jobs.documents_of(job_of(kind))
    ]
    report = report_on(changed_jobs.write(documents, tmp_path))
    assert not [remark for remark in report.remarks if remark.severity == "error"]
    assert not [section for section in report.sections if section.status == "failed"]
