"""Ray's session directories: whether those that were given are the ones that hold the reports."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
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


def session_symptoms(given: Sequence[Path], reports: Sequence[Path]) -> Iterator[Symptom]:
    """What is wrong with the directories `given`, in which these reports of nsys were found."""
    found = [_real(path) for path in reports]
    for path in given:
        folder = _real(path)
        if folder.is_dir():
            mine = [one for one in found if folder in one.parents]
            yield from _mixed(mine)
            yield from _elsewhere(path, folder, mine)


def _real(path: Path) -> Path:
    """Where a path leads; a link that leads to itself is itself, which `resolve` would raise on."""
    return Path(os.path.realpath(path))


def _mixed(reports: Sequence[Path]) -> Iterator[Symptom]:
    """That reports of one directory are of several sessions."""
    names = sorted({shown(s.name) for path in reports if (s := _session(path))}, key=natural)
    if len(names) > 1:
        some = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        what = f"reports of {len(names)} sessions of Ray together: {some}"
        yield Symptom("several-sessions", (), what, len(names))


def _session(path: Path) -> Path | None:
    """The session directory that `path` is or lies in, None outside of any."""
    inside = (path, *path.parents)
    return next((folder for folder in inside if _SESSION.fullmatch(folder.name)), None)


def _elsewhere(given: Path, folder: Path, mine: Sequence[Path]) -> Iterator[Symptom]:
    """That the reports lie in another place than the one given, or than the one Ray calls the latest."""
    session = _session(folder)
    if not mine:
        # Within its session first, then in the sessions beside it.
        places = [session, *_others(session.parent, session)] if session else []
        for other in places:
            count = len(_reports(other))
            if count:
                where = shown("/".join((other.name, *_IN_SESSION)))
                what = f"no report of nsys in {shown(given.name)}, but {count:,} in {where}"
                yield Symptom("wrong-session", (shown(str(other.joinpath(*_IN_SESSION))),), what)
                return
        return
    latest = folder / LATEST
    if session is None and latest.is_symlink():
        target = _real(latest)
        if not any(target in path.parents for path in mine):
            names = sorted({s.name for path in mine if (s := _session(path))}, key=natural)
            what = (
                f"{LATEST} leads to {shown(target.name)}, which holds no report of nsys; "
                f"{shown(', '.join(names[:3]))} does"
            )
            if names:
                yield Symptom("latest-session", (), what)


def _others(root: Path, session: Path) -> list[Path]:
    """The other sessions in Ray's directory, the one started last first; at most `_MOST`."""
    try:
        inside = islice(root.iterdir(), 100 * _MOST)
        named = [p for p in inside if _SESSION.fullmatch(p.name) and p != session]
    except OSError:
        return []
    return sorted(named, key=lambda p: natural(p.name), reverse=True)[:_MOST]


def _reports(session: Path) -> list[Path]:
    """The reports in one session, those of Ray's check left out."""
    try:
        inside = list(islice(session.joinpath(*_IN_SESSION).iterdir(), 100 * _MOST))
    except OSError:
        return []
    return [
        p for p in inside if p.name.endswith(REPORT_SUFFIXES) and not p.name.startswith("empty")
    ]
