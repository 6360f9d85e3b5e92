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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.report import Cell, Chart, Finding, Metric, Place, Report, Section, Sheet
from tracekit.model.units import UNKNOWN, format_quantity
from tracekit.render import phrases
from tracekit.render.charts.kinds import assign_stage_tones, limit_chart
from tracekit.render.charts.rows import make_row_id
from tracekit.render.charts.svg import draw_svg_chart
from tracekit.render.charts.text import LONGEST_ID, make_slug
from tracekit.render.escape import make_printable
from tracekit.render.explorer.comparison.report import write_packed_comparison
from tracekit.render.grid import NAME_LIMIT, GridColumn, TextGrid, make_grid
from tracekit.render.options import RenderOptions
from tracekit.render.ranks import merge_similar_ranks
from tracekit.render.words import explain_jargon

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

MAX_PAGE_BYTES = 5_000_000
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
class HtmlCell:
    """One cell: its text, the exact number, the full name if it was shortened, the bar of a ratio."""

    text: str
    raw: str = ""
    full: str = ""
    bar: str = ""


@dataclass(frozen=True, slots=True)
class HtmlSheet:
    """One table of the page."""

    id: str
    grid: TextGrid
    rows: Iterator[list[HtmlCell]]
    note: str


@dataclass(frozen=True, slots=True)
class HtmlChart:
    """One chart of the page; without `svg` the note says why."""

    id: str
    title: str
    svg: Markup
    note: str
    chart: Chart


def render_html(report: Report, _options: RenderOptions) -> str:
    """Render the page; if it would be too large, the largest tables lose rows first, with a note."""
    if report.timeline is not None and report.timeline.sides:
        return write_packed_comparison(report)
    report = _merge_report_ranks(report)
    pictures = _draw_report_charts(report)
    svg_size = sum(len(chart.svg) for chart in chain.from_iterable(pictures))
    rows, items = _estimate_row_limit(report, MAX_PAGE_BYTES * 17 // 20 - svg_size), _ITEMS
    while True:
        page = _render_page(report, pictures, rows, items)
        size = len(page.encode("utf-8"))
        if size <= MAX_PAGE_BYTES:
            return page
        if rows >= 5:
            rows = rows * MAX_PAGE_BYTES * 9 // (size * 10)
        else:
            items = items * MAX_PAGE_BYTES * 9 // (size * 10)


def _merge_report_ranks(report: Report) -> Report:
    """Merge the rows of each table with more than `RANKED_ROWS` ranks."""
    sections = (
        replace(section, sheets=tuple(merge_similar_ranks(sheet, RANKED_ROWS) for sheet in section.sheets))
        for section in report.sections
    )
    return replace(report, sections=tuple(sections))


def _render_page(report: Report, pictures: list[list[HtmlChart]], rows: int, items: int) -> str:
    """Render the page with at most `rows` rows per table, and `items` items in any other list."""
    short, dropped = _trim_report(report, items)
    style, script = (_read_inlined_file(name) for name in ("report.css", "report.js"))
    findings = short.findings
    numbers = {id(finding): number for number, finding in enumerate(findings, 1)}
    ids = _make_id_generator()
    section_ids = [ids(f"section-{section.id}") for section in short.sections]
    homes: dict[int, int] = {}
    for index, section in enumerate(short.sections):
        homes.update(dict.fromkeys((id(finding) for finding in section.findings), index))

    def section_of(finding: Finding) -> tuple[str, str]:
        index = homes[id(finding)]
        return section_ids[index], short.sections[index].title or short.sections[index].id

    def link_of(finding: Finding, place: Place) -> str:
        nearest = pictures[homes[id(finding)]]
        return _find_row_link(place, chain(nearest, chain.from_iterable(pictures)))

    return _load_page_template().render(
        report=short,
        words=phrases,
        printable=make_printable,
        explained=explain_jargon,
        show=format_quantity,
        style=style,
        script=script,
        policy=_make_content_policy(style, script),
        ranked=list(zip(findings, phrases.format_savings(findings, short), strict=True)),
        unproven=phrases.list_unproven_claims(short, findings),
        plans=phrases.describe_plans(short),
        amounts_of=lambda parts: list(zip(parts, phrases.format_costs(parts), strict=True)),
        number_of=lambda finding: numbers[id(finding)],
        sheet_of=lambda sheet: _make_html_sheet(sheet, rows, ids(f"table-{sheet.name}")),
        section_ids=section_ids,
        section_of=section_of,
        link_of=link_of,
        pictures=pictures,
        share_of=_get_metric_bar_width,
        unjudged=_list_abstaining_rules,
        first_cards=_FIRST_CARDS,
        dropped=dropped,
    )


@cache
def _load_page_template() -> Template:
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


def _read_inlined_file(name: str) -> str:
    """Read a template file as markup, to be inlined unescaped."""
    from markupsafe import Markup

    # A file of this package without values from a report: there is nothing to escape.
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))  # noqa: S704


