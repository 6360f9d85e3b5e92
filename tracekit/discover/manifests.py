"""Capture manifests: what a profiled process wrote about its own files (`"schema": "capture/1"` or `2`).

A manifest takes precedence over the content of a file and over its name. The process that wrote it knew its role and
step; file names are truncated to what file systems allow, and files get renamed. It also records the outcome of each
capture: lost, with reasons, or written elsewhere.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from tracekit.discover.nsys_files import REPORT_SUFFIXES, STREAM_SUFFIX
from tracekit.model.inputs.note_codes import Data
from tracekit.model.inputs.sources import Account, Note, NoteSeverity, ReportedCapture, Source
from tracekit.model.records import dataclass
from tracekit.model.text.labels import (
    choose_plural,
    format_numbered_word,
    join_first_few,
    join_phrase,
    make_displayable,
    normalize_label_words,
)
from tracekit.model.units import format_ranges

SCHEMAS = ("capture/1", "capture/2")
_SUFFIXES = (".json", ".manifest")
_HEAD_BYTES = 1 << 16
_LIMIT_BYTES = 4 << 20
_INT64, _INT64_DIGITS = 1 << 63, 19

_IS_OPTION = re.compile(r"has no effect|is left out of contents")
"""Texts of capture about an option without effect, as opposed to a failure."""

PACKED_SUFFIXES = (".gz", ".xz", ".zst", ".bz2")
"""Suffixes of files that were compressed after the run."""


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One file that the process wrote according to its manifest; `path` as recorded."""

    path: str
    step: int | None = None
    stage: str | None = None
    start_unix_ns: int | None = None
    stop_unix_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """One process's manifest. `closed` is false if the process never finished profiling."""

    path: Path
    name: str
    run_id: str | None = None
    role: str | None = None
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    pid: int | None = None
    cores: str | None = None
    tool: str | None = None
    steps: tuple[int, ...] = ()
    stages: tuple[str, ...] = ()
    files: tuple[ManifestEntry, ...] = ()
    captures: tuple[ReportedCapture, ...] = ()
    discrete: bool = False
    ignored: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    in_place_of: str | None = None
    clock: Mapping[str, int] | None = None
    versions: Mapping[str, str] | None = None
    closed: bool = True
    notes: tuple[Note, ...] = ()
    ray_worker: str | None = None


def is_manifest(path: Path, size_bytes: int) -> bool:
    """Check whether a file has a manifest's schema. Only files of its suffixes and of moderate size are read."""
    if path.suffix.lower() not in _SUFFIXES or not 0 < size_bytes <= _LIMIT_BYTES:
        return False
    with path.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    start = head.find(b'"capture/')
    return start >= 0 and head[:start].rstrip().removesuffix(b":").rstrip().endswith(b'"schema"')


