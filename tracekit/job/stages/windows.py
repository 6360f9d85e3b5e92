"""Stage windows, the unit that rules judge: a stage, or the step where no stage is annotated, per recorded step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import (
    STEP_ORIGINS,
    UNIT,
    canonical_stages,
    distinct,
    in_run,
    job,
    number_or_none,
    share_of,
    stage_rows,
    staged,
    summed,
    text_or_none,
    undamaged,
    units,
)
from tracekit.job.gpu_shares import SUMMED, shares
from tracekit.job.start_up import prefixes
from tracekit.model import keys as grouping
from tracekit.model.keys import (
    CAPTURE,
    IN_RUN,
    PROCESS,
    Ints,
    equal,
    is_among,
    numbered_alike,
    of_keys,
    places_of,
    row_dicts,
)
from tracekit.model.records import dataclass
from tracekit.model.report import Place
from tracekit.model.trace import Measurements

WHERE = ("run", "role", "canonical")
"""Keys of a stage window: run, role and canonical stage (missing: the step)."""

Owner = tuple[object, str | None]
"""A run and a role."""


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
        return value, share_of(value, self.step_ns)


NO_STEPS = ExistingSteps(0, None)


@dataclass(frozen=True, slots=True)
class StageWindow:
    """One stage, or the step where no stage is annotated: sums over `steps` steps of single GPUs.

    `window_ns` is the length of the windows (None where only their work was measured). `gpu_time` has the sums of
    `SUMMED` with their shares. `origin` is how the steps are known (None: a stage). `works` is whether the window gives
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
        return Place(role=self.role, stage=self.canonical, run=text_or_none(self.run))

    @property
    def owner(self) -> Owner:
        """Run and role of the window."""
        return (self.run, self.role)

    @property
    def key(self) -> tuple[object, ...]:
        """Key of the window, comparable with `keyed`."""
        return keyed({"run": self.run, "role": self.role, "canonical": self.canonical})

    def per_step(self, total_ns: float) -> tuple[float, float | None]:
        """Average a sum over steps and GPUs: (mean, the same as a share of the step)."""
        return self.steps.per_step(total_ns)

    def share(self, total_ns: float) -> float:
        """Divide a sum over steps and GPUs by the length of the windows; 0 if they have none."""
        return share_of(total_ns, self.window_ns) or 0.0


def keyed(row: Mapping[Any, Any]) -> tuple[object, ...]:
    """Make the key of a row: run, role and stage, None where missing."""
    return tuple(None if pd.isna(row[name]) else row[name] for name in WHERE)


def whole(measured: Measurements, table: str) -> pd.DataFrame:
    """Read the rows of a table from undamaged sources: in a damaged one, lost events look like idle time."""
    return undamaged(measured, measured[table])


def placed(measured: Measurements, table: str) -> pd.DataFrame:
    """List the rows of the judged windows, with `canonical` and `origin`: stages, or steps where there are none.

    `origin` is how a step is known (profiler | file). Files that record one stage of a step are not steps. Do not change
    the result in place.
    """
    return measured.derived(_Placed(table))


@dataclass(frozen=True)
class _Placed:
    """Function of measurements that is equal for equal tables, which makes `Measurements.derived` cache it."""

    table: str

    def __call__(self, measured: Measurements) -> pd.DataFrame:
        """List the judged rows of the table."""
        return _placed(measured, self.table)


def _placed(measured: Measurements, table: str) -> pd.DataFrame:
    rows = whole(measured, table)
    canonical = canonical_stages(rows)
    with_stages = measured.derived(_staged_owners)
    all_owners, owner_number = owners_of(rows[["run", "role"]])
    has_stages = np.array([*(owner in with_stages for owner in all_owners), False], bool)
    is_stage = equal(rows["window"], "stage") & pd.notna(canonical) & has_stages[owner_number]
    steps, step_origin = _judged_steps(measured, rows)
    owners, number = owners_of(rows[["run", "role"]].iloc[steps])
    unstaged = np.array([*(owner not in with_stages for owner in owners), False], bool)[number]
    is_judged = unstaged & (step_origin != "stage")
    places = np.concatenate((np.flatnonzero(is_stage), steps[is_judged]))
    origin = np.full(len(rows), None, object)
    origin[steps[is_judged]] = step_origin[is_judged]
    canonical[~is_stage] = None
    out = rows.iloc[places].reset_index(drop=True)
    of_rows = {"canonical": canonical, "origin": origin}
    return out.assign(**{n: pd.Index(of[places], dtype=object) for n, of in of_rows.items()})


