"""What a table is: named columns with the type, the unit and the meaning of each.

A unit is the suffix of a column's name: `_ns`, `_bytes`, `_ratio` (0 to 1), `_gb_per_s` (1e9 bytes), `_count`.
`Int64` and `Float64` (capitals) and open categories may hold `<NA>`; no number stands for "unknown".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.errors import SchemaError

COPIED_ROWS = 2**14
"""Tables up to so many rows are put together the fast way, which copies them."""

FEW_TEXTS = 64
"""So many texts are few: the type of a categorical of them is kept."""

Dtype = Literal["int32", "int64", "Int64", "Float64", "bool", "category"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its pandas dtype, one line of meaning, and the closed set of its values, if closed."""

    dtype: Dtype
    doc: str
    values: tuple[str, ...] = ()

    @property
    def nullable(self) -> bool:
        """Whether a row may lack this value."""
        return self.dtype in ("Int64", "Float64") or (self.dtype == "category" and not self.values)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A named set of columns, and what one row of it is; equal to itself alone."""

    name: str
    row: str
    columns: Mapping[str, Column]

    def frame(
        self, data: Mapping[str, Any] | None = None, length: int | None = None
    ) -> pd.DataFrame:
        """A frame made of equally long arrays: columns cast and put in order, rows as given.

        Nullable columns that are not given are all `<NA>`; no data at all gives the empty table.
        Raises `SchemaError` for other missing columns, unknown ones, and values that do not fit.
        """
        data = data or {}
        if length is None:
            length = len(next(iter(data.values()))) if data else 0
        missing = {n for n, c in self.columns.items() if n not in data and not c.nullable}
        unknown = data.keys() - self.columns.keys()
        if unknown or (missing and data):
            problem = f"{self.name}: missing {sorted(missing)}, unknown {sorted(unknown)}"
            raise SchemaError(problem)
        try:
            cast = {n: _cast(c, data.get(n), length) for n, c in self.columns.items()}
            return framed(cast, length)
        except (TypeError, ValueError, OverflowError) as error:
            raise SchemaError(f"{self.name}: {error}") from error

    def empty(self) -> pd.DataFrame:
        """The table without rows, one frame for all who ask: never to be changed in place."""
        return _empty(self, str(pd.get_option("mode.string_storage")))

    def check(self, frame: pd.DataFrame) -> None:
        """Raise `SchemaError` unless `frame` has exactly these columns, in this order, of these types."""
        want = [(name, column.dtype) for name, column in self.columns.items()]
        have = [(str(name), str(dtype)) for name, dtype in frame.dtypes.items()]
        if want != have:
            odd = sorted(set(want) ^ set(have))
            raise SchemaError(f"{self.name}: columns differ from the schema: {odd or 'order'}")


def framed(columns: Mapping[Any, Any], length: int) -> pd.DataFrame:
    """The frame of these arrays, of the types they have; large ones are shared, small ones copied, which is faster."""
    if length > COPIED_ROWS:
        # Said outright for texts, whose type pandas would guess.
        typed = {
            n: pd.Series(a, dtype=object, copy=False) if a.dtype == object else a
            for n, a in columns.items()
        }
        return pd.DataFrame(typed, copy=False)
    names = _names(tuple(columns), str(pd.get_option("mode.string_storage")))
    make: Any = pd.DataFrame._from_arrays  # type: ignore[attr-defined]  # noqa: SLF001 - a third of the time
    frame: pd.DataFrame = make(
        [*columns.values()], columns=names, index=pd.RangeIndex(length), verify_integrity=False
    )
    return frame


@lru_cache(512)
def _names(names: tuple[str, ...], storage: str) -> pd.Index[str]:  # noqa: ARG001 - how texts are stored
    """The names of columns as an index, one for all frames that have them."""
    return pd.Index(list(names))


@cache
def _empty(table: Table, storage: str) -> pd.DataFrame:  # noqa: ARG001 - how texts are stored
    """The frame of a table without rows: questions ask often for tables that no source filled."""
    return table.frame()


def _cast(column: Column, given: Any, length: int) -> Any:
    """One column as an array of its declared dtype."""
    if column.dtype == "category":
        return _categorical(column, given, length)
    if given is None:
        return _all_missing(column, length)
    if (
        isinstance(given, np.ndarray | pd.api.extensions.ExtensionArray)
        and given.dtype == column.dtype
    ):
        return given
    if not column.nullable:
        given = np.asarray(given)
    cast: Any = pd.array(given, dtype=column.dtype)
    # numpy casts to these without a word whatever is lost.
    if not column.nullable and not (np.asarray(cast) == np.asarray(given)).all():
        raise ValueError(f"values that are no {column.dtype}")
    return cast


def _all_missing(column: Column, length: int) -> Any:
    """A nullable column without any value; an empty one where values are required."""
    missing = np.ones(length, np.bool_)
    if column.dtype == "Int64":
        return pd.arrays.IntegerArray(np.zeros(length, np.int64), missing)
    if column.dtype == "Float64":
        return pd.arrays.FloatingArray(np.zeros(length), missing)
    return pd.array([], dtype=column.dtype)


def _categorical(column: Column, given: Any, length: int) -> Any:
    """A categorical: of the closed set when there is one (other values are an error), else of what is there."""
    if given is None:
        return of_texts(np.full(length, -1, np.int8), column.values)
    values = given.array if isinstance(given, pd.Series) else given
    if not column.values:
        return values if isinstance(values, pd.Categorical) else _open_categorical(values)
    found = values if isinstance(values, pd.Categorical) else pd.Categorical(values)
    if found.categories.tolist() == list(column.values) and not (found.codes < 0).any():
        return found
    place = {value: code for code, value in enumerate(column.values)}
    codes = np.array([*(place.get(c, -1) for c in found.categories), -1], np.int8)[found.codes]
    if (codes == -1).any():
        odd = sorted({str(v) for v, code in zip(found, codes, strict=True) if code == -1})
        raise ValueError(f"{odd[:5]} not in {column.values}")
    return of_texts(codes, column.values)


def of_texts(codes: npt.NDArray[Any], texts: tuple[str, ...]) -> Any:
    """A categorical of these codes into `texts`; code -1 is missing. For few texts: their type is kept."""
    storage = str(pd.get_option("mode.string_storage"))
    return pd.Categorical.from_codes(codes, dtype=_dtype(texts, storage), validate=False)


@lru_cache(2048)
def _dtype(texts: tuple[str, ...], storage: str) -> pd.CategoricalDtype:  # noqa: ARG001 - how texts are stored
    """The type of a categorical of these texts: it takes longer to make than its values."""
    return pd.CategoricalDtype(_text(texts))


def _open_categorical(values: Any) -> Any:
    """A categorical whose categories are text, in sorted order."""
    given = np.array(values, object)
    if len(given) <= COPIED_ROWS and given.ndim == 1:
        codes, texts = pd.factorize(given)
        if all(type(text) is str for text in texts.tolist()) and len(texts) <= FEW_TEXTS:
            order = np.argsort(texts)
            place = np.append(np.argsort(order), -1)
            return of_texts(place[codes], tuple(texts[order].tolist()))
    found = pd.Categorical(values)
    return pd.Categorical.from_codes(found.codes, categories=_text(found.categories))


def _text(values: Any) -> pd.Index[str]:
    """An index of text, also when it is empty (pandas would otherwise guess its type from the values)."""
    return pd.Index([str(value) for value in values], dtype="str")


def coded(codes: Any, like: pd.Series[Any]) -> Any:
    """A categorical of these codes, with the categories of `like`; code -1 is missing."""
    dtype: Any = like.dtype
    return pd.Categorical.from_codes(codes, dtype=dtype)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a frame as they travel between processes: to make frames of them all takes ten times as long.

    A categorical is its codes and texts, a nullable column its numbers and which of them are missing.
    """

    length: int
    arrays: Mapping[str, Any]

    def __len__(self) -> int:
        """The number of rows."""
        return self.length


