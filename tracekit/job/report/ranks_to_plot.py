"""Choice of ranks to plot: the lowest and highest by a number, outliers, and one of each group of similar ranks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracekit.model.intervals import Ints
from tracekit.model.records import dataclass
from tracekit.model.stats.groups import find_median_index, group_similar_values
from tracekit.model.text.labels import make_natural_key

MAX_ROWS = 64
"""Most rows of one chart: ranks, devices, steps."""

MOST_DRAWN = 24
"""Most ranks of a chart that cannot draw all of them."""


@dataclass(frozen=True, slots=True)
class PlottedRows:
    """Rows to draw: the label of each by its name, in natural order (rank 2 before rank 10).

    `omitted` counts the other rows, and `note` says how they were chosen; empty where all are drawn.
    """

    rows: Mapping[str, str]
    omitted: int = 0
    note: str = ""


def choose_rows_to_plot(values: Mapping[str, float], what: str, max_rows: int = MAX_ROWS) -> PlottedRows:
    """Choose the rows to draw: all of them up to the limit, else the most informative ones about `what`.

    >>> few = choose_rows_to_plot({f"rank {at}": 90.0 if at == 7 else 50.0 for at in range(100)}, "idle time")
    >>> dict(few.rows)
    {'rank 7': 'rank 7', 'rank 50': 'rank 50, like 98 more'}
    """
    names = sorted(values, key=make_natural_key)
    if len(names) <= max_rows:
        return PlottedRows(dict(zip(names, names, strict=True)))
    ordered = [values[name] for name in names]
    groups = {
        find_median_index(group, ordered): len(group)
        for group in group_similar_values(ordered, min(MOST_DRAWN, max_rows))
    }
    rows = {}
    for place, size in sorted(groups.items()):
        name = names[place]
        rows[name] = f"{name}, like {size - 1:,} more" if size > 1 else name
    note = (
        f"{len(rows)} of {len(names):,} are drawn, by {what}: the largest, the smallest and those that differ; "
        "of similar ones the middle one."
    )
    return PlottedRows(rows, len(names) - len(rows), note)


def list_bar_marks(table: Ints) -> tuple[tuple[int, int, int], ...]:
    """List (row, series, value) of the nonzero cells of a table with one column per series."""
    row, series = np.nonzero(table)
    return tuple(zip(row.tolist(), series.tolist(), table[row, series].tolist(), strict=True))
