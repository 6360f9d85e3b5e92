"""Four words: where their borders lie, when they may not be said, and what it would take to say them."""

from dataclasses import replace
from math import exp, expm1, log, log1p

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.stats.certainty import (
    ErrorSpread,
    choose_false_alarm,
    choose_words,
    compute_certain_change,
    compute_half_width,
    is_certain_change,
)
from tracekit.model.stats.needed import compute_needed_runs
from tracekit.model.stats.noise import Noise, calibrate_noise
from tracekit.model.stats.speedup import compute_speedup
from tracekit.model.stats.verdict import (
    CAPS,
    SHORT_CAPS,
    choose_verdict,
    correct_verdicts,
    describe_caps,
    explain_inconclusive,
)

NOISE = Noise(sd=0.01, df=7.0, runs=8, steps=5, rho=None)
BASE = [10.2, 10.4, 10.1, 10.6, 10.3]
RUNS = [[10.0], [10.1], [9.9], [10.05]]
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


def test_a_change_has_to_exceed_every_spread_by_its_own_rate_of_false_alarms():
    # Student's t on 4 degrees: 5.597568 at 99.75 %, 5.321376 at 99.7 %, 4.907636 at 99.6 %.
    assert compute_certain_change([ErrorSpread(0.01, 4.0)]) == pytest.approx(0.05597568, abs=1e-7)
    assert compute_certain_change([ErrorSpread(0.01, 4.0, alpha=0.003)]) == pytest.approx(0.05321376, abs=1e-7)
    assert [choose_false_alarm(runs) for runs in (3, 4, 5, 6, 7, 8, 20)] == [
        0.0025,
        0.0025,
        0.003,
        0.003,
        0.003,
        0.0025,
        0.0025,
    ]
    spreads = [ErrorSpread(0.01, 4.0), ErrorSpread(0.1, 4.0, widens=False, alpha=0.004)]
    assert compute_certain_change(spreads) == pytest.approx(0.4907636, abs=1e-6)
    exact = float(compute_certain_change(spreads))
    assert not is_certain_change(exact, spreads)
    assert is_certain_change(-exact * 1.0001, spreads)


def test_the_default_threshold_is_three_percent():
    assert choose_verdict(between(log1p(0.03) + 1e-9, 0.1)).word == "improvement"
    assert choose_verdict(between(log1p(0.03) - 1e-9, 0.1)).word == "inconclusive"
    assert choose_verdict(between(0.0, 0.01)).effect == pytest.approx(0.03)
    assert choose_verdict(between(0.0, 0.01)).p == 1


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


def test_what_equal_runs_differ_by_is_no_change_of_one_run():
    noisy = Noise(sd=0.05, df=7.0, runs=8, steps=5, rho=None)
    assert choose_verdict(between(0.04, 0.09)).word == "improvement"
    alone = replace(compute_speedup(RUNS, FASTER).base, runs=1)
    for sides in ({"base": alone}, {"opt": alone}):
        found = choose_verdict(between(0.04, 0.09, noise=noisy, **sides))
        assert (found.uncapped, found.effect) == ("inconclusive", pytest.approx(expm1(0.05)))
        # A smaller noise does not lower the threshold.
        assert choose_verdict(between(0.0, 0.0, noise=NOISE, **sides)).effect == pytest.approx(0.03)
    # Of several runs per side the noise is in the interval already.
    assert choose_verdict(between(0.04, 0.09, noise=noisy)).effect == pytest.approx(0.03)


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
    # One long side does not help, four runs per side do.
    uneven = compute_speedup([[10, 10.001]], [[1, 1.001, 1.002]])
    assert choose_verdict(uneven, assume_independent_steps=True).caps == ("two steps",)
    four = [[10, 10.001]] * 4, [[1, 1.001], [1.002], [1.001], [1.0015]]
    assert choose_verdict(compute_speedup(*four)).word == "improvement"


