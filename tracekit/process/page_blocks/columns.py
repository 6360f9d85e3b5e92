"""Columns of the explorer page for one process, with their own tables of names and call paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.tables.arrays import Coded
from tracekit.process.name_filters import list_present_codes

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.integer[Any]]

NO_NAME = "(no name)"
"""Name of a row that was recorded without one."""

_TYPES = (np.uint8, np.uint16, np.uint32)


def narrow_numbers(values: npt.NDArray[Any]) -> Numbers:
    """Convert numbers that are not negative to the narrowest unsigned type.

    >>> narrow_numbers(np.array([3, 256])).dtype
    dtype('uint16')
    """
    highest = int(values.max(initial=0))
    for kind in _TYPES:
        if highest <= np.iinfo(kind).max:
            return values.astype(kind)
    return values.astype(np.uint64)


class PageTexts:
    """Distinct texts by number, in order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def add_texts(self, texts: Sequence[str]) -> Ints:
        """Add texts and get their numbers."""
        numbers = self._numbers
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)

    def add_column(self, column: Coded, shorten: Callable[[str], str] = str) -> Ints:
        """Add the texts that occur in a column, shortened, and get the number of each row's text."""
        present, place = list_present_codes(column.codes, len(column.texts))
        texts = [shorten(column.texts[code]) if code >= 0 else NO_NAME for code in present.tolist()]
        return self.add_texts(texts)[place]

    def list_texts(self) -> tuple[str, ...]:
        """List all texts in order of their numbers."""
        return tuple(self._numbers)


class PathTable:
    """Call paths: the path around each (-1: none) and its name. Tables of several call trees follow one another."""

    def __init__(self) -> None:
        self._parents: list[Ints] = []
        self._names: list[Ints] = []
        self._count = 0

    def add_paths(self, parent: Ints, name: Ints) -> int:
        """Add a table of paths and get the number of its first one."""
        first = self._count
        self._parents.append(np.where(parent >= 0, parent + first, -1))
        self._names.append(name)
        self._count += len(parent)
        return first

    def make_columns(self) -> dict[str, Ints]:
        """Make the columns of all paths: the path around each + 1, and its name."""
        none = np.empty(0, np.int64)
        return {
            "path.parent": np.concatenate((none, *self._parents)) + 1,
            "path.name": np.concatenate((none, *self._names)),
        }
