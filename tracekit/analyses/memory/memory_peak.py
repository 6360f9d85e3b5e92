"""Memory snapshots: what fills GPU memory at its peak, and which code allocated it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import make_run_heading
from tracekit.job.memory.charts import snapshot_charts
from tracekit.job.memory.device_size import add_card_sizes
from tracekit.job.memory.pools import pool_notes, select_pools
from tracekit.job.memory.snapshots import UNTOLD, find_reason, name_ranges, name_site, snapshot_levels, take_snapshot
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.model.report import Metric, Ranked, Section, Sheet
from tracekit.model.tables import Column, Table
from tracekit.model.tables.arrays import (
    Array,
    Nullable,
    concatenate_parts,
    get_number_or_none,
    mask_value,
    repeat_text,
    select_all_rows,
    select_rows,
)
from tracekit.model.tables.frame import Frame, Ints, choose, concat, divide, sum_of, texts, where
from tracekit.model.tables.snapshots import BASES, DEVICE_KEYS, MOMENT, ORIGINS, POOL, SITE_KINDS
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.memory.call_sites import build_allocation_tree
from tracekit.process.memory.levels import compute_allocated_peak, make_level_metrics
from tracekit.process.memory.live import LiveMemory, list_live_memory, sum_live_memory_by_site
from tracekit.process.memory.pools import POOL_CLASSES, list_memory_pools
from tracekit.process.memory.replay import (
    MAX_BYTES,
    Replay,
    add_memory_keys,
    concatenate_columns,
    has_allocator_segments,
    mark_blocks_in_use,
    read_ints,
    replay_all_devices,
)
from tracekit.process.memory.windows import list_snapshot_stages, list_snapshot_steps
from tracekit.process.name_filters import look_up_names

SNAPSHOT_LEVELS = Table(
    "snapshot_levels",
    "the memory of one device in one snapshot",
    {
        **DEVICE_KEYS,
        "entry_count": Column("int64", "Entries of the history; 0: none was recorded."),
        "window_ns": Column("Int64", "From the first entry to the last."),
        "unsound_count": Column("int64", "Entries without a size or with an impossible one."),
        "base_bytes": Column("int64", "Requested before the history and not yet freed."),
        "peak_bytes": Column("int64", "Most requested at one time; without a history at the end."),
        "peak_ts_ns": Column("Int64", "When first; <NA>: before the history, or not recorded."),
        "peak_step": Column("Int64", "Step of the peak."),
        "peak_stage": Column("category", "Outermost annotated range then, as recorded."),
        "peak_allocated_bytes": Column(
            "Int64", "Lower bound of the allocated peak: rounded up; freed blocks may have been slightly larger."
        ),
        "peak_reserved_bytes": Column("Int64", "Reserved at that time."),
        "reserved_peak_bytes": Column("Int64", "Most reserved at one time."),
        "end_requested_bytes": Column("int64", "Requested bytes in use at the end."),
        "end_allocated_bytes": Column("Int64", "The same as the allocator rounds it up."),
        "end_reserved_bytes": Column("Int64", "Reserved at the end."),
        "pending_bytes": Column("int64", "Rounded bytes that wait for other streams at the end."),
        "off_bytes": Column("int64", "By how much the history misses the blocks at the end."),
        "alloc_count": Column("int64", "Allocations of the history."),
        "alloc_bytes": Column("int64", "Σ of their requested bytes."),
        "largest_bytes": Column("Int64", "The largest one."),
        "expandable": Column("bool", "Whether any segment grows in place."),
    },
)

LIVE_SITES = Table(
    "live_sites",
    "memory of one place in the program at the peak or at the end: the largest 200 of a snapshot",
    {
        **DEVICE_KEYS,
        "moment": MOMENT,
        "origin": Column("category", " | ".join(ORIGINS) + ".", ORIGINS),
        "kind": Column("category", " | ".join(SITE_KINDS) + ".", SITE_KINDS),
        "site": Column("category", "The frame that names the stack; <NA>: not known."),
        "place": Column("category", "File and function of that frame, without line and folders; <NA>: not known."),
        "category": Column("category", "Category, as far as known."),
        "basis": Column("category", " | ".join(BASES) + ".", BASES),
        "stack": Column("Int64", "The stack with most of its memory, by content."),
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
            "category", "Its use, by the call stacks of its blocks: " + " | ".join(POOL_CLASSES) + ".", POOL_CLASSES
        ),
        "segment_count": Column("int64", "Segments."),
        "reserved_bytes": Column("int64", "Their bytes, unmapped parts included."),
        "in_use_bytes": Column("int64", "Of blocks in use, as rounded up."),
        "emptied_bytes": Column("int64", "Of segments without a block in use."),
    },
)


MAX_FRAMES, SMALLEST_SHARE = 300, 500
"""Most frames of the tree of one snapshot, and which part of the peak the smallest of them is."""

MAX_SHOWN = 40
"""Most sites in a table of one snapshot."""

_KNOWN_BY = {
    "recorded": "a profiler",
    "metadata": "the program's own text",
    "stack": "call stacks and lifetimes",
    "compiled": "compiled code",
    "stage": "annotated range when allocated",
}

_BY_STACK = (
    "By call stacks: the innermost frame that names a part of the program, and whether the memory outlives that part."
)

_RECORDED = {
    "user": "by a line of the program",
    "library": "by a line of an installed package",
    "native": "no Python frame",
    "empty": "no Python frame: empty stack",
    "unknown": "no stack recorded",
}


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the levels of every device, and the sites of the memory in use at its peak and at the end."""
    if not trace.has("allocations") and not trace.has("blocks"):
        return {}
    levels: list[dict[str, Any]] = []
    tables: dict[str, list[dict[str, Array]]] = {"live_sites": [], "live_frames": [], "memory_pools": []}
    for replay in trace.derived(replay_all_devices):
        peak = replay.peak()
        if has_allocator_segments(trace) and trace.has("blocks"):
            tables["memory_pools"].append(add_memory_keys(replay, list_memory_pools(trace, replay)))
        levels.append({**_measure_levels(trace, replay, peak), "memory": replay.memory, "device": replay.device})
        for moment, entry in (("peak", peak), ("end", len(replay.rows) - 1)):
            live_memory = list_live_memory(trace, replay, entry)
            sites = sum_live_memory_by_site(live_memory)
            sites["moment"] = repeat_text(moment, len(sites["size_bytes"]))
            tables["live_sites"].append(add_memory_keys(replay, sites))
            if moment == "peak":
                tables["live_frames"].append(add_memory_keys(replay, _build_stack_tree(trace, live_memory)))
    return {
        "snapshot_levels": {name: [row[name] for row in levels] for name in levels[0]} if levels else {},
        **{name: concatenate_columns(parts) for name, parts in tables.items()},
        **make_level_metrics(trace, levels),
    }


