"""The directories that may be read, and path resolution that never opens anything outside them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

from tracekit.discover.arguments import is_outside_folders
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass


@dataclass(frozen=True, slots=True)
class Roots:
    """The root directories with links resolved, and their common parent, which paths are relative to."""

    base: Path
    folders: tuple[Path, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Root paths relative to the base, as tools name them."""
        return tuple(_make_relative_path(folder, self.base) for folder in self.folders)

    @property
    def within(self) -> tuple[str, ...]:
        """Root paths as the reading option `within`."""
        return tuple(str(folder) for folder in self.folders)


def resolve_roots(folders_given: Sequence[str | Path]) -> Roots:
    """Resolve the given roots; raise `TracekitError` if one is not a directory."""
    folders: list[Path] = []
    for given in folders_given:
        path = Path(given)
        if not path.is_dir():
            raise TracekitError(f"{path}: no such directory", "--root names one to read from")
        folder = Path(os.path.realpath(path))
        if folder not in folders:
            folders.append(folder)
    try:
        base = os.path.commonpath([folder.parent for folder in folders])
    except ValueError:
        raise TracekitError("the roots lie on different drives", "one server for each drive") from None
    return Roots(Path(base), tuple(folders))


def resolve_inside_roots(roots: Roots, path_text: str) -> str:
    """Resolve a path to one relative to the base; raise `TracekitError` if it is not inside a root.

    A path starts with the name of a root or is relative to one. Links are followed before it is checked.
    """
    refused = _explain_path_refusal(path_text)
    if refused:
        raise TracekitError(f"{path_text!r}: {refused}", _make_path_hint(roots))
    candidates: dict[str, Path] = {}
    for folder in (roots.base, *roots.folders):
        path = Path(os.path.normpath(folder / path_text))
        # Check the path before touching the file system: the client must not learn what exists outside the roots.
        if not is_outside_folders(path, roots.within) and os.path.lexists(path):
            candidates.setdefault(os.path.realpath(path), path)
    if not candidates:
        raise TracekitError(f"{path_text!r}: nothing of this name in the roots", _make_path_hint(roots))
    if len(candidates) > 1:
        names = " and ".join(_make_relative_path(path, roots.base) for path in candidates.values())
        raise TracekitError(f"{path_text!r}: could be {names}", "begin with the name of the root")
    return _make_relative_path(next(iter(candidates.values())), roots.base)


def _explain_path_refusal(path_text: str) -> str:
    """Explain why a text is not accepted as a path; empty if it is."""
    if not path_text.strip() or "\0" in path_text:
        return "no path"
    if "://" in path_text:
        return "a URL; only files below the roots are read"
    if path_text.startswith("~"):
        return "a home directory; only paths below the roots are read"
    if PurePosixPath(path_text).is_absolute() or PureWindowsPath(path_text).anchor:
        return "an absolute path; only paths below the roots are read"
    if ".." in path_text.replace("\\", "/").split("/"):
        return "leads up; only paths below the roots are read"
    return ""


def _make_path_hint(roots: Roots) -> str:
    """Describe how to give a path."""
    return f"paths are relative, below: {', '.join(roots.names)}; the tool `paths` lists them"


def _make_relative_path(path: Path, base: Path) -> str:
    """Make a path relative to the base, with `/` as separator."""
    return path.relative_to(base).as_posix()
