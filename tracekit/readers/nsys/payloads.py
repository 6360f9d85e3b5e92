"""What NCCL's NVTX ranges carry as payloads: communicators, message sizes, ranks.

A binary payload is there only if the report was exported with its blobs. Its layout is a table of fields in the
export, found by the fields' names: a field that is not listed there is not known. Where the exporter spelled the
payload out as JSON, the same names are its keys.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.records import dataclass
from tracekit.readers.chrome.scan import Sparse
from tracekit.readers.nsys import payload_texts as nsys_payload_texts
from tracekit.readers.nsys.connection import row_id
from tracekit.readers.nsys.database import MISSING, Database, has, rows
from tracekit.readers.nsys.gather import column
from tracekit.readers.nsys.nvtx_rows import TABLE, Places, Rows, placed

Ints = npt.NDArray[np.int64]

ARGS = (
    *("Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype"),
    "Process Group Name",
)
"""The arguments that a collective's range gets, under the names that Kineto has for them."""

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
"""NVTX's numbers of integer types; all others are not read."""

_HEADER = 32
"""Bytes before a payload: domain, schema, and the sizes of the payload and of the whole."""

_MAX_BYTES = 2**60
_MAX_BLOB = 4096
_BLOCK = 16_384
CALLS = (
    *("allreduce", "allgather", "reducescatter", "broadcast", "bcast", "reduce"),
    *("alltoall", "send", "recv"),
)
"""NCCL's calls that move data, as they are named behind its prefix."""

_CALL = re.compile(f"p?nccl({'|'.join(CALLS)})\\Z", re.IGNORECASE)
_GATHERS, _SCATTERS = CALLS.index("allgather"), CALLS.index("reducescatter")
_ALL_TO_ALL, _SEND, _RECV = CALLS.index("alltoall"), CALLS.index("send"), CALLS.index("recv")
_NO_CALL, _BEGINS, _ENDS = -2, -3, -4
_UNTOLD = -1
"""A communicator that is not told: older NCCL gives the message size alone."""


@dataclass(frozen=True, slots=True)
class Payloads:
    """The decoded fields by row id; -1 where a payload does not have the field (no such value can be read).

    `thread` is the profiler's number of the thread, `MISSING` where it is not known.
    """

    row: Ints
    thread: Ints
    communicator: Ints
    size_bytes: Ints
    rank_count: Ints
    rank: Ints


def recorded(db: Database) -> bool:
    """Whether the file may hold payloads that can be read: binary ones of known layout, or JSON."""
    binary = ("binaryData",) if _has_blobs(db) else ()
    return nsys_payload_texts.recorded(db, (*binary, *nsys_payload_texts.COLUMNS))


def may_hold(db: Database) -> bool:
    """Whether the file has columns for payloads that can be read, be they empty."""
    return _has_blobs(db) or any(has(db, TABLE, name) for name in nsys_payload_texts.COLUMNS)


def _has_blobs(db: Database) -> bool:
    """Whether the file may hold binary payloads and says how to read them."""
    return has(db, TABLE, "binaryData") and has(db, ENTRIES, "schemaId", "type", "name", "offset")


def wanted(args: Collection[str]) -> bool:
    """Whether any argument of a collective is among `args`."""
    return not set(ARGS).isdisjoint(args)


def collectives(
    db: Database, found: Rows, at: npt.NDArray[np.int32], where: Places
) -> dict[str, Sparse]:
    """The arguments of NCCL's calls with a known message size among the rows `at`, by position there.

    Only bytes are recorded, so elements are bytes: the type is given as `Byte`.
    """
    described = _read(db)
    calls = _calls(found, at)
    rows_of = np.flatnonzero(calls != _NO_CALL)
    position, which = placed(where, described.row)
    slot = pd.Series(which, index=position).reindex(rows_of, fill_value=-1).to_numpy()
    size = np.append(described.size_bytes, [-1])[slot]
    communicator = np.append(described.communicator, [0])[slot]
    count = _rank_counts(described, communicator)
    # The size is that of one rank's part: the other side of a gather or scatter holds as many parts as ranks.
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
    combined = pd.concat([own_rows, _grouped(frame, found.thread[at[rows_of]], size)]).sort_index()
    row = combined.index.to_numpy(np.int32)
    name, names = pd.factorize(combined["call"].to_numpy())
    is_known = combined["communicator"].to_numpy() != _UNTOLD
    group, groups = pd.factorize(combined["communicator"].to_numpy()[is_known])
    labels = [f"{number & (2**64 - 1):#x}" for number in groups.tolist()]
    texts = [CALLS[code] for code in names.tolist()]
    columns = {
        "Collective name": Sparse(row, name.astype(np.int32), texts),
        "In msg nelems": _known(row, combined["given"]),
        "Out msg nelems": _known(row, combined["taken"]),
        "Group size": _known(row, combined["count"]),
        "dtype": Sparse(row, np.zeros(len(row), np.int32), ["Byte"]),
        "Process Group Name": Sparse(row[is_known], group.astype(np.int32), labels),
    }
    return {key: column for key, column in columns.items() if len(column.rows)}


