"""Checks of Ray's session directories: whether the given directories have the nsys reports."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from tracekit.discover.nsys_files import REPORT_SUFFIXES
from tracekit.health.signs import Symptom
from tracekit.model.text.labels import make_displayable, make_natural_key

LATEST = "session_latest"
"""Ray's link to the session that was started last."""

_SESSION = re.compile(r"session_[0-9].*", re.DOTALL)
_IN_SESSION = ("logs", "nsight")
_MOST = 1_000
_MOST_NAMED = 3


def find_session_symptoms(folders: Sequence[Path], reports: Sequence[Path]) -> Iterator[Symptom]:
    """Find problems of the given directories, which contain these nsys reports."""
    real_reports = [_resolve_links(path) for path in reports]
    for path in folders:
        folder = _resolve_links(path)
        if not folder.is_dir():
            continue
        inside = _list_reports_below(folder, real_reports)
        yield from _find_mixed_sessions(inside)
        if inside:
            yield from _find_stale_latest_link(folder, inside)
        else:
            yield from _find_reports_elsewhere(path, folder)


def _resolve_links(path: Path) -> Path:
    """Resolve a path. A link to itself resolves to itself; `Path.resolve` would raise."""
    return Path(os.path.realpath(path))


def _list_reports_below(folder: Path, reports: Sequence[Path]) -> list[Path]:
    """List the reports below a directory."""
    return [report for report in reports if folder in report.parents]


def _find_session(path: Path) -> Path | None:
    """Find the session directory that `path` is or is inside of; None if there is none."""
    inside = (path, *path.parents)
    return next((folder for folder in inside if _SESSION.fullmatch(folder.name)), None)


def _list_session_names(reports: Iterable[Path]) -> list[str]:
    """List the names of the sessions with reports, in natural order."""
    names = {session.name for report in reports if (session := _find_session(report)) is not None}
    return sorted(names, key=make_natural_key)


def _find_mixed_sessions(reports: Sequence[Path]) -> Iterator[Symptom]:
    """Report a directory with reports of several sessions."""
    names = [make_displayable(name) for name in _list_session_names(reports)]
    if len(names) > 1:
        more = " …" if len(names) > _MOST_NAMED else ""
        named = ", ".join(names[:_MOST_NAMED]) + more
        what = f"reports of {len(names)} sessions of Ray together: {named}"
        yield Symptom("several-sessions", (), what, len(names))


def _find_reports_elsewhere(path: Path, folder: Path) -> Iterator[Symptom]:
    """Report a Ray directory without reports if a session has some: its own session, else a sibling."""
    session = _find_session(folder)
    if session is None:
        return
    for other in (session, *_list_other_sessions(session.parent, session)):
        count = _count_session_reports(other)
        if count:
            where = make_displayable("/".join((other.name, *_IN_SESSION)))
            what = f"no nsys report in {make_displayable(path.name)}, but {count:,} in {where}"
            yield Symptom("wrong-session", (make_displayable(str(other.joinpath(*_IN_SESSION))),), what)
            return


def _find_stale_latest_link(folder: Path, reports: Sequence[Path]) -> Iterator[Symptom]:
    """Report that Ray's link to the latest session, in a directory of sessions, points to one without reports."""
    latest = folder / LATEST
    if _find_session(folder) is not None or not latest.is_symlink():
        return
    target = _resolve_links(latest)
    names = _list_session_names(reports)
    if names and not _list_reports_below(target, reports):
        what = (
            f"{LATEST} points to {make_displayable(target.name)}, which has no nsys report; "
            f"{make_displayable(', '.join(names[:_MOST_NAMED]))} has"
        )
        yield Symptom("latest-session", (), what)


def _list_other_sessions(root: Path, session: Path) -> list[Path]:
    """List the other sessions in Ray's directory, latest first, at most `_MOST`."""
    try:
        inside = list(islice(root.iterdir(), 100 * _MOST))
    except OSError:
        return []
    sessions = [path for path in inside if _SESSION.fullmatch(path.name) and path != session]
    return sorted(sessions, key=lambda path: make_natural_key(path.name), reverse=True)[:_MOST]


def _count_session_reports(session: Path) -> int:
    """Count the reports of a session, without Ray's own check."""
    try:
        inside = list(islice(session.joinpath(*_IN_SESSION).iterdir(), 100 * _MOST))
    except OSError:
        return 0
    return sum(_is_session_report(path.name) for path in inside)


def _is_session_report(name: str) -> bool:
    """Check whether a file is a report other than Ray's check."""
    return name.endswith(REPORT_SUFFIXES) and not name.startswith("empty")
