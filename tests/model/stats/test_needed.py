"""How many runs or steps it takes: the smallest number that decides, the spreads of steps by hand, and what is not promised."""

from dataclasses import replace
from math import exp, log1p

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.stats import needed
from tracekit.model.stats.certainty import ErrorSpread
from tracekit.model.stats.needed import (
    LEAST_RUNS_OF_PLAN,
    MOST_RUNS,
    NeededRuns,
    compute_needed_runs,
    find_confirmable_spread,
)
from tracekit.model.stats.noise import Noise
from tracekit.model.stats.outlook import PlannedRuns, compute_chances, draw_comparisons
from tracekit.model.stats.speedup import compute_speedup
from tracekit.model.stats.verdict import choose_verdict

RUNS = [[10.0], [10.2], [9.9], [10.1]]
STEPS = [10.2, 10.4, 10.1, 10.6, 10.3]
DELTA = log1p(0.03)


def noise(sd):
    return Noise(sd=sd, df=7.0, runs=8, steps=5, rho=None)


def of_spreads(base, opt, found, **more):
    """The comparison with these standard deviations of one run or step on its sides."""
    return replace(found, base=replace(found.base, spread=base), opt=replace(found.opt, spread=opt), **more)


def runs_of(spread, count):
    """Runs of one step whose log means have exactly this standard deviation."""
    logs = np.linspace(-1, 1, count)
    return [[exp(value)] for value in spread * logs / logs.std(ddof=1)]


def equal_sides(spread, count):
    return compute_speedup(runs_of(spread, count), runs_of(spread, count))


@pytest.mark.parametrize("change", [None, 0.06, 0.3])
def test_the_number_of_runs_is_the_smallest_that_decides_in_four_of_five(change):
    found = equal_sides(0.1 if change == 0.3 else 0.015, 5)
    runs = compute_needed_runs(found, change=change).runs

    def share(count):
        drawn = draw_comparisons(found, PlannedRuns(count, count))
        chances = compute_chances(log1p(change or 0.0), drawn, DELTA)
        return chances.no_change if change is None else chances.regression

    assert LEAST_RUNS_OF_PLAN < runs < MOST_RUNS
    assert share(runs - 1) < 0.8 <= share(runs)


@pytest.mark.parametrize("spread", [0.02, 0.03])
def test_of_a_spread_that_is_known_the_runs_are_those_of_the_normal(spread):
    """(z(.975) + z(.9)) s √(2/N) has to fit into ln 1.03: N = 2 s² (3.241515 / .029559)² = 9.6 of 2 %, 21.6 of 3 %.

    Student's t on 2N − 2 degrees takes one more or two; 200 runs per side leave the spread uncertain by 3.5 %.
    """
    closed = 2 * spread**2 * (3.241515 / 0.029559) ** 2
    assert closed < compute_needed_runs(equal_sides(spread, 200)).runs <= closed + 2.5


def test_a_change_takes_the_more_runs_the_smaller_it_is():
    found = equal_sides(0.02, 10)
    plans = [compute_needed_runs(found, change=change).runs for change in (0.2, 0.08, 0.06, 0.05)]
    assert plans == sorted(plans)
    assert plans[0] == LEAST_RUNS_OF_PLAN
    assert plans[-1] > 10


def test_fewer_degrees_of_freedom_take_more_runs():
    plans = [compute_needed_runs(equal_sides(0.015, count)).runs for count in (3, 4, 6, 20)]
    assert plans == sorted(plans, reverse=True)
    assert plans[0] > plans[-1]


def test_four_runs_are_the_fewest_that_are_recommended():
    for count in (2, 3, 4, 10):
        plan = compute_needed_runs(equal_sides(1e-5, count))
        assert plan == NeededRuns(4, 4, None, pairs=False)


def test_no_number_of_runs_decides_on_a_change_of_exactly_what_matters():
    found = equal_sides(0.001, 4)
    assert compute_needed_runs(found, change=0.03).runs is None
    assert compute_needed_runs(found, change=0.05).runs == 4
    assert compute_needed_runs(found, effect=0.0).runs is None


