"""Paths → sources: which files are profiles, whose they are, and which of them make up one run.

Formats are told by content, through the `sniff` that the caller passes. Whose a file is, is told by the
manifest that its process wrote, else by the file itself (`complete`), else by names.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from tracekit.discover import nsys_files as nsys_pairs
from tracekit.discover import sampling
from tracekit.discover.arguments import Argument, Found, Ignored, State, read_arguments
from tracekit.discover.copies import Counted, counted_once, without_copied_logs
from tracekit.discover.manifests import (
    Listed,
    Manifest,
    account,
    account_of,
    configuration_notes,
    describe,
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
    Sniffed,
    Survey,
    Unreadable,
    Verdict,
    called,
    survey,
    with_contents,
)
from tracekit.model.codes import MISSED, UNREADABLE, Data, Reason
from tracekit.model.errors import TracekitError
from tracekit.model.labels import shown
from tracekit.model.trace import Account, Note, NoteSeverity, Recorded, Source

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
        return dict(Counter(i.reason.text for i in self.ignored).most_common())


@dataclass(slots=True)
class _Findings:
    """What has been gathered so far."""

    placed: list[Placed] = field(default_factory=list[Placed])
    manifests: list[tuple[Manifest, tuple[str, ...]]] = field(
        default_factory=list[tuple[Manifest, tuple[str, ...]]]
    )
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
) -> Discovery:
    """The sources under `paths`: files, directories, glob patterns, `label=path`.

    `exclude` are globs on names and on paths relative to an argument. `ranks`, `steps` and `stages`
    leave out what is known to be something else; see `wanted`. `sample` keeps so many ranks. `elsewhere` are
    arguments that others have looked at, after those in `paths`. Raises `TracekitError` where a path
    does not exist and, unless it `may_be_empty`, where nothing at all is found.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given and not elsewhere:
        raise TracekitError("no path was given", "name a file, a directory or a pattern")
    named = read_arguments(given)
    surveys = [*_surveyed_here(named, exclude, sniff), *elsewhere]
    arguments = [survey.argument for survey in surveys]
    findings, sources, runs = _in_runs(surveys)
    if not sources and may_be_empty:
        return Discovery((), tuple(findings.ignored), tuple(findings.notes), _title(arguments))
    if not sources:
        raise _nothing(arguments, findings)
    names = _run_names(arguments, runs)
    kept, unwanted, left_out = select(
        _named(sources, names), ranks=ranks, steps=steps, stages=stages
    )
    if sample is not None:
        kept, others = sampling.sample(kept, sample)
        left_out += others
    return Discovery(
        sources=tuple(kept),
        ignored=tuple(findings.ignored),
        notes=(*findings.notes, *left_out),
        title=_title(arguments),
        manifests=tuple(manifest for manifest, _ in findings.manifests),
        labelled=_labelled(arguments, names, runs),
        seen_by=_seen_by(kept, findings.placed),
        left_out=tuple(unwanted),
    )


def _in_runs(
    surveys: Sequence[Survey],
) -> tuple[_Findings, list[Source], list[tuple[int, tuple[str, ...]]]]:
    """(all that was found, the sources, for each the place of its argument and the root of its run)."""
    arguments = [survey.argument for survey in surveys]
    every = _Findings()
    sources: list[Source] = []
    runs: list[tuple[int, tuple[str, ...]]] = []
    for place, findings in enumerate(_counted_once(surveys)):
        argument = arguments[place]
        if len(arguments) > 1 and not findings.placed and not _holds_copies(findings):
            message = "no profile was found here"
            findings.notes.append(Note("warning", "nothing", message, shown(argument.text)))
        roots = roots_with_ids(findings.placed, loose=argument.loose)
        _take(findings, without_copied_logs(findings.placed, roots))
        roots = roots_with_ids(findings.placed, loose=argument.loose)
        for run in groups(range(len(roots)), roots.__getitem__):
            sources += mark_repeats([findings.placed[i] for i in run])
            runs += [(place, roots[i]) for i in run]
        every.placed += findings.placed
        every.manifests += findings.manifests
        every.ignored += findings.ignored
        every.notes += findings.notes
    return every, sources, runs


def _named(sources: Sequence[Source], runs: Sequence[str]) -> list[Source]:
    """The sources with their runs, each under a name of its own."""
    names = numbered([s.name for s in sources], range(len(sources)), range(len(sources)))
    return [
        replace(source, run=run, name=name)
        for source, run, name in zip(sources, runs, names, strict=True)
    ]


