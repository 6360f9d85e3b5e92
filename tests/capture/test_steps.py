"""Which captures a plan makes of a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.steps import StepPlan


@given(st.lists(st.integers(1, 12)), st.booleans(), st.integers(1, 12))
def test_captures_open_as_often_as_they_close_and_hold_exactly_the_steps(steps, continuous, total):
    plan, open_now, opened, held = StepPlan.of(steps, continuous=continuous), False, 0, []
    for step in range(1, total + 1):
        if plan.opens(step):
            assert not open_now
            open_now, opened = True, opened + 1
        held += [step] if open_now else []
        if plan.closes(step, last=step == total):
            assert open_now
            open_now = False
    assert not open_now
    assert held == sorted({step for step in steps if step <= total})
    if not steps or max(steps) <= total:
        assert opened == plan.captures()


def test_steps_that_end_a_run_are_closed_with_its_last():
    plan = StepPlan.of([9, 10, 11], continuous=True)
    assert [step for step in range(1, 11) if plan.closes(step)] == []
    assert plan.closes(10, last=True)
    assert plan.is_final(10, last=True)
    assert not plan.is_final(10)


def test_every_stage_of_every_step_is_a_capture_where_stages_have_their_own():
    assert StepPlan.of([1, 2, 5], continuous=True).captures(stages=4) == 12
    assert StepPlan.of([1, 2, 5]).captures() == 3
    assert StepPlan.of(None).captures() == 0


@pytest.mark.parametrize("given", [[5, 1], (1, 5, 1), "[1, 5]", "5,1", "1,5,", {1, 5}])
def test_steps_are_read_however_they_are_written(given):
    assert StepPlan.of(given).steps == (1, 5)


def test_a_step_alone_is_one_and_nothing_is_none():
    assert StepPlan.of(3).steps == StepPlan.of("3").steps == (3,)
    assert StepPlan.of(None).steps == StepPlan.of("[]").steps == StepPlan.of("").steps == ()


@pytest.mark.parametrize("given", ["one", "1-3", [None], 1.5j, ["a"]])
def test_what_names_no_steps_is_refused_and_never_a_silent_nothing(given):
    with pytest.raises(ValueError, match="steps must be whole numbers"):
        StepPlan.of(given)
