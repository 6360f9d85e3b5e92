"""How sure is the difference of two means, key by key? Welch's t on runs, or on steps of one run a side; t on pairs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.stats.designs import WELCH_FROM, welch
from tracekit.model.stats.estimate import ROUNDING, Floats, shared_rho, t_quantile, variance_of_mean
from tracekit.model.stats.speedup import Pairing

Ints = npt.NDArray[np.int64]


def run_means(values: Floats, run: Ints) -> Floats:
    """The mean of the steps of each run: keys × steps to keys × runs."""
    runs = int(run.max()) + 1
    share = np.zeros((values.shape[1], runs))
    share[np.arange(len(run)), run] = 1.0 / np.bincount(run, minlength=runs)[run]
    return np.asarray(values @ share)


def intervals(
    base: tuple[Floats, Ints],
    opt: tuple[Floats, Ints],
    level: float,
    paired: Pairing | None = None,
) -> tuple[Floats, Floats]:
    """Lower and upper ends of second less first for each key; NaN where nothing varied or one step is alone.

    `base` and `opt` are values (keys × steps) and the run of each step. With several runs on a side these are
    the sample, with one spread for both sides below four; else the steps, fewer by their lag-1 correlation.
    Of `paired` steps or runs, which stand in the same order on both sides, it is t on the differences of pairs.
    """
    first, second = (run_means(*side) for side in (base, opt))
    apart = second.mean(axis=1) - first.mean(axis=1)
    k, m = first.shape[1], second.shape[1]
    one, two = first, second
    if paired is not None:
        one, two = (base[0], opt[0]) if paired == "step" else (first, second)
        pairs = one.shape[1]
        if pairs < 2:
            return np.full(len(apart), np.nan), np.full(len(apart), np.nan)
        variance = (two - one).var(axis=1, ddof=1) / pairs
        df = np.full(len(apart), pairs - 1.0)
    elif k == m == 1:
        one, two = base[0], opt[0]
        k, m = one.shape[1], two.shape[1]
        if min(k, m) < 2:
            return np.full(len(apart), np.nan), np.full(len(apart), np.nan)
        scale = np.maximum(np.abs(one).max(axis=1), np.abs(two).max(axis=1))
        scale = np.where(scale > 0, scale, 1.0)[:, None]
        rho = shared_rho(one / scale, two / scale)
        before, after = variance_of_mean(one, rho), variance_of_mean(two, rho)
        variance, df = welch(before[0], before[1], after[0], after[1])
    elif min(k, m) >= WELCH_FROM:
        spread = [x.var(axis=1, ddof=1) / x.shape[1] for x in (one, two)]
        variance, df = welch(spread[0], k - 1.0, spread[1], m - 1.0)
    else:
        squares = sum(((x - x.mean(axis=1, keepdims=True)) ** 2).sum(axis=1) for x in (one, two))
        variance = squares / (k + m - 2) * (1 / k + 1 / m)
        df = np.full(len(apart), k + m - 2.0)
    size = np.maximum(np.abs(one).max(axis=1), np.abs(two).max(axis=1))
    varies = variance > (ROUNDING * size) ** 2
    half = np.full(len(apart), np.nan)
    half[varies] = t_quantile(0.5 + level / 2, df[varies]) * np.sqrt(variance[varies])
    return apart - half, apart + half
