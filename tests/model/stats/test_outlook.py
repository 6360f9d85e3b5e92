"""How probable is each word? By hand, by integrals and simulated comparisons that know none of the formulas."""

from math import exp, log, log1p

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tracekit.model.stats import outlook
from tracekit.model.stats.certainty import ErrorSpread
from tracekit.model.stats.designs import EarlierRuns
from tracekit.model.stats.noise import Noise, calibrate_noise
from tracekit.model.stats.outlook import (
    MANY_COMPARISONS,
    SILENT,
    SPREADS,
    PlannedRuns,
    compute_chances,
    compute_chi2_quantile,
    draw_comparisons,
    draw_from_spreads,
    draw_runs,
    find_detectable_change,
)
from tracekit.model.stats.speedup import compute_speedup
from tracekit.model.stats.verdict import choose_verdict

DELTA = log1p(0.03)
BASE = [10.2, 10.4, 10.1, 10.6, 10.3]
KNOWN = 1e9
"""Degrees of freedom of a spread that is known."""


def runs_of(spread, count):
    """Runs of one step whose log means have exactly this standard deviation."""
    logs = np.linspace(-1, 1, count)
    return [[exp(value)] for value in spread * logs / logs.std(ddof=1)]


def of_spreads(*spreads):
    """Many drawn comparisons with these uncertainties, which may show a change."""
    return draw_from_spreads(spreads, 0.95, MANY_COMPARISONS, shows_change=True)


def of_known(spread, base, opt, repetitions=MANY_COMPARISONS, **more):
    """Drawn comparisons of runs whose spread is known."""
    known = spread, KNOWN
    return draw_runs((known, known), PlannedRuns(base, opt), more.get("earlier"), 0.95, repetitions)


@pytest.mark.parametrize(("share", "df"), [(0.1, 2), (0.5, 4), (0.9, 3), (0.0078125, 18)])
def test_the_quantiles_of_chi_squared_are_those_of_scipy(share, df):
    assert compute_chi2_quantile(share, df) == pytest.approx(stats.chi2.ppf(share, df), rel=1e-9)


def test_with_many_degrees_of_freedom_the_chances_are_those_of_the_normal():
    # SE .01 known: the interval reaches 1.959964 SE; at +5 % (.048790): (.048790 − .029559 − .0196) / .01 = −.0369
    # → Φ = .4853; at 0 inside: 2 Φ((.029559 − .0196)/.01 = .9959) − 1 = .6807. 32,768 draws: ± .003.
    surely = of_spreads(ErrorSpread(0.01, 1e7))
    assert compute_chances(log(1.05), surely, DELTA).regression == pytest.approx(0.4853, abs=0.01)
    assert compute_chances(0.0, surely, DELTA).no_change == pytest.approx(0.6807, abs=0.01)
    assert compute_chances(0.0, surely, DELTA).regression == 0
    # 400 runs per side of 14.1 %: the same SE, and t(798) = 1.9629 → .4841. 4,096 draws: ± .008.
    many = of_known(0.01 * 200**0.5, 400, 400, 64)
    assert compute_chances(log(1.05), many, DELTA).regression == pytest.approx(0.4841, abs=0.03)
    assert compute_chances(0.0, many, DELTA).no_change == pytest.approx(0.6795, abs=0.03)


def test_calibrated_noise_is_not_drawn_again():
    # Half of the interval stays t(7, .975) · .0141421 = .033441 > δ: never "no change"; at +10 % (.095310):
    # z = (.095310 − .029559 − .033441) / .0141421 = 2.2847 → .98884. What is certain, 4.0293 · .0141421, is less.
    one = of_spreads(ErrorSpread(2**0.5 * 0.01, 7.0, drawn=False))
    assert compute_chances(0.0, one, DELTA).no_change == 0
    assert compute_chances(log(1.1), one, DELTA).regression == pytest.approx(0.98884, abs=0.003)


