"""Weight sync, and copies between GPU and host memory (Q12, Q13; R13, R14)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.analyses import Analysis
from tracekit.job.driver_log import map_run_driver_logs
from tracekit.job.frames import UNIT, divide_or_none, make_label_headings, name_stages, phrase_run
from tracekit.job.rank_groups import MEMBER, RANK_GROUP_STEP, measure_own_work_of_ranks
from tracekit.job.report.copy_directions import DIRECTION_TITLES
from tracekit.job.report.evidence import make_evidence_metric
from tracekit.job.report.instances import pick_cost_instances, pick_instances
from tracekit.job.report.tables import make_sheet, parse_headings, select_filled_sheets
from tracekit.job.run_log.settings import describe_proposals
from tracekit.job.run_log.stages import list_logged_steps, sum_step_timers
from tracekit.job.stages.matrix import list_stage_cells, list_units_with_cells
from tracekit.job.stages.windows import Owner, count_steps_of_processes, find_rows_of_owners, list_owners
from tracekit.job.stragglers.collective_waits import attribute_collective_waits
from tracekit.model.recording.advised_settings import name_advised_settings
from tracekit.model.records import dataclass
from tracekit.model.report import Finding, Instance, Metric, Place, Section, Sheet, Verdict
from tracekit.model.tables import KEYS, Column, Table
from tracekit.model.tables.arrays import Array, Nullable, mask_value
from tracekit.model.tables.columns import DEVICE, STEP
from tracekit.model.tables.frame import (
    Bools,
    Frame,
    Ints,
    concat,
    divide,
    from_rows,
    is_missing,
    max_of,
    min_of,
    narrow_whole_numbers,
    numbers,
    sum_of,
    texts,
)
from tracekit.model.text.changes import write_change
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
        "direction": Column("category", "HtoD, DtoH, DtoD or PtoP, as recorded."),
        "memory": Column("category", "Pinned, pageable … as recorded."),
        "count": Column("int64", "Copies that start in it."),
        "size_bytes": Column("int64", "Their bytes, as far as recorded."),
        "busy_ns": Column("int64", "Time in it during which any of them runs, ns."),
        "exposed_ns": Column("int64", "The same while neither kernels nor collectives run."),
        "max_gb_per_s": Column("Float64", "Fastest copy of this kind and at least 1 MiB in the whole source."),
    },
)


WEIGHT_SYNC_STAGE = "update_weights"
ANY_ROW = "."
"""Pattern of all rows."""
LEAST_EXPOSED_SHARE = 0.05
"""The fix of exposed copies changes stages with at least this share of their time."""
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
    copies = moved.filter(~moved.equals("direction", "any"))
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
    single transfer of at least 1 MiB of the kinds that the sync uses. `comm_share` and `copy_share`: share of their time that
    its collectives and copies take at the best rate of their own kind. `waits` is whether the wall may include waits for other
    ranks, and `is_timed` whether the step was timed as a whole.
    """

    run: str | None
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
    comm_share: float | None = None
    copy_share: float | None = None
    waits: bool = True
    is_timed: bool = True

    @property
    def ratio(self) -> float | None:
        """The wall as a share of the step."""
        return divide_or_none(self.wall_ns, self.step_ns)


