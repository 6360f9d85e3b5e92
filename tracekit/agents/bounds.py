"""Size limits of answers: the reader pays for every character."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tracekit.model.report import Cell
from tracekit.model.text.labels import truncate_with_hash

MAX_TEXT_CHARACTERS = 16_000
"""Characters of an answer's text."""

MAX_ANSWER_ROWS = 500
"""Rows per answer."""

MAX_ROW_CHARACTERS = 32_000
"""Characters of an answer's rows as JSON."""

MAX_CELL_CHARACTERS = 300
"""Characters per cell; a longer text is truncated and ends in its length and a hash."""

MAX_DOCUMENT_CHARACTERS = 120_000
"""Characters of a resource."""

MAX_LIST_ENTRIES = 200
"""Entries of a list without paging."""

MAX_SENTENCE_CHARACTERS = 600
"""Characters of a sentence in a list."""


def truncate_answer_text(text: str, remedy: str, limit: int = MAX_TEXT_CHARACTERS) -> str:
    """Truncate a text at a line break and append a notice, with `remedy` saying how to get the remainder."""
    text = text.rstrip("\n")
    if len(text) <= limit:
        return text
    notice = f"\n… cut at {limit:,} of {len(text):,} characters. {remedy}"
    head = text[: limit - len(notice)]
    return head[: head.rfind("\n") if "\n" in head else None] + notice


def truncate_answer_cell(value: Cell) -> Cell:
    """Truncate a long text cell."""
    return truncate_with_hash(value, MAX_CELL_CHARACTERS) if isinstance(value, str) else value


def limit_answer_rows(rows: Sequence[Sequence[Cell]], limit: int) -> tuple[tuple[Cell, ...], ...]:
    """Take the first rows, up to `limit` and the size limit, but at least one."""
    first: list[tuple[Cell, ...]] = []
    size = 0
    for row in rows[: min(limit, MAX_ANSWER_ROWS)]:
        cells = tuple(truncate_answer_cell(cell) for cell in row)
        size += len(json.dumps(cells))
        if first and size > MAX_ROW_CHARACTERS:
            break
        first.append(cells)
    return tuple(first)


def limit_sentences(texts: Sequence[str], limit: int = MAX_LIST_ENTRIES) -> tuple[str, ...]:
    """Take the first sentences and truncate long ones; the last entry counts the omitted ones."""
    first = [truncate_with_hash(text, MAX_SENTENCE_CHARACTERS) for text in texts[:limit]]
    if len(texts) > limit:
        first.append(f"… and {len(texts) - limit:,} more")
    return tuple(first)
