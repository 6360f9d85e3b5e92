"""Writes `simulated_gpu/`: the profile of a GPU run that never took place, and its exact figures.

    python examples/make_simulated_gpu.py           write what differs
    python examples/make_simulated_gpu.py --check   status 1 if a committed file differs

`simulated_run.py` says what the run does. `truth.json` is swept, in whole nanoseconds, from the
intervals that it placed; no trace is read back. Standard library only.
"""

import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simulated_rank import FIRST_CORRELATION, START_NS, WORLD, Placed, Rank, Span
from simulated_run import STEPS, run

FOLDER = Path(__file__).parent / "simulated_gpu"
NOTICE = "SIMULATED: written by examples/make_simulated_gpu.py; no GPU ran, nothing was measured"
NOTE = (
    "All times in ns. by_time: the device's work clipped to the host's range; compute_ns, the "
    "exposed parts and idle_ns add up to wall_ns; a part is exposed where none before it in the "
    "order compute, comm, memcpy, memset runs. by_launch: all that was launched in the range, "
    "wherever in time it ran, durations summed. Unlinked work has no launch and no step. "
    "Steps and stages run to the end of their host range; the last kernels of a step run on after."
)
BASE_NS = (1_790_857_026_000_000_000, 1_790_857_027_000_000_007)
"""The zero of each rank's time stamps: over a second apart, and not by a whole microsecond."""
KINDS = ("compute", "comm", "memcpy", "memset")
"""In order of precedence, see `NOTE`."""


# The traces


def microseconds(ns: int) -> str:
    """What Kineto writes: three decimals, exact."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def trace(rank: Rank) -> str:
    """The whole file of one rank."""
    device = {"name": "Simulated GPU", "totalGlobalMem": 80 * 2**30, "computeMajor": 9}
    device |= {"computeMinor": 0, "maxThreadsPerBlock": 1024, "warpSize": 32, "numSms": 132}
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl"}
    job = {"backend": "nccl", "rank": rank.rank, "world_size": WORLD, "pg_count": 1}
    head = {
        "schemaVersion": 1,
        "simulated": NOTICE,
        "deviceProperties": [{"id": index, **device} for index in range(WORLD)],
        "distributedInfo": {
            **job,
            "pg_config": [{**group, "pg_size": WORLD, "ranks": [*range(WORLD)]}],
            "nccl_version": "2.27.5",
        },
        "record_shapes": 1,
        "profile_memory": 1,
        "trace_id": f"51{rank.rank:030d}",
        "host_name": "simulated-host",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS[rank.rank],
    }
    lines = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    events = ",\n".join(rows(rank))
    return f'{{\n{lines}  "traceEvents": [\n{events}\n  ], "traceName": "simulated.json"\n}}\n'


def rows(rank: Rank) -> Iterator[str]:
    """Every row of one rank's trace: names, host, device with launches and arrows, ranges, end."""
    yield from metadata(rank)
    spans = sorted(rank.spans, key=lambda span: span.start)
    calls = {made.args["correlation"]: made for made in spans if made.category == "cuda_runtime"}
    recorded = [made for made in spans if made.category != "cuda_runtime"]
    for index, made in enumerate(recorded):
        made.args |= {"Record function id": 0, "Ev Idx": index}
        yield host_row(rank, made)
    for made in rank.memory:
        yield host_row(rank, made)
    for work in sorted(rank.placed, key=lambda placed: placed.start):
        yield device_row(rank, work)
        if call := calls.pop(work.correlation, None):
            yield host_row(rank, call)
            yield arrow(rank, "s", work.correlation, (rank.pid, call.tid, call.start))
            yield arrow(rank, "f", work.correlation, (rank.rank, work.stream, work.start))
    for call in calls.values():
        yield host_row(rank, call)
    for shadow in device_ranges(rank):
        yield device_row(rank, shadow)

    start, stop = START_NS - BASE_NS[rank.rank], rank.now - BASE_NS[rank.rank]
    yield (
        '  {\n    "ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", '
        '"pid": "Spans", "tid": "PyTorch Profiler",\n'
        f'    "ts": {microseconds(start)}, "dur": {microseconds(stop - start)},\n'
        '    "args": {\n      "Op count": 0\n    }\n  }'
    )
    marks = (
        ("Iteration Start: PyTorch Profiler", "Traces", start),
        ("Record Window End", "", stop),
    )
    for name, where, at in marks:
        yield (
            f'  {{\n    "ph": "i", "s": "g", "name": "{name}", "pid": "{where}", '
            f'"tid": "{where}", "ts": {microseconds(at)}\n  }}'
        )


