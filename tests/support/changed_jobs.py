"""Traces of simulated jobs, changed as other recordings differ: no stages, clocks apart, a rank that is cut or has fewer steps.

Each change takes a document (what one rank recorded) and gives another one; `jobsim` itself is left alone.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

from jobsim import kineto
from jobsim.engine import run
from jobsim.job import Job

Document = dict[str, Any]

STEP = re.compile(r"ProfilerStep#(\d+)")
RANGES = ("user_annotation", "gpu_user_annotation")
OF_TRAINER = re.compile(r"(gen|adv|old_log_prob|ref|update_actor|update_weights|(mini|micro)_batch\d+)$")
"""Ranges that the training program writes; other ones come from PyTorch or the rollout engine."""


def documents_of(job: Job) -> list[Document]:
    """What each rank of a job recorded."""
    return [json.loads(kineto.text(rank)) for rank in run(job)]


def write(documents: list[Document], folder: Path) -> Path:
    """Write one file a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, document in enumerate(documents):
        text = json.dumps(document).encode()
        (folder / f"rank{rank}.pt.trace.json.gz").write_bytes(gzip.compress(text, 1, mtime=0))
    return folder


def _with_rows(document: Document, rows: list[dict[str, Any]]) -> Document:
    return {**document, "traceEvents": rows}


def without_stages(document: Document) -> Document:
    """Without the ranges of the training program."""
    rows = document["traceEvents"]
    return _with_rows(document, [r for r in rows if r.get("cat") not in RANGES or not OF_TRAINER.match(r["name"])])


def without_steps(document: Document) -> Document:
    """Without the profiler's step marks."""
    rows = document["traceEvents"]
    return _with_rows(document, [r for r in rows if r.get("cat") not in RANGES or not STEP.match(r["name"])])


def with_clock(document: Document, fast_ns: int) -> Document:
    """With a clock that is so much fast."""
    return {**document, "baseTimeNanoseconds": document["baseTimeNanoseconds"] + fast_ns}


def on_host(document: Document, name: str) -> Document:
    """Recorded on another host."""
    return {**document, "host_name": name}


def step_starts(document: Document) -> dict[int, float]:
    """When each step begins, by its number, in the document's own µs."""
    return {
        int(found[1]): row["ts"]
        for row in document["traceEvents"]
        if row.get("cat") == "user_annotation" and (found := STEP.match(row["name"]))
    }


def until_step(document: Document, step: int) -> Document:
    """What was recorded before a step: its host stopped recording there. Work that it had launched goes on."""
    start = step_starts(document)[step]
    launched = {
        row["args"]["correlation"]
        for row in document["traceEvents"]
        if row.get("cat") in ("cuda_runtime", "cuda_driver") and row["ts"] < start
    }
    rows = []
    for row in document["traceEvents"]:
        if row.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            is_kept = row["args"]["correlation"] in launched
        else:
            is_kept = row["ph"] == "M" or row["ts"] < start
        if is_kept:
            rows.append(row)
    return _with_rows(document, rows)


def from_step(document: Document, step: int) -> Document:
    """What was recorded from a step on."""
    start = step_starts(document)[step]
    rows = document["traceEvents"]
    return _with_rows(document, [row for row in rows if row["ph"] == "M" or row["ts"] >= start])


def cut_at(document: Document, step: int) -> str:
    """The text of a file that ends in the middle of its device rows: those from a step on are lost, all host rows are there."""
    start = step_starts(document)[step]
    rows = document["traceEvents"]
    is_device = [row.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") for row in rows]
    place = next(n for n, row in enumerate(rows) if is_device[n] and row["ts"] >= start)
    text = json.dumps(_with_rows(document, rows[: place + 1]))
    return text[: text.rindex("{") + 40]


def without_compiling(document: Document) -> Document:
    """Without the rows that tell of compiling: its time is there, and nothing says what it is."""
    rows = document["traceEvents"]
    named = ("dynamo_timed", "cuModuleLoad")
    return _with_rows(document, [row for row in rows if not any(name in str(row.get("name")) for name in named)])