def _labelled(
    arguments: Sequence[Argument], names: Sequence[str], runs: Sequence[tuple[int, Any]]
) -> frozenset[str]:
    """The names of the runs that a person has labelled."""
    places = zip(names, runs, strict=True)
    return frozenset(name for name, (place, _) in places if arguments[place].label)


def _seen_by(sources: Sequence[Source], placed: Sequence[Placed]) -> dict[str, tuple[str, ...]]:
    """The nodes that see a source, by its name, where several do."""
    nodes_of = {(file.source.node, file.source.path): file.nodes for file in placed}
    nodes = {s.name: nodes_of.get((s.node, s.path), ()) for s in sources}
    return {name: several for name, several in nodes.items() if len(several) > 1}


def _counted_once(surveys: Sequence[Survey]) -> list[_Findings]:
    """What each argument holds; content that lies below several of them counts once."""
    arguments = [survey.argument for survey in surveys]
    bases = [(a.label,) if a.label else a.base.parts[1:] for a in arguments]
    prefixes = short_names(bases) if len(arguments) > 1 else [""]
    prefixes = numbered(prefixes, range(len(prefixes)), range(len(prefixes)))
    every = [_look(survey, prefix) for survey, prefix in zip(surveys, prefixes, strict=True)]
    counted = counted_once(arguments, [findings.placed for findings in every])
    for findings, once in zip(every, counted, strict=True):
        _take(findings, once)
    return every


def complete(source: Source, facts: Mapping[str, object]) -> Source:
    """`source` with what its reader found in the file; a note where names or manifest say otherwise.

    `facts` are `rank`, `world_size`, `host`, `pid`, `step`, or as traces record them, `distributedInfo`
    and `host_name`. The file is believed before the name, and a manifest before the file.
    """
    source = _by_its_account(source, facts)
    told = told_by_manifest(source)
    group = facts.get("distributedInfo")
    recorded: dict[str, object] = {**group} if isinstance(group, Mapping) else {}
    recorded |= {key: value for key, value in facts.items() if value is not None}
    for key in ("rank", "world_size", "pid", "step"):
        value = recorded.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63:
            source = _believe(source, key, value, described=key in told)
    host = recorded.get("host", recorded.get("host_name"))
    if isinstance(host, str) and host:
        source = _believe(source, "host", shown(host), described="host" in told)
    return source


def _by_its_account(source: Source, facts: Mapping[str, object]) -> Source:
    """`source` with what its process, which is known now, says of itself; with no account but that."""
    if not source.accounts:
        return source
    pid, host = facts.get("pid", source.pid), facts.get("host", source.host)
    mine = [
        account
        for account in source.accounts
        if account.pid == pid
        and (host is None or account.host is None or _same_host(str(host), account.host))
    ][:1]
    source = replace(source, accounts=(*mine,))
    if not mine:
        return without_manifest(source)
    if told_by_manifest(source) or not mine[0].name:
        return source
    return describe(source, mine[0], Listed(source.name))


def inspect_rows(discovery: Discovery) -> list[dict[str, object]]:
    """One plain row a source, in order: what `tracekit inspect` prints."""
    return [
        {
            "file": source.name,
            **{key: getattr(source, key) for key in _ROW},
            "notes": "; ".join(f"{note.code}: {note.message}" for note in source.notes),
        }
        for source in discovery.sources
    ]


def _look(surveyed: Survey, prefix: str) -> _Findings:
    """The sources and manifests among the files of one argument."""
    here = _Findings(ignored=list(surveyed.ignored), notes=list(surveyed.notes))
    files = [looked.found for looked in surveyed.files]
    labels = [shown("/".join((prefix, *f.parts) if prefix else f.parts)) for f in files]
    labels = numbered(labels, range(len(labels)), range(len(labels)))
    verdicts = [called(one.verdict, n) for one, n in zip(surveyed.files, labels, strict=True)]
    claims = [_claim(verdict) for verdict in verdicts]
    passed_over = nsys_pairs.passed_over(files, claims)
    for place, (found, name) in enumerate(zip(files, labels, strict=True)):
        verdict = verdicts[place]
        if place in passed_over:
            here.ignored.append(Ignored(found.path, passed_over[place], found.nodes, "duplicate"))
        elif isinstance(verdict, Manifest):
            here.manifests.append((verdict, found.nodes))
        elif isinstance(verdict, Note):
            here.notes.append(verdict)
            reason = Reason(verdict.code, verdict.message, verdict.data)
            here.ignored.append(Ignored(found.path, reason, found.nodes))
        elif isinstance(verdict, Unreadable):
            here.ignored.append(Ignored(found.path, verdict.reason, found.nodes, "unreadable"))
            here.notes.append(_note_on("error", UNREADABLE, verdict.reason, name))
        elif isinstance(verdict, Reason):
            refused = _looks_like_profile(found.path.name, verdict)
            state: State = "refused" if refused else "no profile"
            here.ignored.append(Ignored(found.path, verdict, found.nodes, state))
            if refused:
                here.notes.append(_note_on("data_loss", MISSED, verdict, name))
        else:
            source = _place(found, name, surveyed.files[place].above, verdict)
            here.placed.append(replace(source, content=surveyed.files[place].content))
    _apply_manifests(here)
    alone = not surveyed.argument.loose and all(p.source.tool != "log" for p in here.placed)
    if here.placed and alone:
        _take_log_above(surveyed, prefix, here)
    return here


