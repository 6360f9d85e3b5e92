"""GPU work by launching call and stage, and the work that cannot be linked to a launch (definition M7)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import make_label_headings, make_run_heading, name_stages
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.model.report import Heading, Section, Sheet
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Array, Coded, repeat_text, trim_all_texts
from tracekit.model.tables.columns import STAGE
from tracekit.model.tables.frame import Frame, choose, max_of, min_of, sum_of, texts
from tracekit.model.tables.keys import sort_rows_by_keys, sum_by_keys
from tracekit.model.text.labels import choose_plural
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.calls.launches import LINKS, Launches, find_launches
from tracekit.process.device.placement import PLACED, Placement, place_device_ops
from tracekit.process.name_filters import look_up_name_codes, mark_rows_of_kind, mark_wanted_names
from tracekit.process.ops.shapes import sum_device_work
from tracekit.process.ops.work_classes import find_work_stages
from tracekit.process.steps.stage_lookup import find_stage_codes_at, list_outer_stage_names

LAUNCHES = Table(
    "launches",
    "device ops by how they were traced back to the host",
    {
        **KEYS,
        "link": Column("category", "correlation | external_id | unlinked.", ("correlation", "external_id", "unlinked")),
        "call": Column("category", "Launching call."),
        "placed": Column(
            "category",
            "How the stage is known: by launch | annotation (on the device) | time (when it ran) | "
            "before (launched before the recording began: outside any stage).",
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
        "empty_count": Column("int64", "Replays without a recorded device op."),
        "op_count": Column("int64", "Device ops of all replays."),
        "least": Column("int64", "Fewest device ops of a replay that has any."),
        "most": Column("int64", "Most device ops of a replay."),
        "dur_ns": Column("int64", "Σ duration of the device ops."),
        "busy_ns": Column("int64", "Their union per device, Σ over devices."),
    },
)


OUTSIDE = "(outside any stage)"

LAUNCHED_WORK_HEADINGS = parse_headings("""
    dur_ns | GPU Σ | ns | Σ duration of device ops, over all processes and steps.
    share_ratio | share | ratio | Of the Σ duration of all device ops.
    count | device ops | count
""")


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum the device ops of one source by link, launching call and outermost stage."""
    if not trace.has("device_ops") or not len(trace.numbers("device_ops", "ts_ns")):
        return {}
    links: Launches = trace.derived(find_launches)
    place: Placement = trace.derived(place_device_ops)
    names = trace.texts("host_ops", "name")
    call = np.where(links.call >= 0, links.call, links.op)
    dur_ns = trace.numbers("device_ops", "dur_ns")
    keys: dict[str, Array] = {
        "link": Coded(links.link, LINKS),
        "call": Coded(look_up_name_codes(names, call), names.texts),
        "placed": Coded(place.how, PLACED),
        "stage": Coded(trace.derived(find_work_stages), tuple(list_outer_stage_names(trace))),
    }
    values = {"count": np.ones(len(dur_ns), np.int64), "dur_ns": dur_ns}
    table = sort_rows_by_keys(trim_all_texts(sum_by_keys(keys, values)), tuple(keys))
    return {"launches": table, "graph_launches": _sum_graph_replays(trace, links)}


def _sum_graph_replays(trace: Trace, links: Launches) -> dict[str, Any]:
    """Sum replays of CUDA graphs by stage and call.

    One launch replays hundreds of device ops. `least` and `most` are device ops of a single replay.
    """
    names = trace.texts("host_ops", "name")
    is_graph = mark_wanted_names(names, GRAPH_LAUNCH_CALLS.search) & mark_rows_of_kind(trace, "host_ops", "runtime")
    rows = np.flatnonzero(is_graph)
    if not len(rows):
        return {}
    codes = names.codes.astype(np.int64)
    stages = [*list_outer_stage_names(trace), None]
    stage = find_stage_codes_at(trace, trace.numbers("host_ops", "ts_ns")[rows])
    keys, group = np.unique(codes[rows] * len(stages) + stage + 1, return_inverse=True)
    count = len(keys)
    slot = np.full(len(codes), -1, np.int64)
    slot[rows] = np.arange(len(rows))
    replay = np.where(links.call >= 0, slot[links.call], -1)
    ops = np.bincount(replay[replay >= 0], minlength=len(rows))
    launched, dur, busy = sum_device_work(trace, np.where(replay >= 0, group[replay], -1), count)
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


GRAPH_LAUNCH_CALLS = re.compile(r"Graph_?Launch", re.IGNORECASE)
"""Calls that replay a captured graph: `cudaGraphLaunch`, `hipGraphLaunch`, `cuGraphLaunch` …"""


def judge(measured: Measurements, _thresholds: Thresholds) -> Section:
    """Report the share of GPU work with a known launch, and GPU work by launching stage and call."""
    rows = measured.frame("launches")
    if not len(rows):
        return ANALYSIS.skipped("no GPU activity was recorded")
    is_early, labels = rows.equals("placed", "before"), _label_launching_stages(rows)
    rows = rows.with_columns(stage=choose(is_early, repeat_text("(before the recording)", len(rows)), labels))
    unlinked = rows.filter(rows.equals("link", "unlinked"))
    linked_ratio = 1 - int(unlinked["count"].sum()) / int(rows["count"].sum())
    metrics = (
        make_evidence_metric("linked_ratio", linked_ratio, "device ops linked", better="higher"),
        make_evidence_metric("unlinked_count", int(unlinked["count"].sum()), "unlinked"),
        make_evidence_metric("unlinked_ns", int(unlinked["dur_ns"].sum()), "unlinked GPU time"),
    )
    return ANALYSIS.answered(
        metrics=metrics,
        sheets=lambda: select_filled_sheets(
            *_make_launched_work_tables(measured, rows),
            _make_unlinked_work_table(measured, unlinked, int(rows["dur_ns"].sum())),
            _make_graph_replay_table(measured),
        ),
        caveats=lambda: _list_attribution_caveats(unlinked),
    )


