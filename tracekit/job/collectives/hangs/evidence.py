"""Evidence about a hang from other files: stacks of threads, lines of watchdogs, counts of NCCL RAS, and traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tracekit.job.collectives.hangs.dumps import GroupKey
from tracekit.model.records import dataclass
from tracekit.model.tables.frame import Frame
from tracekit.model.trace import Measurements
from tracekit.process.collectives.names import make_group_key, parse_collective_op


@dataclass(frozen=True, slots=True)
class RankStack:
    """The main thread of one rank."""

    frame: str | None
    stack: str | None
    source: str


@dataclass(frozen=True, slots=True)
class Timeout:
    """A collective in which ranks timed out, by the lines of their watchdog.

    `other_ranks` printed a line of the watchdog, but no timeout of this collective.
    """

    group: str | None
    seq: int
    op: str
    ranks: tuple[int, ...]
    other_ranks: tuple[int, ...]
    waited_ns: int | None
    source: str


@dataclass(frozen=True, slots=True)
class FrozenCount:
    """A communicator whose ranks launched different numbers of operations, unchanged between two reports of RAS."""

    communicator: str
    op: str
    parts: tuple[tuple[int, int, tuple[int, ...]], ...]
    """Per count: (operations launched, number of ranks, the ranks as far as listed), the smallest count first."""
    samples: int
    source: str


def select_run(frame: Frame, run: str | None) -> Frame:
    """Select the rows of one run."""
    return frame.filter(frame.equals("run", run))


def collect_stacks(measured: Measurements, run: str | None) -> dict[int, RankStack]:
    """Collect the stack of each rank's main thread; without one named so, the thread that the file lists last.

    A file without a rank in its name is joined with a traced process of its pid.

    faulthandler names no thread, and lists the main thread last.
    """
    stacks: dict[int, RankStack] = {}
    rank_of = _map_pids_to_ranks(measured, run)
    rows = select_run(measured.frame("hang_stacks"), run)
    for row in rows.rows("rank", "pid", "is_main", "frame", "stack", "source", "has_main"):
        rank = row["rank"] if row["rank"] is not None else rank_of.get(row["pid"])
        if rank is not None and row["stack"] and (row["is_main"] or not row["has_main"]):
            stacks[rank] = RankStack(row["frame"], row["stack"], row["source"])
    return stacks


def _map_pids_to_ranks(measured: Measurements, run: str | None) -> dict[int, int]:
    """Map the processes of the run's traces to their ranks; a process id of several ranks is left out."""
    ranks: dict[int, set[int]] = {}
    for row in select_run(measured.frame("captures"), run).rows("pid", "rank"):
        if row["pid"] is not None and row["rank"] is not None:
            ranks.setdefault(row["pid"], set()).add(row["rank"])
    return {pid: next(iter(of_pid)) for pid, of_pid in ranks.items() if len(of_pid) == 1}


def count_unranked_stacks(measured: Measurements, run: str | None) -> int:
    """Count the files of stacks whose rank is unknown: neither in the name, nor that of a traced process."""
    rank_of = _map_pids_to_ranks(measured, run)
    rows = select_run(measured.frame("hang_stacks"), run).rows("rank", "pid", "source")
    return len({row["source"] for row in rows if row["rank"] is None and row["pid"] not in rank_of})


