"""Which names stand for one another? What is gone on one side and what is new on the other, under the same op."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

SEPARATOR = " > "

Key = tuple[str, str, str, str]
"""Stage, class, op path and kernel."""

Place = tuple[str, str, str]
"""Stage, class, and the path of the op under which both sides differ."""

_VARYING = re.compile(r"0x[0-9a-f]+|(?<![a-z])[0-9a-f]{8,}(?![a-z])|\d+", re.IGNORECASE)


def stripped(name: str) -> str:
    """A name without what changes from build to build: numbers, hashes, template arguments.

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
    """For keys that one side alone holds, where they stand: places at which both sides hold such keys.

    Of a kernel the place is its op path where that is on both sides, of an op path the innermost op around it
    that is on both sides. Keys that have no counterpart are left out.
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
    """Names in a row, the later ones counted.

    >>> shown(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    if len(names) <= limit + 1:
        return ", ".join(names)
    return f"{', '.join(names[:limit])} and {len(names) - limit} more"


def differing(key: Key, place: Place) -> str:
    """What of a key stands under its place: the op next below, or the kernel where the op is the same."""
    path, under = key[2], place[2]
    if path == under:
        return key[3]
    if under:
        path = path.removeprefix(under + SEPARATOR)
    return path.split(SEPARATOR)[0]


def _prefixes(keys: Iterable[Key]) -> set[Place]:
    """All ops around the keys, with the stage and class of each; the stage itself is one."""
    prefixes: set[Place] = set()
    for stage, kind, path, _ in keys:
        prefixes.add((stage, kind, ""))
        for above in _ops_around(path):
            prefixes.add((stage, kind, above))
    return prefixes


def _ops_around(path: str) -> list[str]:
    """The paths of all ops around the end of a path, itself included, the innermost first."""
    names = path.split(SEPARATOR) if path else []
    return [SEPARATOR.join(names[:length]) for length in range(len(names), 0, -1)]


def _place(key: Key, common_ops: set[Place]) -> Place:
    """The innermost op around a key that both sides hold; the stage itself where none is."""
    stage, kind, path, _ = key
    for above in _ops_around(path):
        if (stage, kind, above) in common_ops:
            return (stage, kind, above)
    return (stage, kind, "")


def _same_names(gone: Mapping[Key, Place], come: Mapping[Key, Place]) -> dict[Key, Place]:
    """Keys whose names differ only in what changes from build to build, at whatever place of a stage."""
    old, new = _by_stripped_name(gone), _by_stripped_name(come)
    places: dict[Key, Place] = {}
    for name in old.keys() & new.keys():
        place = gone[min(old[name])]
        places |= dict.fromkeys((*old[name], *new[name]), place)
    return places


def _by_stripped_name(keys: Iterable[Key]) -> dict[tuple[str, str, str], list[Key]]:
    """The keys with a kernel by stage, class and what of the kernel's name does not vary."""
    names: dict[tuple[str, str, str], list[Key]] = {}
    for key in keys:
        stage, kind, _, kernel = key
        if kernel:
            names.setdefault((stage, kind, stripped(kernel)), []).append(key)
    return names
