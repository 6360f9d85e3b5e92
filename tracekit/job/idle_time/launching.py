"""Host work and launches by stage, and GPU waits for launches: launch-bound stages (M11; rule R03)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import clear_parts_of_numbered_steps, select_staged_rows, stack_frames, take_key_columns
from tracekit.job.idle_time.host_syncs import list_sync_bound_keys
from tracekit.job.stages.windows import find_unit_occurrences, make_stage_key
from tracekit.model.tables.arrays import Nullable, make_bare, make_frame
from tracekit.model.tables.keys import PROCESS, group_rows_by, list_row_dicts, sum_by_group
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements

Ints = npt.NDArray[np.int64]

COUNTED = ("wall_ns", "leaf_count", "leaf_ns", "call_count", "short_ns", "launch_count")
ON_DEVICE = ("kernel_count", "kernel_ns", "graph_kernel_count", "launch_gap_ns", "synced_gap_ns")

PROCESS_STEP = (*PROCESS, "step", "part", "occurrence")
"""Key of one step of one process across files."""

_COLUMNS = (
    "run",
    "role",
    "canonical",
    *COUNTED,
    *ON_DEVICE,
    "device_wall_ns",
    "process_steps",
    "call_p50_ns",
    "kernel_p50_ns",
)


def pool_launch_counts(measured: Measurements) -> pd.DataFrame:
    """Pool host counts: one row per (run, role, canonical stage), whole steps first (`canonical` missing).

    Columns: the keys, Σ over ranks and steps of `COUNTED` and `ON_DEVICE`, device_wall_ns (wall times devices),
    process_steps, call_p50_ns and kernel_p50_ns (medians of the medians of steps).
    """
    return measured.derived(_pool_launch_counts)


def _pool_launch_counts(measured: Measurements) -> pd.DataFrame:
    rows = clear_parts_of_numbered_steps(measured["host_counts"])
    stages = select_staged_rows(rows[rows["window"] == "stage"])
    steps = rows[rows["window"] == "step"]
    return stack_frames([_pool_launch_windows(steps, None), _pool_launch_windows(stages, "canonical")])


def subtract_synced_gaps(measured: Measurements, thresholds: Thresholds) -> pd.DataFrame:
    """Pool host counts without the launch gaps that rule R02 counts, in its stages and their steps."""
    table = pool_launch_counts(measured)
    synced = list_sync_bound_keys(measured, thresholds)
    if not synced or not len(table):
        return table
    keys = [make_stage_key(row) for row in list_row_dicts(table[["run", "role", "canonical"]])]
    gaps_ns = _list_numbers_or_zero(table["synced_gap_ns"].astype("Int64"))
    of_stages: dict[tuple[object, ...], int] = {}
    for key, gap_ns in zip(keys, gaps_ns.tolist(), strict=True):
        if key[2] is not None and key in synced:
            step = (*key[:2], None)
            of_stages[step] = of_stages.get(step, 0) + gap_ns
    less_ns = np.zeros(len(keys), np.int64)
    for position, key in enumerate(keys):
        less_ns[position] = gaps_ns[position] if key in synced else of_stages.get(key, 0)
    left = table["launch_gap_ns"] - less_ns
    return table.assign(launch_gap_ns=left)


def _pool_launch_windows(rows: pd.DataFrame, stage: str | None) -> pd.DataFrame:
    """Pool the rows of one kind of window."""
    by = [name for name in ("run", "role", stage) if name]
    number, first = group_rows_by(rows, by)
    count = len(first)
    table = take_key_columns(rows, by, first)
    table["canonical"] = table.get("canonical", np.full(count, None, object))
    for name in COUNTED:
        table[name] = sum_by_group(number, _list_numbers_or_zero(rows[name]), count)
    on_device = rows["device_count"].notna().to_numpy(np.bool_)
    recorded = np.bincount(number[on_device], minlength=count) > 0
    for name in ON_DEVICE:
        sums = sum_by_group(number[on_device], _list_numbers_or_zero(rows[name])[on_device], count)
        table[name] = pd.arrays.IntegerArray(sums, ~recorded)
    walls = (_list_numbers_or_zero(rows["wall_ns"]) * _list_numbers_or_zero(rows["device_count"]))[on_device]
    sums = sum_by_group(number[on_device], walls, count)
    table["device_wall_ns"] = pd.arrays.IntegerArray(sums, ~recorded)
    rows_of_unit = rows.assign(occurrence=find_unit_occurrences(rows))
    process_steps = group_rows_by(rows_of_unit, [*by, *PROCESS_STEP])[1]
    table["process_steps"] = np.bincount(number[process_steps], minlength=count)
    for name in ("call_p50_ns", "kernel_p50_ns"):
        table[name] = _compute_launch_medians(rows[name].astype("Float64"), number, count)
    columns = {name: np.asarray(table[name], object) for name in _COLUMNS}
    return make_frame(columns, count)


def _compute_launch_medians(column: pd.Series[Any], number: Ints, count: int) -> Any:
    """Compute the median of each group; NA where none of its values is known."""
    if not column.notna().any():
        return np.full(count, pd.NA, object)
    return column.groupby(number, sort=False).median().array


def _list_numbers_or_zero(column: pd.Series[Any]) -> Ints:
    """List a column as integers, 0 where missing."""
    array = make_bare(column.array)
    if isinstance(array, Nullable):
        return np.where(array.missing, 0, array.values).astype(np.int64)
    return np.asarray(array, np.int64)


def select_launch_bound_rows(rows: pd.DataFrame, limit: Mapping[str, float]) -> list[dict[Any, Any]]:
    """Select the stages of one run whose GPUs wait for launches of short kernels.

    Where stages are known, the step is the sum of them: it is judged only without them.
    """
    staged = rows[rows["canonical"].notna()]
    judged = staged if len(staged) else rows
    return [row for row in list_row_dicts(judged) if _is_row_launch_bound(row, limit)]


def select_many_kernel_rows(rows: pd.DataFrame, limit: Mapping[str, float]) -> list[dict[Any, Any]]:
    """Select the steps of one run with very many kernels that are short on average."""
    steps = rows[rows["canonical"].isna()]
    return [row for row in list_row_dicts(steps) if _has_many_short_kernels(row, limit)]


def list_launch_bound_keys(measured: Measurements, thresholds: Thresholds) -> set[tuple[object, ...]]:
    """List the run, role and stage (None: the step and all its stages) that are launch-bound by rule R03."""
    limit = thresholds.of("launch-bound")
    bound: set[tuple[object, ...]] = set()
    for _, of_run in subtract_synced_gaps(measured, thresholds).groupby("run", dropna=False, sort=False):
        named = select_launch_bound_rows(of_run, limit) or select_many_kernel_rows(of_run, limit)
        bound.update(make_stage_key(row) for row in named)
    return bound


def _is_row_launch_bound(row: Mapping[Any, Any], limit: Mapping[str, float]) -> bool:
    """Check whether a row has short kernels and a large share of launch gaps."""
    if pd.isna(row["kernel_p50_ns"]) or pd.isna(row["launch_gap_ns"]) or not row["device_wall_ns"]:
        return False
    return bool(
        row["kernel_p50_ns"] < limit["median_kernel_ns"]
        and row["launch_gap_ns"] / row["device_wall_ns"] >= limit["gap_ratio"]
    )


def _has_many_short_kernels(row: Mapping[Any, Any], limit: Mapping[str, float]) -> bool:
    """Check whether a row has very many kernels per step that are short on average."""
    count = row["kernel_count"]
    if pd.isna(count) or not count:
        return False
    each = count / row["process_steps"]
    return bool(each > limit["ops_per_step"] and row["kernel_ns"] / count < limit["mean_kernel_ns"])
