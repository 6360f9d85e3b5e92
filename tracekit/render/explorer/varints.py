"""Variable-length numbers (LEB128), and columns of numbers: the page stores its data as these."""

from __future__ import annotations

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
    if not len(values):
        return b""
    if int(values.min()) < 0:
        raise ValueError("a number of the page is negative")
    highest = int(values.max())
    if highest < 1 << 7:
        return values.astype(np.uint8).tobytes()
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
            return encoded.tobytes()
        rest, left, at = rest[rows] >> width, left[rows] - 1, at[rows] + 1


def encode_columns(columns: Sequence[npt.NDArray[np.integer[Any]]]) -> bytes:
    """Encode equally long columns: the number of rows, then one column after the other."""
    count = len(columns[0])
    assert all(len(column) == count for column in columns), "columns of one length"
    return encode_varints(np.array([count])) + b"".join(map(encode_varints, columns))


def take_differences(values: Ints) -> Ints:
    """Take the difference of each value to the one before it, the first as it is."""
    return np.diff(values, prepend=0)


def fold_signs(values: Ints) -> Ints:
    """Fold signed numbers into numbers that are not negative (zigzag): 0, -1, 1, -2 become 0, 1, 2, 3.

    >>> fold_signs(np.array([0, -1, 1, -2])).tolist()
    [0, 1, 2, 3]
    """
    return (values << 1) ^ (values >> 63)
