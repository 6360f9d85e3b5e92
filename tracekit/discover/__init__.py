"""Paths → sources: which files are profiles, whose they are, and which of them make up one run.

Formats are told by content, through the `sniff` that the caller passes. Whose a file is, is told by the
manifest that its process wrote, else by the file itself (`complete`), else by names.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from tracekit.discover import nsys_files as nsys_pairs
from tracekit.discover.arguments import Argument, Found, Ignored, State, read_arguments
from tracekit.discover.copies import Counted, counted_once, without_copied_logs
from tracekit.discover.ledgers import ledger_notes
from tracekit.discover.manifests import (
    Listed,
    Manifest,
    account,
    account_of,
    configuration_notes,
    describe,
    is_count,
    told_by_manifest,
    without_manifest,
)
from tracekit.discover.names import NameFacts, read_name, stem_of
from tracekit.discover.runs import (
    Placed,
    groups,
    mark_repeats,
    numbered,
    roots_with_ids,
    run_roots,
    short_names,
)
from tracekit.discover.selection import parse_numbers, select, wanted
from tracekit.discover.surveys import (
    Looked,
    Sniffed,
    Survey,
    Unreadable,
    called,
    survey,
    with_contents,
)
from tracekit.model.codes import MISSED, RECOGNIZED, UNREADABLE, Data, Reason
from tracekit.model.errors import TracekitError
from tracekit.model.labels import shown
from tracekit.model.recording_summary import summarize
from tracekit.model.records import dataclass
from tracekit.model.sources import Account, Note, NoteSeverity, Recorded, Source

__all__ = [
    "Discovery",
    "Ignored",
    "Sniffed",
    "complete",
    "discover",
    "inspect_rows",
    "parse_numbers",
    "wanted",
]

_ROW = (
    *("reader", "run", "role", "scope", "step", "rank", "world_size", "replica", "topology"),
    *("part", "host", "pid", "size_bytes"),
)


_TRACE_NAME = re.compile(r"\.json(?:\.(?:gz|zst|xz|bz2|zip))?\Z")


@dataclass(frozen=True, slots=True)
class Discovery:
    """The sources found, what was passed over and why, and what to know about both."""

    sources: tuple[Source, ...]
    ignored: tuple[Ignored, ...] = ()
    notes: tuple[Note, ...] = ()
    title: str = ""
    manifests: tuple[Manifest, ...] = ()
    seen_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """The nodes that see a source, by its name, where several do."""
    labelled: frozenset[str] = frozenset()
    """The runs that a person named: `label=path`."""
    left_out: tuple[Source, ...] = ()
    """Sources that by their names are none of what was asked for."""

    def state_counts(self, copies: int = 0) -> dict[str, int]:
        """How many files are refused, unreadable or duplicates; states without any are left out.

        `copies` are the files that were read and hold what another of them does.
        """
        states = Counter(i.state for i in self.ignored if i.state != "no profile")
        states += Counter({"duplicate": copies})
        return dict(sorted(states.items()))

    def ignored_counts(self) -> dict[str, int]:
        """How many files were ignored for each reason, most frequent first."""
        return _reason_counts(self.ignored)


def _reason_counts(ignored: Iterable[Ignored]) -> dict[str, int]:
    """How many files were ignored for each reason, most frequent first."""
    return dict(Counter(file.reason.text for file in ignored).most_common())


@dataclass(slots=True)
class _Findings:
    """What has been gathered so far."""

    placed: list[Placed] = field(default_factory=list[Placed])
    manifests: list[Manifest] = field(default_factory=list[Manifest])
    manifest_nodes: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    ignored: list[Ignored] = field(default_factory=list[Ignored])
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
    """The sources under `paths`: files, directories, glob patterns, `label=path`.

    `exclude` are globs on names and on paths relative to an argument. `ranks`, `steps` and `stages`
    leave out what is known to be something else; see `wanted`. `sample` keeps so many ranks. `elsewhere` are
    arguments that others have looked at, after those in `paths`. No link and no search for a log leads out of the
    directories `within`, where there are any. Raises `TracekitError` where a path
    does not exist and, unless it `may_be_empty`, where nothing at all is found.
    """
    if isinstance(paths, str | Path):
        paths = [paths]
    if not paths and not elsewhere:
        raise TracekitError("no path was given", "name a file, a directory or a pattern")
    surveys = with_contents([survey(a, exclude, sniff, within) for a in read_arguments(paths)])
    surveys += elsewhere
    arguments = [surveyed.argument for surveyed in surveys]
    findings, sources, runs = _in_runs(surveys, arguments)
    names_of_others = [entry.path.name for entry in findings.ignored]
    findings.notes += ledger_notes(findings.manifests, sources, names_of_others)
    if not sources and may_be_empty:
        return Discovery(
            (),
            tuple(findings.ignored),
            tuple(findings.notes),
            _title(arguments),
            tuple(findings.manifests),
        )
    if not sources:
        raise _nothing(arguments, findings)
    names = _run_names(arguments, runs)
    chosen, unwanted, left_out = select(
        _named(sources, names), ranks=ranks, steps=steps, stages=stages
    )
    if sample is not None:
        from tracekit.discover import sampling

        chosen, sample_notes = sampling.sample(chosen, sample)
        left_out += sample_notes
    return Discovery(
        sources=tuple(chosen),
        ignored=tuple(findings.ignored),
        notes=(*findings.notes, *left_out),
        title=_title(arguments),
        manifests=tuple(findings.manifests),
        labelled=_labelled(arguments, names, runs),
        seen_by=_seen_by(chosen, findings.placed),
        left_out=tuple(unwanted),
    )


def _in_runs(
    surveys: Sequence[Survey], arguments: Sequence[Argument]
) -> tuple[_Findings, list[Source], list[tuple[int, tuple[str, ...]]]]:
    """(all that was found, the sources, for each the place of its argument and the root of its run)."""
    gathered = _Findings()
    sources: list[Source] = []
    runs: list[tuple[int, tuple[str, ...]]] = []
    for place, findings in enumerate(_counted_once(surveys, arguments)):
        argument = arguments[place]
        if len(arguments) > 1 and not findings.placed and not _holds_copies(findings):
            message = "no profile was found here"
            findings.notes.append(Note("warning", "nothing", message, shown(argument.text)))
        roots = roots_with_ids(findings.placed, loose=argument.loose)
        _take(findings, without_copied_logs(findings.placed, roots))
        roots = roots_with_ids(findings.placed, loose=argument.loose)
        for run in groups(range(len(roots)), roots.__getitem__):
            sources += mark_repeats([findings.placed[i] for i in run])
            runs += [(place, roots[run[0]])] * len(run)
        gathered.placed += findings.placed
        gathered.manifests += findings.manifests
        gathered.ignored += findings.ignored
        gathered.notes += findings.notes
    return gathered, sources, runs


def _named(sources: Sequence[Source], runs: Sequence[str]) -> list[Source]:
    """The sources with their runs, each under a name of its own."""
    names = numbered([source.name for source in sources])
    named = zip(sources, runs, names, strict=True)
    return [replace(source, run=run, name=name) for source, run, name in named]


def _labelled(
    arguments: Sequence[Argument], names: Sequence[str], runs: Sequence[tuple[int, Any]]
) -> frozenset[str]:
    """The names of the runs that a person has labelled."""
    places = zip(names, runs, strict=True)
    return frozenset(name for name, (place, _) in places if arguments[place].label)


def _seen_by(sources: Sequence[Source], placed: Sequence[Placed]) -> dict[str, tuple[str, ...]]:
    """The nodes that see a source, by its name, where several do."""
    nodes_of = {(file.source.node, file.source.path): file.nodes for file in placed}
    seen_by: dict[str, tuple[str, ...]] = {}
    for source in sources:
        nodes = nodes_of.get((source.node, source.path), ())
        if len(nodes) > 1:
            seen_by[source.name] = nodes
    return seen_by


def _counted_once(surveys: Sequence[Survey], arguments: Sequence[Argument]) -> list[_Findings]:
    """What each argument holds; content that lies below several of them counts once."""
    prefixes = [""]
    if len(arguments) > 1:
        prefixes = numbered(short_names(list(map(_base_parts, arguments))))
    of_arguments = list(map(_look, surveys, prefixes))
    counted = counted_once(arguments, [findings.placed for findings in of_arguments])
    for findings, once in zip(of_arguments, counted, strict=True):
        _take(findings, once)
    return of_arguments


def _base_parts(argument: Argument) -> tuple[str, ...]:
    """What an argument is called by: its label, else the directories that lead to it."""
    return (argument.label,) if argument.label else argument.base.parts[1:]


def complete(source: Source, facts: Mapping[str, object]) -> Source:
    """`source` with what its reader found in the file; a note where names or manifest say otherwise.

    `facts` are `rank`, `world_size`, `host`, `pid`, `step`, or as traces record them, `distributedInfo`
    and `host_name`. The file is believed before the name, and a manifest before the file.
    """
    source = _by_its_account(source, facts)
    described = told_by_manifest(source)
    group = facts.get("distributedInfo")
    recorded: dict[str, object] = {}
    if isinstance(group, Mapping):
        recorded.update(group)
    recorded |= {key: value for key, value in facts.items() if value is not None}
    for key in ("rank", "world_size", "pid", "step"):
        value = recorded.get(key)
        if is_count(value):
            source = _believe(source, key, value, described=key in described)
    host = recorded.get("host", recorded.get("host_name"))
    if isinstance(host, str) and host:
        source = _believe(source, "host", shown(host), described="host" in described)
    return source


def _by_its_account(source: Source, facts: Mapping[str, object]) -> Source:
    """`source` with what its process, which is known now, says of itself; with no account but that."""
    if not source.accounts:
        return source
    pid, host = facts.get("pid", source.pid), facts.get("host", source.host)
    for own_account in source.accounts:
        if own_account.pid == pid and _may_be_one_host(host, own_account.host):
            break
    else:
        return without_manifest(replace(source, accounts=()))
    source = replace(source, accounts=(own_account,))
    if told_by_manifest(source) or not own_account.name:
        return source
    return describe(source, own_account, Listed(source.name))


def inspect_rows(discovery: Discovery) -> list[dict[str, object]]:
    """One plain row a source, in order: what `tracekit inspect` prints."""
    rows: list[dict[str, object]] = []
    for source in discovery.sources:
        facts = zip(_ROW, attrgetter(*_ROW)(source), strict=True)
        notes = "; ".join(f"{note.code}: {note.message}" for note in source.notes)
        rows.append({"file": source.name, **dict(facts), "notes": notes})
    return rows


def _look(surveyed: Survey, prefix: str) -> _Findings:
    """The sources and manifests among the files of one argument."""
    findings = _Findings(ignored=list(surveyed.ignored), notes=list(surveyed.notes))
    files = [looked.found for looked in surveyed.files]
    names = numbered(list(map(partial(_name, prefix), files)))
    looked_at = list(map(called, surveyed.files, names))
    passed_over = nsys_pairs.passed_over(files, list(map(_claim, looked_at)))
    for place, (looked, name) in enumerate(zip(looked_at, names, strict=True)):
        if place in passed_over:
            _ignore(findings, looked, passed_over[place], "duplicate")
        elif isinstance(looked.verdict, Sniffed):
            placed = _place(looked.found, name, looked.above, looked.verdict)
            findings.placed.append(replace(placed, content=looked.content))
        elif isinstance(looked.verdict, Manifest):
            findings.manifests.append(looked.verdict)
            findings.manifest_nodes.append(looked.found.nodes)
        else:
            _pass_over(findings, looked, name, looked.verdict)
    _apply_manifests(findings)
    tools = {placed.source.tool for placed in findings.placed}
    if tools and "log" not in tools and not surveyed.argument.loose:
        _take_log_above(surveyed, prefix, findings)
    return findings


def _name(prefix: str, file: Found) -> str:
    """A file as it is shown: its path below its argument, of several arguments with what that is called by."""
    return shown("/".join(filter(None, (prefix, *file.parts))))


def _ignore(findings: _Findings, looked: Looked, reason: Reason, state: State) -> None:
    """Let the findings hold that a file is not read, and why."""
    findings.ignored.append(Ignored(looked.found.path, reason, looked.found.nodes, state))


def _pass_over(
    findings: _Findings, looked: Looked, name: str, verdict: Note | Unreadable | Reason
) -> None:
    """Let the findings hold a file that no reader takes, with a note on one that is missed."""
    if isinstance(verdict, Note):
        findings.notes.append(verdict)
        reason = Reason(verdict.code, verdict.message, verdict.data)
        _ignore(findings, looked, reason, "no profile")
    elif isinstance(verdict, Unreadable):
        findings.notes.append(_note_on("error", UNREADABLE, verdict.reason, name))
        _ignore(findings, looked, verdict.reason, "unreadable")
    elif verdict.data.text("kind"):
        findings.notes.append(_note_on("info", RECOGNIZED, verdict, name))
        _ignore(findings, looked, verdict, "no profile")
    elif _looks_like_profile(looked.found.path.name, verdict):
        findings.notes.append(_note_on("data_loss", MISSED, verdict, name))
        _ignore(findings, looked, verdict, "refused")
    else:
        _ignore(findings, looked, verdict, "no profile")


def _take(findings: _Findings, counted: Counted) -> None:
    """Let the findings hold only what counts, and what is said of the rest."""
    findings.placed = counted.placed
    findings.ignored += counted.ignored
    findings.notes += counted.notes


def _holds_copies(findings: _Findings) -> bool:
    """Whether something was left out because it is read elsewhere."""
    return any(ignored.state == "duplicate" for ignored in findings.ignored)


def _take_log_above(surveyed: Survey, prefix: str, findings: _Findings) -> None:
    """Add the driver's log beside the profile directory; not where there are several runs to give it to."""
    if set(run_roots(findings.placed, loose=False)) != {()}:
        return
    log = surveyed.log_above()
    if isinstance(log, Note):
        findings.notes.append(log)
    elif log is not None:
        file, sniffed = log
        findings.placed.append(_place(file, _name(prefix, file), (), sniffed))


