"""Tests of many kernels at once, corrected for multiple comparisons and for a shift common to all."""

from __future__ import annotations

from collections.abc import Sequence
from math import log1p
from typing import Literal

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.stats.designs import combine_variances_welch
from tracekit.model.stats.estimate import ROUNDING, Floats, compute_t_tail

Presence = Literal["both", "new", "removed", "at times", "absent"]
NotApplied = Literal["too few kernels", "most of them changed"]

MAX_KERNEL_WEIGHT = 0.1
"""Maximum weight of a kernel in the common shift: one that changed must not pass for a clock change."""


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """Thresholds of kernel tests: false-discovery rate, shares of the step, and conditions of the common shift.

    `false_share` is the accepted share of false ones among the reported. Kernels below `least_share` of the step are not
    tested. A change must reach `least_effect`, and `least_difference` as a share of the step. The shift needs
    `shift_kernels` kernels, and at most `global_share` of them may differ by more than `global_effect`.
    """

    false_share: float = 0.05
    least_share: float = 0.001
    least_effect: float = 0.03
    least_difference: float = 0.001
    shift_kernels: int = 20
    global_share: float = 0.5
    global_effect: float = 0.05


@dataclass(frozen=True, slots=True)
class CommonShift:
    """The change common to all kernels of a class, on the log scale (above 0: slower).

    `value` is the median of `kernels` log ratios weighted by share, None without kernels. It is subtracted in the tests only
    if `not_applied` is None.
    """

    kind: str
    kernels: int
    value: float | None
    not_applied: NotApplied | None


@dataclass(frozen=True, slots=True)
class KernelTest:
    """One kernel on both sides; None if it was not tested.

    `base` and `opt` are means of its totals, `difference` is opt − base, `share` its share of the step (mean of both sides).
    `change` is the log ratio opt/base of totals, and `corrected` the same minus the class's shift. `p` and `q` refer to
    `change`, `p_corrected` and `q_corrected` to `corrected`; q values are Benjamini-Hochberg's over all tested. `changed` is
    the verdict.
    """

    presence: Presence
    base: float
    opt: float
    difference: float
    share: float
    change: float | None
    corrected: float | None
    p: float | None
    q: float | None
    p_corrected: float | None
    q_corrected: float | None
    changed: bool


@dataclass(frozen=True, slots=True)
class KernelTests:
    """The tests of all kernels in the given order, the shifts by class, and the number of tested kernels."""

    kernels: tuple[KernelTest, ...]
    shifts: tuple[CommonShift, ...]
    tested: int