def test_what_equal_sides_exceed_by_chance_bounds_the_chances():
    # 5.597568 · .01 = .055976 is more than δ = .001 and the interval's 2.776445 · .01: at .06 z = .40243 → .65632.
    one = ErrorSpread(0.01, 4.0, drawn=False)
    assert compute_chances(0.06, of_spreads(one), 0.001).regression == pytest.approx(0.65632, abs=0.01)
    assert compute_chances(-0.06, of_spreads(one), 0.001).improvement == pytest.approx(0.65632, abs=0.01)
    # Steps that scatter by .02 raise it to 4.907636 · .02 = .098153, and do not widen the interval: at .1 z = .18473
    # → .57328.
    scatter = ErrorSpread(0.02, 4.0, widens=False, drawn=False, alpha=0.004)
    drawn = of_spreads(one, scatter)
    assert compute_chances(0.1, drawn, 0.001).regression == pytest.approx(0.57328, abs=0.01)
    # 4 of 5 are at .098153 + .841621 · .01 = .106569 of the logarithm.
    assert log1p(find_detectable_change(drawn, 0.001)) == pytest.approx(0.106569, rel=3e-3)


def test_the_largest_error_of_several_counts():
    # t(7, .9975) · .02 = .080587, more than .029559 + t(7, .975) · .02 = .076852: z = (.095310 − .080587) / .02 = .73615
    # → .76918.
    drawn = of_spreads(ErrorSpread(0.01, 7.0, drawn=False), ErrorSpread(0.02, 7.0, drawn=False))
    assert compute_chances(log(1.1), drawn, DELTA).regression == pytest.approx(0.76918, abs=0.01)


@pytest.mark.parametrize(("df", "change"), [(4.0, 0.1), (6.0, 0.05), (18.0, 0.05)])
def test_a_spread_is_unknown_now_and_drawn_anew_later(df, change):
    """By an integral: σ² is se² df / χ², a new estimate of it σ² χ² / df, and the log ratio normal around the change."""
    se, worse = 0.01, log1p(change)
    shares = (np.arange(400) + 0.5) / 400
    true = se * np.sqrt(df / stats.chi2.ppf(shares, df))[:, None]
    again = true * np.sqrt(stats.chi2.ppf(shares, df) / df)
    beyond = np.maximum(DELTA + stats.t.ppf(0.975, df) * again, stats.t.ppf(0.9975, df) * again)
    exact = stats.norm.cdf((worse - beyond) / true)
    found = compute_chances(worse, of_spreads(ErrorSpread(se, df)), DELTA)
    assert found.regression == pytest.approx(exact.mean(), abs=0.01)
    # One in ten spreads leaves less, one in ten more.
    of_spread = exact.mean(axis=1)
    assert (found.low, found.high) == pytest.approx(np.quantile(of_spread, [0.1, 0.9]), abs=0.04)
    inside = np.maximum(DELTA - stats.t.ppf(0.975, df) * again, 0)
    nothing = (2 * stats.norm.cdf(inside / true) - 1).mean()
    assert compute_chances(0.0, of_spreads(ErrorSpread(se, df)), DELTA).no_change == pytest.approx(nothing, abs=0.01)


def test_a_plug_in_promises_too_much():
    """Six degrees of freedom leave larger spreads possible: the mean is below what the estimate alone says."""
    unsure, sure = (of_spreads(ErrorSpread(0.01, df)) for df in (6.0, 1e7))
    assert compute_chances(log(1.08), unsure, DELTA).regression < compute_chances(log(1.08), sure, DELTA).regression


def test_what_the_spread_is_known_on_and_what_it_is_estimated_on_are_two_things():
    """Pairs planned for: known on those at hand, estimated anew on those to come."""
    spread = ErrorSpread(0.01, 1e7)
    rough = draw_from_spreads([spread], 0.95, MANY_COMPARISONS, shows_change=True, known_df=3.0)
    found, sure = (compute_chances(log(1.08), drawn, DELTA) for drawn in (rough, of_spreads(spread)))
    assert found.low < 0.6 < sure.low
    assert sure.high - sure.low < 0.06
    true = 0.01 * np.sqrt(3 / stats.chi2.ppf((np.arange(1000) + 0.5) / 1000, 3))
    exact = stats.norm.cdf((log(1.08) - DELTA - 1.959964 * true) / true)
    assert found.regression == pytest.approx(exact.mean(), abs=0.01)


