"""Report as a self-contained HTML page: no network, readable without scripts, at most 5 MB.

The page uses autoescaped templates over the same phrases and grids as text and Markdown. Its content
security policy names the two inlined files by hash, so text from a profile cannot run or load anything.
"""

from __future__ import annotations

from base64 import b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from hashlib import sha256
from itertools import accumulate, chain
from math import isfinite
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.report import Cell, Chart, Finding, Metric, Place, Report, Section, Sheet
from tracekit.model.units import UNKNOWN, show
from tracekit.render import phrases
from tracekit.render.charts import bounded, draw, row_id, stage_tones
from tracekit.render.charts.text import LONGEST_ID, slug
from tracekit.render.escape import printable
from tracekit.render.grid import NAME_LIMIT, Column, Grid, grid
from tracekit.render.options import Options
from tracekit.render.ranks import few_rows
from tracekit.render.words import explained

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

LIMIT = 5_000_000
"""Largest page in bytes: accepted by mail and chat, and opened at once by browsers."""

RANKED_ROWS = 100
"""Number of ranks in a table above which similar ranks share a row."""

_FIRST_CARDS = 8
_PICTURES = 2_000_000
_MOST_BITS = 4_096
_ITEMS = 400
_ITEMS_OF_A_FINDING = 20
_TITLE_LIMIT = 1_000
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class ShownCell:
    """One cell: its text, the exact number, the full name if it was shortened, the bar of a ratio."""

    text: str
    raw: str = ""
    full: str = ""
    bar: str = ""


@dataclass(frozen=True, slots=True)
class ShownSheet:
    """One table of the page."""

    id: str
    grid: Grid
    rows: Iterator[list[ShownCell]]
    note: str


@dataclass(frozen=True, slots=True)
class Picture:
    """One chart of the page; without `svg` the note says why."""

    id: str
    title: str
    svg: Markup
    note: str
    chart: Chart


