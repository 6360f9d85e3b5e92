"""Measures what dependency graphs cost `analyze`: CPU and memory with and without them.

    python tests/benchmarks/replay_cost.py [--rounds 3] [--only one-file,64-ranks,1000-ranks]

Every run is a process of its own with all its workers, without a cache. `plain` measures and judges, `graphs` also builds
the graphs, `replay` joins them and plans the fixes as well. Each figure is the least of all rounds. Inputs are made in bench-data where they
are missing: one file of 200 MB (needs TRACEKIT_REAL_DATA), and simulated ranks. Exit status 1: a limit was exceeded.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import make_traces
import scale_run
from bench_runs import figures_of

WAYS = ("plain", "graphs", "replay")
MOST_RATIO, MOST_DRIVER_S, MOST_MIB = 1.5, 20.0, 2048

CODE = """
import json, resource, sys, time
from pathlib import Path
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.options import Options
way, path = sys.argv[1:]
options = Options(cache=False, details=False, graphs=way != "plain")
measured = pipeline.measure_all([path], options)
rows = int(sum(measured.frame("captures")[name].sum() for name in ("host_op_count", "device_op_count")))
packed = sum(graph.size_bytes for graph in measured.graphs)
begin = time.process_time()
judged = measured if way == "replay" else __import__("dataclasses").replace(measured, graphs=())
pipeline.judge(judged, details=False)
judge = time.process_time() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"judge": judge, "packed": packed, "rows": rows, "driver_mib": peak}))
"""


@dataclass(frozen=True, slots=True)
class Input:
    """What is analyzed, and the number of its files."""

    name: str
    build: Callable[[], Path]
    files: int


INPUTS = (
    Input("one-file", lambda: make_traces.build_trace("A", 200), 1),
    Input("64-ranks", lambda: scale_run.made(make_traces.BENCH_DATA, 64), 64),
    Input("1000-ranks", lambda: scale_run.made(make_traces.BENCH_DATA, 1000), 1000),
)


def measure(item: Input, rounds: int) -> dict[str, dict[str, float]]:
    """The least of each figure, by way."""
    least: dict[str, dict[str, float]] = {way: {} for way in WAYS}
    path = item.build()
    for _ in range(rounds):
        for way, best in least.items():
            # A pool of BLAS threads would make workers children of a fork server, whose CPU time is not counted.
            command: list[str | Path] = ["env", "OPENBLAS_NUM_THREADS=1", sys.executable, "-c", CODE, way, path]
            figures, error = figures_of(command)
            if error:
                raise subprocess.SubprocessError(f"{item.name} {way}: {error}")
            for name, value in figures.items():
                if isinstance(value, int | float):
                    best[name] = min(value, best.get(name, value))
    return least


def describe(item: Input, least: dict[str, dict[str, float]]) -> tuple[str, bool]:
    """A line of the table, and whether the limits are kept."""
    plain, graphs, replay = (least[way]["process_cpu"] for way in WAYS)
    of = least["replay"]
    cells = [
        item.name,
        *(f"{seconds:.2f}" for seconds in (plain, graphs, replay)),
        f"{replay / plain:.2f}",
        f"{(graphs - plain) / item.files * 1e3:.1f}",
        f"{of['judge']:.2f}",
        f"{of['packed'] / of['rows']:.1f}",
        f"{least['plain']['driver_mib']:.0f}",
        f"{of['driver_mib']:.0f}",
    ]
    is_within = replay <= MOST_RATIO * plain and of["judge"] <= MOST_DRIVER_S and of["driver_mib"] <= MOST_MIB
    return f"| {' | '.join(cells)} |", is_within


def main() -> int:
    """Exit status: 0 if every limit is kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="names of inputs, comma separated")
    options = parser.parse_args()
    names = tuple(filter(None, options.only.split(",")))
    print(
        "| input | plain CPU s | graphs | replay | ratio | ms a file | judge CPU s | bytes a row | MiB plain | MiB replay |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    is_kept = True
    for item in INPUTS:
        if not names or item.name in names:
            line, is_within = describe(item, measure(item, options.rounds))
            is_kept &= is_within
            print(line, flush=True)
    print(f"\nLoad average {os.getloadavg()[0]:.1f} at the end.")
    return int(not is_kept)


if __name__ == "__main__":
    sys.exit(main())
