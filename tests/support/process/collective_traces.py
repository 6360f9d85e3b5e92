"""Hand-made traces of collectives, and the rows that are found in them."""

import json

from chrome_builder import HOST_PID, write

import tracekit
from tracekit.process.collectives.table import list_collectives

RUNLOOP = 777


def found(tmp_path, rows, **meta):
    return list_collectives(tracekit.load(write(tmp_path / "rank0.json", rows, **meta)))


def only(tmp_path, rows, **meta):
    (row,) = found(tmp_path, rows, **meta).rows.frame().to_dict("records")
    return row


def gloo(name, ts, dur, dims="[[4]]", types='["float"]', tid=RUNLOOP):
    """A collective that a thread of the host carries out."""
    args = {"Input Dims": json.loads(dims), "Input type": json.loads(types)}
    return {
        "ph": "X", "cat": "user_annotation", "name": f"gloo:{name}", "pid": HOST_PID, "tid": tid,
        "ts": ts, "dur": dur, "args": args,
    }  # fmt: skip


COMMS = {
    "Collective name": "_allgather_base", "In msg nelems": 5, "Out msg nelems": 10, "Group size": 2, "dtype": "Half",
    "Process Group Name": "3", "Process Group Ranks": "[4, 5]", "Seq": 17,
}  # fmt: skip