def _measure_levels(trace: Trace, replay: Replay, peak: int) -> dict[str, Any]:
    """Measure the levels of one device: its row of `snapshot_levels` without the columns of its process."""
    steps = list_snapshot_steps(trace, replay)
    stages = list_snapshot_stages(trace, steps)
    when = replay.ts_ns[max(peak, 0) :][:1]
    is_timed = replay.timed and peak >= 0
    allocations = replay.size[replay.during("alloc")]
    reserved, blocks = replay.reserved, replay.blocks
    in_use = blocks[mark_blocks_in_use(trace)[blocks]]
    pending = blocks[mask_value(trace.texts("blocks", "state"), "pending_free")[blocks]]
    has_segments = has_allocator_segments(trace)
    segment_bytes = _sum_sizes(trace, "memory_segments", "size_bytes", replay.segments)
    end_requested = replay.get_requested_bytes(len(replay.rows) - 1)
    reserved_peak: int | None = None
    if reserved is not None:
        reserved_peak = max(int(reserved.max()), replay.reserved_before) if len(reserved) else segment_bytes
    return {
        "entry_count": len(replay.rows),
        "window_ns": int(replay.ts_ns[-1] - replay.ts_ns[0]) if replay.timed else None,
        "unsound_count": replay.unsound,
        "base_bytes": replay.base,
        "peak_bytes": replay.get_requested_bytes(peak),
        "peak_ts_ns": int(when[0]) if is_timed else None,
        "peak_step": get_number_or_none(steps.number_at(when), 0) if len(when) else None,
        "peak_stage": look_up_names(stages.stage, stages.row_at(when))[0] if is_timed else None,
        "peak_allocated_bytes": compute_allocated_peak(trace, replay),
        "peak_reserved_bytes": _find_reserved_at_peak(replay, peak, segment_bytes),
        "reserved_peak_bytes": reserved_peak,
        "end_requested_bytes": end_requested,
        "end_allocated_bytes": _sum_sizes(trace, "blocks", "size_bytes", in_use) if has_segments else None,
        "end_reserved_bytes": segment_bytes if has_segments else None,
        "pending_bytes": _sum_sizes(trace, "blocks", "size_bytes", pending),
        "off_bytes": end_requested - _sum_sizes(trace, "blocks", "requested_bytes", in_use),
        "alloc_count": len(allocations),
        "alloc_bytes": int(allocations.sum()),
        "largest_bytes": int(allocations.max()) if len(allocations) else None,
        "expandable": bool(mask_value(trace.array("memory_segments", "expandable"), 1)[replay.segments].any()),
    }


