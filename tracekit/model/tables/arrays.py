"""The columns of a table as bare arrays: what measuring gives, what travels between processes, folds and is put together.

A pandas frame of twenty columns takes longer to make than most small measured tables take to measure: it is
made where a question judges, or a person looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.extensions import ExtensionArray
from pandas.arrays import NumpyExtensionArray

from tracekit.model.records import dataclass

Ints = npt.NDArray[np.int64]

OBJECT = np.dtype(object)
"""The type of texts in frames that are judged; pandas takes its time to tell what `object` is."""

AS_THEY_ARE = "biufO"
"""The kinds of numpy arrays that a frame holds as they are."""

FEW_ROWS = 2000
"""Of so few rows the columns of a frame are copied into one block of each type."""

FEW_TEXTS = 64
"""So many texts are few: the type of a categorical of them is kept."""


# These two are not to be changed either; frozen they would take twice as long to make, and a file makes thousands.
@dataclass(slots=True, eq=False)
class Coded:
    """Texts by their number in `texts`; the code -1 is missing."""

    codes: npt.NDArray[Any]
    texts: tuple[str, ...]

    def __len__(self) -> int:
        """The number of values."""
        return len(self.codes)


@dataclass(slots=True, eq=False)
class Nullable:
    """Numbers, and which of them are missing."""

    values: npt.NDArray[Any]
    missing: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        """The number of values."""
        return len(self.values)


Array = npt.NDArray[Any] | Coded | Nullable


AnyArray = TypeVar("AnyArray", bound=npt.NDArray[Any] | Coded | Nullable)


def at_rows(array: AnyArray, rows: Any) -> AnyArray:
    """The array at these rows: numbers of rows, a mask, or a slice."""
    of_rows: Any
    if isinstance(array, np.ndarray):
        of_rows = array[rows]
    elif isinstance(array, Coded):
        of_rows = Coded(array.codes[rows], array.texts)
    else:
        of_rows = Nullable(array.values[rows], array.missing[rows])
    return of_rows  # type: ignore[no-any-return]


def all_at_rows(arrays: Mapping[str, Array], rows: Any) -> dict[str, Any]:
    """Equally long arrays at these rows."""
    return {name: at_rows(array, rows) for name, array in arrays.items()}


def holds(array: Array, value: str | int | None) -> npt.NDArray[np.bool_]:
    """Which rows hold this value; None is a missing one.

    >>> holds(Coded(np.array([0, -1, 1]), ("gen", "ref")), "ref").tolist()
    [False, False, True]
    """
    if isinstance(array, Coded):
        codes = zip((*range(len(array.texts)), -1), (*array.texts, None), strict=True)
        return np.isin(array.codes, [code for code, text in codes if text == value])
    if isinstance(array, np.ndarray):
        return np.asarray(array == value, np.bool_)
    if value is None:
        return array.missing
    return np.asarray((array.values == value) & ~array.missing, np.bool_)


SourceRows = tuple[tuple[str | int | None, ...], int]
"""The values of the key columns of one source, and how many rows that follow each other are of it."""


class Keyed(Mapping[str, Array]):
    """Measured columns, and before them the key columns of the sources of all rows: made where somebody looks at them.

    `kinds` are the names and types of the key columns, `Int64` or `category`; `sources` have at least one row each.
    """

    __slots__ = ("_made", "kinds", "measured", "sources")

    def __init__(
        self, kinds: Mapping[str, str], sources: tuple[SourceRows, ...], measured: dict[str, Array]
    ) -> None:
        """Of the sources of all rows in their order, and as long arrays."""
        self.kinds, self.sources, self.measured = kinds, sources, measured
        self._made: dict[str, Coded | Nullable] = {}

    def __getitem__(self, name: str) -> Array:
        """The array of one column."""
        if name in self.measured:
            return self.measured[name]
        if name not in self._made:
            self._made[name] = self._key(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        """The names of all columns in order."""
        return chain(self.kinds, self.measured)

    def __len__(self) -> int:
        """The number of columns."""
        return len(self.kinds) + len(self.measured)

    def __contains__(self, name: object) -> bool:
        """Whether there is a column of this name; none is made to know it."""
        return name in self.measured or name in self.kinds

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without the columns that were made."""
        return Keyed, (self.kinds, self.sources, self.measured)

    def types(self) -> Iterator[tuple[str, str]]:
        """The name and the type of every column."""
        yield from self.kinds.items()
        for name, array in self.measured.items():
            yield name, dtype_of(array)

    def where(self, is_kept: npt.NDArray[np.bool_]) -> Keyed:
        """The rows for which `is_kept` holds."""
        ends = np.cumsum(np.array([length for _, length in self.sources], np.int64))
        kept = np.diff(np.cumsum(is_kept)[ends - 1], prepend=0).tolist()
        pairs = zip(self.sources, kept, strict=True)
        sources = tuple((values, left) for (values, _), left in pairs if left)
        return Keyed(self.kinds, sources, all_at_rows(self.measured, is_kept))

    def _key(self, name: str) -> Coded | Nullable:
        """The column of one key."""
        place = list(self.kinds).index(name)
        values: list[Any] = [of_source[place] for of_source, _ in self.sources]
        lengths = np.array([length for _, length in self.sources], np.int64)
        if self.kinds[name] == "category":
            texts = tuple(dict.fromkeys(str(value) for value in values if value is not None))
            code_of = dict(zip(texts, range(len(texts)), strict=True))
            codes = [-1 if value is None else code_of[str(value)] for value in values]
            return Coded(np.repeat(np.array(codes, narrowest(len(texts))), lengths), texts)
        numbers = numbers_or_none(values)
        return Nullable(np.repeat(numbers.values, lengths), np.repeat(numbers.missing, lengths))


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Rows of one table: equally long arrays by the names of the columns, in the order of the table."""

    length: int
    arrays: Mapping[str, Array]

    def __len__(self) -> int:
        """The number of rows."""
        return self.length

    def __getitem__(self, name: str) -> Array:
        """The array of one column."""
        return self.arrays[name]

    def texts(self, name: str) -> tuple[str, ...]:
        """The texts that a column may hold; none of other columns."""
        array = self.arrays[name]
        return array.texts if isinstance(array, Coded) else ()

    def where(self, is_kept: npt.NDArray[np.bool_]) -> Columns:
        """The rows for which `is_kept` holds."""
        arrays: Mapping[str, Array]
        if isinstance(self.arrays, Keyed):
            arrays = self.arrays.where(is_kept)
        else:
            arrays = all_at_rows(self.arrays, is_kept)
        return Columns(int(np.count_nonzero(is_kept)), arrays)

    def frame(self) -> pd.DataFrame:
        """A pandas frame of these rows; it shares the arrays where pandas can. Texts are categories."""
        return framed({name: for_pandas(array) for name, array in self.arrays.items()}, self.length)

    def judged(self) -> pd.DataFrame:
        """The frame that questions judge: texts are objects, NaN where one is missing, so that missing keys group too."""
        columns = {
            name: _objects(array) if isinstance(array, Coded) else for_pandas(array)
            for name, array in self.arrays.items()
        }
        return framed(columns, self.length)

    def renamed(self, column: str, names: Mapping[str, str]) -> Columns:
        """The same rows with other texts in a column, for those that have another name."""
        array = self.arrays[column]
        assert isinstance(array, Coded), "only texts are renamed"
        texts = tuple(names.get(text, text) for text in array.texts)
        return Columns(self.length, {**self.arrays, column: Coded(array.codes, texts)})

    @staticmethod
    def of(frame: pd.DataFrame) -> Columns:
        """The columns of a frame."""
        return Columns(
            len(frame), {str(name): bare(column.array) for name, column in frame.items()}
        )


class Frames(Mapping[str, pd.DataFrame]):
    """Tables as frames, each made where one is first asked for."""

    def __init__(self, tables: Mapping[str, Columns | pd.DataFrame]) -> None:
        """Of bare columns or frames."""
        self._tables = dict(tables)
        self._frames: dict[str, pd.DataFrame] = {}

    def __getitem__(self, name: str) -> pd.DataFrame:
        """The frame of one table."""
        table = self._tables[name]
        if isinstance(table, pd.DataFrame):
            return table
        if name not in self._frames:
            self._frames[name] = table.frame()
        return self._frames[name]

    def __iter__(self) -> Iterator[str]:
        """The names of the tables."""
        return iter(self._tables)

    def __len__(self) -> int:
        """The number of tables."""
        return len(self._tables)

    def __contains__(self, name: object) -> bool:
        """Whether there is a table of this name."""
        return name in self._tables

    def as_given(self) -> Mapping[str, Columns | pd.DataFrame]:
        """The tables without a frame made."""
        return self._tables


def _objects(array: Coded) -> npt.NDArray[np.object_]:
    """The texts of every row."""
    by_code: npt.NDArray[np.object_] = np.array([*array.texts, np.nan], object)
    return by_code.take(array.codes)


def framed(arrays: Mapping[Any, Any], length: int) -> pd.DataFrame:
    """The frame of these arrays of numpy or pandas, of the types they have; they are shared, or copied where rows are few."""
    blocks = [_block(array, length) for array in arrays.values()]
    if _of_blocks is not None and blocks and not any(block is None for block in blocks):
        names, places = _named(tuple(arrays))
        placed = list(zip(blocks, places, strict=True))
        if length <= FEW_ROWS:
            placed = _together(placed)
        frame: pd.DataFrame = _of_blocks(placed, pd.RangeIndex(length), names)
        return frame
    # Said outright for texts, whose type pandas would guess.
    typed = {
        name: pd.Index(array, dtype=OBJECT, copy=False) if array.dtype == OBJECT else array
        for name, array in arrays.items()
    }
    return pd.DataFrame(typed, index=pd.RangeIndex(length), copy=False)


def _frames_of_blocks() -> Any:
    """What makes a frame of the arrays of its columns as they are, in a third of the time; None before pandas 3."""
    try:
        return import_module("pandas.api.internals").create_dataframe_from_blocks
    except ImportError:
        return None


_of_blocks = _frames_of_blocks()


def _block(array: Any, length: int) -> Any:
    """An array as a frame holds it, of one column; None where pandas would make another of it."""
    plain = np.asarray(array) if isinstance(array, np.ndarray | NumpyExtensionArray) else None
    if plain is not None and plain.dtype.kind in AS_THEY_ARE:
        return plain.reshape(1, length)
    assert len(array) == length, f"{len(array)} values in {length} rows"
    return array if isinstance(array, ExtensionArray) else None


def _together(placed: list[tuple[Any, Ints]]) -> list[tuple[Any, Ints]]:
    """The blocks and their places, those of one type of numpy in one: pandas takes rows of each block by itself."""
    of_pandas: list[tuple[Any, Ints]] = []
    by_type: dict[np.dtype[Any], list[tuple[Any, Ints]]] = {}
    for block, place in placed:
        alike = by_type.setdefault(block.dtype, []) if isinstance(block, np.ndarray) else of_pandas
        alike.append((block, place))
    for alike in by_type.values():
        blocks, places = zip(*alike, strict=True)
        of_pandas.append((np.concatenate(blocks), np.concatenate(places)))
    return of_pandas


@lru_cache(1024)
def _named(names: tuple[Any, ...]) -> tuple[pd.Index[Any], list[Ints]]:
    """The names of columns as a frame has them, and the place of each."""
    return pd.Index(list(names)), list(np.arange(len(names)).reshape(-1, 1))


def arrays_of(frame: pd.DataFrame) -> dict[str, Any]:
    """The columns of a frame as pandas has them, by name: what measuring gives of a table."""
    return {str(name): column.array for name, column in frame.items()}


def bare(array: Any) -> Array:
    """A pandas array as these columns hold it; any other as it is."""
    if isinstance(array, pd.Categorical):
        return Coded(array.codes, tuple(array.categories.tolist()))
    if isinstance(array, pd.arrays.IntegerArray):
        return Nullable(array.to_numpy(np.int64, na_value=0), array.isna())
    if isinstance(array, pd.arrays.FloatingArray):
        return Nullable(array.to_numpy(np.float64, na_value=np.nan), array.isna())
    if isinstance(array, Coded | Nullable):
        return array
    return np.asarray(array)


def dtype_of(array: Array) -> str:
    """The name of the type that pandas has for such an array."""
    if isinstance(array, Coded):
        return "category"
    if isinstance(array, Nullable):
        return "Int64" if array.values.dtype.kind == "i" else "Float64"
    return _name_of(array.dtype)


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """The name of a type of numpy."""
    return str(dtype)


def joined(parts: Sequence[Array], first_texts: Sequence[str] = ()) -> Array:
    """One array of several of a kind, one after the other; texts are united, `first_texts` before the others."""
    same: Sequence[Any] = parts
    if isinstance(parts[0], Coded):
        return _united(same, first_texts)
    if isinstance(parts[0], Nullable):
        missing = np.concatenate([part.missing for part in same])
        return Nullable(np.concatenate([part.values for part in same]), missing)
    return np.concatenate(same)


def stacked(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The rows of several parts with the same columns, one after the other."""
    if len(parts) < 2:
        return dict(*parts)
    return {name: joined(list(map(itemgetter(name), parts))) for name in parts[0]}


