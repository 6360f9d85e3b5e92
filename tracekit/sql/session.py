"""A DuckDB session over declared tables that loads rows only for tables a statement names.

Every table exists from the start, without rows but with its columns, so a statement is checked before any file is
read. Texts are scanned as ENUMs and exposed as VARCHAR, so that they compare, sort and join as texts.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.system.installed import install_command
from tracekit.model.tables.arrays import (
    Array,
    Coded,
    Columns,
    Nullable,
    choose_narrowest,
    convert_for_pandas,
    make_frame,
)
from tracekit.model.tables.table import Table
from tracekit.sql import statements
from tracekit.sql.messages import explain_duckdb_error
from tracekit.sql.schema import format_column_list, quote_literal, quote_sql_name
from tracekit.sql.statements import limit_query_cells, merge_cell_columns
from tracekit.sql.window_views import describe_mixed_table, list_mixed_tables, list_window_views

Load = Callable[[Collection[str], bool], Mapping[str, Columns]]
"""Callback that loads tables by name, raw ones with or without their column `step`. Unrecorded tables are left out."""

_CLOSED = {
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_community_extensions": False,
    "allow_unsigned_extensions": False,
    "python_enable_replacements": False,
    "temp_directory": "",
}
"""Settings of a sandbox: no files, network, extensions or access to Python variables, and no spilling to disk."""

_BLOCK = 10_000
_INTERRUPTED = "Query interrupted"
"""Message of DuckDB's error for a signal whose Python handler raised an exception."""