def _note_on(severity: NoteSeverity, code: str, reason: Reason, name: str) -> Note:
    """The note on a file that is not read for this reason."""
    return Note(severity, code, reason.text, name, data=reason.note_data())


def _looks_like_profile(name: str, reason: Reason) -> bool:
    """Whether a file that no reader takes for this reason is missed: by its name it holds a trace."""
    if nsys_pairs.is_missed(name, reason):
        return True
    facts = read_name((name,))
    trace = _TRACE_NAME.search(name) and (facts.rank, facts.pid) != (None, None)
    return bool(trace) or ".trace.json" in name


def _place(file: Found, name: str, above: tuple[str, ...], sniffed: Sniffed) -> Placed:
    """A source as its names describe it."""
    facts = NameFacts()
    # The driver speaks for every role and rank, wherever its log lies and whatever it is called.
    if sniffed.tool != "log":
        facts = read_name((*above, *map(shown, file.parts)))
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
    return Placed(source, file.parts, facts, nodes=file.nodes)


def _claim(looked: Looked) -> tuple[str | None, Reason | None]:
    """The reader that takes a file, and what is wrong with it."""
    match looked.verdict:
        case Sniffed(reader, _, reason):
            return reader, reason
        case Unreadable(reason) | (Reason() as reason):
            return None, reason
        case _:
            return None, None


