"""Four words: where their borders lie, when they may not be said, and what it would take to say them."""

from dataclasses import replace
from math import exp, expm1, log, log1p

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.stats.certainty import (
    ErrorSpread,
    choose_words,
    compute_certain_change,
    compute_certain_quantile,
    compute_half_width,
    is_certain_change,
)
from tracekit.model.stats.needed import compute_needed_runs
from tracekit.model.stats.noise import Noise
from tracekit.model.stats.speedup import compute_speedup
from tracekit.model.stats.verdict import choose_verdict, correct_verdicts

NOISE = Noise(sd=0.01, df=7.0, runs=8, steps=5, rho=None)
BASE = [10.2, 10.4, 10.1, 10.6, 10.3]
RUNS = [[10.0], [10.1], [9.9]]
FASTER = [[value / 2 for value in run] for run in RUNS]

values = st.floats(0.5, 2.0)
several = st.lists(st.lists(values, min_size=1, max_size=6), min_size=2, max_size=6)


def between(low, high, **kept):
    """A comparison of runs whose interval of the speedup is given on the log scale."""
    middle = (low + high) / 2
    found = compute_speedup(RUNS, FASTER)
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
    assert choose_verdict(between(low, high), min_effect=expm1(0.03)).word == word


def test_an_interval_that_touches_the_threshold_is_inconclusive():
    low, high = np.array([0.03, -0.2, -0.03, -0.01]), np.array([0.2, -0.03, 0.01, 0.03])
    assert choose_words(low, high, 0.03).tolist() == ["inconclusive"] * 4
    words = choose_words(np.array([0.031, -0.2, -0.029]), np.array([0.2, -0.031, 0.029]), 0.03)
    assert words.tolist() == ["regression", "improvement", "no change"]


def test_the_interval_reaches_as_far_as_its_widest_spread():
    # Student's t at .975 is 2.776445 on 4 and 4.302653 on 2 degrees; at .95 it is 2.131847 on 4.
    wide, narrow = ErrorSpread(0.02, 4.0), ErrorSpread(0.01, 2.0)
    beside = ErrorSpread(0.5, 4.0, widens=False)
    assert compute_half_width([narrow, wide, beside], 0.95) == pytest.approx(0.0555289, abs=1e-7)
    assert compute_half_width([wide], 0.9) == pytest.approx(0.0426369, abs=1e-7)


def test_a_change_has_to_exceed_every_spread_and_more_so_on_two_degrees_of_freedom():
    # 99.6 % on 4 degrees: 4.907636; on 3: 6.322101; on 2 it is 99.7 %: 12.851777.
    assert compute_certain_quantile(4.0) == pytest.approx(4.907636, abs=1e-5)
    assert compute_certain_quantile(2.0) == pytest.approx(12.851777, abs=1e-5)
    assert compute_certain_quantile(3.0) == pytest.approx(6.322101, abs=1e-5)
    spreads = [ErrorSpread(0.01, 4.0), ErrorSpread(0.1, 4.0, widens=False)]
    assert compute_certain_change(spreads) == pytest.approx(0.4907636, abs=1e-6)
    exact = float(compute_certain_change(spreads))
    assert not is_certain_change(exact, spreads)
    assert is_certain_change(-exact * 1.0001, spreads)


def test_the_default_threshold_is_three_percent():
    assert choose_verdict(between(log1p(0.03) + 1e-9, 0.1)).word == "improvement"
    assert choose_verdict(between(log1p(0.03) - 1e-9, 0.1)).word == "inconclusive"
    assert choose_verdict(between(0.0, 0.01)).effect == pytest.approx(0.03)


def test_without_a_threshold_any_certain_change_counts():
    assert choose_verdict(between(1e-9, 0.1), min_effect=0).word == "improvement"
    assert choose_verdict(between(-1e-9, 0.1), min_effect=0).word == "inconclusive"
    assert choose_verdict(between(0.0, 0.0), min_effect=0).word == "inconclusive"


def test_of_a_throughput_more_is_better():
    fewer = between(0.1, 0.2)
    assert choose_verdict(fewer, better="lower").word == "improvement"
    assert choose_verdict(fewer, better="higher").word == "regression"
    assert choose_verdict(fewer, better="higher").worse == pytest.approx(0.15)
    assert choose_verdict(fewer, better="lower").worse == pytest.approx(-0.15)


