"""NCCL's NVTX payloads: communicators, message sizes, ranks.

Binary payloads are recorded only if the report was exported with blobs. Their layout is a table in the export, searched
by field name. If the exporter wrote the payload as JSON, its keys are the same names.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import compute_running_sums
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import select_all_rows
from tracekit.model.tables.keys import group_arrays, look_up_keys
from tracekit.readers.chrome.scan import Sparse
from tracekit.readers.nsys.gather import write_column_sql
from tracekit.readers.nsys.numbering import list_distinct_rows
from tracekit.readers.nsys.nvtx import payload_texts as nsys_payload_texts
from tracekit.readers.nsys.nvtx.rows import TABLE, NvtxRows, RowPositions, find_row_positions
from tracekit.readers.nsys.sqlite.connection import ExportDatabase, get_row_id_alias, has_table_columns
from tracekit.readers.nsys.sqlite.database import read_small_table
from tracekit.readers.nsys.sqlite.expressions import MISSING

Ints = npt.NDArray[np.int64]

ARGS = (*("Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype"), "Process Group Name")
"""Arguments that a collective's range gets, under Kineto's names."""

SCHEMAS, ENTRIES = "NVTX_PAYLOAD_SCHEMAS", "NVTX_PAYLOAD_SCHEMA_ENTRIES"
COMMUNICATOR, SIZE = "NCCL communicator ID", "Message size [bytes]"
RANKS, RANK, DEVICE = "No. of ranks", "Rank", "CUDA device"
_FIELDS = (COMMUNICATOR, SIZE, RANKS, RANK, DEVICE)

_TYPES: Mapping[int, str] = {
    **dict.fromkeys((5, 15), "<i4"),
    **dict.fromkeys((6, 16), "<u4"),
    **dict.fromkeys((7, 9, 17), "<i8"),
    **dict.fromkeys((8, 10, 18, 22), "<u8"),
}
"""NumPy type of NVTX's integer type numbers. Other types are not read."""

_HEADER = 32
"""Bytes before a payload: domain, schema, payload size and total size."""

_MAX_BYTES = 2**60
_MAX_BLOB = 4096
_BLOCK = 16_384
CALLS = (*("allreduce", "allgather", "reducescatter", "broadcast", "bcast", "reduce"), *("alltoall", "send", "recv"))
"""NCCL calls that move data, without their prefix."""

_CALL = re.compile(f"p?nccl({'|'.join(CALLS)})\\Z", re.IGNORECASE)
_GATHERS, _SCATTERS = CALLS.index("allgather"), CALLS.index("reducescatter")
_ALL_TO_ALL, _SEND, _RECV = CALLS.index("alltoall"), CALLS.index("send"), CALLS.index("recv")
_NO_CALL, _BEGINS, _ENDS = -2, -3, -4
_UNTOLD = -1
"""Unknown communicator: older NCCL records only the message size."""


@dataclass(frozen=True, slots=True)
class Payloads:
    """Decoded payload fields by row id. -1 if a payload lacks the field; no valid value is -1.

    `thread` is the profiler's thread id, `MISSING` if unknown.
    """

    row: Ints
    thread: Ints
    communicator: Ints
    size_bytes: Ints
    rank_count: Ints
    rank: Ints


def has_payloads(db: ExportDatabase) -> bool:
    """Check whether any range has a readable payload: binary with a known layout, or JSON."""
    binary = ("binaryData",) if _has_blob_columns(db) else ()
    return nsys_payload_texts.has_json_payloads(db, (*binary, *nsys_payload_texts.COLUMNS))


def has_payload_columns(db: ExportDatabase) -> bool:
    """Check whether the file has columns for readable payloads, even if they are empty."""
    return _has_blob_columns(db) or any(has_table_columns(db, TABLE, name) for name in nsys_payload_texts.COLUMNS)


def _has_blob_columns(db: ExportDatabase) -> bool:
    """Check whether the file has a column of binary payloads and the tables of their layout."""
    return has_table_columns(db, TABLE, "binaryData") and has_table_columns(
        db, ENTRIES, "schemaId", "type", "name", "offset"
    )


def is_collective_wanted(args: Collection[str]) -> bool:
    """Check whether `args` includes any argument of a collective."""
    return not set(ARGS).isdisjoint(args)


