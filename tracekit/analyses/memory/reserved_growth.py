"""Does reserved memory grow while no more is in use? The part that grows names the cause (snapshots; R65)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.analyses import Analysis
from tracekit.job.frames import make_run_heading, phrase_run
from tracekit.job.memory.snapshots import SNAPSHOT_KEYS, snapshot_levels
from tracekit.job.memory.survivors import OWNER
from tracekit.job.memory.trend import make_growth_limits
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_instances
from tracekit.job.report.tables import make_sheet, parse_headings
from tracekit.model.records import dataclass
from tracekit.model.report import Finding, Instance, Metric, Place, Section, Sheet, Verdict
from tracekit.model.stages import get_canonical_stage
from tracekit.model.stats.trend import GROWS, Slope, compute_theil_sen, label_growth, measure_growth
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import select_all_rows
from tracekit.model.tables.columns import DEVICE
from tracekit.model.tables.frame import Frame, from_rows, sum_of
from tracekit.model.tables.keys import group_arrays, sum_by_group
from tracekit.model.tables.snapshots import POOL
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.memory.allocation_stages import list_new_segments
from tracekit.process.memory.pools import PAUSABLE
from tracekit.process.memory.space import DEFAULT_POOL

Floats = npt.NDArray[np.float64]


class Cause(NamedTuple):
    """Where the memory is that is reserved and not in use, and the advice for it."""

    where: str
    advice: str


CAUSES = {
    "stranded": Cause(
        "in pieces between blocks in use: sizes vary from step to step (fragmentation)",
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; pad or bucket lengths to repeat sizes",
    ),
    "releasable": Cause(
        "in cached segments without a block in use: requests of other sizes or streams do not reuse them",
        "set PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8, or call torch.cuda.empty_cache() between stages of "
        "different sizes; use the same streams in every step",
    ),
    "private": Cause(
        "in private pools (CUDA graphs or torch.cuda.MemPool)",
        "capture graphs for a fixed set of shapes, and delete those that are not replayed any more",
    ),
}
"""Parts of reserved memory that can grow without use, by name."""

PARTS = (*CAUSES, "pending")
"""Parts that are compared: also blocks that wait for other streams, which are in use for the allocator."""


@dataclass(frozen=True, slots=True)
class ReservedSeries:
    """Memory of one device of one process at the end of its snapshots, in order of time; bytes."""

    owner: tuple[Any, ...]
    who: str
    steps: Floats
    reserved: Floats
    in_use: Floats
    peak: Floats
    parts: Mapping[str, Floats]
    snapshots: Frame


NEW_SEGMENTS = Table(
    "new_segments",
    "segments of one stage and pool that a snapshot's history allocated, in use or cached at its end",
    {
        **KEYS,
        "device": DEVICE,
        "pool": POOL,
        "stage": Column("category", "Stage that allocated them: a range as recorded, or a function of the stack."),
        "size_bytes": Column("int64", "Bytes."),
    },
)


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum the segments that the history allocated by stage; other questions measure the free space."""
    if not trace.has("memory_segments") or not trace.has("allocations"):
        return {}
    keys, size = list_new_segments(trace)
    group, first = group_arrays([*keys.values()])
    return {"new_segments": {**select_all_rows(keys, first), "size_bytes": sum_by_group(group, size, len(first))}}


def judge(measured: Measurements, thresholds: Thresholds) -> Section | None:
    """Judge reserved memory over the snapshots of each process (finding R65); None without several snapshots."""
    series_found = list(_list_series(measured))
    if not series_found:
        return None
    limit = {**thresholds.of("memory-growth"), **thresholds.of("reserved-growth")}
    judged = [_judge_series(measured, series, limit) for series in series_found]
    return ANALYSIS.answered(
        sheets=lambda: [_make_table(measured, series_found)],
        judged=[each for each in judged if each is not None],
    )


