"""The clock of a log: its offset from Unix time, found by the snapshots that the same run wrote.

A log prints local time, often without a year. Only one zone may put every snapshot into the log, between the lines of the
steps before and after its own. Without exactly one such zone the offset is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import NamedTuple

QUARTER_NS, DAY_NS = 900 * 10**9, 86_400 * 10**9

_ODD_ZONES = (-38, -14, 14, 18, 22, 23, 26, 35, 38, 42, 51, 55)
ZONES = tuple(sorted((*range(-48, 57, 4), *_ODD_ZONES)))
"""Offsets of the world's time zones from UTC, in quarters of an hour."""

SLACK_NS = 300 * 10**9
"""A snapshot may end so long before or after its window: lines without a time have that of an earlier line."""

LAST_YEARLESS = 2010
"""Clocks of logs without a year start in 2000; tracekit reads no log as old as that."""


class TimedStep(NamedTuple):
    """A time with its step: of a line on the log's clock, of the end of a snapshot in Unix time."""

    ns: int
    step: int | None


def find_clock_offset(lines: Sequence[TimedStep], snapshots: Sequence[TimedStep]) -> int | None:
    """Find the ns to add to Unix time to get the log's time; None if no zone or several fit."""
    if not lines or not snapshots:
        return None
    spans = _list_spans(lines)
    windows = [(snapshot.ns, *_find_snapshot_window(spans, snapshot.step)) for snapshot in snapshots]
    fits = [
        offset
        for offset in _list_offsets(min(line.ns for line in lines), max(snapshot.ns for snapshot in snapshots))
        if all(low <= ns + offset <= high for ns, low, high in windows)
    ]
    return fits[0] if len(fits) == 1 else None


def add_missing_years(times: Sequence[int | None]) -> list[int | None]:
    """Give the times of lines without a year the year of the first line with one: that in which they are closest to it.

    Trainers print years, vLLM prints none.
    """
    dates = [None if ns is None else _make_date(ns) for ns in times]
    dated = [ns for ns, day in zip(times, dates, strict=True) if ns is not None and day and day.year > LAST_YEARLESS]
    if not dated:
        return list(times)
    return [
        ns if ns is None or day is None or day.year > LAST_YEARLESS else _add_year(ns, day, dated[0])
        for ns, day in zip(times, dates, strict=True)
    ]


def _add_year(ns: int, day: date, near_ns: int) -> int:
    """Move a time to the year in which it is closest to another."""
    year = datetime.fromtimestamp(near_ns // 10**9, UTC).year
    choices = [ns + _count_shift(day, other) for other in (year, year - 1, year + 1)]
    return min(choices, key=lambda choice: abs(choice - near_ns))


def _list_spans(lines: Sequence[TimedStep]) -> dict[int | None, tuple[int, int]]:
    """List the first and the last time of the lines of each step."""
    spans: dict[int | None, tuple[int, int]] = {}
    for line in lines:
        low, high = spans.get(line.step, (line.ns, line.ns))
        spans[line.step] = min(low, line.ns), max(high, line.ns)
    return spans


def _find_snapshot_window(spans: Mapping[int | None, tuple[int, int]], step: int | None) -> tuple[int, int]:
    """Find the times on the log's clock between which a snapshot of a step ends."""
    known = {} if step is None else {other: span for other, span in spans.items() if other is not None}
    before = [high for other, (_, high) in known.items() if step is not None and other < step]
    after = [low for other, (low, _) in known.items() if step is not None and other > step]
    low = max(before) if before else min(low for low, _ in spans.values())
    high = min(after) if after else max(high for _, high in spans.values())
    return low - SLACK_NS, high + SLACK_NS


def _list_offsets(logged_ns: int, unix_ns: int) -> Iterator[int]:
    """List the offsets of all zones; of a log without a year for both years that a snapshot may belong to."""
    logged, recorded = _make_date(logged_ns), _make_date(unix_ns)
    if logged is None or recorded is None:
        return
    years = [recorded.year, recorded.year - 1] if logged.year <= LAST_YEARLESS else [logged.year]
    for year in years:
        for zone in ZONES:
            yield zone * QUARTER_NS - _count_shift(logged, year)


def _make_date(ns: int) -> date | None:
    """Make the date of a time; None if no calendar has it."""
    try:
        return datetime.fromtimestamp(ns // 10**9, UTC).date()
    except (OverflowError, OSError, ValueError):
        return None


def _count_shift(logged: date, year: int) -> int:
    """Count the ns from a date to the same date of another year; to 1 March where that year has no 29 February."""
    try:
        moved = logged.replace(year=year)
    except ValueError:
        moved = date(year, 3, 1)
    return (moved - logged).days * DAY_NS
