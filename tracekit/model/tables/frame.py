"""A small data frame for judging: filter, sort, group and join measured columns by name.

A `Frame` wraps columns as measuring leaves them (`model.tables.arrays`): numpy arrays, `Coded` text, `Nullable`
numbers. No method changes a frame or copies a column that it does not change. Arithmetic is numpy's:

    kernels = Frame.from_columns(measured.columns("kernels"))
    by_name = kernels.group_by("run", "name").agg(total_ns=sum_of("total_ns"), launches=sum_of("count"))
    slowest = by_name.sort("total_ns", "name", descending=["total_ns"]).head(10)

The same rules hold everywhere:

- Missing, NaN and 0 differ. Aggregates skip missing values (NaN spreads); of missing values alone they are missing.
- Missing keys form a group of their own, and match nothing in a join unless the join names them `optional`.
- Rows keep their order: groups come in the order of their first rows, joined rows in that of the left rows.
  Sorting is stable and puts NaN, then missing values last, ascending or descending.
- Whole numbers stay whole: sums, medians and extremes are exact up to 2**63. Columns of zero rows keep their type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.tables import arrays as columns_of
from tracekit.model.tables import keys
from tracekit.model.tables.arrays import (
    Array,
    Coded,
    Columns,
    Nullable,
    mask_value,
    repeat_number,
    select_all_rows,
    select_rows,
)

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Equally long columns by name, in order. See the module for the rules."""

    columns: Mapping[str, Array]
    length: int

    @staticmethod
    def from_columns(columns: Columns | Mapping[str, Array]) -> Frame:
        """Wrap measured columns, or arrays by name, without a copy."""
        if isinstance(columns, Columns):
            return Frame(columns.arrays, columns.length)
        return Frame(columns, len(next(iter(columns.values()), ())))

    def __len__(self) -> int:
        """Count the rows."""
        return self.length

    def __getitem__(self, name: str) -> Any:
        """Return one column as it is held: an array, `Coded` or `Nullable`."""
        return self.columns[name]

    def integers(self, name: str, missing: int = 0) -> Ints:
        """Return a column of whole numbers, `missing` where one is missing."""
        array = _as_numbers(self.columns[name])
        if isinstance(array, Nullable):
            return np.where(array.missing, missing, array.values).astype(np.int64, copy=False)
        return array.astype(np.int64, copy=False)

    def number(self, name: str, missing: float = np.nan) -> npt.NDArray[np.float64]:
        """Return a column of numbers as floats, `missing` where one is missing."""
        array = _as_numbers(self.columns[name])
        if isinstance(array, Nullable):
            return np.where(array.missing, missing, array.values)
        return array.astype(np.float64, copy=False)

    def values(self, name: str) -> list[Any]:
        """Return a column as Python values, None where one is missing."""
        array = self.columns[name]
        if isinstance(array, Coded):
            texts_or_none = (*array.texts, None)
            return [texts_or_none[code] for code in array.codes.tolist()]
        values: list[Any] = (array.values if isinstance(array, Nullable) else array).tolist()
        for place in np.flatnonzero(is_missing(array)).tolist():
            values[place] = None
        return values

    def rows(self, *names: str) -> Iterator[dict[str, Any]]:
        """Iterate over the rows as dictionaries of these columns, or of all."""
        names = names or tuple(self.columns)
        for row in zip(*(self.values(name) for name in names), strict=True):
            yield dict(zip(names, row, strict=True))

    def is_missing(self, name: str) -> Bools:
        """Tell in which rows a column has no value."""
        return is_missing(self.columns[name])

    def equals(self, name: str, value: str | int | None) -> Bools:
        """Tell which rows have this value in a column; None is a missing one."""
        array = self.columns[name]
        return is_missing(array) if value is None else mask_value(array, value)

    def is_in(self, name: str, values: Collection[str]) -> Bools:
        """Tell which rows have one of these texts in a column."""
        array = self.columns[name]
        assert isinstance(array, Coded), f"{name} is not text"
        is_one = np.array([*(text in values for text in array.texts), False], np.bool_)
        return np.asarray(is_one[array.codes], np.bool_)

    def take(self, places: Ints | slice) -> Frame:
        """Take rows by their places, in this order."""
        length = len(range(self.length)[places]) if isinstance(places, slice) else len(places)
        return Frame(select_all_rows(self.columns, places), length)

    def filter(self, mask: Bools) -> Frame:
        """Keep the rows where `mask` holds."""
        return self.take(np.flatnonzero(mask))

    def head(self, count: int) -> Frame:
        """Keep the first rows."""
        return self.take(slice(count))

    def select(self, *names: str) -> Frame:
        """Keep only these columns, in this order."""
        return Frame({name: self.columns[name] for name in names}, self.length)

    def drop(self, *names: str) -> Frame:
        """Leave out these columns."""
        return self.select(*(name for name in self.columns if name not in names))

    def with_columns(self, **columns: Array | Value) -> Frame:
        """Add or replace columns; a single value is repeated."""
        new = {name: _as_array(value, self.length) for name, value in columns.items()}
        for name, array in new.items():
            assert len(array) == self.length, f"{name}: {len(array)} values in {self.length} rows"
        return Frame({**self.columns, **new}, self.length)

    def sort(self, *names: str, descending: Collection[str] = ()) -> Frame:
        """Sort by these columns, the first of them first."""
        return self.take(self.order(*names, descending=descending))

    def order(self, *names: str, descending: Collection[str] = ()) -> Ints:
        """Return the places of the rows in the order of `sort`."""
        ranks: list[Any] = []
        for name in reversed(names):
            rank, last = _sortable(self.columns[name])
            ranks.append(~rank if name in descending else rank)
            if last.any():
                ranks.append(last)
        return np.lexsort(ranks) if self.length else np.empty(0, np.int64)

    def dense_rank(self, *names: str) -> Ints:
        """Assign each combination of these columns its number from 0 in the order of `sort`; equal rows share one."""
        groups = self.group_by(*names)
        rank = np.empty(len(groups), np.int64)
        rank[groups.agg().order(*names)] = np.arange(len(groups))
        return rank[groups.number]

    def group_by(self, *names: str) -> Groups:
        """Group the rows by these columns, or all in one group; a missing key is a key."""
        if not names:
            return Groups(self, (), np.zeros(self.length, np.int64), np.arange(min(self.length, 1)))
        number, first = keys.group_arrays([_comparable(self.columns[name]) for name in names])
        return Groups(self, names, number, first)

    def distinct(self, *names: str) -> Frame:
        """Keep the first row of each combination of these columns."""
        return self.take(self.group_by(*names).first)

    def join(self, other: Frame, on: Sequence[str], how: str = "inner", optional: Collection[str] = ()) -> Frame:
        """Put beside each row the other columns of every row of `other` with the same keys.

        "inner" drops rows without a match, "left" keeps them with missing values. A missing key matches
        nothing, unless its column is `optional`.
        """
        clash = self.columns.keys() & other.columns.keys() - set(on)
        assert not clash, f"both sides have {sorted(clash)}"
        assert how in ("inner", "left"), f"no join {how!r}"
        left, right = _matches(self, other, on, optional, keep_all=how == "left")
        beside = {name: _or_missing(array, right) for name, array in other.drop(*on).columns.items()}
        return Frame({**self.take(left).columns, **beside}, len(left))

    def is_among(self, other: Frame, on: Sequence[str], optional: Collection[str] = ()) -> Bools:
        """Tell which rows have keys that occur in `other`; missing keys are as in `join`."""
        wanted, _, count = _count_matches(self, other, on, optional)
        mask: Bools = count[wanted] > 0
        return mask


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The rows of a frame by their keys: `number` is the group of each row, `first` the first row of each group."""

    frame: Frame
    names: tuple[str, ...]
    number: Ints
    first: Ints

    def __len__(self) -> int:
        """Count the groups."""
        return len(self.first)

    def agg(self, **aggregates: Aggregate) -> Frame:
        """Reduce each group to one row: its keys, and a column for each aggregate."""
        of_keys = select_all_rows(self.frame.select(*self.names).columns, self.first)
        reduced = {name: aggregate(self) for name, aggregate in aggregates.items()}
        return Frame({**of_keys, **reduced}, len(self.first))

    def each(self, aggregate: Aggregate) -> Any:
        """Give every row the aggregate of its group, as SQL's `OVER (PARTITION BY …)` does."""
        return select_rows(aggregate(self), self.number)

    def position(self, order: Ints | None = None) -> Ints:
        """Assign each row its place in its group from 0, in this order of all rows or as they are."""
        order = np.arange(len(self.number)) if order is None else order
        in_groups = order[np.argsort(self.number[order], kind="stable")]
        size = np.bincount(self.number, minlength=len(self))
        position = np.empty(len(order), np.int64)
        position[in_groups] = np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)
        return position

    def frames(self) -> Iterator[Frame]:
        """Iterate over the groups as frames, in order of appearance."""
        ends = np.cumsum(np.bincount(self.number, minlength=len(self)))
        order = np.argsort(self.number, kind="stable")
        for places in np.split(order, ends[:-1]) if len(self) else ():
            yield self.frame.take(places)


