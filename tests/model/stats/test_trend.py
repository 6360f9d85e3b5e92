"""Trends of short series: slopes, tests, and how often noise and real growth are told apart."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.stats.trend import (
    MAX_POINTS,
    Growth,
    GrowthLimits,
    Slope,
    compute_theil_sen,
    fit_least_squares,
    holm,
    label_growth,
    measure_growth,
)

LIMITS = GrowthLimits(6, 0.25, 1e-5, 1.0, 0.05, 0.01, 0.5)

numbers = st.lists(st.integers(-(10**6), 10**6), min_size=2, max_size=12)


@given(numbers)
def test_the_slope_is_the_median_over_all_pairs(values):
    pairs = [(values[j] - values[i]) / (j - i) for j in range(len(values)) for i in range(j)]
    found = compute_theil_sen(range(len(values)), values)
    assert found.per_x == pytest.approx(float(np.median(pairs)))
    assert min(pairs) <= found.low <= found.per_x <= found.high <= max(pairs)


@given(numbers, st.integers(-1000, 1000), st.integers(1, 50))
def test_levels_and_clocks_do_not_matter_and_units_scale(values, level, factor):
    x = range(len(values))
    found = compute_theil_sen(x, values)
    moved = compute_theil_sen([at + 77 for at in x], [factor * value + level for value in values])
    assert moved.per_x == pytest.approx(factor * found.per_x)
    assert (moved.low, moved.high) == pytest.approx((factor * found.low, factor * found.high))


@pytest.mark.parametrize("x", [[], [3], [3, 3, 3]])
def test_without_two_places_there_is_no_slope(x):
    assert compute_theil_sen(x, [1.0] * len(x)) is None


def test_the_interval_of_a_slope_is_sens():
    """Of y = x² every pair has the slope i + j: of 45, in order, the 14th is 7, the 23rd 9 and the 32nd 11.

    S varies by 10 · 9 · 25 / 18 = 125: (45 ∓ 1.645 √125) / 2 = 13.3 and 31.7.
    """
    assert compute_theil_sen(range(10), [x**2 for x in range(10)]) == Slope(9.0, 7.0, 11.0, 10)
    # 4 points: (6 ∓ 1.645 √(4 · 3 · 13 / 18)) / 2 = 0.6 and 5.4.
    assert compute_theil_sen(range(4), [0, 1, 4, 9]) == Slope(3.0, 1.0, 5.0, 4)


def test_few_slopes_of_many_points_are_all_in_their_interval():
    found = compute_theil_sen([0] * 9 + [1], [*range(9), 20])
    assert found == Slope(16.0, 12.0, 20.0, 10)


def test_a_least_squares_slope_needs_two_places():
    # Mean 1 and 2: (1 · 2 + 0 · 1 + 1 · 3) / 2.
    assert fit_least_squares([0, 1, 2], [0, 1, 5]) == 2.5
    assert fit_least_squares([], []) is None
    assert fit_least_squares([3, 3], [1, 2]) is None


def test_one_wild_value_does_not_bend_the_slope():
    assert compute_theil_sen(range(9), [0, 1, 2, 3, 400, 5, 6, 7, 8]).per_x == 1


@pytest.mark.parametrize("count", [4, 5, 6])
def test_p_of_few_points_is_exact(count):
    """The share of all orders that rise at least as much."""
    from tracekit.model.stats import trend

    def score(order):
        return sum((b > a) - (b < a) for i, a in enumerate(order) for b in order[i + 1 :])

    every = [score(order) for order in permutations(range(count))]
    for order in list(permutations(range(count)))[:: 7 * count]:
        expected = np.mean([s >= score(order) for s in every])
        assert trend._test_mann_kendall(np.array(order, float)) == pytest.approx(expected)


def test_ties_and_length_use_the_normal_distribution():
    """S = 9 of 10 pairs, one tie: variance (5·4·15 − 2·1·9) / 18 = 15.67, z = 8 / 3.958."""
    from tracekit.model.stats import trend

    assert trend._test_mann_kendall(np.array([1.0, 2, 2, 3, 4])) == pytest.approx(0.02164, abs=1e-4)


def test_runs_of_equal_residuals_weaken_the_evidence():
    """Hamed and Rao: six rising points have S = 15 of variance 28.33, times the factor of the residuals' ranks."""
    from tracekit.model.stats import trend

    rising = np.arange(6.0)

    def p(residuals):
        return trend._test_hamed_rao(rising[: len(residuals)], np.array(residuals, float))

    # Ranks −2.5 to 2.5: products 8.75, 1 and −4.75 over power 17.5; 1 + 2/120 · (60 · 8.75 + 24 − 6 · 4.75) / 17.5
    # = 1.495714, z = 14 / √42.3786 = 2.150571.
    assert p([0, 1, 2, 3, 4, 5]) == pytest.approx(0.015755, abs=2e-6)
    # Two that are equal share rank 1.5: products 9.25, .5 and −5.25 over 17: 1.525, z = 14 / √43.2083 = 2.129820.
    assert p([0, 0, 1, 2, 3, 4]) == pytest.approx(0.016593, abs=2e-6)
    # What alternates or is all equal does not strengthen it: z = 14 / √28.3333 = 2.630150.
    assert p([1, -1, 1, -1, 1, -1]) == p([3] * 6) == pytest.approx(0.004267, abs=2e-6)
    # Four points are too few to tell: z = 5 / √8.6667 = 1.698416.
    assert p([0, 1, 2, 3]) == pytest.approx(0.044715, abs=2e-6)


