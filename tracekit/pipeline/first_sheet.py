"""The table of the first screen where only memory was recorded: what fills it at its peak."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from tracekit.model.report import Section, Sheet

SHOWN = 8
"""Most rows of it; what they leave out is one more."""

_SHEETS = (
    ("memory-peak", "live_peak", ("where", "size_bytes", "share_ratio", "block_count", "category")),
    ("memory-categories", "category_levels", ("who", "category", "peak_bytes", "share_ratio")),
)
"""(section, its sheet, the columns that fit), what tells most first."""

FIRST_SHEETS = frozenset(id_ for id_, _, _ in _SHEETS)
"""The sections of which a table may stand on the first screen."""


def what_fills_memory(sections: Sequence[Section]) -> Sheet | None:
    """The largest places in the program, else categories, at the highest peak; None where neither is known."""
    for id_, name, columns in _SHEETS:
        for section in sections:
            if section.id != id_:
                continue
            sheet = next((s for s in section.sheets if s.name == name), None)
            if sheet is not None and sheet.rows:
                return _cut(sheet, columns)
    return None


def _cut(sheet: Sheet, columns: Sequence[str]) -> Sheet:
    """The first rows and these columns of a sheet; a column that says nothing is left out."""
    first_rows = sheet.rows[:SHOWN]
    fits: list[bool] = []
    for heading, cells in zip(sheet.headings, zip(*first_rows, strict=True), strict=True):
        fits.append(heading.name in columns and set(cells) != {None})
    rows = tuple(tuple(compress(row, fits)) for row in first_rows)
    headings = tuple(compress(sheet.headings, fits))
    omitted = sheet.omitted + len(sheet.rows) - len(rows)
    return Sheet("overview", sheet.title, headings, rows, omitted, sheet.caption)
