"""Power analysis: how probable each verdict word is for a given true change, by drawn comparisons through the rule itself.

The spread of runs is unknown. Draw it from its posterior, given the runs at hand, and draw comparisons for each such
spread. Plugging in the estimate instead promises up to 17 points too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.stats.certainty import (
    FALSE_ALARM_OF_STEPS,
    ErrorSpread,
    choose_false_alarm,
    compute_certain_change,
    compute_half_width,
)
from tracekit.model.stats.designs import (
    EarlierRuns,
    compute_between_run_terms,
    compute_f_quantile,
    list_run_spreads,
)
from tracekit.model.stats.estimate import Floats
from tracekit.model.stats.speedup import Speedup
from tracekit.model.stats.two_levels import Gaps, can_show_change, measure_gaps

POWER = 0.8
"""Share of comparisons in which a change must be detected."""

MAX_LOG_CHANGE = 10.0
"""Search limit of log changes."""

SPREADS = 64
"""Spreads that are drawn, at midpoints of equal shares of the posterior."""

FEW_COMPARISONS, MANY_COMPARISONS = 64, 512
"""Comparisons that are drawn for each spread: for a share on average, and for the shares of single spreads."""

UNLIKE = 0.01
"""One-sided level at which two spreads are not taken for one: a spread known on few runs of one side promises too little."""

_STRIDE, _OFFSET = 29, 17
"""Order of the second side's spreads: prime to their number, so that each occurs once."""


@dataclass(frozen=True, slots=True)
class WordChances:
    """The probability of each word; they add up to 1. `low` and `high` bound that of a regression for 80 % of spreads."""

    regression: float
    no_change: float
    improvement: float
    inconclusive: float
    low: float
    high: float


