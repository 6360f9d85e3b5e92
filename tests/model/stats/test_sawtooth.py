"""Series that climb and fall back: what is one, what is none, and how often noise looks like one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.stats.sawtooth import LEAST_POINTS, Sawtooth, find_sawtooth


def teeth(period, count, height=60.0):
    return height / period * (np.arange(count) % period)


@pytest.mark.parametrize("period", [3, 4, 6, 8])
def test_a_regular_sawtooth_has_its_period_and_height(period):
    """Over three teeth and a point, there are three drops of height − height / period."""
    found = find_sawtooth(teeth(period, 3 * period + 1))
    assert found == Sawtooth(3, pytest.approx(60 - 60 / period), period)


def test_two_drops_or_uneven_ones_have_no_period():
    assert find_sawtooth(teeth(6, 17)) == Sawtooth(2, 50.0, None)
    uneven = np.concatenate([np.arange(n, dtype=float) for n in (4, 6, 5, 3)])
    assert find_sawtooth(uneven) == Sawtooth(3, 4.0, None)


def test_noise_on_the_teeth_does_not_hide_them():
    rng = np.random.default_rng(3)
    found = [find_sawtooth(teeth(6, 30, 100) + rng.normal(0, 3, 30)) for _ in range(200)]
    assert np.mean([one is not None and one.period == 6 for one in found]) > 0.95


@pytest.mark.parametrize(
    "series",
    [
        np.zeros(20),
        np.arange(20.0),
        100 * (np.arange(20) >= 10.0),  # a jump
        -100 * (np.arange(20) >= 10.0) + np.arange(20),  # one drop
        -teeth(6, 20),  # falls slowly, jumps up
        np.arange(20) - 3.0 * (np.arange(20) % 9 == 8),  # dips that take little back
        teeth(6, LEAST_POINTS - 1),
    ],
)
def test_what_is_no_sawtooth(series):
    assert find_sawtooth(series) is None


def test_drops_of_less_than_what_matters_are_none():
    assert find_sawtooth(teeth(6, 20), min_drop=49.9) is not None
    assert find_sawtooth(teeth(6, 20), min_drop=50.0) is None


@pytest.mark.parametrize(("count", "most"), [(8, 0.03), (17, 0.02), (20, 0.01), (47, 0.01)])
def test_of_2000_series_of_noise_few_look_like_one(count, most):
    rng = np.random.default_rng(count)
    found = [find_sawtooth(rng.normal(0, 50, count)) for _ in range(2000)]
    assert np.mean([one is not None for one in found]) < most


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e15, 1e15), max_size=30))
def test_no_series_breaks_it(values):
    found = find_sawtooth(values)
    assert found is None or (found.count >= 2 and found.height > 0)
