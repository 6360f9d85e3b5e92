"""Weight sync, and copies between GPU and host memory (Q12, Q13; R13, R14)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analyses import Analysis
from tracekit.job.driver_log import map_run_driver_logs
from tracekit.job.frames import (
    UNIT,
    aggregate_by_keys,
    divide_or_none,
    find_canonical_stages,
    find_equal_rows,
    make_label_headings,
    narrow_exact_floats,
    phrase_run,
    select_distinct_rows,
    sort_by_columns,
    sum_columns_by_keys,
    to_text_or_none,
)
from tracekit.job.rank_groups import MEMBER, RANK_GROUP_STEP, measure_own_work_of_ranks
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.stages.matrix import build_stage_cells, list_timed_units
from tracekit.job.stages.windows import count_steps_of_rows
from tracekit.job.stragglers.collective_waits import attribute_collective_waits
from tracekit.model.records import dataclass
from tracekit.model.report import Finding, Metric, Place, Section, Sheet, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.columns import DEVICE, STEP
from tracekit.model.tables.keys import left_join
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements, Trace
from tracekit.model.units import format_quantity
from tracekit.process.device.transfers import measure_transfers

TRANSFERS = Table(
    "transfers",
    "the copies of one direction and memory kind on one device in one stage of one step",
    {
        **KEYS,
        "device": DEVICE,
        "step": STEP,
        "stage": Column("category", "Outermost stage around it, as recorded; <NA> outside."),
        "direction": Column("category", "HtoD, DtoH, DtoD or PtoP."),
        "memory": Column("category", "Pinned, pageable … as recorded."),
        "count": Column("int64", "Copies that start in it."),
        "size_bytes": Column("int64", "Their bytes, as far as recorded."),
        "busy_ns": Column("int64", "Time in it during which any of them runs, ns."),
        "exposed_ns": Column("int64", "The same while neither kernels nor collectives run."),
        "max_gb_per_s": Column("Float64", "Fastest copy of this kind and at least 1 MiB in the whole source."),
    },
)


WEIGHT_SYNC_STAGE = "update_weights"
RATED_BYTES = 2**20
"""Minimum size of a collective to measure the network's bandwidth."""


def measure(trace: Trace) -> Mapping[str, Mapping[str, Any]]:
    """Sum copies of more than 64,000 bytes by device, step, stage and kind; empty without a device."""
    if not trace.has("device_ops"):
        return {}
    return {"transfers": trace.derived(measure_transfers)}


def judge(measured: Measurements, thresholds: Thresholds) -> Section:
    """Report weight sync, and copies between device and host by stage; judge R13 and R14."""
    syncs = list(_list_weight_syncs(measured))
    moved = _sum_host_copies(measured)
    copies = moved[(moved["direction"] != "any").to_numpy(np.bool_)]
    verdicts = []
    if not syncs:
        reason = "no weight sync is annotated in the traces or timed in a log"
        verdicts.append(Verdict("weight-sync", "not applicable", reason))
    if not measured.has("transfers"):
        verdicts.append(Verdict("offload", "not applicable", "no GPU activity was recorded"))
    if not (syncs or len(copies)):
        reason = "no weight sync and no copy of more than 64,000 bytes between GPU and host was recorded"
        return ANALYSIS.skipped(reason, verdicts=tuple(verdicts))
    return ANALYSIS.answered(
        sheets=lambda: select_filled_sheets(
            _make_weight_sync_table(measured, syncs), _make_host_copy_table(measured, copies)
        ),
        findings=(
            *_find_slow_weight_sync(measured, syncs, thresholds),
            *_find_exposed_offload(measured, moved, thresholds),
        ),
        verdicts=tuple(verdicts),
    )


# Weight sync


@dataclass(frozen=True, slots=True)
class WeightSync:
    """The weight sync of one role of one run: medians over steps; None is unknown.

    `comm_bytes` and `copy_bytes` are per step and process, `rate` is their sum over the wall in GB/s. `best` is the fastest
    single transfer of at least 1 MiB of the kinds that the sync uses. `waits` is whether the wall may include waits for
    other ranks.
    """

    run: object
    role: str | None
    origin: str
    wall_ns: float
    step_ns: float | None
    steps: int
    comm_bytes: float | None = None
    copy_bytes: float | None = None
    transfers: float | None = None
    rate: float | None = None
    best: float | None = None
    waits: bool = True

    @property
    def ratio(self) -> float | None:
        """The wall as a share of the step."""
        return divide_or_none(self.wall_ns, self.step_ns)


