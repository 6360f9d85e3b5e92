"""A session of DuckDB over declared tables: their rows are asked for when a statement names them.

Every table is there from the start, without rows but with its columns: a statement is checked against these before
any file is read. Texts are scanned as ENUMs and shown as VARCHAR, so that they compare, sort and join as texts do.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import filterfalse
from operator import itemgetter
from typing import Any

import numpy as np

from tracekit.model.errors import TracekitError
from tracekit.model.installed import install_command
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Array, Coded, Columns, Nullable, for_pandas, framed
from tracekit.model.tables.table import Table
from tracekit.sql import statements
from tracekit.sql.bounded_cells import bounded, merged
from tracekit.sql.messages import plain
from tracekit.sql.schema import declared, literal, quoted
from tracekit.sql.texts import utf8

Load = Callable[[Collection[str], bool], Mapping[str, Columns]]
"""The rows of tables by name, with or without the column `step` of raw ones; what nobody recorded is left out."""

_CLOSED = {
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_community_extensions": False,
    "allow_unsigned_extensions": False,
    "python_enable_replacements": False,
    "temp_directory": "",
}
"""No files, no network, no extensions, nothing of this program's own variables, nothing written to the disk."""

_BLOCK = 10_000
_INTERRUPTED = "Query interrupted"
"""How DuckDB reports a signal that Python's handler raised an exception for."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a statement gives: the names of its columns, and its rows, once."""

    names: tuple[str, ...]
    cursor: Any

    def blocks(self) -> Iterator[list[tuple[Any, ...]]]:
        """The rows, some thousands at a time."""
        while block := self._next():
            yield block

    def rows(self, limit: int) -> list[tuple[Any, ...]]:
        """The next `limit` rows."""
        return self._next(limit)

    def _next(self, limit: int = _BLOCK) -> list[tuple[Any, ...]]:
        try:
            rows: list[tuple[Any, ...]] = self.cursor.fetchmany(limit)
        except (RuntimeError, _duckdb().Error) as error:
            raise _known(error) from None
        return rows


class Session:
    """An open session; `raw` names the tables whose column `step` is made only where it is asked for."""

    def __init__(
        self,
        tables: Iterable[Table],
        load: Load,
        raw: Collection[str] = (),
        memory: str | None = None,
        threads: int | None = None,
        limit_s: float | None = None,
    ) -> None:
        """Of these tables, whose rows `load` gives; `memory` bounds what DuckDB takes, such as `4GiB`, `limit_s` its time."""
        self.tables = {table.name: table for table in tables}
        self.unfilled: set[str] = set()
        self._load, self._raw, self._limit_s = load, frozenset(raw), limit_s
        self._has_step: dict[str, bool] = {}
        self._described: set[str] = set()
        self._connection = _opened(memory, threads)
        for table in self.tables.values():
            self._execute(f"CREATE TABLE {quoted(table.name)} ({declared(table)})")

    def run(self, statement: str, most: tuple[int, int] | None = None) -> Result:
        """What one statement gives; raises `TracekitError` for anything but a query that DuckDB can answer.

        `most` are rows and the characters of a cell: DuckDB cuts what is more, before any of it is a Python object.
        """
        text = statements.single(statement, self._connection)
        meta = statements.about_tables(text, self.tables)
        if meta is not None:
            return Result(meta.names, _Rows(meta.rows(self.tables)))
        with_step = statements.may_use_step(text)
        # A table that was read without its steps lacks that column: read again, before the statement is checked.
        words = statements.words(text)
        self._fill(list(filter(words.__contains__, self._has_step)), with_step=with_step)
        self._check(text)
        names = self._names(text)
        self._fill(names, with_step=with_step)
        self._describe(self.tables if statements.asks_for_comments(text) else names)
        if most is not None and statements.is_query(text):
            return self._bounded(text, *most)
        cursor = self._execute(text)
        if statements.is_explained(text):
            plans = "\n".join(plan for _, plan in cursor.fetchall())
            return Result(("plan",), _Rows(zip(plans.splitlines())))
        return Result(tuple(map(itemgetter(0), cursor.description)), cursor)

    def _bounded(self, text: str, rows: int, characters: int) -> Result:
        """The first rows of a query, long cells cut."""
        described = self._execute(f"DESCRIBE {text}").fetchall()
        names, types = (tuple(map(itemgetter(place), described)) for place in (0, 1))
        result = Result((), self._execute(bounded(text, types, rows, characters)))
        return Result(names, _Rows(merged(row, types) for row in result.rows(rows)))

    def statements(self, text: str) -> list[str]:
        """The statements of a text, in order; raises `TracekitError` where it is no SQL."""
        return statements.several(text, self._connection)

    def interrupt(self) -> None:
        """Interrupt the statement that runs, from another thread."""
        self._connection.interrupt()

    def _check(self, text: str) -> None:
        """Nothing; raises what is wrong with a statement before any table is filled."""
        if not statements.is_query(text):
            return
        try:
            self._connection.execute(f"EXPLAIN {text}")
        except _duckdb().Error as error:
            raise plain(error, self.tables) from None

    def _names(self, text: str) -> list[str]:
        """The tables that a statement names, of those without rows; by its words where DuckDB cannot tell."""
        try:
            named = set(map(str.lower, self._connection.get_table_names(text)))
        except _duckdb().Error:
            named = statements.words(text)
            if function := statements.composed_query(text):
                raise TracekitError(
                    f"{function}(): its argument is computed, so the table that it reads is unknown",
                    "write the name of the table after FROM",
                ) from None
        return list(filter(named.__contains__, self.tables))

    def _fill(self, names: Sequence[str], *, with_step: bool) -> None:
        """Nothing; afterwards these tables have their rows."""
        is_filled = partial(self._is_filled, with_step=with_step)
        missing = list(filterfalse(is_filled, names))
        if not missing:
            return
        if not self._raw.isdisjoint(missing):
            # Rows and threads are numbered in one look at a file: what is joined by them has to be of the same look.
            before = list(filter(self._raw.__contains__, self._has_step))
            missing = list(dict.fromkeys((*before, *missing)))
            with_step = with_step or any(map(self._has_step.get, before))
        rows = self._load(missing, with_step)
        for name in missing:
            self._has_step[name] = with_step
            columns = rows.get(name)
            if columns is None:
                self.unfilled.add(name)
            else:
                self._replace(self.tables[name], columns)

    def _is_filled(self, name: str, *, with_step: bool) -> bool:
        """Whether a table has its rows, and their steps where these are asked for."""
        if name not in self._has_step:
            return False
        return (
            name in self.unfilled or self._has_step[name] or name not in self._raw or not with_step
        )

    def _replace(self, table: Table, columns: Columns) -> None:
        """Nothing; afterwards the table is a view of these rows, which are not copied."""
        name, rows = quoted(table.name), f"{table.name}__rows"
        self._execute(f"DROP {self._kind(table.name)} {name}")
        arrays, expressions = {}, []
        for column in filter(columns.arrays.__contains__, table.columns):
            arrays[column] = for_pandas(_scanned(columns[column]))
            expressions.append(_shown(column, columns[column]))
        self._connection.register(rows, framed(arrays, len(columns)))
        self._execute(f"CREATE VIEW {name} AS SELECT {', '.join(expressions)} FROM {quoted(rows)}")
        self._described.discard(table.name)

    def _kind(self, name: str) -> str:
        """What a table is to DuckDB: a view of rows, or a table without any."""
        views = self._connection.execute("SELECT view_name FROM duckdb_views()").fetchall()
        return "VIEW" if (name,) in views else "TABLE"

    def _describe(self, names: Iterable[str]) -> None:
        """Nothing; afterwards the catalogue says what these tables and their columns mean."""
        for name in set(names) - self._described:
            table = self.tables[name]
            self._execute(f"COMMENT ON {self._kind(name)} {quoted(name)} IS {literal(table.row)}")
            described = self._execute(f"SELECT * FROM {quoted(name)} LIMIT 0").description
            for column, *_ in described:
                doc = literal(table.columns[column].doc)
                self._execute(f"COMMENT ON COLUMN {quoted(name)}.{quoted(column)} IS {doc}")
            self._described.add(name)

    def _execute(self, text: str) -> Any:
        """The cursor of a statement."""
        try:
            with _interrupted_after(self._limit_s, self._connection.interrupt):
                return self._connection.execute(text)
        except (RuntimeError, _duckdb().Error) as error:
            raise _known(error, self.tables) from None


