"""Exports of reports, kept by content so that each report is exported once: never in the user's folder.

Whoever reads one holds it; see `model.cache` for where they lie and how they are forgotten.
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
            raise refused(
                report, reason, f"see {cache.CACHE_VARIABLE}, and the free space"
            ) from error
        yield export


def _export(stack: contextlib.ExitStack, report: Path) -> Export:
    """The export of a report; what it needs is released with `stack`."""
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
        if not cache.hold(stack, path):
            continue
        if export_problem(path) is not None:
            path.unlink(missing_ok=True)
            continue
        os.utime(path)
        return Export(path, path.name.split("-")[1], made=False)
    return None


def state(report: Path) -> tuple[str, ...]:
    """What decides which export of a report is read: the exports kept of it, and the nsys that is installed."""
    nsys = nsys_export.program()
    folder = cache.folder(_KIND)
    kept = folder.glob(f"{content_digest(report)}-*.sqlite") if folder is not None else ()
    return (nsys.version if nsys is not None else "no nsys", *sorted(path.name for path in kept))