Aggregate = Callable[[Groups], Array]
"""Reduce each group to one value. The functions below make one of a column's name, or of an array as long as the frame."""


def count_rows() -> Aggregate:
    """Count the rows."""
    return lambda groups: np.bincount(groups.number, minlength=len(groups))


def count_of(column: str | Array) -> Aggregate:
    """Count the known values."""
    return lambda groups: np.bincount(_select_known(groups, column)[0], minlength=len(groups))


def count_distinct_of(column: str | Array) -> Aggregate:
    """Count the distinct known values."""

    def count(groups: Groups) -> Array:
        number, values = _select_known(groups, column)
        first = keys.group_arrays([number, _comparable(values)])[1]
        return np.bincount(number[first], minlength=len(groups))

    return count


def sum_of(column: str | Array) -> Aggregate:
    """Add up the known values."""
    return lambda groups: _reduced(groups, column, _sums)


def mean_of(column: str | Array) -> Aggregate:
    """Average the known values."""

    def means(number: Ints, values: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
        sizes = np.bincount(number, minlength=count)
        return np.asarray(_sums(number, values, count) / np.maximum(sizes, 1))

    return lambda groups: _reduced(groups, column, means)


def min_of(column: str | Array) -> Aggregate:
    """Take the least known value."""
    return lambda groups: _reduced(groups, column, _extremes(np.minimum))


def max_of(column: str | Array) -> Aggregate:
    """Take the largest known value."""
    return lambda groups: _reduced(groups, column, _extremes(np.maximum))


def median_of(column: str | Array) -> Aggregate:
    """Take the median of the known values; between two whole numbers it is rounded down."""
    return lambda groups: _reduced(groups, column, _medians)


def first_of(column: str | Array) -> Aggregate:
    """Take the value in the first row, known or not."""
    return lambda groups: select_rows(_column(groups, column), groups.first)


def last_of(column: str | Array) -> Aggregate:
    """Take the value in the last row, known or not."""

    def last(groups: Groups) -> Array:
        place = np.empty(len(groups), np.int64)
        place[groups.number] = np.arange(len(groups.number))
        return select_rows(_column(groups, column), place)

    return last


def _as_numbers(array: Array) -> Nullable | npt.NDArray[Any]:
    """Return a column of numbers; one without a known value is one too, whatever it was made of."""
    if not isinstance(array, Coded):
        return array
    assert (array.codes < 0).all(), "a column of numbers is text"
    return Nullable(np.zeros(len(array), np.float64), np.ones(len(array), np.bool_))


def _column(groups: Groups, column: str | Array) -> Array:
    return groups.frame.columns[column] if isinstance(column, str) else column


def _select_known(groups: Groups, column: str | Array) -> tuple[Ints, Any]:
    """Return (the group of each known value, the known values)."""
    array = _column(groups, column)
    if isinstance(array, np.ndarray):
        return groups.number, array
    known = np.flatnonzero(~is_missing(array))
    values = array.values if isinstance(array, Nullable) else array
    return groups.number[known], select_rows(values, known)


Reduction = Callable[[Ints, npt.NDArray[Any], int], npt.NDArray[Any]]
"""(the group of each value, the values, how many groups there are) to one value a group."""


def _reduced(groups: Groups, column: str | Array, reduce: Reduction) -> Array:
    """Reduce numbers by group; missing where nothing is known of a group."""
    number, values = _select_known(groups, _as_numbers(_column(groups, column)))
    reduced = reduce(number, values, len(groups))
    if number is groups.number:
        return reduced
    return Nullable(reduced, np.bincount(number, minlength=len(groups)) == 0)


def _sums(number: Ints, values: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    if values.dtype.kind == "f":
        return _sum_floats(number, values, count)
    return keys.sum_by_group(number, values.astype(np.int64, copy=False), count)


def _extremes(function: np.ufunc) -> Reduction:
    def extremes(number: Ints, values: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
        out = np.zeros(count, values.dtype)
        out[number] = values
        function.at(out, number, values)
        return out

    return extremes


def _medians(number: Ints, values: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    out = np.zeros(count, values.dtype)
    size = np.bincount(number, minlength=count)
    has_any = size > 0
    begin, size = (np.cumsum(size) - size)[has_any], size[has_any]
    values = values[np.lexsort((values, number))]
    low, high = values[begin + (size - 1) // 2], values[begin + size // 2]
    out[has_any] = low + (high - low) / 2 if values.dtype.kind == "f" else low + (high - low) // 2
    return out


def concat(frames: Sequence[Frame]) -> Frame:
    """Put frames one below the other; a column that one of them lacks is missing there."""
    out: dict[str, Array] = {}
    for name in dict.fromkeys(name for frame in frames for name in frame.columns):
        like = next(frame.columns[name] for frame in frames if name in frame.columns)
        parts = []
        for frame in frames:
            gap = np.full(len(frame), -1)
            parts.append(frame.columns[name] if name in frame.columns else _or_missing(like, gap))
        out[name] = _stacked(parts)
    return Frame(out, sum(len(frame) for frame in frames))


def number_alike(names: Sequence[str], *frames: Frame) -> list[Ints]:
    """Number the combinations of these columns from 0 in order of appearance, alike in all frames.

    >>> number_alike(["rank"], from_rows(["rank"], [(7,), (3,)]), from_rows(["rank"], [(3,), (None,)]))
    [array([0, 1]), array([1, 2])]
    """
    number = concat([frame.select(*names) for frame in frames]).group_by(*names).number
    return np.split(number, np.cumsum([len(frame) for frame in frames])[:-1])


def texts(values: Sequence[str | None]) -> Coded:
    """Make a column of these texts; None is missing.

    >>> texts(["gen", None, "gen"])
    Coded(codes=array([ 0, -1,  0], dtype=int8), texts=('gen',))
    """
    known = dict.fromkeys(value for value in values if value is not None)
    code_of = dict(zip(known, range(len(known)), strict=True))
    codes = [-1 if value is None else code_of[value] for value in values]
    return Coded(np.array(codes, columns_of.choose_narrowest(len(code_of))), tuple(code_of))


def numbers(values: Sequence[float | None]) -> Nullable:
    """Make a column of these numbers, of whole numbers if all of them are; None is missing.

    >>> numbers([0.5, None]).values.tolist(), numbers([2, None]).values.tolist()
    ([0.5, 0.0], [2, 0])
    """
    is_gap = np.array([value is None for value in values], np.bool_)
    return Nullable(np.array([0 if value is None else value for value in values]), is_gap)


def from_rows(names: Sequence[str], rows: Sequence[Sequence[Value]]) -> Frame:
    """Make a frame of rows of Python values: a column has texts or numbers, None is missing.

    >>> list(from_rows(["role", "busy_ns"], [("actor", 5), (None, None)]).rows())
    [{'role': 'actor', 'busy_ns': 5}, {'role': None, 'busy_ns': None}]
    """
    columns: dict[str, Array] = {}
    for place, name in enumerate(names):
        values: list[Any] = [row[place] for row in rows]
        is_text = all(value is None or isinstance(value, str) for value in values)
        columns[name] = texts(values) if is_text else numbers(values)
    return Frame(columns, len(rows))


def where(mask: Bools, array: Array) -> Array:
    """Keep the values where `mask` holds; the others are missing."""
    if isinstance(array, Coded):
        return Coded(np.where(mask, array.codes, -1).astype(array.codes.dtype), array.texts)
    if isinstance(array, Nullable):
        return Nullable(array.values, array.missing | ~mask)
    return Nullable(array, ~mask)


def choose(mask: Bools, array: Array, otherwise: Array) -> Array:
    """Take the values of one column where `mask` holds, those of the other elsewhere."""
    places = np.where(mask, 0, len(mask)) + np.arange(len(mask))
    return select_rows(_stacked([array, otherwise]), places)


def is_missing(array: Array) -> Bools:
    """Tell which values of a column are missing."""
    if isinstance(array, Coded):
        return np.asarray(array.codes < 0, np.bool_)
    return array.missing if isinstance(array, Nullable) else np.zeros(len(array), np.bool_)


def divide(above: Array, below: Array) -> Nullable:
    """Divide two columns of numbers; missing where one of them is missing or the divisor is 0."""
    numbers_of = [_as_numbers(part) for part in (above, below)]
    top, bottom = (part.values if isinstance(part, Nullable) else part for part in numbers_of)
    is_undefined = is_missing(above) | is_missing(below) | (bottom == 0)
    return Nullable(np.where(is_undefined, 0, top) / np.where(is_undefined, 1, bottom), is_undefined)


def narrow_whole_numbers(array: Array) -> Array:
    """Convert numbers to integers if every known one is whole: 192 launches, not 192.0.

    >>> narrow_whole_numbers(np.array([192.0, 3.0])), narrow_whole_numbers(np.array([192.0, 2.5]))
    (array([192,   3]), array([192. ,   2.5]))
    """
    array = _as_numbers(array)
    values, is_gap = array.values if isinstance(array, Nullable) else array, is_missing(array)
    if not (values == np.round(values))[~is_gap].all():
        return array
    whole = np.where(is_gap, 0, values).astype(np.int64)
    return Nullable(whole, is_gap) if isinstance(array, Nullable) else whole


def _as_array(value: Array | Value, length: int) -> Array:
    """Repeat a single value; an array is itself."""
    if isinstance(value, np.ndarray | Coded | Nullable):
        return value
    if value is None or isinstance(value, str):
        return columns_of.repeat_text(value, length)
    return np.full(length, value)


def _or_missing(array: Array, places: Ints) -> Array:
    """Take the values at these places, missing at -1; a column without gaps keeps its type."""
    is_gap = places < 0
    if not is_gap.any():
        return select_rows(array, places)
    if not len(array):  # there is no value to hold the place of a missing one
        if isinstance(array, Coded):
            return columns_of.repeat_text(None, len(places))
        values = array.values if isinstance(array, Nullable) else array
        return Nullable(np.zeros(len(places), values.dtype), is_gap)
    return where(~is_gap, select_rows(array, places))


def _stacked(parts: Sequence[Array]) -> Array:
    """Put columns of one kind one below the other; numbers may be missing if those of one part may.

    A part that is made of missing values alone has the kind of the others: of Nones, `from_rows` makes texts.
    """
    if not all(isinstance(part, Coded) for part in parts):
        parts = [repeat_number(None, len(p)) if isinstance(p, Coded) and not p.texts else p for p in parts]
    if any(isinstance(part, Nullable) for part in parts):
        parts = [where(~is_missing(p), p) if isinstance(p, np.ndarray) else p for p in parts]
    return columns_of.concatenate_like_arrays(parts)


def _comparable(array: Array) -> Array:
    """Return a column in which equal values, and only they, have equal numbers or codes."""
    if isinstance(array, Nullable):
        values = _comparable(array.values)
        return Nullable(values, array.missing) if isinstance(values, np.ndarray) else array
    if isinstance(array, Coded):
        is_plain = len(set(array.texts)) == len(array.texts)
        return array if is_plain else columns_of.concatenate_like_arrays([array])
    if array.dtype.kind == "f":
        return np.unique(array, return_inverse=True)[1]
    return array.astype(np.int64, copy=False)


def _sortable(array: Array) -> tuple[Any, npt.NDArray[np.int8]]:
    """Return (numbers in the order of the values, 1 where NaN and 2 where a value is missing)."""
    last = is_missing(array).astype(np.int8) * 2
    if isinstance(array, Coded):
        place = {text: rank for rank, text in enumerate(sorted(set(array.texts)))}
        of_text = [place[text] for text in array.texts]
        return np.array([*of_text, 0], np.int64)[array.codes], last
    values = array.values if isinstance(array, Nullable) else array
    if values.dtype.kind == "f":
        last = np.maximum(last, np.isnan(values))
        values = np.unique(values, return_inverse=True)[1]  # floats have no complement, their ranks do
    return np.where(last > 0, 0, values), last


def _matches(
    own_keys: Frame, other: Frame, on: Sequence[str], optional: Collection[str], *, keep_all: bool
) -> tuple[Ints, Ints]:
    """Pair the places of rows with equal keys; place -1 on the right where nothing matches and all are kept."""
    wanted, present, count = _count_matches(own_keys, other, on, optional)
    in_order = np.argsort(present, kind="stable")
    begin = np.searchsorted(present[in_order], np.arange(len(count)))
    times = np.maximum(count[wanted], int(keep_all))
    left = np.repeat(np.arange(len(own_keys)), times)
    nth = np.arange(len(left)) - np.repeat(np.cumsum(times) - times, times)
    right = np.full(len(left), -1, np.int64)
    has_match = (count[wanted] > 0)[left]
    right[has_match] = in_order[(begin[wanted][left] + nth)[has_match]]
    return left, right


def _count_matches(
    own_keys: Frame, other: Frame, on: Sequence[str], optional: Collection[str]
) -> tuple[Ints, Ints, Ints]:
    """Number the keys of both frames: (number of each row, number of each row of `other`, rows of `other` per number).

    The last number is that of rows that lack a key, and counts none.
    """
    both = [_stacked([own_keys.columns[name], other.columns[name]]) for name in on]
    number, first = keys.group_arrays([_comparable(array) for array in both])
    for name, array in zip(on, both, strict=True):
        if name not in optional:
            number = np.where(is_missing(array), len(first), number)
    wanted, present = number[: len(own_keys)], number[len(own_keys) :]
    count = np.bincount(present, minlength=len(first) + 1)
    count[len(first)] = 0
    return wanted, present, count


def _sum_floats(number: Ints, values: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Sum the upper digits of all values without error, then the rest, so that errors do not grow with the rows."""
    reach = np.abs(values).max(initial=0.0) * len(values)
    if not 0 < reach < np.inf:
        return np.bincount(number, values, count)
    unit = 2.0 ** np.ceil(np.log2(reach) + 1)
    upper = (values + unit) - unit
    return np.bincount(number, upper, count) + np.bincount(number, values - upper, count)