def test_what_never_changes_is_no_evidence():
    from tracekit.model.stats import trend

    assert trend._test_mann_kendall(np.full(12, 5.0)) == 1.0


def test_beside_a_shift_only_what_grows_within_its_two_levels_counts():
    """Each half rises in all of 3 pairs: S = 6 of variance 2 · 3 · 2 · 11 / 18 = 7.3333, z = 5 / 2.708013."""
    from tracekit.model.stats import trend

    values = np.array([1.0, 2, 3, 10, 11, 12])
    assert trend._find_best_split(values) == 3
    assert trend._test_beside_shift(values, 3) == pytest.approx(0.032419, abs=2e-6)
    # Without a shift all 15 pairs count: one order of 720.
    assert trend._test_beside_shift(values, 0) == pytest.approx(1 / 720)


@pytest.mark.parametrize(("values", "split"), [([0, 0, 0, 9, 9, 9, 9, 9], 3), ([0, 0, 0, 0, 0, 9, 9, 9], 5)])
def test_a_level_has_at_least_three_points(values, split):
    from tracekit.model.stats import trend

    assert trend._find_best_split(np.array(values, float)) == split
    assert trend._find_best_split(np.array([0.0, 0, 0, 9, 9])) == 0


def test_the_smallest_slope_that_would_be_seen_has_three_bounds():
    from tracekit.model.stats import trend

    level = np.zeros(9)
    # 18 · 1 / (9 · 3) of noise; .25 at least; 1e-5 of the level; a range of 1 over the points.
    assert trend._compute_detectable_slope(1.0, level, LIMITS) == pytest.approx(2 / 3)
    assert trend._compute_detectable_slope(0.1, level, LIMITS) == 0.25
    assert trend._compute_detectable_slope(0.1, level - 1e6, LIMITS) == pytest.approx(10)
    assert trend._compute_detectable_slope(0.1, level[:3], LIMITS) == 0.5


@pytest.mark.parametrize(("count", "warm_up"), [(6, 1), (7, 2), (9, 2), (10, 3), (50, 3)])
def test_the_first_points_are_warm_up(count, warm_up):
    found = measure_growth(range(count), np.arange(count) * 5.0, LIMITS)
    assert (found.warm_up, found.slope.count) == (warm_up, count - warm_up)


