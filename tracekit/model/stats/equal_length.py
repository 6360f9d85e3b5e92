"""Times of steps at equal length: regression on the work of a step, with errors that allow for autocorrelation.

Time per token is biased when answers lengthen, because a step has a fixed part: +500 tokens made identical code look 10 % faster.
"""

from __future__ import annotations

from math import erfc, expm1, log, sqrt

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.stats.estimate import average_rho, compute_student_quantile, count_effective_steps
from tracekit.model.stats.trend import compute_trend_p

Floats = npt.NDArray[np.float64]

MOST_COLLINEAR = 0.9
"""Correlation of length and step above which length may explain a change over the run."""

LEAST_DF = 2.0
"""Effective degrees of freedom above which a fit has an interval: below, Student's t has no finite variance.

In simulated pairs of 4 steps with 2 % of noise, intervals of 95 % were up to 170 % wide at 1 to 2 degrees of freedom, and
up to 35 % above 2.
"""

LEAST_FIT = 0.8
"""Least R² of both fits for a change between logs whose lengths do not overlap."""


@dataclass(frozen=True, slots=True)
class LengthFit:
    """Time at one length in one log: `level` with its standard error, on `df` effective degrees of freedom.

    `slopes` are per covariate, `r2` the share of the variance that the lengths explain.
    """

    level: float
    error: float
    df: float
    slopes: tuple[float, ...]
    r2: float
    residuals: Floats


@dataclass(frozen=True, slots=True)
class EqualLengthChange:
    """The change from one log to another as shares: raw, per unit of work, and at equal length with its interval.

    `overlap` is the intersection of the ranges of length over their union, `df` the fewer effective degrees of freedom of both fits.
    """

    raw: float
    per_unit: float
    change: float
    low: float
    high: float
    overlap: float
    r2: float
    curvature_p: float
    df: float

    @property
    def is_determined(self) -> bool:
        """Whether there are steps enough to estimate the error of the fits."""
        return self.df > LEAST_DF


@dataclass(frozen=True, slots=True)
class RunDrift:
    """The change of the step time over a run at equal length, as a share of its start; `p` is one-sided for a rise.

    `correlation` is that of length and step number.
    """

    change: float
    p: float
    correlation: float
    is_told_apart: bool


def fit_at_length(x: Floats, t: Floats, lengths: Floats, rho: float | None = None) -> LengthFit:
    """Fit `t` on the columns of `x`, and evaluate the fit at `lengths`; `rho` is the lag-1 correlation of the residuals if known.

    >>> fit = fit_at_length(np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.5]))
    >>> round(fit.level, 9), round(fit.slopes[0], 9), round(fit.r2, 9)
    (2.5, 1.0, 1.0)
    """
    varies = np.ptp(x, axis=0) > 0
    design = np.column_stack([np.ones(len(t)), (x - lengths)[:, varies]])
    coefficients, *_ = np.linalg.lstsq(design, t, rcond=None)
    residuals = t - design @ coefficients
    if rho is None:
        rho = float(average_rho(residuals / max(float(np.abs(t).mean()), 1e-300)))
    effective = float(count_effective_steps(len(t), rho))
    df = max(effective - design.shape[1], 0.5)
    inflated = (1 + rho) / (1 - rho)
    variance = float((residuals**2).sum()) / max(len(t) - design.shape[1], 1)
    error = sqrt(max(float(np.linalg.pinv(design.T @ design)[0, 0]) * variance * inflated, 0.0))
    slopes = np.zeros(x.shape[1])
    slopes[varies] = coefficients[1:]
    total = float(((t - t.mean()) ** 2).sum())
    r2 = 1 - float((residuals**2).sum()) / total if total > 0 else 0.0
    return LengthFit(float(coefficients[0]), error, df, tuple(slopes.tolist()), r2, residuals)


def compare_at_equal_length(
    before: tuple[Floats, Floats], after: tuple[Floats, Floats], *, level: float = 0.95
) -> EqualLengthChange | None:
    """Compare the times of two logs at the mean length of both; each side is (length, time), length in columns.

    The first column is the one whose range and quotient count. None if a fit is not positive there.
    """
    (x0, t0), (x1, t1) = before, after
    at = np.concatenate([x0, x1]).mean(axis=0)
    first, second = fit_at_length(x0, t0, at), fit_at_length(x1, t1, at)
    if first.level <= 0 or second.level <= 0:
        return None
    rho = float(average_rho(first.residuals / first.level, second.residuals / second.level))
    first, second = fit_at_length(x0, t0, at, rho), fit_at_length(x1, t1, at, rho)
    errors = (first.error / first.level, second.error / second.level)
    half = _compute_half_interval(errors, (first.df, second.df), level)
    middle = log(second.level / first.level)
    return EqualLengthChange(
        float(t1.mean() / t0.mean() - 1),
        float((t1.sum() / x1[:, 0].sum()) / (t0.sum() / x0[:, 0].sum()) - 1),
        expm1(middle),
        expm1(middle - half),
        expm1(middle + half),
        measure_range_overlap(x0[:, 0], x1[:, 0]),
        min(first.r2, second.r2),
        min(compute_curvature_p(x0[:, 0], t0), compute_curvature_p(x1[:, 0], t1)),
        min(first.df, second.df),
    )


