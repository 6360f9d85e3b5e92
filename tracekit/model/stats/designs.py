"""The interval formulas of each comparison design, for one comparison or arrays of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.stats.certainty import ErrorSpread
from tracekit.model.stats.estimate import ROUNDING, Floats, average_rho, compute_mean_variance

Design = Literal["runs", "steps", "paired runs", "paired steps"]

WELCH_FROM = 4
"""Runs per side from which each side has its own spread; below, the spread is pooled."""


@dataclass(frozen=True, slots=True)
class IntervalTerms:
    """The terms of an interval, one per comparison: the log ratio, its variance, degrees of freedom.

    A variance of 0 means that nothing varied.
    """

    log_ratio: Floats
    variance: Floats
    df: Floats
    rho: Floats | None = None


def compute_within_run_terms(base: Floats, opt: Floats) -> IntervalTerms:
    """Compute the terms for one run per side, steps along the last axis: delta method on log means, AR(1)-inflated.

    The lag-1 correlation is that of log steps, common to both sides.
    """
    rho = average_rho(np.log(base), np.log(opt))
    base_mean, opt_mean = base.mean(axis=-1), opt.mean(axis=-1)
    base_variance, base_df = compute_mean_variance(base, rho)
    opt_variance, opt_df = compute_mean_variance(opt, rho)
    joined = combine_variances_welch(base_variance / base_mean**2, base_df, opt_variance / opt_mean**2, opt_df)
    return IntervalTerms(np.log(base_mean / opt_mean), *joined, rho)


def compute_between_run_terms(base: Floats, opt: Floats) -> IntervalTerms:
    """Compute the terms for log run means along the last axis: Welch from four runs per side, else one pooled spread.

    Pooled: `df = k_base + k_opt − 2`, `SE = s √(1/k_base + 1/k_opt)`; one side may have a single run.
    """
    k, m = base.shape[-1], opt.shape[-1]
    ratio = base.mean(axis=-1) - opt.mean(axis=-1)
    base_squares, opt_squares = (((x - x.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1) for x in (base, opt))
    if min(k, m) >= WELCH_FROM:
        return IntervalTerms(
            ratio, *combine_variances_welch(base_squares / (k - 1) / k, k - 1.0, opt_squares / (m - 1) / m, m - 1.0)
        )
    pooled = (base_squares + opt_squares) / (k + m - 2)
    return IntervalTerms(ratio, pooled * (1 / k + 1 / m), np.full(ratio.shape, k + m - 2.0))


def compute_paired_step_terms(base: Floats, opt: Floats) -> IntervalTerms:
    """Compute the terms for pairs of steps along the last axis: t on the residuals `(b − R o) / mean(b)`."""
    n = base.shape[-1]
    base_mean, opt_mean = base.mean(axis=-1), opt.mean(axis=-1)
    residuals = base / base_mean[..., None] - opt / opt_mean[..., None]
    ratio = np.log(base_mean / opt_mean)
    return IntervalTerms(ratio, residuals.var(axis=-1, ddof=1) / n, np.full(ratio.shape, n - 1.0))


def compute_paired_run_terms(base: Floats, opt: Floats) -> IntervalTerms:
    """Compute the terms for pairs of log run means along the last axis: t on their differences."""
    differences = base - opt
    ratio = differences.mean(axis=-1)
    k = differences.shape[-1]
    return IntervalTerms(ratio, differences.var(axis=-1, ddof=1) / k, np.full(ratio.shape, k - 1.0))


def combine_variances_welch(
    first: Floats, first_df: float | Floats, second: Floats, second_df: float | Floats
) -> tuple[Floats, Floats]:
    """Compute the variance of a difference and its degrees of freedom (Welch–Satterthwaite)."""
    total = first + second
    positive = total > 0
    divisor = np.where(positive, total, 1.0)
    parts = (first / divisor) ** 2 / first_df + (second / divisor) ** 2 / second_df
    return total, np.where(positive, 1 / np.where(positive, parts, 1.0), np.nan)


def compute_design_terms(base: Sequence[Floats], opt: Sequence[Floats], design: Design) -> IntervalTerms:
    """Compute the terms of a design from the runs of both sides, each with its steps along the last axis.

    Needs at least two pairs for paired designs, and two steps where steps are compared.
    """
    if design == "steps":
        return compute_within_run_terms(base[0], opt[0])
    if design == "paired steps":
        return compute_paired_step_terms(base[0], opt[0])
    means = [np.log(np.stack([run.mean(axis=-1) for run in side], axis=-1)) for side in (base, opt)]
    return compute_paired_run_terms(*means) if design == "paired runs" else compute_between_run_terms(*means)


def list_error_spreads(
    base: Sequence[Floats],
    opt: Sequence[Floats],
    design: Design,
    terms: IntervalTerms,
    noise: tuple[float | Floats, float] | None = None,
) -> tuple[ErrorSpread, ...]:
    """List the uncertainties of a log ratio: its own terms, calibrated noise, and steps inside runs.

    `noise` is (standard deviation of log run means, degrees of freedom). It counts if a side has one run, which cannot show
    the spread between runs: next to the terms of steps, or pooled with the spread of the other side's runs. A standard error
    is NaN without variation.
    """
    spreads = [_make_error_spread(terms.variance, terms.df)]
    single_run = min(len(base), len(opt)) == 1 and design != "paired runs"
    if noise is not None and single_run:
        sd, df = noise
        units = 1 / len(base) + 1 / len(opt)
        if design == "runs":
            of_run = (terms.variance / units * terms.df + sd**2 * df) / (terms.df + df)
            spreads = [ErrorSpread(np.sqrt(of_run * units), terms.df + df, drawn=False)]
        else:
            spreads.append(ErrorSpread(units**0.5 * sd, df, drawn=False))
    if design == "runs" and (inner := compute_step_variance(base, opt)) is not None:
        spreads.append(_make_error_spread(*inner, widens=False))
    return tuple(spreads)


def compute_step_variance(base: Sequence[Floats], opt: Sequence[Floats]) -> tuple[Floats, Floats] | None:
    """Compute (variance, degrees of freedom) of the log ratio from steps alone; None if no step index is in two runs.

    Effects common to a step index in all runs are not scatter: the residual of a step is
    `(x / mean of the run) − mean of the index`. A side of `k` of all `R` runs with `n` steps has `k (n − 1) (R − 1) / R`
    degrees of freedom. With runs of different lengths each step contributes `(1 − 1/n) (1 − 1/R)`, where `R` counts the runs
    with its index.
    """
    runs = (*base, *opt)
    lengths = [run.shape[-1] for run in runs]
    holds = np.array(lengths)[:, None] > np.arange(max(lengths))
    holders = holds.sum(axis=0)
    shares = np.zeros((*runs[0].shape[:-1], *holds.shape))
    for row, run in enumerate(runs):
        shares[..., row, : lengths[row]] = run / run.mean(axis=-1, keepdims=True)
    places = shares.sum(axis=-2, keepdims=True) / holders
    squares = (((shares - places) * holds) ** 2).sum(axis=-1)
    free = np.array([(1 - 1 / n) * float((1 - 1 / holders[:n]).sum()) for n in lengths])
    parts = []
    for begin, end in ((0, len(base)), (len(base), len(runs))):
        df = float(free[begin:end].sum())
        if df <= 0:
            return None
        of_step = squares[..., begin:end].sum(axis=-1) / df
        parts.append((of_step * sum(1 / n for n in lengths[begin:end]) / (end - begin) ** 2, df))
    return combine_variances_welch(parts[0][0], parts[0][1], parts[1][0], parts[1][1])


def _make_error_spread(variance: Floats, df: Floats, *, widens: bool = True) -> ErrorSpread:
    """Convert a variance to a spread; NaN if it is only rounding."""
    varied = variance > ROUNDING**2
    return ErrorSpread(np.where(varied, np.sqrt(np.where(varied, variance, 1.0)), np.nan), df, widens)
