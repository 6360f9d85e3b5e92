"""Shared by the questions about memory snapshots: which snapshot a row is of, and how it is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracekit.model.stages import get_canonical_stage
from tracekit.model.tables.arrays import Coded, select_rows
from tracekit.model.tables.frame import Frame, texts
from tracekit.model.text.labels import format_numbered_word, join_phrase, name_rank_or_pid
from tracekit.model.trace import Measurements, derive_once

SNAPSHOT_KEYS = ("source", "pid", "memory", "device")
"""Identify the memories of all snapshots; tables about other things than memories of snapshots lack `memory`."""

UNTOLD = {
    "rest": "smaller ones",
    "freed": "allocated before the recording, freed in it: who asked is not recorded",
    "before": "allocated before the recording, without a stack",
    "empty": "no Python frame: an empty stack was recorded",
    "unknown": "no stack was recorded",
}
"""Shown instead of a place in the program where none is known."""

NATIVE = " (no Python frame)"
"""Follows the name of a place outside Python."""


@derive_once
def snapshot_levels(measured: Measurements) -> Frame:
    """Return `snapshot_levels` with the owner `who` (`rank 3 actor, GPU 0`): GPUs first, the highest peak first."""
    levels = measured.frame("snapshot_levels")
    owners = [_name_owner(row) for row in levels.rows("rank", "pid", "role", "memory", "device")]
    levels = levels.with_columns(who=texts(owners), on_host=levels.equals("memory", "host"))
    return levels.sort("on_host", "peak_bytes", "source", descending=["peak_bytes"])


def _name_owner(row: Mapping[str, Any]) -> str:
    """Name the owner of a memory: `rank 3 actor, GPU 0`; only the memory if the process is unknown."""
    memory = format_numbered_word("GPU", row["device"]) or "GPU"
    if row["memory"] == "host":
        memory = "pinned host memory"
    process = join_phrase(name_rank_or_pid(row["rank"], row["pid"]), row["role"])
    return f"{process}, {memory}" if process else memory


def take_snapshot(rows: Frame, snapshot: Mapping[str, Any]) -> Frame:
    """Keep the rows about the memory of one row of `snapshot_levels`."""
    keep = np.ones(len(rows), np.bool_)
    for key in SNAPSHOT_KEYS:
        if key in rows.columns:
            keep &= rows.equals(key, snapshot[key])
    return rows.filter(keep)


def name_ranges(rows: Frame, column: str = "stage") -> Coded:
    """Return the canonical name of the range of each row: in snapshots every range counts, stage or not."""
    ranges = rows.group_by(column, "role")
    names = [
        None if row[column] is None else get_canonical_stage(row[column], row["role"]) for row in ranges.agg().rows()
    ]
    return select_rows(texts(names), ranges.number)


def name_site(site: str | None, kind: str, reason: str) -> str:
    """Name a place in the program; without one explain why (a key of `UNTOLD`)."""
    if site is None:
        return UNTOLD[reason]
    return f"{site}{NATIVE if kind == 'native' else ''}"


def find_reason(origin: str, kind: str) -> str:
    """Return why a row of `live_sites` names no place: a key of `UNTOLD`."""
    if origin in ("rest", "freed"):
        return origin
    return "before" if (origin, kind) == ("before", "unknown") else kind
