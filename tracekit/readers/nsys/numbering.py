"""Numbering of distinct values in columns that are read block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]


_NOTHING: Ints = np.empty(0, np.int64)


@dataclass(slots=True)
class ValueNumbering:
    """Numbering of values. New values of a block are numbered in ascending order after those of earlier blocks."""

    values: Ints = field(default_factory=lambda: _NOTHING)
    """Value of each number."""
    _ascending: Ints = field(default_factory=lambda: _NOTHING)
    _numbers: Codes = field(default_factory=lambda: np.empty(0, np.int32))

    def coded(self, block: Ints) -> Codes:
        """Look up the number of each value. New values get the next numbers."""
        place = self._places(block)
        if place is None:
            self._add(block)
            place = np.searchsorted(self._ascending, block)
        return self._numbers[place]

    def _places(self, block: Ints) -> Ints | None:
        """Find the position of each value among the sorted ones; None if any value is new."""
        if not len(self._ascending):
            return None if len(block) else _NOTHING
        if len(self._ascending) == 1:
            is_same = bool((block == self._ascending[0]).all())
            return np.zeros(len(block), np.int64) if is_same else None
        place = np.minimum(np.searchsorted(self._ascending, block), len(self._ascending) - 1)
        return place if np.array_equal(self._ascending[place], block) else None

    def _add(self, block: Ints) -> None:
        """Assign numbers to the new values of a block."""
        fresh = np.setdiff1d(block, self._ascending)
        numbers = np.arange(len(self.values), len(self.values) + len(fresh), dtype=np.int32)
        self.values = np.concatenate((self.values, fresh))
        ascending = np.concatenate((self._ascending, fresh))
        order = np.argsort(ascending)
        self._ascending = ascending[order]
        self._numbers = np.concatenate((self._numbers, numbers))[order]


def assign_limited_code(code_of: dict[Any, int], key: object, limit: int) -> int:
    """Look up the code of a key, or assign the next one; -1 for a new key once there are `limit` codes."""
    if len(code_of) >= limit:
        return code_of.get(key, -1)
    return code_of.setdefault(key, len(code_of))


_FEW = 8
"""Number of distinct values to search one by one before sorting all."""


def list_distinct_integers(values: npt.NDArray[np.integer[Any]]) -> list[int]:
    """List the distinct values, ascending.

    >>> list_distinct_integers(np.array([7, 3, 7]))
    [3, 7]
    """
    distinct: list[int] = []
    while len(values):
        if len(distinct) == _FEW:
            return sorted({*distinct, *np.unique(values).tolist()})
        distinct.append(int(values[0]))
        values = values[values != values[0]]
    return sorted(distinct)


def list_distinct_rows(columns: Sequence[Ints]) -> list[tuple[int, ...]]:
    """List the distinct rows, in order of first appearance.

    >>> list_distinct_rows([np.array([7, 7, 1]), np.array([2, 2, 2])])
    [(7, 2), (1, 2)]
    """
    distinct: list[tuple[int, ...]] = []
    while len(columns[0]):
        if len(distinct) == _FEW:
            return [*distinct, *_list_distinct_runs(columns)]
        distinct.append(tuple(int(column[0]) for column in columns))
        is_other = np.zeros(len(columns[0]), np.bool_)
        for column in columns:
            is_other |= column != column[0]
        columns = [column[is_other] for column in columns]
    return distinct


def _list_distinct_runs(columns: Sequence[Ints]) -> list[tuple[int, ...]]:
    """List the distinct rows by the first row of each run of equal rows."""
    is_new = np.zeros(len(columns[0]), np.bool_)
    is_new[:1] = True
    for column in columns:
        is_new[1:] |= column[1:] != column[:-1]
    runs = np.flatnonzero(is_new)
    return list(dict.fromkeys(zip(*(column[runs].tolist() for column in columns), strict=True)))
