"""Step values of the whole job: times, marks and work of each step, the input of comparisons."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from tracekit.job.driver_log import find_logged_steps, map_run_driver_logs
from tracekit.job.frames import COUNTED_ANEW, UNIT, list_recorded_stage_ranges, summarize_step_walls
from tracekit.job.steps.step_kinds import mark_step_units, measure_device_work_of_steps
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
from tracekit.model.tables.arrays import Coded, select_rows
from tracekit.model.tables.frame import (
    Bools,
    Frame,
    choose,
    concat,
    count_rows,
    first_of,
    max_of,
    mean_of,
    min_of,
    sum_of,
    texts,
    where,
)
from tracekit.model.tables.keys import CAPTURE, IN_RUN, PROCESS
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


LEAST_CAPTURES, MORE_LAUNCHES = 3, 1.05
"""Captures of one step from which a warm-up capture can be recognized, and its launches relative to the most of the others."""

FRACTIONAL_VALUES = frozenset({*PER_WORK, RANGE_CADENCE, LAUNCH_CADENCE})
"""Values of the job that need not be whole: work and cadences."""

_TIMES = frozenset({STEP_TIME, STAGE_TIME, WINDOW, RANGE_CADENCE, LAUNCH_CADENCE})

_NO_ROWS = Frame({}, 0)


def list_values_of_job(measured: Measurements) -> Frame:
    """List the values of the job: one row per step, and per step and stage.

    Columns: run, role, step, part, stage, name, value, unit, better. `part` names the capture of a step that is in a
    single one.

    - `step_time` (ns): wall of the step over all ranks. `stage_time` (ns): the longest rank, Σ over occurrences.
    - `first_of_window`: first step after a profiler began, where it saw more than one (warm-up) and did not begin within
      the step before; without such, the first capture of a run if it launches more than later ones.
    - `WORK_MARKS`: marks of a step from its device work (`step_kinds`). `compilations`: code compiled or loaded in a step.
    - `tokens`, `samples`, `images`: the count given for every step, else the one that the driver logged (Q22).
    - `out_of_memory`: failed memory requests in recorded histories, one row per run with a history.

    A source without step marks (`_find_unmarked_windows`) is not a step. Its length is `window_time` (ns), and its stages have one row
    per time they ran. `range_cadence` and `launch_cadence` (ns) are the time between starts of whatever recurs in it:
    means over ranks and devices, with the order in `part`.
    """
    walls, unmarked = _list_walls_by_capture(measured), _find_unmarked_windows(measured)
    ranges = _identify_units(measured, list_recorded_stage_ranges(measured))
    ranges = ranges.with_columns(stage=ranges["canonical"])
    in_window = ranges.is_among(unmarked, UNIT, optional=UNIT)
    per_rank = ranges.filter(~in_window).group_by(*UNIT, "stage", *IN_RUN).agg(value=sum_of("dur_ns"))
    stages = per_rank.group_by(*UNIT, "role", "stage").agg(value=max_of("value"))
    parts = [
        _label_step_walls(measured, walls),
        stages.with_columns(name=STAGE_TIME),
        failed_questions.judge_if_sound(measured, lambda part: _list_work_values(part, walls), _NO_ROWS),
        *measured.derived(_list_step_marks),
        _count_compilations_by_step(measured),
        failed_questions.judge_if_sound(measured, _count_failed_memory_requests, _NO_ROWS),
    ]
    values = _fill_parts_of_values(measured, concat(parts))
    if len(unmarked):
        values = concat([values, _list_stage_runs_in_windows(ranges.filter(in_window)), _average_cadences(measured)])
    is_time = values.is_in("name", _TIMES).astype(np.int64)
    return values.select(*UNIT, "role", "stage", "name", "value").with_columns(
        unit=select_rows(texts(("count", "ns")), is_time), better=select_rows(texts(("neither", "lower")), is_time)
    )


def list_values_and_marks(measured: Measurements) -> Frame:
    """List the rows of `list_values_of_job` for steps and their marks, without compilations: the unit, name and value."""
    walls = _list_walls_by_capture(measured)
    walls = walls.select(*UNIT).with_columns(name=STEP_TIME, value=walls["wall_ns"])
    return _fill_parts_of_values(measured, concat([walls, *measured.derived(_list_step_marks)]))


def list_times_and_marks(measured: Measurements) -> Frame:
    """List the rows of `list_values_of_job` for times of steps, and the marks that decide which steps count."""
    times = _label_step_walls(measured, _list_walls_by_capture(measured))
    marks = [*measured.derived(_list_step_marks), _count_compilations_by_step(measured)]
    return _fill_parts_of_values(measured, concat([times, *marks]))


def _fill_parts_of_values(measured: Measurements, values: Frame) -> Frame:
    """Fill in the part of each value: its own, else the single part that all sources of its step share."""
    units = measured.frame("steps").distinct(*UNIT).group_by("run", "step")
    parts = units.agg(shared=first_of("part"), count=count_rows())
    parts = parts.with_columns(shared=where(parts["count"] == 1, parts["shared"])).drop("count")
    shared = values.select("run", "step").join(parts, ("run", "step"), "left", optional=("run", "step"))["shared"]
    return values.with_columns(part=choose(values.is_missing("part"), shared, values["part"]))


def _label_step_walls(measured: Measurements, walls: Frame) -> Frame:
    """Label each wall as a step or an unmarked window: run, step, part, name, value."""
    is_window = walls.is_among(_find_unmarked_windows(measured), UNIT, optional=UNIT)
    name = select_rows(texts((STEP_TIME, WINDOW)), is_window.astype(np.int64))
    return walls.select(*UNIT).with_columns(name=name, value=walls["wall_ns"])


def _list_walls_by_capture(measured: Measurements) -> Frame:
    """List the wall of every step; a step number in several captures has one row per capture."""
    walls = summarize_step_walls(measured).walls.select(*UNIT, "wall_ns")
    repeated = measured.derived(_list_recaptured_steps)
    return concat([walls.filter(~walls.is_among(repeated, ("run", "step"), optional=["run"])), repeated])


def _list_recaptured_steps(measured: Measurements) -> Frame:
    """List the profiler steps whose number is in several captures of a run: run, step, part, wall_ns.

    Each capture may count its steps from the start: equal numbers are then different steps, not pieces of one.
    """
    steps = measured.frame("steps")
    is_numbered = steps.equals("origin", "profiler") & ~steps.is_missing("step")
    steps = steps.filter(is_numbered & _is_captured_repeatedly(steps))
    each = steps.group_by(*UNIT).agg(wall_ns=max_of("dur_ns"))
    return each.filter(each.group_by("run", "step").each(count_rows()) > 1)


def _is_captured_repeatedly(rows: Frame) -> Bools:
    """Find the rows of processes that were captured several times, by their part."""
    return rows.is_in("part", {part for part in rows["part"].texts if _CAPTURED.match(part)})


def _identify_units(measured: Measurements, rows: Frame) -> Frame:
    """Clear `part` in rows whose step number identifies the step: no other capture has the number."""
    repeated = rows.is_among(measured.derived(_list_recaptured_steps), ("run", "step"), optional=["run"])
    return rows.with_columns(part=where(rows.is_missing("step") | repeated, rows["part"]))


def _find_unmarked_windows(measured: Measurements) -> Frame:
    """Find the units that are not marked as steps: no number, and no capture range of the program."""
    walls = summarize_step_walls(measured).walls
    is_file = walls.equals("origin", "file") & walls.is_missing("step")
    return walls.filter(is_file & ~_is_captured_repeatedly(walls))


_COUNTS_CALLS = re.compile(r"\d")


def _list_stage_runs_in_windows(rows: Frame) -> Frame:
    """List every run of a stage in a window, on its longest rank; names that count calls are not stages."""
    names = {name for name in rows["stage"].texts if name in STAGES or not _COUNTS_CALLS.search(name)}
    by = (*UNIT, "role", "stage", "occurrence")
    longest = rows.filter(rows.is_in("stage", names)).group_by(*by).agg(value=max_of("dur_ns")).sort(*by)
    return longest.with_columns(part=_number_window_parts(longest, "occurrence"), name=STAGE_TIME)


def _average_cadences(measured: Measurements) -> Frame:
    """Average the time between starts of whatever recurs in windows, over ranks and devices."""
    rows = measured.frame("recurrences")
    by = ("run", "part", "role", "kind", "stage", "position")
    rows = rows.with_columns(stage=rows["name"])
    cadences = rows.group_by(*by).agg(value=mean_of(rows["dur_ns"] / rows["count"])).sort(*by)
    is_range = cadences.equals("kind", "range").astype(np.int64)
    name = select_rows(texts((LAUNCH_CADENCE, RANGE_CADENCE)), is_range)
    return cadences.with_columns(part=_number_window_parts(cadences, "position"), name=name)


def _number_window_parts(rows: Frame, column: str) -> Coded:
    """Append to each part the number in a column, padded to sort as text."""
    pairs = zip(rows.values("part"), rows.values(column), strict=True)
    return texts([f"{part or ''} #{number:06d}".strip() for part, number in pairs])


def _list_work_values(measured: Measurements, walls: Frame) -> Frame:
    """List the work of each step, as given or else as logged: run, step, part, name, value."""
    counts = [_NO_ROWS]
    for name in PER_WORK:
        count = measured.facts.work.get(name, 0)
        if count > 0:
            counts.append(walls.select(*UNIT).with_columns(name=name, value=float(count)))
        elif measured.has("logged"):
            counts += _list_logged_work(measured, name)
    return concat(counts)


def _list_logged_work(measured: Measurements, name: str) -> Iterator[Frame]:
    """List one count of work for the steps that log and traces share, run by run."""
    walls = summarize_step_walls(measured).walls
    walls = walls.filter(~walls.is_missing("step") & ~walls.is_in("origin", COUNTED_ANEW))
    for run, log in map_run_driver_logs(measured).items():
        of_run = walls.filter(walls.equals("run", run))
        counts = log.work[name]
        shared = counts.keys() & set(find_logged_steps(of_run, log))
        rows = of_run.filter(np.isin(of_run.integers("step"), sorted(shared))).select(*UNIT)
        count = np.array([counts[step] for step in rows.values("step")], np.float64)
        yield rows.with_columns(name=name, value=count).filter(count > 0)


def _list_step_marks(measured: Measurements) -> tuple[Frame, Frame]:
    """List the marks of steps, without compilations: first of a window, and those from device work."""
    of_device_work = failed_questions.judge_if_sound(measured, _mark_steps_by_device_work, _NO_ROWS)
    return _mark_first_steps_of_window(measured), of_device_work


def _mark_first_steps_of_window(measured: Measurements) -> Frame:
    """Mark the first of several profiler steps of each source (warm-up): run, step, part, name, value 1."""
    steps = _identify_units(measured, measured.frame("steps"))
    steps = steps.filter(steps.equals("origin", "profiler"))
    by_capture = steps.group_by(*CAPTURE)
    is_first = (by_capture.position(steps.order("ts_ns")) == 0) & (by_capture.each(count_rows()) > 1)
    is_first[is_first] &= ~_has_work_before(measured, steps.filter(is_first))
    units = steps.filter(is_first).distinct(*UNIT).select(*UNIT)
    return concat([units, _find_warm_up_captures(measured)]).with_columns(name="first_of_window", value=1)


def _has_work_before(measured: Measurements, firsts: Frame) -> Bools:
    """Find the first steps before which a large part of another step was recorded: the profiler began within that one.

    A stage before the first mark ran at least `WORK_BEFORE` of the device ops of the step.
    """
    stages = failed_questions.judge_if_sound_and_asked(measured, _list_stages_without_step, None)
    if stages is None:
        return np.zeros(len(firsts), np.bool_)
    starts = firsts.select(*CAPTURE).with_columns(first_ns=firsts["ts_ns"])
    rows = stages.join(starts, CAPTURE, optional=CAPTURE)
    rows = rows.filter(rows["ts_ns"] + rows["window_ns"] <= rows["first_ns"])
    before = rows.group_by(*CAPTURE).agg(op_count=max_of("op_count"))
    counts = firsts.select(*CAPTURE).join(before, CAPTURE, "left", optional=CAPTURE).integers("op_count")
    return np.asarray(counts > WORK_BEFORE * firsts.number("launch_count", missing=0.0), np.bool_)


def _list_stages_without_step(measured: Measurements) -> Frame | None:
    """List the GPU time of stages outside of any step; None where none was measured."""
    if not measured.has("gpu_time"):
        return None
    rows = measured.frame("gpu_time")
    return rows.filter(rows.equals("window", "stage") & rows.is_missing("step"))


WORK_BEFORE = 0.25
"""Share of the device ops of a step that a stage before the first mark runs if the profiler began within a step."""


def _find_warm_up_captures(measured: Measurements) -> Frame:
    """Find the first step of runs whose captures contain one step each, if it launches more than later steps explain.

    It launches 5 % more than each of at least two later steps, and exceeds them by more than three times what they
    differ by: it creates optimizer states, captures graphs or fills caches. Columns: run, step, part.
    """
    steps = _identify_units(measured, measured.frame("steps"))
    steps = steps.filter(steps.is_in("origin", ("profiler", "file")))
    is_alone = steps.group_by(*CAPTURE).each(count_rows()) == 1
    runs = steps.group_by("run")
    steps = steps.filter(np.bincount(runs.number, ~is_alone, len(runs))[runs.number] == 0)
    units = steps.group_by(*UNIT).agg(ts_ns=min_of("ts_ns"), launches=sum_of("launch_count"), ranks=count_rows())
    firsts = []
    for of_run in units.sort("ts_ns").group_by("run").frames():
        launches = of_run.number("launches", missing=0.0) / of_run["ranks"]
        if len(launches) >= LEAST_CAPTURES:
            most, least = launches[1:].max(), launches[1:].min()
            if launches[0] > MORE_LAUNCHES * most and launches[0] - most > 3 * (most - least):
                firsts.append(of_run.head(1).select(*UNIT))
    return concat(firsts) if firsts else units.head(0).select(*UNIT)


def _mark_steps_by_device_work(measured: Measurements) -> Frame:
    """Mark steps by their device work: run, step, part, name, value 1."""
    if measured.facts.has_chosen_steps or "gpu_time" in failed_questions.list_unasked_tables(measured):
        return _NO_ROWS
    rows = _identify_units(measured, measure_device_work_of_steps(measured))
    return mark_step_units(rows.filter(~rows.is_missing("step")))


def _count_compilations_by_step(measured: Measurements) -> Frame:
    """Count the compilations and loads of code in each step that has any: run, step, part, name, value."""
    rows = _identify_units(measured, measured.frame("interruptions"))
    rows = rows.filter(rows.equals("kind", "compilation") & ~rows.is_missing("step"))
    return rows.group_by(*UNIT).agg(value=sum_of("count")).with_columns(name="compilations")


_REQUEST = (*PROCESS, "memory", "device", "ts_ns", "asked_bytes")
"""Key of one failed memory request across snapshots."""


def _count_failed_memory_requests(measured: Measurements) -> Frame:
    """Count the failed memory requests (OOM) of each run with a memory history: run, name, value.

    Histories of one process may overlap: requests with the same time count once.
    """
    if not measured.has("out_of_memory"):
        return _NO_ROWS
    levels, failed = measured.frame("snapshot_levels"), measured.frame("out_of_memory")
    is_repeated = ~failed.is_missing("ts_ns") & (failed.group_by(*_REQUEST).position() > 0)
    counts = failed.filter(~is_repeated).group_by("run").agg(value=count_rows())
    runs = levels.filter(levels.integers("entry_count") > 0).distinct("run").select("run")
    runs = runs.join(counts, ["run"], "left", optional=["run"])
    return runs.with_columns(name=OUT_OF_MEMORY, value=runs.integers("value"))
