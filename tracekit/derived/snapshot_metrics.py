"""What comparisons and gates see of a memory snapshot: its levels when it was taken, under the names of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tracekit.trace import Trace

AT_END = {
    "end_requested_bytes": "device_end_requested",
    "end_allocated_bytes": "device_end_allocated",
    "end_reserved_bytes": "device_end_reserved",
    "stranded_bytes": "device_end_stranded",
}
"""Columns of levels, and the metrics that they become."""


def end_metrics(trace: Trace, levels: Sequence[pd.DataFrame]) -> Mapping[str, Mapping[str, Any]]:
    """The table `metrics` of one snapshot: the highest of each level (`AT_END`) over its GPUs; none where none is known.

    The step is that of the file; pinned host memory is in none of them.
    """
    if not levels:
        return {}
    rows = pd.concat(levels, ignore_index=True)
    rows = rows[(rows["memory"] == "device").to_numpy()]
    known = {AT_END[n]: rows[n].dropna() for n in rows if n in AT_END}
    found = {name: float(values.max()) for name, values in known.items() if len(values)}
    if not found:
        return {}
    same = {"stage": None, "unit": "bytes", "better": "lower"}
    return {
        "metrics": {
            "step": pd.array([trace.source.step] * len(found), dtype="Int64"),
            "name": np.array([*found], object),
            "value": pd.array([*found.values()], dtype="Float64"),
            **{n: np.full(len(found), value, object) for n, value in same.items()},
        }
    }