def _list_weight_syncs(measured: Measurements) -> Iterator[WeightSync]:
    """List the weight sync of every role from the traces, else of every run from the driver's timer (Q12)."""
    cells, units = list_stage_cells(measured), list_units_with_cells(measured)
    cells = cells.filter(cells.equals("canonical", WEIGHT_SYNC_STAGE) & cells.equals("state", "measured"))
    for of_owner in cells.group_by("run", "role").frames():
        owner = list_owners(of_owner)[0]
        wall = float(np.median(of_owner.integers("wall_ns")))
        shortest = _find_shortest_sync_wall(measured, owner)
        if shortest is not None:
            wall = min(wall, shortest)
        step_ns = _compute_median(units["wall_ns"][units.equals("run", owner[0])])
        moved = _measure_sync_traffic(measured, owner, wall)
        yield WeightSync(*owner, "trace", wall, step_ns, len(of_owner), **moved, waits=shortest is None)
    for run, log in map_run_driver_logs(measured).items():
        times = log.map_stage_ns(WEIGHT_SYNC_STAGE)
        if times and not cells.equals("run", run).any():
            logged_ns = log.step_ns or sum_step_timers(measured, run)
            step_ns = _compute_median([logged_ns[step] for step in times if step in logged_ns])
            wall = float(np.median(list(times.values())))
            yield WeightSync(run, None, "log", wall, step_ns, len(times), is_timed=bool(log.step_ns))


def _compute_median(values: Sequence[int] | Ints) -> float | None:
    """Compute the median; None without values."""
    return float(np.median(values)) if len(values) else None


def _find_shortest_sync_wall(measured: Measurements, owner: Owner) -> float | None:
    """Find the shortest weight sync of any rank without its waits for others, in ns: median over steps; None for one rank."""
    rows = measure_own_work_of_ranks(measured)
    rows = rows.filter(find_rows_of_owners(rows, [owner]) & rows.equals("canonical", WEIGHT_SYNC_STAGE))
    if len(rows.group_by("rank")) < 2:
        return None
    keys = (*RANK_GROUP_STEP, *MEMBER)
    waits = attribute_collective_waits(measured).collectives
    waits = waits.filter(waits.equals("stage", WEIGHT_SYNC_STAGE)).group_by(*keys).agg(lost_ns=sum_of("lost_ns"))
    rows = rows.join(waits, keys, "left", optional=keys)
    wall_ns = np.maximum(rows["own_ns"] + rows["blocked_ns"] - rows.integers("lost_ns"), 0)
    return float(np.median(rows.group_by(*UNIT).agg(shortest=min_of(wall_ns))["shortest"]))


def _measure_sync_traffic(measured: Measurements, owner: Owner, wall: float) -> dict[str, Any]:
    """Measure the traffic of one process in one sync: bytes, transfers, rate, and the best rate of such transfers."""
    collectives = measured.frame("collectives")
    comm, copies = (_select_sync_rows(rows, owner) for rows in (collectives, measured.frame("transfers")))
    copies = copies.filter(~copies.equals("direction", "any"))
    best = [0.0]
    sizes: dict[str, float] = {}
    shares: dict[str, float | None] = {}
    count = 0.0
    process = ("host", "pid", "rank", "source", "step")
    if len(comm):
        sized = comm.filter(~comm.is_missing("size_bytes")).group_by(*process)
        sizes["comm_bytes"] = _compute_mean(sized.agg(size_bytes=sum_of("size_bytes")), "size_bytes")
        count += len(comm) / len(comm.group_by(*process))
        is_large = (collectives.integers("size_bytes") >= RATED_BYTES) & (collectives["dur_ns"] > 0)
        large = collectives.filter(is_large & collectives.equals("run", owner[0]))
        best += (large.integers("size_bytes") / large["dur_ns"]).tolist()
        shares["comm_share"] = _estimate_best_comm_share(comm, large)
    if len(copies):
        per = copies.group_by(*process).agg(size_bytes=sum_of("size_bytes"), count=sum_of("count"))
        sizes["copy_bytes"] = _compute_mean(per, "size_bytes")
        count += _compute_mean(per, "count")
        best += [rate for rate in copies.values("max_gb_per_s") if rate is not None]
        shares["copy_share"] = _estimate_best_copy_share(copies, measured.frame("transfers"))
    total = sum(sizes.values())
    return {
        "comm_bytes": sizes.get("comm_bytes"),
        "copy_bytes": sizes.get("copy_bytes"),
        "transfers": count or None,
        "rate": total / wall if total and wall else None,
        "best": max(best) or None,
        **shares,
    }


