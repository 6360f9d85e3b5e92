"""Charts of a report: stages by rank on one clock, walls of steps, GPU time, GPU utilisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.collectives.clock_offsets import ClockCorrection, compute_clock_corrections
from tracekit.job.collectives.matching import CLOCK
from tracekit.job.frames import (
    aggregate_by_keys,
    count_distinct_keys,
    is_from_epoch,
    list_stage_rows,
    phrase_run,
    select_distinct_rows,
    select_undamaged_rows,
    sort_by_columns,
    split_by_keys,
    sum_columns_by_keys,
    summarize_job_steps,
    to_int_or_none,
    to_text_or_none,
)
from tracekit.job.rank_groups import measure_own_work_of_ranks
from tracekit.job.report.ranks_to_plot import MAX_ROWS, choose_rows_to_plot, list_bar_marks
from tracekit.model.report import Chart
from tracekit.model.tables.arrays import make_frame
from tracekit.model.tables.keys import IN_RUN, PROCESS, group_rows_by, iterate_records, list_python_values, mask_equal
from tracekit.model.text.labels import format_numbered_word, join_phrase
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity
from tracekit.process.device.busy import PARTS

MAX_MARKS = 1_500
"""Most marks of one chart."""

MAX_GANTTS = 4
"""Most steps that get a Gantt chart."""

MAX_NAMED = 2
"""Most clocks that a note lists one by one."""

MAX_RUNS = 4
"""Most runs with charts of their own: runs have different times, and one axis would hide them."""


def _draw_charts_by_run(frame: pd.DataFrame, draw: Callable[[pd.DataFrame, str], Chart | None]) -> tuple[Chart, ...]:
    """Draw a chart of each run; ids end with the number of the run from the second on."""
    runs = islice(split_by_keys(frame, ["run"]), MAX_RUNS)
    drawn = [draw(of_run, f"-{n}" if n > 1 else "") for n, of_run in enumerate(runs, start=1)]
    return tuple(chart for chart in drawn if chart)


_STAGE_COLUMNS = [*("run", "step", "part", *IN_RUN, "source", "replica"), *("canonical", "ts_ns", "dur_ns")]
"""Columns of the stages that charts read."""


def draw_stage_gantts(measured: Measurements) -> tuple[Chart, ...]:
    """Draw the stages of each rank over time, in the slowest and the median step of every run."""
    walls, stages = summarize_job_steps(measured).walls, list_stage_rows(measured)
    if not len(stages):
        return ()
    stages = stages[_STAGE_COLUMNS]
    chosen: list[tuple[pd.Series[Any], str]] = []
    for of_run in split_by_keys(walls, ["run"]):
        by_wall = of_run.sort_values(["wall_ns", "ts_ns"], kind="stable")
        slowest, median = by_wall.iloc[-1], by_wall.iloc[(len(of_run) - 1) // 2]
        chosen.append((slowest, ", the slowest step" if len(of_run) > 1 else ""))
        if len(of_run) > 2:
            chosen.append((median, ", the median step"))
    charts = [
        _draw_stage_gantt(measured, stages, unit, what, f"gantt-{number}")
        for number, (unit, what) in enumerate(chosen[:MAX_GANTTS], start=1)
    ]
    return tuple(chart for chart in charts if chart.marks)


def _draw_stage_gantt(
    measured: Measurements, stages: pd.DataFrame, unit: pd.Series[Any], what: str, name: str
) -> Chart:
    """Draw the stages of one step, one line per process."""
    in_step = _select_unit_rows(stages, unit)
    in_step = in_step.assign(who=_name_row_processes(in_step))
    in_step, clocks = _align_row_clocks(measured, in_step)
    in_step = sort_by_columns(in_step, who=True, begin=True, canonical=True)
    ranks = choose_rows_to_plot(*_choose_rank_work(measured, in_step, unit))
    lines = list(ranks.rows)
    in_step = in_step[in_step["who"].isin(lines)]
    by_start = sort_by_columns(in_step, begin=True)
    series = list(dict.fromkeys(by_start["canonical"].astype(str)))
    bars, cut = _select_largest_marks(in_step, "dur_ns")
    marks = [
        (lines.index(who), series.index(str(stage)), begin, begin + length)
        for who, stage, begin, length in iterate_records(bars, ("who", "canonical", "begin", "dur_ns"))
    ]
    step = format_numbered_word(" step", to_int_or_none(unit["step"])) or " step"
    first = select_distinct_rows(in_step, ["who"], "role", "rank").set_index("who").loc[lines]
    return Chart(
        name,
        f"Stages of{step}{what}{phrase_run(measured, unit['run'])}",
        "gantt",
        tuple(marks),
        tuple(series),
        tuple(ranks.rows.values()),
        caption=join_phrase(clocks, ranks.note),
        omitted=ranks.omitted + cut,
        run=to_text_or_none(unit["run"]),
        step=to_int_or_none(unit["step"]),
        roles=tuple(to_text_or_none(role) for role in first["role"]),
        ranks=tuple(to_int_or_none(rank) for rank in first["rank"]),
    )


def _select_unit_rows(rows: pd.DataFrame, unit: pd.Series[Any]) -> pd.DataFrame:
    """Select the rows of one step."""
    step, run, part = (mask_equal(rows[key], unit[key]) for key in ("step", "run", "part"))
    return rows[step & run & part]


def _choose_rank_work(
    measured: Measurements, stages: pd.DataFrame, unit: pd.Series[Any]
) -> tuple[dict[str, float], str]:
    """Choose the number that distinguishes the processes of a step, and its label: own work, else time in stages."""
    own_rows = _select_unit_rows(measure_own_work_of_ranks(measured), unit)
    own_ns = _sum_values_by_name(_name_row_processes(own_rows), own_rows["own_ns"])
    length = _sum_values_by_name(stages["who"].to_numpy(object), stages["dur_ns"])
    if length.keys() <= own_ns.keys():
        return {who: own_ns[who] for who in length}, "own work"
    return length, "the time of all stages"


def _sum_values_by_name(names: npt.NDArray[np.object_], values: pd.Series[Any]) -> dict[str, float]:
    """Sum the values of each name, in order of names."""
    rows = {"name": names, "value": values.to_numpy(np.int64)}
    sums = sum_columns_by_keys(make_frame(rows, len(names)), ["name"], ["value"])
    return {name: float(value) for name, value in sorted(iterate_records(sums, ["name", "value"]))}


def draw_step_strips(measured: Measurements) -> tuple[Chart, ...]:
    """Draw the wall of every step of each run, split into time in stages and the rest."""
    return _draw_charts_by_run(
        summarize_job_steps(measured).walls, lambda mine, suffix: _draw_step_strip(measured, mine, suffix)
    )


def _draw_step_strip(measured: Measurements, walls: pd.DataFrame, suffix: str) -> Chart | None:
    """Draw the steps of one run; None for a single step, as one bar shows nothing."""
    if len(walls) < 2:
        return None
    steps = walls.iloc[:MAX_ROWS]
    columns = ("step", "wall_ns", "attributed_ns")
    series: tuple[str, ...] = ("step",)
    if steps["attributed_ns"].notna().any():
        series = ("in stages", "in no stage")
    rows, marks = [], []
    for bar, (step, wall, attributed) in enumerate(iterate_records(steps, columns)):
        rows.append(format_numbered_word("step", step) or f"capture {bar}")
        if attributed is None:
            marks.append((bar, len(series) - 1, wall))
        else:
            marks += [(bar, 0, attributed), (bar, 1, wall - attributed)]
    return Chart(
        f"steps{suffix}",
        f"Wall of each step{phrase_run(measured, walls['run'].iloc[0])}",
        "bars",
        tuple(marks),
        series,
        tuple(rows),
        omitted=len(walls) - len(steps),
    )


_SERIES = ("compute", "exposed communication", "copies", "fills", "idle")


def draw_device_bars(measured: Measurements, gpu_time: pd.DataFrame) -> tuple[Chart, ...]:
    """Draw the GPU time of each run, from the first to the last op of each GPU."""
    rows = gpu_time[gpu_time["window"] == "capture"]
    return _draw_charts_by_run(rows, lambda mine, suffix: _draw_device_bars_of_run(measured, mine, suffix))


def _draw_device_bars_of_run(measured: Measurements, rows: pd.DataFrame, suffix: str) -> Chart | None:
    """Draw the GPUs of one run: parts and idle time, which add up to the window."""
    rows = rows.assign(who=_name_row_devices(rows))
    sums = sum_columns_by_keys(rows, ["who"], [*PARTS, "idle_ns", "window_ns"])
    parts = np.column_stack([sums[name].to_numpy(np.int64) for name in (*PARTS, "idle_ns")])
    window_ns = sums["window_ns"].to_numpy(np.int64)
    assert (parts.sum(axis=1) == window_ns).all(), "parts add up to the window"
    idle = parts[:, -1] / np.maximum(window_ns, 1)
    owners = sums["who"].tolist()
    names = choose_rows_to_plot(dict(zip(owners, idle.tolist(), strict=True)), "idle share")
    values = parts[[owners.index(who) for who in names.rows]]
    return Chart(
        f"gpu-time{suffix}",
        f"What each GPU did{phrase_run(measured, rows['run'].iloc[0])}",
        "bars",
        list_bar_marks(values),
        _SERIES,
        tuple(names.rows.values()),
        caption=join_phrase(
            "From the first to the last device op of each source; the parts and idle add up to it.", names.note
        ),
        omitted=names.omitted,
    )


def draw_gpu_utilisation(measured: Measurements) -> tuple[Chart, ...]:
    """Draw the share of busy time of each run's GPUs over time."""
    bins = measured["busy_bins"]
    bins = select_undamaged_rows(measured, bins[bins["window_ns"] > 0])
    return _draw_charts_by_run(bins, lambda mine, suffix: _draw_gpu_utilisation_of_run(measured, mine, suffix))


