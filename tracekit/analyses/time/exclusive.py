"""Exclusive time: each nanosecond of a step counts once, for one op, wait or cause of idle time.

Definition M4: work of the same class at the same time shares the instant. Idle time by cause (M6), host time by the
innermost op (M9).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.frames import (
    UNIT,
    aggregate_by_keys,
    clear_parts_of_numbered_steps,
    find_canonical_stages,
    make_label_headings,
    sort_by_columns,
    split_by_keys,
    sum_columns_by_keys,
    summarize_job_steps,
    to_text_or_none,
)
from tracekit.job.idle_time.causes import make_idle_time_measurement
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.stages.windows import read_undamaged_table
from tracekit.model.report import Heading, Section, Sheet
from tracekit.model.tables.keys import (
    CAPTURE,
    IN_RUN,
    find_matching_rows,
    group_column,
    group_rows_by,
    left_join,
    list_python_values,
    number_frames_alike,
)
from tracekit.model.tables.slots import CLASS_TITLES, CLASSES, get_class_title
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.exclusive_time import compute_exclusive_slots

SHOWN_ROWS = 60

_LANE_KEYS = [*IN_RUN, "device"]
"""Keys of one series of steps: a device of a process, or the process where no device was recorded."""

_SLOT_COLUMNS = [
    *("run", "source", "scope", *IN_RUN, "step", "part", "occurrence", "stage", "device"),
    *("class", "cause", "op", "count", "exclusive_ns"),
]
"""Columns of `slots` that are read."""

_BACKWARD = "autograd::engine::evaluate_function: "


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the exclusive-time slots of every step; empty if no step or activity was recorded."""
    devices = trace.derived(make_idle_time_measurement()) if trace.has("device_ops") else ()
    slots = compute_exclusive_slots(trace, devices)
    return {"slots": slots} if slots and len(slots["count"]) else {}


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Report the mean step of every role: by stage and class, adding up to the wall, then its largest ops."""
    if not len(measured["slots"]):
        return ANALYSIS.skipped("no step, stage or host activity was recorded")
    if not _has_slots_of_units(measured):
        return ANALYSIS.skipped("every source is damaged: what is missing would look idle")
    return ANALYSIS.answered(sheets=lambda: _make_exclusive_tables(measured))


def _make_exclusive_tables(measured: Measurements) -> tuple[Sheet, ...]:
    """Make the tables of the mean step: by stage and class, and by op."""
    rows = _average_slots_over_steps(measured)
    return select_filled_sheets(_make_exclusive_stage_table(measured, rows), _make_exclusive_op_table(measured, rows))


def _has_slots_of_units(measured: Measurements) -> bool:
    """Check whether any row of `slots` belongs to a unit's wall.

    Tries the first row alone, since it usually does.
    """
    slots = read_undamaged_table(measured, "slots")[_SLOT_COLUMNS]
    return bool(len(_select_slots_of_units(measured, slots.iloc[:1])) or len(_select_slots_of_units(measured, slots)))


def _average_slots_over_steps(measured: Measurements) -> pd.DataFrame:
    """Average the rows of `slots` over steps.

    Adds `canonical`, `each_ns` and `each_count` (the row's part of the mean over the units of its run and role, and over
    the lanes of each unit), `wall_ns` (mean wall of these units), `owner` (number of run and role) and `stage` (as shown).
    """
    rows = _select_slots_of_units(measured, read_undamaged_table(measured, "slots")[_SLOT_COLUMNS])
    rows["canonical"] = find_canonical_stages(rows, in_file=True)
    rows["wall_ns"] = summarize_job_steps(measured).walls["wall_ns"].array[rows["unit"].to_numpy()]
    # A step number that a profiler repeats, or records twice, is two steps with two walls. Files of one step are merged.
    rows["again"] = rows["occurrence"].where(rows["origin"] == "profiler", 0)
    rows["whole_in"] = rows["source"].where(rows["origin"] == "profiler", None)
    (lane,) = number_frames_alike([*_LANE_KEYS, "again", "whole_in"], rows)
    (rows["owner"],) = number_frames_alike(["run", "role"], rows)
    owner = rows["owner"].to_numpy(np.int64)
    owner_unit, first = group_rows_by(rows, ["owner", "unit"])
    lanes, units_of_owner = (_count_distinct_in_groups(owner_unit, lane), _count_distinct_in_groups(owner, owner_unit))
    share = 1 / (lanes * units_of_owner)
    mean_walls = aggregate_by_keys(rows.iloc[first], ["owner"], wall_ns=("wall_ns", "mean"))["wall_ns"]
    return rows.assign(
        each_ns=rows["exclusive_ns"] * share,
        each_count=rows["count"] * share,
        wall_ns=mean_walls.to_numpy(np.float64)[owner],
        stage=rows["canonical"].where(rows["canonical"].notna(), _OUTSIDE),
    )


def _select_slots_of_units(measured: Measurements, slots: pd.DataFrame) -> pd.DataFrame:
    """Select the rows that belong to a unit's wall, with `origin`, and with the wall's row number as `unit`."""
    rows = _add_step_origin(measured, clear_parts_of_numbered_steps(slots))
    unit = [*UNIT, "origin"]
    rows["unit"] = find_matching_rows(rows, summarize_job_steps(measured).walls, unit, optional=unit)
    return rows[rows["unit"] >= 0]


def _count_distinct_in_groups(group: npt.NDArray[np.int64], value: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Count the distinct values in the group of each row."""
    room = int(value.max(initial=0)) + 1
    return np.bincount(np.unique(group * room + value) // room)[group]


def _add_step_origin(measured: Measurements, rows: pd.DataFrame) -> pd.DataFrame:
    """Add `origin`, the way the step of each row is known."""
    steps = measured["steps"]
    keys = [*CAPTURE, "step", "occurrence"]
    return left_join(rows, steps[[*keys, "origin"]], keys, optional=["pid", "step"])


def _make_exclusive_stage_table(measured: Measurements, rows: pd.DataFrame) -> Sheet:
    """Make the table of stages by class, with the rest of the step and the whole step at the end."""
    tables = []
    columns = ["owner", "run", "role", "stage", "class", "each_ns", "wall_ns"]
    for of_owner in split_by_keys(rows[columns], ["owner"]):
        wall = float(of_owner["wall_ns"].iloc[0])
        by_class = of_owner.groupby(["stage", "class"], sort=False)["each_ns"].sum()
        sums = by_class.unstack(fill_value=0)  # noqa: PD010
        sums["total_ns"] = sums.sum(axis=1)
        sums = sums.sort_values("total_ns", ascending=False, kind="stable").reset_index()
        other_ns = wall - float(sums["total_ns"].sum())
        ends = pd.DataFrame({"stage": [_REST, _STEP], "total_ns": [other_ns, wall]})
        frame = pd.concat([sums, ends], ignore_index=True)
        for name in ("total_ns", *CLASSES):
            share = frame[name] / wall if name in frame and wall else np.nan
            frame["share_ratio" if name == "total_ns" else name] = share
        tables.append(frame.assign(run=of_owner["run"].iloc[0], role=of_owner["role"].iloc[0]))
    table = pd.concat(tables, ignore_index=True)
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
            if table[name].fillna(0).any()
        ),
    )
    return make_sheet(
        "exclusive_stages",
        "Exclusive time by stage and class",
        headings,
        table,
        caption="Every instant counts once, for what took it; stages add up to the step. Rest of the step: what the "
        "longest rank takes beyond the mean one, time of other roles, and time that was not recorded.",
    )


