"""Several files with one content: which of them counts, and what is said of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from tracekit.discover.arguments import Argument, Ignored
from tracekit.discover.runs import Placed, groups
from tracekit.model.codes import Reason
from tracekit.model.labels import natural, shown
from tracekit.model.trace import Note, Source

SAME_CONTENT = "same-content"
"""The code of notes on files that hold what another holds."""

_REASON = Reason("same-content", "the same content as another file, which is read")
_NAMED_TWICE = Reason("named-twice", "named before, and counted once")


@dataclass(slots=True)
class Counted:
    """Sources of which none holds what another holds, and what is said of those that do."""

    placed: list[Placed] = field(default_factory=list[Placed])
    ignored: list[Ignored] = field(default_factory=list[Ignored])
    notes: list[Note] = field(default_factory=list[Note])


def counted_once(
    arguments: Sequence[Argument], placed: Sequence[Sequence[Placed]]
) -> list[Counted]:
    """For each argument its sources, each content in it once, and each path once in all that have no label.

    Logs are told from their copies once it is known to which runs they belong: `without_copied_logs`.
    """
    counts: list[Counted] = []
    named_before: list[Placed] = []
    for argument, members in zip(arguments, placed, strict=True):
        counted = Counted(list(members))
        if argument.label is None:
            counted = _not_named_before(members, named_before)
            named_before += counted.placed
        once = _once([member for member in counted.placed if not _is_log(member)])
        counting = set(map(id, once.placed))
        counted.placed = [m for m in counted.placed if _is_log(m) or id(m) in counting]
        counted.ignored += once.ignored
        counted.notes += once.notes
        counts.append(counted)
    counts[0].notes += _told_apart(arguments, [counted.placed for counted in counts])
    return counts


def without_copied_logs(members: Sequence[Placed], runs: Sequence[Hashable]) -> Counted:
    """The members without logs that hold what another log of their run holds."""
    run_of = {id(member): run for member, run in zip(members, runs, strict=True)}
    counted = Counted()
    for logs in groups(filter(_is_log, members), lambda log: run_of[id(log)]):
        once = _once(logs)
        counted.ignored += once.ignored
        counted.notes += once.notes
        counted.placed += once.placed
    counting = set(map(id, counted.placed))
    counted.placed = [m for m in members if not _is_log(m) or id(m) in counting]
    return counted


def _is_log(member: Placed) -> bool:
    return member.source.tool == "log"


def _once(members: Sequence[Placed]) -> Counted:
    """The members without copies of one another; of equals the one counts of which names and manifests say most.

    Then the one least deep, of the shortest name, first in natural order. One note a pair of directories.
    """
    same_content = [same for same in groups(members, _content) if same[0].content is not None]
    originals: dict[int, Placed] = {}
    for same in same_content:
        original = min(same, key=_preference)
        originals |= {id(copy): original for copy in same if copy is not original}
    counted = Counted([member for member in members if id(member) not in originals])
    copies = [member for member in members if id(member) in originals]
    counted.ignored = [_passed_over(copy, _REASON) for copy in copies]
    for pairs in groups([(copy, originals[id(copy)]) for copy in copies], _folders):
        counted.notes.append(_note(pairs))
    return counted


def _not_named_before(members: Sequence[Placed], before: Iterable[Placed]) -> Counted:
    """The members whose very path is not among those `before`."""
    paths = {(member.source.node, member.source.path) for member in before}
    again = [member for member in members if (member.source.node, member.source.path) in paths]
    named_twice = set(map(id, again))
    counted = Counted([member for member in members if id(member) not in named_twice])
    counted.ignored = [_passed_over(member, _NAMED_TWICE) for member in again]
    if again:
        files = "1 file was" if len(again) == 1 else f"{len(again):,} files were"
        message = f"{files} named more than once, and counted once"
        counted.notes = [Note("info", SAME_CONTENT, message, again[0].source.name, len(again))]
    return counted


def _told_apart(arguments: Sequence[Argument], placed: Sequence[Sequence[Placed]]) -> list[Note]:
    """A note for each two arguments that hold the same: a person named them apart, so both are runs."""
    first: dict[object, int] = {}
    shared: Counter[tuple[int, int]] = Counter()
    for place, members in enumerate(placed):
        for member in members:
            identity = member.content or (member.source.node, member.source.path)
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


def _content(member: Placed) -> str | None:
    return member.content


def _preference(member: Placed) -> tuple[object, ...]:
    """What orders files of one content, the one to be read first."""
    source: Source = member.source
    facts = (
        *(source.role, source.scope, source.step, source.rank, source.world_size),
        *(source.replica, source.topology, source.host, source.pid),
    )
    named = sum(fact is not None for fact in facts)
    parts = member.parts
    return -named, len(parts), len("/".join(parts)), tuple(map(natural, parts))


def _passed_over(member: Placed, reason: Reason) -> Ignored:
    return Ignored(member.source.path, reason, member.nodes, "duplicate")


def _folders(pair: tuple[Placed, Placed]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The directories of a copy and of what is read in its place."""
    copy, original = pair
    return copy.parts[:-1], original.parts[:-1]


def _note(pairs: Sequence[tuple[Placed, Placed]]) -> Note:
    """What is said of copies that lie in one directory, of files in one directory."""
    copy, original = (member.source.name for member in pairs[0])
    message = f"the same content as {original}, which counts"
    if len(pairs) > 1:
        message += f"; so with {len(pairs) - 1:,} more beside it"
    return Note("warning", SAME_CONTENT, message, copy, len(pairs))
