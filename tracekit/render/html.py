"""The report as one self-contained HTML page: no network, no script needed to read it, at most 5 MB.

The page is autoescaped templates over the same words and grids as text and Markdown. Its content
security policy names the two inlined files by hash, so nothing a profile says can run or load.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.render import phrases
from tracekit.render.escape import printable
from tracekit.render.grid import NAME_LIMIT, Column, Grid, grid
from tracekit.render.options import Options
from tracekit.report import Cell, Finding, Report, Sheet
from tracekit.units import UNKNOWN, show

if TYPE_CHECKING:
    from jinja2 import Template

LIMIT = 5_000_000
"""Bytes of the page: mail and issue trackers take it, and a browser opens it at once."""

_ITEMS = 400
_ITEMS_OF_A_FINDING = 20
_TITLE_LIMIT = 1_000
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class ShownCell:
    """One cell of the page: its text, the whole name where that was shortened, the bar of a ratio."""

    text: str
    whole: str = ""
    bar: str = ""


@dataclass(frozen=True, slots=True)
class ShownSheet:
    """One table of the page."""

    id: str
    grid: Grid
    rows: Iterator[list[ShownCell]]
    note: str


def render_html(report: Report, _options: Options) -> str:
    """The page; where it would be too large, the largest tables lose rows first, and it says so."""
    rows, items = _fitting_rows(report), _ITEMS
    while True:
        page = _page(report, rows, items)
        size = len(page.encode("utf-8"))
        if size <= LIMIT:
            return page
        if rows >= 5:
            rows = rows * LIMIT * 9 // (size * 10)
        else:
            items = items * LIMIT * 9 // (size * 10)


def _page(report: Report, rows: int, items: int) -> str:
    """The page with at most so many rows a table, and so many items in any other list."""
    short, dropped = _trimmed(report, items)
    style, script = (_inlined(name) for name in ("report.css", "report.js"))
    findings = short.findings
    numbers = {id(finding): number for number, finding in enumerate(findings, 1)}
    ids = _unique_ids()
    return _template().render(
        report=short,
        words=phrases,
        printable=printable,
        show=show,
        style=style,
        script=script,
        policy=_policy(style, script),
        ranked=list(zip(findings, phrases.recoverable(findings), strict=True)),
        number_of=lambda finding: numbers[id(finding)],
        sheet_of=lambda sheet: _shown_sheet(sheet, rows, ids(f"table-{sheet.name}")),
        section_ids=[ids(f"section-{section.id}") for section in short.sections],
        dropped=dropped,
    )


@cache
def _template() -> Template:
    """The page's template; an unknown name in it is an error, never an empty string."""
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
    """A file of the templates as markup, to stand in the page unescaped."""
    from markupsafe import Markup

    # Ours alone, without any value of a report in it: nothing is there to escape.
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))  # noqa: S704


def _policy(style: str, script: str) -> str:
    """The content security policy: these two inlined texts and nothing else."""
    hashes = [b64encode(sha256(text.encode("utf-8")).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _shown_sheet(sheet: Sheet, limit: int, id_: str) -> ShownSheet:
    """The sheet with its bars and whole names beside the text of its grid."""
    table = grid(sheet, limit)
    where = "cut to keep this page under 5 MB, all are in the JSON and CSV reports"
    note = phrases.rows_left(len(table.rows), table.more, table.omitted, where)
    rows = (
        [_shown_cell(*cell) for cell in zip(row, shown, table.columns, strict=True)]
        for row, shown in zip(sheet.rows, table.rows, strict=False)
    )
    return ShownSheet(id_, table, rows, note)


def _shown_cell(value: Cell, text: str, column: Column) -> ShownCell:
    """The cell with what its text does not say."""
    if isinstance(value, str):
        return ShownCell(text, printable(value, _TITLE_LIMIT) if len(text) >= NAME_LIMIT else "")
    if column.unit == "ratio" and value is not None and text != UNKNOWN:
        # A thousandth of the bar is finer than a screen; the number beside it is the answer.
        return ShownCell(text, bar=f"{min(max(value, 0), 1) * 100:.1f}")
    return ShownCell(text)


def _unique_ids() -> Callable[[str], str]:
    """A function that turns a name into an id that is valid and given once on the page."""
    taken: set[str] = set()

    def unique(name: str) -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]
        found, number = slug, 1
        while found in taken:
            number += 1
            found = f"{slug}-{number}"
        taken.add(found)
        return found

    return unique


def _fitting_rows(report: Report) -> int:
    """The most rows a table may have for all tables to fit into the page, by a rough estimate."""
    budget = LIMIT * 17 // 20
    sheets = [sheet for _, sheet in phrases.every_sheet(report) if sheet is not report.values]
    most = budget // 40
    costs = [list(accumulate(map(_row_cost, sheet.rows[:most]), initial=0)) for sheet in sheets]
    low, high = 0, max((len(cost) for cost in costs), default=0)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(cost[min(middle, len(cost) - 1)] for cost in costs) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def _row_cost(row: tuple[Cell, ...]) -> int:
    """About how many bytes the row takes in the page."""
    return 20 + sum(90 if isinstance(v, float) else 40 + len(str(v)[:_TITLE_LIMIT]) for v in row)


def _trimmed(report: Report, items: int) -> tuple[Report, int]:
    """The report with every list but the tables' rows cut to `items`, and how many items that took."""
    dropped = 0

    def cut(value: Any, most: int = items) -> Any:
        nonlocal dropped
        if isinstance(value, tuple):
            dropped += max(len(value) - most, 0)
            return tuple(cut(item) if is_dataclass(item) else item for item in value[:most])
        if isinstance(value, Sheet):
            dropped += max(len(value.headings) - items, 0)
            rows = value.rows
            if len(value.headings) > items:
                rows = tuple(row[:items] for row in rows)
            return replace(value, headings=value.headings[:items], rows=rows)
        if is_dataclass(value) and not isinstance(value, type):
            most = min(items, _ITEMS_OF_A_FINDING) if isinstance(value, Finding) else items
            parts = {field.name: cut(getattr(value, field.name), most) for field in fields(value)}
            return replace(value, **parts)
        return value

    return cut(replace(report, values=None)), dropped