def test_no_change_is_detected_that_is_beyond_the_search():
    assert find_detectable_change(of_spreads(ErrorSpread(10.0, 4.0)), DELTA) is None


@pytest.mark.parametrize("se", [0.005, 0.02])
def test_the_detectable_change_of_a_known_spread_is_that_of_the_normal(se):
    """(1 + δ) · exp((z(.975) + z(.8)) · SE) − 1, where the interval decides and not what equal sides exceed (2.807 SE)."""
    closed = 1.03 * exp((1.959964 + 0.841621) * se) - 1
    if se == 0.02:
        closed = max(closed, exp((2.807034 + 0.841621) * se) - 1)
    assert find_detectable_change(of_spreads(ErrorSpread(se, 1e7)), DELTA) == pytest.approx(closed, rel=0.02)


@pytest.mark.parametrize(("base", "opt"), [(2, 2), (3, 3), (5, 3), (10, 2)])
def test_runs_too_few_to_show_a_change_never_will(base, opt):
    pilot = compute_speedup(runs_of(0.001, base), runs_of(0.001, opt))
    drawn = draw_comparisons(pilot)
    assert not drawn.shows_change
    for change in (0.05, 1.0, 9.0):
        found = compute_chances(change, drawn, DELTA)
        assert (found.regression, found.improvement, found.low, found.high) == (0, 0, 0, 0)
    assert compute_chances(0.0, drawn, DELTA).no_change > 0.3
    assert find_detectable_change(drawn, DELTA) is None
    assert sum((SILENT.regression, SILENT.no_change, SILENT.improvement, SILENT.inconclusive)) == 1


def test_four_runs_per_side_may_and_need_a_gap():
    drawn = draw_comparisons(compute_speedup(runs_of(0.001, 4), runs_of(0.001, 4)))
    assert drawn.shows_change
    assert compute_chances(1.0, drawn, DELTA).regression == 1
    assert compute_chances(-1.0, drawn, DELTA).improvement == 1
    # At no least effect, four runs per side of 1 % show 3 % less often than the interval and the chance alone allow.
    four = of_known(0.01, 4, 4)
    without = outlook.DrawnComparisons(four.change, four.half, four.least, None, True)
    apart, alone = (compute_chances(0.02, drawn, 0.0).regression for drawn in (four, without))
    assert apart < alone
    assert np.isneginf(of_known(0.01, 5, 5).gaps.least).all()


def test_three_runs_show_a_change_with_six_earlier_ones_of_base_that_are_known():
    squares = 5 * 0.001**2
    shown = [
        of_known(0.001, 3, 3, 64, earlier=earlier)
        for earlier in (EarlierRuns(6, squares, 0.003), EarlierRuns(5, squares, 0.003), EarlierRuns(6, squares, None))
    ]
    assert [drawn.shows_change for drawn in shown] == [True, False, False]
    # The range of the history counts for the gap: a quarter of it at least.
    assert (shown[0].gaps.least >= 0.25 * 0.003).all()


SIDES = st.lists(st.lists(st.floats(0.8, 1.25), min_size=2, max_size=6), min_size=2, max_size=5)


@settings(deadline=None, max_examples=25)
@given(SIDES, SIDES, st.floats(0.0, 0.2))
def test_chances_add_up_mirror_and_grow_with_the_change(base, opt, change):
    found = compute_speedup(base, opt)
    if found.spreads and found.low is not None:
        drawn = draw_comparisons(found)
        one, two = compute_chances(change, drawn, DELTA), compute_chances(-change, drawn, DELTA)
        assert min(one.regression, one.no_change, one.improvement, one.inconclusive) >= 0
        assert one.regression + one.no_change + one.improvement + one.inconclusive == pytest.approx(1)
        # 4,096 draws, of 64 spreads: ± .02.
        assert (one.regression, one.no_change) == pytest.approx((two.improvement, two.no_change), abs=0.08)
        assert 0 <= one.low <= one.high <= 1
        assert compute_chances(change + 0.05, drawn, DELTA).regression >= one.regression


