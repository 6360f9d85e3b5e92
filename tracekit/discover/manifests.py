"""Capture manifests: what a profiled process wrote about its own files (`"schema": "capture/1"` or `2`).

A manifest takes precedence over the content of a file and over its name. The process that wrote it knew its role and
step; file names are truncated to what file systems allow, and files get renamed.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from tracekit.model.codes import Data
from tracekit.model.labels import called, first_few, phrase, shown, words
from tracekit.model.records import dataclass
from tracekit.model.sources import Account, Note, Recorded, Source

SCHEMAS = ("capture/1", "capture/2")
_SUFFIXES = (".json", ".manifest")
_HEAD_BYTES = 1 << 16
_LIMIT_BYTES = 4 << 20
_INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class Listed:
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
    tool: str | None = None
    steps: tuple[int, ...] = ()
    stages: tuple[str, ...] = ()
    files: tuple[Listed, ...] = ()
    captures: tuple[Recorded, ...] = ()
    discrete: bool = False
    ignored: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    in_place_of: str | None = None
    clock: Mapping[str, int] | None = None
    versions: Mapping[str, str] | None = None
    closed: bool = True
    notes: tuple[Note, ...] = ()


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
    asked = _object(data, "asked", wrong)
    manifest = Manifest(
        path=path,
        name=name,
        run_id=_text(data, "run_id", wrong),
        role=_text(data, "role", wrong),
        rank=_count(data, "rank", wrong),
        world_size=_count(data, "world_size", wrong),
        host=_text(data, "host", wrong),
        pid=_count(data, "pid", wrong),
        tool=_text(data, "tool", wrong),
        steps=tuple(filter(is_count, _list(data, "steps", wrong))),
        stages=_texts(data, "stages", wrong),
        files=tuple(_files(_list(data, "files", wrong), wrong)),
        captures=tuple(_captures(_list(data, "captures", wrong), wrong)),
        discrete=_object(asked, "tool_config", wrong).get("discrete") is True,
        ignored=_texts(data, "ignored", wrong),
        problems=_texts(data, "problems", wrong),
        in_place_of=_text(data, "in_place_of", wrong),
        clock={k: v for k, v in _object(data, "clock", wrong).items() if is_count(v)},
        versions={k: str(v) for k, v in _object(data, "versions", wrong).items()},
        closed=_text(data, "status", wrong) == "closed",
    )
    if not wrong:
        return manifest
    message = f"manifest: not understood and left out: {', '.join(dict.fromkeys(wrong))}"
    return replace(manifest, notes=(Note("warning", "manifest", shown(message), name),))


def account(manifest: Manifest, present: Iterable[Path]) -> tuple[dict[Path, Listed], list[Note]]:
    """Match a manifest's files with the `present` ones: (listed entry by path, notes on missing files)."""
    notes = list(manifest.notes)
    known_paths = set(map(os.path.normpath, present))
    files: dict[Path, Listed] = {}
    missing: list[str] = []
    for listed in manifest.files:
        path = _resolve(listed.path, manifest.path.parent, known_paths)
        if path is None:
            missing.append(shown(listed.path))
        else:
            files[Path(path)] = listed
    name, process = manifest.name, name_process(manifest)
    if missing:
        count, data = len(missing), Data(first=missing[0])
        message = f"{process} wrote {count} file(s) that are not here: {first_few(missing, 3)}"
        notes.append(Note("data_loss", "missing", message, name, count, data=data))
    if not manifest.closed:
        message = f"{process} never finished profiling: it died, or is still running"
        data = Data(role=manifest.role, rank=manifest.rank, pid=manifest.pid, host=manifest.host)
        notes.append(Note("data_loss", "open", message, name, data=data))
    reasons = {reason for capture in manifest.captures for reason in capture.because}
    told = tuple(problem for problem in manifest.problems if problem not in reasons)
    if told:  # reasons of lost captures are noted separately
        count, data = len(told), Data(problems=told)
        problems = first_few(told, 3, "; ")
        message = f"{process} could not profile all that was asked: {problems}"
        notes.append(Note("warning", "capture", message, name, count, data=data))
    return files, notes


def account_of(manifest: Manifest) -> Account:
    """Extract a manifest's statements about its process, for files that name only the process."""
    return Account(*attrgetter(*Account.__slots__)(manifest))


def configuration_notes(manifests: Iterable[Manifest]) -> list[Note]:
    """Note the configuration options that had no effect, according to the processes, with the number of processes."""
    counts: Counter[str] = Counter()
    for manifest in manifests:
        counts.update(dict.fromkeys(manifest.ignored, 1))
    return [Note("info", "no-effect", text, "", count) for text, count in counts.items()]