def _surveyed_here(
    arguments: Sequence[Argument], exclude: Sequence[str], sniff: Callable[[Path], Sniffed]
) -> list[Survey]:
    """What lies where these point, with the content of files that hold the same, in whichever argument."""
    surveys = [survey(argument, exclude, sniff) for argument in arguments]
    files = iter(with_contents([looked for one in surveys for looked in one.files]))
    return [replace(one, files=tuple(islice(files, len(one.files)))) for one in surveys]


def _take(here: _Findings, counted: Counted) -> None:
    """Let `here` hold only what counts, and what is said of the rest."""
    here.placed = counted.placed
    here.ignored += counted.ignored
    here.notes += counted.notes


def _holds_copies(here: _Findings) -> bool:
    """Whether something was left out because it is read elsewhere."""
    return any(ignored.state == "duplicate" for ignored in here.ignored)


def _take_log_above(surveyed: Survey, prefix: str, here: _Findings) -> None:
    """Add the driver's log beside the profile directory; not where there are several runs to give it to."""
    if set(run_roots(here.placed, loose=False)) != {()}:
        return
    log = surveyed.log_above()
    if isinstance(log, Note):
        here.notes.append(log)
    elif log is not None:
        found, sniffed = log
        name = shown("/".join((prefix, *found.parts) if prefix else found.parts))
        here.placed.append(_place(found, name, (), sniffed))


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


def _place(found: Found, name: str, above: tuple[str, ...], sniffed: Sniffed) -> Placed:
    """A source as its names describe it."""
    # The driver speaks for every role and rank, wherever its log lies and whatever it is called.
    log = sniffed.tool == "log"
    facts = NameFacts() if log else read_name((*above, *map(shown, found.parts)))
    assert sniffed.reader is not None
    source = Source(
        path=found.path,
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
        size_bytes=found.size_bytes,
        node=found.nodes[0] if found.nodes else None,
    )
    return Placed(source, found.parts, facts, nodes=found.nodes)


def _claim(verdict: Verdict) -> tuple[str | None, Reason | None]:
    """The reader that takes a file, and what is wrong with it."""
    if isinstance(verdict, Sniffed):
        return verdict.reader, verdict.reason
    if isinstance(verdict, Unreadable):
        return None, verdict.reason
    return None, verdict if isinstance(verdict, Reason) else None


def _apply_manifests(here: _Findings) -> None:
    """Describe the sources of one argument by its manifests, and note what these miss."""
    index: dict[tuple[str | None, str], int] = {}
    present: dict[str | None, list[Path]] = defaultdict(list)
    for place, known in enumerate(here.placed):
        for node in known.nodes or (None,):
            index[node, os.path.normpath(known.source.path)] = place
            present[node].append(known.source.path)
    for ignored in here.ignored:
        for node in ignored.nodes or (None,):
            present[node].append(ignored.path)
    claimed: dict[int, str] = {}
    for manifest, seen_by in here.manifests:
        nodes: Sequence[str | None] = seen_by or (None,)
        found, notes = account(manifest, [path for node in nodes for path in present[node]])
        here.notes += notes
        for path, listed in found.items():
            places = (index.get((node, os.path.normpath(path))) for node in nodes)
            there = [place for place in places if place is not None]
            if not there:
                continue
            place = there[0]
            if place in claimed:
                message = f"listed by {claimed[place]} too, which is used"
                data = Data(told_by=manifest.name, used=claimed[place])
                here.notes.append(Note("warning", "conflict", message, manifest.name, data=data))
                continue
            claimed[place] = manifest.name
            placed = here.placed[place]
            source = describe(placed.source, manifest, listed)
            here.placed[place] = replace(placed, source=source, run_id=manifest.run_id)
    here.notes += configuration_notes(manifest for manifest, _ in here.manifests)
    _hand_accounts(here)


