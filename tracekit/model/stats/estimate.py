"""Estimate of one side: center, spread, and a labeled confidence interval of the mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.stats.student import compute_student_quantile

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
            raise ValueError(f"{prefix}run {number} holds something else than numbers")
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
    """Compute quantiles of Student's t for arrays (for scalars: `student.compute_student_quantile`); df may be fractional."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(df, probability), np.float64)


def compute_t_tail(t: float | Floats, df: float | Floats) -> Floats:
    """Compute the probability that Student's t exceeds `t`."""
    from scipy.special import stdtr

    return np.asarray(stdtr(df, -np.asarray(t, np.float64)), np.float64)
