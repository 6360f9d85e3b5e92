"""Matching of replaced names: names gone on one side and new on the other under the same op."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

SEPARATOR = " > "

Key = tuple[str, str, str, str]
"""Stage, class, op path and kernel."""

Place = tuple[str, str, str]
"""Stage, class, and the path of the op under which the sides differ."""

_VARYING = re.compile(r"0x[0-9a-f]+|(?<![a-z])[0-9a-f]{8,}(?![a-z])|\d+", re.IGNORECASE)


def stripped(name: str) -> str:
    """Strip numbers, hashes and template arguments, which vary between builds, from a name.

    >>> stripped("triton_poi_fused_add_12") == stripped("triton_poi_fused_add_0")
    True
    >>> stripped("void gemm<128, float>(int)")
    'void gemm'
    """
    depth, outside = 0, []
    for part in re.split(r"([<>])", name.partition("(")[0] or name):
        if part == "<":
            depth += 1
        elif part == ">" and depth:
            depth -= 1
        elif not depth:
            outside.append(part)
    return _VARYING.sub("#", "".join(outside)).strip(" _#") or name


def replaced(before: Iterable[Key], after: Iterable[Key]) -> dict[Key, Place]:
    """Map keys on one side only to a place where both sides have such keys.

    For a kernel the place is its op path if both sides have it; for an op path it is the innermost enclosing
    op on both sides. Keys without a counterpart are left out.
    """
    old, new = set(before), set(after)
    common_ops = _prefixes(old) & _prefixes(new)
    gone = {key: _place(key, common_ops) for key in old - new}
    come = {key: _place(key, common_ops) for key in new - old}
    both = set(gone.values()) & set(come.values())
    places = {}
    for key, place in (*gone.items(), *come.items()):
        if place in both:
            places[key] = place
    return places | _same_names(gone, come)


def shown(names: Sequence[str], limit: int = 3) -> str:
    """Join the first names and count the others.

    >>> shown(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    if len(names) <= limit + 1:
        return ", ".join(names)
    return f"{', '.join(names[:limit])} and {len(names) - limit} more"


def differing(key: Key, place: Place) -> str:
    """Get the part of a key below its place: the next op, or the kernel if the op is the same."""
    path, under = key[2], place[2]
    if path == under:
        return key[3]
    if under:
        path = path.removeprefix(under + SEPARATOR)
    return path.split(SEPARATOR)[0]


def _prefixes(keys: Iterable[Key]) -> set[Place]:
    """Collect the ops around the keys, with stage and class; the stage itself counts as one."""
    prefixes: set[Place] = set()
    for stage, kind, path, _ in keys:
        prefixes.add((stage, kind, ""))
        for above in _ops_around(path):
            prefixes.add((stage, kind, above))
    return prefixes


def _ops_around(path: str) -> list[str]:
    """List the paths of the ops that enclose the end of a path, itself included, innermost first."""
    names = path.split(SEPARATOR) if path else []
    return [SEPARATOR.join(names[:length]) for length in range(len(names), 0, -1)]


def _place(key: Key, common_ops: set[Place]) -> Place:
    """Find the innermost op around a key that both sides have; the stage itself if there is none."""
    stage, kind, path, _ = key
    for above in _ops_around(path):
        if (stage, kind, above) in common_ops:
            return (stage, kind, above)
    return (stage, kind, "")


def _same_names(gone: Mapping[Key, Place], come: Mapping[Key, Place]) -> dict[Key, Place]:
    """Match keys of a stage whose names differ only in details that vary between builds."""
    old, new = _by_stripped_name(gone), _by_stripped_name(come)
    places: dict[Key, Place] = {}
    for name in old.keys() & new.keys():
        place = gone[min(old[name])]
        places |= dict.fromkeys((*old[name], *new[name]), place)
    return places


def _by_stripped_name(keys: Iterable[Key]) -> dict[tuple[str, str, str], list[Key]]:
    """Group the keys with a kernel by stage, class and stripped kernel name."""
    names: dict[tuple[str, str, str], list[Key]] = {}
    for key in keys:
        stage, kind, _, kernel = key
        if kernel:
            names.setdefault((stage, kind, stripped(kernel)), []).append(key)
    return names
