"""Text and numbers as SVG takes them: escaped, short, and as wide as a system font will draw them."""

from __future__ import annotations

import re
from html import escape
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


def text(value: str, limit: int = TITLE) -> str:
    """The text, printable and escaped, in at most `limit` characters."""
    return escape(printable(value, limit))


def fitted(value: str, width: float) -> str:
    """The text cut in its middle to what fits; not escaped yet."""
    shown = printable(value, TITLE)
    while shown and breadth(shown) > width:
        shown = shorten(shown, min(len(shown) - 1, int(len(shown) * width / breadth(shown))))
    return shown


def breadth(value: str) -> float:
    """About how wide the text is drawn: rather too wide than too narrow."""
    wide = sum(east_asian_width(character) in "WF" for character in value)
    broad = sum(character in _BROAD for character in value)
    narrow = sum(character in _NARROW for character in value)
    other = len(value) - wide - broad - narrow
    return FONT * (wide * 1.05 + broad * 1.02 + narrow * 0.42 + other * 0.64)


def number(value: float) -> str:
    """A coordinate to a tenth, without what says nothing.

    >>> number(12.04), number(-0.01), number(3.5)
    ('12', '0', '3.5')
    """
    # Adding zero makes -0.0 of the rounding a plain one.
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


def slug(name: str) -> str:
    """The name as an id that markup and addresses take; an id is its own slug."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:LONGEST_ID].strip("-") or "x"
