"""Which tool answers where several recorded the same steps: one does, the other is kept as a check.

Nothing is added up over tools: two profilers that saw the same step saw the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.model.tables.arrays import Coded, Columns
from tracekit.model.trace import Measurements

TIMING = ("torch", "nsys")
"""The tools that time steps; of equals the first answers, as it tells ops and shapes too."""

Place = tuple[object, object]
"""(rank, step), None where unknown."""


def one_tool(measured: Measurements) -> Measurements:
    """These measurements with every (run, rank, step) told by one tool; `check` holds what another told.

    The tool that saw more of a run answers for it. A source of another is set aside as a whole if any of
    its steps was seen by the first: of the same rank, and of the same number unless one of them has none.
    """
    checks = measured.derived(_set_aside)
    if not checks:
        return measured
    return replace(_part(measured, checks, kept=False), check=_part(measured, checks, kept=True))


def _set_aside(measured: Measurements) -> frozenset[str]:
    """The names of the sources that are kept as a check."""
    tools = {source.tool for source in measured.sources}
    if not tools.issuperset(TIMING):
        return frozenset()
    steps = measured["steps"]
    set_aside: set[str] = set()
    for _, of_run in steps[steps["tool"].isin(TIMING)].groupby("run", dropna=False, sort=False):
        seen = {tool: _places(of_run[of_run["tool"] == tool]) for tool in TIMING}
        if not all(seen.values()):
            continue
        sizes = {tool: len(set().union(*seen[tool].values())) for tool in TIMING}
        first = max(TIMING, key=lambda tool: sizes[tool])
        answered = set().union(*seen[first].values())
        candidates = {name: p for tool in TIMING if tool != first for name, p in seen[tool].items()}
        set_aside |= {name for name, places in candidates.items() if _meets(places, answered)}
    return frozenset(set_aside)


def _places(steps: pd.DataFrame) -> Mapping[str, set[Place]]:
    """The places of every source."""
    places: dict[str, set[Place]] = {}
    keys = steps[["source", "rank", "step"]].drop_duplicates()
    for source, rank, step in keys.itertuples(index=False, name=None):
        place = (None if pd.isna(rank) else int(rank), None if pd.isna(step) else int(step))
        places.setdefault(str(source), set()).add(place)
    return places


def _meets(places: set[Place], answered: set[Place]) -> bool:
    """Whether any of these places is, or may be, one that is answered already."""
    return any(_may_be(place, other) for place in places for other in answered)


def _may_be(one: Place, other: Place) -> bool:
    return all(a == b or a is None or b is None for a, b in zip(one, other, strict=True))


def _is_of(columns: Columns, names: frozenset[str]) -> npt.NDArray[np.bool_]:
    """Which rows are of these sources."""
    sources = columns["source"]
    assert isinstance(sources, Coded), "sources are texts"
    is_named = np.array([*(text in names for text in sources.texts), False], np.bool_)
    return is_named.take(sources.codes)


def _part(measured: Measurements, names: frozenset[str], *, kept: bool) -> Measurements:
    """The measurements of these sources, or of all others."""
    tables = {
        name: columns.where(_is_of(columns, names) == kept)
        for name, columns in measured.tables.items()
    }
    return Measurements(
        {
            name: rows
            for name, rows in tables.items()
            if len(rows) or not len(measured.tables[name])
        },
        tuple(s for s in measured.sources if (s.name in names) == kept),
        measured.failures if not kept else (),
        measured.notes if not kept else tuple(n for n in measured.notes if n.source in names),
        measured.facts,
        faults=tuple(f for f in measured.faults if (f.source in names) == kept),
    )
