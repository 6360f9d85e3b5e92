"""Lists of dictionaries from a snapshot, checked and converted to columns one key at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import accumulate, chain, count
from operator import itemgetter, methodcaller
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tracekit.model.errors import TraceFormatError
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Coded, Nullable, choose_narrowest
from tracekit.model.tables.keys import group_arrays
from tracekit.model.text.labels import truncate_with_hash
from tracekit.readers.chrome.values import join_surrogates

MAX_SIZE = 2**50
"""Size limit in bytes: no allocator holds a pebibyte."""

MAX_US = 2**61 // 1000
UINT64 = 2**64
MAX_NAME = 4096
"""Most characters kept of a text. The longest real frames have 1,100."""

_CHUNK = 2**16

_FEW_KEYS = 64
"""Average number of keys per dictionary above which duplicates are removed first. PyTorch writes about twenty at most."""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
NameOf = Callable[[int], str]
"""Function that names a group of records. Called on demand, because most of a million names are never used."""


native: Any
try:
    native = import_module("tracekit.readers.torch_memory._records")
except ImportError:
    native = None
"""The record passes written in C; None if not built."""


@dataclass(frozen=True, slots=True)
class NativePassResult:
    """Result of one native pass over all rows: their keys, and by key the integers, objects, and lists by content."""

    keys: frozenset[str]
    integers: dict[str, Nullable]
    things: dict[str, DistinctObjects]
    lists: dict[str, DistinctObjects]


@dataclass(frozen=True, slots=True)
class SnapshotRecords:
    """Dictionaries of one kind. The group named `name_of(i)` begins at `starts[i]` of `rows`.

    `taken` has the result of the native pass (`read_keys_natively`); other keys are looked up one by one.
    """

    path: Path
    rows: list[dict[str, Any]]
    name_of: NameOf
    starts: Sequence[int]
    taken: NativePassResult | None = None

    def place(self, row: int) -> str:
        """Address a row as a Python expression."""
        group = bisect_right(self.starts, row) - 1
        return f"{self.name_of(group)}[{row - self.starts[group]}]"

    def lengths(self) -> Ints:
        """Count the rows of each group."""
        bounds = np.array([*self.starts, len(self.rows)], np.int64)
        return bounds[1:] - bounds[:-1]


def build_shape_error(path: Path, where: str, problem: str) -> TraceFormatError:
    """Build the error for a pickle that is not a valid snapshot."""
    hint = "no memory snapshot is written so"
    return TraceFormatError(path, problem, hint, where, code="no-snapshot")


def join_records(path: Path, name_of: NameOf, lists: Sequence[object], max_dicts: int) -> SnapshotRecords:
    """Concatenate lists of dictionaries. Raises `TraceFormatError` if there are more than `max_dicts`, or for another type."""
    if set(map(type, lists)) - {list}:
        odd = _find_other_type(lists, list)
        raise build_shape_error(path, name_of(odd), f"expected a list, found {_name_value_type(lists[odd])}")
    groups = cast(Sequence[list[Any]], lists)
    starts = [0, *accumulate(map(len, groups))]
    if starts[-1] > max_dicts:
        problem = f"{starts[-1]:,} entries, but the file has {max_dicts:,} dictionaries"
        raise build_shape_error(path, name_of(0), problem)
    rows: list[Any] = groups[0] if len(groups) == 1 else list(chain.from_iterable(groups))
    entries = SnapshotRecords(path, rows, name_of, starts[:-1])
    if set(map(type, rows)) - {dict}:
        row = _find_other_type(rows, dict)
        problem = f"expected a dictionary, found {_name_value_type(rows[row])}"
        raise build_shape_error(path, entries.place(row), problem)
    return entries


def _find_other_type(things: Sequence[object], *kinds: type) -> int:
    """Find the first element whose type is not one of these."""
    return next(place for place, thing in enumerate(things) if type(thing) not in kinds)


def read_keys_natively(
    entries: SnapshotRecords, integers: Sequence[str], things: Sequence[str], lists: Sequence[str]
) -> SnapshotRecords:
    """Read these keys of the records in one native pass. Returns the records unchanged if the pass is unavailable or fails."""
    if native is None:
        return entries
    count = len(entries.rows)
    numbers: dict[str, Nullable] = {}
    for key in integers:
        numbers[key] = Nullable(np.empty(count, np.int64), np.empty(count, np.bool_))
    told: dict[str, tuple[Ints, Ints]] = {}
    for key in (*things, *lists):
        told[key] = np.empty(count, np.int64), np.empty(count, np.int64)
    asked = [tuple((key, *told[key]) for key in kind) for kind in (things, lists)]
    of_integers = tuple((key, column.values, column.missing) for key, column in numbers.items())
    counts = native.taken(entries.rows, of_integers, *asked)
    if counts is None:
        return entries
    keys = frozenset(key for key, (row_count, _) in counts.items() if row_count)
    taken = NativePassResult(keys, {}, {}, {})
    usual = {key: thing_count for key, (_, thing_count) in counts.items() if thing_count >= 0}
    for key in usual.keys() & numbers.keys():
        taken.integers[key] = numbers[key]
    for key in usual.keys() & told.keys():
        kind = taken.lists if key in lists else taken.things
        kind[key] = _make_distinct_objects(entries, key, *told[key], usual[key])
    return replace(entries, taken=taken)


def _make_distinct_objects(
    entries: SnapshotRecords, key: str, number: Ints, first: Ints, count: int
) -> DistinctObjects:
    """Build the distinct objects of a key. `first` has room for one per row."""
    first = first[:count].copy()
    return DistinctObjects(number, first, [entries.rows[row].get(key) for row in first.tolist()])


def list_record_keys(entries: SnapshotRecords) -> set[str]:
    """List the keys of all dictionaries."""
    if entries.taken is not None:
        return set(entries.taken.keys)
    keys: set[str] = set()
    for start in range(0, len(entries.rows), _CHUNK):
        rows = entries.rows[start : start + _CHUNK]
        if sum(map(len, rows)) > _FEW_KEYS * len(rows):  # a dictionary with many keys may be referenced many times
            rows = list({id(row): row for row in rows}.values())
        keys.update(*rows)
    odd = next((key for key in keys if type(key) is not str), "")
    if odd != "":
        row = next(i for i, value in enumerate(entries.rows) if odd in value)
        raise build_shape_error(
            entries.path, entries.place(row), f"expected text as key, found {_name_value_type(odd)}"
        )
    return keys


def get_record_values(entries: SnapshotRecords, key: str) -> list[Any]:
    """Look up a key in each dictionary; None if absent."""
    try:
        return list(map(itemgetter(key), entries.rows))
    except KeyError:
        return list(map(methodcaller("get", key), entries.rows))


@dataclass(frozen=True, slots=True)
class DistinctObjects:
    """Distinct objects that rows have at a key, None if absent. Each occurs once, however many rows reference it.

    `number` is the index of each row's object in `things`, which are in order of appearance; `first` is the first row of
    each object.
    """

    number: Ints
    first: Ints
    things: list[Any]


def find_distinct_objects(entries: SnapshotRecords, key: str) -> DistinctObjects:
    """Find the distinct objects at a key."""
    if entries.taken is not None and key in entries.taken.things:
        return entries.taken.things[key]
    if native is not None:
        number, first = np.empty(len(entries.rows), np.int64), np.empty(len(entries.rows), np.int64)
        return _make_distinct_objects(entries, key, number, first, native.identified(entries.rows, key, number, first))
    recorded = get_record_values(entries, key)
    number, first = group_arrays([np.fromiter(map(id, recorded), np.int64, len(recorded))])
    return DistinctObjects(number, first, [recorded[row] for row in first.tolist()])


def check_value_types(entries: SnapshotRecords, key: str, recorded: DistinctObjects, *kinds: type) -> set[type]:
    """Collect the types of the values. Raises `TraceFormatError` for a type other than `kinds` and None."""
    types = set(map(type, recorded.things))
    if types - {*kinds, type(None)}:
        place = _find_other_type(recorded.things, *kinds, type(None))
        problem = f"expected {_KINDS[kinds[0]]}, found {_name_value_type(recorded.things[place])}"
        raise build_shape_error(entries.path, f"{entries.place(int(recorded.first[place]))}.{key}", problem)
    return types


def read_bounded_integers(entries: SnapshotRecords, key: str, low: int, high: int) -> Nullable:
    """Read integers within bounds. For addresses (`high` 2**64), returns the signed bit pattern."""
    numbers = _read_integers_natively(entries, key)
    if numbers is None:
        return _check_integers(entries, key, low, high)
    array = numbers.values
    if len(array) and (array.min() < low or (high < UINT64 and array.max() >= high)):
        return _check_integers(entries, key, low, high)
    return numbers


def _read_integers_natively(entries: SnapshotRecords, key: str) -> Nullable | None:
    """Read integers with the native pass; None if unavailable, or if a value is not a 64-bit integer."""
    if entries.taken is not None and key in entries.taken.integers:
        return entries.taken.integers[key]
    if native is None:
        return None
    array, missing = np.empty(len(entries.rows), np.int64), np.empty(len(entries.rows), np.bool_)
    is_whole = native.integers(entries.rows, key, array, missing) == len(entries.rows)
    return Nullable(array, missing) if is_whole else None


def _check_integers(entries: SnapshotRecords, key: str, low: int, high: int) -> Nullable:
    """Read integers of any size within bounds. Raises `TraceFormatError` for anything else."""
    recorded = get_record_values(entries, key)
    rows = np.arange(len(recorded))
    types = check_value_types(entries, key, DistinctObjects(rows, rows, recorded), int)
    missing = np.zeros(len(recorded), np.bool_)
    if type(None) in types:
        missing = mark_none_values(recorded)
        recorded = [0 if value is None else value for value in recorded]
    try:
        array = np.fromiter(recorded, np.int64, len(recorded))
        bad = np.flatnonzero((array < low) | (array >= high) if high < UINT64 else array < low)
    except OverflowError:
        bad = np.array([i for i, v in enumerate(recorded) if not low <= v < high][:1], np.int64)
        if not len(bad):
            array = np.array([value % UINT64 for value in recorded], np.uint64).view(np.int64)
    if len(bad):
        row = int(bad[0])
        problem = f"expected {_describe_bound(high)}, found {recorded[row]}"
        raise build_shape_error(entries.path, f"{entries.place(row)}.{key}", problem)
    return Nullable(array, missing)


def require_numbers(entries: SnapshotRecords, key: str, numbers: Nullable, what: str) -> Nullable:
    """Raise `TraceFormatError` if a number is missing; else return the numbers."""
    if numbers.missing.any():
        place = entries.place(int(numbers.missing.argmax()))
        raise build_shape_error(entries.path, f"{place}.{key}", f"expected {what}, found nothing")
    return numbers


def read_addresses(entries: SnapshotRecords, key: str) -> Nullable:
    """Read addresses or other 64-bit numbers, signed or not, as int64 bit patterns."""
    return read_bounded_integers(entries, key, -(2**63), UINT64)


def read_byte_sizes(entries: SnapshotRecords, key: str) -> Nullable:
    """Read numbers of bytes."""
    return read_bounded_integers(entries, key, 0, MAX_SIZE)


def read_record_times(entries: SnapshotRecords, key: str) -> Nullable:
    """Read times in µs, converted to ns."""
    micros = read_bounded_integers(entries, key, -MAX_US, MAX_US)
    return Nullable(micros.values * 1000, micros.missing)


def read_record_texts(entries: SnapshotRecords, key: str) -> Coded:
    """Read texts; missing if absent."""
    return clean_coded_texts(*read_distinct_texts(entries, key))


def read_distinct_texts(entries: SnapshotRecords, key: str) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Find (text index of each row, -1 if absent; the texts), in order of first use."""
    recorded = find_distinct_objects(entries, key)
    try:
        seen = dict.fromkeys(recorded.things)
        types = set(map(type, seen))
    except TypeError:
        types = {object}
    if types - {str, type(None)}:
        check_value_types(entries, key, recorded, str)
    seen.pop(None, None)
    return _code_seen_keys(recorded, recorded.things, seen), list(seen)


