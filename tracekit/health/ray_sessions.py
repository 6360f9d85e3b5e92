"""Checks of Ray's session directories: whether the given directories have the nsys reports."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from tracekit.discover.nsys_files import REPORT_SUFFIXES
from tracekit.health.signs import Symptom
from tracekit.model.labels import natural, shown

LATEST = "session_latest"
"""Ray's link to the session that was started last."""

_SESSION = re.compile(r"session_[0-9].*", re.DOTALL)
_IN_SESSION = ("logs", "nsight")
_MOST = 1_000
_MOST_NAMED = 3


def session_symptoms(folders: Sequence[Path], reports: Sequence[Path]) -> Iterator[Symptom]:
    """Find problems of the given directories, which contain these nsys reports."""
    real_reports = [_real(path) for path in reports]
    for path in folders:
        folder = _real(path)
        if not folder.is_dir():
            continue
        inside = _within(folder, real_reports)
        yield from _mixed(inside)
        if inside:
            yield from _not_the_latest(folder, inside)
        else:
            yield from _elsewhere(path, folder)


def _real(path: Path) -> Path:
    """Resolve a path. A link to itself resolves to itself; `Path.resolve` would raise."""
    return Path(os.path.realpath(path))


def _within(folder: Path, reports: Sequence[Path]) -> list[Path]:
    """List the reports below a directory."""
    return [report for report in reports if folder in report.parents]


def _session(path: Path) -> Path | None:
    """Find the session directory that `path` is or is inside of; None if there is none."""
    inside = (path, *path.parents)
    return next((folder for folder in inside if _SESSION.fullmatch(folder.name)), None)


def _session_names(reports: Iterable[Path]) -> list[str]:
    """List the names of the sessions with reports, in natural order."""
    names = {session.name for session in map(_session, reports) if session is not None}
    return sorted(names, key=natural)


def _mixed(reports: Sequence[Path]) -> Iterator[Symptom]:
    """Report a directory with reports of several sessions."""
    names = list(map(shown, _session_names(reports)))
    if len(names) > 1:
        more = " …" if len(names) > _MOST_NAMED else ""
        named = ", ".join(names[:_MOST_NAMED]) + more
        what = f"reports of {len(names)} sessions of Ray together: {named}"
        yield Symptom("several-sessions", (), what, len(names))


def _elsewhere(path: Path, folder: Path) -> Iterator[Symptom]:
    """Report a Ray directory without reports if a session has some: its own session, else a sibling."""
    session = _session(folder)
    if session is None:
        return
    for other in (session, *_others(session.parent, session)):
        count = _report_count(other)
        if count:
            where = shown("/".join((other.name, *_IN_SESSION)))
            what = f"no report of nsys in {shown(path.name)}, but {count:,} in {where}"
            yield Symptom("wrong-session", (shown(str(other.joinpath(*_IN_SESSION))),), what)
            return


def _not_the_latest(folder: Path, reports: Sequence[Path]) -> Iterator[Symptom]:
    """Report that Ray's link to the latest session, in a directory of sessions, points to one without reports."""
    latest = folder / LATEST
    if _session(folder) is not None or not latest.is_symlink():
        return
    target = _real(latest)
    names = _session_names(reports)
    if names and not _within(target, reports):
        what = (
            f"{LATEST} leads to {shown(target.name)}, which holds no report of nsys; "
            f"{shown(', '.join(names[:_MOST_NAMED]))} does"
        )
        yield Symptom("latest-session", (), what)


def _others(root: Path, session: Path) -> list[Path]:
    """List the other sessions in Ray's directory, latest first, at most `_MOST`."""
    try:
        inside = list(islice(root.iterdir(), 100 * _MOST))
    except OSError:
        return []
    sessions = [path for path in inside if _SESSION.fullmatch(path.name) and path != session]
    return sorted(sessions, key=lambda path: natural(path.name), reverse=True)[:_MOST]


def _report_count(session: Path) -> int:
    """Count the reports of a session, without Ray's own check."""
    try:
        inside = list(islice(session.joinpath(*_IN_SESSION).iterdir(), 100 * _MOST))
    except OSError:
        return 0
    return sum(_is_report(path.name) for path in inside)


def _is_report(name: str) -> bool:
    """Check whether a file is a report other than Ray's check."""
    return name.endswith(REPORT_SUFFIXES) and not name.startswith("empty")