def _apply_manifests(findings: _Findings) -> None:
    """Describe the sources of one argument by its manifests, and note what these miss."""
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
        files, notes = account(manifest, chain.from_iterable(map(present.__getitem__, nodes)))
        findings.notes += notes
        for path, listed in files.items():
            for node in nodes:
                listed_place = places.get((node, os.path.normpath(path)))
                if listed_place is not None:
                    _claim_place(findings, claimed, listed_place, manifest, listed)
                    break
    findings.notes += configuration_notes(findings.manifests)
    _hand_accounts(findings)


def _claim_place(
    findings: _Findings, claimed: dict[int, str], place: int, manifest: Manifest, listed: Listed
) -> None:
    """Describe the source at a place by the first manifest that lists it; a note on others that do."""
    if place in claimed:
        message = f"listed by {claimed[place]} too, which is used"
        data = Data(told_by=manifest.name, used=claimed[place])
        findings.notes.append(Note("warning", "conflict", message, manifest.name, data=data))
        return
    claimed[place] = manifest.name
    placed = findings.placed[place]
    source = describe(placed.source, manifest, listed)
    findings.placed[place] = replace(placed, source=source, run_id=manifest.run_id)


def _hand_accounts(findings: _Findings) -> None:
    """Give the reports of nsys what their processes say of themselves: such a file names a process at most."""
    by_pid: dict[int, list[Manifest]] = defaultdict(list)
    for manifest in findings.manifests:
        if manifest.tool == "nsys" and manifest.pid is not None:
            by_pid[manifest.pid].append(manifest)
    if not by_pid:
        return
    accounts = tuple(map(account_of, chain.from_iterable(by_pid.values())))
    of_job = _captures_of_job(accounts)
    for place, placed in enumerate(findings.placed):
        source = placed.source
        if source.tool != "nsys":
            continue
        if source.pid is None:
            findings.placed[place] = replace(placed, source=replace(source, accounts=accounts))
            continue
        own_manifest = _first_of_host(by_pid[source.pid], source.host)
        if own_manifest is None:
            silent = Account("", source.pid, captures=of_job)
            findings.placed[place] = replace(placed, source=replace(source, accounts=(silent,)))
            continue
        own_account = account_of(own_manifest)
        if told_by_manifest(source):  # it lists this very file, whatever its host is called there
            own_account = replace(own_account, host=None)
        else:
            source = describe(source, own_manifest, Listed(source.name))
        source = replace(source, accounts=(own_account,))
        findings.placed[place] = replace(placed, source=source, run_id=own_manifest.run_id)


