"""Frames to sheets of a report: plain cells in the order of importance, cut where they would flood it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tracekit.report import Cell, Heading, Ranked, Sheet

MAX_ROWS = 1_000
"""Most rows of one sheet in a report; the measurements (`--save`) keep all of them."""

MOST_RANKED = 20_000
"""Most rows of a sheet that has a row a rank: a page puts those together that are alike."""


def sheet(
    name: str,
    title: str,
    headings: Sequence[Heading],
    frame: pd.DataFrame,
    *,
    caption: str = "",
    max_rows: int = MAX_ROWS,
    ranked: Ranked | None = None,
) -> Sheet:
    """The frame's columns that the headings name, as plain values; rows past the cap are counted.

    A column of which nothing at all is known is left out. A sheet that is `ranked` has up to `MOST_RANKED` rows.
    """
    max_rows = max_rows if ranked is None else MOST_RANKED
    values = {heading.name: frame[heading.name].array for heading in headings}
    headings = [h for h in headings if not len(frame) or not values[h.name].isna().all()]
    columns = [_cells(values[heading.name][:max_rows]) for heading in headings]
    rows = tuple(zip(*columns, strict=True)) if columns else ()
    return Sheet(name, title, tuple(headings), rows, max(len(frame) - max_rows, 0), caption, ranked)


def _cells(column: Any) -> list[Cell]:
    """The values of a column as Python scalars, missing ones as None."""
    values = np.asarray(column, object)
    missing = pd.isna(values)
    return [
        None if gone else value.item() if hasattr(value, "item") else value
        for value, gone in zip(values.tolist(), missing.tolist(), strict=True)
    ]
