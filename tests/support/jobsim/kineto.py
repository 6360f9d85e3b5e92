"""The file that the PyTorch profiler would write of a rank, row by row with the fields that it gives them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobsim import noise
from jobsim.job import Job
from jobsim.rank import CBID, COMPUTE, START_NS, Rank

NOTICE = "SIMULATED: written by tests/support/jobsim; no GPU ran, nothing was measured"
BASE_NS = 1_790_857_026_000_000_000
LAUNCHES = ("cudaLaunchKernel", "cudaGraphLaunch", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync", "cuLaunchKernelEx")  # fmt: skip


def write(rank: Rank, folder: Path) -> Path:
    """The file of one rank."""
    role = "rollout" if rank.job.is_generator(rank.rank) else "actor-rollout-ref"
    name = f"{role}_train_rank{rank.rank}-of-{rank.job.ranks}_pid{rank.pid}_{20261120073303136 + rank.rank}.json.gz"
    path = folder / name
    path.write_bytes(gzip.compress(text(rank).encode(), 1, mtime=0))
    return path


def text(rank: Rank) -> str:
    """The whole document of one rank."""
    shift = START_NS - skew(rank.job, rank.rank) - base(rank)
    lines = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head(rank).items())  # fmt: skip
    rows = ",\n".join(events(rank, START_NS - shift))
    return f'{{\n{lines}  "traceEvents": [\n{rows}\n  ],\n  "traceName": "simulated.json"\n}}\n'


def base(rank: Rank) -> int:
    """The zero of the rank's time stamps."""
    return BASE_NS + 1_000_000_007 * rank.job.host_of(rank.rank)


def skew(job: Job, rank: int) -> int:
    """By how much the clock of the rank's host is fast."""
    host = job.host_of(rank)
    per_rank = job.ranks <= job.ranks_of_host
    if not job.skew_ns or (not host and not per_rank):
        return 0
    where = rank if per_rank else host
    return int(job.skew_ns * (2 * noise.uniform(job.seed, "skew", where) - 1))


def head(rank: Rank) -> dict[str, Any]:
    """What stands before the rows."""
    job = rank.job
    device = {
        "name": "Simulated GPU", "totalGlobalMem": 80 * 2**30, "computeMajor": 9, "computeMinor": 0,
        "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65536, "warpSize": 32,
        "sharedMemPerBlock": 49152, "numSms": 132, "regsPerMultiprocessor": 65536,
        "sharedMemPerBlockOptin": 232448, "sharedMemPerMultiprocessor": 233472,
    }  # fmt: skip
    groups = [
        {
            "pg_name": job.group_name(rank.rank, kind), "pg_desc": kind, "backend_config": "cuda:nccl",
            "pg_size": len(members), "ranks": [*members],
        }
        for kind, members in job.groups(rank.rank).items()
    ]  # fmt: skip
    return {
        "schemaVersion": 1,
        "simulated": NOTICE,
        "deviceProperties": [{"id": index, **device} for index in range(min(8, job.ranks))],
        "cupti_version": 28,
        "cuda_runtime_version": 12090,
        "cuda_driver_version": 13000,
        "distributedInfo": {
            "backend": "nccl", "rank": rank.rank, "world_size": job.ranks, "pg_count": len(groups),
            "pg_config": groups, "nccl_version": "2.27.5",
        },
        "record_shapes": 1,
        **({"with_stack": 1} if job.stacks else {}),
        "trace_id": f"51{job.seed:014d}{rank.rank:016d}",
        "host_name": f"simulated-host-{job.host_of(rank.rank)}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base(rank),
    }  # fmt: skip


def events(rank: Rank, base_ns: int) -> Iterator[str]:
    """Every row: names, host, device with launches and arrows, ranges of the device, the window."""
    yield from metadata(rank, micro(START_NS - base_ns))
    yield from host_rows(rank, base_ns)
    yield from python_rows(rank, base_ns)
    yield from device_rows(rank, base_ns)
    yield from call_rows(rank, base_ns)
    if rank.job.sync_rows:
        yield from sync_rows(rank, base_ns)
    yield from shadow_rows(rank, base_ns)
    start, stop = START_NS - 50_000 - base_ns, rank.now + 90_000 - base_ns
    yield (
        '  {\n    "ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler",\n'
        f'    "ts": {micro(start)}, "dur": {micro(stop - start)},\n    "args": {{\n      "Op count": 0\n    }}\n  }}'
    )
    marks = (("Iteration Start: PyTorch Profiler", "Traces", start), ("Record Window End", "", stop))  # fmt: skip
    for name, where, at in marks:
        yield (
            f'  {{\n    "ph": "i", "s": "g", "name": "{name}", "pid": "{where}", "tid": "{where}", '
            f'"ts": {micro(at)}\n  }}'
        )


