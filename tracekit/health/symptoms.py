"""What the captures of a run show when they are put beside one another: absent ranks, steps, ranges, clocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tracekit.health.signs import Symptom
from tracekit.model.labels import words
from tracekit.model.trace import Source
from tracekit.model.units import numbers

T = TypeVar("T")
Units = dict[str, frozenset[int]]
"""The numbers of what is repeated in a run, by kind: of "step", or where no step is known of "range" or "capture of train"."""


@dataclass(frozen=True, slots=True)
class Capture:
    """One process in one source: when something happened in it, and how much. None is not known.

    `recorded` are what one profiles for: NVTX ranges, ops, CUDA calls (`call_count`) and GPU work (of it
    `kernel_count` kernels). `session` is one start of nsys.
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


def symptoms(captures: Sequence[Capture], *, complete: bool = True) -> Iterator[Symptom]:
    """Everything that is wrong among the captures; unless they are `complete`, what is absent was not asked for."""
    profiles = [c for c in captures if c.source.tool != "log"]
    if captures and not profiles:
        yield Symptom("log-only", tuple(c.source.name for c in captures))
    junk = [c for c in profiles if c.recorded == 0]
    yield from _named("empty-capture", junk)
    # Without any GPU work its reader says so; a lone fill or copy hides that the kernels are missing.
    yield from _named("no-kernels", [c for c in profiles if c.call_count and c.kernel_count == 0])
    alive = [c for c in profiles if c.recorded != 0]
    checks: list[Callable[[Sequence[Capture]], Iterator[Symptom]]] = [
        _shared_ranks,
        _reused_pids,
        _nested_ranges,
        _no_device_rows,
        _unknown_ranks,
        _no_common_clock,
    ]
    if complete:
        checks += [_missing_ranks, _missing_steps, _missing_ranges]
    runs = _groups(alive, lambda c: c.source.run)
    for run in runs:
        name = f"{run[0].source.run}: " if len(runs) > 1 else ""
        for check in checks:
            for symptom in check(run):
                yield replace(symptom, what=name + symptom.what)


