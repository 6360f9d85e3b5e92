"""How much of the reserved memory is in use, and in which pieces is the rest? (memory snapshots; R22)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tracekit.analyses import Analysis
from tracekit.job.frames import make_run_heading, phrase_run
from tracekit.job.memory.snapshots import SNAPSHOT_KEYS, snapshot_levels, take_snapshot
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_instances
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.model.report import Chart, Finding, Instance, Metric, Place, Ranked, Section, Sheet, Verdict
from tracekit.model.tables import Column, Table
from tracekit.model.tables.arrays import (
    Array,
    Coded,
    Nullable,
    concatenate_parts,
    repeat_number,
    repeat_text,
    select_all_rows,
    select_rows,
)
from tracekit.model.tables.columns import STREAM
from tracekit.model.tables.frame import Frame, divide, max_of, sum_of, texts
from tracekit.model.tables.keys import group_arrays
from tracekit.model.tables.snapshots import DEVICE_KEYS, MOMENT, POOL
from tracekit.model.text.labels import join_phrase
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.memory.calls import find_entry_sites, read_entry_pool_keys
from tracekit.process.memory.levels import make_level_metrics
from tracekit.process.memory.replay import (
    MAX_BYTES,
    Replay,
    add_memory_keys,
    concatenate_columns,
    has_allocator_segments,
    read_ints,
    replay_all_devices,
)
from tracekit.process.memory.space import (
    DEFAULT_POOL,
    POOL_KEYS,
    find_block_owners,
    list_memory_segments,
    measure_free_space_at,
    measure_free_space_at_end,
    round_up_requests,
)

_POOL = {
    "pool": POOL,
    "stream": STREAM,
    "kind": Column("category", "small (for blocks to 1 MiB) | large, as recorded."),
}

PLACES = ("active", "pending", "inactive")
"""in use | freed, but another stream may still use it | free."""

FREE_SPACE = Table(
    "free_space",
    "the parts of reserved memory in one pool, stream and kind of segment",
    {
        **DEVICE_KEYS,
        "moment": MOMENT,
        **_POOL,
        "segment_count": Column("int64", "Segments."),
        "expandable_count": Column("int64", "Expandable segments among them."),
        "reserved_bytes": Column("int64", "Bytes of them."),
        "requested_bytes": Column("int64", "Requested bytes in use in them."),
        "internal_bytes": Column("Int64", "Excess of blocks in use over requested sizes; <NA>: known at the end only."),
        "free_bytes": Column("int64", "In no block in use."),
        "releasable_bytes": Column("int64", "Of segments without any block in use."),
        "stranded_bytes": Column("int64", "Free next to blocks in use, in segments with such."),
        "largest_free_bytes": Column("int64", "The largest free piece."),
        "largest_request_bytes": Column("Int64", "The largest request of the history."),
    },
)

REQUESTS = Table(
    "requests",
    "a size that was requested in the history, of the largest ones, and whether it would fit at the end",
    {
        **DEVICE_KEYS,
        **_POOL,
        "size_bytes": Column("int64", "As requested."),
        "request_count": Column("int64", "How often."),
        "site": Column("category", "Where in the program, the last time."),
        "fits": Column("bool", "Whether a free piece of its pool and stream is large enough."),
    },
)

SEGMENT_MAP = Table(
    "segment_map",
    "a run of blocks of one state in a segment at the end: the largest 400 of a snapshot",
    {
        **DEVICE_KEYS,
        **_POOL,
        "segment": Column("int32", "Which, the largest first."),
        "segment_bytes": Column("int64", "Bytes of the segment."),
        "state": Column("category", "active | pending | inactive.", PLACES),
        "start_bytes": Column("int64", "Where it begins in the segment."),
        "end_bytes": Column("int64", "Where it ends."),
        "omitted_count": Column("int64", "Runs of the snapshot beyond the cap."),
    },
)


MAX_REQUESTS, MAX_SEGMENTS, MAX_RUNS = 8, 48, 400
"""Most request sizes, segments and runs of blocks that are listed one by one."""

_PARTS = (
    "reserved_bytes",
    "requested_bytes",
    "free_bytes",
    "releasable_bytes",
    "stranded_bytes",
    "segment_count",
    "expandable_count",
)
_STATES = {"active": "active", "pending_free": "pending", "inactive": "inactive"}
_SHOWN = {"active": "in use", "pending": "waiting for other streams", "inactive": "free"}
_LOST = "free memory in segments without a block in use (releasable) returns to the driver on demand; only free memory next to blocks in use (stranded) can be lost"
_WHEN = {"peak": "at the peak", "grown": "before it last grew", "end": "at the end"}


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Measure the free pieces of every pool at the peak, before the reserved memory last grew, and at the end."""
    if not has_allocator_segments(trace) or not trace.has("blocks"):
        return {}
    space, wanted, maps, stranded = [], [], [], []
    for replay in trace.derived(replay_all_devices):
        end = measure_free_space_at_end(trace, replay)
        moments = [("end", end)]
        stranded.append({"memory": replay.memory, "stranded_bytes": int(end["stranded_bytes"].sum())})
        segments = list_memory_segments(trace, replay)
        if segments is not None and len(replay.rows):
            for moment, entry in (("peak", replay.peak()), ("grown", _find_last_growth(replay))):
                if entry is not None:
                    moments.append((moment, measure_free_space_at(trace, replay, segments, entry)))
        largest = _find_largest_request(replay)
        space += [add_memory_keys(replay, _make_space_rows(moment, sums, largest)) for moment, sums in moments]
        wanted.append(add_memory_keys(replay, _list_largest_requests(trace, replay, end)))
        maps.append(add_memory_keys(replay, _list_segment_runs(trace, replay)))
    tables = {"free_space": space, "requests": wanted, "segment_map": maps}
    measured = {name: concatenate_columns(parts) for name, parts in tables.items()}
    return {**measured, **make_level_metrics(trace, stranded)}


