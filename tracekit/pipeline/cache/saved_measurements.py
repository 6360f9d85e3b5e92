"""File format of saved measurements: a self-describing zip file.

    manifest.json                  uncompressed and first: the head of the file identifies it
    TABLE/COLUMN.data              raw little-endian values (int32, int64, float64, one byte per bool)
    TABLE/COLUMN.mask              one byte per row, 1 if the value is missing (Int64, Float64)
    TABLE/COLUMN.codes             int32 indices into the list of categories, -1 if missing
    TABLE/COLUMN.categories        list of categories, as JSON
    graphs/…                       dependency graphs, where they were measured (`saved_graphs`)
    pages/…                        data of the explorer page, where it was measured (`saved_pages`)

The same measurements give the same bytes. Additions to the manifest keep the version, and older readers ignore them;
incompatible changes raise it. Loading trusts no input: it checks every size before allocating and every value before
use, and raises `TraceFormatError` for any defect.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar, get_args

import numpy as np

from tracekit.analyses import list_measured_tables
from tracekit.model.errors import TraceFormatError, TracekitError, make_os_read_error
from tracekit.model.inputs.facts import convert_facts_to_json, parse_facts
from tracekit.model.inputs.note_codes import UNKNOWN, Data, Datum
from tracekit.model.inputs.saved_files import (
    HEAD_BYTES,
    MANIFEST,
    SAVED_SCHEMA,
    SavedForm,
    is_saved_measurements,
    sniff_saved_form,
)
from tracekit.model.system.files import write_atomically
from tracekit.model.tables import RAW, TABLES, Column, Table
from tracekit.model.tables.arrays import Coded, Columns, Nullable, choose_narrowest
from tracekit.model.trace import Failure, Fault, Measurements, Note, NoteSeverity, Source, Tool
from tracekit.pipeline.cache.saved_graphs import decode_graphs, encode_graphs
from tracekit.pipeline.cache.saved_pages import decode_pages, encode_pages

__all__ = [
    "HEAD_BYTES",
    "MAX_SAVED_BYTES",
    "SAVED_SCHEMA",
    "SavedForm",
    "is_saved_measurements",
    "load",
    "save",
    "sniff_saved_form",
]

T = TypeVar("T")

MAX_SAVED_BYTES = 8 << 30
"""Memory limit for the tables of one file."""
_MAX_GROWTH, _MAX_GROWTH_BASE = 200, 256 << 20
"""Limits of the unpacked size: a factor of the file's size, plus a base; measured tables reach about 50."""
_JSON_GROWTH = 24
"""Upper bound of the memory of parsed JSON, relative to its size."""

_ZIP_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
_HINT = "save it again with --save, from the profiles"

_VALUES = {"int32": "<i4", "int64": "<i8", "Int64": "<i8", "Float64": "<f8", "bool": "|u1"}
_WIDTHS = {"int32": 4, "int64": 8, "Int64": 9, "Float64": 9, "bool": 1, "category": 4}
_SOURCE_TEXTS = ("name", "reader", "tool", "run")
_SOURCE_MAYBE_TEXTS = ("role", "scope", "topology", "part", "host", "cores", "content")
_SOURCE_MAYBE_NUMBERS = ("step", "rank", "world_size", "replica", "pid")


# --- saving ---------------------------------------------------------------------------------------


def save(measurements: Measurements, path: Path | str) -> None:
    """Save `measurements` to `path`; of each source's path only the displayed name."""
    tables = _order_saved_tables(measurements.arrays)
    size = sum(len(rows) * _get_row_bytes(TABLES[name]) for name, rows in tables.items())
    if size > MAX_SAVED_BYTES:
        raise TracekitError(
            f"{path}: too much to save: the tables take {size:,} of at most {MAX_SAVED_BYTES:,} bytes",
            "save fewer ranks or steps (--ranks, --steps), or save them in several files",
        )
    manifest: dict[str, Any] = {
        "schema": SAVED_SCHEMA,
        "tables": {name: _describe_table(TABLES[name], len(rows)) for name, rows in tables.items()},
        "sources": [_encode_saved_source(source) for source in measurements.sources],
        "failures": [_encode_saved_coded(failure) for failure in measurements.failures],
        "notes": [_encode_saved_coded(note) for note in measurements.notes],
        "facts": convert_facts_to_json(measurements.facts),
    }
    if measurements.faults:
        manifest["faults"] = [asdict(fault) for fault in measurements.faults]
    manifest |= {name: True for name in ("graphs", "pages") if getattr(measurements, name)}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        _add_archive_entry(archive, MANIFEST, _encode_saved_json(manifest), zipfile.ZIP_STORED)
        for name, rows in tables.items():
            for column, kind, data in _list_column_blocks(TABLES[name], rows):
                _add_archive_entry(archive, f"{name}/{column}.{kind}", data, zipfile.ZIP_DEFLATED)
        _add_extras(archive, measurements)
    write_atomically(path, buffer.getvalue())