def _estimate_best_comm_share(comm: Frame, large: Frame) -> float | None:
    """Estimate the share of their time that collectives take at the best rate of their operation in the run.

    A collective takes as long as on the rank that joined last; None if no rate is known.
    """
    rates = (
        large.with_columns(rate=large.integers("size_bytes") / large["dur_ns"]).group_by("op").agg(rate=max_of("rate"))
    )
    sized = comm.filter(~comm.is_missing("size_bytes") & (comm["dur_ns"] > 0))
    each = sized.group_by("step", "group", "op", "ordinal").agg(
        dur_ns=min_of("dur_ns"), size_bytes=max_of("size_bytes")
    )
    return _compute_share_at_rate(each, rates, "op", "dur_ns")


def _estimate_best_copy_share(copies: Frame, run: Frame) -> float | None:
    """Estimate the share of their time that copies take at the best rate of their direction in the run."""
    known = run.filter(~run.is_missing("max_gb_per_s"))
    rates = known.group_by("direction").agg(rate=max_of("max_gb_per_s"))
    return _compute_share_at_rate(copies, rates, "direction", "busy_ns")


def _compute_share_at_rate(rows: Frame, rates: Frame, kind: str, time: str) -> float | None:
    """Compute the share of their time that transfers take at the rate of their kind; None if no rate is known."""
    each = rows.join(rates, (kind,), "left")
    each = each.filter(~each.is_missing("rate"))
    spent_ns = int(each.integers(time).sum())
    ideal_ns = np.minimum(each.integers("size_bytes") / each.number("rate"), each.integers(time))
    return float(ideal_ns.sum()) / spent_ns if spent_ns else None


def _compute_mean(rows: Frame, column: str) -> float:
    """Compute the mean of whole numbers; 0 without rows."""
    return float(rows.integers(column).mean()) if len(rows) else 0.0


def _select_sync_rows(rows: Frame, owner: Owner) -> Frame:
    """Select the rows of one role's weight sync."""
    is_sync = mask_value(name_stages(rows, any_range=True), WEIGHT_SYNC_STAGE)
    return rows.filter(find_rows_of_owners(rows, [owner]) & is_sync)


def _make_weight_sync_table(measured: Measurements, syncs: list[WeightSync]) -> Sheet:
    """Make the table of weight syncs."""
    names = ("run", "role", "ratio", "rate", "best", "steps")
    rows = from_rows(names, [[getattr(sync, name) for name in names] for sync in syncs])
    rows = rows.with_columns(origin=texts(["driver's log" if sync.origin == "log" else "trace" for sync in syncs]))
    for name in ("wall_ns", "comm_bytes", "copy_bytes", "transfers"):
        rows = rows.with_columns(**{name: _round_to_tenths(numbers([getattr(sync, name) for sync in syncs]))})
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            wall_ns | weight sync | ns | Wall of the rank that is shortest in it, less its waits for other ranks; median over steps.
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


def _round_to_tenths(array: npt.NDArray[Any] | Nullable) -> Array:
    """Round numbers to one decimal; to integers if all are whole."""
    values = array.values if isinstance(array, Nullable) else array
    return narrow_whole_numbers(Nullable(np.round(values, 1), is_missing(array)))


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
            claim += (
                f", at {format_quantity(float(sync.rate or 0) / sync.best, 'ratio')} of the fastest transfer of the run"
            )
        yield Finding(
            "weight-sync",
            thresholds.severity(divide_or_none(gain, sync.step_ns)),
            claim + phrase_run(measured, sync.run),
            "send the weights once, in large buckets instead of single tensors, and changed weights only; overlap with the end of training"
            + _propose_sync_settings(measured, sync.run, gain),
            (
                Metric("sync_wall", round(sync.wall_ns), "ns", "lower", label="per step"),
                make_evidence_metric("sync_ratio", ratio, "of the step"),
                make_evidence_metric("sync_bytes", round(total) if total else None, "per step and process"),
                Metric("transfers", sync.transfers, "count", "lower", label="collectives and copies"),
                make_evidence_metric("gb_per_s", sync.rate, "rate", better="higher"),
                make_evidence_metric("best_gb_per_s", sync.best, "fastest transfer of the run", better="higher"),
            ),
            (Place(run=sync.run, role=sync.role, stage=WEIGHT_SYNC_STAGE),),
            round(gain),
            divide_or_none(gain, sync.step_ns),
            tuple(_list_weight_sync_caveats(sync, total)),
            changes=tuple(_write_sync_changes(sync, ideal)),
            instances=_pick_weight_syncs(measured, sync),
        )