def micro(ns: int) -> str:
    """Microseconds as Kineto writes them: three decimals, exact."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def metadata(rank: Rank, at: str) -> Iterator[str]:
    """The names of processes, threads and streams."""
    device = rank.rank % 8
    named = [(rank.pid, 0, "process_name", {"name": "ray::WorkerDict"})]
    named += [(rank.pid, 0, "process_labels", {"labels": "CPU"})]
    named += [(rank.pid, 0, "process_sort_index", {"sort_index": rank.pid})]
    for tid in (rank.main, rank.autograd, rank.loader):
        named += [(rank.pid, tid, "thread_name", {"name": f"thread {tid} (ray::WorkerDict)"})]
    named += [(device, 0, "process_name", {"name": "ray::WorkerDict"})]
    named += [(device, 0, "process_labels", {"labels": f"GPU {device}"})]
    named += [(device, 0, "process_sort_index", {"sort_index": 5_000_000 + device})]
    used = {row.stream for row in rank.device_rows} | {COMPUTE}
    named += [(device, s, "thread_name", {"name": f"stream {s} "}) for s in sorted(used)]
    for pid, tid, what, args in named:
        yield (
            f'  {{\n    "ph": "M", "name": "{what}", "ts": {at}, "pid": {pid}, "tid": {tid},\n'
            f'    "args": {json.dumps(args)}\n  }}'
        )


def host_rows(rank: Rank, base_ns: int) -> Iterator[str]:
    """Ops and ranges."""
    for index, row in enumerate(rank.host_rows):
        start, dur = row.start - base_ns, row.end - row.start
        more = f", {row.args}" if row.args else ""
        yield (
            f'  {{\n    "ph": "X", "cat": "{row.category}", "name": "{row.name}", "pid": {rank.pid}, "tid": {row.tid},\n'
            f'    "ts": {start // 1000}.{start % 1000:03d}, "dur": {dur // 1000}.{dur % 1000:03d},\n'
            f'    "args": {{\n      "External id": {row.external}, "Record function id": 0{more}, "Ev Idx": {index}\n    }}\n  }}'
        )


def python_rows(rank: Rank, base_ns: int) -> Iterator[str]:
    """Python functions."""
    first = len(rank.host_rows)
    for index, (name, tid, start, end, number, parent) in enumerate(sorted(rank.frames, key=lambda frame: frame[4])):  # fmt: skip
        ids = f'"Python parent id": {parent or "null"}, "Python id": {number}'
        if name.startswith("nn.Module"):
            ids += f', "Python module id": {name.rsplit("_", 1)[1]}'
        yield (
            f'  {{\n    "ph": "X", "cat": "python_function", "name": "{name}", "pid": {rank.pid}, "tid": {tid},\n'
            f'    "ts": {micro(start - base_ns)}, "dur": {micro(end - start)},\n'
            f'    "args": {{\n      {ids}, "Ev Idx": {first + index}\n    }}\n  }}'
        )


def device_rows(rank: Rank, base_ns: int) -> Iterator[str]:
    """Kernels, copies and fills, each with the end of its arrow."""
    device = rank.rank % 8
    for row in sorted(rank.device_rows, key=lambda work: work.start):
        start, dur = row.start - base_ns, row.end - row.start
        queued = '"queued": 0, ' if row.category == "kernel" else ""
        at = f"{start // 1000}.{start % 1000:03d}"
        yield (
            f'  {{\n    "ph": "X", "cat": "{row.category}", "name": "{row.name}", "pid": {device}, "tid": {row.stream},\n'
            f'    "ts": {at}, "dur": {dur // 1000}.{dur % 1000:03d},\n'
            f'    "args": {{\n      "External id": {row.external}, {queued}"device": {device}, "context": 1, '
            f'"stream": {row.stream}, "correlation": {row.correlation}, {row.args}\n    }}\n  }},\n'
            f'  {{\n    "ph": "f", "id": {row.correlation}, "pid": {device}, "tid": {row.stream}, "ts": {at},\n'
            f'    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }}'
        )


def call_rows(rank: Rank, base_ns: int) -> Iterator[str]:
    """Runtime and driver calls, launches with the beginning of their arrow."""
    for category, name, tid, begin, end, correlation, external in rank.calls:
        start, dur = begin - base_ns, end - begin
        at = f"{start // 1000}.{start % 1000:03d}"
        row = (
            f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {rank.pid}, "tid": {tid},\n'
            f'    "ts": {at}, "dur": {dur // 1000}.{dur % 1000:03d},\n'
            f'    "args": {{\n      "External id": {external}, "cbid": {CBID[name]}, "correlation": {correlation}\n    }}\n  }}'
        )
        if name in LAUNCHES:
            row += (
                f',\n  {{\n    "ph": "s", "id": {correlation}, "pid": {rank.pid}, "tid": {tid}, "ts": {at},\n'
                '    "cat": "ac2g", "name": "ac2g"\n  }'
            )
        yield row


def sync_rows(rank: Rank, base_ns: int) -> Iterator[str]:
    """Who waited for whom. An event is recorded by the launch of the op that it stands for."""
    device = rank.rank % 8
    for row in rank.syncs:
        stream = {"Context Sync": -1, "Event Sync": -1}.get(row.name, row.stream)
        event = f'"wait_on_stream": {row.on_stream}, "wait_on_cuda_event_record_corr_id": {row.record}, '
        yield (
            f'  {{\n    "ph": "X", "cat": "cuda_sync", "name": "{row.name}", "pid": {device}, "tid": {stream},\n'
            f'    "ts": {micro(row.start - base_ns)}, "dur": {micro(row.end - row.start)},\n'
            f'    "args": {{\n      "cuda_sync_kind": "{row.name}", {event if "Event" in row.name else ""}'
            f'"stream": {stream}, "correlation": {row.correlation}, "device": {device}, "context": 1\n    }}\n  }}'
        )


def shadow_rows(rank: Rank, base_ns: int) -> Iterator[str]:
    """The shadow of each range on each stream that it launched work on, a ns wider on both sides."""
    device = rank.rank % 8
    for row in rank.host_rows:
        for stream, (first, last) in (row.shadows or {}).items():
            yield (
                f'  {{\n    "ph": "X", "cat": "gpu_user_annotation", "name": "{row.name}", "pid": {device}, "tid": {stream},\n'
                f'    "ts": {micro(first - 1 - base_ns)}, "dur": {micro(last - first + 2)},\n'
                f'    "args": {{\n      "External id": {row.external}\n    }}\n  }}'
            )