def _add_extras(archive: zipfile.ZipFile, measurements: Measurements) -> None:
    """Add the dependency graphs, and the page data, which is compressed."""
    sources = measurements.sources
    if measurements.graphs:
        for entry, data in encode_graphs(measurements.graphs, sources, _encode_saved_json):
            _add_archive_entry(archive, entry, data, zipfile.ZIP_DEFLATED)
    if measurements.pages:
        for entry, data in encode_pages(measurements.pages, sources, _encode_saved_json):
            _add_archive_entry(archive, entry, data, zipfile.ZIP_STORED)


def _order_saved_tables(tables: Mapping[str, Columns]) -> dict[str, Columns]:
    """Order tables as `tracekit tables` lists them."""
    return {name: tables[name] for name in _list_table_names() if name in tables}


def _list_table_names() -> list[str]:
    """List the names of all tables; loads the tables of every question."""
    return [table.name for table in (*RAW, *list_measured_tables())]


def _add_archive_entry(archive: zipfile.ZipFile, name: str, data: bytes, compression: int) -> None:
    """Add one entry without its creation time and platform, which keeps the bytes reproducible."""
    entry = zipfile.ZipInfo(name, date_time=_ZIP_TIMESTAMP)
    entry.compress_type = compression
    entry.create_system = 3
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data, compresslevel=6)


def _get_row_bytes(table: Table) -> int:
    """Get the size of one row in bytes, without categories."""
    return sum(_WIDTHS[column.dtype] for column in table.columns.values())


def _describe_table(table: Table, rows: int) -> dict[str, Any]:
    """Describe a table for the manifest."""
    columns = [{"name": name, "dtype": column.dtype} for name, column in table.columns.items()]
    return {"rows": rows, "columns": columns}


def _encode_saved_source(source: Source) -> dict[str, Any]:
    """Encode a source without path and node, which are meaningless on other machines."""
    names = (*_SOURCE_TEXTS, *_SOURCE_MAYBE_TEXTS, *_SOURCE_MAYBE_NUMBERS, "size_bytes")
    values = {name: getattr(source, name) for name in names}
    return {**values, "notes": [_encode_saved_coded(note) for note in source.notes]}


def _encode_saved_coded(coded: Note | Failure) -> dict[str, Any]:
    """Encode a note or failure with its code, and with its data if any."""
    values = {field.name: getattr(coded, field.name) for field in fields(coded)}
    data = dict(values.pop("data"))
    if data:
        values["data"] = data
    return values


def _encode_saved_json(value: Any) -> bytes:
    """Encode a value as ASCII JSON, which preserves any text."""
    try:
        return json.dumps(value).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise TracekitError(f"the facts cannot be saved: {error}", "they must be plain JSON") from error


def _list_column_blocks(table: Table, rows: Columns) -> Iterator[tuple[str, str, bytes]]:
    """List the blocks of a table in order: (column, kind, bytes)."""
    for name, column in table.columns.items():
        array = rows[name]
        if isinstance(array, Coded):
            yield name, "codes", array.codes.astype("<i4").tobytes()
            yield name, "categories", _encode_saved_json([str(text) for text in array.texts])
        elif isinstance(array, Nullable):
            values = np.where(array.missing, 0, array.values)
            yield name, "data", values.astype(_VALUES[column.dtype]).tobytes()
            yield name, "mask", array.missing.astype("|u1").tobytes()
        else:
            yield name, "data", array.astype(_VALUES[column.dtype]).tobytes()


# --- loading --------------------------------------------------------------------------------------


