"""Groups of rows: numbers and sums for them, fast where keys lie close together, as made-up keys do, and where rows are few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Ints = npt.NDArray[np.int64]

ROOM = 2**20
"""A table of keys may have this many places, or four a row, before sorting is cheaper."""


def numbered(keys: Ints) -> tuple[Ints, Ints]:
    """(the distinct keys, ascending; for each key its place among them): as `numpy.unique` with its inverse.

    >>> numbered(np.array([7, 3, 7]))
    (array([3, 7]), array([1, 0, 1]))
    """
    if not len(keys):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    low = int(keys.min())
    room = int(keys.max()) - low + 1
    if room > max(4 * len(keys), ROOM):
        distinct, place = np.unique(keys, return_inverse=True)
        return distinct, place
    offset = keys - low
    occurs = np.zeros(room, np.bool_)
    occurs[offset] = True
    distinct = np.flatnonzero(occurs)
    table = np.zeros(room, np.int64)
    table[distinct] = np.arange(len(distinct))
    return distinct + low, table.take(offset)


def of_keys(frame: pd.DataFrame, by: Sequence[str]) -> tuple[Ints, Ints]:
    """(for each row the number of its combination of keys, in order of appearance; the first row of each).

    Missing keys are keys like any other. As `groupby(by, dropna=False, sort=False).ngroup()`, without
    the groups: most tables that are judged have a few dozen rows.
    """
    number, room = np.zeros(len(frame), np.int64), 1
    for name in by:
        column: Any = frame[name]
        values = column.to_numpy() if isinstance(column.dtype, np.dtype) else column.array
        # Missing keys come as -1: to ask for a number of theirs takes pandas a look at every value more.
        codes, found = pd.factorize(values)
        if not len(found):
            continue
        low = int(codes.min(initial=0))
        count = len(found) - low
        if count < 2:
            continue
        if room * count >= 2**62:
            distinct, number = np.unique(number, return_inverse=True)
            room = len(distinct)
        number = number * count + (codes - low)
        room *= count
    _, first, number = np.unique(number, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place[number], first[order]


def by_group(group: Ints, start: Ints) -> Ints:
    """The order by group, then by start, equal ones as they stand.

    >>> by_group(np.array([1, 0, 1]), np.array([5, 9, 4]))
    array([1, 2, 0])
    """
    order = np.arange(len(start))
    if len(start) > 1 and bool((start[1:] < start[:-1]).any()):
        order = np.argsort(start, kind="stable")
    if not len(group) or int(group.min()) < 0 or int(group.max()) >= 2**16:
        return order[np.argsort(group[order], kind="stable")]
    # Sorting two-byte numbers takes a pass or two, whatever their order.
    return order[np.argsort(group[order].astype(np.uint16), kind="stable")]


def summed(group: Ints, values: Ints, count: int) -> Ints:
    """Exact integer sums by group; group -1 counts nowhere."""
    out = np.zeros(count, np.int64)
    known = group >= 0
    np.add.at(out, group[known], values[known])
    return out


def place_of(
    keys: npt.NDArray[Any], wanted: npt.NDArray[Any]
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """(for each wanted number its place in the ascending keys, whether it is there); any place where not."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return place, keys[place] == wanted if len(keys) else np.zeros(len(wanted), np.bool_)