@dataclass(frozen=True, slots=True)
class StatementResult:
    """The result of a statement: column names, and rows that can be read once."""

    names: tuple[str, ...]
    cursor: Any

    def blocks(self) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows in blocks of up to 10,000."""
        while block := self.rows(_BLOCK):
            yield block

    def rows(self, limit: int) -> list[tuple[Any, ...]]:
        """Fetch the next `limit` rows."""
        with _convert_duckdb_errors():
            rows: list[tuple[Any, ...]] = self.cursor.fetchmany(limit)
        return rows


class SqlSession:
    """An open session. `raw` names the tables whose column `step` is computed only on request."""

    def __init__(
        self,
        tables: Iterable[Table],
        load: Load,
        raw: Collection[str] = (),
        memory: str | None = None,
        threads: int | None = None,
        limit_s: float | None = None,
    ) -> None:
        """Create the tables without rows. `load` supplies rows; `memory` (such as `4GiB`) and `limit_s` bound each statement."""
        self.tables = {table.name: table for table in tables}
        self._views = list_window_views(self.tables.values())
        self.catalog = {**self.tables, **{name: view.table for name, view in self._views.items()}}
        self.unfilled: set[str] = set()
        self._load, self._raw, self._limit_s = load, frozenset(raw), limit_s
        self._has_step: dict[str, bool] = {}
        self._described: set[str] = set()
        self._connection = _open_connection(memory, threads)
        for table in self.tables.values():
            self._execute(f"CREATE TABLE {quote_sql_name(table.name)} ({format_column_list(table)})")
        for view in self._views.values():
            self._execute(view.statement)

    def run(self, statement: str, limits: tuple[int, int] | None = None) -> StatementResult:
        """Run one statement; raise `TracekitError` for anything but a query that DuckDB can answer.

        `limits` is (rows, characters per cell): DuckDB truncates larger results before they become Python objects.
        """
        with _convert_duckdb_errors():
            text = statements.parse_single_statement(statement, self._connection)
        meta = statements.parse_table_info(text, self.catalog)
        if meta is not None:
            return StatementResult(meta.names, _RowCursor(meta.rows(self.catalog)))
        with_step = statements.may_use_step(text)
        # A table loaded without steps lacks that column: reload it before the statement is checked.
        words = statements.collect_words(text)
        self._fill([name for name in self._has_step if name in words], with_step=with_step)
        self._check(text)
        names = self._names(text)
        self._fill(list(dict.fromkeys(self._get_base(name) for name in names)), with_step=with_step)
        self._describe(self.catalog if statements.asks_for_comments(text) else names)
        if limits is not None and statements.is_explainable(text):
            return self._bounded(text, *limits)
        cursor = self._execute(text)
        if statements.is_explain(text):
            plans = "\n".join(plan for _, plan in StatementResult((), cursor).rows(_BLOCK))
            return StatementResult(("plan",), _RowCursor(zip(plans.splitlines())))
        return StatementResult(tuple(column[0] for column in cursor.description), cursor)

    def _bounded(self, text: str, rows: int, characters: int) -> StatementResult:
        """Run a query limited to its first rows, with long cells truncated."""
        described = StatementResult((), self._execute(f"DESCRIBE {text}")).rows(_BLOCK)
        names, types = tuple(row[0] for row in described), [row[1] for row in described]
        result = StatementResult((), self._execute(limit_query_cells(text, types, rows, characters)))
        return StatementResult(names, _RowCursor(merge_cell_columns(row, types) for row in result.rows(rows)))

    def statements(self, text: str) -> list[str]:
        """Split a text into its statements; raise `TracekitError` if it is not valid SQL."""
        with _convert_duckdb_errors():
            return statements.split_statements(text, self._connection)

    def interrupt(self) -> None:
        """Interrupt the running statement from another thread."""
        self._connection.interrupt()

    def _check(self, text: str) -> None:
        """Validate the statement before filling any table."""
        if statements.is_explainable(text):
            self._execute(f"EXPLAIN {text}")

    def _names(self, text: str) -> list[str]:
        """List the tables that a statement names; fall back to its words if DuckDB cannot say."""
        try:
            with _convert_interrupts():
                named = {name.lower() for name in self._connection.get_table_names(text)}
        except _import_duckdb().Error:
            named = statements.collect_words(text)
            if function := statements.find_composed_query(text):
                raise TracekitError(
                    f"{function}(): its argument is computed, so the table that it reads is unknown",
                    "write the name of the table after FROM",
                ) from None
        return [name for name in self.catalog if name in named]

    def _get_base(self, name: str) -> str:
        """Get the table that has the rows of a table or view."""
        return self._views[name].base if name in self._views else name

    def list_warnings(self, statement: str) -> list[str]:
        """List likely mistakes of a statement that runs: sums over windows that overlap."""
        return [describe_mixed_table(name) for name in list_mixed_tables(statement, self._views)]

    def _fill(self, names: Sequence[str], *, with_step: bool) -> None:
        """Load the rows of these tables that are not loaded yet."""
        missing = [name for name in names if not self._is_filled(name, with_step=with_step)]
        if not missing:
            return
        if not self._raw.isdisjoint(missing):
            # Row and thread ids are assigned per reading of a file, so tables joined by them must come from one reading.
            before = [name for name in self._has_step if name in self._raw]
            missing = list(dict.fromkeys((*before, *missing)))
            with_step = with_step or any(self._has_step[name] for name in before)
        rows = self._load(missing, with_step)
        for name in missing:
            self._has_step[name] = with_step
            columns = rows.get(name)
            if columns is None:
                self.unfilled.add(name)
            else:
                self._replace(self.tables[name], columns)

    def _is_filled(self, name: str, *, with_step: bool) -> bool:
        """Whether a table has its rows, including their steps if requested."""
        if name not in self._has_step:
            return False
        return name in self.unfilled or self._has_step[name] or name not in self._raw or not with_step

    def _replace(self, table: Table, columns: Columns) -> None:
        """Replace a table by a view of these rows, without copying them."""
        name, rows = quote_sql_name(table.name), f"{table.name}__rows"
        self._execute(f"DROP {self._kind(table.name)} {name}")
        arrays, expressions = {}, []
        for column in table.columns:
            if column in columns.arrays:
                arrays[column] = convert_for_pandas(_make_scannable(columns[column]))
                expressions.append(_format_view_column(column, columns[column]))
        with _convert_interrupts():
            self._connection.register(rows, make_frame(arrays, len(columns)))
        self._execute(f"CREATE VIEW {name} AS SELECT {', '.join(expressions)} FROM {quote_sql_name(rows)}")
        self._described.discard(table.name)
        for view in self._views.values():
            if view.base == table.name:
                self._execute(view.statement)
                self._described.discard(view.table.name)

    def _kind(self, name: str) -> str:
        """Get the DuckDB kind of a table: a view of rows, or an empty table."""
        views = StatementResult((), self._execute("SELECT view_name FROM duckdb_views()")).rows(_BLOCK)
        return "VIEW" if (name,) in views else "TABLE"

    def _describe(self, names: Iterable[str]) -> None:
        """Add the documentation of these tables and their columns as catalog comments."""
        for name in set(names) - self._described:
            table = self.catalog[name]
            self._execute(f"COMMENT ON {self._kind(name)} {quote_sql_name(name)} IS {quote_literal(table.row)}")
            described = self._execute(f"SELECT * FROM {quote_sql_name(name)} LIMIT 0").description
            for column, *_ in described:
                doc = quote_literal(table.columns[column].doc)
                self._execute(f"COMMENT ON COLUMN {quote_sql_name(name)}.{quote_sql_name(column)} IS {doc}")
            self._described.add(name)

    def _execute(self, text: str) -> Any:
        """Execute a statement within the time limit and return its cursor."""
        with (
            _convert_duckdb_errors(self.catalog, text),
            _interrupt_after(self._limit_s, self._connection.interrupt),
        ):
            return self._connection.execute(text)


@contextlib.contextmanager
def _convert_duckdb_errors(tables: Mapping[str, Table] | None = None, statement: str = "") -> Iterator[None]:
    """Convert what DuckDB raises in the body to errors of tracekit."""
    try:
        with _convert_interrupts():
            yield
    except _import_duckdb().Error as error:
        raise explain_duckdb_error(error, tables, statement) from None


@contextlib.contextmanager
def _convert_interrupts() -> Iterator[None]:
    """Convert the RuntimeError that DuckDB makes of Ctrl-C back to KeyboardInterrupt. Every call of a connection needs it."""
    try:
        yield
    except RuntimeError as error:
        if str(error) == _INTERRUPTED:
            raise KeyboardInterrupt from None
        raise


@contextlib.contextmanager
def _interrupt_after(limit_s: float | None, interrupt: Callable[[], None]) -> Iterator[None]:
    """Interrupt the body if it runs longer than the limit."""
    if limit_s is None:
        yield
        return
    timer = threading.Timer(limit_s, interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _RowCursor:
    """A cursor over rows that are already in memory."""

    def __init__(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self._rows = list(rows)

    def fetchmany(self, count: int) -> list[tuple[Any, ...]]:
        """Fetch the next rows."""
        rows, self._rows = self._rows[:count], self._rows[count:]
        return rows


def _import_duckdb() -> Any:
    """Import DuckDB; raise `TracekitError` if it is not installed."""
    try:
        import duckdb
    except ImportError:
        raise TracekitError("sql needs duckdb", install_command("sql")) from None
    return duckdb


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B)\s*", re.IGNORECASE)


def _open_connection(memory: str | None, threads: int | None) -> Any:
    """Open a connection that can reach only registered data, and lock its settings."""
    duckdb = _import_duckdb()
    settings: dict[str, Any] = dict(_CLOSED)
    if memory is not None:
        if not _SIZE.fullmatch(memory):
            raise TracekitError(f"--memory {memory}: not a size", "--memory 4GiB")
        settings["memory_limit"] = memory.strip()
    if threads is not None:
        settings["threads"] = threads
    connection = duckdb.connect(":memory:", config=settings)
    connection.execute("SET enable_progress_bar = false")  # it goes to stdout
    connection.execute("SET lock_configuration = true")
    return connection


def _make_scannable(array: Array) -> Array:
    """Convert an array for DuckDB to scan: distinct texts in valid UTF-8, contiguous masks.

    DuckDB 1 reads past the end of a broadcast mask (one value for all rows).
    """
    if isinstance(array, Coded):
        return encode_distinct_utf8(array)
    if isinstance(array, Nullable):
        return Nullable(np.ascontiguousarray(array.values), np.ascontiguousarray(array.missing))
    return array


def _format_view_column(name: str, array: Array) -> str:
    """Build the SELECT expression of one column of a view."""
    if not isinstance(array, Coded):
        return quote_sql_name(name)
    if not array.texts:
        return f"CAST(NULL AS VARCHAR) AS {quote_sql_name(name)}"
    return f"CAST({quote_sql_name(name)} AS VARCHAR) AS {quote_sql_name(name)}"


def encode_distinct_utf8(array: Coded) -> Coded:
    r"""Escape lone surrogates, which UTF-8 cannot encode, and give equal texts one code.

    >>> encode_distinct_utf8(Coded(np.array([1, 0, 2, -1]), ("a\udc80", "b", "b"))).texts
    ('a\\udc80', 'b')
    """
    texts = [text.encode("utf-8", "backslashreplace").decode("utf-8") for text in array.texts]
    if tuple(texts) == array.texts and len(set(texts)) == len(texts):
        return array
    code_of: dict[str, int] = {}
    table = np.full(len(texts) + 1, -1, choose_narrowest(len(texts)))
    for place, text in enumerate(texts):
        table[place] = code_of.setdefault(text, len(code_of))
    return Coded(table[array.codes], tuple(code_of))
