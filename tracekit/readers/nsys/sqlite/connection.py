"""Connection to an Nsight Systems export as an SQLite database, with a record of unreadable tables.

The file is untrusted: none of its code runs, nothing is written next to it, and every query is bounded.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tracekit.model.errors import TraceFormatError, make_format_error
from tracekit.model.inputs.note_codes import OPENED, UNREADABLE, Data, Reason
from tracekit.model.records import dataclass
from tracekit.model.trace import Note
from tracekit.readers.nsys.sqlite.opening import Opening, OpeningWarning, prepare_opening

apsw: Any
try:
    apsw = import_module("apsw")
except ImportError:
    apsw = None
"""Of the extra `fast`; None if not installed."""

MAX_TABLES = 10_000
NOT_AN_EXPORT = Reason("foreign-database", "an SQLite database, but no export of Nsight Systems")
ROW_BYTES = 4
"""Smallest size of a row in bytes. More rows than fit in the file mean a loop in its pages."""

STEPS = 1_000_000
"""SQLite VM steps between two checks of the step budget."""

_LENGTH_LIMIT = 64 * 2**20
_ROW_IDS = ("rowid", "_rowid_", "oid")
_KNOWN_BY = ("TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT", "EXPORT_META_DATA", "NVTX_EVENTS")
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOTADB}
_DAMAGE |= {sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_INTERRUPT}


@dataclass(frozen=True, slots=True)
class ExportDatabase:
    """An open export. `columns` maps each table to its columns.

    `lost` fills while tables are read: per table the error and the number of rows read. `quick` is a second connection
    through apsw, whose SQLite is newer; None if apsw is not installed.
    """

    path: Path
    connection: sqlite3.Connection
    columns: Mapping[str, frozenset[str]]
    size_bytes: int = 0
    warnings: tuple[OpeningWarning, ...] = ()
    lost: dict[str, LostRows] = field(default_factory=dict[str, "LostRows"])
    odd: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Number of non-integer values per (table, column) of integers."""
    looked: dict[tuple[str, ...], bool] = field(default_factory=dict[tuple[str, ...], bool])
    """Whether any of these columns has a value, per (table, columns) that were scanned completely."""
    quick: Any = None
    plain: Path | None = None
    """Path of the file if it is complete without a log or journal and nobody writes to it."""


@dataclass(frozen=True, slots=True)
class LostRows:
    """Where reading a table ended early: SQLite's message and the rows read before."""

    message: str
    rows: int


@contextmanager
def open_export(path: Path, *, with_pages: bool = False) -> Iterator[ExportDatabase]:
    """Open the database at `path` read-only. Converts SQLite errors in the body to `TraceFormatError`.

    With `with_pages`, rows may be read directly from the file's pages, which may raise `pages.DamagedPagesError`.
    """
    with prepare_opening(path) as source:
        try:
            connection = sqlite3.connect(source.uri, uri=True, isolation_level=None, timeout=2)
        except sqlite3.Error as error:
            raise _build_database_error(path, error, source) from error
        with ExitStack() as stack:
            stack.callback(connection.close)
            try:
                stop = _make_step_limit(source.size_bytes)
                database = _secure_and_describe(path, connection, source, stop)
                plain = source.plain if with_pages else None
                yield replace(database, quick=_open_with_apsw(source, stop, stack), plain=plain)
            except (sqlite3.Error, UnicodeDecodeError) as error:
                # SQLite's message may quote names in the file that are not valid text.
                raise _build_database_error(path, error, source) from error


def fetch_one_row(db: ExportDatabase, sql: str, parameters: Sequence[int | str] = ()) -> tuple[Any, ...]:
    """Fetch the only row of a numeric query, through apsw if installed."""
    if db.quick is not None:
        try:
            quick_row: tuple[Any, ...] = db.quick.execute(sql, tuple(parameters)).fetchone()
            return quick_row
        except (apsw.Error, UnicodeDecodeError):
            pass  # sqlite3 repeats the query and reports the error in its own words
    row: tuple[Any, ...] = db.connection.execute(sql, tuple(parameters)).fetchone()
    return row


def has_table_columns(db: ExportDatabase, table: str, *columns: str) -> bool:
    """Check whether the export has this table with all of these columns."""
    return table in db.columns and db.columns[table].issuperset(columns)


def quote_identifier(name: str) -> str:
    """Quote an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def get_row_id_alias(columns: frozenset[str]) -> str:
    """Find the row id alias that the table's columns do not shadow."""
    shadowed = {name.lower() for name in columns}
    return next(alias for alias in _ROW_IDS if alias not in shadowed)


def count_possible_rows(db: ExportDatabase) -> int:
    """Bound the number of rows of any table in this file."""
    return db.size_bytes // ROW_BYTES + 1


