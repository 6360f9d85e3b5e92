"""Charts of rows: a timeline (gantt), amounts (bars), cells (heatmap, matrix), or parts of an amount (extents, icicle)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import chain

from tracekit.model.records import dataclass
from tracekit.model.report import Chart
from tracekit.model.units import UNKNOWN, format_quantity
from tracekit.render.charts.axis import LinearAxis, make_axis
from tracekit.render.charts.frame import WeightedBar, draw_axis_below, get_text_role, make_mark_box, merge_bars
from tracekit.render.charts.marks import ChartKindLayout, Mark, list_mark_numbers, to_plain_number
from tracekit.render.charts.shapes import (
    CHART_WIDTH,
    ChartRow,
    FilledArea,
    LegendKey,
    Part,
    PlacedText,
    PlotDrawing,
    ShapeBox,
)
from tracekit.render.charts.text import FONT, estimate_text_width, fit_text, make_slug, shorten_for_tooltip
from tracekit.render.escape import make_printable

HEATMAP_LEVELS = 9
"""Number of tones in a heatmap; more would be indistinguishable."""

AXIS = 28
_LANES = 4
_ROOMY = 16
_THICK = 0.72
_COLUMN_NAMES = 18
_END = 40
"""Longest number at an end of the scale, in characters; longer ones are not measurements."""

_LEAST, _MARGIN = 40, 20
"""Narrowest bar with text, and room for axis labels at the ends."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Position of the rows in a chart: the plot starts at `left` and `top`, a row is `pitch` high."""

    left: float
    width: float
    top: float
    pitch: float
    names: tuple[str, ...]

    @property
    def bottom(self) -> float:
        """End of the last row."""
        return self.top + self.pitch * len(self.names)

    def x(self, axis: LinearAxis, value: Fraction) -> float:
        """Get the horizontal position of a value."""
        return self.left + axis.project(value) * self.width

    def ends(self, axis: LinearAxis, mark: Mark) -> tuple[float, float]:
        """Get the horizontal start and end of a mark."""
        start, end = mark.span
        return self.x(axis, start), self.x(axis, end)

    def y(self, row: int) -> float:
        """Get the start of a row."""
        return self.top + row * self.pitch

    def middle(self, row: int) -> float:
        """Get the middle of a row."""
        return self.top + (row + 0.5) * self.pitch


def make_row_id(chart: Chart, row: int) -> str:
    """Make the id of a row in the chart as a link target; no chart or row name can collide with another's id."""
    return f"chart-{make_slug(chart.id)}--row-{row}"


