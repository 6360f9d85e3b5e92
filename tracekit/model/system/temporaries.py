"""Make temporary files and folders, and remove those that a killed program left behind.

A program locks its temporaries while it needs them; the system drops the lock when the program ends. Making a
temporary first removes its neighbors with such a name that belong to the same user and are not locked. Where
the file system has no locks, nothing is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

BESIDE = ".tracekit-"
"""The prefix of temporaries in a user's folder."""

IN_TMPDIR = "tracekit-"
"""The prefix of temporaries in the system's folder for them."""

_DIGITS = 16
_SUFFIX = ".tmp"
_TRIES = 10
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_FREE, _HELD, _UNKNOWN = "free", "held", "unknown"

_cleared: set[tuple[str, str]] = set()
"""Folders and prefixes for which this process has removed abandoned temporaries."""


@contextlib.contextmanager
def new_file(folder: Path, prefix: str = BESIDE, mode: int = 0o600) -> Iterator[tuple[int, Path]]:
    """Make a locked file in `folder`; yield its descriptor, open for writing, and its path.

    On exit, close the descriptor and remove the file if it still has this name.
    """
    _clear_once(folder, prefix)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    descriptor, path = -1, folder / _make_temporary_name(prefix)
    try:
        for _ in range(_TRIES):
            descriptor = os.open(path, flags, mode)
            if _try_flock(descriptor) != _HELD and os.fstat(descriptor).st_nlink:
                break
            os.close(descriptor)  # another program found it before the lock and removes it
            path, descriptor = folder / _make_temporary_name(prefix), -1
        yield descriptor, path
    finally:
        _remove_despite_signals(path)
        if descriptor >= 0:
            os.close(descriptor)


@contextlib.contextmanager
def new_folder(parent: Path | None = None, prefix: str = IN_TMPDIR) -> Iterator[Path]:
    """Make a locked folder in `parent`, or in the system's temporary folder, and remove it on exit."""
    if parent is None:
        import tempfile

        parent = Path(tempfile.gettempdir())
    _clear_once(parent, prefix)
    path, descriptor = parent / _make_temporary_name(prefix), None
    try:
        for _ in range(_TRIES):
            path.mkdir(mode=0o700)
            descriptor = _open_folder(path)
            if (descriptor is None or _try_flock(descriptor) != _HELD) and path.exists():
                break
            if descriptor is not None:
                os.close(descriptor)  # another program found it before the lock and removes it
            path, descriptor = parent / _make_temporary_name(prefix), None
        else:
            raise FileExistsError(f"{parent}: cannot create a temporary folder")
        yield path
    finally:
        _remove_despite_signals(path)
        if descriptor is not None:
            os.close(descriptor)


def _open_folder(path: Path) -> int | None:
    """Open a folder that was just made, to lock it; None where folders cannot be opened."""
    try:
        return os.open(path, _FLAGS)
    except OSError:
        return None


def _remove_despite_signals(path: Path) -> None:
    """Remove a temporary, then pass on an exception that the handler of a signal raised meanwhile."""
    try:
        _delete_temporary(path)
    except BaseException:
        _delete_temporary(path)
        raise


def _delete_temporary(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def remove_abandoned_files(folder: Path, prefix: str) -> None:
    """Remove the temporaries in `folder` whose programs have ended without removing them."""
    pattern = re.compile(rf"{re.escape(prefix)}[0-9a-f]{{{_DIGITS}}}{re.escape(_SUFFIX)}")
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_free(Path(entry.path))


def _clear_once(folder: Path, prefix: str) -> None:
    """Remove abandoned temporaries from a folder, the first time this process writes there."""
    key = os.path.abspath(folder), prefix  # noqa: PTH100 - links are not followed for this
    if key not in _cleared:
        _cleared.add(key)
        remove_abandoned_files(folder, prefix)


def _remove_if_free(path: Path) -> None:
    """Remove a temporary if it belongs to this user and is not locked; keep links and special files."""
    status = path.lstat()
    is_folder = stat.S_ISDIR(status.st_mode)
    is_ours = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    if not is_ours or not (is_folder or stat.S_ISREG(status.st_mode)):
        return
    descriptor = os.open(path, _FLAGS)
    try:
        if _try_flock(descriptor) != _FREE:
            return
        if is_folder:
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    finally:
        os.close(descriptor)


def _make_temporary_name(prefix: str) -> str:
    return f"{prefix}{os.urandom(_DIGITS // 2).hex()}{_SUFFIX}"


def _try_flock(descriptor: int) -> str:
    """Lock an open file or folder; return whether it was free, is held by another program, or cannot be locked."""
    try:
        import fcntl
    except ImportError:
        return _UNKNOWN
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _HELD
    except OSError:
        return _UNKNOWN
    return _FREE