def load(path: Path | str, *, max_bytes: int = MAX_SAVED_BYTES) -> Measurements:
    """Load the measurements saved in `path`; raises only `TraceFormatError`, for any other file."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            return _load_archive(file, max_bytes)
    except _MalformedFile as error:
        problem = f"not readable as saved measurements: {error.problem}"
        raise TraceFormatError(path, problem, error.hint, code="unfit") from None
    except OSError as error:
        raise make_os_read_error(path, error, "check that it exists and that you may read it") from error
    except MemoryError as error:
        hint = "load it on a machine with more memory"
        raise TraceFormatError(path, "memory ran out", hint, code="out-of-memory") from error
    except Exception as error:  # zipfile, zlib and json raise a dozen kinds for damaged bytes
        problem = f"not readable as saved measurements: {type(error).__name__}: {error}"
        text = " ".join(problem.split())[:300]
        raise TraceFormatError(path, text, _HINT, code="unfit") from error


def _load_archive(file: BinaryIO, max_bytes: int) -> Measurements:
    """Load the measurements from an open file."""
    if not is_saved_measurements(file.read(HEAD_BYTES)):
        raise _MalformedFile("it does not begin like saved measurements", "give a file made with --save")
    size = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        return _decode_saved_measurements(_SavedArchive(archive, size, max_bytes))


_UNKNOWN_TABLE = "use the tracekit that saved it; with the --question that fills it, if it is of one"


class _MalformedFile(Exception):  # noqa: N818 - never leaves this module
    """A defect of the file, before its path is added."""

    def __init__(self, problem: str, hint: str = _HINT) -> None:
        super().__init__(problem)
        self.problem = problem[:300]
        self.hint = hint


class _SavedArchive:
    """Entries of the zip file, read only within their declared and expected sizes."""

    def __init__(self, archive: zipfile.ZipFile, file_bytes: int, max_bytes: int) -> None:
        self._archive = archive
        self._left = min(max_bytes, _MAX_GROWTH * file_bytes + _MAX_GROWTH_BASE)
        self._entries: dict[str, zipfile.ZipInfo] = {}
        for entry in archive.infolist():
            if entry.filename in self._entries:
                raise _MalformedFile(f"two entries are called {entry.filename!r}")
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise _MalformedFile(f"{entry.filename!r} is compressed in an unknown way")
            self._entries[entry.filename] = entry

    def reserve(self, size: int, what: str) -> None:
        """Reserve memory before allocating it; raises if the file exceeds its limit."""
        self._left -= size
        if self._left < 0:
            raise _MalformedFile(f"{what} would take more memory than a file of this size may")

    def read(self, name: str, expected: int | None = None) -> bytes:
        """Read one entry of exactly `expected` bytes; None accepts JSON of its declared size."""
        entry = self._entries.pop(name, None)
        if entry is None:
            raise _MalformedFile(f"{name!r} is missing")
        if expected is None:
            expected = entry.file_size
            self.reserve(expected * _JSON_GROWTH, repr(name))
        if entry.file_size != expected:
            raise _MalformedFile(f"{name!r} holds {entry.file_size:,} bytes instead of {expected:,}")
        with self._archive.open(entry) as stream:
            data = stream.read(expected + 1)
        if len(data) != expected:
            raise _MalformedFile(f"{name!r} ends after {len(data):,} of {expected:,} bytes")
        return data

    def json(self, name: str) -> Any:
        """Parse one entry as JSON; raises if an object repeats a key."""
        return json.loads(self.read(name), object_pairs_hook=_make_unique_object)

    def finish(self) -> None:
        """Raise if the archive contains entries that were not read."""
        if self._entries:
            raise _MalformedFile(f"unknown entry {min(self._entries)!r}")


def _make_unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object from key-value pairs; raises if a key is repeated."""
    record = dict(pairs)
    if len(record) != len(pairs):
        raise _MalformedFile("a key of its manifest is repeated")
    return record


def _decode_saved_measurements(archive: _SavedArchive) -> Measurements:
    """Decode the measurements of an archive."""
    manifest = _check_saved_object(archive.json(MANIFEST), "the manifest")
    version = _check_saved_text(manifest.get("schema"), "schema")
    if version != SAVED_SCHEMA:
        raise _MalformedFile(
            f"it is {version!r}, and this tracekit reads {SAVED_SCHEMA!r}", "use the tracekit that saved it"
        )
    names = _list_table_names()
    tables: dict[str, Columns] = {}
    for name, described in _check_saved_object(manifest.get("tables"), "tables").items():
        if name not in names:
            raise _MalformedFile(f"unknown table {name!r}", _UNKNOWN_TABLE)
        tables[name] = _decode_saved_columns(TABLES[name], described, archive)
    records = _check_saved_list(manifest.get("sources"), "sources")
    sources = tuple(_decode_saved_source(record) for record in records)
    graphs = decode_graphs(archive, sources) if manifest.get("graphs") is True else ()
    pages = decode_pages(archive, sources) if manifest.get("pages") is True else ()
    archive.finish()
    return Measurements(
        arrays=_order_saved_tables(tables),
        sources=sources,
        failures=tuple(
            _decode_saved_failure(record) for record in _check_saved_list(manifest.get("failures"), "failures")
        ),
        notes=tuple(_decode_saved_note(record) for record in _check_saved_list(manifest.get("notes"), "notes")),
        facts=parse_facts(_check_saved_object(manifest.get("facts"), "facts")),
        faults=tuple(_decode_saved_fault(record) for record in _check_saved_list(manifest.get("faults", []), "faults")),
        graphs=graphs,
        pages=pages,
    )


