"""Texts as recorded → as they are shown, sorted and matched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from hashlib import blake2b

from tracekit.model.redaction import redact


def natural(text: str) -> tuple[str | int, ...]:
    """A sort key that counts digits as numbers: `rank2` before `rank10`."""
    return tuple(int(t) if i % 2 else t for i, t in enumerate(re.split(r"([0-9]{1,18})", text)))


def shown(text: str) -> str:
    """`text` for people and for UTF-8: control characters and undecodable bytes as escapes, no credentials."""
    text = redact(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def bounded(text: str, most: int) -> str:
    """The text, or of one longer than `most` its beginning with its length and a hash that keeps it apart from others.

    What refers to a long text costs a file two bytes; whoever writes the text out each time pays for all of it.
    """
    if len(text) <= most:
        return text
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    suffix = f"… ({len(text):,} characters, {digest})"
    return text[: most - len(suffix)] + suffix


def words(label: str) -> str:
    """A label in the one spelling used to match labels: lower case, `_` between words."""
    return re.sub(r"[\W_]+", "_", label.lower()).strip("_")


def plural(number: float, noun: str, nouns: str = "") -> str:
    """The noun for so many: with an `s` for any number but 1, or the plural `nouns` where it has another.

    >>> plural(1, "run"), plural(2, "run"), plural(0, "other"), plural(2, "recurrence", "recurrences")
    ('run', 'runs', 'others', 'recurrences')
    """
    if number == 1:
        return noun
    return nouns or f"{noun}s"


def called(word: str, number: object) -> str:
    """A thing with its number; nothing where the number is not known.

    >>> called("rank", 3), called("rank", None)
    ('rank 3', '')
    """
    return "" if number is None else f"{word} {number}"


def phrase(*parts: str | None) -> str:
    """Those of the parts that say something, one after the other.

    >>> phrase("rank 3", "", None, "actor")
    'rank 3 actor'
    """
    return " ".join(filter(None, parts))


def first_few(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first texts in a line, at most so many; `…` behind them where there are more.

    >>> first_few(["a", "b", "c"], 2), first_few(["a", "b"], 2)
    ('a, b …', 'a, b')
    """
    line = separator.join(texts[:most])
    if len(texts) > most:
        line += " …"
    return line


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """What is said behind "no such thing" of a mistyped `word`, in any case of letters; nothing where no choice is near.

    >>> did_you_mean("kernel", ["kernels", "collectives"]), did_you_mean("x", ["kernels"])
    ("; did you mean 'kernels'?", '')
    """
    spellings = {choice.lower(): choice for choice in choices}
    near = get_close_matches(word.lower(), spellings, 1, 0.65)
    return f"; did you mean {spellings[near[0]]!r}?" if near else ""


def _escape(character: str) -> str:
    r"""One character as `\n`, `\u202e`, or `\xff` for a byte that is not UTF-8."""
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
