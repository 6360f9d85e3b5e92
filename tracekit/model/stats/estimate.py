"""Estimate of one side: center, spread, and a labeled confidence interval of the mean by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass

Floats = npt.NDArray[np.float64]
Runs = Sequence[Sequence[float] | Floats]
"""The runs of one side: for each, the values of its steps in order, one value per step."""

Unit = Literal["run", "step"]
Cover = Literal["run-to-run", "within-run", "no interval"]

RHO_CAP = 0.8
"""Upper limit of the lag-1 correlation: a short series cannot separate a larger one from a trend."""

LEAST_EFFECTIVE = 1.5
"""Minimum number of independent steps that a run counts as, however correlated they look."""

ROUNDING = 1e-12
"""Relative spread up to which variation is rounding, not observed noise."""

RANGE = (1e-100, 1e100)
"""Range of sizes accepted as measurements; their squares and sums stay finite."""


EXACT = 1e-15
"""Relative change below which a term is rounding."""

MIN_EXPANSION_DF, EXACT_EXPANSION_DF = 3, 2e3
"""Degrees of freedom from which the expansion is a start value, and from which it is exact to twelve digits."""

LAST_STEP = 1e-9
"""Size of Newton step after which the next one is below rounding."""

MAX_TERMS, MAX_STEPS = 500, 60


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate of one side; None where the runs are insufficient.

    `unit` is what was replicated: runs if there are at least two, else the steps of the one run. `sd` is the spread of those
    units and `n` their number. `mean` is the mean of the run means; `least`, `most` and `median` are over all steps. `low`
    and `high` bound the mean at `level` by Student's t on `df`; `label` states what the interval covers. `rho` is the lag-1
    correlation of steps that widened it.
    """

    runs: int
    steps: int
    unit: Unit
    n: int
    mean: float
    median: float
    least: float
    most: float
    sd: float | None
    se: float | None
    df: float | None
    low: float | None
    high: float | None
    rho: float | None
    label: Cover
    level: float


def estimate_side(runs: Runs, *, level: float = 0.95) -> Estimate:
    """Estimate the center and spread of one side; values may have any sign, so shares and counts may be zero.

    Steps of one run are not independent: their interval counts `n_eff = n (1 − ρ) / (1 + ρ)` of them. Without variation there
    is no interval, because unobserved noise is not known to be zero.

    >>> estimate_side([[10.0, 12.0], [11.0, 13.0]]).label
    'run-to-run'
    """
    check_level(level)
    parts = check_runs(runs, positive=False)
    steps = np.concatenate(parts)
    scale = float(np.abs(steps).max()) or 1.0
    means = np.array([part.mean() for part in parts])
    unit: Unit = "step"
    label: Cover = "within-run"
    units = parts[0] / scale
    if len(parts) > 1:
        unit, label, units = "run", "run-to-run", means / scale
    rho = None
    sd = se = df = low = high = None
    if len(units) > 1:
        sd = float(units.std(ddof=1))
        if sd <= ROUNDING:
            sd = se = 0.0
        elif unit == "run":
            se, df = sd / len(units) ** 0.5, len(units) - 1.0
        else:
            rho = float(average_rho(units))
            variance, degrees = compute_mean_variance(units, rho)
            se, df = float(variance) ** 0.5, float(degrees)
    mean = float(means.mean())
    if se and df:
        half = compute_student_quantile(0.5 + level / 2, float(df)) * se * scale
        low, high = mean - half, mean + half
    else:
        label = "no interval"
    return Estimate(
        runs=len(parts),
        steps=len(steps),
        unit=unit,
        n=len(units),
        mean=mean,
        median=float(np.median(steps)),
        least=float(steps.min()),
        most=float(steps.max()),
        sd=None if sd is None else sd * scale,
        se=None if se is None else se * scale,
        df=df,
        low=low,
        high=high,
        rho=rho,
        label=label,
        level=level,
    )


