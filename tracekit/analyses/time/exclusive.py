"""Exclusive time: each nanosecond of a step counts once, for one op, wait or cause of idle time.

Definition M4: work of the same class at the same time shares the instant. Idle time by cause (M6), host time by the
innermost op (M9).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import (
    UNIT,
    clear_redundant_parts,
    make_label_headings,
    name_stages,
    summarize_step_walls,
)
from tracekit.job.idle_time.causes import make_idle_time_measurement
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.stages.windows import list_undamaged_rows
from tracekit.model.report import Heading, Section, Sheet
from tracekit.model.tables.arrays import repeat_text, select_rows
from tracekit.model.tables.frame import (
    Frame,
    choose,
    concat,
    count_distinct_of,
    divide,
    first_of,
    from_rows,
    is_missing,
    mean_of,
    sum_of,
    texts,
    where,
)
from tracekit.model.tables.keys import CAPTURE, IN_RUN
from tracekit.model.tables.slots import CLASS_TITLES, CLASSES, get_class_title
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.exclusive_time import compute_exclusive_slots

SHOWN_ROWS = 60

_LANE_KEYS = (*IN_RUN, "device")
"""Keys of one series of steps: a device of a process, or the process where no device was recorded."""

_SLOT_COLUMNS = (
    *("run", "source", "scope", *IN_RUN, "step", "part", "occurrence", "stage", "device"),
    *("class", "cause", "op", "count", "exclusive_ns"),
)
"""Columns of `slots` that are read."""

_BACKWARD = "autograd::engine::evaluate_function: "


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the exclusive-time slots of every step; empty if no step or activity was recorded."""
    devices = trace.derived(make_idle_time_measurement()) if trace.has("device_ops") else ()
    slots = compute_exclusive_slots(trace, devices)
    return {"slots": slots} if slots and len(slots["count"]) else {}


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Report the mean step of every role: by stage and class, adding up to the wall, then its largest ops."""
    if not measured.row_count("slots"):
        return ANALYSIS.skipped("no step, stage or host activity was recorded")
    slots = list_undamaged_rows(measured, "slots").select(*_SLOT_COLUMNS)
    # The first row alone usually belongs to a unit's wall.
    if not (len(_select_slots_of_units(measured, slots.head(1))) or len(_select_slots_of_units(measured, slots))):
        return ANALYSIS.skipped("every source is damaged: missing rows would look idle")
    return ANALYSIS.answered(sheets=lambda: _make_exclusive_tables(measured, slots))


def _make_exclusive_tables(measured: Measurements, slots: Frame) -> tuple[Sheet, ...]:
    """Make the tables of the mean step: by stage and class, and by op."""
    rows = _average_slots_over_steps(measured, slots)
    return select_filled_sheets(_make_exclusive_stage_table(measured, rows), _make_exclusive_op_table(measured, rows))


def _average_slots_over_steps(measured: Measurements, slots: Frame) -> Frame:
    """Average the rows of `slots` over steps.

    Adds `each_ns` and `each_count` (the row's part of the mean over the units of its run and role, and over the lanes of
    each unit), `wall_ns` (mean wall of these units) and `stage` (as shown).
    """
    rows = _select_slots_of_units(measured, slots)
    # A step number that a profiler repeats, or records twice, is two steps with two walls. Files of one step are merged.
    is_profiled, canonical = rows.equals("origin", "profiler"), name_stages(rows, in_file=True)
    rows = rows.with_columns(
        stage=choose(~is_missing(canonical), canonical, repeat_text(_OUTSIDE, len(rows))),
        again=np.where(is_profiled, rows["occurrence"], 0),
        whole_in=where(is_profiled, rows["source"]),
    )
    rows = rows.with_columns(lane=rows.group_by(*_LANE_KEYS, "again", "whole_in").number)
    by_unit, by_owner = rows.group_by("run", "role", "unit"), rows.group_by("run", "role")
    share = 1 / (by_unit.each(count_distinct_of("lane")) * by_owner.each(count_distinct_of("unit")))
    mean_walls = rows.take(by_unit.first).group_by("run", "role").agg(wall_ns=mean_of("wall_ns"))
    return rows.with_columns(
        each_ns=rows["exclusive_ns"] * share,
        each_count=rows["count"] * share,
        wall_ns=mean_walls["wall_ns"][by_owner.number],
    )


def _select_slots_of_units(measured: Measurements, slots: Frame) -> Frame:
    """Select the rows that belong to a unit's wall, with the `origin`, `unit` (row number) and `wall_ns` of the wall."""
    keys, unit = (*CAPTURE, "step", "occurrence"), (*UNIT, "origin")
    origins, walls = measured.frame("steps").select(*keys, "origin"), summarize_step_walls(measured).walls
    rows = clear_redundant_parts(slots).join(origins, keys, optional=["pid", "step"])
    units = walls.select(*unit, "wall_ns").with_columns(unit=np.arange(len(walls)))
    return rows.join(units, unit, optional=unit)


