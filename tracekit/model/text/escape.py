"""Escape text for terminals, CI logs, clients and tracebacks.

Names come from profiles. A stage's name must not control the reader's screen, hide text, or run a workflow command
on the machine that shows the log.
"""

from __future__ import annotations

import unicodedata
from typing import NewType

from tracekit.model.text.patterns import compile_lazily
from tracekit.model.text.redaction import redact

Lines = NewType("Lines", str)
"""Escaped lines for a terminal, a log or a client; made by `escape_lines`, and the only type that streams accept."""

_COLOR = compile_lazily("(\x1b\\[[0-9;]*m)")
_BRACKET_COMMAND = compile_lazily(r"##(?=\w*\[)")


def escape_lines(text: str, *, keeps_color: bool = False) -> Lines:
    r"""Remove credentials, and escape invisible characters and CI commands; keep line ends and tabs.

    >>> escape_lines("gemm\x1b[31m\n::stop-commands::x\n")
    'gemm\\x1b[31m\n\u2236:stop-commands::x\n'
    """
    text = make_visible(text, keeps_color=keeps_color)
    return Lines("\n".join(break_ci_command(line) for line in text.split("\n")))


def make_visible(text: str, *, keeps_color: bool = False) -> str:
    """Remove credentials from a text and escape its invisible characters."""
    text = redact(text)
    if not keeps_color:
        return _escape_invisible(text)
    pieces = _COLOR.split(text)
    pieces[::2] = [_escape_invisible(piece) for piece in pieces[::2]]
    return "".join(pieces)


def _escape_invisible(text: str) -> str:
    """Escape invisible characters, except line ends, tabs and spaces of any width."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    shown = {character: escape_character(character) for character in set(text)}
    for character in shown:
        if character in "\n\t" or unicodedata.category(character) == "Zs":
            shown[character] = character
    return "".join(shown[character] for character in text)


def break_ci_command(line: str) -> str:
    """Disable workflow commands in a line: GitHub runs `::add-mask::…` at the start of a line, also after spaces.

    The first colon becomes a look-alike of the same width. Wrapping may move any word of a name to a line's start.
    `##[group]` is a command anywhere in a line (Azure: `##vso[…]`); a space splits it.

    >>> break_ci_command("  ::error::hacked") == "  \u2236:error::hacked", break_ci_command("at::mm")
    (True, 'at::mm')
    """
    if "##" in line:
        line = _BRACKET_COMMAND.sub("# #", line)
    start = len(line) - len(line.lstrip())
    return f"{line[:start]}\u2236{line[start + 1 :]}" if line.startswith("::", start) else line


def escape_character(character: str) -> str:
    """Return a printable character unchanged, any other one escaped."""
    if character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