def test_the_most_runs_are_those_of_the_largest_spread_that_is_possible():
    # Four degrees leave √(4 / χ²(4, .1) = 1.063623) = 1.93924 times the spread, in one case of ten more.
    found = equal_sides(0.01, 3)
    plan = compute_needed_runs(found)
    assert plan.most_runs == compute_needed_runs(of_spreads(0.0193924, 0.0193924, found)).runs
    assert plan.runs < plan.most_runs
    unequal = of_spreads(0.004, 0.012, found)
    wider = of_spreads(0.004 * 1.93924, 0.012 * 1.93924, found)
    assert compute_needed_runs(unequal).most_runs == compute_needed_runs(wider).runs
    rough = compute_needed_runs(equal_sides(0.015, 3))
    assert rough.runs is not None
    assert rough.most_runs is None


def test_of_one_run_each_only_noise_tells_how_many_runs_it_takes():
    assert compute_needed_runs(compute_speedup([STEPS], [STEPS])).runs is None
    # Known on seven degrees as four runs of base are on three.
    noisy = compute_needed_runs(compute_speedup([STEPS], [STEPS], noise=noise(0.01)))
    assert LEAST_RUNS_OF_PLAN < noisy.runs < MOST_RUNS
    assert noisy.steps is None, "two runs of 1 % differ by more than steps can make up for"


def test_steps_are_counted_where_they_may_decide():
    independent = compute_speedup([STEPS], [STEPS])
    assert compute_needed_runs(independent).steps is None, "steps of one run decide nothing"
    assert compute_needed_runs(independent, accept_steps=True).steps > 5
    assert compute_needed_runs(independent, change=0.1, accept_steps=True).steps > 2
    calm = compute_speedup([STEPS], [STEPS], noise=noise(0.001))
    assert compute_needed_runs(calm).steps > 2
    # Beside noise one run per side may show that nothing changed, and no change.
    assert compute_needed_runs(calm, change=0.1).steps is None
    assert compute_needed_runs(equal_sides(0.015, 4), accept_steps=True).steps is None


def test_steps_decide_from_so_many_on_as_the_normal_says():
    # 2 % per step, known on many: N = 9.6 as of runs (see above), and t of 2N − 2 degrees.
    random = np.random.default_rng(0)
    steps = np.exp(0.02 * random.standard_normal(2_000))
    steps *= 1 + (0.02 / (steps.std(ddof=1) / steps.mean()) - 1) * (steps - steps.mean()) / steps
    found = replace(compute_speedup([steps], [steps]), rho=0.0)
    assert found.base.spread == pytest.approx(0.02, rel=1e-3)
    assert compute_needed_runs(found, accept_steps=True).steps in (11, 12)


def test_pairs_are_counted_in_pairs():
    found = compute_speedup([STEPS], [STEPS[::-1]], paired="step")
    plan = compute_needed_runs(replace(found, pair_spread=0.02), accept_steps=True)
    # 2 % a pair: (t(n−1, .975) + z(.9)) · .02/√n within .029559: 6: .031453, 7: .028185; unsure on n − 1 degrees: more.
    assert plan.pairs
    assert 7 <= plan.steps <= 10
    assert plan.runs is None, "pairs of steps tell nothing of runs"
    runs = compute_speedup(runs_of(0.01, 5), runs_of(0.01, 5)[::-1], paired="run")
    plan = compute_needed_runs(replace(runs, pair_spread=0.02))
    assert plan.pairs
    assert 7 <= plan.runs <= 14
    assert plan.most_runs is None or plan.most_runs > plan.runs
    assert plan.steps is None


@pytest.mark.parametrize(
    "found", [compute_speedup([[1.0]], [[2.0]]), compute_speedup([[1.0] * 5], [[2.0] * 5])], ids=["one", "still"]
)
def test_without_any_spread_nobody_knows_what_it_takes(found):
    assert compute_needed_runs(found) == NeededRuns(None, None, None, pairs=False)


def test_the_hopeless_is_not_recommended():
    wild = compute_speedup([[1, 9, 2, 30, 4]], [[40, 2, 8, 1, 9]])
    assert compute_needed_runs(wild, effect=0.001, accept_steps=True).steps is None
    assert compute_needed_runs(equal_sides(0.2, 4)).runs is None


SIDES = st.lists(st.lists(st.floats(0.8, 1.25), min_size=2, max_size=6), min_size=2, max_size=4)


@settings(deadline=None, max_examples=10)
@given(SIDES, SIDES, st.floats(0.01, 0.3))
def test_twice_the_effect_never_takes_more(base, opt, effect):
    found = compute_speedup(base, opt)
    one, two = (compute_needed_runs(found, effect=effect), compute_needed_runs(found, effect=2 * effect))
    assert one.runs is None or two.runs <= one.runs


