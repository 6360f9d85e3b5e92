"""Surveys of one pattern on the nodes of a cluster, and their union as if all files were in one directory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tracekit.discover.arguments import (
    FoundFile,
    PathArgument,
    UnreadFile,
    expand_path_pattern,
    parse_path_arguments,
    split_label,
    split_pattern,
)
from tracekit.discover.names import HOST_FOLDER
from tracekit.discover.surveys import (
    FOLDERS_ABOVE,
    Log,
    Sniff,
    Survey,
    SurveyedFile,
    add_content_digests,
    survey_argument,
)
from tracekit.model.codes import Data, Reason
from tracekit.model.errors import TracekitError
from tracekit.model.labels import make_displayable, make_natural_key
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
    files: tuple[SurveyedFile, ...]
    ignored: tuple[tuple[UnreadFile, Stamp | None], ...]
    notes: tuple[Note, ...]
    log: Log


def survey_node(pattern: str, exclude: Sequence[str], sniff: Sniff) -> Sighting | str:
    """Survey `pattern` on this machine, with `~` and variables expanded here; the reason if nothing matches."""
    text = expand_path_pattern(pattern)
    try:
        (argument,) = parse_path_arguments([text])
        (seen,) = add_content_digests([survey_argument(argument, exclude, sniff)])
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
        tuple((ignored, _read_path_stamp(ignored.path)) for ignored in seen.ignored),
        seen.notes,
        seen.log_above(),
    )


def merge_sightings(
    pattern: str, sightings: Mapping[str, Sighting], names: Mapping[str, str], hosts: Mapping[str, str]
) -> Survey:
    """Merge the nodes' surveys of `pattern` into one, with files named as in a single directory.

    A file that several nodes see counts once. Files of several nodes with the same name get a directory `host=<host>`.
    `names` maps nodes to display names, `hosts` to unique host labels.
    """
    argument, base = _merge_arguments(pattern, sightings)
    files = _separate_by_host(_merge_seen_files(base, sightings), hosts)
    files.sort(key=lambda looked: tuple(map(make_natural_key, looked.found.parts)))
    notes = []
    for node, seen in sightings.items():
        for note in seen.notes:
            notes.append(replace(note, message=f"{note.message} (on {names[node]})"))
    log = _find_shared_log(pattern, argument, sightings)
    return Survey(argument, tuple(files), _merge_ignored_files(sightings), tuple(notes), lambda: log)


def _read_path_stamp(path: Path) -> Stamp | None:
    """Read the identity of a file on disk; None if it cannot be read."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return str(path), status.st_ino, status.st_size, status.st_mtime_ns


def _get_found_stamp(file: FoundFile) -> Stamp | None:
    if file.inode is None or file.mtime_ns is None:
        return None
    return str(file.path), file.inode, file.size_bytes, file.mtime_ns


def _merge_arguments(pattern: str, sightings: Mapping[str, Sighting]) -> tuple[PathArgument, Parts]:
    """Build the merged argument and its base relative to the anchors, as for one pattern over the files of all nodes."""
    first = next(iter(sightings.values()))
    tops = sorted(
        {top for seen in sightings.values() for top in seen.tops}, key=lambda top: tuple(map(make_natural_key, top))
    )
    folder = any(seen.tops == (seen.base,) for seen in sightings.values())
    if len(tops) == 1:
        base = tops[0] if folder else tops[0][:-1]
    else:
        base = _find_common_prefix([top[:-1] for top in tops])
    path = str(split_label(pattern)[1])
    typed = Path(os.path.abspath(path)).parts  # noqa: PTH100 - keep the name of a link
    anchor = Path(*typed[: max(1, len(typed) - first.open_parts)])
    entries = tuple(anchor.joinpath(*top) for top in tops)
    loose = len(tops) == 1 and not folder and first.label is None
    return PathArgument(pattern, first.label, anchor.joinpath(*base), entries, loose), base


def _find_common_prefix(paths: Sequence[Parts]) -> Parts:
    """Find the longest common prefix."""
    length = 0
    while all(len(path) > length for path in paths) and len({path[length] for path in paths}) == 1:
        length += 1
    return paths[0][:length]


def _merge_seen_files(base: Parts, sightings: Mapping[str, Sighting]) -> list[SurveyedFile]:
    """List every file of every node, named relative to `base`; a file on several nodes appears once, with all of them."""
    places: dict[Stamp, int] = {}
    files: list[SurveyedFile] = []
    for node, seen in sightings.items():
        above = tuple(make_displayable(part) for part in (*seen.anchor.parts, *base))[-FOLDERS_ABOVE:]
        for looked in seen.files:
            stamp = _get_found_stamp(looked.found)
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


def _separate_by_host(files: Sequence[SurveyedFile], hosts: Mapping[str, str]) -> list[SurveyedFile]:
    """Insert the host directory into names that several files share."""
    counts = Counter(looked.found.parts for looked in files)

    def named(file: FoundFile) -> FoundFile:
        if counts[file.parts] == 1:
            return file
        folder = HOST_FOLDER + hosts[file.nodes[0]]
        return replace(file, parts=(*file.parts[:-1], folder, file.parts[-1]))

    return [replace(looked, found=named(looked.found)) for looked in files]


def _merge_ignored_files(sightings: Mapping[str, Sighting]) -> tuple[UnreadFile, ...]:
    """List the ignored files; one that several nodes see appears once."""
    nodes: dict[tuple[Stamp | str, str | Path, Reason], list[str]] = {}
    for node, seen in sightings.items():
        for ignored, stamp in seen.ignored:
            nodes.setdefault((stamp or node, ignored.path, ignored.reason), []).append(node)
    ignored_files = (UnreadFile(Path(path), reason, tuple(n)) for (_, path, reason), n in nodes.items())
    return tuple(sorted(ignored_files, key=lambda ignored: make_natural_key(str(ignored.path))))


def _find_shared_log(pattern: str, argument: PathArgument, sightings: Mapping[str, Sighting]) -> Log:
    """Find the driver log above the directories of all nodes; a note if there are several."""
    if len(argument.entries) != 1:
        return None
    notes = [seen.log for seen in sightings.values() if isinstance(seen.log, Note)]
    logs: dict[object, Log] = {}
    for node, seen in sightings.items():
        if isinstance(seen.log, tuple):
            file, timed = seen.log
            logs.setdefault(_get_found_stamp(file) or node, (replace(file, nodes=(node,)), timed))
    if len(logs) > 1:
        message = f"{len(logs)} driver logs lie here: name the one that belongs to the profile"
        return Note("info", "log", message, make_displayable(pattern), data=Data(files=len(logs)))
    return next(iter(logs.values()), notes[0] if notes else None)
