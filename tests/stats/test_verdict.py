"""Four words: where their borders lie, when they may not be said, and what it would take to say them."""

from dataclasses import replace
from math import exp, expm1, log, log1p

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.stats.noise import Noise
from tracekit.stats.speedup import exact, speedup
from tracekit.stats.verdict import exact_verdict, needed, together, verdict

NOISE = Noise(sd=0.01, df=7.0, runs=8, steps=5, rho=None)
BASE = [10.2, 10.4, 10.1, 10.6, 10.3]
RUNS = [[10.0], [10.1], [9.9]]
FASTER = [[value / 2 for value in run] for run in RUNS]

values = st.floats(0.5, 2.0)
several = st.lists(st.lists(values, min_size=1, max_size=6), min_size=2, max_size=6)


def between(low, high, **kept):
    """A comparison of runs whose interval of the speedup is given on the log scale."""
    middle = (low + high) / 2
    found = speedup(RUNS, FASTER)
    return replace(
        found, log_ratio=middle, ratio=exp(middle), low=exp(low), high=exp(high), **kept
    )  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.0301, 0.2, "improvement"),
        (0.0299, 0.2, "inconclusive"),
        (-0.2, -0.0301, "regression"),
        (-0.2, -0.0299, "inconclusive"),
        (-0.0299, 0.0299, "no change"),
        (-0.0299, 0.0301, "inconclusive"),
        (-0.0301, 0.0299, "inconclusive"),
        (0.01, 0.02, "no change"),
        (-0.5, 0.5, "inconclusive"),
    ],
)
def test_the_whole_interval_has_to_lie_beyond_or_inside(low, high, word):
    assert verdict(between(low, high), min_effect=expm1(0.03)).word == word


def test_the_default_threshold_is_three_percent():
    assert verdict(between(log1p(0.03) + 1e-9, 0.1)).word == "improvement"
    assert verdict(between(log1p(0.03) - 1e-9, 0.1)).word == "inconclusive"
    assert verdict(between(0.0, 0.01)).effect == pytest.approx(0.03)


def test_without_a_threshold_any_certain_change_counts():
    assert verdict(between(1e-9, 0.1), min_effect=0).word == "improvement"
    assert verdict(between(-1e-9, 0.1), min_effect=0).word == "inconclusive"
    assert verdict(between(0.0, 0.0), min_effect=0).word == "inconclusive"


def test_of_a_throughput_more_is_better():
    fewer = between(0.1, 0.2)
    assert verdict(fewer, better="lower").word == "improvement"
    assert verdict(fewer, better="higher").word == "regression"
    assert verdict(fewer, better="higher").worse == pytest.approx(0.15)
    assert verdict(fewer, better="lower").worse == pytest.approx(-0.15)


def test_what_equal_runs_differ_by_is_no_change():
    noisy = Noise(sd=0.05, df=7.0, runs=8, steps=5, rho=None)
    assert verdict(between(0.04, 0.09)).word == "improvement"
    found = verdict(between(0.04, 0.09, noise=noisy))
    assert (found.word, found.effect) == ("inconclusive", pytest.approx(expm1(0.05)))
    # A smaller noise does not lower the threshold.
    assert verdict(between(0.0, 0.0, noise=NOISE)).effect == pytest.approx(0.03)


def test_one_step_a_side_is_never_more_than_inconclusive():
    found = verdict(speedup([[10.0]], [[1.0]], noise=NOISE), assume_independent_steps=True)
    assert (found.word, found.caps, found.p) == ("inconclusive", ("no interval",), None)
    assert found.worse == pytest.approx(-log(10))


def test_two_steps_of_one_run_are_never_more_than_inconclusive():
    for noise in (None, NOISE):
        sure = speedup([[10.0, 10.001]], [[1.0, 1.0001]], noise=noise)
        found = verdict(sure, assume_independent_steps=True)
        assert (found.word, found.uncapped, found.caps) == (
            "inconclusive", "improvement", ("two steps",),
        )  # fmt: skip
    # One long side does not help, a second run does.
    assert verdict(speedup([[10, 10.001]], [[1, 1.001, 1.002]])).word == "inconclusive"
    assert verdict(speedup([[10, 10.001]] * 2, [[1, 1.001], [1.002]])).word == "improvement"


