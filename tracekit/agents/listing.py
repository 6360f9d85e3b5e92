"""The tool `paths`: lists files and directories below the roots."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from tracekit.agents.bounds import MAX_LIST_ENTRIES
from tracekit.agents.roots import Roots, resolve_inside_roots
from tracekit.discover.arguments import is_outside_folders
from tracekit.model.records import dataclass
from tracekit.model.text.labels import make_displayable, make_natural_key
from tracekit.model.units import format_quantity


@dataclass(frozen=True, slots=True)
class PathsArguments:
    """Arguments of the tool `paths`."""

    path: Annotated[str, "A directory, relative to a root; '.' lists the roots themselves."] = "."


@dataclass(frozen=True, slots=True)
class PathEntry:
    """A file or directory, with the path that other tools take."""

    path: str
    kind: Literal["directory", "file"]
    size_bytes: Annotated[int | None, "Bytes of a file; null for a directory."]


@dataclass(frozen=True, slots=True)
class PathsAnswer:
    """The contents of one directory."""

    path: str
    entries: tuple[PathEntry, ...]
    entries_total: Annotated[int, "Number of entries; `entries` contains the first ones."]


def answer_paths(roots: Roots, asked: PathsArguments) -> tuple[str, PathsAnswer]:
    """List a directory as text and as data, without hidden entries and links that lead out of the roots."""
    if asked.path.strip("/") in ("", "."):
        path = "."
        entries = [PathEntry(name, "directory", None) for name in roots.names]
    else:
        path = resolve_inside_roots(roots, asked.path)
        entries = _list_path_entries(roots, path)
    first = tuple(entries[:MAX_LIST_ENTRIES])
    lines = [_format_path_entry(entry) for entry in first]
    if len(entries) > len(first):
        lines.append(f"… and {len(entries) - len(first):,} more: name a directory below")
    return "\n".join(lines) or "this directory is empty", PathsAnswer(path, first, len(entries))


def _list_path_entries(roots: Roots, path: str) -> list[PathEntry]:
    """List the entries of a directory in natural order; a file is its own only entry."""
    folder = roots.base / path
    if not folder.is_dir():
        return [PathEntry(path, "file", folder.stat().st_size)]
    entries: list[PathEntry] = []
    with os.scandir(folder) as scan:
        for file in scan:
            if file.name.startswith(".") or is_outside_folders(Path(file.path), roots.within):
                continue
            name = make_displayable(f"{path}/{file.name}")
            if file.is_dir():
                entries.append(PathEntry(name, "directory", None))
            elif file.is_file():
                entries.append(PathEntry(name, "file", file.stat().st_size))
    return sorted(entries, key=lambda entry: make_natural_key(entry.path))


def _format_path_entry(entry: PathEntry) -> str:
    """Format an entry."""
    if entry.size_bytes is None:
        return f"{entry.path}/"
    return f"{entry.path}  {format_quantity(entry.size_bytes, 'bytes')}"
