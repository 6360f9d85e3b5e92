"""How probable is each word? By hand, by draws that know none of the formulas, and what it takes to be promised."""

from dataclasses import replace
from math import exp, log, log1p

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.stats.certainty import ErrorSpread
from tracekit.model.stats.needed import compute_needed_runs
from tracekit.model.stats.noise import Noise
from tracekit.model.stats.outlook import compute_chances, compute_upper_factor, find_detectable_change
from tracekit.model.stats.speedup import compute_speedup
from tracekit.model.stats.verdict import choose_verdict

DELTA = log1p(0.03)
BASE = [10.2, 10.4, 10.1, 10.6, 10.3]
NOISE = Noise(sd=0.01, df=7.0, runs=8, steps=5, rho=None)


def runs_of(spread, count):
    """Runs of one step whose log means have exactly this standard deviation."""
    logs = np.linspace(-1, 1, count)
    return [[exp(value)] for value in spread * logs / logs.std(ddof=1)]


@pytest.mark.parametrize(("df", "factor"), [(2, 2.117), (4, 1.558), (18, 1.183)])
def test_a_spread_may_be_larger_than_it_was_estimated(df, factor):
    # χ²(.2) on 2, 4 and 18 degrees: 0.446287, 1.648777, 12.856953; √(df/χ²).
    assert compute_upper_factor(df) == pytest.approx(factor, abs=1e-3)


def test_with_many_degrees_of_freedom_the_chances_are_those_of_the_normal():
    # SE .01 known: the interval reaches 1.959964 SE; at +5 % (.048790): (.048790 − .029559 − .0196) / .01 = −.0369
    # → Φ = .4853; at 0 inside: 2 Φ((.029559 − .0196)/.01 = .9959) − 1 = .6807.
    surely = [ErrorSpread(0.01, 1e7)]
    assert compute_chances(log(1.05), surely, DELTA, 0.95).regression == pytest.approx(0.4853, abs=2e-4)
    assert compute_chances(0.0, surely, DELTA, 0.95).no_change == pytest.approx(0.6807, abs=2e-4)
    assert compute_chances(0.0, surely, DELTA, 0.95).regression < 1e-6


def test_calibrated_noise_is_not_drawn_again():
    # Half of the interval stays t(7, .975) · .0141421 = .033441 > δ: never "no change"; at +10 % (.095310):
    # z = (.095310 − .029559 − .033441) / .0141421 = 2.2847 → .98884. What is certain, 3.67 · .0141421, is less.
    one = ErrorSpread(2**0.5 * 0.01, 7.0, drawn=False)
    assert compute_chances(0.0, [one], DELTA, 0.95).no_change == 0
    assert compute_chances(log(1.1), [one], DELTA, 0.95).regression == pytest.approx(0.98884, abs=2e-4)


def test_what_equal_sides_exceed_by_chance_bounds_the_chances():
    # 4.907636 · .01 = .049076 is more than δ = .001 and the interval's 2.776445 · .01: at .06 z = 1.0924 → .86267.
    one = ErrorSpread(0.01, 4.0, drawn=False)
    assert compute_chances(0.06, [one], 0.001, 0.95).regression == pytest.approx(0.86267, abs=2e-5)
    assert compute_chances(-0.06, [one], 0.001, 0.95).improvement == pytest.approx(0.86267, abs=2e-5)
    # Steps that scatter by .02 raise it to .098153, and do not widen the interval: at .1 z = .18473 → .57328.
    scatter = ErrorSpread(0.02, 4.0, widens=False, drawn=False)
    for spreads in ([one, scatter], [scatter, one]):
        assert compute_chances(0.1, spreads, 0.001, 0.95).regression == pytest.approx(0.57328, abs=2e-5)
    # 4 of 5 are at .098153 + .841621 · .01 = .106569 of the logarithm.
    found = find_detectable_change([one, scatter], 0.001, 0.95, bound=False)
    assert found == pytest.approx(exp(0.106569) - 1, rel=2e-4)