Part = pd.DataFrame | Columns


def packed(frame: Part) -> Columns:
    """The columns of a frame."""
    if isinstance(frame, Columns):
        return frame
    arrays = zip(frame.columns, _arrays(frame), strict=True)
    return Columns(len(frame), {str(name): _bare(array) for name, array in arrays})


def _bare(array: Any) -> Any:
    """An array as `Columns` holds it."""
    if isinstance(array, pd.Categorical):
        return array.codes, tuple(array.categories.tolist())
    if isinstance(array, pd.arrays.IntegerArray | pd.arrays.FloatingArray):
        masked: Any = array
        return masked._data, masked._mask  # noqa: SLF001 - no public way without a copy
    return array


def _arrays(part: Part) -> Iterable[Any]:
    """The columns in their order."""
    if isinstance(part, Columns):
        return part.arrays.values()
    arrays: Iterable[Any] = cast(Any, part)._iter_column_arrays()  # noqa: SLF001 - no public way
    return arrays


def _joined(column: Column, parts: Sequence[Any]) -> Any:
    """The values of several parts of one column, one after the other; texts are united, not lost."""
    bare = [_bare(part) for part in parts]
    if column.dtype == "category":
        return _united(column, bare)
    if not isinstance(bare[0], tuple):
        return np.concatenate(bare)
    values, missing = (np.concatenate(of) for of in zip(*bare, strict=True))
    kind = pd.arrays.IntegerArray if column.dtype == "Int64" else pd.arrays.FloatingArray
    return kind(values, missing)


def _united(column: Column, parts: Sequence[tuple[npt.NDArray[Any], Sequence[str]]]) -> Any:
    """The categorical of several codes with their texts, in the order in which these come.

    As `union_categoricals`, which compares and hashes all texts of each with those of the others.
    """
    place = {text: at for at, text in enumerate(column.values)}
    places = [[*(place.setdefault(text, len(place)) for text in texts), -1] for _, texts in parts]
    # As narrow as pandas would make it: a byte as a rule.
    width = np.min_scalar_type(-max(len(place), 1))
    joined = np.concatenate(
        [np.array(of, width)[codes] for of, (codes, _) in zip(places, parts, strict=True)]
    )
    if len(place) <= FEW_TEXTS:
        return of_texts(joined, tuple(place))
    return pd.Categorical.from_codes(joined, categories=_text(place), validate=False)


def concat(table: Table, frames: Sequence[Part]) -> pd.DataFrame:
    """The rows of several frames of one table, in order; categories are united, not lost."""
    frames = [frame for frame in frames if len(frame)] or list(frames[:1])
    if not frames:
        return table.empty()
    if len(frames) == 1 and isinstance(frames[0], pd.DataFrame):
        return frames[0]
    # As arrays, without a Series for each of them: what `pd.concat` comes to, in a tenth of its time.
    every = zip(*(_arrays(frame) for frame in frames), strict=True)
    columns = zip(table.columns.items(), every, strict=True)
    return table.frame({name: _joined(column, parts) for (name, column), parts in columns})
