"""Text for charts: printable, shortened, with an estimated width in a system font."""

from __future__ import annotations

import re
from unicodedata import east_asian_width

from tracekit.model.text.wrapping import shorten_middle
from tracekit.render.escape import make_printable

FONT = 12
"""Font size of all text in a chart, in chart units; must match the style sheet."""

TITLE = 200
"""Longest name in a tooltip, in characters."""

LONGEST_ID = 60
"""Longest id, in characters."""

_BROAD = frozenset("mwMW@%&")
_NARROW = frozenset("ijl.,:;'|!()[]ftr I1")


def shorten_for_tooltip(value: str) -> str:
    """Make text printable and shorten it to the length of a tooltip."""
    return make_printable(value, TITLE)


def fit_text(value: str, width: float) -> str:
    """Cut text in its middle to fit a width."""
    text = make_printable(value, TITLE)
    while text and estimate_text_width(text) > width:
        text = shorten_middle(text, min(len(text) - 1, int(len(text) * width / estimate_text_width(text))))
    return text


def estimate_text_width(value: str) -> float:
    """Estimate the drawn width of text; it errs on the wide side."""
    wide = sum(east_asian_width(character) in "WF" for character in value)
    broad = sum(character in _BROAD for character in value)
    narrow = sum(character in _NARROW for character in value)
    other = len(value) - wide - broad - narrow
    return FONT * (wide * 1.05 + broad * 1.02 + narrow * 0.42 + other * 0.64)


def make_slug(name: str) -> str:
    """Convert a name to an id that is valid in markup and URLs; slugs of slugs are unchanged."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:LONGEST_ID].strip("-") or "x"
