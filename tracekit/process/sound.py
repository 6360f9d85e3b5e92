"""Device ops whose recorded times can be true."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.trace import Trace
from tracekit.process.by_name import of_kind


def sound_device_ops(trace: Trace) -> pd.DataFrame:
    """`device_ops` without those that are longer than everything else together lasted."""
    ops = trace.get("device_ops")
    wrong = trace.derived(overlong)
    return ops[~wrong].reset_index(drop=True) if wrong.any() else ops


def sound_dur_ns(trace: Trace) -> npt.NDArray[np.int64]:
    """`dur_ns` of every device op, 0 for those that are longer than everything else together lasted."""
    wrong, dur = trace.derived(overlong), trace.numbers("device_ops", "dur_ns")
    return np.where(wrong, 0, dur) if wrong.any() else dur


def overlong(trace: Trace) -> npt.NDArray[np.bool_]:
    """Per device op, whether its duration exceeds the whole capture, as hosts and other starts bound it.

    False everywhere for a trace without host activity: nothing bounds it then.
    """
    dur, op_start = (trace.numbers("device_ops", name) for name in ("dur_ns", "ts_ns"))
    start, end = (trace.numbers("host_ops", name) for name in ("ts_ns", "dur_ns"))
    python = of_kind(trace, "host_ops", "python")
    if python.any():
        rows = (~python).nonzero()[0]
        start, end = start[rows], end[rows]
    if not len(start) or not len(dur):
        return np.zeros(len(dur), np.bool_)
    end = start + end
    window_start = trace.numbers("windows", "ts_ns")
    window_end = window_start + trace.numbers("windows", "dur_ns")
    first = min(int(start.min()), int(op_start.min()), *window_start.tolist())
    last = max(int(end.max()), int(op_start.max()), *window_end.tolist())
    return np.asarray(dur > max(last - first, 1))
