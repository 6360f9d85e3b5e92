"""Host work and launches by stage, and GPU waits for launches: launch-bound stages (M11; rule R03)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import each_key, stacked, staged, units
from tracekit.job.idle_time.host_syncs import sync_bound_stages
from tracekit.job.stages.windows import keyed, occurrence_of_unit
from tracekit.model.keys import PROCESS, of_keys, row_dicts, summed
from tracekit.model.tables.arrays import Nullable, bare, framed
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements

Ints = npt.NDArray[np.int64]

COUNTED = ("wall_ns", "leaf_count", "leaf_ns", "call_count", "short_ns", "launch_count")
ON_DEVICE = (
    "kernel_count",
    "kernel_ns",
    "graph_kernel_count",
    "launch_gap_ns",
    "synced_gap_ns",
)

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


def pooled(measured: Measurements) -> pd.DataFrame:
    """Pool host counts: one row per (run, role, canonical stage), whole steps first (`canonical` missing).

    Columns: the keys, Σ over ranks and steps of `COUNTED` and `ON_DEVICE`, device_wall_ns (wall times devices),
    process_steps, call_p50_ns and kernel_p50_ns (medians of the medians of steps).
    """
    return measured.derived(_pooled)


def _pooled(measured: Measurements) -> pd.DataFrame:
    rows = units(measured["host_counts"])
    stages = staged(rows[rows["window"] == "stage"])
    steps = rows[rows["window"] == "step"]
    return stacked([_pool(steps, None), _pool(stages, "canonical")])


def less_synced(measured: Measurements, thresholds: Thresholds) -> pd.DataFrame:
    """Pool host counts without the launch gaps that rule R02 counts, in its stages and their steps."""
    table = pooled(measured)
    synced = sync_bound_stages(measured, thresholds)
    if not synced or not len(table):
        return table
    keys = list(map(keyed, row_dicts(table[["run", "role", "canonical"]])))
    gaps_ns = _whole(table["synced_gap_ns"].astype("Int64"))
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


def _pool(rows: pd.DataFrame, stage: str | None) -> pd.DataFrame:
    """Pool the rows of one kind of window."""
    by = list(filter(None, ("run", "role", stage)))
    number, first = of_keys(rows, by)
    count = len(first)
    table = each_key(rows, by, first)
    table["canonical"] = table.get("canonical", np.full(count, None, object))
    for name in COUNTED:
        table[name] = summed(number, _whole(rows[name]), count)
    on_device = rows["device_count"].notna().to_numpy(np.bool_)
    recorded = np.bincount(number[on_device], minlength=count) > 0
    for name in ON_DEVICE:
        sums = summed(number[on_device], _whole(rows[name])[on_device], count)
        table[name] = pd.arrays.IntegerArray(sums, ~recorded)
    walls = (_whole(rows["wall_ns"]) * _whole(rows["device_count"]))[on_device]
    sums = summed(number[on_device], walls, count)
    table["device_wall_ns"] = pd.arrays.IntegerArray(sums, ~recorded)
    rows_of_unit = rows.assign(occurrence=occurrence_of_unit(rows))
    process_steps = of_keys(rows_of_unit, [*by, *PROCESS_STEP])[1]
    table["process_steps"] = np.bincount(number[process_steps], minlength=count)
    for name in ("call_p50_ns", "kernel_p50_ns"):
        table[name] = _medians(rows[name].astype("Float64"), number, count)
    columns = {name: np.asarray(table[name], object) for name in _COLUMNS}
    return framed(columns, count)


def _medians(column: pd.Series[Any], number: Ints, count: int) -> Any:
    """Compute the median of each group; NA where none of its values is known."""
    if not column.notna().any():
        return np.full(count, pd.NA, object)
    return column.groupby(number, sort=False).median().array


def _whole(column: pd.Series[Any]) -> Ints:
    """List a column as integers, 0 where missing."""
    array = bare(column.array)
    if isinstance(array, Nullable):
        return np.where(array.missing, 0, array.values).astype(np.int64)
    return np.asarray(array, np.int64)


def waiting_for_launches(rows: pd.DataFrame, limit: Mapping[str, float]) -> list[dict[Any, Any]]:
    """Select the stages of one run whose GPUs wait for launches of short kernels.

    Where stages are known, the step is the sum of them: it is judged only without them.
    """
    staged = rows[rows["canonical"].notna()]
    judged = staged if len(staged) else rows
    return [row for row in row_dicts(judged) if _is_launch_bound(row, limit)]


def of_many_kernels(rows: pd.DataFrame, limit: Mapping[str, float]) -> list[dict[Any, Any]]:
    """Select the steps of one run with very many kernels that are short on average."""
    steps = rows[rows["canonical"].isna()]
    return [row for row in row_dicts(steps) if _many_kernels(row, limit)]


def bound_stages(measured: Measurements, thresholds: Thresholds) -> set[tuple[object, ...]]:
    """List the run, role and stage (None: the step and all its stages) that are launch-bound by rule R03."""
    limit = thresholds.of("launch-bound")
    bound: set[tuple[object, ...]] = set()
    for _, of_run in less_synced(measured, thresholds).groupby("run", dropna=False, sort=False):
        named = waiting_for_launches(of_run, limit) or of_many_kernels(of_run, limit)
        bound.update(map(keyed, named))
    return bound


def _is_launch_bound(row: Mapping[Any, Any], limit: Mapping[str, float]) -> bool:
    """Check whether a row has short kernels and a large share of launch gaps."""
    if pd.isna(row["kernel_p50_ns"]) or pd.isna(row["launch_gap_ns"]) or not row["device_wall_ns"]:
        return False
    return bool(
        row["kernel_p50_ns"] < limit["median_kernel_ns"]
        and row["launch_gap_ns"] / row["device_wall_ns"] >= limit["gap_ratio"]
    )


def _many_kernels(row: Mapping[Any, Any], limit: Mapping[str, float]) -> bool:
    """Check whether a row has very many kernels per step that are short on average."""
    count = row["kernel_count"]
    if pd.isna(count) or not count:
        return False
    each = count / row["process_steps"]
    return bool(each > limit["ops_per_step"] and row["kernel_ns"] / count < limit["mean_kernel_ns"])
