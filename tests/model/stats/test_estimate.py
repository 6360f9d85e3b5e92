"""One side alone: what is replicated, how far the mean may be off, and when nobody can know."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.stats.estimate import average_rho, check_runs, compute_lag_one, count_effective_steps, estimate_side

values = st.floats(0.5, 2.0)
runs = st.lists(st.lists(values, min_size=1, max_size=8), min_size=1, max_size=5)


def test_several_runs_are_the_sample_and_their_steps_are_not():
    # Run means 10, 12, 14: mean 12, sd 2, se 2/√3; t(.975, 2) = 4.302653.
    found = estimate_side([[9, 11], [12, 12], [13, 14, 15]])
    assert (found.unit, found.n, found.label) == ("run", 3, "run-to-run")
    assert (found.runs, found.steps, found.mean, found.sd) == (3, 7, 12, pytest.approx(2))
    assert (found.least, found.median, found.most) == (9, 12, 15)
    assert found.df == 2
    assert found.high - found.mean == pytest.approx(4.302653 * 2 / 3**0.5, abs=1e-5)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)


def test_steps_of_one_run_count_for_less_when_they_are_alike():
    # 1 1 2 2 1 1 2 2 around 1.5: Σu² = 2, Σ u(i) u(i+1) = 0.25, so r = 1/8 and, corrected,
    # r + (1 + 3r)/8 = 0.296875. n_eff = 8 · 0.703125 / 1.296875 = 4.337349, s² = 2/7;
    # variance of the mean = (2/7) · 7 / (8 · 3.337349) = 0.0749097.
    found = estimate_side([[1, 1, 2, 2, 1, 1, 2, 2]])
    assert (found.unit, found.n, found.label) == ("step", 8, "within-run")
    assert found.rho == pytest.approx(0.296875)
    assert found.df == pytest.approx(3.337349, abs=1e-6)
    assert found.se == pytest.approx(0.0749097**0.5, abs=1e-6)


def test_the_correlation_is_clipped_and_so_many_steps_remain():
    # 1 1 1 2 2 2: r = 3/6, corrected 0.5 + 2.5/6 = 0.9167, clipped to 0.8;
    # n_eff = 6 · 0.2 / 1.8 = 0.67, held at 1.5.
    found = estimate_side([[1, 1, 1, 2, 2, 2]])
    assert (found.rho, found.df) == (0.8, 0.5)
    # 1 2 1 2: r = −3/4, corrected −0.75 + (1 − 2.25)/4 < 0: steps do not count for more than they are.
    assert estimate_side([[1, 2, 1, 2]]).rho == 0
    assert count_effective_steps(4, 0.0) == 4


def test_one_step_has_no_spread():
    found = estimate_side([[3.0]])
    assert (found.n, found.mean, found.sd, found.low, found.label) == (1, 3, None, None, "no interval")


@pytest.mark.parametrize("same", [[[0.1] * 3], [[0, 0]], [[0.1, 0.1], [0.1]]])
def test_what_never_varied_is_not_certain(same):
    found = estimate_side(same)
    assert (found.sd, found.se, found.low, found.df, found.label) == (0, 0, None, None, "no interval")


def test_shares_may_be_zero_and_differences_below_it():
    assert estimate_side([[0.0, 0.2, 0.1]]).low < 0.1
    assert estimate_side([[-1.0, 1.0], [0.0, 0.5]]).mean == pytest.approx(0.125)


@settings(deadline=None)
@given(runs, st.floats(1e-9, 1e9))
def test_a_unit_of_measure_changes_nothing_else(sides, factor):
    one, two = (estimate_side(sides), estimate_side([[factor * value for value in run] for run in sides]))
    assert (one.label, one.n) == (two.label, two.n)
    assert two.mean == pytest.approx(factor * one.mean)
    if one.low is not None and one.sd > 1e-6:
        assert two.df == pytest.approx(one.df)
        assert two.high - two.mean == pytest.approx(factor * (one.high - one.mean), rel=1e-6)


@settings(deadline=None)
@given(runs, st.randoms(use_true_random=False))
def test_the_order_of_runs_is_of_no_consequence(sides, random):
    shuffled = random.sample(sides, len(sides))
    one, two = estimate_side(sides), estimate_side(shuffled)
    assert (one.mean, one.median, one.least, one.most) == pytest.approx((two.mean, two.median, two.least, two.most))
    assert (one.low is None) == (two.low is None)


@settings(deadline=None)
@given(runs)
def test_the_mean_lies_in_its_interval_and_between_the_extremes(sides):
    found = estimate_side(sides)
    assert found.least - 1e-12 <= found.mean <= found.most + 1e-12
    assert found.low is None or found.low < found.mean < found.high


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([], "no runs"),
        ([[]], "run 1 has no steps"),
        ([[1.0], []], "run 2 has no steps"),
        ([1.0, 2.0], "run 1 is not a sequence"),
        ([[[1.0], [2.0]]], "run 1 is not a sequence"),
        ([[1.0, [2.0]]], "run 1 is not a sequence"),
        (["12"], "values other than numbers"),
        ([["1", "2"]], "values other than numbers"),
        ([[1.0, None]], "values other than numbers"),
        ([[True, False]], "values other than numbers"),
        ([[10**400]], "values other than numbers"),
        ([[1.0, 2.0], [1.0, float("nan")]], "run 2, step 2: nan"),
        ([[float("inf")]], "run 1, step 1: inf"),
        ([[1e200]], "1e\\+200 is not a finite number"),
    ],
)
def test_what_is_no_measurement_is_named(runs, said):
    with pytest.raises(ValueError, match=said):
        estimate_side(runs)


@pytest.mark.parametrize("level", [0, 1, -0.5, 95, float("nan")])
def test_a_level_is_a_share(level):
    with pytest.raises(ValueError, match="level"):
        estimate_side([[1.0, 2.0]], level=level)


def test_positive_values_are_asked_for_by_the_side():
    with pytest.raises(ValueError, match="opt: run 1, step 2: 0\\.0 is not a positive"):
        check_runs([[1.0, 0.0]], positive=True, side="opt")


def test_a_side_without_variation_has_no_say_in_the_correlation():
    wave = np.log([1.0, 1, 2, 2, 1, 1, 2, 2])
    assert np.isnan(compute_lag_one(np.full(8, 0.1)))
    assert average_rho(wave, np.full(50, 0.1)) == pytest.approx(0.296875)
    assert average_rho(np.full(5, 0.1)) == 0
    # Sides count by their steps: 8 with 0.296875 and 4 with −0.1875 (− + + −: r = −1/4).
    short = np.array([-1.0, 1, 1, -1])
    assert average_rho(wave, short) == pytest.approx((8 * 0.296875 - 4 * 0.1875) / 12)


def test_the_smallest_and_largest_numbers_are_measurements_and_none_beyond_them():
    for size in (1e-100, 1e100, -1e100, 0.0):
        assert estimate_side([[size, size]]).mean == pytest.approx(size)
    for size in (0.99e-100, 1.01e100):
        with pytest.raises(ValueError, match="not a finite number"):
            estimate_side([[size]])


def test_correlation_is_of_what_varies_however_little():
    """Of a wave of 4 steps the raw correlation is −3/4, and −3/4 + (1 − 9/4) / 4 is −1.0625."""
    wave = np.array([1.0, -1.0, 1.0, -1.0])
    for size in (1.0, 1e-7, 2e-12):
        assert compute_lag_one(size * wave) == pytest.approx(-1.0625)
    assert np.isnan(compute_lag_one(1e-13 * wave))