def _compute_half_interval(errors: tuple[float, float], df: tuple[float, float], level: float) -> float:
    """Compute the half-width of a difference of two means by Welch's degrees of freedom."""
    variance = errors[0] ** 2 + errors[1] ** 2
    if variance <= 0:
        return 0.0
    of_welch = variance**2 / (errors[0] ** 4 / df[0] + errors[1] ** 4 / df[1])
    return compute_student_quantile(0.5 + level / 2, of_welch) * sqrt(variance)


def measure_range_overlap(x: Floats, y: Floats) -> float:
    """Measure the intersection of two ranges over their union; 1 if all values are equal.

    >>> measure_range_overlap(np.array([0.0, 2.0]), np.array([1.0, 3.0]))
    0.3333333333333333
    """
    union = max(float(x.max()), float(y.max())) - min(float(x.min()), float(y.min()))
    if union <= 0:
        return 1.0
    return max(min(float(x.max()), float(y.max())) - max(float(x.min()), float(y.min())), 0.0) / union


def compute_curvature_p(x: Floats, t: Floats) -> float:
    """Compute the two-sided p of a quadratic term; 1 for too few points, or without variation."""
    if len(x) < 6 or float(np.ptp(x)) == 0:
        return 1.0
    z = (x - x.mean()) / float(np.ptp(x))
    design = np.column_stack([np.ones(len(t)), z, z**2])
    coefficients, *_ = np.linalg.lstsq(design, t, rcond=None)
    residuals = t - design @ coefficients
    variance = float((residuals**2).sum()) / (len(t) - 3)
    error = sqrt(max(float(np.linalg.pinv(design.T @ design)[2, 2]) * variance, 0.0))
    if error == 0:
        return 1.0
    return erfc(abs(float(coefficients[2])) / error / sqrt(2))


def measure_drift_at_equal_length(x: Floats, t: Floats, step: Floats) -> RunDrift | None:
    """Measure the change of `t` over the steps with length held equal; None if it cannot be fitted.

    The rise of the residuals is tested twice: by the slope of a regression with autocorrelated errors, and by ranks.
    """
    if len(t) < 6 or float(np.ptp(step)) == 0:
        return None
    span = float(np.ptp(step))
    lengths = x[:, np.ptp(x, axis=0) > 0]
    base = np.column_stack([np.ones(len(t)), lengths])
    of_step, of_time = _remove_fit(base, step), _remove_fit(base, t)
    correlation = _correlate_most(lengths, step)
    power = float((of_step**2).sum())
    if power <= 1e-9 * span**2 * len(t):
        return RunDrift(0.0, 1.0, correlation, is_told_apart=False)
    slope = float((of_step * of_time).sum()) / power
    rest = of_time - slope * of_step
    rho = float(average_rho(rest / float(t.mean())))
    df = max(float(count_effective_steps(len(t), rho)) - base.shape[1] - 1, 1.0)
    error = sqrt(float((rest**2).sum()) / max(len(t) - base.shape[1] - 1, 1) / power * (1 + rho) / (1 - rho))
    certain = slope > compute_student_quantile(0.99, df) * error
    start = float(t.mean()) - slope * (float(step.mean()) - float(step.min()))
    p = compute_trend_p(of_time, rest) if certain else 1.0
    return RunDrift(slope * span / start if start > 0 else 0.0, p, correlation, abs(correlation) <= MOST_COLLINEAR)


def _remove_fit(design: Floats, y: Floats) -> Floats:
    """Remove the least-squares fit of the design from `y`."""
    coefficients, *_ = np.linalg.lstsq(design, y, rcond=None)
    return np.asarray(y - design @ coefficients)


def _correlate_most(lengths: Floats, step: Floats) -> float:
    """Compute the largest correlation of any length with the step number; 0 without lengths."""
    if not lengths.shape[1]:
        return 0.0
    correlations = [float(np.corrcoef(lengths[:, column], step)[0, 1]) for column in range(lengths.shape[1])]
    return max(correlations, key=abs)


def find_outlying_steps(
    x: Floats, t: Floats, deviations: float, min_ratio: float
) -> tuple[npt.NDArray[np.bool_], Floats]:
    """Find the steps far above the fit on their length: (mask, expected times).

    A step is far above it by `deviations` robust standard deviations and by the share `min_ratio`. The fit leaves such steps out.
    """
    design = np.column_stack([np.ones(len(t)), x[:, np.ptp(x, axis=0) > 0]])
    outlying, expected = np.zeros(len(t), np.bool_), np.full(len(t), float(np.median(t)))
    for _ in range(FITS):
        if (~outlying).sum() <= design.shape[1] + 2:
            break
        coefficients, *_ = np.linalg.lstsq(design[~outlying], t[~outlying], rcond=None)
        expected = design @ coefficients
        away = t - expected
        usual = float(np.median(away[~outlying]))
        spread = 1.4826 * float(np.median(np.abs(away[~outlying] - usual)))
        outlying = away - usual > np.maximum(deviations * spread, ROUNDING * np.abs(expected))
    return outlying & (t - expected > min_ratio * np.abs(expected)), expected


FITS = 3
"""Fits without the outlying steps of the fit before."""

ROUNDING = 1e-9
"""Smallest share of a step that is not rounding."""
