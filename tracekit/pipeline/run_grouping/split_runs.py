"""Splitting of a directory into runs: files that cannot belong to the same run, judged by their content.

Files whose names or manifests identify their process form the run that discovery assigned. Other files belong together
if they share a process, a time, a world size or a process group; without evidence against it they stay together.
Evidence of a restart outweighs everything except a shared process or time.

After a restart, one place in the job is held by two processes one after the other, or by one pid that repeats its
steps. (In containers pids start over, and a recreated profiler restarts its step count.) RL roles look similar, because
several processes of one rank take turns on a GPU, but they run other stages. A job resumed from a checkpoint runs other
steps. Neither counts as another run.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from operator import attrgetter
from typing import Any

import numpy as np

from tracekit.discover import Discovery
from tracekit.discover.names import strip_format_suffixes
from tracekit.discover.runs import number_repeated_names
from tracekit.model.inputs.note_codes import Data
from tracekit.model.records import dataclass
from tracekit.model.stages import RL_STAGES, get_canonical_stage, get_scope_stage
from tracekit.model.tables import TABLES, concatenate_table_parts
from tracekit.model.tables.arrays import Coded, Columns
from tracekit.model.tables.frame import Frame
from tracekit.model.text.labels import choose_plural, join_first_few, make_displayable, normalize_label_words
from tracekit.model.trace import Note, Source
from tracekit.model.units import format_quantity, format_ranges
from tracekit.pipeline.summary.screen import SPLIT_RUNS_CODE
from tracekit.pipeline.wire_format.worker_tables import MeasuredSource

_get_named_facts = attrgetter(
    *("role", "scope", "step", "rank", "world_size", "replica", "topology", "part", "host", "pid")
)
_DATED_TOOLS = frozenset({"torch", "nsys"})
"""Tools whose files record the process and the time; snapshots and logs do not."""
_MAX_NAMED_RUNS = 4

SourceLinks = dict[str, str]
"""Union-find parents: each source maps to another of its group, and the first source of a group to itself."""

MIN_LAUNCH_NS = 10**9
"""Minimum time from the end of a process to its successor's first capture; `import torch` takes 1.6 s of CPU."""

_JOB_PLACE_COLUMNS = ("tool", "role", "replica", "rank")
_SPAN_COLUMNS = ("run", "host", "pid", *_JOB_PLACE_COLUMNS, "scope", "part", "source", "ts_ns", "dur_ns")

ProcessKey = tuple[str, str | None, int]
"""(run, host, pid)."""
JobPlace = tuple[str, str | None, int | None, int | None]
"""The position of a process in the job: (tool, role, replica, rank)."""


@dataclass(frozen=True, slots=True)
class ProcessSpan:
    """One process from its first capture to its last, with the steps and stages in them.

    `lap` counts how often its pid repeated steps before.
    """

    place: JobPlace
    host: str | None
    pid: int
    lap: int
    start_ns: int
    end_ns: int
    steps: frozenset[int]
    stages: frozenset[str]

    @property
    def rank(self) -> int | None:
        """The rank, if known."""
        return self.place[-1]


RelaunchPair = tuple[ProcessSpan, ProcessSpan]
"""Two processes at one place in the job that must belong to two launches, the earlier first."""


@dataclass(slots=True)
class SourceGroup:
    """Sources that belong together, the keys that link others to them, and their processes by place in the job."""

    sources: list[str]
    keys: set[Hashable]
    processes: dict[JobPlace, list[ProcessSpan]]

    def relaunch(self, other: SourceGroup) -> RelaunchPair | None:
        """Find a process of each group that must belong to two launches; None without such a pair."""
        for place in sorted(self.processes.keys() & other.processes.keys(), key=repr):
            pair = find_relaunch(self.processes[place], other.processes[place])
            if pair is not None:
                return pair
        return None

    def absorb(self, other: SourceGroup) -> None:
        """Merge the other group into this one."""
        self.sources += other.sources
        self.keys |= other.keys
        for place, spans in other.processes.items():
            own_spans = self.processes.setdefault(place, [])
            own_spans += [span for span in spans if span not in own_spans]


