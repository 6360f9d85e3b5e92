"""Glossary of jargon that newcomers may not know, shown where the words occur."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
