"""Host time of processes without a device, by run, role, rank, stage and activity, over the steps that count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracekit.job.frames import name_stages
from tracekit.job.stages.windows import list_undamaged_rows
from tracekit.model.tables.frame import Frame, concat, sum_of
from tracekit.model.trace import Measurements, derive_once

CPU_TIME_OWNER = ("run", "role", "rank")
"""Owner of the time."""


@derive_once
def sum_cpu_time_by_stage(measured: Measurements) -> Frame:
    """Sum `time_ns` per (run, role, rank, stage, activity) over the steps; without steps, over the capture.

    `canonical` is missing for time outside any stage.
    """
    rows = list_undamaged_rows(measured, "cpu_time")
    rows = rows.with_columns(canonical=name_stages(rows))
    staged = rows.filter(rows.equals("window", "stage") & ~rows.is_missing("canonical"))
    keys = (*CPU_TIME_OWNER, "activity")
    totals = _select_whole_windows(rows).group_by(*keys).agg(time_ns=sum_of("time_ns"))
    inside = staged.group_by(*keys, "canonical").agg(time_ns=sum_of("time_ns"))
    return add_time_outside_stages(totals, inside, keys)


def add_time_outside_stages(totals: Frame, inside: Frame, keys: Sequence[str]) -> Frame:
    """Add to the `time_ns` of stages the rest of each total, outside any stage; together they sum to the totals.

    Stages that exceed their total are scaled down to it: they may begin before the step.
    """
    staged_sums = inside.group_by(*keys).agg(staged_ns=sum_of("time_ns"))
    totals = totals.join(staged_sums, keys, how="left", optional=keys)
    total, staged = totals.number("time_ns"), totals.number("staged_ns", missing=0)
    scale = np.where(staged > 0, np.minimum(total / np.where(staged > 0, staged, 1), 1), 0)
    scales = totals.select(*keys).with_columns(scale=scale)
    scaled = inside.join(scales, keys, how="left", optional=keys)
    scaled_ns = scaled.number("time_ns") * scaled.number("scale", missing=0)
    outside = totals.with_columns(canonical=None, time_ns=np.maximum(total - staged, 0))
    parts = (scaled.with_columns(time_ns=scaled_ns), outside)
    both = concat([part.select(*keys, "canonical", "time_ns") for part in parts])
    return both.filter(both["time_ns"] > 0)


def _select_whole_windows(rows: Frame) -> Frame:
    """Select the rows of steps; without steps, of captures."""
    steps = rows.filter(rows.equals("window", "step"))
    return steps if len(steps) else rows.filter(rows.equals("window", "capture"))
