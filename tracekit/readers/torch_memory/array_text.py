"""Arrays of whole numbers in JSON, read a stretch at a time: what is whole in them, and where that ends.

JSON as programs write it: numbers without fraction or exponent, at most 16 spaces between any two tokens.
So no item is long, and what does not fit the pattern of one is damage, however much of it follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

SPACE = rb"[ \t\n\r]{0,16}+"
INTEGER = rb"(?:-?[1-9][0-9]{0,18}+|0)"
"""At most 19 digits: of those beyond 64 bits the largest number of 64 bits is made, which no bound lets pass."""

COMMA = SPACE + rb"," + SPACE
LONGEST_BYTES = 1024
"""Longer than any item."""

_TO_SPACES = bytes.maketrans(b"[],\t\n\r", b"      ")


class ArrayText:
    """A text that is read from its beginning; `offset` is how much of it was taken."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._data = b""
        self.offset = 0

    def ahead(self) -> bytes:
        """What comes next: at least `LONGEST_BYTES` of it, unless the text ends before."""
        while len(self._data) < LONGEST_BYTES and self._fill():
            pass
        return self._data

    def take(self, pattern: re.Pattern[bytes]) -> bool:
        """Whether the text goes on like this (at most `LONGEST_BYTES`), which is then taken."""
        match = pattern.match(self.ahead())
        if match is not None:
            self._drop(match.end())
        return match is not None

    def items(self, item: bytes) -> Iterator[bytes]:
        """Runs of whole items of an array, as text, up to its bracket, to damage, or to the end of the text.

        The bracket is not taken. The pattern of an item must tell where it ends: of the last one in the
        text nothing else may follow.
        """
        # Spaces stand before what they belong to: behind a comma more of them may come with the next piece.
        run = re.compile(rb"(?:" + SPACE + item + SPACE + rb",)*+")
        last = re.compile(SPACE + item)
        while True:
            items_match = run.match(self._data)
            if items_match is not None and items_match.end():
                yield self._drop(items_match.end())
            if len(self._data) >= LONGEST_BYTES or not self._fill():
                break
        last_match = last.match(self._data)
        if last_match is not None:
            yield self._drop(last_match.end())

    def _fill(self) -> bool:
        block = next(self._blocks, b"")
        self._data += block
        return bool(block)

    def _drop(self, count: int) -> bytes:
        front, self._data = self._data[:count], self._data[count:]
        self.offset += count
        return front


def integers(text: bytes) -> Ints:
    """The numbers of a text in which nothing but whole numbers, brackets, commas and spaces stands."""
    return np.fromstring(text.translate(_TO_SPACES).decode("ascii"), np.int64, sep=" ")
