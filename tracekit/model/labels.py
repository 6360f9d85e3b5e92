"""Formatting, sorting and matching of recorded texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from hashlib import blake2b

from tracekit.model.redaction import redact


def natural(text: str) -> tuple[str | int, ...]:
    """Make a sort key that compares digits as numbers: `rank2` before `rank10`."""
    return tuple(int(t) if i % 2 else t for i, t in enumerate(re.split(r"([0-9]{1,18})", text)))


def shown(text: str) -> str:
    """Make a text safe to display: credentials redacted, control characters and undecodable bytes escaped."""
    text = redact(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def bounded(text: str, most: int) -> str:
    """Truncate a text to `most` characters, ending in its length and a hash that keeps it distinct.

    In a file, a reference to a long text costs two bytes; output that repeats the text would pay for all of it.
    """
    if len(text) <= most:
        return text
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    suffix = f"… ({len(text):,} characters, {digest})"
    return text[: most - len(suffix)] + suffix


def words(label: str) -> str:
    """Normalize a label for matching: lower case, `_` between words."""
    return re.sub(r"[\W_]+", "_", label.lower()).strip("_")


def plural(number: float, noun: str, nouns: str = "") -> str:
    """Choose singular or plural: `noun` for 1, else `nouns` or `noun` with an `s`.

    >>> plural(1, "run"), plural(2, "run"), plural(0, "other"), plural(2, "recurrence", "recurrences")
    ('run', 'runs', 'others', 'recurrences')
    """
    if number == 1:
        return noun
    return nouns or f"{noun}s"


def called(word: str, number: object) -> str:
    """Format a word with its number; empty if the number is unknown.

    >>> called("rank", 3), called("rank", None)
    ('rank 3', '')
    """
    return "" if number is None else f"{word} {number}"


def phrase(*parts: str | None) -> str:
    """Join the non-empty parts with spaces.

    >>> phrase("rank 3", "", None, "actor")
    'rank 3 actor'
    """
    return " ".join(filter(None, parts))


def first_few(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """Join the first `most` texts; `…` follows if there are more.

    >>> first_few(["a", "b", "c"], 2), first_few(["a", "b"], 2)
    ('a, b …', 'a, b')
    """
    line = separator.join(texts[:most])
    if len(texts) > most:
        line += " …"
    return line


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Suggest the nearest choice for a mistyped `word`, ignoring case; empty if none is near.

    The result is appended to a message such as "no such thing".

    >>> did_you_mean("kernel", ["kernels", "collectives"]), did_you_mean("x", ["kernels"])
    ("; did you mean 'kernels'?", '')
    """
    spellings = {choice.lower(): choice for choice in choices}
    near = get_close_matches(word.lower(), spellings, 1, 0.65)
    return f"; did you mean {spellings[near[0]]!r}?" if near else ""


def _escape(character: str) -> str:
    r"""Escape one character as `\n`, `\u202e`, or `\xff` for a byte that is not UTF-8."""
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
