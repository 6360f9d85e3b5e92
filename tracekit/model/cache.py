"""What tracekit keeps on disk for the next run: where it lies, how much it may be, and how it is forgotten.

It lies in `$TRACEKIT_CACHE`, else `$XDG_CACHE_HOME/tracekit`, else `~/.cache/tracekit`, a directory for each kind of
thing, readable by their owner only: they hold names and the environment of what was profiled. Whoever needs a file
to stay holds a shared lock on it; the longest unused that nobody holds go when all together exceed the limit.

Only a directory that this module marked (`CACHEDIR.TAG`) is written to, and only entries whose whole name this
module gives are deleted: the variable may name a directory that holds somebody's checkpoints.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
import warnings
from collections.abc import Callable
from functools import cache as once
from pathlib import Path

from tracekit.model.errors import TracekitError
from tracekit.model.files import write_all
from tracekit.model.labels import shown
from tracekit.model.patterns import expression
from tracekit.model.temporaries import new_file, remove_abandoned
from tracekit.model.units import parse_size

CACHE_VARIABLE = "TRACEKIT_CACHE"
OFF_VARIABLE = "TRACEKIT_NO_CACHE"
"""With this in the environment nothing of profiles is kept, and nothing that was kept is used."""

LIMIT_VARIABLE = "TRACEKIT_CACHE_LIMIT"
LIMIT_BYTES = 20_000_000_000

INDEX = "index"
"""The file of a directory of copies that stands for all of it."""

FOREIGN = "the directory contains other files"
"""Why a directory is refused that this module did not mark."""

KINDS = {"measured": ".measured", "nsys": ".sqlite", "reports": ".report", "fetched": ""}
"""The directory of each kind of thing that is kept, and how the names of its entries end."""

_NAMES = {
    "measured": expression(r"[0-9a-f]{64}-[0-9a-f]{64}\.measured"),
    "nsys": expression(r"[0-9a-f]{64}-[^-]+(?:-[^-]+)*-(?:blobs|plain)\.sqlite"),
    "reports": expression(r"[0-9a-f]{64}\.report"),
    "fetched": expression(r"[0-9a-f]{32}"),
}
"""Whole names of the entries of each kind; files called otherwise are not ours."""

PARTIAL = "partial-"
"""What is still being written begins with this, and is never taken for the thing itself."""

_PARTIAL_NAME = expression(PARTIAL + r"(?:[0-9a-f]{16}(?:\.tmp)?|[a-z0-9_]{8})")
_ABANDONED_S = 86_400.0

MARKER = "CACHEDIR.TAG"
"""The file that marks the directory as a cache; backup programs skip directories that hold one (bford.info/cachedir)."""

_MARK = b"Signature: 8a477f597d28d172789f06886806bc55\n"
_FIRST_PROCESS = os.getpid()

listeners: list[Callable[[str, str], None]] = []
"""Called with a problem and a hint where the place of the cache is refused."""

_OWNER = b"# This directory is a cache of tracekit: `tracekit cache --clear` empties it.\n"


def is_off() -> bool:
    """Whether nothing of profiles is to be kept, and nothing that was kept to be used."""
    return bool(os.environ.get(OFF_VARIABLE))


def above() -> Path | None:
    """The directory that holds all that is kept, which need not exist; None where no place is known."""
    named, xdg = os.environ.get(CACHE_VARIABLE), os.environ.get("XDG_CACHE_HOME", "")
    if named:
        return Path(named).absolute()
    if os.path.isabs(xdg):  # noqa: PTH117 - the text, before it is a path
        return Path(xdg, "tracekit")
    try:
        return Path.home() / ".cache" / "tracekit"
    except RuntimeError:
        return None


def is_ours(directory: Path) -> bool:
    """Whether the directory carries the marker of a cache of tracekit."""
    try:
        with (directory / MARKER).open("rb") as file:
            return file.read(len(_MARK + _OWNER)) == _MARK + _OWNER
    except OSError:
        return False


def foreign() -> Path | None:
    """The directory in the place of the cache, where it holds other files; None where it may be used."""
    directory = above()
    try:
        names = [path.name for path in directory.iterdir()] if directory is not None else []
    except (OSError, ValueError):
        return None
    if directory is None or _may_mark(directory, names) or is_ours(directory):
        return None
    return directory


def _may_mark(directory: Path, names: list[str]) -> bool:
    """Whether the directory is empty, or holds only what tracekit kept before it marked its caches.

    Its names are read before its marker: a process that starts at the same time marks first and keeps later.
    """
    try:
        if set(names) <= {MARKER}:
            return not names or (directory / MARKER).stat().st_size == 0
        return set(names) <= set(KINDS) and all(
            _NAMES[kind].fullmatch(path.name)
            for kind in names
            for path in (directory / kind).iterdir()
        )
    except OSError:
        return False


def _claim(directory: Path) -> bool:
    """Make and mark the directory; return whether it is ours."""
    directory.mkdir(parents=True, exist_ok=True)
    if is_ours(directory):
        return True
    if foreign() is None:
        if not is_ours(directory):
            (directory / MARKER).write_bytes(_MARK + _OWNER)
        return True
    _tell_unusable(directory, FOREIGN)
    return False


def why_unusable() -> str | None:
    """Why the directory in the place of the cache cannot be used; None where it can, or is not there yet."""
    directory = above()
    if directory is None:
        return "no home directory is known"
    if foreign() is not None:
        return FOREIGN
    if directory.exists() and not directory.is_dir():
        return os.strerror(errno.ENOTDIR)
    return None


@once
def _tell_unusable(directory: Path, reason: str) -> None:
    """Tell once that nothing is cached, and why; workers leave that to their parent."""
    problem = f"{shown(str(directory))}: nothing is cached: {reason}"
    hint = f"name an empty directory in {CACHE_VARIABLE}"
    if os.getpid() != _FIRST_PROCESS:
        return
    for listener in listeners:
        listener(problem, hint)
    if not listeners:
        warnings.warn(f"{problem}; {hint}", stacklevel=2)


def folder(kind: str) -> Path | None:
    """The directory of one kind, made if need be; None where it cannot be ours and ours alone."""
    directory = above()
    try:
        if directory is None or not _claim(directory):
            return None
        of_kind = directory / kind
        of_kind.mkdir(mode=0o700, exist_ok=True)
        status = of_kind.stat()
    except ValueError:
        return None
    except OSError as error:
        if directory is not None and os.environ.get(
            CACHE_VARIABLE
        ):  # the user asked for this place
            _tell_unusable(directory, why_unusable() or error.strerror or str(error))
        return None
    is_own = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return of_kind if is_own and os.access(of_kind, os.R_OK | os.W_OK | os.X_OK) else None


def put(path: Path, data: bytes) -> None:
    """Nothing; afterwards the file at `path` is whole, for its owner alone, and holds `data`, unless it cannot be written."""
    with contextlib.suppress(OSError), new_file(path.parent, PARTIAL) as (descriptor, temporary):
        write_all(descriptor, data)
        temporary.replace(path)


def limit_bytes() -> int:
    """How many bytes all that is kept may take together; raises `TracekitError` for what is no size."""
    text = os.environ.get(LIMIT_VARIABLE)
    try:
        return parse_size(text) if text else LIMIT_BYTES
    except TracekitError as error:
        raise TracekitError(f"{LIMIT_VARIABLE}: {error.problem}", error.hint) from error


def entries(kind: str) -> list[tuple[int, int, Path]]:
    """(when it was last used in ns, its bytes, its path) of everything of one kind that is kept, in that order."""
    kept: list[tuple[int, int, Path]] = []
    with contextlib.suppress(OSError):
        for path in _paths(kind):
            with contextlib.suppress(OSError):
                index = path / INDEX
                if _NAMES[kind].fullmatch(path.name):
                    entry = index if kind == "fetched" else path
                    status = entry.stat()
                    size = _tree_bytes(path) if entry is index else status.st_size
                    kept.append((status.st_mtime_ns, size, entry))
    return sorted(kept)


def _paths(kind: str) -> list[Path]:
    """What is in the directory of one kind, if that is part of a cache of ours."""
    directory = above()
    if directory is None or not is_ours(directory):
        return []
    try:
        return list((directory / kind).iterdir())
    except OSError:
        return []


def _tree_bytes(directory: Path) -> int:
    """How many bytes the files below a directory have."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def forget_oldest(limit: int) -> None:
    """Nothing; the longest unused are removed until all together are within the limit, and what crashes left behind."""
    kept = sorted(entry for kind in KINDS for entry in entries(kind))
    total = sum(size for _, size, _ in kept)
    for _, size, path in kept:
        if total <= limit:
            break
        if removed(path):
            total -= size
    _remove_abandoned()


