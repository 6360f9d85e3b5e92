"""Decompression of a zip archive of one file; other archives are refused with a reason."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tracekit.model.codes import UnsupportedPackingError
from tracekit.readers.file_bytes import FileBytes, Truncated

MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of an archive: the header of its first file, or the end record of an empty archive."""

_END_MAGIC, _END_BYTES, _LONGEST_COMMENT = b"PK\x05\x06", 22, 2**16
_HEADER_BYTES, _DESCRIPTOR_MAGIC = 30, b"PK\x07\x08"
_ENCRYPTED, _SIZE_FOLLOWS = 1, 8
_STORED, _DEFLATED = 0, 8
_UNKNOWN = 2**32 - 1
_UNZIP = "unpack it first (unzip)"

Inflate = Callable[[FileBytes, int], Iterator[bytes]]


class ChecksumMismatch(Exception):  # noqa: N818 - never leaves the readers of packed files
    """The text is complete, but its checksum does not match."""


def explain_zip_refusal(path: Path) -> UnsupportedPackingError | None:
    """Explain why an archive is not read: it contains no file or several.

    None for an archive of one file, and if the count is unknown.
    """
    count = _count_zip_members(path)
    if count is None or count == 1:
        return None
    if not count:
        return UnsupportedPackingError("a zip archive of no file", "there is nothing to read in it")
    return UnsupportedPackingError(f"a zip archive of {count:,} files", _UNZIP)


def _count_zip_members(path: Path) -> int | None:
    """Read the number of files from an archive's end record; None if the record is missing."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _END_BYTES - _LONGEST_COMMENT))
        tail = file.read(_END_BYTES + _LONGEST_COMMENT)
    place = tail.rfind(_END_MAGIC)
    if place < 0 or len(tail) - place < _END_BYTES:
        return None
    return int.from_bytes(tail[place + 10 : place + 12], "little")


def unpack_zip_member(source: FileBytes, size: int, inflate: Inflate) -> Iterator[bytes]:
    """Yield the text of the first file of an archive, in pieces of at most `size` bytes.

    Raises `OSError` for a compression method that is not supported or an encrypted file. Raises `Truncated`,
    `Damaged` or `ChecksumMismatch` after the text that could be read.
    """
    header = source.exactly(_HEADER_BYTES)
    flags, method = _decode_little_endian(header, 6, 2), _decode_little_endian(header, 8, 2)
    crc, packed = _decode_little_endian(header, 14, 4), _decode_little_endian(header, 18, 4)
    source.exactly(_decode_little_endian(header, 26, 2))
    source.exactly(_decode_little_endian(header, 28, 2))
    if flags & _ENCRYPTED:
        raise UnsupportedPackingError("a zip archive with a password", _UNZIP)
    sized = not flags & _SIZE_FOLLOWS and packed != _UNKNOWN
    if method == _STORED and sized:
        blocks = _copy_stored_bytes(source, packed, size)
    elif method == _DEFLATED:
        blocks = inflate(source, size)
    else:
        raise UnsupportedPackingError(f"a zip archive packed by method {method}", _UNZIP)
    total = 0
    for block in blocks:
        total = zlib.crc32(block, total)
        yield block
    if flags & _SIZE_FOLLOWS:
        first = source.exactly(4)
        crc = _decode_little_endian(source.exactly(4) if first == _DESCRIPTOR_MAGIC else first, 0, 4)
    if crc != total:
        raise ChecksumMismatch


def _copy_stored_bytes(source: FileBytes, count: int, size: int) -> Iterator[bytes]:
    """Yield the next `count` bytes, stored without compression."""
    while count:
        piece = source.take(min(size, count))
        if not piece:
            raise Truncated
        count -= len(piece)
        yield piece


def _decode_little_endian(header: bytes, place: int, length: int) -> int:
    """Decode a little-endian integer in a header."""
    return int.from_bytes(header[place : place + length], "little")