def _first_of_host(manifests: Iterable[Manifest], host: str | None) -> Manifest | None:
    """The first of these manifests that may be of the host; None where there is none."""
    for manifest in manifests:
        if _may_be_one_host(host, manifest.host):
            return manifest
    return None


def _captures_of_job(accounts: Sequence[Account]) -> tuple[Recorded, ...]:
    """Each step that any process captured, from the first start of it to the last stop."""
    windows: dict[int, tuple[int, int]] = {}
    for capture in chain.from_iterable(map(attrgetter("captures"), accounts)):
        step, start_ns, stop_ns = capture.step, capture.start_unix_ns, capture.stop_unix_ns
        if step is None or start_ns is None or stop_ns is None:
            continue
        first_ns, last_ns = windows.get(step, (start_ns, stop_ns))
        windows[step] = min(first_ns, start_ns), max(last_ns, stop_ns)
    steps = sorted(windows.items())
    return tuple(Recorded(step, start_unix_ns=a, stop_unix_ns=b) for step, (a, b) in steps)


def _run_names(
    arguments: Sequence[Argument], runs: Sequence[tuple[int, tuple[str, ...]]]
) -> list[str]:
    """The name of each run: its label, else the shortest end of its path that no other run has."""
    names: dict[tuple[int, tuple[str, ...]], str] = {}
    paths: dict[tuple[int, tuple[str, ...]], tuple[str, ...]] = {}
    for place, root in dict.fromkeys(runs):
        argument = arguments[place]
        names[place, root] = "/".join((str(argument.label), *root))
        if argument.label is None:
            last = map(stem_of, root[-1:]) if argument.loose else root[-1:]
            paths[place, root] = (*argument.base.parts[1:], *root[:-1], *last)
    names |= zip(paths, short_names(list(paths.values())), strict=True)
    unique = dict(zip(names, numbered(list(map(shown, names.values()))), strict=True))
    return list(map(unique.__getitem__, runs))


