"""Grouping of sources into runs, names of runs, and duplicates within a run.

A sub-directory is a separate run only if a sibling has the same (tool, role, scope, step, rank,
replica, part); otherwise it is a role or stage folder. If siblings are runs, so is every directory among
them whose name states no role, stage, step, rank or replica.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import TypeVar

from tracekit.discover.names import HOST_FOLDER, NameFacts, states_any_fact
from tracekit.model.inputs.note_codes import Data
from tracekit.model.inputs.sources import NoteSeverity, Source
from tracekit.model.records import dataclass
from tracekit.model.text.labels import join_first_few, make_natural_key, normalize_label_words

T = TypeVar("T")
Key = tuple[Hashable, ...]

RAY_TIMELINE = "ray_timeline"
"""Name of the reader of Ray timelines."""

NO_DRIVER_LOGS = frozenset({"engine_log", "request_log", RAY_TIMELINE})
"""Readers of logs that are not a driver's: next to a profile, its driver's log is still looked for."""


@dataclass(frozen=True, slots=True)
class PlacedSource:
    """A source with its path below the argument, and the facts in its names that a `Source` does not have.

    `nodes` are the cluster nodes that see the file, empty for this machine. `content` is a digest of the content, if another
    file has the same content.
    """

    source: Source
    parts: tuple[str, ...]
    facts: NameFacts
    run_id: str | None = None
    nodes: tuple[str, ...] = ()
    content: str | None = None


def find_run_roots(members: Sequence[PlacedSource], *, loose: bool) -> list[tuple[str, ...]]:
    """Find the run directory of each member of one argument, relative to the argument.

    `loose` members were named file by file: their directories are runs unless their names state
    a role, stage …, and files of one directory with indistinguishable names are separate runs.
    """
    roots: list[tuple[str, ...]] = [()] * len(members)
    pending: list[tuple[Sequence[int], int]] = [(range(len(members)), 0)]
    while pending:
        group, depth = pending.pop()
        children: dict[str, list[int]] = defaultdict(list)
        for i in group:
            folder = members[i].parts[:-1][depth : depth + 1]
            children["".join(folder)].append(i)
        run_folders = _find_run_folders(children, members, loose=loose)
        for name, child in children.items():
            if not name:
                continue
            if name in run_folders:
                for i in child:
                    roots[i] = members[i].parts[: depth + 1]
            pending.append((child, depth + 1))
    if loose:
        for same in group_by_key(range(len(members)), lambda i: members[i].parts[:-1]):
            for i in _find_indistinct_files(same, members):
                roots[i] = members[i].parts
    return roots


def find_run_roots_and_ids(members: Sequence[PlacedSource], *, loose: bool) -> list[tuple[str, ...]]:
    """Find the run of each member: its directory, plus the run id if one directory has several runs."""
    roots = _find_roots_with_logs(members, loose=loose)
    ids: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for placed, root in zip(members, roots, strict=True):
        if placed.run_id:
            ids[root].add(placed.run_id)
    for place, placed in enumerate(members):
        if placed.run_id and len(ids[roots[place]]) > 1:
            roots[place] = (*roots[place], placed.run_id)
    return roots


def _find_roots_with_logs(placed: Sequence[PlacedSource], *, loose: bool) -> list[tuple[str, ...]]:
    """Find the run of each source. A log belongs to the run that contains it, or to the only run below it.

    Logs of engines and requests belong to the run of a training log in the same way.
    """
    traces = [p for p in placed if p.source.tool != "log"]
    roots = {id(p): root for p, root in zip(traces, find_run_roots(traces, loose=loose), strict=True)}
    drivers = [p for p in placed if id(p) not in roots and p.source.reader not in NO_DRIVER_LOGS]
    _add_log_roots(drivers, roots)
    _add_log_roots([p for p in placed if id(p) not in roots], roots)
    return [roots[id(p)] for p in placed]


def _add_log_roots(logs: Iterable[PlacedSource], roots: dict[int, tuple[str, ...]]) -> None:
    """Add the run of each log to `roots`, by the runs that are known before."""
    runs = set(roots.values())
    for log in logs:
        folder = _find_tracker_root(log.parts[:-1])
        holding = [run for run in runs if folder[: len(run)] == run]
        below = [run for run in runs if run[: len(folder)] == folder]
        if holding:
            roots[id(log)] = max(holding, key=len)
        else:
            roots[id(log)] = below[0] if len(below) == 1 else folder


_WANDB_FOLDER = re.compile(r"(?:offline-)?run-[0-9]{8}_[0-9]{6}-([\w.-]{1,128})")


def _find_tracker_root(folder: tuple[str, ...]) -> tuple[str, ...]:
    """Find the run of a log in a directory: Weights & Biases makes a directory per start, with the run's id.

    >>> _find_tracker_root(("wandb", "offline-run-20260901_100000-x7k2", "files"))
    ('wandb', 'run-x7k2')
    >>> _find_tracker_root(("logs", "a"))
    ('logs', 'a')
    """
    for place, part in enumerate(folder):
        match = _WANDB_FOLDER.fullmatch(part)
        if match:
            return (*folder[:place], f"run-{match[1]}")
    return folder


def shorten_run_names(paths: Sequence[tuple[str, ...]]) -> list[str]:
    """Shorten paths to names that are equal for equal paths and unique otherwise.

    >>> shorten_run_names([("a", "outputs", "profile"), ("b", "outputs", "profile")])
    ['a', 'b']
    >>> shorten_run_names([("base", "run1"), ("base", "run2"), ("opt", "run1")])
    ['base/run1', 'run2', 'opt/run1']
    """
    distinct = list(dict.fromkeys(paths))
    cut = _count_common_end(distinct)
    names = dict.fromkeys(distinct, "")
    used_ends: set[tuple[str, ...]] = set()
    waiting = {path: path[: len(path) - cut] for path in distinct}
    length = 0
    while waiting:
        length += 1
        ends = {path: stem[-length:] for path, stem in waiting.items()}
        for same in group_by_key(ends, ends.__getitem__):
            end = ends[same[0]]
            if (len(same) == 1 and end not in used_ends) or len(end) < length:
                names.update(dict.fromkeys(same, "/".join(end) or "/"))
                used_ends.add(end)
                for path in same:
                    del waiting[path]
    unique = dict(zip(names, number_repeated_names(list(names.values())), strict=True))
    return [unique[path] for path in paths]


def _count_common_end(paths: Sequence[tuple[str, ...]]) -> int:
    """Count the common last parts of all paths, if any share the last part. Each path keeps its first part."""
    last_parts = {path[-1:] for path in paths}
    if len(last_parts) == len(paths):
        return 0
    cut = 0
    for parts in zip(*(path[:0:-1] for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        cut += 1
    return cut


def number_repeated_names(names: Sequence[str]) -> list[str]:
    """Make names unique: repeated names get `#2`, `#3` and so on."""
    used_names = set(names)
    bearers: dict[str, int] = defaultdict(int)
    unique_names: list[str] = []
    for name in names:
        bearers[name] += 1
        unique = name
        while bearers[name] > 1 and unique in used_names:
            unique = f"{name}#{bearers[name]}"
            bearers[name] += unique in used_names
        used_names.add(unique)
        unique_names.append(unique)
    return unique_names


def mark_repeated_sources(members: Sequence[PlacedSource]) -> list[Source]:
    """List the sources of one run. Numbers successive captures by `part`, and notes duplicates and conflicts."""
    sources = [member.source for member in members]
    keys = [_get_source_key(member) for member in members]
    processes = [_get_named_process(member) for member in members]
    places = range(len(members))
    for same in group_by_key(places, lambda i: (keys[i][:-1], processes[i])):
        _number_captures(same, members, sources)
    for same in group_by_key(places, lambda i: (keys[i], sources[i].part, processes[i])):
        if len(same) > 1 and _has_known_process(members[same[0]]):
            _note_duplicate_sources(same, sources)
    for same in group_by_key(places, keys.__getitem__):
        _note_shared_rank(same, sources)
    return sources


def _note_duplicate_sources(same: Sequence[int], sources: list[Source]) -> None:
    """Note that these sources have indistinguishable names."""
    first, second = sources[same[0]].name, sources[same[1]].name
    for i in same:
        other = second if sources[i].name == first else first
        message = f"the same role, scope, step, rank and process as {other}: both are kept"
        sources[i] = sources[i].with_note("warning", "duplicate", message, Data(other=other))


def _find_run_folders(children: dict[str, list[int]], members: Sequence[PlacedSource], *, loose: bool) -> set[str]:
    """Find the sub-directories that are runs, among several `children`. The key "" is the files next to them."""
    if len(children) < 2:
        return set()
    holders: dict[tuple[Key, str | None], dict[str, set[str | None]]] = defaultdict(dict)
    for name, child in children.items():
        # If the rank is unknown, another host means another process of the same run.
        host = name if name.startswith(HOST_FOLDER) else None
        for i in child:
            holders[_get_source_key(members[i]), host].setdefault(name, set()).add(members[i].run_id)
    run_folders: set[str] = set()
    for by_name in holders.values():
        ids = set().union(*by_name.values())
        is_one_run = len(ids) == 1 and None not in ids
        if len(by_name) > 1 and not is_one_run:
            run_folders.update(by_name)
    if run_folders or loose:
        run_folders |= {name for name in children if not states_any_fact(name)}
    return run_folders - {""}


def _find_indistinct_files(folder: Sequence[int], members: Sequence[PlacedSource]) -> list[int]:
    """Find the files of one directory with indistinguishable names."""
    alike_files: list[int] = []
    for same in group_by_key(folder, lambda i: _get_source_key(members[i])):
        if members[same[0]].source.rank is not None:
            of_processes = [same]
        else:  # files of unknown rank from different processes may be ranks of one run
            of_processes = group_by_key(same, lambda i: _get_named_process(members[i]))
        for files in of_processes:
            starts = {members[i].facts.start for i in files} - {None}
            processes = {_get_named_process(members[i]) for i in files}
            are_captures = len(processes) == 1 and len(starts) == len(files)
            if not _has_known_process(members[files[0]]) or not (len(files) == 1 or are_captures):
                alike_files += files
    return alike_files


def _number_captures(same: Sequence[int], members: Sequence[PlacedSource], sources: list[Source]) -> None:
    """Name captures of one process `capture1`, `capture2` … if only the start time distinguishes them."""
    moments = sorted({start for i in same if (start := members[i].facts.start)}, key=make_natural_key)
    parts = {sources[i].part for i in same}
    if len(moments) < 2 or len(parts) == len(same):
        return
    order = dict(zip(moments, count(1), strict=False))
    for i in same:
        start = members[i].facts.start
        if start:
            label, part = f"capture{order[start]}", sources[i].part
            sources[i] = replace(sources[i], part=f"{label}-{part}" if part else label)


def _note_shared_rank(same: Sequence[int], sources: list[Source]) -> None:
    """Note that several processes claim one rank of one role and step."""
    first = sources[same[0]]
    known_pids = {pid for i in same if (pid := sources[i].pid) is not None}
    if first.rank is None or len(known_pids) < 2:
        return
    pids = tuple(str(pid) for pid in sorted(known_pids))
    # Colocated workers of several roles write memory snapshots under the same names.
    severity: NoteSeverity = "info" if first.tool == "torch_memory" else "warning"
    message = (
        f"{len(pids)} processes (pid {join_first_few(pids, 4)}) claim rank {first.rank}: "
        "two runs in one directory, or roles that the names do not tell"
    )
    data = Data(rank=first.rank, pids=pids)
    for i in same:
        sources[i] = sources[i].with_note(severity, "shared-rank", message, data)


def _get_source_key(member: PlacedSource) -> Key:
    """Build the key that distinguishes the sources of a run. Labels are normalized; the part is last."""
    s = member.source
    role, scope = _normalize_label(s.role), _normalize_label(s.scope)
    return (s.tool, role, scope, s.step, s.rank, s.replica, s.topology, s.part)


def _normalize_label(label: str | None) -> str | None:
    """Normalize the spelling of a label; None if there is none."""
    return None if label is None else normalize_label_words(label)


def _get_named_process(member: PlacedSource) -> Key:
    """Build the key of the process that wrote a file, from names."""
    return (member.source.host, member.source.pid, member.facts.worker)


def _has_known_process(member: PlacedSource) -> bool:
    """Check whether the names identify the process at all."""
    return (member.source.rank, *_get_named_process(member)) != (None,) * 4


def group_by_key(things: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Group `things` by `key`, in order of first appearance."""
    by_key: dict[Hashable, list[T]] = defaultdict(list)
    for thing in things:
        by_key[key(thing)].append(thing)
    return list(by_key.values())