def test_one_run_a_side_is_never_more_than_inconclusive():
    half = [value / 2 for value in BASE]
    found = choose_verdict(compute_speedup([BASE], [half]))
    assert (found.word, found.uncapped, found.caps) == (
        "inconclusive", "improvement", ("one run each",),
    )  # fmt: skip
    assert choose_verdict(compute_speedup([BASE], [half], paired="step")).word == "inconclusive"
    assert choose_verdict(compute_speedup([BASE * 20], [BASE * 20])).uncapped == "no change"
    assert choose_verdict(compute_speedup([BASE * 20], [BASE * 20])).word == "inconclusive"


def test_a_declaration_lets_one_run_show_a_change_and_calibrated_noise_none():
    half = [value / 2 for value in BASE]
    found = choose_verdict(compute_speedup([BASE], [half], noise=NOISE))
    assert (found.word, found.uncapped, found.caps) == ("inconclusive", "improvement", ("two levels",))
    found = choose_verdict(compute_speedup([BASE], [half], noise=NOISE), assume_independent_steps=True)
    assert found.word == "improvement"
    assert choose_verdict(compute_speedup([BASE], [half]), assume_independent_steps=True).word == "improvement"
    few = Noise(sd=0.01, df=2.0, runs=3, steps=5, rho=None)
    found = choose_verdict(compute_speedup([BASE], [half], noise=few))
    assert (found.word, found.caps) == ("inconclusive", ("one run each",))


def test_calibrated_noise_lets_one_run_show_that_nothing_changed():
    calm = Noise(sd=0.002, df=7.0, runs=8, steps=5, rho=None)
    # ± t(7) √2 · .002 = .0067 of runs, and less of 100 steps.
    found = choose_verdict(compute_speedup([BASE * 20], [BASE * 20], noise=calm))
    assert (found.word, found.caps) == ("no change", ())
    # 3 v 1, one spread of 7 · .002² and 2 · .001²: also without a cap.
    three = [[value * factor for value in BASE] for factor in (1.0, 1.001, 0.999)]
    assert choose_verdict(compute_speedup(three, [BASE], noise=calm)).word == "no change"


def test_a_side_of_one_run_is_never_more_than_inconclusive():
    runs = [[value * factor for value in BASE] for factor in (1.0, 1.001, 0.999)]
    half = [value / 2 for value in BASE]
    for sides in ((runs, [half]), ([half], runs)):
        found = choose_verdict(compute_speedup(*sides))
        assert (found.word, found.caps) == ("inconclusive", ("one run alone",))
        assert found.uncapped in ("improvement", "regression")
    assert choose_verdict(compute_speedup(runs, [BASE])).uncapped == "no change"
    assert choose_verdict(compute_speedup(runs, [BASE])).word == "inconclusive"
    for choices in ({"noise": NOISE}, {}):
        found = choose_verdict(compute_speedup(runs, [half], **choices), assume_independent_steps=True)
        assert (found.word, found.uncapped, found.caps) == ("inconclusive", "improvement", ("two levels",))


def of_runs(*logs):
    return [[exp(value)] for value in logs]


def compare_shifted(base, change, opt=None, **choices):
    """The verdict on runs of these log means, the second side's slower by `change`."""
    shifted = of_runs(*(log + change for log in opt or base))
    return choose_verdict(compute_speedup(of_runs(*base), shifted), **choices)


FOUR = (-0.01, 0.01, -0.01, 0.01)
"""Their variance is 4e-4 / 3: twice of a quarter of it has the root .0081650, on 6 degrees."""


@pytest.mark.parametrize(
    ("change", "uncapped", "caps"),
    [
        # The interval reaches t(6, .975) SE = 2.446912 SE = .019979; a gap of a quarter of .02 begins at .025; what equal
        # sides exceed in 0.25 % is t(6, .9975) SE = 4.316827 SE = .035247.
        (0.0199, "inconclusive", ()),
        (0.0201, "regression", ("overlap",)),
        (0.0249, "regression", ("overlap",)),
        (0.0251, "regression", ("chance",)),
        (0.0352, "regression", ("chance",)),
        (0.0353, "regression", ()),
    ],
)
def test_four_runs_show_a_change_from_a_gap_and_from_what_equal_sides_differ_by(change, uncapped, caps):
    found = compare_shifted(FOUR, change, min_effect=0.0)
    assert (found.uncapped, found.caps) == (uncapped, caps)
    assert found.word == ("inconclusive" if caps else uncapped)
    faster = compare_shifted(FOUR, -change, min_effect=0.0)
    assert faster.caps == caps
    assert faster.word == {"regression": "improvement"}.get(found.word, found.word)