def read_manifest(path: Path, name: str) -> Manifest | Note:
    """Read a manifest. Returns a note if it cannot be used."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", "not complete JSON")
        return Note("warning", "manifest", f"manifest not used: {reason}", name)
    if not isinstance(data, dict):
        data = {}
    schema = data.get("schema")
    if schema not in SCHEMAS:
        return Note("warning", "manifest", f"manifest not used: its schema is {schema!r}", name)
    wrong: list[str] = []
    asked = _read_manifest_object(data, "asked", wrong)
    ignored = _read_manifest_texts(data, "ignored", wrong)
    problems = _read_manifest_texts(data, "problems", wrong)
    # Earlier versions of capture listed options without effect among the problems.
    ignored += tuple(text for text in problems if _IS_OPTION.search(text))
    problems = tuple(text for text in problems if not _IS_OPTION.search(text))
    manifest = Manifest(
        path=path,
        name=name,
        run_id=_read_manifest_text(data, "run_id", wrong),
        role=_read_manifest_text(data, "role", wrong),
        rank=_read_manifest_count(data, "rank", wrong),
        world_size=_read_manifest_count(data, "world_size", wrong),
        host=_read_manifest_text(data, "host", wrong),
        pid=_read_manifest_count(data, "pid", wrong),
        cores=_read_manifest_text(data, "cores", wrong),
        tool=_read_manifest_text(data, "tool", wrong),
        steps=tuple(_read_manifest_steps(_read_manifest_list(data, "steps", wrong), wrong)),
        stages=_read_manifest_texts(data, "stages", wrong),
        files=tuple(_read_file_entries(_read_manifest_list(data, "files", wrong), wrong)),
        captures=tuple(_read_capture_entries(_read_manifest_list(data, "captures", wrong), wrong)),
        discrete=_read_manifest_object(asked, "tool_config", wrong).get("discrete") is True,
        ignored=ignored,
        problems=problems,
        in_place_of=_read_manifest_text(data, "in_place_of", wrong),
        clock={k: v for k, v in _read_manifest_object(data, "clock", wrong).items() if is_count(v)},
        versions={k: str(v) for k, v in _read_manifest_object(data, "versions", wrong).items()},
        closed=_read_manifest_text(data, "status", wrong) == "closed",
        ray_worker=_read_manifest_text(data, "ray_worker", wrong),
    )
    if not wrong:
        return manifest
    message = f"manifest: not understood and left out: {', '.join(dict.fromkeys(wrong))}"
    return replace(manifest, notes=(Note("warning", "manifest", make_displayable(message), name),))


def match_manifest_files(manifest: Manifest, present: Iterable[Path]) -> tuple[dict[Path, ManifestEntry], list[Note]]:
    """Match a manifest's files with the `present` ones: (listed entry by path, notes on missing files)."""
    notes = list(manifest.notes)
    known_paths = {os.path.normpath(path) for path in present}
    files: dict[Path, ManifestEntry] = {}
    missing: list[str] = []
    for listed in manifest.files:
        path = _resolve_recorded_path(listed.path, manifest.path.parent, known_paths)
        if path is None:
            missing.append(make_displayable(listed.path))
        else:
            files[Path(path)] = listed
    name, process = manifest.name, name_process(manifest)
    if missing:
        count, data = len(missing), Data(first=missing[0])
        message = f"{process} wrote {count} file(s) that are not here: {join_first_few(missing, 3)}"
        notes.append(Note("data_loss", "missing", message, name, count, data=data))
    if not manifest.closed:
        message = f"{process} never finished profiling: it died, or is still running"
        data = Data(role=manifest.role, rank=manifest.rank, pid=manifest.pid, host=manifest.host)
        notes.append(Note("data_loss", "open", message, name, data=data))
    reasons = {reason for capture in manifest.captures for reason in capture.because}
    told = tuple(problem for problem in manifest.problems if problem not in reasons)
    if told:  # reasons of lost captures are noted separately
        count, data = len(told), Data(problems=told)
        problems = join_first_few(told, 3, "; ")
        message = f"{process} could not profile all that was asked: {problems}"
        notes.append(Note("warning", "capture", message, name, count, data=data))
    return files, notes


def make_account(manifest: Manifest) -> Account:
    """Extract a manifest's statements about its process, for files that name only the process."""
    return Account(*attrgetter(*Account.__slots__)(manifest))


def note_ignored_options(manifests: Iterable[Manifest]) -> list[Note]:
    """Note the configuration options that had no effect, according to the processes, with the number of processes."""
    counts: Counter[str] = Counter()
    for manifest in manifests:
        counts.update(dict.fromkeys(manifest.ignored, 1))
    return [Note("info", "no-effect", text, "", count) for text, count in counts.items()]