def adjust_benjamini_hochberg(p: Sequence[float] | Floats) -> Floats:
    """Adjust p values to control the false-discovery rate (Benjamini-Hochberg).

    >>> [round(float(q), 4) for q in adjust_benjamini_hochberg([0.01, 0.04, 0.03])]
    [0.03, 0.04, 0.04]
    """
    values = np.asarray(p, np.float64)
    if values.ndim != 1 or not ((values >= 0) & (values <= 1)).all():
        raise ValueError("p values are numbers from 0 to 1")
    count = len(values)
    order = np.argsort(values, kind="stable")
    scaled = values[order] * count / np.arange(1, count + 1)
    out = np.empty(count)
    out[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return out


def compute_common_shift(
    change: Floats, share: Floats, kind: str = "", limits: KernelLimits | None = None
) -> CommonShift:
    """Compute the share-weighted median log ratio of kernels found on both sides.

    It is not applied with too few kernels, or if most of them differ by more than a clock change would explain.
    """
    limits = limits or KernelLimits()
    count = len(change)
    if not count:
        return CommonShift(kind, 0, None, "too few kernels")
    value = _compute_weighted_median(change, _cap_weights(share))
    reason: NotApplied | None = None
    if count < limits.shift_kernels:
        reason = "too few kernels"
    elif np.mean(np.abs(change) > log1p(limits.global_effect)) > limits.global_share:
        reason = "most of them changed"
    return CommonShift(kind, count, value, reason)


def compare_kernels(
    base: Floats,
    opt: Floats,
    kinds: Sequence[str],
    *,
    base_step: float,
    opt_step: float,
    limits: KernelLimits | None = None,
) -> KernelTests:
    """Test each kernel by Welch's t on the logs of its totals, with and without the common shift of its class.

    `base` and `opt` are (kernels × units): totals per step, averaged over ranks, or per run if there are several; 0 where a
    kernel did not run. `base_step` and `opt_step` are the mean steps. A kernel is tested if it ran in every unit of both
    sides and takes its share of the step. It changed if the corrected change is significant and large enough, in ratio and in
    time. A kernel whose totals never vary has no test.
    """
    limits = limits or KernelLimits()
    base, opt, groups = _check_kernel_sides(base, opt, kinds, (base_step, opt_step))
    before, after = base.mean(axis=1), opt.mean(axis=1)
    share = (before + after) / (base_step + opt_step)
    everywhere = np.asarray(np.concatenate([base, opt], axis=1).all(axis=1))
    change, variance, df = _compute_log_changes(base, opt, everywhere)
    shifts = []
    moved = np.zeros(len(base))
    for kind in sorted(set(kinds)):
        of_kind = (groups == kind) & everywhere
        shift = compute_common_shift(change[of_kind], share[of_kind], kind, limits)
        shifts.append(shift)
        if shift.not_applied is None and shift.value is not None:
            moved[groups == kind] = shift.value
    tested = everywhere & (share >= limits.least_share) & (variance > ROUNDING**2)
    corrected = change - moved
    raw_p, raw_q = _test_changes(change, variance, df, tested)
    p, q = _test_changes(corrected, variance, df, tested)
    enough = np.abs(corrected) >= log1p(limits.least_effect)
    enough &= np.abs(after - before) >= limits.least_difference * base_step
    changed = tested & enough & (np.where(tested, q, 1.0) <= limits.false_share)
    rows = tuple(
        KernelTest(
            _classify_presence(base[row], opt[row]),
            float(before[row]),
            float(after[row]),
            float(after[row] - before[row]),
            float(share[row]),
            _replace_nan(change[row]),
            _replace_nan(corrected[row]),
            _replace_nan(raw_p[row]),
            _replace_nan(raw_q[row]),
            _replace_nan(p[row]),
            _replace_nan(q[row]),
            bool(changed[row]),
        )
        for row in range(len(base))
    )
    return KernelTests(rows, tuple(shifts), int(tested.sum()))


def _check_kernel_sides(
    base: Floats, opt: Floats, kinds: Sequence[str], steps: tuple[float, float]
) -> tuple[Floats, Floats, npt.NDArray[np.object_]]:
    """Convert both sides to matrices and the classes to an array; raise ValueError if they do not fit."""
    before, after = np.asarray(base, np.float64), np.asarray(opt, np.float64)
    if before.ndim != 2 or after.ndim != 2 or not len(before) == len(after) == len(kinds):
        raise ValueError("kernels: both sides and the classes have to name the same kernels")
    if not (before.shape[1] and after.shape[1]):
        raise ValueError("kernels: a side has no steps")
    if not all(np.isfinite(side).all() and (side >= 0).all() for side in (before, after)):
        raise ValueError("kernels: totals have to be finite and not below zero")
    if not all(0 < step < float("inf") for step in steps):
        raise ValueError("kernels: the mean step has to be positive and finite")
    groups = np.empty(len(kinds), object)
    groups[:] = kinds
    return before, after, groups


def _compute_log_changes(base: Floats, opt: Floats, measured: npt.NDArray[np.bool_]) -> tuple[Floats, ...]:
    """Compute the log ratio opt/base of each kernel, its variance and degrees of freedom; NaN if unknown."""
    change, variance, df = (np.full(len(base), np.nan) for _ in range(3))
    before, after = np.log(base[measured]), np.log(opt[measured])
    change[measured] = after.mean(axis=1) - before.mean(axis=1)
    n, m = base.shape[1], opt.shape[1]
    if min(n, m) > 1:
        parts = before.var(axis=1, ddof=1) / n, n - 1.0, after.var(axis=1, ddof=1) / m, m - 1.0
        variance[measured], df[measured] = combine_variances_welch(*parts)
    return change, variance, df


def _test_changes(change: Floats, variance: Floats, df: Floats, tested: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Compute the two-sided p of no change, and q over all tested; NaN for the others."""
    p, q = np.full(len(change), np.nan), np.full(len(change), np.nan)
    t = np.abs(change[tested]) / np.sqrt(variance[tested])
    p[tested] = np.minimum(2 * compute_t_tail(t, df[tested]), 1.0)
    q[tested] = adjust_benjamini_hochberg(p[tested])
    return p, q


def _cap_weights(weights: Floats) -> Floats:
    """Lower the heaviest weights until none exceeds `MAX_KERNEL_WEIGHT` of the sum.

    With too few kernels for that, all weigh the same.
    """
    heaviest = max(MAX_KERNEL_WEIGHT, 1 / len(weights))
    falling = np.sort(weights)[::-1]
    lighter = falling[::-1].cumsum()[::-1]
    for heavy in range(min(len(weights), round(1 / heaviest))):
        # With this many lowered to `limit`, each is exactly `heaviest` of the sum.
        limit = heaviest * lighter[heavy] / (1 - heavy * heaviest)
        if 0 < falling[heavy] <= limit:
            return np.asarray(np.minimum(weights, limit))
    return np.ones(len(weights))


def _compute_weighted_median(values: Floats, weights: Floats) -> float:
    """Compute the weighted median; the midpoint of two values if half of the weight falls between them."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    half = below[-1] / 2
    slack = 1e-9 * below[-1]
    first = int(np.searchsorted(below, half - slack))
    second = int(np.searchsorted(below, half + slack))
    return float((values[order[first]] + values[order[second]]) / 2)


def _classify_presence(base: Floats, opt: Floats) -> Presence:
    """Classify on which sides a kernel ran; "at times" if it did not run in every unit of a side."""
    if not base.any() or not opt.any():
        return "removed" if base.any() else "new" if opt.any() else "absent"
    return "both" if base.all() and opt.all() else "at times"


def _replace_nan(value: float) -> float | None:
    """Replace NaN by None."""
    return None if np.isnan(value) else float(value)
