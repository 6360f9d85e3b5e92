"""Many kernels at once: chance counted, a common shift taken off, and what never was on both sides."""

from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.stats import many
from tracekit.model.stats.many import (
    KernelLimits,
    _cap_weights,
    adjust_benjamini_hochberg,
    compare_kernels,
    compute_common_shift,
)
from tracekit.model.stats.trend import holm

chances = st.lists(st.floats(0, 1), min_size=1, max_size=30)


def test_benjamini_and_hochberg_by_hand():
    # p · m / rank from the largest down: .05·5/5, .04·5/4, … are all .05.
    assert adjust_benjamini_hochberg([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx([0.05] * 5)
    # .5; .03·4/3 = .04; .01·4/2 = .02; .005·4 = .02.
    assert adjust_benjamini_hochberg([0.5, 0.01, 0.005, 0.03]) == pytest.approx([0.5, 0.02, 0.02, 0.04])
    # A later one that does better pulls the earlier down: .04·2/1 = .08 but .041·2/2 = .041.
    assert adjust_benjamini_hochberg([0.04, 0.041]) == pytest.approx([0.041, 0.041])
    assert len(adjust_benjamini_hochberg([])) == 0


def test_holm_by_hand():
    # .01 · 3; .03 · 2; .04 · 1 raised to the one before.
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


@settings(deadline=None)
@given(chances)
def test_corrections_never_help_and_keep_the_order(p):
    for adjusted in (adjust_benjamini_hochberg(p), np.array(holm(p))):
        assert (adjusted >= np.array(p) - 1e-12).all()
        assert (adjusted <= 1).all()
        order = np.argsort(p, kind="stable")
        assert (np.diff(adjusted[order]) >= -1e-12).all()
    assert (adjust_benjamini_hochberg(p) <= np.array(holm(p)) + 1e-12).all()


@settings(deadline=None)
@given(chances, st.randoms(use_true_random=False))
def test_the_order_of_kernels_is_of_no_consequence(p, random):
    at = random.sample(range(len(p)), len(p))
    assert adjust_benjamini_hochberg([p[i] for i in at]) == pytest.approx(adjust_benjamini_hochberg(p)[at])


@pytest.mark.parametrize("p", [[-0.1], [1.1], [float("nan")], [[0.1]]])
def test_what_is_no_chance_is_said(p):
    with pytest.raises(ValueError):
        adjust_benjamini_hochberg(p)


def table(count, units=4, *, level=1.0, spread=0.001):
    """Kernels of equal share whose totals waver by `spread` around `level`, each in its own way."""
    random = np.random.default_rng(count)
    return level * np.exp(spread * random.standard_normal((count, units)))


def compared(base, opt, kinds=None, **kept):
    """The tests with the step as long as its kernels."""
    kinds = ["compute"] * len(base) if kinds is None else kinds
    return compare_kernels(base, opt, kinds, base_step=base.mean(axis=1).sum(), opt_step=opt.mean(axis=1).sum(), **kept)


def test_one_kernel_by_hand():
    # Logs 0 ±.01 and .1 ±.01 of two steps each: variances of the mean .0001 each, SE √.0002, df 2,
    # t² = .01/.0002 = 50; with two degrees p = 1 − t/√(t² + 2) = 1 − √(50/52).
    base, opt = np.array([[exp(0.01), exp(-0.01)]]), np.array([[exp(0.11), exp(0.09)]])
    found = compared(base, opt).kernels[0]
    assert found.change == pytest.approx(0.1)
    assert found.corrected == found.change
    assert found.p == pytest.approx(1 - (50 / 52) ** 0.5)
    assert found.q == found.p
    assert found.difference == pytest.approx(opt.mean() - base.mean())
    assert found.share == pytest.approx(1)


def test_a_common_shift_is_taken_off_and_told():
    base = table(25)
    opt = base * 1.02 * np.exp(0.001 * np.random.default_rng(1).standard_normal(base.shape))
    opt[3] *= 1.2
    found = compared(base, opt)
    (shift,) = found.shifts
    assert shift.value == pytest.approx(log(1.02), abs=0.001)
    assert (shift.kernels, shift.not_applied) == (25, None)
    assert sum(kernel.q < 0.05 for kernel in found.kernels) == 25
    assert [at for at, kernel in enumerate(found.kernels) if kernel.changed] == [3]
    assert found.kernels[3].corrected == pytest.approx(log(1.2), abs=0.003)
    assert found.kernels[3].change == pytest.approx(log(1.2 * 1.02), abs=0.003)


@pytest.mark.parametrize(("count", "applied"), [(19, False), (20, True)])
def test_a_shift_needs_twenty_kernels(count, applied):
    base = table(count)
    found = compared(base, base * 1.04)
    assert (found.shifts[0].not_applied is None) is applied
    assert found.shifts[0].value == pytest.approx(log(1.04))
    assert found.kernels[0].changed is not applied


@pytest.mark.parametrize(("changed", "applied"), [(10, True), (11, False)])
def test_a_global_change_is_no_shift(changed, applied):
    base = table(20)
    opt = base.copy()
    opt[:changed] *= 1.06
    shift = compared(base, opt).shifts[0]
    assert (shift.not_applied is None) is applied
    if not applied:
        assert shift.not_applied == "most of them changed"
        assert compared(base, opt).kernels[0].changed


def test_each_class_has_its_own_shift():
    base = table(40)
    opt = base.copy()
    opt[20:] *= 1.02
    found = compared(base, opt, ["compute"] * 20 + ["comm"] * 20)
    assert [shift.kind for shift in found.shifts] == ["comm", "compute"]
    assert [shift.value for shift in found.shifts] == pytest.approx([log(1.02), 0])
    assert not any(kernel.changed for kernel in found.kernels)


def test_one_heavy_kernel_does_not_pass_for_the_clock():
    base = table(31)
    base[0] *= 1000
    opt = base * np.exp(0.001 * np.random.default_rng(2).standard_normal(base.shape))
    opt[0] *= 1.045
    found = compared(base, opt)
    assert found.shifts[0].value == pytest.approx(0, abs=0.002)
    assert [at for at, kernel in enumerate(found.kernels) if kernel.changed] == [0]


def test_the_shift_goes_by_share():
    # Half of the time slower by 2 % in 25 kernels, the other half in 100 small ones as before:
    # the median lies between; with a little more weight on the slower ones it is theirs.
    change = np.array([0.02] * 25 + [0.0] * 100)
    share = np.array([0.02] * 25 + [0.005] * 100)
    assert compute_common_shift(change, share).value == pytest.approx(0.01)
    share[0] *= 1.1
    assert compute_common_shift(change, share).value == 0.02
    assert compute_common_shift(np.array([]), np.array([])).value is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1)), min_size=1, max_size=40), st.floats(-0.5, 0.5))
