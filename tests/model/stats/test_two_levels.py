"""What equal runs on two levels forbid: the bound by hand, who may speak of a change, and how far apart four runs must lie."""

from itertools import product

import numpy as np
import pytest

from tracekit.model.stats.two_levels import (
    PROMISE,
    can_show_change,
    compute_two_level_share,
    measure_gaps,
)


@pytest.mark.parametrize(
    ("base", "opt", "percent"),
    [
        (1, 1, 25.0),  # 1/2 · 1/2
        (2, 2, 6.25),  # 1/4 · 1/4
        (3, 3, 1.5625),  # 1/8 · 1/8
        (4, 4, 0.390625),  # 1/16 · 1/16
        (5, 2, 1.517832),  # (5/7)^5 · (2/7)² = 3125 · 4 / 823543
        (5, 1, 6.697960),  # (5/6)^5 / 6 = 3125 / 46656
        (6, 3, 0.325154),  # (2/3)^6 · (1/3)³ = 64 / 19683
        (9, 3, 0.117320),  # (3/4)^9 · (1/4)³ = 19683 / 16777216
        (9, 1, 3.874205),  # .9^9 · .1
    ],
)
def test_all_runs_of_a_side_are_slow_by_chance_in_so_many_percent(base, opt, percent):
    assert 100 * compute_two_level_share(base, opt) == pytest.approx(percent, abs=5e-7)
    assert compute_two_level_share(base, opt) == compute_two_level_share(opt, base)


@pytest.mark.parametrize(("base", "opt"), [(3, 3), (4, 3), (7, 2), (10, 10)])
def test_no_share_of_slow_runs_is_worse(base, opt):
    slow = np.linspace(0, 1, 10_001)
    shares = (1 - slow) ** base * slow**opt
    assert shares.max() <= compute_two_level_share(base, opt) * (1 + 1e-12)
    assert shares.max() == pytest.approx(compute_two_level_share(base, opt), rel=1e-5)


@pytest.mark.parametrize(
    ("base", "opt", "earlier", "may"),
    [
        # Four per side and more: at most 1/256.
        (4, 4, 0, True),
        (5, 4, 0, True),
        (10, 10, 0, True),
        # Three against four and five: .84 and .503 %; against six .33 %, on either side.
        (3, 3, 0, False),
        (4, 3, 0, False),
        (5, 3, 0, False),
        (6, 3, 0, True),
        (3, 6, 0, True),
        (3, 10, 0, True),
        # Earlier runs of the base: from nine on with three of opt, not eight, although those are below .5 % (.16 %).
        (3, 3, 5, False),
        (3, 3, 6, True),
        (3, 3, 12, True),
        (4, 3, 5, True),
        (4, 4, 8, True),
        # They stand for runs of base, not of opt: nine against three, but four of opt remain four.
        (4, 4, 1, True),
        # One or two runs never, whatever is known of others.
        (1, 1, 0, False),
        (1, 1, 100, False),
        (2, 2, 8, False),
        (2, 2, 100, False),
        (100, 2, 0, False),
        (2, 100, 100, False),
        (100, 1, 0, False),
        (3, 2, 12, False),
    ],
)
def test_who_may_speak_of_a_change(base, opt, earlier, may):
    assert can_show_change(base, opt, earlier) is may


def test_whoever_may_speak_keeps_the_promise_and_more_runs_never_silence():
    for base, opt in product(range(1, 13), repeat=2):
        if can_show_change(base, opt):
            assert compute_two_level_share(base, opt) <= PROMISE
            assert can_show_change(base + 1, opt)
            assert can_show_change(base, opt + 1)
        assert can_show_change(base, opt) == can_show_change(opt, base)


FOUR = np.array([0.0, 0.01, 0.02, 0.04])
"""A quarter of their range is .01."""


@pytest.mark.parametrize(("gap", "apart"), [(-0.02, False), (0.0, False), (0.0099, False), (0.0101, True), (0.5, True)])
def test_four_runs_per_side_lie_apart_by_a_quarter_of_the_widest_range(gap, apart):
    opt = 0.04 + gap + np.array([0.0, 0.02, 0.01, 0.03])
    assert bool(measure_gaps(FOUR, opt).is_apart()) is apart
    assert bool(measure_gaps(opt, FOUR).is_apart()) is apart
    assert bool(measure_gaps(FOUR, -opt + 0.04).is_apart()) is apart, "whichever side is above"


def test_a_gap_of_exactly_a_quarter_is_too_small():
    four = np.array([0.0, 1.0, 2.0, 4.0])
    assert not measure_gaps(four, four + 5.0).is_apart()
    assert measure_gaps(four, four + 5.0625).is_apart()


def test_the_range_of_earlier_runs_counts_too():
    # Half of .08 is the history's; a quarter of it is .02.
    near, far = FOUR + 0.04 + 0.019, FOUR + 0.04 + 0.021
    assert measure_gaps(FOUR, near).is_apart()
    assert not measure_gaps(FOUR, near, 0.08).is_apart()
    assert measure_gaps(FOUR, far, 0.08).is_apart()
    assert measure_gaps(FOUR, near, 0.03).is_apart(), "a narrower one counts for nothing"
    assert not measure_gaps(FOUR[:3], FOUR[:3] + 0.02 + 0.019, 0.08).is_apart(), "with three runs as well"


def test_from_five_runs_per_side_they_may_overlap():
    five = np.array([0.0, 0.01, 0.02, 0.03, 0.04])
    assert measure_gaps(five, five).is_apart()
    assert measure_gaps(five, five, 1.0).is_apart()
    assert not measure_gaps(five, five[:4]).is_apart()
    assert not measure_gaps(five[:4], np.tile(five, 4)).is_apart()


def test_one_measure_serves_one_comparison_and_many_and_any_true_change():
    base = np.array([FOUR, FOUR, FOUR])
    opt = base + np.array([[0.0], [0.055], [-0.045]])
    gaps = measure_gaps(base, opt)
    # Gaps of −.04, .015 and .005; what is .05 slower: .01 exactly, which is not more, .065, and overlap.
    assert gaps.is_apart().tolist() == [False, True, False]
    assert gaps.is_apart(0.0501).tolist() == [True, True, False]
    assert gaps.is_apart(-0.0501).tolist() == [True, False, True]


def test_earlier_runs_never_take_a_verdict_away():
    """3 v 6 decide without a history, and with one of any length; enumerated, at most .41 % of equal sides look changed."""
    for base, opt in ((3, 6), (6, 3), (9, 3), (4, 4)):
        assert can_show_change(base, opt)
        assert all(can_show_change(base, opt, earlier) for earlier in range(1, 15))
    assert [earlier for earlier in range(12) if can_show_change(3, 3, earlier)] == list(range(6, 12))