def _sum_sizes(trace: Trace, table: str, column: str, rows: Ints) -> int:
    """Add up sizes; impossible ones are damage and are left out."""
    size = read_ints(trace, table, column, rows)
    return int(size[(size >= 0) & (size < MAX_BYTES)].sum())


def _find_reserved_at_peak(replay: Replay, peak: int, at_end: int) -> int | None:
    """Find the bytes reserved at the peak; without a history those at the end."""
    if replay.reserved is None:
        return None
    if not len(replay.rows):
        return at_end
    return replay.reserved_before if peak < 0 else int(replay.reserved[peak])


def _build_stack_tree(trace: Trace, live_memory: LiveMemory) -> dict[str, Array]:
    """Build the tree of the stacks at the peak; memory without a stack is one bar at its end."""
    pieces = live_memory.columns
    rows = ~mask_value(pieces["stack"], None) & ~mask_value(pieces["kind"], "empty")
    stack, size = select_rows(pieces["stack"], rows).values, select_rows(pieces["size_bytes"], rows)
    smallest = live_memory.total // SMALLEST_SHARE
    stack_tree, _ = build_allocation_tree(trace, stack, size, MAX_FRAMES, smallest)
    begin = int(size.sum())
    outside: dict[str, Array] = {
        "depth": np.zeros(1, np.int32),
        "start_bytes": np.array([begin]),
        "size_bytes": np.array([live_memory.total - begin]),
        "name": repeat_text("allocated before the recording, or without a stack", 1),
    }
    if begin == live_memory.total:
        outside = select_all_rows(outside, slice(0))
    return concatenate_parts([stack_tree, outside] if stack_tree else [outside])


def judge(measured: Measurements, _thresholds: Thresholds) -> Section | None:
    """Show peaks by process, and the sites of memory at the highest of them; None without memory snapshots."""
    if not measured.row_count("snapshot_levels"):
        return None
    levels = add_card_sizes(measured, snapshot_levels(measured))
    top = next(levels.rows())
    sites = take_snapshot(measured.frame("live_sites"), top)
    at_peak, at_end = (sites.filter(sites.equals("moment", moment)) for moment in ("peak", "end"))
    assert int(at_peak["size_bytes"].sum()) == top["peak_bytes"]
    if not top["alloc_count"]:
        at_end = at_end.head(0)  # without an allocation in the history the end is the peak
    return ANALYSIS.answered(
        metrics=lambda: _headline_peak(top, at_peak),
        sheets=lambda: select_filled_sheets(
            _make_snapshot_table(measured, levels),
            _make_site_table("peak", f"Requested memory in use at the peak of {top['who']}", at_peak, top),
            _make_purpose_table(at_peak, top),
            _make_explained_table(at_peak),
            _make_pool_table(select_pools(measured, top), top),
            _make_site_table("end", f"Requested memory in use at the end, {top['who']}", at_end, top),
        ),
        caveats=lambda: (*pool_notes(measured), *_list_level_caveats(levels)),
        charts=lambda: snapshot_charts(measured, top),
    )