def test_one_run_a_side_is_never_more_than_inconclusive():
    half = [value / 2 for value in BASE]
    found = verdict(speedup([BASE], [half]))
    assert (found.word, found.uncapped, found.caps) == (
        "inconclusive", "improvement", ("one run each",),
    )  # fmt: skip
    assert verdict(speedup([BASE], [half], paired="step")).word == "inconclusive"
    assert verdict(speedup([BASE * 20], [BASE * 20])).uncapped == "no change"
    assert verdict(speedup([BASE * 20], [BASE * 20])).word == "inconclusive"


def test_calibrated_noise_or_a_declaration_lets_one_run_speak():
    half = [value / 2 for value in BASE]
    assert verdict(speedup([BASE], [half], noise=NOISE)).word == "improvement"
    assert verdict(speedup([BASE], [half]), assume_independent_steps=True).word == "improvement"
    few = Noise(sd=0.01, df=2.0, runs=3, steps=5, rho=None)
    assert verdict(speedup([BASE], [half], noise=few)).word == "inconclusive"


def test_unequal_numbers_of_steps_are_not_a_change():
    assert verdict(speedup([[10.0]], [BASE])).word == "inconclusive"
    even = speedup([[10.0, 10.2, 9.8] * 9], [[10.1, 9.9, 10.0]])
    assert verdict(even, assume_independent_steps=True).word in ("no change", "inconclusive")


@settings(deadline=None)
@given(several, several, st.floats(0, 0.5))
def test_swapped_sides_swap_the_words(base, opt, effect):
    one = verdict(speedup(base, opt), min_effect=effect)
    two = verdict(speedup(opt, base), min_effect=effect)
    turned = {"regression": "improvement", "improvement": "regression"}
    assert two.word == turned.get(one.word, one.word)
    assert verdict(speedup(opt, base), min_effect=effect, better="higher").word == one.word


@settings(deadline=None)
@given(several, several, st.floats(0, 0.5))
def test_the_chance_agrees_with_the_interval(base, opt, effect):
    found = verdict(speedup(base, opt), min_effect=effect)
    if found.p is not None and abs(found.p - 0.05) > 1e-9:
        assert (found.word in ("regression", "improvement")) == (found.p < 0.05)


@pytest.mark.parametrize("effect", [-0.01, float("nan"), float("inf")])
def test_an_effect_is_a_share(effect):
    found = speedup(RUNS, FASTER)
    for call in (
        lambda: verdict(found, min_effect=effect),
        lambda: needed(found, effect=effect),
        lambda: exact_verdict(exact([[1]], [[2]]), min_effect=effect),
        lambda: exact_verdict(exact([[1]], [[2]]), min_difference=effect),
    ):
        with pytest.raises(ValueError):
            call()


def test_a_direction_is_one_of_two():
    with pytest.raises(ValueError, match="better"):
        verdict(speedup(RUNS, FASTER), better="more")


@pytest.mark.parametrize(
    ("base", "opt", "limits", "word"),
    [
        (512, 512, {}, "no change"),
        (512, 513, {}, "regression"),
        (512, 511, {}, "improvement"),
        (512, 511, {"better": "higher"}, "regression"),
        # 2 % and 10 units: both have to be exceeded, not just reached.
        (100, 103, {"min_effect": 0.02, "min_difference": 10}, "no change"),
        (1000, 1011, {"min_effect": 0.02, "min_difference": 10}, "no change"),
        (500, 510, {"min_effect": 0.019, "min_difference": 10}, "no change"),
        (500, 511, {"min_effect": 0.02, "min_difference": 10}, "regression"),
        (511, 500, {"min_effect": 0.02, "min_difference": 10}, "improvement"),
        (0, 11, {"min_effect": 0.02, "min_difference": 10}, "regression"),
        (0, 10, {"min_effect": 0.02, "min_difference": 10}, "no change"),
        (11, 0, {"min_effect": 0.02, "min_difference": 10}, "improvement"),
        (-5, 5, {"min_effect": 0.02}, "regression"),
    ],
)
def test_exact_numbers_need_no_interval(base, opt, limits, word):
    found = exact_verdict(exact([[base]], [[opt]]), **limits)
    assert (found.word, found.p) == (word, None)


def test_numbers_that_vary_get_no_exact_verdict():
    assert exact_verdict(exact([[1, 2]], [[9]])).word == "inconclusive"