def _list_weight_syncs(measured: Measurements) -> Iterator[WeightSync]:
    """List the weight sync of every role from the traces, else of every run from the driver's timer (Q12)."""
    all_cells = build_stage_cells(measured)
    walls = list_timed_units(measured)
    sync_cells = all_cells[(all_cells["canonical"] == WEIGHT_SYNC_STAGE) & (all_cells["state"] == "measured")]
    for run, role in sync_cells[["run", "role"]].drop_duplicates().itertuples(index=False, name=None):
        rows = sync_cells[find_equal_rows(sync_cells["run"], run) & find_equal_rows(sync_cells["role"], role)]
        wall = float(rows["wall_ns"].astype("Float64").median())
        shortest = _find_shortest_sync_wall(measured, run, role)
        if shortest is not None:
            wall = min(wall, shortest)
        steps = walls[find_equal_rows(walls["run"], run)]["wall_ns"]
        moved = _measure_sync_traffic(measured, run, role, wall)
        step_ns = float(steps.median()) if len(steps) else None
        is_alone = shortest is None
        yield WeightSync(run, to_text_or_none(role), "trace", wall, step_ns, len(rows), **moved, waits=is_alone)
    for run, log in map_run_driver_logs(measured).items():
        times = log.get_stage_times(WEIGHT_SYNC_STAGE)
        if len(times) and not find_equal_rows(sync_cells["run"], run).any():
            step = log.steps.reindex(times.index).dropna()
            step_ns = float(step.median()) if len(step) else None
            yield WeightSync(run, None, "log", float(times.median()), step_ns, len(times))


def _find_shortest_sync_wall(measured: Measurements, run: object, role: object) -> float | None:
    """Find the shortest weight sync of any rank without its waits for others, in ns: median over steps; None for one rank."""
    rows = measure_own_work_of_ranks(measured)
    rows = rows[find_equal_rows(rows["run"], run) & find_equal_rows(rows["role"], role)]
    rows = rows[(rows["canonical"] == WEIGHT_SYNC_STAGE).fillna(value=False)]
    if rows["rank"].nunique() < 2:
        return None
    wall_ns = rows["own_ns"].to_numpy(np.int64) + rows["blocked_ns"].to_numpy(np.int64)
    keys = [*RANK_GROUP_STEP, *MEMBER]
    waiting = attribute_collective_waits(measured).collectives
    waiting = sum_columns_by_keys(
        waiting[(waiting["stage"] == WEIGHT_SYNC_STAGE).fillna(value=False)], keys, ["lost_ns"]
    )
    lost_ns = left_join(rows, waiting, keys, optional=keys)["lost_ns"].fillna(0)
    wall_ns = np.maximum(wall_ns - lost_ns.to_numpy(np.int64), 0)
    by_step = aggregate_by_keys(rows.assign(wall_ns=wall_ns), UNIT, shortest=("wall_ns", "min"))
    return float(by_step["shortest"].astype("Float64").median())


def _measure_sync_traffic(measured: Measurements, run: object, role: object, wall: float) -> dict[str, float | None]:
    """Measure the traffic of one process in one sync: bytes, transfers, rate, and the best rate of such transfers."""
    comm = _select_sync_rows(measured["collectives"], run, role) if measured.has("collectives") else None
    copies = _select_sync_rows(measured["transfers"], run, role) if measured.has("transfers") else None
    best = [0.0]
    sizes: dict[str, float] = {}
    count = 0.0
    process = ["host", "pid", "rank", "source", "step"]
    if comm is not None and len(comm):
        sized = comm[comm["size_bytes"].notna()]
        moved = sized.groupby(process, dropna=False)["size_bytes"].sum()
        sizes["comm_bytes"] = float(moved.mean()) if len(moved) else 0.0
        count += float(comm.groupby(process, dropna=False).size().mean())
        large = measured["collectives"]
        large = large[find_equal_rows(large["run"], run) & (large["size_bytes"] >= RATED_BYTES).fillna(value=False)]
        large = large[large["dur_ns"] > 0]
        if len(large):
            best.append(float((large["size_bytes"] / large["dur_ns"]).max()))
    if copies is not None:
        copies = copies[copies["direction"] != "any"]
        if len(copies):
            per = copies.groupby(process, dropna=False)[["size_bytes", "count"]].sum()
            sizes["copy_bytes"] = float(per["size_bytes"].mean())
            count += float(per["count"].mean())
            best += copies["max_gb_per_s"].dropna().astype(float).tolist()
    total = sum(sizes.values())
    return {
        "comm_bytes": sizes.get("comm_bytes"),
        "copy_bytes": sizes.get("copy_bytes"),
        "transfers": count or None,
        "rate": total / wall if total and wall else None,
        "best": max(best) or None,
    }