def is_page_damage(error: sqlite3.DatabaseError) -> bool:
    """Check whether SQLite found a damaged page, not an error in the query."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and code & 0xFF in _DAMAGE


def record_table_damage(db: ExportDatabase, table: str, error: Exception, count: int) -> None:
    """Record that a table could not be read to its end. Keeps the scan that read the most rows.

    Raises an error of SQLite again that is not about a damaged page.
    """
    if isinstance(error, sqlite3.DatabaseError) and not is_page_damage(error):
        raise error
    earlier = db.lost.get(table)
    if earlier is None or earlier.rows < count:
        db.lost[table] = LostRows(shorten_sqlite_message(error), count)


def shorten_sqlite_message(error: Exception) -> str:
    """Shorten SQLite's message to one line."""
    if isinstance(error, UnicodeDecodeError):
        return "a name in it is no text"
    return make_one_line(str(error))[:200]


def make_one_line(text: str) -> str:
    """Put the text on one line without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def note_export_damage(db: ExportDatabase, name: str) -> list[Note]:
    """Build notes on unreadable parts of the file, for the source of this name."""
    notes: list[Note] = []
    for warned in db.warnings:
        data = Data(state=warned.state)
        notes.append(Note("warning", OPENED, warned.text, name, data=data))
    for table, lost in sorted(db.lost.items()):
        message = f"{table}: reading ended at damage ({lost.message}); {lost.rows:,} rows were read"
        data = Data(table=table, rows=lost.rows, says=lost.message)
        notes.append(Note("data_loss", "damaged", message, name, data=data))
    for (table, column), number in sorted(db.odd.items()):
        message = f"{table}.{column}: values that are no integers count as unknown"
        data = Data(table=table, column=column)
        notes.append(Note("warning", "not-a-number", message, name, number, data=data))
    return notes


_SAFE = (
    *("trusted_schema = OFF", "query_only = ON", "temp_store = MEMORY", "mmap_size = 0"),
    *("cell_size_check = ON", "cache_size = -16000"),
)


def _open_with_apsw(source: Opening, stop: Callable[[], int], stack: ExitStack) -> Any:
    """Open a second connection through apsw with the same limits; None if that fails."""
    if apsw is None:
        return None
    try:
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        connection = apsw.Connection(source.uri, flags=flags)
        stack.callback(connection.close)
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, _LENGTH_LIMIT)
        connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
        for pragma in _SAFE:
            connection.execute(f"PRAGMA {pragma}")
        connection.set_progress_handler(lambda: bool(stop()), STEPS)
    except apsw.Error:
        return None
    return connection


def _secure_and_describe(
    path: Path, connection: sqlite3.Connection, source: Opening, stop: Callable[[], int]
) -> ExportDatabase:
    """Read the schema, after disabling code in the file. Raises `TraceFormatError` unless it is an export."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LENGTH_LIMIT)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    for pragma in _SAFE:
        connection.execute(f"PRAGMA {pragma}")
    connection.set_progress_handler(stop, STEPS)
    listed = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'"
        f" AND name NOT LIKE 'sqlite!_%' ESCAPE '!' LIMIT {MAX_TABLES}"
    ).fetchall()
    columns: dict[str, frozenset[str]] = {}
    for (name,) in listed:
        if isinstance(name, str) and (stored := _list_stored_columns(connection, name)):
            columns[name] = stored
    is_export = any(table in _KNOWN_BY or table.startswith("CUPTI_") for table in columns)
    if "StringIds" not in columns or not is_export:
        hint = "an export is made by: nsys export --type sqlite REPORT.nsys-rep"
        raise make_format_error(path, NOT_AN_EXPORT, hint)
    return ExportDatabase(path, connection, columns, source.size_bytes, source.warnings)


def _list_stored_columns(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    """List the stored columns of a table. Empty if its rows have no usable row id."""
    listed = connection.execute(f"PRAGMA table_info({quote_identifier(table)})").fetchall()
    names = frozenset(str(row[1]) for row in listed)
    if not names or {name.lower() for name in names}.issuperset(_ROW_IDS):
        return frozenset()
    try:
        connection.execute(f"SELECT {get_row_id_alias(names)} FROM {quote_identifier(table)} LIMIT 0")
    except sqlite3.OperationalError:
        return frozenset()
    return names


def _make_step_limit(size_bytes: int) -> Callable[[], int]:
    """Build a progress handler that stops queries once their total steps exceed any valid file of this size."""
    left = [50 + size_bytes // 10_000]

    def stop() -> int:
        """Count a call; returns 1 once the step budget is spent."""
        left[0] -= 1
        return int(left[0] < 0)

    return stop


def _build_database_error(path: Path, error: Exception, source: Opening) -> TraceFormatError:
    """Build the error for an unusable database."""
    says = shorten_sqlite_message(error)
    why = "; ".join((*(warned.text for warned in source.warnings), says))
    states = {warned.state for warned in source.warnings}
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    damaged = code == sqlite3.SQLITE_CORRUPT or not states.isdisjoint(("no-log", "cut"))
    reason = Reason(
        "damaged-database" if damaged else UNREADABLE, f"the SQLite file cannot be read: {why}", Data(says=says)
    )
    hint = "export it again: nsys export --type sqlite REPORT.nsys-rep"
    return make_format_error(path, reason, hint)
