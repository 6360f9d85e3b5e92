"""One timeline of a GPU's memory: holders by snapshots and lines of the log, on the log's clock where both clocks join."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tracekit.job.memory.card_lines import CardLine, format_time_of_day, is_of_process
from tracekit.job.memory.log_clock import TimedStep, find_clock_offset
from tracekit.model.inputs.memory_pieces import HOLDERS
from tracekit.model.inputs.timeline import EngineState
from tracekit.model.records import dataclass
from tracekit.model.tables.frame import Frame

LEAST_UNIX_NS = 10**17
"""Times of a snapshot before this are not Unix times."""

ROUNDING_BYTES = 2**30 // 100
"""Logs print GiB with two decimals; two roundings make less than this."""

ROUNDED_UP_RATIO = 0.05
"""The allocator rounds requests up by at most this share: a line counts rounded bytes, a snapshot requested ones."""

PRECISION_NS = 10**9
"""Logs print whole seconds."""

NO_STEP = 2**63

HIDDEN = ("begin", "pause")
"""Moments of snapshots that only show the holders at lines of the log."""

_OF_TRAINER = re.compile(r"actor|critic|\bref|optim|grad|param|model|fsdp|megatron|trainer", re.IGNORECASE)
_WEIGHTS, _KV_CACHE = re.compile("weights", re.IGNORECASE), re.compile("kv_?cache", re.IGNORECASE)

Row = dict[str, Any]


@dataclass(slots=True)
class CardMoment:
    """One row of the timeline: a moment of a snapshot, or a line of a log.

    `unix_ns` is None where no clock is known. `holders` are bytes by holder; of a line they are those of the snapshot at
    that moment, None where no snapshot shows them. `engine` is `asleep`, `awake`, `partly awake` or None.
    """

    run: str | None
    who: str
    moment: str
    step: int | None
    unix_ns: int | None
    time: str | None = None
    mark: str | None = None
    engine: str | None = None
    holders: Mapping[str, int] | None = None
    counted: int | None = None
    pausable: int | None = None
    pinned: int | None = None
    host_used: int | None = None
    host_change: int | None = None
    source: str | None = None
    line: CardLine | None = None

    def get_split(self) -> dict[str, int | None]:
        """Split the GPU by the line: counted bytes, `unmapped`, `outside` and `free` sum to its memory; {} without a line."""
        return {} if self.line is None else self.line.split(self.counted if self.holders is not None else None)


def find_engine_state(point: str | None, mark: str | None) -> str | None:
    """Find the state of the engine after a line with a mark; None if the line does not show it.

    >>> find_engine_state("After rollout offload", "sleep"), find_engine_state("Before rollout offload", "sleep")
    ('asleep', None)
    >>> find_engine_state("After resume weights", "wake"), find_engine_state("After offload actor optimizer", "sleep")
    ('partly awake', None)
    """
    name = point or ""
    if mark is None or name.lower().startswith("before") or _OF_TRAINER.search(name):
        return None
    if mark == "sleep":
        return "asleep"
    return "partly awake" if _WEIGHTS.search(name) and not _KV_CACHE.search(name) else "awake"


def list_card_moments(moments: Frame, lines: Sequence[CardLine]) -> list[CardMoment]:
    """List the rows of all runs in order of time; without a common clock in order of steps, lines before snapshots.

    `moments` are rows of `card_holders` with the columns `who` and `pinned_bytes`.
    """
    every = list(moments.rows())
    timeline: list[CardMoment] = []
    for run in sorted({*(row["run"] for row in every), *(line.run for line in lines)}, key=lambda run: run or ""):
        of_run = [row for row in every if row["run"] == run]
        timeline += _list_moments_of_run(of_run, [line for line in lines if line.run == run])
    return timeline


def _list_moments_of_run(rows: Sequence[Row], lines: Sequence[CardLine]) -> list[CardMoment]:
    """List the rows of one run in order."""
    offsets = {source: _find_offset(rows, lines, source) for source in sorted({line.source or "" for line in lines})}
    joined = [offset for offset in offsets.values() if offset is not None]
    shown = [_make_snapshot_moment(row, joined[0] if joined else None) for row in rows if row["moment"] not in HIDDEN]
    # A line is placed by its clock, and later ones of its log not before it.
    latest: dict[str, int] = {}
    finder = _HolderFinder(rows)
    for place, line in enumerate(lines):
        source = line.source or ""
        offset = offsets[source]
        until = next((other.logged_ns for other in lines[place + 1 :] if _is_later(other, line)), None)
        moment = _make_line_moment(line, offset, until, finder)
        if moment.unix_ns is not None:
            latest[source] = moment.unix_ns = max(moment.unix_ns, latest.get(source, moment.unix_ns))
        shown.append(moment)
    has_clock = bool(joined) or not lines
    shown.sort(key=lambda moment: _order_moment(moment, has_clock=has_clock))
    _follow_engines(shown, has_clock=has_clock)
    return shown


def _is_later(other: CardLine, line: CardLine) -> bool:
    """Check whether another line of the same log has a later time."""
    return (
        other.source == line.source
        and other.logged_ns is not None
        and line.logged_ns is not None
        and other.logged_ns > line.logged_ns
    )


def _find_offset(rows: Iterable[Row], lines: Iterable[CardLine], source: str) -> int | None:
    """Find the offset of one log's clock from Unix time; None if unknown."""
    of_log = [
        TimedStep(line.logged_ns, line.step)
        for line in lines
        if line.logged_ns is not None and (line.source or "") == source
    ]
    ends = [TimedStep(row["at_ns"], row["step"]) for row in rows if row["moment"] == "end" and _has_unix_time(row)]
    return find_clock_offset(of_log, ends)


