"""Growth of a short series: Theil-Sen slope, Mann-Kendall tests, and the label they support together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import erfc, factorial, sqrt
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass

Floats = npt.NDArray[np.float64]

Label = Literal["too few", "flat", "none", "saturating", "shift", "filling", "stairs", "likely", "strong"]
"""Labels of growth.

The function `label_growth` returns all but two: `filling` (growth that slows down) and `stairs` (equal rises at regular
intervals).
"""

GROWS = ("stairs", "likely", "strong")
"""Labels of growth without counter-evidence."""

MAX_POINTS = 1_000
"""Maximum number of points compared pairwise; longer series are thinned evenly."""

EXACT_UP_TO = 10
"""Maximum number of points, without ties, for which the exact distribution of Kendall's S is used."""

DETECTABLE = 18.0
"""Slopes above this many residual deviations over points^1.5 are found in 80 % of simulated series."""


@dataclass(frozen=True, slots=True)
class Slope:
    """The median slope of all pairs of points, its interval, and the number of points."""

    per_x: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class GrowthLimits:
    """Thresholds of growth: `slope` per x (and as a share of the level), and `flat`, the range that counts as flat."""

    min_count: int
    slope: float
    slope_ratio: float
    flat: float
    likely: float
    strong: float
    late_ratio: float


@dataclass(frozen=True, slots=True)
class Growth:
    """Evidence for growth of a series after its first `warm_up` points.

    `p` is one-sided (None if untested). `p_shift` is the p of growth next to the best single level shift, and `shift` is (first
    x of the new level, size). `rising` means that thirds and the late half keep growing. `detectable` is the smallest slope
    that would have been found.
    """

    slope: Slope | None
    warm_up: int = 0
    spread: float = 0.0
    p: float | None = None
    p_shift: float | None = None
    shift: tuple[float, float] | None = None
    rising: bool = False
    late_slope: float | None = None
    detectable: float | None = None
    level: float = 0.0


