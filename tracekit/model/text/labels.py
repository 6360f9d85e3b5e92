"""Formatting, sorting and matching of recorded texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from hashlib import blake2b

from tracekit.model.text.redaction import redact


def make_natural_key(text: str) -> tuple[str | int, ...]:
    """Make a sort key that compares digits as numbers: `rank2` before `rank10`."""
    return tuple(int(t) if i % 2 else t for i, t in enumerate(re.split(r"([0-9]{1,18})", text)))


def make_displayable(text: str) -> str:
    """Make a text safe to display: credentials redacted, control characters and undecodable bytes escaped."""
    text = redact(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape_label_character(c) for c in text)


def truncate_with_hash(text: str, limit: int) -> str:
    """Truncate a text to `limit` characters, ending in its length and a hash that keeps it distinct.

    In a file, a reference to a long text costs two bytes; output that repeats the text would pay for all of it.
    """
    if len(text) <= limit:
        return text
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    suffix = f"… ({len(text):,} characters, {digest})"
    return text[: limit - len(suffix)] + suffix


def normalize_label_words(label: str) -> str:
    """Normalize a label for matching: lower case, `_` between words."""
    return re.sub(r"[\W_]+", "_", label.lower()).strip("_")


def choose_plural(number: float, noun: str, nouns: str = "") -> str:
    """Choose singular or plural: `noun` for 1, else `nouns` or `noun` with an `s`.

    >>> choose_plural(1, "run"), choose_plural(2, "run"), choose_plural(0, "other"), choose_plural(2, "recurrence", "recurrences")
    ('run', 'runs', 'others', 'recurrences')
    """
    if number == 1:
        return noun
    return nouns or f"{noun}s"


def format_numbered_word(word: str, number: object) -> str:
    """Format a word with its number; empty if the number is unknown.

    >>> format_numbered_word("rank", 3), format_numbered_word("rank", None)
    ('rank 3', '')
    """
    return "" if number is None else f"{word} {number}"


def name_rank_or_pid(rank: int | None, pid: int | None = None) -> str:
    """Name a process by its rank, otherwise by its pid; empty if both are unknown.

    >>> name_rank_or_pid(3, 4100), name_rank_or_pid(None, 4100), name_rank_or_pid(None)
    ('rank 3', 'process 4100', '')
    """
    return format_numbered_word("rank", rank) or format_numbered_word("process", pid)


def join_phrase(*parts: str | None) -> str:
    """Join the non-empty parts with spaces.

    >>> join_phrase("rank 3", "", None, "actor")
    'rank 3 actor'
    """
    return " ".join(part for part in parts if part)


def join_first_few(texts: Sequence[str], limit: int, separator: str = ", ") -> str:
    """Join the first `limit` texts; `…` follows if there are more.

    >>> join_first_few(["a", "b", "c"], 2), join_first_few(["a", "b"], 2)
    ('a, b …', 'a, b')
    """
    line = separator.join(texts[:limit])
    if len(texts) > limit:
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


def _escape_label_character(character: str) -> str:
    r"""Escape one character as `\n`, `\u202e`, or `\xff` for a byte that is not UTF-8."""
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
