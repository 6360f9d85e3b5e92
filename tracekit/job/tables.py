"""Frames to sheets of a report: plain cells in the order of importance, cut where they would flood it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, cast, get_args

import pandas as pd

from tracekit.model.frame import Frame
from tracekit.model.keys import as_python
from tracekit.model.report import Heading, Ranked, Sheet, Unit

MAX_ROWS = 1_000
"""Most rows of one sheet in a report; the measurements (`--save`) keep all of them."""

MOST_RANKED = 20_000
"""Most rows of a sheet that has a row a rank: a page puts those together that are alike."""


def sheet(
    name: str,
    title: str,
    headings: Sequence[Heading],
    frame: Frame | pd.DataFrame,
    *,
    caption: str = "",
    max_rows: int = MAX_ROWS,
    ranked: Ranked | None = None,
) -> Sheet:
    """Make a sheet of the columns that the headings name, as plain values; rows past the cap are counted.

    A column without any known value is left out. A sheet that is `ranked` has up to `MOST_RANKED` rows.
    """
    if ranked is not None:
        max_rows = MOST_RANKED
    columns = {
        heading: values[:max_rows]
        for heading in headings
        if not (values := _values(frame, heading.name)) or any(v is not None for v in values)
    }
    rows = tuple(zip(*columns.values(), strict=True))
    return Sheet(name, title, tuple(columns), rows, max(len(frame) - max_rows, 0), caption, ranked)


def _values(frame: Frame | pd.DataFrame, name: str) -> list[Any]:
    """List a column as Python values, None where one is missing."""
    return frame.values(name) if isinstance(frame, Frame) else as_python(frame[name].array)


@lru_cache(1024)
def as_headings(text: str) -> tuple[Heading, ...]:
    """The headings that a text lists, one a line: `name | title | unit | what it means`.

    Without a unit a column holds text; `number` is one that has none.

    >>> as_headings("rank | rank | id")
    (Heading(name='rank', title='rank', unit='id', doc=''),)
    """
    return tuple(map(_heading, text.strip().splitlines()))


def _heading(line: str) -> Heading:
    """The heading of one line."""
    name, title, *more = map(str.strip, line.split("|", 3))
    unit, *doc = more or ["text"]
    unit = unit.removeprefix("number")
    assert unit in get_args(Unit), line
    return Heading(name, title, cast(Unit, unit), *doc)


def with_rows(*sheets: Sheet) -> tuple[Sheet, ...]:
    """Those of the sheets that have something to show."""
    return tuple(filter(attrgetter("rows"), sheets))