def _has_unix_time(row: Row) -> bool:
    """Check whether a moment of a snapshot has a Unix time."""
    return row["at_ns"] is not None and row["at_ns"] >= LEAST_UNIX_NS


def _make_snapshot_moment(row: Row, offset: int | None) -> CardMoment:
    """Make the row of a moment of a snapshot; its time is on the log's clock if the offset is known."""
    unix_ns = row["at_ns"] if _has_unix_time(row) else None
    time = None
    if unix_ns is not None:
        time = format_time_of_day(unix_ns + (offset or 0))
        time = time if offset is not None else f"{time} UTC"
    return CardMoment(
        row["run"],
        row["who"],
        row["moment"],
        row["step"],
        unix_ns,
        time,
        holders={name: row[f"{name}_bytes"] for name in HOLDERS},
        counted=row["counted_bytes"],
        pausable=row["pausable_bytes"],
        pinned=row["pinned_bytes"],
        source=row["source"],
    )


def _make_line_moment(line: CardLine, offset: int | None, until: int | None, finder: _HolderFinder) -> CardMoment:
    """Make the row of a line; with the holders of the snapshot that shows the same memory at that time."""
    made = CardMoment(
        line.run,
        finder.name_owner(line),
        line.point or "",
        line.step,
        None,
        format_time_of_day(line.logged_ns),
        line.mark,
        counted=line.reserved_bytes,
        host_used=line.host_used_bytes,
        line=line,
    )
    if offset is None or line.logged_ns is None:
        return made
    made.unix_ns = line.logged_ns - offset
    found = finder.find_holders(line, made.unix_ns, max(until or 0, line.logged_ns) - offset + PRECISION_NS)
    if found is not None:
        made.holders = {name: found[f"{name}_bytes"] for name in HOLDERS}
        made.counted, made.pausable = found["counted_bytes"], found["pausable_bytes"]
        made.step = found["step"] if made.step is None else made.step
        made.unix_ns = max(made.unix_ns, found["at_ns"])
    return made