def _propose_sync_settings(measured: Measurements, run: str | None, gain_ns: float) -> str:
    """Propose settings of the weight sync, where a log of the run has them."""
    logs = [steps for steps in list_logged_steps(measured) if steps.log.run == run]
    if not logs:
        return ""
    engine = "actor_rollout_ref.rollout.checkpoint_engine"
    proposals = ((f"{engine}.backend", lambda setting: "nccl" if setting.value == "naive" else None),)
    named = name_advised_settings("weight-sync", logs[0].log.framework.code)
    if logs[0].is_verl:
        named = f" ({engine}.backend, {engine}.update_weights_bucket_megabytes)"
    return named + describe_proposals(logs[0].settings, proposals, gain_ns / 1e9)


def _pick_weight_syncs(measured: Measurements, sync: WeightSync) -> tuple[Instance, ...]:
    """Pick the longest weight sync of any rank and a median one; none where only the driver timed it."""
    stages = measured.frame("stages")
    stages = stages.with_columns(canonical=name_stages(stages, any_range=True))
    return pick_instances(_select_sync_rows(stages, (sync.run, sync.role)))


def _write_sync_changes(sync: WeightSync, ideal_ns: float) -> Iterator[str]:
    """List the changes of the fix: no wait for single tensors, fewer launches, and bytes at the best rate of their kind."""
    if sync.origin == "log" or not 0 < ideal_ns < sync.wall_ns:
        return
    yield write_change("unwait", stage=WEIGHT_SYNC_STAGE, by=ANY_ROW)
    yield write_change("scale", "host", stage=WEIGHT_SYNC_STAGE, factor=ideal_ns / sync.wall_ns)
    if sync.comm_share is not None:
        yield write_change("scale", "collective", stage=WEIGHT_SYNC_STAGE, factor=sync.comm_share)
    if sync.copy_share is not None:
        yield write_change("scale", "device", stage=WEIGHT_SYNC_STAGE, op="^Mem", factor=sync.copy_share)


def _is_slow_sync(sync: WeightSync, rate_ratio: float) -> bool:
    """Check whether the sync is slower than this share of the fastest transfer of the run."""
    if sync.rate is None or sync.best is None:
        return False
    return sync.rate < rate_ratio * sync.best


def _list_weight_sync_caveats(sync: WeightSync, total_bytes: float) -> Iterator[str]:
    """List the caveats on a weight sync."""
    if sync.waits:
        yield "includes waiting for slower ranks"
    if sync.steps < 3:
        yield "the first sync after loading takes longer: few steps were recorded"
    if not total_bytes:
        yield "its bytes were not recorded"
    if not sync.is_timed:
        yield "the log does not time the whole step: the share is of the sum of its timers"


# Copies between device and host


