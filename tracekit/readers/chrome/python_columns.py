"""Columns of Python values that grow row by row, and their conversion to arrays."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.text.labels import truncate_with_hash
from tracekit.readers.chrome import values
from tracekit.readers.chrome.scan import Codes, Json, Scalar, Sparse, choose_code_type
from tracekit.readers.chrome.values import (
    INT64_MAX,
    INT_MIN,
    MAX_DEPTH,
    MAX_LABEL,
    TOO_DEEP,
    UINT64_MAX,
    Number,
    format_compact_json,
)


class _LabelCodes(dict[int | str, int]):
    """Codes by value, numbered in the order of first lookup."""

    def __missing__(self, value: int | str | None) -> int:
        """Assign the next code to a new value; None gives -1.

        Integers out of range are coded as text, and long text is shortened.
        """
        if value is None:
            return -1
        if isinstance(value, int) and not INT_MIN <= value <= UINT64_MAX:
            return self[str(value)]
        if isinstance(value, str) and len(value) > MAX_LABEL:
            return self[truncate_with_hash(value, MAX_LABEL)]
        code = self[value] = len(self)
        return code


class LabelColumn:
    """Dictionary-encoded column with a code for every row."""

    __slots__ = ("code_of", "codes", "plain_types", "to_label")

    def __init__(self, to_label: Callable[[Scalar | Json], int | str | None], *types: type) -> None:
        self.to_label = to_label
        self.plain_types = {type(None), *types}
        """Types whose values need no conversion and are equal only if they are the same value."""
        self.codes = array("i")
        self.code_of = _LabelCodes()

    def add(self, value: Scalar | Json) -> None:
        """Append a row."""
        self.codes.append(self.code_of[self.to_label(value)])  # type: ignore[index]

    def extend(self, parsed: list[Any]) -> None:
        """Append rows of values that the json module parsed."""
        if set(map(type, parsed)) <= self.plain_types:
            self.codes.extend(map(self.code_of.__getitem__, parsed))
            return
        for value in parsed:
            self.add(convert_parsed_value(value))

    def finish(self) -> Codes:
        """Convert the column to arrays."""
        codes = view_as_numpy(self.codes, np.int32)
        return Codes(codes.astype(choose_code_type(len(self.code_of))), list(self.code_of))


class TimeColumn:
    """Nanoseconds per row, and the rows without a time."""

    __slots__ = ("missing", "times")

    def __init__(self) -> None:
        self.times = array("q")
        self.missing = array("i")

    def add(self, nanoseconds: int | None) -> None:
        """Append a row."""
        if nanoseconds is None:
            self.missing.append(len(self.times))
            nanoseconds = 0
        self.times.append(nanoseconds)

    def extend(self, parsed: list[Any]) -> None:
        """Append rows of values that the json module parsed."""
        try:
            times = _convert_uniform_times(parsed)
        except (TypeError, ValueError, OverflowError):
            for value in parsed:
                self.add(_convert_parsed_time(value))
            return
        if None in parsed:
            first = len(self.times)
            self.missing.extend([first + i for i, value in enumerate(parsed) if value is None])
        self.times.extend(times)

    def finish(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Convert the column to (times in ns, whether each is known)."""
        times = view_as_numpy(self.times, np.int64)
        is_known = np.ones(len(times), dtype=np.bool_)
        is_known[view_as_numpy(self.missing, np.int32)] = False
        return times, is_known


def _convert_uniform_times(parsed: list[Any]) -> array[int]:
    """Convert parsed times to ns: all integers, or all with a point; None gives 0. Raises on other values."""
    kinds = set(map(type, parsed)) - {type(None)}
    if kinds == {Number}:
        # Nearly every time has three decimals: removing the point converts us to ns.
        times = [
            0 if t is None else (int(t[:-4] + t[-3:]) if t[-4:-3] == "." else _parse_point_time(t)) for t in parsed
        ]
        return array("q", times)
    if kinds <= {int}:
        return array("q", [0 if t is None else t * 1000 for t in parsed])
    raise TypeError


