"""Classification of Nsight Systems files by header and table list: report, export, or neither."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from tracekit.discover.nsys_files import EXPORT_SUFFIX, FOREIGN
from tracekit.model.inputs.note_codes import Data, Reason, explain_os_error
from tracekit.readers.nsys.sqlite.opening import explain_unreadable_database, read_database_size

REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
"""Header of `.nsys-rep` and `.qdrep` of every version. ` 1.` follows until 2022, then the version."""

_VERSION = re.compile(rb"NVIDIA Tegra Profiler Report ([0-9]{4}(?:@[0-9]{1,9}){1,3})")
_AGENT = re.compile(rb"([0-9]{4}(?:\.[0-9]{1,9}){3})-[0-9a-f]{6,}(?:v[0-9]+)?:")
"""Version of the recording nsys near a report's end: the only one in the file until 2023."""

_END_MARK, _END_BYTES, _TAIL_BYTES = b"U3w[END]", 16, 1 << 20
"""End of a complete report: the list of sections, its offset in eight bytes, and the mark."""

_ROOTS = frozenset({"TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT", "EXPORT_META_DATA"})
_ACTIVITIES = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME", "SYNCHRONIZATION")
_RECORDED: Mapping[str, str] = {
    "NVTX_EVENTS": "WHERE eventType IN (59, 60, 70, 71)",
    **dict.fromkeys((f"CUPTI_ACTIVITY_KIND_{name}" for name in _ACTIVITIES), ""),
    **dict.fromkeys(("CUDA_GPU_MEMORY_USAGE_EVENTS", "GPU_METRICS", "GENERIC_EVENTS"), ""),
}
"""Tables with profile data, and the condition on rows that count: NVTX ranges, not domains and names."""

_MOST_STEPS = 100_000_000
_MOST_TABLES = 10_000
_MOST_BYTES = 1 << 24


def read_report_version(path: Path) -> tuple[int, ...] | None:
    """Read the version of the nsys that wrote a report from its header or end; None if unknown."""
    try:
        with path.open("rb") as stream:
            match = _VERSION.match(stream.read(128))
            if match:
                return tuple(int(number) for number in match[1].split(b"@"))
            stream.seek(-min(_TAIL_BYTES, os.fstat(stream.fileno()).st_size), os.SEEK_END)
            agents = _AGENT.findall(stream.read(_TAIL_BYTES))
    except OSError:
        return None
    return tuple(int(number) for number in agents[-1].split(b".")) if agents else None


def is_whole_report(path: Path) -> bool:
    """Check whether a report has the end mark that nsys writes last, at the right offset. If so, it is complete."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size < _END_BYTES:
                return False
            stream.seek(-_END_BYTES, os.SEEK_END)
            end = stream.read(_END_BYTES)
            sections = int.from_bytes(end[:8], "little")
            if not end.endswith(_END_MARK) or sections >= size - _END_BYTES:
                return False
            stream.seek(sections)
            return stream.read(1) == b"\n"
    except OSError:
        return False


def find_export_problem(path: Path) -> Reason | None:
    """Explain why a file is not an nsys export; None if its header and tables are those of an export.

    A database without tables, next to a journal that may hold them, is judged by its file name.
    """
    try:
        with path.open("rb") as stream:
            header = stream.read(100)
            size = os.fstat(stream.fileno()).st_size
    except OSError as error:
        return explain_os_error(error)
    return _find_header_problem(header, size, path) or _find_table_problem(path)


def is_read_as_export(path: Path, problem: Reason | None) -> bool:
    """Check whether to read a database with this problem as an export anyway, which reports the error."""
    return problem != FOREIGN and (problem is None or path.suffix.lower() == EXPORT_SUFFIX)


def is_empty_capture(path: Path) -> bool:
    """Check whether an export has no ranges, no CUDA calls and no GPU work. False if unknown.

    Exporters omit empty tables, so the check is cheap.
    """
    try:
        with open_bounded_database(path) as connection:
            tables = _list_sqlite_tables(connection)
            return _are_export_tables(tables) and not any(
                connection.execute(f"SELECT 1 FROM {table} {which} LIMIT 1").fetchone()
                for table, which in _RECORDED.items()
                if table in tables
            )
    except (sqlite3.Error, ValueError):
        return False


def _find_header_problem(header: bytes, size: int, path: Path) -> Reason | None:
    """Explain why the header and size rule out a complete database; None if they do not."""
    problem = explain_unreadable_database(header, size)
    if problem is not None or has_journal(path):
        return problem
    missing = read_database_size(header) - size
    if missing <= 0:
        return None
    text = f"cut off: {missing:,} bytes are missing at its end"
    return Reason("damaged-database", text, Data(missing_bytes=missing))


def _find_table_problem(path: Path) -> Reason | None:
    """Explain why the tables rule out an export; None if they do not."""
    tables: frozenset[str] = frozenset()
    problem: Reason | None = FOREIGN
    try:
        with open_bounded_database(path) as connection:
            tables = _list_sqlite_tables(connection)
    except (sqlite3.Error, ValueError) as error:
        text = f"damaged SQLite database: {error}"
        problem = Reason("damaged-database", text, Data(says=str(error)))
    if not tables and has_journal(path):  # only SQLite can read tables in a journal
        return None if path.suffix.lower() == EXPORT_SUFFIX else FOREIGN
    return None if _are_export_tables(tables) else problem


def has_journal(path: Path) -> bool:
    """Check whether SQLite has pending changes of this database in a file next to it."""
    return any(path.with_name(path.name + end).exists() for end in ("-wal", "-journal"))


@contextmanager
def open_bounded_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database read-only with bounded queries. Nothing is written."""
    address = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.set_progress_handler(lambda: 1, _MOST_STEPS)
        yield connection


def _list_sqlite_tables(connection: sqlite3.Connection) -> frozenset[str]:
    """List the table names of a database."""
    listed = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT ?", (_MOST_TABLES,))
    return frozenset(str(name) for (name,) in listed)


def _are_export_tables(tables: frozenset[str]) -> bool:
    """Check whether these tables are those of an nsys export."""
    traced = any(name.startswith("CUPTI_") or name == "NVTX_EVENTS" for name in tables)
    return "StringIds" in tables and (traced or bool(tables & _ROOTS))
