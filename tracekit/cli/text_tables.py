"""Text tables for commands that list things."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from tracekit.model.text.wrapping import count_terminal_cells, format_columns, wrap_words
from tracekit.model.units import UNKNOWN
from tracekit.render.escape import make_printable


def format_text_columns(
    rows: Sequence[Mapping[str, object]], right: Collection[str] = (), width: int | None = None
) -> str:
    """Format rows as columns with headers; drops empty columns, and right-aligns those in `right`."""
    names = _list_filled_columns(rows)
    cells = [[_format_text_cell(row[name]) for name in names] for row in rows]
    places = {place for place, name in enumerate(names) if name in right}
    return "\n".join(format_columns(names, cells, places, width))


def format_fitting_columns(
    rows: Sequence[Mapping[str, object]],
    right: Collection[str] = (),
    width: int | None = None,
    keep: Collection[str] = (),
) -> str:
    """Format rows as `format_text_columns`, and fit them to `width` with a note on each column that is not shown.

    Columns with the same value in all rows move to a line below the table, then columns outside `keep` are dropped from
    the right.
    """
    text = format_text_columns(rows, right, width)
    if width is None or _measure_widest_line(text) <= width:
        return text
    names = _list_filled_columns(rows)
    same = _list_constant_columns(rows, names, keep)
    shown, dropped = [name for name in names if name not in same], list[str]()
    text = _format_selected_columns(rows, shown, right, width)
    while _measure_widest_line(text) > width and (loose := [name for name in shown if name not in keep]):
        dropped.insert(0, loose[-1])
        shown.remove(loose[-1])
        text = _format_selected_columns(rows, shown, right, width)
    lines = [text]
    if same:
        values = ", ".join(f"{name} {_format_text_cell(rows[0][name])}" for name in same)
        lines += wrap_words(f"Same for all: {values}", width)
    if dropped:
        lines += wrap_words(f"Not shown at this width: {', '.join(dropped)} (--format csv shows all)", width)
    return "\n".join(lines)


def _list_filled_columns(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """List the columns with a value in any row."""
    return [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]


def _list_constant_columns(
    rows: Sequence[Mapping[str, object]], names: Sequence[str], keep: Collection[str]
) -> list[str]:
    """List the columns outside `keep` with one value in several rows."""
    if len(rows) < 2:
        return []
    return [name for name in names if name not in keep and len({str(row[name]) for row in rows}) == 1]


def _format_selected_columns(
    rows: Sequence[Mapping[str, object]], names: Sequence[str], right: Collection[str], width: int
) -> str:
    """Format some columns of the rows."""
    return format_text_columns([{name: row[name] for name in names} for row in rows], right, width)


def _measure_widest_line(text: str) -> int:
    """Measure the widest line in terminal cells."""
    return max(map(count_terminal_cells, text.splitlines()), default=0)


def format_listing(
    title: str, rows: Sequence[Mapping[str, object]], limit: int, *, verbose: bool, width: int | None = None
) -> list[str]:
    """Format a table below its title: the first `limit` rows, or all with `verbose`."""
    if verbose or len(rows) <= limit:
        return [title, format_text_columns(rows, width=width)]
    return [title, format_text_columns(rows[:limit], width=width), f"… and {len(rows) - limit:,} more (-v)"]


def encode_rows(
    rows: Sequence[Mapping[str, object]], format_: str, *, names: Sequence[str] = (), width: int | None = None
) -> str | bytes:
    """Encode rows as text columns of at most `width`, JSON, CSV or a Markdown table.

    `names` are the columns; the header needs them if there may be no row.
    """
    if format_ == "json":
        return json.dumps(rows, indent=1, default=str) + "\n"
    if format_ == "text":
        return format_text_columns(rows, width=width) + "\n" if rows else ""
    names = names or list(rows[0])
    cells = [tuple(row.values()) for row in rows]
    if format_ == "csv":
        from tracekit.cli.query_rows import make_query_sheet, write_query_csv

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
