"""Verified file copies: size and hash of the written file are checked against the original."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol

from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.system.files import write_all_bytes
from tracekit.model.system.temporaries import new_file
from tracekit.model.text.labels import make_displayable

CopyResult = Literal["copied", "already there"]

_BLOCK_BYTES = 1 << 20
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class OriginalFile(Protocol):
    """An open file to copy, local or remote; all reads are of this same file."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def size_bytes(self) -> int: ...  # noqa: D102
    @property
    def mtime_ns(self) -> int: ...  # noqa: D102
    @property
    def atime_ns(self) -> int: ...  # noqa: D102
    @property
    def mode(self) -> int: ...  # noqa: D102

    def blocks(self) -> Iterator[bytes]:
        """Read its bytes from the start."""

    def digest(self) -> bytes:
        """Compute the hash of its content where the file is."""

    def is_still(self, digest: bytes) -> bool:
        """Check whether the file is unchanged: by its stat if it is local, else by its hash `digest`."""


def copy_verified(source: Path, target: Path) -> CopyResult:
    """Copy the file `source` to `target`, with verification; see `put_verified`.

    Also raises `TracekitError` if `source` is a link or cannot be read.
    """
    try:
        with _LocalFile.open(source) as original:
            return put_verified(original, target)
    except OSError as error:
        raise make_copy_error(source.name, error, str(source)) from error


def put_verified(original: OriginalFile, target: Path) -> CopyResult:
    """Copy an open file to `target` with verification; creates the directory of `target`.

    Never overwrites a file and never writes to the original; a copy gets its name only once complete. Raises
    `TracekitError` if `target` exists with other content, the original changes meanwhile, or the copy differs or fails.
    """
    try:
        return _copy_original(original, target)
    except OSError as error:
        raise make_copy_error(original.name, error, original.name) from error


def make_copy_error(name: str, error: OSError, path: str) -> TracekitError:
    """Make the error of a copy that the operating system refused."""
    reason = error.strerror or type(error).__name__
    place = make_displayable(str(error.filename or path))
    return TracekitError(
        f"{make_displayable(name)}: not copied: {place}: {reason}",
        "check permissions and free space, then run it again: finished copies stay",
    )


@dataclass(frozen=True, slots=True)
class _LocalFile:
    """An open file of this machine."""

    name: str
    descriptor: int
    size_bytes: int
    mtime_ns: int
    atime_ns: int
    mode: int

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: Path) -> Iterator[_LocalFile]:
        """Open the file at `path`, which must not be a link, and close it afterwards."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | _NO_LINK)
        try:
            status = os.fstat(descriptor)
            times = (status.st_size, status.st_mtime_ns, status.st_atime_ns)
            yield cls(path.name, descriptor, *times, stat.S_IMODE(status.st_mode) & 0o777)
        finally:
            os.close(descriptor)

    def blocks(self) -> Iterator[bytes]:
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        while block := os.read(self.descriptor, _BLOCK_BYTES):
            yield block

    def digest(self) -> bytes:
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        return _digest_descriptor(self.descriptor)

    def is_still(self, digest: bytes) -> bool:
        del digest  # `digest` is of the bytes read here, and proves nothing
        after = os.fstat(self.descriptor)
        return (after.st_size, after.st_mtime_ns) == (self.size_bytes, self.mtime_ns)


def _copy_original(original: OriginalFile, target: Path) -> CopyResult:
    """Copy an open file; see `put_verified`."""
    if os.path.lexists(target):
        return _confirm_existing_copy(original, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_file(target.parent) as (descriptor, temporary):
        digest = _write_blocks(original.blocks(), descriptor, original.mode)
        if not original.is_still(digest):
            raise TracekitError(
                f"{make_displayable(original.name)}: not copied: it changed meanwhile",
                "run it again when the run has ended",
            )
        size = temporary.stat().st_size
        if size != original.size_bytes or digest_file_on_disk(temporary) != digest:
            raise TracekitError(
                f"{make_displayable(original.name)}: not copied: the written file differs",
                "check the disk that it was written to",
            )
        os.utime(temporary, ns=(original.atime_ns, original.mtime_ns))
        if not _link_into_place(temporary, target):
            return _confirm_existing_copy(original, target)
    return "copied"


def _confirm_existing_copy(original: OriginalFile, target: Path) -> CopyResult:
    """Confirm that the existing target has the same content; raises if it differs."""
    if target.is_symlink() or not target.is_file():
        raise _make_conflict_error(original, target)
    if target.stat().st_size != original.size_bytes:
        raise _make_conflict_error(original, target)
    if original.digest() != digest_file_on_disk(target):
        raise _make_conflict_error(original, target)
    return "already there"


def _make_conflict_error(original: OriginalFile, target: Path) -> TracekitError:
    """Make the error of a target with other content, which must not be overwritten."""
    return TracekitError(
        f"{make_displayable(original.name)}: not copied: {make_displayable(str(target))} is there, and is different",
        "move that away, or collect into another directory (several hosts: --host NAME)",
    )


def _write_blocks(blocks: Iterator[bytes], out: int, mode: int) -> bytes:
    """Write these blocks to the file descriptor `out`, and return their hash."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
        write_all_bytes(out, block)
    os.fchmod(out, mode | stat.S_IRUSR)
    os.fsync(out)
    return digest.digest()


def digest_file_on_disk(path: Path) -> bytes:
    """Hash a file, read from disk instead of the page cache where the system allows that."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return _digest_descriptor(descriptor)
    finally:
        os.close(descriptor)


def _digest_descriptor(descriptor: int) -> bytes:
    """Hash the content of an open file from its current position."""
    digest = hashlib.sha256()
    while block := os.read(descriptor, _BLOCK_BYTES):
        digest.update(block)
    return digest.digest()


def _link_into_place(temporary: Path, target: Path) -> bool:
    """Give the temporary file its final name; False if another process created that name first."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError:  # the file system has no hard links
        if os.path.lexists(target):
            return False
        temporary.rename(target)
    return True
