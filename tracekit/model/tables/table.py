"""Table schemas: named columns with type, unit and meaning.

The suffix of a column's name is its unit: `_ns`, `_bytes`, `_ratio` (0 to 1), `_gb_per_s` (1e9 bytes), `_count`. `Int64`
and `Float64` (capitalized) and open categories may contain `<NA>`; no number means "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain
from types import NoneType
from typing import Any, Literal

import numpy as np

from tracekit.model.errors import SchemaError
from tracekit.model.records import dataclass
from tracekit.model.system.lazy_pandas import pd
from tracekit.model.tables.arrays import (
    Array,
    Coded,
    Columns,
    Keyed,
    Nullable,
    choose_narrowest,
    concatenate_like_arrays,
    get_pandas_dtype,
    make_bare,
)

MAX_SHORT_ROWS = 1000
"""Row count up to which Python compares texts faster than pandas, and missing numbers share their arrays."""

Dtype = Literal["int32", "int64", "Int64", "Float64", "bool", "category"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its pandas dtype, its meaning in one line, and its values if they are a closed set."""

    dtype: Dtype
    doc: str
    values: tuple[str, ...] = ()

    @property
    def nullable(self) -> bool:
        """Whether a row may lack this value."""
        return self.dtype in _NULLABLE_TYPES or (self.dtype == "category" and not self.values)


UNITS = ("ns", "bytes", "ratio", "gb_per_s", "count")
"""Units that column names end in."""


