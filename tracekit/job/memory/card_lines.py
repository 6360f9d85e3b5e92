"""The memory of whole GPUs by the lines of a log: each line is split into parts that sum to the GPU's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracekit.job.memory.log_clock import add_missing_years
from tracekit.model.records import dataclass
from tracekit.model.trace import Measurements, derive_once

MAX_LISTED = 400
"""Most lines that a table lists: the last ones."""

DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class CardLine:
    """One line: `owner` names its process, `logged_ns` is its time; the sizes are None where the line lacks them.

    `change_bytes` is the change of the used memory since the previous line of the process.
    """

    run: str | None
    source: str | None
    owner: str
    line: int
    pid: int | None
    rank: int | None
    device: int | None
    step: int | None
    logged_ns: int | None
    point: str | None
    mark: str | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    used_bytes: int | None
    total_bytes: int | None
    freed_bytes: int | None
    host_used_bytes: int | None
    change_bytes: int | None

    def split(self, counted_bytes: int | None = None) -> dict[str, int | None]:
        """Split the GPU's memory into parts, which sum to the total where all are known.

        With `counted_bytes`, the reserved bytes of a snapshot at the line, PyTorch's part is that: a line rounds it.

        Memory that PyTorch counts beyond the used memory is unmapped for certain. Used memory beyond PyTorch's count
        is outside PyTorch for certain. More of both is possible, in equal amounts.
        """
        reserved, used, total, allocated = self.reserved_bytes, self.used_bytes, self.total_bytes, self.allocated_bytes
        parts: dict[str, int | None] = dict.fromkeys(PARTS)
        if used is None or total is None:
            return parts
        parts["free"] = total - used
        if counted_bytes is not None:
            reserved = counted_bytes
        elif reserved is None or allocated is None or allocated > reserved:
            return parts
        else:
            parts["allocated"], parts["cached"] = allocated, reserved - allocated
        parts["unmapped"] = -max(reserved - used, 0)
        parts["outside"] = max(used - reserved, 0)
        known = sum(size or 0 for size in (counted_bytes, *parts.values()))
        assert known == total, "the parts of a line sum to the GPU's memory"
        return parts


PARTS = ("allocated", "cached", "unmapped", "outside", "free")
"""Parts of a GPU by one line; `unmapped` is negative or 0: PyTorch counts it, the GPU has it back."""


@derive_once
def list_card_lines(measured: Measurements) -> tuple[CardLine, ...]:
    """List the lines of all logs, in order."""
    frame = measured.frame("card_lines")
    lines: list[CardLine] = []
    for log in frame.sort("run", "source", "line").group_by("run", "source").frames():
        last_used: dict[tuple[Any, ...], int] = {}
        for row, logged_ns in zip(log.rows(), add_missing_years(log.values("logged_ns")), strict=True):
            owner = (row["logged_pid"], row["logged_rank"], row["device"])
            used = row["used_bytes"]
            change = None if used is None or owner not in last_used else used - last_used[owner]
            if used is not None:
                last_used[owner] = used
            lines.append(_make_card_line({**row, "logged_ns": logged_ns}, change))
    return tuple(lines)


def _make_card_line(row: Mapping[str, Any], change_bytes: int | None) -> CardLine:
    """Make a line from a row of `card_lines`."""
    names = ("run", "source", "line", "allocated_bytes", "reserved_bytes", "used_bytes", "total_bytes")
    return CardLine(
        **{name: row[name] for name in (*names, "freed_bytes", "host_used_bytes")},
        owner=_name_line_owner(row),
        pid=row["logged_pid"],
        rank=row["logged_rank"],
        device=row["device"],
        step=row["step"],
        logged_ns=row["logged_ns"],
        point=row["point"],
        mark=None if row["mark"] == "none" else row["mark"],
        change_bytes=change_bytes,
    )


def _name_line_owner(row: Mapping[str, Any]) -> str:
    """Name the process that printed a line: `rank 3`, `process 41777`."""
    if row["logged_rank"] is not None:
        return f"rank {row['logged_rank']}"
    return "" if row["logged_pid"] is None else f"process {row['logged_pid']}"


def format_time_of_day(ns: int | None) -> str | None:
    """Format the time of day of a log's clock: `10:00:00`."""
    if ns is None:
        return None
    second = ns // 10**9 % DAY_S
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"


def describe_held_memory(measured: Measurements, snapshot: Mapping[str, Any]) -> str | None:
    """Describe the memory that is really held, by the lines of the process of a snapshot; None without lines.

    `Really held: 110.7 GiB of 139.8 (log line of 10:00:00)`. Lines of all processes on the GPU count the same memory.
    """
    lines = [line for line in list_card_lines(measured) if is_of_process(line, snapshot)]
    held = [(line.used_bytes, line.total_bytes, line) for line in lines if line.used_bytes and line.total_bytes]
    if not held:
        return None
    (low, _, least), (high, total, most) = (pick(held, key=lambda size: size[0]) for pick in (min, max))
    if len(held) == 1:
        time = format_time_of_day(most.logged_ns)
        at = f"log line of {time}" if time else f"line {most.line} of {most.source}"
        return f"Really held: {_format_gib(high)} GiB of {_format_gib(total)} ({at})"
    places = (f"{_format_gib(size)} GiB {_name_place(line)}" for size, line in ((low, least), (high, most)))
    return f"Really held, of {_format_gib(total)} GiB: from {' to '.join(places)} ({len(held)} log lines)"


def is_of_process(line: CardLine, snapshot: Mapping[str, Any]) -> bool:
    """Check whether a line is of the process of a snapshot: by its pid, or its rank if a pid is unknown."""
    if line.run != snapshot["run"]:
        return False
    if line.pid is not None and snapshot["pid"] is not None:
        return bool(line.pid == snapshot["pid"])
    return line.rank is not None and bool(line.rank == snapshot["rank"])


def _name_place(line: CardLine) -> str:
    """Name the place of a line in the run: `at After update_weights`."""
    return f'at "{line.point}"' if line.point else f"in line {line.line}"


def _format_gib(size: int) -> str:
    """Format bytes as GiB with the digit that logs print."""
    return f"{size / 2**30:.1f}"