def shown(values):
    return label_growth(measure_growth(range(len(values)), values, LIMITS), LIMITS)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 100, 200, 300, 400], "too few"),
        ([500.0] * 12, "flat"),
        ([500 + 0.1 * n for n in range(10)], "flat"),
        ([500 + 2.0 * n for n in range(12)], "strong"),
        ([500 - 2.0 * n for n in range(12)], "none"),
        ([500.0 + 50 * (n >= 8) + 0.01 * (n % 2) for n in range(16)], "shift"),
        ([1000 - 500 * 0.5**n for n in range(12)], "saturating"),
        ([500 + 10.0 * (n % 3) for n in range(18)], "none"),
        # Steady, but less than 0.25 a step: no growth to speak of.
        ([500 + 0.24 * n for n in range(12)], "none"),
    ],
)
def test_shapes_have_their_names(values, expected):
    assert shown(values) == expected


GROWING = Growth(Slope(2.0, 1.0, 3.0, 20), 3, 40.0, 0.001, 0.001, None, True, 2.0, 0.1, 500.0)


@pytest.mark.parametrize(
    ("changed", "label"),
    [
        ({}, "strong"),
        ({"spread": 1.0}, "flat"),
        ({"spread": 1.001}, "strong"),
        ({"p": 0.01}, "likely"),
        ({"p": 0.05}, "none"),
        ({"p_shift": 0.05}, "likely"),
        ({"p": None}, "too few"),
        ({"slope": None}, "too few"),
        ({"p_shift": None}, "too few"),
        ({"late_slope": None}, "too few"),
        # At least .25 for each x, and 1e-5 of the level.
        ({"slope": Slope(0.25, 0, 1, 20)}, "strong"),
        ({"slope": Slope(0.249, 0, 1, 20)}, "none"),
        ({"slope": Slope(10.0, 0, 20, 20), "level": -1e6}, "strong"),
        ({"slope": Slope(9.99, 0, 20, 20), "level": -1e6, "late_slope": 9.0}, "none"),
        # Growth that does not reach the end: a shift if nothing grows beside it, else saturating or nothing.
        ({"rising": False, "p_shift": 0.1}, "shift"),
        ({"rising": False, "p_shift": 0.099}, "none"),
        ({"rising": False, "p_shift": 0.099, "late_slope": 0.99}, "saturating"),
        ({"rising": False, "p_shift": 0.099, "late_slope": 1.0}, "none"),
        ({"rising": False, "p_shift": 0.1, "p": 0.05}, "none"),
        ({"rising": False, "p_shift": 0.1, "slope": Slope(0.0, 0, 1, 20)}, "none"),
    ],
)
def test_a_label_needs_all_of_its_evidence(changed, label):
    assert label_growth(replace(GROWING, **changed), LIMITS) == label


def test_a_shift_has_its_place_and_its_size():
    """Steps 10 to 25, three of them warm-up: the new level begins at step 19, 50 higher."""
    steps = np.arange(10, 26)
    found = measure_growth(steps, 500.0 + 50 * (steps >= 19) + 0.01 * (steps % 2), LIMITS)
    assert label_growth(found, LIMITS) == "shift"
    assert found.shift == (19, pytest.approx(50, abs=0.02))
    assert measure_growth(range(5), [1.0, 2, 3, 4, 5], LIMITS).shift is None
    assert measure_growth(range(6), [1.0, 2, 3, 4, 5, 6], LIMITS).shift is None