def _code_seen_keys(recorded: DistinctObjects, keys: Iterable[Any], seen: Iterable[Any]) -> npt.NDArray[np.int32]:
    """Find the index of each row's key among those seen, -1 for None. `keys` are those of the things."""
    place: dict[Any, int] = _number_elements(seen)
    place[None] = -1
    codes = np.fromiter(map(place.__getitem__, keys), np.int32, len(recorded.things))
    return codes[recorded.number]


def _number_elements(things: Iterable[Any]) -> dict[Any, int]:
    """Map each element to its position."""
    return dict(zip(things, count(), strict=False))


def mark_none_values(recorded: Sequence[object]) -> Bools:
    """Mark the None values."""
    return np.fromiter((value is None for value in recorded), np.bool_, len(recorded))


def clean_coded_texts(codes: npt.NDArray[np.int32], names: Iterable[str]) -> Coded:
    """Code texts that are normalized; equal ones are merged."""
    plain = list(map(clean_record_text, names))
    if len(set(plain)) < len(plain):
        place = _number_elements(dict.fromkeys(plain))
        codes = np.array([*map(place.__getitem__, plain), -1], np.int32)[codes]
        plain = list(place)
    return Coded(codes.astype(choose_narrowest(len(plain))), tuple(plain))


def clean_record_text(text: str) -> str:
    """Limit a text's length and replace lone surrogates."""
    return truncate_with_hash(join_surrogates(text), MAX_NAME)


