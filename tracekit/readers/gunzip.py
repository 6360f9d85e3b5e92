"""The text of a gzip file, with every fault of the gzip layer reported.

`isal` inflates three times as fast as the standard library, but it loses the output of the call
that fails and accepts a few streams that zlib rejects. So it is trusted only with a file that proves
whole, by its checksums: at any fault `Unproven` asks to start over with `careful=True`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from tracekit.readers.file_bytes import Damaged, FileBytes, Truncated, Unproven
from tracekit.readers.loss import Loss

fast_zlib: Any
try:
    from isal import isal_zlib as fast_zlib
except ImportError:
    fast_zlib = None

MAGIC = b"\x1f\x8b"
FIXED_HEADER_BYTES, TRAILER_BYTES = 10, 8
FLAG_HEADER_CRC, FLAG_EXTRA, FLAG_NAME, FLAG_COMMENT, FLAGS_RESERVED = 2, 4, 8, 16, 0xE0


def blocks(source: FileBytes, losses: list[Loss], size: int, *, careful: bool) -> Iterator[bytes]:
    """Non-empty pieces of the text of at most `size` bytes; faults are appended to `losses`.

    Without `careful`, `Unproven` is raised after the text of a file with a fault.
    """
    _let_malloc_keep_blocks(size)
    if careful or fast_zlib is None:
        yield from _Members(source, losses, size).blocks(inflate_careful, zlib.crc32)
    else:
        faults: list[Loss] = []
        yield from _Members(source, faults, size).blocks(_fast_inflate, fast_zlib.crc32)
        if faults:
            raise Unproven


def inflate(source: FileBytes, size: int) -> Iterator[bytes]:
    """The text of one deflated member, as fast as can be; a fault may cost what came just before it."""
    return inflate_careful(source, size) if fast_zlib is None else _fast_inflate(source, size)


@lru_cache
def _let_malloc_keep_blocks(size: int) -> None:
    """Nothing; afterwards glibc reuses freed blocks instead of returning each to the system.

    Freeing something larger than them raises its threshold, and none of it is ever touched. Not much
    larger: what is above the threshold grows by moving pages, what is below by copying.
    """
    larger = bytearray(2 * size)
    del larger


class _Members:
    """The members of a gzip file, one after another."""

    def __init__(self, source: FileBytes, losses: list[Loss], size: int) -> None:
        self.source = source
        self.losses = losses
        self.size = size
        self.delivered = 0

    def blocks(
        self,
        inflate: Callable[[FileBytes, int], Iterator[bytes]],
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
        except Truncated:
            self._lose("gzip-truncated")
        except Damaged:
            self._lose("gzip-damaged")

    def _lose(self, kind: str) -> None:
        """Record a fault; how much text it cost cannot be known."""
        self.losses.append(Loss(kind, offset=self.delivered, count=1, size_bytes=0))


def _trailer(crc: int, length: int) -> bytes:
    return crc.to_bytes(4, "little") + (length % 2**32).to_bytes(4, "little")


def _skip_header(source: FileBytes) -> None:
    if not MAGIC.startswith(source.peek(2)):
        raise Damaged
    header = source.exactly(FIXED_HEADER_BYTES)
    method, flags = header[2], header[3]
    if method != zlib.DEFLATED or flags & FLAGS_RESERVED:
        raise Damaged
    if flags & FLAG_EXTRA:
        source.exactly(int.from_bytes(source.exactly(2), "little"))
    if flags & FLAG_NAME:
        source.skip_text()
    if flags & FLAG_COMMENT:
        source.skip_text()
    if flags & FLAG_HEADER_CRC:
        source.exactly(2)  # not checked: a header holds nothing that is used


def _fast_inflate(source: FileBytes, size: int) -> Iterator[bytes]:
    """The text of one member, by the fast library."""
    inflater = fast_zlib.decompressobj(-zlib.MAX_WBITS)
    error: type[Exception] = fast_zlib.error
    try:
        while not inflater.eof:
            piece = inflater.unconsumed_tail
            block = inflater.decompress(piece, size)
            if not block and not piece and not inflater.eof:
                block = inflater.decompress(source.needed(), size)
            if block:
                yield block
    except error:
        raise Damaged from None
    source.give_back(inflater.unused_data)


def inflate_careful(source: FileBytes, size: int) -> Iterator[bytes]:
    """The text of one member, up to the fault if there is one.

    A call that fails keeps its output to itself, so its piece of input is inflated once more from
    the state before it, in smaller steps; the result does not depend on `size`.
    """
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    before, piece, delivered = inflater.copy(), b"", 0
    while not inflater.eof:
        tail = inflater.unconsumed_tail
        try:
            block = inflater.decompress(tail, size)
            if not block and not tail and not inflater.eof:
                before, piece, delivered = inflater.copy(), source.needed(), 0
                block = inflater.decompress(piece, size)
        except zlib.error:
            text = _up_to_fault(before, piece)
            for start in range(delivered, len(text), size):
                yield text[start : start + size]
            raise Damaged from None
        delivered += len(block)
        if block:
            yield block
    source.give_back(inflater.unused_data)


def _up_to_fault(inflater: Any, piece: bytes) -> bytes:
    """What a piece of input that fails gives before it does."""
    text = bytearray()
    position, step = 0, 256
    while position < len(piece):
        before = inflater.copy()
        try:
            text += inflater.decompress(piece[position : position + step])
        except zlib.error:
            if step == 1:
                text += _before_fault_within(before, piece[position])
                break
            inflater, step = before, 1
        else:
            position += step
    return bytes(text)


def _before_fault_within(inflater: Any, byte: int) -> bytes:
    """What the byte of input that fails gives before it does.

    Even a step of one byte of output keeps that byte to itself if the fault follows at once. It is
    certain all the same if the lower bits of the input give it, whatever the higher ones are.
    """
    sure, _ = _in_steps(inflater.copy(), byte)
    for bits in range(1, 8):
        low = byte % 2**bits
        variants = [
            _in_steps(inflater.copy(), low + (high << bits)) for high in range(2 ** (8 - bits))
        ]
        longer = {text[: len(sure) + 1] for text, failed in variants if len(text) > len(sure)}
        stuck = any(len(text) <= len(sure) and not failed for text, failed in variants)
        if len(longer) == 1 and not stuck:
            (certain,) = longer
            return certain if certain.startswith(sure) else sure
    return sure


def _in_steps(inflater: Any, byte: int) -> tuple[bytes, bool]:
    """What one byte of input gives, and whether it fails."""
    text = bytearray()
    try:
        step = inflater.decompress(bytes((byte,)), 1)
        while step:
            text += step
            step = inflater.decompress(inflater.unconsumed_tail, 1)
    except zlib.error:
        return bytes(text), True
    return bytes(text), False
