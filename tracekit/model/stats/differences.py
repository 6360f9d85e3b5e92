"""Difference of two means that may be zero, with its interval: for counts and levels, where a ratio has no meaning."""

from __future__ import annotations

from tracekit.model.records import dataclass
from tracekit.model.stats.estimate import Runs, compute_student_quantile, estimate_side


@dataclass(frozen=True, slots=True)
class MeanDifference:
    """Means of both sides, second minus first, and the interval of the difference; None without one."""

    base: float
    opt: float
    difference: float
    low: float | None
    high: float | None
    label: str


def compare_means(base: Runs, opt: Runs, *, level: float = 0.95) -> MeanDifference:
    """Compare two means by Welch's interval: of runs if a side has several, otherwise of autocorrelated values of one run.

    A side without variation has an error of 0 if the other varies.

    >>> found = compare_means([[0.0, 0.0, 0.0, 0.0]], [[4.0, 6.0, 5.0, 5.5, 4.5]])
    >>> found.difference, found.low is not None and found.low > 2
    (5.0, True)
    """
    first, second = estimate_side(base, level=level), estimate_side(opt, level=level)
    difference = second.mean - first.mean
    errors = [side.se for side in (first, second)]
    label = first.label if first.label == second.label else (second.label if first.se == 0 else first.label)
    if None in errors or not any(errors):
        return MeanDifference(first.mean, second.mean, difference, None, None, "no interval")
    variances = [error**2 for error in errors if error is not None]
    terms = [
        variance**2 / side.df for variance, side in zip(variances, (first, second), strict=True) if variance and side.df
    ]
    df = sum(variances) ** 2 / sum(terms)
    half = compute_student_quantile(0.5 + level / 2, df) * sum(variances) ** 0.5
    return MeanDifference(first.mean, second.mean, difference, difference - half, difference + half, label)
