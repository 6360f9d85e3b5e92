"""Power analysis: the probability of each verdict word for a given true change."""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.stats.certainty import ErrorSpread, compute_certain_quantile
from tracekit.model.stats.estimate import Floats, compute_t_quantiles

POWER = 0.8
"""Share of comparisons in which a change must be detected."""

BOUND = 0.8
"""Confidence of the upper bound of a spread, used where a promise must hold."""

MAX_LOG_CHANGE = 10.0
"""Search limit of log changes."""

_OF_INTERVAL, _BESIDE = 64, 8


@dataclass(frozen=True, slots=True)
class WordChances:
    """The probability of each word; they add up to 1."""

    regression: float
    no_change: float
    improvement: float
    inconclusive: float


SILENT = WordChances(0.0, 0.0, 0.0, 1.0)
"""Probabilities if no word can be given, whatever is measured."""


@dataclass(frozen=True, slots=True)
class ChangeBorders:
    """Thresholds over many draws of the spreads: half-width of the interval, and least certain change.

    `se` is the standard error of the log ratio itself.
    """

    se: float
    half: Floats
    least: Floats


def compute_chances(
    worse: float, spreads: Sequence[ErrorSpread], delta: float, level: float, *, bound: bool = False
) -> WordChances:
    """Compute the probability of each word if the true log change for the worse is `worse`.

    The log ratio is normal around it. Each drawn standard error varies as its spread times √(χ²/df), summed over midpoints of
    its quantiles; calibrated ones are constant. With `bound`, spreads are at their upper bound.

    >>> found = compute_chances(0.0, [ErrorSpread(0.005, 8.0)], 0.03, 0.95)
    >>> f"{found.no_change:.3f} {found.regression:.3f}"
    '0.999 0.000'
    """
    return _average_chances(worse, compute_borders(spreads, level, bound=bound), delta)


def find_detectable_change(
    spreads: Sequence[ErrorSpread], delta: float, level: float, *, bound: bool = True
) -> float | None:
    """Find the smallest change (0.041 = 4.1 %) called a regression with probability `POWER`; None beyond the search limit.

    By default spreads are at their upper bound, because they are estimates and a promise must hold.
    """
    drawn = compute_borders(spreads, level, bound=bound)
    beyond = np.maximum(delta + drawn.half, drawn.least) / drawn.se
    low, high = delta, MAX_LOG_CHANGE
    if not _compute_normal_cdf(high / drawn.se - beyond).mean() >= POWER:
        return None
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if _compute_normal_cdf(middle / drawn.se - beyond).mean() >= POWER:
            high = middle
        else:
            low = middle
    return expm1(high)


def compute_upper_factor(df: float) -> float:
    """Compute the upper bound of a standard deviation relative to its estimate, with confidence `BOUND`.

    >>> f"{compute_upper_factor(2):.2f} {compute_upper_factor(4):.2f}"
    '2.12 1.56'
    """
    return float((df / _compute_chi2_quantile(np.asarray(1 - BOUND), df)) ** 0.5)


def compute_borders(spreads: Sequence[ErrorSpread], level: float, *, bound: bool = False) -> ChangeBorders:
    """Compute the thresholds of a log ratio over the quantiles of the drawn spreads, or at their upper bounds."""
    half, certain = np.zeros((1, 1)), np.zeros((1, 1))
    errors = []
    for spread in spreads:
        factor = compute_upper_factor(float(spread.df)) if bound else 1.0
        sizes = _list_error_sizes(spread, factor)
        if spread.widens:
            errors.append(float(spread.se) * factor)
            half = np.maximum(half, float(compute_t_quantiles(0.5 + level / 2, spread.df)) * sizes)
        certain = np.maximum(certain, float(compute_certain_quantile(spread.df)) * sizes)
    half, certain = np.broadcast_arrays(half, certain)
    return ChangeBorders(max(errors), half, certain)


def _list_error_sizes(spread: ErrorSpread, factor: float) -> Floats:
    """List the standard error at the midpoints of equal shares of its distribution; as a column if it widens the interval."""
    df = float(spread.df)
    if not spread.drawn:
        return np.full((1, 1), float(spread.se))
    number = _OF_INTERVAL if spread.widens else _BESIDE
    shares = (np.arange(number) + 0.5) / number
    sizes = factor * float(spread.se) * np.sqrt(_compute_chi2_quantile(shares, df) / df)
    return sizes[:, None] if spread.widens else sizes[None, :]


def _average_chances(worse: float, drawn: ChangeBorders, delta: float) -> WordChances:
    """Average the probabilities over the drawn thresholds."""
    beyond = np.maximum(delta + drawn.half, drawn.least)
    regression = float(_compute_normal_cdf((worse - beyond) / drawn.se).mean())
    improvement = float(_compute_normal_cdf((-worse - beyond) / drawn.se).mean())
    room = np.maximum(delta - drawn.half, 0.0)
    inside = _compute_normal_cdf((room - worse) / drawn.se) - _compute_normal_cdf((-room - worse) / drawn.se)
    no_change = float(inside.mean())
    inconclusive = max(1 - regression - improvement - no_change, 0.0)
    return WordChances(regression, no_change, improvement, inconclusive)


def _compute_normal_cdf(x: Floats) -> Floats:
    from scipy.special import ndtr

    return np.asarray(ndtr(x), np.float64)


def _compute_chi2_quantile(share: Floats, df: float) -> Floats:
    """Compute the quantile of χ²."""
    from scipy.special import gammaincinv

    return np.asarray(2 * gammaincinv(df / 2, share), np.float64)
