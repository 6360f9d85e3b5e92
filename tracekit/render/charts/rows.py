"""Charts of rows: a timeline (gantt), amounts (bars), or cells (heatmap, matrix)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import chain

from tracekit.model.records import dataclass
from tracekit.model.report import Chart
from tracekit.model.units import UNKNOWN, show
from tracekit.render.charts.axis import Axis, axis
from tracekit.render.charts.frame import Bar, areas, axis_below, box, on
from tracekit.render.charts.marks import Kind, Mark, numbers, plain
from tracekit.render.charts.shapes import WIDTH, Area, Drawing, Key, Part, Row, Words
from tracekit.render.charts.text import FONT, breadth, fitted, short, slug
from tracekit.render.escape import printable

LEVELS = 9
"""Number of tones in a heatmap; more would be indistinguishable."""

AXIS = 28
_LANES = 4
_ROOMY = 16
_THICK = 0.72
_COLUMN_NAMES = 18
_END = 40
"""Longest number at an end of the scale, in characters; longer ones are not measurements."""


@dataclass(frozen=True, slots=True)
class Rows:
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

    def x(self, axis: Axis, value: Fraction) -> float:
        """Get the horizontal position of a value."""
        return self.left + axis.at(value) * self.width

    def ends(self, axis: Axis, mark: Mark) -> tuple[float, float]:
        """Get the horizontal start and end of a mark."""
        start, end = mark.span
        return self.x(axis, start), self.x(axis, end)

    def y(self, row: int) -> float:
        """Get the start of a row."""
        return self.top + row * self.pitch

    def middle(self, row: int) -> float:
        """Get the middle of a row."""
        return self.top + (row + 0.5) * self.pitch


def row_id(chart: Chart, row: int) -> str:
    """Make the id of a row in the chart as a link target; no chart or row name can collide with another's id."""
    return f"chart-{slug(chart.id)}--row-{row}"


