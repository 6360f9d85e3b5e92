"""What may be said of a comparison in one of four words, and what it would take to say more?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, log, log1p
from typing import Literal

import numpy as np

from tracekit.stats.designs import WELCH_FROM, detectable, welch
from tracekit.stats.estimate import Floats, n_effective, t_tail
from tracekit.stats.speedup import Exact, Speedup
from tracekit.stats.trend import holm

Word = Literal["regression", "improvement", "no change", "inconclusive"]
Better = Literal["lower", "higher"]
Cap = Literal["no interval", "two steps", "one run each", "many comparisons"]

CAPS: dict[Cap, str] = {
    "no interval": "without an interval nothing can be told from noise",
    "two steps": "two steps of one run are too few to tell anything from noise",
    "one run each": "one run a side cannot show how much runs differ",
    "many comparisons": "among so many comparisons this may be chance",
}
"""Why a verdict may be weaker than its interval."""

LEAST_EFFECT = 0.03
"""Changes up to this share do not matter, unless the caller says otherwise."""

ENOUGH_STEPS = 5
"""So many steps of one run give an interval without a footnote: what to ask for where none is known."""

MOST_STEPS = 2_000
MOST_RUNS = 100
"""More than these are not recommended to anybody."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The word for a comparison, and what it rests on.

    `uncapped` is the word of the interval alone and `caps` why it may not be said. `effect` is the
    change that had to be exceeded as a share (0.03 = 3 %). `worse` is the change for the worse on
    the log scale (below 0: for the better). `p` is two-sided: of a change beyond `effect` seen where
    none is; None without an interval, and for exact numbers.
    """

    word: Word
    uncapped: Word
    caps: tuple[Cap, ...]
    effect: float
    worse: float | None
    p: float | None


@dataclass(frozen=True, slots=True)
class Needed:
    """What resolves a change of `effect` in 80 % of cases, per side; None where nothing known would.

    `detectable` is what this comparison resolves. `steps` are those of one run each; None as well
    where steps are not what limits. `runs` is a lower bound (`at_least`) where the spread between
    runs was never seen. `pairs` says that steps and runs are pairs of them.
    """

    effect: float
    detectable: float | None
    steps: int | None
    runs: int | None
    at_least: bool
    pairs: bool


def verdict(
    found: Speedup,
    *,
    min_effect: float = LEAST_EFFECT,
    better: Better = "lower",
    assume_independent_steps: bool = False,
) -> Verdict:
    """The word for a comparison: its whole interval beyond ±δ, or inside, or neither.

    δ is `ln(1 + min_effect)`, at least the spread of calibrated runs. One run a side without A/A
    noise stays inconclusive unless its steps are declared to stand for runs; two steps of one run
    always do, and so does a comparison without an interval.

    >>> from tracekit.stats.speedup import speedup
    >>> verdict(speedup([[10, 11, 10, 11, 10]] * 2, [[20, 21, 20, 21, 20]] * 2)).word
    'inconclusive'
    >>> verdict(speedup([[10, 11], [10, 10]], [[21, 21], [20, 21]])).word
    'regression'
    """
    delta = _log_effect(min_effect)
    if found.noise is not None:
        delta = max(delta, found.noise.sd)
    sign = _sign(better)
    worse = -sign * found.log_ratio
    if found.low is None or found.high is None or found.se is None or found.df is None:
        caps: tuple[Cap, ...] = ("no interval",)
        return Verdict("inconclusive", "inconclusive", caps, float(np.expm1(delta)), worse, None)
    ends = sorted((-sign * log(found.low), -sign * log(found.high)))
    word = _word(ends[0], ends[1], delta)
    caps = () if word == "inconclusive" else why_capped(found, assume_independent_steps)
    return Verdict(
        word="inconclusive" if caps else word,
        uncapped=word,
        caps=caps,
        effect=float(np.expm1(delta)),
        worse=worse,
        p=min(2 * float(t_tail((abs(worse) - delta) / found.se, found.df)), 1.0),
    )


def exact_verdict(
    found: Exact,
    *,
    min_effect: float = 0.0,
    min_difference: float = 0.0,
    better: Better = "lower",
) -> Verdict:
    """The word for exact numbers: changed where both the share and the difference are exceeded.

    From or to zero every share is exceeded. Sides whose own values differ are inconclusive.
    """
    delta = _log_effect(min_effect)
    if not (isfinite(min_difference) and min_difference >= 0):
        raise ValueError(f"the least difference cannot be {min_difference}")
    if found.equal is None:
        return Verdict("inconclusive", "inconclusive", ("no interval",), min_effect, None, None)
    sign = _sign(better)
    share = abs(log(found.ratio)) if found.ratio is not None and found.ratio > 0 else inf
    word: Word = "no change"
    if not found.equal and share > delta and abs(found.difference) > min_difference:
        word = "regression" if sign * found.difference > 0 else "improvement"
    worse = None
    if found.equal:
        worse = 0.0
    elif isfinite(share):
        worse = share if sign * found.difference > 0 else -share
    return Verdict(word, word, (), min_effect, worse, None)


def together(verdicts: Sequence[Verdict], *, level: float = 0.95) -> tuple[Verdict, ...]:
    """Verdicts that stand side by side, in order: a change that Holm's correction does not leave
    is inconclusive. Exact ones and ones without an interval are no part of the family.
    """
    at = [index for index, one in enumerate(verdicts) if one.p is not None]
    adjusted = dict(zip(at, holm([verdicts[index].p or 0.0 for index in at]), strict=True))
    changed = ("regression", "improvement")
    return tuple(
        replace(one, word="inconclusive", caps=(*one.caps, "many comparisons"))
        if one.word in changed and index in adjusted and adjusted[index] >= 1 - level
        else one
        for index, one in enumerate(verdicts)
    )


def needed(found: Speedup, *, effect: float = LEAST_EFFECT) -> Needed:
    """How many steps of one run each, or how many runs a side, resolve a change of `effect`.

    The closed form of the detectable change, turned round for as many units a side on both. The
    spread between runs is what runs showed, or the calibrated noise; else steps bound it from below.
    """
    _log_effect(effect)
    paired = found.pair_spread is not None
    steps = runs = None
    if effect > 0 and found.se is not None and found.label != "no interval":
        if "steps" in found.design:
            steps = _steps(found, effect)
        runs = _runs(found, effect)
    unseen = "steps" in found.design and found.noise is None
    return Needed(effect, found.detectable, steps, runs, unseen and runs is not None, paired)


def _steps(found: Speedup, effect: float) -> int | None:
    """The least number of steps of one run each; None where noise between runs forbids, or too many."""
    noise = found.noise
    if noise is not None and float(detectable(2**0.5 * noise.sd, noise.df, found.level)) > effect:
        return None
    n = np.arange(2, MOST_STEPS + 1, dtype=float)
    if found.pair_spread is not None:
        return _first(n, found.pair_spread**2 / n, n - 1, effect, found.level)
    one, two = found.base.spread, found.opt.spread
    if one is None or two is None or found.rho is None:
        return None
    degrees = n_effective(n, found.rho) - 1
    factor = (n - 1) / (n * degrees)
    variance, df = welch(one**2 * factor, degrees, two**2 * factor, degrees)
    return _first(n, variance, df, effect, found.level)


def _runs(found: Speedup, effect: float) -> int | None:
    """The least number of runs a side (from two on); None where too many."""
    noise = found.noise
    k = np.arange(2, MOST_RUNS + 1, dtype=float)
    if found.pair_spread is not None:
        of_pair = found.pair_spread**2
        if found.design == "paired steps":
            of_pair = max(of_pair / found.base.steps, 2 * noise.sd**2 if noise else 0.0)
        return _first(k, of_pair / k, k - 1, effect, found.level)
    sides = []
    for side in (found.base, found.opt):
        if side.spread is None:
            return None
        of_run = side.spread**2
        if found.design == "steps":
            n = side.steps
            of_run *= (n - 1) / (n * (float(n_effective(n, found.rho or 0.0)) - 1))
            of_run = max(of_run, noise.sd**2 if noise else 0.0)
        sides.append(of_run)
    variance, df = welch(sides[0] / k, k - 1, sides[1] / k, k - 1)
    return _first(k, variance, np.where(k < WELCH_FROM, 2 * k - 2, df), effect, found.level)


def _first(units: Floats, variance: Floats, df: Floats, effect: float, level: float) -> int | None:
    """The first number of units whose detectable change is within `effect`."""
    enough = detectable(np.sqrt(variance), df, level) <= effect
    return int(units[enough.argmax()]) if enough.any() else None


def _word(low: float, high: float, delta: float) -> Word:
    """The word for an interval of the change for the worse, on the log scale."""
    if low > delta:
        return "regression"
    if high < -delta:
        return "improvement"
    return "no change" if -delta < low and high < delta else "inconclusive"


def why_capped(found: Speedup, assume_independent_steps: bool) -> tuple[Cap, ...]:
    """Why the word of the interval may not be said."""
    caps: list[Cap] = []
    if "steps" in found.design and min(found.base.steps, found.opt.steps) < 3:
        caps.append("two steps")
    within = found.label in ("within-run", "within-run, paired")
    if within and not assume_independent_steps:
        caps.append("one run each")
    return tuple(caps)


def _sign(better: Better) -> int:
    """1 where a rise is for the worse, −1 where it is for the better."""
    if better not in ("lower", "higher"):
        raise ValueError(f"better is 'lower' or 'higher', not {better!r}")
    return 1 if better == "lower" else -1


def _log_effect(effect: float) -> float:
    """δ on the log scale; a ValueError for a share that is none."""
    if not (isfinite(effect) and effect >= 0):
        raise ValueError(f"the least effect cannot be {effect}")
    return log1p(effect)
