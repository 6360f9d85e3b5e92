"""Discovery of sources: finds the profiles among the given paths, the process of each, and the runs.

The caller passes `sniff`, which detects formats by content. The process of a file is determined by the manifest that it
wrote, else by the file itself (`apply_file_facts`), else by names.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from tracekit.discover import nsys_files as nsys_pairs
from tracekit.discover.accounts import (
    attach_accounts,
    attach_ray_workers,
    may_be_same_host,
)
from tracekit.discover.arguments import (
    FoundFile,
    PathArgument,
    State,
    UnreadFile,
    list_paths,
    parse_path_arguments,
)
from tracekit.discover.copies import UniqueSources, remove_duplicate_files, remove_duplicate_logs
from tracekit.discover.log_configs import drop_log_configs
from tracekit.discover.manifests import (
    Manifest,
    ManifestEntry,
    apply_manifest,
    drop_manifest_facts,
    is_count,
    list_manifest_fields,
    match_manifest_files,
    note_capture_outcomes,
    note_ignored_options,
)
from tracekit.discover.names import NameFacts, read_name, strip_format_suffixes
from tracekit.discover.runs import (
    NO_DRIVER_LOGS,
    PlacedSource,
    find_run_roots,
    find_run_roots_and_ids,
    group_by_key,
    mark_repeated_sources,
    number_repeated_names,
    shorten_run_names,
)
from tracekit.discover.selection import may_match_filters, parse_numbers, select_sources
from tracekit.discover.surveys import (
    Sniffed,
    Survey,
    SurveyedFile,
    UnreadableFile,
    add_content_digests,
    name_surveyed_file,
    survey_argument,
)
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.note_codes import MISSED, RECOGNIZED, UNREADABLE, Data, Reason
from tracekit.model.inputs.sources import Note, NoteSeverity, Source
from tracekit.model.recording.summary import summarize_by_kind
from tracekit.model.records import dataclass
from tracekit.model.text.labels import make_displayable

__all__ = [
    "Discovery",
    "Sniffed",
    "UnreadFile",
    "apply_file_facts",
    "discover",
    "list_inspect_rows",
    "may_match_filters",
    "parse_numbers",
]

_ROW = (
    *("reader", "run", "role", "scope", "step", "rank", "world_size", "replica", "topology"),
    *("part", "host", "pid", "size_bytes"),
)
INSPECT_COLUMNS = ("file", *_ROW, "notes")
"""Columns of `list_inspect_rows`."""


_TRACE_NAME = re.compile(r"\.json(?:\.(?:gz|zst|xz|bz2|zip))?\Z")


@dataclass(frozen=True, slots=True)
class Discovery:
    """Sources, ignored files with reasons, and notes on both."""

    sources: tuple[Source, ...]
    ignored: tuple[UnreadFile, ...] = ()
    notes: tuple[Note, ...] = ()
    title: str = ""
    manifests: tuple[Manifest, ...] = ()
    seen_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Nodes that see a source, by its name, if several do."""
    labelled: frozenset[str] = frozenset()
    """Runs that the user named: `label=path`."""
    left_out: tuple[Source, ...] = ()
    """Sources whose names exclude them from the selection."""

    def state_counts(self, copies: int = 0) -> dict[str, int]:
        """Count the refused, unreadable and duplicate files. States without files are omitted.

        `copies` is the number of files that were read and have the same content as another.
        """
        states = Counter(i.state for i in self.ignored if i.state != "no profile")
        states += Counter({"duplicate": copies})
        return dict(sorted(states.items()))

    def ignored_counts(self) -> dict[str, int]:
        """Count the ignored files by reason, most frequent first."""
        return _count_ignore_reasons(self.ignored)


def _count_ignore_reasons(ignored: Iterable[UnreadFile]) -> dict[str, int]:
    """Count the ignored files by reason, most frequent first."""
    return dict(Counter(file.reason.text for file in ignored).most_common())


