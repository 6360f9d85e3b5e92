"""Data of the timeline on a report's page: packed columns of each process, and the critical path as recorded."""

from __future__ import annotations

from dataclasses import field

from tracekit.model.records import dataclass


@dataclass(frozen=True, slots=True)
class TimelineProcess:
    """One process: labels of its source, and its packed columns (`model.inputs.page_blocks`)."""

    name: str
    run: str
    role: str | None
    rank: int | None
    host: str | None
    pid: int | None
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class PathPieces:
    """Pieces of the critical path: the source and pid of each, its start on the clock of that process, length, kind and name."""

    source: tuple[str, ...] = ()
    pid: tuple[int | None, ...] = ()
    ts_ns: tuple[int, ...] = ()
    dur_ns: tuple[int, ...] = ()
    kind: tuple[str, ...] = ()
    name: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineState:
    """State of the serving engine in the process of a memory snapshot, from an instant in Unix time on."""

    run: str
    source: str
    ts_ns: int
    state: str


@dataclass(frozen=True, slots=True)
class TimelineSide:
    """One side of a comparison: its name, its processes, and the critical path of its runs.

    `excluded` are the run and number of each step that does not count.
    """

    name: str
    processes: tuple[TimelineProcess, ...] = ()
    excluded: tuple[tuple[str, int], ...] = ()
    critical: PathPieces | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """The timeline of a report: its processes, and the critical path of all runs that are replayed.

    The processes of a comparison are those of its two `sides`. `causes` are key, title and meaning of each cause of idle
    time by number. `engines` are in order of time.
    """

    processes: tuple[TimelineProcess, ...]
    critical: PathPieces | None = None
    sides: tuple[TimelineSide, ...] = ()
    causes: tuple[tuple[str, str, str], ...] = ()
    engines: tuple[EngineState, ...] = ()
