"""Two sides compared: every design's numbers by hand, what each covers, and what no design can know."""

import json
from dataclasses import asdict
from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.stats.designs import compute_step_variance, compute_within_run_terms
from tracekit.model.stats.noise import Noise
from tracekit.model.stats.speedup import FOOTNOTES, compare_exact, compute_speedup

BASE = [10.2, 10.4, 10.1, 10.6, 10.3]
OPT = [9.1, 9.3, 9.0, 9.2, 9.4]
BASE_RUNS = [BASE, [10.5, 10.2, 10.4], [10.1, 10.0, 10.3]]
OPT_RUNS = [OPT, [9.3, 9.1], [9.0, 9.4, 9.2]]
NOISE = Noise(sd=0.01, df=7.0, runs=8, steps=5, rho=None)

values = st.floats(0.5, 2.0)
sides = st.lists(st.lists(values, min_size=1, max_size=8), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("base", "opt", "noise", "ratio", "low", "high", "df", "label"),
    [
        ([BASE], [OPT], None, 1.121739, 1.092758, 1.151489, 7.9479, "within-run"),
        (BASE_RUNS, OPT_RUNS, None, 1.116613, 1.095244, 1.138398, 4, "run-to-run (equal spread assumed)"),
        (BASE_RUNS, [OPT], None, 1.116613, 1.051704, 1.185527, 2, "run-to-run (equal spread assumed)"),
        ([BASE], [OPT], NOISE, 1.121739, 1.084848, 1.159885, 7, "run-to-run (A/A noise)"),
    ],
)  # fmt: skip
def test_the_reference_values(base, opt, noise, ratio, low, high, df, label):
    found = compute_speedup(base, opt, noise=noise)
    assert (found.ratio, found.low, found.high) == pytest.approx((ratio, low, high), abs=1e-6)
    assert found.df == pytest.approx(df, abs=1e-4)
    assert found.label == label


def test_one_step_a_side_is_a_number_without_an_interval():
    found = compute_speedup([[10.0]], [[9.0]])
    assert found.ratio == pytest.approx(10 / 9)
    assert (found.low, found.high, found.se, found.df, found.spreads) == (None,) * 4 + ((),)
    assert (found.label, found.footnotes) == ("no interval", ("one step",))
    # Neither many steps on the other side nor calibrated noise make one step more.
    assert compute_speedup([[10.0]], [OPT]).label == "no interval"
    assert compute_speedup([[10.0]], [[9.0]], noise=NOISE).low is None


def test_the_spread_of_few_runs_is_that_of_one_run_not_of_a_mean():
    # Σu² of the logs: 2.0003e-4 of three and 2.4695e-4 of three, 6.1051e-5 of two; on 4 and 3 degrees of freedom.
    three, other, two = [[100.0], [101], [99]], [[90.0], [91], [89]], [[90.0], [91]]
    found = compute_speedup(three, other)
    assert found.label == "run-to-run (equal spread assumed)"
    assert found.base.spread == found.opt.spread == pytest.approx((4.4698e-4 / 4) ** 0.5, rel=1e-4)
    found = compute_speedup(three, two)
    assert found.base.spread == found.opt.spread == pytest.approx((2.61081e-4 / 3) ** 0.5, rel=1e-4)


def test_four_runs_a_side_have_each_their_own_spread():
    # Log means 0 .02 .04 .06 (Σu² = .002) and −.1 −.09 −.08 −.07 (Σu² = .0005):
    # variances of the means 1/6000 and 1/24000, total 1/4800; df = 3 · (4 + 1)² / (4² + 1²) = 75/17.
    base = [[exp(0.02 * run)] for run in range(4)]
    opt = [[exp(-0.1 + 0.01 * run)] for run in range(4)]
    found = compute_speedup(base, opt)
    assert found.label == "run-to-run"
    assert found.log_ratio == pytest.approx(0.115)
    assert found.se == pytest.approx(4800**-0.5)
    assert found.df == pytest.approx(75 / 17)
    assert (found.base.spread, found.opt.spread) == pytest.approx((1500**-0.5, 6000**-0.5))
    assert compute_speedup(base[:3], opt).label == "run-to-run (equal spread assumed)"