def _make_space_rows(moment: str, sums: Mapping[str, Any], largest_request: int | None) -> dict[str, Array]:
    """Make the rows of `free_space` at one moment; bytes lost to rounding are known at the end only."""
    count = len(sums["free_bytes"])
    internal = sums.get("internal_bytes", np.zeros(count, np.int64))
    return {
        **sums,
        "moment": repeat_text(moment, count),
        "largest_request_bytes": repeat_number(largest_request, count),
        "internal_bytes": Nullable(internal, np.full(count, moment != "end")),
    }


def _find_largest_request(replay: Replay) -> int | None:
    """Return the largest request of the history."""
    asked = replay.size[replay.during("alloc", "oom")]
    return int(asked.max()) if len(asked) else None


def _find_last_growth(replay: Replay) -> int | None:
    """Find the entry right before the segment with which most was reserved; None if that was before the history."""
    got = replay.during("segment_alloc")
    if replay.reserved is None or not len(got):
        return None
    highest = max(int(replay.reserved.max()), replay.reserved_before)
    reached = got[replay.reserved[got] == highest]
    return int(reached[-1]) - 1 if len(reached) else None


def _list_largest_requests(trace: Trace, replay: Replay, end: Mapping[str, Any]) -> dict[str, Array]:
    """List the largest sizes of each pool and stream of one device: `requests` without the columns of its process."""
    entries = replay.during("alloc")
    size = replay.size[entries]
    keys = read_entry_pool_keys(trace, replay.rows[entries], size)
    number, first = group_arrays([*keys.values(), size])
    last = np.zeros(len(first), np.int64)
    last[number] = entries
    chosen = np.argsort(-size[first], kind="stable")[:MAX_REQUESTS]
    size = size[first[chosen]]
    keys = select_all_rows(keys, first[chosen])
    # Largest free piece of each pool; 0 for a pool without segments.
    of_free = {name: end[name] for name in POOL_KEYS}
    group = group_arrays(list(concatenate_parts([of_free, keys]).values()))[0]
    pool_count = len(end["largest_free_bytes"])
    free = np.zeros(len(group), np.int64)
    free[group[:pool_count]] = end["largest_free_bytes"]
    return {
        **keys,
        "size_bytes": size,
        "request_count": np.bincount(number, minlength=len(first))[chosen],
        "site": find_entry_sites(trace, replay.rows[last[chosen]]),
        "fits": free[group[pool_count:]] >= round_up_requests(size),
    }


