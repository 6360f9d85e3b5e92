"""Table columns as bare arrays, the form in which measured tables are made, transferred, folded and concatenated.

Making a pandas frame of twenty columns takes longer than measuring most small tables, so frames are made only for rules
and for users.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tracekit.model.display import NamedFrames
from tracekit.model.records import dataclass
from tracekit.model.system.lazy_pandas import pd

Ints = npt.NDArray[np.int64]

OBJECT = np.dtype(object)
"""dtype of texts in frames for rules; pandas is slow to resolve `object`."""

MAX_COPIED_ROWS = 2000
"""Row count up to which the columns of a frame are copied: a change of it then changes nothing else."""

MAX_CACHED_TEXTS = 64
"""Cache the CategoricalDtype of columns with at most this many texts."""


# Coded and Nullable are immutable by convention: making frozen ones takes twice as long, and a file makes thousands.
@dataclass(slots=True, eq=False)
class Coded:
    """Texts as codes into `texts`; code -1 is missing."""

    codes: npt.NDArray[Any]
    texts: tuple[str, ...]

    def __len__(self) -> int:
        """Count the values."""
        return len(self.codes)


@dataclass(slots=True, eq=False)
class Nullable:
    """Numbers with a mask of missing values."""

    values: npt.NDArray[Any]
    missing: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        """Count the values."""
        return len(self.values)


Array = npt.NDArray[Any] | Coded | Nullable


AnyArray = TypeVar("AnyArray", bound=npt.NDArray[Any] | Coded | Nullable)


def select_rows(array: AnyArray, rows: Any) -> AnyArray:
    """Select rows of an array by indices, mask or slice."""
    of_rows: Any
    if isinstance(array, np.ndarray):
        of_rows = array[rows]
    elif isinstance(array, Coded):
        of_rows = Coded(array.codes[rows], array.texts)
    else:
        of_rows = Nullable(array.values[rows], array.missing[rows])
    return of_rows  # type: ignore[no-any-return]


def select_all_rows(arrays: Mapping[str, Array], rows: Any) -> dict[str, Any]:
    """Select rows of equally long arrays."""
    return {name: select_rows(array, rows) for name, array in arrays.items()}


def mask_value(array: Array, value: str | int | None) -> npt.NDArray[np.bool_]:
    """Mask the rows equal to a value; None selects missing ones.

    >>> mask_value(Coded(np.array([0, -1, 1]), ("gen", "ref")), "ref").tolist()
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
"""Key-column values of one source, and its number of consecutive rows."""


