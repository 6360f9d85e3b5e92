"""Which files of one directory are not of one run, by what was read of them: such files are runs of their own.

Files whose names or manifests say whose they are make up the run that discovery took them for. Others belong
together where they are of one process, ran at one time, in one world or in one process group; where nothing
that was read speaks against it, they stay together.
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
from tracekit.model.labels import first_few, shown
from tracekit.model.tables import TABLES, concat
from tracekit.model.tables.arrays import Coded, Columns
from tracekit.model.trace import Note, Source
from tracekit.pipeline.first_screen import APART
from tracekit.pipeline.gather import MeasuredSource

_SAID_BY_NAMES = attrgetter(
    *("role", "scope", "step", "rank", "world_size", "replica", "topology", "part", "host", "pid")
)
_TOOLS = frozenset({"torch", "nsys"})
"""Snapshots and logs do not say at what time which process wrote them."""
_MOST_NAMED = 4

Links = dict[str, str]
"""Each source, and one that it belongs to; itself, where it is the first of its group."""


def told_apart(
    found: Discovery, parts: Sequence[MeasuredSource]
) -> tuple[dict[str, str], list[Note]]:
    """The new run of each source that is of another run than discovery took it for, and a note a run that was parted.

    Runs that a person named are as they are.
    """
    named = {source.name for source in found.sources if _says_whose(source)}
    sources: dict[str, set[str]] = {}
    for part in parts:
        if part.source.tool in _TOOLS:
            sources.setdefault(part.source.run, set()).add(part.source.name)
    doubtful = [
        run
        for run, names in sources.items()
        if run not in found.labelled and len(names) > 1 and names - named
    ]
    new_runs: dict[str, str] = {}
    notes: list[Note] = []
    if not doubtful:
        return new_runs, notes
    captures = _rows("captures", parts)
    members = _process_groups(parts)
    run_names = list(dict.fromkeys(map(attrgetter("source.run"), parts)))
    for run in doubtful:
        groups = _groups(captures[captures["run"] == run], named, members)
        if len(groups) < 2:
            continue
        names = _run_names(run, groups, named, [*run_names, *dict.fromkeys(new_runs.values())])
        for name, group in zip(names, groups, strict=True):
            if name != run:
                new_runs.update(dict.fromkeys(group, name))
        notes.append(_note(run, groups, names))
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


def _groups(
    captures: pd.DataFrame, named: set[str], members: Mapping[str, set[str]]
) -> list[list[str]]:
    """The sources of one run by what links them; one group where too little is known to tell."""
    clocked = captures[captures["absolute_time"] & captures["pid"].notna()]
    clocked = clocked[clocked["tool"].isin(_TOOLS)].sort_values("ts_ns", kind="stable")
    names = clocked["source"].astype(object).tolist()
    links: Links = dict(zip(names, names, strict=True))
    if named & {*captures["source"].astype(object)} and not named & links.keys():
        return []
    first_of: dict[Hashable, str] = {}
    end_ns, running = 0, ""
    rows = clocked[["source", "host", "pid", "world_size", "ts_ns", "dur_ns"]].astype(object)
    for source, host, pid, world_size, ts_ns, dur_ns in rows.itertuples(index=False):
        keys: list[Hashable] = [("process", None if pd.isna(host) else host, pid)]
        keys += [("group", group) for group in members.get(source, ())]
        if source in named:
            keys.append("named")
        if pd.notna(world_size) and world_size > 1:
            keys.append(("world", world_size))
        for key in keys:
            _link(links, source, first_of.setdefault(key, source))
        if running and ts_ns < end_ns:
            _link(links, source, running)
        if ts_ns + dur_ns > end_ns:
            end_ns, running = ts_ns + dur_ns, source
    groups: dict[str, list[str]] = {}
    for source in links:
        groups.setdefault(_first(links, source), []).append(source)
    return list(groups.values())


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
    """What each group is called: by its first file, or as before where names say whose the files are."""
    names: list[str] = []
    for group in groups:
        first_file = group[0].rpartition("/")[2]
        names.append(run if named.intersection(group) else shown(stem_of(first_file)))
    unique = numbered([*used, *names])[len(used) :]
    return [run if name == run else other for name, other in zip(names, unique, strict=True)]


def _note(run: str, groups: Sequence[Sequence[str]], names: Sequence[str]) -> Note:
    """What is said of a directory that holds several runs."""
    count = sum(map(len, groups))
    message = (
        f"{count:,} files of {run} share no process, time, world or process group: shown as {len(names):,} runs "
        f"({first_few(names, _MOST_NAMED)}); name=DIRECTORY makes them one"
    )
    return Note("warning", APART, message, run, count, data=Data(runs=tuple(names)))
