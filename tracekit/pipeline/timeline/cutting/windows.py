"""Windows of a recording that may show a finding, from its place outward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tracekit.model.records import dataclass
from tracekit.model.report import Finding, Place
from tracekit.model.tables.frame import Frame
from tracekit.model.trace import Measurements

Ints = npt.NDArray[np.int64]

_STEP_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
_PARTS = (64, 32, 16, 8, 4, 2)
_PADDING = 0.1
"""Time around the interval of a place, as a share of its length."""


@dataclass(frozen=True, slots=True)
class CutWindow:
    """A part of the recording: the time [start_ns, end_ns) of each source, and its description."""

    spans: dict[str, tuple[int, int]]
    text: str


def list_cut_windows(finding: Finding | None, measured: Measurements, sources: Sequence[str]) -> Iterator[CutWindow]:
    """List windows of the sources around the places of a finding: its interval, stages, steps, parts, and everything."""
    places = () if finding is None else finding.places
    spans = {name: find_recorded_span(measured, name) for name in sources}
    spans = {name: span for name, span in spans.items() if span[1] > span[0]}
    steps = measured.frame("steps")
    first = next((place for place in places if place.source in (None, *sources)), Place())
    for place in places[:2]:
        if place.start_ns is not None and place.source is not None and place.source in sources:
            end_ns = place.start_ns + 1 if place.end_ns is None else place.end_ns
            padding = int((end_ns - place.start_ns) * _PADDING) + 1_000
            yield CutWindow({place.source: (place.start_ns - padding, end_ns + padding)}, "the interval of the finding")
    yield from _list_stage_cuts(first, measured, spans)
    yield from _list_step_cuts(first, steps, spans)
    for part in _PARTS:
        text = f"1/{part} of the recording"
        yield CutWindow({name: _take_part(span, part, _find_center(first, span)) for name, span in spans.items()}, text)
    yield CutWindow(spans, "the whole recording")


def find_recorded_span(measured: Measurements, source: str) -> tuple[int, int]:
    """Find the first and last time of a source; (0, 0) if it has none."""
    lows, highs = [], []
    for name in ("captures", "steps", "stages"):
        rows = measured.frame(name)
        rows = rows.filter(rows.equals("source", source))
        if len(rows):
            lows.append(int(rows["ts_ns"].min()))
            highs.append(int((rows["ts_ns"] + np.maximum(rows["dur_ns"], 0)).max()))
    return (min(lows), max(highs) + 1) if lows else (0, 0)


def _list_stage_cuts(place: Place, measured: Measurements, spans: dict[str, tuple[int, int]]) -> Iterator[CutWindow]:
    """List the first window of the place's stage, or that in its step, and the second one as well."""
    if place.stage is None:
        return
    stages = measured.frame("stages")
    stages = stages.filter(
        stages.equals("canonical", place.stage)
        if "canonical" in stages.columns
        else stages.equals("stage", place.stage)
    )
    if place.step is not None:
        stages = stages.filter(stages.equals("step", place.step))
    for count in (1, 2):
        found = {name: _find_hull(stages, name, count) for name in spans}
        if all(found.values()):
            yield CutWindow({name: span for name, span in found.items() if span}, f"{count} × stage {place.stage}")


def _find_hull(rows: Frame, source: str, count: int) -> tuple[int, int] | None:
    """Find the time that the middle `count` rows of a source span."""
    rows = rows.filter(rows.equals("source", source)).sort("ts_ns")
    if not len(rows):
        return None
    low = max((len(rows) - count) // 2, 0)
    rows = rows.take(slice(low, low + count))
    return int(rows["ts_ns"].min()), int((rows["ts_ns"] + np.maximum(rows["dur_ns"], 1)).max())


def _list_step_cuts(place: Place, steps: Frame, spans: dict[str, tuple[int, int]]) -> Iterator[CutWindow]:
    """List runs of consecutive steps around the place's step, the middle one if it names none."""
    steps = steps.filter(~steps.is_missing("step"))
    known = sorted({step for source in spans for step in steps.filter(steps.equals("source", source)).values("step")})
    if not known:
        return
    center = known.index(place.step) if place.step in known else len(known) // 2
    for count in _STEP_COUNTS:
        if count > len(known):
            return
        low = min(max(center - count // 2, 0), len(known) - count)
        chosen = steps.filter(np.isin(steps.integers("step"), known[low : low + count]))
        found = {name: _find_hull(chosen, name, len(chosen)) for name in spans}
        named = f"step {known[low]}" if count == 1 else f"steps {known[low]} to {known[low + count - 1]}"
        yield CutWindow({name: span for name, span in found.items() if span}, named)


def _find_center(place: Place, span: tuple[int, int]) -> int:
    """Find the middle of the place, or of the recording."""
    if place.start_ns is None or not span[0] <= place.start_ns < span[1]:
        return (span[0] + span[1]) // 2
    return place.start_ns


def _take_part(span: tuple[int, int], part: int, center: int) -> tuple[int, int]:
    """Take one of `part` equal parts around a time."""
    length = (span[1] - span[0]) // part
    low = min(max(center - length // 2, span[0]), span[1] - length)
    return low, low + length
