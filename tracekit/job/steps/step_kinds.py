"""Kinds of steps by their device work: host ran ahead, without work, cut off."""

from __future__ import annotations

import numpy as np

from tracekit.job.frames import REPEATING, UNIT
from tracekit.model.metrics import CUT_OFF, RAN_AHEAD, WITHOUT_WORK
from tracekit.model.tables.frame import Bools, Frame, Ints, concat, count_rows, sum_of
from tracekit.model.tables.keys import CAPTURE
from tracekit.model.trace import Measurements, derive_once

MAX_WORK_DIFFERENCE = 0.10
"""Largest difference between the work launched in a window and the work that runs in it, as a share of the window.

A larger difference shows that the window has the work of other steps.
"""

STUB_WORK, STUB_TIME = 0.1, 0.5
"""A first or last step below these shares of the others' launches, and of their time, is a stub that the profiler cut."""

LEAST_REPEATS = 3
"""Fewest repeating windows that allow dropping the last one, whose end is unknown."""

_STEP = (*CAPTURE, "step", "occurrence")


@derive_once
def measure_device_work_of_steps(measured: Measurements) -> Frame:
    """Measure the device work of the steps of processes with recorded devices: their rows, with sums over devices in ns.

    Adds `window_ns`, `inside_ns` (busy in the window), `launched_ns` (busy with work launched in it) and `differ_ns`, the
    difference of the two.
    """
    steps, rows = measured.frame("steps"), measured.frame("gpu_time")
    by_step = rows.filter(rows.equals("window", "step")).group_by(*_STEP)
    busy = by_step.agg(window_ns=sum_of("window_ns"), idle_ns=sum_of("idle_ns"))
    steps = steps.filter(~steps.is_missing("work_busy_ns")).join(busy, _STEP, optional=["pid", "step"])
    inside_ns, launched_ns = steps["window_ns"] - steps["idle_ns"], steps.integers("work_busy_ns")
    differ_ns = np.abs(inside_ns - launched_ns)
    return steps.with_columns(inside_ns=inside_ns, launched_ns=launched_ns, differ_ns=differ_ns)


def mark_step_units(steps: Frame) -> Frame:
    """Mark units: run, step, part, name, value 1. `steps` are rows of `measure_device_work_of_steps`, identified by unit."""
    # Much launched work runs outside, or much running work was launched outside.
    in_row = ~steps.is_in("origin", ("file", "stage"))
    units = steps.group_by(*UNIT).agg(
        steps=count_rows(),
        stubs=sum_of(_find_stub_steps(steps)),
        cut_off=sum_of(_find_cut_off_windows(steps)),
        differ_ns=sum_of(np.where(in_row, steps["differ_ns"], 0)),
        window_ns=sum_of("window_ns"),
    )
    marks = {
        WITHOUT_WORK: units["stubs"] == units["steps"],
        RAN_AHEAD: units["differ_ns"] > MAX_WORK_DIFFERENCE * units["window_ns"],
        CUT_OFF: units["cut_off"] == units["steps"],
    }
    units = units.select(*UNIT)
    return concat([units.filter(mark).with_columns(name=name, value=1) for name, mark in marks.items()])


def _find_stub_steps(steps: Frame) -> Bools:
    """Find the first and last steps of a source that have next to none of the work of the others."""
    is_stub = np.zeros(len(steps), np.bool_)
    origins, launches, walls = steps.values("origin"), steps.number("launch_count", missing=0), steps.number("dur_ns")
    for rows in _split_steps_by_source(steps):
        if len(rows) < 2 or origins[rows[0]] in ("file", "stage"):
            continue
        for place in (0, -1):
            few = _is_below(launches[rows].tolist(), place, STUB_WORK)
            is_stub[rows[place]] = few and _is_below(walls[rows].tolist(), place, STUB_TIME)
    return is_stub


def _is_below(values: list[float], place: int, share: float) -> bool:
    """Check whether the value at a place is below this share of the median of the others; there must be others."""
    value = values.pop(place)
    others, middle = sorted(values), len(values) // 2
    return value < share * (others[middle] + others[~middle]) / 2


def _find_cut_off_windows(steps: Frame) -> Bools:
    """Find the last window of repeating ones: it lasts as long as its work, the others until the next one begins."""
    is_last = np.zeros(len(steps), np.bool_)
    origins = steps.values("origin")
    for rows in _split_steps_by_source(steps):
        if len(rows) >= LEAST_REPEATS and origins[rows[0]] in REPEATING:
            is_last[rows[-1]] = True
    return is_last


def _split_steps_by_source(steps: Frame) -> list[Ints]:
    """Split the rows by process in a source, in order of time."""
    number = steps.group_by(*CAPTURE).number
    ends = np.cumsum(np.bincount(number))
    return np.split(np.lexsort((steps["ts_ns"], number)), ends[:-1]) if len(steps) else []