def test_more_runs_show_more():
    regressions, nothing = [], []
    for count in (4, 5, 6, 8, 12, 20, 30):
        drawn = of_known(0.02, count, count)
        regressions.append(compute_chances(log(1.06), drawn, DELTA).regression)
        nothing.append(compute_chances(0.0, drawn, DELTA).no_change)
    assert regressions == sorted(regressions)
    assert nothing == sorted(nothing)
    assert regressions[0] < 0.4 < 0.9 < regressions[-1]


def test_a_draw_is_repeatable():
    pilot = compute_speedup(runs_of(0.01, 4), runs_of(0.02, 4))
    one, two = (draw_comparisons(pilot) for _ in range(2))
    assert np.array_equal(one.change, two.change)
    assert one.change.shape == (SPREADS, outlook.FEW_COMPARISONS)


def test_two_spreads_that_may_be_one_are_pooled_and_others_drawn_apart():
    # 4 v 4: the variances 4 times: within F(.99; 3, 3) = 29.46; √((.01² + .02²) / 2) on 6. 36 times: each its own on 3.
    near = draw_comparisons(compute_speedup(runs_of(0.01, 4), runs_of(0.02, 4)))
    shared = ((0.01**2 + 0.02**2) / 2) ** 0.5, 6.0
    assert np.allclose(near.change, draw_runs((shared, shared), PlannedRuns(4, 4), None, 0.95).change)
    far = draw_comparisons(compute_speedup(runs_of(0.01, 4), runs_of(0.06, 4)))
    apart = (0.01, 3.0), (0.06, 3.0)
    assert np.allclose(far.change, draw_runs(apart, PlannedRuns(4, 4), None, 0.95).change)
    # Every possible spread of one side meets one of the other, and not the like.
    order = (np.arange(SPREADS) * outlook._STRIDE + outlook._OFFSET) % SPREADS
    assert sorted(order) == list(range(SPREADS))
    assert abs(np.corrcoef(order, np.arange(SPREADS))[0, 1]) < 0.2
    # With earlier runs of base: .0002 + .0008 of 3 and 8 on 2 + 7 degrees, and .0002 of opt on 2.
    noise = calibrate_noise([[exp(value)] for value in (0.012, -0.008) * 4])
    pilot = compute_speedup(runs_of(0.01, 3), runs_of(0.01, 3), noise=noise)
    drawn = draw_comparisons(pilot)
    pooled = (0.0012 / 11) ** 0.5, 11.0
    assert np.allclose(drawn.change, draw_runs((pooled, pooled), PlannedRuns(3, 3), pilot.earlier, 0.95).change)


def test_of_one_run_each_only_noise_tells_how_runs_differ():
    alone = compute_speedup([BASE], [BASE])
    assert draw_comparisons(alone, PlannedRuns(4, 4)) is None
    assert not draw_comparisons(alone).shows_change
    assert draw_comparisons(alone, steps_are_runs=True).shows_change
    noisy = compute_speedup([BASE], [BASE], noise=Noise(sd=0.01, df=7.0, runs=8, steps=5, rho=None))
    planned = draw_comparisons(noisy, PlannedRuns(4, 4))
    known = 0.01, 7.0
    assert np.array_equal(planned.change, draw_runs((known, known), PlannedRuns(4, 4), noisy.earlier, 0.95).change)
    assert draw_comparisons(compute_speedup([BASE], [BASE[::-1]], paired="step"), PlannedRuns(4, 4)) is None


def test_pairs_of_runs_have_the_spread_of_one_pair_over_the_root_of_their_number():
    pairs = runs_of(0.01, 4), [[1.0]] * 4
    found = compute_speedup(*pairs, paired="run")
    assert found.pair_spread == pytest.approx(0.01)
    drawn = draw_comparisons(found, PlannedRuns(16, 16))
    spread = ErrorSpread(0.0025, 15.0)
    assert np.allclose(drawn.change, draw_from_spreads([spread], 0.95, shows_change=True, known_df=3.0).change)
    assert drawn.shows_change
    assert draw_comparisons(found).shows_change
    three = compute_speedup(pairs[0][:3], pairs[1][:3], paired="run")
    assert not draw_comparisons(three).shows_change
    assert not draw_comparisons(found, PlannedRuns(3, 3)).shows_change


