"""Paths → sources: which files are profiles, whose they are, and which of them make up one run.

Formats are told by content, through the `sniff` that the caller passes. Whose a file is, is told by the
manifest that its process wrote, else by the file itself (`complete`), else by names.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tracekit import nsys_pairs
from tracekit.errors import TracekitError
from tracekit.labels import shown
from tracekit.listing import Argument, Found, Ignored, list_files, read_arguments
from tracekit.logs import nearest
from tracekit.manifests import (
    Manifest,
    account,
    describe,
    is_manifest,
    read_manifest,
    told_by_manifest,
)
from tracekit.names import NameFacts, read_name, stem_of
from tracekit.runs import Placed, groups, mark_repeats, numbered, run_roots, short_names
from tracekit.selection import parse_numbers, select, wanted
from tracekit.trace import Note, NoteSeverity, Source, Tool

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

_LFS = b"version https://git-lfs.github.com/spec/"
_LFS_LIMIT_BYTES = 1024
_PICKLES = dict.fromkeys((".pickle", ".pkl", ".snap"), "pickle, but no memory snapshot")
_ROW = (
    *("reader", "run", "role", "scope", "step", "rank", "world_size", "replica", "topology"),
    *("part", "host", "pid", "size_bytes"),
)
_FOLDERS_ABOVE = 6
"""So many directories above the one given may say something: enough for every known layout."""


@dataclass(frozen=True, slots=True)
class Sniffed:
    """What a look at a file told: the reader that takes it and what is wrong with it, or why none takes it."""

    reader: str | None
    tool: Tool = "torch"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Discovery:
    """The sources found, what was passed over and why, and what to know about both."""

    sources: tuple[Source, ...]
    ignored: tuple[Ignored, ...] = ()
    notes: tuple[Note, ...] = ()
    title: str = ""
    manifests: tuple[Manifest, ...] = ()

    def ignored_counts(self) -> dict[str, int]:
        """How many files were ignored for each reason, most frequent first."""
        return dict(Counter(i.reason for i in self.ignored).most_common())


@dataclass(slots=True)
class _Findings:
    """What has been gathered so far."""

    placed: list[Placed] = field(default_factory=list[Placed])
    manifests: list[Manifest] = field(default_factory=list[Manifest])
    ignored: list[Ignored] = field(default_factory=list[Ignored])
    notes: list[Note] = field(default_factory=list[Note])


def discover(
    paths: Sequence[str | Path] | str | Path,
    *,
    exclude: Sequence[str] = (),
    ranks: Collection[int] | None = None,
    steps: Collection[int] | None = None,
    stages: Collection[str] | None = None,
    sniff: Callable[[Path], Sniffed],
    may_be_empty: bool = False,
) -> Discovery:
    """The sources under `paths`: files, directories, glob patterns, `label=path`.

    `exclude` are globs on names and on paths relative to an argument. `ranks`, `steps` and `stages`
    leave out what is known to be something else; see `wanted`. Raises `TracekitError` where a path
    does not exist and, unless it `may_be_empty`, where nothing at all is found.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise TracekitError("no path was given", "name a file, a directory or a pattern")
    arguments = read_arguments(given)
    every = _Findings()
    sources: list[Source] = []
    bases = [(a.label,) if a.label else a.base.parts[1:] for a in arguments]
    prefixes = short_names(bases) if len(arguments) > 1 else [""]
    prefixes = numbered(prefixes, range(len(prefixes)), range(len(prefixes)))
    runs: list[tuple[int, tuple[str, ...]]] = []
    for place, argument in enumerate(arguments):
        here = _look(argument, prefixes[place], exclude, sniff)
        if len(arguments) > 1 and not here.placed:
            message = "no profile was found here"
            here.notes.append(Note("warning", "nothing", message, shown(argument.text)))
        roots = _roots(argument, here)
        for run in groups(range(len(roots)), roots.__getitem__):
            sources += mark_repeats([here.placed[i] for i in run])
            runs += [(place, roots[i]) for i in run]
        every.manifests += here.manifests
        every.ignored += here.ignored
        every.notes += here.notes
    if not sources and may_be_empty:
        return Discovery((), tuple(every.ignored), tuple(every.notes), _title(arguments))
    if not sources:
        raise _nothing(arguments, every)
    names = _run_names(arguments, runs)
    labels = numbered([s.name for s in sources], range(len(sources)), range(len(sources)))
    sources = [
        replace(source, run=run, name=label)
        for source, run, label in zip(sources, names, labels, strict=True)
    ]
    kept, left_out = select(sources, ranks=ranks, steps=steps, stages=stages)
    return Discovery(
        sources=tuple(kept),
        ignored=tuple(every.ignored),
        notes=(*every.notes, *left_out),
        title=_title(arguments),
        manifests=tuple(every.manifests),
    )