def test_among_many_one_lucky_change_does_not_count():
    lucky = replace(verdict(speedup(RUNS, FASTER)), p=0.02)
    dull = replace(lucky, word="no change", uncapped="no change", p=0.6)
    alone = together([lucky])
    assert [one.word for one in alone] == ["improvement"]
    # Of three: 3 · 0.02 = 0.06. Exact verdicts are no part of the family.
    three = together([dull, lucky, dull])
    assert [one.word for one in three] == ["no change", "inconclusive", "no change"]
    assert three[1].caps == ("many comparisons",)
    sure = exact_verdict(exact([[1]], [[2]]))
    assert [one.word for one in together([sure, lucky, sure])] == [
        "regression", "improvement", "regression",
    ]  # fmt: skip
    assert together([]) == ()


def spread(found, share, **kept):
    """The comparison as if its units had this spread."""
    sides = {name: replace(getattr(found, name), spread=share) for name in ("base", "opt")}
    return replace(found, **sides, **kept)


def test_the_steps_needed_turn_the_detectable_change_round():
    # 2 % a step: with 10 steps (df 18) (2.100922 + .862049) · .02√.2 → 2.69 %; with 9 (df 16) 2.85 %.
    found = spread(speedup([BASE], [BASE]), 0.02, rho=0.0)
    assert needed(found, effect=0.027).steps == 10
    assert needed(found, effect=0.0286).steps == 9
    assert needed(found, effect=0.0268).steps == 11


def test_the_runs_needed_turn_the_detectable_change_round():
    # 1.34 % a run: 5 runs (df 8) 3.194894 · .0134164√.4 → 2.75 %; 4 (df 6) 3.352615 · .0134164√.5 → 3.23 %.
    found = spread(speedup(RUNS, FASTER), 0.0134164)
    assert (needed(found, effect=0.028).runs, needed(found, effect=0.033).runs) == (5, 4)
    assert needed(found, effect=0.03).steps is None
    assert needed(found, effect=0.03).at_least is False


def test_of_one_run_each_the_runs_needed_are_a_lower_bound():
    # Steps of 2 %, five a run, ρ 0: a run's mean has .02/√5 = .0089443 at least.
    # 3 runs (df 4) 3.717410 · .0089443√(2/3) → 2.75 %; 2 (df 2) 5.363313 · .0089443 → 4.91 %.
    found = spread(speedup([BASE], [BASE]), 0.02, rho=0.0)
    plan = needed(found, effect=0.03)
    assert (plan.runs, plan.at_least, plan.pairs) == (3, True, False)
    # Calibrated runs of 1.34 % ask for the five of above, and no number of steps would do:
    # two runs differ by √2 · 1.34 %.
    noisy = replace(found, noise=Noise(0.0134164, 7.0, 8, 5, None))
    plan = needed(noisy, effect=0.028)
    assert (plan.runs, plan.steps, plan.at_least) == (5, None, False)


def test_pairs_are_counted_in_pairs():
    found = speedup([BASE], [BASE[::-1]], paired="step")
    # 2 % a pair: 6 pairs (df 5) (2.570582 + .919544) · .02/√6 → 2.89 %; 5 (df 4) 3.717410 · .02/√5 → 3.38 %.
    plan = needed(replace(found, pair_spread=0.02), effect=0.03)
    assert (plan.steps, plan.pairs) == (6, True)
    runs = speedup(RUNS, [[10.0], [10.0], [10.0]], paired="run")
    plan = needed(replace(runs, pair_spread=0.02), effect=0.03)
    assert (plan.steps, plan.runs, plan.pairs, plan.at_least) == (None, 6, True, False)


@pytest.mark.parametrize(
    "found", [speedup([[1.0]], [[2.0]]), speedup([[1.0] * 5], [[2.0] * 5])], ids=["one", "still"]
)
def test_without_any_spread_nobody_knows_what_it_takes(found):
    plan = needed(found)
    assert (plan.steps, plan.runs, plan.detectable, plan.at_least) == (None, None, None, False)


def test_the_hopeless_is_not_recommended():
    wild = speedup([[1, 9, 2, 30, 4]], [[40, 2, 8, 1, 9]])
    assert (needed(wild, effect=0.001).steps, needed(wild, effect=0.001).runs) == (None, None)
    assert needed(wild, effect=0.0).steps is None


@settings(deadline=None)
@given(several, several, st.floats(0.01, 0.3))
def test_twice_the_effect_never_takes_more(base, opt, effect):
    for found in (speedup(base, opt), speedup(base[:1], opt[:1])):
        one, two = needed(found, effect=effect), needed(found, effect=2 * effect)
        for small, large in ((one.runs, two.runs), (one.steps, two.steps)):
            assert small is None or large <= small