def _known(error: Exception, tables: Mapping[str, Table] | None = None) -> BaseException:
    """The error as tracekit raises it; Ctrl-C, of which DuckDB makes a RuntimeError, is a KeyboardInterrupt again."""
    if isinstance(error, _duckdb().Error):
        return plain(error, tables)
    return KeyboardInterrupt() if str(error) == _INTERRUPTED else error


@contextlib.contextmanager
def _interrupted_after(limit_s: float | None, interrupt: Callable[[], None]) -> Iterator[None]:
    """Nothing; what runs longer than the limit is interrupted."""
    if limit_s is None:
        yield
        return
    timer = threading.Timer(limit_s, interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Rows:
    """Rows that are known already, as a cursor gives them."""

    def __init__(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self._rows = list(rows)

    def fetchmany(self, count: int) -> list[tuple[Any, ...]]:
        """The next rows."""
        rows, self._rows = self._rows[:count], self._rows[count:]
        return rows


def _duckdb() -> Any:
    """The library, imported now; raises `TracekitError` where it is not installed."""
    try:
        import duckdb
    except ImportError:
        raise TracekitError("sql needs duckdb", install_command("sql")) from None
    return duckdb


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B)\s*", re.IGNORECASE)


def _opened(memory: str | None, threads: int | None) -> Any:
    """A connection that can reach nothing but what is registered with it, and stays so."""
    duckdb = _duckdb()
    settings: dict[str, Any] = dict(_CLOSED)
    if memory is not None:
        if not _SIZE.fullmatch(memory):
            raise TracekitError(f"--memory {memory}: not a size", "--memory 4GiB")
        settings["memory_limit"] = memory.strip()
    if threads is not None:
        settings["threads"] = threads
    connection = duckdb.connect(":memory:", config=settings)
    connection.execute("SET lock_configuration = true")
    return connection


def _scanned(array: Array) -> Array:
    """The array as DuckDB can scan it: texts once each, and such as UTF-8 can hold.

    What is missing lies in one piece: DuckDB 1 reads past a value that stands for all rows.
    """
    if isinstance(array, Coded):
        return utf8(array)
    if isinstance(array, Nullable):
        return Nullable(*map(np.ascontiguousarray, (array.values, array.missing)))
    return array


def _shown(name: str, array: Array) -> str:
    """The expression of one column of a view."""
    if not isinstance(array, Coded):
        return quoted(name)
    if not array.texts:
        return f"CAST(NULL AS VARCHAR) AS {quoted(name)}"
    return f"CAST({quoted(name)} AS VARCHAR) AS {quoted(name)}"