def _sum_host_copies(measured: Measurements) -> Frame:
    """Sum copies by run, role, stage, direction and memory, per step and device (Q13).

    Columns: the keys, size_bytes, count, busy_ns, exposed_ns, gb_per_s, max_gb_per_s, share_ratio (exposed, of
    the step), step_ns. Each device counts in every step of its process.
    """
    rows = measured.frame("transfers")
    rows = rows.filter(rows.is_in("direction", ("HtoD", "DtoH", "any")))
    rows = rows.with_columns(canonical=name_stages(rows, any_range=True))
    steps_of = {
        list_owners(of_owner)[0]: count_steps_of_processes(measured, of_owner)
        for of_owner in rows.group_by("run", "role").frames()
    }
    summed = ("size_bytes", "count", "busy_ns", "exposed_ns")
    sums = rows.group_by("run", "role", "canonical", "direction", "memory").agg(
        **{name: sum_of(name) for name in summed}, max_gb_per_s=max_of("max_gb_per_s")
    )
    steps = [steps_of[owner] for owner in list_owners(sums)]
    counts, step_ns = np.array([max(each.count, 1) for each in steps]), numbers([each.step_ns for each in steps])
    return sums.with_columns(
        **{name: sums[name] / counts for name in summed},
        gb_per_s=divide(sums["size_bytes"], sums["busy_ns"]),
        share_ratio=divide(sums["exposed_ns"] / counts, step_ns),
        step_ns=step_ns,
    )


def _make_host_copy_table(measured: Measurements, copies: Frame) -> Sheet:
    """Make the table of copies by stage and direction, most exposed first."""
    copies = copies.sort("exposed_ns", "size_bytes", descending=["exposed_ns", "size_bytes"])
    copies = copies.with_columns(
        canonical=texts([stage or "(outside any stage)" for stage in copies.values("canonical")]),
        **{name: _round_to_tenths(copies[name]) for name in ("size_bytes", "count", "busy_ns", "exposed_ns")},
    )
    headings = (
        *make_label_headings(measured),
        *parse_headings("""
            canonical | stage
            direction | direction | text | HtoD is H2D, DtoH is D2H.
            memory | memory
            size_bytes | moved | bytes | Per step and GPU.
            busy_ns | time | ns | During which any of them runs, per step and GPU.
            exposed_ns | exposed | ns | The exposed part: neither kernels nor collectives run.
            share_ratio | of step | ratio | The exposed time, of the step.
            gb_per_s | rate | gb_per_s | Bytes over time; 1e9 bytes.
            max_gb_per_s | fastest | gb_per_s | Single copy of 1 MiB and more.
            count | copies | count | Per step and GPU.
        """),
    )
    caption = "Copies of more than 64,000 bytes, in the stage during which they run, whatever launched them."
    return make_sheet("host_copies", "H2D and D2H copies by stage", headings, copies, caption=caption)