@dataclass(slots=True)
class _Findings:
    """Discovery results collected so far."""

    placed: list[PlacedSource] = field(default_factory=list[PlacedSource])
    manifests: list[Manifest] = field(default_factory=list[Manifest])
    manifest_nodes: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    ignored: list[UnreadFile] = field(default_factory=list[UnreadFile])
    notes: list[Note] = field(default_factory=list[Note])


def discover(  # noqa: PLR0913 - one per option
    paths: Sequence[str | Path] | str | Path,
    *,
    exclude: Sequence[str] = (),
    ranks: Collection[int] | None = None,
    steps: Collection[int] | None = None,
    stages: Collection[str] | None = None,
    sample: int | None = None,
    sniff: Callable[[Path], Sniffed],
    may_be_empty: bool = False,
    elsewhere: Sequence[Survey] = (),
    within: Sequence[str] = (),
) -> Discovery:
    """Find the sources under `paths`: files, directories, glob patterns, `label=path`.

    `exclude` are globs on names and on paths relative to an argument. `ranks`, `steps` and `stages`
    drop sources known to be something else; see `may_match_filters`. `sample` limits the number of ranks. `elsewhere` are
    surveys of other machines, placed after those of `paths`. With `within`, links and the search for a log never leave
    these directories. Raises `TracekitError` if a path does not exist and, unless `may_be_empty`, if nothing is found.
    """
    paths = list_paths(paths)
    if not paths and not elsewhere:
        raise TracekitError("no path was given", "name a file, a directory or a pattern")
    surveys = add_content_digests([survey_argument(a, exclude, sniff, within) for a in parse_path_arguments(paths)])
    surveys += elsewhere
    arguments = [surveyed.argument for surveyed in surveys]
    findings, sources, runs = _assign_runs(surveys, arguments)
    names_of_others = [entry.path.name for entry in findings.ignored]
    findings.notes += note_capture_outcomes(findings.manifests, sources, names_of_others)
    if not sources and may_be_empty:
        return Discovery(
            (), tuple(findings.ignored), tuple(findings.notes), _format_arguments(arguments), tuple(findings.manifests)
        )
    if not sources:
        raise _build_no_profile_error(arguments, findings)
    names = _name_discovered_runs(arguments, runs)
    chosen, unwanted, left_out = select_sources(_name_sources(sources, names), ranks=ranks, steps=steps, stages=stages)
    if sample is not None:
        from tracekit.discover import sampling

        chosen, sample_notes = sampling.sample_ranks(chosen, sample)
        left_out += sample_notes
    return Discovery(
        sources=tuple(chosen),
        ignored=tuple(drop_log_configs(findings.ignored, chosen)),
        notes=(*findings.notes, *left_out),
        title=_format_arguments(arguments),
        manifests=tuple(findings.manifests),
        labelled=_list_labelled_runs(arguments, names, runs),
        seen_by=_map_source_nodes(chosen, findings.placed),
        left_out=tuple(unwanted),
    )


def _assign_runs(
    surveys: Sequence[Survey], arguments: Sequence[PathArgument]
) -> tuple[_Findings, list[Source], list[tuple[int, tuple[str, ...]]]]:
    """Assign sources to runs: (all findings, sources, argument position and run root of each source)."""
    gathered = _Findings()
    sources: list[Source] = []
    runs: list[tuple[int, tuple[str, ...]]] = []
    for place, findings in enumerate(_collect_unique_findings(surveys, arguments)):
        argument = arguments[place]
        if len(arguments) > 1 and not findings.placed and not _has_duplicates(findings):
            message = "no profile was found here"
            findings.notes.append(Note("warning", "nothing", message, make_displayable(argument.text)))
        roots = find_run_roots_and_ids(findings.placed, loose=argument.loose)
        _apply_deduplication(findings, remove_duplicate_logs(findings.placed, roots))
        roots = find_run_roots_and_ids(findings.placed, loose=argument.loose)
        for run in group_by_key(range(len(roots)), roots.__getitem__):
            sources += mark_repeated_sources([findings.placed[i] for i in run])
            runs += [(place, roots[run[0]])] * len(run)
        gathered.placed += findings.placed
        gathered.manifests += findings.manifests
        gathered.ignored += findings.ignored
        gathered.notes += findings.notes
    return gathered, sources, runs