def list_timeouts(measured: Measurements, run: str | None) -> list[Timeout]:
    """List the collectives in which the watchdog says that ranks timed out, the first number of a group first."""
    lines = select_run(measured.frame("hang_lines"), run)
    rows = [row for row in lines.rows(*lines.columns) if _get_printing_rank(row) is not None]
    printed = {_get_printing_rank(row) for row in rows if row["kind"] != "heartbeat"}
    groups = {(row["source"], _get_printing_rank(row), row["seq"]): row for row in rows if row["kind"] == "status"}
    found: dict[tuple[str | None, int, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["kind"] == "timeout":
            status = groups.get((row["source"], _get_printing_rank(row), row["seq"]))
            found.setdefault((_title_status_group(status), row["seq"], row["op"] or "?"), []).append(row)
    timeouts = [_make_timeout(key, of_work, printed) for key, of_work in found.items()]
    return sorted(timeouts, key=lambda timeout: (timeout.group or "", timeout.seq, -len(timeout.ranks), timeout.op))


def _make_timeout(
    key: tuple[str | None, int, str], rows: Sequence[Mapping[str, Any]], printed: Collection[int | None]
) -> Timeout:
    """Make the timeout of one collective from the lines about it; `printed` are all ranks that printed any."""
    ranks = {_get_printing_rank(row) for row in rows}
    waited = [row["waited_ns"] for row in rows if row["waited_ns"] is not None]
    others = tuple(sorted(rank for rank in printed if rank is not None and rank not in ranks))
    known = tuple(sorted(rank for rank in ranks if rank is not None))
    return Timeout(*key, known, others, max(waited, default=None), rows[0]["source"])


def _get_printing_rank(row: Mapping[str, Any]) -> int | None:
    """Get the rank that printed a line: as printed, or that of the log's name."""
    rank: int | None = row["printed_by"] if row["printed_by"] is not None else row["rank"]
    return rank


def _title_status_group(status: Mapping[str, Any] | None) -> str | None:
    """Title the group of a status line."""
    if status is None:
        return None
    title: str | None = status["group_desc"] or (f"group {status['group']}" if status["group"] else None)
    return title


def was_recorder_off(measured: Measurements, run: str | None) -> bool:
    """Check whether a watchdog says that it found no flight recorder."""
    lines = select_run(measured.frame("hang_lines"), run)
    return bool(lines.is_in("kind", ("no-recorder",)).any())


def list_frozen_counts(measured: Measurements, run: str | None) -> list[FrozenCount]:
    """List the communicators whose ranks differ in two reports in the same way. One report proves nothing."""
    rows = select_run(measured.frame("hang_counts"), run)
    rows = rows.filter(~rows.is_missing("launched"))
    seen: dict[tuple[str, str], list[tuple[str, tuple[tuple[int, int, tuple[int, ...]], ...]]]] = {}
    for part in rows.group_by("source", "sample", "communicator", "op").frames() if len(rows) else ():
        values = list(part.rows("launched", "rank_count", "ranks"))
        parts = tuple(
            sorted((row["launched"], row["rank_count"] or 0, _parse_listed_ranks(row["ranks"])) for row in values)
        )
        key = part.values("communicator")[0] or "?", part.values("op")[0] or "?"
        seen.setdefault(key, []).append((part.values("source")[0], parts))
    return list(_select_frozen(seen))


def _parse_listed_ranks(text: str | None) -> tuple[int, ...]:
    """Parse ranks that are listed as `3,12`."""
    return tuple(map(int, text.split(","))) if text else ()


def _select_frozen(
    seen: Mapping[tuple[str, str], Sequence[tuple[str, tuple[tuple[int, int, tuple[int, ...]], ...]]]],
) -> Iterator[FrozenCount]:
    """Select the counts that differ between ranks and are the same in all of at least two reports."""
    for (communicator, op), samples in seen.items():
        source, parts = samples[0]
        if len(samples) > 1 and len(parts) > 1 and all(other == parts for _, other in samples):
            yield FrozenCount(communicator, op, parts, len(samples), source)


@dataclass(frozen=True, slots=True)
class TracedCollective:
    """The collective of a hang in traces of the run: how often and how long, and in which stage.

    `is_same`: the traces contain the very collective, by its number; otherwise others of its operation and group.
    """

    count: int
    median_ns: int
    stage: str | None
    is_same: bool


def find_traced_collective(
    measured: Measurements, run: str | None, key: GroupKey, op: str, seq: int
) -> TracedCollective | None:
    """Find the collective of a hang in the traces of the run, by its group and number, or by group and operation."""
    rows = select_run(measured.frame("collectives"), run)
    if not len(rows):
        return None
    ranks = tuple(key[2].split(",")) if key[2] else ()
    rows = rows.filter(rows.equals("group", make_group_key(key[0], ranks)) & rows.equals("op", parse_collective_op(op)))
    same = rows.filter(~rows.is_missing("seq") & (rows.integers("seq") == seq))
    chosen = same if len(same) else rows
    if not len(chosen):
        return None
    stages = Counter(stage for stage in chosen.values("stage") if stage)
    stage = stages.most_common(1)[0][0] if stages else None
    return TracedCollective(len(chosen), int(np.median(chosen.integers("dur_ns"))), stage, bool(len(same)))
