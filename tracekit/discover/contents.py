"""Content digests of files, and detection of files with the same content."""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

gzip: Any
inflate_error: Any
try:
    from isal import igzip as gzip
    from isal.isal_zlib import error as inflate_error
except ImportError:
    import gzip
    from zlib import error as inflate_error

_GZIP_MAGIC = b"\x1f\x8b"
_TRAILER_BYTES = 8
_BLOCK_BYTES = 1 << 20
_ENDS_BYTES = 1 << 16
"""Bytes read at both ends: enough to distinguish most files of one size, including nsys exports (whole pages)."""


def digest_content(path: Path) -> str:
    """Compute the SHA-256 of a file's bytes in hexadecimal. Raises `OSError` if it cannot be read."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def find_same_contents(paths: Iterable[Path]) -> dict[Path, str]:
    """Find files with the same content as another of `paths`, inflated if gzip: digest by path.

    Only files of equal length are compared. They are read completely only if both ends match or, for gzip, the checksum in
    the trailer. A gzip file of several members is matched only with identical files. Unreadable files are skipped.
    """
    by_length: dict[int, list[tuple[Path, bytes | None]]] = {}
    for path in dict.fromkeys(paths):
        with contextlib.suppress(OSError):
            length, checksum = _read_text_length(path)
            by_length.setdefault(length, []).append((path, checksum))
    by_digest: dict[str, list[Path]] = {}
    for same_length in by_length.values():
        for path in _find_content_suspects(same_length):
            with contextlib.suppress(OSError):
                by_digest.setdefault(_digest_inflated(path), []).append(path)
    return {path: digest for digest, same in by_digest.items() if len(same) > 1 for path in same}


def _read_text_length(path: Path) -> tuple[int, bytes | None]:
    """Read (text length modulo 2³², CRC32 if gzip), as in gzip's trailer (RFC 1952)."""
    with path.open("rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        if stream.read(2) != _GZIP_MAGIC or size < _TRAILER_BYTES:
            return size % (1 << 32), None
        stream.seek(-_TRAILER_BYTES, os.SEEK_END)
        trailer = stream.read(_TRAILER_BYTES)
    return int.from_bytes(trailer[4:], "little"), trailer[:4]


def _find_content_suspects(same_length: list[tuple[Path, bytes | None]]) -> list[Path]:
    """Find files of one length with the same checksum or ends as another."""
    if len(same_length) < 2:
        return []
    any_gzip = any(checksum is not None for _, checksum in same_length)
    by_sign: dict[bytes, list[Path]] = {}
    for path, checksum in same_length:
        with contextlib.suppress(OSError):
            sign = checksum or (_checksum_file(path) if any_gzip else digest_file_ends(path))
            by_sign.setdefault(sign, []).append(path)
    return [path for same in by_sign.values() if len(same) > 1 for path in same]


def digest_file_ends(path: Path) -> bytes:
    """Compute a digest of both ends of a file. Raises `OSError` if it cannot be read."""
    with path.open("rb", buffering=0) as stream:
        digest = hashlib.sha256(stream.read(_ENDS_BYTES))
        stream.seek(-min(_ENDS_BYTES, os.fstat(stream.fileno()).st_size), os.SEEK_END)
        digest.update(stream.read(_ENDS_BYTES))
    return digest.digest()


def _checksum_file(path: Path) -> bytes:
    """Compute the CRC32 of a file in gzip's byte order."""
    crc = 0
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            crc = zlib.crc32(block, crc)
    return crc.to_bytes(4, "little")


def _digest_inflated(path: Path) -> str:
    """Compute the SHA-256 of a file's text, or of its bytes if it is not gzip or damaged."""
    with path.open("rb") as stream:
        is_gzip = stream.read(2) == _GZIP_MAGIC
    if is_gzip:
        with contextlib.suppress(OSError, EOFError, inflate_error), gzip.open(path, "rb") as text:
            return _digest_stream(text)
    return digest_content(path)


def _digest_stream(stream: BinaryIO) -> str:
    """Compute the SHA-256 of the rest of a stream."""
    digest = hashlib.sha256()
    while block := stream.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()
