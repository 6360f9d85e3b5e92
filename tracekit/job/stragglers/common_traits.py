"""Traits that a set of ranks shares with no other rank: host, GPU model, process group."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from tracekit.job.frames import distinct
from tracekit.job.rank_groups import RankGroup
from tracekit.model.keys import of_keys
from tracekit.model.labels import plural
from tracekit.model.trace import Measurements
from tracekit.model.units import numbers

KINDS = {"host": "of host", "device_name": "with", "group": "of process group"}
"""Traits that ranks may share, the simplest first, and their phrase in a claim."""


def named_set(measured: Measurements, rank_group: RankGroup, ranks: set[int]) -> str:
    """Name a set of ranks: `rank 3`, `all 8 ranks of host node-03`, else their numbers."""
    if len(ranks) == 1:
        return f"rank {next(iter(ranks))}"
    for kind, members in _shared(measured, rank_group):
        number, first = of_keys(members, [kind])
        for place, row in enumerate(first.tolist()):
            if (
                len(first) > 1
                and set(members["rank"].to_numpy()[number == place].tolist()) == ranks
            ):
                name = members[kind].iloc[row]
                return f"all {len(ranks)} {plural(len(ranks), 'rank')} {KINDS[kind]} {name} (ranks {numbers(ranks)})"
    return f"ranks {numbers(ranks)}"


def _shared(measured: Measurements, rank_group: RankGroup) -> Iterator[tuple[str, pd.DataFrame]]:
    """List (trait, one row per rank and value), as far as recorded."""
    captures = rank_group.of(measured["captures"])
    yield "host", _known(captures, "host")
    yield "device_name", _known(captures, "device_name")
    collectives = rank_group.of(measured["collectives"])
    yield "group", _known(collectives, "group")


def _known(rows: pd.DataFrame, kind: str) -> pd.DataFrame:
    """List the distinct ranks and values of rows that have both."""
    is_known = rows["rank"].notna().to_numpy(np.bool_) & rows[kind].notna().to_numpy(np.bool_)
    members = distinct(rows[is_known], ["rank", kind])
    return members.astype({"rank": "int64"})
