"""What a statement is, before it runs: one query, what it is about, and what it may need."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.tables.table import Table
from tracekit.sql.messages import ReadsOnlyError, plain
from tracekit.sql.schema import TYPES

_ALLOWED = ("SELECT", "EXPLAIN", "MULTI")
"""MULTI is PIVOT, which finds the values first, then selects; before DuckDB 2 it is two statements without a text."""

_NOT_CODE = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
_COMPOSED = re.compile(r"\b(query(?:_table)?)\"?\s*\(", re.IGNORECASE)
_ALL_COUNTED = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)
_ALL_COLUMNS = frozenset({"columns", "natural", "summarize", "table", "pivot", "unpivot", "step"})
_ABOUT = re.compile(r"\s*(?:describe|desc|show)\s+(?:table\s+)?\"?(\w+)\"?\s*;?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class About:
    """A statement about the tables themselves: of one, or of all where `table` is None."""

    table: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns."""
        if self.table is None:
            return "table", "one row is"
        return "column", "type", "meaning"

    def rows(self, tables: Mapping[str, Table]) -> list[tuple[str, ...]]:
        """Its rows."""
        if self.table is None:
            return list(map(attrgetter("name", "row"), tables.values()))
        columns = tables[self.table].columns
        return [(name, TYPES[column.dtype], column.doc) for name, column in columns.items()]


def several(text: str, connection: Any) -> list[str]:
    """The statements of a text; raises `TracekitError` where it is no SQL, or not one that only reads."""
    import duckdb

    try:
        parsed = connection.extract_statements(text)
    except duckdb.Error as error:
        raise plain(error) from None
    texts = list(
        filter(None, (statement.query.strip().rstrip(";").strip() for statement in parsed))
    )
    if parsed and not texts and "pivot" in words(text):
        return [text.strip().rstrip(";").strip()]
    for statement in parsed:
        kind = statement.type.name
        if kind not in _ALLOWED:
            word = next(iter(re.findall(r"[A-Za-z]+", code(statement.query))), kind).upper()
            raise ReadsOnlyError(f"{word}: only queries run here (SELECT, FROM, WITH …)")
    return texts


def single(text: str, connection: Any) -> str:
    """The one statement of a text."""
    parsed = several(text, connection)
    if len(parsed) != 1:
        raise TracekitError(f"{len(parsed)} statements where one is wanted", "give one at a time")
    return parsed[0]


def about_tables(text: str, tables: Mapping[str, Table]) -> About | None:
    """What a statement asks about the tables themselves, `DESCRIBE kernels` or `SHOW TABLES`; None for any other."""
    match = _ABOUT.fullmatch(code(text))
    if not match:
        return None
    name = match[1].lower()
    if name in tables:
        return About(name)
    if name == "tables":
        return About(None)
    return None


def code(text: str) -> str:
    """The statement without its texts and comments."""
    return _NOT_CODE.sub(" ", text)


def words(text: str) -> set[str]:
    """The words of a statement, in small letters."""
    return set(re.findall(r"[a-z_]\w*", code(text).lower()))


def composed_query(text: str) -> str:
    """The function by which a statement runs SQL that it puts together; empty where it calls none."""
    call = _COMPOSED.search(code(text))
    return call[1].lower() if call else ""


def is_query(text: str) -> bool:
    """Whether it can be explained: DESCRIBE, SUMMARIZE and PIVOT cannot."""
    first = re.match(r"[\s(]*([a-z]+)", code(text).lower())
    return first is not None and first[1] in ("select", "with", "from", "values")


def is_explained(text: str) -> bool:
    """Whether it asks how a query would run, not what it gives."""
    return re.match(r"\s*explain\b", code(text), re.IGNORECASE) is not None


def may_use_step(text: str) -> bool:
    """Whether the column `step` may matter: it is named, or may be among all columns."""
    all_words = words(text)
    if "select" not in all_words or _ALL_COLUMNS & all_words:
        return True
    without_counts = _ALL_COUNTED.sub(" ", code(text))
    return "*" in without_counts or bool(re.match(r"\s*from\b", without_counts, re.IGNORECASE))


def asks_for_comments(text: str) -> bool:
    """Whether it reads what the catalogue says of tables and columns."""
    return re.search(r"\b(?:duckdb_|comment)", code(text), re.IGNORECASE) is not None