def _calls(found: Rows, at: npt.NDArray[np.int32]) -> Ints:
    """Which of `CALLS` each range is, `_BEGINS` and `_ENDS` for the borders of a group, else `_NO_CALL`."""
    borders = {"ncclGroupStart": _BEGINS, "ncclGroupEnd": _ENDS}
    number = {name: code for code, name in enumerate(CALLS)}
    by_name = []
    for name in found.names:
        match = _CALL.match(name)
        by_name.append(number[match[1].lower()] if match else borders.get(name, _NO_CALL))
    calls: Ints = np.array([*by_name, _NO_CALL], np.int64)[found.name[at]]
    return calls


def _grouped(frame: pd.DataFrame, thread: npt.NDArray[np.int32], size: Ints) -> pd.DataFrame:
    """What the ends of groups carry out, by position: NCCL launches what was called in a group when that ends.

    A group of one call is that call. One that sends to every rank and receives from every rank is an all-to-all. Several
    calls of one kind on one communicator become one launch ("Aggregated Operations" in NCCL's User Guide), which moves
    what they move together. Of all others it is not known which kernel moves what.
    """
    part = frame.assign(position=frame.index, thread=thread, size=size)
    part = part.sort_values(["thread", "position"], kind="stable")
    step = (part["call"] == _BEGINS).astype(int) - (part["call"] == _ENDS).astype(int)
    depth = step.groupby(part["thread"]).cumsum()
    part["group"] = ((part["call"] == _BEGINS) & (depth == 1)).cumsum()
    # A thread that ends more groups than it began says nothing more.
    sound = depth.groupby(part["thread"]).cummin() >= 0
    inside = part[sound & (depth >= 1) & (part["call"] >= 0)]
    last = part[sound & (depth == 0) & (part["call"] == _ENDS)].set_index("group")["position"]
    sends, receives = inside["call"] == _SEND, inside["call"] == _RECV
    members = inside.assign(
        sends=sends,
        receives=receives,
        sent=inside["size"].where(sends, 0),
        received=inside["size"].where(receives, 0),
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


def ranks(db: Database) -> dict[int, tuple[int, int]]:
    """(rank, number of ranks) of each process in its largest communicator, as NCCL was told when it made that one.

    A process that made several of that size in different places is left out.
    """
    if not has(db, TABLE, "globalTid") or not recorded(db):
        return {}
    described = _read(db)
    sound = (
        (described.rank >= 0)
        & (described.rank_count > described.rank)
        & (described.thread != MISSING)
    )
    pid = (described.thread[sound] >> 24) & 0xFFFFFF
    frame = pd.DataFrame(
        {"pid": pid, "rank": described.rank[sound], "count": described.rank_count[sound]}
    )
    largest = frame[
        frame["count"] == frame.groupby("pid")["count"].transform("max")
    ].drop_duplicates()
    single = largest[~largest["pid"].duplicated(keep=False)].sort_values("pid")
    pairs = zip(single["rank"].tolist(), single["count"].tolist(), strict=True)
    return dict(zip(single["pid"].tolist(), pairs, strict=True))


def _known(row: npt.NDArray[np.int32], values: pd.Series[int]) -> Sparse:
    """The values that are known, those that are not negative."""
    number = values.to_numpy(np.int64)
    is_known = number >= 0
    return Sparse(row[is_known], number[is_known])


def _rank_counts(told: Payloads, communicator: Ints) -> Ints:
    """The number of ranks of each communicator, as its making in this file tells; -1 where it does not."""
    is_usable = (told.rank_count > 0) & (told.communicator != _UNTOLD)
    frame = pd.DataFrame({"id": told.communicator[is_usable], "count": told.rank_count[is_usable]})
    frame = frame.drop_duplicates()
    frame = frame[~frame["id"].duplicated(keep=False)]
    counts = frame.set_index("id")["count"].reindex(communicator)
    return counts.fillna(-1).to_numpy(np.int64)


def _read(db: Database) -> Payloads:
    """All payloads that can be read, by row id; a binary one counts before its JSON."""
    parts = [np.empty((2 + len(_FIELDS), 0), np.int64)]
    if _has_blobs(db):
        parts.append(_of_blobs(db))
    if nsys_payload_texts.recorded(db):
        parts.append(_of_texts(db))
    columns = np.hstack(parts)
    # The first of a row is its binary one, also where pages of a damaged file come twice.
    _, first = np.unique(columns[0], return_index=True)
    row, thread, communicator, size, count, rank, _ = columns[:, first]
    return Payloads(row, thread, communicator, size, count, rank)


def _of_blobs(db: Database) -> npt.NDArray[np.int64]:
    """What binary payloads tell: row ids, threads and `_FIELDS`, a row each."""
    layout = _layout(db)
    parts = [np.empty((2 + len(_FIELDS), 0), np.int64)]
    for blobs in _blobs(db):
        parts.extend(map(np.stack, _decoded(blobs, layout)))
    return np.hstack(parts)


def _of_texts(db: Database) -> npt.NDArray[np.int64]:
    """What JSON payloads with any of `_FIELDS` tell, in the same form."""
    text_fields = nsys_payload_texts.read(db)
    table = np.full((len(_FIELDS), len(text_fields.texts)), -1, np.int64)
    named = np.zeros(len(text_fields.texts), np.bool_)
    for text_code, text in enumerate(text_fields.texts):
        for name, value in nsys_payload_texts.fields(text).items():
            if name in _FIELDS:
                named[text_code] = True
                table[_FIELDS.index(name), text_code] = _kept(name, value)
    has_field = named[text_fields.code]
    values = table[:, text_fields.code[has_field]]
    return np.vstack([text_fields.row[has_field], text_fields.thread[has_field], values])


def _kept(name: str, value: int) -> int:
    """A field as it is kept: a communicator's id is any 64 bits, those above int64 wrap round; others are bounded."""
    if name == COMMUNICATOR:
        return value - 2**64 if value >= 2**63 else value
    if not 0 <= value <= _MAX_BYTES:
        return -1
    return value


def _layout(db: Database) -> dict[int, dict[str, tuple[int, str]]]:
    """By schema: the place and type of each field that is used."""
    listed = rows(db, ENTRIES, ("schemaId", "type", "name", "offset"))
    layouts: dict[int, dict[str, tuple[int, str]]] = {}
    for schema, type_, name, offset in sorted(set(listed), key=str):
        place = 0 if offset is None else offset
        is_readable = isinstance(schema, int) and isinstance(place, int) and type_ in _TYPES
        if is_readable and name in _FIELDS and 0 <= place <= _MAX_BLOB:
            layouts.setdefault(schema, {})[name] = (place, _TYPES[type_])
    return layouts


def _blobs(db: Database) -> Iterator[tuple[Ints, Ints, npt.NDArray[np.uint8]]]:
    """(row ids, threads, bytes) of payloads of one length each, block by block."""
    row = row_id(db.columns[TABLE])
    thread = column(db, TABLE, "globalTid")
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
        return  # what was read before the damage counts, and the ranges tell of it


def _decoded(
    blobs: tuple[Ints, Ints, npt.NDArray[np.uint8]],
    layout: Mapping[int, Mapping[str, tuple[int, str]]],
) -> Iterator[list[Ints]]:
    """Row ids, threads and the fields of payloads of one length, one list of columns a schema."""
    keys, threads, raw = blobs
    schema = _field(raw, 8, "<u4")
    size = _field(raw, 16, "<u8")
    for schema_id in np.unique(schema).tolist():
        of_layout = (schema == schema_id) & (size >= 0) & (size <= raw.shape[1] - _HEADER)
        if schema_id not in layout or not of_layout.any():
            continue
        # What lies beyond the recorded size of the payload is not part of it.
        room = size[of_layout]
        columns = [keys[of_layout], threads[of_layout]]
        for name in _FIELDS:
            place, type_ = layout[schema_id].get(name, (-1, "<u1"))
            end = place + np.dtype(type_).itemsize
            if place < 0 or _HEADER + end > raw.shape[1]:
                columns.append(np.full(len(room), -1, np.int64))
                continue
            values = _field(raw[of_layout], _HEADER + place, type_)
            if name == COMMUNICATOR:  # an id is any 64 bits
                columns.append(values)
                continue
            columns.append(
                np.where((end <= room) & (values >= 0) & (values <= _MAX_BYTES), values, -1)
            )
        yield columns


def _field(raw: npt.NDArray[np.uint8], place: int, type_: str) -> Ints:
    """One integer of every row; those above int64 wrap round."""
    size = np.dtype(type_).itemsize
    return np.ascontiguousarray(raw[:, place : place + size]).view(type_)[:, 0].astype(np.int64)
