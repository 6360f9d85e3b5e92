"""Lines that torch's watchdog of collectives prints, in the forms of its versions, in any log.

torch up to 2.4, 2.5–2.6 and from 2.7 on print the status of a group in different words. The lines name the rank that
waited, the group, the collective and its number, which is that of a flight recorder.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import Any

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Columns, make_nullable_numbers
from tracekit.model.tables.hangs import WATCHDOG_LINE

MAX_LINES, MAX_LENGTH, MAX_NAME = 100_000, 4_000, 200
"""Most lines kept of one log, the longest line that is looked at, and the longest name in it."""

WATCHDOG_MARKS = (
    "Watchdog caught collective operation timeout",
    "detected by watchdog at work",
    "Timeout at NCCL work",
    "watchdog got stuck for",
    "Observed flight recorder dump signal",
    "Stack trace of the failed collective not found",
)
"""Every line of the watchdog contains one."""

_RANK = re.compile(r"\[Rank ([0-9]{1,6})\]|(?<=[ \[])Rank ([0-9]{1,6})\]|\[rank([0-9]{1,6})\]")
_GROUP = re.compile(
    r"\[PG (?:ID )?(?P<id>[0-9]{1,9})(?: PG GUID (?P<guid>[^\s(\]]{1,100})(?:\((?P<desc>[^)\]]{0,200})\))?)? Rank"
)
_WORK = re.compile(
    r"WorkNCCL\(SeqNum=(?P<seq>[0-9]{1,18}), OpType=(?P<op>[A-Za-z_0-9]{1,60})(?:, NumelIn=(?P<numel_in>[0-9]{1,18}))?"
    r"(?:, NumelOut=(?P<numel_out>[0-9]{1,18}))?(?:, Timeout\(ms\)=(?P<timeout>[0-9]{1,12}))?\)"
    r"(?: ran for (?P<ran>[0-9]{1,12}) milliseconds)?"
)
_STATUS = re.compile(
    r"(?:detected by watchdog at work: (?P<old>[0-9]{1,18})"
    r"|Timeout at NCCL work: (?P<middle>[0-9]{1,18})"
    r"|detected by watchdog at work sequence id: (?P<new>[0-9]{1,18}))"
)
_ENQUEUED = re.compile(r"last enqueued (?:NCCL )?work: (-?[0-9]{1,18})")
_COMPLETED = re.compile(r"last completed (?:NCCL )?work: (-?[0-9]{1,18})")
_STUCK = re.compile(r"watchdog got stuck for ([0-9]{1,9}) seconds")


def has_watchdog_line(text: str) -> bool:
    """Check whether the watchdog printed into a text."""
    return any(mark in text for mark in WATCHDOG_MARKS)


@dataclass(slots=True)
class WatchdogLines:
    """Lines found so far, as rows, and the number of those beyond the limit."""

    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    over: int = 0

    def make_tables(self) -> dict[str, Columns]:
        """Make the table of the lines; none without any."""
        return {"watchdog_lines": self.make_table()} if self.rows else {}

    def make_table(self) -> Columns:
        """Make the table `watchdog_lines`."""
        columns: dict[str, Any] = {}
        for name, column in WATCHDOG_LINE.items():
            values = [row.get(name) for row in self.rows]
            numeric = column.dtype == "Int64"
            columns[name] = make_nullable_numbers(values) if numeric else values
        columns["line"] = np.array(columns["line"], np.int64)
        return TABLES["watchdog_lines"].cast(columns, len(self.rows))


def add_watchdog_line(line: str, number: int, log: WatchdogLines) -> None:
    """Add the line to the log if the watchdog printed it."""
    if len(line) > MAX_LENGTH or not has_watchdog_line(line):
        return
    if len(log.rows) >= MAX_LINES:
        log.over += 1
        return
    log.rows.append({"line": number, "printed_by": _find_printing_rank(line), **_find_group(line), **_parse_kind(line)})


def _find_printing_rank(line: str) -> int | None:
    """Find the rank in the prefix of the launcher, or in the watchdog's own."""
    numbers = [(match[1] or match[2], match[3]) for match in _RANK.finditer(line)]
    own = next((number for number, _ in numbers if number), None)
    launcher = next((number for _, number in numbers if number), None)
    # `[rank3]` is global; the prefix of a group gives the rank in the group.
    found = launcher or own
    return None if found is None else int(found)


def _find_group(line: str) -> dict[str, Any]:
    """Find the group: torch up to 2.4 prints its number, later versions also its name and description."""
    match = _GROUP.search(line)
    if match is None:
        return {}
    return {"group": match["guid"] or match["id"], "group_desc": match["desc"]}


def _parse_kind(line: str) -> dict[str, Any]:
    """Parse the rest of a line by its kind."""
    if match := _WORK.search(line):
        return {
            "kind": "timeout",
            "seq": int(match["seq"]),
            "op": match["op"],
            "elements_in": _parse_optional(match["numel_in"]),
            "elements_out": _parse_optional(match["numel_out"]),
            "timeout_ns": _scale_optional(match["timeout"], 1_000_000),
            "waited_ns": _scale_optional(match["ran"], 1_000_000),
        }
    if match := _STATUS.search(line):
        enqueued, completed = _ENQUEUED.search(line), _COMPLETED.search(line)
        return {
            "kind": "status",
            "seq": int(match["old"] or match["middle"] or match["new"]),
            "last_enqueued": int(enqueued[1]) if enqueued else None,
            "last_completed": int(completed[1]) if completed else None,
        }
    if match := _STUCK.search(line):
        return {"kind": "heartbeat", "waited_ns": _scale_optional(match[1], 1_000_000_000)}
    return {"kind": "signal" if "dump signal" in line else "no-recorder"}


def _parse_optional(text: str | None) -> int | None:
    """Parse a number that may be missing."""
    return None if text is None else int(text)


def _scale_optional(text: str | None, factor: int) -> int | None:
    """Parse a number that may be missing, in ns."""
    return None if text is None else int(text) * factor
