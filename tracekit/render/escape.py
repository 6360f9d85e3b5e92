"""Names from profiles, made safe to show: whoever named a kernel must not control the reader's screen."""

from __future__ import annotations

import unicodedata


def printable(text: str, limit: int | None = None) -> str:
    r"""The text on one line with everything invisible made visible, shortened to `limit` characters.

    Control, format (bidi, zero-width), surrogate, private and unassigned characters become `\x1b`
    or `\u202e`; any other kind of space becomes a space.

    >>> printable("gemm\x1b[31m\n")
    'gemm\\x1b[31m\\n'
    """
    if limit is not None and len(text) > limit * 8:
        # No need to look at all of a monstrous name to show its ends.
        text = text[: limit * 4] + "…" + text[-limit * 4 :]
    if not text.isprintable():
        text = "".join(map(_visible, text))
    return text if limit is None else shorten(text, limit)


def shorten(text: str, limit: int) -> str:
    """The text in at most `limit` characters: both ends stay, since names differ at either.

    >>> shorten("sm90_gemm_bf16_128x256", 11)
    'sm90_…8x256'
    """
    if len(text) <= limit:
        return text
    if limit <= 1:
        return "…"[:limit]
    tail = (limit - 1) // 2
    head = limit - 1 - tail
    return text[:head] + "…" + text[len(text) - tail :]


def without_command(line: str) -> str:
    """The line as no CI log takes it for a command: GitHub runs `::add-mask::…` at the start of a line, behind spaces too.

    The first colon becomes one that looks alike and is as wide. Wrapping may put any word of a name there.

    >>> without_command("  ::error::hacked") == "  \u2236:error::hacked", without_command("at::mm")
    (True, 'at::mm')
    """
    start = len(line) - len(line.lstrip())
    return f"{line[:start]}\u2236{line[start + 1 :]}" if line.startswith("::", start) else line


def _visible(character: str) -> str:
    """The character itself where it shows, its escape where it does not."""
    if character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