def test_the_scatter_of_steps_falls_with_the_runs_and_gains_degrees_of_freedom():
    # 3 v 6 runs: 1/3 + 1/6 = 1/2; 16 a side: 1/8, a quarter: half of the error. df · (32 − 1) / (9 − 1).
    random = np.random.default_rng(0)
    base, opt = ([list(run) for run in random.lognormal(0, 0.1, (number, 5))] for number in (3, 6))
    found = compute_speedup(base, opt)
    inner = found.spreads[-1]
    assert not inner.widens
    (planned,) = outlook._draw_step_spread(found, PlannedRuns(16, 16), 64)
    assert planned.df == pytest.approx(inner.df * 31 / 8)
    assert (planned.se**2).mean() ** 0.5 == pytest.approx(inner.se / 2, rel=0.01)
    assert (planned.widens, planned.alpha) == (False, 0.004)
    single = compute_speedup([[run[0]] for run in base], [[run[0]] for run in opt])
    assert outlook._draw_step_spread(single, PlannedRuns(16, 16), 64) == ()


def simulated_words(runs, spreads, worse, count, noise=None):
    """Words of this many simulated comparisons, from raw numbers by the whole path of a verdict."""
    random = np.random.default_rng(1)
    words = []
    for _ in range(count):
        base, opt = (
            np.exp(shift + spread * random.standard_normal((number, 1)))
            for number, spread, shift in zip(runs, spreads, (0.0, worse), strict=True)
        )
        words.append(choose_verdict(compute_speedup(list(base), list(opt), noise=noise)).word)
    return words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runs", "spreads", "change"),
    [
        ((4, 4), (0.01, 0.01), 0.05),
        ((4, 4), (0.01, 0.03), 0.1),
        ((5, 5), (0.015, 0.015), 0.07),
        ((6, 3), (0.01, 0.01), 0.08),
        ((3, 3), (0.006, 0.006), 0.0),
        ((5, 5), (0.01, 0.01), 0.0),
    ],
)
def test_the_chances_are_those_of_simulated_comparisons(runs, spreads, change):
    """To 3 points and sampling, where the spread is known: 1,500 comparisons of runs from raw numbers."""
    words = simulated_words(runs, spreads, log1p(change), 1_500)
    sides = tuple((spread, KNOWN) for spread in spreads)
    said = compute_chances(log1p(change), draw_runs(sides, PlannedRuns(*runs), None, 0.95, MANY_COMPARISONS), DELTA)
    for word in ("regression", "no change", "inconclusive"):
        share = words.count(word) / len(words)
        print(runs, word, share, getattr(said, word.replace(" ", "_")))
        assert share == pytest.approx(getattr(said, word.replace(" ", "_")), abs=0.03 + 0.012)


@pytest.mark.slow
def test_the_chances_with_earlier_runs_are_those_of_simulated_comparisons():
    noise = calibrate_noise(runs_of(0.01, 8))
    words = simulated_words((3, 3), (0.01, 0.01), log1p(0.06), 1_500, noise)
    drawn = of_known(0.01, 3, 3, earlier=noise.list_earlier_runs([]))
    share, said = words.count("regression") / 1_500, compute_chances(log1p(0.06), drawn, DELTA).regression
    print(share, said)
    assert 0.3 < said < 0.95
    assert share == pytest.approx(said, abs=0.042)


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "spread"), [((4, 4), 0.01), ((5, 5), 0.02)])
def test_the_detectable_change_is_called_a_regression_in_four_of_five(runs, spread):
    least = find_detectable_change(of_known(spread, *runs), DELTA)
    words = simulated_words(runs, (spread, spread), log1p(least), 1_500)
    print(runs, least, words.count("regression") / 1_500)
    assert words.count("regression") / 1_500 == pytest.approx(0.8, abs=0.042)
