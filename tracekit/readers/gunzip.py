"""The bytes of a trace file, inflated where it is gzip, with every fault of the gzip layer reported.

`isal` inflates three times as fast as the standard library, but it loses the output of the call
that fails and accepts a few streams that zlib rejects. So it is trusted only with a file that proves
whole, by its checksums: at any fault `Unproven` asks to start over with `careful=True`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tracekit.readers.scan import Loss

fast_zlib: Any
try:
    from isal import isal_zlib as fast_zlib
except ImportError:
    fast_zlib = None

PIECE_BYTES = 2**16
"""How much of the file is read at a time."""

MAGIC = b"\x1f\x8b"
FIXED_HEADER_BYTES, TRAILER_BYTES = 10, 8
FLAG_HEADER_CRC, FLAG_EXTRA, FLAG_NAME, FLAG_COMMENT, FLAGS_RESERVED = 2, 4, 8, 16, 0xE0


class Unproven(Exception):  # noqa: N818 - no error of the file: it asks for the careful way
    """The file has a fault that only `careful=True` describes exactly."""


class _Truncated(Exception):  # noqa: N818 - never leaves this module
    """The file ends within a member."""


class _Damaged(Exception):  # noqa: N818 - never leaves this module
    """The file holds something else where a member must go on."""


def blocks(
    path: Path,
    losses: list[Loss],
    *,
    size: int = 2**20,
    careful: bool = False,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[bytes]:
    """Non-empty pieces of the text of at most `size` bytes; faults are appended to `losses`.

    `on_bytes` is told how many bytes of the file have been read so far. A file without a fault, and
    every plain one, gives the same text with and without `careful`.
    """
    with path.open("rb", buffering=0) as file:
        source = _Source(file, on_bytes)
        if source.peek(2) != MAGIC:
            yield from source.pieces(size)
            return
        _let_malloc_keep_blocks(size)
        if careful or fast_zlib is None:
            yield from _Members(source, losses, size).blocks(_careful_inflate, zlib.crc32)
        else:
            faults: list[Loss] = []
            yield from _Members(source, faults, size).blocks(_fast_inflate, fast_zlib.crc32)
            if faults:
                raise Unproven


def _let_malloc_keep_blocks(size: int) -> None:
    """Nothing; afterwards glibc reuses freed blocks instead of returning each to the system.

    Freeing something larger than them raises its threshold, and none of it is ever touched. Not much
    larger: what is above the threshold grows by moving pages, what is below by copying.
    """
    larger = bytearray(2 * size)
    del larger


class _Source:
    """A file read in pieces, with what was read and not yet taken at hand."""

    def __init__(self, file: BinaryIO, on_bytes: Callable[[int], None] | None) -> None:
        self.file = file
        self.on_bytes = on_bytes
        self.rest = b""
        self.position = 0

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

    def give_back(self, rest: bytes) -> None:
        """Put bytes back that were taken last but not used."""
        self.rest = rest + self.rest

    def peek(self, count: int) -> bytes:
        """The next `count` bytes without taking them; fewer at the end of the file."""
        found = b""
        while len(found) < count and (piece := self.take()):
            found += piece
        self.give_back(found)
        return found[:count]

    def exactly(self, count: int) -> bytes:
        """The next `count` bytes."""
        found = b""
        while len(found) < count:
            piece = self.take(count - len(found))
            if not piece:
                raise _Truncated
            found += piece
        return found

    def skip_text(self) -> None:
        """Pass over a text and the zero byte that ends it."""
        while piece := self.take():
            _, zero, rest = piece.partition(b"\0")
            if zero:
                self.give_back(rest)
                return
        raise _Truncated

    def skip_zeros(self) -> None:
        """Pass over zero bytes."""
        while piece := self.take():
            if rest := piece.lstrip(b"\0"):
                self.give_back(rest)
                return

    def pieces(self, size: int) -> Iterator[bytes]:
        """All that is left, in pieces of at most `size`."""
        while piece := self.take(size):
            yield piece


class _Members:
    """The members of a gzip file, one after another."""

    def __init__(self, source: _Source, losses: list[Loss], size: int) -> None:
        self.source = source
        self.losses = losses
        self.size = size
        self.delivered = 0

    def blocks(
        self,
        inflate: Callable[[_Source, int], Iterator[bytes]],
        checksum: Callable[[bytes, int], int],
    ) -> Iterator[bytes]:
        """The text of all members up to the first fault that ends reading."""
        try:
            while self.source.peek(1):
                _skip_header(self.source)
                crc, start = 0, self.delivered
                for block in inflate(self.source, self.size):
                    crc = checksum(block, crc)
                    self.delivered += len(block)
                    yield block
                trailer = self.source.exactly(TRAILER_BYTES)
                if trailer != _trailer(crc, self.delivered - start):
                    self._lose("gzip-crc")
                self.source.skip_zeros()
        except _Truncated:
            self._lose("gzip-truncated")
        except _Damaged:
            self._lose("gzip-damaged")

    def _lose(self, kind: str) -> None:
        """Record a fault; how much text it cost cannot be known."""
        self.losses.append(Loss(kind, offset=self.delivered, count=1, size_bytes=0))


def _trailer(crc: int, length: int) -> bytes:
    return crc.to_bytes(4, "little") + (length % 2**32).to_bytes(4, "little")


def _skip_header(source: _Source) -> None:
    if not MAGIC.startswith(source.peek(2)):
        raise _Damaged
    header = source.exactly(FIXED_HEADER_BYTES)
    method, flags = header[2], header[3]
    if method != zlib.DEFLATED or flags & FLAGS_RESERVED:
        raise _Damaged
    if flags & FLAG_EXTRA:
        source.exactly(int.from_bytes(source.exactly(2), "little"))
    if flags & FLAG_NAME:
        source.skip_text()
    if flags & FLAG_COMMENT:
        source.skip_text()
    if flags & FLAG_HEADER_CRC:
        source.exactly(2)  # not checked: a header holds nothing that is used


def _needed(source: _Source) -> bytes:
    piece = source.take()
    if not piece:
        raise _Truncated
    return piece


def _fast_inflate(source: _Source, size: int) -> Iterator[bytes]:
    """The text of one member, by the fast library."""
    inflater = fast_zlib.decompressobj(-zlib.MAX_WBITS)
    error: type[Exception] = fast_zlib.error
    try:
        while not inflater.eof:
            piece = inflater.unconsumed_tail
            block = inflater.decompress(piece, size)
            if not block and not piece and not inflater.eof:
                block = inflater.decompress(_needed(source), size)
            if block:
                yield block
    except error:
        raise _Damaged from None
    source.give_back(inflater.unused_data)


def _careful_inflate(source: _Source, size: int) -> Iterator[bytes]:
    """The text of one member, up to the fault if there is one.

    A call that fails keeps its output to itself, so its piece of input is inflated once more from
    the state before it, in smaller steps; the result does not depend on `size`.
    """
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    before, piece, given = inflater.copy(), b"", 0
    while not inflater.eof:
        rest = inflater.unconsumed_tail
        try:
            block = inflater.decompress(rest, size)
            if not block and not rest and not inflater.eof:
                before, piece, given = inflater.copy(), _needed(source), 0
                block = inflater.decompress(piece, size)
        except zlib.error:
            found = _up_to_fault(before, piece)
            for start in range(given, len(found), size):
                yield found[start : start + size]
            raise _Damaged from None
        given += len(block)
        if block:
            yield block
    source.give_back(inflater.unused_data)


def _up_to_fault(inflater: Any, piece: bytes) -> bytes:
    """What a piece of input that fails gives before it does."""
    found = bytearray()
    position, step = 0, 256
    while position < len(piece):
        before = inflater.copy()
        try:
            found += inflater.decompress(piece[position : position + step])
        except zlib.error:
            if step == 1:
                found += _before_fault_within(before, piece[position])
                break
            inflater, step = before, 1
        else:
            position += step
    return bytes(found)


def _before_fault_within(inflater: Any, byte: int) -> bytes:
    """What the byte of input that fails gives before it does.

    Even a step of one byte of output keeps that byte to itself if the fault follows at once. It is
    certain all the same if the lower bits of the input give it, whatever the higher ones are.
    """
    known, _ = _in_steps(inflater.copy(), byte)
    for bits in range(1, 8):
        low = byte % 2**bits
        variants = [
            _in_steps(inflater.copy(), low + (high << bits)) for high in range(2 ** (8 - bits))
        ]
        longer = {found[: len(known) + 1] for found, failed in variants if len(found) > len(known)}
        stuck = any(len(found) <= len(known) and not failed for found, failed in variants)
        if len(longer) == 1 and not stuck:
            (certain,) = longer
            return certain if certain.startswith(known) else known
    return known


def _in_steps(inflater: Any, byte: int) -> tuple[bytes, bool]:
    """What one byte of input gives, and whether it fails."""
    found = bytearray()
    try:
        step = inflater.decompress(bytes((byte,)), 1)
        while step:
            found += step
            step = inflater.decompress(inflater.unconsumed_tail, 1)
    except zlib.error:
        return bytes(found), True
    return bytes(found), False
