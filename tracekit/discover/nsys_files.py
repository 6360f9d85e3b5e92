"""Files of one Nsight Systems recording: which is read, and why the others are not.

`nsys profile` writes a stream (`X.qdstrm`) that its importer converts to a report (`X.nsys-rep`, `X.qdrep` until
2021). `nsys export` and `nsys stats` write a database of the same recording (`X.sqlite`) next to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tracekit.discover.arguments import FoundFile
from tracekit.model.inputs.note_codes import Reason

REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
STREAM_SUFFIX = ".qdstrm"
EXPORT_SUFFIX = ".sqlite"

FOREIGN = Reason("foreign-database", "SQLite database, not an nsys export")
RAY_CHECK = Reason("ray-check", "Ray's check that nsys works: no profile")
EXPORT_IS_READ = Reason("export-read", "Nsight Systems report whose export beside it is read instead")
REPORT_IS_READ = Reason(
    "stale-export", "export that is older than its Nsight Systems report, or damaged: the report is read"
)
STREAM_OF_REPORT = Reason("stream-of-report", "Nsight Systems stream of a report that is here too")
LONE_STREAM = Reason(
    "stream-only",
    "Nsight Systems stream that was never made a report: run QdstrmImporter -i FILE.qdstrm, "
    "of the nsys version that wrote it",
)
NO_REPORT = Reason("no-report", "named like an Nsight Systems report, and holds none: damaged, or still being written?")

CLOCK_SLACK_NS = 2_000_000_000
"""Copying a folder writes its files within moments of each other, in any order."""

_EMPTY = {
    ".nsys-rep": "still being written, or nsys died",
    ".qdrep": "still being written, or nsys died",
    ".qdstrm": "still being written, or nsys died",
    ".sqlite": "the export was interrupted, or the disk was full",
}
_NEVER_MISSED = frozenset({FOREIGN.code, RAY_CHECK.code})
_MISSED = (*REPORT_SUFFIXES, STREAM_SUFFIX, EXPORT_SUFFIX)


def find_replaced_nsys_files(
    files: Sequence[FoundFile], claims: Sequence[tuple[str | None, Reason | None]]
) -> dict[int, Reason]:
    """Find files that another file replaces: reason by position in `files`.

    `claims` are the reader and the problem of each file, as far as known.
    """
    by_path = {(file.nodes[:1], file.path): place for place, file in enumerate(files)}
    dropped: dict[int, Reason] = {}
    for place, file in enumerate(files):
        node = file.nodes[:1]
        if claims[place][0] == "nsys_rep":
            export = by_path.get((node, get_export_path(file.path)))
            if export is None:
                continue
            if claims[export] == ("nsys", None) and not _is_older(files[export], file):
                dropped[place] = EXPORT_IS_READ
            elif claims[export][1] != FOREIGN:
                dropped[export] = REPORT_IS_READ
        elif file.path.suffix.lower() == STREAM_SUFFIX:
            for suffix in REPORT_SUFFIXES:
                report = by_path.get((node, file.path.with_suffix(suffix)))
                if report is not None and claims[report][0] == "nsys_rep":
                    dropped[place] = STREAM_OF_REPORT
    return dropped


def get_export_path(report: Path) -> Path:
    """Build the path where `nsys export` and `nsys stats` put a report's export by default."""
    return report.with_name(strip_nsys_suffix(report.name) + EXPORT_SUFFIX)


def strip_nsys_suffix(name: str) -> str:
    """Strip the suffix of a report, stream or export."""
    stem, dot, suffix = name.rpartition(".")
    return stem if f"{dot}{suffix}".lower() in _MISSED else name


def is_stale(export: Path, report: Path) -> bool:
    """Check whether an export is older than the report next to it. False if unknown."""
    try:
        return export.stat().st_mtime_ns + CLOCK_SLACK_NS < report.stat().st_mtime_ns
    except OSError:
        return False


def _is_older(export: FoundFile, report: FoundFile) -> bool:
    """Check whether an export is older than its report, from recorded times. Works for files of other machines."""
    if export.mtime_ns is None or report.mtime_ns is None:
        return False
    return export.mtime_ns + CLOCK_SLACK_NS < report.mtime_ns


def is_ray_check(name: str) -> bool:
    """Check whether a file is from Ray's check that nsys works."""
    return name == "empty" or (name.startswith("empty.") and name.lower().endswith(_MISSED) and name.count(".") == 1)


def explain_empty_file(suffix: str) -> Reason:
    """Explain an empty file by its suffix."""
    cause = find_cause_of_empty_file(suffix)
    text = "empty file (0 bytes)" + (f": {cause}" if cause else "")
    return Reason("empty-file", text)


def find_cause_of_empty_file(suffix: str) -> str:
    """Find the likely cause of an empty file with this suffix. Empty if unknown."""
    return _EMPTY.get(suffix.lower(), "")


def explain_unread_nsys_file(suffix: str) -> Reason | None:
    """Explain why no reader takes a file with an nsys suffix; None for other suffixes."""
    if suffix.lower() in REPORT_SUFFIXES:
        return NO_REPORT
    return LONE_STREAM if suffix.lower() == STREAM_SUFFIX else None


def is_lost_nsys_file(name: str, reason: Reason) -> bool:
    """Check whether a file that is not read for this reason is a lost nsys file."""
    return name.lower().endswith(_MISSED) and reason.code not in _NEVER_MISSED
