"""Text that cannot act on whoever reads it: for terminals, logs of CI systems, clients and tracebacks.

Names come from profiles, and whoever named a stage must not control the reader's screen, hide text, or give
commands to the machine that shows the log.
"""

from __future__ import annotations

import unicodedata
from typing import NewType

from tracekit.model.patterns import expression
from tracekit.model.redaction import redact

Lines = NewType("Lines", str)
"""Lines for a terminal, a log or a client: `visible_lines` makes them, and streams take nothing else."""

_COLOR = expression("(\x1b\\[[0-9;]*m)")
_BRACKET_COMMAND = expression(r"##(?=\w*\[)")


def visible_lines(text: str, *, keeps_color: bool = False) -> Lines:
    r"""The text without credentials, invisible characters and commands of a CI log; line ends and tabs stay.

    >>> visible_lines("gemm\x1b[31m\n::stop-commands::x\n")
    'gemm\\x1b[31m\n\u2236:stop-commands::x\n'
    """
    text = visible(text, keeps_color=keeps_color)
    return Lines("\n".join(map(without_command, text.split("\n"))))


def visible(text: str, *, keeps_color: bool = False) -> str:
    """The text of any number of lines, without credentials and with everything invisible made visible."""
    text = redact(text)
    if not keeps_color:
        return _show(text)
    pieces = _COLOR.split(text)
    pieces[::2] = map(_show, pieces[::2])
    return "".join(pieces)


def _show(text: str) -> str:
    """The text with the escapes of its invisible characters, except line ends, tabs and spaces of any width."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    shown = {character: visible_character(character) for character in set(text)}
    for character in shown:
        if character in "\n\t" or unicodedata.category(character) == "Zs":
            shown[character] = character
    return "".join(shown[character] for character in text)


def without_command(line: str) -> str:
    """The line as no CI log takes it for a command: GitHub runs `::add-mask::…` at the start of a line, behind spaces too.

    The first colon becomes one that looks alike and is as wide. Wrapping may put any word of a name there.
    `##[group]` is a command anywhere in a line (Azure's is `##vso[…]`): a space parts it.

    >>> without_command("  ::error::hacked") == "  \u2236:error::hacked", without_command("at::mm")
    (True, 'at::mm')
    """
    if "##" in line:
        line = _BRACKET_COMMAND.sub("# #", line)
    start = len(line) - len(line.lstrip())
    return f"{line[:start]}\u2236{line[start + 1 :]}" if line.startswith("::", start) else line


def visible_character(character: str) -> str:
    """The character itself where it shows, its escape where it does not."""
    if character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
