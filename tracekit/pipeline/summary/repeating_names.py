"""Names of repeating ranges, shortened for the first line."""

from __future__ import annotations

import re


def shorten_repeating_name(name: str) -> str:
    """Shorten the name of a repeating range to its beginning, without numbers and brackets.

    >>> shorten_repeating_name("execute_context_#(#)_generation_#(#)"), shorten_repeating_name("step[DECODE bs=#]"), shorten_repeating_name("train")
    ('execute_context…', 'step…', 'train')
    """
    begin = re.split(r"[(\[]", name, maxsplit=1)[0].rstrip("_# .:-")
    begin = begin[:MAX_NAME_LETTERS] or name[:MAX_NAME_LETTERS]
    return begin if begin == name else f"{begin}…"


MAX_NAME_LETTERS = 32
"""Most letters of a shortened name."""
