"""Duplicate files: which of several files with the same content is read, and notes on the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import field
from itertools import filterfalse
from operator import attrgetter
from pathlib import Path

from tracekit.discover.arguments import Argument, Ignored
from tracekit.discover.runs import Placed, groups
from tracekit.model.codes import Reason
from tracekit.model.labels import natural, shown
from tracekit.model.records import dataclass
from tracekit.model.sources import Note, Source

SAME_CONTENT = "same-content"
"""Code of notes on files with the same content as another."""

_REASON = Reason("same-content", "the same content as another file, which is read")
_NAMED_TWICE = Reason("named-twice", "named before, and counted once")


@dataclass(slots=True)
class Counted:
    """Sources without duplicates, with the ignored duplicates and notes on them."""

    placed: list[Placed] = field(default_factory=list[Placed])
    ignored: list[Ignored] = field(default_factory=list[Ignored])
    notes: list[Note] = field(default_factory=list[Note])


def counted_once(
    arguments: Sequence[Argument], placed: Sequence[Sequence[Placed]]
) -> list[Counted]:
    """Remove duplicates per argument: each content once, and each path once over all arguments without a label.

    Duplicate logs are removed later, once their runs are known: `without_copied_logs`.
    """
    counts: list[Counted] = []
    named_before: list[Placed] = []
    for argument, members in zip(arguments, placed, strict=True):
        counted = Counted(list(members))
        if argument.label is None:
            counted = _not_named_before(members, named_before)
            named_before += counted.placed
        _leave_out_copies(counted, [list(filterfalse(_is_log, counted.placed))])
        counts.append(counted)
    counts[0].notes += _named_apart(arguments, counts)
    return counts


def without_copied_logs(members: Sequence[Placed], runs: Sequence[Hashable]) -> Counted:
    """Remove logs with the same content as another log of their run."""
    run_of = dict(zip(map(id, members), runs, strict=True))
    counted = Counted(list(members))
    logs = filter(_is_log, members)
    _leave_out_copies(counted, groups(logs, lambda log: run_of[id(log)]))
    return counted


def _is_log(member: Placed) -> bool:
    """Check whether a source is a log."""
    return member.source.tool == "log"


def _leave_out_copies(counted: Counted, parts: Iterable[Sequence[Placed]]) -> None:
    """Remove duplicates within each part. Keeps the file described best by names and manifests.

    Ties go to the least deep file, then the shortest name, then natural order. Adds one note per pair of directories.
    """
    copy_ids: set[int] = set()
    for members in parts:
        originals = _originals(members)
        pairs = [(member, originals[id(member)]) for member in members if id(member) in originals]
        counted.ignored += [_passed_over(copy, _REASON) for copy, _ in pairs]
        counted.notes += map(_note, groups(pairs, _folders))
        copy_ids.update(originals)
    counted.placed = [member for member in counted.placed if id(member) not in copy_ids]


def _originals(members: Sequence[Placed]) -> dict[int, Placed]:
    """Map the identity of each duplicate to the file that is read instead."""
    originals: dict[int, Placed] = {}
    for same in groups(members, attrgetter("content")):
        if same[0].content is not None:
            original = min(same, key=_preference)
            originals.update(dict.fromkeys(map(id, same), original))
            del originals[id(original)]
    return originals


def _not_named_before(members: Sequence[Placed], before: Iterable[Placed]) -> Counted:
    """Remove the members whose path is among those `before`."""
    paths = set(map(_path, before))
    counted = Counted([member for member in members if _path(member) not in paths])
    repeated = [member for member in members if _path(member) in paths]
    if repeated:
        counted.ignored = [_passed_over(member, _NAMED_TWICE) for member in repeated]
        count = len(repeated)
        files = "1 file was" if count == 1 else f"{count:,} files were"
        message = f"{files} named more than once, and counted once"
        counted.notes = [Note("info", SAME_CONTENT, message, repeated[0].source.name, count)]
    return counted


def _named_apart(arguments: Sequence[Argument], counts: Sequence[Counted]) -> list[Note]:
    """Note each two arguments with the same files: the user named them separately, so both are runs."""
    first: dict[object, int] = {}
    shared: Counter[tuple[int, int]] = Counter()
    for place, counted in enumerate(counts):
        for member in counted.placed:
            identity = member.content or _path(member)
            if first.setdefault(identity, place) != place:
                shared[first[identity], place] += 1
    notes: list[Note] = []
    for (earlier, later), count in sorted(shared.items()):
        files = "1 file holds" if count == 1 else f"{count:,} files hold"
        message = (
            f"{files} the same as in {shown(arguments[earlier].text)}: they were named as runs of their own, "
            "and are the same recording twice"
        )
        name = shown(arguments[later].text)
        notes.append(Note("warning", SAME_CONTENT, message, name, count))
    return notes


def _path(member: Placed) -> tuple[str | None, Path]:
    """Build the key of a file's path, as one machine of a cluster sees it."""
    return member.source.node, member.source.path


def _preference(member: Placed) -> tuple[object, ...]:
    """Build the sort key of files with the same content; the first is read."""
    source: Source = member.source
    facts = (
        *(source.role, source.scope, source.step, source.rank, source.world_size),
        *(source.replica, source.topology, source.host, source.pid),
    )
    parts = member.parts
    return facts.count(None), len(parts), len("/".join(parts)), tuple(map(natural, parts))


def _passed_over(member: Placed, reason: Reason) -> Ignored:
    """Record a source as a duplicate."""
    return Ignored(member.source.path, reason, member.nodes, "duplicate")


def _folders(pair: tuple[Placed, Placed]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """List the directories of a duplicate and of the file that is read instead."""
    copy, original = pair
    return copy.parts[:-1], original.parts[:-1]


def _note(pairs: Sequence[tuple[Placed, Placed]]) -> Note:
    """Build the note on the duplicates between two directories."""
    copy, original = pairs[0]
    message = f"the same content as {original.source.name}, which counts"
    if len(pairs) > 1:
        message += f"; so with {len(pairs) - 1:,} more beside it"
    return Note("warning", SAME_CONTENT, message, copy.source.name, len(pairs))
