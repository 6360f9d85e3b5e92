"""Decompression of a file's bytes: gzip, Zstandard, xz, bzip2, or a zip archive of one file.

The format is recognized by content, not by name. Every fault of the compression is reported, and
the text before it is delivered.
"""

from __future__ import annotations

import bz2
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Protocol

from tracekit.model.inputs import unpacked_size
from tracekit.model.inputs.note_codes import UnsupportedPackingError
from tracekit.model.records import dataclass
from tracekit.readers import gunzip
from tracekit.readers.file_bytes import PIECE_BYTES, Damaged, FileBytes, Truncated, Unproven
from tracekit.readers.loss import DataLoss

__all__ = ["LONGEST_MAGIC", "LOSSES", "Unproven", "is_packed", "name_compression", "unpack_blocks"]

LOSSES: Mapping[str, str] = {
    "gzip-truncated": "the gzip stream ends early",
    "gzip-damaged": "the gzip stream is damaged from there on",
    "gzip-crc": "the gzip checksum does not fit: the content may have changed",
    "packed-truncated": "the compressed file ends early",
    "packed-damaged": "the compressed file is damaged from there on",
    "packed-crc": "the checksum of the compressed file does not fit: the content may have changed",
    "packed-bomb": f"{unpacked_size.BOMB}: the rest was not read; to read all of it, unpack it first",
}
"""Message to the user for each kind of fault in a compressed file."""

MEMORY_BYTES = 2**28
"""Memory limit of a decoder: four times the need of the strongest common settings."""

WINDOW_LOG = 27
"""Log2 of the largest Zstandard window: the default limit of its own tools."""

_TOO_LARGE = "that needs more memory to unpack than is allowed"
_STEP_BYTES = 256
"""Bytes of text requested at a time near a fault, because a call that fails discards its output."""


class Decoder(Protocol):
    """Interface that the decoders of the three libraries share."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""
        ...

    @property
    def needs_input(self) -> bool:
        """Whether the decoder needs more input before it can return more text."""
        ...

    @property
    def unused_data(self) -> bytes:
        """Bytes of the last input after the end of the stream."""
        ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Return at most `max_length` bytes of text decoded from all input so far."""
        ...


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """One compression format: its name, the magic bytes that its streams begin with, and its decoder."""

    name: str
    magics: tuple[bytes, ...]
    decoder: Callable[[], Decoder]
    suffix: str
    padded: bool = False


def _make_zstandard_decoder() -> Decoder:
    """Create a decoder of one Zstandard frame. The import is local because few files need it."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG})


def _make_xz_decoder() -> Decoder:
    """Create a decoder of one xz stream."""
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY_BYTES)


_SKIPPED = tuple(bytes((0x50 + number, 0x2A, 0x4D, 0x18)) for number in range(16))

_BZIP2_BLOCKS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")

STREAM_FORMATS: tuple[StreamFormat, ...] = (
    StreamFormat("Zstandard", (b"\x28\xb5\x2f\xfd", *_SKIPPED), _make_zstandard_decoder, ".zst"),
    StreamFormat("xz", (b"\xfd7zXZ\0",), _make_xz_decoder, ".xz", padded=True),
    StreamFormat(
        "bzip2", tuple(b"BZh%d%s" % pair for pair in product(range(1, 10), _BZIP2_BLOCKS)), bz2.BZ2Decompressor, ".bz2"
    ),
)
LONGEST_MAGIC = max(len(max(form.magics, key=len)) for form in STREAM_FORMATS)


def find_stream_format(head: bytes) -> StreamFormat | None:
    """Find the format of a file that begins with `head`; None for other files."""
    return next((form for form in STREAM_FORMATS if head.startswith(form.magics)), None)


def decompress_streams(
    source: FileBytes, form: StreamFormat, path: Path, size: int, *, careful: bool
) -> Iterator[bytes]:
    """Yield the text of all streams of a file in order, in pieces of at most `size` bytes.

    Raises `Truncated` if the file ends too early and `Damaged` at a fault. With `careful`, all text before
    the fault is yielded first.
    """
    while source.peek(1):
        if not source.peek(LONGEST_MAGIC).startswith(form.magics):
            raise Damaged
        yield from _decompress_stream(source, form, path, size, careful=careful)
        if form.padded:
            source.skip_zeros()


def _decompress_stream(
    source: FileBytes, form: StreamFormat, path: Path, size: int, *, careful: bool
) -> Iterator[bytes]:
    """Yield the text of one stream."""
    decoder = form.decoder()
    begin = fed = source.offset
    delivered = 0
    while not decoder.eof:
        piece = b""
        if decoder.needs_input:
            fed = source.offset
            piece = source.needed()
        try:
            block = decoder.decompress(piece, size)
        except Exception as error:  # noqa: BLE001 - each library raises its own errors
            if isinstance(error, MemoryError) or "memory" in str(error).lower():
                raise UnsupportedPackingError(f"{form.name} {_TOO_LARGE}", "decompress it first") from None
            if careful:
                yield from _decompress_up_to_fault(path, form, (begin, fed), delivered)
            raise Damaged from None
        delivered += len(block)
        if block:
            yield block
    source.give_back(decoder.unused_data)


def _decompress_up_to_fault(path: Path, form: StreamFormat, where: tuple[int, int], delivered: int) -> Iterator[bytes]:
    """Yield the text of a faulty stream that follows the first `delivered` bytes, up to the fault.

    The stream is decompressed again from its start: quickly up to the input that fails, then byte by byte.
    """
    begin, fault = where
    decoder = form.decoder()
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        while not decoder.eof:
            near = file.tell() >= fault
            count = 1 if near else min(PIECE_BYTES, fault - file.tell())
            piece = file.read(count) if decoder.needs_input else b""
            try:
                block = decoder.decompress(piece, _STEP_BYTES if near else PIECE_BYTES)
            except Exception:  # noqa: BLE001 - the same fault as before
                return
            if new := block[delivered:]:
                yield new
            delivered = max(delivered - len(block), 0)
            if decoder.needs_input and not piece and not block:
                return


ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of an archive: the header of its first file, or the end record of an empty archive."""

_END_MAGIC, _END_BYTES, _LONGEST_COMMENT = b"PK\x05\x06", 22, 2**16
_HEADER_BYTES, _DESCRIPTOR_MAGIC = 30, b"PK\x07\x08"
_ENCRYPTED, _SIZE_FOLLOWS = 1, 8
_STORED, _DEFLATED = 0, 8
_UNKNOWN_SIZE = 2**32 - 1
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
    sized = not flags & _SIZE_FOLLOWS and packed != _UNKNOWN_SIZE
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
        most = unpacked_size.limit_unpacked_bytes(os.fstat(file.fileno()).st_size)
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
    if head.startswith(ZIP_MAGICS):
        return "zip"
    form = find_stream_format(head)
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
    except ChecksumMismatch:
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
    form = find_stream_format(source.peek(LONGEST_MAGIC))
    if form is not None:
        return decompress_streams(source, form, path, size, careful=careful)
    refusal = explain_zip_refusal(path)
    if refusal is not None:
        raise refusal
    return unpack_zip_member(source, size, gunzip.inflate_careful if careful else gunzip.inflate)