def _list_segment_runs(trace: Trace, replay: Replay) -> dict[str, Array]:
    """List the largest runs of blocks of one state of one device: `segment_map` without the columns of its process."""
    rows = replay.segments
    segment_bytes = read_ints(trace, "memory_segments", "size_bytes", rows)
    largest = np.argsort(-segment_bytes, kind="stable")
    rows, segment_bytes = rows[largest], segment_bytes[largest]
    blocks, segment = find_block_owners(trace, rows)
    states = trace.texts("blocks", "state")
    place_of = np.array([PLACES.index(_STATES[text]) if text in _STATES else -1 for text in (*states.texts, "")])
    code = place_of[states.codes[blocks]]
    blocks, segment, code = (values[code >= 0] for values in (blocks, segment, code))
    size = np.clip(read_ints(trace, "blocks", "size_bytes", blocks), 0, MAX_BYTES)
    order = np.argsort(segment, kind="stable")  # blocks of a segment stand in order of address
    segment, code, size = segment[order], code[order], size[order]
    new = np.append(True, (segment[1:] != segment[:-1]) | (code[1:] != code[:-1]))[: len(segment)]
    heads = np.flatnonzero(new)
    ends = np.cumsum(size)
    begins = ends - size
    first = np.searchsorted(segment, segment[heads])
    start = begins[heads] - begins[first]
    stop = ends[np.append(heads[1:], len(segment))[: len(heads)] - 1] - begins[first]
    owner = segment[heads]
    drawn = np.flatnonzero(owner < MAX_SEGMENTS)
    drawn = np.sort(drawn[np.argsort(-(stop - start)[drawn], kind="stable")[:MAX_RUNS]])
    shown = owner[drawn]
    keys: dict[str, Array] = {
        name: select_rows(trace.array("memory_segments", name), rows[shown]) for name in POOL_KEYS
    }
    return {
        **keys,
        "segment": shown.astype(np.int32),
        "segment_bytes": segment_bytes[shown],
        "state": Coded(code[heads][drawn], PLACES),
        "start_bytes": start[drawn],
        "end_bytes": stop[drawn],
        "omitted_count": np.full(len(drawn), len(heads) - len(drawn)),
    }


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Judge memory in use and free by pool (finding R22); None without memory snapshots."""
    if not measured.row_count("snapshot_levels"):
        return None
    levels = snapshot_levels(measured)
    space = measured.frame("free_space")
    if not len(space):
        return ANALYSIS.skipped("no segments were recorded")
    totals = _sum_default_pool(space, levels)
    top = next(levels.rows())
    requests = take_snapshot(measured.frame("requests"), top)
    return ANALYSIS.answered(
        sheets=lambda: select_filled_sheets(
            _make_parts_table(measured, totals),
            _make_free_space_table(take_snapshot(space, top), top["who"]),
            _make_request_table(requests, top["who"]),
        ),
        judged=list(_judge_fragmentation(measured, totals, thresholds)),
        caveats=(_LOST,),
        charts=lambda: _draw_segment_map(measured, top),
    )


def _sum_default_pool(space: Frame, levels: Frame) -> Frame:
    """Sum the default pool's parts of each snapshot, memory and moment, with its largest free piece."""
    # Private pools may be unmapped, and serve no other request: they are not waste.
    space = space.filter(space.equals("pool", DEFAULT_POOL))
    sums = space.group_by(*SNAPSHOT_KEYS, "moment").agg(
        **{name: sum_of(name) for name in (*_PARTS, "internal_bytes")},
        largest_free_bytes=max_of("largest_free_bytes"),
        largest_request_bytes=max_of("largest_request_bytes"),
    )
    owners = levels.select(*SNAPSHOT_KEYS, "run", "role", "rank", "who", "peak_bytes")
    totals = owners.join(sums, SNAPSHOT_KEYS, optional=SNAPSHOT_KEYS)
    reserved = totals["reserved_bytes"]
    used = divide(totals["requested_bytes"], reserved)
    return totals.with_columns(
        unused_ratio=Nullable(1 - used.values, used.missing),
        stranded_ratio=divide(totals["stranded_bytes"], reserved),
        when=_name_moments(totals),
    )


