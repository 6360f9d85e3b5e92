"""Kinds of steps by their device work: host ran ahead, without work, cut off."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import REPEATING, UNIT, aggregate_by_keys
from tracekit.model.metrics import CUT_OFF, RAN_AHEAD, WITHOUT_WORK
from tracekit.model.tables.keys import CAPTURE, group_rows_by, left_join
from tracekit.model.trace import Measurements

MAX_WORK_DIFFERENCE = 0.10
"""Largest difference between the work launched in a window and the work that runs in it, as a share of the window.

A larger difference shows that the window has the work of other steps.
"""

STUB_WORK, STUB_TIME = 0.1, 0.5
"""A first or last step below these shares of the others' launches, and of their time, is a stub that the profiler cut."""

LEAST_REPEATS = 3
"""Fewest repeating windows that allow dropping the last one, whose end is unknown."""

_STEP = [*CAPTURE, "step", "occurrence"]


def list_steps_with_device_work(measured: Measurements) -> pd.DataFrame:
    """List the steps of processes with recorded devices, with sums over devices in ns.

    Adds `window_ns`, `inside_ns` (busy in the window), `launched_ns` (busy with work launched in it) and `differ_ns`, the
    difference of the two.
    """
    return measured.derived(_list_steps_with_device_work)


def _list_steps_with_device_work(measured: Measurements) -> pd.DataFrame:
    steps = measured["steps"]
    rows = measured["gpu_time"]
    rows = rows[(rows["window"] == "step").to_numpy(np.bool_)]
    busy = aggregate_by_keys(rows, _STEP, window_ns=("window_ns", "sum"), idle_ns=("idle_ns", "sum"))
    steps = left_join(steps, busy, _STEP, optional=["pid", "step"])
    is_known = steps["window_ns"].notna() & steps["work_busy_ns"].notna()
    steps = steps[is_known.to_numpy(np.bool_)]
    inside = (steps["window_ns"] - steps["idle_ns"]).to_numpy(np.int64)
    launched = steps["work_busy_ns"].to_numpy(np.int64)
    return steps.assign(
        window_ns=steps["window_ns"].to_numpy(np.int64),
        inside_ns=inside,
        launched_ns=launched,
        differ_ns=np.abs(inside - launched),
    )


def mark_step_units(steps: pd.DataFrame) -> pd.DataFrame:
    """Mark units: run, step, part, name, value 1. `steps` are rows of `list_steps_with_device_work`, identified by unit."""
    number, first = group_rows_by(steps, UNIT)
    units = steps[[*UNIT]].iloc[first]
    parts = [
        units[is_marked].assign(name=name, value=1)
        for name, is_marked in (
            (WITHOUT_WORK, _find_units_of_only_rows(number, _find_stub_steps(steps))),
            (RAN_AHEAD, _find_ran_ahead_units(steps, number)),
            (CUT_OFF, _find_units_of_only_rows(number, _find_cut_off_windows(steps))),
        )
    ]
    return pd.concat(parts, ignore_index=True)


def _find_units_of_only_rows(number: npt.NDArray[np.int64], rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Find the units with only such rows."""
    count = int(number.max(initial=-1)) + 1
    return np.asarray(np.bincount(number[~rows], minlength=count) == 0, np.bool_)


def _find_ran_ahead_units(steps: pd.DataFrame, number: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Find the units in which much launched work runs outside, or much running work was launched outside."""
    count = int(number.max(initial=-1)) + 1
    in_row = (steps["origin"] != "file").to_numpy() & (steps["origin"] != "stage").to_numpy()
    differ = np.bincount(number, np.where(in_row, steps["differ_ns"], 0), count)
    window = np.bincount(number, steps["window_ns"], count)
    return np.asarray(differ > MAX_WORK_DIFFERENCE * window, np.bool_)


def _find_stub_steps(steps: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Find the first and last steps of a source that have next to none of the work of the others."""
    is_stub = np.zeros(len(steps), np.bool_)
    origins = steps["origin"].to_numpy(object)
    launches = steps["launch_count"].to_numpy(np.float64, na_value=0)
    walls = steps["dur_ns"].to_numpy(np.float64)
    for rows in _split_steps_by_source(steps):
        if len(rows) < 2 or origins[rows[0]] in ("file", "stage"):
            continue
        for place in (0, -1):
            few = _is_below(launches[rows].tolist(), place, STUB_WORK)
            is_stub[rows[place]] = few and _is_below(walls[rows].tolist(), place, STUB_TIME)
    return is_stub


def _is_below(values: list[float], place: int, share: float) -> bool:
    """Check whether the value at a place is below this share of the median of the others; there must be others."""
    value = values.pop(place)
    others, middle = sorted(values), len(values) // 2
    return value < share * (others[middle] + others[~middle]) / 2


def _find_cut_off_windows(steps: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Find the last window of repeating ones: it lasts as long as its work, the others until the next one begins."""
    is_last = np.zeros(len(steps), np.bool_)
    origins = steps["origin"].to_numpy(object)
    for rows in _split_steps_by_source(steps):
        if len(rows) >= LEAST_REPEATS and origins[rows[0]] in REPEATING:
            is_last[rows[-1]] = True
    return is_last


def _split_steps_by_source(steps: pd.DataFrame) -> list[npt.NDArray[Any]]:
    """Split the rows by process in a source, in order of time."""
    number, _ = group_rows_by(steps, CAPTURE)
    order = np.lexsort((steps["ts_ns"].to_numpy(np.int64), number))
    ends = np.cumsum(np.bincount(number))
    return np.split(order, ends[:-1]) if len(order) else []
