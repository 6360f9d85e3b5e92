"""Trends of short series: slopes, tests, and how often noise and real growth are told apart."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.stats.trend import MAX_POINTS, GrowthLimits, compute_theil_sen, holm, label_growth, measure_growth

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


def test_a_shift_has_its_place_and_its_size():
    """Steps 10 to 25, three of them warm-up: the new level begins at step 19, 50 higher."""
    steps = np.arange(10, 26)
    found = measure_growth(steps, 500.0 + 50 * (steps >= 19) + 0.01 * (steps % 2), LIMITS)
    assert label_growth(found, LIMITS) == "shift"
    assert found.shift == (19, pytest.approx(50, abs=0.02))
    assert measure_growth(range(5), [1.0, 2, 3, 4, 5], LIMITS).shift is None


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