def _groups(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """The items gathered by `key`, in the order of their first members."""
    found: dict[Hashable, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())


def _places(captures: Iterable[Capture]) -> tuple[str, ...]:
    """The files of these captures, each once."""
    return tuple(dict.fromkeys(c.source.name for c in captures))


def _named(code: str, captures: Sequence[Capture]) -> Iterator[Symptom]:
    """A symptom that the table of ailments words."""
    for place in _places(captures):
        yield Symptom(code, (place,))


def _team(capture: Capture) -> Hashable:
    """Whom a process is compared with: its role, profiler and engine."""
    source = capture.source
    role = None if source.role is None else words(source.role)
    return role, source.tool, source.replica


def _team_name(capture: Capture) -> str:
    """How a team is called before "rank": empty without a role."""
    source = capture.source
    replica = "" if source.replica is None else f"replica {source.replica} "
    return (f"{source.role} " if source.role else "") + replica


def _missing_ranks(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Ranks below the world size, or below the highest rank, that have no file in a team."""
    for team in _groups(run, _team):
        present = {c.source.rank for c in team if c.source.rank is not None}
        if not present:
            continue
        worlds = {c.source.world_size for c in team if c.source.world_size is not None}
        known = max(worlds, default=0)
        # A file of a rank alone, whose world is not known, says nothing of others.
        count = max(known, max(present) + 1 if len(present) > 1 else 0)
        missing = count - len(present)
        if missing <= 0:
            continue
        absent = _absent(present, count)
        name = _team_name(team[0])
        if len(present) == 1:
            only = next(iter(present))
            what = f"of {count:,} ranks only {name}rank {only} is here"
            yield Symptom("few-ranks", _places(team), what, missing)
        else:
            of = f"of {count:,}" if known == count else f"below the highest, {max(present)}"
            what = f"{name}{_plural(missing, 'rank')} {of} missing: {absent}"
            yield Symptom("missing-ranks", (), what, missing)


def _absent(present: Collection[int], count: int) -> str:
    """The first numbers below `count` that are not present, in words; bounded, whatever the file says."""
    found: list[int] = []
    value = 0
    while value < count and len(found) < 200:
        if value not in present:
            found.append(value)
        value += 1
    return numbers(found) + (" …" if value < count and len(found) == 200 else "")


def _plural(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_NUMBERED = re.compile(r"(range|capture)([0-9]{1,9})")
_RANGE_FILE = re.compile(r"\.([0-9]{1,6})\.(?:nsys-rep|qdrep|sqlite)\Z")


def _units(capture: Capture) -> Units:
    """What of the run a capture holds: its steps, else its number among the captures of its process."""
    source = capture.source
    steps = capture.steps if source.step is None else capture.steps | {source.step}
    if steps:
        return {"step": steps}
    of = f" of {words(source.scope)}" if source.scope else ""
    return {kind + of: frozenset((number,)) for kind, number in _ordinals(source)}


def _ordinals(source: Source) -> list[tuple[str, int]]:
    """The number of a source among the captures of its process, where its name has one."""
    pieces = (_NUMBERED.fullmatch(piece) for piece in (source.part or "").split("-"))
    found = [(match[1], int(match[2])) for match in pieces if match]
    of_nsys = _RANGE_FILE.search(source.name) if source.tool == "nsys" and not found else None
    return [("range", int(of_nsys[1]))] if of_nsys else found[:1]


def _missing_steps(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Steps, or numbered captures, that other ranks of the team have and a rank has not."""
    for team in _groups((c for c in run if c.source.rank is not None), _team):
        held = [(mine, _held(mine)) for mine in _groups(team, lambda c: c.source.rank)]
        every = _joined(units for _, units in held)
        lacking: dict[tuple[str, tuple[int, ...]], list[Capture]] = {}
        for mine, units in held:
            # A kind of which a rank has none at all may not be its business.
            for kind in sorted(units):
                absent = tuple(sorted(every[kind] - units[kind]))
                if absent:
                    lacking.setdefault((kind, absent), []).extend(mine)
        for (kind, absent), theirs in lacking.items():
            ranks = {c.source.rank for c in theirs if c.source.rank is not None}
            who = (
                f"rank {numbers(ranks)} lacks"
                if len(ranks) == 1
                else f"ranks {numbers(ranks)} lack"
            )
            word, _, of = kind.partition(" ")
            absentees = (
                f"{word}{'' if len(absent) == 1 else 's'} {numbers(absent)}{of and ' ' + of}"
            )
            what = f"{_team_name(theirs[0])}{who} {absentees}, which other ranks have"
            yield Symptom("missing-steps", _places(theirs), what, len(absent) * len(ranks))


def _held(captures: Sequence[Capture]) -> Units:
    """What one rank holds of the run; its captures of one kind count from 1, whatever they are called."""
    return {
        kind: frozenset(range(1, len(ordinals) + 1)) if kind.startswith("capture") else ordinals
        for kind, ordinals in _joined(map(_units, captures)).items()
    }


def _joined(units: Iterable[Units]) -> Units:
    """What any of them holds, kind by kind."""
    ordinals: dict[str, list[frozenset[int]]] = {}
    for held in units:
        for kind, some in held.items():
            ordinals.setdefault(kind, []).append(some)
    return {kind: frozenset[int]().union(*some) for kind, some in ordinals.items()}


def _process(capture: Capture) -> Hashable:
    """The process of a capture; one that is not known is a file of its own."""
    source = capture.source
    if source.pid is None:
        return source.name
    # Containers on several hosts give the same ids: without the host's name the rank tells them apart.
    return source.pid, source.rank if source.host is None else source.host


def _of_nsys(run: Iterable[Capture]) -> list[list[Capture]]:
    """The captures of every process that nsys recorded and whose id is known."""
    known = (c for c in run if c.source.tool == "nsys" and c.source.pid is not None)
    return _groups(known, _process)


def _missing_ranges(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Capture ranges of nsys (`X.1`, `X.3`) of which one in between has no file."""
    for mine in _of_nsys(run):
        present = {
            number
            for c in mine
            for kind, number in _ordinals(c.source)
            if kind == "range" and number
        }
        missing = max(present, default=0) - len(present)
        if missing > 0:
            absent = _absent({0, *present}, max(present) + 1)
            what = (
                f"{_who(mine[0])}: capture range{'' if missing == 1 else 's'} {absent} missing "
                f"before range {max(present)}"
            )
            yield Symptom("missing-ranges", _places(mine), what, missing)


def _who(capture: Capture) -> str:
    """A process in words: `actor rank 3 (pid 17)`."""
    source = capture.source
    label = _team_name(capture) + ("" if source.rank is None else f"rank {source.rank}")
    return f"{label.strip()} (pid {source.pid})" if label.strip() else f"pid {source.pid}"


def _shared_ranks(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Ranks that several processes claim for the same part of the run."""

    def claim(capture: Capture) -> Hashable:
        s = capture.source
        scope = None if s.scope is None else words(s.scope)
        return (_team(capture), scope, s.step, s.rank, s.topology, s.part)

    told: dict[str, list[Capture]] = {}
    for same in _groups((c for c in run if c.source.rank is not None), claim):
        pids = sorted({c.source.pid for c in same if c.source.pid is not None})
        # The roles of colocated workers write memory snapshots under the same names.
        if len(pids) < 2 or same[0].source.tool == "torch_memory":
            continue
        some = ", ".join(map(str, pids[:4])) + (" …" if len(pids) > 4 else "")
        what = f"{len(pids)} processes (pid {some}) claim {_team_name(same[0])}rank {same[0].source.rank}"
        told.setdefault(what, []).extend(same)
    for what, claimants in told.items():
        yield Symptom("shared-rank", _places(claimants), what)


def _reused_pids(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Process ids that stand for several starts of nsys."""
    for mine in _of_nsys(run):
        sessions = {c.session for c in mine if c.session is not None}
        if len(sessions) > 1:
            what = f"pid {mine[0].source.pid} is {len(sessions)} different processes"
            yield Symptom("pid-reuse", _places(mine), what)


def _nested_ranges(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Files of one process, of one start of nsys, that cover the same time."""
    for mine in _of_nsys(run):
        placed = [c for c in mine if c.absolute_time and c.last_ns > c.first_ns]
        for same in _groups(placed, lambda c: c.session):
            found = _within_others(same)
            if found:
                what = (
                    f"{_who(same[0])}: {len(found)} of its {len(same)} files cover time of another"
                )
                yield Symptom("nested-ranges", _places(found), what, len(found))


def _within_others(captures: Sequence[Capture]) -> list[Capture]:
    """The captures of which half or more lies within an earlier begun one of another file."""
    found: list[Capture] = []
    reached: Capture | None = None
    for capture in sorted(captures, key=lambda c: (c.first_ns, -c.last_ns)):
        if reached is not None and reached.source.name != capture.source.name:
            shared = min(reached.last_ns, capture.last_ns) - capture.first_ns
            if 2 * shared >= capture.last_ns - capture.first_ns:
                found.append(capture)
        if reached is None or capture.last_ns > reached.last_ns:
            reached = capture
    return found


def _no_device_rows(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Processes without GPU work in a run in which others of their role have some, by one profiler."""
    for team in _groups((c for c in run if c.source.tool == "torch"), _team):
        members = _groups(team, lambda c: (c.source.rank, _process(c)))
        without = [mine for mine in members if not any(c.device_op_count for c in mine)]
        if 0 < len(without) < len(members):
            count = f"{len(without):,} of {len(members):,} processes"
            what = f"{count} recorded no GPU work while the others did"
            yield Symptom("no-device-rows", _places(c for mine in without for c in mine), what)


def _unknown_ranks(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Processes whose traces and names say no rank, where others have one or collectives show that there are."""
    of_torch = [c for c in run if c.source.tool == "torch" and c.source.replica is None]
    unknown = [c for c in of_torch if c.source.rank is None]
    distributed = len(unknown) < len(of_torch) or any(c.has_collectives for c in unknown)
    processes = _groups(unknown, _process)
    if distributed and len(_groups(of_torch, _process)) > 1 and processes:
        some = "1 process does" if len(processes) == 1 else f"{len(processes):,} processes do"
        yield Symptom("unknown-rank", _places(unknown), f"{some} not say which rank")


def _no_common_clock(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Files whose times count from a zero of their own, in a run of several processes."""
    placed = [c for c in run if c.last_ns > c.first_ns]
    relative = [c for c in placed if not c.absolute_time]
    if relative and len(_groups(placed, _process)) > 1:
        what = f"{len(_places(relative)):,} of {_plural(len(_places(placed)), 'file')} have a clock of their own"
        yield Symptom("no-common-clock", _places(relative), what)
