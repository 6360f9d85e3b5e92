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
    depth, kept = 0, []
    for part in re.split(r"([<>])", name.partition("(")[0] or name):
        if part == "<":
            depth += 1
        elif part == ">" and depth:
            depth -= 1
        elif not depth:
            kept.append(part)
    return _VARYING.sub("#", "".join(kept)).strip(" _#") or name


def replaced(before: Iterable[Key], after: Iterable[Key]) -> dict[Key, Place]:
    """For keys that one side alone holds, where they stand: places at which both sides hold such keys.

    Of a kernel the place is its op path where that is on both sides, of an op path the innermost op around it
    that is on both sides. Keys that have no counterpart there are not told.
    """
    old, new = set(before), set(after)
    known = _prefixes(old) & _prefixes(new)
    gone = {key: _place(key, known) for key in old - new}
    come = {key: _place(key, known) for key in new - old}
    pairs = _same_names(gone, come)
    both = set(gone.values()) & set(come.values())
    found = {key: at for side in (gone, come) for key, at in side.items() if at in both}
    return found | pairs


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
    rest = path.removeprefix(under + SEPARATOR) if under else path
    return rest.split(SEPARATOR)[0]


def _prefixes(keys: Iterable[Key]) -> set[Place]:
    out: set[Place] = set()
    for stage, kind, path, _ in keys:
        names = path.split(SEPARATOR) if path else []
        out |= {(stage, kind, SEPARATOR.join(names[:n])) for n in range(len(names) + 1)}
    return out


def _place(key: Key, known: set[Place]) -> Place:
    """The innermost op around a key that both sides hold; the stage itself where none is."""
    names = key[2].split(SEPARATOR) if key[2] else []
    for length in range(len(names), 0, -1):
        at = (key[0], key[1], SEPARATOR.join(names[:length]))
        if at in known:
            return at
    return (key[0], key[1], "")


def _same_names(gone: Mapping[Key, Place], come: Mapping[Key, Place]) -> dict[Key, Place]:
    """Keys whose names differ only in what changes from build to build, at whatever place of a stage."""
    alike: dict[tuple[str, ...], tuple[list[Key], list[Key]]] = {}
    for side, keys in enumerate((gone, come)):
        for key in keys:
            if key[3]:
                alike.setdefault((key[0], key[1], stripped(key[3])), ([], []))[side].append(key)
    return {
        key: gone[min(old)] for old, new in alike.values() if old and new for key in (*old, *new)
    }