def test_the_largest_error_of_several_counts():
    # t(7, .975) · .02 = .047292: z = (.095310 − .029559 − .047292) / .02 = .92293 → .82198.
    spreads = [ErrorSpread(0.01, 7.0, drawn=False), ErrorSpread(0.02, 7.0, drawn=False)]
    assert compute_chances(log(1.1), spreads, DELTA, 0.95).regression == pytest.approx(0.82198, abs=2e-5)


def test_no_change_is_detected_that_is_beyond_the_search():
    assert find_detectable_change([ErrorSpread(10.0, 4.0)], DELTA, 0.95) is None


@pytest.mark.parametrize(("se", "df"), [(0.005, 8.0), (0.02, 18.0)])
def test_the_detectable_change_includes_what_has_to_be_exceeded(se, df):
    """Where the interval decides: (1 + δ) · exp((t(.975) + t(.8)) · SE⁺) − 1; t(8): 2.306004, .888890; t(18): 2.100922, .862049."""
    t = {8.0: 2.306004 + 0.888890, 18.0: 2.100922 + 0.862049}[df]
    closed = 1.03 * exp(t * compute_upper_factor(df) * se) - 1
    assert find_detectable_change([ErrorSpread(se, df)], DELTA, 0.95) == pytest.approx(closed, rel=0.01)


SIDES = st.lists(st.lists(st.floats(0.8, 1.25), min_size=2, max_size=6), min_size=2, max_size=4)


@settings(deadline=None, max_examples=40)
@given(SIDES, SIDES, st.floats(0.0, 0.2))
def test_chances_add_up_and_mirror(base, opt, change):
    found = compute_speedup(base, opt)
    if found.spreads and found.low is not None:
        one = compute_chances(change, found.spreads, DELTA, 0.95)
        two = compute_chances(-change, found.spreads, DELTA, 0.95)
        assert min(one.regression, one.no_change, one.improvement, one.inconclusive) >= 0
        assert one.regression + one.no_change + one.improvement + one.inconclusive == pytest.approx(1)
        assert (one.regression, one.no_change) == pytest.approx((two.improvement, two.no_change))
        more = compute_chances(change + 0.05, found.spreads, DELTA, 0.95)
        assert more.regression >= one.regression - 1e-12


def drawn_words(runs, sd, worse, count, steps=1, step_sd=0.0):
    """Words of this many simulated comparisons, from raw numbers by the whole path of a verdict."""
    random = np.random.default_rng(1)
    words = []
    for _ in range(count):
        sides = [
            np.exp(shift + sd * random.standard_normal((number, 1)) + step_sd * random.standard_normal((number, steps)))
            for number, shift in zip(runs, (0.0, worse), strict=True)
        ]
        words.append(choose_verdict(compute_speedup(*map(list, sides))).word)
    return words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runs", "sd", "change"), [((3, 3), 0.01, 0.05), ((2, 2), 0.01, 0.1), ((5, 5), 0.015, 0.05), ((5, 5), 0.008, 0.0)]
)
def test_the_chances_are_those_of_simulated_comparisons(runs, sd, change):
    """To 3 points, where the spread is known: 1,500 comparisons of runs from raw numbers."""
    words = drawn_words(runs, sd, log1p(change), 1_500)
    spread = sd * sum(1 / k for k in runs) ** 0.5
    said = compute_chances(log1p(change), [ErrorSpread(spread, sum(runs) - 2)], DELTA, 0.95)
    for word in ("regression", "no change", "inconclusive"):
        share = words.count(word) / len(words)
        print(runs, word, share, getattr(said, word.replace(" ", "_")))
        assert share == pytest.approx(getattr(said, word.replace(" ", "_")), abs=0.03 + 0.012)


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "sd"), [((3, 3), 0.01), ((5, 5), 0.02), ((2, 2), 0.004)])
def test_the_detectable_change_is_called_a_regression_in_four_of_five(runs, sd):
    """By the true spread in 80 %; by the bound that is printed in at least so many."""
    spreads = [ErrorSpread(sd * sum(1 / k for k in runs) ** 0.5, sum(runs) - 2)]
    least = find_detectable_change(spreads, DELTA, 0.95, bound=False)
    words = drawn_words(runs, sd, log1p(least), 1_500)
    print(runs, least, words.count("regression") / 1_500)
    assert words.count("regression") / 1_500 == pytest.approx(0.8, abs=0.042)
    assert find_detectable_change(spreads, DELTA, 0.95) > least