def _parse_point_time(text: str) -> int:
    """Convert the text of a number with a point to ns; raises ValueError for other text."""
    integer_part, _, fraction = text.partition(".")
    if len(fraction) in (1, 2):  # digits only: a JSON exponent makes it at least three characters
        return int(integer_part + fraction.ljust(3, "0"))
    nanoseconds = values.convert_microseconds_to_ns(text)
    if nanoseconds is None:
        raise ValueError
    return nanoseconds


def _convert_parsed_time(parsed: Any) -> int | None:
    """Convert a time that the json module parsed to ns; None if it is not a time."""
    if type(parsed) is int or isinstance(parsed, str):
        return values.convert_microseconds_to_ns(str(parsed))
    return None


class _ValueCodes(dict[Any, int]):
    """Codes of `coded`, by the text of strings and by (type, value) of all other values."""

    def __init__(self) -> None:
        super().__init__()
        self.coded: list[Any] = []

    def __missing__(self, identity: Any) -> int:
        """Assign the next code to a new value."""
        code = self[identity] = len(self.coded)
        self.coded.append(identity[1] if type(identity) is tuple else identity)
        return code


class ValueColumn:
    """Values of one key, stored by kind: integers, floats, and codes for all others."""

    __slots__ = ("code_of", "code_of_parsed", "coded_rows", "codes", "float_rows", "floats", "integer_rows", "integers")

    def __init__(self) -> None:
        self.integer_rows, self.integers = array("i"), array("q")
        self.float_rows, self.floats = array("i"), array("d")
        self.coded_rows, self.codes = array("i"), array("i")
        self.code_of = _ValueCodes()
        self.code_of_parsed: dict[str, int] = {}
        """Codes of arrays and objects, by the repr of the parsed value."""

    def add(self, row: int, value: Scalar | Json) -> None:
        """Set the value of a row."""
        if type(value) is int and INT_MIN <= value <= INT64_MAX:
            self.integer_rows.append(row)
            self.integers.append(value)
        elif type(value) is float:
            self.float_rows.append(row)
            self.floats.append(value)
        else:
            self.coded_rows.append(row)
            self.codes.append(self.code_of[value if type(value) is str else (type(value), value)])

    def extend(self, rows: array[int], parsed: Sequence[Any]) -> None:
        """Set values that the json module parsed, in rows without a value."""
        kinds = set(map(type, parsed))
        if kinds == {int}:
            try:
                self.integers.extend(array("q", parsed))
            except OverflowError:
                self._extend_mixed(rows, parsed)
            else:
                self.integer_rows.extend(rows)
        elif kinds == {str}:
            self.codes.extend(map(self.code_of.__getitem__, parsed))
            self.coded_rows.extend(rows)
        elif kinds == {Number}:
            self.floats.extend(map(float, parsed))
            self.float_rows.extend(rows)
        elif kinds == {list}:
            self.codes.extend(map(self._json_code, parsed))
            self.coded_rows.extend(rows)
        else:
            self._extend_mixed(rows, parsed)

    def _extend_mixed(self, rows: array[int], parsed: Sequence[Any]) -> None:
        """Set parsed values of several kinds one by one."""
        for row, value in zip(rows, parsed, strict=True):
            if isinstance(value, list | dict):
                self.codes.append(self._json_code(value))
                self.coded_rows.append(row)
            else:
                self.add(row, convert_parsed_value(value))

    def _json_code(self, parsed: Any) -> int:
        """Look up the code of a parsed array or object; its text is built once per distinct value."""
        try:
            identity = repr(parsed)
        except RecursionError:
            return self.code_of[Json, TOO_DEEP]
        code = self.code_of_parsed.get(identity)
        if code is None:
            code = self.code_of_parsed[identity] = self.code_of[Json, convert_parsed_value(parsed)]
        return code

    def finish(self) -> Sparse:
        """Convert the column to arrays; see `Sparse` for the kinds."""
        kinds = [bool(self.integer_rows), bool(self.float_rows), bool(self.coded_rows)]
        if kinds == [True, False, False]:
            return self._ordered(self.integer_rows, view_as_numpy(self.integers, np.int64))
        if kinds == [False, True, False]:
            return self._ordered(self.float_rows, view_as_numpy(self.floats, np.float64))
        if not self.float_rows and self._all_integers() and min(self.integers, default=0) >= 0:
            return self._unsigned()
        return self._mixture()

    def _all_integers(self) -> bool:
        """Check whether all coded values are integers (too large for int64)."""
        return all(type(value) is int for value in self.code_of.coded)

    def _ordered(self, rows: array[int], values: npt.NDArray[Any]) -> Sparse:
        """Sort values by row: within a window, events were appended shape by shape."""
        row_numbers = view_as_numpy(rows, np.int32)
        if (row_numbers[1:] > row_numbers[:-1]).all():
            return Sparse(row_numbers, values)
        order = np.argsort(row_numbers, kind="stable")
        return Sparse(row_numbers[order], values[order])

    def _unsigned(self) -> Sparse:
        """Convert a column of non-negative integers to uint64."""
        unsigned = np.array(self.code_of.coded, dtype=np.uint64)
        large = unsigned[view_as_numpy(self.codes, np.int32)]
        small = view_as_numpy(self.integers, np.int64).astype(np.uint64)
        return self._ordered(self.integer_rows + self.coded_rows, np.concatenate([small, large]))

    def _mixture(self) -> Sparse:
        """Encode integers, floats and other values in one dictionary, in the order of first use."""
        integers, integer_codes = np.unique(view_as_numpy(self.integers, np.int64), return_inverse=True)
        # Compare bits: 0.0 and -0.0 differ, and NaN equals NaN.
        bits = view_as_numpy(self.floats, np.float64).view(np.int64)
        float_bits, float_codes = np.unique(bits, return_inverse=True)
        floats = float_bits.view(np.float64)
        values = [*integers.tolist(), *floats.tolist(), *self.code_of.coded]
        float_codes += len(integers)
        other_codes = view_as_numpy(self.codes, np.int32) + np.int32(len(integers) + len(floats))
        codes = np.concatenate([integer_codes, float_codes, other_codes], dtype=np.int32)
        ordered = self._ordered(self.integer_rows + self.float_rows + self.coded_rows, codes)
        first_use = np.full(len(values), len(codes), dtype=np.int64)
        np.minimum.at(first_use, ordered.values, np.arange(len(codes)))
        by_first_use = np.argsort(first_use)
        rank = np.empty(len(values), dtype=np.int32)
        rank[by_first_use] = np.arange(len(values), dtype=np.int32)
        categories = [values[code] for code in by_first_use.tolist()]
        return Sparse(ordered.rows, rank[ordered.values], categories)


