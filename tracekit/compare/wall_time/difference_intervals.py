"""Confidence intervals of differences of means by key: Welch's t on runs or steps, paired t on pairs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.stats.designs import WELCH_FROM, combine_variances_welch
from tracekit.model.stats.estimate import ROUNDING, Floats, average_rho, compute_mean_variance, compute_t_quantiles
from tracekit.model.stats.speedup import Pairing

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _DifferenceSpread:
    """Variance and degrees of freedom of each difference, and its samples (keys × samples)."""

    variance: Floats
    df: Floats
    base: Floats
    opt: Floats


def average_steps_by_run(values: Floats, run: Ints) -> Floats:
    """Average the steps of each run: keys × steps to keys × runs."""
    runs = int(run.max()) + 1
    share = np.zeros((values.shape[1], runs))
    share[np.arange(len(run)), run] = 1.0 / np.bincount(run, minlength=runs)[run]
    return np.asarray(values @ share)


def compute_difference_intervals(
    base: tuple[Floats, Ints], opt: tuple[Floats, Ints], level: float, paired: Pairing | None = None
) -> tuple[Floats, Floats]:
    """Compute the bounds of second minus first for each key; NaN if nothing varies or a side has one step.

    `base` and `opt` are (values, keys × steps; run of each step). With several runs on a side the samples are
    runs, with a pooled variance below four. Otherwise the samples are steps, whose effective number is reduced
    by their lag-1 correlation. `paired` steps or runs, in the same order on both sides, use a paired t.
    """
    before, after = average_steps_by_run(*base), average_steps_by_run(*opt)
    difference = after.mean(axis=1) - before.mean(axis=1)
    runs = before.shape[1], after.shape[1]
    if paired == "step":
        spread = _estimate_paired_spread(base[0], opt[0])
    elif paired == "run":
        spread = _estimate_paired_spread(before, after)
    elif runs == (1, 1):
        spread = _estimate_step_spread(base[0], opt[0])
    elif min(runs) >= WELCH_FROM:
        spread = _estimate_run_spread(before, after)
    else:
        spread = _estimate_pooled_run_spread(before, after)
    half_width = np.full(len(difference), np.nan)
    if spread is None:
        return half_width, half_width
    largest = np.maximum(np.abs(spread.base).max(axis=1), np.abs(spread.opt).max(axis=1))
    varies = spread.variance > (ROUNDING * largest) ** 2
    quantile = compute_t_quantiles(0.5 + level / 2, spread.df[varies])
    half_width[varies] = quantile * np.sqrt(spread.variance[varies])
    return difference - half_width, difference + half_width


def _estimate_paired_spread(base: Floats, opt: Floats) -> _DifferenceSpread | None:
    """Estimate the spread of the differences of pairs; None for a single pair."""
    pairs = base.shape[1]
    if pairs < 2:
        return None
    variance = (opt - base).var(axis=1, ddof=1) / pairs
    return _DifferenceSpread(variance, np.full(len(base), pairs - 1.0), base, opt)


def _estimate_step_spread(base: Floats, opt: Floats) -> _DifferenceSpread | None:
    """Estimate the spread of correlated steps of one run per side; None if a side has one step."""
    if min(base.shape[1], opt.shape[1]) < 2:
        return None
    largest = np.maximum(np.abs(base).max(axis=1), np.abs(opt).max(axis=1))
    scale = np.where(largest > 0, largest, 1.0)[:, None]
    rho = average_rho(base / scale, opt / scale)
    variance, df = combine_variances_welch(*compute_mean_variance(base, rho), *compute_mean_variance(opt, rho))
    return _DifferenceSpread(variance, df, base, opt)


def _estimate_run_spread(base: Floats, opt: Floats) -> _DifferenceSpread:
    """Estimate the spread of runs, separately for each side."""
    base_runs, opt_runs = base.shape[1], opt.shape[1]
    variance, df = combine_variances_welch(
        base.var(axis=1, ddof=1) / base_runs, base_runs - 1.0, opt.var(axis=1, ddof=1) / opt_runs, opt_runs - 1.0
    )
    return _DifferenceSpread(variance, df, base, opt)


def _estimate_pooled_run_spread(base: Floats, opt: Floats) -> _DifferenceSpread:
    """Estimate the spread of runs, pooled over both sides because there are too few for two estimates."""
    base_runs, opt_runs = base.shape[1], opt.shape[1]
    df = base_runs + opt_runs - 2
    variance = (_sum_squared_deviations(base) + _sum_squared_deviations(opt)) / df * (1 / base_runs + 1 / opt_runs)
    return _DifferenceSpread(variance, np.full(len(base), float(df)), base, opt)


def _sum_squared_deviations(values: Floats) -> Floats:
    """Sum the squared deviations from the mean of each key."""
    return np.asarray(((values - values.mean(axis=1, keepdims=True)) ** 2).sum(axis=1))
