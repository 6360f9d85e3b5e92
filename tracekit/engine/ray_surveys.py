"""Surveys of one pattern on the nodes of a cluster, and their union as if all files were in one directory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tracekit.discover.arguments import (
    Argument,
    Found,
    Ignored,
    expanded,
    read_arguments,
    split_label,
    split_pattern,
)
from tracekit.discover.names import HOST_FOLDER
from tracekit.discover.surveys import (
    FOLDERS_ABOVE,
    Log,
    Looked,
    Sniff,
    Survey,
    survey,
    with_contents,
)
from tracekit.model.codes import Data, Reason
from tracekit.model.errors import TracekitError
from tracekit.model.labels import natural, shown
from tracekit.model.records import dataclass
from tracekit.model.trace import Note

Parts = tuple[str, ...]
Stamp = tuple[str, int, int, int]
"""Path, inode, size and modification time: equal on two nodes only for a file that both see."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """The survey of one node: its files, and the directory (`anchor`) of the pattern up to its first `*`.

    `tops` are the entries that the pattern matches, and `base` is the directory that file names are relative to, both
    relative to the anchor. `open_parts` counts the pattern's parts below the anchor.
    """

    anchor: Path
    tops: tuple[Parts, ...]
    base: Parts
    open_parts: int
    label: str | None
    files: tuple[Looked, ...]
    ignored: tuple[tuple[Ignored, Stamp | None], ...]
    notes: tuple[Note, ...]
    log: Log


def look(pattern: str, exclude: Sequence[str], sniff: Sniff) -> Sighting | str:
    """Survey `pattern` on this machine, with `~` and variables expanded here; the reason if nothing matches."""
    text = expanded(pattern)
    try:
        (argument,) = read_arguments([text])
        (seen,) = with_contents([survey(argument, exclude, sniff)])
    except TracekitError as error:
        return error.problem
    path = str(split_label(text)[1])
    if os.path.lexists(path):
        (entry,) = argument.entries
        anchor = argument.base
        open_parts = 0 if entry == anchor else 1
    else:
        anchor, pattern_parts = split_pattern(path)
        open_parts = len(Path(pattern_parts).parts)
    return Sighting(
        anchor,
        tuple(entry.relative_to(anchor).parts for entry in argument.entries),
        argument.base.relative_to(anchor).parts,
        open_parts,
        argument.label,
        seen.files,
        tuple((ignored, _stamp_of(ignored.path)) for ignored in seen.ignored),
        seen.notes,
        seen.log_above(),
    )


def union(
    pattern: str,
    sightings: Mapping[str, Sighting],
    names: Mapping[str, str],
    hosts: Mapping[str, str],
) -> Survey:
    """Merge the nodes' surveys of `pattern` into one, with files named as in a single directory.

    A file that several nodes see counts once. Files of several nodes with the same name get a directory `host=<host>`.
    `names` maps nodes to display names, `hosts` to unique host labels.
    """
    argument, base = _argument(pattern, sightings)
    files = _apart(_once(base, sightings), hosts)
    files.sort(key=lambda looked: tuple(map(natural, looked.found.parts)))
    notes = []
    for node, seen in sightings.items():
        for note in seen.notes:
            notes.append(replace(note, message=f"{note.message} (on {names[node]})"))
    log = _log(pattern, argument, sightings)
    return Survey(argument, tuple(files), _ignored_once(sightings), tuple(notes), lambda: log)


def _stamp_of(path: Path) -> Stamp | None:
    """Read the identity of a file on disk; None if it cannot be read."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return str(path), status.st_ino, status.st_size, status.st_mtime_ns


def _stamp(found: Found) -> Stamp | None:
    if found.inode is None or found.mtime_ns is None:
        return None
    return str(found.path), found.inode, found.size_bytes, found.mtime_ns


