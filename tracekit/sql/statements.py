"""Analysis of a statement before it runs: its kind, the tables it asks about, and the columns it may need.

Also its bounded form: DuckDB truncates long cells, so that no Python object is made of text that nobody will see.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.tables.table import Table
from tracekit.sql.messages import ReadsOnlyError, explain_duckdb_error
from tracekit.sql.schema import TYPES, quote_sql_name

_ALLOWED = ("SELECT", "EXPLAIN", "MULTI")
"""Allowed statement types. MULTI is PIVOT, which collects values and then selects.

Before DuckDB 2, PIVOT parses as two statements without text.
"""

_NOT_CODE = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
_COMPOSED = re.compile(r"\b(query(?:_table)?)\"?\s*\(", re.IGNORECASE)
_ALL_COUNTED = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)
_ALL_COLUMNS = frozenset({"columns", "natural", "summarize", "table", "pivot", "unpivot", "step"})
_ABOUT = re.compile(r"\s*(?:describe|desc|show)\s+(?:table\s+)?\"?(\w+)\"?\s*;?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TableInfoStatement:
    """A statement about tables rather than rows: `table` is the table it asks about, None for all."""

    table: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the result's columns."""
        if self.table is None:
            return "table", "one row is"
        return "column", "type", "meaning"

    def rows(self, tables: Mapping[str, Table]) -> list[tuple[str, ...]]:
        """List the result's rows."""
        if self.table is None:
            return [(table.name, table.row) for table in tables.values()]
        columns = tables[self.table].columns
        return [(name, TYPES[column.dtype], column.doc) for name, column in columns.items()]


def split_statements(text: str, connection: Any) -> list[str]:
    """Split a text into statements; raise `TracekitError` if it is not valid SQL or does more than read."""
    import duckdb

    try:
        parsed = connection.extract_statements(text)
    except duckdb.Error as error:
        raise explain_duckdb_error(error) from None
    queries = [statement.query.strip().rstrip(";").strip() for statement in parsed]
    texts = [query for query in queries if query]
    if parsed and not texts and "pivot" in collect_words(text):
        return [text.strip().rstrip(";").strip()]
    for statement in parsed:
        kind = statement.type.name
        if kind not in _ALLOWED:
            word = next(iter(re.findall(r"[A-Za-z]+", strip_literals(statement.query))), kind).upper()
            raise ReadsOnlyError(f"{word}: only queries run here (SELECT, FROM, WITH …)")
    return texts


def parse_single_statement(text: str, connection: Any) -> str:
    """Parse the only statement of a text."""
    parsed = split_statements(text, connection)
    if len(parsed) != 1:
        raise TracekitError(f"{len(parsed)} statements where one is wanted", "give one at a time")
    return parsed[0]


def parse_table_info(text: str, tables: Mapping[str, Table]) -> TableInfoStatement | None:
    """Parse a statement such as `DESCRIBE kernels` or `SHOW TABLES`; None for any other."""
    match = _ABOUT.fullmatch(strip_literals(text))
    if not match:
        return None
    name = match[1].lower()
    if name in tables:
        return TableInfoStatement(name)
    if name == "tables":
        return TableInfoStatement(None)
    return None


def strip_literals(text: str) -> str:
    """Strip string literals and comments from a statement."""
    return _NOT_CODE.sub(" ", text)


def collect_words(text: str) -> set[str]:
    """Collect the words of a statement in lower case."""
    return set(re.findall(r"[a-z_]\w*", strip_literals(text).lower()))


def find_composed_query(text: str) -> str:
    """Find the function by which a statement runs SQL built at run time; empty if it calls none."""
    call = _COMPOSED.search(strip_literals(text))
    return call[1].lower() if call else ""


def is_explainable(text: str) -> bool:
    """Whether EXPLAIN accepts the statement; DESCRIBE, SUMMARIZE and PIVOT fail."""
    first = re.match(r"[\s(]*([a-z]+)", strip_literals(text).lower())
    return first is not None and first[1] in ("select", "with", "from", "values")


def is_explain(text: str) -> bool:
    """Whether the statement asks for a query's plan instead of its rows."""
    return re.match(r"\s*explain\b", strip_literals(text), re.IGNORECASE) is not None


def may_use_step(text: str) -> bool:
    """Whether the result may depend on the column `step`: it is named, or all columns are selected."""
    all_words = collect_words(text)
    if "select" not in all_words or _ALL_COLUMNS & all_words:
        return True
    without_counts = _ALL_COUNTED.sub(" ", strip_literals(text))
    return "*" in without_counts or bool(re.match(r"\s*from\b", without_counts, re.IGNORECASE))


def asks_for_comments(text: str) -> bool:
    """Whether the statement reads the catalog's comments on tables and columns."""
    return re.search(r"\b(?:duckdb_|comment)", strip_literals(text), re.IGNORECASE) is not None


_SHORT = frozenset(
    {
        *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT"),
        *("UINTEGER", "UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "DATE", "TIME", "TIMESTAMP", "UUID"),
        *("INTERVAL", "TIMESTAMP WITH TIME ZONE", "TIME WITH TIME ZONE", "TIMESTAMP_NS"),
        *("TIMESTAMP_MS", "TIMESTAMP_S"),
    }
)
"""Types whose values are always short; DECIMAL is handled separately."""


def limit_query_cells(statement: str, types: Sequence[str], rows: int, characters: int) -> str:
    """Wrap a query: limit it to `rows` and split every column whose values may be long into two columns.

    The first is the value if its text has at most `characters`, else null. The second is the start of a longer text, with
    its length and a hash.
    """
    names = [f"c{number}" for number in range(len(types))]
    columns: list[str] = []
    for name, kind in zip(names, types, strict=True):
        if is_short_type(kind):
            columns.append(name)
            continue
        text = f"CAST({name} AS VARCHAR)"
        is_long = f"length({text}) > {characters}"
        shown = f"left({text}, 250) || format('… ({{:,}} characters, {{}})', length({text}), left(md5({text}), 16))"
        columns += [f"CASE WHEN {is_long} THEN NULL ELSE {name} END", f"CASE WHEN {is_long} THEN {shown} END"]
    listed = ", ".join(quote_sql_name(name) for name in names)
    # On its own lines, because the statement may end in a comment.
    return f"SELECT {', '.join(columns)} FROM (\n{statement}\n) AS bounded({listed}) LIMIT {rows}"


def merge_cell_columns(row: Sequence[Any], types: Sequence[str]) -> tuple[Any, ...]:
    """Merge a row of a bounded query: each cell is the value, or the start of its text."""
    cells = iter(row)
    values: list[Any] = []
    for kind in types:
        value = next(cells)
        beginning = None if is_short_type(kind) else next(cells)
        values.append(value if beginning is None else beginning)
    return tuple(values)


def is_short_type(kind: str) -> bool:
    """Whether all values of a type are short.

    >>> is_short_type("BIGINT"), is_short_type("DECIMAL(18,3)"), is_short_type("BIGINT[]"), is_short_type("VARCHAR")
    (True, True, False, False)
    """
    return kind in _SHORT or (kind.startswith("DECIMAL(") and kind.endswith(")"))