def _make_exclusive_stage_table(measured: Measurements, rows: Frame) -> Sheet:
    """Make the table of stages by class, with the rest of the step and the whole step at the end."""
    tables = []
    for of_owner in rows.group_by("run", "role").frames():
        run, role, wall = (of_owner.values(name)[0] for name in ("run", "role", "wall_ns"))
        classes = [name for name in CLASSES if of_owner.equals("class", name).any()]
        sums = {name: sum_of(of_owner["each_ns"] * of_owner.equals("class", name)) for name in classes}
        stages = of_owner.group_by("run", "role", "stage").agg(**sums)
        stages = stages.with_columns(total_ns=sum(stages[name] for name in classes))
        stages = stages.sort("total_ns", "stage", descending=["total_ns"])
        other_ns = wall - float(stages["total_ns"].sum())
        ends = [(run, role, _REST, other_ns), (run, role, _STEP, wall)]
        table = concat([stages, from_rows(("run", "role", "stage", "total_ns"), ends)])
        shares = {name: divide(table[name], np.full(len(table), wall)) for name in ("total_ns", *classes)}
        tables.append(table.with_columns(share_ratio=shares.pop("total_ns"), **shares))
    table = concat(tables)
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            stage | stage
            total_ns | per step | ns | Mean over steps and ranks.
            share_ratio | of step | ratio | Of the mean step wall.
        """),
        *(
            Heading(name, CLASS_TITLES[name][0], "ratio", CLASS_TITLES[name][1] + " Of the mean step wall.")
            for name in CLASSES
            if name in table.columns and table.number(name, missing=0).any()
        ),
    )
    return make_sheet(
        "exclusive_stages",
        "Exclusive time by stage and class",
        headings,
        table,
        caption="Every instant counts once, for the work that took it; stages add up to the step. Rest of the step: the excess of the "
        "longest rank over the mean one, time of other roles, and unrecorded time.",
    )


_OUTSIDE, _REST, _STEP = "(outside any stage)", "(rest of the step)", "(the step)"


def _make_exclusive_op_table(measured: Measurements, rows: Frame) -> Sheet:
    """Make the table of ops, waits and causes of idle time, longest first."""
    by_class, by_op = rows.group_by("class", "cause"), rows.group_by("op")
    titles = [get_class_title(row["class"], row["cause"] or "") for row in by_class.agg().rows()]
    ops = [op and _shorten_op_path(op) for op in by_op.agg().values("op")]
    rows = rows.with_columns(
        what=select_rows(texts(titles), by_class.number), shown=select_rows(texts(ops), by_op.number)
    )
    table = rows.group_by("run", "role", "stage", "what", "shown").agg(
        each_ns=sum_of("each_ns"), each_count=sum_of("each_count"), wall_ns=first_of("wall_ns")
    )
    table = table.with_columns(share_ratio=divide(table["each_ns"], table["wall_ns"]))
    table = table.sort("each_ns", "stage", "what", descending=["each_ns"])
    return make_sheet(
        "exclusive_ops",
        "Exclusive time by stage, class and op",
        (
            *make_label_headings(measured),
            *parse_headings("""
            stage | stage
            what | class
            shown | op | text | Outermost and innermost op on the host; of device work the ops that launched it.
            each_ns | per step | ns | Exclusive time, mean over steps and ranks.
            share_ratio | of step | ratio | Of the mean step wall.
            each_count | times | number | Per step and rank: launches, calls, or idle parts; overlapped ones too.
        """),
        ),
        table,
        max_rows=SHOWN_ROWS,
        caption="The largest first. Work that overlaps with work of a higher class takes no time here.",
    )


def _shorten_op_path(path: str) -> str:
    """Shorten the path of an op to its outermost and innermost op.

    >>> _shorten_op_path("a > b > c"), _shorten_op_path("autograd::engine::evaluate_function: MmBackward0 > MmBackward0 > aten::mm")
    ('a > … > c', 'MmBackward0 > … > aten::mm')
    """
    names = path.removeprefix(_BACKWARD).split(" > ")
    return path.removeprefix(_BACKWARD) if len(names) < 3 else f"{names[0]} > … > {names[-1]}"


ANALYSIS = Analysis(
    id="exclusive",
    title="Which ops took the wall time?",
    reads=("host_ops", "device_ops", "syncs", "windows"),
    writes=("slots",),
    measure=measure,
    judge=judge,
)
