"""Shares of GPU time, always Σ part / Σ window and never means of ratios."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.lazy_pandas import pd
from tracekit.model.tables.arrays import Nullable, make_bare
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


def add_gpu_time_shares(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the shares of `append_gpu_time_shares` to a pandas frame, for callers that still judge with pandas."""
    window, comm = frame["window_ns"], frame["comm_ns"]
    ratios = {"busy_ratio": divide_columns(window - frame["idle_ns"], window)}
    for part in (*PARTS, "idle_ns"):
        ratios[part.replace("_ns", "_ratio")] = divide_columns(frame[part], window)
    ratios["overlap_ratio"] = divide_columns(frame["overlap_ns"], comm)
    return frame.assign(**ratios)


def divide_columns(top: pd.Series[Any], bottom: pd.Series[Any]) -> Any:
    """Divide one column by another; <NA> where one is unknown, and where the divisor is not positive."""
    (above, no_top), (below, no_bottom) = _split_column_numbers(top), _split_column_numbers(bottom)
    is_defined = ~no_top & ~no_bottom & (below > 0)
    return pd.arrays.FloatingArray(above / np.where(is_defined, below, 1), ~is_defined)


def _split_column_numbers(column: pd.Series[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Split a column into (numbers, mask of missing ones)."""
    array = make_bare(column.array)
    if isinstance(array, Nullable):
        return np.where(array.missing, 0, array.values), array.missing
    assert isinstance(array, np.ndarray), "numbers"
    return array, np.zeros(len(array), np.bool_)
