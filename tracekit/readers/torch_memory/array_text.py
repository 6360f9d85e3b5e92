"""Incremental parsing of JSON arrays of integers: reads complete items, and stops at damage or at the end.

Accepts JSON as programs write it: integers without fraction or exponent, at most 16 spaces between two tokens. Items are
therefore short, and text that does not match an item is damage, however long it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

SPACE = rb"[ \t\n\r]{0,16}+"
INTEGER = rb"(?:-?[1-9][0-9]{0,18}+|0)"
"""At most 19 digits. Larger numbers become the largest 64-bit number, which exceeds every bound."""

COMMA = SPACE + rb"," + SPACE
LONGEST_BYTES = 1024
"""Longer than any item, in bytes."""

_TO_SPACES = bytes.maketrans(b"[],\t\n\r", b"      ")


class ArrayText:
    """A text that is consumed from its start. `offset` counts the consumed bytes."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._data = b""
        self.offset = 0

    def ahead(self) -> bytes:
        """Look at the next bytes: at least `LONGEST_BYTES`, unless the text ends before."""
        while len(self._data) < LONGEST_BYTES and self._fill():
            pass
        return self._data

    def take(self, pattern: re.Pattern[bytes]) -> bool:
        """Consume the pattern (at most `LONGEST_BYTES`) if the text continues with it. Returns whether it did."""
        match = pattern.match(self.ahead())
        if match is not None:
            self._drop(match.end())
        return match is not None

    def items(self, item: bytes) -> Iterator[bytes]:
        """Yield runs of complete array items, as text, up to the closing bracket, to damage, or to the end of the text.

        The bracket is not consumed. The item pattern must determine where an item ends: the last item in the
        text is accepted only if nothing else can follow it.
        """
        # Match spaces before a token only: the next block may continue the spaces after a comma.
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
        """Append the next block; returns False at the end of the text."""
        block = next(self._blocks, b"")
        self._data += block
        return bool(block)

    def _drop(self, count: int) -> bytes:
        """Consume and return the next `count` bytes."""
        front, self._data = self._data[:count], self._data[count:]
        self.offset += count
        return front


def parse_array_integers(text: bytes) -> Ints:
    """Parse the integers of a text that has only integers, brackets, commas and spaces."""
    return np.fromstring(text.translate(_TO_SPACES).decode("ascii"), np.int64, sep=" ")
