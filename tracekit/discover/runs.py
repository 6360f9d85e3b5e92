"""Which sources belong to one run, what the runs are called, and what files of a run repeat each other.

A sub-directory is a run of its own only if a sibling holds the same (tool, role, scope, step, rank,
replica, part); otherwise it is a role or stage folder. Where siblings are runs, so is every directory among
them whose name states no role, stage, step, rank or replica.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tracekit.discover.names import HOST_FOLDER, NameFacts, says_something
from tracekit.model.codes import Data
from tracekit.model.labels import natural, words
from tracekit.model.trace import NoteSeverity, Source

T = TypeVar("T")
Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """A source, where it lies below its argument, and what its names say that a `Source` does not keep.

    `nodes` are those of a cluster that see the file; none means here. `content` is a digest of what it holds, where
    another file holds the same.
    """

    source: Source
    parts: tuple[str, ...]
    facts: NameFacts
    run_id: str | None = None
    nodes: tuple[str, ...] = ()
    content: str | None = None


def run_roots(members: Sequence[Placed], *, loose: bool) -> list[tuple[str, ...]]:
    """For each member of one argument the directory, below the argument, that is its run.

    `loose` members were named file by file: their directories are runs unless the names of these state
    a role, stage …, and files of one directory that names do not tell apart are runs of their own.
    """
    roots: list[tuple[str, ...]] = [() for _ in members]
    pending = [(list(range(len(members))), 0)]
    while pending:
        group, depth = pending.pop()
        children: dict[str, list[int]] = defaultdict(list)
        for i in group:
            below = members[i].parts[depth:]
            children[below[0] if len(below) > 1 else ""].append(i)
        own = _own_runs(children, members, loose=loose) if len(children) > 1 else set()
        for name, child in children.items():
            if not name:
                continue
            if name in own:
                for i in child:
                    roots[i] = members[i].parts[: depth + 1]
            pending.append((child, depth + 1))
    if loose:
        for same in groups(range(len(members)), lambda i: members[i].parts[:-1]):
            for i in _untold(same, members):
                roots[i] = members[i].parts
    return roots


def roots_with_ids(members: Sequence[Placed], *, loose: bool) -> list[tuple[str, ...]]:
    """For each member its run: a directory below the argument, and the run id where one holds several."""
    roots = _with_logs(members, loose=loose)
    ids: dict[tuple[str, ...], set[str]] = {}
    for placed, root in zip(members, roots, strict=True):
        ids.setdefault(root, set()).update([placed.run_id] if placed.run_id else [])
    return [
        (*root, placed.run_id) if placed.run_id and len(ids[root]) > 1 else root
        for placed, root in zip(members, roots, strict=True)
    ]


def _with_logs(placed: Sequence[Placed], *, loose: bool) -> list[tuple[str, ...]]:
    """The run of each source; a log belongs to the run that it lies in or, failing that, to the only one below it."""
    traces = [p for p in placed if p.source.tool != "log"]
    known = iter(run_roots(traces, loose=loose))
    roots = {id(p): root for p, root in zip(traces, known, strict=True)}
    runs = set(roots.values())
    for log in placed:
        if id(log) in roots:
            continue
        folder = log.parts[:-1]
        holding = [run for run in runs if folder[: len(run)] == run]
        below = [run for run in runs if run[: len(folder)] == folder]
        near = [max(holding, key=len)] if holding else below
        roots[id(log)] = near[0] if len(near) == 1 else folder
    return [roots[id(p)] for p in placed]


def short_names(paths: Sequence[tuple[str, ...]]) -> list[str]:
    """A short name for each path, the same for the same path and unique among different ones.

    >>> short_names([("a", "outputs", "profile"), ("b", "outputs", "profile")])
    ['a', 'b']
    >>> short_names([("base", "run1"), ("base", "run2"), ("opt", "run1")])
    ['base/run1', 'run2', 'opt/run1']
    """
    distinct = list(dict.fromkeys(paths))
    cut = 0
    if len(distinct) > 1 and len({p[-1:] for p in distinct}) < len(distinct):
        shortest = min(map(len, distinct))
        while cut < shortest - 1 and len({p[len(p) - 1 - cut] for p in distinct}) == 1:
            cut += 1
    names: dict[tuple[str, ...], str] = {}
    taken: set[tuple[str, ...]] = set()
    waiting = {path: path[: len(path) - cut] for path in distinct}
    length = 0
    while waiting:
        length += 1
        ends = {path: stem[-length:] for path, stem in waiting.items()}
        for same in groups(ends, ends.__getitem__):
            end = ends[same[0]]
            if (len(same) == 1 and end not in taken) or len(end) < length:
                names.update(dict.fromkeys(same, "/".join(end) or "/"))
                taken.add(end)
        waiting = {path: stem for path, stem in waiting.items() if path not in names}
    return numbered([names[p] for p in distinct], distinct, paths)


def numbered(
    names: Sequence[str], things: Sequence[Hashable], every: Sequence[Hashable]
) -> list[str]:
    """Names for `every` thing, where `names` are those of `things`: a second bearer gets `#2`."""
    taken = set(names)
    seen: dict[str, int] = defaultdict(int)
    final: dict[Hashable, str] = {}
    for name, thing in zip(names, things, strict=True):
        seen[name] += 1
        unique = name
        while seen[name] > 1 and unique in taken:
            unique = f"{name}#{seen[name]}"
            seen[name] += unique in taken
        taken.add(unique)
        final[thing] = unique
    return [final[thing] for thing in every]


def mark_repeats(members: Sequence[Placed]) -> list[Source]:
    """The sources of one run: successive captures told apart by `part`, duplicates and doubts noted."""
    sources = [m.source for m in members]
    for same in groups(
        range(len(members)), lambda i: (_key(members[i])[:-1], _process(members[i]))
    ):
        _number_captures(same, members, sources)
    for same in groups(
        range(len(members)), lambda i: (_key(members[i]), sources[i].part, _process(members[i]))
    ):
        if len(same) > 1 and _is_known(members[same[0]]):
            names = [sources[i].name for i in same]
            for i in same:
                other = next(name for name in names if name != sources[i].name)
                message = f"the same role, scope, step, rank and process as {other}: both are kept"
                sources[i] = sources[i].with_note(
                    "warning", "duplicate", message, Data(other=other)
                )
    for same in groups(range(len(members)), lambda i: _key(members[i])):
        _note_shared_rank(same, sources)
    return sources


def _own_runs(
    children: dict[str, list[int]], members: Sequence[Placed], *, loose: bool
) -> set[str]:
    """Which of the sub-directories `children` are runs; the key "" stands for files beside them."""
    holders: dict[tuple[Key, str | None], dict[str, set[str | None]]] = defaultdict(dict)
    for name, child in children.items():
        for i in child:
            # Where a rank is unknown, another host makes it another process of the same run.
            host = name if name.startswith(HOST_FOLDER) else None
            holders[_key(members[i]), host].setdefault(name, set()).add(members[i].run_id)
    own: set[str] = set()
    for by_name in holders.values():
        ids = set().union(*by_name.values())
        one_run = len(ids) == 1 and None not in ids
        if len(by_name) > 1 and not one_run:
            own.update(by_name)
    if own or loose:
        own.update(name for name in children if not says_something(name))
    return own - {""}


def _untold(folder: Sequence[int], members: Sequence[Placed]) -> list[int]:
    """Which files of one directory their names do not tell from the others."""
    untold: list[int] = []
    for same in groups(folder, lambda i: _key(members[i])):
        # Files of unknown rank from different processes may well be the ranks of one run.
        known = members[same[0]].source.rank is not None
        for files in [same] if known else groups(same, lambda i: _process(members[i])):
            starts = {members[i].facts.start for i in files} - {None}
            captures = len({_process(members[i]) for i in files}) == 1 and len(starts) == len(files)
            if not _is_known(members[files[0]]) or not (len(files) == 1 or captures):
                untold += files
    return untold


def _number_captures(same: Sequence[int], members: Sequence[Placed], sources: list[Source]) -> None:
    """Name captures of one process `capture1`, `capture2` … where only the start tells them apart."""
    starts = sorted({s for i in same if (s := members[i].facts.start) is not None}, key=natural)
    if len(starts) < 2 or len({sources[i].part for i in same}) == len(same):
        return
    order = {start: n for n, start in enumerate(starts, 1)}
    for i in same:
        start = members[i].facts.start
        if start is not None:
            label = f"capture{order[start]}"
            part = sources[i].part
            sources[i] = replace(sources[i], part=f"{label}-{part}" if part else label)


def _note_shared_rank(same: Sequence[int], sources: list[Source]) -> None:
    """Note where several processes claim one rank of one role and step."""
    first = sources[same[0]]
    pids = sorted({p for i in same if (p := sources[i].pid) is not None})
    if first.rank is None or len(pids) < 2:
        return
    # The roles of colocated workers write memory snapshots under the same names.
    severity: NoteSeverity = "info" if first.tool == "torch_memory" else "warning"
    claimants = ", ".join(map(str, pids[:4])) + (" …" if len(pids) > 4 else "")
    message = (
        f"{len(pids)} processes (pid {claimants}) claim rank {first.rank}: two runs in one directory, "
        "or roles that the names do not tell"
    )
    data = Data(rank=first.rank, pids=tuple(map(str, pids)))
    for i in same:
        sources[i] = sources[i].with_note(severity, "shared-rank", message, data)


def _key(member: Placed) -> Key:
    """What tells the sources of one run apart; labels in one spelling, the part last."""
    s = member.source
    role, scope = (None if label is None else words(label) for label in (s.role, s.scope))
    return (s.tool, role, scope, s.step, s.rank, s.replica, s.topology, s.part)


def _process(member: Placed) -> Key:
    """What the names say about the process that wrote a file."""
    return (member.source.host, member.source.pid, member.facts.worker)


def _is_known(member: Placed) -> bool:
    """Whether the names say at all whose file it is."""
    return member.source.rank is not None or any(v is not None for v in _process(member))


def groups(things: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """`things` gathered by `key`, in the order of their first members."""
    by_key: dict[Hashable, list[T]] = defaultdict(list)
    for thing in things:
        by_key[key(thing)].append(thing)
    return list(by_key.values())
