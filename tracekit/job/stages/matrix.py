"""Role × stage × step matrix: time and source of each cell, and the time of a step outside all stages (Q1–Q3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tracekit.job.driver_log import RunDriverLog, map_run_driver_logs, match_logged_steps
from tracekit.job.frames import (
    UNIT,
    aggregate_by_keys,
    clear_parts_of_numbered_steps,
    find_equal_rows,
    list_stage_rows,
    select_distinct_rows,
    summarize_job_steps,
    to_text_or_none,
)
from tracekit.model.intervals import line_up_lanes, measure_coverage, merge_intervals
from tracekit.model.stages import RL_STAGES
from tracekit.model.tables.arrays import make_frame
from tracekit.model.tables.keys import CAPTURE, IN_RUN, left_join, mask_matching_rows, number_frames_alike
from tracekit.model.trace import Measurements

MAX_STAGES = 100
"""Most stages of one run that get cells, the longest first."""


def build_stage_cells(measured: Measurements) -> pd.DataFrame:
    """Build the cells: one row per (run, step, part, role, canonical stage), with its wall and how it is known (Q1).

    Columns: the unit, role, canonical, wall_ns (longest rank; NA unless measured), rank (the longest one), ranks, instances
    (most ranges on one rank), logged_ns, state: measured | log | not applicable | missing.
    """
    return measured.derived(_build_stage_cells)


def list_timed_units(measured: Measurements) -> pd.DataFrame:
    """List the units (`job.frames.measure_step_walls`) that get cells: in a run with stages, those with a number or a stage.

    A capture with neither, such as a cluster timeline next to the profiles, is not a step of the run. Do not change the
    result in place.
    """
    return measured.derived(_list_timed_units)


def _list_timed_units(measured: Measurements) -> pd.DataFrame:
    walls = summarize_job_steps(measured).walls
    staged = list_stage_rows(measured)
    numbered = walls["step"].notna().to_numpy()
    without = ~walls["run"].isin(set(staged["run"])).to_numpy(np.bool_)
    return walls[numbered | mask_matching_rows(walls, staged, UNIT) | without].reset_index(drop=True)


def _build_stage_cells(measured: Measurements) -> pd.DataFrame:
    walls = list_timed_units(measured)
    frames = [
        _build_stage_cells_of_run(
            walls[find_equal_rows(walls["run"], run)], seen[find_equal_rows(seen["run"], run)], log, run
        )
        for seen in [_sum_traced_stages(measured)]
        for run, log in _list_runs_with_logs(measured).items()
    ]
    columns = [*UNIT, "role", "canonical", "wall_ns", "rank", "ranks", "instances", "logged_ns", "state"]
    out = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)
    types = dict.fromkeys(("wall_ns", "rank", "ranks", "instances", "logged_ns"), "Int64")
    return out[columns].astype(types)


def _list_runs_with_logs(measured: Measurements) -> dict[Any, RunDriverLog | None]:
    """Map every run to its log, None without one."""
    run_logs = map_run_driver_logs(measured)
    names = [*summarize_job_steps(measured).walls["run"].unique(), *run_logs]
    return {name: run_logs.get(name) for name in dict.fromkeys(to_text_or_none(name) for name in names)}


def _sum_traced_stages(measured: Measurements) -> pd.DataFrame:
    """Sum the traced stages: one row per (unit, role, canonical)."""
    rows = list_stage_rows(measured)
    by = [*UNIT, "role", "canonical"]
    per_rank = aggregate_by_keys(
        rows, [*UNIT, "canonical", *IN_RUN], wall_ns=("dur_ns", "sum"), instances=("dur_ns", "size")
    ).sort_values("wall_ns", ascending=False, kind="stable")
    return aggregate_by_keys(
        per_rank,
        by,
        wall_ns=("wall_ns", "first"),
        rank=("rank", "leading"),
        ranks=("wall_ns", "size"),
        instances=("instances", "max"),
    )


def _build_stage_cells_of_run(
    walls: pd.DataFrame, seen: pd.DataFrame, log: RunDriverLog | None, run: object
) -> pd.DataFrame:
    """Build the cells of one run: every stage in every unit."""
    totals = aggregate_by_keys(seen, ["role", "canonical"], wall_ns=("wall_ns", "sum"))
    longest = np.argsort(-totals["wall_ns"].to_numpy(np.int64), kind="stable")[:MAX_STAGES]
    stages = totals[["role", "canonical"]].iloc[longest]
    if log is not None:
        names = sorted(set(log.stages["canonical"]) - set(stages["canonical"]))
        only = pd.DataFrame({"role": [None] * len(names), "canonical": names}, dtype=object)
        if not len(walls):
            walls = pd.DataFrame({"run": run, "step": sorted(set(log.stages["step"])), "part": None})
        is_rl = len(set(RL_STAGES) & ({*stages["canonical"], *names})) > 1
        absent = [s for s in RL_STAGES if is_rl and s not in {*stages["canonical"], *names}]
        absent_rows = pd.DataFrame({"role": [None] * len(absent), "canonical": absent}, dtype=object)
        stages = pd.concat([stages.astype(object), only, absent_rows], ignore_index=True)
    keys = ["step", "part", "role", "canonical"]
    out = left_join(_make_stage_grid(walls, stages), seen.drop(columns="run"), keys, optional=keys)
    logged, has_step = _look_up_logged_stages(out, log, walls)
    measured_here = out["wall_ns"].notna().to_numpy()
    out["logged_ns"] = logged
    out["state"] = np.select(
        [measured_here, logged.notna().to_numpy(), has_step], ["measured", "log", "not applicable"], "missing"
    )
    return out


def _make_stage_grid(walls: pd.DataFrame, stages: pd.DataFrame) -> pd.DataFrame:
    """Make a row for each unit and stage."""
    unit = np.repeat(np.arange(len(walls)), len(stages))
    stage = np.tile(np.arange(len(stages)), len(walls))
    columns = {
        "run": walls["run"].to_numpy(object)[unit],
        "step": walls["step"].astype("Int64").array[unit],
        "part": walls["part"].to_numpy(object)[unit],
        "role": stages["role"].to_numpy(object)[stage],
        "canonical": stages["canonical"].to_numpy(object)[stage],
    }
    return make_frame(columns, len(unit))


def _look_up_logged_stages(
    grid: pd.DataFrame, log: RunDriverLog | None, walls: pd.DataFrame
) -> tuple[pd.Series[Any], Any]:
    """Look up the logged time of each cell: (time, whether the log covers that step).

    Where no traced step has the number of a logged one, each cell gets the median over all steps of the log.
    """
    if log is None:
        return pd.Series(pd.NA, index=grid.index, dtype="Int64"), np.zeros(len(grid), np.bool_)
    numbered = match_logged_steps(walls, log) if "origin" in walls else sorted(set(log.stages["step"]))
    if not numbered:
        pooled = log.stages.groupby("canonical")["dur_ns"].median()
        value = grid["canonical"].map(pooled).astype("Float64").round().astype("Int64")
        return value, np.ones(len(grid), np.bool_)
    cells = grid[["step", "canonical"]]
    values = left_join(cells, log.stages, ["step", "canonical"])["dur_ns"].astype("Int64")
    return values.set_axis(grid.index), grid["step"].isin(numbered).to_numpy()


def measure_stage_residuals(measured: Measurements) -> pd.DataFrame:
    """Measure the time of each process's steps outside all its stages (Q3).

    One row per step of a process: the unit, role, rank, host, pid, wall_ns, residual_ns. Processes without stages, and
    stages that were captured one by one, are left out: their residual is unknown.
    """
    steps = clear_parts_of_numbered_steps(measured["steps"])
    steps = steps[(steps["origin"] != "stage").to_numpy()]
    ranges = list_stage_rows(measured)
    if not len(steps) or not len(ranges):
        return steps[[*UNIT, *IN_RUN]].iloc[:0].assign(wall_ns=0, residual_ns=0)
    number, number_of_stage = number_frames_alike(CAPTURE, steps, ranges)
    out = steps[[*UNIT, *IN_RUN]].assign(wall_ns=steps["dur_ns"])
    staged = np.isin(number, number_of_stage)
    out, start, number = out[staged], steps["ts_ns"].to_numpy(np.int64)[staged], number[staged]
    begin, dur = (ranges[name].to_numpy(np.int64) for name in ("ts_ns", "dur_ns"))
    wall = out["wall_ns"].to_numpy(np.int64)
    line = np.concatenate((number_of_stage, number))
    begins, ends = np.concatenate((begin, start)), np.concatenate((begin + dur, start + wall))
    uncovered = np.zeros(len(out), np.int64)
    for chosen, shift in line_up_lanes(line, begins, ends):
        moved, until = begins[chosen] + shift, ends[chosen] + shift
        stages = np.flatnonzero(chosen) < len(begin)
        busy = merge_intervals(moved[stages], until[stages])
        in_part = np.flatnonzero(chosen[len(begin) :])
        uncovered[in_part] = wall[in_part] - measure_coverage(busy, moved[~stages], until[~stages])
    assert (uncovered >= 0).all(), "stages cannot cover more of a step than there is"
    # Group rows by process, in order of appearance.
    order = np.argsort(pd.factorize(number)[0], kind="stable")
    return out.assign(residual_ns=uncovered).iloc[order].reset_index(drop=True)


def average_stage_walls_by_rank(measured: Measurements) -> pd.DataFrame:
    """Average the wall of each stage by rank: (run, role, canonical, rank) and wall_ns per step of that rank (Q1).

    The time outside all stages is a row per role and rank with a missing `canonical`.
    """
    by = ["run", "role", "canonical", "rank"]
    process = ["run", "role", "rank", "host", "pid"]
    walls = aggregate_by_keys(list_stage_rows(measured), [*process, "canonical"], wall_ns=("dur_ns", "sum"))
    steps = select_distinct_rows(clear_parts_of_numbered_steps(measured["steps"]), [*process, "step", "part"])
    steps = aggregate_by_keys(steps, process, steps=("pid", "size"))
    count = left_join(walls, steps, process, optional=process)["steps"].to_numpy(np.float64)
    walls["wall_ns"] = walls["wall_ns"] / np.maximum(np.nan_to_num(count, nan=1.0), 1.0)
    outside = measure_stage_residuals(measured)
    if len(outside):
        means = aggregate_by_keys(outside, ["run", "role", "rank", "host", "pid"], wall_ns=("residual_ns", "mean"))
        walls = pd.concat([walls, means.assign(canonical=None)], ignore_index=True)
    longest = aggregate_by_keys(walls, by, wall_ns=("wall_ns", "max"))
    return longest.astype({"rank": "Int64", "wall_ns": "Float64"})
