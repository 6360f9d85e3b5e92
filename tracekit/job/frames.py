"""Shared operations on measured tables: grouping, stages and walls of steps, and conversions of cells.

Ranks are reduced within a step, then steps are averaged. A *unit* is one step of one run; where steps have no
number, it is one of several captures.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracekit.model.inputs.note_codes import OF_TIMES
from tracekit.model.intervals import measure_group_unions
from tracekit.model.records import dataclass
from tracekit.model.report import Heading
from tracekit.model.stages import get_canonical_stage, get_scope_stage, get_stage_name
from tracekit.model.tables.arrays import Coded, select_rows
from tracekit.model.tables.frame import (
    Bools,
    Frame,
    count_distinct_of,
    first_of,
    max_of,
    min_of,
    number_alike,
    texts,
    where,
)
from tracekit.model.tables.keys import CAPTURE
from tracekit.model.trace import Measurements, derive_once

UNIT = ("run", "step", "part")

STEP_ORIGINS = ("profiler", "range", "iteration", "repeat", "graph", "file", "stage")
"""Ways in which steps are known, the most reliable first."""

REPEATING = ("iteration", "repeat", "graph")
"""Origins of steps without marks: whatever repeats in a recording divides it."""

COUNTED_ANEW = ("profiler", *REPEATING)
"""Origins of steps that are numbered from the start of the recording, so not by the step of the training."""

ORIGIN_NOTES = {
    "profiler": "step",
    "range": "step",
    "iteration": "step (iterations {name})",
    "repeat": "step (ranges {name})",
    "graph": "step (launches of a graph)",
    "file": "step (as recorded)",
    "stage": "captured stages",
}
"""Label of the wall of a unit by the origin of its steps; `{name}` is the range that repeats."""


STEP_BOUNDS = "steps"
"""Meaning of the bounds of the mean wall: the shortest and the longest step."""


def has_epoch_times(measured: Measurements, rows: Frame) -> bool:
    """Check whether the clocks of all rows count from the Unix epoch, which makes their times comparable."""
    return not _find_relative_rows(measured, rows).any()


def _find_relative_rows(measured: Measurements, rows: Frame) -> Bools:
    """Find the rows of sources whose clock starts at an arbitrary zero."""
    captures = measured.frame("captures")
    relative = captures.filter(~captures["absolute_time"])
    return rows.is_among(relative, CAPTURE, optional=CAPTURE)


def clear_redundant_parts(rows: Frame) -> Frame:
    """Clear `part` in rows whose step number already identifies the step."""
    return rows.with_columns(part=where(rows.is_missing("step"), rows["part"]))


@derive_once
def list_stage_ranges(measured: Measurements) -> Frame:
    """List the outermost stage ranges: the columns of `stages` plus `canonical`, the canonical stage name.

    A source of one stage that has only numbered pieces (mini-batches) is that stage.
    """
    return clear_redundant_parts(list_recorded_stage_ranges(measured))


def list_recorded_stage_ranges(measured: Measurements) -> Frame:
    """List the rows of `list_stage_ranges` with `part` as recorded, also where the step has a number."""
    stages = measured.frame("stages")
    top = stages.filter(stages.is_missing("parent"))
    top = top.with_columns(canonical=name_stages(top))
    return top.filter(~top.is_missing("canonical"))


def measure_step_walls(measured: Measurements) -> Frame:
    """Measure the wall of each unit, in order of runs, steps and times.

    Columns: run, step, part, origin, name, ranks, ts_ns, wall_ns and attributed_ns. wall_ns is the longest
    `ProfilerStep` (or range `step n`) over ranks. Without such marks it reaches from the first to the last activity of
    all processes of one host. For sources that are single stages it is the time that any of them covers. attributed_ns
    is the part of it that stages of any process cover (missing without stages); see `list_stage_ranges`.
    """
    steps, stages = clear_redundant_parts(measured.frame("steps")), list_stage_ranges(measured)
    unit, stage_unit = number_alike(UNIT, steps, stages)
    process, stage_process = number_alike(CAPTURE, steps, stages)
    reliability = np.array([STEP_ORIGINS.index(origin) for origin in steps.values("origin")], np.int64)
    steps = steps.with_columns(unit=unit, process=process, reliability=reliability)
    steps = steps.filter(reliability == steps.group_by("unit").each(min_of("reliability")))
    rows, longest = _find_longest_walls(measured, steps)
    # Stages count only in the processes whose wall is the longest.
    stages = stages.with_columns(unit=stage_unit, process=stage_process)
    stages = stages.filter(stages.is_among(rows, ("unit", "process")))
    group, begin = stages["unit"], stages["ts_ns"]
    end = np.minimum(begin + stages["dur_ns"], longest["high_ns"][group])
    begin = np.maximum(begin, longest["low_ns"][group])
    attributed_ns = measure_group_unions(begin, end, group, len(longest))
    has_stage = np.bincount(group, minlength=len(longest)) > 0
    ranks = count_distinct_of("rank")
    units = (
        steps.sort("unit")
        .group_by("unit")
        .agg(**{name: first_of(name) for name in (*UNIT, "origin", "name")}, ranks=ranks)
    )
    walls = units.with_columns(
        ranks=where(units["ranks"] > 0, units["ranks"]),
        ts_ns=longest["low_ns"],
        wall_ns=longest["wall_ns"],
        attributed_ns=where(has_stage, attributed_ns),
    )
    return walls.drop("unit").sort("run", "step", "ts_ns")


def _find_longest_walls(measured: Measurements, steps: Frame) -> tuple[Frame, Frame]:
    """Find the longest wall of each unit: (its rows, low_ns, high_ns and wall_ns in order of units)."""
    # One process if steps are marked or clocks cannot be compared; else all processes of a host.
    # Ranks that started recording one after the other do not share one capture.
    is_single = steps.is_in("origin", ("profiler", "range", *REPEATING)) | _find_relative_rows(measured, steps)
    is_single |= steps.integers("skew_ns") > 0
    is_by_process = steps.group_by("unit").each(max_of(is_single.astype(np.int64))) > 0
    host = steps.group_by("host").number
    steps = steps.with_columns(
        where=np.where(is_by_process, steps["process"], host),
        occurrence=np.where(is_by_process, steps["occurrence"], 0),
    )
    groups = steps.group_by("unit", "where", "occurrence")
    end = steps["ts_ns"] + steps["dur_ns"]
    walls = groups.agg(low_ns=min_of("ts_ns"), high_ns=max_of(end), origin=first_of("origin"))
    covered_ns = measure_group_unions(steps["ts_ns"], end, groups.number, len(groups))
    wall_ns = np.where(walls.equals("origin", "stage"), covered_ns, walls["high_ns"] - walls["low_ns"])
    # Of equally long walls, take the first in order of appearance.
    walls = walls.with_columns(wall_ns=wall_ns, group=np.arange(len(walls)))
    longest = walls.sort("unit", "wall_ns", descending=["wall_ns"]).distinct("unit")
    return steps.filter(np.isin(groups.number, longest["group"])), longest


def name_stages(rows: Frame, column: str = "stage", *, in_file: bool = False, any_range: bool = False) -> Coded:
    """Return the canonical stage of every row from its recorded one; missing outside all stages.

    `in_file`: rows outside any recorded range are in the stage that their file records. `any_range`: every recorded
    range counts under its own name, even one that cannot be a stage (for snapshots, which have no other ranges).
    """
    by_stage = rows.group_by(column, "role", "scope")
    names = [_canonical_stage(*row.values(), in_file=in_file, any_range=any_range) for row in by_stage.agg().rows()]
    return select_rows(texts(names), by_stage.number)


def _canonical_stage(
    recorded: str | None, role: str | None, scope: str | None, *, in_file: bool, any_range: bool
) -> str | None:
    """Return the canonical name of one recorded stage."""
    if recorded is None:
        return get_scope_stage(scope, role) if in_file else None
    return get_canonical_stage(recorded, role) if any_range else get_stage_name(recorded, role, scope)


@dataclass(frozen=True, slots=True)
class StepWalls:
    """Walls of the units (`measure_step_walls`), their mean and their number; the mean is None without a unit."""

    walls: Frame
    step_ns: float | None
    count: int

    def select_run(self, run: str | None) -> StepWalls:
        """Select the steps of one run."""
        return _summarize_walls(self.walls.filter(self.walls.equals("run", run)))


@derive_once
def summarize_step_walls(measured: Measurements) -> StepWalls:
    """Summarize the steps of all runs."""
    return _summarize_walls(measure_step_walls(measured))


def _summarize_walls(walls: Frame) -> StepWalls:
    return StepWalls(walls, float(walls["wall_ns"].mean()) if len(walls) else None, len(walls))


def keep_undamaged_rows(measured: Measurements, rows: Frame) -> Frame:
    """Keep the rows of sources without data loss: in a damaged source, lost events look like idle time.

    Sources that only lost rows with invalid times are kept: their notes count these rows.
    """
    damaged = find_damaged_sources(measured)
    return rows.filter(~rows.is_in("source", damaged)) if damaged else rows


def find_damaged_sources(measured: Measurements) -> set[str]:
    """Find the sources with data loss."""
    losses = (note for note in measured.notes if note.severity == "data_loss")
    return {note.source for note in losses if note.code not in OF_TIMES}


@derive_once
def make_run_heading(measured: Measurements) -> tuple[Heading, ...]:
    """Make the heading of the run; none for a single run."""
    return (Heading("run", "run"),) if len(measured.frame("captures").group_by("run")) > 1 else ()


@derive_once
def make_label_headings(measured: Measurements) -> tuple[Heading, ...]:
    """Make the headings of run and role, as far as they are known and distinguish rows."""
    has_role = not measured.frame("captures").is_missing("role").all()
    return (*make_run_heading(measured), *((Heading("role", "role"),) if has_role else ()))


def phrase_run(measured: Measurements, run: object) -> str:
    """Phrase the run of a claim: ` (run base)`, ` (run1)`; empty for a single run."""
    if not make_run_heading(measured):
        return ""
    return f" ({run})" if str(run).startswith("run") else f" (run {run})"


def to_float_or_none(value: Any) -> float | None:
    """Convert a number to float, None if missing."""
    return None if value is None or np.isnan(value) else float(value)


def divide_or_none(part: float | None, total: float | None) -> float | None:
    """Divide a part by its total; None if either is unknown or the total is 0."""
    return part / total if part is not None and total else None
