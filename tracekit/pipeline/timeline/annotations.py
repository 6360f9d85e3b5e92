"""Annotations of the timeline: steps, stages and findings above the recorded events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tracekit.job.frames import list_stage_ranges
from tracekit.model.intervals import merge_intervals
from tracekit.model.records import dataclass
from tracekit.model.report import Finding, Place, Report
from tracekit.model.tables.frame import Frame, texts
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity
from tracekit.pipeline.timeline.arguments import quote_json
from tracekit.pipeline.timeline.lanes import LEAD_NS, NOTES, Lane, TimelinePlan, find_lane, index_lanes
from tracekit.pipeline.timeline.rows import format_micros, name_track
from tracekit.pipeline.timeline.window import DrawnWindow

Ints = npt.NDArray[np.int64]

MAX_LANE_RANGES = 5_000
"""Most steps, and most stages, drawn per process: the longest."""
MAX_FINDING_MARKS = 200
"""Most intervals of a finding drawn per process: the longest."""
ANNOTATION_CATEGORY = "tracekit"

_STEPS, _STAGES, _FINDINGS, _PATH = 1, 1_001, 2_001, 900_001
_MAX_TRACKS = 1_000
_WHOLE_RUN_PID = 1
"""Process id of annotations without a process, smaller than any process's."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """The JSON of all rows, their number, and the number left out by the limits."""

    text: str
    count: int
    omitted: int


@dataclass(frozen=True, slots=True)
class DrawnStages:
    """Steps and stages on the timeline: process (number), source, step, name, begin, end."""

    steps: Frame
    stages: Frame
    end_ns: int


@dataclass(frozen=True, slots=True)
class _Canvas:
    """The counts of drawn and omitted rows, and the part of the timeline that is drawn (None: all)."""

    tally: Counter[str]
    window: DrawnWindow | None

    def touches(self, begin: Ints, length: Ints) -> npt.NDArray[np.bool_]:
        """Mark the intervals that are drawn, at least in part."""
        if self.window is None:
            return np.ones(len(begin), np.bool_)
        return self.window.touches(begin, length)


def annotate_timeline(
    measured: Measurements,
    report: Report,
    plan: TimelinePlan,
    path: Frame | None = None,
    window: DrawnWindow | None = None,
) -> Annotations:
    """Draw the steps, stages and findings of every process, and the pieces of the critical path, as tracks above it.

    A finding is drawn at its places, on the ranks they name: at their time, else during their stage, else their step.
    A finding without a place spans the whole timeline, on its own track. Intervals are clipped to the `window`. `path` is that of `ledger.list_path_pieces`.
    """
    drawn = list_drawn_windows(measured, plan)
    canvas = _Canvas(Counter(), window)
    pieces: list[str] = []
    for lane in plan.processes():
        pid = lane.pid(NOTES)
        pieces.append(name_track(pid, f"{lane.name} · steps, stages, findings", pid))
        tracks = (drawn.steps, _STEPS, "steps"), (drawn.stages, _STAGES, "stages")
        for frame, first, what in tracks:
            rows = frame.filter((frame["process"] == lane.number) & canvas.touches(frame["begin"], frame["length"]))
            canvas.tally["omitted"] += max(len(rows) - MAX_LANE_RANGES, 0)
            rows = rows.sort("length", descending=["length"]).head(MAX_LANE_RANGES)
            pieces += _draw_ranges(rows.sort("begin"), pid, first, what, canvas)
    if path is not None and len(path):
        pieces += _draw_critical_path(path, plan, canvas)
    pieces += _draw_findings(report.findings, plan, drawn, canvas)
    return Annotations("".join(pieces), canvas.tally["rows"], canvas.tally["omitted"])


def list_drawn_windows(measured: Measurements, plan: TimelinePlan) -> DrawnStages:
    """List the steps and stages with timeline times, and the end of the timeline."""
    lanes = plan.of_source()
    steps, stages = measured.frame("steps"), list_stage_ranges(measured)
    names = ["step" if number is None else f"step {number}" for number in steps.values("step")]
    steps = _shift_windows(steps.with_columns(name=texts(names)), lanes)
    stages = _shift_windows(stages.with_columns(name=stages["canonical"]), lanes)
    captures = _shift_windows(measured.frame("captures"), lanes)
    ends = np.concatenate([steps["end"], stages["end"], captures["end"]])
    return DrawnStages(steps, stages, int(ends.max()) if len(ends) else 1)


