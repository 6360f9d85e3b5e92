"""Columns and row ids collected block by block."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

_BLOCKS = 64
"""Number of small blocks to concatenate at once: large arrays use huge pages, and small blocks' memory is reused."""


@dataclass(slots=True)
class ColumnParts:
    """Blocks of a column, in order."""

    _large: list[Array] = field(default_factory=list[Array])
    _small: list[Array] = field(default_factory=list[Array])

    def append(self, block: Array) -> None:
        """Append a block."""
        self._small.append(block)
        if len(self._small) == _BLOCKS:
            self._large.append(np.concatenate(self._small))
            self._small.clear()

    def joined(self, dtype: Any) -> Array:
        """Concatenate and release all blocks."""
        blocks = [np.empty(0, dtype), *self._large, *self._small]
        self._large.clear()
        self._small.clear()
        return np.concatenate(blocks, dtype=dtype)


@dataclass(slots=True)
class RowIds:
    """Row ids collected block by block. Consecutive ids are stored as the first id and a count."""

    _first: int = 0
    _count: int = 0
    _parts: ColumnParts | None = None
    _ids: Ints | None = None

    def append(self, block: Ints) -> None:
        """Append the ids of a block, which must not be empty."""
        if not self._count:
            self._first = int(block[0])
        if self._parts is None and not self._follows(block):
            self._parts = ColumnParts()
            self._parts.append(np.arange(self._count) + self._first)
        if self._parts is not None:
            self._parts.append(block)
        self._count += len(block)

    def _follows(self, block: Ints) -> bool:
        """Check whether the ids continue the sequence by steps of one."""
        return int(block[0]) == self._first + self._count and bool((np.diff(block) == 1).all())

    def look_up(self, rows: npt.NDArray[np.integer[Any]]) -> Ints:
        """Look up the ids of these rows. Call it after the last block."""
        if self._parts is not None:
            self._ids, self._parts = self._parts.joined(np.int64), None
        ids: Ints
        if self._ids is None:
            ids = rows.astype(np.int64) + self._first
        else:
            ids = self._ids[rows]
        return ids
