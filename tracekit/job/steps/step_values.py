"""Step values of the whole job: times, marks and work of each step, the input of comparisons."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.frames import (
    COUNTED_ANEW,
    UNIT,
    distinct,
    grouped,
    job,
    same_text,
    stacked,
    stage_rows,
    units,
)
from tracekit.job.logs.driver_log import logs, same_steps
from tracekit.job.steps.step_kinds import device_steps, marks
from tracekit.model import faults
from tracekit.model.keys import CAPTURE, IN_RUN, PROCESS, as_python, is_among, of_keys, records
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
from tracekit.model.tables.arrays import framed
from tracekit.model.trace import Measurements

NAMES = (
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


def job_values(measured: Measurements) -> pd.DataFrame:
    """List the values of the job: one row per step, and per step and stage.

    Columns: run, role, step, part, stage, name, value, unit, better. `part` names the capture of a step that is in a
    single one.

    - `step_time` (ns): wall of the step over all ranks. `stage_time` (ns): the longest rank, Σ over occurrences.
    - `first_of_window`: first step after a profiler began, where it saw more than one (warm-up).
    - `WORK_MARKS`: marks of a step from its device work (`step_marks`). `compilations`: code compiled or loaded in a step.
    - `tokens`, `samples`, `images`: the count given for every step, else the one that the driver logged (Q22).
    - `out_of_memory`: failed memory requests in recorded histories, one row per run with a history.

    A source without step marks (`_unmarked`) is not a step. Its length is `window_time` (ns), and its stages have one row
    per time they ran. `range_cadence` and `launch_cadence` (ns) are the time between starts of whatever recurs in it:
    means over ranks and devices, with the order in `part`.
    """
    repeated = _again(measured)
    walls = _walls(measured, repeated)
    steps = _times(measured, walls).assign(role=None, stage=None)
    unmarked = _unmarked(measured)
    rows = _apart(stage_rows(measured), measured["stages"], repeated)
    in_window = is_among(rows, unmarked, UNIT)
    per_rank = grouped(
        rows[~in_window], [*UNIT, "canonical", *IN_RUN], value=("dur_ns", "sum")
    ).rename(columns={"canonical": "stage"})
    stages = grouped(per_rank, [*UNIT, "role", "stage"], value=("value", "max"))
    stages["name"] = STAGE_TIME
    columns = [*UNIT, "role", "stage", "name", "value"]
    parts = [
        steps,
        stages,
        faults.sound(measured, lambda part: _work(part, walls), _NO_ROWS),
        *measured.derived(_marks),
        _compiling(measured, repeated),
        faults.sound(measured, _failed_requests, _NO_ROWS),
    ]
    values = _with_parts(measured, _objects(parts, columns))
    if len(unmarked):
        windows = _objects([_each_time(rows[in_window]), _cadences(measured)], columns)
        values = {name: np.concatenate([values[name], windows[name]]) for name in columns}
    is_time = [1 if name in _TIMES else 0 for name in values["name"]]
    values["unit"] = np.array(["count", "ns"], object)[is_time]
    values["better"] = np.array(["neither", "lower"], object)[is_time]
    return framed(values, len(is_time))


def marked_steps(measured: Measurements) -> pd.DataFrame:
    """List the rows of `job_values` for steps and their marks, without compilations."""
    walls = _walls(measured, _again(measured)).rename(columns={"wall_ns": "value"})
    return _framed(measured, [walls.assign(name=STEP_TIME), *measured.derived(_marks)])


def timed_steps(measured: Measurements) -> pd.DataFrame:
    """List the rows of `job_values` for times of steps, and the marks that decide which steps count."""
    repeated = _again(measured)
    times = _times(measured, _walls(measured, repeated))
    marked = [*measured.derived(_marks), _compiling(measured, repeated)]
    return _framed(measured, [times, *marked])


def _framed(measured: Measurements, parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Stack the values of all parts in one frame: run, step, part, name, value."""
    values = _with_parts(measured, _objects(parts, [*UNIT, "name", "value"]))
    return framed(values, len(values["name"]))


def _times(measured: Measurements, walls: pd.DataFrame) -> pd.DataFrame:
    """Label each wall as a step or an unmarked window: run, step, part, name, value."""
    is_window = is_among(walls, _unmarked(measured), UNIT)
    kind = np.array([STEP_TIME, WINDOW], object)[is_window.astype(np.int64)]
    return walls[[*UNIT]].assign(name=kind, value=walls["wall_ns"])


def _marks(measured: Measurements) -> tuple[pd.DataFrame, pd.DataFrame]:
    """List the marks of steps, without compilations: first of a window, and those from device work."""
    repeated = _again(measured)
    of_device_work = faults.sound(measured, lambda part: _of_device_work(part, repeated), _NO_ROWS)
    return _first_of_window(measured, repeated), of_device_work


