"""Marks of a chart by name, checked and limited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite, isnan, nan
from typing import NamedTuple

from tracekit.model.report import Chart, ChartKind

FIELDS: Mapping[ChartKind, tuple[str, ...]] = {
    "gantt": ("row", "series", "start", "end"),
    "bars": ("row", "series", "value"),
    "heatmap": ("row", "start", "end", "value"),
    "matrix": ("row", "series", "value"),
    "lines": ("series", "start", "value"),
    "histogram": ("series", "start", "end", "value"),
    "intervals": ("row", "series", "start", "value", "end"),
    "strips": ("row", "series", "start", "label", "value"),
    "waterfall": ("row", "series", "start", "end"),
    "extents": ("row", "series", "start", "end"),
    "icicle": ("row", "series", "start", "end"),
}
"""Meaning of the numbers of a mark, in order; `start` is also the x of a point."""

MOST_MARKS, MOST_ROWS = 2_000, 300
"""Limits of one chart: more would be invisible and slow to draw."""

_SPANS = frozenset({"gantt", "heatmap", "histogram", "extents", "icicle"})
"""Kinds whose marks end after they start."""

_LARGEST = 1e30
"""Larger numbers are not measurements, and leave no room for the others."""

_UNKNOWN = nan


def is_known(number: float) -> bool:
    """Check whether a number of a mark is known."""
    return not isnan(number)


class Mark(NamedTuple):
    """One mark; a number is NaN if its kind lacks it, or if it is unknown."""

    row: int = 0
    series: int = 0
    start: float = _UNKNOWN
    end: float = _UNKNOWN
    value: float = _UNKNOWN
    label: float = _UNKNOWN

    @property
    def size(self) -> float:
        """Weight of the mark: its length, or its amount; 0 if unknown."""
        length = abs(self.end - self.start)
        weight = abs(self.value) if not is_known(length) else length
        return weight if is_known(weight) else 0.0


def list_marks(chart: Chart) -> list[Mark]:
    """List the marks that can be drawn, in the chart's order."""
    names = FIELDS[chart.kind]
    return [mark for mark in (_make_mark(raw, names) for raw in chart.marks) if _is_drawn(chart.kind, mark)]


def _make_mark(raw: Sequence[float | None], names: Sequence[str]) -> Mark:
    """Make a mark of its numbers."""
    given = dict(zip(names, raw, strict=True))
    row, series = (int(given.get(name) or 0) for name in ("row", "series"))
    return Mark(row, series, *(_to_float(given.get(name)) for name in ("start", "end", "value", "label")))


def _to_float(number: float | None) -> float:
    """Convert a number; NaN if it is unknown, infinite or no measurement."""
    if number is None or isinstance(number, bool) or not -_LARGEST < number < _LARGEST:
        return _UNKNOWN
    return float(number) if isfinite(number) else _UNKNOWN


def _is_drawn(kind: ChartKind, mark: Mark) -> bool:
    """Check whether all numbers that place the mark are known."""
    if kind in _SPANS:
        return mark.start <= mark.end
    if kind == "waterfall":
        return is_known(mark.start) and is_known(mark.end)
    if kind == "intervals":
        return mark.value > 0
    return kind in ("bars", "matrix") or is_known(mark.start)


def find_chart_problem(chart: Chart) -> str:
    """Find an invalid mark, such as `marks[3] is of no row there is (8 are named)`; empty if there is none."""
    names = FIELDS[chart.kind]
    sizes = {"row": len(chart.rows), "series": len(chart.series)}
    references = [(index, name) for index, name in enumerate(names) if name in sizes]
    for number, mark in enumerate(chart.marks):
        if len(mark) != len(names):
            return f"marks[{number}] has {len(mark)} numbers, not {len(names)}"
        for index, name in references:
            target = mark[index]
            if type(target) is not int or not 0 <= target < sizes[name]:
                return f"marks[{number}] is of no {name} there is ({sizes[name]} are named)"
    if {len(chart.roles), len(chart.ranks)} not in ({0}, {len(chart.rows)}):
        return "roles and ranks are not of all rows"
    return ""


def limit_chart(chart: Chart) -> Chart:
    """Limit a valid chart to 300 rows and its 2,000 largest marks; `omitted` counts the others."""
    if len(chart.rows) <= MOST_ROWS and len(chart.marks) <= MOST_MARKS:
        return chart
    names, raw = FIELDS[chart.kind], chart.marks
    if "row" in names:
        raw = tuple(mark for mark in raw if mark[0] < MOST_ROWS)  # type: ignore[operator]
    if len(raw) > MOST_MARKS:
        sizes = [_make_mark(mark, names).size for mark in raw]
        largest = sorted(range(len(raw)), key=lambda index: (-sizes[index], index))[:MOST_MARKS]
        raw = tuple(raw[index] for index in sorted(largest))
    return replace(
        chart,
        rows=chart.rows[:MOST_ROWS],
        roles=chart.roles[:MOST_ROWS],
        ranks=chart.ranks[:MOST_ROWS],
        marks=raw,
        omitted=chart.omitted + len(chart.marks) - len(raw),
    )
