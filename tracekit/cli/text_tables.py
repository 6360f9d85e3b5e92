"""Text tables for commands that list things."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from tracekit.model.text.wrapping import format_columns
from tracekit.model.units import UNKNOWN
from tracekit.render.escape import make_printable


def format_text_columns(
    rows: Sequence[Mapping[str, object]], right: Collection[str] = (), width: int | None = None
) -> str:
    """Format rows as columns with headers; drops empty columns, and right-aligns those in `right`."""
    names = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    cells = [[_format_text_cell(row[name]) for name in names] for row in rows]
    places = {place for place, name in enumerate(names) if name in right}
    return "\n".join(format_columns(names, cells, places, width))


def format_listing(
    title: str, rows: Sequence[Mapping[str, object]], limit: int, *, verbose: bool, width: int | None = None
) -> list[str]:
    """Format a table below its title: the first `limit` rows, or all with `verbose`."""
    if verbose or len(rows) <= limit:
        return [title, format_text_columns(rows, width=width)]
    return [title, format_text_columns(rows[:limit], width=width), f"… and {len(rows) - limit:,} more (-v)"]


def encode_rows(rows: Sequence[Mapping[str, object]], format_: str) -> str | bytes:
    """Encode rows as text columns, JSON, CSV or a Markdown table."""
    if format_ == "json":
        return json.dumps(rows, indent=1, default=str) + "\n"
    if format_ == "text":
        return format_text_columns(rows) + "\n" if rows else ""
    names = list(rows[0]) if rows else []
    cells = [tuple(row.values()) for row in rows]
    if format_ == "csv":
        from tracekit.render.rows import make_query_sheet, write_query_csv

        values = [
            tuple(cell if isinstance(cell, int | float | str) else None if cell is None else str(cell) for cell in row)
            for row in cells
        ]
        return write_query_csv(make_query_sheet(names, values))
    from tracekit.render.markdown import escape_markdown

    lines = [names, ["---"] * len(names)]
    lines += [["" if cell is None else escape_markdown(make_printable(str(cell))) for cell in row] for row in cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _format_text_cell(value: object) -> str:
    """Format one value; unknown is a dash."""
    return UNKNOWN if value in (None, "") else make_printable(str(value))