def test_steps_of_one_run_are_widened_by_their_correlation():
    # As in the estimate: ρ = 0.296875, df 3.337349 a side; variance of a mean .0749097, relative to
    # 1.5² .0332932, twice .0665864.
    wave = [1, 1, 2, 2, 1, 1, 2, 2]
    found = compute_speedup([wave], [wave])
    assert found.rho == pytest.approx(0.296875)
    assert found.se == pytest.approx(0.0665864**0.5, abs=1e-6)
    assert found.df == pytest.approx(2 * 3.337349, abs=1e-5)
    assert found.ratio == 1


def test_pairs_of_steps_are_compared_by_their_residuals():
    # R = 20/11; residuals b/20 − o/11 = (1, 2, −3)/22, their variance 7/484, SE = √(7/1452), t(.975, 2).
    found = compute_speedup([[10, 20, 30]], [[5, 10, 18]], paired="step")
    assert (found.label, found.df) == ("within-run, paired", 2)
    assert found.se == pytest.approx((7 / 1452) ** 0.5)
    assert found.pair_spread == pytest.approx((7 / 484) ** 0.5)
    assert log(found.high / found.ratio) == pytest.approx(4.302653 * found.se, abs=1e-5)


def test_pairs_of_runs_are_compared_by_their_differences():
    # ln 2 and ln 2.5: mean .804719, sd |ln 1.25|/√2, SE ln(1.25)/2; t(.975, 1) = 12.706205.
    found = compute_speedup([[10, 10], [20]], [[5], [8]], paired="run")
    assert (found.label, found.df) == ("run-to-run, paired", 1)
    assert found.log_ratio == pytest.approx(log(5) / 2)
    assert found.se == pytest.approx(log(1.25) / 2)
    assert log(found.ratio / found.low) == pytest.approx(12.706205 * log(1.25) / 2, abs=1e-5)
    assert found.footnotes == ("two runs",)


def test_a_single_pair_of_runs_has_no_interval():
    found = compute_speedup([BASE], [OPT], paired="run")
    assert (found.low, found.label, found.footnotes) == (None, "no interval", ("one pair of runs",))


def test_shared_work_of_paired_steps_does_not_widen_the_interval():
    work = np.array([1.0, 4.0, 2.0, 8.0, 3.0])
    base, opt = 1.1 * work * [1, 1.01, 0.99, 1.01, 0.99], work
    paired, apart = compute_speedup([base], [opt], paired="step"), compute_speedup([base], [opt])
    assert paired.high / paired.low < 1.1 < 2 < apart.high / apart.low
    assert paired.ratio == apart.ratio


def test_the_wider_of_steps_and_noise_stands():
    noisy = [5.0, 15.0, 9.0, 14.0, 6.0]
    within, calibrated = (compute_speedup([noisy], [OPT]), compute_speedup([noisy], [OPT], noise=NOISE))
    assert (calibrated.low, calibrated.df) == (within.low, within.df)
    assert calibrated.label == "run-to-run (A/A noise)"
    # Paired steps cannot see how runs differ either.
    assert compute_speedup([BASE], [OPT], paired="step", noise=NOISE).label == "run-to-run (A/A noise)"


def test_noise_of_few_runs_is_not_used():
    few = Noise(sd=0.01, df=2.0, runs=3, steps=5, rho=None)
    found = compute_speedup([BASE], [OPT], noise=few)
    assert (found.label, found.noise, found.footnotes) == ("within-run", None, ("noise of few runs",))
    none = compute_speedup([BASE], [OPT], noise=Noise(0.0, 7.0, 8, 5, None))
    assert (none.label, none.footnotes) == ("within-run", ("noise without spread",))
    longer = compute_speedup([BASE], [OPT], noise=Noise(0.01, 7.0, 8, 20, None))
    assert longer.footnotes == ("noise of longer runs",)


