"""What held devices back, read as a person reads it: path → µs."""

from collections import Counter

from chrome_builder import HOST_PID, MAIN, write
from process.idle_traces import LIMITS

import tracekit
from tracekit.model.tables.arrays import Columns
from tracekit.process.idle_time.attribution import attribute_idle_time

TABLES = ("host_ops", "device_ops", "syncs", "windows", "python_calls", "threads")


def python(name, ts, dur, tid=MAIN):
    return {
        "ph": "X", "cat": "python_function", "name": name, "pid": HOST_PID, "tid": tid, "ts": ts, "dur": dur,
    }  # fmt: skip


def traced(tmp_path, rows, name="rank0.json", **document):
    return tracekit.load(write(tmp_path / name, rows, **document), tables=TABLES)


def tables(trace, limits=LIMITS):
    """The frames of `attribute_idle_time` and `idle_frames`."""
    measured = attribute_idle_time(trace, trace.derived(limits))
    return [
        Columns(len(next(iter(columns.values()), ())), columns).frame()
        for columns in (measured["idle_blame"], measured["idle_frames"])
    ]


def paths(frames):
    """Per place the names from the outermost to it."""
    names = []
    for parent, frame in zip(frames["parent"], frames["frame"], strict=True):
        names.append(frame if parent < 0 else f"{names[parent]} > {frame}")
    return names


def held(trace, window="capture", limits=LIMITS):
    """Path → µs of one kind of window."""
    rows, frames = tables(trace, limits)
    if not len(rows):
        return {}
    rows = rows[rows["window"] == window]
    return _summed(rows, [paths(frames)[node] for node in rows["node"]])


def kinds(trace, window="capture"):
    """Kind → µs."""
    rows, _ = tables(trace)
    rows = rows[rows["window"] == window]
    return _summed(rows, rows["holder"])


def _summed(rows, keys):
    sums = Counter()
    for key, idle_ns in zip(keys, rows["idle_ns"], strict=True):
        sums[key] += int(idle_ns) / 1000
    return {key: value for key, value in sums.items() if value}