def _name_sources(sources: Sequence[Source], runs: Sequence[str]) -> list[Source]:
    """Set the run of each source and give it a unique name."""
    names = number_repeated_names([source.name for source in sources])
    named = zip(sources, runs, names, strict=True)
    return [replace(source, run=run, name=name) for source, run, name in named]


def _list_labelled_runs(
    arguments: Sequence[PathArgument], names: Sequence[str], runs: Sequence[tuple[int, Any]]
) -> frozenset[str]:
    """List the names of the runs that the user labelled."""
    places = zip(names, runs, strict=True)
    return frozenset(name for name, (place, _) in places if arguments[place].label)


def _map_source_nodes(sources: Sequence[Source], placed: Sequence[PlacedSource]) -> dict[str, tuple[str, ...]]:
    """Map source names to the nodes that see the source, if several do."""
    nodes_of = {(file.source.node, file.source.path): file.nodes for file in placed}
    seen_by: dict[str, tuple[str, ...]] = {}
    for source in sources:
        nodes = nodes_of.get((source.node, source.path), ())
        if len(nodes) > 1:
            seen_by[source.name] = nodes
    return seen_by


def _collect_unique_findings(surveys: Sequence[Survey], arguments: Sequence[PathArgument]) -> list[_Findings]:
    """Collect the findings of each argument. Content found under several arguments counts once."""
    prefixes = [""]
    if len(arguments) > 1:
        prefixes = number_repeated_names(
            shorten_run_names([_list_argument_name_parts(argument) for argument in arguments])
        )
    of_arguments = list(map(_collect_survey_findings, surveys, prefixes))
    counted = remove_duplicate_files(arguments, [findings.placed for findings in of_arguments])
    for findings, once in zip(of_arguments, counted, strict=True):
        _apply_deduplication(findings, once)
    return of_arguments


def _list_argument_name_parts(argument: PathArgument) -> tuple[str, ...]:
    """List the name parts of an argument: its label, else the directories that lead to it."""
    return (argument.label,) if argument.label else argument.base.parts[1:]


def apply_file_facts(source: Source, facts: Mapping[str, object]) -> Source:
    """Add the facts that the reader found in a file to `source`. Notes conflicts with names or the manifest.

    `facts` are `rank`, `world_size`, `host`, `pid`, `step`, or as traces record them, `distributedInfo`
    and `host_name`. The file takes precedence over the name, and a manifest over the file.
    """
    source = _apply_own_account(source, facts)
    described = list_manifest_fields(source)
    group = facts.get("distributedInfo")
    recorded: dict[str, object] = {}
    if isinstance(group, Mapping):
        recorded.update(group)
    recorded |= {key: value for key, value in facts.items() if value is not None}
    for key in ("rank", "world_size", "pid", "step"):
        value = recorded.get(key)
        if is_count(value):
            source = _apply_content_fact(source, key, value, described=key in described)
    host = recorded.get("host", recorded.get("host_name"))
    if isinstance(host, str) and host:
        source = _apply_content_fact(source, "host", make_displayable(host), described="host" in described)
    return source


def _apply_own_account(source: Source, facts: Mapping[str, object]) -> Source:
    """Keep only the account of the source's process, which is now known, and apply it."""
    if not source.accounts:
        return source
    pid, host = facts.get("pid", source.pid), facts.get("host", source.host)
    for own_account in source.accounts:
        if own_account.pid == pid and may_be_same_host(host, own_account.host):
            break
    else:
        return drop_manifest_facts(replace(source, accounts=()))
    source = replace(source, accounts=(own_account,))
    if list_manifest_fields(source) or not own_account.name:
        return source
    return apply_manifest(source, own_account, ManifestEntry(source.name))


