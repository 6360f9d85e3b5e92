"""Memory for many columns in few allocations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

ARENA_BYTES = 2**26
ARENA_ROW_BYTES = 72
"""What a row of the widest table takes."""


class Arena:
    """Memory for the columns of one file, many in one allocation.

    The system provides large allocations in large pages (numpy asks for them), and touching as many
    small pages for the first time would cost more than filling them.
    """

    def __init__(self, row_count: int) -> None:
        self._size = min(ARENA_BYTES, ARENA_ROW_BYTES * row_count)
        self._left = np.empty(0, np.uint8)

    def empty(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array that is not filled yet."""
        size = count * np.dtype(dtype).itemsize
        room = -(-size // 64) * 64
        if room > len(self._left):
            self._left = np.empty(max(room, self._size), np.uint8)
        used, self._left = self._left[:size], self._left[room:]
        return used.view(dtype)

    def copy(self, values: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """`values.astype(dtype)`."""
        out = self.empty(len(values), dtype)
        np.copyto(out, values, casting="unsafe")
        return out

    def take(self, column: npt.NDArray[Any], at: Ints) -> npt.NDArray[Any]:
        """`column[at]`; no index may be negative or too large."""
        out = self.empty(len(at), column.dtype)
        return column.take(at, out=out, mode="clip")  # the only mode that writes to `out` at once
