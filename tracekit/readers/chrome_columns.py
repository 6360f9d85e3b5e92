"""Columns of Python values as they grow row by row, and the arrays they become."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.readers import values
from tracekit.readers.scan import Codes, Json, Scalar, Sparse
from tracekit.readers.values import (
    INT64_MAX,
    INT_MIN,
    MAX_DEPTH,
    TOO_DEEP,
    UINT64_MAX,
    Number,
    compact,
)


class _CodeOf(dict[int | str, int]):
    """Codes by value, numbered as they are first asked for."""

    def __missing__(self, value: int | str | None) -> int:
        if value is None:
            return -1
        if isinstance(value, int) and not INT_MIN <= value <= UINT64_MAX:
            return self[str(value)]
        code = self[value] = len(self)
        return code


class LabelColumn:
    """One code per row of a column that every row has."""

    __slots__ = ("code_of", "codes", "plain_types", "to_label")

    def __init__(self, to_label: Callable[[Scalar | Json], int | str | None], *types: type) -> None:
        self.to_label = to_label
        self.plain_types = {type(None), *types}
        """Types whose values stand for themselves and, among each other, are equal only if same."""
        self.codes = array("i")
        self.code_of = _CodeOf()

    def add(self, value: Scalar | Json) -> None:
        """Append a row."""
        self.codes.append(self.code_of[self.to_label(value)])  # type: ignore[index]

    def extend(self, parsed: list[Any]) -> None:
        """Append rows of what the json module parsed."""
        if set(map(type, parsed)) <= self.plain_types:
            self.codes.extend(map(self.code_of.__getitem__, parsed))
            return
        for value in parsed:
            self.add(plain_value(value))

    def finish(self) -> Codes:
        """The column as arrays."""
        return Codes(codes=as_numpy(self.codes, np.int32), values=list(self.code_of))


class TimeColumn:
    """Nanoseconds per row, and the rows that have none."""

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
        """Append rows of what the json module parsed."""
        try:
            times = _common_times(parsed)
        except (TypeError, ValueError, OverflowError):
            for value in parsed:
                self.add(_nanoseconds(value))
            return
        if None in parsed:
            first = len(self.times)
            self.missing.extend([first + i for i, value in enumerate(parsed) if value is None])
        self.times.extend(times)

    def finish(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """The times, and which of them there are."""
        times = as_numpy(self.times, np.int64)
        known = np.ones(len(times), dtype=np.bool_)
        known[as_numpy(self.missing, np.int32)] = False
        return times, known


def _common_times(parsed: list[Any]) -> array[int]:
    """Nanoseconds where all are integers or all have a point, None as 0; raises on all else."""
    kinds = set(map(type, parsed)) - {type(None)}
    if kinds == {Number}:
        # Nearly every time has three decimals, so that only the point has to go.
        return array(
            "q",
            [
                0 if t is None
                else int(t[:-4] + t[-3:]) if t[-4:-3] == "."
                else _needed_nanoseconds(t)
                for t in parsed
            ],
        )  # fmt: skip
    if kinds <= {int}:
        return array("q", [0 if t is None else t * 1000 for t in parsed])
    raise TypeError


def _needed_nanoseconds(text: str) -> int:
    nanoseconds = values.nanoseconds_of(text)
    if nanoseconds is None:
        raise ValueError
    return nanoseconds


def _nanoseconds(parsed: Any) -> int | None:
    """Nanoseconds of what the json module parsed as a time."""
    if type(parsed) is int or isinstance(parsed, str):
        return values.nanoseconds_of(str(parsed))
    return None


class ValueColumn:
    """The values of one key, kept apart by kind: integers, floats, and codes for all others."""

    __slots__ = (
        "code_of",
        "coded_rows",
        "codes",
        "float_rows",
        "floats",
        "integer_rows",
        "integers",
        "others",
    )

    def __init__(self) -> None:
        self.integer_rows, self.integers = array("i"), array("q")
        self.float_rows, self.floats = array("i"), array("d")
        self.coded_rows, self.codes = array("i"), array("i")
        self.code_of: dict[Any, int] = {}
        """By text for plain strings, else by kind and value."""
        self.others: list[Any] = []

    def add(self, row: int, value: Scalar | Json) -> None:
        """Put a value into a row after all rows so far."""
        if type(value) is int and INT_MIN <= value <= INT64_MAX:
            self.integer_rows.append(row)
            self.integers.append(value)
        elif type(value) is float:
            self.float_rows.append(row)
            self.floats.append(value)
        else:
            self.coded_rows.append(row)
            identity = value if type(value) is str else (type(value), value)
            self.codes.append(self.code(identity, value))

    def code(self, identity: Any, value: Any) -> int:
        """The code of a value that is neither a float nor an int64."""
        code = self.code_of.get(identity)
        if code is None:
            code = self.code_of[identity] = len(self.others)
            self.others.append(value)
        return code

    def finish(self) -> Sparse:
        """The column as arrays: see `Sparse` for the kinds."""
        if not self.coded_rows and not self.float_rows:
            return Sparse(as_numpy(self.integer_rows, np.int32), as_numpy(self.integers, np.int64))
        if not self.coded_rows and not self.integer_rows:
            return Sparse(as_numpy(self.float_rows, np.int32), as_numpy(self.floats, np.float64))
        if not self.integer_rows and not self.float_rows and not self._all_integers():
            rows, codes = as_numpy(self.coded_rows, np.int32), as_numpy(self.codes, np.int32)
            return Sparse(rows, codes, list(self.others))
        if not self.float_rows and self._all_integers() and min(self.integers, default=0) >= 0:
            return self._unsigned()
        return self._mixture()

    def _all_integers(self) -> bool:
        return all(type(value) is int for value in self.others)

    def _unsigned(self) -> Sparse:
        large = np.array(self.others, dtype=np.uint64)[as_numpy(self.codes, np.int32)]
        small = as_numpy(self.integers, np.int64).astype(np.uint64)
        rows = np.concatenate(
            [as_numpy(self.integer_rows, np.int32), as_numpy(self.coded_rows, np.int32)]
        )
        order = np.argsort(rows, kind="stable")
        return Sparse(rows[order], np.concatenate([small, large])[order])

    def _mixture(self) -> Sparse:
        """Integers, floats and others under one numbering, in the order of first use."""
        integers, integer_codes = np.unique(as_numpy(self.integers, np.int64), return_inverse=True)
        # By their bits, so that 0.0 and -0.0 differ and NaN equals NaN.
        bits = as_numpy(self.floats, np.float64).view(np.int64)
        float_bits, float_codes = np.unique(bits, return_inverse=True)
        floats = float_bits.view(np.float64)
        values = [*integers.tolist(), *floats.tolist(), *self.others]
        codes = np.concatenate([
            integer_codes,
            float_codes + len(integers),
            as_numpy(self.codes, np.int32) + (len(integers) + len(floats)),
        ])  # fmt: skip
        rows = np.concatenate([
            as_numpy(self.integer_rows, np.int32),
            as_numpy(self.float_rows, np.int32),
            as_numpy(self.coded_rows, np.int32),
        ])  # fmt: skip
        order = np.argsort(rows, kind="stable")
        used, first, renumbered = np.unique(codes[order], return_index=True, return_inverse=True)
        by_first_use = np.argsort(first)
        rank = np.empty_like(by_first_use)
        rank[by_first_use] = np.arange(len(by_first_use))
        categories = [values[used[i]] for i in by_first_use]
        return Sparse(rows[order], rank[renumbered].astype(np.int32), categories)


class KeyedColumns:
    """Columns by key, made as keys turn up."""

    __slots__ = ("coded", "columns", "integer")

    def __init__(self) -> None:
        self.columns: dict[str, ValueColumn] = {}
        self.integer: dict[str, tuple[Callable[[int], None], Callable[[int], None]]] = {}
        self.coded: dict[
            str, tuple[dict[Any, int], Callable[[int], None], Callable[[int], None]]
        ] = {}

    def column(self, key: str) -> ValueColumn:
        """The column of a key."""
        column = self.columns.get(key)
        if column is None:
            column = self.columns[key] = ValueColumn()
            self.integer[key] = column.integers.append, column.integer_rows.append
            self.coded[key] = column.code_of, column.codes.append, column.coded_rows.append
        return column

    def put(self, row: int, members: Mapping[str, Any]) -> None:
        """Put what the json module parsed into a row after all rows so far."""
        integer, coded = self.integer, self.coded
        for key, value in members.items():
            kind = type(value)
            try:
                if kind is int:
                    add_value, add_row = integer[key]
                    add_value(value)
                elif kind is str:
                    code_of, add_code, add_row = coded[key]
                    add_code(code_of[value])
                else:
                    self._put_other(row, key, value)
                    continue
            except (KeyError, OverflowError):  # a new key, a new text, or a large integer
                self.column(key).add(row, plain_value(value))
            else:
                add_row(row)

    def _put_other(self, row: int, key: str, value: Any) -> None:
        column = self.column(key)
        if isinstance(value, list | dict):
            column.coded_rows.append(row)
            column.codes.append(json_code(column, value))
        else:
            column.add(row, plain_value(value))

    def finish(self) -> dict[str, Sparse]:
        """The columns as arrays."""
        return {key: column.finish() for key, column in self.columns.items()}


def json_code(column: ValueColumn, parsed: Any) -> int:
    """The code of a parsed array or object; its text is made once per distinct value."""
    try:
        identity = ("parsed", repr(parsed))
    except RecursionError:
        return column.code((Json, TOO_DEEP), TOO_DEEP)
    code = column.code_of.get(identity)
    if code is None:
        value = TOO_DEEP if _is_deep(parsed) else Json(compact(parsed))
        code = column.code_of[identity] = column.code((Json, value), value)
    return code


def plain_value(parsed: Any) -> Scalar | Json:
    """The value of what the json module parsed, numbers with a point being `Number`s."""
    if type(parsed) is Number:
        return float(parsed)
    if type(parsed) is int and not INT_MIN <= parsed <= UINT64_MAX:
        return str(parsed)
    if isinstance(parsed, list | dict):
        return TOO_DEEP if _is_deep(parsed) else Json(compact(parsed))
    scalar: Scalar = parsed
    return scalar


def as_numpy(values: array[Any], dtype: type[Any]) -> npt.NDArray[Any]:
    """The array over the same memory."""
    return np.frombuffer(values, dtype=dtype) if values else np.empty(0, dtype=dtype)


def _is_deep(parsed: Any) -> bool:
    """Whether a parsed array or object nests deeper than `MAX_DEPTH`."""
    layer = [parsed]
    for _ in range(MAX_DEPTH):
        children = [
            child
            for container in layer
            for child in (container.values() if isinstance(container, dict) else container)
        ]
        layer = [child for child in children if isinstance(child, list | dict)]
        if not layer:
            return False
    return True
