"""Reductions by group number: smallest and largest values, mixed groups, and positions within groups."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_LAST = 2**62
"""Number larger than any time in ns."""


def find_group_maxima(number: Ints, values: Ints, count: int) -> Ints:
    """Find the largest value of each group 0 … count-1."""
    highest = np.full(count, values.min(initial=_LAST), values.dtype)
    np.maximum.at(highest, number, values)
    return highest


def find_group_minima(number: Ints, values: Ints, count: int) -> Ints:
    """Find the smallest value of each group 0 … count-1."""
    lowest = np.full(count, values.max(initial=-_LAST), values.dtype)
    np.minimum.at(lowest, number, values)
    return lowest


def find_mixed_groups(number: Ints, values: Ints, count: int) -> npt.NDArray[np.bool_]:
    """Find the groups with different values.

    >>> find_mixed_groups(np.array([0, 1, 0]), np.array([5, 7, 6]), 2).tolist()
    [True, False]
    """
    return np.asarray(find_group_minima(number, values, count) != find_group_maxima(number, values, count), np.bool_)


def number_rows_within_groups(number: Ints, order: Ints) -> Ints:
    """Count for each row the earlier rows of its group, in this order of all rows.

    >>> number_rows_within_groups(np.array([0, 1, 0]), np.array([2, 1, 0])).tolist()
    [1, 0, 0]
    """
    by_group = order[np.argsort(number[order], kind="stable")]
    size = np.bincount(number)
    begin = np.cumsum(size) - size
    place = np.empty(len(number), np.int64)
    place[by_group] = np.arange(len(number)) - np.repeat(begin, size)
    return place
