"""Lanes of the timeline: the place of each process, and the shift of its clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from tracekit.job.collectives.clock_offsets import Owner, compute_clock_corrections
from tracekit.model.records import dataclass
from tracekit.model.tables.frame import Frame, concat, min_of
from tracekit.model.text.labels import format_numbered_word, join_phrase
from tracekit.model.trace import Measurements, Source

LaneProcess = tuple[str, str | None, int | None, int | None, str | None, str]
"""(run, role, replica, rank, host, pid or, where that is unknown, the name of the source)."""

NOTES, HOST = 0, 1
"""Places of a process: its annotations, its own threads; then its devices, and other processes' threads."""
FIRST_DEVICE, UNKNOWN_DEVICE, FIRST_OTHER = 2, 999, 1_000
_ROOM = 65_536
_LARGEST_PID = 2**31 - 1
_MIN_EPOCH_NS = 10**17
"""Later times count from the Unix epoch; an earlier one in such a trace is an invalid row."""
LEAD_NS = 1_000 * 10**9
"""Time between zero and the first ops; viewers drop events before zero, such as the profiler's own span."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One process in one source: its number, its name, and the shift of its times.

    A time t of the source is drawn at t − shift_ns. `offset_ns` is the part of the shift that corrects the rank's clock
    relative to the first rank (None: not corrected), with an uncertainty of ± `uncertainty_ns`. `trace_number` makes the
    ids of this process unique: two processes in one nsys report share their ids.
    """

    number: int
    name: str
    room: int
    source: Source
    source_number: int
    trace_number: int
    shift_ns: int
    offset_ns: int | None = None
    uncertainty_ns: int | None = None

    def pid(self, place: int) -> int:
        """Make the process id of one place of this process; never 0."""
        return (self.number + 1) * self.room + min(place, self.room - 1)

    def device(self, device: int | None) -> int:
        """Get the place of a device."""
        if device is None or not 0 <= device < UNKNOWN_DEVICE - FIRST_DEVICE:
            return UNKNOWN_DEVICE
        return FIRST_DEVICE + device


@dataclass(frozen=True, slots=True)
class TimelinePlan:
    """Every lane in drawing order, and the instant at zero.

    `zero_ns` is None if no clock counts from the epoch. `apart` describes the lanes that are not on the common clock.
    """

    lanes: tuple[Lane, ...]
    zero_ns: int | None
    apart: tuple[str, ...] = ()

    def of_source(self) -> Mapping[str, tuple[Lane, ...]]:
        """Group the lanes by source name."""
        lanes: dict[str, tuple[Lane, ...]] = {}
        for lane in self.lanes:
            lanes[lane.source.name] = (*lanes.get(lane.source.name, ()), lane)
        return lanes

    def processes(self) -> list[Lane]:
        """List the first lane of every process."""
        return list(index_lanes(self.lanes).values())[::-1]


def index_lanes(lanes: Sequence[Lane]) -> dict[int, Lane]:
    """Index the first lane of every process by its number, last process first."""
    return {lane.number: lane for lane in reversed(lanes)}


def find_lane(lanes: Sequence[Lane], pid: int | None) -> Lane | None:
    """Find the lane of a process among those of its source; None if it is not drawn."""
    for lane in lanes:
        if lane.source.pid == pid:
            return lane
    return None