def metadata(rank: Rank) -> Iterator[str]:
    """The names of processes, threads and streams."""
    at = microseconds(START_NS - BASE_NS[rank.rank])
    found = [(rank.pid, 0, "process_name", {"name": "python"})]
    found += [(rank.pid, 0, "process_labels", {"labels": "CPU"})]
    found += [(rank.pid, tid, "thread_name", {"name": f"thread {tid} (python)"}) for tid in (rank.main, rank.autograd)]
    found += [(rank.rank, 0, "process_name", {"name": "python"})]
    found += [(rank.rank, 0, "process_labels", {"labels": f"GPU {rank.rank}"})]
    found += [(rank.rank, stream, "thread_name", {"name": f"stream {stream} "}) for stream in rank.free]
    for pid, tid, what, args in found:
        yield (
            f'  {{\n    "ph": "M", "name": "{what}", "ts": {at}, "pid": {pid}, "tid": {tid},\n'
            f'    "args": {json.dumps(args)}\n  }}'
        )


def host_row(rank: Rank, made: Span) -> str:
    """One row of the host: a span, or the instant of an allocation."""
    instant = made.category == "cpu_instant_event"
    head = f'"ph": "{"i" if instant else "X"}", "cat": "{made.category}"'
    dur = '"s": "t"' if instant else f'"dur": {microseconds(made.dur)}'
    return row(rank, head, made, (rank.pid, made.tid), dur)


def device_row(rank: Rank, made: Placed) -> str:
    """One row of a GPU: its process is the device, its thread the stream."""
    head = f'"ph": "X", "cat": "{made.category}"'
    return row(rank, head, made, (rank.rank, made.stream), f'"dur": {microseconds(made.dur)}')


def row(rank: Rank, head: str, made: Span | Placed, where: tuple[int, int], tail: str) -> str:
    """One row, laid out as Kineto does."""
    return (
        f'  {{\n    {head}, "name": {json.dumps(made.name)}, "pid": {where[0]}, "tid": {where[1]},\n'
        f'    "ts": {microseconds(made.start - BASE_NS[rank.rank])}, {tail},\n'
        f'    "args": {{\n      {json.dumps(made.args)[1:-1]}\n    }}\n  }}'
    )


def arrow(rank: Rank, phase: str, number: int, where: tuple[int, int, int]) -> str:
    """One end of the arrow from a launch to what it launched."""
    pid, tid, at = where
    end = ', "bp": "e"' if phase == "f" else ""
    return (
        f'  {{\n    "ph": "{phase}", "id": {number}, "pid": {pid}, "tid": {tid}, '
        f'"ts": {microseconds(at - BASE_NS[rank.rank])},\n'
        f'    "cat": "ac2g", "name": "ac2g"{end}\n  }}'
    )


def device_ranges(rank: Rank) -> list[Placed]:
    """The shadow of each host range on each stream: around what its own thread launched in it."""
    calls = {call.args.get("correlation"): call for call in rank.spans}
    linked = [(calls[work.correlation], work) for work in rank.placed if work.correlation in calls]
    shadows = []
    for made in rank.spans:
        if made.category != "user_annotation":
            continue
        inside: dict[int, list[Placed]] = {}
        for call, work in linked:
            if call.tid == made.tid and 0 <= call.start - made.start < made.dur:
                inside.setdefault(work.stream, []).append(work)
        for stream, works in inside.items():
            # Kineto lets the shadow start 1 ns early and end 1 ns late, so that it encloses.
            start = min(work.start for work in works) - 1
            dur = max(work.end for work in works) + 1 - start
            args = {"External id": made.args["External id"]}
            shadow = Placed(made.name, "gpu_user_annotation", "", stream, dur, args, start)
            shadows.append(shadow)
    return shadows


# The truth about them


def breakdown(placed: list[Placed], start: int, end: int) -> dict[str, int]:
    """Where the time from start to end went, by a sweep over the edges of the work in it."""
    edges: Counter[tuple[int, str]] = Counter()
    for work in placed:
        low, high = max(work.start, start), min(work.end, end)
        if low < high:
            edges[low, work.kind] += 1
            edges[high, work.kind] -= 1
    running: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    at = start
    for (edge, kind), change in sorted(edges.items()):
        active = [each for each in KINDS if running[each]]
        spent[f"exposed {active[0]}" if active else "idle"] += edge - at
        for each in active:
            spent[each] += edge - at
        spent["overlap"] += edge - at if {"comm", "compute"} <= {*active} else 0
        running[kind] += change
        at = edge
    spent["idle"] += end - at
    wall = end - start
    return {
        "wall_ns": wall,
        "busy_ns": wall - spent["idle"],
        "idle_ns": spent["idle"],
        **{f"{kind}_ns": spent[kind] for kind in KINDS},
        **{f"exposed_{kind}_ns": spent[f"exposed {kind}"] for kind in KINDS[1:]},
        "comm_hidden_by_compute_ns": spent["overlap"],
    }


