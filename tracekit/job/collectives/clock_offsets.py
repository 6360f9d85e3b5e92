"""Clock offset of each process, as far as collectives determine it reliably."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tracekit.job.collectives.matching import CLOCK, measure_clock_offsets
from tracekit.model.records import dataclass
from tracekit.model.report import ClockOffset
from tracekit.model.tables.keys import CAPTURE
from tracekit.model.trace import Measurements, derive_once

Owner = tuple[str | None, str | None, int | None, int | None]
"""Owner of one clock: run, role, replica and rank (`matching.CLOCK`), None where unknown."""

CERTAIN_SIGMAS = 3
"""Clocks are corrected above this multiple of the uncertainty (two sigma for normal errors)."""
_LARGEST_NS = 2**61


@dataclass(frozen=True, slots=True)
class ClockCorrection:
    """Offset to subtract from the times of a process to get those of the first process it is compared with.

    `offset_ns` is 0 where the clocks agree within `CERTAIN_SIGMAS` times `uncertainty_ns`, and where all processes share a
    host. `set` numbers the processes that are compared with each other.
    """

    offset_ns: int
    uncertainty_ns: int
    set: int


@derive_once
def compute_clock_corrections(measured: Measurements) -> dict[Owner, ClockCorrection]:
    """Compute the clock correction of every process that could be compared with another (M13).

    Processes of one host share its clock: their apparent offset is the difference in leaving a collective.
    """
    clocks = measure_clock_offsets(measured).rows(*CLOCK, "offset_ns", "uncertainty_ns", "set")
    rows = {_make_clock_key(clock): (clock["offset_ns"], clock["uncertainty_ns"], clock["set"]) for clock in clocks}
    hosts: dict[int, set[str | None]] = {}
    for capture in measured.frame("captures").rows(*CLOCK, "host", "absolute_time"):
        if (row := rows.get(_make_clock_key(capture))) is not None:
            hosts.setdefault(row[2], set()).add(capture["host"] if capture["absolute_time"] else None)
    by_owner = {}
    for key, (offset, spread, number) in rows.items():
        hosts_of_set = hosts.get(number, {None})
        one_host = len(hosts_of_set) == 1 and None not in hosts_of_set
        certain = CERTAIN_SIGMAS * spread < abs(offset) < _LARGEST_NS
        used = offset if certain and not one_host else 0
        by_owner[key] = ClockCorrection(used, spread, number)
    return by_owner


def list_clock_offsets(measured: Measurements) -> tuple[ClockOffset, ...]:
    """List the clock of every process that could be compared with another, for the report."""
    corrections = compute_clock_corrections(measured).items()
    return tuple(ClockOffset(*owner, each.offset_ns, each.uncertainty_ns, each.set) for owner, each in corrections)


def _make_clock_key(row: Mapping[str, Any]) -> Owner:
    """Get the owner of the clock of a row with the columns of `CLOCK`."""
    return row["run"], row["role"], row["replica"], row["rank"]


class CaptureClock(NamedTuple):
    """Clock of a capture: subtract `fast_ns` from its times, then compare them within one `group` only."""

    fast_ns: int
    group: tuple[object, ...]


Capture = tuple[str | None, int | None]
"""Source and pid."""


@derive_once
def map_capture_clocks(measured: Measurements) -> Mapping[Capture, CaptureClock]:
    """Map every capture to its clock, the only valid way to compare times of different processes.

    Captures of one group can be compared: their processes share collectives, or run on one known host whose clock counts
    from the epoch. A process without collectives is corrected like the others of its host.
    """
    known = compute_clock_corrections(measured)
    captures = list(measured.frame("captures").rows(*CLOCK, *CAPTURE, "host", "absolute_time"))
    aligned = _map_host_clocks(known, captures)
    by_capture: dict[Capture, CaptureClock] = {}
    for capture in captures:
        source, pid, host = capture["source"], capture["pid"], capture["host"]
        is_on_host = capture["absolute_time"] and host is not None
        if (correction := known.get(_make_clock_key(capture))) is not None:
            clock = CaptureClock(correction.offset_ns, ("collectives", correction.set))
        elif is_on_host and host in aligned:
            clock = aligned[host]
        elif is_on_host:
            clock = CaptureClock(0, ("host", host))
        else:
            clock = CaptureClock(0, ("capture", source, pid))
        by_capture[source, pid] = clock
    return by_capture


def _map_host_clocks(
    by_owner: Mapping[Owner, ClockCorrection], captures: Iterable[Mapping[str, Any]]
) -> dict[str, CaptureClock]:
    """Map each host to the median clock of its compared processes, if all of them are in one set."""
    by_host: dict[str, list[ClockCorrection]] = {}
    for capture in captures:
        host, owner = capture["host"], _make_clock_key(capture)
        if host is not None and capture["absolute_time"] and owner in by_owner:
            by_host.setdefault(host, []).append(by_owner[owner])
    return {
        host: CaptureClock(
            round(statistics.median(each.offset_ns for each in of_host)), ("collectives", of_host[0].set)
        )
        for host, of_host in by_host.items()
        if len({each.set for each in of_host}) == 1
    }
