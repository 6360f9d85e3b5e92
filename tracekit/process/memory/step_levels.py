"""Memory levels at the same point of every step, from a snapshot or a log."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracekit.model.tables.arrays import (
    Array,
    Nullable,
    concatenate_parts,
    get_number_or_none,
    make_nullable_numbers,
    mask_value,
    repeat_number,
    repeat_text,
    select_all_rows,
    select_rows,
    trim_texts,
)
from tracekit.model.trace import Trace
from tracekit.process.memory.names import parse_memory_quantity
from tracekit.process.memory.survivors import find_step_ends, find_surviving_memory, list_allocation_history

MAX_LEVELS = 500_000
"""Levels of one source at most: the first ones."""


def measure_step_levels(trace: Trace) -> Mapping[str, Array]:
    """Compute device, step, position, at_ns, point, quantity and level_bytes; empty without any source of levels."""
    if trace.has("blocks"):
        levels = _measure_snapshot_step_levels(trace)
    elif trace.has("memory_log"):
        levels = _copy_memory_log_levels(trace)
    elif trace.has("log_values"):
        levels = _select_driver_log_levels(trace)
    else:
        return {}
    return select_all_rows(levels, slice(MAX_LEVELS))


def _measure_snapshot_step_levels(trace: Trace) -> dict[str, Array]:
    """Compute requested bytes in use at the ends of the steps within a snapshot, or only at its end."""
    windows = trace.derived(find_surviving_memory).windows
    ends, numbers = find_step_ends(trace)
    rows = trace.derived(list_allocation_history)
    within = len(ends) >= 2 and not rows["ts_ns"].missing.any()
    parts: list[dict[str, Array]] = []
    for place, live in enumerate(windows["live_bytes"].tolist()):
        device = get_number_or_none(windows["device"], place)
        if within:
            of_device = select_all_rows(rows, mask_value(rows["device"], device))
            ts, size = of_device["ts_ns"].values, of_device["size_bytes"].values
            order = np.argsort(ts, kind="stable")
            change = np.where(of_device["is_alloc"], size, -size)[order]
            after = np.append(np.cumsum(change[::-1])[::-1], 0)
            level = live - after[np.searchsorted(ts[order], ends, "right")]
            times, steps = Nullable(ends, np.zeros(len(ends), np.bool_)), make_nullable_numbers(numbers)
        else:
            level = np.array([live], np.int64)
            times = select_rows(windows["end_ns"], [place])
            steps = repeat_number(trace.source.step, 1)
        parts.append(
            {
                "device": repeat_number(device, len(level)),
                "step": steps,
                "position": np.arange(len(level), dtype=np.int64),
                "at_ns": times,
                "point": repeat_text(None, len(level)),
                "quantity": repeat_text("requested", len(level)),
                "level_bytes": np.maximum(level, 0),
            }
        )
    return concatenate_parts(parts)


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
        "at_ns": select_rows(trace.array("log_values", "ts_ns"), sound),
        "point": trim_texts(select_rows(names, sound)),
        "quantity": what[sound],
        "level_bytes": np.rint(size[sound]).astype(np.int64),
    }
