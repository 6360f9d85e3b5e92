"""Text as pictures take it: printable, short, and as wide as a system font will draw it."""

from __future__ import annotations

import re
from unicodedata import east_asian_width

from tracekit.render.escape import printable, shorten

FONT = 12
"""The size of all text in a chart, in its own units; the style sheet says the same."""

TITLE = 200
"""Characters of a name that a tooltip shows."""

LONGEST_ID = 60
"""Characters of an id."""

_BROAD = frozenset("mwMW@%&")
_NARROW = frozenset("ijl.,:;'|!()[]ftr I1")


def short(value: str) -> str:
    """The text, printable, in at most as many characters as a tooltip shows."""
    return printable(value, TITLE)


def fitted(value: str, width: float) -> str:
    """The text cut in its middle to what fits."""
    text = printable(value, TITLE)
    while text and breadth(text) > width:
        text = shorten(text, min(len(text) - 1, int(len(text) * width / breadth(text))))
    return text


def breadth(value: str) -> float:
    """About how wide the text is drawn: rather too wide than too narrow."""
    wide = sum(east_asian_width(character) in "WF" for character in value)
    broad = sum(character in _BROAD for character in value)
    narrow = sum(character in _NARROW for character in value)
    other = len(value) - wide - broad - narrow
    return FONT * (wide * 1.05 + broad * 1.02 + narrow * 0.42 + other * 0.64)


def slug(name: str) -> str:
    """The name as an id that markup and addresses take; an id is its own slug."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:LONGEST_ID].strip("-") or "x"