def complete(source: Source, facts: Mapping[str, object]) -> Source:
    """`source` with what its reader found in the file; a note where names or manifest say otherwise.

    `facts` are `rank`, `world_size`, `host`, `pid`, `step`, or as traces record them, `distributedInfo`
    and `host_name`. The file is believed before the name, and a manifest before the file.
    """
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


def _look(
    argument: Argument, prefix: str, exclude: Sequence[str], sniff: Callable[[Path], Sniffed]
) -> _Findings:
    """The sources and manifests among the files of one argument."""
    listing = list_files(argument, exclude)
    here = _Findings(ignored=listing.ignored, notes=listing.notes)
    labels = [shown("/".join((prefix, *f.parts) if prefix else f.parts)) for f in listing.files]
    labels = numbered(labels, range(len(labels)), range(len(labels)))
    above = tuple(map(shown, argument.base.parts[-_FOLDERS_ABOVE:]))
    verdicts = [_read_head(f, n, sniff) for f, n in zip(listing.files, labels, strict=True)]
    claims = [(v.reader, v.reason) if isinstance(v, Sniffed) else (None, str(v)) for v in verdicts]
    passed_over = nsys_pairs.passed_over(listing.files, claims)
    for place, (found, name) in enumerate(zip(listing.files, labels, strict=True)):
        verdict = verdicts[place]
        if place in passed_over:
            here.ignored.append(Ignored(found.path, passed_over[place]))
        elif isinstance(verdict, Manifest):
            here.manifests.append(verdict)
        elif isinstance(verdict, Note):
            here.notes.append(verdict)
            here.ignored.append(Ignored(found.path, verdict.message))
        elif isinstance(verdict, str):
            here.ignored.append(Ignored(found.path, verdict))
            if _looks_like_profile(found.path.name, verdict):
                here.notes.append(Note("data_loss", "not-read", verdict, name))
        else:
            here.placed.append(_place(found, name, above, verdict))
    _apply_manifests(here)
    if here.placed and not argument.loose and all(p.source.tool != "log" for p in here.placed):
        _take_log_above(argument, prefix, exclude, sniff, here)
    return here


def _take_log_above(
    argument: Argument,
    prefix: str,
    exclude: Sequence[str],
    sniff: Callable[[Path], Sniffed],
    here: _Findings,
) -> None:
    """Add the driver's log beside the profile directory; not where there are several runs to give it to."""
    if set(run_roots(here.placed, loose=False)) != {()}:
        return

    def as_log(found: Found) -> Sniffed | None:
        verdict = _read_head(found, "", sniff)
        is_log = isinstance(verdict, Sniffed) and verdict.reader == "driver_log"
        return verdict if isinstance(verdict, Sniffed) and is_log else None

    log = nearest(argument, exclude, as_log)
    if isinstance(log, Note):
        here.notes.append(log)
    elif log is not None:
        found, sniffed = log
        name = shown("/".join((prefix, *found.parts) if prefix else found.parts))
        here.placed.append(_place(found, name, (), sniffed))


