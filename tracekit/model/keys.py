"""Keys of rows: what a process and a queue are known by, numbers for groups of rows, sums over them, and rows matched on keys.

Fast where keys lie close together, as made-up keys do, and where rows are few.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.extensions import ExtensionArray

from tracekit.model import sweeps
from tracekit.model.tables.arrays import Array, Coded, Nullable, all_at_rows, bare

Ints = npt.NDArray[np.int64]

IN_RUN = ("role", "rank", "host", "pid")
"""What tells the processes of one run apart."""

PROCESS = ("run", *IN_RUN)
"""One process, whichever files tell of it: run, host and pid; role and rank beside them, as those are often not recorded."""

CAPTURE = ("source", "pid")
"""What tells apart the processes of one file, and the files of one process."""

QUEUE = ("device", "stream")
"""One queue of work of a process."""

ROOM = 2**20
"""A table of keys may have this many places where there are many, or four a row, before sorting is cheaper."""

FEWER = 2**20
"""Of fewer rows the keys are numbered in C, where there is any: more take pandas no longer."""

EXACT = 2**53
"""Whole numbers below it are exact as floats, and so are their sums that stay below."""

PLAIN = {int, float, str, bool, type(None)}
"""The types of plain values."""

NEVER_MISSING = {int, str, bool}
"""Those of them that are always a value."""

COUNTED = 2**18
"""So many rows are counted at once."""

FEW = 200
"""Of so few objects each is compared by its value at once."""

VERY_FEW = 40
"""In so few rows each object is compared sooner than it is told which rows hold the same."""


def numbered(keys: Ints) -> tuple[Ints, Ints]:
    """(the distinct keys, ascending; for each key its place among them): as `numpy.unique` with its inverse.

    >>> numbered(np.array([7, 3, 7]))
    (array([3, 7]), array([1, 0, 1]))
    """
    if not len(keys):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if sweeps.native is not None and keys.dtype == np.int64:
        close = sweeps.numbered(keys)
        if close is not None:
            return close
    low = int(keys.min())
    room = int(keys.max()) - low + 1
    if room > max(4 * len(keys), min(ROOM, 1024 * len(keys))):
        distinct, place = np.unique(keys, return_inverse=True)
        return distinct, place
    offset = keys - low
    occurs = np.zeros(room, np.bool_)
    occurs[offset] = True
    distinct = occurs.nonzero()[0]
    table = np.zeros(room, np.int64)
    table[distinct] = np.arange(len(distinct))
    return distinct + low, table.take(offset)


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The distinct numbers, ascending: as `numpy.unique`, in a third of its time for few thousands.

    >>> distinct(np.array([7, 3, 7]))
    array([3, 7])
    """
    return unrepeated(np.sort(values))


