"""Rows of text in columns, for the commands that list things."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tracekit.model.units import UNKNOWN
from tracekit.render.escape import printable


def columns(rows: Sequence[Mapping[str, object]], right: Collection[str] = ()) -> str:
    """The rows under their keys; columns that no row fills are left out, those in `right` are flush right."""
    names = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    lines = [names, *([_cell(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(names))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if name in right else text.ljust(width)
            for text, width, name in zip(line, widths, names, strict=True)
        ).rstrip()
        for line in lines
    )


def _cell(value: object) -> str:
    """One value as it is shown; unknown is a dash."""
    return UNKNOWN if value in (None, "") else printable(str(value))
