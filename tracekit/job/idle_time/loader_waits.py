"""Waits of each process for its data loaders, and the long ones among them (rule R04)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracekit.job.frames import clear_redundant_parts, divide_or_none, summarize_step_walls
from tracekit.model.tables.arrays import Nullable
from tracekit.model.tables.frame import Frame, count_rows, max_of, numbers, sum_of, where
from tracekit.model.tables.keys import PROCESS
from tracekit.model.trace import Measurements, derive_once

_STEP_OF_PROCESS = (*PROCESS, "step", "part", "occurrence")


@derive_once
def sum_loader_waits(measured: Measurements) -> Frame:
    """Sum the waits for each (process, loader) over its steps, without the first one recorded.

    The first step starts workers and fills queues; it may be left out of `steps` already. A process with a single step
    keeps it. Columns: the keys, count, wait_ns, max_ns, idle_ns, steps and share_ratio (of the mean step of the run); the
    longest wait first.
    """
    waits, steps = clear_redundant_parts(measured.frame("loader_waits")), _select_steps_after_first(measured)
    counts = steps.group_by(*PROCESS).agg(steps=count_rows())
    is_later = waits.is_among(steps, _STEP_OF_PROCESS, optional=_STEP_OF_PROCESS)
    sums = waits.group_by(*PROCESS, "name").agg(
        count=sum_of(waits["count"] * is_later),
        wait_ns=sum_of(waits["wait_ns"] * is_later),
        idle_ns=sum_of(where(is_later, waits["idle_ns"])),
        unknown=sum_of(is_later & waits.is_missing("idle_ns")),
        max_ns=max_of("max_ns"),
    )
    sums = sums.join(counts, PROCESS, how="left", optional=PROCESS)
    step_count = np.maximum(sums.integers("steps"), 1)
    wait_ns, jobs = sums["wait_ns"] / step_count, summarize_step_walls(measured)
    step_ns = {run: jobs.select_run(run).step_ns for run in dict.fromkeys(sums.values("run"))}
    shares = [
        divide_or_none(wait, step_ns[run]) for wait, run in zip(wait_ns.tolist(), sums.values("run"), strict=True)
    ]
    means = sums.with_columns(
        count=sums["count"] / step_count,
        wait_ns=wait_ns,
        idle_ns=Nullable(sums.integers("idle_ns") / step_count, sums.is_missing("idle_ns") | (sums["unknown"] > 0)),
        steps=sums.integers("steps"),
        share_ratio=numbers(shares),
    )
    return means.sort("wait_ns", "name", descending=["wait_ns"])


def _select_steps_after_first(measured: Measurements) -> Frame:
    """Select one row per step of each process, without the first recorded one unless it is the only one."""
    steps = clear_redundant_parts(measured.frame("steps")).distinct(*_STEP_OF_PROCESS)
    recorded = clear_redundant_parts((measured.recorded or measured).frame("steps"))
    first = recorded.sort("ts_ns").distinct(*PROCESS)
    is_only = steps.group_by(*PROCESS).each(count_rows()) == 1
    return steps.filter(is_only | ~steps.is_among(first, _STEP_OF_PROCESS, optional=_STEP_OF_PROCESS))


def select_long_loader_waits(waits: Frame, limit: Mapping[str, float]) -> Frame:
    """Select the waits with at least the share of the step at which rule R04 fires."""
    return waits.filter(waits.number("share_ratio") >= limit["wait_ratio"])
