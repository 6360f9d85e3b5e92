"""Matching of replaced names: names gone on one side and new on the other under the same op."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tracekit.model.text.kernel_labels import strip_build_details

SEPARATOR = " > "

SlotKey = tuple[str, str, str, str]
"""Stage, class, op path and kernel."""

ReplacedPlace = tuple[str, str, str]
"""Stage, class, and the path of the op under which the sides differ."""


def match_replaced_keys(before: Iterable[SlotKey], after: Iterable[SlotKey]) -> dict[SlotKey, ReplacedPlace]:
    """Map keys on one side only to a place where both sides have such keys.

    For a kernel the place is its op path if both sides have it; for an op path it is the innermost enclosing
    op on both sides. Keys without a counterpart are left out.
    """
    old, new = set(before), set(after)
    common_ops = _list_enclosing_places(old) & _list_enclosing_places(new)
    gone = {key: _find_common_op(key, common_ops) for key in old - new}
    come = {key: _find_common_op(key, common_ops) for key in new - old}
    both = set(gone.values()) & set(come.values())
    places = {key: place for key, place in (*gone.items(), *come.items()) if place in both}
    return places | _match_stripped_names(gone, come)


def join_first_names(names: Sequence[str], limit: int = 3) -> str:
    """Join the first names and count the others.

    >>> join_first_names(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    if len(names) <= limit + 1:
        return ", ".join(names)
    return f"{', '.join(names[:limit])} and {len(names) - limit} more"


def get_differing_name(key: SlotKey, place: ReplacedPlace) -> str:
    """Get the part of a key below its place: the next op, or the kernel if the op is the same."""
    path, under = key[2], place[2]
    if path == under:
        return key[3]
    if under:
        path = path.removeprefix(under + SEPARATOR)
    return path.split(SEPARATOR)[0]


def _list_enclosing_places(keys: Iterable[SlotKey]) -> set[ReplacedPlace]:
    """Collect the ops around the keys, with stage and class; the stage itself counts as one."""
    prefixes: set[ReplacedPlace] = set()
    for stage, kind, path, _ in keys:
        prefixes.add((stage, kind, ""))
        for above in _list_enclosing_ops(path):
            prefixes.add((stage, kind, above))
    return prefixes


def _list_enclosing_ops(path: str) -> list[str]:
    """List the paths of the ops that enclose the end of a path, itself included, innermost first."""
    names = path.split(SEPARATOR) if path else []
    return [SEPARATOR.join(names[:length]) for length in range(len(names), 0, -1)]


def _find_common_op(key: SlotKey, common_ops: set[ReplacedPlace]) -> ReplacedPlace:
    """Find the innermost op around a key that both sides have; the stage itself if there is none."""
    stage, kind, path, _ = key
    for above in _list_enclosing_ops(path):
        if (stage, kind, above) in common_ops:
            return (stage, kind, above)
    return (stage, kind, "")


def _match_stripped_names(
    gone: Mapping[SlotKey, ReplacedPlace], come: Mapping[SlotKey, ReplacedPlace]
) -> dict[SlotKey, ReplacedPlace]:
    """Match keys of a stage whose names differ only in details that vary between builds."""
    old, new = _group_by_stripped_name(gone), _group_by_stripped_name(come)
    places: dict[SlotKey, ReplacedPlace] = {}
    for name in old.keys() & new.keys():
        place = gone[min(old[name])]
        places |= dict.fromkeys((*old[name], *new[name]), place)
    return places


def _group_by_stripped_name(keys: Iterable[SlotKey]) -> dict[tuple[str, str, str], list[SlotKey]]:
    """Group the keys with a kernel by stage, class and stripped kernel name."""
    names: dict[tuple[str, str, str], list[SlotKey]] = {}
    for key in keys:
        stage, kind, _, kernel = key
        if kernel:
            names.setdefault((stage, kind, strip_build_details(kernel)), []).append(key)
    return names
