"""The columns of many tables as a few long arrays, one of each type: a hundred tables of a few rows are kept and sent so.

Each array by itself takes longer to be written and read than its numbers do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache as once
from typing import Any

import numpy as np

from tracekit.model.tables.arrays import Array, Coded, Nullable

Form = str | list[str]
"""What tells of a column: the name of its type, `?` before it where rows may lack it; of texts that of their codes, and they."""

Arrays = dict[str, list[np.ndarray[Any, Any]]]
"""The arrays of all tables in their order, by type."""

_MISSING = "?"
_TRUTH = np.dtype(np.bool_).str


def form_of(array: Array, arrays: Arrays) -> Form:
    """The form of a column, whose arrays are added to the others. Raises `TypeError` for one that is not of numbers."""
    if isinstance(array, Coded):
        return [_added(array.codes, arrays), *array.texts]
    if isinstance(array, Nullable):
        _added(array.missing, arrays)
        return _MISSING + _added(array.values, arrays)
    return _added(array, arrays)


def long_arrays(arrays: Arrays) -> dict[str, np.ndarray[Any, Any]]:
    """All arrays of each type as one."""
    return {dtype: np.concatenate(of_type) for dtype, of_type in arrays.items()}


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
            missing = self._next(_TRUTH, length)
            return Nullable(self._next(form.removeprefix(_MISSING), length), missing)
        return self._next(form, length)

    def _next(self, dtype: str, length: int) -> np.ndarray[Any, Any]:
        start = self._places[dtype]
        self._places[dtype] = end = start + length
        array = self._arrays[dtype][start:end]
        if len(array) != length:
            raise ValueError("damaged: an array behind the last one")
        return array


def _added(array: np.ndarray[Any, Any], arrays: Arrays) -> str:
    """The name of the type of an array, which is added to those of its type."""
    dtype = _type_name(array.dtype)
    of_type = arrays.get(dtype)
    if of_type is None:
        arrays[dtype] = [array]
    else:
        of_type.append(array)
    return dtype


@once
def _type_name(dtype: np.dtype[Any]) -> str:
    """The name of a type; raises `TypeError` for one that is not of numbers."""
    if dtype.kind not in "biuf":
        raise TypeError(f"an array of {dtype} is not one of numbers")
    return str(dtype.str)
