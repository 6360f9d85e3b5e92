"""Memory levels at the same point of every step, from a snapshot or a log."""

from __future__ import annotations

import numpy as np

from tracekit.model.lazy_pandas import pd
from tracekit.model.tables.keys import mask_equal
from tracekit.model.trace import Trace
from tracekit.process.memory.names import parse_memory_quantity
from tracekit.process.memory.survivors import find_step_ends, find_surviving_memory, list_allocation_history

MAX_LEVELS = 500_000
"""Levels of one source at most: the first ones."""


def measure_step_levels(trace: Trace) -> pd.DataFrame:
    """Compute device, step, position, at_ns, point, quantity and level_bytes; empty without any source of levels."""
    if trace.has("blocks"):
        levels = _measure_snapshot_step_levels(trace)
    elif trace.has("memory_log"):
        levels = _copy_memory_log_levels(trace["memory_log"])
    elif trace.has("log_values"):
        levels = _select_driver_log_levels(trace["log_values"])
    else:
        return pd.DataFrame()
    return levels.iloc[:MAX_LEVELS].reset_index(drop=True)


def _measure_snapshot_step_levels(trace: Trace) -> pd.DataFrame:
    """Compute requested bytes in use at the ends of the steps within a snapshot, or only at its end."""
    windows = trace.derived(find_surviving_memory).windows
    ends, numbers = find_step_ends(trace)
    rows = trace.derived(list_allocation_history)
    within = len(ends) >= 2 and bool(rows["ts_ns"].notna().all())
    parts = []
    for device, end_ns, live in zip(windows["device"], windows["end_ns"], windows["live_bytes"].tolist(), strict=True):
        of_device = rows[mask_equal(rows["device"], device)]
        if within:
            ts = of_device["ts_ns"].to_numpy(np.int64)
            size = np.where(of_device["is_alloc"], 1, -1) * of_device["size_bytes"].to_numpy(np.int64)
            order = np.argsort(ts, kind="stable")
            after = np.append(np.cumsum(size[order][::-1])[::-1], 0)
            level = live - after[np.searchsorted(ts[order], ends, "right")]
            times, steps = pd.array(ends, dtype="Int64"), pd.array(numbers, dtype="Int64")
        else:
            level = np.array([live], np.int64)
            times = pd.array([end_ns], dtype="Int64")
            steps = pd.array([trace.source.step], dtype="Int64")
        parts.append(
            pd.DataFrame(
                {
                    "device": pd.array([device] * len(level), dtype="Int64"),
                    "step": steps,
                    "position": np.arange(len(level), dtype=np.int64),
                    "at_ns": times,
                    "point": np.full(len(level), None, object),
                    "quantity": np.full(len(level), "requested", object),
                    "level_bytes": np.maximum(level, 0),
                }
            )
        )
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _copy_memory_log_levels(rows: pd.DataFrame) -> pd.DataFrame:
    """Copy the amounts of a memory log."""
    return pd.DataFrame(
        {
            "device": rows["device"].array,
            "step": rows["step"].array,
            "position": rows["line"].to_numpy(),
            "at_ns": rows["logged_ns"].array,
            "point": rows["point"].to_numpy(object),
            "quantity": rows["quantity"].to_numpy(object),
            "level_bytes": rows["size_bytes"].to_numpy(),
        }
    )


def _select_driver_log_levels(rows: pd.DataFrame) -> pd.DataFrame:
    """Select memory amounts from the log of an RL driver: values whose name gives a unit."""
    quantities = [parse_memory_quantity(str(name)) or ("", 0) for name in rows["name"].cat.categories]
    factor = np.array([*(float(unit or 0) for _, unit in quantities), 0.0])
    what = np.array([*(quantity for quantity, _ in quantities), ""], object)
    code = rows["name"].cat.codes.to_numpy()
    size = rows["value"].to_numpy(np.float64, na_value=np.nan) * factor[code]
    sound = (factor[code] > 0) & (size >= 0) & (size < 2.0**50)
    rows_of = rows[sound]
    return pd.DataFrame(
        {
            "device": pd.array([pd.NA] * len(rows_of), dtype="Int64"),
            "step": rows_of["step"].array,
            "position": rows_of["line"].to_numpy(),
            "at_ns": rows_of["logged_ns"].array,
            "point": rows_of["name"].to_numpy(object),
            "quantity": what[code][sound],
            "level_bytes": np.rint(size[sound]).astype(np.int64),
        }
    )