def _shift_windows(rows: Frame, lanes: Mapping[str, tuple[Lane, ...]]) -> Frame:
    """Select the windows of drawn processes, and add the process, and begin, length and end in timeline time."""
    numbers: list[int] = []
    shifts_ns: list[int] = []
    places: list[int] = []
    for place, row in enumerate(rows.rows("source", "pid")):
        lane = find_lane(lanes.get(row["source"], ()), row["pid"])
        if lane is not None:
            places.append(place)
            numbers.append(lane.number)
            shifts_ns.append(lane.shift_ns)
    rows = rows.take(np.array(places, np.int64))
    begin = rows["ts_ns"] - np.array(shifts_ns, np.int64)
    length = np.maximum(rows["dur_ns"], 0)
    return rows.with_columns(process=np.array(numbers, np.int64), begin=begin, length=length, end=begin + length)


# Tracks


def _draw_ranges(rows: Frame, pid: int, first: int, what: str, canvas: _Canvas) -> Iterator[str]:
    """Draw the steps or stages of a process; overlapping ones go on several tracks."""
    if not len(rows):
        return
    ends: list[int] = []
    cells = []
    for begin, end in zip(rows["begin"].tolist(), rows["end"].tolist(), strict=True):
        free = (track for track, track_end in enumerate(ends) if track_end <= begin)
        track = next(free, min(len(ends), _MAX_TRACKS - 1))
        ends[track : track + 1] = [end]
        cells.append(first + track)
    for tid in sorted(set(cells)):
        yield name_track(pid, what, tid, what="thread", tid=tid)
    args = ["{}" if step is None else f'{{"step":{step}}}' for step in rows.values("step")]
    yield _draw_slices(pid, cells, rows.values("name"), rows["begin"], rows["length"], args, canvas)


def _draw_slices(
    pid: int,
    tids: Sequence[int],
    names: Sequence[str],
    begin: Ints,
    length: Ints,
    args: Sequence[str],
    canvas: _Canvas,
) -> str:
    """Format intervals as trace events, clipped to the window."""
    if canvas.window is not None:
        end = np.minimum(begin + length, canvas.window.end_ns)
        begin = np.maximum(begin, canvas.window.start_ns)
        length = np.maximum(end - begin, 0)
    canvas.tally["rows"] += len(names)
    quoted = [quote_json(name) for name in names]
    cells = zip(quoted, tids, format_micros(begin), format_micros(length), args, strict=True)
    head = f',\n{{"ph":"X","cat":"{ANNOTATION_CATEGORY}","pid":{pid},'
    return "".join(map((head + '"name":%s,"tid":%d,"ts":%s,"dur":%s,"args":%s}').__mod__, cells))


# Critical path


def _draw_critical_path(path: Frame, plan: TimelinePlan, canvas: _Canvas) -> Iterator[str]:
    """Draw the pieces of the critical path in their processes, with arrows where it moves to another process."""
    pieces = _shift_windows(path, plan.of_source()).sort("begin")
    pieces = pieces.filter(canvas.touches(pieces["begin"], pieces["length"]))
    number_of = index_lanes(plan.lanes)
    pids = np.array([number_of[number].pid(NOTES) for number in pieces.values("process")], np.int64)
    names = [name or kind for name, kind in zip(pieces.values("name"), pieces.values("kind"), strict=True)]
    args = [f'{{"kind":{quote_json(kind)}}}' for kind in pieces.values("kind")]
    for pid in np.unique(pids).tolist():
        rows = np.flatnonzero(pids == pid)
        yield name_track(pid, "critical path", _PATH, what="thread", tid=_PATH)
        chosen = pieces.take(rows)
        texts_of = [names[row] for row in rows.tolist()], [args[row] for row in rows.tolist()]
        yield _draw_slices(
            pid, [_PATH] * len(rows), texts_of[0], chosen["begin"], chosen["length"], texts_of[1], canvas
        )
    ends = pieces["end"] if canvas.window is None else np.minimum(pieces["end"], canvas.window.end_ns)
    yield _draw_moves(pids, np.maximum(pieces["begin"], canvas.window.start_ns if canvas.window else 0), ends)


def _draw_moves(pids: Ints, begin: Ints, end: Ints) -> str:
    """Draw an arrow from each piece to the next one if that is in another process."""
    moves = np.flatnonzero(pids[1:] != pids[:-1])
    arrows = []
    for flow, place in enumerate(moves.tolist()):
        for phase, row, times in (
            ("s", place, end[place : place + 1] - 1),
            ("f", place + 1, begin[place + 1 : place + 2]),
        ):
            (micros,) = format_micros(times)
            arrows.append(
                f',\n{{"ph":"{phase}","bp":"e","cat":"{ANNOTATION_CATEGORY}","name":"critical path","id":{flow},'
                f'"pid":{pids[row]},"tid":{_PATH},"ts":{micros}}}'
            )
    return "".join(arrows)


# Findings


