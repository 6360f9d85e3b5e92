"""Symptoms from comparing the captures of a run: missing ranks, steps and ranges, duplicates, separate clocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from tracekit.health.signs import Symptom
from tracekit.model.labels import words
from tracekit.model.recording_kinds import FOREIGN, Classified
from tracekit.model.records import dataclass
from tracekit.model.trace import Source, Tool
from tracekit.model.units import numbers

T = TypeVar("T")
Units = dict[str, frozenset[int]]
"""Numbers of the repeated parts of a run, by kind: "step", or without known steps "range" or "capture of train"."""

_MOST_NUMBERS = 200
_MOST_PIDS = 4


@dataclass(frozen=True, slots=True)
class Capture:
    """One process in one source: its time span and row counts. None is unknown.

    `recorded` counts NVTX ranges, ops, CUDA calls (`call_count`) and GPU work (including `kernel_count`
    kernels). `session` is one start of nsys, `recording` the kind of recording.
    """

    source: Source
    first_ns: int
    last_ns: int
    absolute_time: bool
    host_op_count: int
    device_op_count: int
    recorded: int | None = None
    call_count: int | None = None
    kernel_count: int | None = None
    has_collectives: bool = False
    steps: frozenset[int] = frozenset()
    session: str | None = None
    recording: Classified | None = None

    @property
    def kind(self) -> str | None:
        """Code of the kind of recording."""
        return None if self.recording is None else self.recording.kind


NOT_COMPARED = frozenset({"front-end", "empty", *FOREIGN})
"""Kinds of recordings that are not ranks of a job and are not compared."""

Check = Callable[[Sequence[Capture]], Iterator[Symptom]]
"""Function that finds problems among the captures of one run."""


def symptoms(captures: Sequence[Capture], *, complete: bool = True) -> Iterator[Symptom]:
    """Find all problems among the captures. Missing parts are reported only if the captures are `complete`."""
    compared = [
        capture
        for capture in captures
        if capture.source.tool != "log"
        and capture.recorded != 0
        and capture.kind not in NOT_COMPARED
    ]
    runs = _groups(compared, lambda capture: capture.source.run)
    for run in runs:
        name = f"{run[0].source.run}: " if len(runs) > 1 else ""
        for check in (*_CHECKS, *(_CHECKS_OF_ABSENCE if complete else ())):
            for symptom in check(run):
                yield replace(symptom, what=name + symptom.what)


def _groups(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Group items by `key`, in order of first appearance."""
    by_key: dict[Hashable, list[T]] = {}
    for item in items:
        by_key.setdefault(key(item), []).append(item)
    return list(by_key.values())


def _places(captures: Iterable[Capture]) -> tuple[str, ...]:
    """List the files of these captures, without repeats."""
    return tuple(dict.fromkeys(capture.source.name for capture in captures))


def _team(capture: Capture) -> Hashable:
    """Build the key of a process's team: role, profiler and engine. Only members of a team are compared."""
    source = capture.source
    return _spelled(source.role), source.tool, source.replica


def _spelled(label: str | None) -> str | None:
    """Normalize the spelling of a label for comparison; None if there is none."""
    if label is None:
        return None
    return words(label)


def _team_name(capture: Capture) -> str:
    """Format a team's name before "rank". Empty without a role."""
    source = capture.source
    name = ""
    if source.role:
        name = f"{source.role} "
    if source.replica is not None:
        name += f"replica {source.replica} "
    return name


def _rank_of(capture: Capture) -> int | None:
    """Get the rank of a capture."""
    return capture.source.rank


def _distinct(captures: Iterable[Capture], key: Callable[[Capture], T | None]) -> set[T]:
    """Collect the known values of `key` over these captures."""
    return {value for value in map(key, captures) if value is not None}


def _ranks(captures: Iterable[Capture]) -> set[int]:
    """Collect the known ranks of these captures."""
    return _distinct(captures, _rank_of)


def _of_tool(captures: Iterable[Capture], tool: Tool) -> list[Capture]:
    """Select the captures of one profiler."""
    return [capture for capture in captures if capture.source.tool == tool]


def _with_rank(captures: Iterable[Capture]) -> list[Capture]:
    """Select the captures with a known rank."""
    return [capture for capture in captures if capture.source.rank is not None]


