"""Symptoms from comparing the captures of a run: missing ranks, steps and ranges, duplicates, separate clocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from tracekit.health.signs import Symptom
from tracekit.model.recording.kinds import FOREIGN, Classification
from tracekit.model.records import dataclass
from tracekit.model.text.labels import normalize_label_words
from tracekit.model.trace import Source, Tool
from tracekit.model.units import format_ranges

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
    recording: Classification | None = None

    @property
    def kind(self) -> str | None:
        """Code of the kind of recording."""
        return None if self.recording is None else self.recording.kind


NOT_COMPARED = frozenset({"front-end", "empty", *FOREIGN})
"""Kinds of recordings that are not ranks of a job and are not compared."""

Check = Callable[[Sequence[Capture]], Iterator[Symptom]]
"""Function that finds problems among the captures of one run."""


def find_capture_symptoms(captures: Sequence[Capture], *, complete: bool = True) -> Iterator[Symptom]:
    """Find all problems among the captures. Missing parts are reported only if the captures are `complete`."""
    compared = [
        capture
        for capture in captures
        if capture.source.tool != "log" and capture.recorded != 0 and capture.kind not in NOT_COMPARED
    ]
    runs = _group_captures(compared, lambda capture: capture.source.run)
    for run in runs:
        name = f"{run[0].source.run}: " if len(runs) > 1 else ""
        for check in (*_CHECKS, *(_CHECKS_OF_ABSENCE if complete else ())):
            for symptom in check(run):
                yield replace(symptom, what=name + symptom.what)


def _group_captures(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Group items by `key`, in order of first appearance."""
    by_key: dict[Hashable, list[T]] = {}
    for item in items:
        by_key.setdefault(key(item), []).append(item)
    return list(by_key.values())


def _list_capture_files(captures: Iterable[Capture]) -> tuple[str, ...]:
    """List the files of these captures, without repeats."""
    return tuple(dict.fromkeys(capture.source.name for capture in captures))


def _get_team_key(capture: Capture) -> Hashable:
    """Build the key of a process's team: role, profiler and engine. Only members of a team are compared."""
    source = capture.source
    return _normalize_spelling(source.role), source.tool, source.replica


def _normalize_spelling(label: str | None) -> str | None:
    """Normalize the spelling of a label for comparison; None if there is none."""
    if label is None:
        return None
    return normalize_label_words(label)


def _format_team_prefix(capture: Capture) -> str:
    """Format a team's name before "rank". Empty without a role."""
    source = capture.source
    name = ""
    if source.role:
        name = f"{source.role} "
    if source.replica is not None:
        name += f"replica {source.replica} "
    return name


def _get_capture_rank(capture: Capture) -> int | None:
    """Get the rank of a capture."""
    return capture.source.rank


def _collect_known_values(captures: Iterable[Capture], key: Callable[[Capture], T | None]) -> set[T]:
    """Collect the known values of `key` over these captures."""
    return {value for capture in captures if (value := key(capture)) is not None}


def _collect_known_ranks(captures: Iterable[Capture]) -> set[int]:
    """Collect the known ranks of these captures."""
    return _collect_known_values(captures, _get_capture_rank)


def _select_tool_captures(captures: Iterable[Capture], tool: Tool) -> list[Capture]:
    """Select the captures of one profiler."""
    return [capture for capture in captures if capture.source.tool == tool]


def _select_ranked_captures(captures: Iterable[Capture]) -> list[Capture]:
    """Select the captures with a known rank."""
    return [capture for capture in captures if capture.source.rank is not None]