def test_numbers_that_vary_on_either_side_are_not_exact():
    for base, opt in (([[5.0, 5]], [[5.0, 6]]), ([[5.0, 6]], [[5.0, 5]])):
        found = compare_exact(base, opt)
        assert (found.label, found.equal) == ("no interval", None)
    assert compare_exact([[5.0, 5]], [[5.0]]).equal is True


def test_a_side_tells_its_runs_its_steps_and_those_of_its_shortest_run():
    found = compute_speedup(BASE_RUNS, OPT_RUNS)
    sides = [(side.runs, side.steps, side.fewest) for side in (found.base, found.opt)]
    assert sides == [(3, 11, 3), (3, 10, 2)]


def test_the_spread_within_a_run_is_a_share_of_its_mean():
    # 9 10 11: standard deviation 1 of 10; 4 5 6: 1 of 5.
    found = compute_speedup([[9.0, 10, 11]], [[4.0, 5, 6]])
    assert found.label == "within-run"
    assert (found.base.spread, found.opt.spread) == pytest.approx((0.1, 0.2))


def test_runs_beside_one_alone_pool_their_spread_with_the_calibrated_one():
    # 3 v 1: the spread of the three (df 2) and 1 % of eight (df 7) are one on 9 degrees; SE = s √(1/3 + 1).
    means = np.log([np.mean(run) for run in BASE_RUNS])
    pooled = (((means - means.mean()) ** 2).sum() + 7 * 0.01**2) / 9
    found = compute_speedup(BASE_RUNS, [OPT], noise=NOISE)
    assert (found.label, found.df) == ("run-to-run (A/A noise)", 9)
    assert found.se == pytest.approx((pooled * (1 / 3 + 1)) ** 0.5)
    assert log(found.high / found.ratio) == pytest.approx(2.262157 * found.se, abs=1e-6)


def test_steps_inside_runs_are_a_spread_of_their_own():
    # Shares of the run's mean: (.9, 1.1) and (1.1, .9) of base, (1, 1) twice of opt; every place has mean 1 in all
    # four. Base is left with 4 · .01 on 2 · (2 − 1) · 3/4 = 1.5 degrees, opt with nothing: (.04/1.5) (1/2 + 1/2) / 2².
    base, opt = [np.array([9.0, 11.0]), np.array([11.0, 9.0])], [np.array([5.0, 5.0])] * 2
    variance, df = compute_step_variance(base, opt)
    assert (float(variance), float(df)) == pytest.approx((0.04 / 1.5 / 4, 1.5))
    assert compute_step_variance([np.array([1.0])] * 2, opt[:1]) is None


def test_what_places_have_in_common_in_all_runs_is_no_scatter():
    pattern = np.array([1.0, 3.0, 2.0, 5.0])
    variance, _ = compute_step_variance([pattern, 2 * pattern], [3 * pattern])
    assert float(variance) == pytest.approx(0, abs=1e-30)


def test_several_runs_have_no_use_for_calibrated_noise():
    assert compute_speedup(BASE_RUNS, OPT_RUNS, noise=NOISE).low == compute_speedup(BASE_RUNS, OPT_RUNS).low


@pytest.mark.parametrize(
    ("steps", "footnotes"), [(2, ("two steps",)), (3, ("few steps",)), (4, ("few steps",)), (5, ())]
)
def test_few_steps_are_said(steps, footnotes):
    found = compute_speedup([BASE[:steps]], [OPT])
    assert found.low is not None
    assert tuple(note for note in found.footnotes if note != "median disagrees") == footnotes


def test_few_runs_are_said():
    assert "two runs" in compute_speedup(BASE_RUNS[:2], OPT_RUNS).footnotes
    assert "two runs" in compute_speedup(BASE_RUNS[:2], [OPT]).footnotes
    assert "two runs" not in compute_speedup(BASE_RUNS, [OPT]).footnotes


