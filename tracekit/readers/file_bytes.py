"""A file's bytes read once from front to back, in pieces, with what was read and not yet taken at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO

PIECE_BYTES = 2**16
"""How much of the file is read at a time."""


class Truncated(Exception):  # noqa: N818 - never leaves the readers of packed files
    """The file ends within what is packed."""


class Damaged(Exception):  # noqa: N818 - never leaves the readers of packed files
    """The file holds something else where what is packed must go on."""


class Unproven(Exception):  # noqa: N818 - no error of the file: it asks for the careful way
    """The file has a fault that only `careful=True` describes exactly."""


class FileBytes:
    """A file read in pieces; `position` is how far it was read, `offset` how far it was taken."""

    def __init__(self, file: BinaryIO, on_bytes: Callable[[int], None] | None) -> None:
        self.file = file
        self.on_bytes = on_bytes
        self.rest = b""
        self.position = 0

    @property
    def offset(self) -> int:
        """Where in the file what is taken next lies."""
        return self.position - len(self.rest)

    def take(self, limit: int = PIECE_BYTES) -> bytes:
        """The next bytes, at most `limit`; empty at the end of the file."""
        if self.rest:
            piece, self.rest = self.rest[:limit], self.rest[limit:]
            return piece
        piece = self.file.read(limit)
        self.position += len(piece)
        if self.on_bytes is not None and piece:
            self.on_bytes(self.position)
        return piece

    def needed(self) -> bytes:
        """The next bytes, of which there must be some."""
        piece = self.take()
        if not piece:
            raise Truncated
        return piece

    def give_back(self, rest: bytes) -> None:
        """Put bytes back that were taken last but not used."""
        self.rest = rest + self.rest

    def peek(self, count: int) -> bytes:
        """The next `count` bytes without taking them; fewer at the end of the file."""
        data = b""
        while len(data) < count and (piece := self.take()):
            data += piece
        self.give_back(data)
        return data[:count]

    def exactly(self, count: int) -> bytes:
        """The next `count` bytes."""
        data = b""
        while len(data) < count:
            piece = self.take(count - len(data))
            if not piece:
                raise Truncated
            data += piece
        return data

    def skip_text(self) -> None:
        """Pass over a text and the zero byte that ends it."""
        while piece := self.take():
            _, zero, following = piece.partition(b"\0")
            if zero:
                self.give_back(following)
                return
        raise Truncated

    def skip_zeros(self) -> None:
        """Pass over zero bytes."""
        while piece := self.take():
            if following := piece.lstrip(b"\0"):
                self.give_back(following)
                return

    def pieces(self, size: int) -> Iterator[bytes]:
        """All that is left, in pieces of at most `size`."""
        while piece := self.take(size):
            yield piece