def read_pool_ids(entries: SnapshotRecords, key: str) -> Coded:
    """Read memory pools, pairs of integers, as texts such as `0,0`."""
    recorded = find_distinct_objects(entries, key)
    types = check_value_types(entries, key, recorded, tuple, list)
    pairs = recorded.things
    if list in types:
        pairs = [None if value is None else tuple(value) for value in pairs]
    try:
        seen = dict.fromkeys(pairs)
    except TypeError:
        seen = {}
    seen.pop(None, None)
    if any(len(pair) != 2 or set(map(type, pair)) != {int} for pair in seen) or (not seen and types - {type(None)}):
        raise build_shape_error(entries.path, f"{entries.name_of(0)}[].{key}", "expected pairs of integers")
    codes = _code_seen_keys(recorded, pairs, seen)
    return clean_coded_texts(codes, [f"{first},{second}" for first, second in seen])


_KINDS: dict[type, str] = {
    int: "an integer",
    str: "text",
    list: "a list",
    tuple: "a pair",
    dict: "a dictionary",
    bool: "a truth value",
    float: "a number",
    type(None): "nothing",
}


def _name_value_type(value: object) -> str:
    """Name the type of a value."""
    return _KINDS.get(type(value), type(value).__name__)


def _describe_bound(high: int) -> str:
    """Describe the integers below this bound."""
    meanings = {MAX_SIZE: "a number of bytes", UINT64: "an integer of 64 bits"}
    return meanings.get(high, "a time in µs")
