"""The interval of a difference: Welch's t on runs, on steps where one run a side is all there is."""

import numpy as np
import pytest
from scipy import stats

from tracekit.compare.wall_time.difference_intervals import compute_difference_intervals


def test_the_interval_over_runs_is_welchs():
    base, opt = [10.0, 11, 9, 10.5], [8.0, 8.5, 7, 9]
    low, high = compute_difference_intervals((np.array([base]), np.arange(4)), (np.array([opt]), np.arange(4)), 0.95)
    known = stats.ttest_ind(opt, base, equal_var=False).confidence_interval(0.95)
    assert (low[0], high[0]) == pytest.approx((known.low, known.high))


def test_the_interval_of_few_runs_pools_their_spread():
    base, opt = [10.0, 11], [8.0, 8.5, 7]
    low, high = compute_difference_intervals((np.array([base]), np.arange(2)), (np.array([opt]), np.arange(3)), 0.95)
    known = stats.ttest_ind(opt, base, equal_var=True).confidence_interval(0.95)
    assert (low[0], high[0]) == pytest.approx((known.low, known.high))


def test_steps_of_one_run_are_the_sample_where_there_is_one_a_side():
    """Falling and rising in turn, so that no correlation widens it: Welch's t on the steps."""
    base, opt = [10.0, 12, 10, 12, 10, 12], [7.0, 9, 7, 9, 7, 9]
    run = np.zeros(6, int)
    low, high = compute_difference_intervals((np.array([base]), run), (np.array([opt]), run), 0.95)
    known = stats.ttest_ind(opt, base, equal_var=False).confidence_interval(0.95)
    assert (low[0], high[0]) == pytest.approx((known.low, known.high))


@pytest.mark.parametrize("steps", [1, 5])
def test_there_is_no_interval_of_one_step_or_without_any_spread(steps):
    run = np.zeros(steps, int)
    low, high = compute_difference_intervals((np.full((1, steps), 5.0), run), (np.full((1, steps), 4.0), run), 0.95)
    assert np.isnan([low[0], high[0]]).all()


def test_the_interval_of_pairs_of_steps_is_that_of_their_differences():
    """Work that both sides share makes the steps vary, not the pairs."""
    base, opt = [10.0, 20, 15, 30], [9.0, 18.5, 14, 28.5]
    run = np.zeros(4, int)
    low, high = compute_difference_intervals((np.array([base]), run), (np.array([opt]), run), 0.95, "step")
    known = stats.ttest_rel(opt, base).confidence_interval(0.95)
    assert (low[0], high[0]) == pytest.approx((known.low, known.high))
    apart = compute_difference_intervals((np.array([base]), run), (np.array([opt]), run), 0.95)
    assert apart[1][0] - apart[0][0] > 10 * (high[0] - low[0])


def test_the_interval_of_pairs_of_runs_is_that_of_the_differences_of_their_means():
    """Means of 11, 22 and 30 against 10, 20 and 29."""
    base, opt = [10.0, 12, 21, 23, 30], [10.0, 19, 21, 29, 29]
    first, second = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 2, 2])
    low, high = compute_difference_intervals((np.array([base]), first), (np.array([opt]), second), 0.9, "run")
    known = stats.ttest_rel([10, 20, 29], [11, 22, 30]).confidence_interval(0.9)
    assert (low[0], high[0]) == pytest.approx((known.low, known.high))


@pytest.mark.parametrize("paired", ["step", "run"])
def test_one_pair_has_no_interval_and_equal_pairs_have_none_either(paired):
    for steps in (1, 3):
        run = np.arange(steps) if paired == "run" else np.zeros(steps, int)
        base = np.arange(10.0, 10.0 + steps)[None, :]
        low, high = compute_difference_intervals((base, run), (base - 2, run), 0.95, paired)
        assert np.isnan([low[0], high[0]]).all()
