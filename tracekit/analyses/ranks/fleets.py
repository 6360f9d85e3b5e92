"""Overlap of rollout and training GPUs, and utilization of each role (Q15, Q16)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import make_label_headings, phrase_run
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.model.intervals import (
    Intervals,
    Ints,
    find_gaps,
    intersect,
    measure_coverage,
    merge_interval_sets,
    merge_intervals,
)
from tracekit.model.report import Metric, Section
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import concatenate_parts, select_rows
from tracekit.model.tables.columns import DEVICE, TS
from tracekit.model.tables.frame import Frame, choose, from_rows
from tracekit.model.tables.keys import PROCESS, find_largest
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.process.device.devices import number_devices

BUSY_SPANS = Table(
    "busy_spans",
    "a span in which a device does something; close spans are joined to bound their number",
    {
        **KEYS,
        "device": DEVICE,
        "ts_ns": TS,
        "dur_ns": Column("int64", "Length, ns."),
        "closed_ns": Column("int64", "Idle part: closed gaps."),
    },
)


MAX_SPANS = 1_000
"""Maximum number of busy spans per device; beyond it the shortest gaps are closed, and their time is counted."""

_ROLLOUT = re.compile(r"(?:\A|[-_])(?:rollout|generation|vllm|sglang|trtllm)(?:\Z|[-_])")
_TRAINING = re.compile(r"actor|policy|critic|value|ref(?:erence)?(?:\Z|[-_])|train")


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the busy spans of each device; empty without a device."""
    if not trace.has("device_ops"):
        return {}
    of_trace = trace.derived(number_devices)
    start = trace.numbers("device_ops", "ts_ns")
    end = start + trace.numbers("device_ops", "dur_ns")
    parts: list[Mapping[str, Any]] = []
    for number in of_trace.in_order:
        on_device = of_trace.number == number
        spans, closed = _limit_busy_spans(merge_intervals(start[on_device], end[on_device]))
        parts.append(
            {
                "device": select_rows(of_trace.ordinal, np.full(len(closed), number)),
                "ts_ns": spans.start,
                "dur_ns": spans.end - spans.start,
                "closed_ns": closed,
            }
        )
    return {"busy_spans": concatenate_parts(parts)}


def _limit_busy_spans(spans: Intervals) -> tuple[Intervals, Ints]:
    """Merge spans until at most `MAX_SPANS` are left, shortest gaps first: (spans, idle time within each in ns)."""
    length = spans.start[1:] - spans.end[:-1]
    longest_gaps = find_largest(length, MAX_SPANS - 1)
    first = np.concatenate((np.zeros(min(len(spans.start), 1), np.int64), longest_gaps + 1))
    last = np.concatenate((longest_gaps, np.full(min(len(spans.start), 1), len(spans.start) - 1)))
    joined = Intervals(spans.start[first], spans.end[last])
    busy = measure_coverage(spans, joined.start, joined.end)
    assert int(busy.sum()) == spans.total, "closing gaps must not lose busy time"
    return joined, joined.end - joined.start - busy


class Fleet(NamedTuple):
    """The GPUs of one role of one run.

    `captured` is when its processes were captured, `busy` when any GPU works, `by_gpu` when each GPU works.
    """

    role: str | None
    rollout: bool
    gpus: int
    captured: Intervals
    busy: Intervals
    by_gpu: list[Intervals]


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Report the busy share of every role while all roles were captured, and the overlap of rollout and training."""
    if not measured.has("busy_spans"):
        return ANALYSIS.skipped("no GPU activity was recorded")
    spans, captures = measured.frame("busy_spans"), measured.frame("captures")
    timed = captures.filter(captures["absolute_time"])
    sources = set(timed.values("source"))
    fleet_rows, metrics, reasons = [], list[Metric](), list[str]()
    for run_spans in spans.group_by("run").frames():
        run = run_spans.values("run")[0]
        timed_spans = run_spans.filter(run_spans.is_in("source", sources))
        fleets = _list_fleets(timed_spans, timed) if len(timed_spans.group_by("role")) > 1 else []
        reason = _explain_incomparable_fleets(fleets)
        if reason:
            reasons.append(reason + phrase_run(measured, run))
            continue
        window = _intersect_fleet_captures(fleets)
        fleet_rows += [(run, fleet.role, *_measure_fleet(fleet, window)) for fleet in fleets]
        metrics += _measure_fleet_overlap(fleets, window, phrase_run(measured, run))
    if not fleet_rows:
        return ANALYSIS.skipped(reasons[0] if reasons else "no GPU activity was recorded")
    columns = ["run", "role", "gpus", "window_ns", "busy_ratio", "idle_ratio", "first_ns"]
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            gpus | GPUs | count
            window_ns | captured | ns | Time in which all roles were captured.
            busy_ratio | busy | ratio | Mean over its GPUs, of that time.
            idle_ratio | all idle | ratio | No GPU of the role works, of that time.
            first_ns | first work after | ns | From the start of that time.
        """),
    )
    frame = from_rows(columns, fleet_rows).sort("run", "busy_ratio")
    caveats = (*reasons, "GPU sharing between processes was not recorded: switching between roles is not judged")
    return ANALYSIS.answered(
        metrics=tuple(metrics),
        sheets=lambda: (make_sheet("fleets", "Roles by how busy their GPUs are", headings, frame),),
        caveats=caveats,
    )


