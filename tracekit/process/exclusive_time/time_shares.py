"""Shares of a window by (stage, class, cause, path, kernel): merging them, and folding the smallest into "other"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracekit.model.keys import number_keys, sum_by_group
from tracekit.model.records import dataclass

Ints = npt.NDArray[np.int64]

NONE, NO_OP, UNLINKED, OTHER = -1, -2, -3, -4
"""Placeholders for a stage, path or kernel that does not exist or is not listed."""

STAGE, CLASS, CAUSE, PATH, KERNEL = range(5)
"""Rows of `TimeShares.keys`: stage code, index in `CLASSES`, index in `CAUSES`, path number, kernel code."""


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Time shares of windows: `ns` of `window` went to the key `keys[:, key]`, which began `count` times."""

    keys: npt.NDArray[np.int64]
    window: Ints
    key: Ints
    count: Ints
    ns: Ints


def number_share_keys(columns: Sequence[Ints]) -> tuple[npt.NDArray[np.int64], Ints]:
    """Assign numbers to the distinct rows of these columns: (distinct keys, key number of each row)."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in filter(len, columns):
        low, high = int(column.min()), int(column.max())
        if low < high:
            _, number = number_keys(number * (high - low + 1) + column - low)
    keys = np.empty((len(columns), int(number.max(initial=-1)) + 1), np.int64)
    for position, column in enumerate(columns):
        keys[position, number] = column
    return keys, number


def concatenate_time_shares(parts: Sequence[TimeShares]) -> TimeShares:
    """Concatenate time shares, and merge equal keys."""
    sizes = np.cumsum([0, *(part.keys.shape[1] for part in parts)])
    keys = np.concatenate([part.keys for part in parts], axis=1)
    key = np.concatenate([part.key + offset for part, offset in zip(parts, sizes[:-1], strict=True)])
    window, count, ns = (np.concatenate([getattr(part, name) for part in parts]) for name in ("window", "count", "ns"))
    return merge_time_shares(TimeShares(keys, window, key, count, ns))


def merge_time_shares(parts: TimeShares) -> TimeShares:
    """Merge time shares: each key once, and each pair of window and key once."""
    keys, number = number_share_keys(list(parts.keys))
    width = max(keys.shape[1], 1)
    pairs, place = number_keys(parts.window * width + number[parts.key])
    return TimeShares(
        keys,
        pairs // width,
        pairs % width,
        sum_by_group(place, parts.count, len(pairs)),
        sum_by_group(place, parts.ns, len(pairs)),
    )


def fold_small_time_shares(parts: TimeShares, max_keys: int, max_stages: int) -> TimeShares:
    """Fold the keys with least time over all windows into one per stage and class, to keep about `max_keys`.

    A key is kept or folded in all windows alike, so windows stay comparable. Idle time and time in no op are
    kept.
    """
    keys = parts.keys.copy()
    total = sum_by_group(parts.key, parts.ns, keys.shape[1])
    codes, stage = number_keys(keys[STAGE])
    small = ~_mark_largest_shares(sum_by_group(stage, total, len(codes)), max_stages)
    small &= codes != NONE
    if not small.any() and keys.shape[1] <= max_keys:
        return parts
    keys[STAGE, small[stage]] = OTHER
    has_detail = (keys[PATH] >= 0) | (keys[KERNEL] >= 0)
    is_left = has_detail.copy()
    is_left[has_detail] = ~_mark_largest_shares(total[has_detail], max_keys)
    keys[PATH, is_left] = OTHER
    keys[KERNEL, is_left & (keys[KERNEL] >= 0)] = OTHER
    return merge_time_shares(TimeShares(keys, parts.window, parts.key, parts.count, parts.ns))


def _mark_largest_shares(values: Ints, count: int) -> npt.NDArray[np.bool_]:
    """Mark the `count` largest values; values tied at the edge are not marked, so order does not matter."""
    if len(values) <= count:
        return np.ones(len(values), np.bool_)
    edge = np.partition(values, len(values) - count - 1)[len(values) - count - 1]
    above: npt.NDArray[np.bool_] = values > edge
    return above
