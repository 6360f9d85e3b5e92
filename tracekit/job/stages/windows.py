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
    clear_parts_of_numbered_steps,
    divide_or_none,
    find_canonical_stages,
    list_stage_rows,
    phrase_run,
    select_distinct_rows,
    select_staged_rows,
    select_undamaged_rows,
    sum_columns_by_keys,
    summarize_job_steps,
    to_float_or_none,
    to_text_or_none,
)
from tracekit.job.gpu_shares import GPU_TIME_SUMS, add_gpu_time_shares
from tracekit.job.steps.start_up import find_run_start_ups
from tracekit.model.records import dataclass
from tracekit.model.report import Place
from tracekit.model.tables import keys as grouping
from tracekit.model.tables.keys import (
    CAPTURE,
    IN_RUN,
    PROCESS,
    Ints,
    find_matching_rows,
    group_rows_by,
    list_row_dicts,
    mask_equal,
    mask_matching_rows,
    number_frames_alike,
)
from tracekit.model.trace import Measurements

STAGE_KEY = ("run", "role", "canonical")
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
        return Place(role=self.role, stage=self.canonical, run=to_text_or_none(self.run))

    @property
    def owner(self) -> Owner:
        """Run and role of the window."""
        return (self.run, self.role)

    @property
    def key(self) -> tuple[object, ...]:
        """Key of the window, comparable with `make_stage_key`."""
        return make_stage_key({"run": self.run, "role": self.role, "canonical": self.canonical})

    def per_step(self, total_ns: float) -> tuple[float, float | None]:
        """Average a sum over steps and GPUs: (mean, the same as a share of the step)."""
        return self.steps.per_step(total_ns)

    def share(self, total_ns: float) -> float:
        """Divide a sum over steps and GPUs by the length of the windows; 0 if they have none."""
        return divide_or_none(total_ns, self.window_ns) or 0.0


def make_stage_key(row: Mapping[Any, Any]) -> tuple[object, ...]:
    """Make the key of a row: run, role and stage, None where missing."""
    return tuple(None if pd.isna(row[name]) else row[name] for name in STAGE_KEY)


def read_undamaged_table(measured: Measurements, table: str) -> pd.DataFrame:
    """Read the rows of a table from undamaged sources: in a damaged one, lost events look like idle time."""
    return select_undamaged_rows(measured, measured[table])


def list_judged_rows(measured: Measurements, table: str) -> pd.DataFrame:
    """List the rows of the judged windows, with `canonical` and `origin`: stages, or steps where there are none.

    `origin` is how a step is known (profiler | file). Files that record one stage of a step are not steps. Do not change
    the result in place.
    """
    return measured.derived(_JudgedRows(table))


@dataclass(frozen=True)
class _JudgedRows:
    """Function of measurements that is equal for equal tables, which makes `Measurements.derived` cache it."""

    table: str

    def __call__(self, measured: Measurements) -> pd.DataFrame:
        """List the judged rows of the table."""
        rows = read_undamaged_table(measured, self.table)
        canonical = find_canonical_stages(rows)
        with_stages = measured.derived(_find_staged_owners)
        all_owners, owner_number = number_stage_owners(rows[["run", "role"]])
        has_stages = np.array([*(owner in with_stages for owner in all_owners), False], bool)
        is_stage = mask_equal(rows["window"], "stage") & pd.notna(canonical) & has_stages[owner_number]
        steps, step_origin = _find_judged_steps(measured, rows)
        owners, number = number_stage_owners(rows[["run", "role"]].iloc[steps])
        unstaged = np.array([*(owner not in with_stages for owner in owners), False], bool)[number]
        is_judged = unstaged & (step_origin != "stage")
        places = np.concatenate((np.flatnonzero(is_stage), steps[is_judged]))
        origin = np.full(len(rows), None, object)
        origin[steps[is_judged]] = step_origin[is_judged]
        canonical[~is_stage] = None
        out = rows.iloc[places].reset_index(drop=True)
        of_rows = {"canonical": canonical, "origin": origin}
        return out.assign(**{n: pd.Index(of[places], dtype=object) for n, of in of_rows.items()})


def sum_judged_steps(measured: Measurements, rows: pd.DataFrame, column: str) -> dict[Owner, int]:
    """Sum a column of windows over the steps that `count_gpu_steps` counts, by run and role."""
    steps = rows[["run", "role", column]].iloc[_find_judged_steps(measured, rows)[0]]
    owners, number = number_stage_owners(steps)
    sums = grouping.sum_by_group(number, steps[column].to_numpy(np.int64), len(owners))
    return dict(zip(owners, sums.tolist(), strict=True))


