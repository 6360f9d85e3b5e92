"""The on-disk cache: its location, size limit, locking and eviction.

It is at `$TRACEKIT_CACHE`, else `$XDG_CACHE_HOME/tracekit`, else `~/.cache/tracekit`, with one directory per kind of
entry. Entries contain names and the environment of the profiled job, so they are readable by their owner only. A process
that uses an entry holds a shared lock on it. When the total exceeds the limit, the least recently used unlocked entries
are removed.

Only a directory with our marker (`CACHEDIR.TAG`) is written to, and only entries whose full name matches are deleted:
the variable may name a directory that contains somebody's checkpoints.
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
from tracekit.model.system.files import write_all_bytes
from tracekit.model.system.temporaries import new_file, remove_abandoned_files
from tracekit.model.text.labels import make_displayable
from tracekit.model.text.patterns import compile_lazily
from tracekit.model.units import parse_size

CACHE_VARIABLE = "TRACEKIT_CACHE"
OFF_VARIABLE = "TRACEKIT_NO_CACHE"
"""Environment variable that disables the cache for both reading and writing."""

LIMIT_VARIABLE = "TRACEKIT_CACHE_LIMIT"
LIMIT_BYTES = 20_000_000_000

INDEX = "index"
"""File that represents a whole directory of downloaded copies."""

FOREIGN = "the directory contains other files"
"""Why a directory is refused that this module did not mark."""

KINDS = {"measured": ".measured", "nsys": ".sqlite", "reports": ".report", "fetched": ""}
"""Directory of each kind of entry → suffix of its entries' names."""

_NAMES = {
    "measured": compile_lazily(r"[0-9a-f]{64}-[0-9a-f]{64}\.measured"),
    "nsys": compile_lazily(r"[0-9a-f]{64}-[^-]+(?:-[^-]+)*-(?:blobs|plain)\.sqlite"),
    "reports": compile_lazily(r"[0-9a-f]{64}\.report"),
    "fetched": compile_lazily(r"[0-9a-f]{32}"),
}
"""Full-name patterns of entries by kind; other files are not ours."""

PARTIAL = "partial-"
"""Prefix of entries that are still being written; they are never read."""

_PARTIAL_NAME = compile_lazily(PARTIAL + r"(?:[0-9a-f]{16}(?:\.tmp)?|[a-z0-9_]{8})")
_ABANDONED_S = 86_400.0

MARKER = "CACHEDIR.TAG"
"""File that marks a directory as a cache; backup programs skip such directories (bford.info/cachedir)."""

_MARK = b"Signature: 8a477f597d28d172789f06886806bc55\n"
_FIRST_PROCESS = os.getpid()

listeners: list[Callable[[str, str], None]] = []
"""Callbacks (problem, hint), called when the cache directory is refused."""

_OWNER = b"# This directory is a cache of tracekit: `tracekit cache --clear` empties it.\n"


def is_cache_off() -> bool:
    """Whether the cache is disabled."""
    return bool(os.environ.get(OFF_VARIABLE))


def locate_cache() -> Path | None:
    """Locate the cache directory, which need not exist; None if there is no home directory."""
    named, xdg = os.environ.get(CACHE_VARIABLE), os.environ.get("XDG_CACHE_HOME", "")
    if named:
        return Path(named).absolute()
    if os.path.isabs(xdg):  # noqa: PTH117 - the text, before it becomes a path
        return Path(xdg, "tracekit")
    try:
        return Path.home() / ".cache" / "tracekit"
    except RuntimeError:
        return None


def is_own_cache(directory: Path) -> bool:
    """Whether the directory has the marker of a tracekit cache."""
    try:
        with (directory / MARKER).open("rb") as file:
            return file.read(len(_MARK + _OWNER)) == _MARK + _OWNER
    except OSError:
        return False


def find_foreign_cache() -> Path | None:
    """Return the cache directory if it contains other files and must not be used; else None."""
    directory = locate_cache()
    try:
        names = [path.name for path in directory.iterdir()] if directory is not None else []
    except (OSError, ValueError):
        return None
    if directory is None or _may_mark(directory, names) or is_own_cache(directory):
        return None
    return directory


def _may_mark(directory: Path, names: list[str]) -> bool:
    """Whether the directory is empty, or contains only entries of versions that did not mark their caches.

    Names are read before the marker: a process that starts at the same time marks first and writes entries later.
    """
    try:
        if set(names) <= {MARKER}:
            return not names or (directory / MARKER).stat().st_size == 0
        return set(names) <= set(KINDS) and all(
            _NAMES[kind].fullmatch(path.name) for kind in names for path in (directory / kind).iterdir()
        )
    except OSError:
        return False


def _claim_cache(directory: Path) -> bool:
    """Create and mark the directory; return whether it is ours."""
    directory.mkdir(parents=True, exist_ok=True)
    if is_own_cache(directory):
        return True
    if find_foreign_cache() is None:
        if not is_own_cache(directory):
            (directory / MARKER).write_bytes(_MARK + _OWNER)
        return True
    _tell_unusable(directory, FOREIGN)
    return False


