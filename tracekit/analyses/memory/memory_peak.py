"""What fills a GPU's memory at its peak, and who asked for it? (memory snapshots)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.evidence import evidence
from tracekit.job.frames import canonical_stages, run_heading, text_or_none
from tracekit.job.memory.device_size import with_cards
from tracekit.job.memory.pools import pool_notes, pools_of
from tracekit.job.memory.snapshot_charts import snapshot_charts
from tracekit.job.memory.snapshots import UNTOLD, of_snapshot, said, snapshot_levels
from tracekit.job.tables import as_headings, sheet, with_rows
from tracekit.model.intervals import window_at
from tracekit.model.report import Metric, Ranked, Section, Sheet
from tracekit.model.tables import Column, Table
from tracekit.model.tables.snapshots import BASES, DEVICE_KEYS, MOMENT, ORIGINS, POOL, SITE_KINDS
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import show
from tracekit.process.memory import windows as snapshot_windows
from tracekit.process.memory.call_sites import tree
from tracekit.process.memory.live import by_site, live
from tracekit.process.memory.metrics import allocated_peak, level_metrics
from tracekit.process.memory.pools import POOL_CLASSES, pools
from tracekit.process.memory.replay import MAX_BYTES, Replay, has_segments, replays
from tracekit.process.memory.tables import columns, rows_of, whose
from tracekit.process.steps.windows import step_of

SNAPSHOT_LEVELS = Table(
    "snapshot_levels",
    "the memory of one device as one snapshot tells it",
    {
        **DEVICE_KEYS,
        "entry_count": Column("int64", "Entries of the history; 0: none was recorded."),
        "window_ns": Column("Int64", "From the first entry to the last."),
        "unsound_count": Column("int64", "Entries without a size or with an impossible one."),
        "base_bytes": Column("int64", "Requested before the history and not freed then."),
        "peak_bytes": Column("int64", "Most requested at one time; without a history at the end."),
        "peak_ts_ns": Column("Int64", "When first; <NA>: before the history, or not recorded."),
        "peak_step": Column("Int64", "Step of the peak."),
        "peak_stage": Column("category", "Outermost annotated range then, as recorded."),
        "peak_allocated_bytes": Column(
            "Int64",
            "Most allocated at one time, at least: as rounded up; what was freed may have held a little more.",
        ),
        "peak_reserved_bytes": Column("Int64", "Reserved at that time."),
        "reserved_peak_bytes": Column("Int64", "Most reserved at one time."),
        "end_requested_bytes": Column("int64", "Requested and in use at the end."),
        "end_allocated_bytes": Column("Int64", "The same as the allocator rounds it up."),
        "end_reserved_bytes": Column("Int64", "Reserved at the end."),
        "pending_bytes": Column("int64", "Rounded bytes that wait for other streams at the end."),
        "off_bytes": Column("int64", "By how much the history misses the blocks at the end."),
        "alloc_count": Column("int64", "Allocations of the history."),
        "alloc_bytes": Column("int64", "Σ of what they requested."),
        "largest_bytes": Column("Int64", "The largest of them."),
        "expandable": Column("bool", "Whether any segment grows in place."),
    },
)

LIVE_SITES = Table(
    "live_sites",
    "what one place in the program holds at the peak or at the end: the largest 200 of a snapshot",
    {
        **DEVICE_KEYS,
        "moment": MOMENT,
        "origin": Column("category", " | ".join(ORIGINS) + ".", ORIGINS),
        "kind": Column("category", " | ".join(SITE_KINDS) + ".", SITE_KINDS),
        "site": Column("category", "The frame that names the stack; <NA>: not known."),
        "place": Column(
            "category",
            "File and function of that frame, without line and folders; <NA>: not known.",
        ),
        "category": Column("category", "What for, as far as something tells."),
        "basis": Column("category", " | ".join(BASES) + ".", BASES),
        "stack": Column("Int64", "The stack with most of it, by content."),
        "stack_count": Column("int64", "Different stacks."),
        "block_count": Column("int64", "Blocks."),
        "size_bytes": Column("int64", "Requested bytes."),
        "oldest_ns": Column("Int64", "Age of the oldest that was allocated in the history."),
    },
)

LIVE_FRAMES = Table(
    "live_frames",
    "a frame of the tree of stacks at the peak, outermost first: the largest 300 of a snapshot",
    {
        **DEVICE_KEYS,
        "depth": Column("int32", "0 outermost."),
        "start_bytes": Column("int64", "Where it begins in the row of its depth."),
        "size_bytes": Column("int64", "Requested bytes below it."),
        "name": Column("category", "The frame."),
    },
)


MEMORY_POOLS = Table(
    "memory_pools",
    "a pool of the allocator at the end of a snapshot",
    {
        **DEVICE_KEYS,
        "pool": POOL,
        "class": Column(
            "category",
            "Its use, by the call stacks of its blocks: " + " | ".join(POOL_CLASSES) + ".",
            POOL_CLASSES,
        ),
        "segment_count": Column("int64", "Segments."),
        "reserved_bytes": Column("int64", "Bytes of them, unmapped parts included."),
        "in_use_bytes": Column("int64", "Of blocks in use, as rounded up."),
        "emptied_bytes": Column("int64", "Of segments without a block in use."),
    },
)


MAX_FRAMES, SMALLEST_SHARE = 300, 500
"""Most frames of the tree of one snapshot, and which part of the peak the smallest of them is."""

MAX_SHOWN = 40
"""Most places in the program in a sheet of one snapshot."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """The levels of every device, what is in use at its peak and at the end, and by whom it was asked for."""
    if not trace.has("allocations") and not trace.has("blocks"):
        return {}
    tables: dict[str, list[pd.DataFrame]] = {
        "snapshot_levels": [],
        "live_sites": [],
        "live_frames": [],
        "memory_pools": [],
    }
    for replay in trace.derived(replays):
        process = whose(replay)
        peak = replay.peak()
        if has_segments(trace) and trace.has("blocks"):
            tables["memory_pools"].append(pools(trace, replay).assign(**process))
        tables["snapshot_levels"].append(
            pd.DataFrame([_levels(trace, replay, peak)]).assign(**process)
        )
        for moment, entry in (("peak", peak), ("end", len(replay.rows) - 1)):
            live_blocks = live(trace, replay, entry)
            tables["live_sites"].append(by_site(live_blocks).assign(moment=moment, **process))
            if moment == "peak":
                tables["live_frames"].append(_frames(trace, live_blocks.frame).assign(**process))
    measured = {name: columns(parts) for name, parts in tables.items()}
    return {**measured, **level_metrics(trace, tables["snapshot_levels"])}


def _levels(trace: Trace, replay: Replay, peak: int) -> dict[str, Any]:
    """The row of `snapshot_levels` of one device, but for whose it is."""
    steps = snapshot_windows.steps(trace, replay)
    stages = snapshot_windows.stages(trace, steps)
    when = replay.ts_ns[max(peak, 0) :][:1]
    is_timed = replay.timed and peak >= 0
    begin = stages["ts_ns"].to_numpy()
    inside = window_at(begin, begin + stages["dur_ns"].to_numpy(), when)
    in_stage = is_timed and len(inside) and inside[0] >= 0
    allocations = replay.size[replay.during("alloc")]
    reserved = replay.reserved
    blocks, segments = rows_of(trace, "blocks", replay), rows_of(trace, "memory_segments", replay)
    is_held = blocks["state"].isin(("active", "pending_free"))
    return {
        "entry_count": len(replay.rows),
        "window_ns": int(replay.ts_ns[-1] - replay.ts_ns[0]) if replay.timed else pd.NA,
        "unsound_count": replay.unsound,
        "base_bytes": replay.base,
        "peak_bytes": replay.held(peak),
        "peak_ts_ns": int(when[0]) if is_timed else pd.NA,
        "peak_step": step_of(steps, when)[0] if len(when) else pd.NA,
        "peak_stage": stages["stage"].iloc[int(inside[0])] if in_stage else None,
        "peak_allocated_bytes": allocated_peak(trace, replay),
        "peak_reserved_bytes": _reserved_at(replay, peak, segments),
        "reserved_peak_bytes": pd.NA
        if reserved is None
        else max(int(reserved.max()), replay.reserved_before)
        if len(reserved)
        else _sum(segments["size_bytes"]),
        "end_requested_bytes": replay.held(len(replay.rows) - 1),
        "end_allocated_bytes": _sum(blocks["size_bytes"][is_held])
        if has_segments(trace)
        else pd.NA,
        "end_reserved_bytes": _sum(segments["size_bytes"]) if has_segments(trace) else pd.NA,
        "pending_bytes": _sum(blocks["size_bytes"][blocks["state"] == "pending_free"]),
        "off_bytes": replay.held(len(replay.rows) - 1) - _sum(blocks["requested_bytes"][is_held]),
        "alloc_count": len(allocations),
        "alloc_bytes": int(allocations.sum()),
        "largest_bytes": int(allocations.max()) if len(allocations) else pd.NA,
        "expandable": bool((segments["expandable"] == 1).any()),
    }


def _sum(column: pd.Series[Any]) -> int:
    """The sum of sizes; impossible ones are damage and are left out."""
    size = column.to_numpy(np.int64, na_value=0)
    return int(size[(size >= 0) & (size < MAX_BYTES)].sum())


def _reserved_at(replay: Replay, peak: int, segments: pd.DataFrame) -> Any:
    """What was reserved at the peak."""
    if replay.reserved is None:
        return pd.NA
    if not len(replay.rows):
        return _sum(segments["size_bytes"])
    return replay.reserved_before if peak < 0 else int(replay.reserved[peak])


def _frames(trace: Trace, frame: pd.DataFrame) -> pd.DataFrame:
    """The tree of the stacks at the peak; what has no stack is one bar at its end."""
    has_stack = frame["stack"].notna() & (frame["kind"] != "empty")
    of_stacks = frame[has_stack]
    total = int(frame["size_bytes"].sum())
    stack = of_stacks["stack"].to_numpy(np.int64)
    size = of_stacks["size_bytes"].to_numpy(np.int64)
    stack_tree, _ = tree(trace.get("stacks"), stack, size, MAX_FRAMES, total // SMALLEST_SHARE)
    without = total - int(size.sum())
    if without:
        name = "allocated before the recording, or without a stack"
        row = {"depth": 0, "start_bytes": int(size.sum()), "size_bytes": without, "name": name}
        stack_tree = (
            pd.concat([stack_tree, pd.DataFrame([row])], ignore_index=True)
            if len(stack_tree)
            else pd.DataFrame([row])
        )
    return stack_tree.astype({"depth": np.int32, "start_bytes": np.int64, "size_bytes": np.int64})


def judge(measured: Measurements, _thresholds: Thresholds) -> Section | None:
    """Peaks by process, and who holds what at the highest of them; None where no snapshot was read."""
    if not measured.row_count("snapshot_levels"):
        return None
    rows = with_cards(measured, snapshot_levels(measured))
    top = rows.iloc[0]
    sites = of_snapshot(measured["live_sites"], top)
    at_peak, at_end = (sites[sites["moment"] == moment] for moment in ("peak", "end"))
    assert int(at_peak["size_bytes"].sum()) == int(top["peak_bytes"])
    return ANALYSIS.answered(
        metrics=lambda: _headline(top, at_peak),
        sheets=lambda: with_rows(
            _peak_sheet(measured, rows),
            _site_sheet("peak", f"In use at the peak of {top['who']}", at_peak, top),
            _category_sheet(at_peak, top),
            _known_sheet(at_peak),
            _pool_sheet(pools_of(measured, top), top),
            # Without an allocation in the history the end is the peak.
            *(
                (_site_sheet("end", f"In use at the end, {top['who']}", at_end, top),)
                if top["alloc_count"]
                else ()
            ),
        ),
        caveats=lambda: (*pool_notes(measured), *_caveats(rows)),
        charts=lambda: snapshot_charts(measured, top),
    )


def _headline(top: pd.Series[Any], sites: pd.DataFrame) -> Iterator[Metric]:
    """The highest peak, and how much of it is explained."""
    total = int(top["peak_bytes"])
    # fmt: off
    yield Metric("peak_requested", total, "bytes", "lower", label="most requested on one GPU")
    if total:
        card, reserved = top["card_bytes"], top["reserved_peak_bytes"]
        if not pd.isna(card):
            yield evidence("card_ratio", total / int(card), f"of the card ({show(int(card), 'bytes')}, {top['card_origin']})")
            if not pd.isna(reserved):
                yield evidence("reserved_ratio", int(reserved) / int(card), "most reserved, of the card")
        named = int(sites.loc[sites["kind"].isin(("user", "library")), "size_bytes"].sum())
        yield evidence("named_ratio", named / total, "of it asked for by a known line of Python", better="higher")
    # fmt: on


def _caveats(rows: pd.DataFrame) -> Iterator[str]:
    yield (
        "bytes are as requested unless a heading says otherwise; what NCCL, the CUDA context and libraries take "
        "outside PyTorch's allocator is in no snapshot"
    )
    if (rows["alloc_count"] == 0).any():
        yield "snapshots without a history of allocations show what was in use when they were taken, not a peak"
    if (rows["reserved_peak_bytes"] > rows["card_bytes"]).any():
        yield "more is reserved than the card has: its size is not that of this device"
    if off := int(rows["off_bytes"].abs().max()):
        yield f"a history and its blocks disagree by {show(off, 'bytes')}: see the notes"
    if unsound := int(rows["unsound_count"].sum()):
        yield f"{unsound:,} entries have no size or an impossible one: left out"


def _peak_sheet(measured: Measurements, rows: pd.DataFrame) -> Sheet:
    peak_rows = rows.assign(
        stage=canonical_stages(rows, "peak_stage", any_range=True),
        card_ratio=(rows["peak_bytes"] / rows["card_bytes"]).astype("Float64"),
        reserved_ratio=(rows["reserved_peak_bytes"] / rows["card_bytes"]).astype("Float64"),
        rounding_bytes=(rows["end_allocated_bytes"] - rows["end_requested_bytes"]).astype("Int64"),
    )
    headings = (
        *run_heading(measured),
        *as_headings("""
            who | process
            source | snapshot
            peak_bytes | peak requested | bytes | Most requested and not freed at one time.
            card_ratio | requested of card | ratio | Of all memory of the device.
            peak_step | in step | id
            stage | in stage
            peak_reserved_bytes | reserved then | bytes
            reserved_peak_bytes | peak reserved | bytes
            reserved_ratio | reserved of card | ratio | Of all memory of the device.
            end_requested_bytes | requested at the end | bytes
            rounding_bytes | rounding at the end | bytes | Allocated (as the allocator rounds it up) less requested.
            base_bytes | before the recording | bytes | Requested before the first entry.
            entry_count | entries | count | Length of the recorded history.
        """),
    )
    ranked = Ranked("peak_bytes", member="who", apart=("run",))
    return sheet("snapshot_peaks", "Peaks of each snapshot", headings, peak_rows, ranked=ranked)


def _site_sheet(name: str, title: str, sites: pd.DataFrame, top: pd.Series[Any]) -> Sheet:
    """The places in the program that hold most, and what is not known, each with its share."""
    total = int(sites["size_bytes"].sum())
    site_rows = sites.assign(
        where=[said(row) for row in sites.itertuples(index=False)],
        since=pd.Series("before the recording", sites.index).where(
            sites["origin"] == "before", None
        ),
        share_ratio=sites["size_bytes"] / max(total, 1),
    ).sort_values("size_bytes", ascending=False, kind="stable")
    if len(site_rows) > MAX_SHOWN:
        smaller = site_rows.iloc[MAX_SHOWN - 1 :]
        sums = {n: int(smaller[n].sum()) for n in ("size_bytes", "block_count", "stack_count")}
        row = {"where": "all others", **sums, "share_ratio": sums["size_bytes"] / max(total, 1)}
        site_rows = pd.concat(
            [site_rows.iloc[: MAX_SHOWN - 1], pd.DataFrame([row])], ignore_index=True
        )
    assert int(site_rows["size_bytes"].sum()) == total
    headings = as_headings("""
        where | place in the program
        size_bytes | in use | bytes | As requested.
        share_ratio | share | ratio
        block_count | blocks | count
        category | for | text | As a profiler, the program or an annotated range tells.
        since | since
        oldest_ns | oldest | ns | Age of the oldest that was allocated in the recording.
        stack_count | stacks | count | Different stacks with this frame.
    """)
    caption = f"{text_or_none(top['source']) or ''}: shares sum to 100 %."
    return sheet(f"live_{name}", title, headings, site_rows, caption=caption)


def _pool_sheet(pools: pd.DataFrame, top: pd.Series[Any]) -> Sheet:
    """The pools of one memory; nothing where there is only the default one."""
    headings = as_headings("""
        label | pool | text | By the call stacks of its blocks.
        reserved_bytes | reserved | bytes | As PyTorch counts it, unmapped parts included.
        in_use_bytes | in use | bytes | Blocks, as the allocator rounds them up.
        emptied_bytes | emptied | bytes | Segments without a block in use.
        segment_count | segments | count
    """)
    rows = pools if len(pools) > 1 else pools.iloc[:0]
    return sheet("memory_pools", f"Pools of {top['who']}", headings, rows)


def _category_sheet(sites: pd.DataFrame, top: pd.Series[Any]) -> Sheet:
    """What the memory is for, as far as anything tells."""
    by = (
        sites.groupby(["category", "basis"], dropna=False, sort=False)["size_bytes"]
        .sum()
        .reset_index()
    )
    by = by.sort_values("size_bytes", ascending=False, kind="stable")
    categories = by.assign(
        category=by["category"].where(by["category"].notna(), "not told"),
        how=by["basis"].map(
            {
                "recorded": "a profiler",
                "metadata": "the program's own text",
                "compiled": "what was compiled",
                "stage": "annotated range when allocated",
            }
        ),
        share_ratio=by["size_bytes"] / max(int(by["size_bytes"].sum()), 1),
    )
    if not by["category"].notna().any():
        categories = categories.iloc[:0]
    headings = as_headings("""
        category | for
        how | known by
        size_bytes | in use | bytes | As requested.
        share_ratio | share | ratio
    """)
    return sheet("live_categories", f"What it is for, {top['who']}", headings, categories)


def _known_sheet(sites: pd.DataFrame) -> Sheet:
    """How much of the peak is explained, and how."""
    labels = {
        ("recorded", "user"): "by a line of the program",
        ("recorded", "library"): "by a line of an installed package",
        ("recorded", "native"): "no Python frame",
        ("recorded", "empty"): "no Python frame: empty stack",
        ("recorded", "unknown"): "no stack recorded",
    }
    kinds = zip(sites["origin"], sites["kind"], strict=True)
    labels_of = [
        labels.get((str(o), str(k)))
        or {"freed": UNTOLD["freed"], "rest": UNTOLD["rest"]}.get(str(o))
        or f"allocated before the recording, {'known by its block' if k in ('user', 'library', 'native') else 'no stack'}"
        for o, k in kinds
    ]
    by = (
        sites.assign(known=labels_of).groupby("known", sort=False)["size_bytes"].sum().reset_index()
    )
    by = by.sort_values("size_bytes", ascending=False, kind="stable")
    known_rows = by.assign(share_ratio=by["size_bytes"] / max(int(by["size_bytes"].sum()), 1))
    headings = as_headings("""
        known | explained
        size_bytes | in use | bytes | As requested.
        share_ratio | share | ratio
    """)
    return sheet("live_known", "How much of the peak is explained", headings, known_rows)


ANALYSIS = Analysis(
    id="memory-peak",
    title="What fills GPU memory at its peak?",
    reads=("allocations", "memory_segments", "blocks", "stacks", "annotations"),
    writes=(SNAPSHOT_LEVELS, LIVE_SITES, LIVE_FRAMES, MEMORY_POOLS, "metrics"),
    metrics=(
        "device_peak_allocated",
        "device_end_requested",
        "device_end_allocated",
        "device_end_reserved",
    ),
    rests_on=("device_sizes", "memory_curve", "memory_stages"),
    measure=measure,
    judge=judge,
)