def _name_moments(rows: Frame) -> Coded:
    return texts([_WHEN[moment] for moment in rows.values("moment")])


def _judge_fragmentation(measured: Measurements, totals: Frame, thresholds: Thresholds) -> Iterator[Finding | Verdict]:
    """Judge R22: reserved and free memory did not serve requests because it was in pieces."""
    limit = thresholds.of("fragmentation")
    steps = measured.frame("allocator_steps")
    needless = steps.group_by(*SNAPSHOT_KEYS).agg(needless_count=sum_of("needless_count"))
    rows = totals.filter(totals.equals("memory", "device"))
    rows = rows.join(needless, SNAPSHOT_KEYS, how="left", optional=SNAPSHOT_KEYS)
    for of_run in rows.group_by("run").frames():
        where = phrase_run(measured, of_run.values("run")[0])
        grown = of_run.filter(~of_run.equals("moment", "end"))
        if not len(grown):
            grows = bool((of_run["expandable_count"] > 0).all())
            reason = "expandable segments" if grows else "no history of allocations was recorded"
            yield Verdict("fragmentation", "not applicable" if grows else "insufficient data", reason + where)
            continue
        least_free = limit["request_factor"] * grown.number("largest_request_bytes")
        fragmented = grown.filter(
            (grown.number("unused_ratio") >= limit["unused_ratio"])
            & (grown.number("stranded_ratio") >= limit["stranded_ratio"])
            & (grown["largest_free_bytes"] < least_free)
            & (grown.number("needless_count") >= limit["needless_segments"])
        )
        if len(fragmented):
            worst = fragmented.sort("stranded_bytes", descending=["stranded_bytes"])
            finding = _report_fragmentation(next(worst.rows()), where)
            yield replace(finding, instances=_pick_snapshots(measured, worst))


def _pick_snapshots(measured: Measurements, fragmented: Frame) -> tuple[Instance, ...]:
    """Pick the histories of the snapshots with most and with a median amount of memory in pieces."""
    keys = ("source", "pid", "device")
    history = measured.frame("memory_steps").sort("dur_ns", descending=["dur_ns"]).distinct(*keys)
    spans = history.select(*keys, "ts_ns", "dur_ns")
    return pick_instances(fragmented.join(spans, keys, optional=keys), "stranded_bytes", unit="bytes")


def _report_fragmentation(worst: Mapping[str, Any], where: str) -> Finding:
    """Report the allocator of a run with most memory in pieces."""
    stranded, largest = worst["stranded_bytes"], worst["largest_free_bytes"]
    request, needless = worst["largest_request_bytes"], worst["needless_count"]
    return Finding(
        "fragmentation",
        "medium",
        f"{format_quantity(stranded, 'bytes')} reserved for {worst['who']} are free only in pieces of at most "
        f"{format_quantity(largest, 'bytes')}{where}",
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; separate long-lived from short-lived memory (allocate it first, or empty the cache between stages)",
        (
            make_evidence_metric("stranded_bytes", stranded, "free next to blocks in use (stranded)"),
            make_evidence_metric("unused_ratio", worst["unused_ratio"], "of the reserved memory not in use"),
            make_evidence_metric("largest_free_bytes", largest, "largest free piece", better="higher"),
            make_evidence_metric("largest_request_bytes", request, "largest request", better="neither"),
            Metric(
                "needless_segments", needless, "count", "lower", label="segments requested although enough was free"
            ),
        ),
        (Place(**{name: worst[name] for name in ("run", "source", "role", "rank", "device")}),),
        caveats=("growing requests need new segments anyway",),
    )