def gantt(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> Drawing:
    """Draw bars on one time axis, one row each; overlapping bars of a row are drawn in lanes."""
    lanes = lanes_of(marks)
    lane_count = max(lanes) + 1
    rows = rows_of(chart, top, 22 if lane_count == 1 else 14 * lane_count + 6)
    time = axis(numbers(marks)[0], chart.x_unit)
    height = (rows.pitch - (4 if rows.pitch > 10 else 1)) / lane_count
    bars, words = [], []
    for mark, lane in zip(marks, lanes, strict=True):
        x, end = rows.ends(time, mark)
        y = rows.y(mark.row) + 2 + lane * height
        name, tone = chart.series[mark.series], tones[mark.series]
        area = box(x, y, end - x, height - 1)
        bars.append(Bar(mark.size, tone, area, _when(chart, mark, name)))
        if height >= FONT + 1:
            words += _within(name, x, end - x, y + height / 2 + 3.5, on(tone))
    return framed(chart, rows, time, [*areas(bars), *words])


def bars(chart: Chart, marks: Sequence[Mark], tones: Sequence[str], top: float) -> Drawing:
    """Draw amounts as stacked bars, one per row; negative ones are stacked to the left of zero."""
    is_single = len(chart.series) == 1
    rows = rows_of(chart, top, 24, 84 if is_single else 12)
    ends = stacked(marks)
    amounts = axis(chain.from_iterable(filter(None, ends)), chart.unit, zero=True)
    bars, words = [], []
    for mark, pair in zip(marks, ends, strict=True):
        middle, tone = rows.middle(mark.row), tones[mark.series]
        value = _amount(mark, chart)
        x, end = sorted(rows.x(amounts, place) for place in pair or (Fraction(0), Fraction(0)))
        if mark.value:
            area = box(x, middle - rows.pitch * _THICK / 2, end - x, rows.pitch * _THICK)
            bars.append(Bar(mark.size, tone, area, f"{_name(chart, mark)}: {short(value)}"))
        if rows.pitch < _ROOMY:
            continue
        if is_single or not pair:
            words.append(Words(end + 6, middle + 4, short(value), "value", "start"))
        else:
            words += _within(value, x, end - x, middle + 4, on(tone))
    return framed(chart, rows, amounts, [*areas(bars), *words])


def heatmap(chart: Chart, marks: Sequence[Mark], _tones: Sequence[str], top: float) -> Drawing:
    """Draw cells by row and interval, darker for larger values; unknown ones are outlined."""
    rows = rows_of(chart, top + 24, 22)
    places, values = numbers(marks)
    time = axis(places, chart.x_unit)
    low, high = _scale(chart, values)
    gap = int(rows.pitch > 4)
    cells = []
    for mark in marks:
        x, end = rows.ends(time, mark)
        area = box(x, rows.y(mark.row), end - x, rows.pitch - gap, 0)
        interval = " – ".join(_place(chart, place) for place in mark.span)
        tip = f"{short(chart.rows[mark.row])}, {short(interval)}: {short(_amount(mark, chart))}"
        cells.append(Bar(mark.size, _level(mark.value, low, high), area, tip))
    key = _key(chart, low, high, top, unknown=len(values) < len(marks))
    drawing = framed(chart, rows, time, areas(cells))
    return Drawing((*key, *drawing.parts), drawing.height)


def matrix(chart: Chart, marks: Sequence[Mark], _tones: Sequence[str], top: float) -> Drawing:
    """Draw cells by row and series, darker for larger values, with column names; unknown ones are outlined."""
    rows = rows_of(chart, top + 24 + _COLUMN_NAMES, 22)
    values = numbers(marks)[1]
    low, high = _scale(chart, values)
    width = rows.width / len(chart.series)
    gap = int(rows.pitch > 4)
    cells = []
    for mark in marks:
        x = rows.left + mark.series * width
        area = box(x, rows.y(mark.row), width, rows.pitch - gap, 1)
        tip = f"{_name(chart, mark)}: {short(_amount(mark, chart))}"
        cells.append(Bar(mark.size, _level(mark.value, low, high), area, tip))
    names: list[Part] = []
    for number, name in enumerate(chart.series):
        text = fitted(name, width - 6)
        full = short(name) if text != name else ""
        x = rows.left + (number + 0.5) * width
        names.append(Words(x, rows.top - 6, text, "tick", "middle", full))
    key = _key(chart, low, high, top, unknown=len(values) < len(marks))
    parts = (*key, *names, *row_names(chart, rows), *areas(cells))
    return Drawing(parts, rows.bottom + 4)


_AMOUNT = ("row", "series", "value")
KINDS = (
    Kind("gantt", ("row", "series", "start", "end"), "Bars on one time axis", gantt),
    Kind("bars", _AMOUNT, "Bars of amounts", bars, is_placed=lambda _: True),
    Kind("heatmap", ("row", "start", "end", "value"), "Coloured cells", heatmap, sample=""),
    Kind("matrix", _AMOUNT, "Coloured cells, the darker the larger", matrix, "", lambda _: True),
)


def framed(chart: Chart, rows: Rows, axis: Axis, parts: Sequence[Part]) -> Drawing:
    """Frame a plot of rows with row names and an axis below."""
    grid = axis_below(axis, rows.left, rows.width, rows.top, rows.bottom)
    return Drawing((*row_names(chart, rows), *grid, *parts), rows.bottom + AXIS)


def rows_of(chart: Chart, top: float, pitch: float, room: float = 12, names: float = 210) -> Rows:
    """Lay out rows at this pitch, or closer if they would exceed a screen; names get at most this width."""
    pitch = min(pitch, max(760 / len(chart.rows), 3))
    longest = max(breadth(fitted(name, names)) for name in chart.rows)
    left = max(longest, 24) + 10
    return Rows(left, WIDTH - left - room, top, pitch, chart.rows)


def row_names(chart: Chart, rows: Rows) -> list[Part]:
    """Draw the name of each row, or of every n-th if they would overlap, with a link target."""
    interval = max(1, -(-(FONT + 1) // int(max(rows.pitch, 1))))
    parts: list[Part] = []
    for row, name in enumerate(rows.names):
        y = rows.y(row)
        words = None
        if row % interval == 0:
            text = fitted(name, rows.left - 10)
            full = short(name) if text != name else ""
            words = Words(rows.left - 8, y + rows.pitch / 2 + 4, text, anchor="end", tip=full)
        parts.append(Row(row_id(chart, row), y, rows.pitch, words))
    return parts


def lanes_of(marks: Sequence[Mark]) -> list[int]:
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


def stacked(marks: Sequence[Mark]) -> list[tuple[Fraction, Fraction] | None]:
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


def _scale(chart: Chart, values: Sequence[Fraction]) -> tuple[Fraction, Fraction]:
    """Get the smallest and largest value of the cell tones; ratios extend to 1."""
    low, high = min(values, default=Fraction(0)), max(values, default=Fraction(0))
    low = min(low, Fraction(0))
    if chart.unit == "ratio" and high <= 1:
        high = max(high, Fraction(1))
    return low, high


def _level(value: Fraction | None, low: Fraction, high: Fraction) -> str:
    """Get the role of a cell: `l0` to `l8`, or `unknown`."""
    if value is None:
        return "unknown"
    if low == high:
        return "l0"
    return f"l{min(int((value - low) / (high - low) * LEVELS), LEVELS - 1)}"


def _key(chart: Chart, low: Fraction, high: Fraction, top: float, *, unknown: bool) -> list[Part]:
    """Draw the scale of cell tones from the smallest to the largest value."""
    lowest = printable(show(plain(low), chart.unit), _END)
    highest = printable(show(plain(high), chart.unit), _END)
    x, y = breadth(lowest) + 6, top + 12
    samples = tuple(
        Area(f"l{level}", (box(x + level * 18, top + 2, 18, 12, 0),)) for level in range(LEVELS)
    )
    x += LEVELS * 18 + 6
    parts: list[Part] = [Words(0, y, short(lowest)), Key(samples, Words(x, y, short(highest)))]
    if unknown:
        x += breadth(highest) + 20
        sample = Area("unknown", (box(x, top + 2, 18, 12),))
        parts.append(Key((sample,), Words(x + 24, y, "unknown")))
    return parts


def _within(name: str, x: float, width: float, y: float, role: str) -> list[Words]:
    """Make the text in a bar if it fits."""
    text = short(name)
    if width < 18 or breadth(text) + 8 > width:
        return []
    return [Words(x + width / 2, y, text, role, "middle")]


def _amount(mark: Mark, chart: Chart) -> str:
    """Format the value of a mark."""
    return UNKNOWN if mark.value is None else show(plain(mark.value), chart.unit)


def _name(chart: Chart, mark: Mark) -> str:
    """Name a mark by its row, and its series if there are several."""
    row = short(chart.rows[mark.row])
    return f"{row} · {short(chart.series[mark.series])}" if len(chart.series) > 1 else row


def _when(chart: Chart, mark: Mark, name: str) -> str:
    """Describe a bar on the time axis for its tooltip."""
    size = short(show(plain(mark.size), chart.x_unit))
    start = short(_place(chart, mark.place))
    return f"{short(chart.rows[mark.row])} · {short(name)}: {size}, from {start}"


def _place(chart: Chart, value: Fraction) -> str:
    """Format a position on the axis."""
    return show(plain(value), chart.x_unit, figures=4)