def launched(placed: list[Placed]) -> dict[str, int]:
    """What was launched, wherever in time it ran: counts and summed durations."""
    sums: Counter[str] = Counter()
    for work in placed:
        sums[f"{work.kind}_count"] += 1
        sums[f"{work.kind}_sum_ns"] += work.dur
        sums["from_autograd_thread_count"] += work.autograd
    return dict(sorted(sums.items()))


def range_truth(rank: Rank, made: Span, own: list[Placed]) -> dict[str, Any]:
    """One host range, by time and by launch."""
    by_time = breakdown(rank.placed, made.start, made.start + made.dur)
    return {"start_ns": made.start, "by_time": by_time, "by_launch": launched(own)}


def step_truth(rank: Rank, step: int) -> dict[str, Any]:
    """One step and its stages."""
    whole = next(span for span in rank.spans if span.name == f"ProfilerStep#{step}")
    own = [work for work in rank.placed if work.step == step]
    within = [span for span in rank.spans if 0 <= span.start - whole.start < whole.dur]
    stages = {
        made.name: range_truth(rank, made, [work for work in own if work.stage == made.name])
        for made in within
        if made.name in {work.stage for work in own}
    }
    return {**range_truth(rank, whole, own), "stages": stages}


def copy_truth(rank: Rank) -> dict[str, dict[str, int]]:
    """Copies by direction and memory: how many, how many bytes, how long in all."""
    found: dict[str, dict[str, int]] = {}
    for work in rank.placed:
        if work.kind == "memcpy":
            sums = found.setdefault(work.name, {"count": 0, "bytes": 0, "sum_ns": 0})
            sums["count"] += 1
            sums["bytes"] += work.args["bytes"]
            sums["sum_ns"] += work.dur
    return dict(sorted(found.items()))


def rank_truth(rank: Rank) -> dict[str, Any]:
    """Everything known of one rank."""
    recorded: list[Span | Placed] = [*rank.spans, *rank.memory, *rank.placed]
    counts = Counter(made.category for made in recorded)
    counts["gpu_user_annotation"] = len(device_ranges(rank))
    first, last = min(work.start for work in rank.placed), max(work.end for work in rank.placed)
    allocated = [made.args["Total Allocated"] for made in rank.memory]
    unlinked = [work for work in rank.placed if work.correlation < FIRST_CORRELATION]
    return {
        "pid": rank.pid,
        "device": rank.rank,
        "base_time_ns": BASE_NS[rank.rank],
        "rows": dict(sorted(counts.items())),
        "window": {"start_ns": first, **breakdown(rank.placed, first, last)},
        "unlinked": launched(unlinked),
        "copies": copy_truth(rank),
        "memory": {
            "peak_allocated_bytes": max(allocated),
            "peak_reserved_bytes": rank.reserved,
            "last_allocated_bytes": allocated[-1],
        },
        "steps": {str(step): step_truth(rank, step) for step in STEPS},
    }


def truth(ranks: list[Rank]) -> dict[str, Any]:
    """The figures of both ranks, and every collective as both saw it."""
    columns = ["sequence", "step", "stage", "name", "size_bytes", "transfer", "end"]
    table = [
        [*(getattr(seen[0], column) for column in columns), *(one.start for one in seen)]
        for seen in zip(*(rank.collectives for rank in ranks), strict=True)
    ]
    return {
        "simulated": NOTICE,
        "note": NOTE,
        "ranks": {str(rank.rank): rank_truth(rank) for rank in ranks},
        "rank_1_started_last_count": sum(starts[-1] > starts[-2] for starts in table),
        "collective_columns": [*columns, *(f"start of rank {rank.rank}" for rank in ranks)],
        "collectives": table,
    }


# The files


def texts() -> dict[str, str]:
    """The text of each file, by its path in the folder."""
    ranks = run()
    figures = truth(ranks)
    # One collective a line: a hundred lines that can be read instead of a thousand.
    table = ",\n  ".join(json.dumps(each) for each in figures.pop("collectives"))
    head = json.dumps(figures, indent=1).removesuffix("\n}")
    found = {"truth.json": f'{head},\n "collectives": [\n  {table}\n ]\n}}\n'}
    for rank in ranks:
        found[f"outputs/profile/simulated_rank{rank.rank}.pt.trace.json.gz"] = trace(rank)
    return found


def main() -> int:
    """0 when the files are as they should be."""
    checking = "--check" in sys.argv[1:]
    stale = []
    for name, text in texts().items():
        path, packed = FOLDER / name, name.endswith(".gz")
        old = path.read_bytes() if path.exists() else b""
        # Builds of zlib compress differently, so it is the text that must be the same.
        if (gzip.decompress(old) if old and packed else old) == text.encode():
            continue
        stale.append(name)
        if not checking:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(text.encode(), mtime=0) if packed else text.encode())
    print("differs:" if checking else "written:", ", ".join(stale) or "nothing")
    return 1 if checking and stale else 0


if __name__ == "__main__":
    sys.exit(main())
