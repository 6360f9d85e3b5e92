"""The times of the whole job, step by step: what a comparison rests on, whatever was measured where."""

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
"""What is told of the whole job, as against its processes."""

_CAPTURED = re.compile(r"capture\d+\Z")
"""The part of a process that was captured several times."""


_NO_ROWS = pd.DataFrame(columns=["run", "name", "value"])


def job_values(measured: Measurements) -> pd.DataFrame:
    """One row a step, and one a step and stage: run, role, step, part, stage, name, value, unit, better.

    A source without step marks (`_unmarked`) is no step: its length is `window_time` (ns), its stages have a row for
    each time that they ran, and `range_cadence` and `launch_cadence` (ns) are from one start of what recurs in it to
    the next: means over ranks and devices, `part` being which in order.

    `step_time` (ns) is the wall of the step over all ranks; `stage_time` (ns) that of the longest rank,
    Σ over its occurrences. `first_of_window` marks the first step after a profiler began, where it saw
    more than one; `WORK_MARKS` mark what its device work says of a step (`step_marks`); `compilations` counts what was compiled or loaded in a step. `tokens`, `samples` and
    `images` are those that a person gave of every step, else those that the driver logged for a step of the
    traces (Q22). `out_of_memory` counts, in a row a run, the requests for memory that failed in the recorded
    histories; a run without one has no row. `part` names the capture of a step, where it is in one alone.
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
    """The rows of `job_values` that say which steps there are and what tells them apart but for what they compile."""
    walls = _walls(measured, _again(measured)).rename(columns={"wall_ns": "value"})
    return _framed(measured, [walls.assign(name=STEP_TIME), *measured.derived(_marks)])


def timed_steps(measured: Measurements) -> pd.DataFrame:
    """The rows of `job_values` that are times of steps, and those that say which of these count."""
    repeated = _again(measured)
    times = _times(measured, _walls(measured, repeated))
    marked = [*measured.derived(_marks), _compiling(measured, repeated)]
    return _framed(measured, [times, *marked])


def _framed(measured: Measurements, parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The values of all parts in one frame: run, step, part, name, value."""
    values = _with_parts(measured, _objects(parts, [*UNIT, "name", "value"]))
    return framed(values, len(values["name"]))


def _times(measured: Measurements, walls: pd.DataFrame) -> pd.DataFrame:
    """The walls under the names of what they are, steps or windows without a mark: run, step, part, name, value."""
    is_window = is_among(walls, _unmarked(measured), UNIT)
    kind = np.array([STEP_TIME, WINDOW], object)[is_window.astype(np.int64)]
    return walls[[*UNIT]].assign(name=kind, value=walls["wall_ns"])


def _marks(measured: Measurements) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What tells steps apart but for what they compile: which are first of a window, and what their device work says."""
    repeated = _again(measured)
    of_device_work = faults.sound(measured, lambda part: _of_device_work(part, repeated), _NO_ROWS)
    return _first_of_window(measured, repeated), of_device_work


def _walls(measured: Measurements, repeated: pd.DataFrame) -> pd.DataFrame:
    """The wall of every step, those of steps that several captures hold apart: run, step, part, wall_ns."""
    walls = job(measured).walls[[*UNIT, "wall_ns"]]
    if not len(repeated):
        return walls
    once = walls[~_among(walls, repeated)].astype(object)
    return pd.concat([once, repeated], ignore_index=True)


def _with_parts(
    measured: Measurements, values: dict[str, npt.NDArray[np.object_]]
) -> dict[str, npt.NDArray[np.object_]]:
    """The columns with the part of each value."""
    return {**values, "part": np.array([*_parts(measured, values), None], object)[:-1]}


_TIMES = frozenset({STEP_TIME, STAGE_TIME, WINDOW, RANGE_CADENCE, LAUNCH_CADENCE})


def _objects(
    parts: Sequence[pd.DataFrame], columns: Sequence[str]
) -> dict[str, npt.NDArray[np.object_]]:
    """These columns of all parts, one after the other; NaN where a part lacks one."""
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
    """The units that are windows which nothing marks as a step: neither a number nor a capture range of the program."""
    walls = job(measured).walls
    return walls[(walls["origin"] == "file") & walls["step"].isna() & ~_is_captured(walls)]


_COUNTS_CALLS = re.compile(r"\d")


def _each_time(rows: pd.DataFrame) -> pd.DataFrame:
    """Every time that a stage ran in a window, of its longest rank; names that count their calls are no stages."""
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
    """From one start to the next of what recurs in windows: means over ranks and devices."""
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
    """Parts of a run that come in order: each with its number, which sorts as text."""
    pairs = zip(parts, numbers, strict=True)
    return [f"{'' if pd.isna(part) else part} #{int(number):06d}".strip() for part, number in pairs]


def _again(measured: Measurements) -> pd.DataFrame:
    """Profiler steps whose number several captures of a run hold: run, step, part, wall_ns.

    Every capture may count its steps anew: then equal numbers are other steps, not pieces of one.
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
    """Which rows are of a process that was captured several times, by their part."""
    parts = map(str, rows["part"].to_numpy(object))
    return np.array([_CAPTURED.match(part) is not None for part in parts], np.bool_)


