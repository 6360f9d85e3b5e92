"""Stages held up by synchronizing calls, and the time that these cost (rule R02)."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.job.stages.windows import (
    STAGE_KEY,
    StageWindow,
    list_rows_of_windows,
    list_stage_keys,
    list_stage_windows,
)
from tracekit.model.records import dataclass
from tracekit.model.tables.frame import sum_of
from tracekit.model.thresholds import Thresholds
from tracekit.model.trace import Measurements


@dataclass(frozen=True, slots=True)
class SyncBoundStage:
    """A stage and the cost of its synchronizing calls: sums over the steps of its GPUs."""

    window: StageWindow
    count: int
    stall_count: int
    call_ns: int
    idle_ns: int
    later_ns: int

    @property
    def lost_ns(self) -> int:
        """Time in which the device waits for the host because of the calls."""
        return self.idle_ns + self.later_ns


def find_sync_bound_stages(measured: Measurements, limit: Mapping[str, float]) -> list[SyncBoundStage]:
    """Find the stages that synchronizing calls hold up, by rule R02."""
    rows = list_rows_of_windows(measured, "sync_stalls")
    columns = ("count", "stall_count", "call_ns", "idle_ns", "later_ns")
    by_stage = rows.group_by(*STAGE_KEY).agg(**{name: sum_of(name) for name in columns})
    sums = dict(zip(list_stage_keys(by_stage), by_stage.rows(), strict=True))
    held_up = []
    for window in list_stage_windows(measured):
        if (row := sums.get(window.key)) is None or not window.window_ns:
            continue
        calls = SyncBoundStage(window, *(row[name] for name in columns))
        often = window.steps.mean(calls.stall_count) >= limit["syncs_per_step"]
        if often and window.share(calls.idle_ns) >= limit["stage_ratio"]:
            held_up.append(calls)
    return held_up


def list_sync_bound_keys(measured: Measurements, thresholds: Thresholds) -> set[tuple[object, ...]]:
    """List run, role and stage of all stages of `find_sync_bound_stages`; empty where rule R02 is not requested."""
    if "host-sync-stalls" not in thresholds.values or not measured.has("sync_stalls"):
        return set()
    held_up = find_sync_bound_stages(measured, thresholds.of("host-sync-stalls"))
    return {calls.window.key for calls in held_up}
