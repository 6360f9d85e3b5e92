"""tracekit: the scan alone, or load with default columns, GPU breakdown and kernel summary.

python peer_tracekit.py scan|load TRACE.json[.gz]
python peer_tracekit.py ranks [--jobs N] TRACE.json.gz TRACE.json.gz ...

With TRACEKIT_PURE=1 in the environment, the pure-Python reader. `ranks` asks the same two questions
of each of many files, through tracekit's own local engine.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from measurement import measure, write_line
from two_questions import answer, answer_source, check_values

from tracekit.model.trace import Source
from tracekit.readers.chrome.stream import scan_trace


def time_scan(path: Path) -> None:
    """Time the scan alone: columns with all arguments."""
    columns, figures = measure(lambda: scan_trace(path))
    kernel = columns.cat.codes == columns.cat.values.index("kernel")
    total_ns = int(columns.dur_ns[kernel].sum())
    write_line(figures, rows=len(columns.ts_ns), kernels=int(kernel.sum()), kernel_ns=total_ns)


def time_load(path: Path) -> None:
    """Time the public load and the two questions."""
    (device_ops, gpu_time, kernels), figures = measure(lambda: answer(path))
    write_line(figures, names=len(kernels), **check_values(device_ops, gpu_time))


def time_ranks(paths: list[Path], jobs: int) -> None:
    """Time the two questions asked of each file, by so many workers."""
    from tracekit.engine.local import run_locally

    if jobs == 1 and hasattr(os, "sched_setaffinity"):
        # One core is one core: inflating would otherwise run beside the scan on another.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sources = [Source(path, path.name, "chrome", size_bytes=path.stat().st_size) for path in paths]
    outcomes, figures = measure(lambda: list(run_locally(answer_source, sources, jobs=jobs)))
    values = [outcome.value for outcome in outcomes if outcome.value is not None]
    if len(values) < len(paths):
        raise SystemExit(str([outcome.failure for outcome in outcomes if outcome.failure]))
    write_line(figures, **{key: sum(value[key] for value in values) for key in values[0]})


def main() -> None:
    """Make one measurement of the files named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["scan", "load", "ranks"])
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--jobs", type=int, default=1, help="workers of `ranks`")
    options = parser.parse_args()
    if options.what == "ranks":
        time_ranks(options.paths, options.jobs)
    else:
        {"scan": time_scan, "load": time_load}[options.what](options.paths[0])


if __name__ == "__main__":
    main()
