"""How much one answer holds: whoever reads it pays for every character."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tracekit.model.labels import bounded
from tracekit.model.report import Cell

TEXT = 16_000
"""Characters of the text of an answer."""

ROWS = 500
"""Rows of one answer at most."""

ROW_CHARACTERS = 32_000
"""Characters of the rows of one answer, as JSON."""

CELL = 300
"""Characters of one cell; a longer one ends in its length and a hash."""

DOCUMENT = 120_000
"""Characters of a resource."""

LISTED = 200
"""Entries of a list that has no pages."""

SENTENCE = 600
"""Characters of a sentence in a list."""


def text_within(text: str, rest: str, most: int = TEXT) -> str:
    """The text, or as many of its lines as fit, and then that it was cut, and how to have the `rest`."""
    text = text.rstrip("\n")
    if len(text) <= most:
        return text
    notice = f"\n… cut at {most:,} of {len(text):,} characters. {rest}"
    head = text[: most - len(notice)]
    return head[: head.rfind("\n") if "\n" in head else None] + notice


def cell_within(value: Cell) -> Cell:
    """The cell, a long text cut."""
    return bounded(value, CELL) if isinstance(value, str) else value


def rows_within(rows: Sequence[Sequence[Cell]], limit: int) -> tuple[tuple[Cell, ...], ...]:
    """The first rows, at most `limit` and as many as fit; the first is always among them."""
    first: list[tuple[Cell, ...]] = []
    size = 0
    for row in rows[: min(limit, ROWS)]:
        cells = tuple(map(cell_within, row))
        size += len(json.dumps(cells))
        if first and size > ROW_CHARACTERS:
            break
        first.append(cells)
    return tuple(first)


def sentences_within(texts: Sequence[str], most: int = LISTED) -> tuple[str, ...]:
    """The first of these sentences, long ones cut; the last says how many more there are."""
    first = [bounded(text, SENTENCE) for text in texts[:most]]
    if len(texts) > most:
        first.append(f"… and {len(texts) - most:,} more")
    return tuple(first)
