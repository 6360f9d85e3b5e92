"""What to record next: always something, from the noise that was seen."""

from math import expm1, log, log1p

import pytest
from compare.made import BASE_RUNS, OPT_RUNS, compared, step_rows
from hypothesis import given
from hypothesis import strategies as st

from tracekit.compare.planning import recommend_recording
from tracekit.model.stats.needed import compute_needed_runs, find_confirmable_spread
from tracekit.model.stats.speedup import compute_speedup
from tracekit.model.stats.verdict import choose_verdict
from tracekit.render import render

ALIKE = [[10.0], [9.85], [10.15]]
"""Three runs that differ by 1.5 %."""


def said(base, opt, effect=0.03, **more):
    found = compute_speedup(base, opt)
    return recommend_recording(found, choose_verdict(found, min_effect=effect), effect, **more)


def test_one_run_on_a_side_is_told_what_its_change_would_take():
    alone = "One run per side cannot separate a change from run-to-run noise."
    spread = find_confirmable_spread(log(1.121739), log1p(0.03), 0.95)
    assert f"{expm1(spread):.1%}" == "2.6%"
    assert said([BASE_RUNS[0]], [OPT_RUNS[0]]) == (
        f"{alone} A change this large would be confirmed by 4 per side, if equal runs differ by less than 2.6 %."
    )
    # A change within the least effect is never confirmed.
    close = [value * 0.98 for value in BASE_RUNS[0]]
    assert said([BASE_RUNS[0]], [close]) == f"{alone} Record 4 per side."
    both = said(BASE_RUNS, OPT_RUNS[:1])
    assert both.startswith("One run on a side does not show the run-to-run noise. A change this large")


@pytest.mark.parametrize(
    ("base", "opt", "plan"),
    [
        (3, 3, "One more run per side decides."),
        (5, 3, "One more run per side decides."),
        (2, 2, "2 more runs per side decide."),
    ],
)
def test_what_seems_changed_needs_four_runs_per_side(base, opt, plan):
    runs = [10.0, 10.01, 9.99, 10.005, 9.995]
    assert said([[run] for run in runs[:base]], [[1.2 * run] for run in runs[:opt]]) == plan


def test_how_unsure_a_plan_of_few_runs_is_is_a_range():
    """Four degrees of freedom leave spreads up to √(4 / χ²(4, .1) = 1.063623) = 1.94 times as large."""
    opt = [[9.9], [10.05], [9.95]]
    plan = compute_needed_runs(compute_speedup(ALIKE, opt))
    assert said(ALIKE, opt) == (
        f"If the runs to come are like these, {plan.runs} to {plan.most_runs} runs per side rule out a change of 3.0 %"
        " in 8 of 10 cases."
    )
    assert 2 <= plan.most_runs / plan.runs <= 1.94**2
    wider = [[10.0], [9.75], [10.25]], [[9.85], [10.1], [9.9]]
    assert " to more than 30 runs per side rule out" in said(*wider)


def test_four_runs_give_a_number_for_the_change_that_was_seen_and_for_none():
    """Runs of 4 % and 2.7 %, 7 % apart: 11 runs confirm it; that nothing changed takes more than 30."""
    wide = [[10.0], [9.5], [10.5], [10.0]], [[8.9], [9.5], [9.1], [9.3]]
    found = compute_speedup(*wide)
    plan = compute_needed_runs(found, change=expm1(found.log_ratio))
    assert said(*wide) == (
        f"If the runs to come are like these, {plan.runs} runs per side confirm a change this large in 8 of 10 cases."
    )
    tight = [[10.0], [9.9], [10.1], [10.05]], [[9.6], [9.7], [9.65], [9.5]]
    found = compute_speedup(*tight)
    one, two = compute_needed_runs(found, change=expm1(found.log_ratio)), compute_needed_runs(found)
    assert said(*tight) == (
        f"If the runs to come are like these, {one.runs} runs per side confirm a change this large in 8 of 10 cases;"
        f" {two.runs} runs per side rule out a change of 3.0 % in 8 of 10 cases."
    )