def plan_timeline(measured: Measurements, *, correct_clocks: bool = True) -> TimelinePlan:
    """Plan the lanes of all traces in these measurements; logs are not drawn.

    Corrects the clocks of ranks on several hosts where they are certainly off, unless `correct_clocks` is False. Runs, and
    processes with incomparable clocks, are drawn as if they began together.
    """
    sources = [source for source in measured.sources if source.tool != "log"]
    keys = [make_lane_key(source) for source in sources]
    order = sorted(set(keys), key=_sort_lanes)
    names = dict(zip(order, _name_lanes(order), strict=True))
    numbers = dict(zip(order, count(), strict=False))
    files: dict[str, int] = {}
    room = min(_ROOM, _LARGEST_PID // (len(order) + 2))
    lanes: list[Lane] = []
    for index, (source, key) in enumerate(zip(sources, keys, strict=True)):
        file = files.setdefault(source.name, len(files))
        lanes.append(Lane(numbers[key], names[key], room, source, file, index, 0))
    if correct_clocks:
        lanes = list(_correct_clocks(measured, lanes))
    lanes.sort(key=lambda lane: (lane.number, lane.source_number))
    return _align_lanes(measured, lanes)


def make_lane_key(source: Source) -> LaneProcess:
    """Make the key that identifies the process of a source."""
    whose = source.name if source.pid is None else str(source.pid)
    return source.run, source.role, source.replica, source.rank, source.host, whose


def _sort_lanes(key: LaneProcess) -> tuple[Any, ...]:
    """Make the sort key of a process: by run, then rank, then role; unknown values come last."""
    run, role, replica, rank, host, whose = key
    unknown_last = (rank is None, rank or 0, role is None, role or "", replica is None, replica or 0)
    return (run, *unknown_last, host or "", len(whose), whose)


def _name_lanes(order: Sequence[LaneProcess]) -> list[str]:
    """Name processes as `rank 0 actor`, with the run if there are several, and the pid if names repeat."""
    several = len({run for run, *_ in order}) > 1
    names = [_name_lane(key, several) for key in order]
    bearers = Counter(names)
    for index, key in enumerate(order):
        if bearers[names[index]] > 1:
            names[index] += f" ({key[5]})"
    return names


def _name_lane(key: LaneProcess, several: bool) -> str:
    run, role, replica, rank, _, whose = key
    process = format_numbered_word("rank", rank)
    if rank is None and role is None:
        process = _name_process_id(whose)
    return join_phrase(run if several else None, process, format_numbered_word("replica", replica), role)


def _name_process_id(whose: str) -> str:
    return f"process {whose}" if whose.isdecimal() else whose


def _correct_clocks(measured: Measurements, lanes: Sequence[Lane]) -> Iterator[Lane]:
    """Add the clock corrections that are certain to the lanes."""
    clocks = compute_clock_corrections(measured)
    for lane in lanes:
        correction = clocks.get(_get_clock_owner(lane.source))
        if correction is None:
            yield lane
        else:
            yield replace(lane, offset_ns=correction.offset_ns, uncertainty_ns=correction.uncertainty_ns)


def _get_clock_owner(source: Source) -> Owner:
    return source.run, source.role, source.replica, source.rank


def _align_lanes(measured: Measurements, lanes: Sequence[Lane]) -> TimelinePlan:
    """Shift the lanes such that the first ops on every clock begin together."""
    captures = measured.frame("captures")
    absolute = dict(zip(captures.values("source"), captures["absolute_time"].tolist(), strict=True))
    first = _find_source_starts(measured, captures)
    clocks = compute_clock_corrections(measured)
    domains: list[tuple[object, ...]] = []
    for lane in lanes:
        source = lane.source
        if absolute.get(source.name, False):
            domains.append((source.run,))
        elif lane.offset_ns is not None:
            domains.append((source.run, clocks[_get_clock_owner(source)].set))
        else:
            domains.append((source.run, "alone", lane.number))
    zeros: dict[tuple[object, ...], int] = {}
    for lane, domain in zip(lanes, domains, strict=True):
        if lane.source.name not in first:
            continue
        begin = first[lane.source.name] - (lane.offset_ns or 0)
        zeros[domain] = min(zeros.get(domain, begin - LEAD_NS), begin - LEAD_NS)
    moved: list[Lane] = []
    epochs: list[int] = []
    for lane, domain in zip(lanes, domains, strict=True):
        moved.append(replace(lane, shift_ns=zeros.get(domain, 0) + (lane.offset_ns or 0)))
        if len(domain) == 1 and domain in zeros:
            epochs.append(zeros[domain])
    return TimelinePlan(tuple(moved), next(iter(epochs), None), tuple(_describe_separate_clocks(lanes, domains)))


def _find_source_starts(measured: Measurements, captures: Frame) -> dict[str, int]:
    """Find the start of each source; on an epoch clock, times before `_MIN_EPOCH_NS` are ignored."""
    tables = (captures, measured.frame("steps"), measured.frame("stages"))
    starts = concat([table.select("source", "ts_ns") for table in tables])
    from_epoch = starts.is_among(captures.filter(captures["absolute_time"]), ["source"])
    sound = starts.filter(~from_epoch | (starts["ts_ns"] > _MIN_EPOCH_NS))
    earliest = sound.group_by("source").agg(ts_ns=min_of("ts_ns"))
    return dict(zip(earliest.values("source"), earliest.values("ts_ns"), strict=True))


def _describe_separate_clocks(lanes: Sequence[Lane], domains: Sequence[tuple[object, ...]]) -> Iterator[str]:
    """Describe the lanes that are not on the common clock."""
    runs = {lane.source.run for lane in lanes}
    if len(runs) > 1:
        yield f"{len(runs)} runs: all drawn as if they had begun together"
    distinct = len(set(domains))
    if distinct > len(runs):
        yield "clocks that cannot be compared: drawn as if they had begun together"
