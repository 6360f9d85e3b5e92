"""How many runs or steps would decide it? From the spread that was seen, and from what it may be at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log1p

import numpy as np

from tracekit.model.stats.certainty import Spread
from tracekit.model.stats.designs import WELCH_FROM, welch
from tracekit.model.stats.estimate import n_effective
from tracekit.model.stats.outlook import POWER, chances, upper_factor
from tracekit.model.stats.speedup import Speedup
from tracekit.model.stats.verdict import LEAST_EFFECT, threshold

ENOUGH_STEPS = 5
"""So many steps of one run give an interval without a footnote: what to ask for where none is known."""

MOST_STEPS = 2_000
MOST_RUNS = 100
"""More than these are not recommended to anybody."""


@dataclass(frozen=True, slots=True)
class Needed:
    """What decides in 80 % of cases, per side; None where nothing that can be recommended would.

    `runs` by the spread as estimated and `most_runs` by the largest that the estimate leaves possible, which is None
    beyond what can be recommended; `at_least` where the spread between runs was never seen. `steps` are those of one
    run each, where these can decide. `pairs` says that steps and runs are pairs of them.
    """

    runs: int | None
    most_runs: int | None
    steps: int | None
    at_least: bool
    pairs: bool


NOTHING = Needed(None, None, None, at_least=False, pairs=False)


def needed(
    found: Speedup,
    *,
    effect: float = LEAST_EFFECT,
    change: float | None = None,
    alone: bool = False,
) -> Needed:
    """How many runs a side, or steps of one run each, say *no change* of equal sides in 80 % of cases.

    With `change` instead: call one of this size a regression. `effect` is what has to be exceeded, and within which
    nothing counts as changed; no number of runs decides on a change of exactly that. `alone` says that steps of one
    run may stand for runs.
    """
    delta = threshold(found, effect)
    if found.se is None or not found.spreads:
        return NOTHING
    worse = 0.0 if change is None else log1p(change)

    def decides(spreads: tuple[Spread, ...]) -> bool:
        said = chances(worse, spreads, delta, found.level)
        return (said.no_change if change is None else said.regression) >= POWER

    uncertain = upper_factor(found.df or 1.0)
    runs = _first(lambda k: decides(runs_of(found, k)), MOST_RUNS)
    most = runs and _first(lambda k: decides(runs_of(found, k, uncertain)), MOST_RUNS)
    steps = None
    if "steps" in found.design and (alone or found.noise is not None):
        steps = _first(lambda n: decides(_steps_of(found, n)), MOST_STEPS)
    unseen = "steps" in found.design and found.noise is None
    pairs = found.pair_spread is not None
    return Needed(runs, most, steps, at_least=unseen and runs is not None, pairs=pairs)


def runs_of(found: Speedup, k: int, times: float = 1.0) -> tuple[Spread, ...]:
    """The spreads of a comparison of `k` runs a side that differ as much as these, or so many times as much.

    The spread between runs is what runs showed, or the calibrated noise; else steps bound it from below.
    """
    if found.pair_spread is not None:
        of_pair = found.pair_spread**2
        if found.design == "paired steps":
            noise = found.noise.sd if found.noise else 0.0
            of_pair = max(of_pair / found.base.steps, 2 * noise**2)
        return (Spread(times * (of_pair / k) ** 0.5, k - 1.0),)
    one, two = (_of_run(found, side.spread or 0.0, side.steps) for side in (found.base, found.opt))
    variance, df = welch(np.asarray(one / k), k - 1.0, np.asarray(two / k), k - 1.0)
    spreads = [
        Spread(times * float(variance) ** 0.5, float(df) if k >= WELCH_FROM else 2 * k - 2.0)
    ]
    now = 1 / found.base.runs + 1 / found.opt.runs
    for inner in found.spreads:
        if not inner.widens:
            free = float(inner.df) * (2 * k - 1) / (found.base.runs + found.opt.runs - 1)
            spreads.append(Spread(float(inner.se) * (2 / k / now) ** 0.5, free, widens=False))
    return tuple(spreads)


def _of_run(found: Speedup, spread: float, steps: int) -> float:
    """The variance of one run's log mean on a side."""
    if found.design != "steps":
        return spread**2
    of_mean = spread**2 * (steps - 1) / (steps * (float(n_effective(steps, found.rho or 0.0)) - 1))
    return max(of_mean, found.noise.sd**2 if found.noise else 0.0)


def _steps_of(found: Speedup, n: int) -> tuple[Spread, ...]:
    """The spreads of a comparison of one run a side with so many steps."""
    noise = tuple(one for one in found.spreads if not one.drawn)
    if found.pair_spread is not None:
        return (Spread(found.pair_spread / n**0.5, n - 1.0), *noise)
    free = float(n_effective(n, found.rho or 0.0)) - 1
    factor = (n - 1) / (n * free)
    one, two = ((side.spread or 0.0) ** 2 * factor for side in (found.base, found.opt))
    variance, df = welch(np.asarray(one), free, np.asarray(two), free)
    drawn = (Spread(float(variance) ** 0.5, float(df)),) if variance > 0 else ()
    return (*drawn, *noise)


def _first(decides: Callable[[int], bool], most: int) -> int | None:
    """The least number from two on that decides; as many more of them do as well."""
    if not decides(most):
        return None
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high
