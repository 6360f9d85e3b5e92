"""What a scanner hands to the Chrome-trace reader: columns, no meaning yet.

Two scanners fill these columns, `_scan` (C) and `chrome_pure` (Python), with equal results for any bytes
whatever; `RECOVERY.md` beside this file is the grammar that both follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.readers.loss import Loss

MORE, BAD, END = 0, 1, 2
"""States after `Scanner.feed`: wants more bytes; the element at `consumed` is outside the strict grammar;
the array's closing bracket was consumed."""

MAX_EVENT_BYTES = 128 * 2**20
"""An element longer than this is skipped as damage: what bounds the memory of a hostile file."""

Scalar = int | float | str | bool | None


@dataclass(frozen=True, slots=True)
class Codes:
    """A dictionary-encoded column over all rows: `codes[row]` is an index into `values`, -1 where absent.

    Codes are of the smallest type for so many values.

    `values` are unique by type and value, each is used by at least one row, in the order of first use.
    """

    codes: npt.NDArray[np.signedinteger[Any]]
    values: list[Scalar]


@dataclass(frozen=True, slots=True)
class Sparse:
    """A column that few rows have: `values[i]` belongs to row `rows[i]`; rows ascend, no row twice.

    `values` is int64, uint64 or float64 when all values are of that one kind (integers above int64 make
    it uint64 when none is negative). Anything else (strings, JSON text of arrays and objects, mixtures,
    booleans, nulls) is dictionary-encoded: int32 codes into `categories`, which are unique by type and
    value, each used, in the order of first use. Arrays and objects appear as compact JSON text wrapped
    in `Json`.
    """

    rows: npt.NDArray[np.int32]
    values: npt.NDArray[Any]
    categories: list[Any] | None = None


def with_zeros(
    values: Sequence[float | None], dtype: type[np.number[Any]]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """(the numbers with 0 for None, which of them are numbers)."""
    is_number = np.array([value is not None for value in values], np.bool_)
    return np.array([value or 0 for value in values], dtype), is_number


def smallest_type(count: int) -> Any:
    """The smallest type of the codes of so many texts, with -1 for none."""
    return np.min_scalar_type(-count - 1)


class Json(str):
    """The compact JSON text of an array or object (told apart from a string that looks the same)."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Scan:
    """All of one trace file in columns; a row is an element of `traceEvents`, in file order.

    `ts_ns` and `dur_ns` are exact int64 nanoseconds relative to the file's own base, valid where
    `has_ts`/`has_dur`. `args` holds every key of `args` (unless fewer were asked for), `fields` every
    other key of the element itself (`id`, `bp`, `s`, ...), if they were asked for. `meta` is what stands outside `traceEvents`.
    `skipped` counts the rows left out on request, by category in order of names.
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
    """What a scan keeps: all args (`args=None`) or the named ones; `skip_cats` leaves out whole rows.

    A row of `skip_cats` stays, and is not counted as skipped, if its name is a string that begins with one
    of `keep_names`. Without `fields` nothing is kept of the other keys of an element.
    """

    args: tuple[str, ...] | None = None
    skip_args: tuple[str, ...] = ()
    skip_cats: tuple[str, ...] = ()
    keep_names: tuple[str, ...] = ()
    fields: bool = True


class Scanner(Protocol):
    """The inside of the event array, fed piece by piece; text outside the array is the stream's business."""

    def feed(self, data: bytes | bytearray | memoryview) -> tuple[int, int]:
        """(consumed, state): complete elements are taken, the caller feeds the rest again with more."""


@runtime_checkable
class JoiningScanner(Scanner, Protocol):
    """A scanner that can take over what another has read of the text that follows its own."""

    def append(self, other: Self) -> int:
        """How many bytes of texts `other`, which keeps the same, still knows; its rows are this one's then, after its own."""
