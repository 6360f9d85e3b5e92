"""Instances of findings: the worst and the median of the intervals that a rule judged.

A rule about rows with times takes the rows it judged. A rule about sums by step and stage takes the intervals of
these stages and steps in each process (`locate_costs`). Times are those of the recordings, uncorrected.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import numpy as np

from tracekit.job.frames import clear_redundant_parts, list_recorded_stage_ranges, name_stages
from tracekit.job.rank_groups import RANK_GROUP_STEP
from tracekit.job.stages.windows import STAGE_KEY, StageKey, list_rows_of_windows, list_stage_keys
from tracekit.model.report import Instance, Place
from tracekit.model.tables.arrays import make_nullable_numbers
from tracekit.model.tables.frame import Bools, Frame, concat, max_of, sum_of
from tracekit.model.tables.keys import CAPTURE
from tracekit.model.trace import Measurements, derive_once

_LABELS = ("run", "source", "role", "rank", "device", "step")
"""Columns of rows that a place names as they are."""

_INTERVAL_KEYS = ("run", "source", "role", "rank", "pid")
"""Columns of the process of an interval."""

Labels = Collection[str | int | None]
"""Wanted values of one column."""

NO_ROWS = Frame({}, 0)


def pick_instances(
    rows: Frame, cost: str = "dur_ns", *, length: str = "dur_ns", unit: Literal["ns", "bytes"] = "ns", **fields: Any
) -> tuple[Instance, ...]:
    """Pick the worst and the median of the rows with a cost: intervals from `ts_ns` on, as long as the column `length`.

    Of equal costs, the lowest rank and then the earliest is first, because clocks of ranks are not aligned here. Of an even number of rows, the
    median is the cheaper of the two in the middle; a single row is only the worst. `fields` are those of the places that the rows do not have.
    """
    if not len(rows):
        return ()
    rows = rows.filter(~rows.is_missing("ts_ns"))
    start = rows.integers("ts_ns")
    rows = rows.with_columns(cost=rows.integers(cost), ts_ns=start, until_ns=start + rows.integers(length))
    rows = rows.filter((rows["cost"] > 0) & (rows["until_ns"] > rows["ts_ns"]))
    keys = [name for name in ("rank", "ts_ns", "source") if name in rows.columns]
    order = rows.order("cost", *keys, descending=["cost"])
    chosen = order[[0, len(order) // 2]] if len(order) > 1 else order
    which: tuple[Literal["worst", "median"], ...] = ("worst", "median")
    return tuple(
        Instance(name, _locate_row(row, fields), row["cost"], unit)
        for name, row in zip(which, rows.take(chosen).rows(), strict=False)
    )


def _locate_row(row: Mapping[str, Any], fields: Mapping[str, Any]) -> Place:
    """Locate the interval of a row."""
    labels = {name: row.get(name) for name in _LABELS}
    where = {**labels, "stage": row.get("canonical"), **fields}
    return Place(**where, start_ns=row["ts_ns"], end_ns=row["until_ns"])


def pick_window_instances(
    measured: Measurements, windows: Collection[StageKey], cost: str = "window_ns"
) -> tuple[Instance, ...]:
    """Pick the worst and the median of the stages (steps without stages) of single GPUs, by a column of `gpu_time`."""
    rows = list_rows_of_windows(measured, "gpu_time")
    return pick_instances(rows.filter(find_rows_of_keys(rows, windows)), cost, length="window_ns")


def find_rows_of_keys(rows: Frame, keys: Collection[StageKey]) -> Bools:
    """Find the rows of some stages, each by run, role and canonical stage."""
    groups = rows.group_by(*STAGE_KEY)
    is_wanted = [key in keys for key in list_stage_keys(groups.agg())]
    return np.array([*is_wanted, False], np.bool_)[groups.number]


def pick_cost_instances(measured: Measurements, rows: Frame, cost: str, **fields: Any) -> tuple[Instance, ...]:
    """Pick the worst and the median stage or step, by the sum of a column over its rows."""
    return pick_instances(locate_costs(measured, rows, cost), "cost", **fields)


def locate_costs(measured: Measurements, rows: Frame, cost: str) -> Frame:
    """Sum a column as `cost` by process, step and outermost stage, and add the interval: `ts_ns` and `dur_ns`.

    The interval is the longest run of the stage in the step; of rows outside any stage the step, or the whole recording
    where no step was recorded. Sums without an interval are left out.
    """
    if not len(rows):
        return NO_ROWS
    if "canonical" not in rows.columns:
        rows = rows.with_columns(canonical=name_stages(rows) if "stage" in rows.columns else None)
    keys = (*_INTERVAL_KEYS, *(("device",) if "device" in rows.columns else ()), "step", "canonical")
    sums = rows.with_columns(cost=rows.integers(cost)).group_by(*keys).agg(cost=sum_of("cost"))
    staged = sums.join(_list_longest_stages(measured), (*CAPTURE, "step", "canonical"), optional=(*CAPTURE, "step"))
    rest = sums.filter(~sums.is_among(staged, keys, optional=keys))
    on_step = rest.join(_list_longest_steps(measured), (*CAPTURE, "step"), optional=(*CAPTURE, "step"))
    return concat([staged, on_step.with_columns(canonical=None)])


@derive_once
def _list_longest_stages(measured: Measurements) -> Frame:
    """List the longest run of each stage in each step and process."""
    stages = list_recorded_stage_ranges(measured)
    keys = (*CAPTURE, "step", "canonical")
    return stages.sort("dur_ns", "ts_ns", descending=["dur_ns"]).distinct(*keys).select(*keys, "ts_ns", "dur_ns")


@derive_once
def _list_longest_steps(measured: Measurements) -> Frame:
    """List the longest step of each number and process."""
    keys = (*CAPTURE, "step")
    steps = measured.frame("steps").sort("dur_ns", "ts_ns", descending=["dur_ns"])
    return steps.distinct(*keys).select(*keys, "ts_ns", "dur_ns")


def pick_pooled_instances(measured: Measurements, rows: Frame, **fields: Any) -> tuple[Instance, ...]:
    """Pick the longest and the median op of rows with the columns `EXTREMES`, each row the sum of `count` ops.

    The median is that of the row in the middle, by `count`. Steps are those in which the intervals begin; a stage is that
    of the row, which launched the work.
    """
    rows = rows.filter(~rows.is_missing("longest_ns"))
    if not len(rows):
        return ()
    by_median = rows.order("median_ns", "source", "median_ts_ns", descending=["median_ns"])
    middle = int(np.searchsorted(np.cumsum(rows["count"][by_median]), rows["count"].sum() // 2, side="right"))
    places = np.array([rows.integers("longest_ns").argmax(), by_median[min(middle, len(rows) - 1)]])
    chosen = rows.take(places).drop("step") if "step" in rows.columns else rows.take(places)
    is_longest = np.array([True, False])
    start, length = (
        np.where(is_longest, chosen.integers(f"longest_{name}"), chosen.integers(f"median_{name}"))
        for name in ("ts_ns", "ns")
    )
    chosen = _add_steps(measured, chosen.with_columns(ts_ns=start, dur_ns=length))
    return pick_instances(chosen if int(rows["count"].sum()) > 1 else chosen.head(1), **fields)


def pick_longest_instances(rows: Frame, **fields: Any) -> tuple[Instance, ...]:
    """Pick the worst and the median of the rows with the columns `LONGEST`, each by its longest interval."""
    return pick_instances(rows.with_columns(ts_ns=rows["longest_ts_ns"]), "longest_ns", length="longest_ns", **fields)


def _add_steps(measured: Measurements, rows: Frame) -> Frame:
    """Add the number of the step in which each of a few rows begins; missing outside."""
    steps = (measured.recorded or measured).frame("steps")
    numbers: list[int | None] = []
    for row in rows.rows("source", "pid", "ts_ns"):
        is_around = (steps["ts_ns"] <= row["ts_ns"]) & (row["ts_ns"] < steps["ts_ns"] + steps["dur_ns"])
        is_around &= steps.equals("source", row["source"]) & steps.equals("pid", row["pid"])
        numbers.append(next(iter(steps.filter(is_around).values("step")), None))
    return rows.with_columns(step=make_nullable_numbers(numbers))


def list_stage_runs(measured: Measurements, stage: str, run: str | None, **labels: Labels) -> Frame:
    """List when a stage ran in one run of the job, with times; `labels` are the wanted roles, ranks or steps."""
    rows = list_recorded_stage_ranges(measured)
    return _select_labels(rows.filter(rows.equals("canonical", stage)), run, labels)


def list_step_runs(measured: Measurements, run: str | None, **labels: Labels) -> Frame:
    """List the steps of one run of the job in every process, with times; `labels` are the wanted roles, ranks or steps."""
    return _select_labels(measured.frame("steps"), run, labels)


def list_stage_or_step_runs(measured: Measurements, stage: str | None, run: str | None, **labels: Labels) -> Frame:
    """List when a stage ran; the steps where no stage is named, or where it was not recorded."""
    in_stage = list_stage_runs(measured, stage, run, **labels) if stage else NO_ROWS
    return in_stage if len(in_stage) else list_step_runs(measured, run, **labels)


def _select_labels(rows: Frame, run: str | None, labels: Mapping[str, Labels]) -> Frame:
    """Select the rows of a run with these labels."""
    mask = rows.equals("run", run)
    for name, wanted in labels.items():
        groups = rows.group_by(name)
        is_wanted = [value in wanted for value in groups.agg().values(name)]
        mask &= np.array([*is_wanted, False], np.bool_)[groups.number]
    return rows.filter(mask)


def pick_member_instances(runs: Frame, costs: Frame) -> tuple[Instance, ...]:
    """Pick the worst and the median step of a rank by the `cost` of each rank and step, at its longest run in the step."""
    keys = (*RANK_GROUP_STEP, "rank")
    longest = clear_redundant_parts(runs).sort("dur_ns", "ts_ns", descending=["dur_ns"]).distinct(*keys)
    by_rank = costs.group_by(*keys).agg(cost=max_of("cost"))
    return pick_instances(longest.join(by_rank, keys, optional=keys), "cost")