def _select_sync_rows(rows: pd.DataFrame, run: object, role: object) -> pd.DataFrame:
    """Select the rows of one role's weight sync."""
    rows = rows[find_equal_rows(rows["run"], run) & find_equal_rows(rows["role"], role)]
    stages = pd.Series(find_canonical_stages(rows, any_range=True), rows.index)
    return rows[stages == WEIGHT_SYNC_STAGE]


def _make_weight_sync_table(measured: Measurements, syncs: list[WeightSync]) -> Sheet:
    """Make the table of weight syncs."""
    names = ["run", "role", "wall_ns", "ratio", "comm_bytes", "copy_bytes", "transfers", "rate", "best", "steps"]
    rows = pd.DataFrame([[getattr(sync, name) for name in names] for sync in syncs], columns=names)
    rows["origin"] = ["driver's log" if sync.origin == "log" else "trace" for sync in syncs]
    for name in ("wall_ns", "comm_bytes", "copy_bytes", "transfers"):
        rows[name] = narrow_exact_floats(rows[name].astype("Float64").round(1))
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            wall_ns | weight sync | ns | Wall of the rank that is shortest in it, less what it waits for others; median over steps.
            ratio | of step | ratio | Of the median step.
            comm_bytes | collectives | bytes | Σ per step and process, as recorded.
            copy_bytes | copies | bytes | Σ per step and process, of more than 64,000 bytes each.
            transfers | transfers | count | Collectives and copies per step and process.
            rate | rate | gb_per_s | Their bytes over the wall; 1e9 bytes.
            best | best seen | gb_per_s | Fastest transfer of 1 MiB and more of these kinds.
            steps | steps | count
            origin | from
        """),
    )
    return make_sheet("weight_sync", "Weight sync", headings, rows)


def _find_slow_weight_sync(
    measured: Measurements, syncs: list[WeightSync], thresholds: Thresholds
) -> Iterator[Finding]:
    """Find R13: a weight sync that takes much of the step, or is far slower than such transfers can be."""
    limit = thresholds.of("weight-sync")
    for sync in syncs:
        ratio = sync.ratio
        if ratio is None:
            continue
        slow = ratio >= limit["slow_step_ratio"] and _is_slow_sync(sync, limit["rate_ratio"])
        if ratio < limit["step_ratio"] and not slow:
            continue
        total = (sync.comm_bytes or 0.0) + (sync.copy_bytes or 0.0)
        ideal = total / sync.best if sync.best else 0.0
        gain = max(sync.wall_ns - ideal, 0.0)
        source = ", as the driver timed it" if sync.origin == "log" else ""
        claim = f"weight sync takes {format_quantity(ratio, 'ratio')} of the step{source}"
        if slow and sync.best:
            claim += f", at {format_quantity(float(sync.rate or 0) / sync.best, 'ratio')} of the best rate seen"
        yield Finding(
            "weight-sync",
            thresholds.severity(divide_or_none(gain, sync.step_ns)),
            claim + phrase_run(measured, sync.run),
            "send the weights in large buckets rather than tensor by tensor, once, and only what changed; overlap it with the end of training",
            (
                Metric("sync_wall", round(sync.wall_ns), "ns", "lower", label="per step"),
                make_evidence_metric("sync_ratio", ratio, "of the step"),
                make_evidence_metric("sync_bytes", round(total) if total else None, "per step and process"),
                Metric("transfers", sync.transfers, "count", "lower", label="collectives and copies"),
                make_evidence_metric("gb_per_s", sync.rate, "rate", better="higher"),
                make_evidence_metric("best_gb_per_s", sync.best, "best transfer seen", better="higher"),
            ),
            (Place(role=sync.role, stage=WEIGHT_SYNC_STAGE),),
            round(gain),
            divide_or_none(gain, sync.step_ns),
            tuple(_list_weight_sync_caveats(sync, total)),
        )


def _is_slow_sync(sync: WeightSync, rate_ratio: float) -> bool:
    """Check whether the sync is slower than this share of the best rate seen."""
    if sync.rate is None or sync.best is None:
        return False
    return sync.rate < rate_ratio * sync.best


def _list_weight_sync_caveats(sync: WeightSync, total_bytes: float) -> Iterator[str]:
    """List the caveats on a weight sync."""
    if sync.waits:
        yield "waiting for slower ranks is part of it"
    if sync.steps < 3:
        yield "the first sync after loading takes longer: few steps were seen"
    if not total_bytes:
        yield "its bytes are not recorded"


# Copies between device and host


def _sum_host_copies(measured: Measurements) -> pd.DataFrame:
    """Sum copies by run, role, stage, direction and memory, per step and device (Q13).

    Columns: the keys, size_bytes, count, busy_ns, exposed_ns, gb_per_s, max_gb_per_s, share_ratio (exposed, of
    the step), step_ns. Each device counts in every step of its process.
    """
    keys = ["run", "role", "canonical", "direction", "memory"]
    summed = ["size_bytes", "count", "busy_ns", "exposed_ns"]
    columns = [*keys, *summed, "gb_per_s", "max_gb_per_s", "share_ratio", "step_ns"]
    if not measured.row_count("transfers"):
        return pd.DataFrame(columns=columns)
    rows = measured["transfers"]
    rows = rows[rows["direction"].isin(("HtoD", "DtoH", "any"))]
    if not len(rows):
        return pd.DataFrame(columns=columns)
    rows = rows.assign(canonical=find_canonical_stages(rows, any_range=True))
    sums = {name: (name, "sum") for name in summed}
    out = aggregate_by_keys(rows, keys, **sums, max_gb_per_s=("max_gb_per_s", "max"))
    out["gb_per_s"] = out["size_bytes"] / out["busy_ns"].where(out["busy_ns"] > 0)
    per = select_distinct_rows(rows, ["run", "role"])
    steps = [
        count_steps_of_rows(measured, rows[find_equal_rows(rows["run"], run) & find_equal_rows(rows["role"], role)])
        for run, role in per.itertuples(index=False, name=None)
    ]
    per["times"] = [max(step.count, 1) for step in steps]
    per["step_ns"] = pd.array([step.step_ns for step in steps], dtype="Float64")
    out = left_join(out, per, ["run", "role"], optional=["run", "role"])
    for name in summed:
        out[name] = out[name] / out["times"]
    out["share_ratio"] = out["exposed_ns"] / out["step_ns"].where(out["step_ns"] > 0)
    return out[columns]


def _make_host_copy_table(measured: Measurements, copies: pd.DataFrame) -> Sheet:
    """Make the table of copies by stage and direction, most exposed first."""
    copies = sort_by_columns(copies, exposed_ns=False, size_bytes=False)
    copies = copies.assign(canonical=copies["canonical"].astype(object).fillna("(in no stage)"))
    for name in ("size_bytes", "count", "busy_ns", "exposed_ns"):
        copies[name] = narrow_exact_floats(copies[name].astype("Float64").round(1))
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            canonical | stage
            direction | direction
            memory | memory
            size_bytes | moved | bytes | Per step and GPU.
            busy_ns | time | ns | During which any of them runs, per step and GPU.
            exposed_ns | exposed | ns | Of it with neither kernels nor collectives.
            share_ratio | of step | ratio | The exposed time, of the step.
            gb_per_s | rate | gb_per_s | Bytes over time; 1e9 bytes.
            max_gb_per_s | fastest | gb_per_s | Single copy of 1 MiB and more.
            count | copies | count | Per step and GPU.
        """),
    )
    caption = "Copies of more than 64,000 bytes; time is that in which they run, whatever launched them."
    return make_sheet("host_copies", "Copies between GPU and host memory by stage", headings, copies, caption=caption)


