"""Traits that a set of ranks shares with no other rank: host, GPU model, process group."""

from __future__ import annotations

from collections.abc import Iterator

from tracekit.job.rank_groups import RankGroup
from tracekit.model.tables.frame import Frame
from tracekit.model.text.labels import choose_plural
from tracekit.model.trace import Measurements
from tracekit.model.units import format_ranges

TRAIT_PHRASES = {"host": "of host", "device_name": "with", "group": "of process group"}
"""Traits that ranks may share, the simplest first, and their phrase in a claim."""


def name_rank_set(measured: Measurements, rank_group: RankGroup, ranks: set[int]) -> str:
    """Name a set of ranks: `rank 3`, `all 8 ranks of host node-03`, else their numbers."""
    if len(ranks) == 1:
        return f"rank {next(iter(ranks))}"
    for kind, members in _list_shared_traits(measured, rank_group):
        groups = list(members.group_by(kind).frames())
        for of_value in groups:
            if len(groups) > 1 and set(of_value.values("rank")) == ranks:
                name = of_value.values(kind)[0]
                return f"all {len(ranks)} {choose_plural(len(ranks), 'rank')} {TRAIT_PHRASES[kind]} {name} (ranks {format_ranges(ranks)})"
    return f"ranks {format_ranges(ranks)}"


def _list_shared_traits(measured: Measurements, rank_group: RankGroup) -> Iterator[tuple[str, Frame]]:
    """List (trait, one row per rank and value), as far as recorded."""
    captures = rank_group.select_rows(measured.frame("captures"))
    yield "host", _list_ranks_with_trait(captures, "host")
    yield "device_name", _list_ranks_with_trait(captures, "device_name")
    collectives = rank_group.select_rows(measured.frame("collectives"))
    yield "group", _list_ranks_with_trait(collectives, "group")


def _list_ranks_with_trait(rows: Frame, kind: str) -> Frame:
    """List the distinct ranks and values of rows that have both."""
    return rows.filter(~rows.is_missing("rank") & ~rows.is_missing(kind)).distinct("rank", kind)
