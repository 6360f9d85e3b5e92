"""Idle time of the judged windows by cause, and the pauses, edges and waits of hosts that explain it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tracekit.job.frames import UNIT, name_stages
from tracekit.job.idle_time.host_syncs import list_judged_sync_bound_keys, list_sync_bound_keys
from tracekit.job.idle_time.launching import list_launch_bound_keys
from tracekit.job.stages.periodic import list_chore_keys
from tracekit.job.stages.windows import (
    NO_STEPS,
    STAGE_KEY,
    Owner,
    StageWindow,
    count_gpu_steps,
    find_rows_of_owners,
    list_owners,
    list_rows_of_windows,
    list_stage_windows,
    list_undamaged_rows,
    sum_column_over_steps,
)
from tracekit.job.steps.steady_steps import MARKED_ORIGINS
from tracekit.job.stragglers.collective_waits import attribute_collective_waits
from tracekit.model.records import dataclass
from tracekit.model.tables.frame import Bools, Frame, from_rows, sum_of
from tracekit.model.tables.keys import CAPTURE, Ints
from tracekit.model.thresholds import Thresholds, load_shared_thresholds
from tracekit.model.trace import Measurements, derive_once
from tracekit.process.idle_time.causes import IdleTime

DAMAGED_REASON = "every source with GPU activity is damaged: missing rows would look idle"


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


def sum_idle_rows_by_cause(rows: Frame) -> dict[tuple[object, ...], int]:
    """Sum idle time by run, role, stage and cause."""
    sums = rows.group_by(*STAGE_KEY, "cause").agg(idle_ns=sum_of("idle_ns"))
    keys = zip(*(sums.values(name) for name in (*STAGE_KEY, "cause")), strict=True)
    return dict(zip(keys, sums.values("idle_ns"), strict=True))


@derive_once
def sum_judged_idle_by_cause(measured: Measurements) -> dict[tuple[object, ...], int]:
    """Sum the idle time of the judged windows by run, role, stage and cause."""
    return sum_idle_rows_by_cause(list_rows_of_windows(measured, "idle"))


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
    idle = list_undamaged_rows(measured, "idle")
    return sum_column_over_steps(measured, idle.filter(idle.equals("cause", "host_gc")), "idle_ns")


def sum_waits_for_pauses(measured: Measurements, owner: Owner, lost: HostPauses) -> int:
    """Sum the waits of ranks in collectives for others that pause longer, over all steps."""
    idle = list_rows_of_windows(measured, "idle")
    is_pause = find_rows_of_pauses(idle, lost) & idle.is_in("cause", PAUSE_CAUSES)
    return sum_waits_for_paused_ranks(measured, owner[0], idle.filter(is_pause), owner[1])


def find_rows_of_pauses(rows: Frame, lost: HostPauses) -> Bools:
    """Find the rows of the stages with these pauses."""
    stages = from_rows(STAGE_KEY, [window.key for window in lost.windows])
    return rows.is_among(stages, STAGE_KEY, optional=STAGE_KEY)


def sum_waits_for_garbage_collection(measured: Measurements, owner: Owner) -> int:
    """Sum the waits of ranks in collectives for others that collect garbage longer."""
    if not measured.has("idle"):
        return 0
    idle = list_rows_of_windows(measured, "idle")
    return sum_waits_for_paused_ranks(measured, owner[0], idle.filter(idle.equals("cause", "host_gc")), owner[1])


def _select_rows_of_run_and_role(rows: Frame, run: str | None, role: str | None) -> Frame:
    """Select the rows of a run, of one role or of all."""
    rows = rows.filter(rows.equals("run", run))
    return rows if role is ANY_ROLE else rows.filter(rows.equals("role", role))


def sum_waits_for_paused_ranks(
    measured: Measurements, run: str | None, paused: Frame, role: str | None = ANY_ROLE
) -> int:
    """Sum the waits of a run's ranks in collectives for others whose `paused` rows are longer, over all steps.

    `paused` has `idle_ns` by unit, `canonical` and `rank`. With a role only its ranks count. A wait counts up to the
    extra pause of the late rank in the stage to which the wait is attributed.
    """
    paused = _select_rows_of_run_and_role(paused, run, role)
    if not len(paused) or not measured.has("segments"):
        return 0
    idle = _select_rows_of_run_and_role(list_rows_of_windows(measured, "idle"), run, role)
    booked = _select_rows_of_run_and_role(attribute_collective_waits(measured).booked, run, role)
    # Ranks of damaged files wait too, but their steps are not among those that the sum is divided by.
    booked = booked.filter(booked.is_among(idle, ["rank"], optional=["rank"]))
    unit = _choose_unit_columns_of_ranks(idle)
    keys, optional = (*unit, "canonical", "rank"), (*unit, "canonical")
    paused = paused.group_by(*keys).agg(paused_ns=sum_of("idle_ns"))
    pairs = booked.with_columns(canonical=booked["cause"]).group_by(*keys, "late_rank").agg(lost_ns=sum_of("lost_ns"))
    own_ns = pairs.join(paused, keys, "left", optional).integers("paused_ns")
    late = pairs.with_columns(rank=pairs["late_rank"])
    late_ns = late.join(paused, keys, "left", optional).integers("paused_ns")
    return int(np.minimum(pairs["lost_ns"], np.maximum(late_ns - own_ns, 0)).sum())


def _choose_unit_columns_of_ranks(idle: Frame) -> tuple[str, ...]:
    """Choose the keys of rank steps: the role too, where two roles use one rank number."""
    has_one_role = len(idle.group_by("rank")) == len(idle.group_by("rank", "role"))
    return UNIT if has_one_role else (*UNIT, "role")


NEARLY_ALL = 0.9
"""Pauses are in a few steps if these have at least this share of their time."""


def find_pausing_steps(measured: Measurements, owner: Owner, lost: HostPauses) -> set[int]:
    """Find the steps with nearly all silence and code of these pauses; empty if they are half of all steps or more."""
    rows = list_rows_of_windows(measured, "idle")
    rows = rows.filter(find_rows_of_owners(rows, [owner]))
    is_pause = find_rows_of_pauses(rows, lost) & rows.is_in("cause", PAUSE_CAUSES)
    by_step = rows.group_by("step").agg(paused_ns=sum_of(np.where(is_pause, rows["idle_ns"], 0)))
    paused_ns = by_step["paused_ns"]
    steps = by_step.filter(paused_ns >= 0.5 * paused_ns.max(initial=0))
    is_few = 2 * len(steps) < len(by_step) and not steps.is_missing("step").any()
    if not is_few or steps["paused_ns"].sum() < NEARLY_ALL * max(paused_ns.sum(), 1):
        return set()
    return set(steps.values("step"))


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
    keys |= list_judged_sync_bound_keys(measured, thresholds)
    if {"host-sync-stalls", "stage-edge-idle"} <= asked.keys() and measured.has("stage_edges"):
        rows = list_edge_rows(measured, asked["host-sync-stalls"])
        waiting = find_owners_idle_at_edges(measured, rows, thresholds.of("stage-edge-idle"))
        for row in rows.distinct(*_FOLLOWED).rows(*_FOLLOWED):
            run, role, stage = row.values()
            if (run, role) in waiting:
                keys.add((run, role, stage))
    return keys


_FOLLOWED = ("run", "role", "next_canonical")
"""Key of the stage after an edge."""


def list_edge_rows(measured: Measurements, sync_limit: Mapping[str, float]) -> Frame:
    """List the edges between stages, with the idle time at them that no other rule explains.

    Adds canonical and next_canonical, claimed_ns with its parts host_ns and unseen_ns, and inside_ns, the part of
    claimed_ns in the next stage.
    """
    rows = list_undamaged_rows(measured, "stage_edges")
    rows = rows.with_columns(canonical=name_stages(rows), next_canonical=name_stages(rows, "next_stage"))
    rows = rows.filter(~rows.is_missing("canonical") & ~rows.is_missing("next_canonical"))
    bound = list_sync_bound_keys(measured, sync_limit)
    by_stage = rows.group_by(*_FOLLOWED)
    is_bound = np.array([tuple(row.values()) in bound for row in by_stage.agg().rows()], np.bool_)
    after_sync_ns = np.where(is_bound[by_stage.number], rows["after_sync_ns"], 0)
    inside_ns = np.where(rows.is_missing("inside_ns"), 0, rows.integers("inside_ns") - after_sync_ns)
    claimed_ns = rows["idle_ns"] - rows["explained_ns"] - after_sync_ns
    assert (claimed_ns >= 0).all(), "what is explained must be idle"
    host_ns = np.minimum(rows["host_ns"], claimed_ns)
    return rows.with_columns(
        after_sync_ns=after_sync_ns,
        inside_ns=inside_ns,
        claimed_ns=claimed_ns,
        host_ns=host_ns,
        unseen_ns=claimed_ns - host_ns,
    )


def find_owners_idle_at_edges(
    measured: Measurements, rows: Frame, limit: Mapping[str, float]
) -> dict[Owner, tuple[float, float]]:
    """Find the (run, role) for which rule R15 fires: (idle ns per step and GPU, share of the step)."""
    existing = count_gpu_steps(measured)
    sums = rows.group_by("run", "role").agg(claimed_ns=sum_of("claimed_ns"))
    waiting = {}
    for owner, total in zip(list_owners(sums), sums.values("claimed_ns"), strict=True):
        idle, ratio = existing.get(owner, NO_STEPS).per_step(total)
        if ratio is not None and ratio >= limit["step_ratio"]:
            waiting[owner] = (idle, ratio)
    return waiting


AFTER_LAST = "after_last"
"""Cause of idle time after the last device op of a recording."""

_GPU_STEP = (*CAPTURE, "device", "step")


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
    in_stages = list_rows_of_windows(measured, "idle")
    in_stages = in_stages.filter(~in_stages.is_missing("canonical") & ~in_stages.is_missing("step"))
    steps = _select_marked_idle_rows(measured)
    gpu_steps = steps.distinct("run", "role", *_GPU_STEP)
    left = {cause: _subtract_stage_idle(gpu_steps, steps, in_stages, cause) for cause in (*PAUSE_CAUSES, AFTER_LAST)}
    gpu_steps = gpu_steps.select("run", "role").with_columns(**left)
    gpu_steps = gpu_steps.filter(find_rows_of_owners(gpu_steps, list_owners(in_stages.distinct("run", "role"))))
    owners = list_owners(gpu_steps.distinct("run", "role"))
    frames = gpu_steps.group_by("run", "role").frames()
    return {owner: _sum_with_last_step(of_owner) for owner, of_owner in zip(owners, frames, strict=True)}


def _select_marked_idle_rows(measured: Measurements) -> Frame:
    """Select the idle time of steps that the profiler or the program marks."""
    rows, steps = list_undamaged_rows(measured, "idle"), measured.frame("steps")
    marked = steps.filter(steps.is_in("origin", MARKED_ORIGINS))
    return rows.filter(rows.equals("window", "step") & rows.is_among(marked, CAPTURE, optional=CAPTURE))


def _subtract_stage_idle(gpu_steps: Frame, steps: Frame, in_stages: Frame, cause: str) -> Ints:
    """Subtract the idle time of stages from that of each GPU step; 0 where stages reach beyond their step."""
    of_step, of_stages = (
        _sum_idle_by_gpu_step(gpu_steps, rows.filter(rows.equals("cause", cause))) for rows in (steps, in_stages)
    )
    left: Ints = np.maximum(of_step - of_stages, 0)
    return left


def _sum_idle_by_gpu_step(gpu_steps: Frame, rows: Frame) -> Ints:
    """Sum the idle time of these rows for each GPU step; 0 where there is none."""
    sums = rows.group_by(*_GPU_STEP).agg(total_ns=sum_of("idle_ns"))
    steps = gpu_steps.select(*_GPU_STEP)
    return steps.join(sums, _GPU_STEP, "left", optional=("pid", "device", "step")).integers("total_ns")


def _sum_with_last_step(left: Frame) -> IdleOutsideStages:
    """Sum the steps of an owner's GPUs, with the idle time by cause of each.

    After the last device op of a recording the reason for idling is unknown. The last step counts as much of that time as
    the other steps pause.
    """
    silent, code = (left[cause] for cause in PAUSE_CAUSES)
    is_last = left[AFTER_LAST] > 0
    others = (silent + code)[~is_last]
    usual = int(np.median(others)) if len(others) else 0
    more = np.minimum(left[AFTER_LAST], np.maximum(usual - silent - code, 0))[is_last].sum()
    is_silent = int(silent.sum()) >= int(code.sum())
    return IdleOutsideStages(int(silent.sum()) + int(more) * is_silent, int(code.sum()) + int(more) * (not is_silent))