def _draw_gpu_utilisation_of_run(measured: Measurements, bins: pd.DataFrame, suffix: str) -> Chart:
    """Draw the GPU utilisation of one run."""
    bins = bins.assign(who=_name_row_devices(bins))
    bins, clocks = _align_row_clocks(measured, bins)
    sums = sort_by_columns(sum_columns_by_keys(bins, ["who"], ["busy_ns", "window_ns"]), who=True)
    busy_share = sums["busy_ns"] / sums["window_ns"].clip(lower=1)
    names = choose_rows_to_plot(dict(zip(sums["who"], busy_share.tolist(), strict=True)), "busy share")
    run = bins["run"].iloc[0]
    names_of_bins = ["who", "source", "begin", "window_ns", "busy_ns"]
    bins = sort_by_columns(bins[names_of_bins][bins["who"].isin(list(names.rows))], who=True, begin=True)
    bins_a_mark = -(-len(bins) // MAX_MARKS)
    # Join neighbouring bins of a source until the chart has few enough marks.
    line, _ = group_rows_by(bins, ["who", "source"])
    by_line = np.argsort(line, kind="stable")
    place = np.empty(len(bins), np.int64)
    place[by_line] = np.arange(len(bins)) - np.searchsorted(line[by_line], line[by_line])
    joined = aggregate_by_keys(
        bins.assign(line=line, piece=place // bins_a_mark),
        ["line", "piece"],
        who=("who", "leading"),
        begin=("begin", "min"),
        window_ns=("window_ns", "sum"),
        busy_ns=("busy_ns", "sum"),
    )
    lines = list(names.rows)
    rows = [lines.index(who) for who in joined["who"]]
    begin, length = joined["begin"].to_numpy(), joined["window_ns"].to_numpy()
    busy = joined["busy_ns"].to_numpy() / length
    columns = (rows, begin.tolist(), (begin + length).tolist(), busy.tolist())
    marks = tuple(zip(*columns, strict=True))
    return Chart(
        f"utilisation{suffix}",
        f"GPU busy over time{phrase_run(measured, run)}",
        "heatmap",
        marks,
        ("busy",),
        tuple(names.rows.values()),
        "ratio",
        caption=join_phrase(clocks, names.note),
        omitted=names.omitted,
    )


def _align_row_clocks(measured: Measurements, rows: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Align rows on one clock: (rows with `begin`, ns since the first of them; a note on the clocks).

    `who` names the line that each row is drawn in. Clocks of ranks that share collectives are corrected as in a merged
    timeline. Lines that have neither an epoch nor a comparison begin with their own first row.
    """
    if not len(rows):
        return rows.assign(begin=rows["ts_ns"]), ""
    number, first_rows = group_rows_by(rows, CLOCK)
    owners, known_corrections = (rows[[*CLOCK, "host"]].iloc[first_rows], compute_clock_corrections(measured))
    corrected = [known_corrections.get(clock) for clock in iterate_records(owners, CLOCK)]
    moved_ns = np.array([0 if clock is None else clock.offset_ns for clock in corrected], np.int64)
    compared = None not in corrected and len({clock.set for clock in corrected if clock}) == 1
    begin = rows["ts_ns"].to_numpy(np.int64) - moved_ns[number]
    first: Any
    if not compared and not is_from_epoch(measured, rows):
        first = pd.Series(begin).groupby(rows["who"].to_numpy()).transform("min").to_numpy()
        note = "Clocks cannot be compared: every row begins at its own zero."
    else:
        first = begin.min()
        note = _describe_clock_moves(dict(zip(_name_row_processes(owners), corrected, strict=True)))
        one_host = count_distinct_keys(rows, ["host"]) == 1 and not owners["host"].isna().any()
        if one_host and not moved_ns.any() and is_from_epoch(measured, rows):
            note = "All on the clock of their host."
    if count_distinct_keys(rows, ["who"]) == 1:
        note = ""
    return rows.assign(begin=begin - first), note


def _describe_clock_moves(corrected: Mapping[str, ClockCorrection | None]) -> str:
    """Describe which clocks were moved and by how much, and which could not be compared."""
    compared = {name: clock.offset_ns for name, clock in corrected.items() if clock is not None}
    moved = {name: offset for name, offset in compared.items() if offset}
    if not compared:
        return "Each on the clock of its host: the clocks were not compared."
    if not moved:
        note = "none was found to be off"
    elif len(moved) <= MAX_NAMED:
        note = "; ".join(f"clock of {name} moved by {format_quantity(-by, 'ns')}" for name, by in moved.items())
    else:
        farthest = format_quantity(max(abs(offset) for offset in moved.values()), "ns")
        note = f"{len(moved)} of {len(corrected)} moved, by up to {farthest}"
    uncompared = len(corrected) - len(compared)
    note = f"All on one clock: {note}."
    if uncompared:
        note += f" Not compared: the clocks of {uncompared}."
    return note


def _name_row_processes(rows: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Name the process of each row: `rank 0 actor`."""
    keys = ("rank", "replica", "role")
    number, first = group_rows_by(rows, keys)
    once = rows[[*keys]].iloc[first]
    names = [
        join_phrase(format_numbered_word("rank", rank) or "rank ?", format_numbered_word("replica", replica), role)
        for rank, replica, role in iterate_records(once, keys)
    ]
    return np.array([*names, ""], object)[number]


def _name_row_devices(rows: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Name the process of each row, with the GPU where a process has several."""
    keys = (*PROCESS, "replica", "device")
    number, first = group_rows_by(rows, keys)
    once = rows[[*keys]].iloc[first]
    per_process = once.groupby(["host", "pid", "rank"], dropna=False)["device"].nunique()
    several = bool((per_process >= 2).any()) or bool(once["rank"].isna().any())
    names = _name_row_processes(once)
    if several:
        gpus = [format_numbered_word("GPU", device) or "GPU ?" for device in list_python_values(once["device"].array)]
        names = names + " " + np.array(gpus, object)
    return np.array([*names, ""], object)[number]


def _select_largest_marks(frame: pd.DataFrame, by: str) -> tuple[pd.DataFrame, int]:
    """Select the rows with the largest values, in their order: (rows, number of rows left out)."""
    if len(frame) <= MAX_MARKS:
        return frame, 0
    rows = np.sort(np.argsort(-frame[by].to_numpy(), kind="stable")[:MAX_MARKS])
    return frame.iloc[rows], len(frame) - MAX_MARKS