def split_discovered_runs(discovery: Discovery, parts: Sequence[MeasuredSource]) -> tuple[dict[str, str], list[Note]]:
    """Split the runs of a discovery: (new run of each source that changes its run, a note per split run).

    Runs labelled by the user stay as they are.
    """
    named = {source.name for source in discovery.sources if _is_identified(source)}
    doubtful = _list_doubtful_runs(discovery, parts, named)
    new_runs: dict[str, str] = {}
    notes: list[Note] = []
    if not doubtful:
        return new_runs, notes
    captures = _concatenate_part_rows("captures", parts)
    members = _list_process_groups(parts)
    named_steps = {part.source.name: part.source.step for part in parts}
    spans = list_process_spans(
        captures, _concatenate_part_rows("steps", parts), _concatenate_part_rows("stages", parts), named_steps
    )
    run_names = list(dict.fromkeys(part.source.run for part in parts))
    for run in doubtful:
        groups, pair = _group_run_sources(captures.filter(captures.equals("run", run)), named, members, spans)
        if len(groups) < 2:
            continue
        used_names = [*run_names, *dict.fromkeys(new_runs.values())]
        group_names = _name_split_runs(run, groups, named, used_names)
        for name, group in zip(group_names, groups, strict=True):
            if name != run:
                new_runs.update(dict.fromkeys(group, name))
        notes.append(_note_split_run(run, groups, group_names, pair))
    return new_runs, notes


def move_to_run(part: MeasuredSource, new_runs: Mapping[str, str]) -> MeasuredSource:
    """Move a part's source to its new run; its tables are changed later, once concatenated."""
    run = new_runs.get(part.source.name)
    return part if run is None else replace(part, source=replace(part.source, run=run))


def rename_table_runs(rows: Columns, new_runs: Mapping[str, str]) -> Columns:
    """Set the new runs of the sources in the rows of a measured table."""
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


def _is_identified(source: Source) -> bool:
    """Check whether names or a manifest identify the process that wrote a file; `source` is not read yet."""
    return set(_get_named_facts(source)) != {None}


def _concatenate_part_rows(table: str, parts: Iterable[MeasuredSource]) -> Frame:
    """Concatenate the rows of a table over all sources."""
    rows: list[Columns] = []
    for part in parts:
        rows += [tables[table] for tables in part.tables.values() if table in tables]
    return Frame.from_columns(concatenate_table_parts(TABLES[table], rows))


def _list_process_groups(parts: Sequence[MeasuredSource]) -> dict[str, set[str]]:
    """List the process groups of more than one rank per source, by name and hash of their members."""
    rows = _concatenate_part_rows("collectives", parts)
    rows = rows.filter(rows.integers("group_size") > 1).distinct("source", "group")
    members: dict[str, set[str]] = {}
    for row in rows.rows("source", "group"):
        # Without the hash of its members, a group name is the same in every job.
        if ":" in (row["group"] or ""):
            members.setdefault(row["source"], set()).add(row["group"])
    return members


def _list_doubtful_runs(discovery: Discovery, parts: Sequence[MeasuredSource], named: set[str]) -> list[str]:
    """List the runs of several files that may need a split.

    The user did not label them, and their names leave a process unidentified or identify two processes alike.
    """
    sources: dict[str, set[str]] = {}
    for part in parts:
        if part.source.tool in _DATED_TOOLS:
            sources.setdefault(part.source.run, set()).add(part.source.name)
    held_twice = _find_doubled_runs(parts)
    doubtful: list[str] = []
    for run, names in sources.items():
        is_doubtful = bool(names - named) or run in held_twice
        if run not in discovery.labelled and len(names) > 1 and is_doubtful:
            doubtful.append(run)
    return doubtful


def _find_doubled_runs(parts: Iterable[MeasuredSource]) -> set[str]:
    """Find the runs in which several processes share a place in the job, or files are marked as duplicates."""
    runs: set[str] = set()
    first_pid: dict[Hashable, int] = {}
    for part in parts:
        source = part.source
        if source.tool in _DATED_TOOLS and source.pid is not None:
            place = make_job_place(source.tool, source.role, source.replica, source.rank)
            is_doubled = any(note.code == "duplicate" for note in source.notes)
            if is_doubled or first_pid.setdefault((source.run, place), source.pid) != source.pid:
                runs.add(source.run)
    return runs


def _group_run_sources(
    captures: Frame, named: set[str], members: Mapping[str, set[str]], spans: Mapping[str, Sequence[ProcessSpan]]
) -> tuple[list[list[str]], RelaunchPair | None]:
    """Group the sources of one run, and find a pair of processes that shows a restart, if any.

    Gives at most one group if too little is known.
    """
    clocked = _select_clocked_captures(captures)
    clocked = clocked.filter(clocked.is_in("tool", _DATED_TOOLS))
    if not named.isdisjoint(captures.values("source")) and named.isdisjoint(clocked.values("source")):
        return [], None
    links = _link_by_process_or_time(clocked, spans)
    keys = _list_weak_keys(clocked, named, members)
    groups: dict[str, SourceGroup] = {}
    for source in links:
        group = groups.setdefault(_find_group_root(links, source), SourceGroup([], set(), {}))
        by_place: dict[JobPlace, list[ProcessSpan]] = {}
        for span in spans.get(source, ()):
            by_place.setdefault(span.place, []).append(span)
        group.absorb(SourceGroup([source], keys[source], by_place))
    return _merge_linked_groups(list(groups.values()))