def _missing_ranks(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report ranks below the world size, or below the highest rank, without a file in a team."""
    for team in _groups(run, _team):
        present = _ranks(team)
        if not present:
            continue
        world = max(capture.source.world_size or 0 for capture in team)
        # A single rank with unknown world size implies nothing about others.
        count = max(world, max(present) + 1) if len(present) > 1 else world
        missing = count - len(present)
        if missing <= 0:
            continue
        name = _team_name(team[0])
        if len(present) == 1:
            what = f"of {count:,} ranks only {name}rank {min(present)} is here"
            yield Symptom("few-ranks", _places(team), what, missing)
        else:
            bound = f"of {count:,}" if world == count else f"below the highest, {max(present)}"
            what = f"{name}{_plural(missing, 'rank')} {bound} missing: {_absent(present, count)}"
            yield Symptom("missing-ranks", (), what, missing)


def _absent(present: Collection[int], count: int) -> str:
    """Format the first numbers below `count` that are not present. Bounded, whatever the file says."""
    absent: list[int] = []
    value = 0
    while value < count and len(absent) < _MOST_NUMBERS:
        if value not in present:
            absent.append(value)
        value += 1
    more = " …" if value < count and len(absent) == _MOST_NUMBERS else ""
    return numbers(absent) + more


def _plural(count: int, noun: str) -> str:
    """Format a count with its noun: `1 rank`, `2 ranks`."""
    return f"{count:,} {_nouns(count, noun)}"


def _nouns(count: int, noun: str) -> str:
    """Inflect a noun: `rank` for 1, else `ranks`."""
    return noun if count == 1 else f"{noun}s"


_NUMBERED = re.compile(r"(range|capture)([0-9]{1,9})")
_RANGE_FILE = re.compile(r"\.([0-9]{1,6})\.(?:nsys-rep|qdrep|sqlite)\Z")


def _units(capture: Capture) -> Units:
    """List the parts of the run in a capture: its steps, else its number among its process's captures."""
    source = capture.source
    steps = set(capture.steps)
    if source.step is not None:
        steps.add(source.step)
    if steps:
        return {"step": frozenset(steps)}
    scope = f" of {words(source.scope)}" if source.scope else ""
    units: Units = {}
    for kind, number in _ordinals(source):
        units[kind + scope] = frozenset((number,))
    return units


def _ordinals(source: Source) -> list[tuple[str, int]]:
    """Parse the number of a source among its process's captures from its name, if it has one."""
    for piece in (source.part or "").split("-"):
        match = _NUMBERED.fullmatch(piece)
        if match is not None:
            return [(match[1], int(match[2]))]
    match = _RANGE_FILE.search(source.name)
    if match is None or source.tool != "nsys":
        return []
    return [("range", int(match[1]))]


def _missing_steps(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report steps, or numbered captures, that other ranks of the team have and a rank lacks."""
    for team in _groups(_with_rank(run), _team):
        units_of_ranks = [(rank, _units_of_rank(rank)) for rank in _groups(team, _rank_of)]
        units_of_team = _joined(units for _, units in units_of_ranks)
        lacking: dict[tuple[str, tuple[int, ...]], list[Capture]] = {}
        for rank, units in units_of_ranks:
            # A rank without any unit of a kind may not be meant to have it.
            for kind in sorted(units):
                absent = tuple(sorted(units_of_team[kind] - units[kind]))
                if absent:
                    lacking.setdefault((kind, absent), []).extend(rank)
        for (kind, absent), captures in lacking.items():
            yield _lacks(kind, absent, captures)


def _lacks(kind: str, absent: Sequence[int], captures: Sequence[Capture]) -> Symptom:
    """Build the symptom for ranks that lack units which others have."""
    ranks = _ranks(captures)
    verb = "lacks" if len(ranks) == 1 else "lack"
    noun, _, scope = kind.partition(" ")
    units = f"{_nouns(len(absent), noun)} {numbers(absent)} {scope}".rstrip()
    who = f"{_team_name(captures[0])}{_nouns(len(ranks), 'rank')} {numbers(ranks)}"
    what = f"{who} {verb} {units}, which other ranks have"
    return Symptom("missing-steps", _places(captures), what, len(absent) * len(ranks))


def _units_of_rank(captures: Sequence[Capture]) -> Units:
    """Collect the parts of the run that one rank has. Its captures of one kind are renumbered from 1."""
    units = _joined(map(_units, captures))
    for kind, ordinals in units.items():
        if kind.startswith("capture"):
            units[kind] = frozenset(range(1, len(ordinals) + 1))
    return units


def _joined(several: Iterable[Units]) -> Units:
    """Merge units, kind by kind."""
    joined: Units = {}
    for units in several:
        for kind, ordinals in units.items():
            joined[kind] = joined.get(kind, frozenset()) | ordinals
    return joined


def _process(capture: Capture) -> Hashable:
    """Build the key of a capture's process. An unknown process is identified by its file."""
    source = capture.source
    if source.pid is None:
        return source.name
    if source.host is not None:
        return source.pid, source.host
    # Containers on different hosts reuse pids. Without a host name, the rank distinguishes them.
    return source.pid, source.rank


def _of_nsys(run: Iterable[Capture]) -> list[list[Capture]]:
    """Group the nsys captures with a known pid by process."""
    with_pid = (capture for capture in _of_tool(run, "nsys") if capture.source.pid is not None)
    return _groups(with_pid, _process)


def _missing_ranges(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report gaps in nsys capture range numbers (`X.1`, `X.3`)."""
    for process in _of_nsys(run):
        ordinals = [ordinal for capture in process for ordinal in _ordinals(capture.source)]
        present = {number for kind, number in ordinals if kind == "range" and number}
        missing = max(present, default=0) - len(present)
        if missing > 0:
            ranges = _nouns(missing, "range")
            absent = _absent({0, *present}, max(present) + 1)
            what = (
                f"{_who(process[0])}: capture {ranges} {absent} missing before range {max(present)}"
            )
            yield Symptom("missing-ranges", _places(process), what, missing)


def _who(capture: Capture) -> str:
    """Format a process: `actor rank 3 (pid 17)`."""
    source = capture.source
    rank = "" if source.rank is None else f"rank {source.rank}"
    label = (_team_name(capture) + rank).strip()
    if not label:
        return f"pid {source.pid}"
    return f"{label} (pid {source.pid})"


def _claim(capture: Capture) -> Hashable:
    """Build the key of the part of the run that a process claims to be."""
    source = capture.source
    place = (source.step, source.rank, source.topology, source.part)
    return _team(capture), _spelled(source.scope), *place


def _shared_ranks(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report ranks that several processes claim for the same part of the run."""
    claimants: dict[str, list[Capture]] = {}
    for captures in _groups(_with_rank(run), _claim):
        first = captures[0]
        pids = sorted(_distinct(captures, lambda capture: capture.source.pid))
        # Colocated workers of several roles write memory snapshots under the same names.
        if len(pids) < 2 or first.source.tool == "torch_memory":
            continue
        names = ", ".join(map(str, pids[:_MOST_PIDS]))
        more = " …" if len(pids) > _MOST_PIDS else ""
        who = f"{_team_name(first)}rank {first.source.rank}"
        what = f"{len(pids)} processes (pid {names}{more}) claim {who}"
        claimants.setdefault(what, []).extend(captures)
    for what, captures in claimants.items():
        yield Symptom("shared-rank", _places(captures), what)


def _reused_pids(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report pids shared by several starts of nsys."""
    for process in _of_nsys(run):
        sessions = _distinct(process, lambda capture: capture.session)
        if len(sessions) > 1:
            what = f"pid {process[0].source.pid} is {len(sessions)} different processes"
            yield Symptom("pid-reuse", _places(process), what)


def _nested_ranges(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report files of one process, from one start of nsys, that cover the same time."""
    for process in _of_nsys(run):
        placed = [c for c in process if c.absolute_time and c.last_ns > c.first_ns]
        for captures in _groups(placed, lambda capture: capture.session):
            nested = _within_others(captures)
            if nested:
                count = f"{len(nested)} of its {len(captures)} files"
                what = f"{_who(captures[0])}: {count} cover time of another"
                yield Symptom("nested-ranges", _places(nested), what, len(nested))


def _within_others(captures: Sequence[Capture]) -> list[Capture]:
    """Find the captures that overlap at least half with an earlier capture in another file."""
    nested: list[Capture] = []
    latest: Capture | None = None
    for capture in sorted(captures, key=lambda c: (c.first_ns, -c.last_ns)):
        if latest is not None and latest.source.name != capture.source.name:
            shared = min(latest.last_ns, capture.last_ns) - capture.first_ns
            if 2 * shared >= capture.last_ns - capture.first_ns:
                nested.append(capture)
        if latest is None or capture.last_ns > latest.last_ns:
            latest = capture
    return nested


def _no_device_rows(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report processes without GPU work if others of their team have some."""
    for team in _groups(_of_tool(run, "torch"), _team):
        processes = _groups(team, lambda c: (c.source.rank, _process(c)))
        without: list[Capture] = []
        count = 0
        for process in processes:
            if not any(capture.device_op_count for capture in process):
                without += process
                count += 1
        if 0 < count < len(processes):
            what = f"{count:,} of {len(processes):,} processes recorded no GPU work while the others did"
            yield Symptom("no-device-rows", _places(without), what)


def _unknown_ranks(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report processes of unknown rank if others have one, or if collectives show that ranks exist."""
    of_torch = [c for c in _of_tool(run, "torch") if c.source.replica is None]
    unknown = [capture for capture in of_torch if capture.source.rank is None]
    distributed = len(unknown) < len(of_torch) or any(c.has_collectives for c in unknown)
    count = len(_groups(unknown, _process))
    if distributed and count and len(_groups(of_torch, _process)) > 1:
        who = "1 process does" if count == 1 else f"{count:,} processes do"
        yield Symptom("unknown-rank", _places(unknown), f"{who} not say which rank")


def _no_common_clock(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report files with relative times in a run of several processes."""
    placed = [capture for capture in run if capture.last_ns > capture.first_ns]
    relative = [capture for capture in placed if not capture.absolute_time]
    # Processes of one file share its clock.
    if relative and len(_groups(placed, _process)) > 1 and len(_places(placed)) > 1:
        files = _plural(len(_places(placed)), "file")
        what = f"{len(_places(relative)):,} of {files} have a clock of their own"
        yield Symptom("no-common-clock", _places(relative), what)


_CHECKS: tuple[Check, ...] = (
    _shared_ranks,
    _reused_pids,
    _nested_ranges,
    _no_device_rows,
    _unknown_ranks,
    _no_common_clock,
)
_CHECKS_OF_ABSENCE: tuple[Check, ...] = (_missing_ranks, _missing_steps, _missing_ranges)
"""Checks for missing parts. They are skipped if the user selected a part."""