def why_unusable() -> str | None:
    """Why the directory in the place of the cache cannot be used; None where it can, or is not there yet."""
    directory = locate_cache()
    if directory is None:
        return "no home directory is known"
    if find_foreign_cache() is not None:
        return FOREIGN
    if directory.exists() and not directory.is_dir():
        return os.strerror(errno.ENOTDIR)
    return None


@once
def _tell_unusable(directory: Path, reason: str) -> None:
    """Tell once that nothing is cached, and why; workers leave that to their parent."""
    problem = f"{make_displayable(str(directory))}: nothing is cached: {reason}"
    hint = f"name an empty directory in {CACHE_VARIABLE}"
    if os.getpid() != _FIRST_PROCESS:
        return
    for listener in listeners:
        listener(problem, hint)
    if not listeners:
        warnings.warn(f"{problem}; {hint}", stacklevel=2)


def make_kind_folder(kind: str) -> Path | None:
    """Return the directory of one kind, created if needed; None if it cannot be exclusively ours."""
    directory = locate_cache()
    try:
        if directory is None or not _claim_cache(directory):
            return None
        of_kind = directory / kind
        of_kind.mkdir(mode=0o700, exist_ok=True)
        status = of_kind.stat()
    except ValueError:
        return None
    except OSError as error:
        if directory is not None and os.environ.get(CACHE_VARIABLE):  # the user asked for this place
            _tell_unusable(directory, why_unusable() or error.strerror or str(error))
        return None
    is_own = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return of_kind if is_own and os.access(of_kind, os.R_OK | os.W_OK | os.X_OK) else None


def write_cache_file(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically and readable by the owner only; ignore errors."""
    with contextlib.suppress(OSError), new_file(path.parent, PARTIAL) as (descriptor, temporary):
        write_all_bytes(descriptor, data)
        temporary.replace(path)


def read_cache_limit() -> int:
    """Read the size limit of the cache; raise `TracekitError` if the variable is not a size."""
    text = os.environ.get(LIMIT_VARIABLE)
    try:
        return parse_size(text) if text else LIMIT_BYTES
    except TracekitError as error:
        raise TracekitError(f"{LIMIT_VARIABLE}: {error.problem}", error.hint) from error


def list_cache_entries(kind: str) -> list[tuple[int, int, Path]]:
    """List the entries of one kind as (last use in ns, bytes, path), oldest first."""
    kept: list[tuple[int, int, Path]] = []
    with contextlib.suppress(OSError):
        for path in _list_kind_paths(kind):
            with contextlib.suppress(OSError):
                index = path / INDEX
                if _NAMES[kind].fullmatch(path.name):
                    entry = index if kind == "fetched" else path
                    status = entry.stat()
                    size = _sum_tree_bytes(path) if entry is index else status.st_size
                    kept.append((status.st_mtime_ns, size, entry))
    return sorted(kept)


def _list_kind_paths(kind: str) -> list[Path]:
    """List the contents of one kind's directory, if it belongs to a cache of ours."""
    directory = locate_cache()
    if directory is None or not is_own_cache(directory):
        return []
    try:
        return list((directory / kind).iterdir())
    except OSError:
        return []


def _sum_tree_bytes(directory: Path) -> int:
    """Sum the sizes of the files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def evict_oldest(limit: int) -> None:
    """Remove the least recently used entries until the total is within `limit`, and leftovers of crashes."""
    kept = sorted(entry for kind in KINDS for entry in list_cache_entries(kind))
    total = sum(size for _, size, _ in kept)
    for _, size, path in kept:
        if total <= limit:
            break
        if remove_if_unlocked(path):
            total -= size
    remove_unfinished_entries()


def remove_unfinished_entries() -> None:
    """Remove unfinished entries whose program has ended; where files cannot be locked, those older than a day."""
    directory = locate_cache()
    if directory is None or not is_own_cache(directory):
        return
    for kind in KINDS:
        remove_abandoned_files(directory / kind, PARTIAL)
    for path in (path for kind in KINDS for path in _list_kind_paths(kind)):
        with contextlib.suppress(OSError):
            is_partial = _PARTIAL_NAME.fullmatch(path.name) and not path.is_symlink()
            if not is_partial or time.time() - path.stat().st_mtime <= _ABANDONED_S:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def remove_if_unlocked(path: Path) -> bool:
    """Remove a file unless a process holds it; return whether it was removed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not try_lock(descriptor, exclusive=True):
            return False
        path.unlink(missing_ok=True)
        if path.name == INDEX:
            shutil.rmtree(path.parent, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def hold_cache_entry(stack: contextlib.ExitStack, path: Path) -> bool:
    """Lock an entry until `stack` closes; return whether it still exists."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    stack.callback(os.close, descriptor)
    try_lock(descriptor, exclusive=False)
    try:
        now = path.stat()
    except OSError:
        return False
    lock_status = os.fstat(descriptor)
    return (now.st_dev, now.st_ino) == (lock_status.st_dev, lock_status.st_ino)


def try_lock(descriptor: int, *, exclusive: bool) -> bool:
    """Try to lock a file without waiting; a file system without locks grants every shared lock."""
    try:
        import fcntl

        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except (OSError, ImportError):
        return not exclusive
    return True
