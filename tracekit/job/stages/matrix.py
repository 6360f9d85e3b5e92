"""Role × stage × step matrix: time and source of each cell, and the time of a step outside all stages (Q1–Q3)."""

from __future__ import annotations

import numpy as np

from tracekit.job.driver_log import RunDriverLog, find_logged_steps, map_run_driver_logs
from tracekit.job.frames import UNIT, clear_redundant_parts, list_stage_ranges, summarize_step_walls
from tracekit.model.intervals import line_up_lanes, measure_coverage, merge_intervals
from tracekit.model.stages import RL_STAGES
from tracekit.model.tables.arrays import Array, Nullable, repeat_number, select_rows
from tracekit.model.tables.frame import (
    Bools,
    Frame,
    concat,
    count_rows,
    first_of,
    from_rows,
    is_missing,
    max_of,
    mean_of,
    median_of,
    number_alike,
    sum_of,
    texts,
)
from tracekit.model.tables.keys import CAPTURE, IN_RUN
from tracekit.model.trace import Measurements, derive_once

MAX_STAGES = 100
"""Most stages of one run that get cells, the longest first."""


@derive_once
def list_stage_cells(measured: Measurements) -> Frame:
    """List the cells: one row per (run, step, part, role, canonical stage), with its wall and how it is known (Q1).

    Columns: the unit, role, canonical, wall_ns (longest rank; missing unless measured), rank (the longest one), ranks,
    instances (most ranges on one rank), logged_ns, state: measured | log | not applicable | missing.
    """
    walls, seen = list_units_with_cells(measured), _sum_traced_stages(measured)
    logs = map_run_driver_logs(measured)
    cells = []
    for run in dict.fromkeys([*summarize_step_walls(measured).walls.values("run"), *logs]) or [None]:
        of_run = walls.filter(walls.equals("run", run)), seen.filter(seen.equals("run", run))
        cells.append(_list_stage_cells_of_run(*of_run, logs.get(run), run))
    return concat(cells)


def list_units_with_cells(measured: Measurements) -> Frame:
    """List the units (`job.frames.measure_step_walls`) that get cells: in a run with stages, those with a number or a stage.

    A capture with neither, such as a cluster timeline next to the profiles, is not a step of the run.
    """
    walls, staged = summarize_step_walls(measured).walls, list_stage_ranges(measured)
    has_stage = walls.is_among(staged, UNIT, optional=UNIT)
    is_of_staged_run = walls.is_among(staged, ["run"], optional=["run"])
    return walls.filter(~walls.is_missing("step") | has_stage | ~is_of_staged_run)


def _sum_traced_stages(measured: Measurements) -> Frame:
    """Sum the traced stages: one row per (unit, role, canonical), the longest first."""
    by_rank = list_stage_ranges(measured).group_by(*UNIT, "canonical", *IN_RUN)
    per_rank = by_rank.agg(wall_ns=sum_of("dur_ns"), instances=count_rows()).sort("wall_ns", descending=["wall_ns"])
    return per_rank.group_by(*UNIT, "role", "canonical").agg(
        wall_ns=first_of("wall_ns"), rank=first_of("rank"), ranks=count_rows(), instances=max_of("instances")
    )


def _list_stage_cells_of_run(walls: Frame, seen: Frame, log: RunDriverLog | None, run: str | None) -> Frame:
    """List the cells of one run: every stage in every unit."""
    totals = seen.group_by("role", "canonical").agg(wall_ns=sum_of("wall_ns"))
    stages = totals.sort("wall_ns", descending=["wall_ns"]).head(MAX_STAGES).drop("wall_ns")
    if log is not None:
        if not len(walls):
            steps = np.array(sorted(set(log.stage_times.values("step"))), np.int64)
            walls = Frame.from_columns({"step": steps}).with_columns(run=run, part=None).select(*UNIT)
        traced = set(stages.values("canonical"))
        names = sorted(set(log.stage_times.values("canonical")) - traced)
        is_rl = len(traced.union(names).intersection(RL_STAGES)) > 1
        names += [stage for stage in RL_STAGES if is_rl and stage not in {*traced, *names}]
        stages = concat([stages, from_rows(("role", "canonical"), [(None, name) for name in names])])
    units = walls.select(*UNIT).take(np.repeat(np.arange(len(walls)), len(stages)))
    grid = Frame({**units.columns, **stages.take(np.tile(np.arange(len(stages)), len(walls))).columns}, len(units))
    keys = ("step", "part", "role", "canonical")
    cells = grid.join(seen.drop("run"), keys, "left", optional=keys)
    logged_ns, is_covered = _look_up_logged_stages(grid, log, walls)
    is_measured, is_logged = ~cells.is_missing("wall_ns"), ~is_missing(logged_ns)
    state = np.select([is_measured, is_logged, is_covered], [0, 1, 2], 3)
    names_of_states = texts(("measured", "log", "not applicable", "missing"))
    return cells.with_columns(logged_ns=logged_ns, state=select_rows(names_of_states, state))


