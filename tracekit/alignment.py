"""By how much the clock of each process is off, where collectives tell it beyond doubt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from tracekit.matching import CLOCK, clocks
from tracekit.pooling import plain
from tracekit.trace import Measurements

Owner = tuple[str | None, str | None, int | None, int | None]
"""What one clock belongs to: run, role, replica and rank (`matching.CLOCK`), None where unknown."""

CERTAIN = 3
"""A clock is corrected by more than so many times the uncertainty (two sigma, were the errors normal)."""
_LARGEST_NS = 2**61


@dataclass(frozen=True, slots=True)
class Correction:
    """What to take from the times of a process to have those of the first one that it is compared with.

    `offset_ns` is 0 where the clocks agree within `CERTAIN` times `uncertainty_ns`, and where all are of
    one host; `set` numbers those that are compared with one another.
    """

    offset_ns: int
    uncertainty_ns: int
    set: int


def corrections(measured: Measurements) -> dict[Owner, Correction]:
    """The correction of every process whose clock could be compared with another's (M13).

    Processes of one host share its clock: what they seem to be off by is when they left a collective.
    """
    return measured.derived(_corrections)


def _corrections(measured: Measurements) -> dict[Owner, Correction]:
    rows = {
        owner(row): row
        for row in plain(clocks(measured)).astype(object).to_dict("records")
        if not pd.isna(row["offset_ns"])
    }
    captures = plain(measured["captures"])[[*CLOCK, "host", "absolute_time"]].drop_duplicates()
    hosts: dict[int, set[str | None]] = {}
    for capture in captures.astype(object).to_dict("records"):
        if (row := rows.get(owner(capture))) is not None:
            known = capture["absolute_time"] and not pd.isna(capture["host"])
            hosts.setdefault(row["set"], set()).add(str(capture["host"]) if known else None)
    found = {}
    for key, row in rows.items():
        offset, spread = int(row["offset_ns"]), int(row["uncertainty_ns"])
        together = hosts.get(row["set"], {None})
        one_host = len(together) == 1 and None not in together
        certain = CERTAIN * spread < abs(offset) < _LARGEST_NS
        used = offset if certain and not one_host else 0
        found[key] = Correction(used, spread, int(row["set"]))
    return found


def owner(row: Any) -> Owner:
    """Whose clock a row of a measured table was recorded with."""
    run, role, replica, rank = (None if pd.isna(row[name]) else row[name] for name in CLOCK)
    return run, role, replica, rank
