"""Nsight Systems reports in Ray sessions: where Ray writes them, and which are worth copying.

Every host has its own: `/tmp/ray/session_<date>_<pid>/logs/nsight`; the link `session_latest` points to the newest.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from tracekit.discover import nsys_files as nsys_pairs
from tracekit.discover.manifests import is_manifest
from tracekit.discover.names import HOST_FOLDER, HOST_NAME
from tracekit.discover.runs import numbered, short_names
from tracekit.model.errors import TracekitError
from tracekit.model.labels import natural, shown
from tracekit.model.records import dataclass
from tracekit.pipeline.collecting.file_copies import Copied, copy_verified
from tracekit.readers.nsys.files import REPORT_MAGIC, export_problem, is_empty_capture

_SESSION = "session_"
_DEEPEST = 6
"""Depth below a root to which sessions are searched."""
EMPTY_CAPTURE = "no NVTX range, CUDA call or GPU work in it: a worker that died while it started leaves such a report"
_BESIDE_STREAM = (*nsys_pairs.REPORT_SUFFIXES, nsys_pairs.STREAM_SUFFIX)


@dataclass(frozen=True, slots=True)
class Session:
    """A directory of reports: its Ray session, and a label for its host if several hosts have the session."""

    name: str
    host: str | None
    folder: Path


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to copy, and its target."""

    session: Session
    path: Path
    target: Path
    size_bytes: int
    node: str | None = None
    """Label of the file's node; None for this machine."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file or directory that is not copied, or is probably useless, and the reason."""

    path: Path
    reason: str
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The files to copy and the files to skip, in natural order of their paths."""

    wanted: tuple[Wanted, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """The outcome of one file: `copied`, `already there`, or `failed` with the error."""

    wanted: Wanted
    outcome: str
    error: TracekitError | None = None


def plan(roots: Sequence[str | Path], target: Path, host: str | None = None) -> Plan:
    """Plan the copies of the reports below `roots` to `target`/`<session>/[host=<host>/]<file>`.

    A root is a directory of Ray, of a session, or of reports. Raises `TracekitError` if it does not exist, and if `host`
    is not valid in a directory name.
    """
    if host is not None and not re.fullmatch(HOST_NAME, host):
        raise TracekitError(
            f"--host {shown(host)}: not a host's name", "letters, digits, dots and dashes: node-7"
        )
    wanted: list[Wanted] = []
    left_out: list[LeftOut] = []
    avoided = os.path.realpath(target)
    for session in _labelled(list(_sessions(roots, avoided, left_out)), host):
        place = target / session.name
        if session.host is not None:
            place /= HOST_FOLDER + session.host
        for path, reason, size in _files(session.folder):
            if reason:
                left_out.append(LeftOut(path, reason))
            else:
                below = path.relative_to(session.folder)
                wanted.append(Wanted(session, path, place / below, size))
    return Plan(tuple(wanted), tuple(left_out))


def copy_here(file: Wanted) -> Copied:
    """Copy a file of this machine."""
    return copy_verified(file.path, file.target)


def carry_out(
    wanted: Sequence[Wanted], copy: Callable[[Wanted], Copied] = copy_here
) -> Iterator[Kept]:
    """Copy the files one by one, and yield each outcome; a failure does not stop the others."""
    for file in wanted:
        try:
            yield Kept(file, copy(file))
        except TracekitError as error:
            yield Kept(file, "failed", error)


def suspects(wanted: Sequence[Wanted]) -> tuple[LeftOut, ...]:
    """Find the files to copy that are probably useless, with the reasons that `doctor` would give.

    Reads only headers and lists of tables. The content of a report is known only if its export is in the same place.
    """
    paths = set(map(attrgetter("path"), wanted))
    suspicions = (LeftOut(file.path, _suspicion(file.path, paths)) for file in wanted)
    return tuple(filter(attrgetter("reason"), suspicions))


def _suspicion(path: Path, paths: set[Path]) -> str:
    """Explain why a file is probably useless; empty if nothing suggests that."""
    suffix = path.suffix.lower()
    if suffix == nsys_pairs.EXPORT_SUFFIX:
        problem = export_problem(path)
        if problem is not None:
            return problem.text
        return EMPTY_CAPTURE if is_empty_capture(path) else ""
    if suffix == nsys_pairs.STREAM_SUFFIX:
        reports = filter(paths.__contains__, map(path.with_suffix, nsys_pairs.REPORT_SUFFIXES))
        return "" if any(map(_is_report, reports)) else nsys_pairs.LONE_STREAM.text
    if suffix not in nsys_pairs.REPORT_SUFFIXES:
        return ""
    if not _is_report(path):
        return nsys_pairs.NO_REPORT.text
    export = nsys_pairs.export_beside(path)
    is_empty = (
        export in paths and not nsys_pairs.is_stale(export, path) and is_empty_capture(export)
    )
    return EMPTY_CAPTURE if is_empty else ""


def _is_report(path: Path) -> bool:
    """Check whether a file starts like an nsys report; True if it cannot be read, because the copy reports that."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(REPORT_MAGIC)) == REPORT_MAGIC
    except OSError:
        return True


