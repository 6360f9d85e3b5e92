"""The interval formulas of each comparison design, for one comparison or arrays of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.stats.certainty import FALSE_ALARM, FALSE_ALARM_OF_STEPS, ErrorSpread, choose_false_alarm
from tracekit.model.stats.estimate import ROUNDING, Floats, average_rho, compute_mean_variance

Design = Literal["runs", "steps", "paired runs", "paired steps"]

WELCH_FROM = 4
"""Runs per side from which each side has its own spread; below, and with earlier runs, the spread is pooled."""

SUSPECT = 0.2
"""One-sided level at which the side that is known less seems to vary more: then each side has its own spread."""


@dataclass(frozen=True, slots=True)
class EarlierRuns:
    """Earlier runs of the base, used for their spread alone: `squares` about their own mean, of log run means.

    `widest` is the range of their log means; None if only their spread is known.
    """

    runs: int
    squares: float | Floats
    widest: float | Floats | None


@dataclass(frozen=True, slots=True)
class IntervalTerms:
    """The terms of an interval, one per comparison: the log ratio, its variance, degrees of freedom.

    A variance of 0 means that nothing varied. Runs also have the variance with one spread for both sides, `shared`, on
    `shared_df`, and `is_own` where each side has its own spread.
    """

    log_ratio: Floats
    variance: Floats
    df: Floats
    rho: Floats | None = None
    shared: Floats | None = None
    shared_df: float = 0.0
    is_own: npt.NDArray[np.bool_] | None = None


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


def compute_between_run_terms(base: Floats, opt: Floats, earlier: EarlierRuns | None = None) -> IntervalTerms:
    """Compute the terms for log run means along the last axis; one side may have a single run.

    Each side has its own spread from four runs per side (Welch). With fewer, or with `earlier` runs of the base, both share
    one, `SE = s √(1/k_base + 1/k_opt)`, unless the side that is known less seems to vary more (F test at `SUSPECT`).
    """
    k, m = base.shape[-1], opt.shape[-1]
    ratio = base.mean(axis=-1) - opt.mean(axis=-1)
    base_squares, opt_squares = (((x - x.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1) for x in (base, opt))
    base_df, opt_df = k - 1.0, m - 1.0
    if earlier is not None:
        base_squares, base_df = base_squares + earlier.squares, base_df + earlier.runs - 1
    shared = (base_squares + opt_squares) / (base_df + opt_df) * (1 / k + 1 / m)
    shared_df = base_df + opt_df
    if min(k, m) == 1:
        is_own = np.zeros(ratio.shape, np.bool_)
        return IntervalTerms(ratio, shared, np.full(ratio.shape, shared_df), None, shared, shared_df, is_own)
    of_base, of_opt = base_squares / base_df, opt_squares / opt_df
    own, own_df = combine_variances_welch(of_base / k, base_df, of_opt / m, opt_df)
    if min(k, m) >= WELCH_FROM and earlier is None:
        return IntervalTerms(ratio, own, own_df, None, shared, shared_df, np.ones(ratio.shape, np.bool_))
    is_own = np.zeros(ratio.shape, np.bool_)
    if base_df <= opt_df:
        is_own |= of_base > compute_f_quantile(1 - SUSPECT, base_df, opt_df) * of_opt
    if opt_df <= base_df:
        is_own |= of_opt > compute_f_quantile(1 - SUSPECT, opt_df, base_df) * of_base
    variance = np.where(is_own, np.maximum(own, shared), shared)
    return IntervalTerms(ratio, variance, np.where(is_own, own_df, shared_df), None, shared, shared_df, is_own)


def compute_f_quantile(probability: float, first_df: float, second_df: float) -> float:
    """Compute the quantile of the ratio of two variances of equal spreads."""
    from scipy.special import fdtri

    return float(fdtri(first_df, second_df, probability))


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


def compute_design_terms(
    base: Sequence[Floats], opt: Sequence[Floats], design: Design, earlier: EarlierRuns | None = None
) -> IntervalTerms:
    """Compute the terms of a design from the runs of both sides, each with its steps along the last axis.

    Needs at least two pairs for paired designs, and two steps where steps are compared. Only unpaired runs use `earlier` ones.
    """
    if design == "steps":
        return compute_within_run_terms(base[0], opt[0])
    if design == "paired steps":
        return compute_paired_step_terms(base[0], opt[0])
    means = compute_log_run_means(base), compute_log_run_means(opt)
    if design == "paired runs":
        return compute_paired_run_terms(*means)
    return compute_between_run_terms(*means, earlier)


def compute_log_run_means(runs: Sequence[Floats]) -> Floats:
    """Compute the log mean of each run, along the last axis."""
    means: Floats = np.log(np.stack([run.mean(axis=-1) for run in runs], axis=-1))
    return means


def list_error_spreads(
    base: Sequence[Floats],
    opt: Sequence[Floats],
    design: Design,
    terms: IntervalTerms,
    earlier: EarlierRuns | None = None,
) -> tuple[ErrorSpread, ...]:
    """List the uncertainties of a log ratio: its own terms, the spread of earlier runs, and steps inside runs.

    Earlier runs are part of the terms of runs. Next to steps of one run per side, and pairs of them, they stand alone: steps
    cannot show the spread between runs. A standard error is NaN without variation.
    """
    if design == "paired runs":
        return (_make_error_spread(terms.variance, terms.df, alpha=choose_false_alarm(len(base))),)
    if design != "runs":
        of_steps = _make_error_spread(terms.variance, terms.df, alpha=FALSE_ALARM_OF_STEPS)
        if earlier is None:
            return (of_steps,)
        sd = (np.asarray(earlier.squares) / (earlier.runs - 1)) ** 0.5
        return of_steps, ErrorSpread(2**0.5 * sd, earlier.runs - 1.0, drawn=False)
    spreads = list_run_spreads(terms, len(base), len(opt), earlier)
    if (inner := compute_step_variance(base, opt)) is not None:
        spreads = (*spreads, _make_error_spread(*inner, widens=False, alpha=FALSE_ALARM_OF_STEPS))
    return spreads


def list_run_spreads(
    terms: IntervalTerms, base_runs: int, opt_runs: int, earlier: EarlierRuns | None
) -> tuple[ErrorSpread, ...]:
    """List the uncertainties of a log ratio of runs, without that of their steps.

    With unequal numbers of runs, or earlier ones, a change must also exceed what one spread for both sides leaves possible.
    """
    alpha = choose_false_alarm(min(base_runs, opt_runs))
    spreads = (_make_error_spread(terms.variance, terms.df, alpha=alpha),)
    if terms.shared is None or (earlier is None and base_runs == opt_runs):
        return spreads
    return (*spreads, _make_error_spread(terms.shared, np.asarray(terms.shared_df), widens=False, alpha=alpha))


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


def _make_error_spread(variance: Floats, df: Floats, *, widens: bool = True, alpha: float = FALSE_ALARM) -> ErrorSpread:
    """Convert a variance to a spread; NaN if it is only rounding."""
    varied = variance > ROUNDING**2
    se = np.where(varied, np.sqrt(np.where(varied, variance, 1.0)), np.nan)
    return ErrorSpread(se, df, widens, alpha=alpha)
