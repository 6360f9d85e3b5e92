"""Decompression of a file's bytes: gzip, Zstandard, xz, bzip2, or a zip archive of one file.

The format is recognized by content, not by name. Every fault of the compression is reported, and
the text before it is delivered.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tracekit.model import expansion
from tracekit.readers import gunzip, unpack_streams, unpack_zip
from tracekit.readers.file_bytes import Damaged, FileBytes, Truncated, Unproven
from tracekit.readers.loss import DataLoss
from tracekit.readers.unpack_streams import LONGEST_MAGIC

__all__ = ["LONGEST_MAGIC", "LOSSES", "Unproven", "is_packed", "name_compression", "unpack_blocks"]

LOSSES: Mapping[str, str] = {
    "gzip-truncated": "the gzip stream ends early",
    "gzip-damaged": "the gzip stream is damaged from there on",
    "gzip-crc": "the gzip checksum does not fit: the content may have changed",
    "packed-truncated": "the compressed file ends early",
    "packed-damaged": "the compressed file is damaged from there on",
    "packed-crc": "the checksum of the compressed file does not fit: the content may have changed",
    "packed-bomb": f"{expansion.BOMB}: the rest was not read; to read all of it, unpack it first",
}
"""Message to the user for each kind of fault in a compressed file."""


def unpack_blocks(
    path: Path,
    losses: list[DataLoss],
    *,
    size: int = 2**20,
    careful: bool = False,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[bytes]:
    """Yield a file's text in non-empty pieces of at most `size` bytes; append faults to `losses`.

    `on_bytes` is called with the number of file bytes read so far. The text of a plain or faultless
    file is the same with and without `careful`. For a file with a fault, `Unproven` asks for `careful`.
    Raises `OSError` for an archive that is not supported, and if the system denies reading.
    """
    with path.open("rb", buffering=0) as file:
        source = FileBytes(file, on_bytes)
        head = source.peek(LONGEST_MAGIC)
        if not is_packed(head):
            yield from source.pieces(size)
            return
        faults = losses if careful else []
        most = expansion.limit_unpacked_bytes(os.fstat(file.fileno()).st_size)
        if head.startswith(gunzip.MAGIC):
            text = gunzip.gunzip_blocks(source, losses, size, careful=careful)
        else:
            text = _unpack_except_gzip(source, path, faults, size, careful=careful)
        yield from _limit_unpacked_text(text, most, faults)
        if faults and not careful:
            raise Unproven


def is_packed(head: bytes) -> bool:
    """Check whether a file that begins with `head` has a compression that `unpack_blocks` supports."""
    return name_compression(head) != ""


def name_compression(head: bytes) -> str:
    """Name the compression of a file that begins with `head`: gzip, Zstandard, xz, bzip2 or zip.

    The name is empty for an uncompressed file.
    """
    if head.startswith(gunzip.MAGIC):
        return "gzip"
    if head.startswith(unpack_zip.MAGICS):
        return "zip"
    form = unpack_streams.find_stream_format(head)
    return form.name if form is not None else ""


def _unpack_except_gzip(
    source: FileBytes, path: Path, losses: list[DataLoss], size: int, *, careful: bool
) -> Iterator[bytes]:
    """Yield the text of a compressed file other than gzip, up to its first fault."""
    kind, delivered = "", 0
    try:
        for block in _decompress_by_format(source, path, size, careful=careful):
            delivered += len(block)
            yield block
    except Truncated:
        kind = "packed-truncated"
    except Damaged:
        kind = "packed-damaged"
    except unpack_zip.ChecksumMismatch:
        kind = "packed-crc"
    if kind:
        losses.append(DataLoss(kind, offset=delivered, count=1, size_bytes=0))


def _limit_unpacked_text(text: Iterator[bytes], limit: int, losses: list[DataLoss]) -> Iterator[bytes]:
    """Yield the text up to `limit` bytes; record a loss if there is more."""
    delivered = 0
    for block in text:
        if delivered + len(block) > limit:
            losses.append(DataLoss("packed-bomb", offset=delivered, count=1, size_bytes=0))
            return
        delivered += len(block)
        yield block


def _decompress_by_format(source: FileBytes, path: Path, size: int, *, careful: bool) -> Iterator[bytes]:
    """Decompress a Zstandard, xz, bzip2 or zip file."""
    form = unpack_streams.find_stream_format(source.peek(LONGEST_MAGIC))
    if form is not None:
        return unpack_streams.decompress_streams(source, form, path, size, careful=careful)
    refusal = unpack_zip.explain_zip_refusal(path)
    if refusal is not None:
        raise refusal
    return unpack_zip.unpack_zip_member(source, size, gunzip.inflate_careful if careful else gunzip.inflate)
