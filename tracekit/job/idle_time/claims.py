"""Idle time of each stage that a finding with a known cause counts; no other finding may count it again.

The findings of R02 (after synchronizing calls), R03 (waiting for launches), R04 (data loading), R15 (edges of stages),
R29 (host pauses), R38 (start-up), R42 (garbage collection), and R21, R28 and R34 (interruptions of steady steps) count
disjoint parts of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from tracekit.job.idle_time.causes import (
    find_host_pauses,
    find_owners_idle_at_edges,
    list_edge_rows,
    sum_garbage_collection_idle,
    sum_judged_idle_by_cause,
)
from tracekit.job.idle_time.host_syncs import find_sync_bound_stages, list_sync_bound_keys
from tracekit.job.idle_time.interruptions import find_costly_interruptions
from tracekit.job.idle_time.launching import list_launch_bound_keys
from tracekit.job.idle_time.loader_waits import select_long_loader_waits, sum_loader_waits
from tracekit.job.stages.windows import (
    NO_STEPS,
    STAGE_KEY,
    Owner,
    count_gpu_steps,
    list_rows_of_windows,
    list_undamaged_rows,
    sum_column_over_steps,
)
from tracekit.model.tables.frame import sum_of
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements

Key = tuple[object, ...]
"""Run, role and canonical stage (None: the step)."""

START_UP = "host_start_up"
"""Cause of idle time during first calls."""

Claims = Mapping[Key, Mapping[str, int]]


def claim_idle_time(measured: Measurements, thresholds: Thresholds) -> Claims:
    """Sum the idle time that a finding of each rule counts, by stage, in ns over its GPUs and steps.

    Rules that do not fire claim nothing. Stages without claims are missing.
    """
    claimed: defaultdict[Key, dict[str, int]] = defaultdict(dict)
    for rule, parts in (
        *_claim_interruptions(measured, thresholds),
        ("start-up", _claim_start_up(measured, thresholds)),
        ("host-sync-stalls", _claim_sync_stalls(measured, thresholds)),
        ("launch-bound", _claim_launch_gaps(measured, thresholds)),
        ("data-loader-wait", _claim_loader_waits(measured, thresholds)),
        ("stage-edge-idle", _claim_stage_edges(measured, thresholds)),
        ("host-silence", _claim_host_pauses(measured, thresholds)),
        ("garbage-collection", _claim_garbage_collection(measured, thresholds)),
    ):
        for key, idle_ns in parts.items():
            if idle_ns:
                claimed[key][rule] = idle_ns
    return claimed


def _claim_interruptions(measured: Measurements, thresholds: Thresholds) -> Iterator[tuple[str, dict[Key, int]]]:
    """Claim the idle time of compiling, graph capture and allocating in steady steps, by stage and for the whole step."""
    for found in find_costly_interruptions(measured, thresholds):
        parts: defaultdict[Key, int] = defaultdict(int)
        for row in found.rows.group_by(*STAGE_KEY).agg(lost_ns=sum_of("lost_ns")).rows():
            run, role, stage, lost_ns = row.values()
            parts[run, role, stage] += lost_ns
            if stage is not None:
                parts[run, role, None] += lost_ns
        yield found.rule, parts


def sum_start_up_idle(measured: Measurements, thresholds: Thresholds) -> dict[Owner, int]:
    """Sum the idle time of first calls over GPU steps, by run and role, without interruptions of steady steps."""
    if not measured.has("idle"):
        return {}
    rows = list_undamaged_rows(measured, "idle")
    interrupted: defaultdict[Key, int] = defaultdict(int)
    for _, parts in _claim_interruptions(measured, thresholds):
        for key, lost_ns in parts.items():
            if key[2] is None:
                interrupted[key[:2]] += lost_ns
    sums = sum_column_over_steps(measured, rows.filter(rows.equals("cause", START_UP)), "idle_ns")
    return {owner: max(idle_ns - interrupted[owner], 0) for owner, idle_ns in sums.items()}


def _claim_start_up(measured: Measurements, thresholds: Thresholds) -> dict[Key, int]:
    """Claim the idle time of first calls in every stage of the runs and roles for which R38 fires."""
    limit, existing = thresholds.of("start-up")["step_ratio"], count_gpu_steps(measured)
    idle = sum_start_up_idle(measured, thresholds)
    steps = {owner: existing.get(owner, NO_STEPS) for owner in idle}
    owners = {o for o, ns in idle.items() if ns and (steps[o].per_step(ns)[1] or 0.0) >= limit}
    starting = _sum_idle_of_cause(measured, START_UP, owners)
    for _, parts in _claim_interruptions(measured, thresholds):
        for key, lost_ns in parts.items():
            if key in starting:
                starting[key] = max(starting[key] - lost_ns, 0)
    return starting


def _claim_sync_stalls(measured: Measurements, thresholds: Thresholds) -> dict[Key, int]:
    """Claim the time lost to synchronizing calls, by stage."""
    if not measured.has("sync_stalls"):
        return {}
    bound = find_sync_bound_stages(measured, thresholds.of("host-sync-stalls"))
    return {calls.window.key: calls.lost_ns for calls in bound}


def _claim_launch_gaps(measured: Measurements, thresholds: Thresholds) -> dict[Key, int]:
    """Claim the launch gaps of launch-bound stages; a finding about the step covers all its stages."""
    if not measured.has("host_counts"):
        return {}
    bound = list_launch_bound_keys(measured, thresholds)
    if not bound:
        return {}
    sums = list_rows_of_windows(measured, "host_counts").group_by(*STAGE_KEY)
    waits = sums.agg(gap_ns=sum_of("launch_gap_ns"), synced_ns=sum_of("synced_gap_ns"))
    synced = list_sync_bound_keys(measured, thresholds)
    gaps: dict[Key, int] = {}
    for row in waits.filter(~waits.is_missing("gap_ns")).rows():
        run, role, stage, gap_ns, synced_ns = row.values()
        key = run, role, stage
        if key in bound or (run, role, None) in bound:
            gaps[key] = gap_ns - (synced_ns if key in synced else 0)
    return gaps


def _claim_loader_waits(measured: Measurements, thresholds: Thresholds) -> dict[Key, int]:
    """Claim the idle time of data loading in every stage of the runs and roles with long loader waits."""
    if not measured.row_count("loader_waits"):
        return {}
    waits = select_long_loader_waits(sum_loader_waits(measured), thresholds.of("data-loader-wait"))
    owners = set(zip(waits.values("run"), waits.values("role"), strict=True))
    return _sum_idle_of_cause(measured, "host_loader", owners)


def _claim_host_pauses(measured: Measurements, thresholds: Thresholds) -> dict[Key, int]:
    """Claim the idle time of host pauses, by stage."""
    if not measured.has("idle"):
        return {}
    lost = find_host_pauses(measured, thresholds)
    pausing: defaultdict[Key, int] = defaultdict(int)
    for of_owner in lost.values():
        for key, idle_ns in of_owner.stages.items():
            pausing[key] += idle_ns
    return pausing


def _claim_garbage_collection(measured: Measurements, thresholds: Thresholds) -> dict[Key, int]:
    """Claim the idle time of garbage collection in every stage of the runs and roles for which R42 fires."""
    limit, existing = thresholds.of("garbage-collection")["time_ratio"], count_gpu_steps(measured)
    owners = {
        owner
        for owner, idle_ns in sum_garbage_collection_idle(measured).items()
        if idle_ns and (existing.get(owner, NO_STEPS).per_step(idle_ns)[1] or 0.0) >= limit
    }
    return _sum_idle_of_cause(measured, "host_gc", owners)


def _sum_idle_of_cause(measured: Measurements, cause: str, owners: Collection[tuple[object, ...]]) -> dict[Key, int]:
    """Sum the idle time of one cause in every stage of these (run, role)."""
    if not owners or not measured.has("idle"):
        return {}
    caused = sum_judged_idle_by_cause(measured)
    return {k[:3]: ns for k, ns in caused.items() if k[3] == cause and k[:2] in owners}


def _claim_stage_edges(measured: Measurements, thresholds: Thresholds) -> dict[Key, int]:
    """Claim the part of each edge in the stage that follows."""
    if not measured.has("stage_edges"):
        return {}
    rows = list_edge_rows(measured, thresholds.of("host-sync-stalls"))
    owners = find_owners_idle_at_edges(measured, rows, thresholds.of("stage-edge-idle"))
    sums = rows.group_by("run", "role", "next_canonical").agg(inside_ns=sum_of("inside_ns"))
    parts = (row.values() for row in sums.rows())
    return {(run, role, stage): inside_ns for run, role, stage, inside_ns in parts if (run, role) in owners}
