"""Coding of the columns of a dependency graph in narrow integers, and checked decoding.

Decoding trusts no input: every column is checked for its length and for the range of its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.graph_columns import GraphColumns
from tracekit.model.tables.arrays import Coded, Nullable, choose_narrowest

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MOST_NS = 2**60
"""Longest time between two instants of a process, and the largest weight of an edge."""

_TIMES_LIMIT = 2**61
_WIDTHS = tuple(np.dtype(kind) for kind in ("u1", "i1", "u2", "i2", "u4", "i4"))
_WIDEST = np.dtype("i8")
_LIMITS = tuple((kind, int(np.iinfo(kind).min), int(np.iinfo(kind).max)) for kind in _WIDTHS)
_FIRST = ".first"
_MISSING = ".missing"


class DamagedGraphError(ValueError):
    """Columns that are not those of a graph."""


def narrow_integers(values: Ints, offset: int = 0) -> npt.NDArray[Any]:
    """Add an offset to integers and convert them to the narrowest type that fits all.

    Raises `DamagedGraphError` for numbers beyond all that can be read back.
    """
    if not len(values):
        return np.empty(0, np.uint8)
    low, high = int(values.min()) + offset, int(values.max()) + offset
    if low <= -_TIMES_LIMIT or high >= _TIMES_LIMIT:
        raise DamagedGraphError("a number beyond all limits")
    kind = next((kind for kind, lowest, highest in _LIMITS if lowest <= low and high <= highest), _WIDEST)
    return (values + offset).astype(kind, copy=False)


class ColumnWriter:
    """Columns under construction."""

    def __init__(self) -> None:
        self.numbers: dict[str, npt.NDArray[Any]] = {}
        self.texts: dict[str, tuple[str, ...]] = {}

    def add_integers(self, name: str, values: Any) -> None:
        """Add integers; -1 among row numbers costs no width, because all are stored one higher."""
        self.numbers[name] = narrow_integers(np.asarray(values, np.int64), 1)

    def add_times(self, name: str, values: Ints) -> None:
        """Add times in ns as differences from one to the next."""
        self.numbers[name + _FIRST] = values[:1].astype(np.int64)
        self.numbers[name] = narrow_integers(np.diff(values))

    def add_mask(self, name: str, values: Mask) -> None:
        """Add booleans, eight per byte."""
        self.numbers[name] = np.packbits(values)

    def add_nullable(self, name: str, values: Nullable) -> None:
        """Add numbers with missing values."""
        self.add_mask(name + _MISSING, values.missing)
        present = np.where(values.missing, 0, values.values)
        if present.dtype.kind == "f":
            self.numbers[name] = present.astype(np.float64)
        else:
            self.add_integers(name, present)

    def add_coded(self, name: str, values: Coded) -> None:
        """Add texts as codes, with only the texts that occur."""
        used = np.unique(values.codes)
        used = used[used >= 0]
        place = np.full(len(values.texts) + 1, -1, np.int64)
        place[used] = np.arange(len(used))
        self.add_integers(name, place[values.codes])
        self.texts[name] = tuple(values.texts[code] for code in used.tolist())


class ColumnReader:
    """Columns of a graph, decoded with checks. Every method raises `DamagedGraphError` for columns that do not fit."""

    def __init__(self, columns: GraphColumns) -> None:
        self._numbers: Mapping[str, npt.NDArray[Any]] = columns.numbers
        self._texts = columns.texts

    def read_integers(self, name: str, count: int | None, low: int, high: int) -> Ints:
        """Read integers from `low` to below `high`; without a `count`, as many as there are."""
        values = self._take(name, count, "iu").astype(np.int64) - 1
        if len(values) and (int(values.min()) < low or int(values.max()) >= high):
            raise DamagedGraphError(f"{name}: a value outside its range")
        return values

    def read_times(self, name: str, count: int, *, ascending: bool = True) -> Ints:
        """Read times in ns."""
        first = self._take(name + _FIRST, min(count, 1), "iu").astype(np.int64)
        steps = self._take(name, max(count - 1, 0), "iu").astype(np.int64)
        if len(first) and not -_TIMES_LIMIT < int(first[0]) < _TIMES_LIMIT:
            raise DamagedGraphError(f"{name}: not a time")
        if ascending and len(steps) and int(steps.min()) < 0:
            raise DamagedGraphError(f"{name}: times that go back")
        if len(steps) and float(np.abs(steps.astype(np.float64)).sum()) >= MOST_NS:
            raise DamagedGraphError(f"{name}: times too far apart")
        times: Ints = np.cumsum(np.concatenate((first, steps)))
        return times

    def read_mask(self, name: str, count: int) -> Mask:
        """Read booleans."""
        packed = self._take(name, (count + 7) // 8, "u")
        if packed.dtype != np.uint8:
            raise DamagedGraphError(f"{name}: not packed booleans")
        return np.unpackbits(packed, count=count).astype(np.bool_)

    def read_nullable(self, name: str, count: int, *, is_float: bool = False) -> Nullable:
        """Read numbers with missing values."""
        missing = self.read_mask(name + _MISSING, count)
        if is_float:
            return Nullable(self._take(name, count, "f").astype(np.float64), missing)
        return Nullable(self.read_integers(name, count, -_TIMES_LIMIT, _TIMES_LIMIT), missing)

    def read_coded(self, name: str, count: int, low: int = -1) -> Coded:
        """Read texts."""
        texts = self.read_texts(name)
        codes = self.read_integers(name, count, low, len(texts))
        return Coded(codes.astype(choose_narrowest(len(texts))), texts)

    def read_texts(self, name: str) -> tuple[str, ...]:
        """Read the distinct texts of a column."""
        texts = self._texts.get(name)
        if texts is None or len(set(texts)) != len(texts):
            raise DamagedGraphError(f"{name}: no distinct texts")
        return tuple(texts)

    def _take(self, name: str, count: int | None, kinds: str) -> npt.NDArray[Any]:
        array = self._numbers.get(name)
        if array is None or array.ndim != 1 or array.dtype.kind not in kinds:
            raise DamagedGraphError(f"{name}: no such column of numbers")
        if count is not None and len(array) != count:
            raise DamagedGraphError(f"{name}: {len(array):,} values instead of {count:,}")
        return array
