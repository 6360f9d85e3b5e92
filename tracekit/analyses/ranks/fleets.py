"""Do rollout and training GPUs work at the same time, and how busy is each role? (Q15, Q16)"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import (
    count_distinct,
    devices_of,
    in_run,
    label_headings,
    same_text,
    text_or_none,
)
from tracekit.job.tables import as_headings, sheet
from tracekit.model.intervals import Intervals, covered, gaps, intersect, union, union_all
from tracekit.model.keys import largest
from tracekit.model.report import Metric, Section
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import at_rows, stacked
from tracekit.model.tables.columns import DEVICE, TS
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.device.devices import devices

BUSY_SPANS = Table(
    "busy_spans",
    "a span in which a device does something; close spans are joined to bound their number",
    {
        **KEYS,
        "device": DEVICE,
        "ts_ns": TS,
        "dur_ns": Column("int64", "Length, ns."),
        "closed_ns": Column("int64", "Of it idle: gaps that were closed."),
    },
)


MAX_SPANS = 1_000
"""Most spans kept of one device: past it the shortest gaps close, and the closed time is counted."""

_ROLLOUT = re.compile(r"(?:\A|[-_])(?:rollout|generation|vllm|sglang|trtllm)(?:\Z|[-_])")
_TRAINING = re.compile(r"actor|policy|critic|value|ref(?:erence)?(?:\Z|[-_])|train")

Ints = npt.NDArray[np.int64]


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """The spans in which each device does something; nothing without a device."""
    if not trace.has("device_ops"):
        return {}
    of_trace = trace.derived(devices)
    start = trace.numbers("device_ops", "ts_ns")
    end = start + trace.numbers("device_ops", "dur_ns")
    parts: list[Mapping[str, Any]] = []
    for number in of_trace.in_order:
        on_device = of_trace.number == number
        spans, closed = _bounded(union(start[on_device], end[on_device]))
        parts.append(
            {
                "device": at_rows(of_trace.ordinal, np.full(len(closed), number)),
                "ts_ns": spans.start,
                "dur_ns": spans.end - spans.start,
                "closed_ns": closed,
            }
        )
    return {"busy_spans": stacked(parts)}


def _bounded(spans: Intervals) -> tuple[Intervals, Ints]:
    """(at most `MAX_SPANS` spans with the longest gaps between them, how much idle time each holds)."""
    length = spans.start[1:] - spans.end[:-1]
    longest_gaps = largest(length, MAX_SPANS - 1)
    first = np.concatenate((np.zeros(min(len(spans.start), 1), np.int64), longest_gaps + 1))
    last = np.concatenate((longest_gaps, np.full(min(len(spans.start), 1), len(spans.start) - 1)))
    joined = Intervals(spans.start[first], spans.end[last])
    busy = covered(spans, joined.start, joined.end)
    assert int(busy.sum()) == spans.total, "closing gaps must not lose busy time"
    return joined, joined.end - joined.start - busy


class Fleet(NamedTuple):
    """One role of one run: its GPUs, when its processes were captured, when any and how long all of its GPUs work."""

    role: str | None
    rollout: bool
    gpus: int
    captured: Intervals
    busy: Intervals
    by_gpu: list[Intervals]


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Busy shares of every role in the time that all were captured, and how far rollout and training overlap."""
    if not measured.has("busy_spans"):
        return ANALYSIS.skipped("no GPU activity was recorded")
    spans, captures = measured["busy_spans"], measured["captures"]
    timed = captures[captures["absolute_time"].to_numpy(np.bool_)]
    fleet_rows, metrics, reasons = [], list[Metric](), list[str]()
    for run in spans["run"].unique():
        run_spans = spans[same_text(spans["run"], run) & spans["source"].isin(set(timed["source"]))]
        fleets = _fleets(run_spans, timed) if count_distinct(run_spans, ["role"]) > 1 else []
        reason = _told(fleets)
        if reason:
            reasons.append(reason + in_run(measured, run))
            continue
        window = _window(fleets)
        fleet_rows += [(run, fleet.role, *_numbers(fleet, window)) for fleet in fleets]
        metrics += _overlap(fleets, window, in_run(measured, run))
    if not fleet_rows:
        return ANALYSIS.skipped(reasons[0] if reasons else "no GPU activity was recorded")
    columns = ["run", "role", "gpus", "window_ns", "busy_ratio", "idle_ratio", "first_ns"]
    headings = (
        *label_headings(measured),
        *as_headings("""
            gpus | GPUs | count
            window_ns | captured | ns | Time in which all roles were captured.
            busy_ratio | busy | ratio | Mean over its GPUs, of that time.
            idle_ratio | all idle | ratio | No GPU of the role works, of that time.
            first_ns | first work after | ns | From the start of that time.
        """),
    )
    frame = pd.DataFrame(fleet_rows, columns=columns).sort_values(
        ["run", "busy_ratio"], kind="stable"
    )
    caveats = (
        *reasons,
        "which processes share a GPU is not recorded: switching between roles is not judged",
    )
    return ANALYSIS.answered(
        metrics=tuple(metrics),
        sheets=lambda: (sheet("fleets", "Roles by how busy their GPUs are", headings, frame),),
        caveats=caveats,
    )


