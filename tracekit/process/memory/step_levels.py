"""Memory levels at the same point of every step, from a snapshot or a log."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracekit.model.system.lazy_pandas import pd
from tracekit.model.tables.arrays import Array, Columns, repeat_number, select_all_rows, select_rows, trim_texts
from tracekit.model.tables.keys import mask_equal
from tracekit.model.trace import Trace
from tracekit.process.memory.names import parse_memory_quantity
from tracekit.process.memory.survivors import find_step_ends, find_surviving_memory, list_allocation_history

MAX_LEVELS = 500_000
"""Levels of one source at most: the first ones."""


def measure_step_levels(trace: Trace) -> Mapping[str, Array]:
    """Compute device, step, position, at_ns, point, quantity and level_bytes; empty without any source of levels."""
    if trace.has("blocks"):
        levels = dict(Columns.from_frame(_measure_snapshot_step_levels(trace)).arrays)
    elif trace.has("memory_log"):
        levels = _copy_memory_log_levels(trace)
    elif trace.has("log_values"):
        levels = _select_driver_log_levels(trace)
    else:
        return {}
    return select_all_rows(levels, slice(MAX_LEVELS))


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


def _copy_memory_log_levels(trace: Trace) -> dict[str, Array]:
    """Copy the amounts of a memory log."""
    return {
        "device": trace.array("memory_log", "device"),
        "step": trace.array("memory_log", "step"),
        "position": trace.array("memory_log", "line"),
        "at_ns": trace.array("memory_log", "logged_ns"),
        "point": trim_texts(trace.texts("memory_log", "point")),
        "quantity": trim_texts(trace.texts("memory_log", "quantity")),
        "level_bytes": trace.array("memory_log", "size_bytes"),
    }


def _select_driver_log_levels(trace: Trace) -> dict[str, Array]:
    """Select memory amounts from the log of an RL driver: values whose name gives a unit."""
    names, values = trace.texts("log_values", "name"), trace.nullable("log_values", "value")
    quantities = [parse_memory_quantity(name) or ("", 0) for name in names.texts]
    factor = np.array([*(float(unit or 0) for _, unit in quantities), 0.0])[names.codes]
    what = np.array([*(quantity for quantity, _ in quantities), ""], object)[names.codes]
    size = np.where(values.missing, np.nan, values.values) * factor
    sound = (factor > 0) & (size >= 0) & (size < 2.0**50)
    return {
        "device": repeat_number(None, int(sound.sum())),
        "step": select_rows(trace.array("log_values", "step"), sound),
        "position": trace.numbers("log_values", "line")[sound],
        "at_ns": select_rows(trace.array("log_values", "logged_ns"), sound),
        "point": trim_texts(select_rows(names, sound)),
        "quantity": what[sound],
        "level_bytes": np.rint(size[sound]).astype(np.int64),
    }