def _select_clocked_captures(captures: Frame) -> Frame:
    """Select the captures of known processes with an absolute clock, in order of time."""
    return captures.filter(captures["absolute_time"] & ~captures.is_missing("pid")).sort("ts_ns")


def _link_by_process_or_time(clocked: Frame, spans: Mapping[str, Sequence[ProcessSpan]]) -> SourceLinks:
    """Link the sources of the same process or of overlapping times, in time order."""
    names = clocked.values("source")
    links: SourceLinks = dict(zip(names, names, strict=True))
    first_of: dict[Hashable, str] = {}
    end_ns, running = 0, ""
    for source, ts_ns, dur_ns in (row.values() for row in clocked.rows("source", "ts_ns", "dur_ns")):
        for span in spans.get(source, ()):
            process = (span.host, span.pid, span.lap)
            _join_source_groups(links, source, first_of.setdefault(process, source))
        if running and ts_ns < end_ns:
            _join_source_groups(links, source, running)
        if ts_ns + dur_ns > end_ns:
            end_ns, running = ts_ns + dur_ns, source
    return links


def _list_weak_keys(clocked: Frame, named: set[str], members: Mapping[str, set[str]]) -> dict[str, set[Hashable]]:
    """List the keys of each source; a common key links sources unless a restart separates them."""
    keys: dict[str, set[Hashable]] = {}
    for row in clocked.rows("source", "host", "pid", "world_size"):
        source, world_size = row["source"], row["world_size"]
        of_source = keys.setdefault(source, {("group", group) for group in members.get(source, ())})
        of_source.add(("process", row["host"], row["pid"]))
        if source in named:
            of_source.add("named")
        if world_size is not None and world_size > 1:
            of_source.add(("world", world_size))
    return keys


def _merge_linked_groups(groups: Sequence[SourceGroup]) -> tuple[list[list[str]], RelaunchPair | None]:
    """Merge groups that share a key, unless a restart separates them: (sources of each group, first restart found)."""
    linked: list[SourceGroup] = []
    first_pair: RelaunchPair | None = None
    for group in groups:
        home: SourceGroup | None = None
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


def _find_group_root(links: SourceLinks, source: str) -> str:
    """Find the first source of a group, and shorten the path to it."""
    while links[source] != source:
        links[source] = links[links[source]]
        source = links[source]
    return source


def _join_source_groups(links: SourceLinks, source: str, other: str) -> None:
    """Merge the groups of two sources."""
    links[_find_group_root(links, source)] = _find_group_root(links, other)


def _name_split_runs(run: str, groups: Sequence[Sequence[str]], named: set[str], used: Sequence[str]) -> list[str]:
    """Name each group uniquely after its first file; the first group with identified files keeps the run's name."""
    names: list[str] = []
    keeps_name: int | None = None
    for place, group in enumerate(groups):
        is_named = bool(named.intersection(group))
        if is_named and keeps_name is None:
            keeps_name = place
        first_file = group[0].rpartition("/")[2]
        names.append(run if is_named else make_displayable(strip_format_suffixes(first_file)))
    new = [name for place, name in enumerate(names) if place != keeps_name]
    unique = iter(number_repeated_names([*used, *new])[len(used) :])
    return [run if place == keeps_name else next(unique) for place in range(len(names))]


def _note_split_run(run: str, groups: Sequence[Sequence[str]], names: Sequence[str], pair: RelaunchPair | None) -> Note:
    """Make the note on a directory that contains several runs."""
    count = sum(len(group) for group in groups)
    why = "share no process, time, world or process group"
    if pair is not None:
        first, second = pair
        whose = "one process" if first.rank is None else f"rank {first.rank}"
        later = format_quantity(second.start_ns - first.end_ns, "ns")
        why = f"are of several launches ({whose} is pid {first.pid}, and {later} later pid {second.pid})"
        if first.pid == second.pid:
            common = sorted(first.steps & second.steps)
            why = f"hold the same steps twice ({whose} passes {choose_plural(len(common), 'step')} {format_ranges(common)} again {later} later)"
    message = (
        f"{count:,} files of {run} {why}: shown as {len(names):,} runs "
        f"({join_first_few(names, _MAX_NAMED_RUNS)}); name=DIRECTORY makes them one"
    )
    return Note("warning", SPLIT_RUNS_CODE, message, run, count, data=Data(runs=tuple(names)))