def _hand_accounts(here: _Findings) -> None:
    """Give the reports of nsys what their processes say of themselves: such a file names a process at most."""
    accounts: dict[int | None, list[tuple[Account, Manifest]]] = defaultdict(list)
    for manifest, _ in here.manifests:
        if manifest.tool == "nsys" and manifest.pid is not None:
            accounts[manifest.pid].append((account_of(manifest), manifest))
    everyone = [account for pairs in accounts.values() for account, _ in pairs]
    of_job = _captures_of_job(everyone)
    for place, placed in enumerate(here.placed if everyone else ()):
        source = placed.source
        if source.tool != "nsys":
            continue
        if source.pid is None:
            here.placed[place] = replace(placed, source=replace(source, accounts=(*everyone,)))
            continue
        of_host = [
            (account, manifest)
            for account, manifest in accounts[source.pid]
            if None in (source.host, account.host)
            or _same_host(str(source.host), str(account.host))
        ]
        if not of_host:
            silent = Account("", source.pid, captures=of_job)
            here.placed[place] = replace(placed, source=replace(source, accounts=(silent,)))
            continue
        found, manifest = of_host[0]
        if told_by_manifest(source):  # it lists this very file, whatever its host is called there
            found = replace(found, host=None)
        else:
            source = describe(source, manifest, Listed(source.name))
        source = replace(source, accounts=(found,))
        here.placed[place] = replace(placed, source=source, run_id=manifest.run_id)


def _captures_of_job(accounts: Sequence[Account]) -> tuple[Recorded, ...]:
    """Each step that any process captured, from the first start of it to the last stop."""
    windows: dict[int, list[Recorded]] = defaultdict(list)
    for one_process in accounts:
        for capture in one_process.captures:
            if None not in (capture.step, capture.start_unix_ns, capture.stop_unix_ns):
                windows[int(capture.step or 0)].append(capture)
    return tuple(
        Recorded(
            step,
            start_unix_ns=min(int(one.start_unix_ns or 0) for one in captures),
            stop_unix_ns=max(int(one.stop_unix_ns or 0) for one in captures),
        )
        for step, captures in sorted(windows.items())
    )


def _run_names(
    arguments: Sequence[Argument], runs: Sequence[tuple[int, tuple[str, ...]]]
) -> list[str]:
    """The name of each run: its label, else the shortest end of its path that no other run has."""
    distinct = list(dict.fromkeys(runs))
    unlabelled = [run for run in distinct if arguments[run[0]].label is None]
    paths = [
        (*arguments[place].base.parts[1:], *root[:-1], *map(stem_of, root[-1:]))
        if arguments[place].loose
        else (*arguments[place].base.parts[1:], *root)
        for place, root in unlabelled
    ]
    short = dict(zip(unlabelled, short_names(paths), strict=True))
    names = [
        shown(short[run] if run in short else "/".join((str(arguments[run[0]].label), *run[1])))
        for run in distinct
    ]
    return numbered(names, distinct, runs)


def _believe(source: Source, key: str, value: object, *, described: bool) -> Source:
    """`source` with one fact from its content, if that is to be believed; a conflict is noted."""
    known = getattr(source, key)
    if known == value or (key == "host" and known is not None and _same_host(known, str(value))):
        return source
    used = known if known is not None and (described or key == "step") else value
    change: dict[str, Any] = {key: used}
    if known is None:
        return replace(source, **change)
    told = "manifest" if described else "name"
    message = f"the {told} says {key} {known}, the file says {value}: {used} is used"
    severity: NoteSeverity = "warning" if key in ("rank", "world_size") else "info"
    data = Data(field=key, told_by=told, said=str(known), used=str(used))
    return replace(source, **change).with_note(severity, "conflict", message, data)


def _same_host(one: str, other: str) -> bool:
    """Whether two names may be one host, with and without its domain."""
    return one.partition(".")[0].lower() == other.partition(".")[0].lower()


def _nothing(arguments: Sequence[Argument], every: _Findings) -> TracekitError:
    """The error for arguments without a single source, with what was found instead."""
    counts = Counter(i.reason.text for i in every.ignored)
    told = "; ".join(f"{count} of: {reason}" for reason, count in counts.most_common(4))
    hint = f"passed over {told}" if told else "there is no file in it"
    return TracekitError(f"no profile found in {_title(arguments)}", hint)


def _title(arguments: Sequence[Argument]) -> str:
    """The arguments as typed, in a few words."""
    texts = [shown(a.text) for a in arguments]
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