def _draw_findings(
    findings: Sequence[Finding], plan: TimelinePlan, drawn: DrawnStages, canvas: _Canvas
) -> Iterator[str]:
    """Draw every finding on its own track, in each process where it is."""
    by_number = index_lanes(plan.lanes)
    is_first = True
    for order, finding in enumerate(findings):
        tid = _FINDINGS + order
        names = [f"{finding.rule}: {finding.claim}"]
        args = [_format_finding_args(finding)]
        bounds_of: dict[int, list[tuple[int, int]]] = {}
        for place in finding.places:
            for process, begin, end in _find_place_intervals(place, plan, drawn):
                bounds_of.setdefault(process, []).append((begin, end))
        for process, pairs in bounds_of.items():
            bounds = np.array(pairs, np.int64)
            covered = merge_intervals(bounds[:, 0], np.maximum(bounds[:, 1], bounds[:, 0] + 1))
            starts, lengths = covered.start, covered.end - covered.start
            is_drawn = canvas.touches(starts, lengths)
            starts, lengths = starts[is_drawn], lengths[is_drawn]
            if not len(starts):
                continue
            largest = np.sort(np.argsort(-lengths, kind="stable")[:MAX_FINDING_MARKS])
            canvas.tally["omitted"] += len(starts) - len(largest)
            pid = by_number[process].pid(NOTES)
            yield name_track(pid, f"finding {finding.rule}", tid, what="thread", tid=tid)
            count = len(largest)
            rows = [tid] * count, names * count, starts[largest], lengths[largest], args * count
            yield _draw_slices(pid, *rows, canvas)
        if not bounds_of:
            if is_first:
                yield name_track(_WHOLE_RUN_PID, "findings of the whole run", 0)
            is_first = False
            yield name_track(_WHOLE_RUN_PID, f"finding {finding.rule}", tid, what="thread", tid=tid)
            starts = np.array([LEAD_NS], np.int64)
            lengths = np.array([max(drawn.end_ns - LEAD_NS, 1)], np.int64)
            yield _draw_slices(_WHOLE_RUN_PID, [tid], names, starts, lengths, args, canvas)


def _find_place_intervals(place: Place, plan: TimelinePlan, drawn: DrawnStages) -> Iterator[tuple[int, int, int]]:
    """Find the intervals of a place as (process, begin, end); empty if the place is not in the timeline."""
    lanes = [lane for lane in plan.lanes if _is_place_in_lane(place, lane)]
    if place.start_ns is not None:
        end_ns = place.start_ns if place.end_ns is None else place.end_ns
        for lane in index_lanes(lanes).values():
            yield lane.number, place.start_ns - lane.shift_ns, end_ns - lane.shift_ns
        return
    processes = [lane.number for lane in lanes]
    if place.stage is not None:
        stages = _select_place_windows(place, drawn.stages, processes)
        stages = stages.filter(stages.equals("name", place.stage))
        if len(stages):
            yield from _iterate_bounds(stages)
            return
    yield from _iterate_bounds(_select_place_windows(place, drawn.steps, processes))


def _select_place_windows(place: Place, rows: Frame, processes: Sequence[int]) -> Frame:
    """Select the steps or stages that a place names, in these processes."""
    rows = rows.filter(np.isin(rows["process"], processes))
    if place.source is not None:
        rows = rows.filter(rows.equals("source", place.source))
    if place.step is not None:
        rows = rows.filter(rows.equals("step", place.step))
    return rows


def _iterate_bounds(rows: Frame) -> Iterator[tuple[int, int, int]]:
    """Iterate over (process, begin, end) of the rows."""
    return zip(*(rows.values(name) for name in ("process", "begin", "end")), strict=True)


def _is_place_in_lane(place: Place, lane: Lane) -> bool:
    """Check whether a place can be in a lane: none of the facts that it names differs."""
    source = lane.source
    return (
        place.source in (None, source.name) and place.role in (None, source.role) and place.rank in (None, source.rank)
    )


def _format_finding_args(finding: Finding) -> str:
    """Format a finding as the arguments of its intervals."""
    arguments = {"rule": finding.rule, "severity": finding.severity, "claim": finding.claim, "try": finding.advice}
    if finding.saving is not None:
        arguments["saved per step, alone"] = format_quantity(finding.saving.alone_ns, "ns")
    for metric in finding.evidence:
        arguments[metric.label or metric.name] = format_quantity(metric.value, metric.unit)
    for number, caveat in enumerate(finding.caveats, start=1):
        arguments[f"caveat {number}"] = caveat
    cells = (f"{quote_json(key)}:{quote_json(value)}" for key, value in arguments.items())
    return "{" + ",".join(cells) + "}"