def _read_head(
    found: Found, name: str, sniff: Callable[[Path], Sniffed]
) -> Sniffed | Manifest | Note | str:
    """What one file is: something a reader takes, a manifest, an unusable one, or why it is neither."""
    suffix = found.path.suffix.lower()
    if nsys_pairs.is_ray_check(found.path.name):
        return nsys_pairs.RAY_CHECK
    if not found.size_bytes:
        return ": ".join(filter(None, ("empty file (0 bytes)", nsys_pairs.why_empty(suffix))))
    try:
        if _is_lfs_pointer(found):
            return "Git LFS pointer: the file itself was not downloaded"
        if is_manifest(found.path, found.size_bytes):
            return read_manifest(found.path, name)
        sniffed = sniff(found.path)
    except OSError as error:
        return f"cannot be read: {error.strerror or type(error).__name__}"
    except TracekitError as error:
        sniffed = Sniffed(None, reason=error.problem)
    reason = sniffed.reason or f"no reader takes {shown(suffix) or 'files without a suffix'}"
    known = nsys_pairs.unread(suffix) or _PICKLES.get(suffix, reason)
    return sniffed if sniffed.reader is not None else known


def _is_lfs_pointer(found: Found) -> bool:
    """Whether a file only stands for one that Git LFS keeps elsewhere."""
    if found.size_bytes > _LFS_LIMIT_BYTES:
        return False
    with found.path.open("rb") as stream:
        return stream.read(len(_LFS)) == _LFS


def _looks_like_profile(name: str, reason: str) -> bool:
    """Whether a file that no reader takes for this reason is missed: by its name it holds a trace."""
    if nsys_pairs.is_missed(name, reason):
        return True
    facts = read_name((name,))
    trace = name.endswith((".json", ".json.gz")) and (facts.rank, facts.pid) != (None, None)
    return trace or ".trace.json" in name


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
    )
    return Placed(source, found.parts, facts)


def _apply_manifests(here: _Findings) -> None:
    """Describe the sources of one argument by its manifests, and note what these miss."""
    index = {os.path.normpath(p.source.path): i for i, p in enumerate(here.placed)}
    present = [*index, *(os.path.normpath(i.path) for i in here.ignored)]
    claimed: dict[int, str] = {}
    for manifest in here.manifests:
        found, notes = account(manifest, map(Path, present))
        here.notes += notes
        for path, listed in found.items():
            place = index.get(os.path.normpath(path))
            if place is None:
                continue
            if place in claimed:
                message = f"listed by {claimed[place]} too, which is used"
                here.notes.append(Note("warning", "conflict", message, manifest.name))
                continue
            claimed[place] = manifest.name
            placed = here.placed[place]
            source = describe(placed.source, manifest, listed)
            here.placed[place] = replace(placed, source=source, run_id=manifest.run_id)


def _roots(argument: Argument, here: _Findings) -> list[tuple[str, ...]]:
    """For each source its run: a directory below the argument, and the run id where one holds several."""
    roots = _with_logs(here.placed, loose=argument.loose)
    ids: dict[tuple[str, ...], set[str]] = {}
    for placed, root in zip(here.placed, roots, strict=True):
        ids.setdefault(root, set()).update([placed.run_id] if placed.run_id else [])
    return [
        (*root, placed.run_id) if placed.run_id and len(ids[root]) > 1 else root
        for placed, root in zip(here.placed, roots, strict=True)
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
    return replace(source, **change).with_note(severity, "conflict", message)


def _same_host(one: str, other: str) -> bool:
    """Whether two names may be one host, with and without its domain."""
    return one.partition(".")[0].lower() == other.partition(".")[0].lower()


def _nothing(arguments: Sequence[Argument], every: _Findings) -> TracekitError:
    """The error for arguments without a single source, with what was found instead."""
    counts = Counter(i.reason for i in every.ignored)
    told = "; ".join(f"{count} of: {reason}" for reason, count in counts.most_common(4))
    hint = f"passed over {told}" if told else "there is no file in it"
    return TracekitError(f"no profile found in {_title(arguments)}", hint)


def _title(arguments: Sequence[Argument]) -> str:
    """The arguments as typed, in a few words."""
    texts = [shown(a.text) for a in arguments]
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