def test_the_least_effect_comes_on_top_of_the_interval_alone():
    # .029559 + .019979 = .049538, which is more than .035247.
    assert compare_shifted(FOUR, 0.0495).word == "inconclusive"
    assert compare_shifted(FOUR, 0.0496).word == "regression"


def test_five_runs_may_overlap():
    # ±.01 twice each and 0: variance 1e-4, SE = √(2e-4 / 5) on 8 degrees. The interval reaches 2.306004 SE = .014584,
    # and 0.3 % of equal sides 3.704920 SE = .023432.
    five = (-0.01, -0.01, 0.0, 0.01, 0.01)
    words = [compare_shifted(five, change, min_effect=0.0) for change in (0.0145, 0.0147, 0.0234, 0.0235)]
    assert [(found.word, found.caps) for found in words] == [
        ("inconclusive", ()), ("inconclusive", ("chance",)), ("inconclusive", ("chance",)), ("regression", ())
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("base", "opt", "cap", "sentence"),
    [
        (2, 2, "two levels", "2 v 2 equal runs on two performance levels look like this in up to 6.3 % of comparisons"),
        (3, 3, "two levels", "3 v 3 equal runs on two performance levels look like this in up to 1.6 % of comparisons"),
        (4, 3, "two levels", "4 v 3 equal runs on two performance levels look like this in up to 0.9 % of comparisons"),
        (3, 5, "two levels", "3 v 5 equal runs on two performance levels look like this in up to 0.6 % of comparisons"),
        (5, 2, "two levels", "5 v 2 equal runs on two performance levels look like this in up to 1.6 % of comparisons"),
        (5, 1, "one run alone", "one run on a side does not show the run-to-run noise"),
        (1, 1, "no interval", "no confidence interval: the change cannot be separated from noise"),
    ],
)
def test_runs_too_few_to_rule_out_two_levels_show_no_change_however_large(base, opt, cap, sentence):
    """100 (k/n)^k (m/n)^m, rounded up; however large the change, either way."""
    runs = (-0.01, 0.01, 0.0, 0.005, -0.005)
    for change in (1.0, -1.0):
        compared = compute_speedup(of_runs(*runs[:base]), of_runs(*(log + change for log in runs[:opt])))
        found = choose_verdict(compared)
        assert (found.word, found.caps) == ("inconclusive", (cap,))
        assert describe_caps(found.caps, compared) == (sentence,)


@pytest.mark.parametrize("sides", [(3, 6), (6, 3), (4, 4), (10, 3)])
def test_three_against_six_show_a_change(sides):
    logs = np.linspace(-0.01, 0.01, 10)
    base, opt = (of_runs(*logs[::-1][:number]) for number in sides)
    assert choose_verdict(compute_speedup(base, [[1.2 * value for value in run] for run in opt])).word == "regression"


def history(number):
    return calibrate_noise(of_runs(*np.linspace(-0.0101, 0.0099, number)))


@pytest.mark.parametrize(
    ("base", "opt", "earlier", "word"),
    [
        (3, 3, 4, "inconclusive"),
        (3, 3, 5, "inconclusive"),
        (3, 3, 6, "regression"),
        (3, 3, 12, "regression"),
        (2, 2, 16, "inconclusive"),
        (1, 3, 16, "inconclusive"),
        (4, 4, 6, "regression"),
    ],
)
def test_six_earlier_runs_of_base_let_three_show_a_change(base, opt, earlier, word):
    logs = (-0.01, 0.01, 0.0, 0.005)
    sides = of_runs(*logs[:base]), of_runs(*(log + 0.3 for log in logs[:opt]))
    found = choose_verdict(compute_speedup(*sides, noise=history(earlier)))
    assert (found.uncapped, found.word) == ("regression", word)
    assert found.caps == (() if word == "regression" else ("two levels",))
    # The spread of a file that holds no run values counts for the interval alone.
    old = replace(history(earlier), logs=())
    assert choose_verdict(compute_speedup(*sides, noise=old)).word == ("regression" if base == 4 else "inconclusive")


