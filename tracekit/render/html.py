"""Report as a self-contained HTML page: no network, readable without scripts, bounded in size.

With a timeline, the page is the explorer: the whole recording, and all tables for readers without scripts. Without one,
it has the answer, the findings, and the tables.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from tracekit.model.inputs.timeline import Timeline
from tracekit.model.report import Chart, Finding, Report, Sheet
from tracekit.render.explorer.comparison.report import unpack_processes, write_packed_comparison
from tracekit.render.explorer.heads import choose_page_program
from tracekit.render.explorer.page import write_explorer_page
from tracekit.render.explorer.template import read_page_assets
from tracekit.render.options import RenderOptions

MAX_PAGE_BYTES = 5_000_000
"""Largest page without a timeline in bytes: accepted by mail and chat, and opened at once by browsers."""

TIMELINE_BYTES, BYTES_PER_PROCESS, MOST_TIMELINE_BYTES = 3_000_000, 3_000, 6_000_000
"""Budget of a page with a timeline; it grows with the number of processes from `TIMELINE_BYTES` on, up to a limit."""

_ITEMS = 400
_ITEMS_OF_A_FINDING = 20


def render_html(report: Report, _options: RenderOptions) -> str:
    """Render the page; if it would be too large, lists lose items, with a note."""
    if report.timeline is not None and report.timeline.sides:
        return write_packed_comparison(report)
    timeline = report.timeline or Timeline(())
    processes, budget = unpack_processes(timeline.processes), _choose_budget(len(timeline.processes))
    assets, items = read_page_assets(program=choose_page_program(processes)), _ITEMS
    while True:
        short, dropped = _trim_report(report, items)
        page = write_explorer_page(
            short, processes, assets, timeline.causes, budget, timeline.critical, dropped, timeline.engines
        )
        size = len(page.text.encode())
        if size <= max(budget, MAX_PAGE_BYTES) or items < 2:
            return page.text
        items = min(items // 2, items * MAX_PAGE_BYTES * 9 // (size * 10))


def _choose_budget(count: int) -> int:
    """Choose the size of a page by the number of its processes."""
    if not count:
        return MAX_PAGE_BYTES
    return min(max(TIMELINE_BYTES, count * BYTES_PER_PROCESS * 2), MOST_TIMELINE_BYTES)


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

    return cut(replace(report, values=None, timeline=None)), dropped
