"""Write files completely or not at all, with errors that say what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from tracekit.model.errors import TracekitError, UnwritableError
from tracekit.model.system.temporaries import new_file

MOMENTS_NS = 2_000_000_000
"""Coarsest time step of a file system (FAT: 2 s): a file may change twice within it and keep its times."""

_DEVICES = ("/dev/", "/proc/")

_HINTS = {
    errno.ENOSPC: "free some space there, or write it elsewhere",
    errno.EDQUOT: "your quota there is used up: remove something, or write it elsewhere",
    errno.EFBIG: "it is larger than the limit on file size (ulimit -f): raise that, or write less",
    errno.EACCES: "you may not write there: choose another place, or change its permissions",
    errno.EPERM: "you may not write there: choose another place, or change its permissions",
    errno.EROFS: "it is mounted read-only: write it elsewhere",
    errno.EISDIR: "name a file in it",
    errno.ENOTDIR: "a part of the path is a file: choose another place",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "its symbolic links form a circle: choose another place",
}


Sign = tuple[int, int, int, int, int]
"""Device, inode, size, mtime and ctime of a file."""


def make_file_sign(status: os.stat_result) -> Sign:
    """List the values that reveal a change of a file; programs cannot set the last one (ctime)."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def is_sign_settled(sign: Sign, now_ns: int) -> bool:
    """Whether the last change is old enough at `now_ns` that any later change also changes the sign."""
    return max(sign[-2:]) < now_ns - MOMENTS_NS


def write_atomically(path: Path | str, data: bytes | Iterable[bytes]) -> None:
    """Write `data` to `path` completely; if that raises, keep the previous content.

    A symbolic link stays and its target is written; an existing file keeps its permissions, a new one
    gets those of the umask. Pipes and devices are written to directly.
    """
    path = Path(path)
    pieces = (data,) if isinstance(data, bytes) else data
    with explain_write_errors(path):
        _check_write_target(path)
        if _is_written_directly(path):
            with path.open("wb", buffering=0) as file:
                for piece in pieces:
                    write_all_bytes(file.fileno(), piece)
            return
        _replace_file(Path(os.path.realpath(path)), pieces)


def check_writable(path: Path | str) -> None:
    """Raise the errors that `write_atomically` would raise at once, before hours of work are lost to them."""
    path = Path(path)
    with explain_write_errors(path):
        _check_write_target(path)
        if not _is_written_directly(path):
            folder = Path(os.path.realpath(path)).parent
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _check_write_target(path: Path) -> None:
    """Raise if nothing can be written to `path`."""
    if "\0" in str(path):
        raise TracekitError(f"{str(path)!r}: cannot be written: a null byte in the name", "name a file")
    target = Path(os.path.realpath(path))
    if target.is_symlink():  # after realpath: the links form a circle
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if not target.parent.exists():
        folder = path.parent if not path.is_symlink() else target.parent
        raise TracekitError(f"{path}: cannot be written: there is no directory {folder}", f"mkdir -p {folder}")
    # Renaming would replace a protected file without asking.
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "it is write-protected")


def _is_written_directly(path: Path) -> bool:
    """Whether `path` is a device or pipe, which a file must not replace."""
    if os.path.abspath(path).startswith(_DEVICES):  # noqa: PTH100 - resolve() would follow /dev/stdout
        return True
    return path.exists() and not stat.S_ISREG(path.stat().st_mode)


def _replace_file(target: Path, pieces: Iterable[bytes]) -> None:
    """Write a temporary file beside `target`, then rename it to `target`."""
    with new_file(target.parent, mode=0o666) as (descriptor, temporary):
        if target.exists():
            os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
        for piece in pieces:
            write_all_bytes(descriptor, piece)
        os.fsync(descriptor)  # some systems report a full disk only now
        temporary.replace(target)


def write_all_bytes(descriptor: int, piece: bytes) -> None:
    """Write all bytes; a single `os.write` may write fewer."""
    remaining = memoryview(piece)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


@contextlib.contextmanager
def explain_write_errors(path: Path | str) -> Iterator[None]:
    """Turn system errors within the context into an `UnwritableError` with a hint."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        hint = _HINTS.get(error.errno or 0, "write it elsewhere")
        raise UnwritableError(f"{path}: cannot be written: {reason}", hint) from error