def compute_theil_sen(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> Slope | None:
    """Compute the median slope of all pairs, with Sen's 90 % interval; None without two distinct x.

    >>> compute_theil_sen([0, 1, 2], [0, 2, 5])
    Slope(per_x=2.5, low=2.0, high=3.0, count=3)
    """
    xs, ys = _thin_series(x, y)
    first, second = _list_point_pairs(len(xs))
    run = xs[second] - xs[first]
    slopes = np.sort((ys[second] - ys[first])[run != 0] / run[run != 0])
    if not len(slopes):
        return None
    half = 1.645 * sqrt(_compute_score_variance(ys))
    low = max(int((len(slopes) - half) / 2), 0)
    high = min(int((len(slopes) + half) / 2), len(slopes) - 1)
    middle = (slopes[(len(slopes) - 1) // 2] + slopes[len(slopes) // 2]) / 2
    return Slope(float(middle), float(slopes[low]), float(slopes[high]), len(xs))


def measure_growth(x: Sequence[float] | Floats, y: Sequence[float] | Floats, limits: GrowthLimits) -> Growth:
    """Collect the evidence for steady growth of `y` over `x`, both in order; `label_growth` interprets it."""
    xs, ys = _thin_series(x, y)
    if len(xs) < limits.min_count:
        return Growth(compute_theil_sen(xs, ys))
    warm_up = 1 + (len(xs) >= 7) + (len(xs) >= 10)
    xs, ys = xs[warm_up:], ys[warm_up:]
    slope = compute_theil_sen(xs, ys)
    late = compute_theil_sen(xs[len(xs) // 2 :], ys[len(ys) // 2 :])
    if slope is None or late is None:
        return Growth(slope, warm_up)
    residuals = ys - slope.per_x * xs
    deviation = 1.4826 * float(np.median(np.abs(residuals - np.median(residuals))))
    # A remainder of the division by three goes to the middle third, so that the outer thirds stay apart.
    third = len(ys) // 3
    parts = (ys[:third], ys[third : len(ys) - third], ys[len(ys) - third :])
    thirds = [float(np.median(part)) for part in parts]
    rising = thirds[0] < thirds[1] < thirds[2]
    split = _find_best_split(ys)
    shift = None
    if split:
        shift = float(xs[split]), float(np.median(ys[split:]) - np.median(ys[:split]))
    return Growth(
        slope,
        warm_up,
        float(ys.max() - ys.min()),
        max(_test_mann_kendall(ys), _test_hamed_rao(ys, residuals)),
        _test_beside_shift(ys, split),
        shift,
        rising and late.per_x >= limits.late_ratio * slope.per_x,
        late.per_x,
        _compute_detectable_slope(deviation, ys, limits),
        float(np.median(ys)),
    )


def _compute_detectable_slope(deviation: float, ys: Floats, limits: GrowthLimits) -> float:
    """Compute the smallest slope that 4 of 5 such series would show, beyond their noise and the limits."""
    enough = max(limits.slope, limits.slope_ratio * abs(float(np.median(ys))))
    count = float(len(ys))
    noise = DETECTABLE * deviation / (count * math.sqrt(count))
    return max(noise, enough, limits.flat / (len(ys) - 1))


def fit_least_squares(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> float | None:
    """Compute the least-squares slope; None without two distinct x. Not evidence of growth by itself.

    >>> fit_least_squares([0, 1, 2], [0, 2, 4])
    2.0
    """
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if not len(xs) or not float(np.ptp(xs)):
        return None
    centred = xs - xs.mean()
    return float((centred * (ys - ys.mean())).sum() / (centred**2).sum())


def label_growth(growth: Growth, limits: GrowthLimits, p: float | None = None) -> Label:
    """Choose the label that the evidence supports; `p` replaces its own if several series were tested."""
    if p is None:
        p = growth.p
    slope, p_shift, late_slope = growth.slope, growth.p_shift, growth.late_slope
    if p is None or slope is None or p_shift is None or late_slope is None:
        return "too few"
    if growth.spread <= limits.flat:
        return "flat"
    if p < limits.likely and _rises_enough(growth, slope.per_x, limits):
        return "strong" if p < limits.strong and p_shift < limits.likely else "likely"
    if p >= limits.likely or slope.per_x <= 0:
        return "none"
    if p_shift >= 2 * limits.likely:
        return "shift"
    return "saturating" if late_slope < limits.late_ratio * slope.per_x else "none"


def _rises_enough(growth: Growth, slope: float, limits: GrowthLimits) -> bool:
    """Whether a series rises to its end, by at least the threshold."""
    return growth.rising and slope >= max(limits.slope, limits.slope_ratio * abs(growth.level))


def holm(p: Sequence[float]) -> list[float]:
    """Adjust p values for multiple comparisons (Holm), in the given order.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(np.asarray(p, float), kind="stable")
    scaled = np.asarray(p, float)[order] * np.arange(len(p), 0, -1)
    raised = np.minimum(np.maximum.accumulate(scaled), 1.0)
    out = np.empty(len(p))
    out[order] = raised
    return [float(value) for value in out]


def _thin_series(x: Any, y: Any) -> tuple[Floats, Floats]:
    """Convert both to floats, thinned evenly if there are too many."""
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(xs) > MAX_POINTS:
        places = np.linspace(0, len(xs) - 1, MAX_POINTS).round().astype(np.int64)
        xs, ys = xs[places], ys[places]
    return xs, ys


@lru_cache(8)
def _list_point_pairs(count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """List the first and second index of all pairs; cached, because the series of a thousand ranks have equal lengths."""
    first, second = np.triu_indices(count, 1)
    return first, second


def _compute_kendall_score(y: Floats) -> int:
    """Compute Kendall's S: the number of rising pairs minus that of falling pairs."""
    first, second = _list_point_pairs(len(y))
    return int(np.sign(y[second] - y[first]).sum())


def _compute_score_variance(y: Floats) -> float:
    """Compute the variance of S without a trend, corrected for ties."""
    n = len(y)
    ties = Counter(y.tolist()).values()
    scaled = n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)
    return scaled / 18


def _compute_normal_tail(score: float, variance: float) -> float:
    """Compute the one-sided p of a score at least this high, by the normal distribution with continuity correction."""
    if variance <= 0:
        return 1.0
    z = (score - np.sign(score)) / sqrt(variance)
    return 0.5 * erfc(float(z) / sqrt(2))


def _test_mann_kendall(y: Floats) -> float:
    """Compute the one-sided p of the Mann-Kendall test: exact for few points without ties."""
    score, n = _compute_kendall_score(y), len(y)
    if n > EXACT_UP_TO or len(np.unique(y)) < n:
        return _compute_normal_tail(score, _compute_score_variance(y))
    falling = np.array([1], np.int64)
    for size in range(2, n + 1):
        falling = np.convolve(falling, np.ones(size, np.int64))
    falls = (n * (n - 1) // 2 - score) // 2
    return float(falling[: falls + 1].sum()) / factorial(n)


def _test_hamed_rao(y: Floats, residuals: Floats) -> float:
    """Compute the one-sided p with the variance inflated by autocorrelation of the detrended ranks over lags 1 to 3."""
    n = len(y)
    # Equal residuals share a rank: those of a perfect line are not noise, and not autocorrelated.
    _, place, equal = np.unique(residuals, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(equal) - (equal - 1) / 2)[place]
    ranks -= ranks.mean()
    power = float((ranks**2).sum())
    factor = 1.0
    if power > 0 and n > 4:
        weights = [
            (n - lag) * (n - lag - 1) * (n - lag - 2) * float((ranks[lag:] * ranks[:-lag]).sum()) for lag in (1, 2, 3)
        ]
        factor = max(1.0, 1 + 2 / (n * (n - 1) * (n - 2)) * sum(weights) / power)
    return _compute_normal_tail(_compute_kendall_score(y), _compute_score_variance(y) * factor)


def compute_trend_p(y: Floats, residuals: Floats) -> float:
    """Compute the one-sided p of a rise: the larger of the Mann-Kendall test and the one that allows for autocorrelation."""
    ys, rest = _thin_series(y, residuals)
    return max(_test_mann_kendall(ys), _test_hamed_rao(ys, rest))


def _find_best_split(y: Floats) -> int:
    """Find the start of the least-squares single level shift (segments of ≥ 3 points); 0 if there is none."""
    n = len(y)
    if n < 6:
        return 0
    sums, squares = np.cumsum(y), np.cumsum(y**2)
    places = np.arange(3, n - 2)
    left, right = sums[places - 1], sums[-1] - sums[places - 1]
    cost = squares[-1] - left**2 / places - right**2 / (n - places)
    return int(places[cost.argmin()])


def _test_beside_shift(y: Floats, split: int) -> float:
    """Compute the one-sided p of growth within the two segments of a level shift."""
    if not split:
        return _test_mann_kendall(y)
    parts = (y[:split], y[split:])
    score = sum(_compute_kendall_score(part) for part in parts)
    variance = sum(_compute_score_variance(part) for part in parts)
    return _compute_normal_tail(score, variance)