def _find_judged_steps(measured: Measurements, rows: pd.DataFrame) -> tuple[Ints, npt.NDArray[np.object_]]:
    """Find the judged rows of steps: (positions, origin of each).

    Without stages, only steps of the most reliable origin count: others may not be steps.
    """
    places = np.flatnonzero(mask_equal(rows["window"], "step"))
    steps = rows[[*CAPTURE, "run", "role"]].iloc[places]
    origins = measured.derived(_list_step_origins)
    of_step = find_matching_rows(steps, origins, CAPTURE, optional=["pid"])
    steps = steps.iloc[of_step >= 0]
    places, of_step = places[of_step >= 0], of_step[of_step >= 0]
    origin = origins["origin"].to_numpy(object)[of_step]
    is_surest = _has_surest_origin(measured, steps, origin)
    return places[is_surest], origin[is_surest]


def _list_step_origins(measured: Measurements) -> pd.DataFrame:
    """List the origin of the steps of each process in a source."""
    return select_distinct_rows(measured["steps"], CAPTURE, "origin")


def _has_surest_origin(
    measured: Measurements, steps: pd.DataFrame, origin: npt.NDArray[np.object_]
) -> npt.NDArray[np.bool_]:
    """Find the rows of steps whose owner has stages, or that have the most reliable origin of their owner."""
    surest = measured.derived(_find_surest_origins)
    owners, number = number_stage_owners(steps)
    wanted = np.array([*(surest.get(owner) for owner in owners), None], object)[number]
    any_origin = np.array([*(owner not in surest for owner in owners), False], bool)[number]
    return np.asarray(any_origin | (origin == wanted), np.bool_)


def _find_surest_origins(measured: Measurements) -> dict[Owner, str]:
    """Find the most reliable origin of steps of every (run, role) without stages."""
    lanes = select_undamaged_rows(measured, measured.derived(_list_gpu_steps_by_source))
    origins: dict[Owner, str] = {}
    for origin in reversed(STEP_ORIGINS):
        owners, _ = number_stage_owners(lanes[lanes["origin"] == origin])
        origins.update(dict.fromkeys(owners, origin))
    with_stages = measured.derived(_find_staged_owners)
    return {owner: origin for owner, origin in origins.items() if owner not in with_stages}


def _find_staged_owners(measured: Measurements) -> frozenset[tuple[object, object]]:
    """Find the (run, role) whose devices have stages.

    Where stages cover less than half of a capture without steps, the capture is judged as a whole: most of its time has
    no annotation.
    """
    rows = read_undamaged_table(measured, "gpu_time")
    in_stages, captured = (
        _sum_window_lengths(select_staged_rows(rows)),
        _sum_window_lengths(_select_undivided_captures(measured, rows)),
    )
    owners = in_stages.keys()
    return frozenset(o for o in owners if 2 * in_stages[o] >= captured.get(o, 0))


