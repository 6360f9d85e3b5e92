"""The columns of many tables as a few long arrays, one of each type: a hundred tables of a few rows are kept and sent so.

Each array by itself takes longer to be written and read than its numbers do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tracekit.model.tables.arrays import Array, Coded, Nullable

Form = str | list[str]
"""What tells of a column: the name of its type, `?` before it where rows may lack it; of texts that of their codes, and they."""

_MISSING = "?"
_TRUTH = np.dtype(np.bool_)


class _OfType(NamedTuple):
    """The arrays of one type, its name, and the form of columns of it of which rows may lack some."""

    name: str
    nullable: str
    arrays: list[np.ndarray[Any, Any]]


class Arrays(dict["np.dtype[Any]", _OfType]):
    """The arrays of all tables in their order, by type."""

    def __missing__(self, dtype: np.dtype[Any]) -> _OfType:
        """None yet of a type; raises `TypeError` for one that is not of numbers."""
        if dtype.kind not in "biuf":
            raise TypeError(f"an array of {dtype} is not one of numbers")
        none = self[dtype] = _OfType(dtype.str, _MISSING + dtype.str, [])
        return none


def form_of(array: Array, arrays: Arrays) -> Form:
    """The form of a column, whose arrays are added to the others. Raises `TypeError` for one that is not of numbers."""
    if isinstance(array, Nullable):
        of_type = arrays[array.values.dtype]
        arrays[_TRUTH].arrays.append(array.missing)
        of_type.arrays.append(array.values)
        return of_type.nullable
    if isinstance(array, Coded):
        of_type = arrays[array.codes.dtype]
        of_type.arrays.append(array.codes)
        return [of_type.name, *array.texts]
    of_type = arrays[array.dtype]
    of_type.arrays.append(array)
    return of_type.name


def long_arrays(arrays: Arrays) -> dict[str, np.ndarray[Any, Any]]:
    """All arrays of each type as one, by the name of the type."""
    return {of_type.name: np.concatenate(of_type.arrays) for of_type in arrays.values()}


class Blocks:
    """Long arrays, of which columns are taken in the order in which they were added."""

    def __init__(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._arrays = arrays
        self._places = dict.fromkeys(arrays, 0)

    def columns(self, forms: Iterable[Form], length: int) -> list[Array]:
        """The columns of these forms; they share the memory of all. Raises `ValueError` or `LookupError` where they are not there."""
        return [self._column(form, length) for form in forms]

    def _column(self, form: Form, length: int) -> Array:
        if not isinstance(form, str):
            dtype, *texts = form
            return Coded(self._next(dtype, length), tuple(texts))
        if form.startswith(_MISSING):
            missing = self._next(_TRUTH.str, length)
            return Nullable(self._next(form.removeprefix(_MISSING), length), missing)
        return self._next(form, length)

    def _next(self, dtype: str, length: int) -> np.ndarray[Any, Any]:
        start = self._places[dtype]
        self._places[dtype] = end = start + length
        array = self._arrays[dtype][start:end]
        if len(array) != length:
            raise ValueError("damaged: an array behind the last one")
        return array