_OUTSIDE, _REST, _STEP = "(no stage)", "(rest of the step)", "(the step)"


def _make_exclusive_op_table(measured: Measurements, rows: pd.DataFrame) -> Sheet:
    """Make the table of ops, waits and causes of idle time, longest first."""
    (number,) = number_frames_alike(["class", "cause"], rows)
    once = rows.iloc[np.unique(number, return_index=True)[1]]
    titles = [
        get_class_title(kind, to_text_or_none(cause) or "")
        for kind, cause in zip(once["class"], once["cause"], strict=True)
    ]
    of_op, first_of_op = group_column(rows["op"])
    shown = [op and _shorten_op_path(op) for op in list_python_values(rows["op"].array[first_of_op])]
    rows = rows[["run", "role", "stage", "wall_ns", "each_ns", "each_count"]].copy()
    rows["what"] = np.array([*titles, None], object)[number]
    rows["shown"] = np.array([*shown, None], object)[of_op]
    by = ["run", "role", "stage", "what", "shown", "wall_ns"]
    table = sum_columns_by_keys(rows, by, ["each_ns", "each_count"])
    table["share_ratio"] = table["each_ns"] / table["wall_ns"].where(table["wall_ns"] > 0)
    table = sort_by_columns(table, each_ns=False, stage=True, what=True)
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
            each_count | times | number | Per step and rank: launches, calls, or idle parts; hidden ones too.
        """),
        ),
        table,
        max_rows=SHOWN_ROWS,
        caption="The largest first. Work that other work of a higher class hides takes no time here.",
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
    title="What took the wall time, op by op?",
    reads=("host_ops", "device_ops", "syncs", "windows"),
    writes=("slots",),
    measure=measure,
    judge=judge,
)
