"""What the captures of a run show when they are put beside one another: absent ranks, steps, ranges, clocks."""

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
"""The numbers of what is repeated in a run, by kind: of "step", or where no step is known of "range" or "capture of train"."""

_MOST_NUMBERS = 200
_MOST_PIDS = 4


@dataclass(frozen=True, slots=True)
class Capture:
    """One process in one source: when something happened in it, and how much. None is not known.

    `recorded` are what one profiles for: NVTX ranges, ops, CUDA calls (`call_count`) and GPU work (of it
    `kernel_count` kernels). `session` is one start of nsys, `recording` the kind of recording.
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
        """The code of the kind of recording."""
        return None if self.recording is None else self.recording.kind


NOT_COMPARED = frozenset({"front-end", "empty", *FOREIGN})
"""Kinds of recordings that are not ranks of a job: nothing is compared with them."""

Check = Callable[[Sequence[Capture]], Iterator[Symptom]]
"""A function that gives what is wrong among the captures of one run."""


def symptoms(captures: Sequence[Capture], *, complete: bool = True) -> Iterator[Symptom]:
    """Everything that is wrong among the captures; unless they are `complete`, what is absent was not asked for."""
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
    """The items gathered by `key`, in the order of their first members."""
    by_key: dict[Hashable, list[T]] = {}
    for item in items:
        by_key.setdefault(key(item), []).append(item)
    return list(by_key.values())


def _places(captures: Iterable[Capture]) -> tuple[str, ...]:
    """The files of these captures, each once."""
    return tuple(dict.fromkeys(capture.source.name for capture in captures))


def _team(capture: Capture) -> Hashable:
    """Whom a process is compared with: its role, profiler and engine."""
    source = capture.source
    return _spelled(source.role), source.tool, source.replica


def _spelled(label: str | None) -> str | None:
    """A label as it is compared, whatever joins its words; None where there is none."""
    if label is None:
        return None
    return words(label)


def _team_name(capture: Capture) -> str:
    """How a team is called before "rank": empty without a role."""
    source = capture.source
    name = ""
    if source.role:
        name = f"{source.role} "
    if source.replica is not None:
        name += f"replica {source.replica} "
    return name


def _rank_of(capture: Capture) -> int | None:
    return capture.source.rank


def _distinct(captures: Iterable[Capture], key: Callable[[Capture], T | None]) -> set[T]:
    """What `key` gives of these captures, as far as it is known."""
    return {value for value in map(key, captures) if value is not None}


def _ranks(captures: Iterable[Capture]) -> set[int]:
    """The ranks of these captures, as far as they are known."""
    return _distinct(captures, _rank_of)


def _of_tool(captures: Iterable[Capture], tool: Tool) -> list[Capture]:
    """The captures of one profiler."""
    return [capture for capture in captures if capture.source.tool == tool]


def _with_rank(captures: Iterable[Capture]) -> list[Capture]:
    """The captures whose rank is known."""
    return [capture for capture in captures if capture.source.rank is not None]


def _missing_ranks(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Ranks below the world size, or below the highest rank, that have no file in a team."""
    for team in _groups(run, _team):
        present = _ranks(team)
        if not present:
            continue
        world = max(capture.source.world_size or 0 for capture in team)
        # A file of a rank alone, whose world is not known, says nothing of others.
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
    """The first numbers below `count` that are not present, in words; bounded, whatever the file says."""
    absent: list[int] = []
    value = 0
    while value < count and len(absent) < _MOST_NUMBERS:
        if value not in present:
            absent.append(value)
        value += 1
    more = " …" if value < count and len(absent) == _MOST_NUMBERS else ""
    return numbers(absent) + more


def _plural(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count:,} {_nouns(count, noun)}"


def _nouns(count: int, noun: str) -> str:
    """`rank` of one, `ranks` of several."""
    return noun if count == 1 else f"{noun}s"


_NUMBERED = re.compile(r"(range|capture)([0-9]{1,9})")
_RANGE_FILE = re.compile(r"\.([0-9]{1,6})\.(?:nsys-rep|qdrep|sqlite)\Z")


def _units(capture: Capture) -> Units:
    """What of the run a capture holds: its steps, else its number among the captures of its process."""
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
    """The number of a source among the captures of its process, where its name has one."""
    for piece in (source.part or "").split("-"):
        match = _NUMBERED.fullmatch(piece)
        if match is not None:
            return [(match[1], int(match[2]))]
    match = _RANGE_FILE.search(source.name)
    if match is None or source.tool != "nsys":
        return []
    return [("range", int(match[1]))]