def test_more_steps_of_one_run_lower_its_spread_but_not_the_calibrated_noise():
    calibrated = ErrorSpread(0.01, 7.0, drawn=False)
    found = of_spreads(0.03, 0.04, compute_speedup([STEPS], [STEPS]), rho=1 / 3)
    found = replace(found, spreads=(ErrorSpread(0.5, 4.0, alpha=0.004), calibrated))
    # A correlation of 1/3 makes 10 steps worth 5: s² · 9 / (10 · (5 − 1)). .0025 · .225 = .0005625, and Welch's
    # 4 / (.36² + .64²) = 7.418398 degrees.
    own, noisy = needed._predict_step_spreads(found, 10)
    assert (own.se, own.df, own.alpha) == (pytest.approx(0.0005625**0.5), pytest.approx(7.418398, rel=1e-5), 0.004)
    assert noisy is calibrated
    # Independent: 5 steps, .0025 / 5.
    assert needed._predict_step_spreads(replace(found, rho=None), 5)[0].se == pytest.approx(0.0005**0.5)
    still = of_spreads(0.0, 0.0, found)
    assert needed._predict_step_spreads(still, 10) == (calibrated,)
    for spread, sides in ((0.04, (0.0, 0.04)), (0.03, (0.03, 0.0))):
        half = needed._predict_step_spreads(of_spreads(*sides, found), 10)[0]
        assert (half.se, half.df) == (pytest.approx((spread**2 * 0.225) ** 0.5), pytest.approx(4.0))
    paired = needed._predict_step_spreads(replace(found, pair_spread=0.06), 9)
    assert paired == (ErrorSpread(0.02, 8.0, alpha=0.004), calibrated)


def test_no_spread_confirms_a_change_that_does_not_matter():
    assert find_confirmable_spread(0.02, DELTA, 0.95) == 0
    assert find_confirmable_spread(DELTA, DELTA, 0.95) == 0


def test_a_larger_change_is_confirmed_at_a_larger_spread():
    spreads = [find_confirmable_spread(change, DELTA, 0.95) for change in (0.04, 0.06, 0.1, 0.2, 0.5)]
    assert spreads == sorted(spreads)
    assert find_confirmable_spread(-0.1, DELTA, 0.95) == spreads[2]
    # Four per side: SE = s / √2 on about six degrees. With t(6, .975) and z(.8) it would be (.04 − .029559) / 2.3253 =
    # .00449 and (.1 − .029559) / 2.3253 = .0303; t on fewer degrees and the gap leave less.
    assert 0.003 < spreads[0] < 0.00449
    assert 0.018 < spreads[2] < 0.0303


@pytest.mark.slow
@pytest.mark.parametrize("change", [0.06, 0.2])
def test_runs_of_the_confirmable_spread_confirm_the_change_in_four_of_five(change):
    spread = find_confirmable_spread(log1p(change), DELTA, 0.95)
    random = np.random.default_rng(5)
    words = []
    for _ in range(1_500):
        base, opt = np.exp(spread * random.standard_normal((2, 4, 1)))
        words.append(choose_verdict(compute_speedup(list(base), list((1 + change) * opt))).word)
    print(change, spread, words.count("regression") / 1_500)
    assert words.count("regression") / 1_500 == pytest.approx(0.8, abs=0.042)


@pytest.mark.slow
@pytest.mark.parametrize(("spread", "count"), [(0.015, 4), (0.02, 10)])
def test_the_runs_that_are_asked_for_keep_the_promise_over_the_spreads_that_are_possible(spread, count):
    """σ² is s² df / χ²: averaged over it, equal sides of as many runs show no change in 80 %."""
    plan = compute_needed_runs(equal_sides(spread, count))
    df, random = 2 * count - 2, np.random.default_rng(7)
    words = []
    for _ in range(1_500):
        true = spread * (df / random.chisquare(df)) ** 0.5
        base, opt = np.exp(true * random.standard_normal((2, plan.runs, 1)))
        words.append(choose_verdict(compute_speedup(list(base), list(opt))).word)
    share = words.count("no change") / 1_500
    print(spread, plan.runs, share)
    assert share >= 0.8 - 0.03
