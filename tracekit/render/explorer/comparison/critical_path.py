"""The critical paths of both sides on the page: each run's in the rows of its side, on the clock of its run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracekit.render.explorer.comparison.sides import PageSide, SideRows
from tracekit.render.explorer.critical_path import PagePath, PagePieces, arrange_pieces, fit_path
from tracekit.render.explorer.names import PageNames


def fit_side_paths(arranged: SideRows, sides: Sequence[PageSide], names: PageNames, budget_bytes: int) -> PagePath:
    """Encode the critical paths of all sides in their share of the budget; a note counts pieces without a row."""
    texts = PageNames()
    paths = []
    for number, side in enumerate(sides):
        if side.critical is not None:
            rows = [at for at, row in enumerate(arranged.rows.rows) if arranged.sides[row.process.number] == number]
            paths.append(arrange_pieces(arranged.rows, rows, side.critical, texts))
    if not paths:
        return PagePath({}, [])
    joined = PagePieces(*map(np.concatenate, zip(*paths, strict=True)))
    # A run begins at 0 on the page: a piece of a process without a row has no place.
    placed = joined.row > 0
    path = fit_path(PagePieces(*(column[placed] for column in joined)), texts, names, budget_bytes)
    missing = int((~placed).sum())
    if missing:
        pieces = (
            "1 piece of a process without a row is"
            if missing == 1
            else f"{missing:,} pieces of processes without a row are"
        )
        path.notes.append(f"critical path: {pieces} not on the page")
    return path
