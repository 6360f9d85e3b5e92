"""Grouping of similar values and outliers, to show 1,000 ranks in a table or chart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

GAP_FACTOR = 10.0
"""Multiple of the third quartile of all gaps that a separating gap must exceed."""

GAP_SHARE = 0.01
"""Share of the median that a separating gap must exceed as well."""

WORST, BEST = 5, 5
"""Maximum number of values at either end that get a row of their own."""


def group_similar_values(values: Sequence[float], max_rows: int) -> list[list[int]]:
    """Group the indices of similar values into at most `max_rows` (1 or more) rows, highest values first.

    In order of size, a value joins the row of the one before unless the gap between them is wide: more than `GAP_FACTOR` times the
    third quartile of all gaps, and more than `GAP_SHARE` of the median. If that gives too many rows, only the widest gaps
    separate. Up to a third of the rows is for the highest values and a quarter for the lowest (at most `WORST` and `BEST`),
    one value each; fewer if the next value is equal, because chance would decide which one gets the row.

    >>> group_similar_values([3.0, 9.0, 3.0, 5.0, 3.0, 3.0, 3.0], 4)
    [[1], [3], [0, 2, 4, 5, 6]]
    """
    order = sorted(range(len(values)), key=lambda place: (-values[place], place))
    ranked = [values[place] for place in order]
    if len(ranked) < 2:
        return [order] if order else []
    gaps = [high - low for high, low in pairwise(ranked)]
    wide = max(GAP_FACTOR * sorted(gaps)[(len(gaps) - 1) * 3 // 4], GAP_SHARE * abs(ranked[(len(ranked) - 1) // 2]))
    first = _count_separate_values(gaps, min(WORST, max_rows // 3))
    last = _count_separate_values(gaps[first:][::-1], min(BEST, max_rows // 4))
    cuts = {*range(first), *range(len(gaps) - last, len(gaps))}
    inner = [place for place in range(first, len(gaps) - last) if gaps[place] > wide]
    widest = sorted(inner, key=lambda place: (-gaps[place], place))[: max(max_rows - 1 - len(cuts), 0)]
    bounds = [0, *(place + 1 for place in sorted({*cuts, *widest})), len(order)]
    return [sorted(order[begin:end]) for begin, end in pairwise(bounds)]


def find_median_index(places: Sequence[int], values: Sequence[float]) -> int:
    """Find the index of the median value among these indices; the lower of two."""
    return sorted(places, key=lambda place: (values[place], place))[(len(places) - 1) // 2]


def _count_separate_values(gaps: Sequence[float], limit: int) -> int:
    """Count the values of an end that get their own row: at most `limit`, and the last must differ from the next."""
    return next((count for count in range(min(limit, len(gaps)), 0, -1) if gaps[count - 1] > 0), 0)
