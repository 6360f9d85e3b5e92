"""Idle time of the judged windows by cause, and the pauses, edges and waits of hosts that explain it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracekit.job.frames import UNIT, distinct, same_text, staged, summed
from tracekit.job.idle_time.host_syncs import sync_bound
from tracekit.job.idle_time.launching import bound_stages
from tracekit.job.idle_time.outside_stages import Outside, idle_outside_stages
from tracekit.job.stages.periodic import chore_keys
from tracekit.job.stages.windows import (
    NO_STEPS,
    WHERE,
    Owner,
    StageWindow,
    gpu_steps,
    keyed,
    owners_of,
    placed,
    stage_windows,
    step_sums,
    whole,
)
from tracekit.job.stragglers.collective_waits import waits
from tracekit.model.keys import is_among, looked_up, of_keys, records, row_dicts
from tracekit.model.records import dataclass
from tracekit.model.thresholds import Thresholds, shared
from tracekit.model.trace import Measurements
from tracekit.process.idle_time.causes import IdleTime

DAMAGED = "every source with GPU activity is damaged: what is missing would look idle"


def idle_time() -> IdleTime:
    """Make the measurement of idle time with the default limits, which judging cannot change."""
    values = shared().values
    return IdleTime(
        int(values["idle-causes"]["kernel_wait_ns"]), int(values["host-silence"]["silence_ns"])
    )


ANY_ROLE = "*"
"""All roles of a run."""

PAUSING = ("host_silent", "host_code")
"""Causes of idle time in which the host launches nothing for long: no activity, or no op, is recorded."""


class Pauses(NamedTuple):
    """Idle time of a (run, role) from pauses of the host: sums over the steps of its GPUs.

    `short_ns` are pauses below both limits, where there are many. `stages` is the loss of each stage. `outside_ns` is the
    part of silence and code outside all stages.
    """

    silent_ns: int
    code_ns: int
    short_ns: int
    windows: list[StageWindow]
    stages: dict[tuple[object, ...], int]
    outside_ns: int = 0

    @property
    def total_ns(self) -> int:
        """Sum of all pauses."""
        return self.silent_ns + self.code_ns + self.short_ns


def by_cause(rows: pd.DataFrame) -> dict[tuple[object, ...], int]:
    """Sum idle time by run, role, stage and cause."""
    if not len(rows):
        return {}
    sums = summed(rows, [*WHERE, "cause"], ["idle_ns"])
    return {(*keyed(r), r["cause"]): int(r["idle_ns"]) for r in row_dicts(sums)}


def idle_by_cause(measured: Measurements) -> dict[tuple[object, ...], int]:
    """Sum the idle time of the judged windows by run, role, stage and cause."""
    return measured.derived(_idle_by_cause)


def _idle_by_cause(measured: Measurements) -> dict[tuple[object, ...], int]:
    return by_cause(placed(measured, "idle"))


def is_silence(window: StageWindow) -> bool:
    """Check whether a silent host counts in a window: in stages that feed a GPU, and in marked steps."""
    return window.works and window.origin != "file"


def pauses(measured: Measurements, thresholds: Thresholds) -> dict[Owner, Pauses]:
    """Find the (run, role) for which rule R29 fires, with the idle time that pauses of the host cost.

    Silence and code count where `is_silence`. Time between ops counts where there is much of it and rules R02, R03 and
    R15 do not count it. Do not change the result in place.
    """
    return measured.derived(_Pausing(thresholds))


@dataclass(frozen=True)
class _Pausing:
    """Function of measurements that is equal for equal thresholds, which makes `Measurements.derived` cache it."""

    thresholds: Thresholds

    def __call__(self, measured: Measurements) -> dict[Owner, Pauses]:
        """Find the pauses by run and role."""
        return _pauses(measured, self.thresholds)


def _pauses(measured: Measurements, thresholds: Thresholds) -> dict[Owner, Pauses]:
    """Find the pauses of every run and role that cost at least the limit of rule R29."""
    limit = thresholds.of("host-silence")
    busy_ratio = thresholds.values.get("low-gpu-utilization", limit)["busy_ratio"]
    elsewhere = _claimed_between_ops(measured, thresholds)
    paused: dict[Owner, Pauses] = {}
    caused, chores = idle_by_cause(measured), chore_keys(measured)
    for window in stage_windows(measured):
        if window.key in chores:
            continue
        before = paused.setdefault(window.owner, Pauses(0, 0, 0, [], {}))
        silent, code, short = (
            caused.get((*window.key, cause), 0) for cause in (*PAUSING, "host_none")
        )
        is_claimed = window.key in elsewhere or (*window.key[:2], None) in elsewhere
        if is_claimed or not _are_many(window, short, limit["short_ratio"], busy_ratio):
            short = 0
        if silent + code + short and is_silence(window):
            paused[window.owner] = before._replace(
                silent_ns=before.silent_ns + silent,
                code_ns=before.code_ns + code,
                short_ns=before.short_ns + short,
                windows=[*before.windows, window],
                stages={**before.stages, window.key: silent + code + short},
            )
    for owner, (silent, code) in _outside_edges(measured, thresholds).items():
        before = paused.setdefault(owner, Pauses(0, 0, 0, [], {}))
        paused[owner] = before._replace(
            silent_ns=before.silent_ns + silent,
            code_ns=before.code_ns + code,
            outside_ns=silent + code,
        )
    existing = gpu_steps(measured)
    costly = {}
    for owner, lost in paused.items():
        steps = existing.get(owner, NO_STEPS)
        total, ratio = steps.per_step(lost.total_ns)
        if total and ratio is not None and ratio >= limit["step_ratio"]:
            costly[owner] = lost
    return costly


def _outside_edges(measured: Measurements, thresholds: Thresholds) -> dict[Owner, Outside]:
    """Sum the pauses outside stages, where rule R15 does not count the time between stages."""
    if not measured.has("idle"):
        return {}
    at_edges: Mapping[Owner, object] = {}
    if {"host-sync-stalls", "stage-edge-idle"} <= thresholds.values.keys() and measured.has(
        "stage_edges"
    ):
        rows = edge_rows(measured, thresholds.of("host-sync-stalls"))
        at_edges = idle_at_edges(measured, rows, thresholds.of("stage-edge-idle"))
    outside = idle_outside_stages(measured).items()
    return {
        owner: lost
        for owner, lost in outside
        if owner not in at_edges and lost.silent_ns + lost.code_ns
    }


def collection_idle(measured: Measurements) -> dict[Owner, int]:
    """Sum the idle time during recorded garbage collection over GPU steps, by run and role."""
    if not measured.has("idle"):
        return {}
    idle = whole(measured, "idle")
    return step_sums(measured, idle[idle["cause"] == "host_gc"], "idle_ns")


def waited_for_pauses(measured: Measurements, owner: Owner, lost: Pauses) -> int:
    """Sum the waits of ranks in collectives for others that pause longer, over all steps."""
    if not lost.stages:
        return 0
    idle = placed(measured, "idle")
    stages = {key[2] for key in lost.stages}
    is_lost = idle["canonical"].isin(list(stages - {None})).to_numpy(np.bool_)
    if None in stages:
        is_lost = is_lost | idle["canonical"].isna().to_numpy(np.bool_)
    is_pause = idle["cause"].isin(PAUSING).to_numpy(np.bool_)
    return waited_for(measured, owner[0], idle[is_lost & is_pause], owner[1])


def waited_for_collections(measured: Measurements, owner: Owner) -> int:
    """Sum the waits of ranks in collectives for others that collect garbage longer."""
    if not measured.has("idle"):
        return 0
    idle = placed(measured, "idle")
    collecting = idle[(idle["cause"] == "host_gc").to_numpy(np.bool_)]
    return waited_for(measured, owner[0], collecting, owner[1])


def _of_run(rows: pd.DataFrame, run: object, role: str | None) -> pd.DataFrame:
    """Select the rows of a run, of one role or of all."""
    rows = rows[same_text(rows["run"], run)]
    return rows if role is ANY_ROLE else rows[same_text(rows["role"], role)]


def waited_for(
    measured: Measurements, run: object, paused: pd.DataFrame, role: str | None = ANY_ROLE
) -> int:
    """Sum the waits of a run's ranks in collectives for others whose `paused` rows are longer, over all steps.

    `paused` has `idle_ns` by unit, `canonical` and `rank`. With a role only its ranks count. A wait counts up to the
    extra pause of the late rank in the stage to which the wait is attributed.
    """
    paused, idle = (_of_run(rows, run, role) for rows in (paused, placed(measured, "idle")))
    if not len(paused) or not measured.has("segments"):
        return 0
    booked = _of_run(waits(measured).booked, run, role)
    booked = booked.rename(columns={"stage": "waiting_in", "cause": "canonical"})
    # Ranks of damaged files wait too, but their steps are not among those that the sum is divided by.
    booked = booked[is_among(booked, distinct(idle, ["rank"]), ["rank"])]
    if not len(booked):
        return 0
    unit = _unit_of_ranks(idle)
    keys = [*unit, "canonical", "rank"]
    paused = summed(paused, keys, ["idle_ns"])
    pairs = summed(booked, [*keys, "late_rank"], ["lost_ns"])
    of_rank, of_late = (
        looked_up(
            pairs[columns].set_axis(keys, axis=1), paused, keys, optional=[*unit, "canonical"]
        )
        for columns in (keys, [*unit, "canonical", "late_rank"])
    )
    own_ns, late_ns = (part["idle_ns"].fillna(0).to_numpy(np.int64) for part in (of_rank, of_late))
    waited_ns = pairs["lost_ns"].to_numpy(np.int64)
    return int(np.minimum(waited_ns, np.maximum(late_ns - own_ns, 0)).sum())


def _unit_of_ranks(idle: pd.DataFrame) -> tuple[str, ...]:
    """Choose the keys of rank steps: the role too, where two roles use one rank number."""
    has_one_role = len(distinct(idle, ["rank"])) == len(distinct(idle, ["rank", "role"]))
    return UNIT if has_one_role else (*UNIT, "role")


NEARLY_ALL = 0.9
"""Pauses are in a few steps if these have at least this share of their time."""


def pausing_steps(measured: Measurements, owner: Owner, lost: Pauses) -> set[int]:
    """Find the steps with nearly all silence and code of these pauses; empty if they are half of all steps or more."""
    rows = placed(measured, "idle")
    rows = rows[same_text(rows["run"], owner[0]) & same_text(rows["role"], owner[1])]
    where, first = of_keys(rows, WHERE)
    is_stage = [keyed(row) in lost.stages for row in row_dicts(rows[[*WHERE]].iloc[first])]
    is_lost = np.array([*is_stage, False], np.bool_)[where]
    is_lost = is_lost & rows["cause"].isin(PAUSING).to_numpy(np.bool_)
    step, first = of_keys(rows, ["step"])
    paused = np.bincount(step, np.where(is_lost, rows["idle_ns"], 0), len(first))
    is_long = paused >= 0.5 * paused.max(initial=0.0)
    steps = rows["step"].iloc[first[is_long]]
    is_few = 2 * len(steps) < len(first) and bool(steps.notna().all())
    if not is_few or paused[is_long].sum() < NEARLY_ALL * max(float(paused.sum()), 1.0):
        return set()
    return set(steps.astype(int))


def _are_many(window: StageWindow, short_ns: int, short_ratio: float, busy_ratio: float) -> bool:
    """Check whether short pauses are much of a stage whose GPUs are busy enough not to be judged as idle."""
    is_busy = (window.gpu_time["busy_ratio"] or 0.0) >= busy_ratio
    return is_busy and (window.per_step(short_ns)[1] or 0.0) >= short_ratio


def _claimed_between_ops(measured: Measurements, thresholds: Thresholds) -> set[tuple[object, ...]]:
    """List the stages (None: the step and all its stages) in which R02, R03 or R15 count time between ops."""
    keys: set[tuple[object, ...]] = set()
    asked = thresholds.values
    if "launch-bound" in asked and measured.has("host_counts"):
        keys |= bound_stages(measured, thresholds)
    if "host-sync-stalls" in asked and measured.has("sync_stalls"):
        limit = thresholds.of("host-sync-stalls")
        keys.update(calls.window.key for calls in sync_bound(measured, limit))
    if {"host-sync-stalls", "stage-edge-idle"} <= asked.keys() and measured.has("stage_edges"):
        rows = edge_rows(measured, asked["host-sync-stalls"])
        waiting = idle_at_edges(measured, rows, thresholds.of("stage-edge-idle"))
        if waiting:
            _, first = of_keys(rows, _FOLLOWED)
            followed = records(rows[_FOLLOWED].iloc[first], _FOLLOWED)
            keys.update(key for key in followed if key[:2] in waiting)
    return keys


_FOLLOWED = ["run", "role", "next_canonical"]
"""Key of the stage after an edge."""


def edge_rows(measured: Measurements, sync_limit: Mapping[str, float]) -> pd.DataFrame:
    """List the edges between stages, with the idle time at them that no other rule explains.

    Adds canonical and next_canonical, claimed_ns with its parts host_ns and unseen_ns, and inside_ns, the part of
    claimed_ns in the next stage.
    """
    rows = staged(whole(measured, "stage_edges"))
    rows = staged(rows, "next_stage", "next_canonical").reset_index(drop=True)
    bound = {held_up.window.key for held_up in sync_bound(measured, sync_limit)}
    number, first = of_keys(rows, _FOLLOWED)
    followed = records(rows[_FOLLOWED].iloc[first], _FOLLOWED)
    synced = np.array([*map(bound.__contains__, followed), False], bool)[number]
    rows["after_sync_ns"] = rows["after_sync_ns"].where(synced, 0)
    rows["inside_ns"] = rows["inside_ns"].fillna(rows["after_sync_ns"]) - rows["after_sync_ns"]
    rows["claimed_ns"] = rows["idle_ns"] - rows["explained_ns"] - rows["after_sync_ns"]
    assert (rows["claimed_ns"] >= 0).all(), "what is explained must be idle"
    rows["host_ns"] = np.minimum(rows["host_ns"], rows["claimed_ns"])
    rows["unseen_ns"] = rows["claimed_ns"] - rows["host_ns"]
    return rows


def idle_at_edges(
    measured: Measurements, rows: pd.DataFrame, limit: Mapping[str, float]
) -> dict[Owner, tuple[float, float]]:
    """Find the (run, role) for which rule R15 fires: (idle ns per step and GPU, share of the step)."""
    existing = gpu_steps(measured)
    waiting = {}
    for owner in owners_of(rows)[0]:
        at_edges = rows[same_text(rows["run"], owner[0]) & same_text(rows["role"], owner[1])]
        total = int(at_edges["claimed_ns"].sum())
        idle, ratio = existing.get(owner, NO_STEPS).per_step(total)
        if ratio is not None and ratio >= limit["step_ratio"]:
            waiting[owner] = (idle, ratio)
    return waiting
