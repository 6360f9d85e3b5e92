"""A column that comes block by block."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass

Array = npt.NDArray[Any]

_BLOCKS = 64
"""So many blocks are put together: large arrays get large pages, and the memory of small ones is used again."""


@dataclass(slots=True)
class Parts:
    """The blocks of a column in their order."""

    _large: list[Array] = field(default_factory=list[Array])
    _small: list[Array] = field(default_factory=list[Array])

    def append(self, block: Array) -> None:
        """Add a block behind those before it."""
        self._small.append(block)
        if len(self._small) == _BLOCKS:
            self._large.append(np.concatenate(self._small))
            self._small.clear()

    def joined(self, dtype: Any) -> Array:
        """All blocks as one array of this type, which this lets go of."""
        blocks = [np.empty(0, dtype), *self._large, *self._small]
        self._large.clear()
        self._small.clear()
        return np.concatenate(blocks, dtype=dtype)
