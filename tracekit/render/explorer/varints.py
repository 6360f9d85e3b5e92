"""Variable-length numbers (LEB128), and columns of numbers: the page stores its data as these."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

MOST_BYTES = 9
"""Bytes of the longest number: values are below 2**63."""


def encode_varints(values: npt.NDArray[np.integer[Any]]) -> bytes:
    """Encode numbers that are not negative, one after the other.

    >>> encode_varints(np.array([1, 300])).hex()
    '01ac02'
    """
    return _encode_with_ends(values)[0].tobytes()


def _encode_with_ends(values: npt.NDArray[np.integer[Any]]) -> tuple[npt.NDArray[np.uint8], Ints | None]:
    """Encode numbers: (bytes, the end of each number in them); no ends if each number takes one byte."""
    if not len(values):
        return np.empty(0, np.uint8), None
    if int(values.min()) < 0:
        raise ValueError("a number of the page is negative")
    highest = int(values.max())
    if highest < 1 << 7:
        return values.astype(np.uint8), None
    value: npt.NDArray[Any] = values.astype(np.uint64 if highest >= 1 << 32 else np.uint32)
    size = np.ones(len(value), np.int64)
    for place in range(1, MOST_BYTES):
        if highest < 1 << 7 * place:
            break
        size += value >= value.dtype.type(1 << 7 * place)
    end = np.cumsum(size)
    encoded = np.empty(int(end[-1]), np.uint8)
    at = end - size
    rest, left, mask, width = value, size, value.dtype.type(127), value.dtype.type(7)
    while True:
        byte = (rest & mask).astype(np.uint8)
        more = left > 1
        byte |= more.view(np.uint8) << 7
        encoded[at] = byte
        rows = more.nonzero()[0]
        if not len(rows):
            return encoded, end
        rest, left, at = rest[rows] >> width, left[rows] - 1, at[rows] + 1


def encode_columns(columns: Sequence[npt.NDArray[np.integer[Any]]]) -> bytes:
    """Encode equally long columns: the number of rows, then one column after the other."""
    count = len(columns[0])
    assert all(len(column) == count for column in columns), "columns of one length"
    return encode_varints(np.array([count])) + b"".join(map(encode_varints, columns))


def encode_column_parts(columns: Sequence[Ints], sizes: Ints) -> list[bytes]:
    """Encode columns in parts of given sizes, each as `encode_columns` does, all at once."""
    width = len(columns)
    ends = np.cumsum(1 + width * sizes)
    base = ends - (1 + width * sizes)
    values = np.empty(int(ends[-1]) if len(ends) else 0, np.int64)
    values[base] = sizes
    at, step = np.repeat(base, sizes) + 1 + number_within_parts(sizes), np.repeat(sizes, sizes)
    for column in columns:
        values[at] = column
        at += step
    encoded, end = _encode_with_ends(values)
    data = encoded.tobytes()
    bounds = [0, *(ends if end is None else end[ends - 1]).tolist()]
    return [data[first:last] for first, last in itertools.pairwise(bounds)]


def number_within_parts(sizes: Ints) -> Ints:
    """Number the members of each part from 0 on.

    >>> number_within_parts(np.array([2, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def take_part_differences(values: Ints, sizes: Ints) -> Ints:
    """Take the difference of each value to the one before it in its part, the first of each part as it is."""
    differences = take_differences(values)
    first = (np.cumsum(sizes) - sizes)[sizes > 0]
    differences[first] = values[first]
    return differences


def take_differences(values: Ints) -> Ints:
    """Take the difference of each value to the one before it, the first as it is."""
    return np.diff(values, prepend=0)


def fold_signs(values: Ints) -> Ints:
    """Fold signed numbers into numbers that are not negative (zigzag): 0, -1, 1, -2 become 0, 1, 2, 3.

    >>> fold_signs(np.array([0, -1, 1, -2])).tolist()
    [0, 1, 2, 3]
    """
    return (values << 1) ^ (values >> 63)
