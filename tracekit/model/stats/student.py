"""Scalar quantile of Student's t with fractional degrees of freedom.

scipy has it for arrays, but importing scipy takes longer than reading and measuring a small profile.
"""

from __future__ import annotations

import math
from functools import lru_cache

EXACT = 1e-15
"""Relative change below which a term is rounding."""

MIN_EXPANSION_DF, EXACT_EXPANSION_DF = 3, 2e3
"""Degrees of freedom from which the expansion is a start value, and from which it is exact to twelve digits."""

LAST_STEP = 1e-9
"""Size of Newton step after which the next one is below rounding."""

MAX_TERMS, MAX_STEPS = 500, 60


@lru_cache(4096)
def compute_student_quantile(probability: float, df: float) -> float:
    """Compute the value that Student's t on `df` degrees of freedom exceeds with probability 1 − `probability`.

    NaN for invalid input.

    >>> round(compute_student_quantile(0.975, 4), 6), compute_student_quantile(0.5, 3), round(compute_student_quantile(0.025, 1), 6)
    (2.776445, 0.0, -12.706205)
    """
    if not (0 <= probability <= 1 and df > 0):
        return math.nan
    if probability < 0.5:
        return -compute_student_quantile(1 - probability, df)
    if probability == 0.5:
        return 0.0
    if probability == 1:
        return math.inf
    above = 1 - probability
    # With few degrees of freedom the expansion is useless.
    near = _expand_quantile(above, df) if df >= MIN_EXPANSION_DF else 1.0
    return near if df >= EXACT_EXPANSION_DF else _solve_quantile(above, df, near)


def _expand_quantile(above: float, df: float) -> float:
    """Expand the quantile in powers of 1/df around the normal one (Abramowitz and Stegun 26.7.5)."""
    from statistics import NormalDist

    z = -NormalDist().inv_cdf(above)
    w = z * z
    terms = (
        (w + 1) / 4,
        ((5 * w + 16) * w + 3) / 96,
        (((3 * w + 19) * w + 17) * w - 15) / 384,
        ((((79 * w + 776) * w + 1482) * w - 1920) * w - 945) / 92160,
    )
    series = 0.0
    for term in reversed(terms):
        series = (series + term) / df
    return z * (1 + series)


def _solve_quantile(above: float, df: float, near: float) -> float:
    """Solve for the quantile by Newton's method from `near`, on the logarithms of the tail and of t.

    The log tail is concave there, so the steps converge.
    """
    target, log_scale = math.log(above), _compute_log_density(df)
    log_t = math.log(near)
    for _ in range(MAX_STEPS):
        t = math.exp(log_t)
        log_tail = math.log(_compute_student_tail(t, df, log_scale))
        log_density = log_scale - (df + 1) / 2 * math.log1p(t * (t / df))
        step = (log_tail - target) / math.exp(log_density + log_t - log_tail)
        log_t += step
        if abs(step) <= LAST_STEP:
            break
    return math.exp(log_t)


def _compute_student_tail(t: float, df: float, log_scale: float) -> float:
    """Compute the probability above t > 0 by the continued fraction that converges faster.

    ½ I(df / (df + t²); df/2, ½).
    """
    a, ratio = df / 2, t * (t / df)
    log_x = -math.log1p(ratio)
    log_y = math.log(ratio) + log_x
    front = math.exp(a * log_x + log_y / 2 + log_scale + math.log(df) / 2) / 2
    x = math.exp(log_x)
    if x < (a + 1) / (a + 2.5):
        return front / a * _evaluate_beta_fraction(a, 0.5, x)
    return 0.5 - 2 * front * _evaluate_beta_fraction(0.5, a, math.exp(log_y))


def _evaluate_beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the incomplete beta function divided by x^a (1−x)^b / (a B(a, b)), by Lentz's method."""
    lower = 1 / (1 - (a + b) * x / (a + 1))
    upper, value = 1.0, lower
    for m in range(1, MAX_TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            lower = 1 / (1 + term * lower)
            upper = 1 + term / upper
            value *= upper * lower
        if abs(upper * lower - 1) <= EXACT:
            break
    return value


def _compute_log_density(df: float) -> float:
    """Compute the log density of Student's t at 0: Γ((df+1)/2) / (Γ(df/2) √(df π))."""
    a = df / 2
    if a < 40:
        ratio = math.lgamma(a + 0.5) - math.lgamma(a)
    else:  # the two are too close for their difference
        inverse = 1 / a
        series = 1 / 8 - inverse**2 * (1 / 192 - inverse**2 * (1 / 640 - inverse**2 * 17 / 14336))
        ratio = math.log(a) / 2 - inverse * series
    return ratio - math.log(df * math.pi) / 2
