"""The rule that maps a confidence interval to a verdict word, for one comparison or arrays of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Literal

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.stats.estimate import Floats, compute_t_quantiles

Word = Literal["regression", "improvement", "no change", "inconclusive"]

FALSE_ALARM = 0.0025
"""One-sided false-alarm rate: a change is reported only beyond what equal sides exceed this often.

The promise is 0.5 %; the margin is for runs whose spread is not normally distributed.
"""

FALSE_ALARM_OF_FIVE = 0.003
"""False-alarm rate for five to seven runs on the smaller side."""

FALSE_ALARM_OF_STEPS = 0.004
"""False-alarm rate of the spread of steps."""


@dataclass(frozen=True, slots=True)
class ErrorSpread:
    """One source of uncertainty of a log ratio: its standard error `se` on `df` degrees of freedom.

    If it `widens`, it is part of the interval; otherwise a change only has to exceed it. If it is not `drawn` in every
    comparison, it comes from a calibration and stays constant. A change has to exceed what equal sides show in a share
    `alpha` of comparisons.
    """

    se: float | Floats
    df: float | Floats
    widens: bool = True
    drawn: bool = True
    alpha: float = FALSE_ALARM


def compute_half_width(spreads: Sequence[ErrorSpread], level: float) -> Floats:
    """Compute the half-width of the log ratio's interval: the widest spread that widens it; NaN without variation."""
    widths = [compute_t_quantiles(0.5 + level / 2, spread.df) * spread.se for spread in spreads if spread.widens]
    return np.asarray(reduce(np.fmax, widths))


def compute_certain_change(spreads: Sequence[ErrorSpread]) -> Floats:
    """Compute the log ratio that equal sides exceed, on one side, in at most a share `alpha` of comparisons.

    The largest spread counts, whether it is between runs, between steps or from calibration.
    """
    least = [compute_t_quantiles(1 - spread.alpha, spread.df) * spread.se for spread in spreads]
    return np.asarray(reduce(np.fmax, least))


def choose_false_alarm(fewest_runs: int) -> float:
    """Choose the false-alarm rate of runs by the runs of the smaller side."""
    return FALSE_ALARM_OF_FIVE if 5 <= fewest_runs <= 7 else FALSE_ALARM


def choose_words(low: Floats, high: Floats, delta: float | Floats) -> npt.NDArray[np.str_]:
    """Choose the word of each interval of the log change for the worse: beyond ±δ, inside, or inconclusive."""
    names: list[Word] = ["regression", "improvement", "no change"]
    inside = (-delta < low) & (high < delta)
    return np.select([low > delta, high < -delta, inside], names, "inconclusive")


def is_certain_change(worse: float | Floats, spreads: Sequence[ErrorSpread]) -> npt.NDArray[np.bool_]:
    """Whether equal sides would hardly ever differ by this much."""
    return np.asarray(np.abs(worse) > compute_certain_change(spreads))
