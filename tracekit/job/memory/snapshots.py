"""What the questions about memory snapshots share: which snapshot a row is of, and how it is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tracekit.job.frames import text_or_none, whole_or_none
from tracekit.model.keys import equal, row_dicts
from tracekit.model.labels import called, phrase
from tracekit.model.trace import Measurements

SNAPSHOT_KEYS = ("source", "pid", "memory", "device")
"""What tells the memories of all snapshots apart; what is on other tables names no kind of memory."""

UNTOLD = {
    "rest": "smaller ones",
    "freed": "allocated before the recording, freed in it: who asked is not recorded",
    "before": "allocated before the recording, without a stack",
    "empty": "no Python frame: an empty stack was recorded",
    "unknown": "no stack was recorded",
}
"""What stands for a place in the program where none is known."""

NATIVE = " (no Python frame)"
"""What is said of a place that is no Python."""


def snapshot_levels(measured: Measurements) -> pd.DataFrame:
    """The rows of `snapshot_levels`, plain, the highest peak first, with `who`: `rank 3 actor, GPU 0`."""
    return measured.derived(_snapshot_levels).copy(deep=False)


def _snapshot_levels(measured: Measurements) -> pd.DataFrame:
    rows = measured["snapshot_levels"]
    rows = rows.assign(on_host=rows["memory"] == "host")
    by = ["on_host", "peak_bytes", "source"]
    rows = rows.sort_values(by, ascending=[True, False, True], kind="stable", ignore_index=True)
    return rows.assign(who=list(map(who, row_dicts(rows))))


def who(row: Any) -> str:
    """Whose memory: `rank 3 actor, GPU 0`, with the step of its file where it is known."""
    process = called("rank", whole_or_none(row["rank"])) or called(
        "process", whole_or_none(row["pid"])
    )
    memory = called("GPU", whole_or_none(row["device"])) or "GPU"
    if row["memory"] == "host":
        memory = "pinned host memory"
    return f"{phrase(process or 'rank ?', text_or_none(row['role']))}, {memory}"


def of_snapshot(rows: pd.DataFrame, one: pd.Series[Any]) -> pd.DataFrame:
    """The rows about the memory of one row of `snapshot_levels`."""
    keep = np.ones(len(rows), np.bool_)
    for key in SNAPSHOT_KEYS:
        if key in rows:
            keep &= equal(rows[key], one[key])
    return rows[keep]


def said(row: Any) -> str:
    """The place in the program of a row of `live_sites`, or why there is none."""
    site = text_or_none(row.site)
    if site is None:
        return UNTOLD[untold(row)]
    return f"{site}{NATIVE if row.kind == 'native' else ''}"


def untold(row: Any) -> str:
    """Why a row of `live_sites` names no place: a key of `UNTOLD`."""
    key = row.origin if row.origin in ("rest", "freed") else row.kind
    return "before" if key == "unknown" and row.origin == "before" else str(key)