def test_what_equal_runs_differ_by_is_no_change():
    noisy = Noise(sd=0.05, df=7.0, runs=8, steps=5, rho=None)
    assert choose_verdict(between(0.04, 0.09)).word == "improvement"
    found = choose_verdict(between(0.04, 0.09, noise=noisy))
    assert (found.word, found.effect) == ("inconclusive", pytest.approx(expm1(0.05)))
    # A smaller noise does not lower the threshold.
    assert choose_verdict(between(0.0, 0.0, noise=NOISE)).effect == pytest.approx(0.03)


def test_one_step_a_side_is_never_more_than_inconclusive():
    found = choose_verdict(compute_speedup([[10.0]], [[1.0]], noise=NOISE), assume_independent_steps=True)
    assert (found.word, found.caps, found.p) == ("inconclusive", ("no interval",), None)
    assert found.worse == pytest.approx(-log(10))


def test_two_steps_of_one_run_are_never_more_than_inconclusive():
    for noise in (None, NOISE):
        sure = compute_speedup([[10.0, 10.001]], [[1.0, 1.0001]], noise=noise)
        found = choose_verdict(sure, assume_independent_steps=True)
        assert (found.word, found.uncapped, found.caps) == (
            "inconclusive", "improvement", ("two steps",),
        )  # fmt: skip
    # One long side does not help, a second run does.
    assert choose_verdict(compute_speedup([[10, 10.001]], [[1, 1.001, 1.002]])).word == "inconclusive"
    assert choose_verdict(compute_speedup([[10, 10.001]] * 2, [[1, 1.001], [1.002]])).word == "improvement"


def test_one_run_a_side_is_never_more_than_inconclusive():
    half = [value / 2 for value in BASE]
    found = choose_verdict(compute_speedup([BASE], [half]))
    assert (found.word, found.uncapped, found.caps) == (
        "inconclusive", "improvement", ("one run each",),
    )  # fmt: skip
    assert choose_verdict(compute_speedup([BASE], [half], paired="step")).word == "inconclusive"
    assert choose_verdict(compute_speedup([BASE * 20], [BASE * 20])).uncapped == "no change"
    assert choose_verdict(compute_speedup([BASE * 20], [BASE * 20])).word == "inconclusive"


def test_calibrated_noise_or_a_declaration_lets_one_run_speak():
    half = [value / 2 for value in BASE]
    assert choose_verdict(compute_speedup([BASE], [half], noise=NOISE)).word == "improvement"
    assert choose_verdict(compute_speedup([BASE], [half]), assume_independent_steps=True).word == "improvement"
    few = Noise(sd=0.01, df=2.0, runs=3, steps=5, rho=None)
    assert choose_verdict(compute_speedup([BASE], [half], noise=few)).word == "inconclusive"


def test_a_side_of_one_run_is_never_more_than_inconclusive():
    runs = [[value * factor for value in BASE] for factor in (1.0, 1.001, 0.999)]
    half = [value / 2 for value in BASE]
    for sides in ((runs, [half]), ([half], runs)):
        found = choose_verdict(compute_speedup(*sides))
        assert (found.word, found.caps) == ("inconclusive", ("one run alone",))
        assert found.uncapped in ("improvement", "regression")
    assert choose_verdict(compute_speedup(runs, [BASE])).uncapped == "no change"
    assert choose_verdict(compute_speedup(runs, [BASE])).word == "inconclusive"
    assert choose_verdict(compute_speedup(runs, [half], noise=NOISE)).word == "improvement"
    assert choose_verdict(compute_speedup(runs, [half]), assume_independent_steps=True).word == "improvement"


def of_runs(*logs):
    return [[exp(value)] for value in logs]


def test_a_change_is_larger_than_equal_sides_seem_to_differ_by():
    # 3 v 3, log means ±.02 around 0 and around the change: s = .02, SE = .02 √(2/3) = .0163299 on 4 degrees. The
    # interval is beyond ln 1.03 = .029559 from .029559 + 2.776445 SE = .074898 on, and what equal sides exceed in
    # 0.4 % is 4.907636 SE = .080141.
    def said(change):
        base, opt = of_runs(-0.02, 0, 0.02), of_runs(change - 0.02, change, change + 0.02)
        return choose_verdict(compute_speedup(base, opt))

    assert (said(0.0748).word, said(0.0748).caps) == ("inconclusive", ())
    assert (said(0.0751).word, said(0.0751).uncapped) == ("inconclusive", "regression")
    assert said(0.0800).caps == said(-0.0800).caps == ("chance",)
    assert (said(0.0803).word, said(-0.0803).word) == ("regression", "improvement")


