"""Which of many values are alike, and which stand apart: what a table or picture of 1,000 ranks shows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

GAPS = 10.0
"""How many times the gap that three of four neighbours keep within parts two values,"""

SHARE = 0.01
"""if it is also more than this share of the median."""

WORST, BEST = 5, 5
"""Most values of either end that stand alone because they are first or last."""


def alike(values: Sequence[float], most: int) -> list[list[int]]:
    """The places of the values, the highest first, in at most `most` (1 or more) rows of those alike.

    In order of size a value belongs to the row of the one before unless the gap between them is wide: more than
    `GAPS` times the third quartile of all gaps, and than `SHARE` of the median's size. Where that makes too many rows
    only the widest gaps part them. A third of the rows are kept for the highest values and a quarter for the lowest,
    at most `WORST` and `BEST`, each alone: fewer where the next value is the same, so that no chance decides which.

    >>> alike([3.0, 9.0, 3.0, 5.0, 3.0, 3.0, 3.0], 4)
    [[1], [3], [0, 2, 4, 5, 6]]
    """
    order = sorted(range(len(values)), key=lambda place: (-values[place], place))
    ranked = list(map(values.__getitem__, order))
    if len(ranked) < 2:
        return [order] if order else []
    gaps = [high - low for high, low in pairwise(ranked)]
    wide = max(
        GAPS * sorted(gaps)[(len(gaps) - 1) * 3 // 4], SHARE * abs(ranked[(len(ranked) - 1) // 2])
    )
    first = _alone(gaps, min(WORST, most // 3))
    last = _alone(gaps[first:][::-1], min(BEST, most // 4))
    cuts = {*range(first), *range(len(gaps) - last, len(gaps))}
    inner = [place for place in range(first, len(gaps) - last) if gaps[place] > wide]
    widest = sorted(inner, key=lambda place: (-gaps[place], place))[: max(most - 1 - len(cuts), 0)]
    bounds = [0, *(place + 1 for place in sorted({*cuts, *widest})), len(order)]
    return [sorted(order[begin:end]) for begin, end in pairwise(bounds)]


def middle(places: Sequence[int], values: Sequence[float]) -> int:
    """The place whose value is the median of those of the places; of two the lower."""
    return sorted(places, key=lambda place: (values[place], place))[(len(places) - 1) // 2]


def _alone(gaps: Sequence[float], most: int) -> int:
    """How many values of an end stand alone: at most so many, and the last of them unlike the next."""
    return next((count for count in range(min(most, len(gaps)), 0, -1) if gaps[count - 1] > 0), 0)
