"""Roles that wait for synchronizing calls, and the time that these cost (rule R02)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

import numpy as np

from tracekit.job.stages.windows import (
    STAGE_KEY,
    Owner,
    StageKey,
    StageWindow,
    find_rows_of_owners,
    list_rows_of_windows,
    list_stage_keys,
    list_stage_windows,
)
from tracekit.model.records import dataclass
from tracekit.model.tables.frame import Bools, Frame, sum_of
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements


@dataclass(frozen=True, slots=True)
class SyncBoundRole:
    """A role and its synchronizing calls, with their rows of `sync_stalls`.

    `windows` are the stages with these calls, most idle time first. `bound` are the keys of those with enough idle time.
    """

    windows: Sequence[StageWindow]
    bound: Collection[StageKey]
    calls: Frame = field(repr=False, compare=False)

    def sum(self, name: str) -> int:
        """Sum a column over the calls: over all steps of the role's GPUs."""
        return int(self.calls[name].sum())

    @property
    def lost_ns(self) -> int:
        """Time in which the device waits for the host because of the calls."""
        return self.sum("idle_ns") + self.sum("later_ns")

    @property
    def idle_ratio(self) -> float:
        """Idle time after the calls as a share of the stages."""
        return self.sum("idle_ns") / sum(window.window_ns or 0 for window in self.windows)


def find_sync_bound_roles(measured: Measurements, limit: Mapping[str, float]) -> list[SyncBoundRole]:
    """Find the roles that wait for synchronizing calls, by rule R02.

    A stage is bound if it is idle after calls for long enough. The calls of all bound stages of a step have to be enough.
    """
    rows = list_rows_of_windows(measured, "sync_stalls")
    by_stage = rows.group_by(*STAGE_KEY).agg(stall_count=sum_of("stall_count"), idle_ns=sum_of("idle_ns"))
    sums = dict(zip(list_stage_keys(by_stage), by_stage.rows(), strict=True))
    windows: dict[Owner, list[StageWindow]] = defaultdict(list)
    for window in list_stage_windows(measured):
        if window.key in sums and window.window_ns:
            windows[window.owner].append(window)
    roles = []
    for owner, of_role in windows.items():
        bound = [window for window in of_role if window.share(sums[window.key]["idle_ns"]) >= limit["stage_ratio"]]
        stalls = sum(sums[window.key]["stall_count"] for window in bound)
        if bound and bound[0].steps.mean(stalls) >= limit["syncs_per_step"]:
            calls = rows.filter(find_rows_of_owners(rows, [owner]))
            roles.append(_collect_calls(calls, of_role, {window.key for window in bound}, limit["alike_ratio"]))
    return roles


def _collect_calls(
    rows: Frame, windows: Sequence[StageWindow], bound: Collection[StageKey], alike_ratio: float
) -> SyncBoundRole:
    """Collect the calls in bound stages, and calls of the same ops where another stage is idle after them for long enough."""
    is_bound = _find_rows_of_stages(rows, bound)
    kinds = rows.filter(is_bound & (rows["idle_ns"] > 0))
    calls = rows.filter(is_bound | rows.is_among(kinds, ("op", "call"), optional=("op", "call")))
    by_stage = calls.group_by(*STAGE_KEY).agg(idle_ns=sum_of("idle_ns"))
    idle = dict(zip(list_stage_keys(by_stage), by_stage.values("idle_ns"), strict=True))
    chosen = [
        window for window in windows if window.key in bound or window.share(idle.get(window.key, 0)) >= alike_ratio
    ]
    chosen.sort(key=lambda window: idle[window.key], reverse=True)
    return SyncBoundRole(chosen, bound, calls.filter(_find_rows_of_stages(calls, {window.key for window in chosen})))


def _find_rows_of_stages(rows: Frame, keys: Collection[StageKey]) -> Bools:
    """Find the rows of the stages with these keys."""
    groups = rows.group_by(*STAGE_KEY)
    return np.array([key in keys for key in list_stage_keys(groups.agg())], np.bool_)[groups.number]


def list_sync_bound_keys(measured: Measurements, limit: Mapping[str, float]) -> set[StageKey]:
    """List run, role and stage of all bound stages of `find_sync_bound_roles`."""
    return {key for role in find_sync_bound_roles(measured, limit) for key in role.bound}


def list_judged_sync_bound_keys(measured: Measurements, thresholds: Thresholds) -> set[StageKey]:
    """List the keys of `list_sync_bound_keys`; empty where rule R02 is not requested."""
    if "host-sync-stalls" not in thresholds.values or not measured.has("sync_stalls"):
        return set()
    return list_sync_bound_keys(measured, thresholds.of("host-sync-stalls"))
