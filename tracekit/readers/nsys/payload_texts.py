"""The JSON that NVTX ranges carry: payloads that an exporter decoded, or that the program gave as JSON itself.

`jsonTextId` names a text of StringIds: so nsys 2022.4 and 2024.2 export a registered string that is given as payload.
In `jsonText` some exporters spell out what `binaryData` holds, `{"Message size [bytes]": 4096, …}`, under the names
that the schema has for its fields; that form is known from scripts of others that read it, those two versions leave it out.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.records import dataclass
from tracekit.readers.nsys.connection import damaged, is_damage, row_id
from tracekit.readers.nsys.content import without_unknown
from tracekit.readers.nsys.database import MISSING, TEXT_LIMIT, Database, has, texts
from tracekit.readers.nsys.gather import column
from tracekit.readers.nsys.nvtx_rows import TABLE

Ints = npt.NDArray[np.int64]

COLUMNS = ("jsonText", "jsonTextId")
"""Where an export holds JSON."""

MAX_TEXT = TEXT_LIMIT
"""A payload of so many characters is left out."""

MAX_TEXTS = 100_000
"""Most different texts of a file that are kept, those stored first."""

_BLOCK = 16_384
_MAX_INTEGER = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Texts:
    """The rows that carry JSON, by row id in ascending order: `code` into the `texts`, each of which is there once.

    `thread` is the profiler's number of the thread, `MISSING` where it is not known.
    """

    row: Ints
    thread: Ints
    code: Ints
    texts: list[str]


def recorded(db: Database, columns: Sequence[str] = COLUMNS) -> bool:
    """Whether any range has a value in one of these columns, by default those of JSON; a file is looked through once."""
    present = [name for name in columns if has(db, TABLE, name)]
    if not present:
        return False
    key = (TABLE, *present)
    if key not in db.looked:
        # Who reads the rows may have looked at each column by itself.
        has_value = [db.looked.get((TABLE, name)) for name in present]
        db.looked[key] = _any_value(db, present) if None in has_value else any(has_value)
    return db.looked[key]


def _any_value(db: Database, columns: Sequence[str]) -> bool:
    wanted = " OR ".join(f"{name} IS NOT NULL" for name in columns)
    sql = f"SELECT 1 FROM {TABLE} WHERE {wanted} LIMIT 1"
    try:
        return db.connection.execute(sql).fetchone() is not None
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return True  # what lies before the damage may


def read(db: Database) -> Texts:
    """What the rows carry; the inline text counts before the one in StringIds."""
    inline, number, thread = (column(db, TABLE, name) for name in (*COLUMNS, "globalTid"))
    row = row_id(db.columns[TABLE])
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
            frame = pd.DataFrame(part, columns=["row", "thread", "text", "id"], dtype=object)
            text_or_id = frame["text"].where(frame["text"].notna(), frame["id"])
            code, distinct = pd.factorize(text_or_id.to_numpy(object))
            numbers = [_code(code_of, entry) for entry in distinct]
            codes.append(np.array([*numbers, -1], np.int64)[code])
            rows.append(frame[["row", "thread"]].to_numpy(np.int64).T)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        damaged(db, TABLE, error, sum(part.shape[1] for part in rows))
    code, distinct_texts = _resolved(db, codes, list(code_of))
    row_ids, threads = np.hstack([np.empty((2, 0), np.int64), *rows])
    # Pages of a damaged file may come twice, and their rows with them.
    _, first = np.unique(row_ids, return_index=True)
    known_rows = first[code[first] >= 0]
    return Texts(row_ids[known_rows], threads[known_rows], code[known_rows], distinct_texts)


def fields(text: str) -> Mapping[str, int]:
    """The whole numbers of an object by their names; none of anything else.

    >>> fields('{"Rank": 3, "size": "64", "share": 0.5, "name": "x"}')
    {'Rank': 3, 'size': 64}
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    return without_unknown({name: _whole(value) for name, value in values.items()})


def _whole(value: Any) -> int | None:
    """A whole number of at most 64 bits, also one written as text; None for anything else."""
    if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -(2**63) <= value <= _MAX_INTEGER else None


def _code(code_of: dict[str | int, int], key: str | int) -> int:
    """The number of a text or of the id of one, -1 beyond the most that are kept."""
    if len(code_of) >= MAX_TEXTS:
        return code_of.get(key, -1)
    return code_of.setdefault(key, len(code_of))


def _resolved(
    db: Database, codes: Sequence[Ints], keys: Sequence[str | int]
) -> tuple[Ints, list[str]]:
    """(the text of each row, -1 for none; the texts): ids are looked up."""
    # Texts of StringIds come cut at `MAX_TEXT`: one of that length may be such, and is no JSON any more.
    ids = [key for key in keys if isinstance(key, int)]
    registered = texts(db, "StringIds", "id", "value", ids)
    place: dict[str, int] = {}
    table = []
    for key in keys:
        text = registered.get(key, "") if isinstance(key, int) else key
        usable = 0 < len(text) < MAX_TEXT
        table.append(place.setdefault(text, len(place)) if usable else -1)
    code = np.concatenate([*codes, np.empty(0, np.int64)])
    return np.array([*table, -1], np.int64)[code], list(place)