def step_sums(measured: Measurements, rows: pd.DataFrame, column: str) -> dict[Owner, int]:
    """Sum a column of windows over the steps that `gpu_steps` counts, by run and role."""
    steps = rows[["run", "role", column]].iloc[_judged_steps(measured, rows)[0]]
    owners, number = owners_of(steps)
    sums = grouping.summed(number, steps[column].to_numpy(np.int64), len(owners))
    return dict(zip(owners, sums.tolist(), strict=True))


def _judged_steps(
    measured: Measurements, rows: pd.DataFrame
) -> tuple[Ints, npt.NDArray[np.object_]]:
    """Find the judged rows of steps: (positions, origin of each).

    Without stages, only steps of the most reliable origin count: others may not be steps.
    """
    places = np.flatnonzero(equal(rows["window"], "step"))
    steps = rows[[*CAPTURE, "run", "role"]].iloc[places]
    origins = measured.derived(_origins)
    of_step = places_of(steps, origins, CAPTURE, optional=["pid"])
    steps = steps.iloc[of_step >= 0]
    places, of_step = places[of_step >= 0], of_step[of_step >= 0]
    origin = origins["origin"].to_numpy(object)[of_step]
    is_surest = _is_surest(measured, steps, origin)
    return places[is_surest], origin[is_surest]


def _origins(measured: Measurements) -> pd.DataFrame:
    """List the origin of the steps of each process in a source."""
    return distinct(measured["steps"], CAPTURE, "origin")


def _is_surest(
    measured: Measurements, steps: pd.DataFrame, origin: npt.NDArray[np.object_]
) -> npt.NDArray[np.bool_]:
    """Find the rows of steps whose owner has stages, or that have the most reliable origin of their owner."""
    surest = measured.derived(_surest_origins)
    owners, number = owners_of(steps)
    wanted = np.array([*map(surest.get, owners), None], object)[number]
    any_origin = np.array([*(owner not in surest for owner in owners), False], bool)[number]
    return np.asarray(any_origin | (origin == wanted), np.bool_)


def _surest_origins(measured: Measurements) -> dict[Owner, str]:
    """Find the most reliable origin of steps of every (run, role) without stages."""
    lanes = undamaged(measured, measured.derived(_gpu_lanes))
    origins: dict[Owner, str] = {}
    for origin in reversed(STEP_ORIGINS):
        owners, _ = owners_of(lanes[lanes["origin"] == origin])
        origins.update(dict.fromkeys(owners, origin))
    with_stages = measured.derived(_staged_owners)
    return {owner: origin for owner, origin in origins.items() if owner not in with_stages}


def _staged_owners(measured: Measurements) -> frozenset[tuple[object, object]]:
    """Find the (run, role) whose devices have stages.

    Where stages cover less than half of a capture without steps, the capture is judged as a whole: most of its time has
    no annotation.
    """
    rows = whole(measured, "gpu_time")
    in_stages, captured = _lengths(staged(rows)), _lengths(_undivided(measured, rows))
    owners = in_stages.keys()
    return frozenset(o for o in owners if 2 * in_stages[o] >= captured.get(o, 0))


