"""Idle time of each stage that a finding with a known cause counts; no other finding may count it again.

The findings of R02 (after synchronising calls), R03 (waiting for launches), R04 (data loading), R15 (edges of stages),
R29 (host pauses), R38 (start-up), R42 (garbage collection), and R21, R28 and R34 (interruptions of steady steps) count
disjoint parts of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from tracekit.job.frames import summed, text_or_none
from tracekit.job.idle_time.causes import (
    collection_idle,
    edge_rows,
    idle_at_edges,
    idle_by_cause,
    pauses,
)
from tracekit.job.idle_time.host_syncs import sync_bound, sync_bound_stages
from tracekit.job.idle_time.interruptions import interrupting
from tracekit.job.idle_time.launching import bound_stages
from tracekit.job.idle_time.loader_waits import by_rank, long_waits
from tracekit.job.stages.windows import (
    NO_STEPS,
    WHERE,
    Owner,
    gpu_steps,
    keyed,
    placed,
    step_sums,
    whole,
)
from tracekit.model.keys import row_dicts
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements

Key = tuple[object, ...]
"""Run, role and canonical stage (None: the step), as in `windows.keyed`."""

START_UP = "host_start_up"
"""Cause of idle time during first calls."""

Claims = Mapping[Key, Mapping[str, int]]


def claims(measured: Measurements, thresholds: Thresholds) -> Claims:
    """Sum the idle time that a finding of each rule counts, by stage, in ns over its GPUs and steps.

    Rules that do not fire claim nothing. Stages without claims are missing.
    """
    claimed: defaultdict[Key, dict[str, int]] = defaultdict(dict)
    for rule, parts in (
        *_interrupting(measured, thresholds),
        ("start-up", _starting(measured, thresholds)),
        ("host-sync-stalls", _after_syncs(measured, thresholds)),
        ("launch-bound", _before_launches(measured, thresholds)),
        ("data-loader-wait", _loading(measured, thresholds)),
        ("stage-edge-idle", _at_edges(measured, thresholds)),
        ("host-silence", _pausing(measured, thresholds)),
        ("garbage-collection", _collecting(measured, thresholds)),
    ):
        for key, idle_ns in parts.items():
            if idle_ns:
                claimed[key][rule] = idle_ns
    return claimed


def _interrupting(
    measured: Measurements, thresholds: Thresholds
) -> Iterator[tuple[str, dict[Key, int]]]:
    """Claim the idle time of compiling, graph capture and allocating in steady steps, by stage and for the whole step."""
    for found in interrupting(measured, thresholds):
        parts: defaultdict[Key, int] = defaultdict(int)
        for row in row_dicts(summed(found.rows, WHERE, ["lost_ns"])):
            key, lost_ns = keyed(row), int(row["lost_ns"])
            parts[key] += lost_ns
            if key[2] is not None:
                parts[(*key[:2], None)] += lost_ns
        yield found.rule, parts


def start_up_idle(measured: Measurements, thresholds: Thresholds) -> dict[Owner, int]:
    """Sum the idle time of first calls over GPU steps, by run and role, without interruptions of steady steps."""
    if not measured.has("idle"):
        return {}
    rows = whole(measured, "idle")
    rows = rows[(rows["cause"] == START_UP).to_numpy(np.bool_)]
    interrupted: defaultdict[Owner, int] = defaultdict(int)
    for _, parts in _interrupting(measured, thresholds):
        for key, lost_ns in parts.items():
            if key[2] is None:
                interrupted[key[0], text_or_none(key[1])] += lost_ns
    sums = step_sums(measured, rows, "idle_ns").items()
    return {owner: max(idle_ns - interrupted[owner], 0) for owner, idle_ns in sums}


def _starting(measured: Measurements, thresholds: Thresholds) -> dict[Key, int]:
    """Claim the idle time of first calls in every stage of the runs and roles for which R38 fires."""
    limit, existing = thresholds.of("start-up")["step_ratio"], gpu_steps(measured)
    idle = start_up_idle(measured, thresholds)
    steps = {owner: existing.get(owner, NO_STEPS) for owner in idle}
    owners = {o for o, ns in idle.items() if ns and (steps[o].per_step(ns)[1] or 0.0) >= limit}
    starting = _caused(measured, START_UP, owners)
    for _, parts in _interrupting(measured, thresholds):
        for key, lost_ns in parts.items():
            if key in starting:
                starting[key] = max(starting[key] - lost_ns, 0)
    return starting


def _after_syncs(measured: Measurements, thresholds: Thresholds) -> dict[Key, int]:
    """Claim the time lost to synchronising calls, by stage."""
    if not measured.has("sync_stalls"):
        return {}
    bound = sync_bound(measured, thresholds.of("host-sync-stalls"))
    return {calls.window.key: calls.lost_ns for calls in bound}


def _before_launches(measured: Measurements, thresholds: Thresholds) -> dict[Key, int]:
    """Claim the launch gaps of launch-bound stages; a finding about the step covers all its stages."""
    if not measured.has("host_counts"):
        return {}
    bound = bound_stages(measured, thresholds)
    rows = placed(measured, "host_counts")
    if not bound or not len(rows):
        return {}
    columns = ["launch_gap_ns", "synced_gap_ns"]
    waits = summed(rows, WHERE, columns).dropna(subset="launch_gap_ns")
    synced = sync_bound_stages(measured, thresholds)
    gaps: dict[Key, int] = {}
    for row in row_dicts(waits):
        key = keyed(row)
        if key in bound or (*key[:2], None) in bound:
            gaps[key] = int(row["launch_gap_ns"])
            if key in synced:
                gaps[key] -= int(row["synced_gap_ns"])
    return gaps


def _loading(measured: Measurements, thresholds: Thresholds) -> dict[Key, int]:
    """Claim the idle time of data loading in every stage of the runs and roles with long loader waits."""
    if not measured.has("loader_waits") or not len(measured["loader_waits"]):
        return {}
    waits = long_waits(by_rank(measured), thresholds.of("data-loader-wait"))
    owners = {keyed({**row, "canonical": None})[:2] for row in row_dicts(waits)}
    return _caused(measured, "host_loader", owners)


def _pausing(measured: Measurements, thresholds: Thresholds) -> dict[Key, int]:
    """Claim the idle time of host pauses, by stage."""
    if not measured.has("idle"):
        return {}
    lost = pauses(measured, thresholds)
    pausing: defaultdict[Key, int] = defaultdict(int)
    for of_owner in lost.values():
        for key, idle_ns in of_owner.stages.items():
            pausing[key] += idle_ns
    return pausing


def _collecting(measured: Measurements, thresholds: Thresholds) -> dict[Key, int]:
    """Claim the idle time of garbage collection in every stage of the runs and roles for which R42 fires."""
    limit, existing = thresholds.of("garbage-collection")["time_ratio"], gpu_steps(measured)
    owners = {
        owner
        for owner, idle_ns in collection_idle(measured).items()
        if idle_ns and (existing.get(owner, NO_STEPS).per_step(idle_ns)[1] or 0.0) >= limit
    }
    return _caused(measured, "host_gc", owners)


def _caused(
    measured: Measurements, cause: str, owners: Collection[tuple[object, ...]]
) -> dict[Key, int]:
    """Sum the idle time of one cause in every stage of these (run, role)."""
    if not owners or not measured.has("idle"):
        return {}
    caused = idle_by_cause(measured)
    return {k[:3]: ns for k, ns in caused.items() if k[3] == cause and k[:2] in owners}


def _at_edges(measured: Measurements, thresholds: Thresholds) -> dict[Key, int]:
    """Claim the part of each edge in the stage that follows."""
    if not measured.has("stage_edges"):
        return {}
    rows = edge_rows(measured, thresholds.of("host-sync-stalls"))
    if not len(rows):
        return {}
    owners = idle_at_edges(measured, rows, thresholds.of("stage-edge-idle"))
    sums = summed(rows.assign(canonical=rows["next_canonical"]), WHERE, ["inside_ns"])
    return {
        key: int(row["inside_ns"]) for row in row_dicts(sums) if (key := keyed(row))[:2] in owners
    }
