"""Rows of an export's NVTX table as columns, with each name stored once.

torch's `emit_nvtx` puts numbers into operator names (`aten::mm, seq = 7, op_id = 41`), so nearly every name is
unique. That tail is cut off inside SQLite, before names are stored.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.readers.chrome.scan import choose_code_type
from tracekit.readers.nsys.numbering import ValueNumbering
from tracekit.readers.nsys.sqlite.blocks import read_column_blocks
from tracekit.readers.nsys.sqlite.connection import ExportDatabase, fetch_one_row, get_row_id_alias
from tracekit.readers.nsys.sqlite.database import read_texts_by_id
from tracekit.readers.nsys.sqlite.expressions import MISSING
from tracekit.readers.nsys.sqlite.pages import CODES, SHAPES, NameCodes

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

TABLE = "NVTX_EVENTS"
SEQUENCE, OP_ID, SIZES = ", seq = ", ", op_id = ", ", sizes = ["
MAX_NAME = 8192
"""Most characters of a name that are read."""

_COLUMNS = ("start", "end", "eventType", "textId", "globalTid", "domainId")
_LOOKED = ("jsonText", "jsonTextId", "binaryData", "category", "endGlobalTid")
"""Columns that are empty in most files; the argument readers check them first."""
_SEPARATOR = "\x1f"
_NONE = b"0"
"""Key of a row without text: an empty name without a tail."""

_OP_NAME = re.compile(r"[a-z_][a-z_0-9.]*::")
_PLAIN_OPS = frozenset({"record_param_comms", "detach", "detach_", "set_data", "requires_grad_", "retain_grad"})
"""Operators without a namespace that have no sequence number."""


@dataclass(frozen=True, slots=True)
class NvtxRows:
    """All rows of the table. Unknown times are `MISSING`, an unknown `type` is 0, an unknown `name` -1.

    `thread` and `domain` are codes into `gtids` and `domains` (-1: unknown), `name` into `names`. `is_op` marks operator
    names. `row` are the row ids, if requested.
    """

    start: Ints
    end: Ints
    type: npt.NDArray[np.int16]
    thread: npt.NDArray[Any]
    domain: npt.NDArray[Any]
    name: npt.NDArray[Any]
    row: RowIds | None
    gtids: Ints
    domains: Ints
    names: list[str]
    is_op: Bools


_BLOCKS = 64
"""Number of small blocks to concatenate at once: large arrays use huge pages, and small blocks' memory is reused."""


@dataclass(slots=True)
class ColumnParts:
    """Blocks of a column, in order."""

    _large: list[Array] = field(default_factory=list[Array])
    _small: list[Array] = field(default_factory=list[Array])

    def append(self, block: Array) -> None:
        """Append a block."""
        self._small.append(block)
        if len(self._small) == _BLOCKS:
            self._large.append(np.concatenate(self._small))
            self._small.clear()

    def joined(self, dtype: Any) -> Array:
        """Concatenate and release all blocks."""
        blocks = [np.empty(0, dtype), *self._large, *self._small]
        self._large.clear()
        self._small.clear()
        return np.concatenate(blocks, dtype=dtype)


@dataclass(slots=True)
class RowIds:
    """Row ids collected block by block. Consecutive ids are stored as the first id and a count."""

    _first: int = 0
    _count: int = 0
    _parts: ColumnParts | None = None
    _ids: Ints | None = None

    def append(self, block: Ints) -> None:
        """Append the ids of a block, which must not be empty."""
        if not self._count:
            self._first = int(block[0])
        if self._parts is None and not self._follows(block):
            self._parts = ColumnParts()
            self._parts.append(np.arange(self._count) + self._first)
        if self._parts is not None:
            self._parts.append(block)
        self._count += len(block)

    def _follows(self, block: Ints) -> bool:
        """Check whether the ids continue the sequence by steps of one."""
        return int(block[0]) == self._first + self._count and bool((np.diff(block) == 1).all())

    def look_up(self, rows: npt.NDArray[np.integer[Any]]) -> Ints:
        """Look up the ids of these rows. Call it after the last block."""
        if self._parts is not None:
            self._ids, self._parts = self._parts.joined(np.int64), None
        ids: Ints
        if self._ids is None:
            ids = rows.astype(np.int64) + self._first
        else:
            ids = self._ids[rows]
        return ids