def list_inspect_rows(discovery: Discovery) -> list[dict[str, object]]:
    """Build one plain row per source, in order, as `tracekit inspect` prints them."""
    rows: list[dict[str, object]] = []
    for source in discovery.sources:
        facts = {name: getattr(source, name) for name in _ROW}
        notes = "; ".join(f"{note.code}: {note.message}" for note in source.notes)
        rows.append({"file": source.name, **facts, "notes": notes})
    return rows


def _collect_survey_findings(surveyed: Survey, prefix: str) -> _Findings:
    """Collect the sources and manifests among the files of one argument."""
    findings = _Findings(ignored=list(surveyed.ignored), notes=list(surveyed.notes))
    files = [looked.found for looked in surveyed.files]
    names = number_repeated_names([_name_found_file(prefix, file) for file in files])
    looked_at = [name_surveyed_file(looked, name) for looked, name in zip(surveyed.files, names, strict=True)]
    passed_over = nsys_pairs.find_replaced_nsys_files(files, [_get_reader_and_problem(looked) for looked in looked_at])
    for place, (looked, name) in enumerate(zip(looked_at, names, strict=True)):
        if place in passed_over:
            _record_ignored_file(findings, looked, passed_over[place], "duplicate")
        elif isinstance(looked.verdict, Sniffed):
            placed = _build_placed_source(looked.found, name, looked.above, looked.verdict)
            findings.placed.append(replace(placed, content=looked.content))
        elif isinstance(looked.verdict, Manifest):
            findings.manifests.append(looked.verdict)
            findings.manifest_nodes.append(looked.found.nodes)
        else:
            _record_unread_file(findings, looked, name, looked.verdict)
    _apply_manifests(findings)
    tools = {placed.source.tool for placed in findings.placed if placed.source.reader not in NO_DRIVER_LOGS}
    if tools and "log" not in tools and not surveyed.argument.loose:
        _take_log_above(surveyed, prefix, findings)
    return findings


def _name_found_file(prefix: str, file: FoundFile) -> str:
    """Name a file by its path below the argument, prefixed if there are several arguments."""
    return make_displayable("/".join(part for part in (prefix, *file.parts) if part))


def _record_ignored_file(findings: _Findings, looked: SurveyedFile, reason: Reason, state: State) -> None:
    """Record a file as not read, with the reason."""
    findings.ignored.append(UnreadFile(looked.found.path, reason, looked.found.nodes, state))


def _record_unread_file(
    findings: _Findings, looked: SurveyedFile, name: str, verdict: Note | UnreadableFile | Reason
) -> None:
    """Record a file that no reader takes, with a note if it looks like a profile."""
    if isinstance(verdict, Note):
        findings.notes.append(verdict)
        reason = Reason(verdict.code, verdict.message, verdict.data)
        _record_ignored_file(findings, looked, reason, "no profile")
    elif isinstance(verdict, UnreadableFile):
        findings.notes.append(_build_file_note("error", UNREADABLE, verdict.reason, name))
        _record_ignored_file(findings, looked, verdict.reason, "unreadable")
    elif verdict.data.text("kind"):
        findings.notes.append(_build_file_note("info", RECOGNIZED, verdict, name))
        _record_ignored_file(findings, looked, verdict, "no profile")
    elif _is_missed_profile(looked.found.path.name, verdict):
        findings.notes.append(_build_file_note("data_loss", MISSED, verdict, name))
        _record_ignored_file(findings, looked, verdict, "refused")
    else:
        _record_ignored_file(findings, looked, verdict, "no profile")


def _apply_deduplication(findings: _Findings, counted: UniqueSources) -> None:
    """Replace the sources with those that count, and add the notes on the others."""
    findings.placed = counted.placed
    findings.ignored += counted.ignored
    findings.notes += counted.notes


