"""What NVTX ranges carry besides a name: payloads, categories, and the numbers and shapes of torch's operators."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.readers.chrome.scan import Json, Sparse
from tracekit.readers.chrome.values import compact, is_too_deep
from tracekit.readers.nsys import payload_texts as nsys_payload_texts
from tracekit.readers.nsys import payloads as nsys_payloads
from tracekit.readers.nsys.connection import row_id
from tracekit.readers.nsys.database import MISSING, Database, blocks, has, rows, texts
from tracekit.readers.nsys.gather import ABSENT, column, wanted
from tracekit.readers.nsys.nvtx_rows import (
    OP_ID,
    SEQUENCE,
    SIZES,
    TABLE,
    Places,
    Rows,
    digit_at,
    placed,
    places,
)

Ints = npt.NDArray[np.int64]

ARGS = (
    *("Sequence number", "op_id", "Input Dims", "payload", "payload fields"),
    *("category", "end tid"),
)
"""The arguments of single ranges; those of collectives are `nsys_payloads.ARGS`."""

_WHOLE = ("uint64Value", "int64Value", "uint32Value", "int32Value")
_FRACTIONS = ("doubleValue", "floatValue")
_MAX_DIMS = 20_000
"""Characters of recorded shapes; what is longer tells of no matrix product, and is left out."""


def any_wanted(db: Database, args: Collection[str] | None) -> bool:
    """Whether any argument that the file may hold is wanted; None wants all."""
    if args is None:
        return True
    return bool({*ARGS} & {*args}) or (nsys_payloads.wanted(args) and nsys_payloads.may_hold(db))


def read(
    db: Database, found: Rows, at: npt.NDArray[np.int32], args: Collection[str] | None
) -> dict[str, Sparse]:
    """The wanted arguments of the rows `at`, by position there; those that no row has are left out."""
    if found.row is None or not len(at):
        return {}
    with_payloads = args is None or nsys_payloads.wanted(args)
    with_payloads = with_payloads and nsys_payloads.recorded(db)
    keys = _keys(db, args)
    if not keys and not with_payloads:
        return {}
    where = places(found, at)
    arguments: dict[str, Sparse] = {}
    for key in keys:
        argument = _argument(db, key, where, found, at)
        if argument is not None and len(argument.rows):
            arguments[key] = argument
    if with_payloads:
        for key, argument in nsys_payloads.collectives(db, found, at, where).items():
            if wanted(args, key):
                arguments[key] = argument
    return arguments


def compacted(
    row: npt.NDArray[np.int32], values: npt.NDArray[np.generic], categories: list[str] | None
) -> Sparse:
    """A sparse column of these values, with only the categories that are used."""
    if categories is None:
        return Sparse(row, values)
    codes, used = pd.factorize(values)
    return Sparse(row, codes.astype(np.int32), [categories[code] for code in used.tolist()])


def _argument(
    db: Database, key: str, where: Places, found: Rows, at: npt.NDArray[np.int32]
) -> Sparse | None:
    """One argument of all rows."""
    readers: Mapping[str, Callable[[], Sparse | None]] = {
        "Sequence number": lambda: _tail(db, SEQUENCE, where),
        "op_id": lambda: _tail(db, OP_ID, where),
        "Input Dims": lambda: _dims(db, where),
        "payload": lambda: _payload(db, where),
        "payload fields": lambda: _fields(db, where),
        "category": lambda: _category(db, where, found, at),
        "end tid": lambda: _other_end(db, where),
    }
    return readers[key]()


def _tail(db: Database, marker: str, where: Places) -> Sparse | None:
    """The number behind this marker in inline names."""
    if not has(db, TABLE, "text"):
        return None
    value = f"CAST(substr(text, instr(text, '{marker}') + {len(marker)}, 18) AS INTEGER)"
    condition = f"typeof(text) = 'text' AND {digit_at(marker)}"
    return _whole_numbers(db, value, condition, where)


def _whole_numbers(db: Database, value: str, condition: str, where: Places) -> Sparse:
    """The integers that an SQL expression has in the rows of a condition."""
    row, values = _pairs(db, value, condition)
    position, which = placed(where, row)
    return Sparse(position.astype(np.int32), values[which])


def _pairs(db: Database, value: str, condition: str) -> tuple[Ints, Ints]:
    """(row ids, integers) of the rows of a condition in which an SQL expression is an integer."""
    pairs = [np.empty((2, 0), np.int64)]
    expressions = {"row": row_id(db.columns[TABLE]), "value": value}
    for block in blocks(db, TABLE, (), where=condition, expressions=expressions):
        pairs.append(np.stack([block["row"], block["value"]]))
    row, values = np.hstack(pairs)
    is_known = values != MISSING
    return row[is_known], values[is_known]


def _keys(db: Database, args: Collection[str] | None) -> list[str]:
    """Those of `ARGS` that are wanted and that the file may hold."""
    keys = [key for key in ARGS if wanted(args, key)]
    if "Input Dims" in keys and not may_have_shapes(db):
        keys.remove("Input Dims")
    return keys


def may_have_shapes(db: Database) -> bool:
    """Whether any name may have shapes behind it; known for sure where the names were read from the pages."""
    return has(db, TABLE, "text") and db.looked.get((TABLE, "text", SIZES)) is not False


def _dims(db: Database, where: Places) -> Sparse | None:
    """Recorded shapes as Kineto writes them; the texts that differ are few and read once."""
    row = row_id(db.columns[TABLE])
    begin = f"instr(text, '{SIZES}') + {len(SIZES) - 1}"
    sql = (
        f"SELECT {row}, substr(text, {begin}, {_MAX_DIMS + 1}) FROM {TABLE}"
        f" WHERE typeof(text) = 'text' AND {digit_at(SIZES)} ORDER BY {row}"
    )
    code_of: dict[str, int] = {}
    ids: list[npt.NDArray[np.int64]] = []
    codes: list[npt.NDArray[np.int64]] = []
    try:
        cursor = db.connection.execute(sql)
        while part := cursor.fetchmany(16_384):
            frame = pd.DataFrame(part, columns=["row", "text"])
            code, distinct = pd.factorize(frame["text"].to_numpy(object))
            numbers = [code_of.setdefault(text, len(code_of)) for text in distinct]
            codes.append(np.array(numbers, np.int64)[code])
            ids.append(frame["row"].to_numpy(np.int64))
    except sqlite3.DatabaseError:  # the names themselves were read, and tell of the damage
        pass
    if not ids:
        return None
    # Pages of a damaged file may come twice, and their rows with them.
    row_ids, first = np.unique(np.concatenate(ids), return_index=True)
    # Different tails of one list (ids of inputs follow it) are the same shapes.
    return _texts(row_ids, np.concatenate(codes)[first], map(_shapes, code_of), where)


def _texts(row: Ints, code: Ints, values: Iterable[str], where: Places) -> Sparse:
    """The JSON of these rows, by their codes into `values`, of which several may be equal; an empty one is none."""
    number: dict[str, int] = {}
    table = [number.setdefault(text, len(number)) if text else -1 for text in values]
    new_code = np.array(table, np.int32)[code]
    has_text = new_code >= 0
    position, which = placed(where, row[has_text])
    return compacted(position.astype(np.int32), new_code[has_text][which], list(map(Json, number)))


def _shapes(text: str) -> str:
    """The list that a text begins with, as compact JSON; empty where it is no list of lists of numbers."""
    if len(text) > _MAX_DIMS:
        return ""
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return ""
    return compact(value) if isinstance(value, list) else ""


def _payload(db: Database, where: Places) -> Sparse | None:
    """The number that a range was given; floats where any of them is one."""
    integer, fraction = column(db, TABLE, *_WHOLE), column(db, TABLE, *_FRACTIONS)
    parts: list[tuple[Ints, npt.NDArray[Any]]] = []
    if integer != ABSENT:
        parts.append(_pairs(db, integer, f"{integer} IS NOT NULL"))
    if fraction != ABSENT:
        parts.append(_floats(db, fraction))
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return None
    row, values = map(np.concatenate, zip(*parts, strict=True))
    _, first = np.unique(row, return_index=True)  # a row has one payload
    position, which = placed(where, row[first])
    return Sparse(position.astype(np.int32), values[first][which])


def _fields(db: Database, where: Places) -> Sparse | None:
    """The JSON objects and arrays that ranges carry; what is neither, or does not parse, is left out."""
    if not nsys_payload_texts.recorded(db):
        return None
    fields = nsys_payload_texts.read(db)
    return _texts(fields.row, fields.code, map(_container, fields.texts), where)


def _container(text: str) -> str:
    """An object or array as compact JSON; empty for any other text."""
    if is_too_deep(text):
        return ""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return compact(value) if isinstance(value, dict | list) else ""


def _floats(db: Database, value: str) -> tuple[Ints, npt.NDArray[np.float64]]:
    """(row ids, finite numbers) of the rows in which an SQL expression is one with a fraction."""
    row = row_id(db.columns[TABLE])
    sql = f"SELECT {row}, {value} FROM {TABLE} WHERE typeof({value}) = 'real' ORDER BY {row}"
    pair = np.dtype([("row", np.int64), ("value", np.float64)])
    try:
        numbers = np.fromiter(db.connection.execute(sql), pair)
    except sqlite3.DatabaseError:
        numbers = np.empty(0, pair)
    finite = np.isfinite(numbers["value"])
    return numbers["row"][finite], numbers["value"][finite]


def _category(db: Database, where: Places, found: Rows, at: npt.NDArray[np.int32]) -> Sparse | None:
    """The names of the ranges' categories; those without a name are left out."""
    names = _category_names(db)
    if not names:
        return None
    row, category = _pairs(db, "category", "category > 0")
    position, which = placed(where, row)
    if not len(position):
        return None
    gtid = found.gtids[found.thread[at[position]]]
    domain = found.domains[found.domain[at[position]]]
    keys = pd.MultiIndex.from_arrays([gtid >> 24, domain, category[which]])
    codes, distinct = pd.factorize(keys)
    labels = [names.get(key, "") for key in distinct.tolist()]
    unique = sorted(set(labels) - {""})
    number = {name: code for code, name in enumerate(unique)}
    new_codes = np.array([number.get(name, -1) for name in labels], np.int32)[codes]
    has_name = new_codes >= 0
    return compacted(position[has_name].astype(np.int32), new_codes[has_name], unique)


def _category_names(db: Database) -> dict[tuple[Any, ...], str]:
    """The names of categories by (process, domain, category); of several the last by their texts counts."""
    if not has(db, TABLE, "category", "globalTid"):
        return {}
    columns = ("globalTid", "domainId", "category", "text", "textId")
    listed = rows(db, TABLE, columns, where="eventType = 33")
    ids = {text_id for *_, text_id in listed if isinstance(text_id, int)}
    registered = texts(db, "StringIds", "id", "value", sorted(ids))
    names: dict[tuple[Any, ...], str] = {}
    for gtid, domain, category, text, text_id in sorted(listed, key=str):
        if isinstance(gtid, int) and isinstance(category, int):
            name = registered.get(text_id) or text
            names[gtid >> 24, domain, category] = name if isinstance(name, str) else ""
    return {key: name for key, name in names.items() if name}


def _other_end(db: Database, where: Places) -> Sparse | None:
    """The thread on which a range ended, where that is another than the one on which it began."""
    if not has(db, TABLE, "endGlobalTid", "globalTid"):
        return None
    condition = "endGlobalTid IS NOT NULL AND endGlobalTid <> globalTid"
    return _whole_numbers(db, "endGlobalTid & 16777215", condition, where)