def test_steps_that_stand_for_runs_are_planned_for_as_steps():
    steps = [10.0, 10.3, 9.7, 10.2, 9.8]
    plan = compute_needed_runs(compute_speedup([steps], [steps[::-1]]), accept_steps=True)
    assert (plan.runs, plan.pairs) == (None, False)
    assert said([steps], [steps[::-1]], treat_steps_as_runs=True) == (
        f"If the runs to come are like these, {plan.steps} steps per side rule out a change of 3.0 % in 8 of 10 cases."
    )


def test_where_no_number_of_runs_helps_that_is_said():
    """Runs of 12 % and four degrees of freedom: even 30 per side leave ±6 %."""
    assert said([[10.0], [8.8], [11.2]], [[10.1], [8.9], [11.3]]) == (
        "Even 30 runs per side like these would not rule out a change of 3.0 %: reduce the run-to-run noise first."
    )


def test_two_runs_and_odd_values_give_no_plan():
    assert said([[1.0], [1.02]], [[1.02], [1.0]]) == ("Record 2 more runs per side: two are too few to plan with.")
    odd = [[1.0], [1.001], [1.002], [1.0015]], [[1.0], [1.0013], [1.3], [1.002]]
    assert said(*odd) == ("A few outliers dominate the spread. Find out why they are slow before you plan more runs.")


def test_the_chances_of_a_comparison_are_told_for_its_runs_and_for_more():
    found = compared(step_rows(*BASE_RUNS), step_rows(*OPT_RUNS))
    assert [(one.runs, one.change) for one in found.outlook] == [("4 v 4", change) for change in (0.0, 0.03, 0.05, 0.1)]
    for one in found.outlook:
        whole = one.regression + one.no_change + one.improvement + one.inconclusive
        assert whole == pytest.approx(1)
        assert one.at_least <= one.regression <= one.at_most or one.regression in (0, pytest.approx(1, abs=0.01))
    equal, least, *_ = found.outlook
    assert equal.no_change > 0.7
    assert least.regression < 0.025, "a change of exactly what matters is hardly ever called one"
    text = render(found.report(), "text")
    chances = "2 % (1–3 %) at +3 %, 68 % (37–94 %) at +5 %, 99 % (99–100 %) at +10 %"
    assert f"probability to detect a slowdown: {chances}" in " ".join(text.split())
    (sheet,) = (s for part in found.report().sections for s in part.sheets if s.name == "outlook")
    assert len(sheet.rows) == 4


def test_chances_of_fewer_than_four_runs_are_told_for_four_too():
    """Three runs per side show no change; the next to decide are four."""
    found = compared(step_rows(*BASE_RUNS[:3]), step_rows(*OPT_RUNS[:3]))
    assert [one.runs for one in found.outlook] == ["3 v 3"] * 4 + ["4 v 4"] * 4
    assert {(one.regression, one.improvement) for one in found.outlook[:4]} == {(0.0, 0.0)}
    assert found.outlook[0].no_change > 0.3
    assert found.outlook[7].regression > 0.75
    assert "is called slower" not in render(found.report(), "text")


def test_what_may_say_nothing_promises_nothing():
    """One run a side, or beside three: whatever the change, the verdict is inconclusive."""
    for base, opt in ((BASE_RUNS[:1], OPT_RUNS[:1]), (BASE_RUNS, OPT_RUNS[:1])):
        found = compared(step_rows(*base), step_rows(*opt))
        assert found.verdict == "inconclusive"
        assert found.headline.detectable is None
        at_hand = [one for one in found.outlook if one.runs == found.outlook[0].runs]
        assert [one.inconclusive for one in at_hand] == [1.0] * 4
        text = render(found.report(), "text")
        assert "could have detected" not in text
        assert "called slower" not in text


@pytest.mark.parametrize("sides", [([[10.0]], [[9.0]]), ([[10.0, 10.0]], [[9.0, 9.0]])])
def test_where_the_spread_is_not_known_runs_and_steps_are_asked_for(sides):
    assert said(*sides) == "Record 4 runs per side of at least 5 steps each: run-to-run noise is unknown."


RUNS = st.lists(st.lists(st.floats(1, 100), min_size=1, max_size=6), min_size=1, max_size=4)


@given(RUNS, RUNS, st.sampled_from([0.0, 0.03, 0.1]))
def test_what_is_inconclusive_always_says_what_to_record(base, opt, effect):
    found = compared(step_rows(*base), step_rows(*opt), min_effect=effect)
    assert bool(found.needed) == (found.verdict == "inconclusive")
