"""Charts of memory: a snapshot's levels by stage and its stacks at the peak, and the levels of processes over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from tracekit.job.frames import has_epoch_times, make_run_heading
from tracekit.job.memory.snapshots import name_ranges, take_snapshot
from tracekit.job.memory.trend import Allocator, split_by_allocator
from tracekit.job.report.ranks_to_plot import choose_rows_to_plot
from tracekit.model.intervals import find_window_at
from tracekit.model.report import Chart
from tracekit.model.tables.frame import Frame, max_of, min_of
from tracekit.model.text.labels import join_phrase
from tracekit.model.trace import Measurements
from tracekit.process.memory.levels import SNAPSHOT

MAX_STAGES = 6
"""Most stages with a line of their own in the curve: those with most of its points."""

ALONE, NO_STAGE, OTHERS = "requested", "requested, outside any stage", "requested, in other stages"

Mark = tuple[int | None, ...]


def snapshot_charts(measured: Measurements, snapshot: Mapping[str, Any]) -> Iterator[Chart]:
    """Draw one row of `snapshot_levels`, as far as it was recorded."""
    curve = take_snapshot(measured.frame("memory_curve"), snapshot)
    curve = curve.filter(curve.equals("device_type", SNAPSHOT))
    if len(curve) > 1 and snapshot["memory"] == "device":
        yield _draw_curve(measured, snapshot, curve.sort("ts_ns"))
    frames = take_snapshot(measured.frame("live_frames"), snapshot)
    if len(frames):
        yield _draw_peak_stacks(snapshot, frames)


def _draw_curve(measured: Measurements, snapshot: Mapping[str, Any], curve: Frame) -> Chart:
    """Draw the requested bytes, a line per stage, the reserved bytes, and the peak."""
    zero = int(curve["ts_ns"][0])
    series = list[str]()
    marks = list[Mark]()
    for name, points in _split_by_line(_name_lines(measured, snapshot, curve), curve, zero):
        if name not in series:
            series.append(name)
        marks += [(series.index(name), *point) for point in points]
    reserved = curve.filter(~curve.is_missing("reserved_bytes"))
    if len(reserved):
        series.append("reserved")
        times, sizes = (reserved["ts_ns"] - zero).tolist(), reserved.values("reserved_bytes")
        marks += zip(repeat(len(series) - 1), times, sizes, strict=False)
    if snapshot["peak_ts_ns"] is not None:
        series.append("peak")
        peak_ns = snapshot["peak_ts_ns"] - zero
        marks += [(len(series) - 1, peak_ns, 0), (len(series) - 1, peak_ns, snapshot["peak_bytes"])]
    caption = "Highest level in each stretch of time; requested bytes, which the allocator rounds up."
    if snapshot["peak_stage"] is not None:
        caption += f" The peak is in {snapshot['peak_stage']}."
    return Chart(
        "snapshot-curve",
        f"Memory of {snapshot['who']} over time",
        "lines",
        tuple(marks),
        tuple(series),
        unit="bytes",
        caption=caption,
    )


def _name_lines(measured: Measurements, snapshot: Mapping[str, Any], curve: Frame) -> list[str]:
    """Name the line of each point of the curve."""
    stages = take_snapshot(measured.frame("memory_stages"), snapshot)
    stages = stages.filter(stages.equals("device_type", SNAPSHOT)).sort("ts_ns")
    if not len(stages):
        return [ALONE] * len(curve)
    begin = stages["ts_ns"]
    stage_at = find_window_at(begin, begin + stages["dur_ns"], curve["ts_ns"])
    stage_names = [*stages.with_columns(stage=name_ranges(stages)).values("stage"), None]
    names = [stage_names[place] for place in stage_at.tolist()]
    labels: dict[str | None, str] = {}
    for name, _ in Counter(name for name in names if name).most_common(MAX_STAGES):
        labels[name] = f"requested, in {name}"
    labels[None] = NO_STAGE
    return [labels.get(name, OTHERS) for name in names]


def _split_by_line(
    labels: Sequence[str], curve: Frame, zero: int
) -> Iterator[tuple[str, list[tuple[int, int | None]]]]:
    """Yield (line, points) of each stretch in one stage, up to the first point of the next, where the line breaks off."""
    ts = (curve["ts_ns"] - zero).tolist()
    size = curve.values("allocated_bytes")
    changes = [n for n in range(1, len(labels)) if labels[n] != labels[n - 1]]
    for start, end in zip([0, *changes], [*changes, len(labels)], strict=True):
        points: list[tuple[int, int | None]] = list(zip(ts[start:end], size[start:end], strict=True))
        if end < len(labels):
            points += [(ts[end], size[end]), (ts[end], None)]
        yield labels[start], points


def _draw_peak_stacks(snapshot: Mapping[str, Any], frames: Frame) -> Chart:
    """Draw the tree of the stacks of the memory in use at the peak."""
    names = list(dict.fromkeys(frames.values("name")))
    place = {name: number for number, name in enumerate(names)}
    marks = tuple(
        (row["depth"], place[row["name"]], row["start_bytes"], row["start_bytes"] + row["size_bytes"])
        for row in frames.rows("depth", "name", "start_bytes", "size_bytes")
    )
    depths = int(frames["depth"].max()) + 1
    return Chart(
        "peak-stacks",
        f"Stacks of requested memory at the peak of {snapshot['who']}",
        "icicle",
        marks,
        tuple(names),
        ("outermost", *(str(depth) for depth in range(1, depths))),
        unit="bytes",
        x_unit="bytes",
        caption="Outermost frame first; the width is the memory requested below a frame. Frames of less than 0.2 % are left out.",
    )


MAX_POINTS, MAX_LINES = 2_000, 20
"""Most points, and most lines, of one chart of memory over time."""


def draw_memory_curves(measured: Measurements) -> Iterator[Chart]:
    """Draw allocated memory over time, hosts and GPUs apart: a line for each of those with most."""
    by_kind: dict[str, dict[Allocator, Frame]] = {}
    for owner, levels in split_by_allocator(measured.frame("memory_curve")).items():
        by_kind.setdefault(owner.kind, {})[owner] = levels
    for kind, by_owner in by_kind.items():
        yield _draw_curves_of_kind(measured, kind, by_owner)


def _draw_curves_of_kind(measured: Measurements, kind: str, by_owner: Mapping[Allocator, Frame]) -> Chart:
    """Draw the levels of all memories of one kind."""
    owners = list(by_owner)
    peaks = [float(by_owner[owner]["allocated_bytes"].max()) for owner in owners]
    lines = choose_rows_to_plot({str(number): peak for number, peak in enumerate(peaks)}, "peak", MAX_LINES)
    several = bool(make_run_heading(measured))
    levels, names = [], []
    for number, text in lines.rows.items():
        owner = owners[int(number)]
        levels.append(_keep_highest_file(owner, by_owner[owner]))
        run = f"{owner.run} " if several else ""
        _, comma, likeness = text.partition(",")
        names.append(f"{run}{join_phrase(owner.process, owner.memory)}{comma}{likeness}")
    marks, note = _list_curve_marks(measured, levels)
    undrawn = [len(rows) for number, rows in enumerate(by_owner.values()) if str(number) not in lines.rows]
    return Chart(
        "memory-" + kind.lower().replace(" (", "-").rstrip(")"),
        f"{kind} memory allocated over time",
        "lines",
        tuple(marks),
        tuple(names),
        unit="bytes",
        caption=join_phrase("Highest level in each stretch of time.", note, lines.note),
        omitted=sum(undrawn) + sum(len(each) for each in levels) - len(marks),
    )


def _keep_highest_file(owner: Allocator, levels: Frame) -> Frame:
    """Keep the file with the highest level if snapshots may be of several processes."""
    if owner.device_type != SNAPSHOT or owner.rank is not None or owner.pid is not None:
        return levels
    highest = levels.values("source")[int(levels["allocated_bytes"].argmax())]
    return levels.filter(levels.equals("source", highest))


def _list_curve_marks(measured: Measurements, levels: Sequence[Frame]) -> tuple[list[tuple[int, int, int]], str]:
    """Return (line, time and level of every drawn point; a note on clocks)."""
    zero, note = min(int(line["ts_ns"].min()) for line in levels), ""
    one_clock = all(has_epoch_times(measured, line) for line in levels)
    if not one_clock:
        note = "Clocks cannot be compared: every line starts at its own zero."
    points = max(MAX_POINTS // len(levels), 1)
    marks: list[tuple[int, int, int]] = []
    for number, line in enumerate(rows.sort("ts_ns") for rows in levels):
        if not one_clock:
            zero = int(line["ts_ns"][0])
        stretch = np.arange(len(line)) * points // max(len(line), points)
        stretches = line.with_columns(stretch=stretch).group_by("stretch")
        drawn_points = stretches.agg(ts_ns=min_of("ts_ns"), level=max_of("allocated_bytes"))
        times = (drawn_points["ts_ns"] - zero).tolist()
        marks += [(number, time, level) for time, level in zip(times, drawn_points.values("level"), strict=True)]
    return marks, note
