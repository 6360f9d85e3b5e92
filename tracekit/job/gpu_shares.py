"""Shares of GPU time, always Σ part / Σ window and never means of ratios."""

from __future__ import annotations

from tracekit.model.tables.frame import Frame, divide, sum_of
from tracekit.process.device.busy import PARTS

GPU_TIME_SUMS = ("window_ns", *PARTS, "idle_ns", "comm_ns", "overlap_ns", "op_count")


def append_gpu_time_shares(sums: Frame) -> Frame:
    """Add the shares of summed windows as columns."""
    window, ratios = sums["window_ns"], {}
    ratios["busy_ratio"] = divide(window - sums["idle_ns"], window)
    for part in (*PARTS, "idle_ns"):
        ratios[part.replace("_ns", "_ratio")] = divide(sums[part], window)
    ratios["overlap_ratio"] = divide(sums["overlap_ns"], sums["comm_ns"])
    return sums.with_columns(**ratios)


def sum_gpu_time(windows: Frame, *by: str) -> Frame:
    """Sum the GPU time of windows by these columns, with its shares."""
    return append_gpu_time_shares(windows.group_by(*by).agg(**{name: sum_of(name) for name in GPU_TIME_SUMS}))