def _undivided(measured: Measurements, rows: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of captures without steps."""
    steps = rows.iloc[np.flatnonzero(equal(rows["window"], "step"))]
    steps = steps.iloc[np.flatnonzero(steps["step"].isna())]
    origins = measured.derived(_origins)
    of_step = places_of(steps[[*CAPTURE]], origins, CAPTURE, optional=["pid"])
    is_file = np.append(equal(origins["origin"], "file"), [False])[of_step]
    undivided: pd.DataFrame = steps.iloc[np.flatnonzero(is_file)]
    return undivided


def _lengths(rows: pd.DataFrame) -> dict[Owner, int]:
    """Sum the lengths of windows by run and role."""
    owners, number = owners_of(rows)
    window_ns = rows["window_ns"].to_numpy(np.int64)
    return dict(zip(owners, grouping.summed(number, window_ns, len(owners)).tolist(), strict=True))


def owners_of(rows: pd.DataFrame) -> tuple[list[Owner], Ints]:
    """List the distinct (run, role), and number the one of each row."""
    number, first = of_keys(rows, ["run", "role"])
    columns = (rows[name].array[first] for name in ("run", "role"))
    return [(run, text_or_none(role)) for run, role in zip(*columns, strict=True)], number


# Recorded steps


def gpu_steps(measured: Measurements) -> dict[Owner, ExistingSteps]:
    """Count the steps of every (run, role) in undamaged sources, once per GPU."""
    return measured.derived(_gpu_steps)


def _gpu_steps(measured: Measurements) -> dict[Owner, ExistingSteps]:
    lanes = undamaged(measured, measured.derived(_gpu_lanes))
    lanes = lanes[_is_surest(measured, lanes, lanes["origin"].to_numpy(object))]
    lanes = lanes.iloc[of_keys(lanes, [*_PROCESS_STEP, "device"])[1]]
    owners, number = owners_of(lanes)
    counts = np.bincount(number, minlength=len(owners)).tolist()
    walls = grouping.summed(number, lanes["wall_ns"].to_numpy(np.int64), len(owners)).tolist()
    return {
        owner: ExistingSteps(count, wall_ns / count)
        for owner, count, wall_ns in zip(owners, counts, walls, strict=True)
    }


def gpu_steps_of(measured: Measurements, rows: pd.DataFrame) -> ExistingSteps:
    """Count the steps of all GPUs of the processes in these rows."""
    rows = rows[[*PROCESS]]
    return _with_hosts(measured, is_among(measured.derived(_gpus_once), rows, PROCESS), rows)


def steps_of(measured: Measurements, rows: pd.DataFrame) -> ExistingSteps:
    """Count the steps of the processes in these rows; of each GPU, where the rows name GPUs."""
    lanes = measured.derived(_gpus_once)
    if "device" not in rows:
        return _with_hosts(measured, np.zeros(len(lanes), np.bool_), rows[[*PROCESS]])
    on_gpu = rows[[*PROCESS, "device"]]
    on_gpu = on_gpu.iloc[of_keys(on_gpu, [*PROCESS, "device"])[1]]
    wanted = is_among(lanes, on_gpu[on_gpu["device"].notna()], [*PROCESS, "device"])
    return _with_hosts(measured, wanted, on_gpu)


def recorded_steps_of(measured: Measurements, rows: pd.DataFrame) -> ExistingSteps:
    """Count steps as `steps_of` does, steps that do not count included, for sums over everything recorded.

    The mean wall is that of the steps that count.
    """
    steps = steps_of(measured, rows)
    if measured.recorded is None:
        return steps
    return ExistingSteps(steps_of(measured.recorded, rows).count, steps.step_ns)


def _with_hosts(
    measured: Measurements, is_chosen: npt.NDArray[np.bool_], rows: pd.DataFrame
) -> ExistingSteps:
    """Count the chosen rows of `_gpus_once`, and the steps of processes in `rows` without a chosen GPU."""
    lanes, steps = measured.derived(_gpus_once), measured.derived(_processes_once)
    is_host = is_among(steps, rows, PROCESS)
    if is_chosen.any():
        is_host &= ~is_among(steps, lanes[[*PROCESS]].iloc[np.flatnonzero(is_chosen)], PROCESS)
    walls = lanes["wall_ns"].to_numpy()[is_chosen], steps["wall_ns"].to_numpy()[is_host]
    wall_ns = pd.Series(np.concatenate(walls))
    return ExistingSteps(len(wall_ns), number_or_none(wall_ns.mean()))


def _gpus_once(measured: Measurements) -> pd.DataFrame:
    """List the steps of each GPU with their walls, once across files."""
    return distinct(measured.derived(_gpu_lanes), [*_PROCESS_STEP, "device"], "wall_ns")


def _processes_once(measured: Measurements) -> pd.DataFrame:
    """List the steps of each process with their walls, once across files."""
    return distinct(measured.derived(_process_steps), _PROCESS_STEP, "wall_ns")


_PROCESS_STEP = (*UNIT, *IN_RUN, "occurrence")
"""Key of one step of one process across files."""


def _process_steps(measured: Measurements) -> pd.DataFrame:
    """List the steps in each source: process, `origin`, and `wall_ns` of the unit (`frames.step_walls`)."""
    rows, walls = units(measured["steps"]), job(measured).walls
    wall_ns = walls["wall_ns"].to_numpy(np.int64)[places_of(rows, walls, UNIT, optional=UNIT)]
    columns = list(dict.fromkeys((*_PROCESS_STEP, *CAPTURE, "origin")))
    return rows.assign(occurrence=occurrence_of_unit(rows))[columns].assign(wall_ns=wall_ns)


def occurrence_of_unit(rows: pd.DataFrame) -> pd.Series[Any]:
    """Find the occurrence of each row among steps of one number; 0 without a number, as such a file is one unit."""
    return rows["occurrence"].where(rows["step"].notna(), 0)


_DEVICE = (*CAPTURE, "device")
"""Key of a device in a file."""


def _gpu_lanes(measured: Measurements) -> pd.DataFrame:
    """Repeat the rows of `_process_steps` for each device of their source."""
    steps, devices = measured.derived(_process_steps), distinct(measured["gpu_time"], _DEVICE)
    of_step, of_device = numbered_alike(CAPTURE, steps, devices)
    room = int(max(of_step.max(initial=-1), of_device.max(initial=-1))) + 1
    count = np.bincount(of_device, minlength=room)
    by_source, begin = np.argsort(of_device, kind="stable"), np.cumsum(count) - count
    times = count[of_step]
    step = np.repeat(np.arange(len(steps)), times)
    place = np.arange(len(step)) - np.repeat(np.cumsum(times) - times, times)
    lanes = steps.iloc[step].reset_index(drop=True)
    lanes["device"] = devices["device"].array[by_source[begin[of_step][step] + place]]
    return lanes


def each_gpu_step(
    measured: Measurements, table: pd.DataFrame, names: Sequence[str]
) -> pd.DataFrame:
    """Average these columns of sums by run and role over the steps of single GPUs."""
    existing = gpu_steps(measured)
    owners, number = owners_of(table)
    counts = np.array([max(existing.get(owner, NO_STEPS).count, 1) for owner in owners], np.float64)
    return table.assign(**{name: table[name] / counts[number] for name in names})


def stage_windows(measured: Measurements) -> list[StageWindow]:
    """List every stage with a recorded device, longest first, and the step of roles without stages."""
    return measured.derived(_stage_windows)


def judged_windows(measured: Measurements) -> list[StageWindow]:
    """List every stage, longest first, then the steps of runs and roles without stages."""
    return sorted(stage_windows(measured), key=lambda window: window.canonical is None)


def shares_by_stage(measured: Measurements) -> pd.DataFrame:
    """Compute sums and shares of GPU time per (run, role, canonical stage), longest first."""
    rows = placed(measured, "gpu_time")
    sums = shares(summed(rows[rows["window"] == "stage"], WHERE, SUMMED))
    return sums.sort_values("window_ns", ascending=False, kind="stable")


def _stage_windows(measured: Measurements) -> list[StageWindow]:
    rows = placed(measured, "gpu_time")
    if not len(rows):
        return []
    origins = rows.groupby(list(WHERE), dropna=False, sort=False)["origin"].first().reset_index()
    sums = shares(summed(rows, WHERE, SUMMED))
    sums["origin"] = origins["origin"]
    existing = gpu_steps(measured)
    launched = summed(stage_rows(measured), WHERE, ("launch_count",)).dropna(subset="launch_count")
    started = {prefix.run for prefix in prefixes(measured)}
    idle_by_design = {keyed(r) for r in row_dicts(launched) if r["launch_count"] == 0}
    windows = []
    for row in row_dicts(sums.sort_values("window_ns", ascending=False, kind="stable")):
        role, stage = text_or_none(row["role"]), text_or_none(row["canonical"])
        windows.append(
            StageWindow(
                row["run"],
                role,
                stage,
                (stage or _unit_name(row, started)) + in_run(measured, row["run"]),
                existing.get((row["run"], role), NO_STEPS),
                int(row["window_ns"]),
                text_or_none(row["origin"]),
                bool(row["op_count"]) and keyed(row) not in idle_by_design,
                row,
            )
        )
    return windows


def _unit_name(row: Mapping[Any, Any], started: set[object]) -> str:
    """Name a window without a stage; a capture of a run in `started` begins after its start-up."""
    if row["origin"] != "file":
        return "the step"
    return "the time after start-up" if row["run"] in started else "the capture"
