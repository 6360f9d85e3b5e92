"""Step values of the whole job: times, marks and work of each step, the input of comparisons."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.driver_log import map_run_driver_logs, match_logged_steps
from tracekit.job.frames import (
    COUNTED_ANEW,
    UNIT,
    aggregate_by_keys,
    clear_parts_of_numbered_steps,
    find_equal_rows,
    list_stage_rows,
    select_distinct_rows,
    stack_frames,
    summarize_job_steps,
)
from tracekit.job.pandas_bridge import to_frame, to_pandas
from tracekit.job.steps.step_kinds import list_steps_with_device_work, mark_step_units
from tracekit.model import failed_questions
from tracekit.model.metrics import (
    LAUNCH_CADENCE,
    OUT_OF_MEMORY,
    PER_WORK,
    RANGE_CADENCE,
    STAGE_TIME,
    STEP_TIME,
    WINDOW,
    WORK_MARKS,
)
from tracekit.model.stages import STAGES
from tracekit.model.tables.arrays import make_frame
from tracekit.model.tables.keys import (
    CAPTURE,
    IN_RUN,
    PROCESS,
    group_rows_by,
    iterate_records,
    list_python_values,
    mask_matching_rows,
)
from tracekit.model.trace import Measurements

JOB_VALUE_NAMES = (
    STEP_TIME,
    STAGE_TIME,
    *PER_WORK,
    "first_of_window",
    *WORK_MARKS,
    "compilations",
    OUT_OF_MEMORY,
    WINDOW,
    RANGE_CADENCE,
    LAUNCH_CADENCE,
)
"""Metrics of the whole job, as opposed to those of its processes."""

_CAPTURED = re.compile(r"capture\d+\Z")
"""Pattern of the part of a process that was captured several times."""


_NO_ROWS = pd.DataFrame(columns=["run", "name", "value"])


def list_job_values(measured: Measurements) -> pd.DataFrame:
    """List the values of the job: one row per step, and per step and stage.

    Columns: run, role, step, part, stage, name, value, unit, better. `part` names the capture of a step that is in a
    single one.

    - `step_time` (ns): wall of the step over all ranks. `stage_time` (ns): the longest rank, Σ over occurrences.
    - `first_of_window`: first step after a profiler began, where it saw more than one (warm-up).
    - `WORK_MARKS`: marks of a step from its device work (`step_kinds`). `compilations`: code compiled or loaded in a step.
    - `tokens`, `samples`, `images`: the count given for every step, else the one that the driver logged (Q22).
    - `out_of_memory`: failed memory requests in recorded histories, one row per run with a history.

    A source without step marks (`_find_unmarked_windows`) is not a step. Its length is `window_time` (ns), and its stages have one row
    per time they ran. `range_cadence` and `launch_cadence` (ns) are the time between starts of whatever recurs in it:
    means over ranks and devices, with the order in `part`.
    """
    repeated = _list_recaptured_steps(measured)
    walls = _list_walls_by_capture(measured, repeated)
    steps = _label_step_walls(measured, walls).assign(role=None, stage=None)
    unmarked = _find_unmarked_windows(measured)
    rows = _restore_parts_of_recaptured_steps(list_stage_rows(measured), measured["stages"], repeated)
    in_window = mask_matching_rows(rows, unmarked, UNIT)
    per_rank = aggregate_by_keys(rows[~in_window], [*UNIT, "canonical", *IN_RUN], value=("dur_ns", "sum")).rename(
        columns={"canonical": "stage"}
    )
    stages = aggregate_by_keys(per_rank, [*UNIT, "role", "stage"], value=("value", "max"))
    stages["name"] = STAGE_TIME
    columns = [*UNIT, "role", "stage", "name", "value"]
    parts = [
        steps,
        stages,
        failed_questions.judge_if_sound(measured, lambda part: _list_work_values(part, walls), _NO_ROWS),
        *measured.derived(_list_step_marks),
        _count_compilations_by_step(measured, repeated),
        failed_questions.judge_if_sound(measured, _count_failed_memory_requests, _NO_ROWS),
    ]
    values = _fill_parts_of_values(measured, _stack_object_columns(parts, columns))
    if len(unmarked):
        windows = _stack_object_columns(
            [_list_stage_runs_in_windows(rows[in_window]), _average_cadences(measured)], columns
        )
        values = {name: np.concatenate([values[name], windows[name]]) for name in columns}
    is_time = [1 if name in _TIMES else 0 for name in values["name"]]
    values["unit"] = np.array(["count", "ns"], object)[is_time]
    values["better"] = np.array(["neither", "lower"], object)[is_time]
    return make_frame(values, len(is_time))


def list_marked_step_values(measured: Measurements) -> pd.DataFrame:
    """List the rows of `list_job_values` for steps and their marks, without compilations."""
    walls = _list_walls_by_capture(measured, _list_recaptured_steps(measured)).rename(columns={"wall_ns": "value"})
    return _stack_value_parts(measured, [walls.assign(name=STEP_TIME), *measured.derived(_list_step_marks)])


def list_timed_step_values(measured: Measurements) -> pd.DataFrame:
    """List the rows of `list_job_values` for times of steps, and the marks that decide which steps count."""
    repeated = _list_recaptured_steps(measured)
    times = _label_step_walls(measured, _list_walls_by_capture(measured, repeated))
    marked = [*measured.derived(_list_step_marks), _count_compilations_by_step(measured, repeated)]
    return _stack_value_parts(measured, [times, *marked])


def _stack_value_parts(measured: Measurements, parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Stack the values of all parts in one frame: run, step, part, name, value."""
    values = _fill_parts_of_values(measured, _stack_object_columns(parts, [*UNIT, "name", "value"]))
    return make_frame(values, len(values["name"]))