def _find_exposed_offload(measured: Measurements, moved: pd.DataFrame, thresholds: Thresholds) -> Iterator[Finding]:
    """Find R14: exposed copies between GPU and host memory; one finding per role."""
    limit = thresholds.of("offload")
    for run, role in moved[["run", "role"]].drop_duplicates().itertuples(index=False, name=None):
        of_owner = moved[find_equal_rows(moved["run"], run) & find_equal_rows(moved["role"], role)]
        both = of_owner[of_owner["direction"] == "any"]
        pageable = of_owner["memory"].astype(str).str.contains("pageable", case=False)
        # Leave copies from pageable memory to `pageable-copies`, which knows their cause.
        left_out = of_owner[pageable]
        left_out = left_out.assign(exposed_ns=-left_out["exposed_ns"])
        # Sum with one group-by: pandas 2 cannot align indexes with a missing stage.
        by_stage = pd.concat([both, left_out]).groupby("canonical", dropna=False)["exposed_ns"]
        of_stages = by_stage.sum().clip(lower=0.0)
        exposed, step_ns = float(of_stages.sum()), both["step_ns"].max()
        ratio = None if pd.isna(step_ns) or not step_ns else exposed / float(step_ns)
        if ratio is None or ratio < limit["exposed_ratio"]:
            continue
        not_pageable = of_owner[~pageable]
        ways = {way: not_pageable[not_pageable["direction"] == way] for way in ("HtoD", "DtoH")}
        size = {way: float(rows["size_bytes"].sum()) for way, rows in ways.items()}
        worst = of_stages.sort_values(kind="stable").index[-1]
        caveats = ["if memory is short this is the price of it: look at the head-room before keeping more on the GPU"]
        if min(size.values()) < limit["both_ways_ratio"] * max(size.values()):
            caveats.append("nearly all of it goes one way: it may be input rather than offloaded state")
        if pageable.any():
            caveats.append("without copies from pageable memory, which are for pageable-copies")
        yield Finding(
            "offload",
            thresholds.severity(ratio),
            f"copies between GPU and host memory stand alone for {format_quantity(ratio, 'ratio')} of the step"
            + phrase_run(measured, run),
            _advise_on_offload(of_owner),
            (
                make_evidence_metric("exposed_ns", round(exposed), "per step and GPU"),
                *(
                    make_evidence_metric(f"{way.lower()}_bytes", round(size[way]), f"{way} per step and GPU")
                    for way in ways
                ),
                *(
                    make_evidence_metric(
                        f"{way.lower()}_gb_per_s", _compute_copy_rate(rows), f"{way} rate", better="higher"
                    )
                    for way, rows in ways.items()
                ),
                make_evidence_metric(
                    "pageable_bytes", round(float(of_owner[pageable]["size_bytes"].sum())), "pageable"
                ),
            ),
            (Place(role=to_text_or_none(role), stage=to_text_or_none(worst)),),
            round(exposed),
            ratio,
            tuple(caveats),
        )


