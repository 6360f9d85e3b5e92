"""Charts of one memory snapshot: its levels over time by stage, and the stacks of the memory in use at its peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from tracekit.job.memory.snapshots import name_ranges, take_snapshot
from tracekit.model.frame import Frame
from tracekit.model.intervals import find_window_at
from tracekit.model.report import Chart
from tracekit.model.trace import Measurements

SNAPSHOT = 102
"""`device_type` of the levels in a snapshot."""

MAX_STAGES = 6
"""Most stages with a line of their own in the curve: those with most of its points."""

ALONE, NO_STAGE, OTHERS = "requested", "requested, in no stage", "requested, in other stages"

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
        caption += f" The peak lies in {snapshot['peak_stage']}."
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
        f"Stacks of what is in use at the peak of {snapshot['who']}",
        "icicle",
        marks,
        tuple(names),
        ("outermost", *map(str, range(1, depths))),
        unit="bytes",
        x_unit="bytes",
        caption="Outermost frame first; the width is what was requested below a frame. Frames of less than 0.2 % are left out.",
    )
