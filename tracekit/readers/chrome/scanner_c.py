"""Adapter of the C scanner: feeds `_scan` and decodes the raw texts it collects.

Only `stream` imports this module, on demand, because `_scan` may not have been built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.readers.chrome import _scan
from tracekit.readers.chrome.scan import (
    MAX_EVENT_BYTES,
    Codes,
    Scalar,
    ScanOptions,
    Sparse,
    choose_code_type,
    fill_missing_with_zeros,
)
from tracekit.readers.chrome.values import INT64_MAX, decode_id, decode_key, decode_label, decode_value, parse_raw_time

INT, FLOAT, TEXT, MIXED = 1, 2, 3, 4
"""Kinds of storage for a column's values in `_scan`."""

_VALUE_TYPES = {INT: np.int64, FLOAT: np.float64, TEXT: np.int32, MIXED: np.int64}

Rows = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
_Labels: TypeAlias = "_scan.Label"


class NativeScanner:
    """Scanner in C."""

    def __init__(self, keep: ScanOptions, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._keep = keep
        self._scanner = _scan.Scanner(
            None if keep.args is None else _quote_names(keep.args),
            _quote_names(keep.skip_args),
            _quote_names(keep.skip_cats),
            max_event_bytes,
            tuple(name[1:-1] for name in _quote_names(keep.keep_names)),
            keep.fields,
        )

    def feed(self, data: bytes | bytearray | memoryview) -> tuple[int, int]:
        """Read the complete elements in `data`: (bytes consumed, state), see `Scanner`."""
        return self._scanner.feed(data)

    def append(self, other: NativeScanner) -> int:
        """Move the rows of `other` behind this scanner's own; returns the bytes of text `other` still remembers.

        Both scanners must have the same options.
        """
        return self._scanner.append(other._scanner)

    def finish(self) -> dict[str, object]:
        """Return the columns of `TraceScan` that come from events; nothing can be fed afterwards."""
        columns = self._scanner.finish()
        skipped = {name: count for name, count in zip(self._keep.skip_cats, columns["skipped"], strict=True) if count}
        is_kept = self._rows_kept(columns["cat"], columns["name"], skipped)
        ts_ns, has_ts = _make_time_column(columns["ts"], is_kept)
        dur_ns, has_dur = _make_time_column(columns["dur"], is_kept)
        return {
            "ph": _make_label_column(columns["ph"], decode_label, is_kept),
            "cat": _make_label_column(columns["cat"], decode_label, is_kept),
            "name": _make_label_column(columns["name"], decode_label, is_kept),
            "pid": _make_label_column(columns["pid"], decode_id, is_kept),
            "tid": _make_label_column(columns["tid"], decode_id, is_kept),
            "ts_ns": ts_ns,
            "dur_ns": dur_ns,
            "has_ts": has_ts,
            "has_dur": has_dur,
            "args": _make_sparse_columns(columns["args"], is_kept, self._keep),
            "fields": _make_sparse_columns(columns["fields"], is_kept),
            "skipped": skipped,
        }

    def _rows_kept(self, cat: _Labels, name: _Labels, skipped: dict[str, int]) -> Mask | None:
        """Find the rows to keep (None: all), by the decoded texts that C could not decide on.

        These are categories that equal a skipped one only once decoded, and names that may begin with a kept
        prefix. Counts the other rows in `skipped`.
        """
        if not self._keep.skip_cats:
            return None
        cats = [decode_label(raw) for raw in _iterate_raw_texts(cat[2])]
        unwanted = [text in self._keep.skip_cats for text in cats]
        if not any(unwanted):
            return None
        codes = _view_label_codes(cat)
        rows = np.array([*unwanted, False])[codes].nonzero()[0]
        rows = rows[~self._has_kept_name(name, rows)]
        if not len(rows):
            return None
        for text, count in zip(cats, np.bincount(codes[rows], minlength=len(cats)), strict=True):
            if count:
                skipped[str(text)] = skipped.get(str(text), 0) + int(count)
        is_kept = np.ones(len(codes), np.bool_)
        is_kept[rows] = False
        return is_kept

    def _has_kept_name(self, name: _Labels, rows: npt.NDArray[np.int64]) -> Mask:
        """Check whether the name of each row begins with one of `keep_names`."""
        prefixes = self._keep.keep_names
        codes = _view_label_codes(name)[rows]
        begins = np.zeros(codes.max(initial=-1) + 2, np.bool_)  # the last element is for code -1, no name
        for code in np.unique(codes[codes >= 0]).tolist() if prefixes else ():
            raw = _copy_raw_text(name[2], code)
            begins[code] = raw.startswith(b'"') and str(decode_value(raw)).startswith(prefixes)
        has: Mask = begins[codes]
        return has


@dataclass(frozen=True, slots=True)
class _NativeColumn:
    """A column of `_scan` as arrays; `settled`: each text is used, in order."""

    kind: int
    settled: bool
    rows: Rows
    values: npt.NDArray[Any]
    kinds: npt.NDArray[np.uint8] | None
    texts: _scan.Texts | None


def _quote_names(names: Sequence[str]) -> tuple[bytes, ...]:
    """Encode names as raw JSON strings, as they occur in a trace."""
    # No decoded text contains a lone surrogate, so any bytes that match nothing are fine for it.
    return tuple(b'"' + name.encode("utf-8", "surrogatepass") + b'"' for name in names)


def _view_block(block: _scan.Block, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """View a block of `_scan` as an array, without a copy."""
    array: npt.NDArray[Any] = np.frombuffer(memoryview(block), dtype)
    return array


def _iterate_raw_texts(texts: _scan.Texts | None) -> Iterator[bytes]:
    """Yield each raw text."""
    if texts is None:
        return
    offsets, content = _view_block(texts[0], np.int64).tolist(), memoryview(texts[1])
    for start, end in pairwise(offsets):
        yield bytes(content[start:end])


def _copy_raw_text(texts: _scan.Texts | None, code: int) -> bytes:
    """Copy one raw text."""
    assert texts is not None
    start, end = _view_block(texts[0], np.int64)[code : code + 2].tolist()
    return bytes(memoryview(texts[1])[start:end])


def _view_label_codes(label: _Labels) -> npt.NDArray[np.signedinteger[Any]]:
    """View the codes of a label column."""
    return _view_block(label[1], np.dtype(f"i{label[0]}"))


def _make_label_column(label: _Labels, value_of: Callable[[bytes], int | str | None], is_kept: Mask | None) -> Codes:
    """Convert a label column to `Codes`, with its texts decoded and equal values merged."""
    codes = _view_label_codes(label)
    if is_kept is not None:
        codes = codes[is_kept]
    values: list[Scalar] = [value_of(raw) for raw in _iterate_raw_texts(label[2])]
    values = _merge_equal_values(codes, values, settled=is_kept is None, none_is_absent=True)
    return Codes(codes.astype(choose_code_type(len(values)), copy=False), values)


def _make_time_column(
    time: tuple[_scan.Block, _scan.Block, _scan.Column | None], is_kept: Mask | None
) -> tuple[npt.NDArray[np.int64], Mask]:
    """Convert a time column to (nanoseconds, whether each row has one)."""
    times, has = _view_block(time[0], np.int64), _view_block(time[1], np.bool_)
    if time[2] is not None:
        odd = _view_native_column(time[2])
        odd_times = [parse_raw_time(raw) for raw in _iterate_raw_texts(odd.texts)]
        resolved, is_time = fill_missing_with_zeros(odd_times, np.int64)
        times[odd.rows] = resolved[odd.values]
        has[odd.rows] = is_time[odd.values]
    if is_kept is None:
        return times, has
    return times[is_kept], has[is_kept]


def _make_sparse_columns(
    columns: list[_scan.Column], is_kept: Mask | None, keep: ScanOptions | None = None
) -> dict[str, Sparse]:
    """Convert columns to `Sparse` by name. Empties the list, to store no more than one column twice."""
    columns.reverse()
    named = {}
    while columns:
        column = columns.pop()
        name = decode_key(column[0][1:-1])
        if keep is not None and (name in keep.skip_args or (keep.args is not None and name not in keep.args)):
            continue
        arrays = _view_native_column(column)
        if is_kept is not None:
            arrays = _filter_native_column(arrays, is_kept)
        if len(arrays.rows):
            named[name] = _make_sparse_column(arrays)
    return named


def _view_native_column(column: _scan.Column) -> _NativeColumn:
    """Convert the blocks of a column to arrays."""
    _, kind, overwritten, rows, values, kinds, texts = column
    return _NativeColumn(
        kind=kind,
        settled=not overwritten,
        rows=_view_block(rows, np.int32),
        values=_view_block(values, _VALUE_TYPES[kind]),
        kinds=None if kinds is None else _view_block(kinds, np.uint8),
        texts=texts,
    )


def _filter_native_column(column: _NativeColumn, is_kept: Mask) -> _NativeColumn:
    """Filter a column by row and renumber the kept rows."""
    mask = is_kept[column.rows]
    new_rows = np.cumsum(is_kept, dtype=np.int32)
    return _NativeColumn(
        kind=column.kind,
        settled=False,
        rows=new_rows[column.rows[mask]] - np.int32(1),
        values=column.values[mask],
        kinds=None if column.kinds is None else column.kinds[mask],
        texts=column.texts,
    )


def _make_sparse_column(column: _NativeColumn) -> Sparse:
    """Decode a column's texts; the values become an array of numbers if they are of one kind."""
    if column.kinds is None and column.kind != TEXT:
        return Sparse(column.rows, column.values)
    is_text, codes = None, column.values
    if column.kinds is not None:
        is_text = column.kinds == TEXT
        codes = column.values[is_text].astype(np.int32)
    decoded = [decode_value(raw) for raw in _iterate_raw_texts(column.texts)]
    decoded = _merge_equal_values(codes, decoded, settled=column.settled)
    numbers = _combine_number_values(column, is_text, codes, decoded)
    if numbers is not None:
        return Sparse(column.rows, numbers)
    if column.kinds is None:
        return Sparse(column.rows, codes, decoded)
    return Sparse(column.rows, *_encode_mixed_values(column.kinds, column.values, codes, decoded))


def _combine_number_values(
    column: _NativeColumn, is_text: Mask | None, codes: npt.NDArray[np.int32], decoded: list[Any]
) -> npt.NDArray[Any] | None:
    """Combine the values to int64, uint64 or float64; None if no one of these types fits all."""
    plain = column.values[:0] if is_text is None else column.values[~is_text]
    dtype = _choose_number_type(decoded, plain, _list_native_types(column))
    if dtype is None:
        return None
    of_texts: npt.NDArray[Any] = np.array(decoded, dtype)[codes]
    if is_text is None:
        return of_texts
    values: npt.NDArray[Any] = column.values.view(dtype)
    values[is_text] = of_texts
    return values


def _list_native_types(column: _NativeColumn) -> set[type]:
    """List the types of the values that C parsed."""
    if column.kinds is None:
        return set()
    return {kind_of for kind, kind_of in ((INT, int), (FLOAT, float)) if (column.kinds == kind).any()}


def _choose_number_type(decoded: list[Any], plain: npt.NDArray[Any], plain_kinds: set[type]) -> type[np.generic] | None:
    """Choose the type that fits all values, decoded and parsed in C; None if no one type does."""
    types = plain_kinds | {type(value) for value in decoded}
    if types == {float}:
        return np.float64
    if types != {int}:
        return None
    if max(decoded, default=0) <= INT64_MAX:
        return np.int64
    is_signed = min(decoded) < 0 or bool((plain < 0).any())
    return None if is_signed else np.uint64


def _encode_mixed_values(
    kinds: npt.NDArray[np.uint8], values: npt.NDArray[np.int64], codes: npt.NDArray[np.int32], decoded: list[Any]
) -> tuple[npt.NDArray[np.int32], list[Any]]:
    """Encode a column of mixed kinds in one dictionary: (codes, categories).

    `codes` are those of its texts alone.
    """
    # Texts of numbers become numbers: equal values get equal (kind, value) pairs.
    pairs = np.array([_encode_kind_and_value(code, value) for code, value in enumerate(decoded)], np.int64)
    is_text = kinds == TEXT
    kinds[is_text], values[is_text] = pairs.reshape(-1, 2)[codes].T
    numbered, packed = _scan.distinct(kinds, values)
    pairs = _view_block(packed, np.uint8).reshape(-1, 9)
    numbers = pairs[:, :8].copy().view(np.int64)[:, 0]
    is_float = pairs[:, 8] == FLOAT
    categories = numbers.astype(object)
    categories[is_float] = numbers[is_float].view(np.float64)
    for place in (pairs[:, 8] == TEXT).nonzero()[0].tolist():
        categories[place] = decoded[categories[place]]
    return _view_block(numbered, np.int32), categories.tolist()


def _encode_kind_and_value(code: int, value: object) -> tuple[int, int]:
    """Encode a value as (kind, value) as `_scan` would; other values as their code."""
    if type(value) is int and value <= INT64_MAX:
        return INT, value
    if type(value) is float:
        return FLOAT, int(np.float64(value).view(np.int64))
    return TEXT, code


def _merge_equal_values(
    codes: npt.NDArray[np.signedinteger[Any]], values: list[Any], *, settled: bool, none_is_absent: bool = False
) -> list[Any]:
    """Merge equal values in the order of first use, and adapt `codes` in place.

    `settled`: all values are used, and in order, but some may be equal.
    """
    absent: set[int] = set()
    if none_is_absent:
        absent = {i for i, value in enumerate(values) if value is None}
    groups = np.arange(len(values), dtype=np.int32)
    # 1, 1.0 and True are equal here: this may find false duplicates, but misses none.
    if len(set(values)) < len(values):
        first: dict[object, int] = {}
        groups[:] = [first.setdefault(_make_value_key(value), i) for i, value in enumerate(values)]
    elif settled and not absent:
        return values
    groups[list(absent)] = -1
    return [values[i] for i in _renumber_label_codes(codes, groups)]


def _renumber_label_codes(codes: npt.NDArray[np.signedinteger[Any]], groups: npt.NDArray[np.int32]) -> list[int]:
    """Renumber `codes` by group, in place; returns the groups in the order of first use."""
    wide = codes.astype(np.int32, copy=False)
    order: list[int] = _view_block(_scan.renumber(wide, groups), np.int32).tolist()
    if wide is not codes:
        codes[:] = wide
    return order


def _make_value_key(value: object) -> object:
    """Make the key that identical values share: 1, 1.0 and True differ, as do 0.0 and -0.0."""
    if isinstance(value, float):
        return float, repr(value)
    return type(value), value