def _has_duplicates(findings: _Findings) -> bool:
    """Check whether a file was ignored as a duplicate."""
    return any(ignored.state == "duplicate" for ignored in findings.ignored)


def _take_log_above(surveyed: Survey, prefix: str, findings: _Findings) -> None:
    """Add the driver's log next to the profile directory, unless there are several runs."""
    if set(find_run_roots(findings.placed, loose=False)) != {()}:
        return
    log = surveyed.log_above()
    if isinstance(log, Note):
        findings.notes.append(log)
    elif log is not None:
        file, sniffed = log
        findings.placed.append(_build_placed_source(file, _name_found_file(prefix, file), (), sniffed))


def _build_file_note(severity: NoteSeverity, code: str, reason: Reason, name: str) -> Note:
    """Build the note on a file that is not read for this reason."""
    return Note(severity, code, reason.text, name, data=reason.note_data())


def _is_missed_profile(name: str, reason: Reason) -> bool:
    """Check whether a file that no reader takes looks like a profile by its name."""
    if nsys_pairs.is_lost_nsys_file(name, reason):
        return True
    facts = read_name((name,))
    trace = _TRACE_NAME.search(name) and (facts.rank, facts.pid) != (None, None)
    return bool(trace) or ".trace.json" in name


def _build_placed_source(file: FoundFile, name: str, above: tuple[str, ...], sniffed: Sniffed) -> PlacedSource:
    """Build a source from the facts in its names."""
    facts = NameFacts()
    # The driver's log covers all roles and ranks, whatever its name and directory.
    if sniffed.tool != "log":
        facts = read_name((*above, *(make_displayable(part) for part in file.parts)))
    assert sniffed.reader is not None
    source = Source(
        path=file.path,
        name=name,
        reader=sniffed.reader,
        tool=sniffed.tool,
        role=facts.role,
        scope=facts.scope,
        step=facts.step,
        rank=facts.rank,
        world_size=facts.world_size,
        replica=facts.replica,
        topology=facts.topology,
        part=facts.part,
        host=facts.host,
        pid=facts.pid,
        size_bytes=file.size_bytes,
        node=next(iter(file.nodes), None),
    )
    return PlacedSource(source, file.parts, facts, nodes=file.nodes)


def _get_reader_and_problem(looked: SurveyedFile) -> tuple[str | None, Reason | None]:
    """Extract a file's reader and problem from its classification."""
    match looked.verdict:
        case Sniffed(reader, _, reason):
            return reader, reason
        case UnreadableFile(reason) | (Reason() as reason):
            return None, reason
        case _:
            return None, None


def _apply_manifests(findings: _Findings) -> None:
    """Apply the manifests of one argument to its sources, and note missing files."""
    places: dict[tuple[str | None, str], int] = {}
    present: dict[str | None, list[Path]] = defaultdict(list)
    for place, placed in enumerate(findings.placed):
        for node in placed.nodes or (None,):
            places[node, os.path.normpath(placed.source.path)] = place
            present[node].append(placed.source.path)
    for ignored in findings.ignored:
        for node in ignored.nodes or (None,):
            present[node].append(ignored.path)
    claimed: dict[int, str] = {}
    for manifest, seen_by in zip(findings.manifests, findings.manifest_nodes, strict=True):
        nodes: Sequence[str | None] = seen_by or (None,)
        files, notes = match_manifest_files(manifest, [path for node in nodes for path in present[node]])
        findings.notes += notes
        for path, listed in files.items():
            for node in nodes:
                listed_place = places.get((node, os.path.normpath(path)))
                if listed_place is not None:
                    _apply_manifest_entry(findings, claimed, listed_place, manifest, listed)
                    break
    findings.notes += note_ignored_options(findings.manifests)
    attach_accounts(findings.placed, findings.manifests)
    attach_ray_workers(findings.placed, findings.manifests)