@pytest.mark.parametrize("paired", [None, "step"])
def test_steps_without_any_variation_are_not_certain(paired):
    found = compute_speedup([[0.3] * 7], [[0.1] * 7], paired=paired)
    assert found.ratio == pytest.approx(3)
    assert (found.label, found.se, found.low, found.df) == ("no interval", 0, None, None)
    assert found.footnotes == ("no variation",)
    # Calibrated noise knows what they cannot.
    wide = compute_speedup([[0.3] * 7], [[0.1] * 7], paired=paired, noise=NOISE)
    assert log(wide.high / wide.ratio) == pytest.approx(2.364624 * 2**0.5 * 0.01, abs=1e-7)


def test_runs_without_any_variation_are_not_certain():
    for count in (2, 5):
        assert compute_speedup([[0.1]] * count, [[0.3]] * count).footnotes[-1] == "no variation"


def test_one_side_without_variation_leaves_the_other_to_tell():
    # ρ = 0 and df n − 1 of the side that varies; SE = sd/(√5 · mean).
    found = compute_speedup([BASE], [[9.0] * 5])
    assert found.df == pytest.approx(4)
    assert found.se == pytest.approx(np.std(BASE, ddof=1) / 5**0.5 / np.mean(BASE))


def test_both_means_are_told_where_they_differ():
    # Runs of mean 10 and 1000 against 10: √(10 · 1000) = 100 to 10, but 505 to 10 of the arithmetic means.
    found = compute_speedup([[10], [1000]], [[10], [10]])
    assert found.ratio == pytest.approx(10)
    assert found.grand_ratio == pytest.approx(50.5)
    assert found.difference == pytest.approx(-495)
    assert found.base.mean == 505


def test_a_median_that_tells_another_story_is_pointed_out():
    found = compute_speedup([[10, 10.1, 9.9, 10, 10.05] * 4], [[10, 10.1, 9.9, 10.05, 60] * 4])
    assert found.median_ratio == pytest.approx(1, abs=0.01)
    assert found.ratio == pytest.approx(0.5, abs=0.01)
    assert "median disagrees" in found.footnotes


@settings(deadline=None)
@given(sides, sides, st.floats(1e-6, 1e6))
def test_a_unit_of_measure_changes_nothing(base, opt, factor):
    one = compute_speedup(base, opt)
    two = compute_speedup(*([[factor * value for value in run] for run in side] for side in (base, opt)))
    assert (two.ratio, two.median_ratio) == pytest.approx((one.ratio, one.median_ratio))
    if one.low is not None and one.se > 1e-6:
        assert two.label == one.label
        assert (two.low, two.high, two.df) == pytest.approx((one.low, one.high, one.df), rel=1e-6)


@settings(deadline=None)
@given(sides, sides)
def test_swapped_sides_invert_the_ratio(base, opt):
    one, two = compute_speedup(base, opt), compute_speedup(opt, base)
    assert two.label == one.label
    assert two.ratio == pytest.approx(1 / one.ratio)
    assert two.median_ratio == pytest.approx(1 / one.median_ratio)
    if one.low is not None:
        assert (two.se, two.df) == pytest.approx((one.se, one.df))
        assert [s.se for s in two.spreads] == pytest.approx([s.se for s in one.spreads])
        assert (log(two.low), log(two.high)) == pytest.approx((-log(one.high), -log(one.low)))


@settings(deadline=None)
@given(sides, sides, st.randoms(use_true_random=False))
def test_the_order_of_runs_is_of_no_consequence(base, opt, random):
    one = compute_speedup(base, opt)
    two = compute_speedup(random.sample(base, len(base)), random.sample(opt, len(opt)))
    assert two.ratio == pytest.approx(one.ratio)
    if one.low is not None and one.se > 1e-6:
        assert (two.low, two.high, two.df) == pytest.approx((one.low, one.high, one.df), rel=1e-6)