def unrepeated(ascending: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Each of ascending numbers once.

    >>> unrepeated(np.array([3, 7, 7]))
    array([3, 7])
    """
    is_first = np.ones(len(ascending), np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=is_first[1:])
    return ascending[is_first]


def of_keys(frame: pd.DataFrame, by: Sequence[str]) -> tuple[Ints, Ints]:
    """(for each row the number of its combination of keys, in order of appearance; the first row of each).

    Missing keys are keys like any other. As `groupby(by, dropna=False, sort=False).ngroup()`, without
    the groups: most tables that are judged have a few dozen rows.
    """
    return _combined(len(frame), [_codes(frame[name]) for name in by])


def of_column(column: pd.Series[Any]) -> tuple[Ints, Ints]:
    """The same for the values of one column."""
    return _combined(len(column), [_codes(column)])


def of_arrays(arrays: Sequence[Array]) -> tuple[Ints, Ints]:
    """The same for keys in bare arrays.

    >>> of_arrays([np.array([7, 3, 7]), Coded(np.array([0, -1, 0], np.int8), ("gen",))])
    (array([0, 1, 0]), array([0, 1]))
    """
    return _combined(len(arrays[0]), list(map(_array_codes, arrays)))


def _combined(length: int, keys: Sequence[tuple[Ints, int]]) -> tuple[Ints, Ints]:
    """(for each row the number of its combination of codes, in order of appearance; the first row of each)."""
    number, room = np.zeros(length, np.int64), 1
    for codes, count in keys:
        if count < 2:
            continue
        if room * count >= 2**62:
            number, distinct = pd.factorize(number)
            room = len(distinct)
        number = codes if room == 1 else number * count + codes
        room *= count
    if room == 1:
        return number, np.arange(min(length, 1))
    if sweeps.native is not None and length < FEWER:
        numbers = sweeps.appearing(number)
        if numbers is not None:
            return numbers
    if room > max(len(number), FEW):
        number, distinct = pd.factorize(number)
        return number, first_of_each(number, len(distinct))
    # A table of all there could be: in order of their first rows they are as they appear.
    first = np.full(room, len(number), np.int64)
    first[number[::-1]] = np.arange(len(number) - 1, -1, -1)
    order = np.argsort(first, kind="stable")[: int(np.count_nonzero(first < len(number)))]
    place = np.empty(room, np.int64)
    place[order] = np.arange(len(order))
    return place.take(number), first[order]


def numbered_alike(by: Sequence[str], *frames: pd.DataFrame, in_order: bool = False) -> list[Ints]:
    """For each row of every frame the number of its keys, one numbering for all; missing is a key like any other.

    They count in order of appearance; `in_order` by the text of the keys, so that the order of rows does not matter.
    """
    lengths = list(map(len, frames))
    columns = [_stacked([frame[name] for frame in frames]) for name in by]
    number, first = _combined(sum(lengths), list(map(_codes_of, columns)))
    if in_order:
        order = np.lexsort([_ranked(column[first]) for column in reversed(columns)])
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        number = place[number]
    return np.split(number, np.cumsum(lengths)[:-1])


def _stacked(columns: Sequence[pd.Series[Any]]) -> Any:
    """The values of columns one after the other, whatever their types, as an array of numpy or pandas."""
    arrays = list(map(_array_of, columns))
    if len(arrays) == 1:
        return arrays[0]
    kind = arrays[0].dtype
    if any(array.dtype != kind for array in arrays[1:]):
        return np.concatenate([np.asarray(array, object) for array in arrays])
    if isinstance(kind, np.dtype):
        return np.concatenate(arrays)
    if isinstance(kind, pd.Int64Dtype):
        values = [array.to_numpy(np.int64, na_value=0) for array in arrays]
        missing = [np.asarray(array.isna()) for array in arrays]
        return pd.arrays.IntegerArray(np.concatenate(values), np.concatenate(missing))
    return pd.concat(columns, ignore_index=True).array


def _array_of(column: pd.Series[Any]) -> Any:
    """The array of numpy of a column that has one; of others their own."""
    return column.to_numpy() if isinstance(column.dtype, np.dtype) else column.array


def _ranked(values: Any) -> Ints:
    """The place of each key among the distinct ones, by their text."""
    number, first = _combined(len(values), [_codes_of(values)])
    texts = list(map(_text, values[first]))
    place = {text: rank for rank, text in enumerate(sorted(set(texts)))}
    return np.array([place[text] for text in texts], np.int64)[number]


def _text(value: object) -> tuple[bool, int, str]:
    """Something to sort by: missing last, numbers by size, text by itself."""
    if pd.isna(value):  # type: ignore[call-overload]
        return True, 0, ""
    if isinstance(value, int | np.integer):
        return False, int(value), ""
    return False, 0, str(value)


def places_of(
    rows: pd.DataFrame, table: pd.DataFrame, by: Sequence[str], optional: Sequence[str] = ()
) -> Ints:
    """For each row the place of the row of `table` with the same keys, -1 where there is none.

    The table has every combination of keys once. Rows that lack a key match nothing; only where the key is
    `optional`, as a pid that was not recorded, does a missing one equal a missing one.

    >>> table = pd.DataFrame({"rank": [0, 1], "wall": [5, 7]})
    >>> places_of(pd.DataFrame({"rank": [1, 2, 1]}), table, ["rank"])
    array([ 1, -1,  1])
    """
    of_table, wanted = numbered_alike(by, table, rows)
    place = np.full(int(max(of_table.max(initial=-1), wanted.max(initial=-1))) + 1, -1, np.int64)
    place[of_table] = np.arange(len(table))
    assert (place[of_table] == np.arange(len(table))).all(), f"a key of {by} stands in several rows"
    places = place[wanted]
    for name in set(by) - set(optional):
        places[rows[name].isna().to_numpy(np.bool_)] = -1
    return places


def looked_up(
    rows: pd.DataFrame, table: pd.DataFrame, by: Sequence[str], optional: Sequence[str] = ()
) -> pd.DataFrame:
    """All rows with the other columns of the row of `table` that has the same keys (`places_of`), missing without one."""
    return _beside(rows, table, by, places_of(rows, table, by, optional))


def joined(
    rows: pd.DataFrame, table: pd.DataFrame, by: Sequence[str], optional: Sequence[str] = ()
) -> pd.DataFrame:
    """The rows of which `table` has the keys (`places_of`), with the other columns of the row there."""
    places = places_of(rows, table, by, optional)
    return _beside(rows[places >= 0], table, by, places[places >= 0])


def _beside(
    rows: pd.DataFrame, table: pd.DataFrame, by: Sequence[str], places: Ints
) -> pd.DataFrame:
    """The rows with the columns of these places of a table, but for the keys; missing at -1."""
    out = rows.reset_index(drop=True)
    for name in table.columns.drop([*by]):
        column, fill = table[name].array, bool((places < 0).any())
        if isinstance(column.dtype, np.dtype):
            out[name] = pd.api.extensions.take(column.to_numpy(), places, allow_fill=fill)
        else:  # the function of pandas fails on texts that Arrow holds
            out[name] = column.take(places, allow_fill=fill)
    return out


def is_among(rows: pd.DataFrame, table: pd.DataFrame, by: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which rows have keys that stand in any row of `table`; missing is a key like any other."""
    if not len(table):
        return np.zeros(len(rows), np.bool_)
    of_table, wanted = numbered_alike(by, table, rows)
    return np.isin(wanted, of_table)


def first_of_each(number: Ints, count: int) -> Ints:
    """The first row of each of the numbers 0 … count-1, which all occur.

    >>> first_of_each(np.array([0, 1, 0, 2]), 3)
    array([0, 1, 3])
    """
    first = np.empty(count, np.int64)
    first[number[::-1]] = np.arange(len(number) - 1, -1, -1)
    return first


def _codes(column: pd.Series[Any]) -> tuple[Ints, int]:
    """(a number for each value of a column, below the second); missing ones have one of their own."""
    return _codes_of(_array_of(column))


def _codes_of(array: Any) -> tuple[Ints, int]:
    """The same for the values of an array of numpy or pandas."""
    if isinstance(array, pd.arrays.IntegerArray):
        distinct, codes = numbered(array.to_numpy(np.int64, na_value=0))
        return np.where(array.isna(), 0, codes + 1), len(distinct) + 1
    if isinstance(array, pd.arrays.StringArray):
        array = np.asarray(array, object)  # no copy
    if isinstance(array, np.ndarray):
        if array.dtype == np.int64:
            distinct, codes = numbered(array)
            return codes, len(distinct)
        texts = _codes_of_texts(array)
        if texts is not None:
            return texts
    # Missing ones come as -1: to ask for a number of theirs takes pandas a look at every value more.
    codes, distinct = pd.factorize(array)
    low = int(codes.min(initial=0))
    return codes - low, len(distinct) - low


def _codes_of_texts(values: npt.NDArray[Any]) -> tuple[Ints, int] | None:
    """The same for objects that are texts or missing, of which most stand in several rows; None for others."""
    if values.dtype != object:
        return None
    if len(values) <= VERY_FEW:
        return _codes_of_few(values)
    place, first = _same_objects(values)
    few = _codes_of_few(values[first])
    return few and (few[0][place], few[1])


def _codes_of_few(texts: npt.NDArray[np.object_]) -> tuple[Ints, int] | None:
    """The same for a few objects that are texts or missing; None where there are others."""
    place: dict[str | None, int] = {}
    codes = []
    for value in texts.tolist():
        if type(value) is str:
            codes.append(place.setdefault(value, len(place)))
        elif value is None or (type(value) is float and math.isnan(value)):
            codes.append(place.setdefault(None, len(place)))
        else:
            return None
    return np.array(codes, np.int64), len(place)


def _array_codes(array: Array) -> tuple[Ints, int]:
    """(a number for each value of a bare array, below the second); missing ones have one of their own."""
    if isinstance(array, Coded):
        return array.codes.astype(np.int64) + 1, len(array.texts) + 1
    if isinstance(array, Nullable):
        codes, count = _array_codes(array.values)
        return np.where(array.missing, 0, codes + 1), count + 1
    return _codes_of(array)


def _of_objects(values: npt.NDArray[np.object_]) -> tuple[Ints, npt.NDArray[Any]]:
    """As `pandas.factorize`, in a tenth of its time where few objects stand in many rows, as texts of categories do."""
    place, first = _same_objects(values)
    once, distinct = pd.factorize(values[first])
    return once[place], distinct


def _same_objects(values: npt.NDArray[np.object_]) -> tuple[Ints, Ints]:
    """(for each row the number of the very object in it, the first row of each): one of each is then compared by its value."""
    addresses = _addresses(values)
    known = sweeps.appearing(addresses) if sweeps.native is not None else None
    if known is not None:
        return known
    place, lies = pd.factorize(addresses)
    return place, first_of_each(place, len(lies))


def _addresses(values: npt.NDArray[np.object_]) -> npt.NDArray[np.intp]:
    """Where the objects of an array lie, without a copy: valid while the array is, and unchanged."""
    kind = np.dtype(np.intp).str
    seen = {**values.__array_interface__, "typestr": kind, "descr": [("", kind)]}
    return np.asarray(SimpleNamespace(__array_interface__=seen))


def as_python(column: Any) -> list[Any]:
    """The values of a column as Python has them: None where one is missing, no numpy number.

    >>> as_python(pd.array([1, None], dtype="Int64"))
    [1, None]
    """
    plain = bare(column) if isinstance(column, np.ndarray | ExtensionArray) else None
    if isinstance(plain, Nullable):
        return _numbers_or_none(plain)
    if isinstance(plain, np.ndarray) and plain.dtype.kind in "iub":
        whole_numbers: list[Any] = plain.tolist()
        return whole_numbers
    values = np.asarray(column, object)
    items: list[Any] = values.tolist()
    if set(map(type, items)) <= NEVER_MISSING:
        return items
    missing = pd.isna(values)
    if missing.any():
        values = values.copy()
        values[missing] = None
        items = values.tolist()
    if set(map(type, items)) <= PLAIN:
        return items
    return [value.item() if hasattr(value, "item") else value for value in items]


def _numbers_or_none(array: Nullable) -> list[Any]:
    """The numbers as Python has them; None where one is missing."""
    numbers: list[Any] = array.values.tolist()
    missing = np.isnan(array.values) if array.values.dtype.kind == "f" else array.missing
    for row in missing.nonzero()[0].tolist():
        numbers[row] = None
    return numbers


def records(frame: pd.DataFrame, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """These columns row by row, as Python has their values."""
    return zip(*(as_python(frame[name].array) for name in names), strict=True)


def row_dicts(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    """The rows of a frame by the names of its columns: as `to_dict("records")`, in a tenth of its time.

    >>> row_dicts(pd.DataFrame({"rank": [0, 1], "role": ["actor", "critic"]}))
    [{'rank': 0, 'role': 'actor'}, {'rank': 1, 'role': 'critic'}]
    """
    columns = {name: _plain(column) for name, column in frame.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain(column: pd.Series[Any]) -> list[Any]:
    """The values of a column as Python has them; of numbers that may be missing None where one is."""
    values: list[Any] = column.tolist()
    if isinstance(column.dtype, np.dtype) and column.dtype != object:
        return values
    plain = []
    for value in values:
        plain.append(value.item() if isinstance(value, np.generic) else value)
    return [None if value is pd.NA else value for value in plain]


def equal(column: pd.Series[Any], value: object) -> npt.NDArray[np.bool_]:
    """Which values of a column are this one, a missing value equalling a missing one."""
    if pd.isna(value):  # type: ignore[call-overload]
        return column.isna().to_numpy(np.bool_)
    array = _array_of(column)
    if array.dtype == object:
        codes, distinct = _of_objects(array)
        return np.append(distinct == value, False)[codes].astype(np.bool_)
    if isinstance(array, np.ndarray):
        return np.asarray(array == value, np.bool_)
    return np.asarray(pd.array(array == value, dtype="boolean").fillna(value=False), np.bool_)


def by_group(group: Ints, start: Ints) -> Ints:
    """The order by group, then by start, equal ones as they stand.

    >>> by_group(np.array([1, 0, 1]), np.array([5, 9, 4]))
    array([1, 2, 0])
    """
    order = np.arange(len(start))
    if len(start) > 1 and bool((start[1:] < start[:-1]).any()):
        order = np.argsort(start, kind="stable")
    if not len(group) or int(group.min()) < 0 or int(group.max()) >= 2**16:
        return order[np.argsort(group[order], kind="stable")]
    # Sorting two-byte numbers takes a pass or two, whatever their order.
    return order[np.argsort(group[order].astype(np.uint16), kind="stable")]


def stable_order(values: Ints) -> Ints:
    """The places of the values in ascending order, of equal ones as they stand: quick where few values stand in many rows.

    >>> stable_order(np.array([5, 3, 5]))
    array([1, 0, 2])
    """
    known = sweeps.appearing(values) if sweeps.native is not None and len(values) > FEW else None
    if known is None or len(known[1]) >= 2**16:
        return np.argsort(values, kind="stable")
    # Sorting two-byte numbers takes a pass or two, whatever their order.
    number, first = known
    rank = np.empty(len(first), np.uint16)
    rank[np.argsort(values[first])] = np.arange(len(first))
    return np.argsort(rank[number], kind="stable")


def ordered(values: Ints, *ties: npt.NDArray[Any]) -> Ints:
    """The places of the values in ascending order; of equal ones by the `ties`, the first of them first.

    >>> ordered(np.array([5, 3, 5]), np.array([2, 0, 1]))
    array([1, 2, 0])
    """
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    is_equal = ascending[1:] == ascending[:-1]
    if not is_equal.any():
        return order
    is_tied = np.zeros(len(order), np.bool_)
    is_tied[1:] = is_equal
    is_tied[:-1] |= is_equal
    tied = is_tied.nonzero()[0]
    places = order[tied]
    keys = [tie[places] for tie in reversed(ties)]
    order[tied] = places[np.lexsort([*keys, ascending[tied]])]
    return order


def exact_sum(values: Ints) -> bool:
    """Whether the sum of these numbers, and of any of them, is exact as a float."""
    largest = max(abs(int(values.max(initial=0))), abs(int(values.min(initial=0))))
    return len(values) * largest < EXACT


def counted(group: npt.NDArray[np.integer[Any]], count: int) -> Ints:
    """How many rows each group has; group -1 counts nowhere. So many rows at a time: numpy counts in wide numbers.

    >>> counted(np.array([1, -1, 1], np.int32), 3)
    array([0, 2, 0])
    """
    counts = np.zeros(count, np.int64)
    for first in range(0, len(group), COUNTED):
        part = group[first : first + COUNTED].astype(np.int64) + 1
        counts += np.bincount(part, minlength=count + 1)[1:]
    return counts


def summed(group: npt.NDArray[np.integer[Any]], values: Ints, count: int) -> Ints:
    """Exact integer sums by group; group -1 counts nowhere."""
    if sweeps.native is not None and values.dtype.kind in "ib":
        return sweeps.summed(group, values, count)
    counts = group >= 0
    if not counts.all():
        group, values = group[counts], values[counts]
    if exact_sum(values):
        return np.bincount(group, values, count).astype(np.int64)
    out = np.zeros(count, np.int64)
    np.add.at(out, group, values)
    return out


def sorted_in_groups(group: Ints, values: Ints) -> Ints:
    """The values in the order of groups, ascending within each; groups are numbers from 0 on.

    >>> sorted_in_groups(np.array([1, 0, 1]), np.array([7, 9, 5])).tolist()
    [9, 5, 7]
    """
    if not len(values):
        return values
    low = int(values.min())
    span = int(values.max()) - low + 1
    if span * (int(group.max()) + 1) >= 2**62:
        return values[np.lexsort((values, group))]
    # One array of numbers is sorted in a fraction of the time that an order by two keys takes.
    counts = np.bincount(group)
    before = np.arange(len(counts)) * span - low
    return np.sort(before[group] + values) - np.repeat(before, counts)


def largest(values: Ints, count: int) -> Ints:
    """Where the largest values stand, at most so many, in order; of equal ones the first.

    >>> largest(np.array([5, 9, 5, 7, 5]), 3)
    array([0, 1, 3])
    """
    if len(values) <= count or not count:
        return np.arange(min(len(values), count))
    least = np.partition(values, len(values) - count)[len(values) - count]
    is_among: npt.NDArray[np.bool_] = values > least
    equal_places = (values == least).nonzero()[0]
    is_among[equal_places[: count - int(np.count_nonzero(is_among))]] = True
    return is_among.nonzero()[0]


def place_of(
    keys: npt.NDArray[Any], wanted: npt.NDArray[Any]
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """(for each wanted number its place in the ascending keys, whether it is there); any place where not."""
    place = np.minimum(sweeps.places(keys, wanted), len(keys) - 1)
    return place, keys[place] == wanted if len(keys) else np.zeros(len(wanted), np.bool_)


def is_one_of(values: npt.NDArray[Any], among: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which numbers are among others: as `numpy.isin`, in a quarter of its time for few hundreds.

    >>> is_one_of(np.array([3, 4]), np.array([7, 3])).tolist()
    [True, False]
    """
    return place_of(distinct(among), values)[1]


def sums_of(keys: Mapping[str, Array], values: Mapping[str, Ints]) -> dict[str, Array]:
    """One row for each combination of keys, in order of appearance, with the sums of the values; missing keys are keys."""
    group, first = of_arrays(list(keys.values()))
    sums = {name: summed(group, array, len(first)) for name, array in values.items()}
    return {**all_at_rows(keys, first), **sums}


def sorted_rows(columns: Mapping[str, Array], by: Sequence[str]) -> dict[str, Array]:
    """The rows in order of these keys: texts in the order of their codes, missing keys last."""
    ranks = list(map(_rank, map(columns.__getitem__, reversed(by))))
    return all_at_rows(columns, np.lexsort(ranks))


def _rank(keys: Array) -> Ints:
    """Something to sort keys by, missing ones last."""
    if isinstance(keys, Coded):
        return np.where(keys.codes < 0, len(keys.texts), keys.codes)
    if isinstance(keys, Nullable):
        return np.where(keys.missing, np.iinfo(np.int64).max, keys.values)
    return keys
