"""How many runs or steps it takes: the spreads of a planned comparison, worked out by hand, and the smallest that decides."""

from dataclasses import replace
from math import log1p

import pytest

from tracekit.model.stats import needed
from tracekit.model.stats.certainty import ErrorSpread
from tracekit.model.stats.needed import MOST_RUNS, compute_needed_runs, predict_run_spreads
from tracekit.model.stats.noise import Noise
from tracekit.model.stats.outlook import compute_chances
from tracekit.model.stats.speedup import compute_speedup

RUNS = [[10.0], [10.2], [9.9]]
STEPS = [10.2, 10.4, 10.1, 10.6, 10.3]
DELTA = log1p(0.03)


def noise(sd):
    return Noise(sd=sd, df=7.0, runs=8, steps=5, rho=None)


def of_spreads(base, opt, found, **more):
    """The comparison with these standard deviations of one run or step on its sides."""
    return replace(found, base=replace(found.base, spread=base), opt=replace(found.opt, spread=opt), **more)


def test_pairs_of_runs_have_the_spread_of_one_pair_over_the_root_of_their_number():
    found = replace(compute_speedup(RUNS, RUNS[::-1], paired="run"), pair_spread=0.02)
    assert predict_run_spreads(found, 4) == (ErrorSpread(0.01, 3.0),)
    assert predict_run_spreads(found, 4, times=1.5) == (ErrorSpread(0.015, 3.0),)


def test_pairs_of_steps_tell_of_runs_what_their_mean_varies_by_and_the_noise_at_least():
    # 5 steps of .05: a mean varies by .05²/5 = .0005; two runs of noise .02 differ by 2 · .0004 = .0008.
    found = replace(compute_speedup([STEPS], [STEPS[::-1]], paired="step"), pair_spread=0.05)
    (calm,) = predict_run_spreads(found, 5)
    assert (calm.se, calm.df) == (pytest.approx(0.01), 4.0)
    (noisy,) = predict_run_spreads(replace(found, noise=noise(0.02)), 2)
    assert (noisy.se, noisy.df) == (pytest.approx(0.02), 1.0)
    (less,) = predict_run_spreads(replace(found, noise=noise(0.01)), 5)
    assert less.se == pytest.approx(0.01)


def test_runs_are_pooled_up_to_three_a_side_and_have_a_spread_of_their_own_from_four():
    # .03² + .04² = .0025; of four runs Welch: 3 / (.36² + .64²) = 5.563798 degrees.
    found = of_spreads(0.03, 0.04, compute_speedup(RUNS, RUNS))
    three, four = predict_run_spreads(found, 3)[0], predict_run_spreads(found, 4, times=2.0)[0]
    assert (three.se, three.df) == (pytest.approx(0.0288675, rel=1e-5), 4.0)
    assert (four.se, four.df) == (pytest.approx(0.05), pytest.approx(5.563798, rel=1e-5))


def test_the_scatter_of_steps_falls_with_the_runs_and_gains_degrees_of_freedom():
    # 3 v 6 runs: 1/3 + 1/6 = 1/2; 16 a side: 1/8, a quarter: half of the error. 10 · (32 − 1) / (9 − 1) degrees.
    inner = ErrorSpread(0.03, 10.0, widens=False)
    found = replace(compute_speedup(RUNS, RUNS * 2), spreads=(ErrorSpread(0.01, 7.0), inner))
    planned = predict_run_spreads(found, 16)
    assert len(planned) == 2
    assert (planned[1].se, planned[1].df, planned[1].widens) == (pytest.approx(0.015), 38.75, False)


def test_steps_of_one_run_give_the_variance_of_its_mean_and_the_noise_at_least():
    # A correlation of 1/3 makes 10 steps worth 5: s² · 9 / (10 · (5 − 1)) = .02² · .225 = .00009.
    found = of_spreads(0.02, 0.02, compute_speedup([STEPS * 2], [STEPS * 2]), rho=1 / 3)
    assert predict_run_spreads(found, 2)[0].se == pytest.approx(0.00009**0.5)
    assert predict_run_spreads(replace(found, noise=noise(0.01)), 2)[0].se == pytest.approx(0.01)
    assert predict_run_spreads(replace(found, noise=noise(0.001)), 2)[0].se == pytest.approx(0.00009**0.5)
    # Without a correlation: .02² · 9 / (10 · 9) = .00004. A side that does not vary adds nothing.
    independent = replace(found, rho=None)
    assert predict_run_spreads(independent, 2)[0].se == pytest.approx(0.00004**0.5)
    assert predict_run_spreads(of_spreads(0.0, 0.02, independent), 2)[0].se == pytest.approx(0.00002**0.5)
    assert predict_run_spreads(of_spreads(0.02, 0.0, independent), 2)[0].se == pytest.approx(0.00002**0.5)


