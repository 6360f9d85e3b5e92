"""Waits of each process for its data loaders, and the long ones among them (rule R04)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracekit.job.frames import job, same_text, share_of, units
from tracekit.model.keys import PROCESS, is_among
from tracekit.model.trace import Measurements

_MARK = ["step", "part", "occurrence"]
"""Key of a step of a process."""
_COLUMNS = (*PROCESS, "name", "count", "wait_ns", "idle_ns", "max_ns", "steps", "share_ratio")


def by_rank(measured: Measurements) -> pd.DataFrame:
    """Sum the waits for each (process, loader) over its steps, without the first one recorded.

    The first step starts workers and fills queues; it may be left out of `steps` already. A process with a single step
    keeps it. Columns: the keys, count, wait_ns, max_ns, idle_ns, steps and share_ratio (of the mean step of the run); the
    longest wait first. Do not change the result in place.
    """
    return measured.derived(_by_rank)


def _by_rank(measured: Measurements) -> pd.DataFrame:
    rows, steps, jobs = units(measured["loader_waits"]), units(measured["steps"]), job(measured)
    recorded = steps if measured.recorded is None else units(measured.recorded["steps"])
    waits = []
    for key, of_loader in rows.groupby([*PROCESS, "name"], dropna=False, sort=False):
        who = dict(zip([*PROCESS, "name"], key, strict=True))
        marks, first = _marks(steps, who), _marks(recorded, who).iloc[:1]
        counted = marks[~is_among(marks, first, _MARK)] if len(marks) > 1 else marks
        later = of_loader[is_among(of_loader, counted, _MARK)]
        step_ns = jobs.of(who["run"]).step_ns
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
                "share_ratio": share_of(wait, step_ns),
            }
        )
    out = pd.DataFrame(waits, columns=list(_COLUMNS))
    out = out.astype({"idle_ns": "Float64", "share_ratio": "Float64"})
    return out.sort_values(["wait_ns", "name"], ascending=[False, True], kind="stable")


def _marks(steps: pd.DataFrame, who: Mapping[Any, Any]) -> pd.DataFrame:
    """List the steps of a process, in order of time."""
    same = np.logical_and.reduce([same_text(steps[name], who[name]) for name in PROCESS])
    return steps[same].sort_values("ts_ns", kind="stable")[_MARK].drop_duplicates()


def long_waits(waits: pd.DataFrame, limit: Mapping[str, float]) -> pd.DataFrame:
    """Select the waits with at least the share of the step at which rule R04 fires."""
    return waits[(waits["share_ratio"] >= limit["wait_ratio"]).fillna(value=False)]