def _list_series(measured: Measurements) -> Iterator[ReservedSeries]:
    """List the reserved memory of each device with at least 3 snapshots in order; pools that may be unmapped do not count."""
    space, windows = measured.frame("free_space"), measured.frame("snapshot_windows")
    space = space.filter(space.equals("moment", "end") & space.equals("memory", "device"))
    windows = windows.filter(~windows.is_missing("window"))
    if not len(space) or not len(windows):
        return
    space = _drop_pausable_pools(measured, space, (*SNAPSHOT_KEYS, "pool"))
    is_default = space.equals("pool", DEFAULT_POOL)
    space = space.with_columns(
        stranded=np.where(is_default, space["stranded_bytes"], 0),
        releasable=np.where(is_default, space["releasable_bytes"], 0),
        private=np.where(is_default, 0, space["free_bytes"]),
    )
    names = ("reserved_bytes", "requested_bytes", *CAUSES)
    sums = space.group_by(*SNAPSHOT_KEYS).agg(**{name: sum_of(name) for name in names})
    levels = snapshot_levels(measured).select(*SNAPSHOT_KEYS, "who", "peak_bytes", "pending_bytes")
    rows = sums.join(levels, SNAPSHOT_KEYS, optional=SNAPSHOT_KEYS)
    memory = ("source", "pid", "device")
    rows = windows.select(*OWNER, "source", "window", "step", "begin_ns", "end_ns").join(rows, memory, optional=memory)
    for of_owner in rows.group_by(*OWNER).frames():
        if len(of_owner) >= 3:
            yield _make_series(of_owner.sort("window"))


def _make_series(rows: Frame) -> ReservedSeries:
    """Make the series of one owner from its snapshots in order of time."""
    steps = rows.number("window")
    if not rows.is_missing("step").any() and (np.diff(rows.integers("step")) > 0).all():
        steps = rows.number("step")
    first = next(rows.rows(*OWNER, "who"))
    return ReservedSeries(
        tuple(first[name] for name in OWNER),
        first["who"],
        steps,
        rows.number("reserved_bytes"),
        rows.number("requested_bytes"),
        rows.number("peak_bytes"),
        {**{name: rows.number(name) for name in CAUSES}, "pending": rows.number("pending_bytes")},
        rows,
    )


def _judge_series(
    measured: Measurements, series: ReservedSeries, limit: Mapping[str, float]
) -> Finding | Verdict | None:
    """Judge one series: reserved memory grows, and neither the memory in use nor its peak does."""
    where = phrase_run(measured, series.owner[0])
    if len(series.steps) < limit["min_steps"]:
        reason = f"{series.who}: {len(series.steps)} of at least {int(limit['min_steps'])} snapshots"
        return Verdict("reserved-growth", "insufficient data", reason + where)
    limits = make_growth_limits(limit)
    reserved = measure_growth(series.steps, series.reserved, limits)
    label = label_growth(reserved, limits)
    if label not in GROWS or reserved.slope is None:
        return None
    used = [compute_theil_sen(series.steps, levels) for levels in (series.in_use, series.peak)]
    most = limit["use_ratio"] * reserved.slope.per_x
    if any(slope is not None and slope.per_x >= most for slope in used):
        return None
    slopes = {name: compute_theil_sen(series.steps, levels) for name, levels in series.parts.items()}
    total = series.reserved[-1] - series.reserved[reserved.warm_up]
    is_large = label == "strong" and total >= limit["growth_bytes"]
    stage = _find_segment_stage(measured, series, reserved.warm_up)
    return _describe(series, reserved.slope, slopes, stage, reserved.warm_up, is_large=is_large, where=where)


def _find_segment_stage(measured: Measurements, series: ReservedSeries, warm_up: int) -> str | None:
    """Find the stage that allocates more than half of the bytes of new segments; None without one."""
    segments = _drop_pausable_pools(measured, measured.frame("new_segments"), ("source", "pid", "device", "pool"))
    snapshots = series.snapshots.take(slice(warm_up, None)).select("source", "pid", "device")
    keys = ("source", "pid", "device")
    segments = segments.filter(segments.is_among(snapshots, keys, optional=keys))
    sizes: dict[str | None, int] = {}
    for row in segments.rows("stage", "role", "size_bytes"):
        stage = None if row["stage"] is None else get_canonical_stage(row["stage"], row["role"])
        sizes[stage] = sizes.get(stage, 0) + row["size_bytes"]
    return next((stage for stage, size in sizes.items() if 2 * size > sum(sizes.values())), None)


def _drop_pausable_pools(measured: Measurements, rows: Frame, keys: tuple[str, ...]) -> Frame:
    """Drop the rows of pools that may be unmapped."""
    pools = measured.frame("memory_pools")
    pausable = pools.filter(pools.is_in("class", PAUSABLE) & pools.equals("memory", "device")).select(*keys)
    return rows.filter(~rows.is_among(pausable, keys, optional=keys)) if len(pausable) else rows


