"""Filters of rows by recorded name; each distinct name is tested once, however many rows have it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model import sweeps
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Coded, broadcast_value, choose_narrowest
from tracekit.model.tables.keys import number_keys
from tracekit.model.trace import Trace

Ints = npt.NDArray[np.int64]
Rows = sweeps.Rows


FEW_NAMES = 8
"""Names up to this number are compared one by one, which takes a tenth of the time of a table look-up."""


REMEMBERED_NAMES = 1000
"""Names up to this number have filter results cached: files of a run repeat names, analyses repeat filters."""


def look_up_names(names: Coded, rows: Ints) -> npt.NDArray[np.object_]:
    """Look up the names at these positions of a name column; None for -1 and for rows without a name."""
    texts: npt.NDArray[np.object_] = np.array([*names.texts, None], object)[look_up_name_codes(names, rows)]
    return texts


def look_up_name_codes(names: Coded, rows: Ints) -> Ints:
    """Look up the codes of the names at these positions; -1 for -1 and for rows without a name."""
    padded = np.empty(len(names.codes) + 1, names.codes.dtype)
    padded[:-1], padded[-1] = names.codes, -1
    codes: Ints = padded[rows].astype(np.int64)
    return codes


def mark_wanted_names(names: Coded, wanted: Callable[[str], object]) -> npt.NDArray[np.bool_]:
    """Check whether the name of each row of a name column is wanted; False for a row without a name.

    `wanted` may cache its answers, since many files have the same names.
    """
    few = len(names.texts) <= REMEMBERED_NAMES and _is_cacheable_filter(wanted)
    chosen = (_list_wanted_codes_cached if few else _list_wanted_codes)(names.texts, wanted)
    if len(chosen) <= FEW_NAMES:
        rows = np.zeros(len(names), np.bool_)
        for code in chosen:
            rows |= names.codes == code
        return rows
    is_chosen = np.zeros(len(names.texts) + 1, np.bool_)
    is_chosen[chosen] = True
    is_named_row: npt.NDArray[np.bool_] = is_chosen[names.codes]
    return is_named_row


def _is_cacheable_filter(wanted: Callable[[str], object]) -> bool:
    """Check whether a filter's answers never change: a method of an immutable object, or a module-level function."""
    if isinstance(wanted, FunctionType):
        return wanted.__closure__ is None and "<locals>" not in wanted.__qualname__
    return isinstance(getattr(wanted, "__self__", None), re.Pattern | frozenset | tuple)


def _list_wanted_codes(texts: tuple[str, ...], wanted: Callable[[str], object]) -> list[int]:
    """List the codes of the wanted texts."""
    return [code for code, text in enumerate(texts) if wanted(text)]


_list_wanted_codes_cached = lru_cache(256)(_list_wanted_codes)


def list_present_codes(codes: Rows, count: int) -> tuple[Ints, Rows]:
    """List the codes that occur, ascending, and find the position of each row's code among them.

    Codes are below `count`; -1 is allowed. Same result as `keys.numbered` in half of the memory.

    >>> list_present_codes(np.array([7, -1, 7], np.int8), 9)
    (array([-1,  7]), array([1, 0, 1], dtype=int32))
    """
    occurs = np.zeros(count + 1, np.bool_)
    occurs[codes] = True  # -1 marks the last element
    present = np.concatenate((occurs[-1:].nonzero()[0] - 1, occurs[:-1].nonzero()[0]))
    place = np.zeros(count + 1, sweeps.choose_row_type(len(codes)))
    place[present] = np.arange(len(present))
    of_rows: Rows = place[codes]
    return present, of_rows


MANY_ROWS = 2**17
"""Rows from which kind masks are recomputed instead of cached: that takes 0.1 ms per million rows, and saves memory."""


def mark_rows_of_kind(trace: Trace, table: str, *kinds: str) -> npt.NDArray[np.bool_]:
    """Mark rows of a table of ops with one of these kinds; the mask may be shared, so it must not be written to."""
    count, present = len(trace.texts(table, "kind")), trace.derived(_make_present_kinds(table))
    chosen = present.intersection(kinds)
    if not chosen or chosen == present:
        # Broadcast a single bool: usually every row, or none, is of these kinds.
        return broadcast_value(np.bool_(bool(chosen)), count)
    mask = _make_kind_mask(table, chosen)
    return trace.derived(mask) if count < MANY_ROWS else mask(trace)


@cache
def _make_present_kinds(table: str) -> _PresentKinds:
    """Make the callable that finds the kinds of a table; cached, as `trace.derived` needs one object per result."""
    return _PresentKinds(table)


@dataclass(frozen=True, slots=True, eq=False)
class _PresentKinds:
    """Kinds of the rows of a table; pass an instance to `trace.derived`. None is included if any row has no kind."""

    table: str

    def __call__(self, trace: Trace) -> frozenset[str | None]:
        """Find the kinds that occur."""
        kind = trace.texts(self.table, "kind")
        present: set[str | None] = set()
        if int(kind.codes.min(initial=0)) < 0:
            present.add(None)
        for code, text in enumerate(kind.texts):
            if (kind.codes == code).any():
                present.add(text)
        return frozenset(present)


@cache
def _make_kind_mask(table: str, kinds: frozenset[str | None]) -> _KindMask:
    """Make the callable that marks the rows of some kinds; cached, as `trace.derived` needs one object per result."""
    return _KindMask(table, kinds)


@dataclass(frozen=True, slots=True, eq=False)
class _KindMask:
    """Mask of the rows of a table with one of some kinds; pass an instance to `trace.derived`."""

    table: str
    kinds: frozenset[str | None]

    def __call__(self, trace: Trace) -> npt.NDArray[np.bool_]:
        """Compute the mask."""
        mask = mark_wanted_names(trace.texts(self.table, "kind"), self.kinds.__contains__)
        mask.setflags(write=False)
        return mask


def make_narrow_coded(codes: Ints, texts: Sequence[str]) -> Coded:
    """Code texts with the narrowest integers, as pandas would; -1 is missing."""
    return Coded(codes.astype(choose_narrowest(len(texts))), tuple(texts))


def map_coded_values(codes: Ints, values: Sequence[Any], function: Callable[[Any], Any]) -> npt.NDArray[np.object_]:
    """Map each code through `function` of its value, called once per code that occurs; -1 gives None.

    >>> map_coded_values(np.array([1, -1, 1]), ["a", "b"], str.upper)
    array(['B', None, 'B'], dtype=object)
    """
    occurring, place = number_keys(codes)
    table = np.full(len(occurring), None, object)
    for number, code in enumerate(occurring.tolist()):
        if code >= 0:
            table[number] = function(values[code])
    per_row: npt.NDArray[np.object_] = table[place]
    return per_row


def mark_none(values: npt.NDArray[np.object_]) -> npt.NDArray[np.bool_]:
    """Mark the objects that are None."""
    none: Any = None
    return np.asarray(np.equal(values, none), np.bool_)
