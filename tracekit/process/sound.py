"""Device ops whose recorded times can be true."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.trace import Trace


def sound_device_ops(trace: Trace) -> pd.DataFrame:
    """`device_ops` without those that are longer than everything else together lasted."""
    ops = trace.get("device_ops")
    wrong = trace.derived(overlong)
    return ops[~wrong].reset_index(drop=True) if wrong.any() else ops


def sound_dur_ns(trace: Trace) -> npt.NDArray[np.int64]:
    """`dur_ns` of every device op, 0 for those that are longer than everything else together lasted."""
    dur = trace.get("device_ops")["dur_ns"].to_numpy()
    return np.where(trace.derived(overlong), 0, dur)


def overlong(trace: Trace) -> npt.NDArray[np.bool_]:
    """Per device op, whether its duration exceeds the whole capture, as hosts and other starts bound it.

    False everywhere for a trace without host activity: nothing bounds it then.
    """
    ops = trace.get("device_ops")
    dur = ops["dur_ns"].to_numpy()
    host = trace.get("host_ops")
    host = host.loc[(host["kind"] != "python").to_numpy(), ["ts_ns", "dur_ns"]]
    if not len(host) or not len(ops):
        return np.zeros(len(ops), np.bool_)
    starts = [host["ts_ns"].to_numpy(), ops["ts_ns"].to_numpy()]
    first = min(int(s.min()) for s in starts)
    last = max(int((starts[0] + host["dur_ns"].to_numpy()).max()), int(starts[1].max()))
    for window in trace.get("windows")[["ts_ns", "dur_ns"]].itertuples(index=False):
        first, last = min(first, int(window[0])), max(last, int(window[0]) + int(window[1]))
    return dur > max(last - first, 1)
