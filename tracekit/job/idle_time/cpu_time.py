"""Host time of processes without a device, by run, role, rank, stage and activity, over the steps that count."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd

from tracekit.job.frames import aggregate_by_keys, find_canonical_stages, select_distinct_rows
from tracekit.job.stages.windows import read_undamaged_table
from tracekit.model.tables.keys import find_matching_rows, iterate_records
from tracekit.model.trace import Measurements

CPU_TIME_OWNER = ("run", "role", "rank")
"""Owner of the time."""


def sum_cpu_time_by_stage(measured: Measurements) -> pd.DataFrame:
    """Sum `time_ns` per (run, role, rank, stage, activity) over the steps; without steps, over the capture.

    `canonical` is missing for time outside any stage. Do not change the result in place.
    """
    return measured.derived(_sum_cpu_time_by_stage)


def _sum_cpu_time_by_stage(measured: Measurements) -> pd.DataFrame:
    rows = read_undamaged_table(measured, "cpu_time")
    rows = rows.assign(canonical=find_canonical_stages(rows))
    wholes = rows[rows["window"] == "step"]
    if not len(wholes):
        wholes = rows[rows["window"] == "capture"]
    is_staged = (rows["window"] == "stage") & rows["canonical"].notna()
    keys = [*CPU_TIME_OWNER, "activity"]
    inside = _sum_cpu_time(rows[is_staged], [*keys, "canonical"])
    totals = _sum_cpu_time(wholes, keys)
    return add_time_outside_stages(totals, inside, keys, "time_ns")


def add_time_outside_stages(totals: pd.DataFrame, inside: pd.DataFrame, keys: list[str], value: str) -> pd.DataFrame:
    """Add to the rows of stages the rest of each total, outside any stage; together they sum to the totals.

    Stages that exceed their total are scaled down to it: they may begin before the step.
    """
    staged_sums = aggregate_by_keys(inside, keys, staged=(value, "sum"))
    totals = _add_column_by_keys(totals, staged_sums, keys, "staged")
    total, staged = (totals[name].to_numpy(np.float64) for name in (value, "staged"))
    outside = totals.assign(canonical=None)
    outside[value] = np.maximum(total - staged, 0)
    scale = np.where(staged > 0, np.minimum(total / np.where(staged > 0, staged, 1), 1), 0)
    inside = _add_column_by_keys(inside, totals[keys].assign(scale=scale), keys, "scale")
    inside[value] = inside[value].to_numpy(np.float64) * inside["scale"].to_numpy(np.float64)
    columns = [*keys, "canonical", value]
    parts = [part[columns] for part in (inside, outside) if len(part)]
    out = pd.concat(parts, ignore_index=True) if parts else inside[columns]
    return out[out[value] > 0].reset_index(drop=True)


def _sum_cpu_time(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Sum the time per `keys`."""
    return aggregate_by_keys(rows, keys, time_ns=("time_ns", "sum"))


def _add_column_by_keys(left: pd.DataFrame, right: pd.DataFrame, keys: list[str], name: str) -> pd.DataFrame:
    """Add a column of the right rows to the left ones, 0 without a match; a missing key is a key."""
    place = find_matching_rows(left, right, keys, optional=keys)
    values = np.append(right[name].to_numpy(np.float64), 0.0)[place]
    return left.assign(**{name: values})


def _count_cpu_time_steps(measured: Measurements) -> dict[tuple[object, object], int]:
    """Count the steps by (run, role); without steps, the captures."""
    rows = read_undamaged_table(measured, "cpu_time")
    steps = rows[rows["window"] == "step"]
    if not len(steps):
        steps = rows[rows["window"] == "capture"]
    each = select_distinct_rows(steps, ["run", "role", "source", "pid", "step"])
    return dict(Counter((run, role) for run, role in iterate_records(each, ("run", "role"))))


def count_cpu_time_steps(measured: Measurements) -> dict[tuple[object, object], int]:
    """Count the steps of single processes in which the time of each run and role was measured."""
    return measured.derived(_count_cpu_time_steps)
