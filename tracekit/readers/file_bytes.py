"""Buffered forward reading of a file's bytes; bytes not used can be put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO

PIECE_BYTES = 2**16
"""Bytes read from the file at a time."""


class Truncated(Exception):  # noqa: N818 - never leaves the readers of packed files
    """The file ends inside a compressed stream."""


class Damaged(Exception):  # noqa: N818 - never leaves the readers of packed files
    """The file contains other bytes where a compressed stream must continue."""


class Unproven(Exception):  # noqa: N818 - not an error: requests `careful=True`
    """The file has a fault that only `careful=True` describes exactly."""


class FileBytes:
    """A file read in pieces: `position` counts bytes read from it, `offset` bytes taken by the caller."""

    def __init__(self, file: BinaryIO, on_bytes: Callable[[int], None] | None) -> None:
        self.file = file
        self.on_bytes = on_bytes
        self.rest = b""
        self.position = 0

    @property
    def offset(self) -> int:
        """File offset of the next byte to take."""
        return self.position - len(self.rest)

    def take(self, limit: int = PIECE_BYTES) -> bytes:
        """Take the next bytes, at most `limit`; empty at the end of the file."""
        if self.rest:
            piece, self.rest = self.rest[:limit], self.rest[limit:]
            return piece
        piece = self.file.read(limit)
        self.position += len(piece)
        if self.on_bytes is not None and piece:
            self.on_bytes(self.position)
        return piece

    def needed(self) -> bytes:
        """Take the next bytes; raise `Truncated` at the end of the file."""
        piece = self.take()
        if not piece:
            raise Truncated
        return piece

    def give_back(self, unused: bytes) -> None:
        """Put back the bytes taken last that were not used."""
        self.rest = unused + self.rest

    def peek(self, count: int) -> bytes:
        """Read the next `count` bytes without taking them; fewer at the end of the file."""
        data = b""
        while len(data) < count and (piece := self.take()):
            data += piece
        self.give_back(data)
        return data[:count]

    def exactly(self, count: int) -> bytes:
        """Take exactly `count` bytes; raise `Truncated` if the file ends first."""
        data = b""
        while len(data) < count:
            piece = self.take(count - len(data))
            if not piece:
                raise Truncated
            data += piece
        return data

    def skip_text(self) -> None:
        """Skip a zero-terminated text; raise `Truncated` if the file ends first."""
        while piece := self.take():
            _, zero, following = piece.partition(b"\0")
            if zero:
                self.give_back(following)
                return
        raise Truncated

    def skip_zeros(self) -> None:
        """Skip zero bytes."""
        while piece := self.take():
            if following := piece.lstrip(b"\0"):
                self.give_back(following)
                return

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield the remaining bytes in pieces of at most `size`."""
        while piece := self.take(size):
            yield piece