def apply_manifest(source: Source, manifest: Manifest | Account, listed: ManifestEntry) -> Source:
    """Apply a manifest to `source`. Notes the fields for which the name says something else."""
    step = listed.step
    steps = {capture.step for capture in manifest.captures}
    if isinstance(manifest, Manifest):
        steps.update(manifest.steps)
    if step is None and len(steps) == 1:
        step = steps.pop()
    facts: dict[str, Any] = {
        "role": manifest.role,
        "scope": listed.stage,
        "step": step,
        "rank": manifest.rank,
        "world_size": manifest.world_size,
        "host": manifest.host,
        "pid": manifest.pid,
        "cores": manifest.cores,
    }
    facts = {key: value for key, value in facts.items() if value is not None}
    message = f"described by its process: {', '.join(facts)}; see {manifest.name}"
    data = Data(fields=tuple(facts))
    notes = [Note("info", "manifest", message, source.name, data=data)]
    for key, value in facts.items():
        named = getattr(source, key)
        if named is not None and not _is_same_fact(named, value):
            message = f"the name says {key} {named}, {manifest.name} says {value}: {value} is used"
            data = Data(field=key, told_by="name", said=str(named), used=str(value))
            notes.append(Note("warning", "conflict", message, source.name, data=data))
    return replace(source, **facts, notes=(*source.notes, *notes))


def list_manifest_fields(source: Source) -> frozenset[str]:
    """List the fields of `source` that a manifest set."""
    filled: set[str] = set()
    for note in source.notes:
        fields = note.data.get("fields")
        if note.code == "manifest" and isinstance(fields, tuple):
            filled.update(fields)
    return frozenset(filled)


def drop_manifest_facts(source: Source) -> Source:
    """Remove the facts that a manifest set, because `source` is another process."""
    unknown: dict[str, Any] = dict.fromkeys(list_manifest_fields(source))
    if not unknown:
        return source
    notes = tuple(note for note in source.notes if note.code != "manifest")
    return replace(source, **unknown, notes=notes)


def _is_same_fact(named: object, manifest_value: object) -> bool:
    """Check whether two values agree. Labels agree in any spelling, since verl replaces `_` with `-`."""
    if isinstance(named, str) and isinstance(manifest_value, str):
        return normalize_label_words(named) == normalize_label_words(manifest_value)
    return named == manifest_value


def name_process(manifest: Manifest) -> str:
    """Format a process: `actor rank 3 (pid 17 on node1)`."""
    label = join_phrase(manifest.role, format_numbered_word("rank", manifest.rank)) or "a process"
    place = join_phrase(format_numbered_word("pid", manifest.pid), format_numbered_word("on", manifest.host))
    return f"{label} ({place})" if place else label


def _resolve_recorded_path(recorded: str, folder: Path, known_paths: set[str]) -> str | None:
    """Find the present file of a recorded path, even after the directory was moved."""
    for path in (folder / recorded, folder / Path(recorded).name):
        for suffix in ("", *PACKED_SUFFIXES):
            if os.path.normpath(f"{path}{suffix}") in known_paths:
                return os.path.normpath(f"{path}{suffix}")
    return None


def _read_file_entries(entries: Sequence[Any], wrong: list[str]) -> Iterable[ManifestEntry]:
    """Yield the valid entries of `files`."""
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            wrong.append("files")
            continue
        yield ManifestEntry(
            path=entry["path"],
            step=_read_manifest_step(entry, wrong),
            stage=_read_manifest_text(entry, "stage", wrong),
            start_unix_ns=_read_manifest_count(entry, "start_unix_ns", wrong),
            stop_unix_ns=_read_manifest_count(entry, "stop_unix_ns", wrong),
        )


def _read_capture_entries(entries: Sequence[Any], wrong: list[str]) -> Iterable[ReportedCapture]:
    """Yield the valid entries of `captures`."""
    for entry in entries:
        if not isinstance(entry, dict):
            wrong.append("captures")
            continue
        yield ReportedCapture(
            _read_manifest_step(entry, wrong),
            _read_manifest_text(entry, "scope", wrong),
            _read_manifest_count(_read_manifest_object(entry, "start", wrong), "unix_ns", wrong),
            _read_manifest_count(_read_manifest_object(entry, "stop", wrong), "unix_ns", wrong),
            _read_manifest_text(entry, "outcome", wrong),
            _read_manifest_text(entry, "where", wrong),
            _read_manifest_texts(entry, "because", wrong),
        )


