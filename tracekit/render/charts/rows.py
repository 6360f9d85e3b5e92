"""Pictures of rows: a time line for each (gantt), an amount for each (bars), or cells (heatmap)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from tracekit.model.report import Chart
from tracekit.model.units import UNKNOWN, show
from tracekit.render.charts.axis import Axis, axis
from tracekit.render.charts.frame import WIDTH, Drawing, below, box, on, shapes
from tracekit.render.charts.marks import Mark, numbers, plain
from tracekit.render.charts.text import FONT, TITLE, breadth, fitted, number, slug, text
from tracekit.render.escape import printable

LEVELS = 9
"""How many tones a heatmap has: more could not be told apart."""

_LANES = 4
AXIS = 28
_ROOMY = 16


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows of a picture lie: the plot begins at `left` and `top`, a row is `pitch` high."""

    left: float
    width: float
    top: float
    pitch: float
    names: tuple[str, ...]

    @property
    def bottom(self) -> float:
        """Where the last row ends."""
        return self.top + self.pitch * len(self.names)

    def x(self, at: Axis, value: Fraction) -> float:
        """Where a value lies across the plot."""
        return self.left + at.at(value) * self.width


def row_id(chart: Chart, row: int) -> str:
    """The id of a row in the picture, so that a link can lead to it; no name makes it another's id."""
    return f"chart-{slug(chart.id)}--row-{row}"


def gantt(chart: Chart, found: Sequence[Mark], of: Sequence[str], top: float) -> Drawing:
    """Bars on one time axis, a row each; bars that overlap within a row lie in lanes below one another."""
    lanes = lanes_of(found)
    most = max(lanes) + 1
    rows = rows_of(chart, top, 22 if most == 1 else 14 * most + 6)
    places, _ = numbers(found)
    time = axis(places, chart.x_unit)
    height = (rows.pitch - (4 if rows.pitch > 10 else 1)) / most
    boxes, words = [], []
    for mark, lane in zip(found, lanes, strict=True):
        assert mark.start is not None
        assert mark.end is not None
        x, end = rows.x(time, mark.start), rows.x(time, mark.end)
        y = rows.top + mark.row * rows.pitch + 2 + lane * height
        name, tone = chart.series[mark.series], of[mark.series]
        boxes.append((mark, tone, box(x, y, end - x, height - 1), _when(chart, mark, name)))
        if height >= FONT + 1:
            words += _within(name, x, end - x, y + height / 2 + 3.5, on(tone))
    parts = [*row_names(chart, rows), *below(time, rows.left, rows.width, rows.top, rows.bottom)]
    return Drawing((*parts, *shapes(boxes), *words), rows.bottom + AXIS)


def bars(chart: Chart, found: Sequence[Mark], of: Sequence[str], top: float) -> Drawing:
    """Amounts as stacked bars, one a row; what is below zero is stacked to the left of it."""
    room = 84 if len(chart.series) == 1 else 12
    rows = rows_of(chart, top, 24, room)
    ends = stacked(found)
    amounts = axis([end for pair in ends if pair for end in pair], chart.unit, zero=True)
    boxes, words = [], []
    for mark, pair in zip(found, ends, strict=True):
        middle = rows.top + (mark.row + 0.5) * rows.pitch
        value = UNKNOWN if mark.value is None else show(plain(mark.value), chart.unit)
        x, end = sorted(rows.x(amounts, at) for at in pair or (Fraction(0), Fraction(0)))
        if mark.value:
            thick = rows.pitch * 0.72
            tip = f"{_name(chart, mark)}: {text(value)}"
            boxes.append((mark, of[mark.series], box(x, middle - thick / 2, end - x, thick), tip))
        if rows.pitch < _ROOMY:
            continue
        if len(chart.series) == 1 or not pair:
            words.append(word(end + 6, middle + 4, "start", "value", value))
        elif pair:
            words += _within(value, x, end - x, middle + 4, on(of[mark.series]))
    parts = [
        *row_names(chart, rows),
        *below(amounts, rows.left, rows.width, rows.top, rows.bottom),
    ]
    return Drawing((*parts, *shapes(boxes), *words), rows.bottom + AXIS)


def heatmap(chart: Chart, found: Sequence[Mark], _of: Sequence[str], top: float) -> Drawing:
    """Cells by row and interval, the darker the larger; unknown ones are outlined."""
    rows = rows_of(chart, top + 24, 22)
    places, values = numbers(found)
    across = axis(places, chart.x_unit)
    low, high = min(values, default=Fraction(0)), max(values, default=Fraction(0))
    if low >= 0:
        low = Fraction(0)
    if chart.unit == "ratio" and high <= 1:
        high = max(high, Fraction(1))
    boxes = []
    for mark in found:
        assert mark.start is not None
        assert mark.end is not None
        x, end = rows.x(across, mark.start), rows.x(across, mark.end)
        y = rows.top + mark.row * rows.pitch
        path = box(x, y, end - x, rows.pitch - (1 if rows.pitch > 4 else 0), 0)
        value = UNKNOWN if mark.value is None else show(plain(mark.value), chart.unit)
        between = f"{_at(chart, mark.start)} – {_at(chart, mark.end)}"
        tip = f"{text(chart.rows[mark.row])}, {text(between)}: {text(value)}"
        boxes.append((mark, _level(mark.value, low, high), path, tip))
    unknown = len(values) < len(found)
    parts = [
        *_key(chart, low, high, top, unknown=unknown),
        *row_names(chart, rows),
        *below(across, rows.left, rows.width, rows.top, rows.bottom),
    ]
    return Drawing((*parts, *shapes(boxes)), rows.bottom + AXIS)