def _list_fleets(spans: Frame, captures: Frame) -> list[Fleet]:
    """List the roles of one run with GPU activity on a shared clock."""
    fleets = []
    for rows in spans.group_by("role").frames():
        role = rows.values("role")[0]
        role_captures = captures.filter(captures.is_in("source", set(rows.values("source"))))
        by_gpu = [_unite_row_spans(gpu) for gpu in rows.group_by("host", "pid", "rank", "replica", "device").frames()]
        has_replica = not rows.is_missing("replica").all()
        rollout = (has_replica or bool(_ROLLOUT.search(role or ""))) and not _TRAINING.search(role or "")
        # Count by process and rank, as hosts are often not recorded.
        ranked = rows.with_columns(rank=choose(~rows.is_missing("rank"), rows["rank"], rows["replica"]))
        gpus = len(ranked.group_by(*PROCESS, "device"))
        fleets.append(Fleet(role, rollout, gpus, _unite_row_spans(role_captures), merge_interval_sets(by_gpu), by_gpu))
    return fleets


def _unite_row_spans(rows: Frame) -> Intervals:
    """Unite the spans of these rows."""
    return merge_intervals(rows["ts_ns"], rows["ts_ns"] + rows["dur_ns"])


def _explain_incomparable_fleets(fleets: list[Fleet]) -> str:
    """Explain why roles cannot be compared; empty if they can."""
    if len(fleets) < 2:
        return "GPU activity of a single role: overlap needs the traces of rollout and training on one clock"
    return "" if _intersect_fleet_captures(fleets).total else "the roles were not captured at the same time"


def _intersect_fleet_captures(fleets: list[Fleet]) -> Intervals:
    """Intersect the times in which the roles were captured."""
    window = fleets[0].captured
    for fleet in fleets[1:]:
        window = intersect(window, fleet.captured)
    return window


def _measure_fleet(fleet: Fleet, window: Intervals) -> tuple[int, int, float, float, int | None]:
    """Measure one role: (GPUs, window in ns, mean busy share, share with all GPUs idle, ns until the first work)."""
    window_ns = window.total
    busy = sum(intersect(gpu, window).total for gpu in fleet.by_gpu) / max(len(fleet.by_gpu), 1)
    busy_in_window = intersect(fleet.busy, window)
    before = (
        find_gaps(busy_in_window, int(window.start[0]), int(busy_in_window.start[0]))
        if len(busy_in_window.start)
        else None
    )
    first = None if before is None else intersect(before, window).total
    return fleet.gpus, window_ns, busy / window_ns, 1 - busy_in_window.total / window_ns, first


def _measure_fleet_overlap(fleets: list[Fleet], window: Intervals, where: str) -> list[Metric]:
    """Measure the share of the less busy side's work during which the other side works too (Q16).

    Empty unless both rollout and training work.
    """
    sides = [
        intersect(merge_interval_sets([f.busy for f in fleets if f.rollout == side]), window)
        for side in (True, False)
        if any(f.rollout == side for f in fleets)
    ]
    if len(sides) < 2 or not min(side.total for side in sides):
        return []
    ratio = intersect(*sides).total / min(side.total for side in sides)
    label = f"rollout and training at the same time, of the less busy one{where}"
    return [make_evidence_metric("overlap_ratio", ratio, label, better="higher")]


ANALYSIS = Analysis(
    id="fleets",
    title="Do rollout and training work at the same time?",
    reads=("host_ops", "device_ops"),
    writes=(BUSY_SPANS,),
    measure=measure,
    judge=judge,
)