@pytest.mark.slow
def test_the_runs_that_are_asked_for_keep_the_promise():
    """Equal sides of as many runs, of the same spread, show no change in 80 %; one run less does not."""
    found = compute_speedup(runs_of(0.02, 3), runs_of(0.02, 3))
    plan = compute_needed_runs(found)
    for count, kept in ((plan.runs, True), (plan.runs - 1, False)):
        share = drawn_words((count, count), 0.02, 0.0, 1_500).count("no change") / 1_500
        print(count, share)
        assert (share >= 0.8 - 0.03) == kept or abs(share - 0.8) < 0.03


def test_the_runs_needed_say_no_change_of_equal_sides():
    # Runs of 1.5 %: k a side reach t(2k−2, .975) · .015 √(2/k) = .02256 at 6 and .02035 at 7, and z(.9) more of
    # SE has to fit in ln 1.03 = .029559: 6: .033664, 7: .030642, 8: .028127.
    found = compute_speedup(runs_of(0.015, 3), runs_of(0.015, 3))
    plan = compute_needed_runs(found)
    assert plan.runs in (7, 8)
    assert (plan.steps, plan.at_least, plan.pairs) == (None, False, False)
    # By the bound, 1.5575 times the spread: many more.
    assert 15 <= plan.most_runs <= 19


def test_no_number_of_runs_decides_on_a_change_of_exactly_what_matters():
    found = compute_speedup(runs_of(0.001, 3), runs_of(0.001, 3))
    assert compute_needed_runs(found, change=0.03).runs is None
    assert compute_needed_runs(found, change=0.05).runs == 2 or compute_needed_runs(found, change=0.05).runs == 3
    assert compute_needed_runs(found, effect=0.0).runs is None


def test_of_one_run_each_the_runs_needed_are_a_lower_bound():
    found = compute_speedup([BASE], [BASE])
    plan = compute_needed_runs(found)
    assert plan.at_least
    assert plan.steps is None, "steps of one run decide nothing"
    assert compute_needed_runs(found, accept_steps=True).steps > 5
    noisy = compute_speedup([BASE], [BASE], noise=NOISE)
    assert compute_needed_runs(noisy).steps is None, "two runs of 1 % differ by more than steps can make up for"
    assert not compute_needed_runs(noisy).at_least


def test_pairs_are_counted_in_pairs():
    found = compute_speedup([BASE], [BASE[::-1]], paired="step")
    plan = compute_needed_runs(replace(found, pair_spread=0.02), accept_steps=True)
    # 2 % a pair: (t(n−1, .975) + z(.9)) · .02/√n within .029559: 6: .031453, 7: .028185.
    assert plan.pairs
    assert plan.steps in (7, 8)
    few = compute_speedup(runs_of(0.01, 3), runs_of(0.02, 3), paired="run")
    assert compute_needed_runs(replace(few, pair_spread=0.02)).runs == plan.steps


@pytest.mark.parametrize(
    "found", [compute_speedup([[1.0]], [[2.0]]), compute_speedup([[1.0] * 5], [[2.0] * 5])], ids=["one", "still"]
)
def test_without_any_spread_nobody_knows_what_it_takes(found):
    plan = compute_needed_runs(found)
    assert (plan.steps, plan.runs, plan.most_runs, plan.at_least) == (None, None, None, False)


def test_the_hopeless_is_not_recommended():
    wild = compute_speedup([[1, 9, 2, 30, 4]], [[40, 2, 8, 1, 9]])
    assert (
        compute_needed_runs(wild, effect=0.001, accept_steps=True).steps,
        compute_needed_runs(wild, effect=0.001).runs,
    ) == (None, None)


@settings(deadline=None, max_examples=25)
@given(SIDES, SIDES, st.floats(0.01, 0.3))
def test_twice_the_effect_never_takes_more(base, opt, effect):
    found = compute_speedup(base, opt)
    one, two = (compute_needed_runs(found, effect=effect), compute_needed_runs(found, effect=2 * effect))
    assert one.runs is None or two.runs <= one.runs
