"""The plan of fixes: its order, what each saves on top of others, and what stands behind what; worked by hand, in µs."""

import numpy as np
import pytest
from chrome_builder import step
from hypothesis import given
from hypothesis import strategies as st
from jobsim.engine import run
from jobsim.faults import job_of
from jobsim.truth import mean_step
from replay.graphs import replay_rows
from replay.remedies import changes_of
from replay.rules import aten, exchange
from replay.simulations import simulate_job

from tracekit.model.report import Finding
from tracekit.pipeline.prediction.run_graphs import RunGraph
from tracekit.pipeline.replaying import ReplayedRun, plan_run
from tracekit.replay.changes import RunChange, make_change, parse_change
from tracekit.replay.changing.equalising import _Medians
from tracekit.replay.edges import Weights
from tracekit.replay.plan import Fix, PlannedFix, plan_fixes
from tracekit.replay.steps import list_job_steps

ROWS = [step(1, 0, 400), aten("one", 10, 60), aten("two", 80, 100), aten("three", 200, 20)]
"""A step of 400 µs: `one` 60, `two` 100, `three` 20."""


def host(name, factor=0.0):
    """A fix that scales host time."""
    return Fix(f"{name}×{factor}", (parse_change(f"scale host row={name} factor={factor}"),))


def plan_of(folder, *fixes, ranks=(ROWS,)):
    job = replay_rows(folder, *ranks).job
    return plan_fixes(job, list_job_steps(job), fixes)


def told(fix: PlannedFix):
    """(place, step, gain, alone, last, behind) in µs."""
    saving = fix.saving
    times = saving.step_ns, saving.after_ns, saving.alone_ns, saving.last_ns
    return fix.place, *(ns / 1_000 for ns in times), saving.behind


def test_the_fix_that_saves_most_is_first(tmp_path):
    plan = plan_of(tmp_path, host("one"), host("three"), host("two"))
    assert (plan.recorded_ns, plan.refused) == (400_000, ())
    assert [told(fix) for fix in plan.fixes] == [
        (2, 300, 100, 100, 100, None), (0, 240, 60, 60, 60, None), (1, 220, 20, 20, 20, None),
    ]  # fmt: skip


def test_of_equal_fixes_the_one_given_first_is_first(tmp_path):
    plan = plan_of(tmp_path, host("three"), host("two", 0.4), host("one"))
    assert [fix.place for fix in plan.fixes] == [1, 2, 0]


def test_no_fixes_are_an_empty_plan(tmp_path):
    plan = plan_of(tmp_path)
    assert (plan.recorded_ns, plan.fixes, plan.refused) == (400_000, (), ())


def test_one_fix_is_the_last_of_all(tmp_path):
    assert [told(fix) for fix in plan_of(tmp_path, host("one")).fixes] == [(0, 340, 60, 60, 60, None)]


def test_a_fix_of_the_same_time_is_behind_the_one_before(tmp_path):
    """All of `one` goes; half of it alone would be 30, and afterwards nothing. Without the half, the rest is 30."""
    plan = plan_of(tmp_path, host("one", 0.5), host("two"), host("one"))
    assert [told(fix) for fix in plan.fixes] == [
        (1, 300, 100, 100, 100, None), (2, 240, 60, 60, 30, None), (0, 240, 0, 30, 0, 2),
    ]  # fmt: skip


def test_a_fix_that_two_others_cover_is_behind_none_of_them(tmp_path):
    """Half of `one` and `two` is 80. After one of the fixes 30 or 50 are left of it, after both nothing."""
    plan = plan_of(tmp_path, host("^one|two", 0.5), host("one"), host("two"))
    assert [told(fix) for fix in plan.fixes] == [
        (2, 300, 100, 100, 50, None), (1, 240, 60, 60, 30, None), (0, 240, 0, 80, 0, None),
    ]  # fmt: skip


@pytest.mark.parametrize(("share", "behind"), [(0.81, 1), (0.79, None)])
def test_a_fifth_of_what_a_fix_saves_alone_is_little(tmp_path, share, behind):
    """The first fix takes 81 or 79 % of `two`, and the second the rest, of 100 µs that it saves alone."""
    changes = parse_change(f"scale host row=two factor={1 - share:.2f}"), parse_change("scale host row=three factor=0")
    more = *changes, parse_change("scale host row=one factor=0")
    plan = plan_of(tmp_path, Fix("most", more), host("two"))
    assert [fix.place for fix in plan.fixes] == [0, 1]
    assert plan.fixes[1].saving.after_ns == pytest.approx((1 - share) * 100_000)
    assert (plan.fixes[1].saving.alone_ns, plan.fixes[1].saving.behind) == (100_000, behind)


def test_a_fix_that_makes_the_step_longer_is_last_and_behind_none(tmp_path):
    plan = plan_of(tmp_path, host("one", 2), host("two"))
    assert [told(fix) for fix in plan.fixes] == [(1, 300, 100, 100, 100, None), (0, 360, -60, -60, -60, None)]


def test_a_change_of_weights_is_undone_to_a_mark():
    """Edge 2 is changed twice, and edge 1 to the weight that it has."""
    weights = Weights(np.array([5, 7, 9, 4]))
    weights.put(np.array([3]), 3)
    mark = weights.mark()
    assert not weights.is_altered(mark)
    weights.put(np.array([0, 2]), np.array([1, 2]))
    weights.put(np.array([2, 1]), np.array([8, 7]))
    weights.added.append((np.array([0]), np.array([1]), np.array([2])))
    assert weights.is_altered(mark)
    assert [part.tolist() for part in weights.list_altered(mark)] == [[0, 2], [5, 9]]
    weights.undo(mark)
    assert (weights.weight.tolist(), weights.added) == ([5, 7, 9, 3], [])
    weights.undo((0, 0))
    assert weights.weight.tolist() == [5, 7, 9, 4]