def make_job_place(tool: str, role: str | None, replica: int | None, rank: int | None) -> JobPlace:
    """Make the place of a process in the job, with a normalized role."""
    return (tool, None if role is None else normalize_label_words(role), replica, rank)


def list_process_spans(
    captures: Frame, steps: Frame, stages: Frame, named_steps: Mapping[str, int | None]
) -> dict[str, list[ProcessSpan]]:
    """For each source, list its processes with an absolute clock, each spanning all its captures in the run.

    A step number in the source's name takes precedence: the profiler's own count starts over with each capture.
    """
    steps_of, stages_of = (_list_distinct_values(steps, "step"), _list_distinct_values(stages, "stage"))
    laps: dict[ProcessKey, list[ProcessSpan]] = {}
    sources: dict[tuple[ProcessKey, int], list[str]] = {}
    for row in _select_clocked_captures(captures).rows(*_SPAN_COLUMNS):
        run, host, pid, tool, role, replica, rank, scope, part, source, ts_ns, dur_ns = row.values()
        of_source = (source, pid)
        named_step = named_steps.get(source)
        own_steps = steps_of.get(of_source, set()) if named_step is None else {named_step}
        names = {get_scope_stage(scope), *stages_of.get(of_source, ())} - {None}
        span = ProcessSpan(
            make_job_place(tool, role, replica, rank),
            host,
            pid,
            0,
            ts_ns,
            ts_ns + dur_ns,
            frozenset(step for step in own_steps if step is not None),
            frozenset(get_canonical_stage(name, role) for name in names if name is not None),
        )
        lap = _add_capture(laps.setdefault((run, host, pid), []), span, is_numbered=part is not None)
        sources.setdefault(((run, host, pid), lap), []).append(source)
    spans: dict[str, list[ProcessSpan]] = {}
    for (process, lap), names_of in sources.items():
        for source in names_of:
            spans.setdefault(source, []).append(laps[process][lap])
    return spans


def _add_capture(laps: list[ProcessSpan], span: ProcessSpan, *, is_numbered: bool) -> int:
    """Add a capture to the laps of its process, and return its lap; repeated steps start a new lap.

    `is_numbered`: the file name numbers the captures of a process, so all belong to one run.
    """
    if not laps or (not is_numbered and _is_repeating_steps(laps[-1], span)):
        laps.append(replace(span, lap=len(laps)))
        return len(laps) - 1
    last = laps[-1]
    laps[-1] = replace(
        last, end_ns=max(last.end_ns, span.end_ns), steps=last.steps | span.steps, stages=last.stages | span.stages
    )
    return len(laps) - 1


def _is_repeating_steps(last: ProcessSpan, span: ProcessSpan) -> bool:
    """Check whether a capture repeats steps of its process without doing other stages."""
    is_same_work = bool(last.stages & span.stages) or not last.stages | span.stages
    return bool(last.steps & span.steps) and is_same_work and _is_relaunched(last, span)


def _list_distinct_values(rows: Frame, column: str) -> dict[tuple[str, int], set[Any]]:
    """List the distinct values of a column for each (source, pid)."""
    values: dict[tuple[str, int], set[Any]] = {}
    for row in rows.distinct("source", "pid", column).rows("source", "pid", column):
        values.setdefault((row["source"], row["pid"]), set()).add(row[column])
    return values


def find_relaunch(
    spans: Collection[ProcessSpan], other_spans: Collection[ProcessSpan]
) -> tuple[ProcessSpan, ProcessSpan] | None:
    """Find two processes, one per side, that must belong to two launches, the earlier first; None without a pair."""
    for pair in product(spans, other_spans):
        earlier, later = sorted(pair, key=attrgetter("start_ns"))
        is_same = (earlier.host, earlier.pid, earlier.lap) == (later.host, later.pid, later.lap)
        if not is_same and _is_relaunched(earlier, later):
            return earlier, later
    return None


def _is_relaunched(earlier: ProcessSpan, later: ProcessSpan) -> bool:
    """Check whether the later process repeats the work of the earlier one after it ended."""
    if later.start_ns - earlier.end_ns < MIN_LAUNCH_NS:
        return False
    are_other_steps = bool(earlier.steps and later.steps) and not earlier.steps & later.steps
    is_shared = bool(earlier.stages & later.stages)
    are_roles = not is_shared and not (earlier.stages | later.stages).isdisjoint(RL_STAGES)
    if are_other_steps or are_roles:
        return False
    # Processes of unknown rank may be different ranks; on one host these run a step at the same time.
    is_same_work = is_shared or bool(earlier.steps & later.steps)
    return earlier.rank is not None or (earlier.host == later.host and is_same_work)