@settings(deadline=None)
@given(sides, sides)
def test_the_ratio_lies_in_its_interval_and_all_of_it_can_be_stored(base, opt):
    found = compute_speedup(base, opt)
    assert found.low is None or found.low < found.ratio < found.high
    assert (found.low is None) == (found.label == "no interval")
    assert set(found.footnotes) <= set(FOOTNOTES)
    json.dumps(asdict(found), allow_nan=False)


def test_one_formula_serves_one_comparison_and_many():
    random = np.random.default_rng(0)
    base, opt = random.lognormal(0, 0.1, (20, 7)), random.lognormal(0, 0.1, (20, 5))
    many = compute_within_run_terms(base, opt)
    for at in range(20):
        one = compute_speedup([base[at]], [opt[at]])
        assert one.se == pytest.approx(many.variance[at] ** 0.5)
        assert (one.df, one.rho) == pytest.approx((many.df[at], many.rho[at]))


@pytest.mark.parametrize(
    ("base", "opt", "said"),
    [
        ([[1.0, 0.0]], [[1.0]], "base: run 1, step 2: 0.0"),
        ([[1.0]], [[1.0], [2.0, -3.0]], "opt: run 2, step 2: -3.0"),
        ([[1.0]], [[float("nan")]], "opt: run 1, step 1: nan"),
        ([[1.0]], [[float("inf")]], "opt: run 1, step 1: inf"),
        ([], [[1.0]], "base: no runs"),
        ([[1.0]], [[]], "opt: run 1 has no steps"),
    ],
)
def test_what_cannot_be_compared_is_named(base, opt, said):
    with pytest.raises(ValueError, match=said):
        compute_speedup(base, opt)


@pytest.mark.parametrize(
    ("base", "opt", "paired"),
    [
        ([BASE], [OPT[:4]], "step"),
        (BASE_RUNS, OPT_RUNS, "step"),
        (BASE_RUNS, OPT_RUNS[:2], "run"),
        ([BASE], [OPT], "steps"),
    ],
)
def test_what_is_no_pair_is_not_paired(base, opt, paired):
    with pytest.raises(ValueError, match="pair"):
        compute_speedup(base, opt, paired=paired)


@pytest.mark.parametrize("size", [1e-99, 1e99])
def test_absurd_sizes_are_still_numbers(size):
    found = compute_speedup([[size, 2 * size, 3 * size]], [[1e-50, 2e-50, 4e-50]])
    json.dumps(asdict(found), allow_nan=False)
    wild = compute_speedup([[1e-90, 1e90], [1e90]], [[1e90], [1e-90]])
    assert (wild.label, wild.low, wild.footnotes[-1]) == ("no interval", None, "too wide")


def test_exact_numbers_are_equal_or_not():
    same = compare_exact([[512, 512], [512]], [[512]])
    assert (same.label, same.equal, same.difference, same.ratio) == ("exact", True, 0, 1)
    less = compare_exact([[512]], [[384]])
    assert (less.equal, less.difference, less.ratio) == (False, -128, pytest.approx(4 / 3))
    new, gone = compare_exact([[0]], [[7]]), compare_exact([[7]], [[0]])
    assert (new.difference, new.ratio, gone.difference, gone.ratio) == (7, 0, -7, None)


def test_numbers_that_vary_are_not_exact():
    found = compare_exact([[512, 514]], [[512]])
    assert (found.equal, found.label, found.footnotes) == (None, "no interval", ("not exact",))
    assert (found.base, found.difference) == (513, -1)
    with pytest.raises(ValueError, match="base: run 1, step 1"):
        compare_exact([[float("nan")]], [[1]])


@pytest.mark.parametrize("sides", [([[1.0, 2.0]] * 2, [[1.0, 2.0]]), ([[1.0, 2.0]], [[1.0, 2.0]] * 2)])
def test_steps_of_several_runs_are_not_paired(sides):
    with pytest.raises(ValueError, match="not between several"):
        compute_speedup(*sides, paired="step")
