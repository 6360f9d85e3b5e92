"""Read the rows of Chrome traces and nsys exports with json, sqlite3 and sorted lists; import nothing of tracekit."""

from __future__ import annotations

import gzip
import json
import lzma
import re
import sqlite3
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

Interval = tuple[int, int]


@dataclass
class Rows:
    """The rows of a profile, all times in ns.

    Device ops are (start, end, name, kind, device, launch), host rows (start, end, name, thread, category); launches
    are (start, end, thread) by correlation, steps (start, end) by number. `memory` holds (time, bytes) of a profiler
    that records allocations.
    """

    ops: list[tuple[int, int, str, str, Any, Any]] = field(default_factory=list)
    host: list[tuple[int, int, str, Any, str]] = field(default_factory=list)
    launches: dict[Any, tuple[int, int, Any]] = field(default_factory=dict)
    steps: dict[int, Interval] = field(default_factory=dict)
    memory: list[Interval] = field(default_factory=list)


DEVICE = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "fill", "memcpy": "copy", "memset": "fill"}
LAUNCHING = ("cuda_runtime", "cuda_driver", "hip_runtime", "runtime")
NO_HOST_ROW = (None, "Trace", "gpu_user_annotation")


def read_bytes(path: Path) -> bytes:
    """Read a file, inflated where its name says gzip or xz."""
    content = path.read_bytes()
    inflate = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(path.suffix)
    return inflate(content) if inflate else content


def read_chrome(path: Path) -> Rows:
    """Read a trace of torch.profiler; a time is a decimal number of µs."""
    events = json.loads(read_bytes(path), parse_float=Decimal)["traceEvents"]
    rows = Rows()
    for event in events:
        if event.get("name") == "[memory]":
            rows.memory.append((int(event["ts"] * 1000), event["args"]["Bytes"]))
        if event.get("ph") != "X" or event.get("cat") in NO_HOST_ROW:
            continue
        start = int(event["ts"] * 1000)
        end = start + int(event.get("dur", 0) * 1000)
        name, args, category = event["name"], event.get("args", {}), event["cat"].lower()
        if category in DEVICE:
            kind = DEVICE[category]
            rows.ops.append((start, end, name, kind, args.get("device"), args.get("correlation")))
            continue
        thread = event["pid"], event["tid"]
        rows.host.append((start, end, name, thread, category))
        if category in LAUNCHING and "correlation" in args:
            rows.launches[args["correlation"]] = start, end, thread
        step = re.fullmatch(r"ProfilerStep#(\d+)", name)
        if step:
            rows.steps[int(step[1])] = start, end
    return rows


def read_nsys(path: Path) -> Rows:
    """Read an export of nsys: device work, graphs traced as a whole, runtime calls and NVTX ranges."""
    database = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
    tables = {name for (name,) in database.execute("select name from sqlite_master")}
    texts = dict(database.execute("select id, value from StringIds"))
    rows = Rows()
    for kind, name in (("KERNEL", "demangledName"), ("MEMCPY", "copyKind"), ("MEMSET", "value"), ("GRAPH_TRACE", "0")):
        table = f"CUPTI_ACTIVITY_KIND_{kind}"
        if table in tables:
            what = {"KERNEL": "kernel", "MEMCPY": "copy", "MEMSET": "fill", "GRAPH_TRACE": "kernel"}[kind]
            columns = {column[1] for column in database.execute(f"pragma table_info({table})")}
            owner = "globalPid" if "globalPid" in columns else "0"
            query = f"select start, end, {name}, deviceId, correlationId, {owner} from {table}"
            for start, end, text, device, launch, process in database.execute(query):
                key = process >> 24, launch
                rows.ops.append((start, end, texts.get(text, what), what, device, key))
    if "CUPTI_ACTIVITY_KIND_RUNTIME" in tables:
        query = "select start, end, nameId, globalTid, correlationId from CUPTI_ACTIVITY_KIND_RUNTIME"
        for start, end, name, thread, launch in database.execute(query):
            call = re.sub(r"_v\d+$", "", texts[name])
            rows.host.append((start, end, call, thread, "runtime"))
            rows.launches[thread >> 24, launch] = start, end, thread
    if "NVTX_EVENTS" in tables:
        columns = {column[1] for column in database.execute("pragma table_info(NVTX_EVENTS)")}
        identifier = "textId" if "textId" in columns else "null"
        query = f"select start, end, text, {identifier}, globalTid from NVTX_EVENTS where end > start"
        for start, end, text, number, thread in database.execute(query):
            name = text or texts.get(number) or ""
            rows.host.append((start, end, name, thread, "range"))
    return rows


def read_rows(path: Path) -> Rows:
    """Read a profile by the ending of its name."""
    return read_nsys(path) if path.suffix == ".sqlite" else read_chrome(path)


def union(parts: list[Interval]) -> list[Interval]:
    """Join intervals that touch, and sort them."""
    joined: list[Interval] = []
    for start, end in sorted(parts):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif end > start:
            joined.append((start, end))
    return joined


def inside(parts: list[Interval], windows: list[Interval]) -> int:
    """Add up how much of the windows these parts, which do not touch, cover."""
    return sum(max(0, min(end, until) - max(start, begin)) for begin, until in windows for start, end in parts)