def draw_gantt_chart(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> PlotDrawing:
    """Draw bars on one time axis, one row each; overlapping bars of a row are drawn in lanes."""
    lanes = assign_lanes(marks)
    lane_count = max(lanes) + 1
    rows = lay_out_rows(chart, top, 22 if lane_count == 1 else 14 * lane_count + 6)
    time = make_axis(list_mark_numbers(marks)[0], chart.x_unit)
    height = (rows.pitch - (4 if rows.pitch > 10 else 1)) / lane_count
    bars, words = [], []
    for mark, lane in zip(marks, lanes, strict=True):
        x, end = rows.ends(time, mark)
        y = rows.y(mark.row) + 2 + lane * height
        name, tone = chart.series[mark.series], tones[mark.series]
        area = make_mark_box(x, y, end - x, height - 1)
        bars.append(WeightedBar(mark.size, tone, area, _describe_gantt_bar(chart, mark, name)))
        if height >= FONT + 1:
            words += _label_bar(name, x, end - x, y + height / 2 + 3.5, get_text_role(tone))
    return frame_row_plot(chart, rows, time, [*merge_bars(bars), *words])


def draw_bars_chart(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> PlotDrawing:
    """Draw amounts as stacked bars, one per row; negative ones are stacked to the left of zero."""
    is_single = len(chart.series) == 1
    rows = lay_out_rows(chart, top, 24, 84 if is_single else 12)
    ends = stack_marks(marks)
    amounts = make_axis(chain.from_iterable(end for end in ends if end), chart.unit, zero=True)
    bars, words = [], []
    for mark, pair in zip(marks, ends, strict=True):
        middle, tone = rows.middle(mark.row), tones[mark.series]
        value = _format_mark_value(mark, chart)
        x, end = sorted(rows.x(amounts, place) for place in pair or (Fraction(0), Fraction(0)))
        if mark.value:
            area = make_mark_box(x, middle - rows.pitch * _THICK / 2, end - x, rows.pitch * _THICK)
            bars.append(WeightedBar(mark.size, tone, area, f"{_name_mark(chart, mark)}: {shorten_for_tooltip(value)}"))
        if rows.pitch < _ROOMY:
            continue
        if is_single or not pair:
            words.append(PlacedText(end + 6, middle + 4, shorten_for_tooltip(value), "value", "start"))
        else:
            words += _label_bar(value, x, end - x, middle + 4, get_text_role(tone))
    return frame_row_plot(chart, rows, amounts, [*merge_bars(bars), *words])


def draw_heatmap_chart(chart: Chart, marks: Sequence[Mark], _tones: Sequence[str], top: float) -> PlotDrawing:
    """Draw cells by row and interval, darker for larger values; unknown ones are outlined."""
    rows = lay_out_rows(chart, top + 24, 22)
    places, values = list_mark_numbers(marks)
    time = make_axis(places, chart.x_unit)
    low, high = _get_cell_scale(chart, values)
    gap = int(rows.pitch > 4)
    cells = []
    for mark in marks:
        x, end = rows.ends(time, mark)
        area = make_mark_box(x, rows.y(mark.row), end - x, rows.pitch - gap, 0)
        interval = " – ".join(_format_axis_position(chart, place) for place in mark.span)
        tip = f"{shorten_for_tooltip(chart.rows[mark.row])}, {shorten_for_tooltip(interval)}: {shorten_for_tooltip(_format_mark_value(mark, chart))}"
        cells.append(WeightedBar(mark.size, _get_cell_role(mark.value, low, high), area, tip))
    key = _draw_cell_scale(chart, low, high, top, unknown=len(values) < len(marks))
    drawing = frame_row_plot(chart, rows, time, merge_bars(cells))
    return PlotDrawing((*key, *drawing.parts), drawing.height)


def draw_matrix_chart(chart: Chart, marks: Sequence[Mark], _tones: Sequence[str], top: float) -> PlotDrawing:
    """Draw cells by row and series, darker for larger values, with column names; unknown ones are outlined."""
    rows = lay_out_rows(chart, top + 24 + _COLUMN_NAMES, 22)
    values = list_mark_numbers(marks)[1]
    low, high = _get_cell_scale(chart, values)
    width = rows.width / len(chart.series)
    gap = int(rows.pitch > 4)
    cells = []
    for mark in marks:
        x = rows.left + mark.series * width
        area = make_mark_box(x, rows.y(mark.row), width, rows.pitch - gap, 1)
        tip = f"{_name_mark(chart, mark)}: {shorten_for_tooltip(_format_mark_value(mark, chart))}"
        cells.append(WeightedBar(mark.size, _get_cell_role(mark.value, low, high), area, tip))
    names: list[Part] = []
    for number, name in enumerate(chart.series):
        text = fit_text(name, width - 6)
        full = shorten_for_tooltip(name) if text != name else ""
        x = rows.left + (number + 0.5) * width
        names.append(PlacedText(x, rows.top - 6, text, "tick", "middle", full))
    key = _draw_cell_scale(chart, low, high, top, unknown=len(values) < len(marks))
    parts = (*key, *names, *draw_row_names(chart, rows), *merge_bars(cells))
    return PlotDrawing(parts, rows.bottom + 4)


def frame_row_plot(chart: Chart, rows: RowLayout, axis: LinearAxis, parts: Sequence[Part]) -> PlotDrawing:
    """Frame a plot of rows with row names and an axis below."""
    grid = draw_axis_below(axis, rows.left, rows.width, rows.top, rows.bottom)
    return PlotDrawing((*draw_row_names(chart, rows), *grid, *parts), rows.bottom + AXIS)


def lay_out_rows(chart: Chart, top: float, pitch: float, room: float = 12, names: float = 210) -> RowLayout:
    """Lay out rows at this pitch, or closer if they would exceed a screen; names get at most this width."""
    pitch = min(pitch, max(760 / len(chart.rows), 3))
    longest = max(estimate_text_width(fit_text(name, names)) for name in chart.rows)
    left = max(longest, 24) + 10
    return RowLayout(left, CHART_WIDTH - left - room, top, pitch, chart.rows)


def draw_row_names(chart: Chart, rows: RowLayout) -> list[Part]:
    """Draw the name of each row, or of every n-th if they would overlap, with a link target."""
    interval = max(1, -(-(FONT + 1) // int(max(rows.pitch, 1))))
    parts: list[Part] = []
    for row, name in enumerate(rows.names):
        y = rows.y(row)
        words = None
        if row % interval == 0:
            text = fit_text(name, rows.left - 10)
            full = shorten_for_tooltip(name) if text != name else ""
            words = PlacedText(rows.left - 8, y + rows.pitch / 2 + 4, text, anchor="end", tip=full)
        parts.append(ChartRow(make_row_id(chart, row), y, rows.pitch, words))
    return parts


def assign_lanes(marks: Sequence[Mark]) -> list[int]:
    """Assign each mark to the first lane of its row that is free at its start; at most four lanes."""
    lanes = [0] * len(marks)
    row_ends: dict[int, list[Fraction]] = {}
    order = sorted(range(len(marks)), key=lambda index: (marks[index].start, -marks[index].size))
    for index in order:
        start, end = marks[index].span
        ends = row_ends.setdefault(marks[index].row, [])
        free = (lane for lane, lane_end in enumerate(ends) if lane_end <= start)
        lane = min(next(free, len(ends)), _LANES - 1)
        if lane == len(ends):
            ends.append(end)
        ends[lane] = max(ends[lane], end)
        lanes[index] = lane
    return lanes


def stack_marks(marks: Sequence[Mark]) -> list[tuple[Fraction, Fraction] | None]:
    """Compute the start and end of each stacked amount; None if it is unknown."""
    tops: dict[tuple[int, bool], Fraction] = {}
    ends: list[tuple[Fraction, Fraction] | None] = []
    for mark in marks:
        if mark.value is None:
            ends.append(None)
            continue
        side = (mark.row, mark.value < 0)
        start = tops.get(side, Fraction(0))
        tops[side] = start + mark.value
        ends.append((start, start + mark.value))
    return ends


def _get_cell_scale(chart: Chart, values: Sequence[Fraction]) -> tuple[Fraction, Fraction]:
    """Get the smallest and largest value of the cell tones; ratios extend to 1."""
    low, high = min(values, default=Fraction(0)), max(values, default=Fraction(0))
    low = min(low, Fraction(0))
    if chart.unit == "ratio" and high <= 1:
        high = max(high, Fraction(1))
    return low, high


def _get_cell_role(value: Fraction | None, low: Fraction, high: Fraction) -> str:
    """Get the role of a cell: `l0` to `l8`, or `unknown`."""
    if value is None:
        return "unknown"
    if low == high:
        return "l0"
    return f"l{min(int((value - low) / (high - low) * HEATMAP_LEVELS), HEATMAP_LEVELS - 1)}"


def _draw_cell_scale(chart: Chart, low: Fraction, high: Fraction, top: float, *, unknown: bool) -> list[Part]:
    """Draw the scale of cell tones from the smallest to the largest value."""
    lowest = make_printable(format_quantity(to_plain_number(low), chart.unit), _END)
    highest = make_printable(format_quantity(to_plain_number(high), chart.unit), _END)
    x, y = estimate_text_width(lowest) + 6, top + 12
    samples = tuple(
        FilledArea(f"l{level}", (make_mark_box(x + level * 18, top + 2, 18, 12, 0),)) for level in range(HEATMAP_LEVELS)
    )
    x += HEATMAP_LEVELS * 18 + 6
    parts: list[Part] = [
        PlacedText(0, y, shorten_for_tooltip(lowest)),
        LegendKey(samples, PlacedText(x, y, shorten_for_tooltip(highest))),
    ]
    if unknown:
        x += estimate_text_width(highest) + 20
        sample = FilledArea("unknown", (make_mark_box(x, top + 2, 18, 12),))
        parts.append(LegendKey((sample,), PlacedText(x + 24, y, "unknown")))
    return parts


def _label_bar(name: str, x: float, width: float, y: float, role: str) -> list[PlacedText]:
    """Make the text in a bar if it fits."""
    text = shorten_for_tooltip(name)
    if width < 18 or estimate_text_width(text) + 8 > width:
        return []
    return [PlacedText(x + width / 2, y, text, role, "middle")]


def _format_mark_value(mark: Mark, chart: Chart) -> str:
    """Format the value of a mark."""
    return UNKNOWN if mark.value is None else format_quantity(to_plain_number(mark.value), chart.unit)


def _name_mark(chart: Chart, mark: Mark) -> str:
    """Name a mark by its row, and its series if there are several."""
    row = shorten_for_tooltip(chart.rows[mark.row])
    return f"{row} · {shorten_for_tooltip(chart.series[mark.series])}" if len(chart.series) > 1 else row


def _describe_gantt_bar(chart: Chart, mark: Mark, name: str) -> str:
    """Describe a bar on the time axis for its tooltip."""
    size = shorten_for_tooltip(format_quantity(to_plain_number(mark.size), chart.x_unit))
    start = shorten_for_tooltip(_format_axis_position(chart, mark.place))
    return f"{shorten_for_tooltip(chart.rows[mark.row])} · {shorten_for_tooltip(name)}: {size}, from {start}"


def _format_axis_position(chart: Chart, value: Fraction) -> str:
    """Format a position on the axis."""
    return format_quantity(to_plain_number(value), chart.x_unit, figures=4)


def draw_extents_chart(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> PlotDrawing:
    """Draw bars from one amount to another, one line per row; bars of a row do not overlap."""
    rows = lay_out_rows(chart, top, 18)
    amounts = make_axis(list_mark_numbers(marks)[0], chart.x_unit, zero=True)
    bars = []
    for mark in marks:
        x, end = rows.ends(amounts, mark)
        name = f"{chart.rows[mark.row]} · {chart.series[mark.series]}"
        bars.append(
            _make_extent_bar(chart, mark, tones, name, make_mark_box(x, rows.y(mark.row), end - x, rows.pitch - 1))
        )
    return frame_row_plot(chart, rows, amounts, merge_bars(bars))


def draw_icicle_chart(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> PlotDrawing:
    """Draw a tree: the parts of each bar are below it, each with its name as far as it fits."""
    pitch = min(20, max(760 / len(chart.rows), 3))
    rows = RowLayout(_MARGIN, CHART_WIDTH - 2 * _MARGIN, top, pitch, chart.rows)
    amounts = make_axis(list_mark_numbers(marks)[0], chart.x_unit, zero=True)
    bars, words = [], []
    for mark in marks:
        x, end = rows.ends(amounts, mark)
        y, name = rows.y(mark.row), chart.series[mark.series]
        bars.append(_make_extent_bar(chart, mark, tones, name, make_mark_box(x, y, end - x, rows.pitch - 1)))
        text = fit_text(name, end - x - 8)
        is_roomy = end - x >= _LEAST and rows.pitch > FONT
        if is_roomy and estimate_text_width(text) + 8 <= end - x:
            words.append(PlacedText(x + 4, y + rows.pitch / 2 + 4, text, get_text_role(tones[mark.series]), "start"))
    grid = draw_axis_below(amounts, rows.left, rows.width, rows.top, rows.bottom)
    return PlotDrawing((*grid, *merge_bars(bars), *words), rows.bottom + AXIS)


def _make_extent_bar(chart: Chart, mark: Mark, tones: Sequence[str], name: str, area: ShapeBox) -> WeightedBar:
    """Make the bar of a mark, with its name and size in the tooltip."""
    size = format_quantity(to_plain_number(mark.size), chart.x_unit)
    return WeightedBar(mark.size, tones[mark.series], area, f"{shorten_for_tooltip(name)}: {shorten_for_tooltip(size)}")


_AMOUNT = ("row", "series", "value")
_EXTENT = ("row", "series", "start", "end")
KINDS = (
    ChartKindLayout("gantt", _EXTENT, "Bars on one time axis", draw_gantt_chart),
    ChartKindLayout("bars", _AMOUNT, "Bars of amounts", draw_bars_chart, is_placed=lambda _: True),
    ChartKindLayout("heatmap", ("row", "start", "end", "value"), "Coloured cells", draw_heatmap_chart, sample=""),
    ChartKindLayout("matrix", _AMOUNT, "Coloured cells, the darker the larger", draw_matrix_chart, "", lambda _: True),
    ChartKindLayout("extents", _EXTENT, "Parts of amounts as adjacent bars", draw_extents_chart),
    ChartKindLayout("icicle", _EXTENT, "A tree of bars, each above its parts", draw_icicle_chart, ""),
)