def _among(rows: pd.DataFrame, again: pd.DataFrame) -> pd.Series[Any]:
    """Which rows are of a step that several captures hold."""
    return pd.Series(is_among(rows, again, ["run", "step"]), rows.index)


def _apart(rows: pd.DataFrame, recorded: pd.DataFrame, again: pd.DataFrame) -> pd.DataFrame:
    """The rows (of `recorded`), those of a step that several captures hold with their part again."""
    if not len(again):
        return rows
    part = recorded["part"].reindex(rows.index)
    return rows.assign(part=rows["part"].where(~_among(rows, again), part))


def _parts(measured: Measurements, values: Mapping[str, npt.NDArray[np.object_]]) -> list[object]:
    """The part of each value: its own, else the one part that all sources of its step share."""
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
    """How much work each step holds: as given, else as logged: run, step, part, name, value."""
    counts = [_NO_ROWS]
    for name in PER_WORK:
        count = measured.facts.work.get(name, 0)
        if count > 0:
            counts.append(walls[[*UNIT]].assign(name=name, value=float(count)))
        elif measured.has("logged"):
            counts += _logged(measured, name)
    return stacked([part.astype(object) for part in counts]) if len(counts) > 1 else _NO_ROWS


def _logged(measured: Measurements, name: str) -> Iterator[pd.DataFrame]:
    """One count of the steps that log and traces share, run by run: run, step, part, name, value."""
    walls = job(measured).walls
    for run, log in logs(measured).items():
        of_run = walls[same_text(walls["run"], run)]
        counts = log.counts[name]
        steps = sorted(set(same_steps(of_run, log)) & set(counts.index))
        rows = of_run[of_run["step"].isin(steps) & ~of_run["origin"].isin(COUNTED_ANEW)][[*UNIT]]
        count = counts.reindex(rows["step"].astype("int64")).to_numpy(float)
        yield rows.assign(name=name, value=count)[count > 0]


def _first_of_window(measured: Measurements, again: pd.DataFrame) -> pd.DataFrame:
    """The first of several profiler steps of each source: run, step, part, name, value 1."""
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
    """What the device work of steps says of them: run, step, part, name, value 1."""
    if measured.facts.has_chosen_steps or "gpu_time" in faults.unasked_tables(measured):
        return _NO_ROWS
    rows = device_steps(measured)
    if not len(rows):
        return _NO_ROWS
    parted = _apart(units(rows), rows, again)
    return marks(parted[parted["step"].notna().to_numpy(np.bool_)])


def _compiling(measured: Measurements, again: pd.DataFrame) -> pd.DataFrame:
    """How often code was compiled or loaded, in the steps in which it was: run, step, part, name, value."""
    if not measured.row_count("interruptions"):
        return pd.DataFrame(columns=[*UNIT, "name", "value"])
    rows = _apart(units(measured["interruptions"]), measured["interruptions"], again)
    is_compilation = (rows["kind"] == "compilation").to_numpy()
    rows = rows[is_compilation & rows["step"].notna().to_numpy()]
    if not len(rows):
        return rows
    return grouped(rows, UNIT, value=("count", "sum")).assign(name="compilations")


_REQUEST = [*PROCESS, "memory", "device", "ts_ns", "asked_bytes"]
"""What one failed request is known by, whichever snapshots tell of it."""


def _failed_requests(measured: Measurements) -> pd.DataFrame:
    """How often memory ran out in each run of which a history was read: run, name, value.

    Histories of one process may overlap: a request of one time counts once.
    """
    if not measured.has("out_of_memory"):
        return pd.DataFrame(columns=["run", "name", "value"])
    levels = measured["snapshot_levels"]
    runs = levels.loc[levels["entry_count"] > 0, "run"].drop_duplicates()
    failed = measured["out_of_memory"]
    is_repeated = failed["ts_ns"].notna() & failed.duplicated(_REQUEST)
    counts = failed[~is_repeated].groupby("run", dropna=False).size().reindex(runs, fill_value=0)
    return pd.DataFrame({"run": counts.index, "name": OUT_OF_MEMORY, "value": counts.to_numpy()})
