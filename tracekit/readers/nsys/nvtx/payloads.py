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

from tracekit.model.records import dataclass
from tracekit.model.system.lazy_pandas import pd
from tracekit.readers.chrome.scan import Sparse
from tracekit.readers.nsys.gather import write_column_sql
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
    slot = pd.Series(which, index=position).reindex(rows_of, fill_value=-1).to_numpy()
    size = np.append(described.size_bytes, [-1])[slot]
    communicator = np.append(described.communicator, [0])[slot]
    count = _look_up_rank_counts(described, communicator)
    # The size is one rank's part. The other side of a gather or scatter holds one part per rank.
    fits = (size >= 0) & (count > 0) & (size <= _MAX_BYTES // np.maximum(count, 1))
    total_bytes = np.where(fits, size * count, -1)
    call = calls[rows_of]
    frame = pd.DataFrame(
        {
            "call": call,
            "given": np.where(call == _SCATTERS, total_bytes, size),
            "taken": np.where(call == _GATHERS, total_bytes, size),
            "count": count,
            "communicator": communicator,
        },
        index=rows_of,
    )
    own_rows = frame[(call >= 0) & (size >= 0)]
    if not len(own_rows):
        return {}
    combined = pd.concat(
        [own_rows, _merge_nccl_groups(frame, range_rows.thread[positions[rows_of]], size)]
    ).sort_index()
    row = combined.index.to_numpy(np.int32)
    name, names = pd.factorize(combined["call"].to_numpy())
    is_known = combined["communicator"].to_numpy() != _UNTOLD
    group, groups = pd.factorize(combined["communicator"].to_numpy()[is_known])
    labels = [f"{number & (2**64 - 1):#x}" for number in groups.tolist()]
    texts = [CALLS[code] for code in names.tolist()]
    columns = {
        "Collective name": Sparse(row, name.astype(np.int32), texts),
        "In msg nelems": _keep_known_values(row, combined["given"]),
        "Out msg nelems": _keep_known_values(row, combined["taken"]),
        "Group size": _keep_known_values(row, combined["count"]),
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


def _merge_nccl_groups(frame: pd.DataFrame, thread: npt.NDArray[np.int32], size: Ints) -> pd.DataFrame:
    """Merge the calls of each NCCL group into the launch at its end, by position.

    A group of one call is that call. A group that sends to and receives from every rank is an all-to-all. Several calls of
    one kind on one communicator become one launch ("Aggregated Operations" in NCCL's User Guide) with the sum of their
    sizes. Other groups are dropped, because the kernel of each call is unknown.
    """
    part = frame.assign(position=frame.index, thread=thread, size=size)
    part = part.sort_values(["thread", "position"], kind="stable")
    step = (part["call"] == _BEGINS).astype(int) - (part["call"] == _ENDS).astype(int)
    depth = step.groupby(part["thread"]).cumsum()
    part["group"] = ((part["call"] == _BEGINS) & (depth == 1)).cumsum()
    # Once a thread ends more groups than it began, its remaining ranges are ambiguous.
    sound = depth.groupby(part["thread"]).cummin() >= 0
    inside = part[sound & (depth >= 1) & (part["call"] >= 0)]
    last = part[sound & (depth == 0) & (part["call"] == _ENDS)].set_index("group")["position"]
    sends, receives = inside["call"] == _SEND, inside["call"] == _RECV
    members = inside.assign(
        sends=sends, receives=receives, sent=inside["size"].where(sends, 0), received=inside["size"].where(receives, 0)
    ).groupby("group")
    out = members[["call", "given", "taken", "count", "communicator"]].first()
    sums = members[["sends", "receives", "sent", "received", "given", "taken"]].sum()
    number, lowest, highest = members.size(), members.min(), members.max()
    largest = highest[["size", "given", "taken"]].max(axis=1)
    is_known = (lowest["size"] >= 0) & (largest.astype(float) * number <= _MAX_BYTES)
    is_same = (lowest["communicator"] == highest["communicator"]) & (out["communicator"] != _UNTOLD)
    fused = is_same & (lowest["call"] == highest["call"]) & (number > 1)
    for side in ("given", "taken"):
        summed = sums[side].where(lowest[side] >= 0, -1)
        out[side] = out[side].where(~fused, summed)
    exchange = is_same & (out["count"] > 1) & (number == 2 * out["count"])
    exchange &= (sums["sends"] == out["count"]) & (sums["receives"] == out["count"])
    out["call"] = out["call"].where(~exchange, _ALL_TO_ALL)
    out["given"] = out["given"].where(~exchange, sums["sent"])
    out["taken"] = out["taken"].where(~exchange, sums["received"])
    out = out[is_known & (exchange | fused | (number == 1)) & out.index.isin(last.index)]
    return out.set_index(last.reindex(out.index).to_numpy(np.int64))


def find_nccl_ranks(db: ExportDatabase) -> dict[int, tuple[int, int]]:
    """Find (rank, number of ranks) of each process in its largest communicator, as passed to NCCL's init.

    Drops processes that created several communicators of that size with different ranks.
    """
    if not has_table_columns(db, TABLE, "globalTid") or not has_payloads(db):
        return {}
    described = _read_all_payloads(db)
    sound = (described.rank >= 0) & (described.rank_count > described.rank) & (described.thread != MISSING)
    pid = (described.thread[sound] >> 24) & 0xFFFFFF
    frame = pd.DataFrame({"pid": pid, "rank": described.rank[sound], "count": described.rank_count[sound]})
    largest = frame[frame["count"] == frame.groupby("pid")["count"].transform("max")].drop_duplicates()
    single = largest[~largest["pid"].duplicated(keep=False)].sort_values("pid")
    pairs = zip(single["rank"].tolist(), single["count"].tolist(), strict=True)
    return dict(zip(single["pid"].tolist(), pairs, strict=True))


def _keep_known_values(row: npt.NDArray[np.int32], values: pd.Series[int]) -> Sparse:
    """Keep the values that are not negative."""
    number = values.to_numpy(np.int64)
    is_known = number >= 0
    return Sparse(row[is_known], number[is_known])


def _look_up_rank_counts(payloads: Payloads, communicator: Ints) -> Ints:
    """Look up the number of ranks of each communicator from its creation in this file; -1 if unknown."""
    is_usable = (payloads.rank_count > 0) & (payloads.communicator != _UNTOLD)
    frame = pd.DataFrame({"id": payloads.communicator[is_usable], "count": payloads.rank_count[is_usable]})
    frame = frame.drop_duplicates()
    frame = frame[~frame["id"].duplicated(keep=False)]
    counts = frame.set_index("id")["count"].reindex(communicator)
    return counts.fillna(-1).to_numpy(np.int64)


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
            frame = pd.DataFrame(part, columns=["row", "thread", "blob"])
            length = frame["blob"].str.len().to_numpy(np.int64)
            for blob_bytes in np.unique(length).tolist():
                same_length = frame[length == blob_bytes]
                raw = np.frombuffer(b"".join(same_length["blob"]), np.uint8)
                keys, threads = same_length[["row", "thread"]].to_numpy(np.int64).T
                yield keys, threads, raw.reshape(-1, blob_bytes)
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
