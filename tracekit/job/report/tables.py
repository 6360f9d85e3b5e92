"""Tables of a report: plain cells in order of importance, limited in rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import cast, get_args

from tracekit.model.report import Heading, Ranked, Sheet, Unit
from tracekit.model.tables.frame import Frame

MAX_ROWS = 1_000
"""Most rows of one table in a report; the measurements (`--save`) have all of them."""

MOST_RANKED = 20_000
"""Most rows of a table with a row per rank: a page merges similar ones."""


def make_sheet(
    name: str,
    title: str,
    headings: Sequence[Heading],
    frame: Frame,
    *,
    caption: str = "",
    max_rows: int = MAX_ROWS,
    ranked: Ranked | None = None,
) -> Sheet:
    """Make a table of the columns that the headings name, as plain values; counts the rows past the limit.

    A column without any known value is left out. A `ranked` table has up to `MOST_RANKED` rows.
    """
    if ranked is not None:
        max_rows = MOST_RANKED
    columns = {
        heading: values[:max_rows]
        for heading in headings
        if not (values := frame.values(heading.name)) or any(v is not None for v in values)
    }
    rows = tuple(zip(*columns.values(), strict=True))
    return Sheet(name, title, tuple(columns), rows, max(len(frame) - max_rows, 0), caption, ranked)


@lru_cache(1024)
def parse_headings(text: str) -> tuple[Heading, ...]:
    """Parse headings, one per line: `name | title | unit | description`.

    Without a unit a column has text; `number` is a number without a unit.

    >>> parse_headings("rank | rank | id")
    (Heading(name='rank', title='rank', unit='id', doc=''),)
    """
    return tuple(_parse_heading_line(line) for line in text.strip().splitlines())


def _parse_heading_line(line: str) -> Heading:
    """Parse the heading of one line."""
    name, title, *more = (part.strip() for part in line.split("|", 3))
    unit, *doc = more or ["text"]
    unit = unit.removeprefix("number")
    assert unit in get_args(Unit), line
    return Heading(name, title, cast(Unit, unit), *doc)


def select_filled_sheets(*sheets: Sheet) -> tuple[Sheet, ...]:
    """Select the tables that have rows."""
    return tuple(sheet for sheet in sheets if sheet.rows)