def trimmed(array: Coded) -> Coded:
    """The same rows; the texts are those that occur, in their order.

    >>> trimmed(Coded(np.array([2, -1, 0]), ("b", "c", "a")))
    Coded(codes=array([ 0, -1,  1], dtype=int8), texts=('a', 'b'))
    """
    occurs = np.zeros(len(array.texts) + 1, np.bool_)
    occurs[array.codes] = True
    codes = occurs[:-1].nonzero()[0].tolist()
    code_of: dict[str, int] = {}
    texts = list(map(array.texts.__getitem__, codes))
    for text in sorted(texts):
        code_of.setdefault(text, len(code_of))
    place = np.full(len(array.texts) + 1, -1, narrowest(len(code_of)))
    place[codes] = list(map(code_of.__getitem__, texts))
    return Coded(place[array.codes], tuple(code_of))


def trimmed_all(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The same columns, all texts `trimmed`."""
    columns = dict(arrays)
    for name, array in arrays.items():
        if isinstance(array, Coded):
            columns[name] = trimmed(array)
    return columns


def all_alike(value: np.generic, length: int) -> npt.NDArray[Any]:
    """So many times this value, in the memory of one; not to be written to. As `numpy.broadcast_to`, in a third of its time.

    >>> all_alike(np.int64(-1), 3)
    array([-1, -1, -1])
    """
    return np.ndarray(length, value.dtype, _only(value), 0, (0,))


@lru_cache(256, typed=True)
def _only(value: np.generic) -> npt.NDArray[Any]:
    """An array of this value alone."""
    array = np.array([value])
    array.setflags(write=False)
    return array


def numbers_or_none(values: Sequence[int | None]) -> Nullable:
    """A column of these numbers; None is missing."""
    missing = np.array([value is None for value in values], np.bool_)
    return Nullable(np.array([value or 0 for value in values], np.int64), missing)


def repeated_number(value: int | None, length: int) -> Nullable:
    """So many rows with this number, or without one."""
    return Nullable(np.full(length, value or 0, np.int64), np.full(length, value is None))


def repeated_text(text: str | None, length: int) -> Coded:
    """So many rows with this text; None is missing."""
    if text is None:
        return Coded(np.full(length, -1, np.int8), ())
    return Coded(np.zeros(length, np.int8), (text,))


def of_texts(codes: npt.NDArray[Any], texts: tuple[str, ...]) -> Any:
    """A categorical of these codes into `texts`; code -1 is missing. For few texts: their type is kept."""
    storage = str(pd.get_option("mode.string_storage"))
    return pd.Categorical.from_codes(codes, dtype=_dtype(texts, storage), validate=False)


def as_text(values: Any) -> pd.Index[str]:
    """An index of text, also when it is empty (pandas would otherwise guess its type from the values)."""
    return pd.Index([str(value) for value in values], dtype="str")


@lru_cache(2048)
def _dtype(texts: tuple[str, ...], storage: str) -> pd.CategoricalDtype:  # noqa: ARG001 - how texts are stored
    """The type of a categorical of these texts: it takes longer to make than its values."""
    return pd.CategoricalDtype(as_text(texts))


def for_pandas(array: Array) -> Any:
    """An array of the type that its column has in a frame."""
    if isinstance(array, Coded):
        if len(array.texts) <= FEW_TEXTS:
            return of_texts(array.codes, array.texts)
        return pd.Categorical.from_codes(array.codes, as_text(array.texts), validate=False)
    if isinstance(array, Nullable):
        if array.values.dtype.kind == "i":
            # They may be held in narrower ones.
            return pd.arrays.IntegerArray(array.values.astype(np.int64, copy=False), array.missing)
        return pd.arrays.FloatingArray(array.values, array.missing)
    return array


def _united(parts: Sequence[Coded], first_texts: Sequence[str]) -> Coded:
    """The codes of all parts into one list of texts, in the order in which these come."""
    texts = parts[0].texts
    is_common = first_texts in ((), texts) and all(part.texts == texts for part in parts)
    if is_common and len(set(texts)) == len(texts):
        codes = np.concatenate([part.codes for part in parts])
        return Coded(codes.astype(narrowest(len(texts)), copy=False), texts)
    code_of = {text: code for code, text in enumerate(first_texts)}
    new_codes = [
        [*(code_of.setdefault(text, len(code_of)) for text in part.texts), -1] for part in parts
    ]
    width = narrowest(len(code_of))
    recoded = [np.array(new, width)[part.codes] for new, part in zip(new_codes, parts, strict=True)]
    return Coded(np.concatenate(recoded), tuple(code_of))


@cache
def narrowest(count: int) -> np.dtype[Any]:
    """The narrowest type of codes into so many texts, as pandas would have it: a byte as a rule."""
    return np.min_scalar_type(-max(count, 1))
