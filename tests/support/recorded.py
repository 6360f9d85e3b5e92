"""The recordings of `tests/data/gpu`, read with json alone, and what their rows come to by an interval sweep."""

import gzip
import json
import lzma
import os
from collections.abc import Iterable
from decimal import Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path

GPU = Path(__file__).parents[1] / "data" / "gpu"
PAIRS = GPU / "pairs"
REAL = os.environ.get("TRACEKIT_REAL_DATA")

TRACES = sorted([*GPU.rglob("*.json.xz"), *GPU.rglob("*.json.gz")])
SNAPSHOTS = sorted((GPU / "snapshots").glob("*.pickle"))
SMALL_TRACES = [PAIRS / "cuda_graph.pt.trace.json.xz", *sorted((GPU / "no_marks" / "per_step").glob("*.xz"))]

PRIORITY = ("compute", "comm", "memcpy", "memset")
CATEGORIES = {"kernel": "compute", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}

Spans = list[tuple[int, int]]


def name_of(path):
    """The path below the folder, as the id of a test."""
    return path.relative_to(GPU).as_posix().removesuffix(".pt.trace.json.xz") if path.is_relative_to(GPU) else path.name


def open_text(path: Path) -> bytes:
    """The text of a packed trace."""
    return {".xz": lzma, ".gz": gzip}[path.suffix].decompress(path.read_bytes())


@cache
def read_trace(path: Path) -> dict:
    """A trace by json alone, times as exact decimals."""
    return json.loads(open_text(path), parse_float=Decimal)


def read_events(path: Path) -> list[dict]:
    """All events of a trace."""
    return read_trace(path)["traceEvents"]


def select(path: Path, *categories: str) -> list[dict]:
    """The events of some categories."""
    return [event for event in read_events(path) if event.get("cat") in categories]


def to_ns(us: Decimal) -> int:
    """A time in whole ns."""
    return int((us * 1000).to_integral_value())


def span(event: dict) -> tuple[int, int]:
    """When an event begins and ends."""
    return to_ns(event["ts"]), to_ns(event["ts"]) + to_ns(event["dur"])


def device_ops(path: Path) -> list[dict]:
    """The events of the GPU."""
    return select(path, *CATEGORIES)


def union(spans: Iterable[tuple[int, int]]) -> Spans:
    """Where at least one of the spans is."""
    merged: list[list[int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return [(start, end) for start, end in merged]


def clip(spans: Iterable[tuple[int, int]], start: int, end: int) -> Spans:
    """The parts of spans within a window."""
    return [(max(a, start), min(b, end)) for a, b in spans if a < end and b > start]


def length(spans: Iterable[tuple[int, int]]) -> int:
    """How long the spans are together."""
    return sum(end - start for start, end in spans)


def sweep(path: Path, start: int | None = None, end: int | None = None) -> dict[str, int]:
    """What a window of a GPU goes to, by priority at every time; by default from the first op to the end of the last."""
    ops = [(*span(event), CATEGORIES[event["cat"]]) for event in device_ops(path)]
    start = min(a for a, _, _ in ops) if start is None else start
    end = max(b for _, b, _ in ops) if end is None else end
    inside = [(max(a, start), min(b, end), kind) for a, b, kind in ops if a < end and b > start]
    found = dict.fromkeys(PRIORITY, 0)
    changes = sorted([(a, 1, kind) for a, _, kind in inside] + [(b, -1, kind) for _, b, kind in inside])
    running = dict.fromkeys(PRIORITY, 0)
    for (at, change, kind), (until, _, _) in pairwise([*changes, (end, 0, "")]):
        running[kind] += change
        first = next((each for each in PRIORITY if running[each]), None)
        if first:
            found[first] += until - at
    return found | {"window": end - start, "idle": end - start - sum(found.values())}


def profiler_steps(path: Path) -> dict[int, tuple[int, int]]:
    """Number → span on the host of every profiler step."""
    marks = [e for e in select(path, "user_annotation") if e["name"].startswith("ProfilerStep#")]
    return {int(event["name"].partition("#")[2]): span(event) for event in marks}


def as_golden(path: Path) -> dict[str, float | int | None]:
    """The figures of a trace in the form of `golden_gpu_breakdown.json`."""
    found = sweep(path)
    busy = found["window"] - found["idle"]
    copies = select(path, "gpu_memcpy")
    return {
        "GPU_events": len(device_ops(path)),
        "window_us": found["window"] / 1000,
        "busy_us": busy / 1000,
        "util_pct": round(100 * busy / found["window"], 2),
        "compute_us": found["compute"] / 1000,
        "comm_us": 0.0,
        "exposed_comm_us": 0.0,
        "exposed_memcpy_us": found["memcpy"] / 1000,
        "exposed_memset_us": found["memset"] / 1000,
        "idle_us": found["idle"] / 1000,
        "overlap_pct": None,
        "memcpy_bytes": sum(int(event["args"]["bytes"]) for event in copies),
    }


def breakdowns(chosen: Iterable[Path] = TRACES) -> dict[str, Path]:
    """Name → path of the traces whose breakdown is known: public ones where they are at hand, else ours."""
    if REAL:
        golden = json.loads((GPU.parent / "golden_gpu_breakdown.json").read_text())
        return {name: Path(REAL) / "chrome" / name for name in sorted(golden)}
    return {name_of(path): path for path in chosen}


def breakdown_of(name: str) -> dict[str, float | int | None]:
    """The known breakdown of one of `breakdowns`."""
    if REAL:
        return json.loads((GPU.parent / "golden_gpu_breakdown.json").read_text())[name]
    return as_golden(breakdowns()[name])


def chrome_traces() -> list[Path]:
    """The traces that any test of every trace runs over: public ones where they are at hand, else ours."""
    if REAL:
        return sorted(path for path in (Path(REAL) / "chrome").rglob("*.json.gz") if "memory" not in path.parts)
    return TRACES