SILENT = WordChances(0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
"""Probabilities if no word can be given, whatever is measured."""


@dataclass(frozen=True, slots=True)
class DrawnComparisons:
    """Drawn comparisons of equal sides, spreads × repetitions: log change, half-width, least certain change, gaps.

    Without `shows_change` no change is ever reported.
    """

    change: Floats
    half: Floats
    least: Floats
    gaps: Gaps | None
    shows_change: bool


@dataclass(frozen=True, slots=True)
class PlannedRuns:
    """Runs per side of a comparison to come."""

    base: int
    opt: int


def draw_comparisons(
    pilot: Speedup,
    planned: PlannedRuns | None = None,
    *,
    repetitions: int = FEW_COMPARISONS,
    steps_are_runs: bool = False,
) -> DrawnComparisons | None:
    """Draw comparisons like `pilot`, or of as many runs as planned; None if the spread of runs is not known.

    Runs are normal on the log scale. Without A/A noise, steps of one run per side do not show how runs spread.
    """
    if planned is None and pilot.design == "runs":
        planned = PlannedRuns(pilot.base.runs, pilot.opt.runs)
    if planned is None:
        shows_change = steps_are_runs
        if pilot.design == "paired runs":
            shows_change = can_show_change(pilot.base.runs, pilot.opt.runs)
        return draw_from_spreads(pilot.spreads, pilot.level, repetitions, shows_change=shows_change)
    if pilot.design == "paired steps":
        return None
    if pilot.pair_spread is not None:
        pairs = planned.base
        pair = ErrorSpread(pilot.pair_spread / pairs**0.5, pairs - 1.0, alpha=choose_false_alarm(pairs))
        shows_change = can_show_change(pairs, pairs)
        known_df = pilot.base.runs - 1.0
        return draw_from_spreads([pair], pilot.level, repetitions, shows_change=shows_change, known_df=known_df)
    sides = _list_side_spreads(pilot)
    if sides is None:
        return None
    steps = _draw_step_spread(pilot, planned, repetitions)
    return draw_runs(sides, planned, pilot.earlier, pilot.level, repetitions, steps)


def compute_chances(worse: float, drawn: DrawnComparisons, delta: float) -> WordChances:
    """Compute the probability of each word if the true log change for the worse is `worse`."""
    change = drawn.change + worse
    is_beyond, is_inside = np.abs(change) - drawn.half > delta, np.abs(change) + drawn.half < delta
    if drawn.shows_change:
        is_beyond &= np.abs(change) > drawn.least
        if drawn.gaps is not None:
            is_beyond &= drawn.gaps.is_apart(worse)
    else:
        is_beyond &= False
    regression = (is_beyond & (change > 0)).mean(axis=-1)
    improvement, no_change = float((is_beyond & (change < 0)).mean()), float(is_inside.mean())
    low, high = np.quantile(regression, [0.1, 0.9])
    slower = float(regression.mean())
    unsure = max(1 - slower - improvement - no_change, 0.0)
    return WordChances(slower, no_change, improvement, unsure, float(low), float(high))


def find_detectable_change(drawn: DrawnComparisons, delta: float) -> float | None:
    """Find the smallest change (0.041 = 4.1 %) called a regression with probability `POWER`; None beyond the search limit."""
    low, high = delta, MAX_LOG_CHANGE
    if compute_chances(high, drawn, delta).regression < POWER:
        return None
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        if compute_chances(middle, drawn, delta).regression >= POWER:
            high = middle
        else:
            low = middle
    return expm1(high)


def _list_side_spreads(pilot: Speedup) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """List (spread of a run, degrees of freedom) of both sides; both the same object if they share one."""
    if pilot.design != "runs":
        shared = None if pilot.noise is None else (pilot.noise.sd, pilot.noise.df)
        return None if shared is None else (shared, shared)
    base, opt = pilot.base.spread, pilot.opt.spread
    if base is None or opt is None:
        return None
    earlier = 0 if pilot.earlier is None else pilot.earlier.runs - 1
    base_df, opt_df = pilot.base.runs - 1.0 + earlier, pilot.opt.runs - 1.0
    both = base_df + opt_df
    if base == opt:
        shared = base, both
        return shared, shared
    (more, more_df), (less, less_df) = sorted(((base, base_df), (opt, opt_df)), reverse=True)
    if more**2 > compute_f_quantile(1 - UNLIKE, more_df, less_df) * less**2:
        return (base, base_df), (opt, opt_df)
    shared = ((base_df * base**2 + opt_df * opt**2) / both) ** 0.5, both
    return shared, shared


def draw_runs(
    sides: tuple[tuple[float, float], tuple[float, float]],
    planned: PlannedRuns,
    earlier: EarlierRuns | None,
    level: float,
    repetitions: int = FEW_COMPARISONS,
    steps: tuple[ErrorSpread, ...] = (),
) -> DrawnComparisons:
    """Draw comparisons of runs, and put them through the rule.

    `sides` are (spread of a run, degrees of freedom that it is known on); the same object if both sides share one. `steps`
    are drawn spreads of steps.
    """
    random = np.random.default_rng(0)
    first, second = (_list_possible_spreads(*side) for side in sides)
    if sides[0] is not sides[1]:
        second = second[(np.arange(SPREADS) * _STRIDE + _OFFSET) % SPREADS]
    base = first[:, None, None] * random.standard_normal((SPREADS, repetitions, planned.base))
    opt = second[:, None, None] * random.standard_normal((SPREADS, repetitions, planned.opt))
    terms = compute_between_run_terms(base, opt, earlier)
    spreads = (*list_run_spreads(terms, planned.base, planned.opt, earlier), *steps)
    widest = None if earlier is None else earlier.widest
    counted = 0 if earlier is None or widest is None else earlier.runs
    return DrawnComparisons(
        -terms.log_ratio,
        compute_half_width(spreads, level),
        compute_certain_change(spreads),
        measure_gaps(base, opt, 0.0 if widest is None else widest),
        can_show_change(planned.base, planned.opt, counted),
    )


def _draw_step_spread(pilot: Speedup, planned: PlannedRuns, repetitions: int) -> tuple[ErrorSpread, ...]:
    """Draw the spread of steps, which a change has to exceed, of as many runs as planned; empty if it is not known."""
    inner = next(
        (spread for spread in pilot.spreads if not spread.widens and spread.alpha == FALSE_ALARM_OF_STEPS), None
    )
    if inner is None:
        return ()
    now, then = pilot.base.runs + pilot.opt.runs, planned.base + planned.opt
    scale = (1 / planned.base + 1 / planned.opt) / (1 / pilot.base.runs + 1 / pilot.opt.runs)
    df = float(inner.df) * (then - 1) / (now - 1)
    sizes = float(inner.se) * scale**0.5 * np.sqrt(_list_chi2_quantiles(repetitions, df) / df)
    return (ErrorSpread(sizes[None, :], df, widens=False, alpha=inner.alpha),)


def draw_from_spreads(
    spreads: Sequence[ErrorSpread],
    level: float,
    repetitions: int = FEW_COMPARISONS,
    *,
    shows_change: bool,
    known_df: float | None = None,
) -> DrawnComparisons:
    """Draw comparisons whose log ratio has these uncertainties; the first is known on `known_df` (default: its own).

    The true error is that of the first spread, drawn from its posterior; each comparison estimates it again.
    """
    main, *others = spreads
    random = np.random.default_rng(0)
    df = float(main.df)
    if main.drawn:
        true = _list_possible_spreads(float(main.se), df if known_df is None else known_df)[:, None]
        sizes = true * np.sqrt(random.chisquare(df, (SPREADS, repetitions)) / df)
    else:
        true = sizes = np.full((SPREADS, 1), float(main.se))
    drawn = [ErrorSpread(sizes, df, main.widens, alpha=main.alpha)]
    for spread in others:
        of_one = np.full((1, 1), float(spread.se))
        if spread.drawn:
            of_one = of_one * np.sqrt(_list_chi2_quantiles(repetitions, float(spread.df)) / float(spread.df))
        elif spread.widens:
            true = np.maximum(true, of_one)
        drawn.append(ErrorSpread(of_one, spread.df, spread.widens, alpha=spread.alpha))
    change = true * random.standard_normal((SPREADS, repetitions))
    half, least = compute_half_width(drawn, level), compute_certain_change(drawn)
    return DrawnComparisons(change, half, least, None, shows_change)


def _list_possible_spreads(spread: float, df: float) -> Floats:
    """List the posterior of a spread estimated on `df` degrees of freedom, at midpoints of equal shares."""
    return np.asarray(spread * np.sqrt(df / _list_chi2_quantiles(SPREADS, df)))


def _list_chi2_quantiles(number: int, df: float) -> Floats:
    """List the quantiles of χ² at the midpoints of so many equal shares."""
    return np.array([compute_chi2_quantile((place + 0.5) / number, df) for place in range(number)])


def compute_chi2_quantile(share: float, df: float) -> float:
    """Compute the quantile of χ²."""
    from scipy.special import gammaincinv

    return float(2 * gammaincinv(df / 2, share))