def _label_step_walls(measured: Measurements, walls: pd.DataFrame) -> pd.DataFrame:
    """Label each wall as a step or an unmarked window: run, step, part, name, value."""
    is_window = mask_matching_rows(walls, _find_unmarked_windows(measured), UNIT)
    kind = np.array([STEP_TIME, WINDOW], object)[is_window.astype(np.int64)]
    return walls[[*UNIT]].assign(name=kind, value=walls["wall_ns"])


def _list_step_marks(measured: Measurements) -> tuple[pd.DataFrame, pd.DataFrame]:
    """List the marks of steps, without compilations: first of a window, and those from device work."""
    repeated = _list_recaptured_steps(measured)
    of_device_work = failed_questions.judge_if_sound(
        measured, lambda part: _mark_steps_by_device_work(part, repeated), _NO_ROWS
    )
    return _mark_first_steps_of_window(measured, repeated), of_device_work


def _list_walls_by_capture(measured: Measurements, repeated: pd.DataFrame) -> pd.DataFrame:
    """List the wall of every step; a step number in several captures has one row per capture."""
    walls = summarize_job_steps(measured).walls[[*UNIT, "wall_ns"]]
    if not len(repeated):
        return walls
    once = walls[~_is_in_recaptured_step(walls, repeated)].astype(object)
    return pd.concat([once, repeated], ignore_index=True)


def _fill_parts_of_values(
    measured: Measurements, values: dict[str, npt.NDArray[np.object_]]
) -> dict[str, npt.NDArray[np.object_]]:
    """Fill in the part of each value."""
    return {**values, "part": np.array([*_find_parts_of_values(measured, values), None], object)[:-1]}


_TIMES = frozenset({STEP_TIME, STAGE_TIME, WINDOW, RANGE_CADENCE, LAUNCH_CADENCE})


def _stack_object_columns(parts: Sequence[pd.DataFrame], columns: Sequence[str]) -> dict[str, npt.NDArray[np.object_]]:
    """Stack these columns of all parts; NaN where a part lacks one."""
    some = [part for part in parts if len(part)]
    values: dict[str, npt.NDArray[np.object_]] = {}
    for name in columns:
        missing = (part.get(name, np.nan) for part in some)
        arrays = [
            np.full(len(part), column, object) if isinstance(column, float) else column.to_numpy(object)
            for part, column in zip(some, missing, strict=True)
        ]
        values[name] = np.concatenate([np.empty(0, object), *arrays])
    return values


def _find_unmarked_windows(measured: Measurements) -> pd.DataFrame:
    """Find the units that are not marked as steps: no number, and no capture range of the program."""
    walls = summarize_job_steps(measured).walls
    return walls[(walls["origin"] == "file") & walls["step"].isna() & ~_is_captured_repeatedly(walls)]


_COUNTS_CALLS = re.compile(r"\d")


