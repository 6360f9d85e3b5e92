"""Measured tables as plain records, and their columns concatenated into one long array per dtype.

Hundreds of tables have few rows; serializing each array separately costs more than its data. Key columns that are not
made yet are stored as their sources, or left out if they are those of the labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracekit.analyses import Tables
from tracekit.model.tables import KEYS, TABLES
from tracekit.model.tables.arrays import Array, Coded, Columns, Keyed, Nullable
from tracekit.model.trace import KEY_KINDS, KeyLabels

ColumnForm = str | list[str]
"""The layout of a column: dtype name, with a leading `?` if nullable; for texts [dtype of the codes, *texts]."""

_NULLABLE_PREFIX = "?"
_BOOL = np.dtype(np.bool_)


class _TypedArrays(NamedTuple):
    """The arrays of one dtype, its name, and the form of its nullable columns."""

    name: str
    nullable: str
    arrays: list[np.ndarray[Any, Any]]


class ArrayCollector(dict["np.dtype[Any]", _TypedArrays]):
    """The arrays of all tables in order, by dtype."""

    def __missing__(self, dtype: np.dtype[Any]) -> _TypedArrays:
        """Add an empty entry for a dtype; raises `TypeError` if it is not numeric."""
        if dtype.kind not in "biuf":
            raise TypeError(f"an array of {dtype} is not one of numbers")
        none = self[dtype] = _TypedArrays(dtype.str, _NULLABLE_PREFIX + dtype.str, [])
        return none


def pack_tables(tables: Mapping[str, Tables], arrays: ArrayCollector, labels: KeyLabels) -> dict[str, Any]:
    """Pack tables as records, which JSON can represent, and collect their arrays.

    Raises `TypeError` for a non-numeric column.
    """
    records: dict[str, dict[str, Any]] = {}
    for question, of_question in tables.items():
        records[question] = {name: _pack_columns(columns, arrays, labels) for name, columns in of_question.items()}
    return records


def unpack_tables(records: Mapping[str, Any], blocks: BlockReader, labels: KeyLabels) -> dict[str, Tables]:
    """Unpack the tables of these records. Raises `ValueError` or `LookupError` for malformed ones."""
    tables: dict[str, Tables] = {}
    for question, of_question in records.items():
        tables[question] = {name: _unpack_columns(name, record, blocks, labels) for name, record in of_question.items()}
    return tables


def _pack_columns(columns: Columns, arrays: ArrayCollector, labels: KeyLabels) -> list[Any]:
    """Pack a table as [rows, sources of its key columns, form of each column]; without sources the keys are columns."""
    given, sources = columns.arrays, None
    if isinstance(given, Keyed):
        sources = [] if given.sources == ((labels.values, columns.length),) else given.sources
        given = given.measured
    return [columns.length, sources, [_collect_column(array, arrays) for array in given.values()]]


def _unpack_columns(name: str, record: Sequence[Any], blocks: BlockReader, labels: KeyLabels) -> Columns:
    """Unpack one table."""
    length, sources, forms = record
    names = list(TABLES[name].columns)[0 if sources is None else len(KEYS) :]
    arrays = dict(zip(names, blocks.columns(forms, length), strict=True))
    if sources is None:
        return Columns(length, arrays)
    if not length:
        raise ValueError("no rows without keys")
    if not sources:
        return labels.keyed(length, arrays)
    return Columns(length, Keyed(KEY_KINDS, tuple((tuple(values), rows) for values, rows in sources), arrays))


def _collect_column(array: Array, arrays: ArrayCollector) -> ColumnForm:
    """Add a column's arrays to the collector, and return its form. Raises `TypeError` for a non-numeric column."""
    if isinstance(array, Nullable):
        of_type = arrays[array.values.dtype]
        arrays[_BOOL].arrays.append(array.missing)
        of_type.arrays.append(array.values)
        return of_type.nullable
    if isinstance(array, Coded):
        of_type = arrays[array.codes.dtype]
        of_type.arrays.append(array.codes)
        return [of_type.name, *array.texts]
    of_type = arrays[array.dtype]
    of_type.arrays.append(array)
    return of_type.name


def concatenate_arrays(arrays: ArrayCollector) -> dict[str, np.ndarray[Any, Any]]:
    """Concatenate the arrays of each dtype, by dtype name."""
    return {of_type.name: np.concatenate(of_type.arrays) for of_type in arrays.values()}


class BlockReader:
    """Long arrays from which columns are taken in the order of their collection."""

    def __init__(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._arrays = arrays
        self._places = dict.fromkeys(arrays, 0)

    def columns(self, forms: Iterable[ColumnForm], length: int) -> list[Array]:
        """Take the columns of these forms, as views. Raises `ValueError` or `LookupError` if they do not exist."""
        return [self._column(form, length) for form in forms]

    def _column(self, form: ColumnForm, length: int) -> Array:
        if not isinstance(form, str):
            dtype, *texts = form
            return Coded(self.take(dtype, length), tuple(texts))
        if form.startswith(_NULLABLE_PREFIX):
            missing = self.take(_BOOL.str, length)
            return Nullable(self.take(form.removeprefix(_NULLABLE_PREFIX), length), missing)
        return self.take(form, length)

    def take(self, dtype: str, length: int) -> np.ndarray[Any, Any]:
        """Take the next values of a dtype, as a view. Raises `ValueError` or `LookupError` if they do not exist."""
        start = self._places[dtype]
        self._places[dtype] = end = start + length
        array = self._arrays[dtype][start:end]
        if len(array) != length:
            raise ValueError("damaged: an array behind the last one")
        return array
