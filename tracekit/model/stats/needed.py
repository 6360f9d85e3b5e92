"""Number of runs or steps needed for a verdict, from the observed spread and from its upper bound."""

from __future__ import annotations

from collections.abc import Callable
from math import log1p

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.stats.certainty import ErrorSpread
from tracekit.model.stats.designs import WELCH_FROM, combine_variances_welch
from tracekit.model.stats.estimate import count_effective_steps
from tracekit.model.stats.outlook import POWER, compute_chances, compute_upper_factor
from tracekit.model.stats.speedup import Speedup
from tracekit.model.stats.verdict import LEAST_EFFECT, compute_effect_threshold

ENOUGH_STEPS = 5
"""Steps of one run that give an interval without a footnote; the recommendation if none is known."""

MOST_STEPS = 2_000
MOST_RUNS = 100
"""Limits of what is recommended, with MOST_STEPS."""


@dataclass(frozen=True, slots=True)
class NeededRuns:
    """Runs or steps per side that give a verdict in 80 % of cases; None if no recommendable number does.

    `runs` uses the estimated spread, `most_runs` the largest spread that the estimate allows (None beyond the recommendable).
    `at_least` is True if the spread between runs was never observed. `steps` are those of one run per side, if they can
    decide. With `pairs`, runs and steps are counted in pairs.
    """

    runs: int | None
    most_runs: int | None
    steps: int | None
    at_least: bool
    pairs: bool


NO_RECOMMENDATION = NeededRuns(None, None, None, at_least=False, pairs=False)


def compute_needed_runs(
    comparison: Speedup, *, effect: float = LEAST_EFFECT, change: float | None = None, accept_steps: bool = False
) -> NeededRuns:
    """Compute how many runs per side, or steps of one run each, confirm "no change" of equal sides in 80 % of cases.

    With `change`: how many detect a regression of this size. Changes within `effect` do not count; no number of runs decides
    on a change of exactly that size. `accept_steps` accepts steps of one run in place of runs.
    """
    delta = compute_effect_threshold(comparison, effect)
    if comparison.se is None or not comparison.spreads:
        return NO_RECOMMENDATION
    worse = log1p(change or 0.0)

    def decides(spreads: tuple[ErrorSpread, ...]) -> bool:
        probabilities = compute_chances(worse, spreads, delta, comparison.level)
        return (probabilities.no_change if change is None else probabilities.regression) >= POWER

    uncertain = compute_upper_factor(comparison.df or 1.0)
    runs = _find_first_deciding(lambda k: decides(predict_run_spreads(comparison, k)), MOST_RUNS)
    most_runs = runs and _find_first_deciding(
        lambda k: decides(predict_run_spreads(comparison, k, uncertain)), MOST_RUNS
    )
    steps = None
    if "steps" in comparison.design and (accept_steps or comparison.noise is not None):
        steps = _find_first_deciding(lambda n: decides(_predict_step_spreads(comparison, n)), MOST_STEPS)
    unseen = "steps" in comparison.design and comparison.noise is None
    pairs = comparison.pair_spread is not None
    return NeededRuns(runs, most_runs, steps, at_least=unseen and runs is not None, pairs=pairs)


def predict_run_spreads(comparison: Speedup, k: int, times: float = 1.0) -> tuple[ErrorSpread, ...]:
    """Predict the spreads of a comparison of `k` runs per side, scaled by `times`.

    The spread between runs is the observed one or the calibrated noise; otherwise steps give a lower bound.
    """
    if comparison.pair_spread is not None:
        of_pair = comparison.pair_spread**2
        if comparison.design == "paired steps":
            noise = comparison.noise.sd if comparison.noise else 0.0
            of_pair = max(of_pair / comparison.base.steps, 2 * noise**2)
        return (ErrorSpread(times * (of_pair / k) ** 0.5, k - 1.0),)
    base_variance, opt_variance = (
        _estimate_run_variance(comparison, side.spread or 0.0, side.steps) for side in (comparison.base, comparison.opt)
    )
    variance, df = combine_variances_welch(
        np.asarray(base_variance / k), k - 1.0, np.asarray(opt_variance / k), k - 1.0
    )
    spreads = [ErrorSpread(times * float(variance) ** 0.5, float(df) if k >= WELCH_FROM else 2 * k - 2.0)]
    now = 1 / comparison.base.runs + 1 / comparison.opt.runs
    for inner in comparison.spreads:
        if not inner.widens:
            free = float(inner.df) * (2 * k - 1) / (comparison.base.runs + comparison.opt.runs - 1)
            spreads.append(ErrorSpread(float(inner.se) * (2 / k / now) ** 0.5, free, widens=False))
    return tuple(spreads)


def _estimate_run_variance(comparison: Speedup, spread: float, steps: int) -> float:
    """Estimate the variance of one run's log mean on a side."""
    if comparison.design != "steps":
        return spread**2
    of_mean = spread**2 * (steps - 1) / (steps * (float(count_effective_steps(steps, comparison.rho or 0.0)) - 1))
    return max(of_mean, comparison.noise.sd**2 if comparison.noise else 0.0)


def _predict_step_spreads(comparison: Speedup, n: int) -> tuple[ErrorSpread, ...]:
    """Predict the spreads of a comparison of one run per side with `n` steps."""
    noise = tuple(spread for spread in comparison.spreads if not spread.drawn)
    if comparison.pair_spread is not None:
        return (ErrorSpread(comparison.pair_spread / n**0.5, n - 1.0), *noise)
    free = float(count_effective_steps(n, comparison.rho or 0.0)) - 1
    factor = (n - 1) / (n * free)
    base = (comparison.base.spread or 0.0) ** 2 * factor
    opt = (comparison.opt.spread or 0.0) ** 2 * factor
    variance, df = combine_variances_welch(np.asarray(base), free, np.asarray(opt), free)
    drawn = (ErrorSpread(float(variance) ** 0.5, float(df)),) if variance > 0 else ()
    return (*drawn, *noise)


def _find_first_deciding(decides: Callable[[int], bool], limit: int) -> int | None:
    """Find the smallest number from 2 on that decides, by bisection; None if `limit` does not. Larger ones must decide too."""
    if not decides(limit):
        return None
    low, high = 1, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high
