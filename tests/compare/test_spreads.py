"""The interval of a difference: Welch's t on runs, on steps where one run a side is all there is."""

import numpy as np
import pytest
from scipy import stats

from tracekit.compare.spreads import intervals


def test_the_interval_over_runs_is_welchs():
    base, opt = [10.0, 11, 9, 10.5], [8.0, 8.5, 7, 9]
    low, high = intervals((np.array([base]), np.arange(4)), (np.array([opt]), np.arange(4)), 0.95)
    known = stats.ttest_ind(opt, base, equal_var=False).confidence_interval(0.95)
    assert (low[0], high[0]) == pytest.approx((known.low, known.high))


def test_the_interval_of_few_runs_pools_their_spread():
    base, opt = [10.0, 11], [8.0, 8.5, 7]
    low, high = intervals((np.array([base]), np.arange(2)), (np.array([opt]), np.arange(3)), 0.95)
    known = stats.ttest_ind(opt, base, equal_var=True).confidence_interval(0.95)
    assert (low[0], high[0]) == pytest.approx((known.low, known.high))


def test_steps_of_one_run_are_the_sample_where_there_is_one_a_side():
    """Falling and rising in turn, so that no correlation widens it: Welch's t on the steps."""
    base, opt = [10.0, 12, 10, 12, 10, 12], [7.0, 9, 7, 9, 7, 9]
    run = np.zeros(6, int)
    low, high = intervals((np.array([base]), run), (np.array([opt]), run), 0.95)
    known = stats.ttest_ind(opt, base, equal_var=False).confidence_interval(0.95)
    assert (low[0], high[0]) == pytest.approx((known.low, known.high))


@pytest.mark.parametrize("steps", [1, 5])
def test_there_is_no_interval_of_one_step_or_without_any_spread(steps):
    run = np.zeros(steps, int)
    low, high = intervals((np.full((1, steps), 5.0), run), (np.full((1, steps), 4.0), run), 0.95)
    assert np.isnan([low[0], high[0]]).all()