def _list_stage_runs_in_windows(rows: pd.DataFrame) -> pd.DataFrame:
    """List every run of a stage in a window, on its longest rank; names that count calls are not stages."""
    named = rows["canonical"].map(lambda stage: stage in STAGES or not _COUNTS_CALLS.search(str(stage)))
    rows = rows[named.astype(bool)]
    by = [*UNIT, "role", "canonical", "occurrence"]
    longest = rows.groupby(by, dropna=False, sort=True)["dur_ns"].max().reset_index()
    longest["part"] = _number_window_parts(longest["part"], longest["occurrence"])
    stage_times = longest.rename(columns={"canonical": "stage", "dur_ns": "value"})
    return stage_times.assign(name=STAGE_TIME)


def _average_cadences(measured: Measurements) -> pd.DataFrame:
    """Average the time between starts of whatever recurs in windows, over ranks and devices."""
    if not measured.has("recurrences"):
        return pd.DataFrame(columns=[*UNIT, "name", "value"])
    rows = measured["recurrences"].rename(columns={"name": "stage"})
    rows["value"] = rows["dur_ns"] / rows["count"]
    by = ["run", "part", "role", "kind", "stage", "position"]
    keyed = rows.astype(dict.fromkeys(by, object))
    cadences = keyed.groupby(by, dropna=False, sort=True).agg(value=("value", "mean")).reset_index()
    cadences["part"] = _number_window_parts(cadences["part"], cadences["position"])
    cadences["name"] = cadences["kind"].map({"launch": LAUNCH_CADENCE, "range": RANGE_CADENCE})
    return cadences


def _number_window_parts(parts: pd.Series[Any], numbers: pd.Series[Any]) -> list[str]:
    """Append to each part its number, padded to sort as text."""
    pairs = zip(parts, numbers, strict=True)
    return [f"{'' if pd.isna(part) else part} #{int(number):06d}".strip() for part, number in pairs]


def _list_recaptured_steps(measured: Measurements) -> pd.DataFrame:
    """List the profiler steps whose number is in several captures of a run: run, step, part, wall_ns.

    Each capture may count its steps from the start: equal numbers are then different steps, not pieces of one.
    """
    steps = measured["steps"]
    steps = steps[_is_captured_repeatedly(steps)]
    steps = steps[(steps["origin"] == "profiler") & steps["step"].notna()]
    if not len(steps):
        return pd.DataFrame(columns=[*UNIT, "wall_ns"], dtype=object)
    each = steps.groupby([*UNIT], sort=False)["dur_ns"].max().reset_index(name="wall_ns")
    repeated = each.groupby(["run", "step"], sort=False)["part"].transform("size") > 1
    return each[repeated].astype(object)