def describe(source: Source, manifest: Manifest | Account, listed: Listed) -> Source:
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
    }
    facts = {key: value for key, value in facts.items() if value is not None}
    message = f"described by its process: {', '.join(facts)}; see {manifest.name}"
    data = Data(fields=tuple(facts))
    notes = [Note("info", "manifest", message, source.name, data=data)]
    for key, value in facts.items():
        named = getattr(source, key)
        if named is not None and not _same(named, value):
            message = f"the name says {key} {named}, {manifest.name} says {value}: {value} is used"
            data = Data(field=key, told_by="name", said=str(named), used=str(value))
            notes.append(Note("warning", "conflict", message, source.name, data=data))
    return replace(source, **facts, notes=(*source.notes, *notes))


def told_by_manifest(source: Source) -> frozenset[str]:
    """List the fields of `source` that a manifest set."""
    filled: set[str] = set()
    for note in source.notes:
        fields = note.data.get("fields")
        if note.code == "manifest" and isinstance(fields, tuple):
            filled.update(fields)
    return frozenset(filled)


def without_manifest(source: Source) -> Source:
    """Remove the facts that a manifest set, because `source` is another process."""
    unknown: dict[str, Any] = dict.fromkeys(told_by_manifest(source))
    if not unknown:
        return source
    notes = tuple(note for note in source.notes if note.code != "manifest")
    return replace(source, **unknown, notes=notes)


def _same(named: object, told: object) -> bool:
    """Check whether two values agree. Labels agree in any spelling, since verl replaces `_` with `-`."""
    if isinstance(named, str) and isinstance(told, str):
        return words(named) == words(told)
    return named == told


def name_process(manifest: Manifest) -> str:
    """Format a process: `actor rank 3 (pid 17 on node1)`."""
    label = phrase(manifest.role, called("rank", manifest.rank)) or "a process"
    place = phrase(called("pid", manifest.pid), called("on", manifest.host))
    return f"{label} ({place})" if place else label


def _resolve(recorded: str, folder: Path, known_paths: set[str]) -> str | None:
    """Find the present file of a recorded path, even after the directory was moved."""
    for path in (folder / recorded, folder / Path(recorded).name):
        if os.path.normpath(path) in known_paths:
            return os.path.normpath(path)
    return None


def _files(entries: Sequence[Any], wrong: list[str]) -> Iterable[Listed]:
    """Yield the valid entries of `files`."""
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            wrong.append("files")
            continue
        yield Listed(
            path=entry["path"],
            step=_count(entry, "step", wrong),
            stage=_text(entry, "stage", wrong),
            start_unix_ns=_count(entry, "start_unix_ns", wrong),
            stop_unix_ns=_count(entry, "stop_unix_ns", wrong),
        )


def _captures(entries: Sequence[Any], wrong: list[str]) -> Iterable[Recorded]:
    """Yield the valid entries of `captures`."""
    for entry in entries:
        if not isinstance(entry, dict):
            wrong.append("captures")
            continue
        yield Recorded(
            _count(entry, "step", wrong),
            _text(entry, "scope", wrong),
            _count(_object(entry, "start", wrong), "unix_ns", wrong),
            _count(_object(entry, "stop", wrong), "unix_ns", wrong),
            _text(entry, "outcome", wrong),
            _text(entry, "where", wrong),
            _texts(entry, "because", wrong),
        )


def _texts(data: Mapping[str, Any], key: str, wrong: list[str]) -> tuple[str, ...]:
    """Read the texts of a list, made printable."""
    return tuple(shown(v) for v in _list(data, key, wrong) if isinstance(v, str))


def is_count(value: object) -> bool:
    """Check whether a JSON value is a non-negative 64-bit integer, as ranks, steps and ids are."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _INT64


def _count(data: Mapping[str, Any], key: str, wrong: list[str]) -> int | None:
    """Read a non-negative integer; None if absent or invalid."""
    value = data.get(key)
    if value is None or is_count(value):
        return value
    wrong.append(key)
    return None


def _text(data: Mapping[str, Any], key: str, wrong: list[str]) -> str | None:
    """Read a non-empty text, made printable; None if absent or invalid."""
    value = data.get(key)
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return shown(value)
    wrong.append(key)
    return None


def _list(data: Mapping[str, Any], key: str, wrong: list[str]) -> Sequence[Any]:
    """Read a list. Empty if absent or invalid."""
    value = data.get(key)
    if isinstance(value, list):
        return value
    if value is not None:
        wrong.append(key)
    return []


def _object(data: Mapping[str, Any], key: str, wrong: list[str]) -> Mapping[str, Any]:
    """Read an object. Empty if absent or invalid."""
    value = data.get(key)
    if isinstance(value, dict):
        return value
    if value is not None:
        wrong.append(key)
    return {}
