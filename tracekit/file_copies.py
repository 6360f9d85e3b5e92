"""Copies of files that are proven to be the same: by size and hash, read again from where they were written."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path
from typing import Literal

from tracekit.errors import TracekitError
from tracekit.labels import shown

Copied = Literal["copied", "already there"]

_BLOCK_BYTES = 1 << 20
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def copy_verified(source: Path, target: Path) -> Copied:
    """What was done so that `target` holds what `source` does; the directory of `target` is made.

    Nothing that exists is overwritten, `source` is only read, and a copy appears under its name when it is
    whole. Raises `TracekitError` where a different file is there already, where `source` changed meanwhile,
    is a link, or cannot be read, and where the copy differs or cannot be written.
    """
    try:
        return _copy(source, target)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        place = shown(str(error.filename)) if error.filename else shown(str(source))
        raise TracekitError(
            f"{shown(source.name)}: not copied: {place}: {reason}",
            "check permissions and free space, then run it again: what is copied stays",
        ) from error


def _copy(source: Path, target: Path) -> Copied:
    """What was done; see `copy_verified`."""
    descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | _NO_LINK)
    try:
        before = os.fstat(descriptor)
        if os.path.lexists(target):
            return _same(source, descriptor, target)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".tracekit-{os.urandom(8).hex()}.tmp")
        try:
            digest = _write(descriptor, temporary, stat.S_IMODE(before.st_mode) & 0o777)
            after = os.fstat(descriptor)
            if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise TracekitError(
                    f"{shown(source.name)}: not copied: it changed meanwhile",
                    "run it again when the run has ended",
                )
            size = temporary.stat().st_size
            if size != before.st_size or _digest_of(temporary) != digest:
                raise TracekitError(
                    f"{shown(source.name)}: not copied: what was written differs from it",
                    "check the disk that it was written to",
                )
            os.utime(temporary, ns=(before.st_atime_ns, before.st_mtime_ns))
            if not _put(temporary, target):
                return _same(source, descriptor, target)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
    finally:
        os.close(descriptor)
    return "copied"


def _same(source: Path, descriptor: int, target: Path) -> Copied:
    """That the target is there already; raises where it holds something else."""
    if target.is_symlink() or not target.is_file():
        raise _different(source, target)
    os.lseek(descriptor, 0, os.SEEK_SET)
    if target.stat().st_size != os.fstat(descriptor).st_size:
        raise _different(source, target)
    if _digest(descriptor) != _digest_of(target):
        raise _different(source, target)
    return "already there"


def _different(source: Path, target: Path) -> TracekitError:
    """The error for a target that must not be overwritten."""
    return TracekitError(
        f"{shown(source.name)}: not copied: {shown(str(target))} is there, and is different",
        "move that away, or collect into another directory (several hosts: --host NAME)",
    )


def _write(descriptor: int, path: Path, mode: int) -> bytes:
    """The hash of what was read from `descriptor` and written to `path`, a new file."""
    digest = hashlib.sha256()
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while block := os.read(descriptor, _BLOCK_BYTES):
            digest.update(block)
            rest = memoryview(block)
            while rest:
                rest = rest[os.write(out, rest) :]
        os.fchmod(out, mode | stat.S_IRUSR)
        os.fsync(out)
    finally:
        os.close(out)
    return digest.digest()


def _digest_of(path: Path) -> bytes:
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
