"""Hand-made traces of idle time, and how their causes are read."""

from chrome_builder import launch, launched, write

import tracekit
from tracekit.model.tables.arrays import Columns
from tracekit.process.idle_time.causes import IdleTime

LIMITS = IdleTime(kernel_wait_ns=30_000, silence_ns=20_000_000)


def load(tmp_path, rows, **meta):
    return tracekit.load(write(tmp_path / "rank0.json", rows, **meta))


def frame_of(arrays):
    """The frame of columns as measuring gives them."""
    return Columns(len(next(iter(arrays.values()), ())), arrays).frame()


def only(tmp_path, rows, limits=LIMITS):
    trace = load(tmp_path, rows)
    (idle,) = trace.derived(limits)
    return trace, idle


def causes(idle):
    """Cause → µs, without those that are nothing."""
    return {name: part.total / 1000 for name, part in idle.causes.items() if part.total}


def sync(ts, correlation, dur, name="cudaStreamSynchronize", **kind):
    return launch(ts, correlation, dur, name=name, **kind)


def stream_wait(ts, stream, name="Stream Wait Event", device=0):
    return {
        "ph": "X", "cat": "cuda_sync", "name": name, "pid": device, "tid": stream, "ts": ts, "dur": 1,
        "args": {"device": device, "stream": stream, "wait_on_stream": 20},
    }  # fmt: skip


def between(*host, start=100, at=150):
    """A kernel until 100, what the host does, and a kernel from `at` on, launched at `start`."""
    return [*launched("a", 0, 0, 100, 1), *host, *launched("b", start, at, 50, 2)]
