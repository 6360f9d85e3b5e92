"""What tests of memory snapshots share: a small program, reading it back, the curve of what was read."""

import pandas as pd
from memory_builder import MIB, Allocator, stack

from tracekit.model.trace import Source, Want
from tracekit.readers import torch_memory


def read(path, want=None, on_bytes=None):
    source = Source(path, path.name, "torch_memory", tool="torch_memory")
    (trace,) = torch_memory.read(source, want or Want(), on_bytes)
    return trace


def small_program(device=0, **options):
    """Three allocations, one of them freed: 1,000 and 3 MiB bytes stay, 700 go."""
    made = Allocator(device, **options)
    made.annotate("step", "START")
    made.alloc(1000, stack("inner", "outer"))
    gone = made.alloc(700, stack("other", "outer"))
    made.alloc(3 * MIB, stack("inner", "outer"), metadata="kv cache")
    made.free(gone, stack("drop"))
    made.annotate("step", "END")
    return made


def notes_of(trace):
    return {note.code: note.message for note in trace.notes}


def curve(trace, device=0):
    """Requested bytes after every action of a device, in absolute numbers, by the reader's own balance."""
    rows = trace["allocations"]
    rows = rows[(rows["device"] == device) & (rows["memory"] == "device")]
    sign = rows["action"].map({"alloc": 1, "free_completed": -1}).astype("Int64").fillna(0)
    (balance,) = (b for b in trace.meta["balances"] if b["device"] == device)
    base = balance["ghost_bytes"] + balance["orphan_bytes"]
    return (base + (sign * rows["size_bytes"].fillna(0)).cumsum()).tolist()


def same(one, other):
    assert set(one.tables) == set(other.tables)
    for name, frame in one.tables.items():
        theirs = other[name]
        for column in frame:
            ours, its = ([None if pd.isna(v) else v for v in f[column].tolist()] for f in (frame, theirs))
            assert ours == its, (name, column)