def read_collective_args(
    db: ExportDatabase, range_rows: NvtxRows, positions: npt.NDArray[np.int32], where: RowPositions
) -> dict[str, Sparse]:
    """Build the arguments of NCCL calls with a known message size among the rows `positions`, by position there.

    NCCL records only bytes, so elements are bytes and the dtype is `Byte`.
    """
    described = _read_all_payloads(db)
    calls = _classify_nccl_calls(range_rows, positions)
    rows_of = np.flatnonzero(calls != _NO_CALL)
    position, which = find_row_positions(where, described.row)
    place, is_described = look_up_keys(position, rows_of)
    slot = np.append(which, [-1])[np.where(is_described, place, -1)]
    size = np.append(described.size_bytes, [-1])[slot]
    communicator = np.append(described.communicator, [0])[slot]
    count = _look_up_rank_counts(described, communicator)
    # The size is one rank's part. The other side of a gather or scatter holds one part per rank.
    fits = (size >= 0) & (count > 0) & (size <= _MAX_BYTES // np.maximum(count, 1))
    total_bytes = np.where(fits, size * count, -1)
    call = calls[rows_of]
    columns = {
        "position": rows_of,
        "call": call,
        "size": size,
        "given": np.where(call == _SCATTERS, total_bytes, size),
        "taken": np.where(call == _GATHERS, total_bytes, size),
        "count": count,
        "communicator": communicator,
    }
    is_own = (call >= 0) & (size >= 0)
    if not is_own.any():
        return {}
    merged = _merge_nccl_groups(_list_group_members(columns, range_rows.thread[positions[rows_of]]))
    combined = {name: np.append(columns[name][is_own], array) for name, array in merged.items()}
    return _make_collective_args(select_all_rows(combined, np.argsort(combined["position"])))


def _make_collective_args(calls: Mapping[str, Ints]) -> dict[str, Sparse]:
    """Make the arguments of these calls, in order of position; without those that no call has."""
    row = calls["position"].astype(np.int32)
    name, first_of_name = group_arrays([calls["call"]])
    is_known = calls["communicator"] != _UNTOLD
    communicator = calls["communicator"][is_known]
    group, first_of_group = group_arrays([communicator])
    labels = [f"{number & (2**64 - 1):#x}" for number in communicator[first_of_group].tolist()]
    texts = [CALLS[code] for code in calls["call"][first_of_name].tolist()]
    columns = {
        "Collective name": Sparse(row, name.astype(np.int32), texts),
        "In msg nelems": _keep_known_values(row, calls["given"]),
        "Out msg nelems": _keep_known_values(row, calls["taken"]),
        "Group size": _keep_known_values(row, calls["count"]),
        "dtype": Sparse(row, np.zeros(len(row), np.int32), ["Byte"]),
        "Process Group Name": Sparse(row[is_known], group.astype(np.int32), labels),
    }
    return {key: column for key, column in columns.items() if len(column.rows)}


def _classify_nccl_calls(range_rows: NvtxRows, positions: npt.NDArray[np.int32]) -> Ints:
    """Classify each range: index in `CALLS`, `_BEGINS` and `_ENDS` for group borders, else `_NO_CALL`."""
    borders = {"ncclGroupStart": _BEGINS, "ncclGroupEnd": _ENDS}
    number = {name: code for code, name in enumerate(CALLS)}
    by_name = []
    for name in range_rows.names:
        match = _CALL.match(name)
        by_name.append(number[match[1].lower()] if match else borders.get(name, _NO_CALL))
    calls: Ints = np.array([*by_name, _NO_CALL], np.int64)[range_rows.name[positions]]
    return calls


def _list_group_members(calls: Mapping[str, Ints], thread: npt.NDArray[np.int32]) -> dict[str, Ints]:
    """List the calls inside NCCL groups, in order of groups; `position` becomes that of the group's end."""
    order = np.argsort(thread, kind="stable")
    part, thread = select_all_rows(calls, order), thread[order]
    begins, ends = part["call"] == _BEGINS, part["call"] == _ENDS
    depth = compute_running_sums(begins.astype(np.int64) - ends, thread)
    group = np.cumsum(begins & (depth == 1))
    # Once a thread ends more groups than it began, its remaining ranges are ambiguous.
    sound = compute_running_sums((depth < 0).astype(np.int64), thread) == 0
    closing = (sound & (depth == 0) & ends).nonzero()[0]
    place, is_closed = look_up_keys(group[closing], group)
    inside = (is_closed & sound & (depth >= 1) & (part["call"] >= 0)).nonzero()[0]
    return {**select_all_rows(part, inside), "position": part["position"][closing[place[inside]]]}


def _merge_nccl_groups(members: Mapping[str, Ints]) -> dict[str, Ints]:
    """Merge the calls of each NCCL group into the launch at its end.

    A group of one call is that call. A group that sends to and receives from every rank is an all-to-all. Several calls of
    one kind on one communicator become one launch ("Aggregated Operations" in NCCL's User Guide) with the sum of their
    sizes. Other groups are dropped, because the kernel of each call is unknown.
    """
    end = members["position"]
    first = np.flatnonzero(np.diff(end, prepend=-1))
    number = np.diff(first, append=len(end))
    merged = select_all_rows(members, first)
    lowest = {name: np.minimum.reduceat(array, first) for name, array in members.items()}
    highest = {name: np.maximum.reduceat(array, first) for name, array in members.items()}
    sends, receives = members["call"] == _SEND, members["call"] == _RECV
    largest = np.maximum(np.maximum(highest["size"], highest["given"]), highest["taken"])
    is_known = (lowest["size"] >= 0) & (largest.astype(np.float64) * number <= _MAX_BYTES)
    is_same = (lowest["communicator"] == highest["communicator"]) & (merged["communicator"] != _UNTOLD)
    is_fused = is_same & (lowest["call"] == highest["call"]) & (number > 1)
    is_exchange = is_same & (merged["count"] > 1) & (number == 2 * merged["count"])
    for is_part in (sends, receives):
        is_exchange &= np.add.reduceat(is_part.astype(np.int64), first) == merged["count"]
    for side, is_part in (("given", sends), ("taken", receives)):
        exchanged = np.add.reduceat(np.where(is_part, members["size"], 0), first)
        fused = np.where(lowest[side] >= 0, np.add.reduceat(members[side], first), -1)
        merged[side] = np.select([is_exchange, is_fused], [exchanged, fused], merged[side])
    merged["call"] = np.where(is_exchange, _ALL_TO_ALL, merged["call"])
    return select_all_rows(merged, is_known & (is_exchange | is_fused | (number == 1)))


def find_nccl_ranks(db: ExportDatabase) -> dict[int, tuple[int, int]]:
    """Find (rank, number of ranks) of each process in its largest communicator, as passed to NCCL's init.

    Drops processes that created several communicators of that size with different ranks.
    """
    if not has_table_columns(db, TABLE, "globalTid") or not has_payloads(db):
        return {}
    described = _read_all_payloads(db)
    sound = (described.rank >= 0) & (described.rank_count > described.rank) & (described.thread != MISSING)
    pid = (described.thread[sound] >> 24) & 0xFFFFFF
    of_pid: dict[int, set[tuple[int, int]]] = {}
    for process, count, rank in list_distinct_rows([pid, described.rank_count[sound], described.rank[sound]]):
        of_pid.setdefault(process, set()).add((count, rank))
    ranks: dict[int, tuple[int, int]] = {}
    for process, created in sorted(of_pid.items()):
        count, rank = max(created)
        if sum(size == count for size, _ in created) == 1:
            ranks[process] = rank, count
    return ranks


def _keep_known_values(row: npt.NDArray[np.int32], values: Ints) -> Sparse:
    """Keep the values that are not negative."""
    is_known = values >= 0
    return Sparse(row[is_known], values[is_known])


def _look_up_rank_counts(payloads: Payloads, communicator: Ints) -> Ints:
    """Look up the number of ranks of each communicator from its creation in this file; -1 if unknown."""
    is_usable = (payloads.rank_count > 0) & (payloads.communicator != _UNTOLD)
    count_of: dict[int, int] = {}
    for created, count in list_distinct_rows([payloads.communicator[is_usable], payloads.rank_count[is_usable]]):
        count_of[created] = -1 if created in count_of else count
    distinct, place = np.unique(communicator, return_inverse=True)
    return np.array([count_of.get(number, -1) for number in distinct.tolist()], np.int64)[place]


def _read_all_payloads(db: ExportDatabase) -> Payloads:
    """Read all payloads by row id. A binary payload takes precedence over JSON."""
    parts = [np.empty((2 + len(_FIELDS), 0), np.int64)]
    if _has_blob_columns(db):
        parts.append(_read_blob_payloads(db))
    if nsys_payload_texts.has_json_payloads(db):
        parts.append(_read_text_payloads(db))
    columns = np.hstack(parts)
    # The first of a row is its binary payload, also if pages of a damaged file repeat.
    _, first = np.unique(columns[0], return_index=True)
    row, thread, communicator, size, count, rank, _ = columns[:, first]
    return Payloads(row, thread, communicator, size, count, rank)


def _read_blob_payloads(db: ExportDatabase) -> npt.NDArray[np.int64]:
    """Read binary payloads into rows of (row id, thread, `_FIELDS`)."""
    layout = _read_payload_layouts(db)
    parts = [np.empty((2 + len(_FIELDS), 0), np.int64)]
    for blobs in _read_blobs(db):
        parts.extend(np.stack(fields) for fields in _decode_blobs(blobs, layout))
    return np.hstack(parts)


def _read_text_payloads(db: ExportDatabase) -> npt.NDArray[np.int64]:
    """Read JSON payloads with any of `_FIELDS`, in the same form as `_read_blob_payloads`."""
    text_fields = nsys_payload_texts.read(db)
    table = np.full((len(_FIELDS), len(text_fields.texts)), -1, np.int64)
    named = np.zeros(len(text_fields.texts), np.bool_)
    for text_code, text in enumerate(text_fields.texts):
        for name, value in nsys_payload_texts.parse_integer_fields(text).items():
            if name in _FIELDS:
                named[text_code] = True
                table[_FIELDS.index(name), text_code] = _normalize_field(name, value)
    has_field = named[text_fields.code]
    values = table[:, text_fields.code[has_field]]
    return np.vstack([text_fields.row[has_field], text_fields.thread[has_field], values])


def _normalize_field(name: str, value: int) -> int:
    """Normalize a field: communicator ids wrap to int64; other values outside the bounds become -1."""
    if name == COMMUNICATOR:
        return value - 2**64 if value >= 2**63 else value
    if not 0 <= value <= _MAX_BYTES:
        return -1
    return value


def _read_payload_layouts(db: ExportDatabase) -> dict[int, dict[str, tuple[int, str]]]:
    """Read the offset and type of each used field, by schema."""
    listed = read_small_table(db, ENTRIES, ("schemaId", "type", "name", "offset"))
    layouts: dict[int, dict[str, tuple[int, str]]] = {}
    for schema, type_, name, offset in sorted(set(listed), key=str):
        place = 0 if offset is None else offset
        is_readable = isinstance(schema, int) and isinstance(place, int) and type_ in _TYPES
        if is_readable and name in _FIELDS and 0 <= place <= _MAX_BLOB:
            layouts.setdefault(schema, {})[name] = (place, _TYPES[type_])
    return layouts


def _read_blobs(db: ExportDatabase) -> Iterator[tuple[Ints, Ints, npt.NDArray[np.uint8]]]:
    """Yield (row ids, threads, bytes) of payloads of equal length, in blocks."""
    row = get_row_id_alias(db.columns[TABLE])
    thread = write_column_sql(db, TABLE, "globalTid")
    sql = (
        f"SELECT {row}, iif(typeof({thread}) = 'integer', {thread}, {MISSING}), binaryData FROM {TABLE}"
        f" WHERE typeof(binaryData) = 'blob' AND length(binaryData) BETWEEN {_HEADER + 1} AND {_MAX_BLOB}"
        f" ORDER BY {row}"
    )
    try:
        cursor = db.connection.execute(sql)
        while part := cursor.fetchmany(_BLOCK):
            rows_of_length: dict[int, list[tuple[int, int, bytes]]] = {}
            for blob_row in part:
                rows_of_length.setdefault(len(blob_row[2]), []).append(blob_row)
            for blob_bytes, same_length in sorted(rows_of_length.items()):
                keys, threads, blobs = zip(*same_length, strict=True)
                raw = np.frombuffer(b"".join(blobs), np.uint8)
                yield np.array(keys, np.int64), np.array(threads, np.int64), raw.reshape(-1, blob_bytes)
    except sqlite3.DatabaseError:
        return  # rows before the damage count; reading the ranges reports it


def _decode_blobs(
    blobs: tuple[Ints, Ints, npt.NDArray[np.uint8]], layout: Mapping[int, Mapping[str, tuple[int, str]]]
) -> Iterator[list[Ints]]:
    """Decode payloads of equal length: row ids, threads and fields, one list of columns per schema."""
    keys, threads, raw = blobs
    schema = _extract_integer_field(raw, 8, "<u4")
    size = _extract_integer_field(raw, 16, "<u8")
    for schema_id in np.unique(schema).tolist():
        of_layout = (schema == schema_id) & (size >= 0) & (size <= raw.shape[1] - _HEADER)
        if schema_id not in layout or not of_layout.any():
            continue
        # Bytes beyond the recorded payload size are not part of it.
        room = size[of_layout]
        columns = [keys[of_layout], threads[of_layout]]
        for name in _FIELDS:
            place, type_ = layout[schema_id].get(name, (-1, "<u1"))
            end = place + np.dtype(type_).itemsize
            if place < 0 or _HEADER + end > raw.shape[1]:
                columns.append(np.full(len(room), -1, np.int64))
                continue
            values = _extract_integer_field(raw[of_layout], _HEADER + place, type_)
            if name == COMMUNICATOR:  # an id is any 64 bits
                columns.append(values)
                continue
            columns.append(np.where((end <= room) & (values >= 0) & (values <= _MAX_BYTES), values, -1))
        yield columns


def _extract_integer_field(raw: npt.NDArray[np.uint8], place: int, type_: str) -> Ints:
    """Extract one integer per row. Values above int64 wrap."""
    size = np.dtype(type_).itemsize
    return np.ascontiguousarray(raw[:, place : place + size]).view(type_)[:, 0].astype(np.int64)
