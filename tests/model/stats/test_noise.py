"""A/A calibration: the spread of equal runs, its stored form, and what is no calibration."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.stats.noise import Noise, calibrate_noise

E = 2.718281828459045


def test_the_spread_is_that_of_log_run_means():
    # Log means 0, .02, .04, .06: Σu² = .002, sd = √(.002/3) = .0258199 on 3 degrees.
    found = calibrate_noise([[1.0], [E**0.02], [E**0.04], [E**0.06]])
    assert found.sd == pytest.approx(0.0258199, abs=1e-7)
    assert (found.df, found.runs, found.steps, found.rho) == (3, 4, 1, None)
    assert found.usable


def test_the_correlation_is_over_all_runs_by_their_steps():
    # ln 1/2 waves: 1 1 2 2 1 1 2 2 has 0.296875 (8 steps), 1 2 2 1 −0.1875 (4 steps); two steps tell nothing.
    found = calibrate_noise([[1, 1, 2, 2, 1, 1, 2, 2], [1, 2, 2, 1], [1, 2], [5, 5, 5]])
    assert found.rho == pytest.approx((8 * 0.296875 - 4 * 0.1875) / 12)
    assert found.steps == 2
    assert calibrate_noise([[1, 2, 1], [1, 2, 2]]).rho is not None, "three steps do"


def test_a_correlation_beyond_minus_one_is_minus_one():
    # ln 1/2 waves of 1 2 1 2: the estimate is −1.0625.
    assert calibrate_noise([[1, 2, 1, 2], [2, 1, 2, 1]]).rho == -1.0


@pytest.mark.parametrize(("runs", "usable"), [(2, False), (3, False), (4, True)])
def test_from_four_runs_on_it_is_used(runs, usable):
    assert calibrate_noise([[1.0 + run / 100] for run in range(runs)]).usable is usable


def test_runs_that_are_all_the_same_calibrate_nothing():
    found = calibrate_noise([[0.1, 0.1]] * 6)
    assert (found.sd, found.usable) == (0.0, False)


@pytest.mark.parametrize("runs", [[], [[1.0, 2.0]], [[1.0], [0.0]], [[1.0], [-1.0]], [[1.0], []]])
def test_what_cannot_be_calibrated_is_said(runs):
    with pytest.raises(ValueError):
        calibrate_noise(runs)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.floats(0.1, 10), min_size=1, max_size=6), min_size=2, max_size=6),
    st.floats(1e-6, 1e6),
    st.randoms(use_true_random=False),
)
def test_neither_unit_nor_order_matters_and_the_stored_form_is_whole(runs, factor, random):
    found = calibrate_noise(runs)
    moved = calibrate_noise([[factor * value for value in run] for run in random.sample(runs, len(runs))])
    assert moved.sd == pytest.approx(found.sd, abs=1e-9)
    assert (moved.df, moved.steps) == (found.df, found.steps)
    assert Noise.from_dict(json.loads(json.dumps(found.to_dict()))) == found


GOOD = {"sd": 0.01, "df": 3, "runs": 4, "steps": 5, "rho": None}


@pytest.mark.parametrize(
    "wrong",
    [
        {"sd": -0.1},
        {"sd": "0.01"},
        {"sd": None},
        {"sd": float("nan")},
        {"sd": float("inf")},
        {"sd": 10**400},
        {"sd": True},
        {"df": 4},
        {"runs": 4.5},
        {"runs": 1, "df": 0},
        {"steps": 0},
        {"sd": 1e100},
        {"rho": "high"},
        {"logs": "0, 0, 0"},
        {"logs": None},
        {"logs": [0.0, 0.01, 0.02]},
        {"logs": [0.0, 0.01, 0.02, "0.03"]},
        {"logs": [0.0, 0.01, 0.02, float("nan")]},
        {"logs": [0.0, 0.01, 0.02, 0.03]},
    ],
)
def test_a_damaged_file_is_no_calibration(wrong):
    assert Noise.from_dict(GOOD).df == 3
    # ±.00866025 about their mean: √(4 · .000075 / 3) = .01.
    logs = [0.0086602545, -0.0086602545] * 2
    assert Noise.from_dict({**GOOD, "logs": logs}).logs == tuple(logs), "but for rounding"
    wide = [1.7320508084, -1.7320508084] * 2
    assert Noise.from_dict({**GOOD, "sd": 2.0, "logs": wide}).logs == tuple(wide)
    with pytest.raises(ValueError, match="noise"):
        Noise.from_dict({**GOOD, **wrong})
    with pytest.raises(ValueError, match="noise"):
        Noise.from_dict({})
