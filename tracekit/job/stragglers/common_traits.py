"""Traits that a set of ranks shares with no other rank: host, GPU model, process group."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from tracekit.job.frames import select_distinct_rows
from tracekit.job.rank_groups import RankGroup
from tracekit.model.tables.keys import group_rows_by
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
        number, first = group_rows_by(members, [kind])
        for place, row in enumerate(first.tolist()):
            if len(first) > 1 and set(members["rank"].to_numpy()[number == place].tolist()) == ranks:
                name = members[kind].iloc[row]
                return f"all {len(ranks)} {choose_plural(len(ranks), 'rank')} {TRAIT_PHRASES[kind]} {name} (ranks {format_ranges(ranks)})"
    return f"ranks {format_ranges(ranks)}"


def _list_shared_traits(measured: Measurements, rank_group: RankGroup) -> Iterator[tuple[str, pd.DataFrame]]:
    """List (trait, one row per rank and value), as far as recorded."""
    captures = rank_group.select_rows(measured["captures"])
    yield "host", _list_ranks_with_trait(captures, "host")
    yield "device_name", _list_ranks_with_trait(captures, "device_name")
    collectives = rank_group.select_rows(measured["collectives"])
    yield "group", _list_ranks_with_trait(collectives, "group")


def _list_ranks_with_trait(rows: pd.DataFrame, kind: str) -> pd.DataFrame:
    """List the distinct ranks and values of rows that have both."""
    is_known = rows["rank"].notna().to_numpy(np.bool_) & rows[kind].notna().to_numpy(np.bool_)
    members = select_distinct_rows(rows[is_known], ["rank", kind])
    return members.astype({"rank": "int64"})
