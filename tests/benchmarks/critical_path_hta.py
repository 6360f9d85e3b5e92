"""The critical path next to that of HTA, on the traces of HTA's own tests.

    python tests/benchmarks/critical_path_hta.py [--hta PYTHON] [--write]

Each trace has a window: an instance of an annotation, as HTA takes it. A line has its length, the length of the path of `whatif`
in it with its parts, and below it those of HTA. `--hta` names a Python with HolisticTraceAnalysis 0.5.0 and pandas below 2.3, and
measures HTA again; without it, the figures of the table are kept. The traces are next to `TRACEKIT_REAL_DATA`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    TESTS = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "support")]

import numpy as np
from replay.graphs import read_graphs

from tracekit.replay.edges import COPY, HOST_KINDS, KERNEL, TRANSFER
from tracekit.replay.job_graph import join_processes
from tracekit.replay.ledger import find_critical_path
from tracekit.replay.steps import JobSteps

TABLE = Path(__file__).with_suffix(".txt")
FORWARD = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
STEP = "ProfilerStep"


class Case(NamedTuple):
    """A window of a trace: an instance of an annotation, from 0."""

    path: str
    annotation: str
    instance: int


CASES = {
    "simple_add": Case(
        "data/chrome/hta/critical_path/simple_add/benchmark_result_493459_1694039959_trace.json.gz", FORWARD, 1
    ),
    "alexnet": Case(
        "more/chrome/hta/critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz", FORWARD, 1
    ),
    "cuda_event_sync": Case("more/chrome/hta/critical_path/cuda_event_sync/event_sync_trace.json.gz", STEP, 0),
    "amd_trace": Case("more/chrome/hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz", STEP, 0),
    "ns_resolution": Case("data/chrome/hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", STEP, 1),
    "nccl_data": Case("data/chrome/hta/nccl_parser_config/nccl_data.json.gz", STEP, 1),
    "df_index_resolver": Case("more/chrome/hta/df_index_resolver/df_index_resolver.json.gz", STEP, 1),
    "trace_diff": Case("data/chrome/hta/trace_diff/control/control.json.gz", STEP, 1),
}

PARTS = ("host", "kernels, copies", "communication", "gaps, launches, waits")
HTA_PARTS = {
    "host": ("cpu_bound", "data_loading"),
    "kernels, copies": ("gpu_compute_bound",),
    "communication": ("gpu_communication_bound",),
    "gaps, launches, waits": ("gpu_kernel_kernel_overhead", "gpu_kernel_launch_overhead"),
}


class MeasuredPath(NamedTuple):
    """Length of a critical path, and of its parts (`PARTS`), in µs; `window` is that of the annotation."""

    window: float
    length: float
    parts: tuple[float, ...]


def find_window(path: Path, case: Case) -> tuple[int, int]:
    """(begin, end) of the annotation, in ns of the trace's clock."""
    document: Any = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    rows = sorted(
        (
            row
            for row in document["traceEvents"]
            if row.get("cat") in ("user_annotation", "cpu_op") and case.annotation in str(row.get("name"))
        ),
        key=lambda row: row["ts"],
    )
    row, base = rows[case.instance], int(document.get("baseTimeNanoseconds", 0))
    begin = base + round(row["ts"] * 1_000)
    return begin, begin + round(row["dur"] * 1_000)


def measure_path(path: Path, case: Case) -> MeasuredPath:
    """Measure the critical path of the replay in a window."""
    job = join_processes(read_graphs(path))
    begin, end = find_window(path, case)
    host = np.arange(job.processes[0].host_count)
    time = job.time[host]
    thread = job.processes[0].thread
    first = next(at for at in host[time == begin].tolist() if (time[(thread == thread[at])] == end).any())
    last = int(host[(time == end) & (thread == thread[first])][0])
    none, one = np.zeros(1, np.int64), np.zeros(1, np.int32)
    work = np.empty(0, np.int32), none, none, none
    steps = JobSteps(none, none, one + np.int32(first), one + np.int32(last), *work, none, none, none)
    found = find_critical_path(job, steps)
    kind = job.edges.kind[found.spent.edge]
    groups = [np.isin(kind, HOST_KINDS), np.isin(kind, (KERNEL, COPY)), kind == TRANSFER]
    groups.append(~np.any(groups, axis=0))
    parts = tuple(float(found.spent.ns[group].sum()) / 1_000 for group in groups)
    assert round(sum(parts) * 1_000) + found.before_ns == found.length_ns == end - begin, "the path is the window"
    return MeasuredPath((end - begin) / 1_000, (found.length_ns - found.before_ns) / 1_000, parts)


_HTA_PROGRAM = """
import contextlib, io, json, logging, os, shutil, sys, tempfile, warnings
warnings.filterwarnings("ignore"); logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
path, annotation, instance = sys.argv[1], sys.argv[2], int(sys.argv[3])
with contextlib.redirect_stdout(io.StringIO()):
    folder = tempfile.mkdtemp(); shutil.copy(path, folder)
    analysis = TraceAnalysis(trace_files={0: os.path.join(folder, os.path.basename(path))}, trace_dir=folder)
    graph, done = analysis.critical_path_analysis(rank=0, annotation=annotation, instance_id=instance)
    frame = graph.get_critical_path_breakdown()
print(json.dumps({str(k): float(v) for k, v in frame.groupby("bound_by").duration.sum().to_dict().items()}))
"""


def measure_hta_path(python: str, path: Path, case: Case) -> tuple[float, ...]:
    """Measure the parts of HTA's critical path in a window."""
    done = subprocess.run(
        [python, "-c", _HTA_PROGRAM, str(path), case.annotation, str(case.instance)],
        capture_output=True,
        text=True,
        check=True,
    )
    spent: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1])
    return tuple(sum(spent.get(name, 0.0) for name in names) for names in HTA_PARTS.values())


def format_line(name: str, tool: str, window: float, parts: tuple[float, ...]) -> str:
    """A line of the table."""
    figures = "".join(f"{part:14,.0f}" for part in parts)
    return f"{name:20}{tool:10}{window:12,.0f}{sum(parts):12,.0f}{sum(parts) / window:8.1%}{figures}"


def read_lines(text: str) -> dict[tuple[str, str], str]:
    """The lines of the table by trace and tool."""
    return {(line[:20].strip(), line[20:30].strip()): line for line in text.splitlines() if not line.startswith("#")}


def make_table(lines: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """The table with its heading."""
    yield "# Critical paths in one window of each trace of HTA's tests, in µs. HTA is version 0.5.0."
    yield f"{'# trace':20}{'tool':10}{'window':>12}{'path':>12}{'share':>8}" + "".join(
        f"{part.split(',')[0]:>14}" for part in PARTS
    )
    for name in CASES:
        yield from (lines[name, tool] for tool in ("whatif", "HTA") if (name, tool) in lines)


def main() -> None:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hta", default="")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    root = Path(os.environ["TRACEKIT_REAL_DATA"]).parent
    lines = read_lines(TABLE.read_text("utf-8")) if TABLE.exists() else {}
    for name, case in CASES.items():
        measured = measure_path(root / case.path, case)
        lines[name, "whatif"] = format_line(name, "whatif", measured.window, measured.parts)
        if options.hta:
            lines[name, "HTA"] = format_line(
                name, "HTA", measured.window, measure_hta_path(options.hta, root / case.path, case)
            )
    text = "\n".join(make_table(lines)) + "\n"
    if options.write:
        TABLE.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
