"""The main table without stages: top kernels, operators, functions, or memory at its peak."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from tracekit.model.report import Section, Sheet

MAX_MEMORY_ROWS = 8
"""Most rows of a memory table."""

MAX_TIME_ROWS = 5
"""Most rows of a table of kernels, operators or functions."""

_MEMORY_TABLES = (
    ("memory-peak", "live_peak", ("where", "size_bytes", "share_ratio", "block_count", "category")),
    ("memory-categories", "category_levels", ("who", "category", "peak_bytes", "share_ratio")),
)
"""(section, table, columns to show), most informative first."""

_TIME_TABLES = (
    ("kernels", "kernels", ("run", "name", "total_ns", "share_ratio", "count", "mean_ns")),
    ("operators", "operators_by_host_time", ("run", "name", "self_ns", "self_ratio", "total_ns", "count")),
    ("cpu", "cpu_frames", ("run", "name", "self_ns", "total_ns", "count")),
    ("steps", "ranges", ("run", "role", "parent", "stage", "count", "total_ns", "mean_ns")),
    ("rl-matrix", "matrix", ("run", "role", "canonical", "mean_ns", "share_ratio")),
)
"""(section, table, columns to show) of tables that rank time; the first with rows is shown."""

SUMMARY_SECTIONS = frozenset(id_ for id_, _, _ in _MEMORY_TABLES)
"""The sections whose table may appear in the summary."""


def pick_main_table(sections: Sequence[Section]) -> Sheet | None:
    """Pick the main table of a summary without stages: top time, else top memory."""
    return pick_time_table(sections) or pick_memory_table(sections)


def pick_memory_table(sections: Sequence[Section]) -> Sheet | None:
    """Pick the table of the largest allocation sites at peak memory, else of its categories; None without either."""
    return _pick_first_table(sections, _MEMORY_TABLES, MAX_MEMORY_ROWS)


def pick_time_table(sections: Sequence[Section]) -> Sheet | None:
    """Pick the table of top kernels, else operators, Python functions or ranges; None without any."""
    return _pick_first_table(sections, _TIME_TABLES, MAX_TIME_ROWS)


def _pick_first_table(
    sections: Sequence[Section], choices: Sequence[tuple[str, str, tuple[str, ...]]], limit: int
) -> Sheet | None:
    """Pick the first of these tables with rows, cut to the columns to show and `limit` rows."""
    by_id = {section.id: section for section in sections}
    for id_, name, columns in choices:
        section = by_id.get(id_)
        if section is None or section.status != "ok":
            continue
        sheet = next((s for s in section.sheets if s.name == name), None)
        if sheet is not None and sheet.rows:
            return _shorten_table(sheet, columns, limit, id_)
    return None


def _shorten_table(sheet: Sheet, columns: Sequence[str], limit: int, section: str) -> Sheet:
    """Shorten a table to its first rows and these columns; drops empty columns."""
    first_rows = sheet.rows[:limit]
    fits: list[bool] = []
    for heading, cells in zip(sheet.headings, zip(*first_rows, strict=True), strict=True):
        fits.append(heading.name in columns and set(cells) != {None})
    rows = tuple(tuple(compress(row, fits)) for row in first_rows)
    headings = tuple(compress(sheet.headings, fits))
    total = sheet.omitted + len(sheet.rows)
    # The matrix has a column per step; its caption is about those.
    captions = [] if sheet.name == "matrix" else [sheet.caption]
    if total > len(rows):
        captions.insert(0, f"{len(rows)} of {total:,} rows; more in section {section} (-v)")
    return Sheet("overview", sheet.title, headings, rows, 0, " · ".join(caption for caption in captions if caption))
