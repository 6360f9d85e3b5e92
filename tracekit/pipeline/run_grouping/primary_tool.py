"""Choice of the primary tool where several recorded the same steps; the others serve as a cross-check.

Times are never added over tools: two profilers that recorded the same step recorded the same time.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from tracekit.model.tables.arrays import Columns
from tracekit.model.tables.frame import Frame
from tracekit.model.trace import Measurements

TIMING_TOOLS = ("torch", "nsys")
"""The tools that time steps; the first wins ties, because it also records ops and shapes."""

RankStep = tuple[int | None, int | None]
"""(rank, step); None where unknown."""


def select_primary_tool(measured: Measurements) -> Measurements:
    """Limit measurements to one tool per (run, rank, step); `check` holds those of the other tools.

    The tool with more steps of a run is its primary tool. A source of another tool is set aside completely if one of its
    steps may be a step of the primary tool: the same rank and step number, where an unknown one matches any.
    """
    checks = measured.derived(_find_check_sources)
    if not checks:
        return measured
    return replace(
        _split_by_sources(measured, checks, is_kept=False), check=_split_by_sources(measured, checks, is_kept=True)
    )


def _find_check_sources(measured: Measurements) -> frozenset[str]:
    """Find the names of the sources that serve only as a check."""
    if not {source.tool for source in measured.sources}.issuperset(TIMING_TOOLS):
        return frozenset()
    steps = measured.frame("steps")
    set_aside: set[str] = set()
    for of_run in steps.filter(steps.is_in("tool", TIMING_TOOLS)).group_by("run").frames():
        seen = {tool: _list_rank_steps(of_run.filter(of_run.equals("tool", tool))) for tool in TIMING_TOOLS}
        if not all(seen.values()):
            continue
        places_of = {tool: set().union(*seen[tool].values()) for tool in TIMING_TOOLS}
        first = max(TIMING_TOOLS, key=lambda tool: len(places_of[tool]))
        del seen[first]
        for places_by_name in seen.values():
            for name, places in places_by_name.items():
                if any(_is_compatible(*pair) for pair in product(places, places_of[first])):
                    set_aside.add(name)
    return frozenset(set_aside)


def _list_rank_steps(steps: Frame) -> dict[str, set[RankStep]]:
    """List the (rank, step) pairs of every source."""
    places: dict[str, set[RankStep]] = {}
    for row in steps.distinct("source", "rank", "step").rows("source", "rank", "step"):
        places.setdefault(row["source"], set()).add((row["rank"], row["step"]))
    return places


def _is_compatible(place: RankStep, other: RankStep) -> bool:
    """Check whether two (rank, step) pairs can be the same, as far as both are known."""
    return all(a == b or a is None or b is None for a, b in zip(place, other, strict=True))


def _split_by_sources(measured: Measurements, names: frozenset[str], *, is_kept: bool) -> Measurements:
    """Get the measurements of these sources if `is_kept`, else of all others."""
    tables: dict[str, Columns] = {}
    for name, columns in measured.arrays.items():
        rows = columns.where(Frame.from_columns(columns).is_in("source", names) == is_kept)
        if len(rows) or not len(columns):
            tables[name] = rows
    failures, notes = measured.failures, measured.notes
    if is_kept:
        failures, notes = (), tuple(note for note in notes if note.source in names)
    return Measurements(
        tables,
        tuple(source for source in measured.sources if (source.name in names) == is_kept),
        failures,
        notes,
        measured.facts,
        faults=tuple(fault for fault in measured.faults if (fault.source in names) == is_kept),
        graphs=tuple(graph for graph in measured.graphs if (graph.source.name in names) == is_kept),
        pages=tuple(page for page in measured.pages if (page.source.name in names) == is_kept),
    )