def _apply_manifest_entry(
    findings: _Findings, claimed: dict[int, str], place: int, manifest: Manifest, listed: ManifestEntry
) -> None:
    """Apply a manifest to the source that it lists. If another manifest already lists the source, adds a note instead."""
    if place in claimed:
        message = f"listed by {claimed[place]} too, which is used"
        data = Data(told_by=manifest.name, used=claimed[place])
        findings.notes.append(Note("warning", "conflict", message, manifest.name, data=data))
        return
    claimed[place] = manifest.name
    placed = findings.placed[place]
    source = apply_manifest(placed.source, manifest, listed)
    findings.placed[place] = replace(placed, source=source, run_id=manifest.run_id)


def _name_discovered_runs(arguments: Sequence[PathArgument], runs: Sequence[tuple[int, tuple[str, ...]]]) -> list[str]:
    """Name each run: its label, else the shortest suffix of its path that is unique."""
    names: dict[tuple[int, tuple[str, ...]], str] = {}
    paths: dict[tuple[int, tuple[str, ...]], tuple[str, ...]] = {}
    for place, root in dict.fromkeys(runs):
        argument = arguments[place]
        names[place, root] = "/".join((str(argument.label), *root))
        if argument.label is None:
            last = [strip_format_suffixes(name) for name in root[-1:]] if argument.loose else root[-1:]
            paths[place, root] = (*argument.base.parts[1:], *root[:-1], *last)
    names |= zip(paths, shorten_run_names(list(paths.values())), strict=True)
    displayed = number_repeated_names([make_displayable(name) for name in names.values()])
    unique = dict(zip(names, displayed, strict=True))
    return [unique[run] for run in runs]


def _apply_content_fact(source: Source, key: str, value: object, *, described: bool) -> Source:
    """Apply one fact from a file's content if it takes precedence. Notes a conflict."""
    before = getattr(source, key)
    change: dict[str, Any] = {key: value}
    if before is None:
        return replace(source, **change)
    if before == value or (key == "host" and may_be_same_host(before, value)):
        return source
    if described or key == "step":
        change[key] = before
    author = "manifest" if described else "name"
    message = f"the {author} says {key} {before}, the file says {value}: {change[key]} is used"
    severity: NoteSeverity = "warning" if key in ("rank", "world_size") else "info"
    data = Data(field=key, told_by=author, said=str(before), used=str(change[key]))
    return replace(source, **change).with_note(severity, "conflict", message, data)


def _build_no_profile_error(arguments: Sequence[PathArgument], findings: _Findings) -> TracekitError:
    """Build the error for arguments without any source, with the main reason."""
    known = summarize_by_kind((), findings.notes)
    if known:
        recording = known[0]
        problem = f"no profile found in {_format_arguments(arguments)}: {recording.sentence.rstrip('.')}"
        return TracekitError(problem, f"{recording.advice}: {recording.command}")
    hint = "name a directory with profiles, memory snapshots or logs; this one contains no file"
    for note in findings.notes:
        if note.code in ("elsewhere", "lost-capture"):
            problem = f"no profile found in {_format_arguments(arguments)}: {note.message}"
            return TracekitError(problem, f"tracekit doctor {_format_arguments(arguments)} lists causes and fixes")
    if findings.ignored:
        counts = islice(_count_ignore_reasons(findings.ignored).items(), 4)
        reasons = "; ".join(f"{count} × {reason}" for reason, count in counts)
        hint = f"name profiles, memory snapshots or logs; not read: {reasons}"
    return TracekitError(f"no profile found in {_format_arguments(arguments)}", hint)


def _format_arguments(arguments: Sequence[PathArgument]) -> str:
    """Format the arguments as typed, shortened."""
    first = ", ".join(make_displayable(argument.text) for argument in arguments[:3])
    return f"{first} and {len(arguments) - 3} more" if len(arguments) > 3 else first
