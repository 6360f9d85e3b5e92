"""GPU work by launching call and stage, and the work that cannot be linked to a launch (definition M7)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import (
    canonical_stages,
    grouped,
    label_headings,
    ordered,
    run_heading,
    summed,
)
from tracekit.job.tables import as_headings, sheet, with_rows
from tracekit.model.keys import sorted_rows, sums_of
from tracekit.model.report import Heading, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Array, Coded, trimmed_all
from tracekit.model.tables.columns import STAGE
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show
from tracekit.process.calls.launches import LINKS, Launches, launches
from tracekit.process.device.placement import PLACED, Placement, placement
from tracekit.process.name_filters import codes_at, is_named, of_kind
from tracekit.process.ops.shapes import device_work
from tracekit.process.ops.work_classes import work_stages
from tracekit.process.steps.stage_lookup import stage_at, stage_names

LAUNCHES = Table(
    "launches",
    "device ops by how they were traced back to the host",
    {
        **KEYS,
        "link": Column(
            "category",
            "correlation | external_id | unlinked.",
            ("correlation", "external_id", "unlinked"),
        ),
        "call": Column("category", "Launching call."),
        "placed": Column(
            "category",
            "How the stage is known: by launch | annotation (on the device) | time (when it ran) | "
            "before (launched before the recording began: of no stage).",
            ("launch", "annotation", "time", "before"),
        ),
        "stage": STAGE,
        "count": Column("int64", "Device ops."),
        "dur_ns": Column("int64", "Σ duration, ns."),
    },
)

GRAPH_LAUNCHES = Table(
    "graph_launches",
    "replays of graphs by one call in one stage of one source",
    {
        **KEYS,
        "stage": STAGE,
        "call": Column("category", "Launching call."),
        "launch_count": Column("int64", "Replays."),
        "empty_count": Column("int64", "Replays of which no device op was recorded."),
        "op_count": Column("int64", "Device ops of all replays."),
        "least": Column("int64", "Fewest device ops of a replay that has any."),
        "most": Column("int64", "Most device ops of a replay."),
        "dur_ns": Column("int64", "Σ duration of the device ops."),
        "busy_ns": Column("int64", "Their union per device, Σ over devices."),
    },
)


OUTSIDE = "(outside any stage)"

SHARED = as_headings("""
    dur_ns | GPU Σ | ns | Σ duration of device ops, over all processes and steps.
    share_ratio | share | ratio | Of the Σ duration of all device ops.
    count | device ops | count
""")


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum the device ops of one source by link, launching call and outermost stage."""
    if not trace.has("device_ops") or not len(trace.numbers("device_ops", "ts_ns")):
        return {}
    links: Launches = trace.derived(launches)
    place: Placement = trace.derived(placement)
    names = trace.texts("host_ops", "name")
    call = np.where(links.call >= 0, links.call, links.op)
    dur_ns = trace.numbers("device_ops", "dur_ns")
    keys: dict[str, Array] = {
        "link": Coded(links.link, LINKS),
        "call": Coded(codes_at(names, call), names.texts),
        "placed": Coded(place.how, PLACED),
        "stage": Coded(trace.derived(work_stages), tuple(stage_names(trace))),
    }
    values = {"count": np.ones(len(dur_ns), np.int64), "dur_ns": dur_ns}
    table = sorted_rows(trimmed_all(sums_of(keys, values)), tuple(keys))
    return {"launches": table, "graph_launches": _graphs(trace, links)}