def _headline_peak(top: Mapping[str, Any], sites: Frame) -> Iterator[Metric]:
    """Report the highest peak, and the share of it with a known site."""
    total, card, reserved = top["peak_bytes"], top["card_bytes"], top["reserved_peak_bytes"]
    # fmt: off
    yield Metric("peak_requested", total, "bytes", "lower", label="peak requested on one GPU")
    if total:
        if card is not None:
            yield make_evidence_metric("card_ratio", total / card, f"of GPU memory ({format_quantity(card, 'bytes')}, {top['card_origin']})")
            if reserved is not None:
                yield make_evidence_metric("reserved_ratio", reserved / card, "peak reserved, share of GPU memory")
        named = int(sites["size_bytes"][sites.is_in("kind", ("user", "library"))].sum())
        yield make_evidence_metric("named_ratio", named / total, "requested by a known line of Python", better="higher")
    # fmt: on


def _list_level_caveats(levels: Frame) -> Iterator[str]:
    yield (
        "bytes are requested sizes unless a heading names another; snapshots exclude memory of NCCL, the CUDA context and libraries outside PyTorch's allocator"
    )
    if (levels["alloc_count"] == 0).any():
        yield "snapshots without a history show the memory in use when they were taken, not a peak"
    if (levels.number("reserved_peak_bytes") > levels.number("card_bytes")).any():
        yield "reserved memory exceeds the GPU's size: the size is that of another device"
    if off := int(np.abs(levels["off_bytes"]).max()):
        yield f"a history and its blocks disagree by {format_quantity(off, 'bytes')}: see the notes"
    if unsound := int(levels["unsound_count"].sum()):
        yield f"{unsound:,} entries have no size or an impossible one: left out"


