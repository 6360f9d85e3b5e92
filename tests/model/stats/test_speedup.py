"""Two sides compared: every design's numbers by hand, what each covers, and what no design can know."""

import json
from dataclasses import asdict, replace
from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.stats.designs import (
    EarlierRuns,
    compute_between_run_terms,
    compute_step_variance,
    compute_within_run_terms,
)
from tracekit.model.stats.noise import Noise, calibrate_noise
from tracekit.model.stats.speedup import FOOTNOTES, compare_exact, compute_speedup, describe_footnotes

BASE = [10.2, 10.4, 10.1, 10.6, 10.3]
OPT = [9.1, 9.3, 9.0, 9.2, 9.4]
BASE_RUNS = [BASE, [10.5, 10.2, 10.4], [10.1, 10.0, 10.3]]
OPT_RUNS = [OPT, [9.3, 9.1], [9.0, 9.4, 9.2]]
FOURTH = [10.2, 10.3, 10.25], [9.3, 9.2, 9.4]
NOISE = Noise(sd=0.01, df=7.0, runs=8, steps=5, rho=None)

values = st.floats(0.5, 2.0)
sides = st.lists(st.lists(values, min_size=1, max_size=8), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("base", "opt", "noise", "ratio", "low", "high", "df", "label"),
    [
        ([BASE], [OPT], None, 1.121739, 1.092758, 1.151489, 7.9479, "within-run"),
        ([*BASE_RUNS, FOURTH[0]], [*OPT_RUNS, FOURTH[1]], None, 1.112979, 1.096578, 1.129627, 4.6414, "run-to-run"),
        # Runs of opt do not differ: base has its own spread, as large as one for both, on 2 degrees.
        (BASE_RUNS, OPT_RUNS, None, 1.116613, 1.083673, 1.150554, 2, "run-to-run"),
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


def of_logs(*logs):
    """Runs of one step with these log means."""
    return [[exp(value)] for value in logs]


ALIKE = of_logs(-0.01, 0.0, 0.01)
"""Squares of .0002 about their mean."""


@pytest.mark.parametrize(("wide", "label"), [(0.0199, "run-to-run (equal spread assumed)"), (0.0201, "run-to-run")])
def test_three_runs_share_a_spread_unless_one_side_seems_to_vary_more(wide, label):
    # F(.8; 2, 2) is 4: twice the spread of the other side.
    for sides in ((ALIKE, of_logs(-wide, 0, wide)), (of_logs(-wide, 0, wide), ALIKE)):
        assert compute_speedup(*sides).label == label


def test_the_own_spreads_of_three_runs_have_fewer_degrees_of_freedom():
    # Variances .01 and .0016, 6.25 times: (.01 + .0016) / 3 either way, on 2 · .0116² / (.01² + .0016²) = 2.624025.
    found = compute_speedup(of_logs(-0.1, 0, 0.1), of_logs(-0.04, 0, 0.04))
    assert (found.se, found.df) == pytest.approx(((0.0116 / 3) ** 0.5, 2.624025), rel=1e-6)
    assert (found.base.spread, found.opt.spread) == pytest.approx((0.1, 0.04))
    assert "own spread" in found.footnotes
    assert "base varies 2.5 times as much as opt: each side's own spread was used" in describe_footnotes(found)
    # 3.75 times: pooled, .0126667 / 2 · 2/3, on 4.
    found = compute_speedup(of_logs(-0.1, 0, 0.1), of_logs(-0.1 / 3.75**0.5, 0, 0.1 / 3.75**0.5))
    assert (found.se, found.df) == pytest.approx(((0.01 * (1 + 1 / 3.75) / 3) ** 0.5, 4))
    assert "own spread" not in found.footnotes


@pytest.mark.parametrize(("times", "label"), [(1.50, "run-to-run (equal spread assumed)"), (1.51, "run-to-run")])
def test_of_unequal_sides_the_one_known_less_may_vary_more(times, label):
    # F(.8; 2, 5) = 2.5 (.2^−.4 − 1) = 2.259135 = 1.503². Six runs ±.01: variance 6 · .0001 / 5.
    six = of_logs(0.01, -0.01, 0.01, -0.01, 0.01, -0.01)
    wide = times * (1.2e-4) ** 0.5
    for sides in ((six, of_logs(-wide, 0, wide)), (of_logs(-wide, 0, wide), six)):
        found = compute_speedup(*sides)
        assert found.label == label
    # The side known better may vary as much as it likes: pooled, (5 · .012 + 2 · .0001) / 7 (1/6 + 1/3).
    found = compute_speedup(of_logs(0.1, -0.1, 0.1, -0.1, 0.1, -0.1), ALIKE)
    assert (found.label, found.df) == ("run-to-run (equal spread assumed)", 7)
    assert found.se == pytest.approx(((0.06 + 0.0002) / 7 / 2) ** 0.5)


def test_own_spreads_are_never_narrower_than_one_for_both():
    # Base: three runs, .0002, and .0011 of 12 earlier ones: .0013 / 13. Opt: ten of .0036 / 9, F(.8; 9, 13) = 1.65.
    # Own: .0001/3 + .0004/10 = 7.333e-5 on 20.4286 degrees; one spread: .0049 / 22 (1/3 + 1/10) = 9.6515e-5.
    base, half = np.array([-0.01, 0.0, 0.01]), (0.0036 / 10) ** 0.5
    terms = compute_between_run_terms(base, np.array([half, -half] * 5), EarlierRuns(12, 0.0011, None))
    assert bool(terms.is_own)
    assert float(terms.variance) == pytest.approx(0.0049 / 22 * 13 / 30)
    assert float(terms.df) == pytest.approx(20.4286, abs=1e-4)
    assert (float(terms.shared), terms.shared_df) == (pytest.approx(float(terms.variance)), 22)


def calibrated(*logs, **changed):
    return replace(calibrate_noise(of_logs(*logs)), **changed)


EIGHT = (0.012, -0.008) * 4
"""Squares of .0008 about their mean, a range of .02; none of them is a run of `ALIKE`."""


def test_earlier_runs_are_part_of_the_spread_of_base():
    # Base .0002 + .0008 on 2 + 7 degrees, opt .0002 on 2: .0012 / 11 · 2/3, and t(11) = 2.200985.
    found = compute_speedup(ALIKE, of_logs(-0.11, -0.1, -0.09), noise=calibrated(*EIGHT))
    assert (found.label, found.df) == ("run-to-run (A/A noise)", 11)
    assert found.se == pytest.approx((0.0012 / 11 * 2 / 3) ** 0.5)
    assert log(found.high / found.ratio) == pytest.approx(2.200985 * found.se, abs=1e-7)
    assert (found.earlier.runs, found.earlier.squares, found.earlier.widest) == (
        8,
        pytest.approx(0.0008),
        pytest.approx(0.02),
    )
    # Four runs per side share one spread as well then: (.0004 + .0008 + .0004) / (10 + 3) · 1/2.
    waves = of_logs(0.01, -0.01, 0.01, -0.01)
    four = compute_speedup(waves, waves, noise=calibrated(*EIGHT))
    assert (four.se, four.df) == (pytest.approx((0.0016 / 13 / 2) ** 0.5), 13)


def test_opt_that_varies_more_than_base_and_its_history_has_its_own_spread():
    # .001 / 9 and .0004: 3.6 times, F(.8; 2, 9) = 1.93. .001/27 + .0004/3 on V² / ((.001/27)²/9 + (.0004/3)²/2).
    found = compute_speedup(ALIKE, of_logs(-0.02, 0, 0.02), noise=calibrated(*EIGHT))
    assert (found.se, found.df) == pytest.approx((1.703704e-4**0.5, 3.21038), rel=1e-5)
    assert (found.base.spread, found.opt.spread) == pytest.approx(((0.001 / 9) ** 0.5, 0.02))
    assert "opt varies 1.9 times as much as base: each side's own spread was used" in describe_footnotes(found)


def test_earlier_runs_that_are_those_of_the_base_do_not_count_twice():
    opt = of_logs(-0.11, -0.1, -0.095)
    found = compute_speedup(ALIKE, opt, noise=calibrated(-0.01, 0.0, 0.01, 0.03, 0.04, -0.02))
    apart = compute_speedup(ALIKE, opt, noise=calibrated(0.03, 0.04, -0.02, 0.5, steps=1))
    others = np.array([0.03, 0.04, -0.02])
    assert (found.earlier.runs, found.earlier.squares) == (3, pytest.approx(((others - others.mean()) ** 2).sum()))
    assert apart.earlier.runs == 4
    # Two left are one, one left is none.
    two = compute_speedup(ALIKE, opt, noise=calibrated(-0.01, 0.0, 0.01, 0.03, 0.05))
    assert (two.earlier.runs, two.earlier.squares) == (2, pytest.approx(0.0002))
    alone = compute_speedup(ALIKE, opt, noise=calibrated(-0.01, 0.0, 0.01, 0.03))
    assert alone.earlier is None
    plain = compute_speedup(ALIKE, opt)
    assert (alone.low, alone.high, alone.label, alone.spreads) == (plain.low, plain.high, plain.label, plain.spreads)
    # Beside steps of one run it stands by itself, so that none is left out.
    single = compute_speedup([BASE], [OPT], noise=calibrated(log(np.mean(BASE)), 2.3, 2.31, 2.32))
    assert single.earlier.runs == 4


def test_noise_of_the_own_runs_of_base_leaves_no_footnote():
    four = of_logs(-0.01, 0.0, 0.01, 0.05)
    found = compute_speedup(four, of_logs(0.0, 0.001, 0.002, 0.001), noise=calibrate_noise(four))
    assert (found.earlier, found.label, found.footnotes) == (None, "run-to-run", ())


def test_a_noise_file_without_run_values_is_a_spread_alone():
    old = calibrated(*EIGHT, logs=())
    assert Noise.from_dict({key: value for key, value in old.to_dict().items() if key != "logs"}) == old
    opt = of_logs(-0.11, -0.1, -0.09)
    found, known = compute_speedup(ALIKE, opt, noise=old), compute_speedup(ALIKE, opt, noise=calibrated(*EIGHT))
    assert (found.low, found.high, found.df) == pytest.approx((known.low, known.high, known.df))
    assert (found.earlier.runs, found.earlier.widest) == (8, None)


def test_sides_of_unequal_numbers_or_with_history_have_to_exceed_one_spread_for_both_too():
    four, five = of_logs(-0.01, 0, 0.01, 0.02), of_logs(-0.01, 0, 0.01, 0.02, 0.03)
    seven, eight = (of_logs(*(0.01 * run for run in range(number))) for number in (7, 8))

    def shown(base, opt, **more):
        return [(s.widens, s.alpha, s.df) for s in compute_speedup(base, opt, **more).spreads]

    assert [(widens, alpha) for widens, alpha, _ in shown(four, four)] == [(True, 0.0025)]
    assert [row[1:] for row in shown(five, four)[1:]] == [(0.0025, 7.0)]
    assert [row[:2] for row in shown(five, five)] == [(True, 0.003)]
    assert [row[:2] for row in shown(seven, eight)] == [(True, 0.003), (False, 0.003)]
    assert [row[:2] for row in shown(eight, eight)] == [(True, 0.0025)]
    assert [row[1:] for row in shown(four, four, noise=calibrated(*EIGHT))] == [(0.0025, 13.0)] * 2
    # Pairs of runs by their number; steps by what they may show.
    assert [s.alpha for s in compute_speedup(five, five[::-1], paired="run").spreads] == [0.003]
    assert [s.alpha for s in compute_speedup([BASE], [OPT]).spreads] == [0.004]
    assert [s.alpha for s in compute_speedup([BASE], [OPT], noise=NOISE).spreads] == [0.004, 0.0025]
    assert [s.alpha for s in compute_speedup([BASE] * 2, [OPT, BASE]).spreads][1:] == [0.004]


def test_a_side_keeps_the_logarithms_of_its_run_means():
    found = compute_speedup(BASE_RUNS, [OPT])
    assert found.base.logs == pytest.approx([log(np.mean(run)) for run in BASE_RUNS])
    assert found.opt.logs == pytest.approx([log(9.2)])


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
