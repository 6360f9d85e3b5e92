"""Nsight Systems reports in Ray sessions: where Ray writes them, and which are worth copying.

Every host has its own: `/tmp/ray/session_<date>_<pid>/logs/nsight`; the link `session_latest` points to the newest.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tracekit.discover import nsys_files as nsys_pairs
from tracekit.discover.manifests import is_manifest
from tracekit.discover.names import HOST_FOLDER, HOST_NAME
from tracekit.discover.runs import number_repeated_names, shorten_run_names
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.text.labels import make_displayable, make_natural_key
from tracekit.pipeline.collecting.file_copies import CopyResult, copy_verified
from tracekit.readers.nsys.files import REPORT_MAGIC, find_export_problem, is_empty_capture

_SESSION = "session_"
_MAX_SESSION_DEPTH = 6
"""Depth below a root to which sessions are searched."""
EMPTY_CAPTURE = "no NVTX range, CUDA call or GPU work in it: a worker that died while it started leaves such a report"
_BESIDE_STREAM = (*nsys_pairs.REPORT_SUFFIXES, nsys_pairs.STREAM_SUFFIX)


@dataclass(frozen=True, slots=True)
class ReportFolder:
    """A directory of reports: its Ray session, and a label for its host if several hosts have the session."""

    name: str
    host: str | None
    folder: Path


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """A file to copy, and its target."""

    session: ReportFolder
    path: Path
    target: Path
    size_bytes: int
    node: str | None = None
    """Label of the file's node; None for this machine."""


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file or directory that is not copied, or is probably useless, and the reason."""

    path: Path
    reason: str
    node: str | None = None


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The files to copy and the files to skip, in natural order of their paths."""

    wanted: tuple[CopyRequest, ...]
    left_out: tuple[SkippedFile, ...]


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """The outcome of one file: `copied`, `already there`, or `failed` with the error."""

    wanted: CopyRequest
    outcome: str
    error: TracekitError | None = None


def plan_copies(roots: Sequence[str | Path], target: Path, host: str | None = None) -> CopyPlan:
    """Plan the copies of the reports below `roots` to `target`/`<session>/[host=<host>/]<file>`.

    A root is a directory of Ray, of a session, or of reports. Raises `TracekitError` if it does not exist, and if `host`
    is not valid in a directory name.
    """
    if host is not None and not re.fullmatch(HOST_NAME, host):
        raise TracekitError(
            f"--host {make_displayable(host)}: not a host's name", "letters, digits, dots and dashes: node-7"
        )
    wanted: list[CopyRequest] = []
    left_out: list[SkippedFile] = []
    avoided = os.path.realpath(target)
    for session in _label_sessions(list(_find_report_folders(roots, avoided, left_out)), host):
        place = target / session.name
        if session.host is not None:
            place /= HOST_FOLDER + session.host
        for path, reason, size in _list_report_files(session.folder):
            if reason:
                left_out.append(SkippedFile(path, reason))
            else:
                below = path.relative_to(session.folder)
                wanted.append(CopyRequest(session, path, place / below, size))
    return CopyPlan(tuple(wanted), tuple(left_out))


def copy_local_report(file: CopyRequest) -> CopyResult:
    """Copy a file of this machine."""
    return copy_verified(file.path, file.target)


def copy_reports(
    wanted: Sequence[CopyRequest], copy: Callable[[CopyRequest], CopyResult] = copy_local_report
) -> Iterator[CopyOutcome]:
    """Copy the files one by one, and yield each outcome; a failure does not stop the others."""
    for file in wanted:
        try:
            yield CopyOutcome(file, copy(file))
        except TracekitError as error:
            yield CopyOutcome(file, "failed", error)


def find_useless_reports(wanted: Sequence[CopyRequest]) -> tuple[SkippedFile, ...]:
    """Find the files to copy that are probably useless, with the reasons that `doctor` would give.

    Reads only headers and lists of tables. The content of a report is known only if its export is in the same place.
    """
    paths = {file.path for file in wanted}
    suspicions = (SkippedFile(file.path, _explain_useless(file.path, paths)) for file in wanted)
    return tuple(suspicion for suspicion in suspicions if suspicion.reason)


def _explain_useless(path: Path, paths: set[Path]) -> str:
    """Explain why a file is probably useless; empty if nothing suggests that."""
    suffix = path.suffix.lower()
    if suffix == nsys_pairs.EXPORT_SUFFIX:
        problem = find_export_problem(path)
        if problem is not None:
            return problem.text
        return EMPTY_CAPTURE if is_empty_capture(path) else ""
    if suffix == nsys_pairs.STREAM_SUFFIX:
        reports = [path.with_suffix(suffix) for suffix in nsys_pairs.REPORT_SUFFIXES]
        has_report = any(report in paths and _has_report_magic(report) for report in reports)
        return "" if has_report else nsys_pairs.LONE_STREAM.text
    if suffix not in nsys_pairs.REPORT_SUFFIXES:
        return ""
    if not _has_report_magic(path):
        return nsys_pairs.NO_REPORT.text
    export = nsys_pairs.get_export_path(path)
    is_empty = export in paths and not nsys_pairs.is_stale(export, path) and is_empty_capture(export)
    return EMPTY_CAPTURE if is_empty else ""


