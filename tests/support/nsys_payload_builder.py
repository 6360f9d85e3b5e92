"""Calls of NCCL with the binary payloads that its NVTX ranges carry, laid out by hand, and what the reader makes of them."""

import struct

from nsys_builder import PID, nvtx

from tracekit.readers.nsys import content as nsys_content
from tracekit.readers.nsys.nvtx import ranges as nsys_nvtx
from tracekit.readers.nsys.sqlite.connection import open_export

COMMUNICATOR, WORLD = 0xFEDC_BA98_7654_3210, 4
SIZED, INIT, PEER = 0x1000004, 0x1000002, 0x100000A
U64, INT, SIZE = 18, 5, 22
ENTRIES = {
    SIZED: [("NCCL communicator ID", U64, None), ("Message size [bytes]", SIZE, 8)],
    PEER: [("NCCL communicator ID", U64, None), ("Message size [bytes]", SIZE, 8), ("Peer rank", INT, 16)],
    INIT: [("NCCL communicator ID", U64, None), ("No. of ranks", INT, 8), ("Rank", INT, 12), ("CUDA device", INT, 16)],
}  # fmt: skip


def layout(times=1):
    return [
        ("NVTX_PAYLOAD_SCHEMA_ENTRIES",
         {"domainId": 1, "schemaId": schema, "idx": i, "type": type_, "name": name, "offset": offset})
        for _ in range(times)
        for schema, fields in ENTRIES.items()
        for i, (name, type_, offset) in enumerate(fields)
    ]  # fmt: skip


def blob(schema, payload, size=None):
    size = len(payload) if size is None else size
    return struct.pack("<IIIIQQ", 1, 0, schema, 0, size, size + 32) + payload


def sized(size, communicator=COMMUNICATOR):
    return blob(SIZED, struct.pack("<QQ", communicator, size))


def peer(size, rank, communicator=COMMUNICATOR):
    return blob(PEER, struct.pack("<QQii", communicator, size, rank, 0))


def init(rank, world=WORLD, communicator=COMMUNICATOR):
    return blob(INIT, struct.pack("<Qiiii", communicator, world, rank, 0, 0))


def call(name, start, data=None, **more):
    return nvtx(name, start, start + 10, domain=1, registered=True, binaryData=data, **more)


def told(path, pid=PID, args=None):
    """{(name, start): {argument: value}} of the ranges of a process."""
    with open_export(path) as db:
        clock, _ = nsys_content.read_export_clock(db)
        rows = nsys_nvtx.select_complete_ranges(nsys_nvtx.read_nvtx_ranges(db, clock, args), pid)
    found = {}
    for key, column in rows.args.items():
        values = column.values.tolist()
        if column.categories is not None:
            values = [column.categories[code] for code in values]
        for row, value in zip(column.rows.tolist(), values, strict=True):
            place = (rows.name.texts[rows.name.codes[row]], int(rows.ts_ns[row] - clock.base_ns))
            found.setdefault(place, {})[key] = value
    return found
