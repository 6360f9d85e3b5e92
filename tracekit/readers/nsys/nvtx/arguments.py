"""Arguments of NVTX ranges: payloads, categories, and the sequence numbers and shapes of torch operators."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.tables.keys import group_arrays
from tracekit.readers.chrome.scan import Json, Sparse
from tracekit.readers.chrome.values import format_compact_json, is_too_deep
from tracekit.readers.nsys.gather import ABSENT, is_wanted_argument, write_column_sql
from tracekit.readers.nsys.nvtx import payload_texts as nsys_payload_texts
from tracekit.readers.nsys.nvtx import payloads as nsys_payloads
from tracekit.readers.nsys.nvtx.rows import (
    OP_ID,
    SEQUENCE,
    SIZES,
    TABLE,
    NvtxRows,
    RowPositions,
    find_row_positions,
    map_rows_to_positions,
    write_marker_sql,
)
from tracekit.readers.nsys.sqlite.blocks import read_column_blocks
from tracekit.readers.nsys.sqlite.connection import ExportDatabase, get_row_id_alias, has_table_columns
from tracekit.readers.nsys.sqlite.database import read_small_table, read_texts_by_id
from tracekit.readers.nsys.sqlite.expressions import MISSING

Ints = npt.NDArray[np.int64]

ARGS = (*("Sequence number", "op_id", "Input Dims", "payload", "payload fields"), *("category", "end tid"))
"""Arguments of single ranges. Those of collectives are `nsys_payloads.ARGS`."""

_WHOLE = ("uint64Value", "int64Value", "uint32Value", "int32Value")
_FRACTIONS = ("doubleValue", "floatValue")
_MAX_DIMS = 20_000
"""Character limit of recorded shapes. Longer ones are dropped; they do not belong to a matrix product."""


def is_any_argument_wanted(db: ExportDatabase, args: Collection[str] | None) -> bool:
    """Check whether any argument that the file may have is wanted. None wants all."""
    if args is None:
        return True
    return bool({*ARGS} & {*args}) or (
        nsys_payloads.is_collective_wanted(args) and nsys_payloads.has_payload_columns(db)
    )


def read(
    db: ExportDatabase, range_rows: NvtxRows, positions: npt.NDArray[np.int32], args: Collection[str] | None
) -> dict[str, Sparse]:
    """Read the wanted arguments of the rows `positions`, by position there. Omits arguments that no row has."""
    if range_rows.row is None or not len(positions):
        return {}
    with_payloads = args is None or nsys_payloads.is_collective_wanted(args)
    with_payloads = with_payloads and nsys_payloads.has_payloads(db)
    keys = _list_wanted_keys(db, args)
    if not keys and not with_payloads:
        return {}
    where = map_rows_to_positions(range_rows, positions)
    arguments: dict[str, Sparse] = {}
    for key in keys:
        argument = _read_range_argument(db, key, where, range_rows, positions)
        if argument is not None and len(argument.rows):
            arguments[key] = argument
    if with_payloads:
        for key, argument in nsys_payloads.read_collective_args(db, range_rows, positions, where).items():
            if is_wanted_argument(args, key):
                arguments[key] = argument
    return arguments


def compact_sparse_column(
    row: npt.NDArray[np.int32], values: npt.NDArray[np.generic], categories: list[str] | None
) -> Sparse:
    """Build a sparse column with only the categories in use."""
    if categories is None:
        return Sparse(row, values)
    number, first = group_arrays([values])
    return Sparse(row, number.astype(np.int32), [categories[code] for code in values[first].tolist()])


def _read_range_argument(
    db: ExportDatabase, key: str, where: RowPositions, range_rows: NvtxRows, positions: npt.NDArray[np.int32]
) -> Sparse | None:
    """Read one argument of all rows."""
    if key == "category":
        return _read_category_argument(db, where, range_rows, positions)
    if key in _TAILS:
        return _read_name_tail(db, _TAILS[key], where)
    readers: Mapping[str, Callable[[ExportDatabase, RowPositions], Sparse | None]] = {
        "Input Dims": _read_input_dims,
        "payload": _read_numeric_payload,
        "payload fields": _read_payload_fields,
        "end tid": _read_end_thread,
    }
    return readers[key](db, where)


_TAILS = {"Sequence number": SEQUENCE, "op_id": OP_ID}
"""Marker of each argument that is recorded in the tail of a name."""


def _read_name_tail(db: ExportDatabase, marker: str, where: RowPositions) -> Sparse | None:
    """Read the number after this marker in inline names."""
    if not has_table_columns(db, TABLE, "text"):
        return None
    value = f"CAST(substr(text, instr(text, '{marker}') + {len(marker)}, 18) AS INTEGER)"
    condition = f"typeof(text) = 'text' AND {write_marker_sql(marker)}"
    return _read_integer_argument(db, value, condition, where)


def _read_integer_argument(db: ExportDatabase, value: str, condition: str, where: RowPositions) -> Sparse:
    """Evaluate an SQL expression as integers in the rows that satisfy a condition."""
    row, values = _select_integer_pairs(db, value, condition)
    position, which = find_row_positions(where, row)
    return Sparse(position.astype(np.int32), values[which])


def _select_integer_pairs(db: ExportDatabase, value: str, condition: str) -> tuple[Ints, Ints]:
    """Select (row ids, integers) where the condition is true and the SQL expression is an integer."""
    pairs = [np.empty((2, 0), np.int64)]
    expressions = {"row": get_row_id_alias(db.columns[TABLE]), "value": value}
    for block in read_column_blocks(db, TABLE, (), where=condition, expressions=expressions):
        pairs.append(np.stack([block["row"], block["value"]]))
    row, values = np.hstack(pairs)
    is_known = values != MISSING
    return row[is_known], values[is_known]


def _list_wanted_keys(db: ExportDatabase, args: Collection[str] | None) -> list[str]:
    """List the `ARGS` that are wanted and that the file may have."""
    keys = [key for key in ARGS if is_wanted_argument(args, key)]
    if "Input Dims" in keys and not may_have_shapes(db):
        keys.remove("Input Dims")
    return keys


def may_have_shapes(db: ExportDatabase) -> bool:
    """Check whether any name may end in shapes. Exact if names were read from the pages."""
    return has_table_columns(db, TABLE, "text") and db.looked.get((TABLE, "text", SIZES)) is not False


def _read_input_dims(db: ExportDatabase, where: RowPositions) -> Sparse | None:
    """Read recorded shapes as Kineto writes them. Each distinct text is parsed once."""
    row = get_row_id_alias(db.columns[TABLE])
    begin = f"instr(text, '{SIZES}') + {len(SIZES) - 1}"
    sql = (
        f"SELECT {row}, substr(text, {begin}, {_MAX_DIMS + 1}) FROM {TABLE}"
        f" WHERE typeof(text) = 'text' AND {write_marker_sql(SIZES)} ORDER BY {row}"
    )
    code_of: dict[str, int] = {}
    ids: list[npt.NDArray[np.int64]] = []
    codes: list[npt.NDArray[np.int64]] = []
    try:
        cursor = db.connection.execute(sql)
        while part := cursor.fetchmany(16_384):
            row_part, texts = zip(*part, strict=True)
            codes.append(np.array([code_of.setdefault(text, len(code_of)) for text in texts], np.int64))
            ids.append(np.array(row_part, np.int64))
    except sqlite3.DatabaseError:  # reading the names reports the damage
        pass
    if not ids:
        return None
    # Pages of a damaged file may repeat, and their rows with them.
    row_ids, first = np.unique(np.concatenate(ids), return_index=True)
    # Texts that differ only after the list (input ids) are the same shapes.
    return _make_json_column(
        row_ids, np.concatenate(codes)[first], [_parse_shape_list(text) for text in code_of], where
    )


def _make_json_column(row: Ints, code: Ints, values: Iterable[str], where: RowPositions) -> Sparse:
    """Build a column of JSON texts from codes into `values`. Merges equal texts; empty texts are missing."""
    number: dict[str, int] = {}
    table = [number.setdefault(text, len(number)) if text else -1 for text in values]
    new_code = np.array(table, np.int32)[code]
    has_text = new_code >= 0
    position, which = find_row_positions(where, row[has_text])
    return compact_sparse_column(position.astype(np.int32), new_code[has_text][which], [Json(text) for text in number])


def _parse_shape_list(text: str) -> str:
    """Parse the list at the start of a text as compact JSON. Empty if it is not a list."""
    if len(text) > _MAX_DIMS:
        return ""
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return ""
    return format_compact_json(value) if isinstance(value, list) else ""


def _read_numeric_payload(db: ExportDatabase, where: RowPositions) -> Sparse | None:
    """Read the numeric payload of ranges; floats if any of them is a float."""
    integer, fraction = (write_column_sql(db, TABLE, *_WHOLE), write_column_sql(db, TABLE, *_FRACTIONS))
    parts: list[tuple[Ints, npt.NDArray[Any]]] = []
    if integer != ABSENT:
        parts.append(_select_integer_pairs(db, integer, f"{integer} IS NOT NULL"))
    if fraction != ABSENT:
        parts.append(_select_floats(db, fraction))
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return None
    row, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    _, first = np.unique(row, return_index=True)  # a row has one payload
    position, which = find_row_positions(where, row[first])
    return Sparse(position.astype(np.int32), values[first][which])


def _read_payload_fields(db: ExportDatabase, where: RowPositions) -> Sparse | None:
    """Read the JSON objects and arrays of ranges. Drops other texts and invalid JSON."""
    if not nsys_payload_texts.has_json_payloads(db):
        return None
    fields = nsys_payload_texts.read(db)
    return _make_json_column(fields.row, fields.code, [_compact_json_container(text) for text in fields.texts], where)


def _compact_json_container(text: str) -> str:
    """Parse an object or array as compact JSON. Empty for anything else."""
    if is_too_deep(text):
        return ""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return format_compact_json(value) if isinstance(value, dict | list) else ""


def _select_floats(db: ExportDatabase, value: str) -> tuple[Ints, npt.NDArray[np.float64]]:
    """Select (row ids, finite floats) where the SQL expression is a float."""
    row = get_row_id_alias(db.columns[TABLE])
    sql = f"SELECT {row}, {value} FROM {TABLE} WHERE typeof({value}) = 'real' ORDER BY {row}"
    pair = np.dtype([("row", np.int64), ("value", np.float64)])
    try:
        numbers = np.fromiter(db.connection.execute(sql), pair)
    except sqlite3.DatabaseError:
        numbers = np.empty(0, pair)
    finite = np.isfinite(numbers["value"])
    return numbers["row"][finite], numbers["value"][finite]


def _read_category_argument(
    db: ExportDatabase, where: RowPositions, range_rows: NvtxRows, positions: npt.NDArray[np.int32]
) -> Sparse | None:
    """Read the category names of ranges. Drops categories without a name."""
    names = _read_category_names(db)
    if not names:
        return None
    row, category = _select_integer_pairs(db, "category", "category > 0")
    position, which = find_row_positions(where, row)
    if not len(position):
        return None
    gtid = range_rows.gtids[range_rows.thread[positions[position]]]
    domain = range_rows.domains[range_rows.domain[positions[position]]]
    keys = [gtid >> 24, domain, category[which]]
    codes, first = group_arrays(keys)
    labels = [names.get(key, "") for key in zip(*(column[first].tolist() for column in keys), strict=True)]
    unique = sorted(set(labels) - {""})
    number = {name: code for code, name in enumerate(unique)}
    new_codes = np.array([number.get(name, -1) for name in labels], np.int32)[codes]
    has_name = new_codes >= 0
    return compact_sparse_column(position[has_name].astype(np.int32), new_codes[has_name], unique)


def _read_category_names(db: ExportDatabase) -> dict[tuple[Any, ...], str]:
    """Read category names by (process, domain, category). Of several, the last in text order is kept."""
    if not has_table_columns(db, TABLE, "category", "globalTid"):
        return {}
    columns = ("globalTid", "domainId", "category", "text", "textId")
    listed = read_small_table(db, TABLE, columns, where="eventType = 33")
    ids = {text_id for *_, text_id in listed if isinstance(text_id, int)}
    registered = read_texts_by_id(db, "StringIds", "id", "value", sorted(ids))
    names: dict[tuple[Any, ...], str] = {}
    for gtid, domain, category, text, text_id in sorted(listed, key=str):
        if isinstance(gtid, int) and isinstance(category, int):
            name = registered.get(text_id) or text
            names[gtid >> 24, domain, category] = name if isinstance(name, str) else ""
    return {key: name for key, name in names.items() if name}


def _read_end_thread(db: ExportDatabase, where: RowPositions) -> Sparse | None:
    """Find the thread on which a range ended, if it differs from the one on which it began."""
    if not has_table_columns(db, TABLE, "endGlobalTid", "globalTid"):
        return None
    condition = "endGlobalTid IS NOT NULL AND endGlobalTid <> globalTid"
    return _read_integer_argument(db, "endGlobalTid & 16777215", condition, where)
