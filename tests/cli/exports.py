"""Ranks on one timeline: the profiles that are exported, and how the file is read."""

import gzip
import json
from decimal import Decimal

from chrome_builder import BASE_NS, HOST_PID, annotation, launched, op, step, write

from tracekit.pipeline import run as pipeline
from tracekit.pipeline.timeline import document, lanes

LEAD_US = lanes.LEAD_NS // 1000

STEP = [
    step(3, 0, 100), annotation("update_actor", 10, 60), op("aten::mm", 20, 5),
    *launched("gemm", 22, 30, 10.125, 7), *launched("gemm", 50, 55, 10, 8, stream=9),
]  # fmt: skip


def arrow(number, at, to, stream=7):
    row = {"cat": "ac2g", "name": "ac2g", "id": number}
    return [
        row | {"ph": "s", "pid": HOST_PID, "tid": HOST_PID, "ts": at},
        row | {"ph": "f", "pid": 0, "tid": stream, "ts": to, "bp": "e"},
    ]


def two_ranks(folder, rows=STEP, **meta):
    """The same rows on two ranks; rank 1 begins half a µs later."""
    write(folder / "rank0.json.gz", rows, rank=0, world_size=2, **meta)
    write(folder / "rank1.json.gz", rows, rank=1, world_size=2, base_ns=BASE_NS + 500, **meta)
    return folder


def exported(folder, target, **options):
    python = options.pop("python", False)
    correct = options.pop("correct_clocks", True)
    return document.export_timeline(folder, target, pipeline.Options(jobs=1, **options), python=python,
                           correct_clocks=correct)  # fmt: skip


def rows_of(target):
    """(the document, its rows), numbers as written."""
    data = target.read_bytes()
    text = gzip.decompress(data) if target.suffix == ".gz" else data
    found = json.loads(text, parse_float=Decimal, parse_constant=refuse)
    return found, found["traceEvents"]


def refuse(name):
    raise AssertionError(name)


def processes(rows):
    return {row["pid"]: row["args"]["name"] for row in rows if row["name"] == "process_name"}


def named(rows, name):
    return [row for row in rows if row.get("name") == name]


def with_collectives(folder, ahead_us, hosts=("one", "two")):
    """Two ranks in three all-reduces that end together, the clock of rank 1 being ahead."""
    for rank, host in enumerate(hosts):
        rows = [step(1, 0 + ahead_us * rank, 1000)]
        for k, end in enumerate((200, 500, 900)):
            begin, call = end - 50 - 20 * rank, end - 100
            rows += launched("ncclDevKernel_AllReduce", call + ahead_us * rank, begin + ahead_us * rank,
                             end - begin, 10 + k, **{"Collective name": "allreduce", "In msg nelems": 4,
                             "Out msg nelems": 4, "Group size": 2, "dtype": "Float",
                             "Process Group Name": "0", "Process Group Ranks": "[0, 1]"})  # fmt: skip
        write(folder / f"rank{rank}.json", rows, rank=rank, world_size=2, host_name=host)
    return folder
