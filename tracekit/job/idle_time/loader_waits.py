"""Waits of each process for its data loaders, and the long ones among them (rule R04)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracekit.job.frames import clear_parts_of_numbered_steps, divide_or_none, find_equal_rows, summarize_job_steps
from tracekit.model.tables.keys import PROCESS, mask_matching_rows
from tracekit.model.trace import Measurements

_MARK = ["step", "part", "occurrence"]
"""Key of a step of a process."""
_COLUMNS = (*PROCESS, "name", "count", "wait_ns", "idle_ns", "max_ns", "steps", "share_ratio")


def sum_loader_waits(measured: Measurements) -> pd.DataFrame:
    """Sum the waits for each (process, loader) over its steps, without the first one recorded.

    The first step starts workers and fills queues; it may be left out of `steps` already. A process with a single step
    keeps it. Columns: the keys, count, wait_ns, max_ns, idle_ns, steps and share_ratio (of the mean step of the run); the
    longest wait first. Do not change the result in place.
    """
    return measured.derived(_sum_loader_waits)


def _sum_loader_waits(measured: Measurements) -> pd.DataFrame:
    rows, steps, jobs = (
        clear_parts_of_numbered_steps(measured["loader_waits"]),
        clear_parts_of_numbered_steps(measured["steps"]),
        summarize_job_steps(measured),
    )
    recorded = steps if measured.recorded is None else clear_parts_of_numbered_steps(measured.recorded["steps"])
    waits = []
    for key, of_loader in rows.groupby([*PROCESS, "name"], dropna=False, sort=False):
        who = dict(zip([*PROCESS, "name"], key, strict=True))
        marks, first = (_list_steps_of_process(steps, who), _list_steps_of_process(recorded, who).iloc[:1])
        counted = marks[~mask_matching_rows(marks, first, _MARK)] if len(marks) > 1 else marks
        later = of_loader[mask_matching_rows(of_loader, counted, _MARK)]
        step_ns = jobs.select_run(who["run"]).step_ns
        count = max(len(counted), 1)
        wait = int(later["wait_ns"].sum()) / count
        is_known = len(later) and later["idle_ns"].notna().all()
        waits.append(
            {
                **who,
                "count": int(later["count"].sum()) / count,
                "wait_ns": wait,
                "idle_ns": int(later["idle_ns"].sum()) / count if is_known else None,
                "max_ns": int(of_loader["max_ns"].max()),
                "steps": len(counted),
                "share_ratio": divide_or_none(wait, step_ns),
            }
        )
    out = pd.DataFrame(waits, columns=list(_COLUMNS))
    out = out.astype({"idle_ns": "Float64", "share_ratio": "Float64"})
    return out.sort_values(["wait_ns", "name"], ascending=[False, True], kind="stable")


def _list_steps_of_process(steps: pd.DataFrame, who: Mapping[Any, Any]) -> pd.DataFrame:
    """List the steps of a process, in order of time."""
    same = np.logical_and.reduce([find_equal_rows(steps[name], who[name]) for name in PROCESS])
    return steps[same].sort_values("ts_ns", kind="stable")[_MARK].drop_duplicates()


def select_long_loader_waits(waits: pd.DataFrame, limit: Mapping[str, float]) -> pd.DataFrame:
    """Select the waits with at least the share of the step at which rule R04 fires."""
    return waits[(waits["share_ratio"] >= limit["wait_ratio"]).fillna(value=False)]
