"""What is the interval of a comparison made of, in each design? The formulas, for one comparison or arrays of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.stats.estimate import Floats, shared_rho, t_quantile, variance_of_mean

POWER = 0.8
"""The share of cases in which a change of the detectable size is found."""

WELCH_FROM = 4
"""From so many runs a side on each side has its own spread; below, one is pooled."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What an interval is made of, one a comparison: the log ratio, its variance, degrees of freedom.

    A variance of 0 says that nothing varied.
    """

    log_ratio: Floats
    variance: Floats
    df: Floats
    rho: Floats | None = None


def within_run(base: Floats, opt: Floats) -> Terms:
    """One run a side, steps along the last axis: delta method on log means, AR(1)-inflated.

    The lag-1 correlation is of log steps and common to both sides.
    """
    rho = shared_rho(np.log(base), np.log(opt))
    first, second = base.mean(axis=-1), opt.mean(axis=-1)
    one, one_df = variance_of_mean(base, rho)
    two, two_df = variance_of_mean(opt, rho)
    joined = welch(one / first**2, one_df, two / second**2, two_df)
    return Terms(np.log(first / second), *joined, rho)


def between_runs(base: Floats, opt: Floats) -> Terms:
    """Log run means along the last axis: Welch from four runs a side on, else one pooled spread.

    `df = k_base + k_opt − 2`, `SE = s √(1/k_base + 1/k_opt)` where pooled; one side may be one run.
    """
    k, m = base.shape[-1], opt.shape[-1]
    ratio = base.mean(axis=-1) - opt.mean(axis=-1)
    one, two = (((x - x.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1) for x in (base, opt))
    if min(k, m) >= WELCH_FROM:
        return Terms(ratio, *welch(one / (k - 1) / k, k - 1.0, two / (m - 1) / m, m - 1.0))
    pooled = (one + two) / (k + m - 2)
    return Terms(ratio, pooled * (1 / k + 1 / m), np.full(ratio.shape, k + m - 2.0))


def paired_steps(base: Floats, opt: Floats) -> Terms:
    """Pairs of steps along the last axis: t on the residuals `(b − R o) / mean(b)`."""
    n = base.shape[-1]
    first, second = base.mean(axis=-1), opt.mean(axis=-1)
    rest = base / first[..., None] - opt / second[..., None]
    ratio = np.log(first / second)
    return Terms(ratio, rest.var(axis=-1, ddof=1) / n, np.full(ratio.shape, n - 1.0))


def paired_runs(base: Floats, opt: Floats) -> Terms:
    """Pairs of log run means along the last axis: t on their differences."""
    apart = base - opt
    ratio = apart.mean(axis=-1)
    k = apart.shape[-1]
    return Terms(ratio, apart.var(axis=-1, ddof=1) / k, np.full(ratio.shape, k - 1.0))


def welch(
    one: Floats, one_df: float | Floats, two: Floats, two_df: float | Floats
) -> tuple[Floats, Floats]:
    """The variance of a difference and its degrees of freedom (Welch and Satterthwaite)."""
    total = one + two
    known = total > 0
    whole = np.where(known, total, 1.0)
    parts = (one / whole) ** 2 / one_df + (two / whole) ** 2 / two_df
    return total, np.where(known, 1 / np.where(known, parts, 1.0), np.nan)


def half_width(terms: Terms, level: float) -> Floats:
    """Half of the interval of the log ratio: the t quantile times the standard error."""
    return t_quantile(0.5 + level / 2, terms.df) * np.sqrt(terms.variance)


def noise_half_width(sd: float | Floats, df: float, level: float) -> Floats:
    """Half of the interval that two runs of this A/A spread need: `t · √2 · sd`."""
    return np.asarray(t_quantile(0.5 + level / 2, df) * 2**0.5 * sd)


def detectable(
    se: float | Floats, df: float | Floats, level: float = 0.95, power: float = POWER
) -> Floats:
    """The least change that is found with this power: `exp((t(level) + t(power)) · SE) − 1`."""
    with np.errstate(over="ignore"):
        steps = t_quantile(0.5 + level / 2, df) + t_quantile(power, df)
        return np.asarray(np.expm1(steps * se))
