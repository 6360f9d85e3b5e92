"""Shares of GPU time, always Σ part / Σ window and never means of ratios."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.tables.arrays import Nullable, bare
from tracekit.process.device.busy import PARTS

SUMMED = ("window_ns", *PARTS, "idle_ns", "comm_ns", "overlap_ns", "op_count")


def shares(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the shares of summed windows as columns."""
    window, comm = frame["window_ns"], frame["comm_ns"]
    ratios = {"busy_ratio": quotient(window - frame["idle_ns"], window)}
    for part in (*PARTS, "idle_ns"):
        ratios[part.replace("_ns", "_ratio")] = quotient(frame[part], window)
    ratios["overlap_ratio"] = quotient(frame["overlap_ns"], comm)
    return frame.assign(**ratios)


def quotient(top: pd.Series[Any], bottom: pd.Series[Any]) -> Any:
    """Divide one column by another; <NA> where one is unknown, and where the divisor is not positive."""
    (above, no_top), (below, no_bottom) = map(_numbers, (top, bottom))
    is_defined = ~no_top & ~no_bottom & (below > 0)
    return pd.arrays.FloatingArray(above / np.where(is_defined, below, 1), ~is_defined)


def _numbers(column: pd.Series[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Split a column into (numbers, mask of missing ones)."""
    array = bare(column.array)
    if isinstance(array, Nullable):
        return np.where(array.missing, 0, array.values), array.missing
    assert isinstance(array, np.ndarray), "numbers"
    return array, np.zeros(len(array), np.bool_)