def _make_snapshot_table(measured: Measurements, levels: Frame) -> Sheet:
    allocated = levels["end_allocated_bytes"]
    peaks = levels.with_columns(
        stage=name_ranges(levels, "peak_stage"),
        card_ratio=divide(levels["peak_bytes"], levels["card_bytes"]),
        reserved_ratio=divide(levels["reserved_peak_bytes"], levels["card_bytes"]),
        rounding_bytes=Nullable(allocated.values - levels["end_requested_bytes"], allocated.missing),
    )
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            who | process
            source | snapshot
            peak_bytes | peak requested | bytes | Most requested and not freed at one time.
            card_ratio | requested of GPU | ratio | Of the device's total memory.
            peak_step | in step | id
            stage | in stage
            peak_reserved_bytes | reserved then | bytes
            reserved_peak_bytes | peak reserved | bytes
            reserved_ratio | reserved of GPU | ratio | Of the device's total memory.
            end_requested_bytes | requested at the end | bytes
            rounding_bytes | rounding at the end | bytes | Allocated (as the allocator rounds it up) less requested.
            base_bytes | before the recording | bytes | Requested before the first entry.
            entry_count | entries | count | Length of the recorded history.
        """),
    )
    ranked = Ranked("peak_bytes", member="who", apart=("run",))
    return make_sheet("snapshot_peaks", "Peaks of each snapshot", headings, peaks, ranked=ranked)


def _make_site_table(name: str, title: str, sites: Frame, top: Mapping[str, Any]) -> Sheet:
    """List the sites that hold most, and the memory without one, each with its share."""
    total = int(sites["size_bytes"].sum())
    names = [
        name_site(row["site"], row["kind"], find_reason(row["origin"], row["kind"]))
        for row in sites.rows("site", "origin", "kind")
    ]
    since = where(sites.equals("origin", "before"), repeat_text("before the recording", len(sites)))
    sites = sites.with_columns(where=texts(names), since=since)
    sites = sites.sort("size_bytes", descending=["size_bytes"])
    if len(sites) > MAX_SHOWN:
        smaller = sites.take(slice(MAX_SHOWN - 1, None))
        sums = {n: sum_of(n) for n in ("size_bytes", "block_count", "stack_count")}
        others = smaller.group_by().agg(**sums).with_columns(where="all others")
        sites = concat([sites.head(MAX_SHOWN - 1), others])
    size = sites["size_bytes"]
    assert int(size.sum()) == total
    headings = parse_headings("""
        where | place in the program
        size_bytes | requested | bytes | In use then; the allocator rounds it up.
        share_ratio | share | ratio
        block_count | blocks | count
        category | for | text | By a profiler, the program, call stacks or an annotated range.
        since | since
        oldest_ns | oldest | ns | Age of the oldest that was allocated in the recording.
        stack_count | stacks | count | Different stacks with this frame.
    """)
    caption = f"{top['source'] or ''}: shares sum to 100 %."
    sites = sites.with_columns(share_ratio=size / max(total, 1))
    return make_sheet(f"live_{name}", title, headings, sites, caption=caption)


def _make_pool_table(pools: Frame, top: Mapping[str, Any]) -> Sheet:
    """List the pools of one memory, unless it has only the default one."""
    headings = parse_headings("""
        label | pool | text | By the call stacks of its blocks.
        reserved_bytes | reserved | bytes | As PyTorch counts it, unmapped parts included.
        in_use_bytes | in use | bytes | Blocks, as the allocator rounds them up.
        emptied_bytes | emptied | bytes | Segments without a block in use.
        segment_count | segments | count
    """)
    rows = pools if len(pools) > 1 else pools.head(0)
    return make_sheet("memory_pools", f"Pools of {top['who']}", headings, rows)


def _make_purpose_table(sites: Frame, top: Mapping[str, Any]) -> Sheet:
    """Sum the memory by its purpose, as far as that is known."""
    purposes = _sum_with_shares(sites, "category", "basis")
    is_known = ~purposes.is_missing("category")
    rows = purposes.with_columns(
        category=choose(is_known, purposes["category"], repeat_text("not told", len(purposes))),
        how=texts([_KNOWN_BY.get(basis) for basis in purposes.values("basis")]),
    )
    headings = parse_headings("""
        category | for
        how | known by
        size_bytes | requested | bytes | In use then; the allocator rounds it up.
        share_ratio | share | ratio
    """)
    rows = rows if is_known.any() else rows.head(0)
    caption = _BY_STACK if (purposes.is_in("basis", ("stack",))).any() else ""
    return make_sheet("live_categories", f"Requested memory by category, {top['who']}", headings, rows, caption=caption)


def _make_explained_table(sites: Frame) -> Sheet:
    """Sum the memory at the peak by how its site is known."""
    known = [_explain_site(row["origin"], row["kind"]) for row in sites.rows("origin", "kind")]
    rows = _sum_with_shares(sites.with_columns(known=texts(known)), "known")
    headings = parse_headings("""
        known | explained
        size_bytes | requested | bytes | In use then; the allocator rounds it up.
        share_ratio | share | ratio
    """)
    return make_sheet("live_known", "How much of the peak is explained", headings, rows)


def _sum_with_shares(sites: Frame, *names: str) -> Frame:
    """Sum the memory by these columns, the most first, with `share_ratio`."""
    sums = sites.group_by(*names).agg(size_bytes=sum_of("size_bytes"))
    sums = sums.sort("size_bytes", descending=["size_bytes"])
    size = sums["size_bytes"]
    return sums.with_columns(share_ratio=size / max(int(size.sum()), 1))


def _explain_site(origin: str, kind: str) -> str:
    """Explain how the site of a row of `live_sites` is known."""
    if origin == "recorded" and kind in _RECORDED:
        return _RECORDED[kind]
    if origin in ("freed", "rest"):
        return UNTOLD[origin]
    known = "known by its block" if kind in ("user", "library", "native") else "no stack"
    return f"allocated before the recording, {known}"


ANALYSIS = Analysis(
    id="memory-peak",
    title="Which code uses GPU memory at its peak?",
    reads=("allocations", "memory_segments", "blocks", "stacks", "annotations"),
    writes=(SNAPSHOT_LEVELS, LIVE_SITES, LIVE_FRAMES, MEMORY_POOLS, "metrics"),
    metrics=("device_peak_allocated", "device_end_requested", "device_end_allocated", "device_end_reserved"),
    rests_on=("card_lines", "device_sizes", "memory_curve", "memory_stages"),
    measure=measure,
    judge=judge,
)
