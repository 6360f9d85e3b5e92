"""The table of the first screen where only memory was recorded: what fills it at its peak."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.model.report import Cell, Section, Sheet

SHOWN = 8
"""Most rows of it; what they leave out is one more."""

_SHEETS = (
    ("memory-peak", "live_peak", ("where", "size_bytes", "share_ratio", "block_count", "category")),
    ("memory-categories", "category_levels", ("who", "category", "peak_bytes", "share_ratio")),
)
"""(section, its sheet, the columns that fit), what tells most first."""


def what_fills_memory(sections: Sequence[Section]) -> Sheet | None:
    """The largest places in the program, else categories, at the highest peak; None where neither is known."""
    for id_, name, columns in _SHEETS:
        for section in sections:
            sheet = next((s for s in section.sheets if s.name == name), None)
            if section.id == id_ and sheet is not None and sheet.rows:
                return _cut(sheet, columns)
    return None


def _cut(sheet: Sheet, columns: Sequence[str]) -> Sheet:
    """The first rows and these columns of a sheet; a column that says nothing is left out."""
    indices = [
        n
        for n, heading in enumerate(sheet.headings)
        if heading.name in columns and any(row[n] is not None for row in sheet.rows[:SHOWN])
    ]
    rows: list[tuple[Cell, ...]] = [tuple(row[n] for n in indices) for row in sheet.rows[:SHOWN]]
    omitted = sheet.omitted + len(sheet.rows) - len(rows)
    headings = tuple(sheet.headings[n] for n in indices)
    return Sheet("overview", sheet.title, headings, tuple(rows), omitted, sheet.caption)