def rows_of(chart: Chart, top: float, pitch: float, room: float = 12, names: float = 210) -> Rows:
    """The rows at this pitch, or closer where they would fill more than a screen; names have so much room."""
    count = len(chart.rows)
    pitch = min(pitch, max(760 / count, 3))
    longest = max((breadth(fitted(name, names)) for name in chart.rows), default=0)
    left = max(longest, 24) + 10
    return Rows(left, WIDTH - left - room, top, pitch, chart.rows)


def row_names(chart: Chart, rows: Rows) -> list[str]:
    """The name before each row, or of every so many where they would overlap, and a place to link to."""
    every = max(1, -(-(FONT + 1) // int(max(rows.pitch, 1))))
    parts = []
    for at, name in enumerate(rows.names):
        y = rows.top + at * rows.pitch
        shown = fitted(name, rows.left - 10)
        parts.append(
            f'<g class="row" id="{row_id(chart, at)}"><rect x="0" y="{number(y)}" '
            f'width="{WIDTH}" height="{number(rows.pitch)}"/>'
        )
        if at % every == 0:
            whole = f"<title>{text(name)}</title>" if shown != name else ""
            parts.append(
                f'<text x="{number(rows.left - 8)}" y="{number(y + rows.pitch / 2 + 4)}" '
                f'text-anchor="end">{text(shown)}{whole}</text>'
            )
        parts.append("</g>\n")
    return parts


def lanes_of(found: Sequence[Mark]) -> list[int]:
    """The lane of each mark, the first of its row that is free when it starts; at most four."""
    lanes = [0] * len(found)
    free: dict[int, list[Fraction]] = {}
    order = sorted(range(len(found)), key=lambda at: (found[at].start, -found[at].size, at))
    for at in order:
        mark = found[at]
        assert mark.start is not None
        assert mark.end is not None
        ends = free.setdefault(mark.row, [])
        lane = next((lane for lane, end in enumerate(ends) if end <= mark.start), len(ends))
        lane = min(lane, _LANES - 1)
        if lane == len(ends):
            ends.append(mark.end)
        ends[lane] = max(ends[lane], mark.end)
        lanes[at] = lane
    return lanes


def stacked(found: Sequence[Mark]) -> list[tuple[Fraction, Fraction] | None]:
    """From where to where each amount reaches; None where it is unknown."""
    reached: dict[tuple[int, bool], Fraction] = {}
    ends: list[tuple[Fraction, Fraction] | None] = []
    for mark in found:
        if mark.value is None:
            ends.append(None)
            continue
        side = (mark.row, mark.value < 0)
        start = reached.get(side, Fraction(0))
        reached[side] = start + mark.value
        ends.append((start, start + mark.value))
    return ends


def _level(value: Fraction | None, low: Fraction, high: Fraction) -> str:
    """The class of a cell: `l0` to `l8`, or `unknown`."""
    if value is None:
        return "unknown"
    if low == high:
        return "l0"
    return f"l{min(int((value - low) / (high - low) * LEVELS), LEVELS - 1)}"


_END = 40
"""Most characters of a number at an end of the scale: beyond that it is no measurement."""


def _key(chart: Chart, low: Fraction, high: Fraction, top: float, *, unknown: bool) -> list[str]:
    """What the tones of the cells mean: the scale from the least to the largest value."""
    least = printable(show(plain(low), chart.unit), _END)
    x, y = breadth(least) + 6, top + 12
    parts = [f'<text x="0" y="{number(y)}">{text(least)}</text>\n']
    boxes = (box(x + level * 18, top + 2, 18, 12, 0) for level in range(LEVELS))
    parts += [f'<path class="l{level}" d="{path}"/>' for level, path in enumerate(boxes)]
    x += LEVELS * 18 + 6
    most = printable(show(plain(high), chart.unit), _END)
    parts.append(f'<text x="{number(x)}" y="{number(y)}">{text(most)}</text>\n')
    if unknown:
        x += breadth(most) + 20
        parts.append(f'<path class="unknown" d="{box(x, top + 2, 18, 12)}"/>')
        parts.append(f'<text x="{number(x + 24)}" y="{number(y)}">unknown</text>\n')
    return parts


def _within(name: str, x: float, width: float, y: float, tone: str) -> list[str]:
    """The words in a bar, where there is room for all of them."""
    shown = printable(name, TITLE)
    if width < 18 or breadth(shown) + 8 > width:
        return []
    return [word(x + width / 2, y, "middle", tone, shown)]


def word(x: float, y: float, anchor: str, tone: str, words: str) -> str:
    """Words beside or in a bar."""
    return f'<text class="{tone}" x="{number(x)}" y="{number(y)}" text-anchor="{anchor}">{text(words)}</text>\n'


def _name(chart: Chart, mark: Mark) -> str:
    """The row and the series of a mark, escaped; the series only where there are several."""
    row = text(chart.rows[mark.row])
    return f"{row} · {text(chart.series[mark.series])}" if len(chart.series) > 1 else row


def _when(chart: Chart, mark: Mark, name: str) -> str:
    """The tooltip of a bar on the time axis, escaped."""
    assert mark.start is not None
    row = text(chart.rows[mark.row])
    size = text(show(plain(mark.size), chart.x_unit))
    return f"{row} · {text(name)}: {size}, from {text(_at(chart, mark.start))}"


def _at(chart: Chart, value: Fraction) -> str:
    """A place on the axis as words."""
    return show(plain(value), chart.x_unit, figures=4)