def _decode_saved_columns(table: Table, described: Any, archive: _SavedArchive) -> Columns:
    """Decode one table; nullable columns that the file lacks are filled with missing values."""
    described = _check_saved_object(described, table.name)
    rows = _check_saved_integer(described.get("rows"), f"rows of {table.name}", low=0)
    dtypes: dict[str, str] = {}
    for item in _check_saved_list(described.get("columns"), f"columns of {table.name}"):
        entry = _check_saved_object(item, f"columns of {table.name}")
        name = _check_saved_text(entry.get("name"), f"columns of {table.name}")
        if name in dtypes:
            raise _MalformedFile(f"two columns of {table.name} are called {name!r}")
        dtypes[name] = _check_saved_text(entry.get("dtype"), f"{table.name}.{name}")
    for name, dtype in dtypes.items():
        if name not in table.columns or table.columns[name].dtype != dtype:
            raise _MalformedFile(f"unknown column {table.name}.{name} of {dtype!r}", "use the tracekit that saved it")
    lacking = [n for n, c in table.columns.items() if n not in dtypes and not c.nullable]
    if lacking:
        raise _MalformedFile(f"{table.name} lacks {', '.join(lacking)}")
    archive.reserve(rows * _get_row_bytes(table), table.name)
    data = {name: _decode_saved_column(table, name, rows, archive) for name in table.columns if name in dtypes}
    return table.cast(data, rows)


def _decode_saved_column(table: Table, name: str, rows: int, archive: _SavedArchive) -> Any:
    """Decode one column into the array type of its table."""
    column = table.columns[name]
    entry = f"{table.name}/{name}"
    if column.dtype == "category":
        return _decode_saved_coded(column, entry, rows, archive)
    stored = np.dtype(_VALUES[column.dtype])
    values = np.frombuffer(archive.read(f"{entry}.data", rows * stored.itemsize), stored)
    if column.dtype == "bool":
        return _decode_saved_flags(values, entry)
    values = values.astype(stored.newbyteorder("="))
    if not column.nullable:
        return values
    mask = _decode_saved_flags(np.frombuffer(archive.read(f"{entry}.mask", rows), np.uint8), entry)
    return Nullable(values, mask)


