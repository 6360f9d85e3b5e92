"""Text tables for commands that list things."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tracekit.model.units import UNKNOWN
from tracekit.render.escape import make_printable


def format_text_columns(rows: Sequence[Mapping[str, object]], right: Collection[str] = ()) -> str:
    """Format rows as columns with headers; drops empty columns, and right-aligns those in `right`."""
    blocks = []
    for name in rows[0]:
        if all(row[name] in (None, "") for row in rows):
            continue
        cells = [name, *(_format_text_cell(row[name]) for row in rows)]
        width = max(len(cell) for cell in cells)
        align = str.rjust if name in right else str.ljust
        blocks.append([align(cell, width) for cell in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*blocks, strict=True))


def format_listing(title: str, rows: Sequence[Mapping[str, object]], limit: int, *, verbose: bool) -> list[str]:
    """Format a table below its title: the first `limit` rows, or all with `verbose`."""
    if verbose or len(rows) <= limit:
        return [title, format_text_columns(rows)]
    return [title, format_text_columns(rows[:limit]), f"… and {len(rows) - limit:,} more (-v)"]


def _format_text_cell(value: object) -> str:
    """Format one value; unknown is a dash."""
    return UNKNOWN if value in (None, "") else make_printable(str(value))