def _find_exposed_offload(measured: Measurements, moved: Frame, thresholds: Thresholds) -> Iterator[Finding]:
    """Find R14: exposed copies between GPU and host memory; one finding per role."""
    limit = thresholds.of("offload")
    for of_owner in moved.group_by("run", "role").frames():
        run, role = list_owners(of_owner)[0]
        both = of_owner.filter(of_owner.equals("direction", "any"))
        is_pageable = _mask_memory_kind(of_owner, "pageable")
        pageable, others = of_owner.filter(is_pageable), of_owner.filter(~is_pageable)
        # Leave copies from pageable memory to `pageable-copies`, which knows their cause.
        left_out = pageable.with_columns(exposed_ns=-pageable["exposed_ns"])
        by_stage = concat([both, left_out]).group_by("canonical").agg(exposed_ns=sum_of("exposed_ns"))
        by_stage = by_stage.with_columns(exposed_ns=np.maximum(by_stage["exposed_ns"], 0.0))
        exposed = float(by_stage["exposed_ns"].sum())
        ratio = divide_or_none(exposed, max((ns for ns in both.values("step_ns") if ns), default=None))
        if ratio is None or ratio < limit["exposed_ratio"]:
            continue
        ways = {way: others.filter(others.equals("direction", way)) for way in ("HtoD", "DtoH")}
        size = {way: float(rows["size_bytes"].sum()) for way, rows in ways.items()}
        worst = by_stage.sort("canonical").sort("exposed_ns").values("canonical")[-1]
        caveats = ["offloading may be needed: check the memory headroom before keeping more on the GPU"]
        if min(size.values()) < limit["both_ways_ratio"] * max(size.values()):
            caveats.append("nearly all copies have one direction: they may be input instead of offloaded state")
        if len(pageable):
            caveats.append("excludes pageable copies, which pageable-copies reports")
        yield Finding(
            "offload",
            thresholds.severity(ratio),
            f"exposed H2D/D2H copies take {format_quantity(ratio, 'ratio')} of the step" + phrase_run(measured, run),
            _advise_on_offload(of_owner),
            (
                make_evidence_metric("exposed_ns", round(exposed), "per step and GPU"),
                *(
                    make_evidence_metric(
                        f"{way.lower()}_bytes", round(size[way]), f"{DIRECTION_TITLES[way]} per step and GPU"
                    )
                    for way in ways
                ),
                *(
                    make_evidence_metric(
                        f"{way.lower()}_gb_per_s",
                        _compute_copy_rate(rows),
                        f"{DIRECTION_TITLES[way]} rate",
                        better="higher",
                    )
                    for way, rows in ways.items()
                ),
                make_evidence_metric("pageable_bytes", round(float(pageable["size_bytes"].sum())), "pageable"),
            ),
            (Place(run=run, role=role, stage=worst),),
            round(exposed),
            ratio,
            tuple(caveats),
            changes=tuple(_write_offload_changes(by_stage, exposed)),
            instances=_pick_exposed_copies(measured, (run, role)),
        )


def _pick_exposed_copies(measured: Measurements, owner: Owner) -> tuple[Instance, ...]:
    """Pick the stage with most exposed copies in one step, without pageable ones, and a median one."""
    rows = measured.frame("transfers")
    rows = rows.filter(find_rows_of_owners(rows, [owner]) & rows.is_in("direction", ("HtoD", "DtoH")))
    return pick_cost_instances(measured, rows.filter(~_mask_memory_kind(rows, "pageable")), "exposed_ns")


def _write_offload_changes(by_stage: Frame, exposed_ns: float) -> Iterator[str]:
    """List the changes of the fix: no time for copies in the stages where they are exposed; pageable ones are left out."""
    for row in by_stage.sort("canonical").rows("canonical", "exposed_ns"):
        if row["exposed_ns"] >= LEAST_EXPOSED_SHARE * exposed_ns:
            copies = "(?:HtoD|DtoH)(?!.*Pageable)"
            yield write_change("set", "device", stage=row["canonical"] or "", op=copies, to_us=0)


def _mask_memory_kind(copies: Frame, kind: str) -> Bools:
    """Mask the copies from or to memory of this kind."""
    return np.array([kind in (memory or "").lower() for memory in copies.values("memory")], np.bool_)


def _advise_on_offload(copies: Frame) -> str:
    """Advise on exposed copies by whether their memory is already pinned."""
    prefetch = "prefetch the next stage's state while the current one computes, or keep it on the GPU"
    if _mask_memory_kind(copies, "pinned").any():
        return f"the memory is pinned already: copy on a separate stream, overlapped with kernels; {prefetch}"
    return f"copy from pinned memory on a separate stream, overlapped with kernels; {prefetch}"


def _compute_copy_rate(rows: Frame) -> float | None:
    """Compute the rate of copies in GB/s: bytes over busy time; None without any."""
    return divide_or_none(float(rows["size_bytes"].sum()), float(rows["busy_ns"].sum()))


ANALYSIS = Analysis(
    id="transfers",
    title="How long do weight sync and offloading take?",
    reads=("host_ops", "device_ops"),
    writes=(TRANSFERS,),
    rests_on=("collectives", "gpu_time", "logged", "run_log", "run_settings", "segments"),
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