def _make_launched_work_tables(measured: Measurements, rows: Frame) -> tuple[Sheet, Sheet]:
    """Make the tables of work by launching stage and by launching call."""
    is_unlinked, all_ns = rows.equals("link", "unlinked"), int(rows["dur_ns"].sum())
    rows = rows.with_columns(
        stage=choose(is_unlinked, repeat_text("(unlinked)", len(rows)), rows["stage"]),
        call=texts([call or "(unknown)" for call in rows.values("call")]),
    )
    calls = parse_headings("""
        call | call
        link | linked by
    """)
    return (
        make_sheet(
            "launched_by_stage",
            "GPU work by the stage that launched it",
            (*make_label_headings(measured), Heading("stage", "stage"), *LAUNCHED_WORK_HEADINGS),
            _sum_launched_work(rows, ("run", "role", "stage"), all_ns),
        ),
        make_sheet(
            "launched_by_call",
            "GPU work by launching call",
            (*make_run_heading(measured), *calls, *LAUNCHED_WORK_HEADINGS),
            _sum_launched_work(rows, ("run", "link", "call"), all_ns),
        ),
    )


PLACEMENT_TITLES = {"annotation": "GPU annotation", "time": "time", "before": "launched earlier"}
PLACEMENT_DOCS = {
    "annotation": "GPU annotation: a range that the profiler drew on the op's stream.",
    "time": "Time: the host's stage when the op started.",
    "before": "Launched earlier: its launch id is below those of all recorded calls.",
}
"""Meaning of each title, for the titles that a table has."""


def _list_attribution_caveats(unlinked: Frame) -> tuple[str, ...]:
    """List the caveats on work without a recorded launch; empty if every op is linked."""
    sums = unlinked.group_by("placed").agg(count=sum_of("count"), dur_ns=sum_of("dur_ns"))
    parts = {
        how: f"{format_quantity(dur_ns, 'ns')} ({count:,} {choose_plural(count, 'device op')})"
        for how, count, dur_ns in (row.values() for row in sums.rows())
    }
    placed = [f"by {PLACEMENT_TITLES[how]}: {parts[how]}" for how in ("annotation", "time") if how in parts]
    caveats = []
    if placed:
        caveats.append(f"GPU work without a recorded launch is placed in steps and stages {'; '.join(placed)}")
    if "before" in parts:
        caveats.append(f"launched before the recording began, outside any step or stage: {parts['before']}")
    return tuple(caveats)


def _make_unlinked_work_table(measured: Measurements, unlinked: Frame, all_ns: int) -> Sheet:
    """Make the table of work without a recorded launch: its stage, and how the stage is known."""
    unlinked = unlinked.with_columns(by=texts([PLACEMENT_TITLES.get(how) for how in unlinked.values("placed")]))
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            stage | stage
            by | known by
        """),
        *LAUNCHED_WORK_HEADINGS,
    )
    caption = " ".join(PLACEMENT_DOCS[how] for how in PLACEMENT_DOCS if unlinked.equals("placed", how).any())
    pooled = _sum_launched_work(unlinked, ("run", "role", "by", "stage"), all_ns)
    return make_sheet("placed", "GPU work without a recorded launch", headings, pooled, caption=caption)


def _make_graph_replay_table(measured: Measurements) -> Sheet:
    """Make the table of graph replays by stage; a replay with unusually few ops was only partly recorded."""
    rows = measured.frame("graph_launches")
    rows = rows.with_columns(stage=_label_launching_stages(rows))
    sums = {name: sum_of(name) for name in ("launch_count", "empty_count", "op_count", "dur_ns", "busy_ns")}
    by_call = rows.group_by("run", "role", "stage", "call")
    pooled = by_call.agg(**sums, least=min_of("least"), most=max_of("most"))
    pooled = pooled.sort("busy_ns", "stage", "call", descending=["busy_ns"])
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            stage | stage
            call | call
            launch_count | replays | count
            op_count | device ops | count
            least | fewest | count | Device ops of one replay.
            most | most | count | Device ops of one replay.
            empty_count | without ops | count | Replays without any recorded op.
            busy_ns | GPU busy | ns | Overlaps counted once per GPU.
            dur_ns | GPU Σ | ns
        """),
    )
    return make_sheet("graph_launches", "Replays of captured graphs", headings, pooled)


def _sum_launched_work(rows: Frame, by: Sequence[str], total_ns: int) -> Frame:
    """Sum the work by these keys, with its share of `total_ns` (ns), longest first."""
    pooled = rows.group_by(*by).agg(count=sum_of("count"), dur_ns=sum_of("dur_ns"))
    pooled = pooled.with_columns(share_ratio=pooled["dur_ns"] / total_ns if total_ns else None)
    return pooled.sort("dur_ns", by[-1], descending=["dur_ns"])


def _label_launching_stages(rows: Frame) -> Coded:
    """Label the stage of each row: its canonical name, else its recorded name, else `OUTSIDE`."""
    named = rows.with_columns(canonical=name_stages(rows, in_file=True)).rows("canonical", "stage")
    return texts([row["canonical"] or row["stage"] or OUTSIDE for row in named])


ANALYSIS = Analysis(
    id="attribution",
    title="Who launched the GPU's work?",
    reads=("device_ops", "host_ops", "device_ranges"),
    writes=(LAUNCHES, GRAPH_LAUNCHES),
    measure=measure,
    judge=judge,
)