def read(db: ExportDatabase, *, with_rows: bool) -> NvtxRows:
    """Read all rows, in stored order, which has no meaning."""
    keys: defaultdict[bytes, int] = defaultdict(count().__next__)
    threads, domains = ValueNumbering(), ValueNumbering()
    parts: dict[str, ColumnParts] = defaultdict(ColumnParts)
    row_ids = RowIds() if with_rows else None
    names_of_rows = None
    if "text" in db.columns[TABLE]:
        looked = tuple(sorted(db.columns[TABLE].intersection(_LOOKED)))
        names_of_rows = NameCodes("text", keys, looked)
    row_sql = {"row": get_row_id_alias(db.columns[TABLE])}
    for block in read_column_blocks(db, TABLE, _COLUMNS, expressions=row_sql, names=names_of_rows):
        row = block["row"]
        registered = block["textId"]
        # One label for both kinds of names: inline names from 0 up, registered ones from -2 down.
        inline: Codes | Ints | int = -1
        if CODES in block:
            inline = block[CODES]
        elif (registered == MISSING).any():
            inline = _code_inline_names(db, row, keys)
        usable = (registered >= 0) & (registered < 2**31 - 2)
        label = np.where(usable, -2 - registered, inline)
        type_ = block["eventType"]
        parts["start"].append(block["start"])
        parts["end"].append(block["end"])
        parts["type"].append(np.where((type_ > 0) & (type_ < 2**15), type_, 0).astype(np.int16))
        for name, numbers, column in (("thread", threads, block["globalTid"]), ("domain", domains, block["domainId"])):
            codes = numbers.coded(np.maximum(column, -1))
            parts[name].append(codes.astype(choose_code_type(len(numbers.values))))
        parts["label"].append(label.astype(np.int32))
        if row_ids is not None:
            row_ids.append(row)
    if names_of_rows is not None:
        facts = dict(names_of_rows.facts)
        if SHAPES in facts:
            db.looked[TABLE, "text", SIZES] = facts.pop(SHAPES)
        db.looked.update({(TABLE, name): has_value for name, has_value in facts.items()})
    label = _pop_joined_column(parts, "label", np.int32)
    names, is_op, codes = _resolve_range_names(db, label, list(keys))
    return NvtxRows(
        _pop_joined_column(parts, "start", np.int64),
        _pop_joined_column(parts, "end", np.int64),
        _pop_joined_column(parts, "type", np.int16),
        _pop_joined_column(parts, "thread", choose_code_type(len(threads.values))),
        _pop_joined_column(parts, "domain", choose_code_type(len(domains.values))),
        codes,
        row_ids,
        threads.values,
        domains.values,
        names,
        is_op,
    )


@dataclass(frozen=True, slots=True)
class RowPositions:
    """Positions of rows among the ranges, by row id in ascending order."""

    row: Ints
    position: Ints


def map_rows_to_positions(rows: NvtxRows, indices: npt.NDArray[np.int32]) -> RowPositions:
    """Map the row ids of the rows `indices` to their positions."""
    assert rows.row is not None, "read without row ids"
    row = rows.row.look_up(indices)
    order = np.argsort(row, kind="stable")
    return RowPositions(row[order], order)


def find_row_positions(where: RowPositions, row: Ints) -> tuple[Ints, Ints]:
    """Find the row ids that have a position: (positions ascending, indices into `row`)."""
    if not len(where.row):
        return where.position, where.position
    slot = np.minimum(np.searchsorted(where.row, row), len(where.row) - 1)
    hit = np.flatnonzero(where.row[slot] == row)
    position = where.position[slot[hit]]
    order = np.argsort(position, kind="stable")
    return position[order], hit[order]


def write_marker_sql(marker: str) -> str:
    """Build SQL that checks whether a text has this marker followed by a digit (or a list)."""
    place = f"instr(text, '{marker}')"
    if marker.endswith("["):
        return f"{place} > 0"
    return f"({place} > 0 AND substr(text, {place} + {len(marker)}, 1) BETWEEN '0' AND '9')"