def _argument(pattern: str, sightings: Mapping[str, Sighting]) -> tuple[Argument, Parts]:
    """Build the merged argument and its base relative to the anchors, as for one pattern over the files of all nodes."""
    first = next(iter(sightings.values()))
    tops = sorted(
        {top for seen in sightings.values() for top in seen.tops},
        key=lambda top: tuple(map(natural, top)),
    )
    folder = any(seen.tops == (seen.base,) for seen in sightings.values())
    if len(tops) == 1:
        base = tops[0] if folder else tops[0][:-1]
    else:
        base = _common([top[:-1] for top in tops])
    path = str(split_label(pattern)[1])
    typed = Path(os.path.abspath(path)).parts  # noqa: PTH100 - keep the name of a link
    anchor = Path(*typed[: max(1, len(typed) - first.open_parts)])
    entries = tuple(anchor.joinpath(*top) for top in tops)
    loose = len(tops) == 1 and not folder and first.label is None
    return Argument(pattern, first.label, anchor.joinpath(*base), entries, loose), base


def _common(paths: Sequence[Parts]) -> Parts:
    """Find the longest common prefix."""
    length = 0
    while all(len(path) > length for path in paths) and len({path[length] for path in paths}) == 1:
        length += 1
    return paths[0][:length]


def _once(base: Parts, sightings: Mapping[str, Sighting]) -> list[Looked]:
    """List every file of every node, named relative to `base`; a file on several nodes appears once, with all of them."""
    places: dict[Stamp, int] = {}
    files: list[Looked] = []
    for node, seen in sightings.items():
        above = tuple(map(shown, (*seen.anchor.parts, *base)))[-FOLDERS_ABOVE:]
        for looked in seen.files:
            stamp = _stamp(looked.found)
            if stamp is not None and stamp in places:
                first = files[places[stamp]]
                nodes = (*first.found.nodes, node)
                files[places[stamp]] = replace(first, found=replace(first.found, nodes=nodes))
                continue
            if stamp is not None:
                places[stamp] = len(files)
            parts = (*seen.base, *looked.found.parts)[len(base) :]
            renamed = replace(looked.found, parts=parts, nodes=(node,))
            files.append(replace(looked, found=renamed, above=above))
    return files


def _apart(files: Sequence[Looked], hosts: Mapping[str, str]) -> list[Looked]:
    """Insert the host directory into names that several files share."""
    counts = Counter(looked.found.parts for looked in files)

    def named(found: Found) -> Found:
        if counts[found.parts] == 1:
            return found
        folder = HOST_FOLDER + hosts[found.nodes[0]]
        return replace(found, parts=(*found.parts[:-1], folder, found.parts[-1]))

    return [replace(looked, found=named(looked.found)) for looked in files]


def _ignored_once(sightings: Mapping[str, Sighting]) -> tuple[Ignored, ...]:
    """List the ignored files; one that several nodes see appears once."""
    nodes: dict[tuple[Stamp | str, str | Path, Reason], list[str]] = {}
    for node, seen in sightings.items():
        for ignored, stamp in seen.ignored:
            nodes.setdefault((stamp or node, ignored.path, ignored.reason), []).append(node)
    ignored_files = (
        Ignored(Path(path), reason, tuple(n)) for (_, path, reason), n in nodes.items()
    )
    return tuple(sorted(ignored_files, key=lambda ignored: natural(str(ignored.path))))


def _log(pattern: str, argument: Argument, sightings: Mapping[str, Sighting]) -> Log:
    """Find the driver log above the directories of all nodes; a note if there are several."""
    if len(argument.entries) != 1:
        return None
    notes = [seen.log for seen in sightings.values() if isinstance(seen.log, Note)]
    logs: dict[object, Log] = {}
    for node, seen in sightings.items():
        if isinstance(seen.log, tuple):
            file, timed = seen.log
            logs.setdefault(_stamp(file) or node, (replace(file, nodes=(node,)), timed))
    if len(logs) > 1:
        message = f"{len(logs)} driver logs lie here: name the one that belongs to the profile"
        return Note("info", "log", message, shown(pattern), data=Data(files=len(logs)))
    return next(iter(logs.values()), notes[0] if notes else None)
