"""Durations of stages per step: over the steps that have them, and spread over all steps of their role."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import (
    UNIT,
    aggregate_by_keys,
    clear_parts_of_numbered_steps,
    list_stage_rows,
    select_distinct_rows,
    summarize_job_steps,
)
from tracekit.model.tables.keys import (
    CAPTURE,
    IN_RUN,
    group_rows_by,
    inner_join,
    left_join,
    mask_matching_rows,
    number_frames_alike,
)
from tracekit.model.trace import Measurements


def measure_stage_walls(measured: Measurements) -> pd.DataFrame:
    """Measure the wall per step of each (run, role, canonical stage).

    Columns: run, role, canonical; wall_ns (mean over the steps that have it, longest rank), low_ns and high_ns (shortest
    and longest step), ranks, steps (that have it), rank_steps (Σ ranks over steps), instances (mean ranges per step on one
    rank); inside_ns and outside_ns (Σ of the longest rank in steps, and between them), inside_mean_ns (Σ of the mean rank
    that has it, in steps); recorded_steps and recorded_ns (number and Σ wall of all steps of the role).
    """
    return measured.derived(_measure_stage_walls).copy()


def _measure_stage_walls(measured: Measurements) -> pd.DataFrame:
    per_step = list_stage_steps(measured)
    is_inside, wall_ns = per_step["is_inside"].to_numpy(np.bool_), per_step["wall_ns"]
    sums = {
        "inside_ns": wall_ns.where(is_inside, 0),
        "outside_ns": wall_ns.where(~is_inside, 0),
        "inside_mean_ns": per_step["mean_ns"].where(is_inside, 0.0),
    }
    walls = aggregate_by_keys(
        per_step.assign(**sums),
        ["run", "role", "canonical"],
        wall_ns=("wall_ns", "mean"),
        low_ns=("wall_ns", "min"),
        high_ns=("wall_ns", "max"),
        ranks=("ranks", "max"),
        steps=("wall_ns", "size"),
        rank_steps=("ranks", "sum"),
        instances=("instances", "mean"),
        inside_ns=("inside_ns", "sum"),
        outside_ns=("outside_ns", "sum"),
        inside_mean_ns=("inside_mean_ns", "sum"),
    )
    recorded = aggregate_by_keys(
        list_recorded_steps(measured),
        ["run", "role"],
        recorded_steps=("wall_ns", "size"),
        recorded_ns=("wall_ns", "sum"),
    )
    return left_join(walls, recorded, ["run", "role"], optional=["run", "role"])


def list_recorded_steps(measured: Measurements) -> pd.DataFrame:
    """List each step that a process of a role recorded: unit, role, origin and wall_ns."""
    rows = select_distinct_rows(clear_parts_of_numbered_steps(measured["steps"]), [*UNIT, "role"])[[*UNIT, "role"]]
    walls = summarize_job_steps(measured).walls[[*UNIT, "origin", "wall_ns"]]
    return inner_join(rows, walls, UNIT, optional=UNIT)


def list_stage_steps(measured: Measurements) -> pd.DataFrame:
    """List each step that has a stage of a role, the input of `measure_stage_walls`.

    Columns: run, step, part, role, canonical, is_inside, wall_ns (longest rank), mean_ns (mean rank that has it),
    instances, ranks. A stage between two steps (validation, a checkpoint) counts with the step before it.
    """
    return measured.derived(_list_stage_steps)


def _list_stage_steps(measured: Measurements) -> pd.DataFrame:
    rows, steps = list_stage_rows(measured), clear_parts_of_numbered_steps(measured["steps"])
    is_inside = mask_matching_rows(rows, steps, (*CAPTURE, *UNIT))
    step = rows["step"].array.copy()
    step[~is_inside] = _find_step_before_rows(rows[~is_inside], steps)
    per_rank = aggregate_by_keys(
        rows.assign(is_inside=is_inside, step=step),
        [*UNIT, "is_inside", "canonical", *IN_RUN],
        wall_ns=("dur_ns", "sum"),
        instances=("dur_ns", "size"),
    )
    return aggregate_by_keys(
        per_rank.assign(mean_ns=per_rank["wall_ns"]),
        [*UNIT, "is_inside", "role", "canonical"],
        wall_ns=("wall_ns", "max"),
        mean_ns=("mean_ns", "mean"),
        instances=("instances", "max"),
        ranks=("pid", "size"),
    )


def _find_step_before_rows(rows: pd.DataFrame, steps: pd.DataFrame) -> Any:
    """Find the last step of its process that began before each row; missing where there is none."""
    process, of_step = number_frames_alike(CAPTURE, rows, steps)
    order = np.lexsort((steps["ts_ns"].to_numpy(np.int64), of_step))
    both = np.concatenate((of_step[order], process))
    times = np.concatenate((steps["ts_ns"].to_numpy(np.int64)[order], rows["ts_ns"].to_numpy(np.int64)))
    is_row = np.arange(len(both)) >= len(order)
    sequence = np.lexsort((is_row, times, both))
    last = np.maximum.accumulate(np.where(is_row[sequence], -1, np.arange(len(both))))
    before = np.empty(len(both), np.int64)
    before[sequence] = np.where(last >= 0, sequence[last], -1)
    before = before[is_row]
    is_known = (before >= 0) & (both[before] == process)
    place = np.append(order, -1)[np.where(is_known, before, len(order))]
    return steps["step"].array.take(place, allow_fill=True)


def compute_stage_shares_of_step(stages: pd.DataFrame) -> pd.Series[Any]:
    """Divide the time of each stage (`measure_stage_walls`) by that of all recorded steps of its role; NA outside all steps.

    Steps without the stage count. The time is that of the longest rank, or of the mean rank where the longest ones add up
    to more than the steps, because ranks run different stages at the same time.
    """
    owner, _ = group_rows_by(stages, ["run", "role"])
    inside = stages["inside_ns"].astype("Float64")
    whole = stages["recorded_ns"].astype("Float64")
    longest = np.bincount(owner, inside.to_numpy(np.float64), minlength=len(stages))[owner]
    exceeds = longest > whole.to_numpy(np.float64, na_value=np.inf)
    share_ns = inside.mask(exceeds, stages["inside_mean_ns"].astype("Float64"))
    share: pd.Series[Any] = (share_ns.where(share_ns > 0) / whole.where(whole > 0)).astype("Float64")
    return share


def spread_stage_walls(stages: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Spread the wall of each stage (`measure_stage_walls`) over all recorded steps of its role, also those without it."""
    recorded = stages["recorded_steps"].to_numpy(np.float64, na_value=np.nan)
    has_steps = np.nan_to_num(recorded) > 0
    part = stages["steps"].to_numpy(np.float64) / np.where(has_steps, recorded, 1.0)
    spread: npt.NDArray[np.float64] = stages["wall_ns"].to_numpy(np.float64)
    return np.where(has_steps, spread * part, spread)
