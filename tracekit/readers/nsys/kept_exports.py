"""Cache of exported reports by content: each report is exported once, and never into the user's folder.

A reader holds its export while it reads; `model.cache` describes location and eviction.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tracekit.discover.contents import content_digest
from tracekit.model import cache
from tracekit.model.codes import why_unread
from tracekit.model.errors import refused
from tracekit.model.records import dataclass
from tracekit.model.temporaries import IN_TMPDIR, new_folder
from tracekit.readers.nsys import export as nsys_export
from tracekit.readers.nsys.files import export_problem

_KIND = "nsys"


@dataclass(frozen=True, slots=True)
class Export:
    """An export on disk with the version of nsys that made it. `made` if it was exported just now."""

    path: Path
    version: str
    made: bool


@contextlib.contextmanager
def export_of(report: Path) -> Iterator[Export]:
    """Get the export of a report from the cache, or make it. The file is held until the block ends.

    Raises `TraceFormatError` if it cannot be made.
    """
    with contextlib.ExitStack() as stack:
        try:
            export = _export(stack, report)
        except OSError as error:
            text = f"cannot be exported: {error.strerror or type(error).__name__}"
            reason = replace(why_unread(error), text=text)
            raise refused(
                report, reason, f"see {cache.CACHE_VARIABLE}, and the free space"
            ) from error
        yield export


def _export(stack: contextlib.ExitStack, report: Path) -> Export:
    """Get the export of a report. `stack` releases its resources."""
    nsys = nsys_export.program()
    limit = cache.limit_bytes()
    folder = cache.folder(_KIND)
    digest = content_digest(report)
    if folder is not None:
        stored = _kept(stack, folder, digest, nsys)
        if stored is not None:
            return stored
    if nsys is None:
        raise nsys_export.not_installed(report)
    prefix = cache.PARTIAL if folder is not None else IN_TMPDIR
    work = stack.enter_context(new_folder(folder, prefix))
    new_export = nsys_export.export(report, nsys, work)
    if folder is None:
        return Export(new_export, nsys.version, made=True)
    stored = _kept(stack, folder, digest, nsys)
    if stored is not None:  # another process was faster
        return stored
    new_export.chmod(0o600)
    cache.hold(stack, new_export)
    target = folder / _name(digest, nsys)
    new_export.replace(target)
    cache.forget_oldest(limit)
    return Export(target, nsys.version, made=True)


def _name(digest: str, nsys: nsys_export.Program) -> str:
    """Format the file name of an export by content digest and nsys."""
    return f"{digest}-{nsys.version}-{'blobs' if nsys.takes_blobs else 'plain'}.sqlite"


def _kept(
    stack: contextlib.ExitStack, folder: Path, digest: str, nsys: nsys_export.Program | None
) -> Export | None:
    """Find the cached export of this content and hold it until `stack` ends. Without nsys, any version matches."""
    if nsys is not None:
        names = [folder / _name(digest, nsys)]
    else:
        names = sorted(folder.glob(f"{digest}-*.sqlite"), reverse=True)
    for path in names:
        if not cache.hold(stack, path):
            continue
        if export_problem(path) is not None:
            path.unlink(missing_ok=True)
            continue
        os.utime(path)
        return Export(path, path.name.split("-")[1], made=False)
    return None


def state(report: Path) -> tuple[str, ...]:
    """Describe which export of a report would be read: the installed nsys and the cached exports."""
    nsys = nsys_export.program()
    folder = cache.folder(_KIND)
    kept = folder.glob(f"{content_digest(report)}-*.sqlite") if folder is not None else ()
    return (nsys.version if nsys is not None else "no nsys", *sorted(path.name for path in kept))