def _missing_steps(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Steps, or numbered captures, that other ranks of the team have and a rank has not."""
    for team in _groups(_with_rank(run), _team):
        units_of_ranks = [(rank, _units_of_rank(rank)) for rank in _groups(team, _rank_of)]
        units_of_team = _joined(units for _, units in units_of_ranks)
        lacking: dict[tuple[str, tuple[int, ...]], list[Capture]] = {}
        for rank, units in units_of_ranks:
            # A kind of which a rank has none at all may not be its business.
            for kind in sorted(units):
                absent = tuple(sorted(units_of_team[kind] - units[kind]))
                if absent:
                    lacking.setdefault((kind, absent), []).extend(rank)
        for (kind, absent), captures in lacking.items():
            yield _lacks(kind, absent, captures)


def _lacks(kind: str, absent: Sequence[int], captures: Sequence[Capture]) -> Symptom:
    """That the ranks of these captures lack units of a kind, which others have."""
    ranks = _ranks(captures)
    verb = "lacks" if len(ranks) == 1 else "lack"
    noun, _, scope = kind.partition(" ")
    units = f"{_nouns(len(absent), noun)} {numbers(absent)} {scope}".rstrip()
    who = f"{_team_name(captures[0])}{_nouns(len(ranks), 'rank')} {numbers(ranks)}"
    what = f"{who} {verb} {units}, which other ranks have"
    return Symptom("missing-steps", _places(captures), what, len(absent) * len(ranks))


def _units_of_rank(captures: Sequence[Capture]) -> Units:
    """What one rank holds of the run; its captures of one kind count from 1, whatever they are called."""
    units = _joined(map(_units, captures))
    for kind, ordinals in units.items():
        if kind.startswith("capture"):
            units[kind] = frozenset(range(1, len(ordinals) + 1))
    return units


def _joined(several: Iterable[Units]) -> Units:
    """What any of them holds, kind by kind."""
    joined: Units = {}
    for units in several:
        for kind, ordinals in units.items():
            joined[kind] = joined.get(kind, frozenset()) | ordinals
    return joined


def _process(capture: Capture) -> Hashable:
    """The process of a capture; one that is not known is a file of its own."""
    source = capture.source
    if source.pid is None:
        return source.name
    if source.host is not None:
        return source.pid, source.host
    # Containers on several hosts give the same ids: without the host's name the rank tells them apart.
    return source.pid, source.rank


def _of_nsys(run: Iterable[Capture]) -> list[list[Capture]]:
    """The captures of every process that nsys recorded and whose id is known."""
    with_pid = (capture for capture in _of_tool(run, "nsys") if capture.source.pid is not None)
    return _groups(with_pid, _process)


def _missing_ranges(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Capture ranges of nsys (`X.1`, `X.3`) of which one in between has no file."""
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
    """A process in words: `actor rank 3 (pid 17)`."""
    source = capture.source
    rank = "" if source.rank is None else f"rank {source.rank}"
    label = (_team_name(capture) + rank).strip()
    if not label:
        return f"pid {source.pid}"
    return f"{label} (pid {source.pid})"


def _claim(capture: Capture) -> Hashable:
    """The part of the run that a process claims to be."""
    source = capture.source
    place = (source.step, source.rank, source.topology, source.part)
    return _team(capture), _spelled(source.scope), *place


def _shared_ranks(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Ranks that several processes claim for the same part of the run."""
    claimants: dict[str, list[Capture]] = {}
    for captures in _groups(_with_rank(run), _claim):
        first = captures[0]
        pids = sorted(_distinct(captures, lambda capture: capture.source.pid))
        # The roles of colocated workers write memory snapshots under the same names.
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
    """Process ids that stand for several starts of nsys."""
    for process in _of_nsys(run):
        sessions = _distinct(process, lambda capture: capture.session)
        if len(sessions) > 1:
            what = f"pid {process[0].source.pid} is {len(sessions)} different processes"
            yield Symptom("pid-reuse", _places(process), what)


def _nested_ranges(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Files of one process, of one start of nsys, that cover the same time."""
    for process in _of_nsys(run):
        placed = [c for c in process if c.absolute_time and c.last_ns > c.first_ns]
        for captures in _groups(placed, lambda capture: capture.session):
            nested = _within_others(captures)
            if nested:
                count = f"{len(nested)} of its {len(captures)} files"
                what = f"{_who(captures[0])}: {count} cover time of another"
                yield Symptom("nested-ranges", _places(nested), what, len(nested))


def _within_others(captures: Sequence[Capture]) -> list[Capture]:
    """The captures of which half or more lies within an earlier begun one of another file."""
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
    """Processes without GPU work in a run in which others of their role have some, by one profiler."""
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
    """Processes whose traces and names say no rank, where others have one or collectives show that there are."""
    of_torch = [c for c in _of_tool(run, "torch") if c.source.replica is None]
    unknown = [capture for capture in of_torch if capture.source.rank is None]
    distributed = len(unknown) < len(of_torch) or any(c.has_collectives for c in unknown)
    count = len(_groups(unknown, _process))
    if distributed and count and len(_groups(of_torch, _process)) > 1:
        who = "1 process does" if count == 1 else f"{count:,} processes do"
        yield Symptom("unknown-rank", _places(unknown), f"{who} not say which rank")


def _no_common_clock(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Files whose times count from a zero of their own, in a run of several processes."""
    placed = [capture for capture in run if capture.last_ns > capture.first_ns]
    relative = [capture for capture in placed if not capture.absolute_time]
    # The processes of one file share its clock.
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
"""What is absent from a part that somebody chose is no fault."""
