"""Nsight Systems leaves several files of one recording: which of them is read, and what the others are.

`nsys profile` writes a stream (`X.qdstrm`) that its importer makes a report (`X.nsys-rep`, `X.qdrep` until
2021); `nsys export` and `nsys stats` leave a database of the same recording (`X.sqlite`) beside that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tracekit.discover.arguments import Found

REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
STREAM_SUFFIX = ".qdstrm"
EXPORT_SUFFIX = ".sqlite"

FOREIGN = "SQLite database, not an nsys export"
RAY_CHECK = "Ray's check that nsys works: no profile"
EXPORT_IS_READ = "Nsight Systems report whose export beside it is read instead"
REPORT_IS_READ = (
    "export that is older than its Nsight Systems report, or damaged: the report is read"
)
STREAM_OF_REPORT = "Nsight Systems stream of a report that is here too"
LONE_STREAM = (
    "Nsight Systems stream that was never made a report: run QdstrmImporter -i FILE.qdstrm, "
    "of the nsys version that wrote it"
)
NO_REPORT = "named like an Nsight Systems report, and holds none: damaged, or still being written?"

CLOCK_SLACK_NS = 2_000_000_000
"""Copying a folder writes its files within moments of each other, in any order."""

_EMPTY = {
    ".nsys-rep": "still being written, or nsys died",
    ".qdrep": "still being written, or nsys died",
    ".qdstrm": "still being written, or nsys died",
    ".sqlite": "the export was interrupted, or the disk was full",
}
_MISSED = (*REPORT_SUFFIXES, STREAM_SUFFIX, EXPORT_SUFFIX)


def passed_over(files: Sequence[Found], claims: Sequence[tuple[str | None, str]]) -> dict[int, str]:
    """For each file, by its place in `files`, that need not be read because of another: why not.

    `claims` are the reader of each file and what is wrong with the file, both as far as known.
    """
    by_path = {(found.nodes[:1], found.path): place for place, found in enumerate(files)}
    dropped: dict[int, str] = {}
    for place, (found, (reader, _)) in enumerate(zip(files, claims, strict=True)):
        if reader == "nsys_rep":
            export = by_path.get((found.nodes[:1], export_beside(found.path)))
            if export is None:
                continue
            usable = claims[export] == ("nsys", "") and not _is_older(files[export], found)
            if usable:
                dropped[place] = EXPORT_IS_READ
            elif claims[export][1] != FOREIGN:
                dropped[export] = REPORT_IS_READ
        elif found.path.suffix.lower() == STREAM_SUFFIX:
            here = found.nodes[:1]
            reports = (by_path.get((here, found.path.with_suffix(s))) for s in REPORT_SUFFIXES)
            if any(r is not None and claims[r][0] == "nsys_rep" for r in reports):
                dropped[place] = STREAM_OF_REPORT
    return dropped


def export_beside(report: Path) -> Path:
    """Where `nsys export` and `nsys stats` put the export of a report, unless told otherwise."""
    return report.with_name(stem_of_report(report.name) + EXPORT_SUFFIX)


def stem_of_report(name: str) -> str:
    """The name of a report, stream or export without its suffix."""
    suffix = next((s for s in _MISSED if name.lower().endswith(s)), "")
    return name[: len(name) - len(suffix)]


def is_stale(export: Path, report: Path) -> bool:
    """Whether an export was made before the report that now lies beside it; False where that cannot be told."""
    try:
        return export.stat().st_mtime_ns + CLOCK_SLACK_NS < report.stat().st_mtime_ns
    except OSError:
        return False


def _is_older(export: Found, report: Found) -> bool:
    """`is_stale`, of files that may lie on another machine."""
    if export.mtime_ns is None or report.mtime_ns is None:
        return False
    return export.mtime_ns + CLOCK_SLACK_NS < report.mtime_ns


def is_ray_check(name: str) -> bool:
    """Whether a file is what Ray makes nsys write to see that it works."""
    return name == "empty" or (
        name.startswith("empty.") and name.lower().endswith(_MISSED) and name.count(".") == 1
    )


def why_empty(suffix: str) -> str:
    """What an empty file of that suffix tells; empty where it tells nothing."""
    return _EMPTY.get(suffix.lower(), "")


def unread(suffix: str) -> str:
    """What a file of that suffix is that no reader takes; empty for a suffix of other tools."""
    if suffix.lower() in REPORT_SUFFIXES:
        return NO_REPORT
    return LONE_STREAM if suffix.lower() == STREAM_SUFFIX else ""


def is_missed(name: str, reason: str) -> bool:
    """Whether something was lost with a file that is not read for this reason."""
    return name.lower().endswith(_MISSED) and reason not in (FOREIGN, RAY_CHECK)
