"""What a file of Nsight Systems is, from its head and its list of tables: report, export, or neither."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from tracekit.discover.nsys_files import EXPORT_SUFFIX, FOREIGN
from tracekit.model.codes import Data, Reason, why_unread
from tracekit.readers.nsys.opening import full_size, unreadable

REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
"""The head of `.nsys-rep` and `.qdrep` of every version; ` 1.` follows until 2022, then the version."""

_VERSION = re.compile(rb"NVIDIA Tegra Profiler Report ([0-9]{4}(?:@[0-9]{1,9}){1,3})")
_AGENT = re.compile(rb"([0-9]{4}(?:\.[0-9]{1,9}){3})-[0-9a-f]{6,}(?:v[0-9]+)?:")
"""How a report names the nsys that recorded it, near its end: that is all that one says until 2023."""

_END_MARK, _END_BYTES, _TAIL_BYTES = b"U3w[END]", 16, 1 << 20
"""A whole report ends with its list of sections, eight bytes that say where that begins, and the mark."""

_ROOTS = frozenset({"TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT", "EXPORT_META_DATA"})
_ACTIVITIES = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME", "SYNCHRONIZATION")
_RECORDED: Mapping[str, str] = {
    "NVTX_EVENTS": "WHERE eventType IN (59, 60, 70, 71)",
    **dict.fromkeys((f"CUPTI_ACTIVITY_KIND_{name}" for name in _ACTIVITIES), ""),
    **dict.fromkeys(("CUDA_GPU_MEMORY_USAGE_EVENTS", "GPU_METRICS", "GENERIC_EVENTS"), ""),
}
"""What one profiles for, by table, and which of its rows count: of NVTX ranges, not domains and names."""

_MOST_STEPS = 100_000_000
_MOST_TABLES = 10_000
_MOST_BYTES = 1 << 24


def report_version(path: Path) -> tuple[int, ...] | None:
    """The version of the nsys that wrote a report, by its head or its end; None where neither says."""
    try:
        with path.open("rb") as stream:
            match = _VERSION.match(stream.read(128))
            if match:
                return tuple(map(int, match[1].split(b"@")))
            stream.seek(-min(_TAIL_BYTES, os.fstat(stream.fileno()).st_size), os.SEEK_END)
            agents = _AGENT.findall(stream.read(_TAIL_BYTES))
    except OSError:
        return None
    return tuple(map(int, agents[-1].split(b"."))) if agents else None


def is_whole_report(path: Path) -> bool:
    """Whether a report has the end that nsys writes last, where its length says: then nothing of it was cut off."""
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


def export_problem(path: Path) -> Reason | None:
    """Why a file is no export of nsys; None if it is one as far as its header and tables show.

    A database without a table, beside a journal of SQLite that may hold them, is taken for one by its name.
    """
    try:
        with path.open("rb") as stream:
            header = stream.read(100)
            size = os.fstat(stream.fileno()).st_size
    except OSError as error:
        return why_unread(error)
    return _header_problem(header, size, path) or _table_problem(path)


def is_claimed(path: Path, problem: Reason | None) -> bool:
    """Whether a database with that problem should be read as an export all the same, for the error to be seen."""
    return problem != FOREIGN and (problem is None or path.suffix.lower() == EXPORT_SUFFIX)


def is_empty_capture(path: Path) -> bool:
    """Whether an export holds no range, no CUDA call and no GPU work; False where that cannot be told.

    Exporters leave out empty tables, so that this asks little of a file.
    """
    try:
        with _opened(path) as connection:
            tables = _names(connection)
            return _is_export(tables) and not any(
                connection.execute(f"SELECT 1 FROM {table} {which} LIMIT 1").fetchone()
                for table, which in _RECORDED.items()
                if table in tables
            )
    except (sqlite3.Error, ValueError):
        return False


def _header_problem(header: bytes, size: int, path: Path) -> Reason | None:
    """What the first bytes and the size of a file say against its being a whole database."""
    problem = unreadable(header, size)
    if problem is not None or has_journal(path):
        return problem
    missing = full_size(header) - size
    if missing <= 0:
        return None
    text = f"cut off: {missing:,} bytes are missing at its end"
    return Reason("damaged-database", text, Data(missing_bytes=missing))


def _table_problem(path: Path) -> Reason | None:
    """What the tables of a database say against its being an export."""
    tables: frozenset[str] = frozenset()
    problem: Reason | None = FOREIGN
    try:
        tables = _tables(path)
    except (sqlite3.Error, ValueError) as error:
        text = f"damaged SQLite database: {error}"
        problem = Reason("damaged-database", text, Data(says=str(error)))
    if not tables and has_journal(path):  # what is in the journal only its reader can tell
        return None if path.suffix.lower() == EXPORT_SUFFIX else FOREIGN
    return None if _is_export(tables) else problem


def has_journal(path: Path) -> bool:
    """Whether SQLite keeps changes of this database in a file beside it."""
    return any(path.with_name(path.name + end).exists() for end in ("-wal", "-journal"))


def _tables(path: Path) -> frozenset[str]:
    """The names of the tables."""
    with _opened(path) as connection:
        return _names(connection)


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The database at `path`; nothing is written, neither to the file nor beside it, and no query runs for ever."""
    address = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.set_progress_handler(lambda: 1, _MOST_STEPS)
        yield connection


def _names(connection: sqlite3.Connection) -> frozenset[str]:
    """The names of the tables of a database."""
    listed = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' LIMIT ?", (_MOST_TABLES,)
    )
    return frozenset(str(name) for (name,) in listed)


def _is_export(tables: frozenset[str]) -> bool:
    """Whether these tables are those of nsys."""
    traced = any(name.startswith("CUPTI_") or name == "NVTX_EVENTS" for name in tables)
    return "StringIds" in tables and (traced or bool(tables & _ROOTS))