def _has_report_magic(path: Path) -> bool:
    """Check whether a file starts like an nsys report; True if it cannot be read, because the copy reports that."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(REPORT_MAGIC)) == REPORT_MAGIC
    except OSError:
        return True


def _find_report_folders(
    roots: Sequence[str | Path], avoided: str, left_out: list[SkippedFile]
) -> Iterator[ReportFolder]:
    """Find each directory of reports below the roots once, with its session."""
    seen: set[str] = set()
    for root in roots:
        if not os.path.isdir(root):  # noqa: PTH112 - false, not an error, where access is denied
            raise TracekitError(f"{make_displayable(str(root))}: no such directory", "check the spelling, and the host")
        real = Path(os.path.realpath(root))
        folders = list(_find_nsight_folders(real, avoided, left_out))
        if not folders and _has_reports(real):
            folders = [real]
        for folder in folders:
            if str(folder) not in seen:
                seen.add(str(folder))
                yield ReportFolder(_name_session(folder), None, folder)


def _find_nsight_folders(root: Path, avoided: str, left_out: list[SkippedFile]) -> Iterator[Path]:
    """Find the directories `logs/nsight` at or below `root`; skips links to avoid duplicates."""
    pending = [(root, 0)]
    while pending:
        folder, depth = pending.pop()
        if str(folder) == avoided:
            continue
        if folder.name == "nsight" and folder.parent.name == "logs":
            yield folder
            continue
        names = sorted(_list_search_folders(folder, left_out), key=make_natural_key, reverse=True)
        if depth < _MAX_SESSION_DEPTH:
            pending += [(folder / name, depth + 1) for name in names]


def _list_search_folders(folder: Path, left_out: list[SkippedFile]) -> list[str]:
    """List the subdirectories to search; an unreadable directory is added to `left_out`."""
    try:
        with os.scandir(folder) as scan:
            names = [entry.name for entry in scan if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        reason = f"cannot be read: {error.strerror or type(error).__name__}"
        left_out.append(SkippedFile(folder, reason))
        return []
    # Search only the logs: a session contains thousands of sockets, packages and working directories.
    if folder.name.startswith(_SESSION) and "logs" in names:
        return ["logs"]
    if folder.name == "logs" and "nsight" in names:
        return ["nsight"]
    return [name for name in names if not name.startswith(".")]


def _has_reports(folder: Path) -> bool:
    """Check whether a directory itself contains reports."""
    try:
        return any(name.lower().endswith(_BESIDE_STREAM) for name in os.listdir(folder))  # noqa: PTH208
    except OSError:
        return False


def _name_session(folder: Path) -> str:
    """Name the session of a directory of reports."""
    for path in (folder, *folder.parents):
        if path.name.startswith(_SESSION):
            return path.name
    if folder.parent.name == "logs":
        folder = folder.parent.parent
    return folder.name or "session"


def _label_sessions(sessions: Sequence[ReportFolder], host: str | None) -> list[ReportFolder]:
    """Label the sessions with `host`; without it, label directories of the same session by where their paths differ."""
    if host is not None:
        return [replace(session, host=host) for session in sessions]
    counts = Counter(session.name for session in sessions)
    several = [session for session in sessions if counts[session.name] > 1]
    names = shorten_run_names([_find_session_parent(session).parts[1:] for session in several])
    hosts = [re.sub(r"[^0-9A-Za-z.-]+", "-", name).strip("-.") or "host" for name in names]
    labels = {id(session): host for session, host in zip(several, number_repeated_names(hosts), strict=True)}
    labelled = []
    for session in sessions:
        label = labels.get(id(session), "").replace("#", "-")
        labelled.append(replace(session, host=label or None))
    return labelled


def _find_session_parent(session: ReportFolder) -> Path:
    """Find the directory that contains the session directory."""
    for folder in session.folder.parents:
        if folder.name == session.name:
            return folder.parent
    return session.folder


def _list_report_files(folder: Path) -> Iterator[tuple[Path, str, int]]:
    """List every file at or below a directory of reports: (path, reason to skip it or "", size)."""
    sizes: dict[Path, int | None] = {}
    reports: set[Path] = set()
    for parent, folders, names in os.walk(folder):
        folders.sort(key=make_natural_key)
        for name in sorted(names, key=make_natural_key):
            path = Path(parent, name)
            sizes[path] = _get_link_size(path)
            if name.lower().endswith(_BESIDE_STREAM):
                reports.add(path.with_name(nsys_pairs.strip_nsys_suffix(name)))
    for path, size in sizes.items():
        reason = "a link, or no regular file"
        if size is not None and os.path.isfile(path) and not path.is_symlink():  # noqa: PTH113
            reason = _explain_skipping(path, size, reports)
        yield path, reason, size or 0


def _get_link_size(path: Path) -> int | None:
    """Get the size of a file, without following links; None if unknown."""
    try:
        return path.lstat().st_size
    except OSError:
        return None


def _explain_skipping(path: Path, size: int, reports: set[Path]) -> str:
    """Explain why to skip a file; empty if it is to be copied."""
    suffix = path.suffix.lower()
    if nsys_pairs.is_ray_check(path.name):
        return nsys_pairs.RAY_CHECK.text
    if not size and nsys_pairs.find_cause_of_empty_file(suffix):
        return nsys_pairs.explain_empty_file(suffix).text
    stem = path.with_name(nsys_pairs.strip_nsys_suffix(path.name))
    if stem in reports and suffix in (*_BESIDE_STREAM, nsys_pairs.EXPORT_SUFFIX):
        return ""
    if suffix == nsys_pairs.EXPORT_SUFFIX:
        problem = find_export_problem(path)
        return "" if problem is None else problem.text
    try:
        return "" if is_manifest(path, size) else "neither a report nor what belongs to one"
    except OSError as error:
        return f"cannot be read: {error.strerror or type(error).__name__}"
