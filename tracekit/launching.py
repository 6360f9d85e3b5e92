"""What the host runs and launches by stage, and where GPUs wait for its launches (definition M11; rule R03)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from tracekit.pooling import PROCESS, STAGE_OF, count_distinct, distinct, stage_rows, units
from tracekit.stage_windows import occurrence_of_unit
from tracekit.trace import Measurements

COUNTED = ("wall_ns", "leaf_count", "leaf_ns", "call_count", "short_ns", "launch_count")
ON_DEVICE = ("kernel_count", "kernel_ns", "graph_kernel_count", "launch_gap_ns")

PROCESS_STEP = (*PROCESS, "step", "part", "occurrence")
"""One step of one process, whichever files tell of it."""

_COLUMNS = (
    "run", "role", "canonical", *COUNTED, *ON_DEVICE, "device_wall_ns", "process_steps", "call_p50_ns", "kernel_p50_ns",
)  # fmt: skip


def pooled(measured: Measurements) -> pd.DataFrame:
    """One row a (run, role, canonical stage), after those of whole steps (`canonical` missing).

    Columns: the keys, Σ over ranks and steps of `COUNTED` and `ON_DEVICE`, device_wall_ns (wall times devices),
    process_steps, call_p50_ns and kernel_p50_ns (medians of the medians of steps).
    """
    return measured.derived(_pooled)


def _pooled(measured: Measurements) -> pd.DataFrame:
    rows = units(measured["host_counts"])
    named = distinct(stage_rows(measured), [*STAGE_OF, "canonical"])
    stages = rows[rows["window"] == "stage"].merge(named, on=STAGE_OF, how="inner")
    parts = [_pool(rows[rows["window"] == "step"], None), _pool(stages, "canonical")]
    return pd.concat(parts).reset_index(drop=True)


def _pool(rows: pd.DataFrame, stage: str | None) -> pd.DataFrame:
    """The rows of one kind of window, pooled."""
    by = ["run", "role", *([stage] if stage else [])]
    found = []
    for key, mine in rows.groupby(by, dropna=False, sort=False):
        sums = {name: int(mine[name].sum()) for name in COUNTED}
        known = mine[mine["device_count"].notna()]
        on_device = {n: int(known[n].sum()) if len(known) else pd.NA for n in ON_DEVICE}
        wall = (known["wall_ns"] * known["device_count"]).sum()
        found.append(
            {
                "canonical": None,
                **dict(zip(by, key, strict=True)),
                **sums,
                **on_device,
                "device_wall_ns": int(wall) if len(known) else pd.NA,
                "process_steps": count_distinct(
                    mine.assign(occurrence=occurrence_of_unit(mine)), PROCESS_STEP
                ),
                "call_p50_ns": _median(mine["call_p50_ns"]),
                "kernel_p50_ns": _median(mine["kernel_p50_ns"]),
            }
        )
    return pd.DataFrame(found, columns=list(_COLUMNS), dtype=object)


def _median(column: pd.Series) -> Any:
    """The median of what is known; `<NA>` where nothing is."""
    measured = column.dropna()
    return measured.median() if len(measured) else pd.NA


def waiting_for_launches(rows: pd.DataFrame, limit: Mapping[str, float]) -> list[dict[Any, Any]]:
    """Of the pooled rows of one run, the stages whose GPUs wait for launches of short kernels.

    Where stages are known, the step is the sum of what they show: it is judged only without them.
    """
    staged = rows[rows["canonical"].notna()]
    judged = staged if len(staged) else rows
    return [row for row in judged.to_dict("records") if _is_launch_bound(row, limit)]


def of_many_kernels(rows: pd.DataFrame, limit: Mapping[str, float]) -> list[dict[Any, Any]]:
    """Of the pooled rows of one run, the steps of very many kernels that are short on average."""
    whole = rows[rows["canonical"].isna()]
    return [row for row in whole.to_dict("records") if _many_kernels(row, limit)]


def _is_launch_bound(row: Mapping[Any, Any], limit: Mapping[str, float]) -> bool:
    if pd.isna(row["kernel_p50_ns"]) or pd.isna(row["launch_gap_ns"]) or not row["device_wall_ns"]:
        return False
    return bool(
        row["kernel_p50_ns"] < limit["median_kernel_ns"]
        and row["launch_gap_ns"] / row["device_wall_ns"] >= limit["gap_ratio"]
    )


def _many_kernels(row: Mapping[Any, Any], limit: Mapping[str, float]) -> bool:
    count = row["kernel_count"]
    if pd.isna(count) or not count:
        return False
    each = count / row["process_steps"]
    return bool(each > limit["ops_per_step"] and row["kernel_ns"] / count < limit["mean_kernel_ns"])