def _make_content_policy(style: str, script: str) -> str:
    """Make the content security policy, which allows only these two inlined texts."""
    return (
        f"default-src 'none'; style-src '{_hash_inlined_text(style)}'; script-src '{_hash_inlined_text(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash_inlined_text(text: str) -> str:
    """Compute the hash by which browsers recognize an inlined text."""
    return f"sha256-{b64encode(sha256(text.encode('utf-8')).digest()).decode()}"


def _make_html_sheet(sheet: Sheet, limit: int, id_: str) -> HtmlSheet:
    """Make a table with the bars and full names for the text of its grid."""
    table = make_grid(sheet, limit)
    where = "cut to keep this page under 5 MB, all are in the JSON and CSV reports"
    note = phrases.describe_missing_rows(len(table.rows), table.more, table.omitted, where)
    rows = (
        list(map(_make_html_cell, row, texts, table.columns))
        for row, texts in zip(sheet.rows, table.rows, strict=False)
    )
    return HtmlSheet(id_, table, rows, note)


def _make_html_cell(value: Cell, text: str, column: GridColumn) -> HtmlCell:
    """Make a cell with the details that its text lacks."""
    if isinstance(value, str):
        if len(text) < NAME_LIMIT:
            return HtmlCell(text)
        return HtmlCell(text, full=make_printable(value, _TITLE_LIMIT))
    if not column.numeric:
        return HtmlCell(text)
    if column.unit == "ratio" and value is not None and text != UNKNOWN:
        return HtmlCell(text, _format_sort_key(value), bar=_get_bar_width(value))
    return HtmlCell(text, _format_sort_key(value))


def _format_sort_key(value: Cell) -> str:
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


def _get_bar_width(ratio: float) -> str:
    """Compute the width of a ratio's bar to a thousandth, which is finer than a screen."""
    return f"{min(max(ratio, 0), 1) * 100:.1f}"


def _get_metric_bar_width(metric: Metric) -> str:
    """Compute the width of the bar under a metric, if it is a ratio."""
    if metric.unit != "ratio" or metric.value is None or not _format_sort_key(metric.value):
        return ""
    return _get_bar_width(metric.value)


def _draw_report_charts(report: Report) -> list[list[HtmlChart]]:
    """Draw the charts of each section: at most 2 MB in total, and 400 per section."""
    ids, left = _make_id_generator(), _PICTURES
    tones = assign_stage_tones(chain.from_iterable(section.charts for section in report.sections))
    pictures: list[list[HtmlChart]] = []
    for section in report.sections:
        pictures.append([])
        for chart in section.charts[:_ITEMS]:
            picture = _draw_html_chart(chart, ids(make_slug(chart.id)), tones, left)
            left -= len(picture.svg)
            pictures[-1].append(picture)
    return pictures


def _draw_html_chart(chart: Chart, name: str, tones: dict[str, str], room: int) -> HtmlChart:
    """Draw a chart within `room` bytes; a TracekitError becomes a note on the page."""
    from markupsafe import Markup

    few = limit_chart(replace(chart, id=name))
    notes = [make_printable(chart.caption, 2_000)]
    svg = Markup("")
    try:
        # `draw` escapes every text.
        svg = Markup(draw_svg_chart(few, tones))  # noqa: S704
    except TracekitError as error:
        notes.append(f"Not drawn: {make_printable(str(error), phrases.SENTENCE)}.")
    if len(svg.encode("utf-8")) > room:
        svg = Markup("")
        notes.append("Not drawn, to keep this page under 5 MB; the JSON report has its numbers.")
    elif few.omitted:
        notes.append(f"{format_quantity(few.omitted, 'count')} smaller marks or further rows are not drawn.")
    title = make_printable(chart.title or chart.id, 300)
    return HtmlChart(f"chart-{name}", title, svg, " ".join(note for note in notes if note), few)


def _find_row_link(place: Place, pictures: Iterable[HtmlChart]) -> str:
    """Find the id of the first timeline row that shows the place; empty if there is none."""
    for picture in pictures:
        chart = picture.chart
        if not picture.svg or _is_place_outside_chart(chart, place):
            continue
        row = chart.ranks.index(place.rank)
        owner, owners = (place.rank, place.role), list(zip(chart.ranks, chart.roles, strict=True))
        if place.role and owner in owners:
            row = owners.index(owner)
        return make_row_id(chart, row)
    return ""


def _is_place_outside_chart(chart: Chart, place: Place) -> bool:
    """Check whether a chart lacks the rank of a place, or is of another run or step."""
    if place.rank is None or place.rank not in chart.ranks:
        return True
    is_other_run = None not in (chart.run, place.run) and chart.run != place.run
    is_other_step = None not in (chart.step, place.step) and chart.step != place.step
    return is_other_run or is_other_step


def _list_abstaining_rules(section: Section) -> list[tuple[str, str]]:
    """List the rules of a section that abstain, with the first reason and the number of further ones."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for verdict in section.verdicts:
        if verdict.answer in ("failed", "not applicable", "insufficient data"):
            reasons.setdefault((verdict.rule, verdict.answer), []).append(verdict.reason)
    unjudged = []
    for (rule, answer), (first, *further) in reasons.items():
        reason = f": {make_printable(first, phrases.SENTENCE)}" if first else ""
        more = f"; and {format_quantity(len(further), 'count')} more" if further else ""
        unjudged.append((make_printable(rule, 60), f"{answer}{reason}{more}"))
    return unjudged


def _make_id_generator() -> Callable[[str], str]:
    """Make a function that turns names into valid ids, each unique on the page."""
    ids: set[str] = set()

    def unique(name: str) -> str:
        id_, number = make_slug(name), 1
        while id_ in ids:
            number += 1
            # Cut the name and keep the number, so that another `make_slug` leaves the id unchanged.
            end = f"-{number}"
            id_ = make_slug(make_slug(name)[: LONGEST_ID - len(end)] + end)
        ids.add(id_)
        return id_

    return unique


def _estimate_row_limit(report: Report, budget: int) -> int:
    """Estimate the largest number of rows per table with which all tables fit into a budget of bytes."""
    sheets = [sheet for _, sheet in phrases.list_report_sheets(report) if sheet is not report.values]
    limit = budget // 40
    costs = [list(accumulate((_estimate_row_bytes(row) for row in sheet.rows[:limit]), initial=0)) for sheet in sheets]

    def cost_of(rows: int) -> int:
        return sum(cost[min(rows, len(cost) - 1)] for cost in costs)

    most = max((len(cost) for cost in costs), default=0)
    return max(bisect_right(range(most + 1), budget, key=cost_of) - 1, 0)


def _estimate_row_bytes(row: tuple[Cell, ...]) -> int:
    """Estimate the bytes of a row in the page."""
    return 20 + sum(120 if isinstance(v, float) else 55 + len(str(v)[:_TITLE_LIMIT]) for v in row)


def _trim_report(report: Report, items: int) -> tuple[Report, int]:
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
