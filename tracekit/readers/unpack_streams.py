"""Decompression of Zstandard, xz and bzip2 files by their reference libraries, up to the first fault."""

from __future__ import annotations

import bz2
import lzma
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Protocol

from tracekit.model.codes import UnsupportedPackingError
from tracekit.model.records import dataclass
from tracekit.readers.file_bytes import PIECE_BYTES, Damaged, FileBytes

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
