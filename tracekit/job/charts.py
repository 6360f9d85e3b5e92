"""Charts of a report: stages by rank on one clock, walls of steps, GPU time, GPU utilisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from tracekit.job.collectives.clock_offsets import ClockCorrection, compute_clock_corrections
from tracekit.job.collectives.matching import CLOCK
from tracekit.job.frames import (
    has_epoch_times,
    keep_undamaged_rows,
    list_stage_ranges,
    phrase_run,
    summarize_step_walls,
)
from tracekit.job.rank_groups import measure_own_work_of_ranks
from tracekit.job.report.ranks_to_plot import MAX_ROWS, choose_rows_to_plot, list_bar_marks
from tracekit.model.report import Chart
from tracekit.model.tables.arrays import Coded, select_rows
from tracekit.model.tables.frame import Frame, count_distinct_of, first_of, min_of, sum_of, texts
from tracekit.model.tables.keys import PROCESS
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


def _draw_charts_by_run(rows: Frame, draw: Callable[[Frame, str], Chart | None]) -> tuple[Chart, ...]:
    """Draw a chart of each run; ids end with the number of the run from the second on."""
    runs = islice(rows.group_by("run").frames(), MAX_RUNS)
    drawn = [draw(of_run, f"-{n}" if n > 1 else "") for n, of_run in enumerate(runs, start=1)]
    return tuple(chart for chart in drawn if chart)


def draw_stage_gantts(measured: Measurements) -> tuple[Chart, ...]:
    """Draw the stages of each rank over time, in the slowest and the median step of every run."""
    stages = list_stage_ranges(measured)
    if not len(stages):
        return ()
    chosen: list[tuple[Mapping[str, Any], str]] = []
    for of_run in summarize_step_walls(measured).walls.group_by("run").frames():
        by_wall = list(of_run.sort("wall_ns", "ts_ns").rows())
        chosen.append((by_wall[-1], ", the slowest step" if len(by_wall) > 1 else ""))
        if len(by_wall) > 2:
            chosen.append((by_wall[(len(by_wall) - 1) // 2], ", the median step"))
    charts = [
        _draw_stage_gantt(measured, stages, unit, what, f"gantt-{number}")
        for number, (unit, what) in enumerate(chosen[:MAX_GANTTS], start=1)
    ]
    return tuple(chart for chart in charts if chart.marks)


def _draw_stage_gantt(measured: Measurements, stages: Frame, unit: Mapping[str, Any], what: str, name: str) -> Chart:
    """Draw the stages of one step, one line per process."""
    in_step = _select_unit_rows(stages, unit)
    in_step = in_step.with_columns(who=_name_row_processes(in_step))
    in_step, clocks = _align_row_clocks(measured, in_step)
    in_step = in_step.sort("who", "begin", "canonical")
    ranks = choose_rows_to_plot(*_choose_rank_work(measured, in_step, unit))
    lines = list(ranks.rows)
    in_step = in_step.filter(in_step.is_in("who", lines))
    series = in_step.sort("begin").distinct("canonical").values("canonical")
    bars, cut = _select_largest_marks(in_step, "dur_ns")
    marks = [
        (lines.index(row["who"]), series.index(row["canonical"]), row["begin"], row["begin"] + row["dur_ns"])
        for row in bars.rows("who", "canonical", "begin", "dur_ns")
    ]
    step = format_numbered_word(" step", unit["step"]) or " step"
    process_of = {row["who"]: row for row in in_step.distinct("who").rows("who", "role", "rank")}
    return Chart(
        name,
        f"Stages of{step}{what}{phrase_run(measured, unit['run'])}",
        "gantt",
        tuple(marks),
        tuple(series),
        tuple(ranks.rows.values()),
        caption=join_phrase(clocks, ranks.note),
        omitted=ranks.omitted + cut,
        run=unit["run"],
        step=unit["step"],
        roles=tuple(process_of[who]["role"] for who in lines),
        ranks=tuple(process_of[who]["rank"] for who in lines),
    )


def _select_unit_rows(rows: Frame, unit: Mapping[str, Any]) -> Frame:
    """Select the rows of one step."""
    step, run, part = (rows.equals(key, unit[key]) for key in ("step", "run", "part"))
    return rows.filter(step & run & part)


def _choose_rank_work(measured: Measurements, stages: Frame, unit: Mapping[str, Any]) -> tuple[dict[str, float], str]:
    """Choose the number that distinguishes the processes of a step, and its label: own work, or time in stages."""
    work = _select_unit_rows(measure_own_work_of_ranks(measured), unit)
    own_ns = _sum_values_by_name(work.with_columns(who=_name_row_processes(work)), "own_ns")
    length = _sum_values_by_name(stages, "dur_ns")
    if length.keys() <= own_ns.keys():
        return {who: own_ns[who] for who in length}, "own work"
    return length, "the time of all stages"


def _sum_values_by_name(rows: Frame, column: str) -> dict[str, float]:
    """Sum a column of each process (`who`), in order of names."""
    sums = rows.group_by("who").agg(total=sum_of(column)).sort("who")
    return dict(zip(sums.values("who"), sums.number("total").tolist(), strict=True))


def draw_step_strips(measured: Measurements) -> tuple[Chart, ...]:
    """Draw the wall of every step of each run, split into time in stages and the rest."""
    return _draw_charts_by_run(
        summarize_step_walls(measured).walls, lambda mine, suffix: _draw_step_strip(measured, mine, suffix)
    )


def _draw_step_strip(measured: Measurements, walls: Frame, suffix: str) -> Chart | None:
    """Draw the steps of one run; None for a single step, as one bar shows nothing."""
    if len(walls) < 2:
        return None
    steps = walls.head(MAX_ROWS)
    series: tuple[str, ...] = ("step",)
    if not steps.is_missing("attributed_ns").all():
        series = ("in stages", "outside any stage")
    rows, marks = [], []
    for bar, row in enumerate(steps.rows("step", "wall_ns", "attributed_ns")):
        wall, attributed = row["wall_ns"], row["attributed_ns"]
        rows.append(format_numbered_word("step", row["step"]) or f"capture {bar}")
        if attributed is None:
            marks.append((bar, len(series) - 1, wall))
        else:
            marks += [(bar, 0, attributed), (bar, 1, wall - attributed)]
    return Chart(
        f"steps{suffix}",
        f"Wall of each step{phrase_run(measured, walls.values('run')[0])}",
        "bars",
        tuple(marks),
        series,
        tuple(rows),
        omitted=len(walls) - len(steps),
    )


_SERIES = ("compute", "exposed communication", "copies", "fills", "idle")


def draw_device_bars(measured: Measurements, captures: Frame) -> tuple[Chart, ...]:
    """Draw the GPU time of each run (captures of `gpu_time`), from the first to the last op of each GPU."""
    return _draw_charts_by_run(captures, lambda mine, suffix: _draw_device_bars_of_run(measured, mine, suffix))


def _draw_device_bars_of_run(measured: Measurements, rows: Frame, suffix: str) -> Chart | None:
    """Draw the GPUs of one run: parts and idle time, which add up to the window."""
    rows = rows.with_columns(who=_name_row_devices(rows))
    sums = rows.group_by("who").agg(**{name: sum_of(name) for name in (*PARTS, "idle_ns", "window_ns")})
    parts = np.column_stack([sums[name] for name in (*PARTS, "idle_ns")])
    window_ns = sums["window_ns"]
    assert (parts.sum(axis=1) == window_ns).all(), "parts add up to the window"
    idle = parts[:, -1] / np.maximum(window_ns, 1)
    owners = sums.values("who")
    names = choose_rows_to_plot(dict(zip(owners, idle.tolist(), strict=True)), "idle share")
    values = parts[[owners.index(who) for who in names.rows]]
    return Chart(
        f"gpu-time{suffix}",
        f"GPU activity{phrase_run(measured, rows.values('run')[0])}",
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
    bins = measured.frame("busy_bins")
    bins = keep_undamaged_rows(measured, bins.filter(bins["window_ns"] > 0))
    return _draw_charts_by_run(bins, lambda mine, suffix: _draw_gpu_utilisation_of_run(measured, mine, suffix))


def _draw_gpu_utilisation_of_run(measured: Measurements, bins: Frame, suffix: str) -> Chart:
    """Draw the GPU utilisation of one run."""
    bins = bins.with_columns(who=_name_row_devices(bins))
    bins, clocks = _align_row_clocks(measured, bins)
    sums = bins.group_by("who").agg(busy_ns=sum_of("busy_ns"), window_ns=sum_of("window_ns")).sort("who")
    busy_share = sums["busy_ns"] / np.maximum(sums["window_ns"], 1)
    names = choose_rows_to_plot(dict(zip(sums.values("who"), busy_share.tolist(), strict=True)), "busy share")
    run = bins.values("run")[0]
    bins = bins.filter(bins.is_in("who", names.rows)).sort("who", "begin")
    bins_a_mark = -(-len(bins) // MAX_MARKS)
    # Join neighbouring bins of a source until the chart has few enough marks.
    line = bins.group_by("who", "source")
    pieces = bins.with_columns(line=line.number, piece=line.position() // bins_a_mark).group_by("line", "piece")
    joined = pieces.agg(
        who=first_of("who"), begin=min_of("begin"), window_ns=sum_of("window_ns"), busy_ns=sum_of("busy_ns")
    )
    lines = list(names.rows)
    rows = [lines.index(who) for who in joined.values("who")]
    begin, length = joined["begin"], joined["window_ns"]
    busy = joined["busy_ns"] / length
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


def _align_row_clocks(measured: Measurements, rows: Frame) -> tuple[Frame, str]:
    """Align rows on one clock: (rows with `begin`, ns since the first of them; a note on the clocks).

    `who` names the line that each row is drawn in. Clocks of ranks that share collectives are corrected as in a merged
    timeline. Lines that have neither an epoch nor a comparison begin with their own first row.
    """
    if not len(rows):
        return rows.with_columns(begin=rows["ts_ns"]), ""
    clocks, known_corrections = rows.group_by(*CLOCK), compute_clock_corrections(measured)
    owners = clocks.agg()
    corrected = [known_corrections.get((r["run"], r["role"], r["replica"], r["rank"])) for r in owners.rows()]
    moved_ns = np.array([0 if clock is None else clock.offset_ns for clock in corrected], np.int64)
    compared = None not in corrected and len({clock.set for clock in corrected if clock}) == 1
    begin = rows["ts_ns"] - moved_ns[clocks.number]
    if not compared and not has_epoch_times(measured, rows):
        first = rows.group_by("who").each(min_of(begin))
        note = "Clocks cannot be compared: every row starts at its own zero."
    else:
        first = begin.min()
        names = owners.with_columns(who=_name_row_processes(owners)).values("who")
        note = _describe_clock_moves(dict(zip(names, corrected, strict=True)))
        one_host = len(rows.group_by("host")) == 1 and not rows.is_missing("host").any()
        if one_host and not moved_ns.any() and has_epoch_times(measured, rows):
            note = "All on the clock of their host."
    if len(rows.group_by("who")) == 1:
        note = ""
    return rows.with_columns(begin=begin - first), note


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


def _name_row_processes(rows: Frame) -> Coded:
    """Name the process of each row: `rank 0 actor`."""
    processes = rows.group_by("rank", "replica", "role")
    names = []
    for row in processes.agg().rows():
        rank = format_numbered_word("rank", row["rank"]) or "unknown rank"
        names.append(join_phrase(rank, format_numbered_word("replica", row["replica"]), row["role"]))
    return select_rows(texts(names), processes.number)


def _name_row_devices(rows: Frame) -> Coded:
    """Name the process of each row, with the GPU where a process has several."""
    devices = rows.group_by(*PROCESS, "replica", "device")
    once = devices.agg()
    per_process = once.group_by("host", "pid", "rank").agg(devices=count_distinct_of("device"))
    several = (per_process["devices"] >= 2).any() or once.is_missing("rank").any()
    names = []
    for row in once.with_columns(who=_name_row_processes(once)).rows("who", "device"):
        gpu = format_numbered_word("GPU", row["device"]) or "GPU ?"
        names.append(f"{row['who']} {gpu}" if several else row["who"])
    return select_rows(texts(names), devices.number)


def _select_largest_marks(rows: Frame, by: str) -> tuple[Frame, int]:
    """Select the rows with the largest values, in their order: (rows, number of rows left out)."""
    if len(rows) <= MAX_MARKS:
        return rows, 0
    places = np.sort(np.argsort(-rows[by], kind="stable")[:MAX_MARKS])
    return rows.take(places), len(rows) - MAX_MARKS