def _find_missing_ranks(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report ranks below the world size, or below the highest rank, without a file in a team."""
    for team in _group_captures(run, _get_team_key):
        present = _collect_known_ranks(team)
        if not present:
            continue
        world = max(capture.source.world_size or 0 for capture in team)
        # A single rank with unknown world size implies nothing about others.
        count = max(world, max(present) + 1) if len(present) > 1 else world
        missing = count - len(present)
        if missing <= 0:
            continue
        name = _format_team_prefix(team[0])
        if len(present) == 1:
            what = f"of {count:,} ranks only {name}rank {min(present)} is here"
            yield Symptom("few-ranks", _list_capture_files(team), what, missing)
        else:
            bound = f"of {count:,}" if world == count else f"below the highest, {max(present)}"
            what = f"{name}{_format_count_and_noun(missing, 'rank')} {bound} missing: {_format_absent_numbers(present, count)}"
            yield Symptom("missing-ranks", (), what, missing)


def _format_absent_numbers(present: Collection[int], count: int) -> str:
    """Format the first numbers below `count` that are not present. Bounded, whatever the file says."""
    absent: list[int] = []
    value = 0
    while value < count and len(absent) < _MOST_NUMBERS:
        if value not in present:
            absent.append(value)
        value += 1
    more = " …" if value < count and len(absent) == _MOST_NUMBERS else ""
    return format_ranges(absent) + more


def _format_count_and_noun(count: int, noun: str) -> str:
    """Format a count with its noun: `1 rank`, `2 ranks`."""
    return f"{count:,} {_inflect_noun(count, noun)}"


def _inflect_noun(count: int, noun: str) -> str:
    """Inflect a noun: `rank` for 1, else `ranks`."""
    return noun if count == 1 else f"{noun}s"


_NUMBERED = re.compile(r"(range|capture)([0-9]{1,9})")
_RANGE_FILE = re.compile(r"\.([0-9]{1,6})\.(?:nsys-rep|qdrep|sqlite)\Z")


def _list_run_units(capture: Capture) -> Units:
    """List the parts of the run in a capture: its steps, else its number among its process's captures."""
    source = capture.source
    steps = set(capture.steps)
    if source.step is not None:
        steps.add(source.step)
    if steps:
        return {"step": frozenset(steps)}
    scope = f" of {normalize_label_words(source.scope)}" if source.scope else ""
    units: Units = {}
    for kind, number in _parse_capture_ordinals(source):
        units[kind + scope] = frozenset((number,))
    return units


def _parse_capture_ordinals(source: Source) -> list[tuple[str, int]]:
    """Parse the number of a source among its process's captures from its name, if it has one."""
    for piece in (source.part or "").split("-"):
        match = _NUMBERED.fullmatch(piece)
        if match is not None:
            return [(match[1], int(match[2]))]
    match = _RANGE_FILE.search(source.name)
    if match is None or source.tool != "nsys":
        return []
    return [("range", int(match[1]))]


def _find_missing_steps(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report steps, or numbered captures, that other ranks of the team have and a rank lacks."""
    for team in _group_captures(_select_ranked_captures(run), _get_team_key):
        units_of_ranks = [(rank, _collect_rank_units(rank)) for rank in _group_captures(team, _get_capture_rank)]
        units_of_team = _merge_run_units(units for _, units in units_of_ranks)
        lacking: dict[tuple[str, tuple[int, ...]], list[Capture]] = {}
        for rank, units in units_of_ranks:
            # A rank without any unit of a kind may not be meant to have it.
            for kind in sorted(units):
                absent = tuple(sorted(units_of_team[kind] - units[kind]))
                if absent:
                    lacking.setdefault((kind, absent), []).extend(rank)
        for (kind, absent), captures in lacking.items():
            yield _build_missing_units_symptom(kind, absent, captures)


def _build_missing_units_symptom(kind: str, absent: Sequence[int], captures: Sequence[Capture]) -> Symptom:
    """Build the symptom for ranks that lack units which others have."""
    ranks = _collect_known_ranks(captures)
    verb = "lacks" if len(ranks) == 1 else "lack"
    noun, _, scope = kind.partition(" ")
    units = f"{_inflect_noun(len(absent), noun)} {format_ranges(absent)} {scope}".rstrip()
    who = f"{_format_team_prefix(captures[0])}{_inflect_noun(len(ranks), 'rank')} {format_ranges(ranks)}"
    what = f"{who} {verb} {units}, which other ranks have"
    return Symptom("missing-steps", _list_capture_files(captures), what, len(absent) * len(ranks))


def _collect_rank_units(captures: Sequence[Capture]) -> Units:
    """Collect the parts of the run that one rank has. Its captures of one kind are renumbered from 1."""
    units = _merge_run_units(_list_run_units(capture) for capture in captures)
    for kind, ordinals in units.items():
        if kind.startswith("capture"):
            units[kind] = frozenset(range(1, len(ordinals) + 1))
    return units


def _merge_run_units(several: Iterable[Units]) -> Units:
    """Merge units, kind by kind."""
    joined: Units = {}
    for units in several:
        for kind, ordinals in units.items():
            joined[kind] = joined.get(kind, frozenset()) | ordinals
    return joined


def _get_process_key(capture: Capture) -> Hashable:
    """Build the key of a capture's process. An unknown process is identified by its file."""
    source = capture.source
    if source.pid is None:
        return source.name
    if source.host is not None:
        return source.pid, source.host
    # Containers on different hosts reuse pids. Without a host name, the rank distinguishes them.
    return source.pid, source.rank


def _group_nsys_processes(run: Iterable[Capture]) -> list[list[Capture]]:
    """Group the nsys captures with a known pid by process."""
    with_pid = (capture for capture in _select_tool_captures(run, "nsys") if capture.source.pid is not None)
    return _group_captures(with_pid, _get_process_key)


def _find_missing_ranges(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report gaps in nsys capture range numbers (`X.1`, `X.3`)."""
    for process in _group_nsys_processes(run):
        ordinals = [ordinal for capture in process for ordinal in _parse_capture_ordinals(capture.source)]
        present = {number for kind, number in ordinals if kind == "range" and number}
        missing = max(present, default=0) - len(present)
        if missing > 0:
            ranges = _inflect_noun(missing, "range")
            absent = _format_absent_numbers({0, *present}, max(present) + 1)
            what = (
                f"{_format_capture_process(process[0])}: capture {ranges} {absent} missing before range {max(present)}"
            )
            yield Symptom("missing-ranges", _list_capture_files(process), what, missing)


def _format_capture_process(capture: Capture) -> str:
    """Format a process: `actor rank 3 (pid 17)`."""
    source = capture.source
    rank = "" if source.rank is None else f"rank {source.rank}"
    label = (_format_team_prefix(capture) + rank).strip()
    if not label:
        return f"pid {source.pid}"
    return f"{label} (pid {source.pid})"


def _get_claimed_part(capture: Capture) -> Hashable:
    """Build the key of the part of the run that a process claims to be."""
    source = capture.source
    place = (source.step, source.rank, source.topology, source.part)
    return _get_team_key(capture), _normalize_spelling(source.scope), *place


def _find_shared_ranks(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report ranks that several processes claim for the same part of the run."""
    claimants: dict[str, list[Capture]] = {}
    for captures in _group_captures(_select_ranked_captures(run), _get_claimed_part):
        first = captures[0]
        pids = sorted(_collect_known_values(captures, lambda capture: capture.source.pid))
        # Colocated workers of several roles write memory snapshots under the same names.
        if len(pids) < 2 or first.source.tool == "torch_memory":
            continue
        names = ", ".join(str(pid) for pid in pids[:_MOST_PIDS])
        more = " …" if len(pids) > _MOST_PIDS else ""
        who = f"{_format_team_prefix(first)}rank {first.source.rank}"
        what = f"{len(pids)} processes (pid {names}{more}) claim {who}"
        claimants.setdefault(what, []).extend(captures)
    for what, captures in claimants.items():
        yield Symptom("shared-rank", _list_capture_files(captures), what)


def _find_reused_pids(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report pids shared by several starts of nsys."""
    for process in _group_nsys_processes(run):
        sessions = _collect_known_values(process, lambda capture: capture.session)
        if len(sessions) > 1:
            what = f"pid {process[0].source.pid} is {len(sessions)} different processes"
            yield Symptom("pid-reuse", _list_capture_files(process), what)


def _find_nested_ranges(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report files of one process, from one start of nsys, that cover the same time."""
    for process in _group_nsys_processes(run):
        placed = [c for c in process if c.absolute_time and c.last_ns > c.first_ns]
        for captures in _group_captures(placed, lambda capture: capture.session):
            nested = _find_nested_captures(captures)
            if nested:
                count = f"{len(nested)} of its {len(captures)} files"
                what = f"{_format_capture_process(captures[0])}: {count} cover time of another"
                yield Symptom("nested-ranges", _list_capture_files(nested), what, len(nested))


def _find_nested_captures(captures: Sequence[Capture]) -> list[Capture]:
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


def _find_missing_device_rows(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report processes without GPU work if others of their team have some."""
    for team in _group_captures(_select_tool_captures(run, "torch"), _get_team_key):
        processes = _group_captures(team, lambda c: (c.source.rank, _get_process_key(c)))
        without: list[Capture] = []
        count = 0
        for process in processes:
            if not any(capture.device_op_count for capture in process):
                without += process
                count += 1
        if 0 < count < len(processes):
            what = f"{count:,} of {len(processes):,} processes recorded no GPU work, unlike the others"
            yield Symptom("no-device-rows", _list_capture_files(without), what)


def _find_unknown_ranks(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report processes of unknown rank if others have one, or if collectives show that ranks exist."""
    of_torch = [c for c in _select_tool_captures(run, "torch") if c.source.replica is None]
    unknown = [capture for capture in of_torch if capture.source.rank is None]
    distributed = len(unknown) < len(of_torch) or any(c.has_collectives for c in unknown)
    count = len(_group_captures(unknown, _get_process_key))
    if distributed and count and len(_group_captures(of_torch, _get_process_key)) > 1:
        who = "1 process does" if count == 1 else f"{count:,} processes do"
        yield Symptom("unknown-rank", _list_capture_files(unknown), f"{who} not record a rank")


def _find_separate_clocks(run: Sequence[Capture]) -> Iterator[Symptom]:
    """Report files with relative times in a run of several processes."""
    placed = [capture for capture in run if capture.last_ns > capture.first_ns]
    relative = [capture for capture in placed if not capture.absolute_time]
    # Processes of one file share its clock.
    if relative and len(_group_captures(placed, _get_process_key)) > 1 and len(_list_capture_files(placed)) > 1:
        files = _format_count_and_noun(len(_list_capture_files(placed)), "file")
        what = f"{len(_list_capture_files(relative)):,} of {files} have their own clock"
        yield Symptom("no-common-clock", _list_capture_files(relative), what)


_CHECKS: tuple[Check, ...] = (
    _find_shared_ranks,
    _find_reused_pids,
    _find_nested_ranges,
    _find_missing_device_rows,
    _find_unknown_ranks,
    _find_separate_clocks,
)
_CHECKS_OF_ABSENCE: tuple[Check, ...] = (_find_missing_ranks, _find_missing_steps, _find_missing_ranges)
"""Checks for missing parts. They are skipped if the user selected a part."""
