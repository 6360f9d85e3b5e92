"""The tool `paths`: lists files and directories below the roots."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from tracekit.agents.bounds import LISTED
from tracekit.agents.roots import Roots, inside
from tracekit.discover.arguments import leads_out
from tracekit.model.labels import natural, shown
from tracekit.model.records import dataclass
from tracekit.model.units import show


@dataclass(frozen=True, slots=True)
class PathsArguments:
    """Arguments of the tool `paths`."""

    path: Annotated[str, "A directory, relative to a root; '.' lists the roots themselves."] = "."


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or directory, with the path that other tools take."""

    path: str
    kind: Literal["directory", "file"]
    size_bytes: Annotated[int | None, "Bytes of a file; null for a directory."]


@dataclass(frozen=True, slots=True)
class PathsAnswer:
    """The contents of one directory."""

    path: str
    entries: tuple[Entry, ...]
    entries_total: Annotated[int, "How many there are; `entries` holds the first."]


def paths(roots: Roots, asked: PathsArguments) -> tuple[str, PathsAnswer]:
    """List a directory as text and as data, without hidden entries and links that lead out of the roots."""
    if asked.path.strip("/") in ("", "."):
        path = "."
        entries = [Entry(name, "directory", None) for name in roots.names]
    else:
        path = inside(roots, asked.path)
        entries = _entries(roots, path)
    first = tuple(entries[:LISTED])
    lines = list(map(_line, first))
    if len(entries) > len(first):
        lines.append(f"… and {len(entries) - len(first):,} more: name a directory below")
    return "\n".join(lines) or "nothing lies here", PathsAnswer(path, first, len(entries))


def _entries(roots: Roots, path: str) -> list[Entry]:
    """List the entries of a directory in natural order; a file is its own only entry."""
    folder = roots.base / path
    if not folder.is_dir():
        return [Entry(path, "file", folder.stat().st_size)]
    entries: list[Entry] = []
    with os.scandir(folder) as scan:
        for file in scan:
            if file.name.startswith(".") or leads_out(Path(file.path), roots.within):
                continue
            name = shown(f"{path}/{file.name}")
            if file.is_dir():
                entries.append(Entry(name, "directory", None))
            elif file.is_file():
                entries.append(Entry(name, "file", file.stat().st_size))
    return sorted(entries, key=lambda entry: natural(entry.path))


def _line(entry: Entry) -> str:
    """Format an entry."""
    if entry.size_bytes is None:
        return f"{entry.path}/"
    return f"{entry.path}  {show(entry.size_bytes, 'bytes')}"
