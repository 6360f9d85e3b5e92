"""orjson and pandas, as one would write it by hand: load, GPU breakdown, kernel summary.

    python peer_orjson.py TRACE.json.gz

Same columns as tracekit's default ones, where the trace has them. Times are float microseconds,
as orjson gives them: exact to a quarter of a microsecond on traces with absolute times.
"""

from __future__ import annotations

import gc
import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
from measurement import measure, write_line

COLUMNS = ("ph", "cat", "name", "pid", "tid", "ts", "dur")
ARGS = ("correlation", "External id", "stream", "device", "bytes", "Ev Idx", "Python id")
CATEGORICAL = ("ph", "cat", "name", "pid", "tid")
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")


def read_frame(path: Path) -> pd.DataFrame:
    """All events of the file, one column for each key of interest."""
    packed = path.read_bytes()
    text = gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed
    events: list[dict[str, Any]] = orjson.loads(text)["traceEvents"]
    nothing: dict[str, Any] = {}
    args = [event.get("args", nothing) for event in events]
    columns = {key: [event.get(key) for event in events] for key in COLUMNS}
    columns |= {key: [each.get(key) for each in args] for key in ARGS}
    frame = pd.DataFrame(columns)
    return frame.astype(dict.fromkeys(CATEGORICAL, "category"))


def union_us(ops: pd.DataFrame) -> float:
    """Microseconds in which at least one of the ops runs."""
    if ops.empty:
        return 0.0
    ops = ops.sort_values("ts")
    start = ops["ts"].to_numpy()
    latest = np.maximum.accumulate(start + ops["dur"].to_numpy())
    seen = np.concatenate(([start[0]], latest[:-1]))
    return float(np.maximum(0, latest - np.maximum(start, seen)).sum())


def analyse(path: Path) -> tuple[dict[str, float], pd.DataFrame]:
    """Union of the time of each class, and the kernels summed up by name."""
    frame = read_frame(path)
    ops = frame[frame["cat"].isin(GPU_CATEGORIES) & (frame["ph"] == "X")]
    kernels = ops[ops["cat"] == "kernel"]
    communication = kernels["name"].astype(str).str.contains("nccl", regex=False)
    breakdown = {
        "busy": union_us(ops),
        "computation": union_us(kernels[~communication]),
        "communication": union_us(kernels[communication]),
        "memory": union_us(ops[ops["cat"] != "kernel"]),
    }
    by_name = kernels.groupby("name", observed=True)["dur"]
    return breakdown, by_name.agg(["count", "sum", "mean", "std", "min", "median", "max"])


def main() -> None:
    """Make one measurement of the file named on the command line."""
    gc.disable()  # the collector finds nothing here and takes a third of the time
    (breakdown, summary), figures = measure(lambda: analyse(Path(sys.argv[1])))
    write_line(
        figures,
        kernels=int(summary["count"].sum()),
        kernel_ns=round(summary["sum"].sum() * 1000),
        busy_ns=round(breakdown["busy"] * 1000),
        version=f"{orjson.__version__}, pandas {pd.__version__}",
    )


if __name__ == "__main__":
    main()
