"""By how much the clock of each process is off, where collectives tell it beyond doubt."""

from __future__ import annotations

from tracekit.job.collectives import CLOCK, clocks
from tracekit.model.keys import records
from tracekit.model.records import dataclass
from tracekit.model.trace import Measurements

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
    offsets = clocks(measured)
    offsets = offsets[offsets["offset_ns"].notna()]
    numbers = records(offsets, ("offset_ns", "uncertainty_ns", "set"))
    rows = dict(zip(records(offsets, CLOCK), numbers, strict=True))
    captures = measured["captures"]
    hosts: dict[int, set[str | None]] = {}
    where = records(captures, ("host", "absolute_time"))
    for key, (host, absolute) in zip(records(captures, CLOCK), where, strict=True):
        if (row := rows.get(key)) is not None:
            hosts.setdefault(row[2], set()).add(host if absolute else None)
    by_owner = {}
    for key, (offset, spread, number) in rows.items():
        hosts_of_set = hosts.get(number, {None})
        one_host = len(hosts_of_set) == 1 and None not in hosts_of_set
        certain = CERTAIN * spread < abs(offset) < _LARGEST_NS
        used = offset if certain and not one_host else 0
        by_owner[key] = Correction(used, spread, number)
    return by_owner