def _remove_abandoned() -> None:
    """Remove what was never finished: its program has ended, or it began long ago where files cannot be locked."""
    directory = above()
    if directory is None or not is_ours(directory):
        return
    for kind in KINDS:
        remove_abandoned(directory / kind, PARTIAL)
    for path in (path for kind in KINDS for path in _paths(kind)):
        with contextlib.suppress(OSError):
            is_partial = _PARTIAL_NAME.fullmatch(path.name) and not path.is_symlink()
            if not is_partial or time.time() - path.stat().st_mtime <= _ABANDONED_S:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def removed(path: Path) -> bool:
    """Whether a file was removed: nobody held it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not lock(descriptor, exclusive=True):
            return False
        path.unlink(missing_ok=True)
        if path.name == INDEX:
            shutil.rmtree(path.parent, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def hold(stack: contextlib.ExitStack, path: Path) -> bool:
    """Whether the file is there and will stay until `stack` ends."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    stack.callback(os.close, descriptor)
    lock(descriptor, exclusive=False)
    try:
        now = path.stat()
    except OSError:
        return False
    lock_status = os.fstat(descriptor)
    return (now.st_dev, now.st_ino) == (lock_status.st_dev, lock_status.st_ino)


def lock(descriptor: int, *, exclusive: bool) -> bool:
    """Whether the lock was had at once; a file system without locks gives every shared one."""
    try:
        import fcntl

        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except (OSError, ImportError):
        return not exclusive
    return True
