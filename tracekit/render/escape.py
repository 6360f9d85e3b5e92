"""Safe display of names from profiles: a kernel name must not control the reader's terminal or page."""

from __future__ import annotations

from tracekit.model.text.escape import escape_character
from tracekit.model.text.redaction import redact
from tracekit.model.text.wrapping import shorten_middle


def make_printable(text: str, limit: int | None = None) -> str:
    r"""Make text one line with all invisible characters visible, shortened to `limit` characters.

    Control, format (bidi, zero-width), surrogate, private and unassigned characters become `\x1b`
    or `\u202e`; other kinds of space become a space.

    >>> make_printable("gemm\x1b[31m\n")
    'gemm\\x1b[31m\\n'
    """
    text = redact(text)
    if limit is not None and len(text) > limit * 8:
        # Skip the middle of huge names: only their ends are shown.
        text = text[: limit * 4] + "…" + text[-limit * 4 :]
    if not text.isprintable():
        text = "".join(escape_character(character) for character in text)
    return text if limit is None else shorten_middle(text, limit)
