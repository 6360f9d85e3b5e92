"""What to record next: always something, from the noise that was seen."""

import pytest
from compare.made import BASE_RUNS, OPT_RUNS, compared, step_rows
from hypothesis import given
from hypothesis import strategies as st

from tracekit.compare.planning import recommend_recording
from tracekit.model.stats.needed import compute_needed_runs
from tracekit.model.stats.speedup import compute_speedup
from tracekit.render import render


def said(base, opt, effect=0.03):
    return recommend_recording(compute_speedup(base, opt), effect)


def test_what_decides_on_the_least_effect_is_told():
    assert said([BASE_RUNS[0]], [OPT_RUNS[0]]) == (
        "record at least 3 runs per side: in 80 % of cases they show that nothing changed by 3.0 %, or a change of 5.6 %"
    )


def test_how_unsure_a_plan_of_few_runs_is_is_a_range():
    """Spread 1.5 % of three runs a side; it may be 1.56 times as much: (1.2134 / .6072)² ~ 2.4 times the runs."""
    base, opt = [[10.0], [9.85], [10.15]], [[9.0], [8.865], [9.135]]
    text = said(base, opt)
    plan = compute_needed_runs(compute_speedup(base, opt))
    assert text.startswith(f"record {plan.runs} to {plan.most_runs} runs per side: in 80 % of cases")
    assert 2 <= plan.most_runs / plan.runs <= 3


def test_where_that_takes_too_many_runs_a_larger_effect_is_planned_for():
    """Runs that differ by 12 %: 100 a side leave 1.7 % of SE, so .95 of no interval is inside of 3 %."""
    base, opt = [[10.0], [8.8], [11.2]], [[9.0], [7.92], [10.08]]
    text = said(base, opt)
    plan = compute_needed_runs(compute_speedup(base, opt), change=0.1)
    assert text == (
        f"record {plan.runs} to more than 100 runs per side to show a change of 10 % in 80 % of cases: that nothing"
        " changed by 3.0 % takes more than 100 runs"
    )


def test_where_no_number_of_runs_helps_that_is_said():
    wild = said([[1.0], [1000.0]], [[1000.0], [1.0]])
    assert wild.startswith("even 100 runs per side would not show a change of 100 %: find out first")


def test_the_chances_of_a_comparison_are_told_for_its_runs_and_for_more():
    found = compared(step_rows(*BASE_RUNS), step_rows(*OPT_RUNS))
    assert [(one.runs, one.change) for one in found.outlook] == [
        *(("3 v 3", change) for change in (0.0, 0.03, 0.05, 0.1)),
        *(("4 v 4", change) for change in (0.0, 0.03, 0.05, 0.1)),
    ]
    for one in found.outlook:
        whole = one.regression + one.no_change + one.improvement + one.inconclusive
        assert whole == pytest.approx(1)
        assert one.at_least <= one.regression
    equal, least, *_ = found.outlook
    assert equal.no_change > 0.7
    assert least.regression < 0.025, "a change of exactly what matters is hardly ever called one"
    text = render(found.report(), "text")
    assert "chance that a slower step is called slower: 2 % at +3 %, 55 % at +5 %, >99 % at +10 %" in text
    (sheet,) = (s for part in found.report().sections for s in part.sheets if s.name == "outlook")
    assert len(sheet.rows) == 8


def test_what_may_say_nothing_promises_nothing():
    """One run a side, or beside three: whatever the change, the verdict is inconclusive."""
    for base, opt in ((BASE_RUNS[:1], OPT_RUNS[:1]), (BASE_RUNS, OPT_RUNS[:1])):
        found = compared(step_rows(*base), step_rows(*opt))
        assert found.verdict == "inconclusive"
        assert found.headline.detectable is None
        at_hand = [one for one in found.outlook if one.runs == found.outlook[0].runs]
        assert [one.inconclusive for one in at_hand] == [1.0] * 4
        text = render(found.report(), "text")
        assert "no change of any size could have been detected" in " ".join(text.split())
        assert "called slower" not in text


@pytest.mark.parametrize("sides", [([[10.0]], [[9.0]]), ([[10.0, 10.0]], [[9.0, 9.0]])])
def test_where_the_spread_is_not_known_runs_and_steps_are_asked_for(sides):
    assert said(*sides) == ("record several runs per side of at least 5 steps each: how much they vary is not known")


RUNS = st.lists(st.lists(st.floats(1, 100), min_size=1, max_size=6), min_size=1, max_size=4)


@given(RUNS, RUNS, st.sampled_from([0.0, 0.03, 0.1]))
def test_what_is_inconclusive_always_says_what_to_record(base, opt, effect):
    found = compared(step_rows(*base), step_rows(*opt), min_effect=effect)
    assert bool(found.needed) == (found.verdict == "inconclusive")