def check_runs(runs: Runs, *, positive: bool, side: str = "") -> list[Floats]:
    """Convert the runs to float arrays; raise ValueError that names the first value that is not a measurement."""
    prefix = f"{side}: " if side else ""
    if not len(runs):
        raise ValueError(f"{prefix}no runs")
    parts = []
    for number, run in enumerate(runs, 1):
        try:
            raw = np.asarray(run)
        except ValueError as error:
            raise ValueError(f"{prefix}run {number} is not a sequence of values") from error
        if raw.size and raw.dtype.kind not in "iuf":
            raise ValueError(f"{prefix}run {number} contains values other than numbers")
        part = raw.astype(np.float64)
        if part.ndim != 1:
            raise ValueError(f"{prefix}run {number} is not a sequence of values")
        if not len(part):
            raise ValueError(f"{prefix}run {number} has no steps")
        sizes = np.abs(part)
        fine = np.isfinite(part) & (sizes <= RANGE[1]) & ((sizes >= RANGE[0]) | (part == 0))
        if positive:
            fine &= part > 0
        if not fine.all():
            place = int(np.argmin(fine))
            wanted = "positive finite" if positive else "finite"
            stated = f"{prefix}run {number}, step {place + 1}: {part[place]!s}"
            raise ValueError(f"{stated} is not a {wanted} number")
        parts.append(part)
    return parts


def check_level(level: float) -> None:
    """Raise ValueError if the confidence level is not between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"the level has to be between 0 and 1, not {level}")


def compute_lag_one(x: Floats) -> Floats:
    """Compute the lag-1 correlation along the last axis, corrected for few steps: `r + (1 + 3 r) / n`.

    NaN without variation. `x` must be logarithms, or values of the order of one.
    """
    n = x.shape[-1]
    away = x - x.mean(axis=-1, keepdims=True)
    power = (away**2).sum(axis=-1)
    varies = power > n * ROUNDING**2
    raw = (away[..., 1:] * away[..., :-1]).sum(axis=-1) / np.where(varies, power, 1.0)
    return np.asarray(np.where(varies, raw + (1 + 3 * raw) / n, np.nan))


def average_rho(*sides: Floats) -> Floats:
    """Average the lag-1 correlation of all sides, weighted by their steps and clipped to 0…0.8.

    A side without variation is ignored; 0 if none varies.
    """
    rhos = [(side.shape[-1], compute_lag_one(side)) for side in sides]
    weight = sum(np.where(np.isnan(rho), 0.0, n) for n, rho in rhos)
    total = sum(np.where(np.isnan(rho), 0.0, n * rho) for n, rho in rhos)
    return np.asarray(np.clip(total / np.maximum(weight, 1.0), 0.0, RHO_CAP))


def count_effective_steps(n: int | Floats, rho: float | Floats) -> Floats:
    """Compute the number of independent steps that `n` steps with lag-1 correlation `rho` are worth."""
    return np.maximum(np.asarray(n) * (1 - rho) / (1 + rho), LEAST_EFFECTIVE)


def compute_mean_variance(x: Floats, rho: float | Floats) -> tuple[Floats, Floats]:
    """Compute the variance of the mean along the last axis, and its degrees of freedom.

    `s² (n − 1) / (n (n_eff − 1))` on `n_eff − 1`; 0 if the spread is only rounding.
    """
    n = x.shape[-1]
    effective = count_effective_steps(n, rho)
    spread = x.var(axis=-1, ddof=1)
    limit = (ROUNDING * np.abs(x).max(axis=-1)) ** 2
    variance = np.where(spread > limit, spread * (n - 1) / (n * (effective - 1)), 0.0)
    return variance, effective - 1


def compute_t_quantiles(probability: float | Floats, df: float | Floats) -> Floats:
    """Compute quantiles of Student's t for arrays (for scalars: `compute_student_quantile`); df may be fractional."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(df, probability), np.float64)


def compute_t_tail(t: float | Floats, df: float | Floats) -> Floats:
    """Compute the probability that Student's t exceeds `t`."""
    from scipy.special import stdtr

    return np.asarray(stdtr(df, -np.asarray(t, np.float64)), np.float64)


@lru_cache(4096)
def compute_student_quantile(probability: float, df: float) -> float:
    """Compute the value that Student's t on `df` degrees of freedom exceeds with probability 1 − `probability`.

    NaN for invalid input. scipy has it for arrays, but importing scipy takes longer than reading and measuring a small profile.

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
