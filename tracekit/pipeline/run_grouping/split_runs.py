"""Which files of one directory are not of one run, by what was read of them: such files are runs of their own.

Files whose names or manifests say whose they are make up the run that discovery took them for. Others belong
together where they are of one process, ran at one time, in one world or in one process group; where nothing
that was read speaks against it, they stay together. What speaks against all but one process and one time is
that a program was launched again (`relaunched`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np
import pandas as pd

from tracekit.discover import Discovery
from tracekit.discover.names import stem_of
from tracekit.discover.runs import numbered
from tracekit.model.codes import Data
from tracekit.model.keys import records
from tracekit.model.labels import first_few, plural, shown
from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES, concat
from tracekit.model.tables.arrays import Coded, Columns
from tracekit.model.trace import Note, Source
from tracekit.model.units import numbers, show
from tracekit.pipeline.run_grouping.restarts import (
    Place,
    ProcessSpan,
    place_of,
    process_spans,
    relaunch,
)
from tracekit.pipeline.summary.screen import APART
from tracekit.pipeline.wire_format.worker_tables import MeasuredSource

_SAID_BY_NAMES = attrgetter(
    *("role", "scope", "step", "rank", "world_size", "replica", "topology", "part", "host", "pid")
)
_TOOLS = frozenset({"torch", "nsys"})
"""Snapshots and logs do not say at what time which process wrote them."""
_MOST_NAMED = 4

Links = dict[str, str]
"""Each source, and one that it belongs to; itself, where it is the first of its group."""

Pair = tuple[ProcessSpan, ProcessSpan]
"""Two processes of one place in the job that can only be of two launches, the earlier first."""


@dataclass(slots=True)
class Group:
    """Sources that belong together, what may link others to them, and their processes by their place in the job."""

    sources: list[str]
    keys: set[Hashable]
    processes: dict[Place, list[ProcessSpan]]

    def relaunch(self, other: Group) -> Pair | None:
        """A process of each that speak of two launches, where there are any."""
        for place in sorted(self.processes.keys() & other.processes.keys(), key=repr):
            pair = relaunch(self.processes[place], other.processes[place])
            if pair is not None:
                return pair
        return None

    def absorb(self, other: Group) -> None:
        """Nothing; afterwards all that the other held is here."""
        self.sources += other.sources
        self.keys |= other.keys
        for place, spans in other.processes.items():
            own_spans = self.processes.setdefault(place, [])
            own_spans += [span for span in spans if span not in own_spans]


def told_apart(
    found: Discovery, parts: Sequence[MeasuredSource]
) -> tuple[dict[str, str], list[Note]]:
    """The new run of each source that is of another run than discovery took it for, and a note a run that was parted.

    Runs that a person named are as they are.
    """
    named = {source.name for source in found.sources if _says_whose(source)}
    doubtful = _doubtful_runs(found, parts, named)
    new_runs: dict[str, str] = {}
    notes: list[Note] = []
    if not doubtful:
        return new_runs, notes
    captures = _rows("captures", parts)
    members = _process_groups(parts)
    named_steps = {part.source.name: part.source.step for part in parts}
    spans = process_spans(captures, _rows("steps", parts), _rows("stages", parts), named_steps)
    run_names = list(dict.fromkeys(map(attrgetter("source.run"), parts)))
    for run in doubtful:
        groups, pair = _groups(captures[captures["run"] == run], named, members, spans)
        if len(groups) < 2:
            continue
        used_names = [*run_names, *dict.fromkeys(new_runs.values())]
        group_names = _run_names(run, groups, named, used_names)
        for name, group in zip(group_names, groups, strict=True):
            if name != run:
                new_runs.update(dict.fromkeys(group, name))
        notes.append(_note(run, groups, group_names, pair))
    return new_runs, notes


def in_run(part: MeasuredSource, new_runs: Mapping[str, str]) -> MeasuredSource:
    """The same with its source in the run that it belongs to; the frames are told once they are put together."""
    run = new_runs.get(part.source.name)
    return part if run is None else replace(part, source=replace(part.source, run=run))


def renamed(rows: Columns, new_runs: Mapping[str, str]) -> Columns:
    """The rows of a measured table, with the runs that their sources belong to."""
    if not new_runs:
        return rows
    sources, runs = rows["source"], rows["run"]
    assert isinstance(sources, Coded), "sources are texts"
    assert isinstance(runs, Coded), "runs are texts"
    texts = tuple(dict.fromkeys((*runs.texts, *new_runs.values())))
    place = dict(zip(texts, range(len(texts)), strict=True))
    code_of = [place[new_runs[s]] if s in new_runs else -1 for s in sources.texts]
    codes = np.array([*code_of, -1])[sources.codes]
    codes = np.where(codes >= 0, codes, runs.codes)
    used = np.unique(codes[codes >= 0])
    new_codes = np.full(len(texts) + 1, -1)
    new_codes[used] = np.arange(len(used))
    run = Coded(new_codes[codes], tuple(texts[code] for code in used.tolist()))
    return Columns(len(rows), {**rows.arrays, "run": run})


def _says_whose(source: Source) -> bool:
    """Whether names or a manifest say anything about the process that wrote a file: `source` is not read yet."""
    return set(_SAID_BY_NAMES(source)) != {None}


def _rows(table: str, parts: Iterable[MeasuredSource]) -> pd.DataFrame:
    """The rows that all sources measured for a table."""
    rows: list[Columns] = []
    for part in parts:
        rows += [tables[table] for tables in part.tables.values() if table in tables]
    return concat(TABLES[table], rows).frame()


def _process_groups(parts: Sequence[MeasuredSource]) -> dict[str, set[str]]:
    """The process groups of more than one rank that each source took part in, by name and hash of their members."""
    rows = _rows("collectives", parts)[["source", "group", "group_size"]]
    rows = rows[(rows["group_size"] > 1).fillna(value=False)].drop_duplicates()
    members: dict[str, set[str]] = {}
    for source, group in records(rows, ["source", "group"]):
        # Every job has a group of that name.
        if isinstance(group, str) and ":" in group:
            members.setdefault(source, set()).add(group)
    return members


def _doubtful_runs(found: Discovery, parts: Sequence[MeasuredSource], named: set[str]) -> list[str]:
    """The runs of several files that no person named, and whose names do not say whose all are, or say one place twice."""
    sources: dict[str, set[str]] = {}
    for part in parts:
        if part.source.tool in _TOOLS:
            sources.setdefault(part.source.run, set()).add(part.source.name)
    held_twice = _runs_held_twice(parts)
    doubtful: list[str] = []
    for run, names in sources.items():
        is_doubtful = bool(names - named) or run in held_twice
        if run not in found.labelled and len(names) > 1 and is_doubtful:
            doubtful.append(run)
    return doubtful


def _runs_held_twice(parts: Iterable[MeasuredSource]) -> set[str]:
    """The runs in which several processes hold one place of the job, or files of one are told apart by nothing."""
    runs: set[str] = set()
    first_pid: dict[Hashable, int] = {}
    for part in parts:
        source = part.source
        if source.tool in _TOOLS and source.pid is not None:
            place = place_of(source.tool, source.role, source.replica, source.rank)
            is_doubled = "duplicate" in map(attrgetter("code"), source.notes)
            if is_doubled or first_pid.setdefault((source.run, place), source.pid) != source.pid:
                runs.add(source.run)
    return runs


def _groups(
    captures: pd.DataFrame,
    named: set[str],
    members: Mapping[str, set[str]],
    spans: Mapping[str, Sequence[ProcessSpan]],
) -> tuple[list[list[str]], Pair | None]:
    """The sources of one run by what links them, and two processes of two launches that part some, where any do.

    One group where too little is known to tell.
    """
    clocked = captures[captures["absolute_time"] & captures["pid"].notna()]
    clocked = clocked[clocked["tool"].isin(_TOOLS)].sort_values("ts_ns", kind="stable")
    names = clocked["source"].astype(object).tolist()
    if named & {*captures["source"].astype(object)} and not named & {*names}:
        return [], None
    links = _of_one_process_or_time(clocked, spans)
    keys = _weak_keys(clocked, named, members)
    groups: dict[str, Group] = {}
    for source in links:
        group = groups.setdefault(_first(links, source), Group([], set(), {}))
        by_place: dict[Place, list[ProcessSpan]] = {}
        for span in spans.get(source, ()):
            by_place.setdefault(span.place, []).append(span)
        group.absorb(Group([source], keys[source], by_place))
    return _linked(list(groups.values()))


def _of_one_process_or_time(
    clocked: pd.DataFrame, spans: Mapping[str, Sequence[ProcessSpan]]
) -> Links:
    """The sources in the order of time, those linked that are of one process or ran at one time."""
    names = clocked["source"].astype(object).tolist()
    links: Links = dict(zip(names, names, strict=True))
    first_of: dict[Hashable, str] = {}
    end_ns, running = 0, ""
    for source, ts_ns, dur_ns in records(clocked, ["source", "ts_ns", "dur_ns"]):
        for span in spans.get(source, ()):
            process = (span.host, span.pid, span.lap)
            _link(links, source, first_of.setdefault(process, source))
        if running and ts_ns < end_ns:
            _link(links, source, running)
        if ts_ns + dur_ns > end_ns:
            end_ns, running = ts_ns + dur_ns, source
    return links


def _weak_keys(
    clocked: pd.DataFrame, named: set[str], members: Mapping[str, set[str]]
) -> dict[str, set[Hashable]]:
    """What links each source to others that have the same, unless they are of another launch."""
    keys: dict[str, set[Hashable]] = {}
    for source, host, pid, world_size in records(clocked, ["source", "host", "pid", "world_size"]):
        of_source = keys.setdefault(source, {("group", group) for group in members.get(source, ())})
        of_source.add(("process", host, pid))
        if source in named:
            of_source.add("named")
        if world_size is not None and world_size > 1:
            of_source.add(("world", world_size))
    return keys


def _linked(groups: Sequence[Group]) -> tuple[list[list[str]], Pair | None]:
    """The sources of each group and of those, one after the candidate, that a key links to it and no launch parts from it."""
    linked: list[Group] = []
    first_pair: Pair | None = None
    for group in groups:
        home: Group | None = None
        for candidate in tuple(linked):
            whole = home or group
            if not whole.keys & candidate.keys:
                continue
            pair = candidate.relaunch(whole)
            if pair is not None:
                first_pair = first_pair or pair
            elif home is None:
                candidate.absorb(group)
                home = candidate
            else:
                home.absorb(candidate)
                linked.remove(candidate)
        if home is None:
            linked.append(group)
    return [group.sources for group in linked], first_pair


def _first(links: Links, source: str) -> str:
    """The first of the group of a source."""
    while links[source] != source:
        links[source] = links[links[source]]
        source = links[source]
    return source


def _link(links: Links, source: str, other: str) -> None:
    """Nothing; afterwards two sources are of one group."""
    links[_first(links, source)] = _first(links, other)


def _run_names(
    run: str, groups: Sequence[Sequence[str]], named: set[str], used: Sequence[str]
) -> list[str]:
    """What each group is called: by its first file, or as before where names say whose the files are; no two the same."""
    names: list[str] = []
    keeps_name: int | None = None
    for place, group in enumerate(groups):
        is_named = bool(named.intersection(group))
        if is_named and keeps_name is None:
            keeps_name = place
        first_file = group[0].rpartition("/")[2]
        names.append(run if is_named else shown(stem_of(first_file)))
    new = [name for place, name in enumerate(names) if place != keeps_name]
    unique = iter(numbered([*used, *new])[len(used) :])
    return [run if place == keeps_name else next(unique) for place in range(len(names))]


def _note(
    run: str, groups: Sequence[Sequence[str]], names: Sequence[str], pair: Pair | None
) -> Note:
    """What is said of a directory that holds several runs."""
    count = sum(map(len, groups))
    why = "share no process, time, world or process group"
    if pair is not None:
        first, second = pair
        whose = "one process" if first.rank is None else f"rank {first.rank}"
        later = show(second.start_ns - first.end_ns, "ns")
        why = f"are of several launches ({whose} is pid {first.pid}, and {later} later pid {second.pid})"
        if first.pid == second.pid:
            common = sorted(first.steps & second.steps)
            why = f"hold the same steps twice ({whose} passes {plural(len(common), 'step')} {numbers(common)} again {later} later)"
    message = (
        f"{count:,} files of {run} {why}: shown as {len(names):,} runs "
        f"({first_few(names, _MOST_NAMED)}); name=DIRECTORY makes them one"
    )
    return Note("warning", APART, message, run, count, data=Data(runs=tuple(names)))