def _describe(
    series: ReservedSeries,
    slope: Slope,
    slopes: Mapping[str, Slope | None],
    stage: str | None,
    warm_up: int,
    *,
    is_large: bool,
    where: str,
) -> Finding:
    """Describe reserved memory that grows, by the part that grows most."""
    growing = {name: part.per_x for name, part in slopes.items() if part is not None and part.per_x > 0}
    largest = max(growing, key=lambda name: growing[name], default="pending")
    cause = CAUSES.get(largest)
    more = format_quantity(round(slope.per_x), "bytes")
    claim = f"memory reserved for {series.who} grows by {more} per step while no more is in use"
    advice = "record memory snapshots of more steps: the part that grows is not clear"
    if cause is not None:
        claim += f": it lies {cause.where}"
        advice = cause.advice
    if stage is not None:
        claim += f"; stage {stage} allocates most of the new segments"
    run, role, rank, *_, device = series.owner
    place = Place(run=run, role=role, rank=rank, device=device, stage=stage)
    low, high = round(slope.low), round(slope.high)
    return Finding(
        "reserved-growth",
        "medium" if is_large else "low",
        claim + where,
        advice,
        (
            Metric("growth", round(slope.per_x), "bytes", "lower", low, high, "reserved, per step"),
            *(
                make_evidence_metric(f"{name}_growth_bytes", round(growing[name]), f"{_LABELS[name]}, per step")
                for name in PARTS
                if name in growing
            ),
            Metric("steps", len(series.steps) - warm_up, "count", label="snapshots judged"),
        ),
        (place,),
        instances=_pick_snapshots_that_grew(series.snapshots),
        caveats=(
            f"the first {warm_up} snapshots count as warm-up",
            "reserved memory that is not in use does not leak: it is given back before memory runs out, unless it is in pieces",
        ),
    )


def _pick_snapshots_that_grew(rows: Frame) -> tuple[Instance, ...]:
    """Pick the snapshot with most memory reserved beyond the first one, and a median one."""
    rows = rows.filter(~rows.is_missing("begin_ns") & ~rows.is_missing("end_ns"))
    if not len(rows):
        return ()
    begin, reserved = rows.integers("begin_ns"), rows.integers("reserved_bytes")
    spans = {"ts_ns": begin, "dur_ns": rows.integers("end_ns") - begin, "cost": reserved - reserved[0]}
    return pick_instances(rows.with_columns(**spans), "cost", unit="bytes")


_LABELS = {
    "stranded": "free between blocks in use",
    "releasable": "free in segments without a block in use",
    "private": "free in private pools",
    "pending": "waiting for other streams",
}

_HEADINGS = parse_headings("""
    who | process
    stage | new segments in stage | text | The stage that allocates more than half of their bytes.
    snapshots | snapshots | count
    reserved | reserved | bytes | At the end of the last snapshot, without pools that may be unmapped.
    in_use | in use | bytes | Requested bytes then.
    reserved_growth | reserved, more per step | bytes | Median slope of all pairs of snapshots.
    in_use_growth | in use, more per step | bytes
    stranded_growth | in pieces, more per step | bytes | Free between blocks in use.
    releasable_growth | cached, more per step | bytes | In segments without a block in use.
    private_growth | private pools, more per step | bytes | Free in pools of CUDA graphs or torch.cuda.MemPool.
""")


def _make_table(measured: Measurements, all_series: list[ReservedSeries]) -> Sheet:
    """Make the table of reserved memory over snapshots, one row per device of a process."""
    rows = []
    for series in all_series:
        levels = (series.reserved, series.in_use, *(series.parts[name] for name in CAUSES))
        slopes = [compute_theil_sen(series.steps, each) for each in levels]
        growth = [None if slope is None else round(slope.per_x) for slope in slopes]
        row = (
            series.owner[0],
            series.who,
            _find_segment_stage(measured, series, warm_up=0),
            len(series.steps),
            int(series.reserved[-1]),
            int(series.in_use[-1]),
            *growth,
        )
        rows.append(row)
    table = from_rows(["run", *(heading.name for heading in _HEADINGS)], rows)
    headings = (*make_run_heading(measured), *_HEADINGS)
    return make_sheet("reserved_growth", "Reserved memory over snapshots", headings, table)


ANALYSIS = Analysis(
    id="reserved-growth",
    title="Does reserved memory grow while no more is in use?",
    reads=("allocations", "memory_segments", "stacks", "annotations"),
    writes=(NEW_SEGMENTS,),
    rests_on=("free_space", "memory_pools", "snapshot_levels", "snapshot_windows"),
    rules=("reserved-growth",),
    thresholds={
        "reserved-growth": {
            # Fewer snapshots of one process give no trend.
            "min_steps": 6,
            # The memory in use and its peak grow by less than this share of the growth of the reserved memory.
            "use_ratio": 0.5,
            # Strong growth is of medium severity from so many bytes in total.
            "growth_bytes": 67_108_864,
        }
    },
    measure=measure,
    judge=judge,
)