def test_a_shift_moves_with_all_kernels(rows, by):
    change, share = np.array(rows).T
    one, two = compute_common_shift(change, share), compute_common_shift(change + by, share)
    assert min(change) <= one.value <= max(change)
    assert two.value == pytest.approx(one.value + by, abs=1e-9)


@pytest.mark.parametrize(("share", "tested"), [(0.00101, True), (0.00099, False)])
def test_small_kernels_are_not_tested(share, tested):
    # 2 % on one side and none of the change on the other is of no matter: the mean of both sides counts.
    base = np.array([[share * 0.5, share * 0.501], [1.0, 1.001]])
    opt = np.array([[share * 1.5, share * 1.501], [1.0, 1.002]])
    found = compare_kernels(base, opt, ["a", "a"], base_step=1.0, opt_step=1.0)
    assert (found.kernels[0].p is not None) is tested
    assert found.tested == 1 + tested
    assert found.kernels[0].difference == pytest.approx(share, rel=0.01)


def test_a_change_has_to_matter_in_ratio_and_in_time():
    base = table(3, units=6, spread=1e-5)
    for factor, step, changed in (
        (1.0305, 3.0, True),
        (1.0295, 3.0, False),
        (1.0305, 31.0, False),  # 0.0305 of 31 is less than 0.1 %
        (1.0305, 30.0, True),
        (1 / 1.0305, 29.0, True),
    ):
        opt = base.copy()
        opt[0] *= factor
        found = compare_kernels(base, opt, ["a"] * 3, base_step=step, opt_step=step)
        assert found.kernels[0].changed is changed, (factor, step)


