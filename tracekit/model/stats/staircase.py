"""Two shapes that a test for steady growth misses: equal rises at regular intervals, and growth that slows down."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.stats.estimate import compute_t_tail
from tracekit.model.stats.trend import Growth, GrowthLimits, Label

Floats = npt.NDArray[np.float64]

LEAST_RISES = 3
"""Minimum number of rises: two equal jumps one period apart happen by chance, a third hardly ever."""

MAX_RISE_DEVIATION = 0.25
"""Maximum deviation of a rise from the mean rise, as a share of it."""

MIN_TREAD_GAP = 1.5
"""Minimum gap between two treads relative to the range within one; a slope does not reach it."""

LEAST_BENT = 5
"""Minimum number of points that separate a bend from noise."""

BEND_SIGNIFICANCE = 0.01
"""Significance level of a bend: the chance that a straight line with noise shows one."""

FLATTER_RATIO = 0.75
"""Ratio of final to initial slope below which growth is clearly flatter and may be ending."""


@dataclass(frozen=True, slots=True)
class Staircase:
    """`count` rises of about `height`, one every `every` points."""

    every: int
    height: float
    count: int

    @property
    def per_point(self) -> float:
        """Mean rise per point."""
        return self.height / self.every


def find_staircase(y: Sequence[float] | Floats, min_total_rise: float = 0.0) -> Staircase | None:
    """Find three or more equal rises of more than `min_total_rise` in total at regular intervals; None if there are none.

    The series is level between rises, and no rise is missing: the cause acts in every second, third … step (an evaluation, a
    checkpoint). The shortest period that fits wins.

    >>> find_staircase([0, 0, 4, 4, 4, 8, 8, 8, 12])
    Staircase(every=3, height=4.0, count=3)
    >>> find_staircase([0, 0, 0, 4, 4, 4, 8, 8, 8]) is None
    True
    """
    ys = np.asarray(y, np.float64)
    # The first rise comes before point 1 at the earliest, the last before the last point.
    longest = (len(ys) - 2) // (LEAST_RISES - 1)
    climbed = (
        stairs
        for period in range(2, longest + 1)
        for first in range(1, period + 1)
        if (stairs := _fit_stairs(ys, period, first)) is not None
    )
    return next((stairs for stairs in climbed if stairs.height * stairs.count > min_total_rise), None)


def _fit_stairs(ys: Floats, period: int, first: int) -> Staircase | None:
    """Fit stairs with rises before point `first` and every `period` points from there; None if they do not fit."""
    edges = [0, *range(first, len(ys), period), len(ys)]
    treads = [ys[begin:end] for begin, end in pairwise(edges)]
    if len(treads) <= LEAST_RISES:
        return None
    rises = np.diff([float(np.median(tread)) for tread in treads])
    height = float(rises.mean())
    gap = min(float(after.min() - before.max()) for before, after in pairwise(treads))
    uneven = max(float(np.ptp(tread)) for tread in treads)
    if gap <= 0 or gap < MIN_TREAD_GAP * uneven or bool((abs(rises - height) > MAX_RISE_DEVIATION * height).any()):
        return None
    return Staircase(period, height, len(rises))


def slows_down(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> bool:
    """Whether growth slows down: something fills up, rather than leaks.

    A fitted parabola ends clearly flatter than it begins, and fits significantly better than a line (t-test of its second
    coefficient).

    >>> slows_down(range(7), [0, 8, 12, 14, 15, 15.5, 15.75]), slows_down(range(7), range(7))
    (True, False)
    """
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(xs) < LEAST_BENT or not float(np.ptp(xs)):
        return False
    place = (xs - xs.mean()) / float(np.ptp(xs))
    terms, rise = np.vander(place, 3), ys - ys[0]
    inverse = np.linalg.inv(terms.T @ terms)
    bend, slope, begin = inverse @ terms.T @ rise
    begins, ends = (float(slope + 2 * bend * end) for end in (place[0], place[-1]))
    if begins <= 0 or ends > FLATTER_RATIO * begins:
        return False
    residuals = rise - terms @ (bend, slope, begin)
    spare = len(ys) - len(terms[0])
    deviation = np.sqrt(float(residuals @ residuals) / spare * inverse[0, 0])
    return bool(deviation == 0 or compute_t_tail(float(-bend / deviation), spare) < BEND_SIGNIFICANCE)


def refine_growth_label(
    growth: Growth, x: Sequence[float] | Floats, level: Sequence[float] | Floats, answer: Label, limits: GrowthLimits
) -> Label:
    """Refine the label of a series by its shape.

    Growth that is not steady becomes `stairs` if it has that shape; growth that slows down becomes `filling`.
    """
    first = growth.warm_up
    if answer in ("likely", "strong"):
        return "filling" if slows_down(x[first:], level[first:]) else answer
    if answer not in ("none", "shift", "saturating"):
        return answer
    stairs = find_staircase(level, limits.flat) or find_staircase(level[first:], limits.flat)
    enough = max(limits.slope, limits.slope_ratio * abs(growth.level))
    return "stairs" if stairs is not None and stairs.per_point >= enough else answer