def _believe(source: Source, key: str, value: object, *, described: bool) -> Source:
    """`source` with one fact from its content, if that is to be believed; a conflict is noted."""
    before = getattr(source, key)
    change: dict[str, Any] = {key: value}
    if before is None:
        return replace(source, **change)
    if before == value or (key == "host" and _may_be_one_host(before, value)):
        return source
    if described or key == "step":
        change[key] = before
    author = "manifest" if described else "name"
    message = f"the {author} says {key} {before}, the file says {value}: {change[key]} is used"
    severity: NoteSeverity = "warning" if key in ("rank", "world_size") else "info"
    data = Data(field=key, told_by=author, said=str(before), used=str(change[key]))
    return replace(source, **change).with_note(severity, "conflict", message, data)


def _may_be_one_host(first: object, second: object) -> bool:
    """Whether two names may be one host, with and without its domain; unknown may be any."""
    if first is None or second is None:
        return True
    return str(first).partition(".")[0].lower() == str(second).partition(".")[0].lower()


def _nothing(arguments: Sequence[Argument], findings: _Findings) -> TracekitError:
    """The error for arguments without a single source, with what was found instead."""
    known = summarize((), findings.notes)
    if known:
        recording = known[0]
        problem = f"no profile found in {_title(arguments)}: {recording.sentence.rstrip('.')}"
        return TracekitError(problem, f"{recording.advice}: {recording.command}")
    hint = "the directory contains no file"
    for note in findings.notes:
        if note.code in ("elsewhere", "lost-capture"):
            problem = f"no profile found in {_title(arguments)}: {note.message}"
            return TracekitError(
                problem, f"tracekit doctor {_title(arguments)} lists causes and fixes"
            )
    if findings.ignored:
        counts = islice(_reason_counts(findings.ignored).items(), 4)
        reasons = "; ".join(f"{count} × {reason}" for reason, count in counts)
        hint = f"tracekit inspect lists every file; not read: {reasons}"
    return TracekitError(f"no profile found in {_title(arguments)}", hint)


def _title(arguments: Sequence[Argument]) -> str:
    """The arguments as typed, in a few words."""
    first = ", ".join(shown(argument.text) for argument in arguments[:3])
    return f"{first} and {len(arguments) - 3} more" if len(arguments) > 3 else first