@given(st.integers(0, 2**32))
def test_medians_of_changing_values_are_those_computed_afresh(seed):
    random = np.random.default_rng(seed)
    group, counted = random.integers(0, 4, 12).astype(np.int32), random.random(12) < 0.8
    kept, values = _Medians(group, counted, np.zeros(5, np.bool_)), random.integers(0, 9, 12)
    for _ in range(4):
        fresh = [np.sort(values[counted & (group == number)]) for number in range(5)]
        middle = [int(each[(len(each) - 1) // 2] + each[len(each) // 2]) // 2 if len(each) else -1 for each in fresh]
        assert kept.find(values).tolist() == middle
        values = np.where(random.random(12) < 0.3, random.integers(0, 9, 12), values)


def test_a_pause_that_half_of_the_ranks_have_is_not_usual():
    """1 and 3 ms: 2, or the shorter of the two where it is a pause; a difference of less than 1 ms is none."""
    group, values = np.array([0, 0, 1, 1, 2, 2], np.int32), np.array([1, 3, 1, 3, 1, 1.999]) * 1_000_000
    medians = _Medians(group, np.ones(6, np.bool_), np.array([False, True, True]))
    assert medians.find(values.astype(np.int64)).tolist() == [2_000_000, 1_000_000, 1_499_500]


RANKS = [[step(1, 0, 30), *exchange(us, end=140)] for us in (100, 120)]
"""`k` takes 100 µs on rank 0 and 120 on rank 1; 10 µs after the last has come, both go on, until 147."""


def test_a_fix_behind_a_slower_rank_saves_only_after_that_ranks_fix(tmp_path):
    """With 50 µs on rank 1, rank 0 decides, 20 earlier; with 50 on both, they end 70 earlier."""
    quick = [Fix(f"rank {rank}", (parse_change(f"set device op=^k$ to_us=50 rank={rank}"),)) for rank in (0, 1)]
    plan = plan_of(tmp_path, *quick, ranks=RANKS)
    assert plan.recorded_ns == 147_000
    assert [told(fix) for fix in plan.fixes] == [(1, 127, 20, 20, 70, None), (0, 77, 50, 0, 50, None)]


def test_a_fix_makes_what_it_can_of_its_changes(tmp_path):
    """One of the two changes matches nothing."""
    fix = Fix("both", (parse_change("scale host row=four factor=0"), parse_change("scale host row=two factor=0")))
    plan = plan_of(tmp_path, fix)
    assert ([told(each) for each in plan.fixes], plan.refused) == ([(0, 300, 100, 100, 100, None)], ())


def test_fixes_that_match_nothing_are_refused_by_their_place(tmp_path):
    plan = plan_of(tmp_path, host("four"), host("two"), host("five"))
    assert [fix.place for fix in plan.fixes] == [1]
    assert plan.refused == (
        (0, "nothing in this run matches scale host row=four factor=0"),
        (2, "nothing in this run matches scale host row=five factor=0"),
    )


def finding(rule, *changes):
    return Finding(rule=rule, severity="warning", claim=f"{rule} is slow", advice="", changes=changes)


def test_findings_without_a_change_that_fits_are_listed_as_not_predicted(tmp_path):
    job = replay_rows(tmp_path, ROWS).job
    replayed = ReplayedRun("run", RunGraph(None, job, list_job_steps(job)), (), None)
    findings = [finding("r1", "scale host row=two factor=0"), finding("r2", "unwait by=four"), finding("r3")]
    report = plan_run(replayed, findings)
    assert report.answer == "predicted step with 1 fix: 400 µs → 300 µs (−100 µs, −25 %)"
    assert report.cautions[-2:] == (
        "not predicted: r3 names no change",
        "not predicted: r2: nothing in this run matches unwait by=four",
    )
    only = plan_run(replayed, findings[1:])
    assert only.answer == "step 400 µs as recorded; no fix of a finding can be replayed"
    assert (only.overview, only.cautions) == (None, report.cautions[-2:])


@pytest.mark.parametrize("seed", range(2))
def test_the_plan_of_several_faults_predicts_the_job_without_them(seed):
    """The job is simulated again without the first fault of the plan, without the first two, and without all."""
    job = job_of("three_at_once", "small", seed)
    simulation = simulate_job(job)
    made = [
        tuple(change if isinstance(change, RunChange) else make_change(change) for change in changes_of(job, fault))
        for fault in job.faults
    ]
    fixes = [Fix(str(number), changes) for number, changes in enumerate(made)]
    plan = plan_fixes(simulation.graph, simulation.steps, fixes)
    assert (len(plan.fixes), plan.refused) == (3, ())
    assert plan.recorded_ns == pytest.approx(simulation.truth["step_ns"], rel=0.001)
    steps, removed, before = simulation.truth["steps_that_count"], [], plan.recorded_ns
    for fix in plan.fixes:
        removed.append(job.faults[fix.place])
        saving = fix.saving
        assert saving.step_ns == pytest.approx(mean_step(run(job.without(*removed)), steps), rel=0.01)
        alone = simulation.truth["step_ns"] - mean_step(run(job.without(removed[-1])), steps)
        assert saving.alone_ns == pytest.approx(alone, abs=0.01 * plan.recorded_ns)
        assert (saving.before_ns, saving.after_ns) == (before, before - saving.step_ns)
        assert saving.low_ns <= saving.alone_ns <= saving.high_ns
        before = saving.step_ns
