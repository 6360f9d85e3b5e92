"""Texts as recorded → as they are shown, sorted and matched."""

from __future__ import annotations

import re


def natural(text: str) -> tuple[str | int, ...]:
    """A sort key that counts digits as numbers: `rank2` before `rank10`."""
    return tuple(int(t) if i % 2 else t for i, t in enumerate(re.split(r"([0-9]{1,18})", text)))


def shown(text: str) -> str:
    """`text` for people and for UTF-8: control characters and undecodable bytes as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def words(label: str) -> str:
    """A label in the one spelling used to match labels: lower case, `_` between words."""
    return re.sub(r"[\W_]+", "_", label.lower()).strip("_")


def _escape(character: str) -> str:
    r"""One character as `\n`, `\u202e`, or `\xff` for a byte that is not UTF-8."""
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
