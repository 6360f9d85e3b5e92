"""Which word does an interval allow? The one rule for it, for a single comparison or arrays of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.stats.estimate import Floats, t_quantile

Word = Literal["regression", "improvement", "no change", "inconclusive"]

FALSE_ALARM = 0.004
"""A change may be said where equal sides would seem so much worse in at most this share of comparisons.

Of the 0.5 % that is promised; the rest is for runs whose spread is not that of a normal distribution.
"""

FALSE_ALARM_OF_TWO = 0.003
"""The same up to two degrees of freedom, as two runs a side have: two runs that are slow by chance look alike."""


@dataclass(frozen=True, slots=True)
class Spread:
    """One thing that makes a log ratio uncertain: its standard error `se` on `df` degrees of freedom.

    One that `widens` is part of the interval; of others a change has only to stand out. One that is not
    `drawn` anew in every comparison was calibrated before: it stays as it is.
    """

    se: float | Floats
    df: float | Floats
    widens: bool = True
    drawn: bool = True


def reach(spreads: Sequence[Spread], level: float) -> Floats:
    """Half of the interval of the log ratio: the widest of what widens it; NaN where nothing varied."""
    widths = [
        t_quantile(0.5 + level / 2, spread.df) * spread.se for spread in spreads if spread.widens
    ]
    return np.asarray(np.fmax.reduce(widths))


def least_certain(spreads: Sequence[Spread]) -> Floats:
    """The least log ratio that equal sides exceed on one side in at most `FALSE_ALARM` of comparisons.

    Whether runs differ by it, or the steps inside them, or what was calibrated: the largest counts.
    """
    return np.asarray(
        np.fmax.reduce([certain_quantile(spread.df) * spread.se for spread in spreads])
    )


def certain_quantile(df: float | Floats) -> Floats:
    """How many standard errors a change is larger than that is no false alarm."""
    share = np.where(np.asarray(df) <= 2, FALSE_ALARM_OF_TWO, FALSE_ALARM)
    return t_quantile(1 - share, df)


def words(low: Floats, high: Floats, delta: float | Floats) -> npt.NDArray[np.str_]:
    """The word of each interval of the change for the worse (log scale): wholly beyond ±δ, inside, or neither."""
    names: list[Word] = ["regression", "improvement", "no change"]
    inside = (-delta < low) & (high < delta)
    return np.select([low > delta, high < -delta, inside], names, "inconclusive")


def is_certain(worse: float | Floats, spreads: Sequence[Spread]) -> npt.NDArray[np.bool_]:
    """Whether equal sides would hardly ever seem so far apart."""
    return np.asarray(np.abs(worse) > least_certain(spreads))
