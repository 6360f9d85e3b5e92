"""Runs and steps that decide a spread by themselves: where they begin, and who is too few to have one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model.stats.odd_values import find_odd_run, has_odd_values
from tracekit.model.stats.speedup import compute_speedup


@pytest.mark.parametrize(
    ("last", "odd"),
    [
        # Around the median 0 the next run lies .02 away: five times as far is .1.
        (0.1001, 4),
        (0.1, None),
        (0.0999, None),
        (-0.1001, 4),
        (-0.0999, None),
    ],
)
def test_an_odd_run_lies_five_times_as_far_from_the_median_as_the_next(last, odd):
    assert find_odd_run([0.0, 0.02, 0.0, -0.01, last]) == odd
    if last != 0.1:
        assert find_odd_run([2.0, 2.02, 2.0, 1.99, 2.0 + last]) == odd, "wherever the median lies"


@pytest.mark.parametrize(("last", "odd"), [(0.0501, 4), (0.0499, None), (-0.0501, 4), (-0.0499, None)])
def test_an_odd_run_lies_five_percent_away_at_least(last, odd):
    assert find_odd_run([0.0, 0.0001, 0.0, -0.0001, last]) == odd


def test_a_side_of_four_runs_has_no_odd_one_and_two_odd_ones_are_none():
    assert find_odd_run([0.0, 0.0, 0.0, 0.5]) is None
    assert find_odd_run([0.0, 0.0, 0.0, 0.0, 0.5]) == 4
    assert find_odd_run([0.0, 0.5, 0.0, 0.0, 0.0]) == 1
    assert find_odd_run([0.0, 0.0, 0.0, 0.0, 0.0, 0.4, 0.5]) is None


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.floats(-5, 5))
def test_a_unit_of_measure_makes_no_run_odd(logs, shift):
    found = find_odd_run(logs)
    moved = find_odd_run([log + shift for log in logs])
    away = np.sort(np.abs(np.array(logs) - np.median(logs)))
    if found != moved:  # only where rounding decides
        assert away[-1] == pytest.approx(max(0.05, 5 * away[-2]), rel=1e-6) or away[-2] < 1e-12
    assert find_odd_run([-log for log in logs]) == found


def of_logs(*logs):
    return [np.exp(np.array(run)) for run in logs]


@pytest.mark.parametrize(("last", "odd"), [(0.1188, True), (0.1185, False), (-0.1188, True), (-0.1185, False)])
def test_an_odd_step_lies_eight_robust_deviations_from_its_median(last, odd):
    # Around 0 the others lie .01 away, so that the median distance is .01: 8 · 1.4826 · .01 = .118608.
    assert has_odd_values(of_logs([0.01, -0.01, 0.01, -0.01, 0.01, -0.01, 0.0, 0.0, last])) is odd


@pytest.mark.parametrize(("last", "odd"), [(0.0891, True), (0.0888, False)])
def test_an_odd_run_lies_six_robust_deviations_from_the_median_of_runs(last, odd):
    # 6 · 1.4826 · .01 = .088956, of runs whose steps do not vary.
    runs = of_logs(*[[log] * 3 for log in (0.01, -0.01, 0.01, -0.01, 0.01, -0.01, 0.0, 0.0, last)])
    assert has_odd_values(runs) is odd
    assert has_odd_values([20 * run for run in runs]) is odd


def test_steps_are_measured_in_their_own_runs():
    """Runs far apart, whose steps vary alike, have no odd step."""
    calm = [0.01, -0.01, 0.0, 0.01, -0.01]
    assert not has_odd_values(of_logs(calm, calm, [log + 3 for log in calm]))
    assert has_odd_values(of_logs(calm, [*calm[:4], 0.5]))


def test_fewer_than_four_values_have_no_odd_one():
    assert not has_odd_values(of_logs([0.0], [0.0], [5.0]))
    assert not has_odd_values(of_logs([0.0, 0.01, 5.0]))
    assert has_odd_values(of_logs([0.0, 0.01, -0.01, 5.0]))
    assert has_odd_values(of_logs([0.0], [0.01], [-0.01], [5.0]))
    assert not has_odd_values(of_logs([0.0] * 6))


def test_a_comparison_tells_of_odd_values_of_either_side():
    calm, odd = [1.0, 1.01, 0.99, 1.0, 1.01, 0.99], [1.0, 1.01, 0.99, 1.0, 1.01, 3.0]
    assert not compute_speedup([calm], [calm]).is_odd
    assert compute_speedup([calm], [odd]).is_odd
    assert compute_speedup([odd], [calm]).is_odd


def test_values_of_which_half_are_equal_are_not_odd_for_differing():
    # Logs 0, 0, 0, .01: mean deviation .0025, times 1.2533 is .003133: .01 lies 3.2 of them away.
    even = [np.full(5, 1.0)] * 3
    assert not has_odd_values([*even, np.full(5, np.exp(0.01))])
    assert not has_odd_values([np.full(5, 1.0)] * 4)
