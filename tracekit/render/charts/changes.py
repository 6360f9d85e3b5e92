"""Pictures of a change: factors with their intervals, the single values of runs, and a waterfall."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tracekit.model.report import Chart
from tracekit.model.units import MINUS, show
from tracekit.render.charts.axis import Axis, axis
from tracekit.render.charts.frame import Drawing, below, box, glyph, shapes
from tracekit.render.charts.log import LogAxis, log_axis
from tracekit.render.charts.marks import Mark, numbers, plain
from tracekit.render.charts.rows import AXIS, Rows, row_names, rows_of, word
from tracekit.render.charts.text import number, text

_ROOMY = 14
_BESIDE = 170


def intervals(chart: Chart, found: Sequence[Mark], of: Sequence[str], top: float) -> Drawing:
    """A point a factor on a whisker of its interval; an arrow where the interval goes on."""
    rows = rows_of(chart, top, 24, _BESIDE)
    across = log_axis(found, chart.within)
    one = rows.left + across.at(Fraction(1)) * rows.width
    parts = row_names(chart, rows)
    if chart.within > 0:
        share = 1 + Fraction(chart.within)
        low, high = (rows.left + across.at(at) * rows.width for at in (1 / share, share))
        parts.append(
            f'<path class="within" d="{box(low, rows.top, high - low, rows.bottom - rows.top, 0)}">'
            f"<title>within {text(show(chart.within, 'ratio'))} of 1</title></path>\n"
        )
    parts += below(across.linear(), rows.left, rows.width, rows.top, rows.bottom)
    parts.append(
        f'<path class="base" d="M{number(one)} {number(rows.top)}V{number(rows.bottom)}"/>\n'
    )
    for mark in found:
        assert mark.value is not None
        y = rows.top + (mark.row + 0.5) * rows.pitch
        tone, words = of[mark.series], factor_words(mark)
        x = rows.left + across.at(mark.value) * rows.width
        tip = f"{text(chart.rows[mark.row])}: {text(words)}, {text(chart.series[mark.series])}"
        parts.append(f"<g><title>{tip}</title>{_whisker(mark, across, rows, y, tone)}")
        size = min(5.0, rows.pitch / 2.6)
        parts.append(f'<path class="glyph {tone}" d="{glyph(mark.series, x, y, size)}"/></g>\n')
        if rows.pitch >= _ROOMY:
            parts.append(word(rows.left + rows.width + 10, y + 4, "start", "value", words))
    return Drawing(tuple(parts), rows.bottom + AXIS)


def factor_words(mark: Mark) -> str:
    """The factor with its interval as `1.62× [1.43, 1.83]`."""
    assert mark.value is not None
    mid = _factor(mark.value)
    if mark.start is None or mark.end is None:
        return f"{mid}, no interval"
    low, high = (_factor(at).removesuffix("×") for at in (mark.start, mark.end))
    return f"{mid} [{low}, {high}]"


def _factor(value: Fraction) -> str:
    """The factor with its figures, also where it happens to be whole."""
    number = plain(value)
    return show(float(number) if abs(number) < 2**53 else number, "factor")


def whisker_ends(mark: Mark, across: LogAxis) -> tuple[float, float, bool, bool] | None:
    """(from, to, goes on below, goes on above) of an interval along the axis; None where there is none."""
    if mark.start is None or mark.end is None or mark.end <= 0 or mark.start > mark.end:
        return None
    low = across.at(mark.start) if mark.start > 0 else -1.0
    high = across.at(mark.end)
    if high < 0 or low > 1:
        return None
    return max(low, 0.0), min(high, 1.0), low < 0, high > 1


def _whisker(mark: Mark, across: LogAxis, rows: Rows, y: float, tone: str) -> str:
    """The interval as a line with ends, or with arrows where it goes beyond the picture."""
    ends = whisker_ends(mark, across)
    if ends is None:
        return ""
    low, high, below_, above = ends
    left, right = (rows.left + at * rows.width for at in (low, high))
    path = f"M{number(left)} {number(y)}H{number(right)}"
    for x, goes_on, by in ((left, below_, 6), (right, above, -6)):
        if goes_on:
            path += f"M{number(x + by)} {number(y - 4)}L{number(x)} {number(y)}l{number(by)} 4"
        else:
            path += f"M{number(x)} {number(y - 4)}v8"
    return f'<path class="whisker line {tone}" d="{path}"/>'


def strips(chart: Chart, found: Sequence[Mark], of: Sequence[str], top: float) -> Drawing:
    """A dot a value, hollow where it does not count, and a line at the mean of those that do."""
    rows = rows_of(chart, top, 24, 24)
    across = axis(numbers(found)[0], chart.x_unit, wide=True)
    parts = [*row_names(chart, rows), *below(across, rows.left, rows.width, rows.top, rows.bottom)]
    for row, mean in means(found).items():
        x, y = rows.x(across, mean), rows.top + row * rows.pitch
        tip = f"{text(chart.rows[row])}: mean {text(show(plain(mean), chart.x_unit, figures=4))}"
        parts.append(
            f'<path class="base" d="M{number(x)} {number(y + 2)}v{number(rows.pitch - 4)}">'
            f"<title>{tip}</title></path>\n"
        )
    size = min(4.5, rows.pitch / 2.6)
    for mark in found:
        assert mark.start is not None
        x, y = rows.x(across, mark.start), rows.top + (mark.row + 0.5) * rows.pitch
        hollow = "" if mark.value else " hollow"
        path = glyph(mark.series, x, y, size)
        tip = f"{text(chart.rows[mark.row])}{text(_numbered(mark))}: {text(_shown(mark.start, chart))}"
        tip += "" if mark.value else ", does not count"
        parts.append(
            f'<path class="glyph{hollow} {of[mark.series]}" d="{path}"><title>{tip}</title></path>\n'
        )
    return Drawing(tuple(parts), rows.bottom + AXIS)


def means(found: Sequence[Mark]) -> dict[int, Fraction]:
    """The mean of what counts in each row that has any."""
    rows: dict[int, list[Fraction]] = {}
    for mark in found:
        if mark.value and mark.start is not None:
            rows.setdefault(mark.row, []).append(mark.start)
    return {row: sum(places, Fraction(0)) / len(places) for row, places in rows.items()}


def waterfall(chart: Chart, found: Sequence[Mark], of: Sequence[str], top: float) -> Drawing:
    """Bars from where the last one ended, with thin lines between them and the change beside each."""
    rows = rows_of(chart, top, 24, 96, names=330)
    across = waterfall_axis(chart, found)
    boxes, words, links = [], [], []
    for mark in found:
        assert mark.start is not None
        assert mark.end is not None
        low, high = sorted((mark.start, mark.end))
        x, end = (rows.left + max(across.at(at), 0.0) * rows.width for at in (low, high))
        y = rows.top + mark.row * rows.pitch
        value = change_words(mark, chart)
        tip = f"{text(chart.rows[mark.row])}: {text(value)}"
        path = box(x, y + rows.pitch * 0.14, end - x, rows.pitch * 0.72, 0)
        boxes.append((mark, of[mark.series], path, tip))
        if rows.pitch >= _ROOMY:
            words.append(word(end + 6, y + rows.pitch / 2 + 4, "start", "value", value))
        if mark.row + 1 < len(rows.names):
            at = rows.left + across.at(mark.end) * rows.width
            links.append(
                f"M{number(at)} {number(y + rows.pitch * 0.86)}v{number(rows.pitch * 0.28)}"
            )
    parts = [*row_names(chart, rows), *below(across, rows.left, rows.width, rows.top, rows.bottom)]
    link = f'<path class="base" d="{"".join(links)}"/>\n' if links else ""
    return Drawing((*parts, *shapes(boxes), link, *words), rows.bottom + AXIS)


def waterfall_axis(chart: Chart, found: Sequence[Mark]) -> Axis:
    """The axis of all ends, from 0 unless that would hide the changes."""
    ends = [at for mark in found for at in (mark.start, mark.end) if at]
    return axis(ends, chart.x_unit, zero=True, wide=True)


def change_words(mark: Mark, chart: Chart) -> str:
    """The change with its sign, or the amount where the bar starts at 0."""
    assert mark.start is not None
    assert mark.end is not None
    if not mark.start:
        return show(plain(mark.end), chart.x_unit)
    size = show(plain(mark.size), chart.x_unit)
    return f"{MINUS if mark.end < mark.start else '+' if mark.end > mark.start else ''}{size}"


def _numbered(mark: Mark) -> str:
    """The number that names a dot, after its row."""
    return "" if mark.label is None else f" · {show(plain(mark.label), 'id')}"


def _shown(value: Fraction, chart: Chart) -> str:
    return show(plain(value), chart.x_unit, figures=4)
