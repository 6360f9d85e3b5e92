"""Copies of files that are proven to be the same: by size and hash, read again from where they were written."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol

from tracekit.model.errors import TracekitError
from tracekit.model.files import write_all
from tracekit.model.labels import shown
from tracekit.model.records import dataclass
from tracekit.model.temporaries import new_file

Copied = Literal["copied", "already there"]

_BLOCK_BYTES = 1 << 20
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class Original(Protocol):
    """A file to copy, here or elsewhere, opened: what is read is of this very file."""

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
        """Its bytes, from the start."""

    def digest(self) -> bytes:
        """The hash of what it holds, read where it lies."""

    def is_still(self, digest: bytes) -> bool:
        """Whether it has not changed since it was opened, as far as is known there, and `digest` is its hash."""


def copy_verified(source: Path, target: Path) -> Copied:
    """What was done so that `target` holds what `source` does; see `put_verified`.

    Raises `TracekitError` also where `source` is a link, or cannot be read.
    """
    try:
        with _Opened.at(source) as original:
            return put_verified(original, target)
    except OSError as error:
        raise not_copied(source.name, error, str(source)) from error


def put_verified(original: Original, target: Path) -> Copied:
    """What was done so that `target` holds what `original` does; the directory of `target` is made.

    Nothing that exists is overwritten, the original is only read, and a copy appears under its name when it
    is whole. Raises `TracekitError` where a different file is there already, where the original changed
    meanwhile, and where the copy differs or cannot be written.
    """
    try:
        return _put_original(original, target)
    except OSError as error:
        raise not_copied(original.name, error, original.name) from error


def not_copied(name: str, error: OSError, path: str) -> TracekitError:
    """The error for what the system would not do."""
    reason = error.strerror or type(error).__name__
    place = shown(str(error.filename or path))
    return TracekitError(
        f"{shown(name)}: not copied: {place}: {reason}",
        "check permissions and free space, then run it again: what is copied stays",
    )


@dataclass(frozen=True, slots=True)
class _Opened:
    """A file of this machine."""

    name: str
    descriptor: int
    size_bytes: int
    mtime_ns: int
    atime_ns: int
    mode: int

    @classmethod
    @contextlib.contextmanager
    def at(cls, path: Path) -> Iterator[_Opened]:
        """The file at `path`, which is no link, open meanwhile."""
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
        return _digest(self.descriptor)

    def is_still(self, digest: bytes) -> bool:
        del digest  # made of the very bytes that were read
        after = os.fstat(self.descriptor)
        return (after.st_size, after.st_mtime_ns) == (self.size_bytes, self.mtime_ns)


def _put_original(original: Original, target: Path) -> Copied:
    """What was done; see `put_verified`."""
    if os.path.lexists(target):
        return _same(original, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_file(target.parent) as (descriptor, temporary):
        digest = _write(original.blocks(), descriptor, original.mode)
        if not original.is_still(digest):
            raise TracekitError(
                f"{shown(original.name)}: not copied: it changed meanwhile",
                "run it again when the run has ended",
            )
        size = temporary.stat().st_size
        if size != original.size_bytes or digest_of(temporary) != digest:
            raise TracekitError(
                f"{shown(original.name)}: not copied: what was written differs from it",
                "check the disk that it was written to",
            )
        os.utime(temporary, ns=(original.atime_ns, original.mtime_ns))
        if not _put(temporary, target):
            return _same(original, target)
    return "copied"


def _same(original: Original, target: Path) -> Copied:
    """That the target is there already; raises where it holds something else."""
    if target.is_symlink() or not target.is_file():
        raise _different(original, target)
    if target.stat().st_size != original.size_bytes:
        raise _different(original, target)
    if original.digest() != digest_of(target):
        raise _different(original, target)
    return "already there"


def _different(original: Original, target: Path) -> TracekitError:
    """The error for a target that must not be overwritten."""
    return TracekitError(
        f"{shown(original.name)}: not copied: {shown(str(target))} is there, and is different",
        "move that away, or collect into another directory (several hosts: --host NAME)",
    )


def _write(blocks: Iterator[bytes], out: int, mode: int) -> bytes:
    """The hash of these blocks, written to the new file that `out` describes."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
        write_all(out, block)
    os.fchmod(out, mode | stat.S_IRUSR)
    os.fsync(out)
    return digest.digest()


def digest_of(path: Path) -> bytes:
    """The hash of a file, read from the disk where the system allows to ask for that."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return _digest(descriptor)
    finally:
        os.close(descriptor)


def _digest(descriptor: int) -> bytes:
    """The hash of what is read from `descriptor`."""
    digest = hashlib.sha256()
    while block := os.read(descriptor, _BLOCK_BYTES):
        digest.update(block)
    return digest.digest()


def _put(temporary: Path, target: Path) -> bool:
    """Whether the file got its name; not where somebody else was faster."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if os.path.lexists(target):
            return False
        temporary.rename(target)
    return True
