"""What tests of memory timelines share: two by hand, one of our own making in both forms, reading them back."""

import gzip
import json
from collections import Counter
from functools import cache
from pathlib import Path

from tracekit.model.tables.snapshots import CATEGORIES
from tracekit.model.trace import Source, Want
from tracekit.readers.torch_memory import timeline as memory_timeline

OURS = Path(__file__).parents[1] / "data" / "memory" / "torch-2.13-cpu"
T = 1_795_159_667_694_694_087
PARAMETER, OPTIMIZER, INPUT, UNKNOWN = 0, 1, 2, 7

CHANGES = [
    [-1, 1, 1000, PARAMETER], [-1, 1, 300, OPTIMIZER], [-1, 1, 24, PARAMETER],
    [T, 2, 500, INPUT],
    [T + 913, 3, -1000, PARAMETER], [T + 913, 3, 1000, UNKNOWN],
    [T + 5000, 3, -300, OPTIMIZER], [T + 5000, 3, 300, OPTIMIZER],
    [T + 9000, 4, -500, INPUT],
]  # fmt: skip
US = T // 1000
TIMES = [US, US, US + 1, US + 9]
LEVELS = [
    [0, 1024, 300, 0, 0, 0, 0, 0, 0],
    [0, 1024, 300, 500, 0, 0, 0, 0, 0],
    [0, 24, 300, 500, 0, 0, 0, 0, 1000],
    [0, 24, 300, 0, 0, 0, 0, 0, 1000],
]


def put(tmp_path, made, name="timeline.json"):
    data = made if isinstance(made, bytes) else json.dumps(made).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
    return path


def read(path, want=None):
    source = Source(path, path.name, "memory_timeline", "torch_memory")
    (trace,) = memory_timeline.read(source, want or Want())
    return trace


def rows(trace):
    frame = trace["memory_categories"]
    frame = frame.astype(object).where(frame.notna(), None)
    return [tuple(row) for row in frame.to_numpy().tolist()]


def codes(trace):
    return {note.code for note in trace.notes}


def micro(ns):
    """As torch rounds it: by way of a float, which takes some to the next µs."""
    return int(ns / 1000)


@cache
def held(name):
    """{time in µs: level by category} of a file by a walk over its rows, None before the recording."""
    data = json.loads(gzip.decompress((OURS / name).read_bytes()))
    if len(data) == 2:
        before = data[0][0] == data[0][1]
        times = [None if before and not i else t for i, t in enumerate(data[0])]
        return {t: tuple(level[1:]) for t, level in zip(times, data[1], strict=True)}
    level, found = Counter(), {}
    for ns, _, size, category in data:
        level[category] += size
        found[None if ns < 0 else micro(ns)] = tuple(level[c] for c in range(8))
    return found


def walked(trace):
    """The same of a table."""
    level, found = Counter(), {}
    for ns, category, change, after in rows(trace):
        level[category] += change
        assert level[category] == after
        found[None if ns is None else micro(ns)] = tuple(level[c] for c in CATEGORIES)
    return found