def _write_inline_name_sql() -> str:
    """Build SQL for an inline name's key: a digit for its tail (0 none, 1 sequence number, 2 other) and the name."""
    cases = "".join(
        f" WHEN {write_marker_sql(marker)} THEN '{kind}' || substr(text, 1, min({MAX_NAME}, instr(text, '{marker}') - 1))"
        for marker, kind in ((SEQUENCE, 1), (OP_ID, 2), (SIZES, 2))
    )
    # If the op number comes first, `_parse_inline_key` cuts off the rest of the tail.
    return f"CASE WHEN typeof(text) <> 'text' THEN '0'{cases} ELSE '0' || substr(text, 1, {MAX_NAME}) END"


def _code_inline_names(db: ExportDatabase, row: Ints, keys: defaultdict[bytes, int]) -> Codes:
    """Look up the codes of these rows' inline names; -1 if damaged. Row ids must be monotonic."""
    if "text" not in db.columns[TABLE]:
        return np.full(len(row), keys[_NONE], np.int32)
    low, high = sorted((int(row[0]), int(row[-1])))
    try:
        row_keys = list(_read_inline_keys(db, low, high, len(row)))
    except sqlite3.DatabaseError:
        row_keys = []
    if len(row_keys) != len(row):
        return np.full(len(row), -1, np.int32)
    codes = np.fromiter(map(keys.__getitem__, row_keys), np.int32, len(row_keys))
    return codes if row[0] <= row[-1] else codes[::-1]


def _read_inline_keys(db: ExportDatabase, low: int, high: int, length: int) -> Iterator[bytes]:
    """Read the name keys of a range of rows: as one concatenated text, or row by row if that fails."""
    row = get_row_id_alias(db.columns[TABLE])
    source = f"FROM {TABLE} NOT INDEXED WHERE {row} BETWEEN ? AND ? ORDER BY {row}"
    sql = f"SELECT CAST({_write_inline_name_sql()} AS BLOB) AS k {source}"
    try:
        joined = f"SELECT CAST(group_concat(k, char(31)) AS BLOB) FROM ({sql})"
        combined = fetch_one_row(db, joined, (low, high))[0]
    except sqlite3.DatabaseError:  # too long for one text
        combined = b""
    split = combined.split(_SEPARATOR.encode()) if isinstance(combined, bytes) else []
    if len(split) == length:
        return iter(split)
    return (key for (key,) in db.connection.execute(sql, (low, high)))


def _pop_joined_column(parts: dict[str, ColumnParts], name: str, dtype: Any) -> npt.NDArray[Any]:
    """Concatenate and release the blocks of a column."""
    return parts.pop(name, ColumnParts()).joined(dtype)


def _resolve_range_names(
    db: ExportDatabase, label: Codes, keys: list[bytes]
) -> tuple[list[str], Bools, npt.NDArray[Any]]:
    """Resolve labels: (names, whether each is an operator, name code of each row). Overwrites `label`."""
    other = np.flatnonzero(label < -1)
    labels, place = np.unique(label[other], return_inverse=True)
    ids = -2 - labels.astype(np.int64)
    registered = read_texts_by_id(db, "StringIds", "id", "value", ids)
    number: defaultdict[tuple[str, bool], int] = defaultdict(count().__next__)
    inline = [*(number[_parse_inline_key(key)] for key in keys), -1]
    # An id without a text is an unknown name.
    by_id = [number[registered[i], False] if i in registered else -1 for i in ids.tolist()]
    # -1 (unknown) indexes the last entry.
    codes = np.array(inline, choose_code_type(len(number)))[np.maximum(label, -1, out=label)]
    if len(other):
        codes[other] = np.array(by_id, codes.dtype)[place]
    return [name for name, _ in number], np.array([is_op for _, is_op in number], np.bool_), codes


def _parse_inline_key(key: bytes) -> tuple[str, bool]:
    """Parse a key of `_write_inline_name_sql`: (name, whether it is an operator)."""
    text = key.decode("utf-8", "replace")
    kind, name = text[:1], text[1:]
    if kind == "0":
        return name, name.startswith("aten::")
    name = re.split(r", (?:seq|op_id) = [0-9]", name, maxsplit=1)[0]
    # User scopes may have a tail too, but never a sequence number.
    return name, kind == "1" or _OP_NAME.match(name) is not None or name in _PLAIN_OPS
