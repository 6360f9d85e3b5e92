"""Pictures of one memory snapshot: its levels over time by stage, and the stacks of what is in use at its peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import pandas as pd

from tracekit.job.frames import canonical_stages, text_or_none
from tracekit.job.memory.snapshots import of_snapshot
from tracekit.model.intervals import window_at
from tracekit.model.report import Chart
from tracekit.model.trace import Measurements

SNAPSHOT = 102
"""`device_type` of the levels that a snapshot tells."""

MAX_STAGES = 6
"""Most stages that the curve tells apart, those with most of its points."""

ALONE, NO_STAGE, OTHERS = "requested", "requested, in no stage", "requested, in other stages"

Mark = tuple[int | None, ...]


def snapshot_charts(measured: Measurements, top: pd.Series[Any]) -> Iterator[Chart]:
    """The pictures of one row of `snapshot_levels`; none of what was not recorded."""
    curve = measured["memory_curve"]
    curve = of_snapshot(curve[curve["device_type"] == SNAPSHOT], top)
    if len(curve) > 1 and top["memory"] == "device":
        yield _curve(measured, top, curve.sort_values("ts_ns", kind="stable"))
    frames = of_snapshot(measured["live_frames"], top)
    if len(frames):
        yield _stacks(top, frames)


def _curve(measured: Measurements, top: pd.Series[Any], curve: pd.DataFrame) -> Chart:
    """What was requested, a line for each stage, what was reserved, and the peak."""
    zero = int(curve["ts_ns"].iloc[0])
    series = list[str]()
    marks = list[Mark]()
    for name, points in _by_stage(_labels(measured, top, curve), curve, zero):
        if name not in series:
            series.append(name)
        marks += [(series.index(name), *point) for point in points]
    reserved = curve[curve["reserved_bytes"].notna()]
    if len(reserved):
        series.append("reserved")
        times = (reserved["ts_ns"] - zero).astype(int).tolist()
        sizes = reserved["reserved_bytes"].astype(int).tolist()
        marks += zip(repeat(len(series) - 1), times, sizes, strict=False)
    if not pd.isna(top["peak_ts_ns"]):
        series.append("peak")
        peak_ns = int(top["peak_ts_ns"]) - zero
        marks += [(len(series) - 1, peak_ns, 0), (len(series) - 1, peak_ns, int(top["peak_bytes"]))]
    stage = text_or_none(top["peak_stage"])
    caption = (
        "Highest level in each stretch of time; requested bytes, which the allocator rounds up."
    )
    if stage is not None:
        caption += f" The peak lies in {stage}."
    return Chart(
        "snapshot-curve",
        f"Memory of {top['who']} over time",
        "lines",
        tuple(marks),
        tuple(series),
        unit="bytes",
        caption=caption,
    )


def _labels(measured: Measurements, top: pd.Series[Any], curve: pd.DataFrame) -> list[str]:
    """Which line every point of the curve belongs to."""
    stages = measured["memory_stages"]
    stages = of_snapshot(stages[stages["device_type"] == SNAPSHOT], top)
    if not len(stages):
        return [ALONE] * len(curve)
    stages = stages.sort_values("ts_ns", kind="stable")
    begin = stages["ts_ns"].to_numpy(np.int64)
    stage_at = window_at(
        begin, begin + stages["dur_ns"].to_numpy(np.int64), curve["ts_ns"].to_numpy()
    )
    stage_names = [*canonical_stages(stages, any_range=True), None]
    names = list(map(stage_names.__getitem__, stage_at.tolist()))
    labels: dict[str | None, str] = {}
    for name, _ in Counter(filter(None, names)).most_common(MAX_STAGES):
        labels[name] = f"requested, in {name}"
    labels[None] = NO_STAGE
    return [labels.get(name, OTHERS) for name in names]


def _by_stage(
    labels: Sequence[str], curve: pd.DataFrame, zero: int
) -> Iterator[tuple[str, list[tuple[int, int | None]]]]:
    """(line, points) of each stretch in one stage, up to the first point of the next, where the line breaks off."""
    ts = (curve["ts_ns"] - zero).astype(int).tolist()
    size = curve["allocated_bytes"].astype(int).tolist()
    changes = [n for n in range(1, len(labels)) if labels[n] != labels[n - 1]]
    for start, end in zip([0, *changes], [*changes, len(labels)], strict=True):
        points: list[tuple[int, int | None]] = list(
            zip(ts[start:end], size[start:end], strict=True)
        )
        if end < len(labels):
            points += [(ts[end], size[end]), (ts[end], None)]
        yield labels[start], points


def _stacks(top: pd.Series[Any], frames: pd.DataFrame) -> Chart:
    """The tree of the stacks of what is in use at the peak."""
    names = {name: place for place, name in enumerate(dict.fromkeys(frames["name"].astype(str)))}
    depths = int(frames["depth"].max()) + 1
    columns = frames[["depth", "start_bytes", "size_bytes", "name"]]
    marks = tuple(
        (int(d), names[str(n)], int(b), int(b) + int(s))
        for d, b, s, n in columns.itertuples(index=False)
    )
    return Chart(
        "peak-stacks",
        f"Stacks of what is in use at the peak of {top['who']}",
        "icicle",
        marks,
        tuple(names),
        ("outermost", *map(str, range(1, depths))),
        unit="bytes",
        x_unit="bytes",
        caption="Outermost frame first; the width is what was requested below a frame. Frames of less than 0.2 % are left out.",
    )
