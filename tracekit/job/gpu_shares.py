"""Shares of summed GPU time: Σ part / Σ window, never means of ratios."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tracekit.process.busy import PARTS

SUMMED = ("window_ns", *PARTS, "idle_ns", "comm_ns", "overlap_ns", "op_count")


def shares(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the shares of its (summed) windows added."""
    ratios = {
        "busy_ratio": _ratio(frame["window_ns"] - frame["idle_ns"], frame["window_ns"]),
        **{
            part.replace("_ns", "_ratio"): _ratio(frame[part], frame["window_ns"])
            for part in (*PARTS, "idle_ns")
        },
        "overlap_ratio": _ratio(frame["overlap_ns"], frame["comm_ns"]),
    }
    return frame.assign(**ratios)


def _ratio(part: pd.Series[Any], whole: pd.Series[Any]) -> Any:
    """The part of the whole, <NA> of nothing and where one of them is unknown; both are whole numbers."""
    top, bottom = (column.to_numpy(np.int64, na_value=0) for column in (part, whole))
    is_defined = ~part.array.isna() & ~whole.array.isna() & (bottom > 0)
    return pd.arrays.FloatingArray(top / np.where(is_defined, bottom, 1), ~is_defined)