def _read_manifest_texts(data: Mapping[str, Any], key: str, wrong: list[str]) -> tuple[str, ...]:
    """Read the texts of a list, made printable."""
    return tuple(make_displayable(v) for v in _read_manifest_list(data, key, wrong) if isinstance(v, str))


def is_count(value: object) -> bool:
    """Check whether a JSON value is a non-negative 64-bit integer, as ranks, steps and ids are."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _INT64


def _read_manifest_steps(steps: Iterable[Any], wrong: list[str]) -> Iterator[int]:
    """Read the valid step numbers of a list."""
    for step in steps:
        number = _read_manifest_step({"step": step}, wrong)
        if number is not None:
            yield number


def _read_manifest_step(entry: Mapping[str, Any], wrong: list[str]) -> int | None:
    """Read a step number; programs also pass it as text (`"4"`). None if absent or invalid."""
    step = entry.get("step")
    if isinstance(step, str) and step.isascii() and step.isdecimal() and len(step) < _INT64_DIGITS:
        return int(step)
    return _read_manifest_count(entry, "step", wrong)


def _read_manifest_count(data: Mapping[str, Any], key: str, wrong: list[str]) -> int | None:
    """Read a non-negative integer; None if absent or invalid."""
    value = data.get(key)
    if value is None or is_count(value):
        return value
    wrong.append(key)
    return None


def _read_manifest_text(data: Mapping[str, Any], key: str, wrong: list[str]) -> str | None:
    """Read a non-empty text, made printable; None if absent or invalid."""
    value = data.get(key)
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return make_displayable(value)
    wrong.append(key)
    return None


def _read_manifest_list(data: Mapping[str, Any], key: str, wrong: list[str]) -> Sequence[Any]:
    """Read a list. Empty if absent or invalid."""
    value = data.get(key)
    if isinstance(value, list):
        return value
    if value is not None:
        wrong.append(key)
    return []


def _read_manifest_object(data: Mapping[str, Any], key: str, wrong: list[str]) -> Mapping[str, Any]:
    """Read an object. Empty if absent or invalid."""
    value = data.get(key)
    if isinstance(value, dict):
        return value
    if value is not None:
        wrong.append(key)
    return {}


_MOST_NAMED = 3


def note_capture_outcomes(
    manifests: Sequence[Manifest], sources: Iterable[Source], passed_over: Iterable[str]
) -> list[Note]:
    """Compare the captures in manifests with the present files; `passed_over` are names of files that are not read."""
    told = _drop_duplicate_manifests(manifests)
    return [*_note_lost_captures(told), *_note_captures_elsewhere(told, sources, passed_over)]


def _drop_duplicate_manifests(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Remove duplicate manifests: a process under nsys also has one in Ray's session."""
    distinct = {(m.host, m.pid, m.tool, m.role, m.rank) if m.pid is not None else m.path: m for m in manifests}
    return [*distinct.values()]


def _note_lost_captures(manifests: Sequence[Manifest]) -> Iterator[Note]:
    """Note each reason for lost or incomplete captures, with the processes that recorded it."""
    processes: dict[tuple[str, tuple[int, ...], bool], list[Manifest]] = defaultdict(list)
    for manifest in manifests:
        for (reason, is_lost), steps in _group_steps_by_reason(manifest).items():
            processes[reason, tuple(steps), is_lost].append(manifest)
    for (reason, in_steps, is_lost), told in processes.items():
        who = join_first_few([name_process(manifest) for manifest in told], _MOST_NAMED)
        message = f"{who}: {_describe_step_outcome(in_steps, is_lost)}: {reason}"
        severity: NoteSeverity = "data_loss" if is_lost else "warning"
        data = Data(because=reason, steps=format_ranges(in_steps))
        yield Note(severity, "lost-capture", message, told[0].name, len(told), data=data)


