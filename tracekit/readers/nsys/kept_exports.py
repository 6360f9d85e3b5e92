"""Cache of exported reports by content: each report is exported once, and never into the user's folder.

A reader holds its export while it reads; `model.cache` describes location and eviction.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tracekit.discover.contents import digest_content
from tracekit.model import cache
from tracekit.model.codes import explain_os_error
from tracekit.model.errors import make_format_error
from tracekit.model.records import dataclass
from tracekit.model.temporaries import IN_TMPDIR, new_folder
from tracekit.readers.nsys import export as nsys_export
from tracekit.readers.nsys.files import find_export_problem

_KIND = "nsys"


@dataclass(frozen=True, slots=True)
class CachedExport:
    """An export on disk with the version of nsys that made it. `made` if it was exported just now."""

    path: Path
    version: str
    made: bool


@contextlib.contextmanager
def open_export_of_report(report: Path) -> Iterator[CachedExport]:
    """Get the export of a report from the cache, or make it. The file is held until the block ends.

    Raises `TraceFormatError` if it cannot be made.
    """
    with contextlib.ExitStack() as stack:
        try:
            export = _get_or_make_export(stack, report)
        except OSError as error:
            text = f"cannot be exported: {error.strerror or type(error).__name__}"
            reason = replace(explain_os_error(error), text=text)
            raise make_format_error(report, reason, f"see {cache.CACHE_VARIABLE}, and the free space") from error
        yield export


def _get_or_make_export(stack: contextlib.ExitStack, report: Path) -> CachedExport:
    """Get the export of a report. `stack` releases its resources."""
    nsys = nsys_export.find_nsys_program()
    limit = cache.read_cache_limit()
    folder = cache.make_kind_folder(_KIND)
    digest = digest_content(report)
    if folder is not None:
        stored = _find_cached_export(stack, folder, digest, nsys)
        if stored is not None:
            return stored
    if nsys is None:
        raise nsys_export.build_no_nsys_error(report)
    prefix = cache.PARTIAL if folder is not None else IN_TMPDIR
    work = stack.enter_context(new_folder(folder, prefix))
    new_export = nsys_export.export_report(report, nsys, work)
    if folder is None:
        return CachedExport(new_export, nsys.version, made=True)
    stored = _find_cached_export(stack, folder, digest, nsys)
    if stored is not None:  # another process was faster
        return stored
    new_export.chmod(0o600)
    cache.hold_cache_entry(stack, new_export)
    target = folder / _format_export_name(digest, nsys)
    new_export.replace(target)
    cache.evict_oldest(limit)
    return CachedExport(target, nsys.version, made=True)


def _format_export_name(digest: str, nsys: nsys_export.NsysProgram) -> str:
    """Format the file name of an export by content digest and nsys."""
    return f"{digest}-{nsys.version}-{'blobs' if nsys.takes_blobs else 'plain'}.sqlite"


def _find_cached_export(
    stack: contextlib.ExitStack, folder: Path, digest: str, nsys: nsys_export.NsysProgram | None
) -> CachedExport | None:
    """Find the cached export of this content and hold it until `stack` ends. Without nsys, any version matches."""
    if nsys is not None:
        names = [folder / _format_export_name(digest, nsys)]
    else:
        names = sorted(folder.glob(f"{digest}-*.sqlite"), reverse=True)
    for path in names:
        if not cache.hold_cache_entry(stack, path):
            continue
        if find_export_problem(path) is not None:
            path.unlink(missing_ok=True)
            continue
        os.utime(path)
        return CachedExport(path, path.name.split("-")[1], made=False)
    return None


def describe_export_state(report: Path) -> tuple[str, ...]:
    """Describe which export of a report would be read: the installed nsys and the cached exports."""
    nsys = nsys_export.find_nsys_program()
    folder = cache.make_kind_folder(_KIND)
    kept = folder.glob(f"{digest_content(report)}-*.sqlite") if folder is not None else ()
    return (nsys.version if nsys is not None else "no nsys", *sorted(path.name for path in kept))
