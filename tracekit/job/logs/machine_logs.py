"""Utilisation and memory of the host and its GPUs by step, from the log of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from tracekit.job.frames import find_equal_rows, make_run_heading
from tracekit.job.logs.driver_log import map_run_driver_logs
from tracekit.job.tables import make_sheet
from tracekit.model.report import Heading, Sheet
from tracekit.model.trace import Measurements

MACHINE_METRIC_NAMES = r"cpu/|gpu/[0-9]{1,4}/"
"""Prefixes of the machine metrics that `capture.metrics.MetricsLogger` logs."""

_NAME = re.compile(r"(?:cpu|gpu/([0-9]{1,4}))/(utilisation_percent|memory_used_bytes)")
_VERLS_MEMORY = "perf/cpu_memory_used_gb"
"""Host memory that verl logs, in units of 2**30 bytes."""

_HEADINGS = (
    Heading("place", "of"),
    Heading("busy", "busy", "ratio", "Mean of what the log says of its steps."),
    Heading("least", "least busy", "ratio", "The step in which it was least busy."),
    Heading("most", "most busy", "ratio"),
    Heading("used_bytes", "memory used", "bytes", "Mean over the steps."),
    Heading("first_bytes", "first", "bytes", "In the first of these steps."),
    Heading("last_bytes", "last", "bytes", "In the last of these steps."),
    Heading("most_bytes", "most", "bytes"),
    Heading("steps", "steps", "count", "Steps of which the log says any of it."),
)


def make_machine_log_sheet(measured: Measurements) -> Sheet | None:
    """Make the table of utilisation and memory of the host and every GPU of each log; None without such metrics.

    Logs have samples at step ends. The activity of a GPU within a step is in the traces.
    """
    rows = [
        row
        for run, log in map_run_driver_logs(measured).items()
        for row in _list_machine_log_rows(measured, run, log.source)
    ]
    if not rows:
        return None
    frame = pd.DataFrame(rows).sort_values(["run", "order"], kind="stable")
    caption = "At the end of each step. A GPU counts as busy while any kernel runs, however small; a host by the mean of its cores."
    headings = (*make_run_heading(measured), *_HEADINGS)
    return make_sheet("machine", "The machine, as logged", headings, frame.drop(columns="order"), caption=caption)


def _list_machine_log_rows(measured: Measurements, run: object, source: str) -> list[dict[str, object]]:
    """List a row for the host and for each GPU in the log of a run."""
    rows = measured["logged"]
    rows = rows[find_equal_rows(rows["run"], run) & (rows["source"] == source) & rows["step"].notna()]
    by_place: dict[int, dict[str, pd.Series[float]]] = {}
    for name, levels in rows.groupby("name", sort=True):
        quantity = _parse_machine_metric(str(name))
        if quantity is None:
            continue
        place, what, scale = quantity
        value = levels.set_index("step")["value"].astype("float64") * scale
        sound = (value >= 0) & (value <= (1.0 if what == "busy" else 2**60))
        by_step = value[sound].groupby(level=0).last()
        if len(by_step):
            by_place.setdefault(place, {}).setdefault(what, by_step)
    return [_make_machine_log_row(run, place, parts) for place, parts in sorted(by_place.items())]


def _parse_machine_metric(name: str) -> tuple[int, str, float] | None:
    """Parse a metric name: (GPU, -1 for the host; quantity; factor to our unit); None if it is not a machine metric."""
    if name == _VERLS_MEMORY:
        return -1, "memory", 2.0**30
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    place = int(match[1] or -1)
    if match[2].startswith("util"):
        return place, "busy", 0.01
    return place, "memory", 1.0


def _make_machine_log_row(run: object, place: int, parts: Mapping[str, pd.Series[float]]) -> dict[str, object]:
    """Make the row of the host (-1) or a GPU, reduced over its steps."""
    busy, memory = parts.get("busy", _NOTHING), parts.get("memory", _NOTHING)
    row: dict[str, object] = {"run": run, "order": place, "place": "host" if place < 0 else f"GPU {place}"}
    row |= dict.fromkeys(_LEVELS)
    if len(busy):
        row |= {"busy": busy.mean(), "least": busy.min(), "most": busy.max()}
    if len(memory):
        row |= {"used_bytes": memory.mean(), "most_bytes": memory.max()}
        row |= {"first_bytes": memory.iloc[0], "last_bytes": memory.iloc[-1]}
    return row | {"steps": len(busy.index.union(memory.index))}


_NOTHING: pd.Series[Any] = pd.Series([], dtype="float64")

_LEVELS = ("busy", "least", "most", "used_bytes", "first_bytes", "last_bytes", "most_bytes")