def _group_steps_by_reason(manifest: Manifest) -> dict[tuple[str, bool], list[int]]:
    """Group the steps of a process by the reasons for missing parts, and check whether all parts are missing."""
    steps: dict[tuple[str, bool], list[int]] = {}
    for capture in manifest.captures:
        if capture.outcome == "elsewhere":
            continue
        if capture.because:
            reasons = "; ".join(capture.because)
            named = steps.setdefault((reasons, capture.outcome == "lost"), [])
            named += [] if capture.step is None else [capture.step]
    return steps


def _describe_step_outcome(steps: Sequence[int], is_lost: bool) -> str:
    """Describe the outcome of these steps."""
    several = len(steps) > 1
    named = f"{choose_plural(len(steps), 'step')} {format_ranges(steps)}" if steps else "a capture"
    if is_lost:
        return f"{named} {'were' if several else 'was'} lost"
    return f"{named} {'are' if several else 'is'} not complete"


def _note_captures_elsewhere(
    manifests: Sequence[Manifest], sources: Iterable[Source], passed_over: Iterable[str]
) -> Iterator[Note]:
    """Note each location where nsys wrote reports that are missing here."""
    pids = _collect_report_pids(sources, passed_over)
    if None in pids:  # such a report may be of any process
        return
    places: dict[tuple[str | None, str | None], list[tuple[Manifest, int]]] = defaultdict(list)
    for manifest in manifests:
        captures = [] if manifest.pid in pids else _list_captures_elsewhere(manifest)
        if captures:
            places[captures[0].where, manifest.host].append((manifest, len(captures)))
    for (where, host), told in places.items():
        yield _build_elsewhere_note(where, host, told)


def _collect_report_pids(sources: Iterable[Source], passed_over: Iterable[str]) -> set[int | None]:
    """Collect the pids of the present reports, read or not; None for a report that names no process."""
    pids = {source.pid for source in sources if source.tool == "nsys"}
    for name in passed_over:
        if name.endswith((*REPORT_SUFFIXES, STREAM_SUFFIX)):
            pids |= {int(number) for number in re.findall(r"\d+", name)}
    return pids


def _list_captures_elsewhere(manifest: Manifest) -> list[ReportedCapture]:
    """List a process's captures that nsys wrote."""
    if manifest.tool != "nsys":
        return []
    captures = [capture for capture in manifest.captures if _is_written_elsewhere(capture)]
    # Older manifests have no outcomes: `files` listed the captures that had been moved here.
    told_nothing = all(capture.outcome is None for capture in captures)
    return [] if manifest.files and told_nothing else captures


def _build_elsewhere_note(where: str | None, host: str | None, manifest_counts: Sequence[tuple[Manifest, int]]) -> Note:
    """Build the note on captures in one other location."""
    count = sum(number for _, number in manifest_counts)
    captures = f"{count:,} {choose_plural(count, 'capture')}"
    processes = f"{len(manifest_counts):,} {choose_plural(len(manifest_counts), 'process', 'processes')}"
    place = f" to {where}" if where else ""
    node = f" on {host}" if host else ""
    message = f"nsys wrote the reports of {captures} of {processes}{place}{node}: they are not here"
    data = Data(where=where, host=host)
    return Note("warning", "elsewhere", message, manifest_counts[0][0].name, count, data=data)


def _is_written_elsewhere(capture: ReportedCapture) -> bool:
    """Check whether another process wrote a capture. Older captures have no outcome, only a stop time."""
    if capture.outcome is None:
        return capture.stop_unix_ns is not None
    return capture.outcome == "elsewhere"
