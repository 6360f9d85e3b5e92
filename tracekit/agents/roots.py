"""The directories that may be read, and the paths in them: nothing outside is ever opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

from tracekit.discover.arguments import leads_out
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass


@dataclass(frozen=True, slots=True)
class Roots:
    """Directories without links in their paths, and the directory above all of them that paths are relative to."""

    base: Path
    folders: tuple[Path, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The roots as paths are given: relative to the base."""
        return tuple(_relative(folder, self.base) for folder in self.folders)

    @property
    def within(self) -> tuple[str, ...]:
        """The roots as an option of reading."""
        return tuple(map(str, self.folders))


def roots_of(given: Sequence[str | Path]) -> Roots:
    """The roots that were named; raises `TracekitError` where one is no directory."""
    folders: list[Path] = []
    for path in map(Path, given):
        if not path.is_dir():
            raise TracekitError(f"{path}: no such directory", "--root names one to read from")
        folder = Path(os.path.realpath(path))
        if folder not in folders:
            folders.append(folder)
    try:
        base = os.path.commonpath([folder.parent for folder in folders])
    except ValueError:
        raise TracekitError(
            "the roots lie on different drives", "one server for each drive"
        ) from None
    return Roots(Path(base), tuple(folders))


def inside(roots: Roots, given: str) -> str:
    """The path relative to the base of what `given` names in a root; raises `TracekitError` for anything else.

    A path begins with the name of a root, or is relative to one. Links are followed before it is judged.
    """
    refused = _refusal(given)
    if refused:
        raise TracekitError(f"{given!r}: {refused}", _hint(roots))
    candidates: dict[str, Path] = {}
    for folder in (roots.base, *roots.folders):
        path = Path(os.path.normpath(folder / given))
        # Judged before anything is asked of it: whether something is there outside is nobody's business.
        if not leads_out(path, roots.within) and os.path.lexists(path):
            candidates.setdefault(os.path.realpath(path), path)
    if not candidates:
        raise TracekitError(f"{given!r}: nothing of this name in the roots", _hint(roots))
    if len(candidates) > 1:
        names = " and ".join(_relative(path, roots.base) for path in candidates.values())
        raise TracekitError(f"{given!r}: could be {names}", "begin with the name of the root")
    return _relative(next(iter(candidates.values())), roots.base)


def _refusal(given: str) -> str:
    """Why a text is not taken for a path at all; nothing where it is."""
    if not given.strip() or "\0" in given:
        return "no path"
    if "://" in given:
        return "a URL; only files below the roots are read"
    if given.startswith("~"):
        return "a home directory; only paths below the roots are read"
    if PurePosixPath(given).is_absolute() or PureWindowsPath(given).anchor:
        return "an absolute path; only paths below the roots are read"
    if ".." in given.replace("\\", "/").split("/"):
        return "leads up; only paths below the roots are read"
    return ""


def _hint(roots: Roots) -> str:
    """How a path is given."""
    return f"paths are relative, below: {', '.join(roots.names)}; the tool `paths` lists them"


def _relative(path: Path, base: Path) -> str:
    """The path below the base, with `/` between its parts."""
    return path.relative_to(base).as_posix()
