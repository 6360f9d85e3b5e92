"""Host work and launches by stage, and GPU waits for launches: launch-bound stages (M11; rule R03)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from tracekit.job.frames import clear_redundant_parts, name_stages
from tracekit.job.idle_time.host_syncs import list_judged_sync_bound_keys
from tracekit.job.stages.windows import STAGE_KEY, list_stage_keys
from tracekit.model.tables.frame import Frame, concat, count_distinct_of, median_of, sum_of, where
from tracekit.model.tables.keys import PROCESS
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, derive_once

COUNTED = ("wall_ns", "leaf_count", "leaf_ns", "call_count", "short_ns", "launch_count")
ON_DEVICE = ("kernel_count", "kernel_ns", "graph_kernel_count", "launch_gap_ns", "synced_gap_ns")


@derive_once
def pool_launch_counts(measured: Measurements) -> Frame:
    """Pool host counts: one row per (run, role, canonical stage), whole steps first (`canonical` missing).

    Columns: the keys, Σ over ranks and steps of `COUNTED` and `ON_DEVICE`, device_wall_ns (wall times devices),
    process_steps, call_p50_ns and kernel_p50_ns (medians of the medians of steps).
    """
    rows = clear_redundant_parts(measured.frame("host_counts"))
    steps = rows.filter(rows.equals("window", "step")).with_columns(canonical=None)
    stages = rows.filter(rows.equals("window", "stage"))
    stages = stages.with_columns(canonical=name_stages(stages))
    stages = stages.filter(~stages.is_missing("canonical"))
    return concat([_pool_launch_windows(steps), _pool_launch_windows(stages)])


def subtract_synced_gaps(measured: Measurements, thresholds: Thresholds) -> Frame:
    """Pool host counts without the launch gaps that rule R02 counts, in its stages and their steps."""
    table = pool_launch_counts(measured)
    synced = list_judged_sync_bound_keys(measured, thresholds)
    if not synced or not len(table):
        return table
    gaps = list(zip(list_stage_keys(table), table.integers("synced_gap_ns").tolist(), strict=True))
    of_steps: Counter[tuple[object, ...]] = Counter()
    for key, gap_ns in gaps:
        if key[2] is not None and key in synced:
            of_steps[*key[:2], None] += gap_ns
    less_ns = np.array([gap_ns if key in synced else of_steps[key] for key, gap_ns in gaps], np.int64)
    left_ns = table.integers("launch_gap_ns") - less_ns
    return table.with_columns(launch_gap_ns=where(~table.is_missing("launch_gap_ns"), left_ns))


def _pool_launch_windows(rows: Frame) -> Frame:
    """Pool the rows of one kind of window."""
    on_device = ~rows.is_missing("device_count")
    device_wall_ns = rows.integers("wall_ns") * rows.integers("device_count")
    # Without a number, a file is one unit.
    occurrence = np.where(rows.is_missing("step"), 0, rows["occurrence"])
    process_steps = rows.with_columns(occurrence=occurrence).group_by(*PROCESS, "step", "part", "occurrence")
    return rows.group_by(*STAGE_KEY).agg(
        **{name: sum_of(rows.integers(name)) for name in COUNTED},
        **{name: sum_of(where(on_device, rows.integers(name))) for name in ON_DEVICE},
        device_wall_ns=sum_of(where(on_device, device_wall_ns)),
        process_steps=count_distinct_of(process_steps.number),
        call_p50_ns=median_of("call_p50_ns"),
        kernel_p50_ns=median_of("kernel_p50_ns"),
    )


def select_launch_bound_rows(rows: Frame, limit: Mapping[str, float]) -> list[dict[str, Any]]:
    """Select the stages of one run whose GPUs wait for launches of short kernels.

    Where stages are known, the step is the sum of them: it is judged only without them.
    """
    staged = rows.filter(~rows.is_missing("canonical"))
    judged = staged if len(staged) else rows
    return [row for row in judged.rows() if _is_row_launch_bound(row, limit)]


def select_many_kernel_rows(rows: Frame, limit: Mapping[str, float]) -> list[dict[str, Any]]:
    """Select the steps of one run with very many kernels that are short on average."""
    steps = rows.filter(rows.is_missing("canonical"))
    return [row for row in steps.rows() if _has_many_short_kernels(row, limit)]


def list_launch_bound_keys(measured: Measurements, thresholds: Thresholds) -> set[tuple[object, ...]]:
    """List the run, role and stage (None: the step and all its stages) that are launch-bound by rule R03."""
    limit = thresholds.of("launch-bound")
    bound: set[tuple[object, ...]] = set()
    for of_run in subtract_synced_gaps(measured, thresholds).group_by("run").frames():
        named = select_launch_bound_rows(of_run, limit) or select_many_kernel_rows(of_run, limit)
        bound.update((row["run"], row["role"], row["canonical"]) for row in named)
    return bound


def _is_row_launch_bound(row: Mapping[str, Any], limit: Mapping[str, float]) -> bool:
    """Check whether a row has short kernels and a large share of launch gaps."""
    if row["kernel_p50_ns"] is None or row["launch_gap_ns"] is None or not row["device_wall_ns"]:
        return False
    is_short = row["kernel_p50_ns"] < limit["median_kernel_ns"]
    return bool(is_short and row["launch_gap_ns"] / row["device_wall_ns"] >= limit["gap_ratio"])


def _has_many_short_kernels(row: Mapping[str, Any], limit: Mapping[str, float]) -> bool:
    """Check whether a row has very many kernels per step that are short on average."""
    count = row["kernel_count"]
    if not count:
        return False
    each = count / row["process_steps"]
    return bool(each > limit["ops_per_step"] and row["kernel_ns"] / count < limit["mean_kernel_ns"])
