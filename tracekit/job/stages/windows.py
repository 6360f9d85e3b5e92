"""Stage windows, the unit that rules judge: a stage, or the step where no stage is annotated, per recorded step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tracekit.job.frames import (
    STEP_ORIGINS,
    UNIT,
    clear_redundant_parts,
    divide_or_none,
    keep_undamaged_rows,
    list_stage_ranges,
    name_stages,
    phrase_run,
    summarize_step_walls,
)
from tracekit.job.gpu_shares import GPU_TIME_SUMS, append_gpu_time_shares
from tracekit.job.steps.start_up import find_run_start_ups
from tracekit.model.records import dataclass
from tracekit.model.report import Place
from tracekit.model.tables.frame import (
    Bools,
    Frame,
    concat,
    count_rows,
    divide,
    first_of,
    is_missing,
    mean_of,
    sum_of,
)
from tracekit.model.tables.keys import CAPTURE, IN_RUN, PROCESS
from tracekit.model.trace import Measurements, derive_once

STAGE_KEY = ("run", "role", "canonical")
"""Keys of a stage window: run, role and canonical stage (missing: the step)."""

Owner = tuple[str | None, str | None]
"""A run and a role."""

StageKey = tuple[str | None, str | None, str | None]
"""A run, a role and a canonical stage (None: the step)."""


@dataclass(frozen=True, slots=True)
class ExistingSteps:
    """The steps that were recorded, counted per process or GPU: `count`, and their mean wall.

    Ranks need not have the same steps: ranks times steps would count steps that nobody recorded.
    """

    count: int
    step_ns: float | None

    def mean(self, total: float) -> float:
        """Average a sum over all steps."""
        return total / max(self.count, 1)

    def per_step(self, total_ns: float) -> tuple[float, float | None]:
        """Average a sum over all steps: (mean per step, the same as a share of their mean wall)."""
        value = self.mean(total_ns)
        return value, divide_or_none(value, self.step_ns)


NO_STEPS = ExistingSteps(0, None)


@dataclass(frozen=True, slots=True)
class StageWindow:
    """One stage, or the step where no stage is annotated: sums over `steps` steps of single GPUs.

    `window_ns` is the length of the windows (None where only their work was measured). `gpu_time` has the sums of
    `GPU_TIME_SUMS` with their shares. `origin` is how the steps are known (None: a stage). `works` is whether the window gives
    a GPU anything to do.
    """

    run: str | None
    role: str | None
    canonical: str | None
    name: str
    steps: ExistingSteps
    window_ns: int | None = None
    origin: str | None = None
    works: bool = True
    gpu_time: Mapping[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def place(self) -> Place:
        """Run, role and stage of the window."""
        return Place(role=self.role, stage=self.canonical, run=self.run)

    @property
    def owner(self) -> Owner:
        """Run and role of the window."""
        return (self.run, self.role)

    @property
    def key(self) -> StageKey:
        """Run, role and stage of the window."""
        return (self.run, self.role, self.canonical)

    def per_step(self, total_ns: float) -> tuple[float, float | None]:
        """Average a sum over steps and GPUs: (mean, the same as a share of the step)."""
        return self.steps.per_step(total_ns)

    def share(self, total_ns: float) -> float:
        """Divide a sum over steps and GPUs by the length of the windows; 0 if they have none."""
        return divide_or_none(total_ns, self.window_ns) or 0.0


def list_undamaged_rows(measured: Measurements, table: str) -> Frame:
    """List the rows of a table from undamaged sources: in a damaged one, lost events look like idle time."""
    return keep_undamaged_rows(measured, measured.frame(table))


def list_rows_of_windows(measured: Measurements, table: str) -> Frame:
    """List the rows of the judged windows, with `canonical` and `origin`: stages, or steps where there are none.

    `origin` is how a step is known (profiler | file). Files that record one stage of a step are not steps.
    """
    return measured.derived(_RowsOfWindows(table))


@dataclass(frozen=True)
class _RowsOfWindows:
    """Function of measurements that is equal for equal tables, which makes `Measurements.derived` cache it."""

    table: str

    def __call__(self, measured: Measurements) -> Frame:
        """List the rows of the table."""
        rows = list_undamaged_rows(measured, self.table)
        with_stages = measured.derived(_find_staged_owners)
        named = rows.with_columns(canonical=name_stages(rows))
        is_stage = rows.equals("window", "stage") & ~named.is_missing("canonical")
        stages = named.filter(is_stage & find_rows_of_owners(rows, with_stages))
        steps = _list_judged_steps(measured, rows)
        steps = steps.filter(~find_rows_of_owners(steps, with_stages) & ~steps.equals("origin", "stage"))
        return concat([stages, rows.take(steps["place"]).with_columns(origin=steps["origin"])])


def sum_column_over_steps(measured: Measurements, rows: Frame, column: str) -> dict[Owner, int]:
    """Sum a column of windows over the steps that `count_gpu_steps` counts, by run and role."""
    return _sum_by_owner(rows.take(_list_judged_steps(measured, rows)["place"]), column)


def _sum_by_owner(rows: Frame, column: str) -> dict[Owner, int]:
    """Sum a column by run and role."""
    sums = rows.group_by("run", "role").agg(total=sum_of(column))
    return dict(zip(list_owners(sums), sums.values("total"), strict=True))


def list_owners(rows: Frame) -> list[Owner]:
    """List the (run, role) of each row."""
    return list(zip(rows.values("run"), rows.values("role"), strict=True))


def list_stage_keys(rows: Frame) -> list[StageKey]:
    """List the (run, role, canonical stage) of each row."""
    return list(zip(*(rows.values(name) for name in STAGE_KEY), strict=True))


def find_rows_of_owners(rows: Frame, owners: Collection[Owner]) -> Bools:
    """Find the rows of these (run, role)."""
    groups = rows.group_by("run", "role")
    return np.array([owner in owners for owner in list_owners(groups.agg())], np.bool_)[groups.number]


def _list_judged_steps(measured: Measurements, rows: Frame) -> Frame:
    """List the judged rows of steps: `place` in `rows`, run, role and origin.

    Without stages, only steps of the most reliable origin count: others may not be steps.
    """
    steps = rows.select("run", "role", *CAPTURE).with_columns(place=np.arange(len(rows)))
    steps = steps.filter(rows.equals("window", "step"))
    steps = steps.join(_list_step_origins(measured), CAPTURE, optional=["pid"])
    return steps.filter(_has_surest_origin(measured, steps))


def _list_step_origins(measured: Measurements) -> Frame:
    """List the origin of the steps of each process in a source."""
    return measured.frame("steps").distinct(*CAPTURE).select(*CAPTURE, "origin")


def _has_surest_origin(measured: Measurements, steps: Frame) -> Bools:
    """Find the steps whose owner has stages, or that have the most reliable origin of their owner."""
    surest = measured.derived(_find_surest_origins)
    groups = steps.group_by("run", "role", "origin")
    keys = groups.agg().rows("run", "role", "origin")
    is_surest = [surest.get((key["run"], key["role"]), key["origin"]) == key["origin"] for key in keys]
    return np.array(is_surest, np.bool_)[groups.number]


def _find_surest_origins(measured: Measurements) -> dict[Owner, str]:
    """Find the most reliable origin of steps of every (run, role) without stages."""
    lanes = keep_undamaged_rows(measured, measured.derived(_list_gpu_steps_by_source))
    lanes = lanes.filter(~find_rows_of_owners(lanes, measured.derived(_find_staged_owners)))
    origins: dict[Owner, str] = {}
    for row in lanes.distinct("run", "role", "origin").rows("run", "role", "origin"):
        before = origins.setdefault((row["run"], row["role"]), row["origin"])
        origins[row["run"], row["role"]] = min(before, row["origin"], key=STEP_ORIGINS.index)
    return origins


def _find_staged_owners(measured: Measurements) -> frozenset[Owner]:
    """Find the (run, role) whose devices have stages.

    Where stages cover less than half of a capture without steps, the capture is judged as a whole: most of its time has
    no annotation.
    """
    rows = list_undamaged_rows(measured, "gpu_time")
    in_stages = _sum_by_owner(rows.filter(~is_missing(name_stages(rows))), "window_ns")
    steps = rows.filter(rows.equals("window", "step") & rows.is_missing("step"))
    steps = steps.join(_list_step_origins(measured), CAPTURE, optional=["pid"])
    captured = _sum_by_owner(steps.filter(steps.equals("origin", "file")), "window_ns")
    return frozenset(owner for owner, stage_ns in in_stages.items() if 2 * stage_ns >= captured.get(owner, 0))


# Recorded steps


@derive_once
def count_gpu_steps(measured: Measurements) -> dict[Owner, ExistingSteps]:
    """Count the steps of every (run, role) in undamaged sources, once per GPU."""
    lanes = keep_undamaged_rows(measured, measured.derived(_list_gpu_steps_by_source))
    lanes = lanes.filter(_has_surest_origin(measured, lanes)).distinct(*_PROCESS_STEP, "device")
    existing = lanes.group_by("run", "role").agg(count=count_rows(), step_ns=mean_of("wall_ns"))
    steps = zip(existing.values("count"), existing.values("step_ns"), strict=True)
    return {owner: ExistingSteps(*of_owner) for owner, of_owner in zip(list_owners(existing), steps, strict=True)}


def count_gpu_steps_of_processes(measured: Measurements, rows: Frame) -> ExistingSteps:
    """Count the steps of all GPUs of the processes in these rows."""
    lanes = measured.derived(_list_distinct_gpu_steps)
    return _count_steps_with_hosts(measured, lanes.filter(lanes.is_among(rows, PROCESS, optional=PROCESS)), rows)


def count_steps_of_processes(measured: Measurements, rows: Frame) -> ExistingSteps:
    """Count the steps of the processes in these rows; of each GPU, where the rows name GPUs."""
    lanes = measured.derived(_list_distinct_gpu_steps)
    if "device" in rows.columns:
        lanes = lanes.filter(lanes.is_among(rows, (*PROCESS, "device"), optional=PROCESS))
    else:
        lanes = lanes.head(0)
    return _count_steps_with_hosts(measured, lanes, rows)


def count_recorded_steps_of_processes(measured: Measurements, rows: Frame) -> ExistingSteps:
    """Count steps as `count_steps_of_processes` does, steps that do not count included, for sums over everything recorded.

    The mean wall is that of the steps that count.
    """
    steps = count_steps_of_processes(measured, rows)
    if measured.recorded is None:
        return steps
    return ExistingSteps(count_steps_of_processes(measured.recorded, rows).count, steps.step_ns)


def _count_steps_with_hosts(measured: Measurements, lanes: Frame, rows: Frame) -> ExistingSteps:
    """Count these steps of GPUs, and the steps of processes in `rows` without one of these GPUs."""
    steps = measured.derived(_list_distinct_process_steps)
    is_host = steps.is_among(rows, PROCESS, optional=PROCESS) & ~steps.is_among(lanes, PROCESS, optional=PROCESS)
    wall_ns = np.concatenate((lanes["wall_ns"], steps["wall_ns"][is_host]))
    return ExistingSteps(len(wall_ns), float(wall_ns.mean()) if len(wall_ns) else None)


def _list_distinct_gpu_steps(measured: Measurements) -> Frame:
    """List the steps of each GPU with their walls, once across files."""
    return measured.derived(_list_gpu_steps_by_source).distinct(*_PROCESS_STEP, "device")


def count_steps_by_process(measured: Measurements) -> Frame:
    """Count the recorded steps of each process across files: its keys, the origin, `steps`, and the sum of their walls."""
    steps = measured.derived(_list_distinct_process_steps)
    return steps.group_by(*PROCESS, "origin").agg(steps=count_rows(), wall_ns=sum_of("wall_ns"))


def _list_distinct_process_steps(measured: Measurements) -> Frame:
    """List the steps of each process with their walls, once across files."""
    return _list_process_steps_by_source(measured).distinct(*_PROCESS_STEP)


_PROCESS_STEP = (*UNIT, *IN_RUN, "occurrence")
"""Key of one step of one process across files."""


def _list_process_steps_by_source(measured: Measurements) -> Frame:
    """List the steps in each source: process, `origin`, and `wall_ns` of the unit (`job.frames.measure_step_walls`)."""
    rows = clear_redundant_parts(measured.frame("steps"))
    rows = rows.with_columns(occurrence=np.where(rows.is_missing("step"), 0, rows["occurrence"]))
    rows = rows.select(*dict.fromkeys((*_PROCESS_STEP, *CAPTURE, "origin")))
    walls = summarize_step_walls(measured).walls.select(*UNIT, "wall_ns")
    return rows.join(walls, UNIT, optional=UNIT)


def _list_gpu_steps_by_source(measured: Measurements) -> Frame:
    """Repeat the rows of `_list_process_steps_by_source` for each device of their source."""
    devices = measured.frame("gpu_time").select(*CAPTURE, "device").distinct(*CAPTURE, "device")
    return _list_process_steps_by_source(measured).join(devices, CAPTURE, optional=CAPTURE)


def divide_by_gpu_steps(measured: Measurements, table: Frame, names: Sequence[str]) -> Frame:
    """Divide these columns of sums by run and role by the steps of single GPUs."""
    existing = count_gpu_steps(measured)
    counts = np.array([max(existing.get(owner, NO_STEPS).count, 1) for owner in list_owners(table)], np.float64)
    return table.with_columns(**{name: divide(table[name], counts) for name in names})


@derive_once
def list_stage_windows(measured: Measurements) -> list[StageWindow]:
    """List every stage with a recorded device, longest first, and the step of roles without stages."""
    rows = list_rows_of_windows(measured, "gpu_time")
    if not len(rows):
        return []
    existing = count_gpu_steps(measured)
    started = {prefix.run for prefix in find_run_start_ups(measured)}
    launched = list_stage_ranges(measured).group_by(*STAGE_KEY).agg(launches=sum_of("launch_count"))
    launched = launched.filter(launched.equals("launches", 0) & ~launched.is_missing("launches"))
    idle_by_design = set(list_stage_keys(launched))
    windows = []
    for row in _sum_gpu_time_of_windows(rows).rows():
        run, role, stage = row["run"], row["role"], row["canonical"]
        windows.append(
            StageWindow(
                run,
                role,
                stage,
                (stage or _name_unstaged_window(row, started)) + phrase_run(measured, run),
                existing.get((run, role), NO_STEPS),
                row["window_ns"],
                row["origin"],
                bool(row["op_count"]) and (run, role, stage) not in idle_by_design,
                row,
            )
        )
    return windows


def list_judged_windows(measured: Measurements) -> list[StageWindow]:
    """List every stage, longest first, then the steps of runs and roles without stages."""
    return sorted(list_stage_windows(measured), key=lambda window: window.canonical is None)


def sum_gpu_time_by_stage(measured: Measurements) -> Frame:
    """Sum the GPU time per (run, role, canonical stage), with its shares, longest first."""
    rows = list_rows_of_windows(measured, "gpu_time")
    return _sum_gpu_time_of_windows(rows.filter(rows.equals("window", "stage"))).drop("origin")


def _sum_gpu_time_of_windows(rows: Frame) -> Frame:
    sums = rows.group_by(*STAGE_KEY).agg(**{name: sum_of(name) for name in GPU_TIME_SUMS}, origin=first_of("origin"))
    return append_gpu_time_shares(sums).sort("window_ns", descending=["window_ns"])


def _name_unstaged_window(row: Mapping[Any, Any], started: Collection[str | None]) -> str:
    """Name a window without a stage; a capture of a run in `started` begins after its start-up."""
    if row["origin"] != "file":
        return "the step"
    return "the time after start-up" if row["run"] in started else "the capture"