def _decode_saved_flags(values: np.ndarray[Any, np.dtype[np.uint8]], entry: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Decode bytes of 0 or 1 as booleans."""
    if (values > 1).any():
        raise _MalformedFile(f"{entry} contains a truth value other than 0 and 1")
    return values.astype(np.bool_)


def _decode_saved_coded(column: Column, entry: str, rows: int, archive: _SavedArchive) -> Coded:
    """Decode a column of texts; a column with a closed set of values must contain only those."""
    codes = np.frombuffer(archive.read(f"{entry}.codes", rows * 4), "<i4").astype(np.int32)
    texts = _check_saved_texts(archive.json(f"{entry}.categories"), entry)
    if any("\ud800" <= letter <= "\udfff" for letter in set("".join(texts))):
        raise _MalformedFile(f"{entry} contains half a character")
    if len(set(texts)) != len(texts):
        raise _MalformedFile(f"{entry!r} repeats a category")
    if rows and not (codes.min() >= -1 and codes.max() < len(texts)):
        raise _MalformedFile(f"{entry} contains an unknown code")
    if column.values:
        code_of = dict(zip(column.values, count(), strict=False))
        # The last entry maps code -1, which is invalid in a column with a closed set of values.
        codes = np.array([*(code_of.get(text, -1) for text in texts), -1], np.int32)[codes]
        if (codes < 0).any():
            raise _MalformedFile(f"{entry} contains a value that is not one of {', '.join(column.values)}")
        texts = tuple(column.values)
    narrow = choose_narrowest(len(texts))
    return Coded(codes.astype(narrow), texts)


def _decode_saved_source(item: Any) -> Source:
    """Decode a source; its path is only its name."""
    record = _check_saved_object(item, "a source")
    values: dict[str, Any] = dict(zip(_SOURCE_TEXTS, _get_saved_texts(record, *_SOURCE_TEXTS), strict=True))
    for name in (*_SOURCE_MAYBE_TEXTS, *_SOURCE_MAYBE_NUMBERS):
        check = _check_saved_text if name in _SOURCE_MAYBE_TEXTS else _check_saved_integer
        values[name] = _check_saved_optional(check, record.get(name), name)
    if values["tool"] not in get_args(Tool):
        raise _MalformedFile(f"unknown tool {values['tool']!r}", "use the tracekit that saved it")
    return Source(
        path=Path(values["name"]),
        size_bytes=_check_saved_integer(record.get("size_bytes"), "size_bytes", low=0),
        notes=tuple(_decode_saved_note(note) for note in _check_saved_list(record.get("notes"), "notes")),
        **values,
    )


def _decode_saved_failure(item: Any) -> Failure:
    """Decode a failure."""
    record = _check_saved_object(item, "a failure")
    source, problem, hint = _get_saved_texts(record, "source", "problem", "hint")
    code = _check_saved_text(record.get("code", UNKNOWN), "code")
    return Failure(source, problem, hint, code, _decode_saved_coded_data(record))


def _decode_saved_coded_data(record: Mapping[str, Any]) -> Data:
    """Decode the data of a note or failure; empty if an older tracekit saved it."""
    values: dict[str, Datum] = {}
    for name, value in _check_saved_object(record.get("data", {}), "data").items():
        if isinstance(value, list):
            values[name] = _check_saved_texts(value, name)
        elif isinstance(value, str | int | float):
            values[name] = value
        else:
            _raise_wrong_kind(value, name, "a number, a text or a list of texts")
    return Data(**values)


def _decode_saved_fault(item: Any) -> Fault:
    """Decode an error of tracekit."""
    record = _check_saved_object(item, "a fault")
    question, error, source = _get_saved_texts(record, "question", "error", "source")
    action: Any = _check_saved_text(record.get("action"), "action")
    if action not in ("measured", "folded"):
        raise _MalformedFile(f"unknown action {action!r}", "use the tracekit that saved it")
    tables = _check_saved_texts(record.get("tables"), "tables")
    metrics = _check_saved_texts(record.get("metrics"), "metrics")
    pid = _check_saved_optional(_check_saved_integer, record.get("pid"), "pid")
    file = _check_saved_text(record.get("file", ""), "file")
    return Fault(question, action, error, source, pid, tables, metrics, file)


def _decode_saved_note(item: Any) -> Note:
    """Decode a note."""
    record = _check_saved_object(item, "a note")
    severity: Any = _check_saved_text(record.get("severity"), "severity")
    if severity not in get_args(NoteSeverity):
        raise _MalformedFile(f"unknown severity {severity!r}", "use the tracekit that saved it")
    code, message, source = _get_saved_texts(record, "code", "message", "source")
    times = _check_saved_integer(record.get("count"), "count", low=0)
    offset = _check_saved_optional(_check_saved_integer, record.get("offset"), "offset")
    return Note(severity, code, message, source, times, offset, _decode_saved_coded_data(record))


def _get_saved_texts(record: Mapping[str, Any], *names: str) -> list[str]:
    """Get these fields of a record; raises if one is not text."""
    return [_check_saved_text(record.get(name), name) for name in names]


def _check_saved_texts(value: Any, what: str) -> tuple[str, ...]:
    """Check that a value is a list of texts."""
    return tuple(_check_saved_text(text, what) for text in _check_saved_list(value, what))


def _check_saved_optional(check: Callable[[Any, str], T], value: Any, what: str) -> T | None:
    """Check a value with `check`, unless it is None."""
    return None if value is None else check(value, what)


def _check_saved_text(value: Any, what: str) -> str:
    """Check that a value is text."""
    return value if isinstance(value, str) else _raise_wrong_kind(value, what, "text")


def _check_saved_integer(value: Any, what: str, low: int = -(2**63)) -> int:
    """Check that a value is a 64-bit integer of at least `low`."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value < 2**63:
        return value
    return _raise_wrong_kind(value, what, "a whole number")


def _check_saved_list(value: Any, what: str) -> list[Any]:
    """Check that a value is a list."""
    return value if isinstance(value, list) else _raise_wrong_kind(value, what, "a list")


def _check_saved_object(value: Any, what: str) -> dict[str, Any]:
    """Check that a value is an object."""
    return value if isinstance(value, dict) else _raise_wrong_kind(value, what, "an object")


def _raise_wrong_kind(value: Any, what: str, wanted: str) -> NoReturn:
    """Raise the error of a value of the wrong kind."""
    raise _MalformedFile(f"{what}: {str(value)[:40]!r} is not {wanted}")
