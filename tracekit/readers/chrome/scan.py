"""Interface between the scanners and the Chrome-trace reader: uninterpreted columns.

Two scanners fill these columns, `_scan` (C) and `pure` (Python), with equal results for any input.
`RECOVERY.md` in this folder is the grammar of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.readers.loss import Loss

MORE, BAD, END = 0, 1, 2
"""States after `Scanner.feed`.

MORE: more bytes are needed. BAD: the element at `consumed` is outside the strict grammar.
END: the array's closing bracket was consumed.
"""

MAX_EVENT_BYTES = 128 * 2**20
"""Largest element that is read; a longer one is skipped as damage, to bound memory on hostile files."""

Scalar = int | float | str | bool | None


@dataclass(frozen=True, slots=True)
class Codes:
    """Dictionary-encoded column over all rows: `codes[row]` indexes `values`, -1 if absent.

    Codes have the smallest integer type that fits. `values` are unique by type and value, are all used by at
    least one row, and are in the order of first use.
    """

    codes: npt.NDArray[np.signedinteger[Any]]
    values: list[Scalar]


@dataclass(frozen=True, slots=True)
class Sparse:
    """Column that few rows have: `values[i]` belongs to row `rows[i]`; rows are unique and ascend.

    `values` is int64, uint64 or float64 if all values are of that one kind (integers above int64 make
    it uint64 if none is negative). Other columns (strings, arrays and objects, mixtures, booleans, nulls)
    are dictionary-encoded: int32 codes into `categories`, which are unique by type and value, all used, and
    in the order of first use. Arrays and objects are compact JSON text wrapped in `Json`.
    """

    rows: npt.NDArray[np.int32]
    values: npt.NDArray[Any]
    categories: list[Any] | None = None


def with_zeros(
    values: Sequence[float | None], dtype: type[np.number[Any]]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Convert optional numbers to arrays: (values with 0 for None, whether each is a number)."""
    is_number = np.array([value is not None for value in values], np.bool_)
    return np.array([value or 0 for value in values], dtype), is_number


def smallest_type(count: int) -> Any:
    """Choose the smallest integer type for the codes of `count` values, and -1 for none."""
    return np.min_scalar_type(-count - 1)


class Json(str):
    """Compact JSON text of an array or object, distinct from a string with the same text."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Scan:
    """Columns of one trace file; a row is an element of `traceEvents`, in file order.

    `ts_ns` and `dur_ns` are exact int64 nanoseconds relative to the file's own base, valid where
    `has_ts`/`has_dur`. `args` contains every key of `args` unless `Keep` limits them. `fields` contains
    every other key of the element (`id`, `bp`, `s`, ...) if requested. `meta` contains the keys outside
    `traceEvents`. `skipped` counts rows left out on request by category, sorted by name.
    """

    ph: Codes
    cat: Codes
    name: Codes
    pid: Codes
    tid: Codes
    ts_ns: npt.NDArray[np.int64]
    dur_ns: npt.NDArray[np.int64]
    has_ts: npt.NDArray[np.bool_]
    has_dur: npt.NDArray[np.bool_]
    args: dict[str, Sparse]
    fields: dict[str, Sparse]
    meta: dict[str, Any]
    losses: tuple[Loss, ...]
    skipped: dict[str, int]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Keep:
    """Options of a scan: all args (`args=None`) or the named ones; `skip_cats` skips whole rows.

    A row of `skip_cats` is kept, and not counted as skipped, if its name is a string that begins with one
    of `keep_names`. Without `fields`, other keys of an element are not kept.
    """

    args: tuple[str, ...] | None = None
    skip_args: tuple[str, ...] = ()
    skip_cats: tuple[str, ...] = ()
    keep_names: tuple[str, ...] = ()
    fields: bool = True


class Scanner(Protocol):
    """Scanner of the inside of the event array, fed piece by piece; `stream` handles all other text."""

    def feed(self, data: bytes | bytearray | memoryview) -> tuple[int, int]:
        """Read the complete elements in `data`: (bytes consumed, state).

        The caller feeds the bytes not consumed again, with more after them.
        """


@runtime_checkable
class JoiningScanner(Scanner, Protocol):
    """Scanner that can append the rows of another one, which read the following text."""

    def append(self, other: Self) -> int:
        """Move the rows of `other` behind this scanner's own; returns the bytes of text `other` still remembers.

        Both scanners must have the same options.
        """
