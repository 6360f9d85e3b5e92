"""Charts of allocated memory over time: a line for each allocator, hosts and GPUs apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tracekit.job.frames import is_from_epoch, make_run_heading
from tracekit.job.memory.trend import Allocator, split_by_allocator
from tracekit.job.pandas_bridge import to_pandas
from tracekit.job.ranks_to_plot import choose_rows_to_plot
from tracekit.model.frame import Frame, max_of, min_of
from tracekit.model.keys import CAPTURE
from tracekit.model.labels import join_phrase
from tracekit.model.report import Chart
from tracekit.model.trace import Measurements
from tracekit.process.memory.levels import SNAPSHOT

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
        names.append(f"{run}{owner.process} {owner.memory}{comma}{likeness}")
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
        omitted=sum(undrawn) + sum(map(len, levels)) - len(marks),
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
    one_clock = all(is_from_epoch(measured, to_pandas(line.select(*CAPTURE))) for line in levels)
    if not one_clock:
        note = "Clocks cannot be compared: every line begins at its own zero."
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