def _is_captured_repeatedly(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Find the rows of processes that were captured several times, by their part."""
    return np.array([_CAPTURED.match(str(part)) is not None for part in rows["part"].to_numpy(object)], np.bool_)


def _is_in_recaptured_step(rows: pd.DataFrame, recaptured: pd.DataFrame) -> pd.Series[Any]:
    """Find the rows of steps whose number is in several captures."""
    return pd.Series(mask_matching_rows(rows, recaptured, ["run", "step"]), rows.index)


def _restore_parts_of_recaptured_steps(
    rows: pd.DataFrame, recorded: pd.DataFrame, recaptured: pd.DataFrame
) -> pd.DataFrame:
    """Restore the part of rows whose step number is in several captures, from `recorded`."""
    if not len(recaptured):
        return rows
    part = recorded["part"].reindex(rows.index)
    return rows.assign(part=rows["part"].where(~_is_in_recaptured_step(rows, recaptured), part))


def _find_parts_of_values(measured: Measurements, values: Mapping[str, npt.NDArray[np.object_]]) -> list[object]:
    """Find the part of each value: its own, else the single part that all sources of its step share."""
    parts_of: dict[tuple[object, object], set[object]] = {}
    for run, step, part in iterate_records(select_distinct_rows(measured["steps"], UNIT), UNIT):
        parts_of.setdefault((run, step), set()).add(part)
    parts: list[object] = []
    for run, step, part in zip(*(list_python_values(values[name]) for name in UNIT), strict=True):
        shared = parts_of.get((run, step), set())
        only = next(iter(shared)) if len(shared) == 1 else None
        parts.append(only if part is None else part)
    return parts


def _list_work_values(measured: Measurements, walls: pd.DataFrame) -> pd.DataFrame:
    """List the work of each step, as given or else as logged: run, step, part, name, value."""
    counts = [_NO_ROWS]
    for name in PER_WORK:
        count = measured.facts.work.get(name, 0)
        if count > 0:
            counts.append(walls[[*UNIT]].assign(name=name, value=float(count)))
        elif measured.has("logged"):
            counts += _list_logged_work(measured, name)
    return stack_frames([part.astype(object) for part in counts]) if len(counts) > 1 else _NO_ROWS


def _list_logged_work(measured: Measurements, name: str) -> Iterator[pd.DataFrame]:
    """List one count of work for the steps that log and traces share, run by run."""
    walls = summarize_job_steps(measured).walls
    for run, log in map_run_driver_logs(measured).items():
        of_run = walls[find_equal_rows(walls["run"], run)]
        counts = log.counts[name]
        steps = sorted(set(match_logged_steps(of_run, log)) & set(counts.index))
        rows = of_run[of_run["step"].isin(steps) & ~of_run["origin"].isin(COUNTED_ANEW)][[*UNIT]]
        count = counts.reindex(rows["step"].astype("int64")).to_numpy(float)
        yield rows.assign(name=name, value=count)[count > 0]


def _mark_first_steps_of_window(measured: Measurements, recaptured: pd.DataFrame) -> pd.DataFrame:
    """Mark the first of several profiler steps of each source (warm-up): run, step, part, name, value 1."""
    steps = _restore_parts_of_recaptured_steps(
        clear_parts_of_numbered_steps(measured["steps"]), measured["steps"], recaptured
    )
    steps = steps[(steps["origin"] == "profiler").to_numpy()]
    if not len(steps):
        return steps
    capture, _ = group_rows_by(steps, CAPTURE)
    in_time = np.lexsort((steps["ts_ns"].to_numpy(np.int64), capture))
    counts = np.bincount(capture)
    first = in_time[(np.cumsum(counts) - counts)[counts > 1]]
    rows = select_distinct_rows(steps.iloc[np.sort(first)], UNIT)
    return rows.assign(name="first_of_window", value=1)


def _mark_steps_by_device_work(measured: Measurements, recaptured: pd.DataFrame) -> pd.DataFrame:
    """Mark steps by their device work: run, step, part, name, value 1."""
    if measured.facts.has_chosen_steps or "gpu_time" in failed_questions.list_unasked_tables(measured):
        return _NO_ROWS
    rows = list_steps_with_device_work(measured)
    if not len(rows):
        return _NO_ROWS
    parted = _restore_parts_of_recaptured_steps(clear_parts_of_numbered_steps(rows), rows, recaptured)
    return to_pandas(mark_step_units(to_frame(parted[parted["step"].notna().to_numpy(np.bool_)])))


def _count_compilations_by_step(measured: Measurements, recaptured: pd.DataFrame) -> pd.DataFrame:
    """Count the compilations and loads of code in each step that has any: run, step, part, name, value."""
    if not measured.row_count("interruptions"):
        return pd.DataFrame(columns=[*UNIT, "name", "value"])
    rows = _restore_parts_of_recaptured_steps(
        clear_parts_of_numbered_steps(measured["interruptions"]), measured["interruptions"], recaptured
    )
    is_compilation = (rows["kind"] == "compilation").to_numpy()
    rows = rows[is_compilation & rows["step"].notna().to_numpy()]
    if not len(rows):
        return rows
    return aggregate_by_keys(rows, UNIT, value=("count", "sum")).assign(name="compilations")


_REQUEST = [*PROCESS, "memory", "device", "ts_ns", "asked_bytes"]
"""Key of one failed memory request across snapshots."""


def _count_failed_memory_requests(measured: Measurements) -> pd.DataFrame:
    """Count the failed memory requests (OOM) of each run with a memory history: run, name, value.

    Histories of one process may overlap: requests with the same time count once.
    """
    if not measured.has("out_of_memory"):
        return pd.DataFrame(columns=["run", "name", "value"])
    levels = measured["snapshot_levels"]
    runs = levels.loc[levels["entry_count"] > 0, "run"].drop_duplicates()
    failed = measured["out_of_memory"]
    is_repeated = failed["ts_ns"].notna() & failed.duplicated(_REQUEST)
    counts = failed[~is_repeated].groupby("run", dropna=False).size().reindex(runs, fill_value=0)
    return pd.DataFrame({"run": counts.index, "name": OUT_OF_MEMORY, "value": counts.to_numpy()})
