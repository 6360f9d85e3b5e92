"""Reduction of a cut: leaves out groups of rows and arguments as long as an analysis still shows the finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Group = tuple[str, str]
"""A kind and a value: ("class", "runtime"), ("name", "aten::mm"), ("argument", "grid"), ("table", "OSRT_API")."""


def leave_out_groups(
    blocks: Sequence[Sequence[Group]],
    is_shown: Callable[[frozenset[Group]], bool],
    already: frozenset[Group] = frozenset(),
    *,
    most_tries: int,
    is_enough: Callable[[], bool] = bool,
) -> tuple[frozenset[Group], int]:
    """Find groups to leave out while `is_shown` stays true: tries each block, and halves of a block that is needed.

    Stops when `is_enough` is true. Returns the groups, with those that are left out `already`, and the number of tries.

    >>> leave_out_groups([[("name", "a"), ("name", "b")]], lambda out: ("name", "a") not in out, most_tries=9)
    (frozenset({('name', 'b')}), 3)
    """
    left_out, tries = already, 0
    pending = [list(block) for block in reversed(blocks) if block]
    while pending and tries < most_tries and not is_enough():
        block = pending.pop()
        tries += 1
        if is_shown(left_out | set(block)):
            left_out = left_out | set(block)
        elif len(block) > 1:
            middle = len(block) // 2
            pending += [block[middle:], block[:middle]]
    return left_out, tries
