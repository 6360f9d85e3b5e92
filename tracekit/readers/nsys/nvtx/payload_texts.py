"""JSON payloads of NVTX ranges: decoded by the exporter, or given as JSON by the program.

`jsonTextId` refers to StringIds: nsys 2022.4 and 2024.2 export a registered string payload that way.
In `jsonText` some exporters write the decoded `binaryData`, `{"Message size [bytes]": 4096, …}`, with the schema's
field names. That form is known only from third-party scripts; those two versions omit it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.readers.nsys.content import drop_unknown_facts
from tracekit.readers.nsys.gather import write_column_sql
from tracekit.readers.nsys.numbering import assign_limited_code
from tracekit.readers.nsys.nvtx.rows import TABLE
from tracekit.readers.nsys.sqlite.connection import (
    ExportDatabase,
    get_row_id_alias,
    has_table_columns,
    is_page_damage,
    record_table_damage,
)
from tracekit.readers.nsys.sqlite.database import TEXT_LIMIT, read_texts_by_id
from tracekit.readers.nsys.sqlite.expressions import MISSING

Ints = npt.NDArray[np.int64]

COLUMNS = ("jsonText", "jsonTextId")
"""Columns with JSON."""

MAX_TEXT = TEXT_LIMIT
"""Character limit of a payload; longer ones are dropped."""

MAX_TEXTS = 100_000
"""Most distinct texts kept per file, in stored order."""

_BLOCK = 16_384
_MAX_INTEGER = 2**64 - 1


@dataclass(frozen=True, slots=True)
class PayloadTexts:
    """Rows with a JSON payload, sorted by row id. `code` is an index into the distinct `texts`.

    `thread` is the profiler's thread id, `MISSING` if unknown.
    """

    row: Ints
    thread: Ints
    code: Ints
    texts: list[str]


def has_json_payloads(db: ExportDatabase, columns: Sequence[str] = COLUMNS) -> bool:
    """Check whether any range has a value in these columns (default: JSON). The result is cached per file."""
    present = [name for name in columns if has_table_columns(db, TABLE, name)]
    if not present:
        return False
    key = (TABLE, *present)
    if key not in db.looked:
        # The row reader may already have checked each column.
        has_value = [db.looked.get((TABLE, name)) for name in present]
        db.looked[key] = _has_any_value(db, present) if None in has_value else any(has_value)
    return db.looked[key]


def _has_any_value(db: ExportDatabase, columns: Sequence[str]) -> bool:
    """Check whether any row has a value in these columns. True if the table is damaged."""
    wanted = " OR ".join(f"{name} IS NOT NULL" for name in columns)
    sql = f"SELECT 1 FROM {TABLE} WHERE {wanted} LIMIT 1"
    try:
        return db.connection.execute(sql).fetchone() is not None
    except sqlite3.DatabaseError as error:
        if not is_page_damage(error):
            raise
        return True  # rows before the damage may have one


def read(db: ExportDatabase) -> PayloadTexts:
    """Read the JSON payloads. Inline text takes precedence over StringIds."""
    inline, number, thread = (write_column_sql(db, TABLE, name) for name in (*COLUMNS, "globalTid"))
    row = get_row_id_alias(db.columns[TABLE])
    text = f"iif(typeof({inline}) = 'text' AND length({inline}) < {MAX_TEXT}, {inline}, NULL)"
    sql = (
        f"SELECT {row}, iif(typeof({thread}) = 'integer', {thread}, {MISSING}), {text}, iif(typeof({number}) = 'integer', {number}, NULL) FROM {TABLE}"
        f" WHERE {inline} IS NOT NULL OR {number} IS NOT NULL ORDER BY {row}"
    )
    code_of: dict[str | int, int] = {}
    rows: list[Ints] = []
    codes: list[Ints] = []
    try:
        cursor = db.connection.execute(sql)
        while part := cursor.fetchmany(_BLOCK):
            row_part, thread_part, texts, ids = zip(*part, strict=True)
            keys = [text_id if text is None else text for text, text_id in zip(texts, ids, strict=True)]
            numbers = [-1 if key is None else assign_limited_code(code_of, key, MAX_TEXTS) for key in keys]
            codes.append(np.array(numbers, np.int64))
            rows.append(np.array((row_part, thread_part), np.int64))
    except sqlite3.DatabaseError as error:
        record_table_damage(db, TABLE, error, sum(part.shape[1] for part in rows))
    code, distinct_texts = _resolve_text_ids(db, codes, list(code_of))
    row_ids, threads = np.hstack([np.empty((2, 0), np.int64), *rows])
    # Pages of a damaged file may repeat, and their rows with them.
    _, first = np.unique(row_ids, return_index=True)
    known_rows = first[code[first] >= 0]
    return PayloadTexts(row_ids[known_rows], threads[known_rows], code[known_rows], distinct_texts)


def parse_integer_fields(text: str) -> Mapping[str, int]:
    """Parse the integers of a JSON object by name. Empty for anything else.

    >>> parse_integer_fields('{"Rank": 3, "size": "64", "share": 0.5, "name": "x"}')
    {'Rank': 3, 'size': 64}
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    return drop_unknown_facts({name: _parse_integer_field(value) for name, value in values.items()})


def _parse_integer_field(value: Any) -> int | None:
    """Parse an integer of at most 64 bits, also from text; None for anything else."""
    if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -(2**63) <= value <= _MAX_INTEGER else None


def _resolve_text_ids(db: ExportDatabase, codes: Sequence[Ints], keys: Sequence[str | int]) -> tuple[Ints, list[str]]:
    """Resolve text ids: (text code of each row, -1 for none; the texts)."""
    # StringIds texts are cut at `MAX_TEXT`. A text of that length may be cut, so it is not valid JSON.
    ids = [key for key in keys if isinstance(key, int)]
    registered = read_texts_by_id(db, "StringIds", "id", "value", ids)
    place: dict[str, int] = {}
    table = []
    for key in keys:
        text = registered.get(key, "") if isinstance(key, int) else key
        usable = 0 < len(text) < MAX_TEXT
        table.append(place.setdefault(text, len(place)) if usable else -1)
    code = np.concatenate([*codes, np.empty(0, np.int64)])
    return np.array([*table, -1], np.int64)[code], list(place)
