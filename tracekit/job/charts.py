"""Measurements to pictures: stages by rank on one clock, steps, what GPUs did, when they were busy, memory over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.job.alignment import Correction, corrections
from tracekit.job.collectives import CLOCK
from tracekit.job.drawn_ranks import MAX_ROWS, drawn
from tracekit.job.frames import (
    UNIT,
    apart,
    count_distinct,
    from_epoch,
    in_run,
    job,
    plain,
    run_heading,
    same_text,
    stage_rows,
)
from tracekit.job.memory_trend import Allocator, allocators
from tracekit.job.rank_groups import own_work
from tracekit.model.keys import of_keys, records
from tracekit.model.report import Chart
from tracekit.model.trace import Measurements
from tracekit.model.units import show
from tracekit.process.busy import PARTS
from tracekit.process.memory.levels import SNAPSHOT

MAX_MARKS = 1_500
"""Most marks of one chart."""

MAX_GANTTS = 4
"""Most steps that are drawn stage by stage."""

MAX_POINTS, MAX_LINES = 2_000, 20
"""Most points, and most lines, of one chart of memory over time."""

MAX_NAMED = 2
"""Most clocks that a note names one by one."""

MAX_RUNS = 4
"""Most runs that get pictures of their own: each has its own times, and one axis would hide them."""


def _by_run(
    frame: pd.DataFrame, draw: Callable[[pd.DataFrame, str], Chart | None]
) -> tuple[Chart, ...]:
    """A chart of each run's rows, whose id ends with the run's number from the second on."""
    runs = islice(apart(frame, ["run"]), MAX_RUNS)
    drawn = [draw(of_run, f"-{n}" if n > 1 else "") for n, of_run in enumerate(runs, start=1)]
    return tuple(chart for chart in drawn if chart is not None)


def stage_gantts(measured: Measurements) -> tuple[Chart, ...]:
    """The stages of each rank in time: of every run the slowest step and the median one."""
    walls, stages = job(measured).walls, stage_rows(measured)
    if not len(stages):
        return ()
    chosen = []
    for _, of_run in walls.groupby("run", dropna=False, sort=False):
        by_wall = of_run.sort_values(["wall_ns", "ts_ns"], kind="stable")
        chosen += [(by_wall.iloc[-1], "slowest step" if len(of_run) > 1 else "step")]
        chosen += [(by_wall.iloc[(len(of_run) - 1) // 2], "median step")] if len(of_run) > 2 else []
    charts = [
        _gantt(measured, stages, unit, what, f"gantt-{number}")
        for number, (unit, what) in enumerate(chosen[:MAX_GANTTS], start=1)
    ]
    return tuple(chart for chart in charts if chart.marks)


def _gantt(
    measured: Measurements, stages: pd.DataFrame, unit: pd.Series[Any], what: str, name: str
) -> Chart:
    """The stages of one step, a line for each process."""
    bars_of_step = _of_unit(stages, unit)
    bars_of_step = bars_of_step.assign(who=_processes(bars_of_step))
    bars_of_step, clocks = _on_one_clock(measured, bars_of_step)
    bars_of_step = bars_of_step.sort_values(["who", "begin", "canonical"], kind="stable")
    ranks = drawn(*_work(measured, bars_of_step, unit))
    rows = list(ranks.rows)
    bars_of_step = bars_of_step[bars_of_step["who"].isin(rows)]
    series = list(
        dict.fromkeys(bars_of_step.sort_values("begin", kind="stable")["canonical"].astype(str))
    )
    bars, cut = _largest(bars_of_step, "dur_ns")
    step = "" if pd.isna(unit["step"]) else f" {int(unit['step'])}"
    marks = zip(
        bars["who"].map({who: place for place, who in enumerate(rows)}),
        bars["canonical"].astype(str).map({stage: place for place, stage in enumerate(series)}),
        bars["begin"],
        bars["begin"] + bars["dur_ns"],
        strict=True,
    )
    return Chart(
        name,
        f"Stages of step{step}, the {what}{in_run(measured, unit['run'])}"
        if what != "step"
        else f"Stages of step{step}{in_run(measured, unit['run'])}",
        "gantt",
        tuple((int(a), int(b), int(c), int(d)) for a, b, c, d in marks),
        tuple(series),
        tuple(ranks.rows.values()),
        caption=_both(clocks, ranks.note),
        omitted=ranks.omitted + cut,
    )


def _of_unit(rows: pd.DataFrame, unit: pd.Series[Any]) -> pd.DataFrame:
    """The rows of one step."""
    for key in UNIT:
        rows = rows[same_text(rows[key], unit[key])]
    return rows


def _work(
    measured: Measurements, stages: pd.DataFrame, unit: pd.Series[Any]
) -> tuple[dict[str, float], str]:
    """(what tells the processes of a step apart, in words): their own work, else how long their stages are."""
    own_rows = _of_unit(own_work(measured), unit)
    own_ns = own_rows.assign(who=_processes(own_rows)).groupby("who")["own_ns"].sum().to_dict()
    length = stages.groupby("who")["dur_ns"].sum().to_dict()
    if set(length) <= set(own_ns):
        return {str(who): float(own_ns[who]) for who in length}, "own work"
    return {str(who): float(ns) for who, ns in length.items()}, "the time of all stages"


def _both(*sentences: str) -> str:
    """Those that say something, one after the other."""
    return " ".join(filter(None, sentences))


def step_strips(measured: Measurements) -> tuple[Chart, ...]:
    """The wall of every step of each run, divided into what stages cover and the rest."""
    return _by_run(job(measured).walls, lambda mine, suffix: _steps(measured, mine, suffix))


def _steps(measured: Measurements, walls: pd.DataFrame, suffix: str) -> Chart | None:
    """The steps of one run; one bar would be no picture."""
    if len(walls) < 2:
        return None
    steps = walls.iloc[:MAX_ROWS]
    is_attributed = steps["attributed_ns"].notna()
    covered = steps["attributed_ns"].where(is_attributed, 0).astype("int64")
    rows = [
        f"capture {number}" if pd.isna(step) else f"step {int(step)}"
        for number, step in enumerate(steps["step"])
    ]
    series = ("in stages", "in no stage") if is_attributed.any() else ("step",)
    marks = []
    for bar, (inside, wall, attributed) in enumerate(
        zip(covered, steps["wall_ns"], is_attributed, strict=True)
    ):
        marks += [(bar, 0, int(inside)), (bar, 1, int(wall - inside))] if attributed else []
        marks += [] if attributed else [(bar, len(series) - 1, int(wall))]
    return Chart(
        f"steps{suffix}",
        f"Wall of each step{in_run(measured, walls['run'].iloc[0])}",
        "bars",
        tuple(marks),
        series,
        tuple(rows),
        omitted=len(walls) - len(steps),
    )


_SERIES = ("compute", "exposed communication", "copies", "fills", "idle")


def device_bars(measured: Measurements, gpu_time: pd.DataFrame) -> tuple[Chart, ...]:
    """What each GPU of each run did from its first to its last op."""
    rows = gpu_time[gpu_time["window"] == "capture"]
    return _by_run(rows, lambda mine, suffix: _devices_did(measured, mine, suffix))


def _devices_did(measured: Measurements, rows: pd.DataFrame, suffix: str) -> Chart | None:
    """The GPUs of one run: parts and idle, which add up to the window."""
    rows = rows.assign(who=_devices(rows))
    sums = rows.groupby("who", sort=False)[[*PARTS, "idle_ns", "window_ns"]].sum()
    assert (sums[[*PARTS, "idle_ns"]].sum(axis=1) == sums["window_ns"]).all()
    idle = sums["idle_ns"] / sums["window_ns"].clip(lower=1)
    names = drawn({str(who): float(share) for who, share in idle.items()}, "idle share")
    values = sums.loc[list(names.rows), [*PARTS, "idle_ns"]].to_numpy(np.int64).tolist()
    marks = [
        (row_number, number, value)
        for row_number, row in enumerate(values)
        for number, value in enumerate(row)
        if value
    ]
    return Chart(
        f"gpu-time{suffix}", f"What each GPU did{in_run(measured, rows['run'].iloc[0])}", "bars", tuple(marks), _SERIES, tuple(names.rows.values()),
        caption=_both("From the first to the last device op of each source; the parts and idle add up to it.", names.note),
        omitted=names.omitted,
    )  # fmt: skip


def utilisation(measured: Measurements) -> tuple[Chart, ...]:
    """How busy the GPUs of each run were over time."""
    bins = plain(measured["busy_bins"])
    damaged = {note.source for note in measured.notes if note.severity == "data_loss"}
    bins = bins[(bins["window_ns"] > 0) & ~bins["source"].isin(damaged)]
    return _by_run(bins, lambda mine, suffix: _busy(measured, mine, suffix))


def _busy(measured: Measurements, bins: pd.DataFrame, suffix: str) -> Chart:
    """The GPUs of one run."""
    bins = bins.assign(who=_devices(bins))
    bins, clocks = _on_one_clock(measured, bins)
    sums = bins.groupby("who")[["busy_ns", "window_ns"]].sum()
    busy_share = sums["busy_ns"] / sums["window_ns"].clip(lower=1)
    names = drawn({str(who): float(share) for who, share in busy_share.items()}, "busy share")
    run = bins["run"].iloc[0]
    bins = bins[bins["who"].isin(list(names.rows))].sort_values(["who", "begin"], kind="stable")
    bins_a_mark = -(-len(bins) // MAX_MARKS)
    # Neighbouring bins of one source are joined until the picture is small enough.
    number = bins.groupby(["who", "source"], sort=False).cumcount() // bins_a_mark
    joined = bins.groupby([bins["who"], bins["source"], number], sort=False).agg(
        begin=("begin", "min"), window_ns=("window_ns", "sum"), busy_ns=("busy_ns", "sum")
    )
    place = {who: place_ for place_, who in enumerate(names.rows)}
    rows = [place[who] for who in joined.index.get_level_values(0)]
    begin, length = joined["begin"].to_numpy(), joined["window_ns"].to_numpy()
    busy = joined["busy_ns"].to_numpy() / length
    columns = (rows, begin.tolist(), (begin + length).tolist(), busy.tolist())
    marks = tuple(zip(*columns, strict=True))
    return Chart(
        f"utilisation{suffix}", f"GPU busy over time{in_run(measured, run)}", "heatmap", marks, ("busy",), tuple(names.rows.values()), "ratio",
        caption=_both(clocks, names.note),
        omitted=names.omitted,
    )  # fmt: skip


def _on_one_clock(measured: Measurements, rows: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """(the rows with `begin`, ns from the first of them on the clock that all share; what was done to clocks).

    `who` names the row that each is drawn in. The clocks of ranks that share collectives are corrected as in a merged timeline; those that count
    from no epoch and were not compared begin with their own first row.
    """
    if not len(rows):
        return rows.assign(begin=rows["ts_ns"]), ""
    number, first_rows = of_keys(rows, CLOCK)
    owners, known_corrections = rows[[*CLOCK, "host"]].iloc[first_rows], corrections(measured)
    corrected = [known_corrections.get(key) for key in records(owners, CLOCK)]
    moved_ns = np.array(
        [correction.offset_ns if correction else 0 for correction in corrected], np.int64
    )
    moved = rows["ts_ns"].to_numpy(np.int64) - moved_ns[number]
    several = count_distinct(rows, ["who"]) > 1
    compared = (
        len({correction and correction.set for correction in corrected}) == 1
        and corrected[0] is not None
    )
    if not compared and not from_epoch(measured, rows):
        first = pd.Series(moved).groupby(rows["who"].to_numpy()).transform("min").to_numpy()
        note = "Clocks cannot be compared: every row begins at its own zero."
    else:
        first, note = (
            moved.min(),
            _clock_note(dict(zip(_processes(owners), corrected, strict=True))),
        )
        if (
            not moved_ns.any()
            and from_epoch(measured, rows)
            and count_distinct(rows, ["host"]) == 1
        ):
            note = note if owners["host"].isna().any() else "All on the clock of their host."
    return rows.assign(begin=moved - first), note if several else ""


def _clock_note(corrected: Mapping[str, Correction | None]) -> str:
    """Whose clock was moved, and by how much; that clocks were not compared, where they were not."""
    moved = {
        name: correction.offset_ns
        for name, correction in corrected.items()
        if correction and correction.offset_ns
    }
    uncompared = sum(correction is None for correction in corrected.values())
    if uncompared == len(corrected):
        return "Each on the clock of its host: the clocks were not compared."
    if not moved:
        note = "All on one clock: none was found to be off."
    elif len(moved) <= MAX_NAMED:
        note = "; ".join(
            f"clock of {name} moved by {show(-by, 'ns')}" for name, by in moved.items()
        )
        note = f"All on one clock: {note}."
    else:
        farthest = show(max(map(abs, moved.values())), "ns")
        note = f"All on one clock: {len(moved)} of {len(corrected)} moved, by up to {farthest}."
    return note + (f" Not compared: the clocks of {uncompared}." if uncompared else "")


def _processes(rows: pd.DataFrame) -> npt.NDArray[np.object_]:
    """What a reader calls the process of each row: `rank 0 actor`."""
    keys = ("rank", "replica", "role")
    number, first = of_keys(rows, keys)
    once = rows[[*keys]].iloc[first]
    names = [
        ("rank ?" if rank is None else f"rank {rank}")
        + ("" if replica is None else f" replica {replica}")
        + ("" if role is None else f" {role}")
        for rank, replica, role in records(once, keys)
    ]
    return np.array([*names, ""], object)[number]


def _devices(rows: pd.DataFrame) -> npt.NDArray[np.object_]:
    """The process of each row and, where it has several, the GPU."""
    keys = ("run", "host", "pid", "rank", "replica", "role", "device")
    number, first = of_keys(rows, keys)
    once = rows[[*keys]].iloc[first]
    per_process = once.groupby(["host", "pid", "rank"], dropna=False)["device"].nunique()
    several = bool((per_process >= 2).any()) or bool(once["rank"].isna().any())
    names = [
        who + (f" GPU {'?' if pd.isna(device) else int(device)}" if several else "")
        for who, device in zip(_processes(once), once["device"], strict=True)
    ]
    return np.array([*names, ""], object)[number]


def _largest(frame: pd.DataFrame, by: str) -> tuple[pd.DataFrame, int]:
    """(the rows with the largest values, in their order; how many others there are)."""
    if len(frame) <= MAX_MARKS:
        return frame, 0
    rows = np.sort(np.argsort(-frame[by].to_numpy(), kind="stable")[:MAX_MARKS])
    return frame.iloc[rows], len(frame) - MAX_MARKS


def _of_one_file(of: Allocator, rows: pd.DataFrame) -> pd.DataFrame:
    """Of a snapshot whose process is unknown the file with the highest level: others may be of other programs."""
    if of.device_type != SNAPSHOT or of.rank is not None or of.pid is not None:
        return rows
    highest = str(rows["source"].iloc[int(rows["allocated_bytes"].to_numpy().argmax())])
    return rows[(rows["source"] == highest).to_numpy(bool)]


def memory_lines(measured: Measurements) -> Iterator[Chart]:
    """Allocated memory over time, hosts and GPUs apart: a line for each of those with most."""
    rows = plain(measured["memory_curve"])
    owners, whose = allocators(rows)
    peaks = rows["allocated_bytes"].groupby(whose).max().tolist()
    count = np.bincount(whose, minlength=len(owners)).tolist()
    for kind in dict.fromkeys(owner.kind for owner in owners):
        high = {
            str(place): float(peaks[place])
            for place, owner in enumerate(owners)
            if owner.kind == kind
        }
        lines = drawn(high, "peak", MAX_LINES)
        by_line = {
            owners[place]: _of_one_file(owners[place], rows[whose == place])
            for place in map(int, lines.rows)
        }
        chosen, omitted = (
            list(by_line),
            sum(count[int(place)] for place in high if place not in lines.rows),
        )
        likeness = [text.partition(",")[1:] for text in lines.rows.values()]
        all_lines = pd.concat([by_line[owner] for owner in chosen])
        one_clock = from_epoch(measured, all_lines)
        together_zero = int(all_lines["ts_ns"].min())
        points = max(MAX_POINTS // len(chosen), 1)
        marks: list[tuple[int, int, int]] = []
        for number, owner in enumerate(chosen):
            line = by_line[owner].sort_values("ts_ns", kind="stable")
            zero = together_zero if one_clock else int(line["ts_ns"].iloc[0])
            joined = line.groupby(np.arange(len(line)) * points // max(len(line), points))
            marks += [
                (number, int(ts) - zero, int(size))
                for ts, size in zip(joined["ts_ns"].min(), joined["allocated_bytes"].max(), strict=True)
            ]  # fmt: skip
        several = bool(run_heading(measured))
        yield Chart(
            "memory-" + kind.lower().replace(" (", "-").rstrip(")"),
            f"{kind} memory allocated over time",
            "lines",
            tuple(marks),
            tuple(
                "".join(
                    ((f"{owner.run} " if several else ""), f"{owner.process} {owner.memory}", *more)
                )
                for owner, more in zip(chosen, likeness, strict=True)
            ),
            unit="bytes",
            caption=_both(
                "Highest level in each stretch of time.",
                ""
                if one_clock
                else "Clocks cannot be compared: every line begins at its own zero.",
                lines.note,
            ),
            omitted=omitted + sum(len(frame) for frame in by_line.values()) - len(marks),
        )
