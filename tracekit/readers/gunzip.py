"""Decompression of gzip files, with every fault of the gzip layer reported.

`isal` is three times as fast as the standard library. But it loses the output of a call that
fails, and it accepts a few streams that zlib rejects. Its output therefore counts only if all
checksums match: at any fault, `Unproven` asks the caller to start over with `careful=True`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from tracekit.readers.file_bytes import Damaged, FileBytes, Truncated, Unproven
from tracekit.readers.loss import DataLoss

fast_zlib: Any
try:
    from isal import isal_zlib as fast_zlib
except ImportError:
    fast_zlib = None

MAGIC = b"\x1f\x8b"
FIXED_HEADER_BYTES, TRAILER_BYTES = 10, 8
FLAG_HEADER_CRC, FLAG_EXTRA, FLAG_NAME, FLAG_COMMENT, FLAGS_RESERVED = 2, 4, 8, 16, 0xE0


def gunzip_blocks(source: FileBytes, losses: list[DataLoss], size: int, *, careful: bool) -> Iterator[bytes]:
    """Yield the text in non-empty pieces of at most `size` bytes; append faults to `losses`.

    Without `careful`, raise `Unproven` after the text of a file with a fault.
    """
    _let_malloc_keep_blocks(size)
    if careful or fast_zlib is None:
        yield from _GzipMembers(source, losses, size).blocks(inflate_careful, zlib.crc32)
    else:
        faults: list[DataLoss] = []
        yield from _GzipMembers(source, faults, size).blocks(_inflate_fast, fast_zlib.crc32)
        if faults:
            raise Unproven


def inflate(source: FileBytes, size: int) -> Iterator[bytes]:
    """Inflate one deflate stream as fast as possible; a fault may lose the text right before it."""
    return inflate_careful(source, size) if fast_zlib is None else _inflate_fast(source, size)


@lru_cache
def _let_malloc_keep_blocks(size: int) -> None:
    """Make glibc reuse freed blocks instead of returning each to the system.

    Freeing a larger allocation raises malloc's threshold; its memory is never touched. It is only twice
    as large as a block: buffers above the threshold grow by moving pages, those below it by copying.
    """
    larger = bytearray(2 * size)
    del larger


class _GzipMembers:
    """Members of a gzip file, in order."""

    def __init__(self, source: FileBytes, losses: list[DataLoss], size: int) -> None:
        self.source = source
        self.losses = losses
        self.size = size
        self.delivered = 0

    def blocks(
        self, inflate: Callable[[FileBytes, int], Iterator[bytes]], checksum: Callable[[bytes, int], int]
    ) -> Iterator[bytes]:
        """Yield the text of all members up to the first fault that ends reading."""
        try:
            while self.source.peek(1):
                _skip_gzip_header(self.source)
                crc, start = 0, self.delivered
                for block in inflate(self.source, self.size):
                    crc = checksum(block, crc)
                    self.delivered += len(block)
                    yield block
                trailer = self.source.exactly(TRAILER_BYTES)
                if trailer != _encode_gzip_trailer(crc, self.delivered - start):
                    self._lose("gzip-crc")
                self.source.skip_zeros()
        except Truncated:
            self._lose("gzip-truncated")
        except Damaged:
            self._lose("gzip-damaged")

    def _lose(self, kind: str) -> None:
        """Record a fault with size 0, because the amount of lost text is unknown."""
        self.losses.append(DataLoss(kind, offset=self.delivered, count=1, size_bytes=0))


def _encode_gzip_trailer(crc: int, length: int) -> bytes:
    """Encode the trailer of a gzip member: CRC and length modulo 2**32."""
    return crc.to_bytes(4, "little") + (length % 2**32).to_bytes(4, "little")


def _skip_gzip_header(source: FileBytes) -> None:
    """Skip the header of a gzip member; raise `Damaged` if it is none."""
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
        source.exactly(2)  # not checked: no field of the header is used


def _inflate_fast(source: FileBytes, size: int) -> Iterator[bytes]:
    """Inflate one deflate stream with `isal`."""
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
    """Inflate one deflate stream with zlib, up to its fault if it has one.

    zlib discards the output of a call that fails. The failing piece of input is therefore inflated again
    from the state before it, in smaller steps. The result does not depend on `size`.
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
            text = _inflate_up_to_fault(before, piece)
            for start in range(delivered, len(text), size):
                yield text[start : start + size]
            raise Damaged from None
        delivered += len(block)
        if block:
            yield block
    source.give_back(inflater.unused_data)


def _inflate_up_to_fault(inflater: Any, piece: bytes) -> bytes:
    """Inflate a faulty piece of input up to its fault."""
    text = bytearray()
    position, step = 0, 256
    while position < len(piece):
        before = inflater.copy()
        try:
            text += inflater.decompress(piece[position : position + step])
        except zlib.error:
            if step == 1:
                text += _recover_faulty_byte(before, piece[position])
                break
            inflater, step = before, 1
        else:
            position += step
    return bytes(text)


def _recover_faulty_byte(inflater: Any, byte: int) -> bytes:
    """Find the output of the input byte that fails.

    Even a step of one byte of output is discarded if the fault follows at once. An output byte is still
    certain if the lower bits of the input byte produce it whatever its higher bits are.
    """
    sure, _ = _inflate_byte(inflater.copy(), byte)
    for bits in range(1, 8):
        low = byte % 2**bits
        variants = [_inflate_byte(inflater.copy(), low + (high << bits)) for high in range(2 ** (8 - bits))]
        longer = {text[: len(sure) + 1] for text, failed in variants if len(text) > len(sure)}
        stuck = any(len(text) <= len(sure) and not failed for text, failed in variants)
        if len(longer) == 1 and not stuck:
            (certain,) = longer
            return certain if certain.startswith(sure) else sure
    return sure


def _inflate_byte(inflater: Any, byte: int) -> tuple[bytes, bool]:
    """Inflate one byte of input in the smallest steps; returns (output, whether it failed)."""
    text = bytearray()
    try:
        step = inflater.decompress(bytes((byte,)), 1)
        while step:
            text += step
            step = inflater.decompress(inflater.unconsumed_tail, 1)
    except zlib.error:
        return bytes(text), True
    return bytes(text), False
