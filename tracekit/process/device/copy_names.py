"""Direction and memory kind of a copy (H2D, D2H …), from its recorded name."""

from __future__ import annotations

import re

_WAY = re.compile(r"(Host|Device|Peer|H|D|P)(?:To|2|to)(Host|Device|Peer|H|D|P)")
_MEMORY = re.compile(r"\((.*)\)\s*\Z")


def parse_copy_direction(name: str) -> tuple[str | None, str | None]:
    """Parse the (direction, memory) of a copy from its name; None for a part that the name lacks.

    >>> parse_copy_direction("Memcpy HtoD (Pinned -> Device)"), parse_copy_direction("CopyDeviceToHost")
    (('HtoD', 'Pinned -> Device'), ('DtoH', None))
    """
    way, memory = _WAY.search(name), _MEMORY.search(name)
    return f"{way[1][0]}to{way[2][0]}" if way else None, memory[1] if memory else None
