"""GPU time as rules see it: shares of summed windows per stage, and of the step where there is no stage."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracekit.job.frames import summed
from tracekit.job.stage_windows import WHERE, StageWindow, keyed, placed, stage_windows
from tracekit.model.trace import Measurements
from tracekit.process.busy import PARTS

SUMMED = ("window_ns", *PARTS, "idle_ns", "comm_ns", "overlap_ns", "op_count")


def shares(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the shares of its (summed) windows added: Σ part / Σ window, never means of ratios."""
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
    known = ~part.array.isna() & ~whole.array.isna() & (bottom > 0)
    return pd.arrays.FloatingArray(top / np.where(known, bottom, 1), ~known)


def by_stage(measured: Measurements) -> pd.DataFrame:
    """Shares per (run, role, canonical stage), Σ over ranks, devices and steps; longest stage first."""
    rows = placed(measured, "gpu_time")
    return shares(summed(rows[rows["window"] == "stage"], WHERE, SUMMED)).sort_values(
        "window_ns", ascending=False, kind="stable"
    )


class Judged(NamedTuple):
    """A stage window with its `row` of shares: `SUMMED` over its steps and GPUs."""

    window: StageWindow
    row: dict[Any, Any]

    def per_step(self, column: str) -> tuple[float, float | None]:
        """(the mean over steps and GPUs of a column, the same as a share of the step)."""
        return self.window.per_step(float(self.row[column]))


def judged(measured: Measurements) -> list[Judged]:
    """Every stage; of runs and roles without stages, the whole step."""
    return measured.derived(_judged)


def _judged(measured: Measurements) -> list[Judged]:
    sums = shares(summed(placed(measured, "gpu_time"), WHERE, SUMMED))
    rows = {keyed(row): row for row in sums.to_dict("records")}
    windows = sorted(stage_windows(measured), key=lambda window: window.canonical is None)
    return [Judged(window, rows[window.key]) for window in windows]