def get_column_unit(name: str, column: Column) -> str:
    """Get a column's unit from the suffix of its name; `text` for texts, empty for other numbers."""
    if column.dtype == "category":
        return "text"
    return next((unit for unit in UNITS if name == unit or name.endswith(f"_{unit}")), "")


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A named set of columns, and the meaning of one row; compared by identity."""

    name: str
    row: str
    columns: Mapping[str, Column]

    def cast(self, data: Mapping[str, Any] | None = None, length: int | None = None) -> Columns:
        """Cast equally long arrays to the declared types, in the declared order; rows stay as given.

        Nullable columns that are not given are all missing; no data at all gives the empty table. Raises `SchemaError` for other
        missing columns, unknown ones, and values that do not fit.
        """
        data = data or {}
        if length is None:
            length = len(next(iter(data.values()), ()))
        return Columns(length, self.cast_arrays(data, length))

    def cast_arrays(self, data: Mapping[str, Any], length: int, but: tuple[str, ...] = ()) -> dict[str, Array]:
        """Cast like `cast` to a dict of arrays, without the columns in `but`; raises `SchemaError` in the same cases."""
        arrays: dict[str, Array] = {}
        columns = _list_cast_columns(self, tuple(data), but)
        try:
            for name, column, as_declared in columns:
                given: Any = data.get(name)
                kind = type(given)
                # Checked inline: most arrays already fit, and a call for each takes longer than the check.
                if kind is as_declared or (kind is np.ndarray and given.dtype is as_declared):
                    arrays[name] = given
                else:
                    arrays[name] = _cast_column(column, given, length)
        except (TypeError, ValueError, OverflowError) as error:
            raise SchemaError(f"{self.name}: {error}") from error
        for array in arrays.values():
            if len(array) != length:
                lengths = {name: len(array) for name, array in arrays.items()}
                raise SchemaError(f"{self.name}: not {length} values: {lengths}")
        return arrays

    def frame(self, data: Mapping[str, Any] | None = None, length: int | None = None) -> pd.DataFrame:
        """Cast like `cast` and make a frame; raises `SchemaError` in the same cases."""
        return self.cast(data, length).frame()

    def empty(self) -> pd.DataFrame:
        """Get the empty table as a frame. It is shared by all callers and must not be modified in place."""
        return _make_empty_frame(self)

    def no_rows(self) -> Columns:
        """Get the empty columns, shared by all callers."""
        return _make_empty_columns(self)

    def fits(self, columns: Columns) -> None:
        """Raise `SchemaError` unless these are exactly its columns, in this order, of these types."""
        if isinstance(columns.arrays, Keyed):
            self._compare(list(columns.arrays.types()))
        else:
            self._compare([(name, get_pandas_dtype(array)) for name, array in columns.arrays.items()])

    def check(self, frame: pd.DataFrame) -> None:
        """Raise `SchemaError` unless `frame` has exactly these columns, in this order, of these types."""
        self._compare([(str(name), str(dtype)) for name, dtype in frame.dtypes.items()])

    def _compare(self, have: list[tuple[str, str]]) -> None:
        """Raise `SchemaError` unless these are the names and types of its columns."""
        want = [(name, column.dtype) for name, column in self.columns.items()]
        if want != have:
            odd = sorted(set(want) ^ set(have))
            raise SchemaError(f"{self.name}: columns differ from the schema: {odd or 'order'}")


@lru_cache(1024)
def _list_cast_columns(
    table: Table, names: tuple[str, ...], but: tuple[str, ...]
) -> tuple[tuple[str, Column, object], ...]:
    """List the columns to cast (all but `but`), each with the array type that needs no cast.

    Raises `SchemaError` unless the given `names` suffice.
    """
    missing = {n for n, c in table.columns.items() if n not in (*names, *but) and not c.nullable}
    unknown = set(names) - table.columns.keys() | set(names).intersection(but)
    if unknown or (missing and (names or but)):
        problem = f"{table.name}: missing {sorted(missing)}, unknown {sorted(unknown)}"
        raise SchemaError(problem)
    columns = ((name, column) for name, column in table.columns.items() if name not in but)
    return tuple((name, column, _get_castless_type(column)) for name, column in columns)


def _get_castless_type(column: Column) -> object:
    """Get the array type that fits a column without a cast; None if each value must be checked."""
    if column.dtype == "category":
        return None if column.values else Coded
    return Nullable if column.dtype in _NULLABLE_TYPES else _NUMBERS[column.dtype]


@cache
def _make_empty_frame(table: Table) -> pd.DataFrame:
    """Make the frame of a table without rows; cached, because questions often request tables that no source filled."""
    return table.frame()


@cache
def _make_empty_columns(table: Table) -> Columns:
    """Make the columns of a table without rows."""
    return table.cast()


def _cast_column(column: Column, data: Any, length: int) -> Array:
    """Cast one column to its declared type."""
    if column.dtype == "category":
        return _cast_texts(column, data, length)
    if data is None:
        return _fill_missing_column(column, length)
    return _cast_nullable(column, data) if column.dtype in _NULLABLE_TYPES else _cast_numbers(column, data)


_NULLABLE_TYPES = ("Int64", "Float64")
"""Nullable number types."""


def _cast_nullable(column: Column, data: Any) -> Array:
    """Cast to nullable numbers of the declared type."""
    if isinstance(data, Nullable):
        return data
    kind = _NUMBERS[column.dtype]
    if isinstance(data, list | tuple) and {type(value) for value in data} <= _PLAIN_NUMBERS[column.dtype]:
        missing = np.array([value is None for value in data], np.bool_)
        data = np.array([0 if value is None else value for value in data], kind)
        return Nullable(data, missing if kind == np.int64 else missing | np.isnan(data))
    if isinstance(data, np.ndarray) and data.dtype == kind:
        if kind == np.int64:
            return Nullable(data, np.zeros(len(data), np.bool_))
        return Nullable(data, np.isnan(data))
    if str(getattr(data, "dtype", "")) == column.dtype:
        return make_bare(getattr(data, "array", data))
    return make_bare(pd.array(data, dtype=column.dtype))


_PLAIN_NUMBERS: dict[str, set[type]] = {
    "Int64": {int, np.int64, NoneType},
    "Float64": {float, int, np.float64, np.int64, NoneType},
}
"""Types of values that need no check."""


def _cast_numbers(column: Column, data: Any) -> Array:
    """Cast to numbers or booleans of the declared type."""
    values = np.asarray(data)
    if values.dtype == _NUMBERS[column.dtype]:
        return values
    with np.errstate(invalid="ignore"):
        cast = values.astype(_NUMBERS[column.dtype])
    # numpy casts to these types silently, even if values change.
    if not (cast == values).all():
        raise ValueError(f"values that are no {column.dtype}")
    return cast


_NUMBERS: dict[str, np.dtype[Any]] = {
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "Int64": np.dtype(np.int64),
    "Float64": np.dtype(np.float64),
    "bool": np.dtype(np.bool_),
}


def _fill_missing_column(column: Column, length: int) -> Array:
    """Make a nullable column of missing values; an empty column if values are required."""
    if not column.nullable:
        return np.array([], dtype=column.dtype)
    if length > MAX_SHORT_ROWS:
        return _make_missing_numbers(column.dtype, length)
    missing = _share_missing_numbers(column.dtype)
    return Nullable(missing.values[:length], missing.missing[:length])


def _make_missing_numbers(dtype: Dtype, length: int) -> Nullable:
    """Make `length` missing numbers."""
    return Nullable(np.zeros(length, _NUMBERS[dtype]), np.ones(length, np.bool_))


@cache
def _share_missing_numbers(dtype: Dtype) -> Nullable:
    """Make the missing numbers that all short columns share."""
    missing = _make_missing_numbers(dtype, MAX_SHORT_ROWS)
    missing.values.setflags(write=False)
    missing.missing.setflags(write=False)
    return missing


def _cast_texts(column: Column, data: Any, length: int) -> Coded:
    """Encode texts by the closed set if there is one (other values are an error), else by the texts present."""
    if data is None:
        return Coded(np.full(length, -1, np.int8), column.values)
    values = getattr(data, "array", data)  # of a pandas column
    coded = values if isinstance(values, Coded) else _encode_open_texts(values)
    if not column.values or (coded.texts == column.values and not (coded.codes < 0).any()):
        return coded
    code_of = {text: code for code, text in enumerate(column.values)}
    codes = np.array([*(code_of.get(text, -1) for text in coded.texts), -1], np.int8)[coded.codes]
    if (codes == -1).any():
        odd = sorted({str(text) for text in np.array([*coded.texts, None])[coded.codes[codes == -1]]})
        raise ValueError(f"{odd[:5]} not in {column.values}")
    return Coded(codes, column.values)


def _encode_open_texts(values: Any) -> Coded:
    """Encode any column of texts; new codes are in sorted order."""
    if isinstance(values, Coded):
        return values
    if hasattr(values, "categories"):
        return Coded(values.codes, tuple(values.categories.tolist()))
    encode = _encode_short_column if len(values) <= MAX_SHORT_ROWS else _encode_texts_and_none
    try:
        coded = encode(tuple(values))
    except TypeError:  # unhashable values
        coded = None
    if coded is not None:
        return coded
    categorical = pd.Categorical(values)
    return Coded(categorical.codes, tuple(str(text) for text in categorical.categories))


@lru_cache(1024)
def _encode_short_column(values: tuple[Any, ...]) -> Coded | None:
    """Encode the texts of a few rows like `_encode_texts_and_none`.

    The result is cached and shared by columns with equal values, which the files of one run often have; it is read-only.
    """
    coded = _encode_texts_and_none(values)
    if coded is not None:
        coded.codes.setflags(write=False)
    return coded


def _encode_texts_and_none(values: tuple[Any, ...]) -> Coded | None:
    """Encode texts in sorted order; None if there is anything but texts and None."""
    if not {type(value) for value in values} <= {str, NoneType}:
        return None
    distinct = set(values)
    distinct.discard(None)
    texts = sorted(distinct)
    code_of = dict(zip(texts, range(len(texts)), strict=True))
    code_of[None] = -1
    codes = np.array([code_of[value] for value in values], choose_narrowest(len(texts)))
    return Coded(codes, tuple(texts))


def concatenate_table_parts(table: Table, parts: Sequence[Columns]) -> Columns:
    """Concatenate parts of one table in order; texts are merged, not lost."""
    filled = [part for part in parts if len(part)] or list(parts[:1])
    if not filled:
        return table.cast()
    if len(filled) == 1:
        return filled[0]
    length = sum(map(len, filled))
    keyed = [part.arrays for part in filled if isinstance(part.arrays, Keyed)]
    if len(keyed) < len(filled):
        return Columns(length, _join_columns([part.arrays for part in filled], table.columns))
    sources = tuple(chain.from_iterable(arrays.sources for arrays in keyed))
    kinds, *_ = (arrays.kinds for arrays in keyed)
    columns = {name: column for name, column in table.columns.items() if name not in kinds}
    measured = _join_columns([arrays.measured for arrays in keyed], columns)
    return Columns(length, Keyed(kinds, sources, measured))


def _join_columns(parts: Sequence[Mapping[str, Array]], columns: Mapping[str, Column]) -> dict[str, Array]:
    """Concatenate these columns of all parts."""
    return {
        name: concatenate_like_arrays([part[name] for part in parts], column.values) for name, column in columns.items()
    }
