"""Glossary of jargon that newcomers may not know, shown where the words occur."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markupsafe import Markup

MEANINGS: Mapping[str, str] = {
    "exposed comm": "communication not overlapped with compute",
    "outside any stage": "step time that no named stage covers",
    "slowest rank": "the rank that is busy longest, waits in collectives excluded",
    "own work": "a rank's time less its waits in collectives",
    "busbw": "bytes per second over each GPU's link, comparable to its bandwidth",
    "H2D": "from host (CPU) to GPU memory",
    "D2H": "from GPU to host (CPU) memory",
}
"""Meanings by word, in display order."""

_WORD = re.compile(rf"(?<!\w)({'|'.join(MEANINGS)})(?!\w)")


def list_glossary_entries(text: str) -> list[str]:
    """List `word: meaning` of each glossary word in the text.

    >>> list_glossary_entries("H2D copies, and own work")
    ["own work: a rank's time less its waits in collectives", 'H2D: from host (CPU) to GPU memory']
    """
    found = set(_WORD.findall(" ".join(text.split())))
    return [f"{word}: {meaning}" for word, meaning in MEANINGS.items() if word in found]


def explain_jargon(text: str) -> Markup:
    """Escape text for HTML, with the meaning of each glossary word as a tooltip."""
    from markupsafe import Markup, escape

    pieces = _WORD.split(text)
    shown = [escape(piece) for piece in pieces]
    for place in range(1, len(pieces), 2):
        tooltip = Markup('<abbr title="{}">{}</abbr>')
        shown[place] = tooltip.format(MEANINGS[pieces[place]], pieces[place])
    return Markup().join(shown)
