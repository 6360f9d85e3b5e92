"""Hand-made Chrome traces: rows as Kineto writes them, times in whole microseconds of one clock."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

HOST_PID, MAIN, BACKWARD = 100, 100, 101
BASE_NS = 1_700_000_000_000_000_000


def _x(cat, name, ts, dur, pid, tid, **args):
    row = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return row | ({"args": args} if args else {})


def op(name, ts, dur, tid=MAIN, **args):
    return _x("cpu_op", name, ts, dur, HOST_PID, tid, **args)


def annotation(name, ts, dur, tid=MAIN):
    return _x("user_annotation", name, ts, dur, HOST_PID, tid)


def step(number, ts, dur):
    return annotation(f"ProfilerStep#{number}", ts, dur)


def launch(ts, correlation, dur=2, tid=MAIN, name="cudaLaunchKernel"):
    return _x("cuda_runtime", name, ts, dur, HOST_PID, tid, correlation=correlation)


def kernel(name, ts, dur, correlation=None, device=0, stream=7, **args):
    link = {} if correlation is None else {"correlation": correlation}
    return _x("kernel", name, ts, dur, device, stream, device=device, stream=stream, **link, **args)


def memcpy(name, ts, dur, size, correlation=None, device=0, stream=20):
    link = {} if correlation is None else {"correlation": correlation}
    return _x("gpu_memcpy", name, ts, dur, device, stream, device=device, stream=stream, bytes=size, **link)


def memset(ts, dur, size, correlation=None, device=0, stream=7):
    link = {} if correlation is None else {"correlation": correlation}
    name = "Memset (Device)"
    return _x("gpu_memset", name, ts, dur, device, stream, device=device, stream=stream, bytes=size, **link)


def projected(name, ts, dur, device=0, stream=7, external=None):
    """An annotation as the profiler draws it on a stream, around ops of [ts, ts + dur)."""
    args = {} if external is None else {"External id": external}
    return _x("gpu_user_annotation", name, ts - 0.001, dur + 0.002, device, stream, **args)


def memory(ts, size, allocated, tid=MAIN, device_type=1):
    args = {"Bytes": size, "Total Allocated": allocated, "Device Type": device_type, "Device Id": 0}
    return {
        "ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]",
        "pid": HOST_PID, "tid": tid, "ts": ts, "args": args,
    }  # fmt: skip


def launched(name, at, start, dur, correlation, tid=MAIN, **args):
    """A launch and the kernel it causes."""
    return [launch(at, correlation, tid=tid), kernel(name, start, dur, correlation, **args)]


def text(rows, rank=None, world_size=None, base_ns=BASE_NS, **meta):
    """A document; `base_ns` None leaves its clock without an epoch."""
    document = {"schemaVersion": 1, **meta}
    if base_ns is not None:
        document["baseTimeNanoseconds"] = base_ns
    if rank is not None:
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size}
    return json.dumps(document | {"traceEvents": rows}).encode()


def write(path: Path, rows, **meta) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    body = text(rows, **meta)
    path.write_bytes(gzip.compress(body, mtime=0) if path.suffix == ".gz" else body)
    return path
