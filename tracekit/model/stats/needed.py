"""Number of runs or steps needed for a verdict, averaged over what the spread of the runs at hand may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log1p

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.stats.certainty import ErrorSpread
from tracekit.model.stats.designs import combine_variances_welch
from tracekit.model.stats.estimate import count_effective_steps
from tracekit.model.stats.outlook import (
    POWER,
    DrawnComparisons,
    PlannedRuns,
    compute_chances,
    compute_chi2_quantile,
    draw_comparisons,
    draw_from_spreads,
    draw_runs,
)
from tracekit.model.stats.speedup import Speedup
from tracekit.model.stats.verdict import LEAST_EFFECT, compute_effect_threshold

ENOUGH_STEPS = 5
"""Steps of one run that give an interval without a footnote; the recommendation if none is known."""

BOUND = 0.9
"""Confidence of the upper bound of a spread."""

_KNOWN_DF = 1e9
"""Degrees of freedom of a spread that is known."""

LEAST_RUNS_OF_PLAN, MOST_RUNS, MOST_STEPS = 4, 30, 2_000
"""Limits of what is recommended, of runs and of steps."""


@dataclass(frozen=True, slots=True)
class NeededRuns:
    """Runs per side, or steps of one run each, that give a verdict in 80 % of cases; None if no recommendable number does.

    `most_runs` are those for the largest spread that the runs at hand leave possible, with 90 % confidence. `steps` are those
    of one run per side, if they can decide. With `pairs`, runs and steps are counted in pairs.
    """

    runs: int | None
    most_runs: int | None
    steps: int | None
    pairs: bool


def compute_needed_runs(
    comparison: Speedup, *, effect: float = LEAST_EFFECT, change: float | None = None, accept_steps: bool = False
) -> NeededRuns:
    """Compute how many runs per side, or steps of one run each, confirm "no change" of equal sides in 80 % of cases.

    With `change`: how many detect a regression of this size. Changes within `effect` do not count; no number of runs decides
    on a change of exactly that size. `accept_steps` accepts steps of one run in place of runs.
    """
    pairs = comparison.pair_spread is not None
    if comparison.se is None or not comparison.spreads:
        return NeededRuns(None, None, None, pairs)
    delta = compute_effect_threshold(comparison, effect)

    def decides(drawn: DrawnComparisons | None) -> bool:
        if drawn is None:
            return False
        chances = compute_chances(log1p(change or 0.0), drawn, delta)
        return (chances.no_change if change is None else chances.regression) >= POWER

    def find_runs(known: Speedup) -> int | None:
        return _find_first_deciding(
            lambda k: decides(draw_comparisons(known, PlannedRuns(k, k))), LEAST_RUNS_OF_PLAN, MOST_RUNS
        )

    runs = find_runs(comparison)
    most_runs = runs and find_runs(_widen_spreads(comparison))
    steps = None
    shows_change = accept_steps and comparison.noise is None
    if "steps" in comparison.design and (accept_steps or comparison.noise is not None):
        steps = _find_first_deciding(
            lambda n: decides(
                draw_from_spreads(_predict_step_spreads(comparison, n), comparison.level, shows_change=shows_change)
            ),
            3,
            MOST_STEPS,
        )
    return NeededRuns(runs, most_runs, steps, pairs)


def _widen_spreads(comparison: Speedup) -> Speedup:
    """Widen the spreads to their upper bounds, with `BOUND` confidence."""
    df = comparison.df or 1.0
    factor = float((df / compute_chi2_quantile(1 - BOUND, df)) ** 0.5)
    sides = [replace(side, spread=side.spread and side.spread * factor) for side in (comparison.base, comparison.opt)]
    pair = comparison.pair_spread and comparison.pair_spread * factor
    return replace(comparison, base=sides[0], opt=sides[1], pair_spread=pair)


def find_confirmable_spread(change: float, delta: float, level: float) -> float:
    """Find the largest spread of runs with which `LEAST_RUNS_OF_PLAN` runs per side confirm a change in 80 % of cases.

    `change` and `delta` are logarithms; 0 if no spread allows it.
    """
    planned = PlannedRuns(LEAST_RUNS_OF_PLAN, LEAST_RUNS_OF_PLAN)
    low, high = 0.0, abs(change)
    for _ in range(12):
        middle = (low + high) / 2
        known = middle, _KNOWN_DF
        drawn = draw_runs((known, known), planned, None, level)
        if compute_chances(abs(change), drawn, delta).regression >= POWER:
            low = middle
        else:
            high = middle
    return low


def _predict_step_spreads(comparison: Speedup, n: int) -> tuple[ErrorSpread, ...]:
    """Predict the spreads of a comparison of one run per side with `n` steps."""
    noise = tuple(spread for spread in comparison.spreads if not spread.drawn)
    alpha = comparison.spreads[0].alpha
    if comparison.pair_spread is not None:
        return (ErrorSpread(comparison.pair_spread / n**0.5, n - 1.0, alpha=alpha), *noise)
    free = float(count_effective_steps(n, comparison.rho or 0.0)) - 1
    factor = (n - 1) / (n * free)
    base = (comparison.base.spread or 0.0) ** 2 * factor
    opt = (comparison.opt.spread or 0.0) ** 2 * factor
    variance, df = combine_variances_welch(np.asarray(base), free, np.asarray(opt), free)
    drawn = (ErrorSpread(float(variance) ** 0.5, float(df), alpha=alpha),) if variance > 0 else ()
    return (*drawn, *noise)


def _find_first_deciding(decides: Callable[[int], bool], least: int, limit: int) -> int | None:
    """Find the smallest number from `least` on that decides, by bisection; None if `limit` does not.

    Larger ones must decide too.
    """
    if not decides(limit):
        return None
    low, high = least - 1, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high