def test_the_evidence_of_a_series_is_measured_after_its_warm_up():
    """Of ten points three are warm-up; 13, 14, 15, 16, 17, 18, 40 remain over x = 3 to 9."""
    found = measure_growth(range(10), [900.0, 900, 900, 13, 14, 15, 16, 17, 18, 40], LIMITS)
    assert (found.warm_up, found.spread, found.level) == (3, 27.0, 16.0)
    # 15 of 21 slopes are 1; from the fourth on 16, 17, 18, 40: 1, 1, 1, 22, 11.5 and 8.
    assert found.slope.per_x == 1.0
    assert found.late_slope == pytest.approx(4.5)
    assert found.rising
    # Residuals from the line are 10 six times and once 31: their median deviation is 0, so the least slope counts.
    assert found.detectable == 0.25
    # The tail of the normal for S = 21 of variance 44.3333 and of the exact test, 1/5040: the larger.
    assert found.p == pytest.approx(0.001333, abs=2e-6)


@pytest.mark.parametrize(("last", "is_rising"), [([6, 7, 8], True), ([4, 4, 4], False), ([3, 3, 3], False)])
def test_growth_is_steady_if_each_third_is_above_the_one_before(last, is_rising):
    """Of nine points after three of warm-up the thirds have medians 1, 4 and that of the last."""
    found = measure_growth(range(12), [0.0, 0, 0, 0, 1, 2, 3, 4, 5, *last], LIMITS)
    assert found.rising == is_rising


def test_p_of_several_series_takes_the_place_of_its_own():
    found = measure_growth(range(12), [2.0 * n for n in range(12)], LIMITS)
    assert label_growth(found, LIMITS) == "strong"
    assert label_growth(found, LIMITS, 0.04) == "likely"
    assert label_growth(found, LIMITS, 0.05) == "none"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_only_raises_and_keeps_the_order(p):
    corrected = holm(p)
    assert all(0 <= a <= b <= 1 for a, b in zip(p, corrected, strict=True))
    order = np.argsort(p, kind="stable")
    assert (np.diff(np.array(corrected)[order]) >= 0).all()
    assert min(corrected) == pytest.approx(min(1.0, min(p) * len(p)))


def test_long_series_are_thinned_and_keep_their_slope():
    found = compute_theil_sen(np.arange(5000), 3.0 * np.arange(5000))
    assert (found.count, found.per_x) == (MAX_POINTS, 3.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e15, 1e15), max_size=30))
def test_no_series_breaks_it(values):
    assert label_growth(measure_growth(range(len(values)), values, LIMITS), LIMITS) is not None


SCENARIOS = {
    # (what happens, steps): share called likely or strong, share called strong, worked out beforehand.
    "flat, deviation 50, 10 steps": (lambda n, rng: rng.normal(0, 50, n), 10, 0.023, 0.001),
    "flat, deviation 50, 20 steps": (lambda n, rng: rng.normal(0, 50, n), 20, 0.022, 0.0),
    "1 a step, deviation 1, 8 steps": (lambda n, rng: np.arange(n) + rng.normal(0, 1, n), 8, 0.64, 0.15),
    "1 a step, deviation 1, 10 steps": (lambda n, rng: np.arange(n) + rng.normal(0, 1, n), 10, 0.85, 0.42),
    "1 a step, deviation 5, 20 steps": (lambda n, rng: np.arange(n) + rng.normal(0, 5, n), 20, 0.73, 0.24),
    "10 a step, deviation 50, 20 steps": (lambda n, rng: 10 * np.arange(n) + rng.normal(0, 50, n), 20, 0.70, 0.22),
    "levelling off, 20 steps": (lambda n, rng: -1000 * np.exp(-np.arange(n) / 3) + rng.normal(0, 5, n), 20, 0.0, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_noise_is_rarely_called_growth_and_growth_is_seen_as_often_as_foretold(name):
    make, count, grows, strong = SCENARIOS[name]
    rng = np.random.default_rng(7)
    labels = [shown(40 * 1024 + make(count, rng)) for _ in range(400)]
    assert np.mean([one in ("likely", "strong") for one in labels]) == pytest.approx(grows, abs=0.06)  # fmt: skip
    assert np.mean([one == "strong" for one in labels]) == pytest.approx(strong, abs=0.06)
