"""Flight-recorder dumps of made jobs, as JSON or pickle, and text of watchdogs, py-spy and NCCL RAS."""

from __future__ import annotations

import json
import pickle
from typing import Any

START_NS = 1_758_000_000_000_000_000
"""2025-09-16 05:20:00 UTC."""

DEFAULT = ("0", "default_pg")


def record(seq: int, op: str = "all_reduce", **facts: Any) -> dict[str, Any]:
    """One record as torch writes it; a completed all_reduce of 8 numbers if nothing else is said."""
    return {
        "record_id": seq - 1, "pg_id": 0, "process_group": list(DEFAULT), "collective_seq_id": seq, "p2p_seq_id": 0,
        "op_id": seq, "profiling_name": f"nccl:{op}", "time_created_ns": START_NS + seq * 1_000_000_000,
        "input_sizes": [[8]], "input_dtypes": ["Float"], "output_sizes": [[8]], "output_dtypes": ["Float"],
        "state": "completed", "retired": True, "time_discovered_started_ns": 0, "time_discovered_completed_ns": 0,
        "timeout_ms": 600_000, "is_p2p": False, "thread_name": "python", "thread_id": "1",
    } | facts  # fmt: skip


def pending(seq: int, op: str = "all_reduce", **facts: Any) -> dict[str, Any]:
    """A record that started and did not complete."""
    return record(seq, op, state="started", retired=False, **facts)


def timed(seq: int, ms: float, op: str = "all_reduce", **facts: Any) -> dict[str, Any]:
    """A completed record with the duration that TORCH_NCCL_ENABLE_TIMING=1 adds."""
    return record(seq, op, duration_ms=ms, **facts)


def dump(records: list[dict[str, Any]], *, ranks: str = "[0, 1, 2]", status: bool = True, **more: Any) -> bytes:
    """A dump in JSON with the status that follows from the records; without `status`, with none."""
    names = {str(r["pg_id"]): tuple(r["process_group"]) for r in records} or {"0": DEFAULT}
    counts: dict[str, dict[str, int]] = {}
    for pg in names:
        of_group = [r for r in records if str(r["pg_id"]) == pg and not r["is_p2p"]]
        done = [r["collective_seq_id"] for r in of_group if r["state"] == "completed"]
        counts[pg] = {
            "last_enqueued_collective": max([r["collective_seq_id"] for r in of_group], default=-1),
            "last_started_collective": -1,
            "last_completed_collective": max(done, default=-1),
        }
    root = {
        "version": "2.10",
        "pg_config": {name: {"name": name, "desc": desc, "ranks": ranks} for name, desc in names.values()},
        "pg_status": counts if status else {},
        "entries": records,
        **more,
    }
    return json.dumps(root).encode()


def pickled(data: bytes) -> bytes:
    """The same dump as a pickle of protocol 2."""
    return pickle.dumps(json.loads(data), protocol=2)


def job(*of_ranks: list[dict[str, Any]], **facts: Any) -> dict[str, bytes]:
    """The dumps of all ranks, as files of one folder."""
    return {f"dumps/nccl_trace_rank_{rank}.json": dump(records, **facts) for rank, records in enumerate(of_ranks)}


def watchdog(rank: int, seq: int, op: str = "ALLREDUCE", ran_ms: int = 600_029) -> str:
    """The two lines that torch 2.7 and later print when a collective times out."""
    head = f"[rank{rank}]:[E901 10:21:44.215593150 ProcessGroupNCCL.cpp:690] [Rank {rank}]"
    status = (
        f"[rank{rank}]:[E901 10:21:44.215594000 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    )
    return (
        f"{head} Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=8, "
        f"NumelOut=8, Timeout(ms)=600000) ran for {ran_ms} milliseconds before timing out.\n"
        f"{status}  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {seq + 1}, "
        f"last completed work: {seq - 1}\n"
    )


def ras(ahead: int, behind: int) -> str:
    """One report of RAS on four ranks, of which rank 1 launched `behind` operations and the others `ahead`."""
    return (
        "NCCL version 2.26.2 compiled with CUDA 12.6\n\nJob summary\n===========\n\n"
        "Communicators... (0.00s)\n=============\n\nErrors\n======\n\nWarnings\n========\n\n"
        "#0-0 (27a079b828ff1a75) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        f"  3 ranks have launched up to operation {ahead}\n"
        f"  Rank 1 has launched up to operation {behind} -- GPU 3 managed by process 1650386 on node 10.0.0.7\n\n"
    )
