"""Exports of reports, kept by content so that each report is exported once: never in the user's folder.

They lie in `$TRACEKIT_CACHE`, else `$XDG_CACHE_HOME/tracekit`, else `~/.cache/tracekit`, readable by their owner
only, since an export holds the environment of what was profiled. Whoever reads one holds a shared lock on it; the
oldest that nobody holds go when all together exceed the limit.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tracekit.discover.contents import content_digest
from tracekit.model.codes import why_unread
from tracekit.model.errors import TracekitError, refused
from tracekit.model.units import parse_size
from tracekit.readers.nsys import export as nsys_export
from tracekit.readers.nsys.files import export_problem

CACHE_VARIABLE = "TRACEKIT_CACHE"
LIMIT_VARIABLE = "TRACEKIT_CACHE_LIMIT"
LIMIT_BYTES = 20_000_000_000

_FOLDER = "nsys"
_PARTIAL = "partial-"
_ABANDONED_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Export:
    """An export on disk and the version of the nsys that made it; `made` if that was now."""

    path: Path
    version: str
    made: bool


@contextlib.contextmanager
def export_of(report: Path) -> Iterator[Export]:
    """The export of a report: kept from before, or made now; it stays where it is until the block ends.

    Raises `TraceFormatError` where it cannot be made.
    """
    with contextlib.ExitStack() as stack:
        try:
            export = _export(stack, report)
        except OSError as error:
            text = f"cannot be exported: {error.strerror or type(error).__name__}"
            reason = replace(why_unread(error), text=text)
            raise refused(report, reason, f"see {CACHE_VARIABLE}, and the free space") from error
        yield export


def _export(stack: contextlib.ExitStack, report: Path) -> Export:
    """The export of a report; what it needs is released with `stack`."""
    nsys = nsys_export.program()
    limit = _limit()
    folder = _cache()
    digest = content_digest(report)
    if folder is not None:
        stored = _kept(stack, folder, digest, nsys)
        if stored is not None:
            return stored
    if nsys is None:
        raise nsys_export.not_installed(report)
    work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=folder)))
    new_export = nsys_export.export(report, nsys, work)
    if folder is None:
        return Export(new_export, nsys.version, made=True)
    stored = _kept(stack, folder, digest, nsys)
    if stored is not None:  # another process was faster
        return stored
    new_export.chmod(0o600)
    _hold(stack, new_export)
    target = folder / _name(digest, nsys)
    new_export.replace(target)
    _forget_oldest(folder, limit)
    return Export(target, nsys.version, made=True)


def _limit() -> int:
    """How many bytes all exports together may take; raises `TracekitError` for what is no size."""
    text = os.environ.get(LIMIT_VARIABLE)
    try:
        return parse_size(text) if text else LIMIT_BYTES
    except TracekitError as error:
        raise TracekitError(f"{LIMIT_VARIABLE}: {error.problem}", error.hint) from error


def _cache() -> Path | None:
    """The directory of kept exports, made if need be; None where it cannot be ours and ours alone."""
    named, xdg = os.environ.get(CACHE_VARIABLE), os.environ.get("XDG_CACHE_HOME", "")
    try:
        if named:
            above = Path(named).absolute()
        elif os.path.isabs(xdg):  # noqa: PTH117 - the text, before it is a path
            above = Path(xdg, "tracekit")
        else:
            above = Path.home() / ".cache" / "tracekit"
        folder = above / _FOLDER
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError, ValueError):
        return None
    is_ours = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return folder if is_ours and os.access(folder, os.R_OK | os.W_OK | os.X_OK) else None


def _name(digest: str, nsys: nsys_export.Program) -> str:
    """What the export of that content by that nsys is called."""
    return f"{digest}-{nsys.version}-{'blobs' if nsys.takes_blobs else 'plain'}.sqlite"


def _kept(
    stack: contextlib.ExitStack, folder: Path, digest: str, nsys: nsys_export.Program | None
) -> Export | None:
    """The export kept of that content, held until `stack` ends; where there is no nsys, of any version."""
    if nsys is not None:
        names = [folder / _name(digest, nsys)]
    else:
        names = sorted(folder.glob(f"{digest}-*.sqlite"), reverse=True)
    for path in names:
        if not _hold(stack, path):
            continue
        if export_problem(path) is not None:
            path.unlink(missing_ok=True)
            continue
        os.utime(path)
        return Export(path, path.name.split("-")[1], made=False)
    return None


def _hold(stack: contextlib.ExitStack, path: Path) -> bool:
    """Whether the file is there and will stay until `stack` ends."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    stack.callback(os.close, descriptor)
    _lock(descriptor, exclusive=False)
    try:
        now = path.stat()
    except OSError:
        return False
    lock_status = os.fstat(descriptor)
    return (now.st_dev, now.st_ino) == (lock_status.st_dev, lock_status.st_ino)


def _lock(descriptor: int, *, exclusive: bool) -> bool:
    """Whether the lock was had at once; a file system without locks gives every shared one."""
    try:
        import fcntl

        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except (OSError, ImportError):
        return not exclusive
    return True


def _forget_oldest(folder: Path, limit: int) -> None:
    """Remove exports, the longest unused first, until they are within the limit; and what crashes left behind."""
    exports: list[tuple[int, int, Path]] = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            status = path.stat()
            if path.name.startswith(_PARTIAL):
                if time.time() - status.st_mtime > _ABANDONED_S:
                    shutil.rmtree(path, ignore_errors=True)
            elif path.suffix == ".sqlite":
                exports.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in exports)
    for _, size, path in sorted(exports):
        if total <= limit:
            return
        if _removed(path):
            total -= size


def _removed(path: Path) -> bool:
    """Whether an export was removed: nobody was reading it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not _lock(descriptor, exclusive=True):
            return False
        path.unlink(missing_ok=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