def _sessions(
    roots: Sequence[str | Path], avoided: str, left_out: list[LeftOut]
) -> Iterator[Session]:
    """Find each directory of reports below the roots once, with its session."""
    seen: set[str] = set()
    for root in roots:
        if not os.path.isdir(root):  # noqa: PTH112 - false, not an error, where access is denied
            raise TracekitError(
                f"{shown(str(root))}: no such directory", "check the spelling, and the host"
            )
        real = Path(os.path.realpath(root))
        folders = list(_nsight_folders(real, avoided, left_out))
        if not folders and _holds_reports(real):
            folders = [real]
        for folder in folders:
            if str(folder) not in seen:
                seen.add(str(folder))
                yield Session(_session_name(folder), None, folder)


def _nsight_folders(root: Path, avoided: str, left_out: list[LeftOut]) -> Iterator[Path]:
    """Find the directories `logs/nsight` at or below `root`; skips links to avoid duplicates."""
    pending = [(root, 0)]
    while pending:
        folder, depth = pending.pop()
        if str(folder) == avoided:
            continue
        if folder.name == "nsight" and folder.parent.name == "logs":
            yield folder
            continue
        names = sorted(_folders_in(folder, left_out), key=natural, reverse=True)
        if depth < _DEEPEST:
            pending += [(folder / name, depth + 1) for name in names]


def _folders_in(folder: Path, left_out: list[LeftOut]) -> list[str]:
    """List the subdirectories to search; an unreadable directory is added to `left_out`."""
    try:
        with os.scandir(folder) as scan:
            names = [entry.name for entry in scan if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        reason = f"cannot be read: {error.strerror or type(error).__name__}"
        left_out.append(LeftOut(folder, reason))
        return []
    # Search only the logs: a session contains thousands of sockets, packages and working directories.
    if folder.name.startswith(_SESSION) and "logs" in names:
        return ["logs"]
    if folder.name == "logs" and "nsight" in names:
        return ["nsight"]
    return [name for name in names if not name.startswith(".")]


def _holds_reports(folder: Path) -> bool:
    """Check whether a directory itself contains reports."""
    try:
        return any(name.lower().endswith(_BESIDE_STREAM) for name in os.listdir(folder))  # noqa: PTH208
    except OSError:
        return False


def _session_name(folder: Path) -> str:
    """Name the session of a directory of reports."""
    for path in (folder, *folder.parents):
        if path.name.startswith(_SESSION):
            return path.name
    if folder.parent.name == "logs":
        folder = folder.parent.parent
    return folder.name or "session"


def _labelled(sessions: Sequence[Session], host: str | None) -> list[Session]:
    """Label the sessions with `host`; without it, label directories of the same session by where their paths differ."""
    if host is not None:
        return [replace(session, host=host) for session in sessions]
    counts = Counter(map(attrgetter("name"), sessions))
    several = [session for session in sessions if counts[session.name] > 1]
    names = short_names([_above_session(session).parts[1:] for session in several])
    hosts = [re.sub(r"[^0-9A-Za-z.-]+", "-", name).strip("-.") or "host" for name in names]
    labels = dict(zip(map(id, several), numbered(hosts), strict=True))
    labelled = []
    for session in sessions:
        label = labels.get(id(session), "").replace("#", "-")
        labelled.append(replace(session, host=label or None))
    return labelled


def _above_session(session: Session) -> Path:
    """Find the directory that contains the session directory."""
    for folder in session.folder.parents:
        if folder.name == session.name:
            return folder.parent
    return session.folder


def _files(folder: Path) -> Iterator[tuple[Path, str, int]]:
    """List every file at or below a directory of reports: (path, reason to skip it or "", size)."""
    sizes: dict[Path, int | None] = {}
    reports: set[Path] = set()
    for parent, folders, names in os.walk(folder):
        folders.sort(key=natural)
        for name in sorted(names, key=natural):
            path = Path(parent, name)
            sizes[path] = _size_of(path)
            if name.lower().endswith(_BESIDE_STREAM):
                reports.add(path.with_name(nsys_pairs.stem_of_report(name)))
    for path, size in sizes.items():
        reason = "a link, or no regular file"
        if size is not None and os.path.isfile(path) and not path.is_symlink():  # noqa: PTH113
            reason = _why_not(path, size, reports)
        yield path, reason, size or 0


def _size_of(path: Path) -> int | None:
    """Get the size of a file, without following links; None if unknown."""
    try:
        return path.lstat().st_size
    except OSError:
        return None


def _why_not(path: Path, size: int, reports: set[Path]) -> str:
    """Explain why to skip a file; empty if it is to be copied."""
    suffix = path.suffix.lower()
    if nsys_pairs.is_ray_check(path.name):
        return nsys_pairs.RAY_CHECK.text
    if not size and nsys_pairs.why_empty(suffix):
        return nsys_pairs.empty_file(suffix).text
    stem = path.with_name(nsys_pairs.stem_of_report(path.name))
    if stem in reports and suffix in (*_BESIDE_STREAM, nsys_pairs.EXPORT_SUFFIX):
        return ""
    if suffix == nsys_pairs.EXPORT_SUFFIX:
        problem = export_problem(path)
        return "" if problem is None else problem.text
    try:
        return "" if is_manifest(path, size) else "neither a report nor what belongs to one"
    except OSError as error:
        return f"cannot be read: {error.strerror or type(error).__name__}"