def _walls(measured: Measurements, repeated: pd.DataFrame) -> pd.DataFrame:
    """List the wall of every step; a step number in several captures has one row per capture."""
    walls = job(measured).walls[[*UNIT, "wall_ns"]]
    if not len(repeated):
        return walls
    once = walls[~_among(walls, repeated)].astype(object)
    return pd.concat([once, repeated], ignore_index=True)


def _with_parts(
    measured: Measurements, values: dict[str, npt.NDArray[np.object_]]
) -> dict[str, npt.NDArray[np.object_]]:
    """Fill in the part of each value."""
    return {**values, "part": np.array([*_parts(measured, values), None], object)[:-1]}


_TIMES = frozenset({STEP_TIME, STAGE_TIME, WINDOW, RANGE_CADENCE, LAUNCH_CADENCE})


def _objects(
    parts: Sequence[pd.DataFrame], columns: Sequence[str]
) -> dict[str, npt.NDArray[np.object_]]:
    """Stack these columns of all parts; NaN where a part lacks one."""
    some = [part for part in parts if len(part)]
    values: dict[str, npt.NDArray[np.object_]] = {}
    for name in columns:
        missing = (part.get(name, np.nan) for part in some)
        arrays = [
            np.full(len(part), column, object)
            if isinstance(column, float)
            else column.to_numpy(object)
            for part, column in zip(some, missing, strict=True)
        ]
        values[name] = np.concatenate([np.empty(0, object), *arrays])
    return values


def _unmarked(measured: Measurements) -> pd.DataFrame:
    """Find the units that are not marked as steps: no number, and no capture range of the program."""
    walls = job(measured).walls
    return walls[(walls["origin"] == "file") & walls["step"].isna() & ~_is_captured(walls)]


_COUNTS_CALLS = re.compile(r"\d")


def _each_time(rows: pd.DataFrame) -> pd.DataFrame:
    """List every run of a stage in a window, on its longest rank; names that count calls are not stages."""
    named = rows["canonical"].map(
        lambda stage: stage in STAGES or not _COUNTS_CALLS.search(str(stage))
    )
    rows = rows[named.astype(bool)]
    by = [*UNIT, "role", "canonical", "occurrence"]
    longest = rows.groupby(by, dropna=False, sort=True)["dur_ns"].max().reset_index()
    longest["part"] = _numbered(longest["part"], longest["occurrence"])
    stage_times = longest.rename(columns={"canonical": "stage", "dur_ns": "value"})
    return stage_times.assign(name=STAGE_TIME)


def _cadences(measured: Measurements) -> pd.DataFrame:
    """Average the time between starts of whatever recurs in windows, over ranks and devices."""
    if not measured.has("recurrences"):
        return pd.DataFrame(columns=[*UNIT, "name", "value"])
    rows = measured["recurrences"].rename(columns={"name": "stage"})
    rows["value"] = rows["dur_ns"] / rows["count"]
    by = ["run", "part", "role", "kind", "stage", "position"]
    keyed = rows.astype(dict.fromkeys(by, object))
    cadences = keyed.groupby(by, dropna=False, sort=True).agg(value=("value", "mean")).reset_index()
    cadences["part"] = _numbered(cadences["part"], cadences["position"])
    cadences["name"] = cadences["kind"].map({"launch": LAUNCH_CADENCE, "range": RANGE_CADENCE})
    return cadences


def _numbered(parts: pd.Series[Any], numbers: pd.Series[Any]) -> list[str]:
    """Append to each part its number, padded to sort as text."""
    pairs = zip(parts, numbers, strict=True)
    return [f"{'' if pd.isna(part) else part} #{int(number):06d}".strip() for part, number in pairs]


def _again(measured: Measurements) -> pd.DataFrame:
    """List the profiler steps whose number is in several captures of a run: run, step, part, wall_ns.

    Each capture may count its steps from the start: equal numbers are then different steps, not pieces of one.
    """
    steps = measured["steps"]
    steps = steps[_is_captured(steps)]
    steps = steps[(steps["origin"] == "profiler") & steps["step"].notna()]
    if not len(steps):
        return pd.DataFrame(columns=[*UNIT, "wall_ns"], dtype=object)
    each = steps.groupby([*UNIT], sort=False)["dur_ns"].max().reset_index(name="wall_ns")
    repeated = each.groupby(["run", "step"], sort=False)["part"].transform("size") > 1
    return each[repeated].astype(object)