def _look_up_logged_stages(grid: Frame, log: RunDriverLog | None, walls: Frame) -> tuple[Array, Bools]:
    """Look up the logged time of each cell: (time, whether the log covers that step).

    Where no traced step has the number of a logged one, each cell gets the median over all steps of the log.
    """
    if log is None:
        return repeat_number(None, len(grid)), np.zeros(len(grid), np.bool_)
    logged = log.stage_times
    is_traced = "origin" in walls.columns
    numbered = find_logged_steps(walls, log) if is_traced else sorted(set(logged.values("step")))
    if not numbered:
        pooled = logged.group_by("canonical").agg(dur_ns=median_of(logged.number("dur_ns")))
        medians = grid.select("canonical").join(pooled, ["canonical"], "left")
        is_gap = medians.is_missing("dur_ns")
        whole = np.round(medians.number("dur_ns", missing=0.0)).astype(np.int64)
        return Nullable(whole, is_gap), np.ones(len(grid), np.bool_)
    times = grid.select("step", "canonical").join(logged, ["step", "canonical"], "left")
    is_covered = ~grid.is_missing("step") & np.isin(grid.integers("step"), numbered)
    return times.columns["dur_ns"], is_covered


def measure_stage_residuals(measured: Measurements) -> Frame:
    """Measure the time of each process's steps outside all its stages (Q3).

    One row per step of a process: the unit, role, rank, host, pid, wall_ns, residual_ns. Processes without stages, and
    stages that were captured one by one, are left out: their residual is unknown.
    """
    steps, ranges = clear_redundant_parts(measured.frame("steps")), list_stage_ranges(measured)
    steps = steps.filter(~steps.equals("origin", "stage") & steps.is_among(ranges, CAPTURE, optional=CAPTURE))
    number, number_of_range = number_alike(CAPTURE, steps, ranges)
    begin = np.concatenate((ranges["ts_ns"], steps["ts_ns"]))
    end = begin + np.concatenate((ranges["dur_ns"], steps["dur_ns"]))
    uncovered = np.zeros(len(steps), np.int64)
    for chosen, shift in line_up_lanes(np.concatenate((number_of_range, number)), begin, end):
        moved, until = begin[chosen] + shift, end[chosen] + shift
        is_range = np.flatnonzero(chosen) < len(ranges)
        busy = merge_intervals(moved[is_range], until[is_range])
        in_part = np.flatnonzero(chosen[len(ranges) :])
        uncovered[in_part] = steps["dur_ns"][in_part] - measure_coverage(busy, moved[~is_range], until[~is_range])
    assert (uncovered >= 0).all(), "stages cannot cover more of a step than there is"
    rows = steps.select(*UNIT, *IN_RUN).with_columns(wall_ns=steps["dur_ns"], residual_ns=uncovered)
    return rows.take(np.argsort(number, kind="stable"))


def average_stages_by_rank(measured: Measurements) -> Frame:
    """Average the wall of each stage by rank: (run, role, canonical, rank) and wall_ns per step of that rank (Q1).

    The time outside all stages is a row per role and rank with a missing `canonical`.
    """
    process = ("run", "role", "rank", "host", "pid")
    walls = list_stage_ranges(measured).group_by(*process, "canonical").agg(wall_ns=sum_of("dur_ns"))
    steps = clear_redundant_parts(measured.frame("steps")).distinct(*process, "step", "part")
    steps = steps.group_by(*process).agg(steps=count_rows())
    walls = walls.join(steps, process, "left", optional=process)
    walls = walls.with_columns(wall_ns=walls["wall_ns"] / walls.integers("steps", missing=1)).drop("steps")
    outside = measure_stage_residuals(measured).group_by(*process).agg(wall_ns=mean_of("residual_ns"))
    walls = concat([walls, outside])
    return walls.group_by("run", "role", "canonical", "rank").agg(wall_ns=max_of("wall_ns"))