def _graphs(trace: Trace, links: Launches) -> dict[str, Any]:
    """Sum replays of CUDA graphs by stage and call.

    One launch replays hundreds of device ops. `least` and `most` are device ops of a single replay.
    """
    names = trace.texts("host_ops", "name")
    is_graph = is_named(names, GRAPH_LAUNCH.search) & of_kind(trace, "host_ops", "runtime")
    rows = np.flatnonzero(is_graph)
    if not len(rows):
        return {}
    codes = names.codes.astype(np.int64)
    stages = [*stage_names(trace), None]
    stage = stage_at(trace, trace.numbers("host_ops", "ts_ns")[rows])
    keys, group = np.unique(codes[rows] * len(stages) + stage + 1, return_inverse=True)
    count = len(keys)
    slot = np.full(len(codes), -1, np.int64)
    slot[rows] = np.arange(len(rows))
    replay = np.where(links.call >= 0, slot[links.call], -1)
    ops = np.bincount(replay[replay >= 0], minlength=len(rows))
    launched, dur, busy = device_work(trace, np.where(replay >= 0, group[replay], -1), count)
    shortest, longest = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    np.minimum.at(shortest, group[ops > 0], ops[ops > 0])
    np.maximum.at(longest, group, ops)
    return {
        "stage": np.array(stages, object)[keys % len(stages) - 1],
        "call": np.array(names.texts, object)[keys // len(stages)],
        "launch_count": np.bincount(group, minlength=count),
        "empty_count": np.bincount(group[ops == 0], minlength=count),
        "op_count": launched,
        "least": np.where(longest > 0, shortest, 0),
        "most": longest,
        "dur_ns": dur,
        "busy_ns": busy,
    }


GRAPH_LAUNCH = re.compile(r"Graph_?Launch", re.IGNORECASE)
"""Calls that replay a captured graph: `cudaGraphLaunch`, `hipGraphLaunch`, `cuGraphLaunch` …"""


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Report the share of GPU work with a known launch, and GPU work by launching stage and call."""
    if not measured.row_count("launches"):
        return ANALYSIS.skipped("no GPU activity was recorded")
    rows = measured["launches"]
    rows = rows.assign(canonical=canonical_stages(rows, in_file=True))
    all_ns, count = int(rows["dur_ns"].sum()), int(rows["count"].sum())
    unlinked = rows[rows["link"] == "unlinked"]
    metrics = (
        evidence(
            "linked_ratio",
            1 - int(unlinked["count"].sum()) / count,
            "device ops linked",
            better="higher",
        ),
        evidence("unlinked_count", int(unlinked["count"].sum()), "unlinked"),
        evidence("unlinked_ns", int(unlinked["dur_ns"].sum()), "unlinked GPU time"),
    )
    rows["belongs"] = _shown_stage(rows)
    rows["belongs"] = rows["belongs"].where(rows["placed"] != "before", "(before the recording)")
    rows["stage"] = rows["belongs"].where(rows["link"] != "unlinked", "(unlinked)")
    rows["call"] = rows["call"].where(rows["call"].notna(), "(unknown)")
    run = run_heading(measured)
    return ANALYSIS.answered(
        metrics=metrics,
        sheets=lambda: with_rows(
            sheet(
                "launched_by_stage",
                "GPU work by the stage that launched it",
                (*label_headings(measured), Heading("stage", "stage"), *SHARED),
                _pooled(rows, ["run", "role", "stage"], all_ns),
            ),
            sheet(
                "launched_by_call",
                "GPU work by launching call",
                (
                    *run,
                    *as_headings("""
                    call | call
                    link | linked by
                """),
                    *SHARED,
                ),
                _pooled(rows, ["run", "link", "call"], all_ns),
            ),
            _placed_sheet(measured, rows),
            _graph_sheet(measured),
        ),
        caveats=lambda: _told(rows),
    )


BY = {"annotation": "GPU annotation", "time": "time", "before": "launched earlier"}


def _told(rows: pd.DataFrame) -> tuple[str, ...]:
    """List the caveats on work without a recorded launch; empty if every op is linked."""
    sums = rows[rows["link"] == "unlinked"].groupby("placed")[["count", "dur_ns"]].sum()
    parts = {
        str(how): f"{show(int(row['dur_ns']), 'ns')} ({_ops(int(row['count']))})"
        for how, row in sums.iterrows()
    }
    placed = [f"by {BY[how]}: {parts[how]}" for how in ("annotation", "time") if how in parts]
    caveats = []
    if placed:
        caveats.append(
            f"GPU work without a recorded launch is placed in steps and stages {'; '.join(placed)}"
        )
    if "before" in parts:
        caveats.append(
            f"launched before the recording began, so in no step or stage: {parts['before']}"
        )
    return tuple(caveats)


def _ops(count: int) -> str:
    """Format a number of device ops."""
    return f"{count:,} device op{'' if count == 1 else 's'}"


def _placed_sheet(measured: Measurements, rows: pd.DataFrame) -> Sheet:
    """Make the table of work without a recorded launch: its stage, and how the stage is known."""
    unlinked = rows[rows["link"] == "unlinked"].copy()
    unlinked["by"] = unlinked["placed"].map(BY)
    unlinked["stage"] = unlinked["belongs"]
    all_ns = int(rows["dur_ns"].sum())
    headings = (
        *label_headings(measured),
        *as_headings("""
            stage | stage
            by | known by
        """),
        *SHARED,
    )
    caption = (
        "By GPU annotation: a range that the profiler drew on the op's stream. By time: the stage that the host "
        "was in when the op began to run. Launched earlier: its id is below all of the recorded calls."
    )
    pooled = _pooled(unlinked, ["run", "role", "by", "stage"], all_ns)
    return sheet("placed", "GPU work without a recorded launch", headings, pooled, caption=caption)


def _graph_sheet(measured: Measurements) -> Any:
    """Make the table of graph replays by stage; a replay with unusually few ops was only partly recorded."""
    rows = measured["graph_launches"]
    rows = rows.assign(canonical=canonical_stages(rows, in_file=True))
    rows["stage"] = _shown_stage(rows)
    pooled = grouped(
        rows,
        ["run", "role", "stage", "call"],
        launch_count=("launch_count", "sum"),
        empty_count=("empty_count", "sum"),
        op_count=("op_count", "sum"),
        least=("least", "min"),
        most=("most", "max"),
        dur_ns=("dur_ns", "sum"),
        busy_ns=("busy_ns", "sum"),
    )
    pooled = ordered(pooled, busy_ns=False, stage=True, call=True)
    headings = (
        *label_headings(measured),
        *as_headings("""
            stage | stage
            call | call
            launch_count | replays | count
            op_count | device ops | count
            least | fewest | count | Device ops of one replay.
            most | most | count | Device ops of one replay.
            empty_count | without ops | count | Replays of which the profiler recorded nothing.
            busy_ns | GPU busy | ns | Overlaps counted once per GPU.
            dur_ns | GPU Σ | ns
        """),
    )
    return sheet("graph_launches", "Replays of captured graphs", headings, pooled)


def _pooled(rows: pd.DataFrame, by: list[str], whole: int) -> pd.DataFrame:
    """Sum the work by these keys, with its share of `whole` (ns), longest first."""
    pooled = summed(rows, by, ["count", "dur_ns"])
    pooled["share_ratio"] = pooled["dur_ns"] / whole if whole else None
    return ordered(pooled, **{"dur_ns": False, by[-1]: True})


def _shown_stage(rows: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Label the stage of each row: its canonical name, else its recorded name, else `OUTSIDE`."""
    stage, canonical = rows["stage"].to_numpy(object), rows["canonical"].to_numpy(object)
    name = np.where(pd.isna(canonical), stage, canonical)
    return np.where(pd.isna(name), OUTSIDE, name)


ANALYSIS = Analysis(
    id="attribution",
    title="Who launched the GPU's work?",
    reads=("device_ops", "host_ops", "device_ranges"),
    writes=(LAUNCHES, GRAPH_LAUNCHES),
    measure=measure,
    judge=judge,
)