def _is_captured(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Find the rows of processes that were captured several times, by their part."""
    parts = map(str, rows["part"].to_numpy(object))
    return np.array([_CAPTURED.match(part) is not None for part in parts], np.bool_)


def _among(rows: pd.DataFrame, again: pd.DataFrame) -> pd.Series[Any]:
    """Find the rows of steps whose number is in several captures."""
    return pd.Series(is_among(rows, again, ["run", "step"]), rows.index)


def _apart(rows: pd.DataFrame, recorded: pd.DataFrame, again: pd.DataFrame) -> pd.DataFrame:
    """Restore the part of rows whose step number is in several captures, from `recorded`."""
    if not len(again):
        return rows
    part = recorded["part"].reindex(rows.index)
    return rows.assign(part=rows["part"].where(~_among(rows, again), part))


def _parts(measured: Measurements, values: Mapping[str, npt.NDArray[np.object_]]) -> list[object]:
    """Find the part of each value: its own, else the single part that all sources of its step share."""
    parts_of: dict[tuple[object, object], set[object]] = {}
    for run, step, part in records(distinct(measured["steps"], UNIT), UNIT):
        parts_of.setdefault((run, step), set()).add(part)
    parts: list[object] = []
    for run, step, part in zip(*(as_python(values[name]) for name in UNIT), strict=True):
        shared = parts_of.get((run, step), set())
        only = next(iter(shared)) if len(shared) == 1 else None
        parts.append(only if part is None else part)
    return parts


def _work(measured: Measurements, walls: pd.DataFrame) -> pd.DataFrame:
    """List the work of each step, as given or else as logged: run, step, part, name, value."""
    counts = [_NO_ROWS]
    for name in PER_WORK:
        count = measured.facts.work.get(name, 0)
        if count > 0:
            counts.append(walls[[*UNIT]].assign(name=name, value=float(count)))
        elif measured.has("logged"):
            counts += _logged(measured, name)
    return stacked([part.astype(object) for part in counts]) if len(counts) > 1 else _NO_ROWS


def _logged(measured: Measurements, name: str) -> Iterator[pd.DataFrame]:
    """List one count of work for the steps that log and traces share, run by run."""
    walls = job(measured).walls
    for run, log in logs(measured).items():
        of_run = walls[same_text(walls["run"], run)]
        counts = log.counts[name]
        steps = sorted(set(same_steps(of_run, log)) & set(counts.index))
        rows = of_run[of_run["step"].isin(steps) & ~of_run["origin"].isin(COUNTED_ANEW)][[*UNIT]]
        count = counts.reindex(rows["step"].astype("int64")).to_numpy(float)
        yield rows.assign(name=name, value=count)[count > 0]


def _first_of_window(measured: Measurements, again: pd.DataFrame) -> pd.DataFrame:
    """Mark the first of several profiler steps of each source (warm-up): run, step, part, name, value 1."""
    steps = _apart(units(measured["steps"]), measured["steps"], again)
    steps = steps[(steps["origin"] == "profiler").to_numpy()]
    if not len(steps):
        return steps
    capture, _ = of_keys(steps, CAPTURE)
    in_time = np.lexsort((steps["ts_ns"].to_numpy(np.int64), capture))
    counts = np.bincount(capture)
    first = in_time[(np.cumsum(counts) - counts)[counts > 1]]
    rows = distinct(steps.iloc[np.sort(first)], UNIT)
    return rows.assign(name="first_of_window", value=1)


def _of_device_work(measured: Measurements, again: pd.DataFrame) -> pd.DataFrame:
    """Mark steps by their device work: run, step, part, name, value 1."""
    if measured.facts.has_chosen_steps or "gpu_time" in faults.unasked_tables(measured):
        return _NO_ROWS
    rows = device_steps(measured)
    if not len(rows):
        return _NO_ROWS
    parted = _apart(units(rows), rows, again)
    return marks(parted[parted["step"].notna().to_numpy(np.bool_)])


def _compiling(measured: Measurements, again: pd.DataFrame) -> pd.DataFrame:
    """Count the compilations and loads of code in each step that has any: run, step, part, name, value."""
    if not measured.row_count("interruptions"):
        return pd.DataFrame(columns=[*UNIT, "name", "value"])
    rows = _apart(units(measured["interruptions"]), measured["interruptions"], again)
    is_compilation = (rows["kind"] == "compilation").to_numpy()
    rows = rows[is_compilation & rows["step"].notna().to_numpy()]
    if not len(rows):
        return rows
    return grouped(rows, UNIT, value=("count", "sum")).assign(name="compilations")


_REQUEST = [*PROCESS, "memory", "device", "ts_ns", "asked_bytes"]
"""Key of one failed memory request across snapshots."""


def _failed_requests(measured: Measurements) -> pd.DataFrame:
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