def test_of_two_runs_a_side_more_is_asked_for():
    # Log means ±.01: s = .0141421, SE = .0141421 on 2 degrees; 12.851777 SE = .181752.
    def said(change):
        return choose_verdict(compute_speedup(of_runs(-0.01, 0.01), of_runs(change - 0.01, change + 0.01)))

    assert (said(0.1815).caps, said(0.1820).word) == (("chance",), "regression")


def test_a_change_that_steps_alone_make_is_none():
    """One step of three times the time in each run of a side: their means agree, and are no change all the same."""
    calm, wild = [1.0] * 5, [1.0, 1.0, 1.0, 1.0, 3.0]
    base = [calm, [1.001] * 5]
    late, early = wild, [*wild[1:], 1.0]
    found = choose_verdict(compute_speedup(base, [late, early]))
    assert (found.word, found.uncapped, found.caps) == ("inconclusive", "regression", ("chance",))
    # A step that is long in all runs of both sides is no scatter.
    slower = [[1.2 * value for value in wild], [1.2012 * value for value in wild]]
    assert choose_verdict(compute_speedup([wild, [1.001 * value for value in wild]], slower)).word == "regression"


def test_unequal_numbers_of_steps_are_not_a_change():
    assert choose_verdict(compute_speedup([[10.0]], [BASE])).word == "inconclusive"
    even = compute_speedup([[10.0, 10.2, 9.8] * 9], [[10.1, 9.9, 10.0]])
    assert choose_verdict(even, assume_independent_steps=True).word in ("no change", "inconclusive")


@settings(deadline=None)
@given(several, several, st.floats(0, 0.5))
def test_swapped_sides_swap_the_words(base, opt, effect):
    one = choose_verdict(compute_speedup(base, opt), min_effect=effect)
    two = choose_verdict(compute_speedup(opt, base), min_effect=effect)
    turned = {"regression": "improvement", "improvement": "regression"}
    assert two.word == turned.get(one.word, one.word)
    assert choose_verdict(compute_speedup(opt, base), min_effect=effect, better="higher").word == one.word


@settings(deadline=None)
@given(several, several, st.floats(0, 0.5))
def test_the_chance_agrees_with_the_interval(base, opt, effect):
    found = choose_verdict(compute_speedup(base, opt), min_effect=effect)
    if found.p is not None and abs(found.p - 0.05) > 1e-9:
        assert (found.uncapped in ("regression", "improvement")) == (found.p < 0.05)


@pytest.mark.parametrize("effect", [-0.01, float("nan"), float("inf")])
def test_an_effect_is_a_share(effect):
    found = compute_speedup(RUNS, FASTER)
    for call in (lambda: choose_verdict(found, min_effect=effect), lambda: compute_needed_runs(found, effect=effect)):
        with pytest.raises(ValueError):
            call()


def test_a_direction_is_one_of_two():
    with pytest.raises(ValueError, match="better"):
        choose_verdict(compute_speedup(RUNS, FASTER), better="more")


def test_among_many_one_lucky_change_does_not_count():
    lucky = replace(choose_verdict(compute_speedup(RUNS, FASTER)), p=0.02)
    dull = replace(lucky, word="no change", uncapped="no change", p=0.6)
    alone = correct_verdicts([lucky])
    assert [one.word for one in alone] == ["improvement"]
    # Of three: 3 · 0.02 = 0.06. Verdicts without an interval are no part of the family.
    three = correct_verdicts([dull, lucky, dull])
    assert [one.word for one in three] == ["no change", "inconclusive", "no change"]
    assert three[1].caps == ("many comparisons",)
    sure = replace(lucky, word="regression", uncapped="regression", p=None)
    words = [one.word for one in correct_verdicts([sure, lucky, sure])]
    assert words == ["regression", "improvement", "regression"]
    assert correct_verdicts([]) == ()


def test_two_steps_of_one_of_the_sides_are_too_few():
    for steps in ((2, 5), (5, 2)):
        base, opt = ([[10.0, 10.1, 10.2, 10.0, 10.1][:count]] for count in steps)
        verdict = choose_verdict(
            compute_speedup(base, [[value / 2 for value in opt[0]]]), assume_independent_steps=True
        )
        assert "two steps" in verdict.caps


def test_what_lies_within_the_threshold_is_no_rarer_than_certain():
    assert choose_verdict(compute_speedup(RUNS, RUNS), min_effect=0.03).p == 1.0