def test_more_steps_of_one_run_lower_its_spread_but_not_the_calibrated_noise():
    calibrated = ErrorSpread(0.01, 7.0, drawn=False)
    found = of_spreads(0.03, 0.04, compute_speedup([STEPS], [STEPS]), rho=1 / 3)
    found = replace(found, spreads=(ErrorSpread(0.5, 4.0), calibrated))
    # 10 steps are worth 5: .0025 · .225 = .0005625, and Welch's 4 / (.36² + .64²) = 7.418398 degrees.
    own, noisy = needed._predict_step_spreads(found, 10)
    assert (own.se, own.df) == (pytest.approx(0.0005625**0.5), pytest.approx(7.418398, rel=1e-5))
    assert noisy is calibrated
    # Independent: 5 steps, .0025 / 5.
    assert needed._predict_step_spreads(replace(found, rho=None), 5)[0].se == pytest.approx(0.0005**0.5)
    still = of_spreads(0.0, 0.0, found)
    assert needed._predict_step_spreads(still, 10) == (calibrated,)
    half = needed._predict_step_spreads(of_spreads(0.0, 0.04, found), 10)[0]
    assert (half.se, half.df) == (pytest.approx((0.0016 * 0.225) ** 0.5), pytest.approx(4.0))
    half = needed._predict_step_spreads(of_spreads(0.03, 0.0, found), 10)[0]
    assert (half.se, half.df) == (pytest.approx((0.0009 * 0.225) ** 0.5), pytest.approx(4.0))
    paired = needed._predict_step_spreads(replace(found, pair_spread=0.06), 9)
    assert paired == (ErrorSpread(0.02, 8.0), calibrated)


@pytest.mark.parametrize("change", [None, 0.06])
def test_the_number_of_runs_is_the_smallest_that_decides_in_four_of_five(change):
    found = of_spreads(0.015, 0.015, compute_speedup(RUNS, RUNS))
    runs = compute_needed_runs(found, change=change).runs

    def share(count):
        chances = compute_chances(log1p(change or 0.0), predict_run_spreads(found, count), DELTA, 0.95)
        return chances.no_change if change is None else chances.regression

    assert 2 < runs < MOST_RUNS
    assert share(runs - 1) < 0.8 <= share(runs)


def test_two_runs_are_the_fewest_that_are_recommended():
    assert compute_needed_runs(of_spreads(1e-5, 1e-5, compute_speedup(RUNS, RUNS))).runs == 2


def test_steps_are_counted_where_they_may_decide():
    independent = compute_speedup([STEPS], [STEPS])
    assert compute_needed_runs(independent).steps is None
    assert compute_needed_runs(independent, accept_steps=True).steps > 2
    calm = compute_speedup([STEPS], [STEPS], noise=noise(0.001))
    assert compute_needed_runs(calm).steps > 2
    runs = of_spreads(0.015, 0.015, compute_speedup(RUNS, RUNS))
    assert compute_needed_runs(runs, accept_steps=True).steps is None


def test_what_cannot_be_recommended_is_left_open():
    wild = compute_speedup([[1, 9, 2, 30, 4]], [[40, 2, 8, 1, 9]])
    plan = compute_needed_runs(wild)
    assert (plan.runs, plan.most_runs, plan.at_least) == (None, None, False)
    # The estimated spread of 6 % is within reach of 100 runs, the largest that three runs allow is not.
    rough = of_spreads(0.06, 0.06, compute_speedup(RUNS, RUNS))
    plan = compute_needed_runs(rough)
    assert plan.runs is not None
    assert plan.most_runs is None
