"""All tables of a report as folded HTML, for readers without scripts: as many rows each as fit a size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from html import escape
from itertools import accumulate

from tracekit.model.report import Cell, Metric, Report, Sheet
from tracekit.render import phrases
from tracekit.render.escape import make_printable
from tracekit.render.grid import NAME_LIMIT, GridColumn, TextGrid, make_grid
from tracekit.render.ranks import merge_similar_ranks

RANKED_ROWS = 100
"""Number of ranks in a table above which similar ranks share a row."""

LONGEST_NAME = 1_000
"""Characters of the full name of a shortened one."""


MOST_OVERVIEW_ROWS = 40

COLUMNS_BESIDE_FINDINGS = 6
"""Columns of the first table above which it is below the findings, over the whole width."""


def write_overview(report: Report) -> str:
    """Render the first table of a report, otherwise that behind its first finding; empty without either."""
    sheet = report.overview or _find_first_evidence(report)
    if sheet is None:
        return ""
    title, table, notes = _write_sheet(sheet, MOST_OVERVIEW_ROWS)
    style = ' class="below"' if len(sheet.headings) > COLUMNS_BESIDE_FINDINGS else ""
    return f'<section id="first"{style} aria-labelledby="first-title"><h2 id="first-title">{title}</h2>{table}{notes}</section>'


def _find_first_evidence(report: Report) -> Sheet | None:
    """Find the first table of the section with the first finding; None without one."""
    first = report.findings[:1]
    sheets = (
        sheet for section in report.sections if first and first[0] in section.findings for sheet in section.sheets
    )
    return next(sheets, None)


def write_folded_tables(report: Report, most_bytes: float) -> str:
    """Render all tables and numbers of a report, folded, with fewer rows each if they would be too large."""
    shown = [sheet for _, sheet in phrases.list_report_sheets(report) if sheet is not report.values]
    sheets = [merge_similar_ranks(sheet, RANKED_ROWS) for sheet in shown]
    numbers = "".join(_write_metrics(title, metrics) for title, metrics in _list_metrics(report))
    rows = _estimate_row_limit(sheets, int(most_bytes) - len(numbers.encode()))
    while True:
        texts = [_fold_table(*_write_sheet(sheet, rows)) for sheet in sheets]
        size = sum(len(text.encode()) for text in texts) + len(numbers.encode())
        if size <= most_bytes or rows == 0:
            return numbers + "".join(texts)
        rows = min(rows - 1, int(rows * most_bytes * 9 // (size * 10)))


def _estimate_row_limit(sheets: Iterable[Sheet], budget: int) -> int:
    """Estimate the largest number of rows per table with which all tables fit into a budget of bytes."""
    limit = max(budget, 0) // 40
    costs = [list(accumulate((_estimate_row_bytes(row) for row in sheet.rows[:limit]), initial=0)) for sheet in sheets]

    def cost_of(rows: int) -> int:
        return sum(cost[min(rows, len(cost) - 1)] for cost in costs)

    most = max((len(cost) for cost in costs), default=0)
    return max(bisect_right(range(most + 1), budget, key=cost_of) - 1, 0)


def _estimate_row_bytes(row: tuple[Cell, ...]) -> int:
    """Estimate the bytes of a row."""
    return 10 + sum(22 + (len(value[:LONGEST_NAME]) if isinstance(value, str) else 8) for value in row)


def _list_metrics(report: Report) -> Iterator[tuple[str, tuple[Metric, ...]]]:
    """List the titles and metrics of the headline and of all sections with metrics."""
    yield "Numbers of the first screen", report.headline
    for section in report.sections:
        yield f"Numbers: {section.title or section.id}", tuple(section.metrics)


def _write_metrics(title: str, metrics: tuple[Metric, ...]) -> str:
    """Render a table of metrics with their values and ranges; empty without any."""
    if not metrics:
        return ""
    rows = "".join(
        f"<tr><td>{escape(phrases.get_metric_label(metric))}</td>"
        f'<td class="n">{escape(phrases.format_metric_value(metric))}</td>'
        f"<td>{escape(phrases.format_metric_range(metric))}</td></tr>"
        for metric in metrics
    )
    heads = '<th scope="col">number</th><th scope="col" class="n">value</th><th scope="col">range</th>'
    return _fold_table(escape(make_printable(title, 300)), _write_table(heads, rows), "")


def _write_sheet(sheet: Sheet, limit: int) -> tuple[str, str, str]:
    """Render one table: (title, table, caption and the number of rows left out)."""
    grid = make_grid(sheet, limit)
    heads = "".join(map(_write_heading, grid.columns))
    body = "".join(
        _write_row(row, source, grid) for row, source in zip(grid.rows, _list_full_names(sheet, grid), strict=True)
    )
    where = "cut to keep this page small, all are in the JSON and CSV reports"
    missing = phrases.describe_missing_rows(len(grid.rows), grid.more, grid.omitted, where)
    notes = "".join(f'<p class="quiet">{escape(note)}</p>' for note in (grid.caption, missing) if note)
    return escape(grid.title), _write_table(heads, body), notes


def _list_full_names(sheet: Sheet, grid: TextGrid) -> Iterator[tuple[Cell, ...]]:
    """List the cells behind the rows of a grid; none where similar ranks share rows."""
    is_same = len(sheet.headings) == len(grid.columns) and len(sheet.rows) == len(grid.rows) + grid.more
    for place in range(len(grid.rows)):
        yield sheet.rows[place] if is_same else ()


def _write_heading(column: GridColumn) -> str:
    """Render the heading of a column, with its meaning as a title."""
    doc = f' title="{escape(column.doc)}"' if column.doc else ""
    return f'<th scope="col"{_mark_number(column.numeric)}{doc}>{escape(column.title)}</th>'


def _write_row(texts: tuple[str, ...], cells: tuple[Cell, ...], grid: TextGrid) -> str:
    """Render one row; the full name of a shortened one is its title."""
    written = []
    for place, (text, column) in enumerate(zip(texts, grid.columns, strict=True)):
        cell = cells[place] if cells else None
        is_short = isinstance(cell, str) and len(cell) > NAME_LIMIT
        title = f' title="{escape(make_printable(str(cell), LONGEST_NAME))}"' if is_short else ""
        written.append(f"<td{_mark_number(column.numeric)}{title}>{escape(text)}</td>")
    return f"<tr>{''.join(written)}</tr>"


def _write_table(heads: str, body: str) -> str:
    return f'<div class="table"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _fold_table(title: str, table: str, notes: str) -> str:
    """Fold a table under its title."""
    return f"<details><summary>{title}</summary>{table}{notes}</details>"


def _mark_number(numeric: bool) -> str:
    """Mark the cells of numeric columns."""
    return ' class="n"' if numeric else ""
