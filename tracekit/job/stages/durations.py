"""Durations of stages per step: over the steps that have them, and spread over all steps of their role."""

from __future__ import annotations

import numpy as np

from tracekit.job.frames import UNIT, clear_redundant_parts, list_stage_ranges, summarize_step_walls
from tracekit.model.tables.arrays import Array, Nullable
from tracekit.model.tables.frame import (
    Frame,
    choose,
    count_rows,
    divide,
    max_of,
    mean_of,
    min_of,
    number_alike,
    sum_of,
    where,
)
from tracekit.model.tables.keys import CAPTURE, IN_RUN
from tracekit.model.trace import Measurements, derive_once


@derive_once
def measure_stage_durations(measured: Measurements) -> Frame:
    """Measure the wall per step of each (run, role, canonical stage).

    Columns: run, role, canonical; wall_ns (mean over the steps that have it, longest rank), low_ns and high_ns (shortest
    and longest step), ranks, steps (that have it), rank_steps (Σ ranks over steps), instances (mean ranges per step on one
    rank); inside_ns and outside_ns (Σ of the longest rank in steps, and between them), inside_mean_ns (Σ of the mean rank
    that has it, in steps); recorded_steps and recorded_ns (number and Σ wall of all steps of the role); share_ratio
    (`_divide_stage_times`) and spread_ns (the wall spread over all recorded steps of the role, also those without it).
    """
    per_step = list_stage_steps(measured)
    is_inside = per_step["is_inside"]
    walls = per_step.group_by("run", "role", "canonical").agg(
        wall_ns=mean_of("wall_ns"),
        low_ns=min_of("wall_ns"),
        high_ns=max_of("wall_ns"),
        ranks=max_of("ranks"),
        steps=count_rows(),
        rank_steps=sum_of("ranks"),
        instances=mean_of("instances"),
        inside_ns=sum_of(np.where(is_inside, per_step["wall_ns"], 0)),
        outside_ns=sum_of(np.where(is_inside, 0, per_step["wall_ns"])),
        inside_mean_ns=sum_of(np.where(is_inside, per_step["mean_ns"], 0.0)),
    )
    by_owner = list_recorded_steps(measured).group_by("run", "role")
    recorded = by_owner.agg(recorded_steps=count_rows(), recorded_ns=sum_of("wall_ns"))
    stages = walls.join(recorded, ("run", "role"), "left", optional=("run", "role"))
    has_steps = stages.integers("recorded_steps") > 0
    part = np.where(has_steps, stages["steps"] / stages.integers("recorded_steps", missing=1), 1.0)
    return stages.with_columns(share_ratio=_divide_stage_times(stages), spread_ns=stages["wall_ns"] * part)


def _divide_stage_times(stages: Frame) -> Nullable:
    """Divide the time of each stage by that of all recorded steps of its role; missing outside all steps.

    Steps without the stage count. The time is that of the longest rank, or of the mean rank where the longest ones add up
    to more than the steps, because ranks run different stages at the same time.
    """
    of_owner = stages.group_by("run", "role").each(sum_of("inside_ns"))
    exceeds = of_owner > stages.number("recorded_ns", missing=np.inf)
    share_ns = np.where(exceeds, stages["inside_mean_ns"], stages["inside_ns"])
    return divide(where(share_ns > 0, share_ns), stages["recorded_ns"])


def list_recorded_steps(measured: Measurements) -> Frame:
    """List each step that a process of a role recorded: unit, role, origin and wall_ns."""
    rows = clear_redundant_parts(measured.frame("steps")).distinct(*UNIT, "role").select(*UNIT, "role")
    walls = summarize_step_walls(measured).walls.select(*UNIT, "origin", "wall_ns")
    return rows.join(walls, UNIT, optional=UNIT)


@derive_once
def list_stage_steps(measured: Measurements) -> Frame:
    """List each step that has a stage of a role, the input of `measure_stage_durations`.

    Columns: run, step, part, role, canonical, is_inside, wall_ns (longest rank), mean_ns (mean rank that has it),
    instances, ranks. A stage between two steps (validation, a checkpoint) counts with the step before it.
    """
    rows, steps = list_stage_ranges(measured), clear_redundant_parts(measured.frame("steps"))
    is_inside = rows.is_among(steps, (*CAPTURE, *UNIT), optional=(*CAPTURE, *UNIT))
    step = choose(is_inside, rows["step"], _find_steps_before(rows, steps))
    by_rank = rows.with_columns(is_inside=is_inside, step=step).group_by(*UNIT, "is_inside", "canonical", *IN_RUN)
    per_rank = by_rank.agg(wall_ns=sum_of("dur_ns"), instances=count_rows())
    return per_rank.group_by(*UNIT, "is_inside", "role", "canonical").agg(
        wall_ns=max_of("wall_ns"), mean_ns=mean_of("wall_ns"), instances=max_of("instances"), ranks=count_rows()
    )


def _find_steps_before(rows: Frame, steps: Frame) -> Array:
    """Find the last step of its process that began before each row; missing where there is none."""
    of_step, of_row = number_alike(CAPTURE, steps, rows)
    process = np.concatenate((of_step, of_row))
    is_step = np.arange(len(process)) < len(steps)
    in_time = np.lexsort((~is_step, np.concatenate((steps["ts_ns"], rows["ts_ns"])), process))
    last = np.maximum.accumulate(np.where(is_step[in_time], np.arange(len(process)), -1))
    before = np.empty(len(process), np.int64)
    before[in_time] = np.where(last >= 0, in_time[last], -1)
    before = before[~is_step]
    is_known = (before >= 0) & (process[before] == of_row)
    numbers = Frame({"place": np.arange(len(steps)), "step": steps["step"]}, len(steps))
    places = Frame({"place": where(is_known, before)}, len(rows))
    return places.join(numbers, ["place"], "left").columns["step"]