def _make_parts_table(measured: Measurements, totals: Frame) -> Sheet:
    headings = (
        *make_run_heading(measured),
        *parse_headings("""
            who | process
            source | snapshot
            when | when
            reserved_bytes | reserved | bytes
            requested_bytes | requested | bytes | In use then; the allocator rounds it up.
            internal_bytes | rounding | bytes | Excess of blocks in use over requested sizes.
            releasable_bytes | releasable | bytes | In segments without a block in use.
            stranded_bytes | stranded | bytes | Free next to blocks in use.
            largest_free_bytes | largest free piece | bytes
            unused_ratio | not in use | ratio | Of reserved memory; mostly releasable, which costs nothing.
            segment_count | segments | count
        """),
    )
    ranked = Ranked("reserved_bytes", member="who", apart=("run", "when"))
    return make_sheet("reserved_parts", "Reserved memory by part", headings, totals, ranked=ranked)


def _make_free_space_table(space: Frame, who: str) -> Sheet:
    largest = divide(space["largest_free_bytes"], space["free_bytes"])
    pools = space.with_columns(when=_name_moments(space), index_ratio=Nullable(1 - largest.values, largest.missing))
    headings = parse_headings("""
        when | when
        pool | pool | text | 0,0 is the default one; others are of graphs or users.
        stream | stream | id
        kind | kind
        segment_count | segments | count
        reserved_bytes | reserved | bytes
        requested_bytes | requested | bytes | In use then; the allocator rounds it up.
        free_bytes | free | bytes
        stranded_bytes | stranded | bytes
        largest_free_bytes | largest free piece | bytes | Largest request of this pool, stream and kind served without the driver.
        index_ratio | 1 - largest/free | ratio | Not meaningful if little is free: 0.4 to 1 in healthy runs.
    """)
    return make_sheet("pools", f"Free memory by pool, {who}", headings, pools)


def _make_request_table(requests: Frame, who: str) -> Sheet:
    answers = ["fits" if fits else "needs memory from the driver" for fits in requests["fits"]]
    headings = parse_headings("""
        size_bytes | request | bytes
        request_count | times | count | In the history.
        site | place in the program | text | The last of them.
        answer | at the end it
        pool | pool
        stream | stream | id
    """)
    rows = requests.with_columns(answer=texts(answers))
    return make_sheet("requests", f"Would the largest requests fit? {who}", headings, rows)


def _draw_segment_map(measured: Measurements, top: Mapping[str, Any]) -> Iterator[Chart]:
    """Draw the segments of one snapshot at its end, coloured by the state of their blocks."""
    runs = take_snapshot(measured.frame("segment_map"), top)
    if not len(runs):
        return
    segments = runs.distinct("segment").sort("segment")
    names = [
        join_phrase(format_quantity(row["segment_bytes"], "bytes"), row["kind"])
        for row in segments.rows("segment_bytes", "kind")
    ]
    line = runs.dense_rank("segment").tolist()
    series = list(_SHOWN)
    yield Chart(
        "segment-map",
        f"Segments at the end, {top['who']}",
        "extents",
        tuple(
            (number, series.index(row["state"]), row["start_bytes"], row["end_bytes"])
            for number, row in zip(line, runs.rows("state", "start_bytes", "end_bytes"), strict=True)
        ),
        tuple(_SHOWN.values()),
        tuple(names),
        unit="bytes",
        x_unit="bytes",
        caption="The largest segments. Adjacent blocks of one state are one bar.",
        omitted=int(runs["omitted_count"][0]),
    )


ANALYSIS = Analysis(
    id="fragmentation",
    title="How much of the reserved memory is in use?",
    reads=("allocations", "memory_segments", "blocks", "stacks", "annotations"),
    writes=(FREE_SPACE, REQUESTS, SEGMENT_MAP, "metrics"),
    metrics=("device_end_stranded",),
    rests_on=("allocator_steps", "memory_steps", "snapshot_levels"),
    rules=("fragmentation",),
    thresholds={
        "fragmentation": {
            # Share of the reserved memory that no block in use holds, when most was requested or before it last grew,
            "unused_ratio": 0.30,
            # share of the reserved memory that is free beside blocks in use, and so cannot be given back;
            "stranded_ratio": 0.10,
            # the largest free piece lies below so many times the largest request,
            "request_factor": 1.2,
            # and at least so many segments were got while free pieces added up to the request.
            "needless_segments": 1,
        }
    },
    measure=measure,
    judge=judge,
)
