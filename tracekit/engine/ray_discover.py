"""File discovery in a cluster: which files match on which nodes, and which nodes see the driver's files.

Each node surveys a pattern; the surveys are merged as if all files were in one directory.
"""

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
    make_path_key,
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
from tracekit.engine.ray_cluster import NODE_HINT, Cluster, run_on_every_node
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.note_codes import Data, Reason
from tracekit.model.records import dataclass
from tracekit.model.text.labels import make_displayable, make_natural_key
from tracekit.model.trace import Failure, Note, Source
from tracekit.readers.loading import sniff


def survey_cluster(
    cluster: Cluster, patterns: Sequence[str], exclude: Sequence[str]
) -> tuple[list[Survey], list[Failure]]:
    """Survey each pattern on all nodes; return (one merged survey per pattern, failures of nodes that could not look).

    Notes list the nodes that hold no match. Raises `TracekitError` for a pattern without a match on any node.
    """
    if not patterns:
        return [], []
    away = dict(cluster.lost)
    answers = run_on_every_node(cluster, _look_at_patterns, list(patterns), list(exclude))
    # A node that cannot answer is missing data, not an empty directory.
    for node, answer in answers.items():
        if answer.value is None:
            away[node] = answer.problem
    holes = []
    for node, problem in away.items():
        reason = f"the node was not looked at: {problem}"
        holes.append(Failure(cluster.name(node), reason, NODE_HINT, "node-lost"))
    notes: list[Note] = []
    names = {node.id: node.name for node in cluster.nodes}
    hosts = {node.id: node.host for node in cluster.nodes}
    surveyed: list[Survey] = []
    for place, pattern in enumerate(patterns):
        seen: dict[str, Sighting] = {}
        for node, answer in answers.items():
            if answer.value is None:
                continue
            sighting = answer.value[place]
            if isinstance(sighting, str):
                notes.append(Note("info", "node", sighting, names[node]))
            else:
                seen[node] = sighting
        if not seen:
            more = f", and {len(away)} could not be asked" if away else ""
            raise TracekitError(
                f"{make_displayable(pattern)}: found on none of {len(answers)} nodes{more}",
                "check the spelling, and quote what the shell would expand: '$HOME/outputs'",
            )
        joined = merge_sightings(pattern, seen, names, hosts)
        surveyed.append(replace(joined, notes=(*joined.notes, *notes)))
        notes = []
    return surveyed, holes


def find_visible_nodes(
    cluster: Cluster, sources: Sequence[Source], nodes_by_source: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Map each source to the nodes that see its file, where that is more than its own node.

    `nodes_by_source` contains those found on several nodes. For files found by the driver, every node is asked.
    """
    nodes = dict(nodes_by_source)
    stamps: dict[str, Stamp] = {}
    for source in sources:
        if source.node is None and (stamp := _read_file_stamp(str(source.path))):
            stamps[source.name] = stamp
    if not stamps:
        return nodes
    answers = run_on_every_node(cluster, _check_same_files, list(stamps.values()))
    for place, name in enumerate(stamps):
        nodes[name] = tuple(node for node, answer in answers.items() if answer.value and answer.value[place])
    return nodes


def _look_at_patterns(patterns: Sequence[str], exclude: Sequence[str]) -> list[Sighting | str]:
    """Survey each pattern on this node; runs as a Ray task."""
    return [survey_node(pattern, exclude, sniff) for pattern in patterns]


def _check_same_files(stamps: Sequence[Stamp]) -> list[bool]:
    """Check whether this node sees these very files; runs as a Ray task."""
    return [_read_file_stamp(stamp[0]) == tuple(stamp) for stamp in stamps]


def _read_file_stamp(path: str) -> Stamp | None:
    """Read the identity of a file: path, inode, size and modification time. None if it cannot be read."""
    try:
        status = os.stat(path)  # noqa: PTH116 - the path unchanged; it may be from another node
    except (OSError, ValueError):
        return None
    return path, status.st_ino, status.st_size, status.st_mtime_ns


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
    files.sort(key=lambda looked: make_path_key(looked.found.parts))
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
    tops = sorted({top for seen in sightings.values() for top in seen.tops}, key=make_path_key)
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
