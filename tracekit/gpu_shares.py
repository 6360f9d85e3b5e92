"""GPU time as rules see it: shares of summed windows per stage, and of the step where there is no stage."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracekit.derived.busy import PARTS
from tracekit.pooling import (
    CAPTURE,
    devices_of,
    distinct,
    in_run,
    job,
    numbered_alike,
    plain,
    same_text,
    stage_rows,
    summed,
    text_or_none,
    whole_gpu_time,
)
from tracekit.report import Place
from tracekit.trace import Measurements

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


def judged_windows(measured: Measurements) -> pd.DataFrame:
    """The windows that rules judge: rows of `gpu_time`, one a device, plus `canonical` and `origin`.

    The stages; of runs and roles without stages the steps (`canonical` None), with how they are known.
    """
    return measured.derived(_judged_windows).copy()


def _judged_windows(measured: Measurements) -> pd.DataFrame:
    rows = whole_gpu_time(measured)
    named = distinct(stage_rows(measured), [*CAPTURE, "stage", "ts_ns", "canonical"])
    stages = rows[rows["window"] == "stage"].merge(
        named, on=[*CAPTURE, "stage", "ts_ns"], how="inner"
    )
    origins = distinct(plain(measured["steps"]), [*CAPTURE, "ts_ns", "origin"])
    steps = rows[rows["window"] == "step"].merge(origins, on=[*CAPTURE, "ts_ns"], how="inner")
    owner, staged = numbered_alike(["run", "role"], steps, stages)
    chosen = ~np.isin(owner, staged) & (steps["origin"] != "stage").to_numpy(np.bool_)
    steps = steps[chosen].assign(canonical=None)
    return pd.concat([stages.assign(origin=None), steps], ignore_index=True)


def by_stage(measured: Measurements) -> pd.DataFrame:
    """Shares per (run, role, canonical stage), Σ over ranks, devices and steps; longest stage first."""
    rows = judged_windows(measured)
    return shares(
        summed(rows[rows["window"] == "stage"], ["run", "role", "canonical"], SUMMED)
    ).sort_values("window_ns", ascending=False, kind="stable")


class Judged(NamedTuple):
    """A stage, or the whole step, as rules see it: `row` sums over `steps_and_gpus` steps of `step_ns`."""

    row: dict[Any, Any]
    name: str
    steps_and_gpus: int
    step_ns: float | None

    @property
    def place(self) -> Place:
        """Where that is."""
        return Place(role=text_or_none(self.row["role"]), stage=self.row["canonical"])

    def per_step(self, column: str) -> tuple[float, float | None]:
        """(the mean over GPUs of what one step holds, the same as a share of the step)."""
        value = float(self.row[column]) / self.steps_and_gpus
        return value, value / self.step_ns if self.step_ns else None


def judged(measured: Measurements) -> list[Judged]:
    """Every stage; of runs and roles without stages, the whole step."""
    return measured.derived(_judged)


def _judged(measured: Measurements) -> list[Judged]:
    rows, windows = whole_gpu_time(measured), judged_windows(measured)
    steps = job(measured)
    whole = summed(windows[windows["window"] == "step"], ["run", "role", "origin"], SUMMED)
    found = []
    for window, frame in (
        ("stage", by_stage(measured)),
        ("step", shares(whole).assign(canonical=None)),
    ):
        for row in frame.to_dict("records"):
            mine = same_text(rows["run"], row["run"]) & same_text(rows["role"], row["role"])
            its = steps.of(row["run"])
            gpus = devices_of(rows[mine & (rows["window"] == window)])
            name = (row["canonical"] or "the step") + in_run(measured, row["run"])
            found.append(Judged(row, name, max(gpus, 1) * max(its.count, 1), its.step_ns))
    return found
