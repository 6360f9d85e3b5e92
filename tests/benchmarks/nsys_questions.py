"""tracekit on an nsys export: the kernels alone, with what the process took as one JSON line.

python nsys_questions.py EXPORT.sqlite

Reads what the question of the kernels needs and no more, and summarises each process of the export by
itself, as a worker of the pipeline does.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pandas as pd
from measurement import measure, write_line

from tracekit.analyses.ops import kernels
from tracekit.model.trace import Source, Want
from tracekit.readers import nsys


def summaries(path: Path) -> list[pd.DataFrame]:
    """The summary of the kernels of each process of an export."""
    source = Source(path, path.name, "nsys", tool="nsys", size_bytes=path.stat().st_size)
    want = Want(tables=frozenset(kernels.ANALYSIS.reads), args=(), columns=frozenset({"device"}))
    found = [trace.tables.as_given().get("device_ops") for trace in nsys.read(source, want, _ignore)]
    return [kernels.summary(columns).frame() for columns in found if columns is not None]


def _ignore(_: int) -> None:
    pass


def main() -> None:
    """Measure the file that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    if hasattr(os, "sched_setaffinity"):
        # nsys works on one core, so nothing of ours may run beside.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    frames, figures = measure(lambda: summaries(path))
    rows = pd.concat(frames)
    rows = rows[rows["kind"].isin(["kernel", "collective"])]
    count, total_ns = int(rows["count"].sum()), int(rows["total_ns"].sum())
    write_line(figures, kernels=count, kernel_ns=total_ns, names=rows["name"].nunique())


if __name__ == "__main__":
    main()