def test_the_range_of_earlier_runs_widens_the_gap():
    # Sides of .02 within .008 of each other: more than a quarter of .02, less than one of .04. One spread on 23 degrees:
    # √((.0004 + .002) / 23 · 2/3) = .0083406, of which 0.25 % exceed 3.104 times as much, .02589, and the change is .028.
    base, opt = of_runs(-0.01, 0.0, 0.01), of_runs(0.018, 0.028, 0.038)
    narrow = calibrate_noise(of_runs(*([0.0101, -0.0099] * 10)))
    wide = calibrate_noise(of_runs(*([0.0001] * 18), 0.0201, -0.0199))
    words = [choose_verdict(compute_speedup(base, opt, noise=noise), min_effect=0.0) for noise in (narrow, wide)]
    assert [(found.uncapped, found.caps) for found in words] == [
        ("regression", ()),
        ("regression", ("overlap",)),
    ]


def test_sentences_count_the_earlier_runs_that_are_known():
    known, old = history(8), replace(history(8), logs=())

    def say(base, opt, noise):
        logs = (-0.01, 0.01, 0.0)
        compared = compute_speedup(of_runs(*logs[:base]), of_runs(*logs[:opt]), noise=noise)
        return describe_caps(["two levels"], compared)[0]

    # .9^9 · .1 = 3.87 %, and 1/2 · 1/2 where only a spread is known.
    assert say(1, 1, known) == (
        "one run may be a slow one by chance: up to 3.9 % of comparisons of 9 v 1 equal runs look like this; record 4"
        " runs per side"
    )
    assert "up to 25 % of comparisons of 1 v 1 equal runs" in say(1, 1, old)
    assert say(2, 2, old) == "2 v 2 equal runs on two performance levels look like this in up to 6.3 % of comparisons"
    # Two levels alone explain .45 % of 10 v 2 and .16 % of 8 v 3: the rule looks at more of them.
    several = "equal runs on several performance levels may look like this in more than 0.5 % of comparisons"
    assert say(2, 2, known) == f"10 v 2 {several}"
    assert say(3, 3, history(5)) == f"8 v 3 {several}"


def test_every_other_cap_has_a_sentence_of_its_own():
    compared = compute_speedup(RUNS, FASTER)
    said = describe_caps([cap for cap in CAPS if cap != "two levels"], compared)
    assert said == tuple(text for cap, text in CAPS.items() if cap != "two levels")
    assert len(set(said)) == len(said)


def test_a_change_that_steps_alone_make_is_none():
    """One step of three times the time in each run of a side: their means agree, and are no change all the same."""
    wild = [1.0, 1.0, 1.0, 1.0, 3.0]
    base = [[factor] * 5 for factor in (1.0, 1.001, 0.9995, 1.0005)]
    late = [wild[at:] + wild[:at] for at in range(4)]
    found = choose_verdict(compute_speedup(base, late))
    assert (found.word, found.uncapped, found.caps) == ("inconclusive", "regression", ("chance",))
    # A step that is long in all runs of both sides is no scatter.
    factors = (1.0, 1.001, 0.9995, 1.0005)
    alike, slower = ([[scale * factor * value for value in wild] for factor in factors] for scale in (1.0, 1.2))
    assert choose_verdict(compute_speedup(alike, slower)).word == "regression"


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


@pytest.mark.parametrize(
    ("comparison", "reason"),
    [
        (compute_speedup([BASE], [BASE]), "one run per side"),
        (compute_speedup([[10.0]], [[5.0]]), "no confidence interval"),
        (compute_speedup([BASE], RUNS), "one run on a side"),
        (between(-0.5, 0.5), "the interval includes no change"),
        (between(0.01, 0.2), "the interval includes changes below 3 %"),
        (between(0.0301, 0.2), ""),
    ],
)
def test_an_inconclusive_verdict_has_a_short_reason(comparison, reason):
    judgement = choose_verdict(comparison)
    assert explain_inconclusive(judgement, comparison, assume_independent_steps=False) == reason


def test_every_reason_has_a_short_form():
    assert SHORT_CAPS.keys() == CAPS.keys()
    assert all(len(text) <= 35 for text in SHORT_CAPS.values())
