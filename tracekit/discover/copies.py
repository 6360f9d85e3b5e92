"""Duplicate files: which of several files with the same content is read, and notes on the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import field
from operator import attrgetter
from pathlib import Path

from tracekit.discover.arguments import PathArgument, UnreadFile, make_path_key
from tracekit.discover.runs import PlacedSource, group_by_key
from tracekit.model.inputs.note_codes import Reason
from tracekit.model.inputs.sources import Note, Source
from tracekit.model.records import dataclass
from tracekit.model.text.labels import make_displayable

SAME_CONTENT = "same-content"
"""Code of notes on files with the same content as another."""

_REASON = Reason("same-content", "the same content as another file, which is read")
_NAMED_TWICE = Reason("named-twice", "named before, and counted once")


@dataclass(slots=True)
class UniqueSources:
    """Sources without duplicates, with the ignored duplicates and notes on them."""

    placed: list[PlacedSource] = field(default_factory=list[PlacedSource])
    ignored: list[UnreadFile] = field(default_factory=list[UnreadFile])
    notes: list[Note] = field(default_factory=list[Note])


def remove_duplicate_files(
    arguments: Sequence[PathArgument], placed: Sequence[Sequence[PlacedSource]]
) -> list[UniqueSources]:
    """Remove duplicates per argument: each content once, and each path once over all arguments without a label.

    Duplicate logs are removed later, once their runs are known: `remove_duplicate_logs`.
    """
    counts: list[UniqueSources] = []
    named_before: list[PlacedSource] = []
    for argument, members in zip(arguments, placed, strict=True):
        counted = UniqueSources(list(members))
        if argument.label is None:
            counted = _remove_repeated_paths(members, named_before)
            named_before += counted.placed
        _remove_duplicates(counted, [[member for member in counted.placed if not _is_log_source(member)]])
        counts.append(counted)
    counts[0].notes += _note_shared_arguments(arguments, counts)
    return counts


def remove_duplicate_logs(members: Sequence[PlacedSource], runs: Sequence[Hashable]) -> UniqueSources:
    """Remove logs with the same content as another log of their run. Flight recorders of several ranks may be equal."""
    run_of = {id(member): run for member, run in zip(members, runs, strict=True)}
    counted = UniqueSources(list(members))
    logs = [member for member in members if _is_log_source(member) and member.source.reader != "flight_recorder"]
    _remove_duplicates(counted, group_by_key(logs, lambda log: run_of[id(log)]))
    return counted


def _is_log_source(member: PlacedSource) -> bool:
    """Check whether a source is a log."""
    return member.source.tool == "log"


def _remove_duplicates(counted: UniqueSources, parts: Iterable[Sequence[PlacedSource]]) -> None:
    """Remove duplicates within each part. Keeps the file described best by names and manifests.

    Ties go to the least deep file, then the shortest name, then natural order. Adds one note per pair of directories.
    """
    copy_ids: set[int] = set()
    for members in parts:
        originals = _map_duplicates_to_originals(members)
        pairs = [(member, originals[id(member)]) for member in members if id(member) in originals]
        counted.ignored += [_ignore_duplicate(copy, _REASON) for copy, _ in pairs]
        counted.notes += [_note_duplicates_of_folder(same) for same in group_by_key(pairs, _list_duplicate_folders)]
        copy_ids.update(originals)
    counted.placed = [member for member in counted.placed if id(member) not in copy_ids]


def _map_duplicates_to_originals(members: Sequence[PlacedSource]) -> dict[int, PlacedSource]:
    """Map the identity of each duplicate to the file that is read instead."""
    originals: dict[int, PlacedSource] = {}
    for same in group_by_key(members, attrgetter("content")):
        if same[0].content is not None:
            original = min(same, key=_rank_duplicate)
            originals |= {id(member): original for member in same}
            del originals[id(original)]
    return originals


def _remove_repeated_paths(members: Sequence[PlacedSource], before: Iterable[PlacedSource]) -> UniqueSources:
    """Remove the members whose path is among those `before`."""
    paths = {_get_node_path(member) for member in before}
    counted = UniqueSources([member for member in members if _get_node_path(member) not in paths])
    repeated = [member for member in members if _get_node_path(member) in paths]
    if repeated:
        counted.ignored = [_ignore_duplicate(member, _NAMED_TWICE) for member in repeated]
        count = len(repeated)
        files = "1 file was" if count == 1 else f"{count:,} files were"
        message = f"{files} named more than once, and counted once"
        counted.notes = [Note("info", SAME_CONTENT, message, repeated[0].source.name, count)]
    return counted


def _note_shared_arguments(arguments: Sequence[PathArgument], counts: Sequence[UniqueSources]) -> list[Note]:
    """Note each two arguments with the same files: the user named them separately, so both are runs."""
    first: dict[object, int] = {}
    shared: Counter[tuple[int, int]] = Counter()
    for place, counted in enumerate(counts):
        for member in counted.placed:
            identity = member.content or _get_node_path(member)
            if first.setdefault(identity, place) != place:
                shared[first[identity], place] += 1
    notes: list[Note] = []
    for (earlier, later), count in sorted(shared.items()):
        files = "1 file holds" if count == 1 else f"{count:,} files hold"
        message = (
            f"{files} the same as in {make_displayable(arguments[earlier].text)}: they were named as runs of their own, "
            "and are the same recording twice"
        )
        name = make_displayable(arguments[later].text)
        notes.append(Note("warning", SAME_CONTENT, message, name, count))
    return notes


def _get_node_path(member: PlacedSource) -> tuple[str | None, Path]:
    """Build the key of a file's path, as one machine of a cluster sees it."""
    return member.source.node, member.source.path


def _rank_duplicate(member: PlacedSource) -> tuple[object, ...]:
    """Build the sort key of files with the same content; the first is read."""
    source: Source = member.source
    facts = (
        *(source.role, source.scope, source.step, source.rank, source.world_size),
        *(source.replica, source.topology, source.host, source.pid),
    )
    parts = member.parts
    return facts.count(None), len(parts), len("/".join(parts)), make_path_key(parts)


def _ignore_duplicate(member: PlacedSource, reason: Reason) -> UnreadFile:
    """Record a source as a duplicate."""
    return UnreadFile(member.source.path, reason, member.nodes, "duplicate")


def _list_duplicate_folders(pair: tuple[PlacedSource, PlacedSource]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """List the directories of a duplicate and of the file that is read instead."""
    copy, original = pair
    return copy.parts[:-1], original.parts[:-1]


def _note_duplicates_of_folder(pairs: Sequence[tuple[PlacedSource, PlacedSource]]) -> Note:
    """Build the note on the duplicates between two directories."""
    copy, original = pairs[0]
    message = f"the same content as {original.source.name}, which counts"
    if len(pairs) > 1:
        message += f"; so with {len(pairs) - 1:,} more beside it"
    return Note("warning", SAME_CONTENT, message, copy.source.name, len(pairs))