class KeyedColumns:
    """Columns by key, created on first use."""

    __slots__ = ("columns",)

    def __init__(self) -> None:
        self.columns: dict[str, ValueColumn] = {}

    def column(self, key: str) -> ValueColumn:
        """Find or create the column of a key."""
        column = self.columns.get(key)
        if column is None:
            column = self.columns[key] = ValueColumn()
        return column

    def finish(self) -> dict[str, Sparse]:
        """Convert the columns to arrays; each is freed as soon as its arrays exist."""
        return {key: self.columns.pop(key).finish() for key in list(self.columns)}


def convert_parsed_value(parsed: Any) -> Scalar | Json:
    """Convert a value from the json module to a scalar or compact JSON; numbers with a point are `Number`s."""
    if type(parsed) is Number:
        return float(parsed)
    if type(parsed) is int and not INT_MIN <= parsed <= UINT64_MAX:
        return str(parsed)
    if isinstance(parsed, list | dict):
        return TOO_DEEP if _is_nested_too_deep(parsed) else Json(format_compact_json(parsed))
    scalar: Scalar = parsed
    return scalar


def view_as_numpy(values: array[Any], dtype: type[Any]) -> npt.NDArray[Any]:
    """View an array's memory as a numpy array, without a copy."""
    return np.frombuffer(values, dtype=dtype) if values else np.empty(0, dtype=dtype)


def _is_nested_too_deep(parsed: Any) -> bool:
    """Check whether a parsed array or object nests deeper than `MAX_DEPTH`."""
    layer = [parsed]
    for _ in range(MAX_DEPTH):
        children = (each.values() if isinstance(each, dict) else each for each in layer)
        layer = [c for c in chain.from_iterable(children) if isinstance(c, list | dict)]
        if not layer:
            return False
    return True
