"""Idle time of the judged windows by cause, and the pauses, edges and waits of hosts that explain it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import (
    UNIT,
    aggregate_by_keys,
    find_equal_rows,
    select_distinct_rows,
    select_staged_rows,
    sum_columns_by_keys,
    to_text_or_none,
)
from tracekit.job.idle_time.host_syncs import find_sync_bound_stages
from tracekit.job.idle_time.launching import list_launch_bound_keys
from tracekit.job.stages.periodic import list_chore_keys
from tracekit.job.stages.windows import (
    NO_STEPS,
    STAGE_KEY,
    Owner,
    StageWindow,
    count_gpu_steps,
    list_judged_rows,
    list_stage_windows,
    make_stage_key,
    number_stage_owners,
    read_undamaged_table,
    sum_judged_steps,
)
from tracekit.job.steps.steady_steps import MARKED_ORIGINS
from tracekit.job.stragglers.collective_waits import attribute_collective_waits
from tracekit.model.records import dataclass
from tracekit.model.tables.keys import (
    CAPTURE,
    group_rows_by,
    iterate_records,
    left_join,
    list_row_dicts,
    mask_matching_rows,
)
from tracekit.model.thresholds import Thresholds, load_shared_thresholds
from tracekit.model.trace import Measurements
from tracekit.process.idle_time.causes import IdleTime

DAMAGED_REASON = "every source with GPU activity is damaged: what is missing would look idle"


def make_idle_time_measurement() -> IdleTime:
    """Make the measurement of idle time with the default limits, which judging cannot change."""
    values = load_shared_thresholds().values
    return IdleTime(int(values["idle-causes"]["kernel_wait_ns"]), int(values["host-silence"]["silence_ns"]))


ANY_ROLE = "*"
"""All roles of a run."""

PAUSE_CAUSES = ("host_silent", "host_code")
"""Causes of idle time in which the host launches nothing for long: no activity, or no op, is recorded."""


class HostPauses(NamedTuple):
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


def sum_idle_rows_by_cause(rows: pd.DataFrame) -> dict[tuple[object, ...], int]:
    """Sum idle time by run, role, stage and cause."""
    if not len(rows):
        return {}
    sums = sum_columns_by_keys(rows, [*STAGE_KEY, "cause"], ["idle_ns"])
    return {(*make_stage_key(r), r["cause"]): int(r["idle_ns"]) for r in list_row_dicts(sums)}


def sum_judged_idle_by_cause(measured: Measurements) -> dict[tuple[object, ...], int]:
    """Sum the idle time of the judged windows by run, role, stage and cause."""
    return measured.derived(_sum_judged_idle_by_cause)


def _sum_judged_idle_by_cause(measured: Measurements) -> dict[tuple[object, ...], int]:
    return sum_idle_rows_by_cause(list_judged_rows(measured, "idle"))


def is_silence_judged(window: StageWindow) -> bool:
    """Check whether a silent host counts in a window: in stages that feed a GPU, and in marked steps."""
    return window.works and window.origin != "file"


def find_host_pauses(measured: Measurements, thresholds: Thresholds) -> dict[Owner, HostPauses]:
    """Find the (run, role) for which rule R29 fires, with the idle time that pauses of the host cost.

    Silence and code count where `is_silence_judged`. Time between ops counts where there is much of it and rules R02, R03 and
    R15 do not count it. Do not change the result in place.
    """
    return measured.derived(_HostPauseSearch(thresholds))


@dataclass(frozen=True)
class _HostPauseSearch:
    """Function of measurements that is equal for equal thresholds, which makes `Measurements.derived` cache it."""

    thresholds: Thresholds

    def __call__(self, measured: Measurements) -> dict[Owner, HostPauses]:
        """Find the pauses of every run and role that cost at least the limit of rule R29."""
        limit = self.thresholds.of("host-silence")
        busy_ratio = self.thresholds.values.get("low-gpu-utilization", limit)["busy_ratio"]
        elsewhere = _list_stages_claimed_between_ops(measured, self.thresholds)
        paused: dict[Owner, HostPauses] = {}
        caused, chores = sum_judged_idle_by_cause(measured), list_chore_keys(measured)
        for window in list_stage_windows(measured):
            if window.key in chores:
                continue
            before = paused.setdefault(window.owner, HostPauses(0, 0, 0, [], {}))
            silent, code, short = (caused.get((*window.key, cause), 0) for cause in (*PAUSE_CAUSES, "host_none"))
            is_claimed = window.key in elsewhere or (*window.key[:2], None) in elsewhere
            if is_claimed or not _has_many_short_pauses(window, short, limit["short_ratio"], busy_ratio):
                short = 0
            if silent + code + short and is_silence_judged(window):
                paused[window.owner] = before._replace(
                    silent_ns=before.silent_ns + silent,
                    code_ns=before.code_ns + code,
                    short_ns=before.short_ns + short,
                    windows=[*before.windows, window],
                    stages={**before.stages, window.key: silent + code + short},
                )
        for owner, (silent, code) in _sum_pauses_outside_edges(measured, self.thresholds).items():
            before = paused.setdefault(owner, HostPauses(0, 0, 0, [], {}))
            paused[owner] = before._replace(
                silent_ns=before.silent_ns + silent, code_ns=before.code_ns + code, outside_ns=silent + code
            )
        existing = count_gpu_steps(measured)
        costly = {}
        for owner, lost in paused.items():
            steps = existing.get(owner, NO_STEPS)
            total, ratio = steps.per_step(lost.total_ns)
            if total and ratio is not None and ratio >= limit["step_ratio"]:
                costly[owner] = lost
        return costly


def _sum_pauses_outside_edges(measured: Measurements, thresholds: Thresholds) -> dict[Owner, IdleOutsideStages]:
    """Sum the pauses outside stages, where rule R15 does not count the time between stages."""
    if not measured.has("idle"):
        return {}
    at_edges: Mapping[Owner, object] = {}
    if {"host-sync-stalls", "stage-edge-idle"} <= thresholds.values.keys() and measured.has("stage_edges"):
        rows = list_edge_rows(measured, thresholds.of("host-sync-stalls"))
        at_edges = find_owners_idle_at_edges(measured, rows, thresholds.of("stage-edge-idle"))
    outside = sum_idle_outside_stages(measured).items()
    return {owner: lost for owner, lost in outside if owner not in at_edges and lost.silent_ns + lost.code_ns}


def sum_garbage_collection_idle(measured: Measurements) -> dict[Owner, int]:
    """Sum the idle time during recorded garbage collection over GPU steps, by run and role."""
    if not measured.has("idle"):
        return {}
    idle = read_undamaged_table(measured, "idle")
    return sum_judged_steps(measured, idle[idle["cause"] == "host_gc"], "idle_ns")


def sum_waits_for_pauses(measured: Measurements, owner: Owner, lost: HostPauses) -> int:
    """Sum the waits of ranks in collectives for others that pause longer, over all steps."""
    if not lost.stages:
        return 0
    idle = list_judged_rows(measured, "idle")
    stages = {key[2] for key in lost.stages}
    is_lost = idle["canonical"].isin(list(stages - {None})).to_numpy(np.bool_)
    if None in stages:
        is_lost = is_lost | idle["canonical"].isna().to_numpy(np.bool_)
    is_pause = idle["cause"].isin(PAUSE_CAUSES).to_numpy(np.bool_)
    return sum_waits_for_paused_ranks(measured, owner[0], idle[is_lost & is_pause], owner[1])


def sum_waits_for_garbage_collection(measured: Measurements, owner: Owner) -> int:
    """Sum the waits of ranks in collectives for others that collect garbage longer."""
    if not measured.has("idle"):
        return 0
    idle = list_judged_rows(measured, "idle")
    collecting = idle[(idle["cause"] == "host_gc").to_numpy(np.bool_)]
    return sum_waits_for_paused_ranks(measured, owner[0], collecting, owner[1])


def _select_rows_of_run_and_role(rows: pd.DataFrame, run: object, role: str | None) -> pd.DataFrame:
    """Select the rows of a run, of one role or of all."""
    rows = rows[find_equal_rows(rows["run"], run)]
    return rows if role is ANY_ROLE else rows[find_equal_rows(rows["role"], role)]


def sum_waits_for_paused_ranks(
    measured: Measurements, run: object, paused: pd.DataFrame, role: str | None = ANY_ROLE
) -> int:
    """Sum the waits of a run's ranks in collectives for others whose `paused` rows are longer, over all steps.

    `paused` has `idle_ns` by unit, `canonical` and `rank`. With a role only its ranks count. A wait counts up to the
    extra pause of the late rank in the stage to which the wait is attributed.
    """
    paused, idle = (
        _select_rows_of_run_and_role(rows, run, role) for rows in (paused, list_judged_rows(measured, "idle"))
    )
    if not len(paused) or not measured.has("segments"):
        return 0
    booked = _select_rows_of_run_and_role(attribute_collective_waits(measured).booked, run, role)
    booked = booked.rename(columns={"stage": "waiting_in", "cause": "canonical"})
    # Ranks of damaged files wait too, but their steps are not among those that the sum is divided by.
    booked = booked[mask_matching_rows(booked, select_distinct_rows(idle, ["rank"]), ["rank"])]
    if not len(booked):
        return 0
    unit = _choose_unit_columns_of_ranks(idle)
    keys = [*unit, "canonical", "rank"]
    paused = sum_columns_by_keys(paused, keys, ["idle_ns"])
    pairs = sum_columns_by_keys(booked, [*keys, "late_rank"], ["lost_ns"])
    of_rank, of_late = (
        left_join(pairs[columns].set_axis(keys, axis=1), paused, keys, optional=[*unit, "canonical"])
        for columns in (keys, [*unit, "canonical", "late_rank"])
    )
    own_ns, late_ns = (part["idle_ns"].fillna(0).to_numpy(np.int64) for part in (of_rank, of_late))
    waited_ns = pairs["lost_ns"].to_numpy(np.int64)
    return int(np.minimum(waited_ns, np.maximum(late_ns - own_ns, 0)).sum())


def _choose_unit_columns_of_ranks(idle: pd.DataFrame) -> tuple[str, ...]:
    """Choose the keys of rank steps: the role too, where two roles use one rank number."""
    has_one_role = len(select_distinct_rows(idle, ["rank"])) == len(select_distinct_rows(idle, ["rank", "role"]))
    return UNIT if has_one_role else (*UNIT, "role")


NEARLY_ALL = 0.9
"""Pauses are in a few steps if these have at least this share of their time."""


def find_pausing_steps(measured: Measurements, owner: Owner, lost: HostPauses) -> set[int]:
    """Find the steps with nearly all silence and code of these pauses; empty if they are half of all steps or more."""
    rows = list_judged_rows(measured, "idle")
    rows = rows[find_equal_rows(rows["run"], owner[0]) & find_equal_rows(rows["role"], owner[1])]
    where, first = group_rows_by(rows, STAGE_KEY)
    is_stage = [make_stage_key(row) in lost.stages for row in list_row_dicts(rows[[*STAGE_KEY]].iloc[first])]
    is_lost = np.array([*is_stage, False], np.bool_)[where]
    is_lost = is_lost & rows["cause"].isin(PAUSE_CAUSES).to_numpy(np.bool_)
    step, first = group_rows_by(rows, ["step"])
    paused = np.bincount(step, np.where(is_lost, rows["idle_ns"], 0), len(first))
    is_long = paused >= 0.5 * paused.max(initial=0.0)
    steps = rows["step"].iloc[first[is_long]]
    is_few = 2 * len(steps) < len(first) and bool(steps.notna().all())
    if not is_few or paused[is_long].sum() < NEARLY_ALL * max(float(paused.sum()), 1.0):
        return set()
    return set(steps.astype(int))


def _has_many_short_pauses(window: StageWindow, short_ns: int, short_ratio: float, busy_ratio: float) -> bool:
    """Check whether short pauses are much of a stage whose GPUs are busy enough not to be judged as idle."""
    is_busy = (window.gpu_time["busy_ratio"] or 0.0) >= busy_ratio
    return is_busy and (window.per_step(short_ns)[1] or 0.0) >= short_ratio


def _list_stages_claimed_between_ops(measured: Measurements, thresholds: Thresholds) -> set[tuple[object, ...]]:
    """List the stages (None: the step and all its stages) in which R02, R03 or R15 count time between ops."""
    keys: set[tuple[object, ...]] = set()
    asked = thresholds.values
    if "launch-bound" in asked and measured.has("host_counts"):
        keys |= list_launch_bound_keys(measured, thresholds)
    if "host-sync-stalls" in asked and measured.has("sync_stalls"):
        limit = thresholds.of("host-sync-stalls")
        keys.update(calls.window.key for calls in find_sync_bound_stages(measured, limit))
    if {"host-sync-stalls", "stage-edge-idle"} <= asked.keys() and measured.has("stage_edges"):
        rows = list_edge_rows(measured, asked["host-sync-stalls"])
        waiting = find_owners_idle_at_edges(measured, rows, thresholds.of("stage-edge-idle"))
        if waiting:
            _, first = group_rows_by(rows, _FOLLOWED)
            followed = iterate_records(rows[_FOLLOWED].iloc[first], _FOLLOWED)
            keys.update(key for key in followed if key[:2] in waiting)
    return keys


_FOLLOWED = ["run", "role", "next_canonical"]
"""Key of the stage after an edge."""


def list_edge_rows(measured: Measurements, sync_limit: Mapping[str, float]) -> pd.DataFrame:
    """List the edges between stages, with the idle time at them that no other rule explains.

    Adds canonical and next_canonical, claimed_ns with its parts host_ns and unseen_ns, and inside_ns, the part of
    claimed_ns in the next stage.
    """
    rows = select_staged_rows(read_undamaged_table(measured, "stage_edges"))
    rows = select_staged_rows(rows, "next_stage", "next_canonical").reset_index(drop=True)
    bound = {held_up.window.key for held_up in find_sync_bound_stages(measured, sync_limit)}
    number, first = group_rows_by(rows, _FOLLOWED)
    followed = iterate_records(rows[_FOLLOWED].iloc[first], _FOLLOWED)
    synced = np.array([*(key in bound for key in followed), False], bool)[number]
    rows["after_sync_ns"] = rows["after_sync_ns"].where(synced, 0)
    rows["inside_ns"] = rows["inside_ns"].fillna(rows["after_sync_ns"]) - rows["after_sync_ns"]
    rows["claimed_ns"] = rows["idle_ns"] - rows["explained_ns"] - rows["after_sync_ns"]
    assert (rows["claimed_ns"] >= 0).all(), "what is explained must be idle"
    rows["host_ns"] = np.minimum(rows["host_ns"], rows["claimed_ns"])
    rows["unseen_ns"] = rows["claimed_ns"] - rows["host_ns"]
    return rows


def find_owners_idle_at_edges(
    measured: Measurements, rows: pd.DataFrame, limit: Mapping[str, float]
) -> dict[Owner, tuple[float, float]]:
    """Find the (run, role) for which rule R15 fires: (idle ns per step and GPU, share of the step)."""
    existing = count_gpu_steps(measured)
    waiting = {}
    for owner in number_stage_owners(rows)[0]:
        at_edges = rows[find_equal_rows(rows["run"], owner[0]) & find_equal_rows(rows["role"], owner[1])]
        total = int(at_edges["claimed_ns"].sum())
        idle, ratio = existing.get(owner, NO_STEPS).per_step(total)
        if ratio is not None and ratio >= limit["step_ratio"]:
            waiting[owner] = (idle, ratio)
    return waiting


AFTER_LAST = "after_last"
"""Cause of idle time after the last device op of a recording."""

_GPU_STEP = [*CAPTURE, "device", "step"]


class IdleOutsideStages(NamedTuple):
    """Idle time outside stages with no host activity (`silent_ns`) or no op (`code_ns`) recorded: sums over steps."""

    silent_ns: int
    code_ns: int


def sum_idle_outside_stages(measured: Measurements) -> dict[Owner, IdleOutsideStages]:
    """Sum the idle time of host pauses outside stages, by run and role with stages and marked steps.

    Step marks show that one program runs the steps. Elsewhere, time between stages may belong to other processes. Empty if
    only some stages were requested.
    """
    if measured.facts.stages:
        return {}
    return measured.derived(_sum_idle_outside_stages)


def _sum_idle_outside_stages(measured: Measurements) -> dict[Owner, IdleOutsideStages]:
    in_stages = list_judged_rows(measured, "idle")
    in_stages = in_stages[(in_stages["canonical"].notna() & in_stages["step"].notna()).to_numpy(np.bool_)]
    steps = _select_marked_idle_rows(measured)
    if not len(in_stages) or not len(steps):
        return {}
    by_cause = {}
    for cause in ("host_silent", "host_code", AFTER_LAST):
        sums = [
            aggregate_by_keys(rows[(rows["cause"] == cause).to_numpy(np.bool_)], _GPU_STEP, ns=("idle_ns", "sum"))
            for rows in (steps, in_stages)
        ]
        by_cause[cause] = sums
    gpu_steps = sum_columns_by_keys(steps, ["run", "role", *_GPU_STEP], ["idle_ns"])
    left = {cause: _subtract_stage_idle(gpu_steps, *sums) for cause, sums in by_cause.items()}
    outside = {}
    owners, number = number_stage_owners(gpu_steps)
    for place, owner in enumerate(owners):
        stages = in_stages[find_equal_rows(in_stages["run"], owner[0]) & find_equal_rows(in_stages["role"], owner[1])]
        if len(stages):
            rows = number == place
            of_owner = {cause: ns[rows] for cause, ns in left.items()}
            outside[owner[0], to_text_or_none(owner[1])] = _sum_with_last_step(of_owner)
    return outside


def _select_marked_idle_rows(measured: Measurements) -> pd.DataFrame:
    """Select the idle time of steps that the profiler or the program marks."""
    rows, steps = read_undamaged_table(measured, "idle"), measured["steps"]
    rows = rows[(rows["window"] == "step").to_numpy(np.bool_)]
    marked = steps[steps["origin"].isin(MARKED_ORIGINS).to_numpy(np.bool_)]
    return rows[mask_matching_rows(rows, marked, CAPTURE)]


def _subtract_stage_idle(
    gpu_steps: pd.DataFrame, in_step: pd.DataFrame, in_stages: pd.DataFrame
) -> npt.NDArray[np.int64]:
    """Subtract the idle time of stages from that of each GPU step; 0 where stages reach beyond their step."""
    optional = ["pid", "device", "step"]
    of_step, of_stages = (
        left_join(gpu_steps[_GPU_STEP], sums, _GPU_STEP, optional=optional)["ns"].fillna(0).to_numpy(np.int64)
        for sums in (in_step, in_stages)
    )
    left: npt.NDArray[np.int64] = np.maximum(of_step - of_stages, 0)
    return left


def _sum_with_last_step(left: dict[str, npt.NDArray[np.int64]]) -> IdleOutsideStages:
    """Sum the steps of an owner's GPUs.

    After the last device op of a recording the reason for idling is unknown. The last step counts as much of that time as
    the other steps pause.
    """
    silent, code = (left[cause] for cause in ("host_silent", "host_code"))
    is_last = left[AFTER_LAST] > 0
    others = (silent + code)[~is_last]
    usual = int(np.median(others)) if len(others) else 0
    more = np.minimum(left[AFTER_LAST], np.maximum(usual - silent - code, 0))[is_last].sum()
    is_silent = int(silent.sum()) >= int(code.sum())
    return IdleOutsideStages(int(silent.sum()) + int(more) * is_silent, int(code.sum()) + int(more) * (not is_silent))