class Keyed(Mapping[str, Array]):
    """Measured columns preceded by the key columns of their sources, which are made on access.

    `kinds` maps the key columns to their types, `Int64` or `category`; each of `sources` has at least one row.
    """

    __slots__ = ("_made", "kinds", "measured", "sources")

    def __init__(self, kinds: Mapping[str, str], sources: tuple[SourceRows, ...], measured: dict[str, Array]) -> None:
        """Store the sources of all rows in order, and equally long measured arrays."""
        self.kinds, self.sources, self.measured = kinds, sources, measured
        self._made: dict[str, Coded | Nullable] = {}

    def __getitem__(self, name: str) -> Array:
        """Get the array of one column."""
        if name in self.measured:
            return self.measured[name]
        if name not in self._made:
            self._made[name] = self._key(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of all columns in order."""
        return chain(self.kinds, self.measured)

    def __len__(self) -> int:
        """Count the columns."""
        return len(self.kinds) + len(self.measured)

    def __contains__(self, name: object) -> bool:
        """Check whether there is a column of this name, without making it."""
        return name in self.measured or name in self.kinds

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the key columns that were made."""
        return Keyed, (self.kinds, self.sources, self.measured)

    def types(self) -> Iterator[tuple[str, str]]:
        """Yield the name and type of every column."""
        yield from self.kinds.items()
        for name, array in self.measured.items():
            yield name, get_pandas_dtype(array)

    def where(self, is_kept: npt.NDArray[np.bool_]) -> Keyed:
        """Select the rows of a mask."""
        ends = np.cumsum(np.array([length for _, length in self.sources], np.int64))
        kept = np.diff(np.cumsum(is_kept)[ends - 1], prepend=0).tolist()
        pairs = zip(self.sources, kept, strict=True)
        sources = tuple((values, left) for (values, _), left in pairs if left)
        return Keyed(self.kinds, sources, select_all_rows(self.measured, is_kept))

    def forget(self) -> None:
        """Free the key columns that were made; they are made again on access."""
        self._made.clear()

    def _key(self, name: str) -> Coded | Nullable:
        """Make one key column."""
        place = list(self.kinds).index(name)
        values: list[Any] = [of_source[place] for of_source, _ in self.sources]
        lengths = np.array([length for _, length in self.sources], np.int64)
        if self.kinds[name] == "category":
            texts = tuple(dict.fromkeys(str(value) for value in values if value is not None))
            code_of = dict(zip(texts, range(len(texts)), strict=True))
            codes = [-1 if value is None else code_of[str(value)] for value in values]
            return Coded(np.repeat(np.array(codes, choose_narrowest(len(texts))), lengths), texts)
        numbers = make_nullable_numbers(values)
        return Nullable(np.repeat(numbers.values, lengths), np.repeat(numbers.missing, lengths))


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Rows of one table: equally long arrays by column name, in the order of the table."""

    length: int
    arrays: Mapping[str, Array]

    def __len__(self) -> int:
        """Count the rows."""
        return self.length

    def __getitem__(self, name: str) -> Array:
        """Get the array of one column."""
        return self.arrays[name]

    def texts(self, name: str) -> tuple[str, ...]:
        """Get the texts that a column may contain; empty for other columns."""
        array = self.arrays[name]
        return array.texts if isinstance(array, Coded) else ()

    def where(self, is_kept: npt.NDArray[np.bool_]) -> Columns:
        """Select the rows of a mask."""
        arrays: Mapping[str, Array]
        if isinstance(self.arrays, Keyed):
            arrays = self.arrays.where(is_kept)
        else:
            arrays = select_all_rows(self.arrays, is_kept)
        return Columns(int(np.count_nonzero(is_kept)), arrays)

    def frame(self) -> pd.DataFrame:
        """Make a pandas frame, sharing the arrays where pandas can; texts are categories."""
        return make_frame({name: convert_for_pandas(array) for name, array in self.arrays.items()}, self.length)

    def judged(self) -> pd.DataFrame:
        """Make the frame for rules: texts are objects, NaN where missing, so that missing keys group too."""
        columns = {
            name: _expand_texts(array) if isinstance(array, Coded) else convert_for_pandas(array)
            for name, array in self.arrays.items()
        }
        return make_frame(columns, self.length)

    def renamed(self, column: str, names: Mapping[str, str]) -> Columns:
        """Replace texts of a column by their new names."""
        array = self.arrays[column]
        assert isinstance(array, Coded), "only texts are renamed"
        texts = tuple(names.get(text, text) for text in array.texts)
        return Columns(self.length, {**self.arrays, column: Coded(array.codes, texts)})


class Frames(NamedFrames):
    """Tables as frames, each made on first access."""

    def __init__(self, tables: Mapping[str, Columns | pd.DataFrame]) -> None:
        """Store bare columns or frames."""
        self._tables = dict(tables)
        self._frames: dict[str, pd.DataFrame] = {}

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Get the frame of one table."""
        table = self._tables[name]
        if not isinstance(table, Columns):
            return table
        if name not in self._frames:
            self._frames[name] = table.frame()
        return self._frames[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the tables."""
        return iter(self._tables)

    def __len__(self) -> int:
        """Count the tables."""
        return len(self._tables)

    def __contains__(self, name: object) -> bool:
        """Check whether there is a table of this name."""
        return name in self._tables

    def as_given(self) -> Mapping[str, Columns | pd.DataFrame]:
        """Get the tables without making frames."""
        return self._tables


def _expand_texts(array: Coded) -> npt.NDArray[np.object_]:
    """Expand the texts to an object array."""
    by_code: npt.NDArray[np.object_] = np.array([*array.texts, np.nan], object)
    return by_code.take(array.codes)


def make_frame(arrays: Mapping[Any, Any], length: int) -> pd.DataFrame:
    """Make a frame of numpy or pandas arrays without conversion; data is shared, or copied if there are few rows."""
    assert all(len(array) == length for array in arrays.values()), "columns differ in length"
    # Explicit for texts, whose dtype pandas would guess.
    typed = {
        name: pd.Index(array, dtype=OBJECT, copy=False) if array.dtype == OBJECT else array
        for name, array in arrays.items()
    }
    return pd.DataFrame(typed, index=pd.RangeIndex(length), copy=length <= MAX_COPIED_ROWS)


def make_bare(array: Any) -> Array:
    """Convert a pandas array to the form of these columns; other arrays stay as they are."""
    if isinstance(array, np.ndarray | Coded | Nullable):
        return array
    if isinstance(array, pd.Categorical):
        return Coded(array.codes, tuple(array.categories.tolist()))
    if isinstance(array, pd.arrays.IntegerArray):
        return Nullable(array.to_numpy(np.int64, na_value=0), array.isna())
    if isinstance(array, pd.arrays.FloatingArray):
        return Nullable(array.to_numpy(np.float64, na_value=np.nan), array.isna())
    return np.asarray(array)


def get_pandas_dtype(array: Array) -> str:
    """Get the pandas dtype name of an array."""
    if isinstance(array, Coded):
        return "category"
    if isinstance(array, Nullable):
        return "Int64" if array.values.dtype.kind == "i" else "Float64"
    return _get_dtype_name(array.dtype)


@cache
def _get_dtype_name(dtype: np.dtype[Any]) -> str:
    """Get the name of a numpy dtype."""
    return str(dtype)


def concatenate_like_arrays(parts: Sequence[AnyArray], first_texts: Sequence[str] = ()) -> AnyArray:
    """Concatenate arrays of one kind; texts are merged, with `first_texts` before the others."""
    same: Any = parts
    joined: Any
    if isinstance(parts[0], Coded):
        joined = _merge_coded(same, first_texts)
    elif isinstance(parts[0], Nullable):
        missing = np.concatenate([part.missing for part in same])
        joined = Nullable(np.concatenate([part.values for part in same]), missing)
    else:
        joined = np.concatenate(same)
    return joined  # type: ignore[no-any-return]


def concatenate_parts(parts: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
    """Concatenate the rows of several parts with the same columns."""
    if len(parts) < 2:
        return dict(*parts)
    return {name: concatenate_like_arrays([part[name] for part in parts]) for name in parts[0]}


def trim_texts(array: Coded) -> Coded:
    """Drop unused texts and sort the others.

    >>> trim_texts(Coded(np.array([2, -1, 0]), ("b", "c", "a")))
    Coded(codes=array([ 0, -1,  1], dtype=int8), texts=('a', 'b'))
    """
    occurs = np.zeros(len(array.texts) + 1, np.bool_)
    occurs[array.codes] = True
    codes = occurs[:-1].nonzero()[0].tolist()
    code_of: dict[str, int] = {}
    texts = [array.texts[code] for code in codes]
    for text in sorted(texts):
        code_of.setdefault(text, len(code_of))
    place = np.full(len(array.texts) + 1, -1, choose_narrowest(len(code_of)))
    place[codes] = [code_of[text] for text in texts]
    return Coded(place[array.codes], tuple(code_of))


def trim_all_texts(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Drop unused texts of all columns, and sort the others."""
    columns = dict(arrays)
    for name, array in arrays.items():
        if isinstance(array, Coded):
            columns[name] = trim_texts(array)
    return columns


def broadcast_value(value: np.generic, length: int) -> npt.NDArray[Any]:
    """Repeat a value in the memory of one; read-only. Like `numpy.broadcast_to` in a third of the time.

    >>> broadcast_value(np.int64(-1), 3)
    array([-1, -1, -1])
    """
    return np.ndarray(length, value.dtype, _make_single_value(value), 0, (0,))


@lru_cache(256, typed=True)
def _make_single_value(value: np.generic) -> npt.NDArray[Any]:
    """Make a read-only array of one value."""
    array = np.array([value])
    array.setflags(write=False)
    return array


def make_nullable_numbers(values: Sequence[int | None]) -> Nullable:
    """Make a column of numbers; None is missing."""
    missing = np.array([value is None for value in values], np.bool_)
    return Nullable(np.array([value or 0 for value in values], np.int64), missing)


def fill_missing(array: Nullable, value: int = 0) -> Ints:
    """Replace missing numbers by a value."""
    return np.where(array.missing, value, array.values)


def get_number_or_none(numbers: Nullable, row: int) -> int | None:
    """Get the number in this row; None if missing."""
    return None if numbers.missing[row] else int(numbers.values[row])


def repeat_number(value: int | None, length: int) -> Nullable:
    """Repeat a number, or a missing value for None."""
    return Nullable(np.full(length, value or 0, np.int64), np.full(length, value is None))


def repeat_text(text: str | None, length: int) -> Coded:
    """Repeat a text, or a missing value for None."""
    if text is None:
        return Coded(np.full(length, -1, np.int8), ())
    return Coded(np.zeros(length, np.int8), (text,))


def make_categorical(codes: npt.NDArray[Any], texts: tuple[str, ...]) -> Any:
    """Make a categorical of these codes into `texts`; code -1 is missing. The dtype is cached, so use it for few texts."""
    return pd.Categorical.from_codes(codes, dtype=_make_categorical_dtype(texts), validate=False)


def make_text_index(values: Any) -> pd.Index[str]:
    """Make an index of texts, also when empty (pandas would guess the dtype from the values)."""
    return pd.Index([str(value) for value in values], dtype="str")


@lru_cache(2048)
def _make_categorical_dtype(texts: tuple[str, ...]) -> pd.CategoricalDtype:
    """Make the CategoricalDtype of these texts; cached, because it takes longer to make than the values."""
    return pd.CategoricalDtype(make_text_index(texts))


def convert_for_pandas(array: Array) -> Any:
    """Convert an array to the type of its column in a frame."""
    if isinstance(array, Coded):
        if len(array.texts) <= MAX_CACHED_TEXTS:
            return make_categorical(array.codes, array.texts)
        return pd.Categorical.from_codes(array.codes, make_text_index(array.texts), validate=False)
    if isinstance(array, Nullable):
        if array.values.dtype.kind == "i":
            # The values may be narrower than int64.
            return pd.arrays.IntegerArray(array.values.astype(np.int64, copy=False), array.missing)
        return pd.arrays.FloatingArray(array.values, array.missing)
    return array


def _merge_coded(parts: Sequence[Coded], first_texts: Sequence[str]) -> Coded:
    """Merge coded parts into one list of texts, in order of appearance."""
    texts = parts[0].texts
    is_common = first_texts in ((), texts) and all(part.texts == texts for part in parts)
    if is_common and len(set(texts)) == len(texts):
        codes = np.concatenate([part.codes for part in parts])
        return Coded(codes.astype(choose_narrowest(len(texts)), copy=False), texts)
    code_of = {text: code for code, text in enumerate(first_texts)}
    new_codes = [[*(code_of.setdefault(text, len(code_of)) for text in part.texts), -1] for part in parts]
    width = choose_narrowest(len(code_of))
    recoded = [np.array(new, width)[part.codes] for new, part in zip(new_codes, parts, strict=True)]
    return Coded(np.concatenate(recoded), tuple(code_of))


@cache
def choose_narrowest(count: int) -> np.dtype[Any]:
    """Choose the narrowest dtype for codes into `count` texts, as pandas does; usually one byte."""
    return np.min_scalar_type(-max(count, 1))