def test_kernels_of_one_side_are_new_or_gone_and_never_infinite():
    base = np.array([[1.0, 1.1], [0.0, 0.0], [2.0, 2.1], [1.0, 0.0], [0.0, 0.0]])
    opt = np.array([[1.0, 1.1], [3.0, 3.2], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    found = compared(base, opt).kernels
    assert [kernel.presence for kernel in found] == ["both", "new", "removed", "at times", "absent"]
    assert [kernel.difference for kernel in found] == pytest.approx([0, 3.1, -2.05, 0.5, 0])
    assert [kernel.change is None for kernel in found] == [False, True, True, True, True]
    assert not any(kernel.changed for kernel in found)


def test_what_ran_at_times_on_one_side_alone_is_new_or_gone():
    base = np.array([[1.0, 0.0], [0.0, 0.0]])
    found = compared(base, base[::-1]).kernels
    assert [kernel.presence for kernel in found] == ["removed", "new"]


def test_the_heaviest_weigh_a_tenth_of_all_together_where_they_are_lowered():
    """30 and 40 beside 32 of 1: both are lowered to 4, a tenth of 32 + 2 · 4; beside 20 of 1 alone 30 weighs 20/9."""
    assert _cap_weights(np.array([30.0, 40, *[1] * 32])) == pytest.approx([4, 4, *[1] * 32])
    assert _cap_weights(np.array([30.0, *[1] * 20])) == pytest.approx([20 / 9, *[1] * 20])


def test_without_spread_or_with_one_step_there_is_no_test():
    still = compared(np.ones((2, 5)), np.full((2, 5), 2.0)).kernels[0]
    assert (still.change, still.p, still.changed) == (pytest.approx(log(2)), None, False)
    once = compared(np.ones((2, 1)), np.array([[1.0, 2.0], [1.0, 1.1]])).kernels[0]
    assert (once.p, once.changed) == (None, False)


def test_no_kernels_are_no_tests():
    found = compare_kernels(np.ones((0, 3)), np.ones((0, 3)), [], base_step=1.0, opt_step=1.0)
    assert (found.kernels, found.shifts, found.tested) == ((), (), 0)


@pytest.mark.parametrize(
    ("base", "opt", "kinds", "step"),
    [
        (np.ones((2, 3)), np.ones((3, 3)), ["a", "a"], 1.0),
        (np.ones((2, 3)), np.ones((2, 3)), ["a"], 1.0),
        (np.ones(3), np.ones(3), ["a"] * 3, 1.0),
        (np.ones((1, 0)), np.ones((1, 3)), ["a"], 1.0),
        (-np.ones((1, 3)), np.ones((1, 3)), ["a"], 1.0),
        (np.full((1, 3), np.nan), np.ones((1, 3)), ["a"], 1.0),
        (np.ones((1, 3)), np.ones((1, 3)), ["a"], 0.0),
        (np.ones((1, 3)), np.ones((1, 3)), ["a"], float("nan")),
    ],
)
def test_what_cannot_be_tested_is_said(base, opt, kinds, step):
    with pytest.raises(ValueError, match="kernels"):
        compare_kernels(base, opt, kinds, base_step=step, opt_step=1.0)


def test_the_limits_are_the_callers():
    base = table(2, units=6, spread=1e-5)
    opt = base * [[1.01], [1.0]]
    assert compared(base, opt, limits=KernelLimits(least_effect=0.005)).kernels[0].changed
    assert not compared(base, opt).kernels[0].changed


@settings(deadline=None)
@given(st.integers(2, 25), st.floats(1e-6, 1e6), st.randoms(use_true_random=False))
def test_neither_unit_nor_order_nor_direction_matters(count, factor, random):
    base, opt = table(count, spread=0.02), table(count + 1, spread=0.02)[:count]
    at = random.sample(range(count), count)
    one = compared(base, opt)
    for other in (compared(factor * base, factor * opt), compared(opt, base)):
        assert [k.p_corrected for k in other.kernels] == pytest.approx([k.p_corrected for k in one.kernels])
    moved = compared(base[at], opt[at])
    assert [k.q for k in moved.kernels] == pytest.approx([one.kernels[i].q for i in at])


@pytest.mark.parametrize(
    ("base", "opt", "presence"),
    [
        ([1, 2], [3, 4], "both"), ([1, 0], [3, 4], "at times"), ([1, 2], [3, 0], "at times"), ([1, 0], [0, 0], "removed"),
        ([0, 0], [0, 4], "new"), ([0, 0], [0, 0], "absent"),
    ],
)  # fmt: skip
def test_a_kernel_runs_on_both_sides_or_on_one_or_at_times(base, opt, presence):
    assert many._classify_presence(np.array(base, float), np.array(opt, float)) == presence