class _HolderFinder:
    """Finds the moment of a snapshot at a line: each process is followed in order of time."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """Sort the moments of each process by time."""
        self.firsts: dict[str, Row] = {}
        self.owners: dict[str, list[Row]] = {}
        for row in rows:
            self.firsts.setdefault(row["who"], row)
            if _has_unix_time(row):
                self.owners.setdefault(row["who"], []).append(row)
        for of_owner in self.owners.values():
            of_owner.sort(key=_get_time)
            for place, (row, following) in enumerate(pairwise(of_owner)):
                # Nothing is recorded between two snapshots; equal memory at both sides counts as unchanged.
                if row["until_ns"] is None and following["moment"] == "begin" and not _differs(row, following):
                    of_owner[place] = {**row, "until_ns": following["at_ns"]}
        self.last_ns: dict[str, int] = {}

    def find_owner(self, line: CardLine) -> str | None:
        """Find the memory of a snapshot that a line is about; None for none or several."""
        owners = [
            who
            for who, first in self.firsts.items()
            if is_of_process(line, first) and line.device in (None, first["device"])
        ]
        return owners[0] if len(owners) == 1 else None

    def name_owner(self, line: CardLine) -> str:
        """Name the owner of a line as that of its snapshots, or its process without snapshots."""
        return self.find_owner(line) or line.owner

    def find_holders(self, line: CardLine, begin_ns: int, end_ns: int) -> Row | None:
        """Find the first moment between two times at which a snapshot has the memory of a line.

        It is not before that of an earlier line. None if there is none, or if several such moments differ in a holder.
        """
        who = self.find_owner(line)
        if who is None or line.reserved_bytes is None or line.allocated_bytes is None:
            return None
        rows = self.owners.get(who, [])
        # The last moment before the begin may last until then.
        place = max(bisect_right(rows, begin_ns, key=_get_time) - 1, 0)
        first_ns = max(_get_time(rows[place]), self.last_ns.get(who, 0)) if rows else 0
        between = rows[bisect_left(rows, first_ns, key=_get_time) : bisect_right(rows, end_ns, key=_get_time)]
        matches = [row for row in between if _lasts_until(row, begin_ns) and _has_memory_of_line(row, line)]
        if not matches or any(_differs(row, matches[0]) for row in matches):
            return None
        self.last_ns[who] = matches[0]["at_ns"]
        return matches[0]


def _get_time(row: Row) -> int:
    """Get the time of a moment that has one."""
    return int(row["at_ns"])


def _lasts_until(row: Row, ns: int) -> bool:
    """Check whether a moment lasts until a time; without a known end it is an instant."""
    return bool((row["until_ns"] or row["at_ns"]) >= ns)


def _has_memory_of_line(row: Row, line: CardLine) -> bool:
    """Check whether a moment has the memory that a line prints, to the precision of both."""
    in_use = row["counted_bytes"] - row["pool_cache_bytes"] - row["cache_bytes"]
    allocated = line.allocated_bytes or 0
    is_in_use_alike = allocated * (1 - ROUNDED_UP_RATIO) - ROUNDING_BYTES <= in_use <= allocated + ROUNDING_BYTES
    return bool(is_in_use_alike and abs(row["counted_bytes"] - (line.reserved_bytes or 0)) <= ROUNDING_BYTES)


def _differs(row: Row, other: Row) -> bool:
    """Check whether two moments differ in a holder by more than a log rounds."""
    return any(abs(row[f"{name}_bytes"] - other[f"{name}_bytes"]) > ROUNDING_BYTES for name in HOLDERS)


def _order_moment(moment: CardMoment, *, has_clock: bool) -> tuple[bool, int, bool, int]:
    """Order rows by time on a common clock, or by step without one; rows without either are last."""
    line = 0 if moment.line is None else moment.line.line
    if has_clock and moment.unix_ns is not None:
        return False, moment.unix_ns, moment.line is None, line
    return has_clock, NO_STEP if moment.step is None else moment.step, moment.line is None, line


def _follow_engines(timeline: Iterable[CardMoment], *, has_clock: bool) -> None:
    """Set the state of the engine at each row: that after the last line before it with a mark of its process.

    A line without a process is about all processes. Snapshots without a common clock have no place between lines.
    """
    of_all: str | None = None
    of_owner: dict[str, str] = {}
    for moment in timeline:
        state = find_engine_state(moment.moment, moment.mark) if moment.line is not None else None
        if state is not None and moment.who:
            of_owner[moment.who] = state
        elif state is not None:
            of_all = state
            of_owner.clear()
        if moment.line is not None or (has_clock and moment.unix_ns is not None):
            moment.engine = of_owner.get(moment.who, of_all)


def list_engine_states(timeline: Iterable[CardMoment]) -> Iterator[EngineState]:
    """List the states of the engine in order, for each snapshot whose process has lines on a common clock."""
    moments = list(timeline)
    owners = {(moment.run, moment.source): moment.who for moment in moments if moment.source is not None}
    for moment in moments:
        state = find_engine_state(moment.moment, moment.mark) if moment.line is not None else None
        if state is None or moment.unix_ns is None:
            continue
        for (run, source), who in owners.items():
            if run == moment.run and moment.who in (who, ""):
                yield EngineState(run or "", source or "", moment.unix_ns, state)


def insert_host_values(timeline: list[CardMoment], values: Iterable[tuple[str | None, str, int, int]]) -> None:
    """Insert the used memory of the host that a log gives for a step, as (run, name, step, bytes), after the rows of the step."""
    last_row = {(moment.run, moment.step): place for place, moment in enumerate(timeline)}
    last_run = {moment.run: place for place, moment in enumerate(timeline)}
    before: dict[tuple[str | None, str], int] = {}
    inserted: list[tuple[int, CardMoment]] = []
    for run, name, step, used in values:
        place = last_row.get((run, step), last_run.get(run, len(timeline)))
        change = used - before[run, name] if (run, name) in before else None
        inserted.append((place, CardMoment(run, "host", name, step, None, host_used=used, host_change=change)))
        before[run, name] = used
    rows = sorted([*enumerate(timeline), *inserted], key=lambda row: row[0])
    timeline[:] = [moment for _, moment in rows]


def list_bar_parts(moment: CardMoment) -> Iterator[tuple[str, int]]:
    """List the parts of a bar. They sum to the GPU's memory where a line gives it; other bars sum to the counted bytes.

    While memory is unmapped, the pools that may be are one part, `mapped_pools`: an upper bound of their memory.
    """
    split = moment.get_split()
    parts = dict(moment.holders) if moment.holders is not None else _list_unsplit_parts(split)
    unmapped = -(split.get("unmapped") or 0)
    of_pools = sum(parts.get(name, 0) for name in ENGINE_HOLDERS)
    if unmapped and unmapped <= of_pools:
        parts = {name: size for name, size in parts.items() if name not in ENGINE_HOLDERS}
        parts["mapped_pools"] = of_pools - unmapped
    elif unmapped:
        parts = {"in_use": sum(parts.values()) - unmapped}
    if not parts and moment.line is not None and moment.line.used_bytes is not None:
        parts = {"used": moment.line.used_bytes}
    yield from parts.items()
    yield from ((name, size) for name in ("outside", "free") if (size := split.get(name)) is not None)


ENGINE_HOLDERS = ("weights", "kv_cache", "regions", "unknown", "pool_cache")
"""Holders in pools that may be unmapped."""


def _list_unsplit_parts(split: Mapping[str, int | None]) -> dict[str, int]:
    """List the parts of PyTorch at a line without holders."""
    allocated, cached = split.get("allocated"), split.get("cached")
    return {} if allocated is None or cached is None else {"in_use": allocated, "cache": cached}