def render_html(report: Report, _options: Options) -> str:
    """Render the page; if it would be too large, the largest tables lose rows first, with a note."""
    report = _few_ranks(report)
    pictures = _pictures(report)
    svg_size = sum(map(len, map(attrgetter("svg"), chain.from_iterable(pictures))))
    rows, items = _fitting_rows(report, LIMIT * 17 // 20 - svg_size), _ITEMS
    while True:
        page = _page(report, pictures, rows, items)
        size = len(page.encode("utf-8"))
        if size <= LIMIT:
            return page
        if rows >= 5:
            rows = rows * LIMIT * 9 // (size * 10)
        else:
            items = items * LIMIT * 9 // (size * 10)


def _few_ranks(report: Report) -> Report:
    """Merge the rows of each table with more than `RANKED_ROWS` ranks."""
    sections = []
    for section in report.sections:
        sheets = tuple(few_rows(sheet, RANKED_ROWS) for sheet in section.sheets)
        sections.append(replace(section, sheets=sheets))
    return replace(report, sections=tuple(sections))


def _page(report: Report, pictures: list[list[Picture]], rows: int, items: int) -> str:
    """Render the page with at most `rows` rows per table, and `items` items in any other list."""
    short, dropped = _trimmed(report, items)
    style, script = map(_inlined, ("report.css", "report.js"))
    findings = short.findings
    numbers = {id(finding): number for number, finding in enumerate(findings, 1)}
    ids = _unique_ids()
    section_ids = [ids(f"section-{section.id}") for section in short.sections]
    homes: dict[int, int] = {}
    for index, section in enumerate(short.sections):
        homes.update(dict.fromkeys(map(id, section.findings), index))

    def section_of(finding: Finding) -> tuple[str, str]:
        index = homes[id(finding)]
        return section_ids[index], short.sections[index].title or short.sections[index].id

    def link_of(finding: Finding, place: Place) -> str:
        nearest = pictures[homes[id(finding)]]
        return _row_link(place, chain(nearest, chain.from_iterable(pictures)))

    return _template().render(
        report=short,
        words=phrases,
        printable=printable,
        explained=explained,
        show=show,
        style=style,
        script=script,
        policy=_policy(style, script),
        ranked=list(zip(findings, phrases.recoverable(findings), strict=True)),
        unproven=phrases.unproven(short, findings),
        amounts_of=lambda parts: list(zip(parts, phrases.recoverable(parts), strict=True)),
        number_of=lambda finding: numbers[id(finding)],
        sheet_of=lambda sheet: _shown_sheet(sheet, rows, ids(f"table-{sheet.name}")),
        section_ids=section_ids,
        section_of=section_of,
        link_of=link_of,
        pictures=pictures,
        share_of=_share_of,
        unjudged=_unjudged,
        first_cards=_FIRST_CARDS,
        dropped=dropped,
    )


@cache
def _template() -> Template:
    """Load the page's template; an unknown name in it is an error, never an empty string."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES, encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("report.html.j2")


def _inlined(name: str) -> str:
    """Read a template file as markup, to be inlined unescaped."""
    from markupsafe import Markup

    # A file of this package without values from a report: there is nothing to escape.
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))  # noqa: S704


def _policy(style: str, script: str) -> str:
    """Make the content security policy, which allows only these two inlined texts."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    """Compute the hash by which browsers recognize an inlined text."""
    return f"sha256-{b64encode(sha256(text.encode('utf-8')).digest()).decode()}"


def _shown_sheet(sheet: Sheet, limit: int, id_: str) -> ShownSheet:
    """Make a table with the bars and full names for the text of its grid."""
    table = grid(sheet, limit)
    where = "cut to keep this page under 5 MB, all are in the JSON and CSV reports"
    note = phrases.rows_left(len(table.rows), table.more, table.omitted, where)
    rows = (
        list(map(_shown_cell, row, texts, table.columns))
        for row, texts in zip(sheet.rows, table.rows, strict=False)
    )
    return ShownSheet(id_, table, rows, note)


def _shown_cell(value: Cell, text: str, column: Column) -> ShownCell:
    """Make a cell with the details that its text lacks."""
    if isinstance(value, str):
        if len(text) < NAME_LIMIT:
            return ShownCell(text)
        return ShownCell(text, full=printable(value, _TITLE_LIMIT))
    if not column.numeric:
        return ShownCell(text)
    if column.unit == "ratio" and value is not None and text != UNKNOWN:
        return ShownCell(text, _raw(value), bar=_width(value))
    return ShownCell(text, _raw(value))


def _raw(value: Cell) -> str:
    """Format a number for sorting by script; empty if unknown.

    Integers are exact. Floats have eight digits, because the last ones vary with the processor and scipy.
    """
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return ""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return ""
    if isinstance(value, float):
        return f"{value:.8g}"
    return str(int(value))


def _width(ratio: float) -> str:
    """Compute the width of a ratio's bar to a thousandth, which is finer than a screen."""
    return f"{min(max(ratio, 0), 1) * 100:.1f}"


def _share_of(metric: Metric) -> str:
    """Compute the width of the bar under a metric, if it is a ratio."""
    if metric.unit != "ratio" or metric.value is None or not _raw(metric.value):
        return ""
    return _width(metric.value)


def _pictures(report: Report) -> list[list[Picture]]:
    """Draw the charts of each section: at most 2 MB in total, and 400 per section."""
    ids, left = _unique_ids(), _PICTURES
    tones = stage_tones(chain.from_iterable(section.charts for section in report.sections))
    pictures: list[list[Picture]] = []
    for section in report.sections:
        pictures.append([])
        for chart in section.charts[:_ITEMS]:
            picture = _picture(chart, ids(slug(chart.id)), tones, left)
            left -= len(picture.svg)
            pictures[-1].append(picture)
    return pictures


def _picture(chart: Chart, name: str, tones: dict[str, str], room: int) -> Picture:
    """Draw a chart within `room` bytes; a TracekitError becomes a note on the page."""
    from markupsafe import Markup

    few = bounded(replace(chart, id=name))
    notes = [printable(chart.caption, 2_000)]
    svg = Markup("")
    try:
        # `draw` escapes every text.
        svg = Markup(draw(few, tones))  # noqa: S704
    except TracekitError as error:
        notes.append(f"Not drawn: {printable(str(error), phrases.SENTENCE)}.")
    if len(svg.encode("utf-8")) > room:
        svg = Markup("")
        notes.append("Not drawn, to keep this page under 5 MB; the JSON report has its numbers.")
    elif few.omitted:
        notes.append(f"{show(few.omitted, 'count')} smaller marks or further rows are not drawn.")
    title = printable(chart.title or chart.id, 300)
    return Picture(f"chart-{name}", title, svg, " ".join(filter(None, notes)), few)


def _row_link(place: Place, pictures: Iterable[Picture]) -> str:
    """Find the id of the first timeline row that shows the place; empty if there is none."""
    for picture in pictures:
        chart = picture.chart
        if not picture.svg or _is_elsewhere(chart, place):
            continue
        row = chart.ranks.index(place.rank)
        owner, owners = (place.rank, place.role), list(zip(chart.ranks, chart.roles, strict=True))
        if place.role and owner in owners:
            row = owners.index(owner)
        return row_id(chart, row)
    return ""


def _is_elsewhere(chart: Chart, place: Place) -> bool:
    """Check whether a chart lacks the rank of a place, or is of another run or step."""
    if place.rank is None or place.rank not in chart.ranks:
        return True
    is_other_run = None not in (chart.run, place.run) and chart.run != place.run
    is_other_step = None not in (chart.step, place.step) and chart.step != place.step
    return is_other_run or is_other_step


def _unjudged(section: Section) -> list[tuple[str, str]]:
    """List the rules of a section that abstain, with the first reason and the number of further ones."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for verdict in section.verdicts:
        if verdict.answer in ("failed", "not applicable", "insufficient data"):
            reasons.setdefault((verdict.rule, verdict.answer), []).append(verdict.reason)
    unjudged = []
    for (rule, answer), (first, *further) in reasons.items():
        reason = f": {printable(first, phrases.SENTENCE)}" if first else ""
        more = f"; and {show(len(further), 'count')} more" if further else ""
        unjudged.append((printable(rule, 60), f"{answer}{reason}{more}"))
    return unjudged


def _unique_ids() -> Callable[[str], str]:
    """Make a function that turns names into valid ids, each unique on the page."""
    ids: set[str] = set()

    def unique(name: str) -> str:
        id_, number = slug(name), 1
        while id_ in ids:
            number += 1
            # Cut the name and keep the number, so that another `slug` leaves the id unchanged.
            end = f"-{number}"
            id_ = slug(slug(name)[: LONGEST_ID - len(end)] + end)
        ids.add(id_)
        return id_

    return unique


def _fitting_rows(report: Report, budget: int) -> int:
    """Estimate the largest number of rows per table with which all tables fit into a budget of bytes."""
    sheets = [sheet for _, sheet in phrases.every_sheet(report) if sheet is not report.values]
    limit = budget // 40
    costs = [list(accumulate(map(_row_cost, sheet.rows[:limit]), initial=0)) for sheet in sheets]

    def cost_of(rows: int) -> int:
        return sum(cost[min(rows, len(cost) - 1)] for cost in costs)

    most = max(map(len, costs), default=0)
    return max(bisect_right(range(most + 1), budget, key=cost_of) - 1, 0)


def _row_cost(row: tuple[Cell, ...]) -> int:
    """Estimate the bytes of a row in the page."""
    return 20 + sum(120 if isinstance(v, float) else 55 + len(str(v)[:_TITLE_LIMIT]) for v in row)


def _trimmed(report: Report, items: int) -> tuple[Report, int]:
    """Trim every list except table rows to `items`, and count the items removed."""
    dropped = 0

    def cut(value: Any, limit: int = items) -> Any:
        nonlocal dropped
        if isinstance(value, tuple):
            dropped += max(len(value) - limit, 0)
            return tuple(cut(item) if is_dataclass(item) else item for item in value[:limit])
        if isinstance(value, Sheet):
            dropped += max(len(value.headings) - items, 0)
            rows = value.rows
            if len(value.headings) > items:
                rows = tuple(row[:items] for row in rows)
            return replace(value, headings=value.headings[:items], rows=rows)
        if isinstance(value, Chart):
            return value
        if is_dataclass(value) and not isinstance(value, type):
            limit = min(items, _ITEMS_OF_A_FINDING) if isinstance(value, Finding) else items
            parts = {field.name: cut(getattr(value, field.name), limit) for field in fields(value)}
            return replace(value, **parts)
        return value

    return cut(replace(report, values=None)), dropped
