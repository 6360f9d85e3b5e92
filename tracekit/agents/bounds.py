"""Size limits of answers: the reader pays for every character."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tracekit.model.labels import bounded
from tracekit.model.report import Cell

TEXT = 16_000
"""Characters of an answer's text."""

ROWS = 500
"""Rows per answer."""

ROW_CHARACTERS = 32_000
"""Characters of an answer's rows as JSON."""

CELL = 300
"""Characters per cell; a longer text is truncated and ends in its length and a hash."""

DOCUMENT = 120_000
"""Characters of a resource."""

LISTED = 200
"""Entries of a list without paging."""

SENTENCE = 600
"""Characters of a sentence in a list."""


def text_within(text: str, rest: str, most: int = TEXT) -> str:
    """Truncate a text at a line break and append a notice, with `rest` saying how to get the remainder."""
    text = text.rstrip("\n")
    if len(text) <= most:
        return text
    notice = f"\n… cut at {most:,} of {len(text):,} characters. {rest}"
    head = text[: most - len(notice)]
    return head[: head.rfind("\n") if "\n" in head else None] + notice


def cell_within(value: Cell) -> Cell:
    """Truncate a long text cell."""
    return bounded(value, CELL) if isinstance(value, str) else value


def rows_within(rows: Sequence[Sequence[Cell]], limit: int) -> tuple[tuple[Cell, ...], ...]:
    """Take the first rows, up to `limit` and the size limit, but at least one."""
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
    """Take the first sentences and truncate long ones; the last entry counts the omitted ones."""
    first = [bounded(text, SENTENCE) for text in texts[:most]]
    if len(texts) > most:
        first.append(f"… and {len(texts) - most:,} more")
    return tuple(first)
