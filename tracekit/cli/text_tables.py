"""Text tables for commands that list things."""

from __future__ import annotations

import json
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

        return write_query_csv(make_query_sheet(names, cells))
    from tracekit.render.markdown import escape_markdown

    lines = [names, ["---"] * len(names)]
    lines += [["" if cell is None else escape_markdown(make_printable(str(cell))) for cell in row] for row in cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _format_text_cell(value: object) -> str:
    """Format one value; unknown is a dash."""
    return UNKNOWN if value in (None, "") else make_printable(str(value))
