"""Which of many ranks a picture draws: the first and last by one number, those that differ, and one of each like group."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracekit.model.intervals import Ints
from tracekit.model.labels import natural
from tracekit.model.records import dataclass
from tracekit.model.stats.groups import alike, middle

MAX_ROWS = 64
"""Most rows of one chart: ranks, devices, steps."""

MOST_DRAWN = 24
"""Most ranks of a chart that cannot draw them all."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """The rows to draw: what each is called by its name, in an order that puts rank 2 before rank 10.

    `omitted` counts the others, and `note` says by what they were chosen; empty where all are drawn.
    """

    rows: Mapping[str, str]
    omitted: int = 0
    note: str = ""


def drawn(values: Mapping[str, float], what: str, most: int = MAX_ROWS) -> Drawn:
    """All rows where there are at most so many, else those that tell most about `what` the values are.

    >>> few = drawn({f"rank {at}": 90.0 if at == 7 else 50.0 for at in range(100)}, "idle time")
    >>> dict(few.rows)
    {'rank 7': 'rank 7', 'rank 50': 'rank 50, like 98 more'}
    """
    names = sorted(values, key=natural)
    if len(names) <= most:
        return Drawn(dict(zip(names, names, strict=True)))
    ordered = list(map(values.__getitem__, names))
    groups = {middle(group, ordered): len(group) for group in alike(ordered, min(MOST_DRAWN, most))}
    rows = {}
    for place, size in sorted(groups.items()):
        name = names[place]
        rows[name] = f"{name}, like {size - 1:,} more" if size > 1 else name
    note = (
        f"{len(rows)} of {len(names):,} are drawn, by {what}: the most, the least and those that differ; "
        "of those alike the middle one."
    )
    return Drawn(rows, len(names) - len(rows), note)


def bars_of(table: Ints) -> tuple[tuple[int, int, int], ...]:
    """(row, series, value) of all that is not 0 in a table with a column a series."""
    row, series = np.nonzero(table)
    return tuple(zip(row.tolist(), series.tolist(), table[row, series].tolist(), strict=True))
