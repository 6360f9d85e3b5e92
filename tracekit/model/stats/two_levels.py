"""Two levels: equal runs that are fast on one side and slow on the other by chance, as after a true change.

Equal runs may be fast or slow (NUMA placement, one slow node). If all runs of one side happen to be fast and all of the
other slow, the numbers are those of a true change, whatever is computed from them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.stats.estimate import Floats

PROMISE = 0.005
"""Largest share of comparisons of equal sides that may be called slower, or faster."""

LEAST_RUNS_OF_CHANGE = 3
"""Runs that each side needs for a change to be reported, whatever is known of earlier runs."""

LEAST_WITH_HISTORY = 9
"""Runs of the base, earlier ones included, from which three runs of each side are enough."""

MAX_APART_RUNS = 4
"""Up to this many runs on the smaller side, the sides must not overlap."""

LEAST_GAP = 0.25
"""Share of a side's widest range that the gap between the sides must exceed."""


def compute_two_level_share(base: int, opt: int) -> float:
    """Compute how often, at worst, all of `base` equal runs are fast and all of `opt` slow.

    A run is slow with probability p: (1 − p)^base · p^opt is largest at p = opt / (base + opt).

    >>> f"{compute_two_level_share(3, 3):.4f} {compute_two_level_share(4, 4):.4f}"
    '0.0156 0.0039'
    """
    runs = base + opt
    return float((base / runs) ** base * (opt / runs) ** opt)


def can_show_change(base: int, opt: int, earlier: int = 0) -> bool:
    """Whether so many runs can show a change: four per side, three against six, or three with six earlier base runs.

    >>> [can_show_change(4, 4), can_show_change(3, 3), can_show_change(3, 6), can_show_change(3, 3, 6)]
    [True, False, True, True]
    """
    if min(base, opt) < LEAST_RUNS_OF_CHANGE:
        return False
    if compute_two_level_share(base, opt) <= PROMISE:
        return True
    return base + earlier >= LEAST_WITH_HISTORY and compute_two_level_share(base + earlier, opt) <= PROMISE


@dataclass(frozen=True, slots=True)
class Gaps:
    """How far opt lies above base, and below it, on the log scale (negative if they overlap), and the least gap.

    Sides of more than `MAX_APART_RUNS` runs need no gap: theirs is −∞.
    """

    above: Floats
    below: Floats
    least: Floats

    def is_apart(self, slower: float = 0.0) -> npt.NDArray[np.bool_]:
        """Whether the sides are far enough apart, opt made slower by this log change."""
        return np.asarray(np.maximum(self.above + slower, self.below - slower) > self.least)


def measure_gaps(base: Floats, opt: Floats, widest: float | Floats = 0.0) -> Gaps:
    """Measure the gaps between log run means along the last axis; `widest` is the range of earlier runs."""
    above, below = opt.min(axis=-1) - base.max(axis=-1), base.min(axis=-1) - opt.max(axis=-1)
    if min(base.shape[-1], opt.shape[-1]) > MAX_APART_RUNS:
        return Gaps(above, below, np.full(above.shape, -np.inf))
    for side in (base, opt):
        widest = np.maximum(side.max(axis=-1) - side.min(axis=-1), widest)
    return Gaps(above, below, LEAST_GAP * np.asarray(widest))