def _advise_on_offload(copies: pd.DataFrame) -> str:
    """Advise on exposed copies by whether their memory is already pinned."""
    prefetch = "prefetch the next stage's state while this one computes, or keep it on the GPU"
    if copies["memory"].astype(str).str.contains("pinned", case=False).any():
        return f"the memory is pinned already: copy on a stream of its own beside kernels, {prefetch}"
    return f"copy on a stream of its own beside kernels, from pinned memory, {prefetch}"


def _compute_copy_rate(rows: pd.DataFrame) -> float | None:
    """Compute the rate of copies in GB/s: bytes over busy time; None without any."""
    busy = float(rows["busy_ns"].sum())
    return divide_or_none(float(rows["size_bytes"].sum()), busy)


ANALYSIS = Analysis(
    id="transfers",
    title="What do weight sync and offloading cost?",
    bases={"weight-sync": "modelled", "offload": "bound"},
    reads=("host_ops", "device_ops"),
    writes=(TRANSFERS,),
    rests_on=("collectives", "gpu_time", "logged", "segments"),
    rules=("weight-sync", "offload"),
    thresholds={
        "weight-sync": {
            # Weight sync as a share of the step,
            "step_ratio": 0.05,
            # or its rate as a share of the fastest transfer of its kinds in the same run,
            "rate_ratio": 0.25,
            # if it takes at least this share of the step.
            "slow_step_ratio": 0.01,
        },
        "offload": {
            # Exposed copies between GPU and host memory, as a share of the step.
            "exposed_ratio": 0.03,
            # If one direction carries less than this share of the other's bytes, the copies may be input (a caveat).
            "both_ways_ratio": 0.25,
        },
    },
    measure=measure,
    judge=judge,
)
