"""The longest and the median of the intervals that a measured row sums up: the examples that a finding shows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tracekit.model.tables.arrays import Array, Nullable
from tracekit.model.tables.keys import group_arrays

Ints = npt.NDArray[np.int64]


def find_longest_and_median(group: Ints, start: Ints, dur: Ints, count: int) -> dict[str, Array]:
    """Find the longest and the median interval of each group 0 … count-1: the columns `EXTREMES`, missing in empty groups.

    Of equally long intervals the earliest is taken, and of an even number the shorter one in the middle.
    """
    order = np.lexsort((start, -dur, group))
    size = np.bincount(group, minlength=count)
    first = np.cumsum(size) - size
    columns: dict[str, Array] = {}
    for name, place in (("longest", first), ("median", first + size // 2)):
        rows = order[np.minimum(place, len(order) - 1)] if len(order) else np.zeros(0, np.int64)
        for column, values in (("ts_ns", start), ("ns", dur)):
            chosen = values[rows] if len(order) else np.zeros(count, np.int64)
            columns[f"{name}_{column}"] = Nullable(chosen, size == 0)
    return columns


def find_longest_by_keys(keys: Mapping[str, Array], start: Ints, dur: Ints) -> dict[str, Ints]:
    """Find the longest interval of each combination of keys, in the order of `sum_by_keys`: the columns `LONGEST`."""
    group, first = group_arrays(list(keys.values()))
    extremes = find_longest_and_median(group, start, dur, len(first))
    return {
        name: array.values
        for name, array in extremes.items()
        if name.startswith("longest") and isinstance(array, Nullable)
    }
