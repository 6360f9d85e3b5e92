"""Table rows read directly from the SQLite file's pages, several times faster than through SQLite.

Only plain pages, as exporters write them, are read. The caller reads the remaining rows through SQLite.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.readers.nsys.sqlite.connection import ExportDatabase, quote_identifier
from tracekit.readers.nsys.sqlite.expressions import (
    NotPlainError,
    evaluate_expression,
    list_expression_columns,
    parse_expression,
)

Ints = npt.NDArray[np.int64]


native: Any = None
with suppress(ImportError):
    from tracekit.readers.nsys import _pages

    native = _pages
"""The page reader written in C; None if not built."""

_UTF8 = 1


@dataclass(frozen=True, slots=True)
class NameCodes:
    """Request for the codes of row names, as `nvtx.rows` splits them: `column` is looked up in `keys`."""

    column: str
    keys: dict[bytes, int]
    looked: tuple[str, ...] = ()
    """Columns for which the reader also reports whether any row has a value."""
    facts: dict[str, bool] = field(default_factory=dict[str, bool])
    """Set after the last row: by column whether any row has a value, by `SHAPES` whether any name is followed by shapes."""


class DamagedPagesError(Exception):
    """Inconsistent pages. SQLite must read the file from its first row, because it recovers rows in its own way."""


SHAPES = "shapes"
CODES = "codes of names"
"""Column of a block with the codes of names."""


@dataclass(frozen=True, slots=True)
class _TableLayout:
    """Layout of a table in its file."""

    page_size: int
    usable: int
    page_count: int
    root: int
    columns: Mapping[str, tuple[int, str]]
    """Position in a record and declared type of each column."""

    def fields(self, names: Iterable[str], type_: str) -> tuple[int, ...]:
        """Find the record positions of columns with this declared type. Raises `NotPlainError` for others."""
        declared = [self.columns.get(name, (-1, "")) for name in names]
        if any(place < 0 or type_ not in type_name for place, type_name in declared):
            raise NotPlainError
        return tuple(place for place, _ in declared)


@dataclass(slots=True)
class PageRows:
    """Rows of a table in blocks, in order of row id. `ended` is set once all rows were read."""

    db: ExportDatabase
    table: str
    sql: Mapping[str, str]
    names: NameCodes | None
    ended: bool = False

    def blocks(self, size: int) -> Iterator[tuple[dict[str, Ints], int]]:
        """Yield (block, its last row id) while pages are plain. Raises `DamagedPagesError`."""
        if native is None or self.db.plain is None:
            return
        try:
            trees = {name: parse_expression(sql) for name, sql in self.sql.items()}
            columns = sorted({name for tree in trees.values() for name in list_expression_columns(tree)})
            with self.db.plain.open("rb", buffering=0) as file:
                table = _read_table_layout(self.db, self.table, file.read(100))
                places = table.fields(columns, "INT")
                looked = table.fields(() if self.names is None else self.names.looked, "")
                names = -1
                if self.names is not None:
                    (names,) = table.fields((self.names.column,), "TEXT")
                layout = (table.page_size, table.usable, table.page_count, table.root)
                pages = native.Pages(file.fileno(), *layout, places, looked, names)
                yield from self._yield_blocks(pages, trees, columns, size)
                self.ended = pages.ended
        except (NotPlainError, OSError):
            return
        if self.ended and self.names is not None:
            for name, place in zip(self.names.looked, looked, strict=True):
                self.names.facts[name] = pages.has_value(place)
            self.names.facts[SHAPES] = pages.with_shapes

    def _yield_blocks(
        self, pages: Any, trees: Mapping[str, ast.expr], columns: list[str], size: int
    ) -> Iterator[tuple[dict[str, Ints], int]]:
        """Yield (block, its last row id) until a page is not plain. Raises `NotPlainError` for a value."""
        numbers = np.empty(0, np.int32)
        while not pages.stopped:
            id_bytes, *parts, codes = pages.take(size)
            if pages.damaged:
                raise DamagedPagesError
            row = np.frombuffer(id_bytes, np.int64)
            if not len(row):
                return
            values = {name: np.frombuffer(part, np.int64) for name, part in zip(columns, parts, strict=True)}
            block = {name: _own_array(evaluate_expression(tree, values, row)) for name, tree in trees.items()}
            if self.names is not None:
                numbers = _append_name_codes(numbers, pages.names(len(numbers)), self.names.keys)
                block[CODES] = numbers[np.frombuffer(codes, np.int32)].astype(np.int64)
            yield block, int(row[-1])


def _own_array(values: Ints) -> Ints:
    """Copy the values unless they already have memory of their own, which the caller may change."""
    return values if values.flags.owndata else values.copy()


def _append_name_codes(
    numbers: npt.NDArray[np.int32], fresh: Sequence[bytes], keys: Mapping[bytes, int]
) -> npt.NDArray[np.int32]:
    """Append the codes of the `fresh` names to the code table."""
    if not fresh:
        return numbers
    return np.append(numbers, np.array([keys[name] for name in fresh], np.int32))


def _read_table_layout(db: ExportDatabase, table: str, head: bytes) -> _TableLayout:
    """Read a table's layout from the file header and schema. Raises `NotPlainError` if it is not plain."""
    page_size = int.from_bytes(head[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    if len(head) < 100 or not 512 <= page_size <= 65536 or page_size & (page_size - 1):
        raise NotPlainError
    if int.from_bytes(head[56:60], "big") != _UTF8 or page_size - head[20] < 480:
        raise NotPlainError
    query = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?"
    roots = db.connection.execute(query, (table,)).fetchall()
    listed = db.connection.execute(f"PRAGMA table_xinfo({quote_identifier(table)})").fetchall()
    # A primary key of integers is the row id itself; generated columns are not stored.
    if len(roots) != 1 or any(is_key or hidden for *_, is_key, hidden in listed):
        raise NotPlainError
    columns = {str(row[1]): (int(row[0]), str(row[2]).upper()) for row in listed}
    page_count = min(db.size_bytes // page_size, 2**32 - 2)
    return _TableLayout(page_size, page_size - head[20], page_count, int(roots[0][0]), columns)