def _select_undivided_captures(measured: Measurements, rows: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of captures without steps."""
    steps = rows.iloc[np.flatnonzero(mask_equal(rows["window"], "step"))]
    steps = steps.iloc[np.flatnonzero(steps["step"].isna())]
    origins = measured.derived(_list_step_origins)
    of_step = find_matching_rows(steps[[*CAPTURE]], origins, CAPTURE, optional=["pid"])
    is_file = np.append(mask_equal(origins["origin"], "file"), [False])[of_step]
    undivided: pd.DataFrame = steps.iloc[np.flatnonzero(is_file)]
    return undivided


def _sum_window_lengths(rows: pd.DataFrame) -> dict[Owner, int]:
    """Sum the lengths of windows by run and role."""
    owners, number = number_stage_owners(rows)
    window_ns = rows["window_ns"].to_numpy(np.int64)
    return dict(zip(owners, grouping.sum_by_group(number, window_ns, len(owners)).tolist(), strict=True))


def number_stage_owners(rows: pd.DataFrame) -> tuple[list[Owner], Ints]:
    """List the distinct (run, role), and number the one of each row."""
    number, first = group_rows_by(rows, ["run", "role"])
    columns = (rows[name].array[first] for name in ("run", "role"))
    return [(run, to_text_or_none(role)) for run, role in zip(*columns, strict=True)], number


# Recorded steps


def count_gpu_steps(measured: Measurements) -> dict[Owner, ExistingSteps]:
    """Count the steps of every (run, role) in undamaged sources, once per GPU."""
    return measured.derived(_count_gpu_steps)


def _count_gpu_steps(measured: Measurements) -> dict[Owner, ExistingSteps]:
    lanes = select_undamaged_rows(measured, measured.derived(_list_gpu_steps_by_source))
    lanes = lanes[_has_surest_origin(measured, lanes, lanes["origin"].to_numpy(object))]
    lanes = lanes.iloc[group_rows_by(lanes, [*_PROCESS_STEP, "device"])[1]]
    owners, number = number_stage_owners(lanes)
    counts = np.bincount(number, minlength=len(owners)).tolist()
    walls = grouping.sum_by_group(number, lanes["wall_ns"].to_numpy(np.int64), len(owners)).tolist()
    return {
        owner: ExistingSteps(count, wall_ns / count)
        for owner, count, wall_ns in zip(owners, counts, walls, strict=True)
    }


def count_gpu_steps_of_rows(measured: Measurements, rows: pd.DataFrame) -> ExistingSteps:
    """Count the steps of all GPUs of the processes in these rows."""
    rows = rows[[*PROCESS]]
    return _count_steps_with_hosts(
        measured, mask_matching_rows(measured.derived(_list_distinct_gpu_steps), rows, PROCESS), rows
    )


def count_steps_of_rows(measured: Measurements, rows: pd.DataFrame) -> ExistingSteps:
    """Count the steps of the processes in these rows; of each GPU, where the rows name GPUs."""
    lanes = measured.derived(_list_distinct_gpu_steps)
    if "device" not in rows:
        return _count_steps_with_hosts(measured, np.zeros(len(lanes), np.bool_), rows[[*PROCESS]])
    on_gpu = rows[[*PROCESS, "device"]]
    on_gpu = on_gpu.iloc[group_rows_by(on_gpu, [*PROCESS, "device"])[1]]
    wanted = mask_matching_rows(lanes, on_gpu[on_gpu["device"].notna()], [*PROCESS, "device"])
    return _count_steps_with_hosts(measured, wanted, on_gpu)


def count_recorded_steps_of_rows(measured: Measurements, rows: pd.DataFrame) -> ExistingSteps:
    """Count steps as `count_steps_of_rows` does, steps that do not count included, for sums over everything recorded.

    The mean wall is that of the steps that count.
    """
    steps = count_steps_of_rows(measured, rows)
    if measured.recorded is None:
        return steps
    return ExistingSteps(count_steps_of_rows(measured.recorded, rows).count, steps.step_ns)


def _count_steps_with_hosts(
    measured: Measurements, is_chosen: npt.NDArray[np.bool_], rows: pd.DataFrame
) -> ExistingSteps:
    """Count the chosen rows of `_list_distinct_gpu_steps`, and the steps of processes in `rows` without a chosen GPU."""
    lanes, steps = (measured.derived(_list_distinct_gpu_steps), measured.derived(_list_distinct_process_steps))
    is_host = mask_matching_rows(steps, rows, PROCESS)
    if is_chosen.any():
        is_host &= ~mask_matching_rows(steps, lanes[[*PROCESS]].iloc[np.flatnonzero(is_chosen)], PROCESS)
    walls = lanes["wall_ns"].to_numpy()[is_chosen], steps["wall_ns"].to_numpy()[is_host]
    wall_ns = pd.Series(np.concatenate(walls))
    return ExistingSteps(len(wall_ns), to_float_or_none(wall_ns.mean()))


def _list_distinct_gpu_steps(measured: Measurements) -> pd.DataFrame:
    """List the steps of each GPU with their walls, once across files."""
    return select_distinct_rows(measured.derived(_list_gpu_steps_by_source), [*_PROCESS_STEP, "device"], "wall_ns")


def _list_distinct_process_steps(measured: Measurements) -> pd.DataFrame:
    """List the steps of each process with their walls, once across files."""
    return select_distinct_rows(measured.derived(_list_process_steps_by_source), _PROCESS_STEP, "wall_ns")


_PROCESS_STEP = (*UNIT, *IN_RUN, "occurrence")
"""Key of one step of one process across files."""


def _list_process_steps_by_source(measured: Measurements) -> pd.DataFrame:
    """List the steps in each source: process, `origin`, and `wall_ns` of the unit (`job.frames.measure_step_walls`)."""
    rows, walls = (clear_parts_of_numbered_steps(measured["steps"]), summarize_job_steps(measured).walls)
    wall_ns = walls["wall_ns"].to_numpy(np.int64)[find_matching_rows(rows, walls, UNIT, optional=UNIT)]
    columns = list(dict.fromkeys((*_PROCESS_STEP, *CAPTURE, "origin")))
    return rows.assign(occurrence=find_unit_occurrences(rows))[columns].assign(wall_ns=wall_ns)


def find_unit_occurrences(rows: pd.DataFrame) -> pd.Series[Any]:
    """Find the occurrence of each row among steps of one number; 0 without a number, as such a file is one unit."""
    return rows["occurrence"].where(rows["step"].notna(), 0)


_DEVICE = (*CAPTURE, "device")
"""Key of a device in a file."""


def _list_gpu_steps_by_source(measured: Measurements) -> pd.DataFrame:
    """Repeat the rows of `_list_process_steps_by_source` for each device of their source."""
    steps, devices = (
        measured.derived(_list_process_steps_by_source),
        select_distinct_rows(measured["gpu_time"], _DEVICE),
    )
    of_step, of_device = number_frames_alike(CAPTURE, steps, devices)
    room = int(max(of_step.max(initial=-1), of_device.max(initial=-1))) + 1
    count = np.bincount(of_device, minlength=room)
    by_source, begin = np.argsort(of_device, kind="stable"), np.cumsum(count) - count
    times = count[of_step]
    step = np.repeat(np.arange(len(steps)), times)
    place = np.arange(len(step)) - np.repeat(np.cumsum(times) - times, times)
    lanes = steps.iloc[step].reset_index(drop=True)
    lanes["device"] = devices["device"].array[by_source[begin[of_step][step] + place]]
    return lanes


def average_over_gpu_steps(measured: Measurements, table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Average these columns of sums by run and role over the steps of single GPUs."""
    existing = count_gpu_steps(measured)
    owners, number = number_stage_owners(table)
    counts = np.array([max(existing.get(owner, NO_STEPS).count, 1) for owner in owners], np.float64)
    return table.assign(**{name: table[name] / counts[number] for name in names})


def list_stage_windows(measured: Measurements) -> list[StageWindow]:
    """List every stage with a recorded device, longest first, and the step of roles without stages."""
    return measured.derived(_list_stage_windows)


def list_judged_windows(measured: Measurements) -> list[StageWindow]:
    """List every stage, longest first, then the steps of runs and roles without stages."""
    return sorted(list_stage_windows(measured), key=lambda window: window.canonical is None)


def compute_gpu_shares_by_stage(measured: Measurements) -> pd.DataFrame:
    """Compute sums and shares of GPU time per (run, role, canonical stage), longest first."""
    rows = list_judged_rows(measured, "gpu_time")
    sums = add_gpu_time_shares(sum_columns_by_keys(rows[rows["window"] == "stage"], STAGE_KEY, GPU_TIME_SUMS))
    return sums.sort_values("window_ns", ascending=False, kind="stable")


def _list_stage_windows(measured: Measurements) -> list[StageWindow]:
    rows = list_judged_rows(measured, "gpu_time")
    if not len(rows):
        return []
    origins = rows.groupby(list(STAGE_KEY), dropna=False, sort=False)["origin"].first().reset_index()
    sums = add_gpu_time_shares(sum_columns_by_keys(rows, STAGE_KEY, GPU_TIME_SUMS))
    sums["origin"] = origins["origin"]
    existing = count_gpu_steps(measured)
    launched = sum_columns_by_keys(list_stage_rows(measured), STAGE_KEY, ("launch_count",)).dropna(
        subset="launch_count"
    )
    started = {prefix.run for prefix in find_run_start_ups(measured)}
    idle_by_design = {make_stage_key(r) for r in list_row_dicts(launched) if r["launch_count"] == 0}
    windows = []
    for row in list_row_dicts(sums.sort_values("window_ns", ascending=False, kind="stable")):
        role, stage = to_text_or_none(row["role"]), to_text_or_none(row["canonical"])
        windows.append(
            StageWindow(
                row["run"],
                role,
                stage,
                (stage or _name_unstaged_window(row, started)) + phrase_run(measured, row["run"]),
                existing.get((row["run"], role), NO_STEPS),
                int(row["window_ns"]),
                to_text_or_none(row["origin"]),
                bool(row["op_count"]) and make_stage_key(row) not in idle_by_design,
                row,
            )
        )
    return windows


def _name_unstaged_window(row: Mapping[Any, Any], started: set[object]) -> str:
    """Name a window without a stage; a capture of a run in `started` begins after its start-up."""
    if row["origin"] != "file":
        return "the step"
    return "the time after start-up" if row["run"] in started else "the capture"