def _fleets(spans: pd.DataFrame, captures: pd.DataFrame) -> list[Fleet]:
    """The roles of one run that have GPU activity on a clock that others share."""
    fleets = []
    for role in spans["role"].unique():
        rows = spans[same_text(spans["role"], role)]
        role_captures = captures[captures["source"].isin(set(rows["source"]))]
        name = text_or_none(role)
        keys = ["host", "pid", "rank", "replica", "device"]
        by_gpu = [_spans(group) for _, group in rows.groupby(keys, dropna=False, sort=False)]
        engine = bool(rows["replica"].notna().any()) and not _TRAINING.search(name or "")
        rollout = engine or (
            _ROLLOUT.search(name or "") is not None and not _TRAINING.search(name or "")
        )
        gpus = devices_of(rows.assign(rank=rows["rank"].fillna(rows["replica"])))
        fleets.append(Fleet(name, rollout, gpus, _spans(role_captures), union_all(by_gpu), by_gpu))
    return fleets


def _spans(rows: pd.DataFrame) -> Intervals:
    start = rows["ts_ns"].to_numpy(np.int64)
    return union(start, start + rows["dur_ns"].to_numpy(np.int64))


def _told(fleets: list[Fleet]) -> str:
    """Why roles cannot be compared; nothing where they can."""
    if len(fleets) < 2:
        return "GPU activity of a single role: overlap needs the traces of rollout and training on one clock"
    return "" if _window(fleets).total else "the roles were not captured at the same time"


def _window(fleets: list[Fleet]) -> Intervals:
    """The time in which all of them were captured."""
    window = fleets[0].captured
    for fleet in fleets[1:]:
        window = intersect(window, fleet.captured)
    return window


def _numbers(fleet: Fleet, window: Intervals) -> tuple[int, int, float, float, int | None]:
    """(GPUs, length of the window, mean busy share, share in which none works, time until the first work)."""
    window_ns = window.total
    busy = sum(intersect(gpu, window).total for gpu in fleet.by_gpu) / max(len(fleet.by_gpu), 1)
    busy_in_window = intersect(fleet.busy, window)
    before = (
        gaps(busy_in_window, int(window.start[0]), int(busy_in_window.start[0]))
        if len(busy_in_window.start)
        else None
    )
    first = None if before is None else intersect(before, window).total
    return fleet.gpus, window_ns, busy / window_ns, 1 - busy_in_window.total / window_ns, first


def _overlap(fleets: list[Fleet], window: Intervals, where: str) -> list[Metric]:
    """How much of the less busy fleet's work runs while the other works too (Q16); nothing without both."""
    sides = [
        intersect(union_all([f.busy for f in fleets if f.rollout == side]), window)
        for side in (True, False)
        if any(f.rollout == side for f in fleets)
    ]
    if len(sides) < 2 or not min(side.total for side in sides):
        return []
    ratio = intersect(*sides).total / min(side.total for side in sides)
    label = f"rollout and training at the same time, of the less busy one{where}"
    return [evidence("overlap_ratio", ratio, label, better="higher")]


ANALYSIS = Analysis(
    id="fleets",
    title="Do rollout and training work at the same time?",
    reads=("host_ops", "device_ops"),
    writes=(BUSY_SPANS,),
    measure=measure,
    judge=judge,
)
