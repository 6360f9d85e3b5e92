"""Command-line arguments (files, directories, patterns, `label=path`) and the regular files that they denote."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from tracekit.discover import fetched
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.note_codes import UNREADABLE, Data, Reason, explain_os_error
from tracekit.model.inputs.sources import Note
from tracekit.model.records import dataclass
from tracekit.model.text.labels import choose_plural, make_displayable, make_natural_key
from tracekit.model.text.redaction import redact, remember_secrets

_MAGIC = frozenset("*?[")
_TEMPORARY = (".tmp", ".temp", ".part", ".partial", ".swp", "~", ".crdownload")
_BROKEN_LINKS = {errno.ELOOP: "a link in a circle of links", errno.ENOENT: "a link to nothing"}
_OUT_OF_REACH = Reason("link", "a link out of the directories that may be read")
_TEMPORARY_NAME = Reason("temporary", "temporary: being written, or left by a process that died")


State = Literal["refused", "unreadable", "duplicate", "no profile"]
"""State of a file that is not read.

`refused` looks like a profile but no reader takes it; `unreadable` is denied by the system; `duplicate` has its content
or recording read from another file; `no profile` is everything else.
"""


FileCounts = tuple[tuple[str, int], ...]
"""Number of files by state: `read` first, then the other states with any file."""

_PLURALS = {"refused": "refused", "unreadable": "unreadable", "duplicate": "duplicates"}


def count_found_files(read: int, failed: int, states: Mapping[str, int]) -> FileCounts:
    """Count files by state. Files that `failed` while reading are refused; `no profile` is not counted."""
    counts = {**states, "refused": states.get("refused", 0) + failed}
    return ("read", read), *((state, counts[state]) for state in _PLURALS if counts.get(state))


def format_file_counts(counts: FileCounts) -> str:
    """Format file counts: `26 files: 22 read, 2 refused, 1 unreadable, 1 duplicate`."""
    total = sum(count for _, count in counts)
    states = (f"{n:,} {choose_plural(n, state, _PLURALS.get(state, state))}" for state, n in counts)
    return f"{total:,} {choose_plural(total, 'file')}: {', '.join(states)}"


def format_unread_counts(counts: FileCounts) -> str:
    """Format the counts of files that are not read: `4 of 26 files: 2 refused, 1 unreadable, 1 duplicate`."""
    total = sum(count for _, count in counts)
    unread = [(state, count) for state, count in counts if state != "read"]
    states = ", ".join(f"{n:,} {choose_plural(n, state, _PLURALS.get(state, state))}" for state, n in unread)
    return f"{sum(count for _, count in unread):,} of {total:,} {choose_plural(total, 'file')}: {states}"


@dataclass(frozen=True, slots=True)
class PathArgument:
    """One argument of the user: a directory, the matches of a pattern, or files named one by one.

    Names are relative to `base`; `entries` are files and directories in it. `loose` marks
    files that were named one by one: only their names tell whether they are one run.
    """

    text: str
    label: str | None
    base: Path
    entries: tuple[Path, ...]
    loose: bool = False


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One regular file; `parts` are its names below the argument's base, `nodes` the cluster nodes that see it.

    No nodes means this machine. Inode and modification time tell whether a path is the same file on several nodes.
    """

    path: Path
    parts: tuple[str, ...]
    size_bytes: int
    mtime_ns: int | None = None
    inode: int | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnreadFile:
    """A file or directory that is not read, with the reason; `state` says how it is counted."""

    path: Path
    reason: Reason
    nodes: tuple[str, ...] = ()
    state: State = "no profile"

    @property
    def name(self) -> str:
        """Printable path; file names may contain bytes that are not text."""
        return make_displayable(str(self.path))


@dataclass(slots=True)
class FileListing:
    """Files of one argument, in natural order, and ignored files."""

    files: list[FoundFile] = field(default_factory=list[FoundFile])
    ignored: list[UnreadFile] = field(default_factory=list[UnreadFile])
    notes: list[Note] = field(default_factory=list[Note])


def list_paths(paths: Any) -> list[str | Path]:
    """List the paths that a caller gave as one or several; raise `TracekitError` for other types."""
    given: list[str | Path] = (
        list(paths) if isinstance(paths, Iterable) and not isinstance(paths, str | bytes | Mapping) else [paths]
    )
    for path in given:
        if not isinstance(path, str | Path):
            raise TracekitError(
                f"a path is expected, not a {type(path).__name__}", "pass a str, a Path, or a list of paths"
            )
    return given


def parse_path_arguments(paths: Sequence[str | Path]) -> tuple[PathArgument, ...]:
    """Parse the arguments in order. Files without a label become one argument, as a shell pattern expands to them.

    An existing path is used as it is, whatever characters it has; next comes a matching pattern,
    then `label=path`. A `Path` is never split at `=`.
    """
    arguments: list[PathArgument] = []
    files: dict[Path, str] = {}
    place = 0
    for path in paths:
        argument = _parse_path_argument(path)
        if not argument.loose:
            arguments.append(argument)
            continue
        if not files:
            place = len(arguments)
        files.setdefault(argument.entries[0], argument.text)
    if files:
        base = _find_common_argument_folder(files)
        text = f"{len(files)} files" if len(files) > 1 else next(iter(files.values()))
        arguments.insert(place, PathArgument(text, None, base, tuple(files), loose=True))
    return tuple(arguments)


def split_label(path_or_text: str | Path) -> tuple[str | None, Path]:
    """Split an argument into (label, path). The only place that parses `label=path`.

    A path or pattern that exists as typed has no label, whatever characters it has, nor has a `Path`.
    """
    text = os.fspath(path_or_text)
    remember_secrets(text)
    if fetched.is_address(text):
        return None, fetched.fetch_address(text)
    label, equals, path = text.partition("=")
    if label and equals and isinstance(path_or_text, str) and fetched.is_address(path):
        return label, fetched.fetch_address(path)
    named = isinstance(path_or_text, str) and bool(label and equals and path)
    if not named or os.path.lexists(text) or _make_pattern_argument(text, None) is not None:
        return None, Path(text)
    return label, Path(os.path.expanduser(path))  # noqa: PTH111 - the path may be a pattern


def refuse_missing(paths: Sequence[str | Path]) -> None:
    """Raise `TracekitError` for the first argument that does not exist."""
    for path in paths:
        _parse_path_argument(path)


def refuse_special(path: str | Path) -> None:
    """Raise `TracekitError` for a pipe, socket or device, because opening one may block forever."""
    with contextlib.suppress(OSError, ValueError):
        _refuse_special_mode(make_displayable(os.fspath(path)), os.stat(path).st_mode)  # noqa: PTH116 - errors of invalid paths are suppressed


def _refuse_special_mode(text: str, mode: int) -> None:
    """Raise `TracekitError` unless the mode is a file's or a directory's."""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    kind = kinds.get(stat.S_IFMT(mode), "a device")
    raise TracekitError(f"{text}: {kind}, and a file is wanted", "write what comes out of it to a file, and give that")


def expand_path_pattern(pattern: str) -> str:
    """Expand variables and `~`, also after `label=`, on this machine."""
    text = os.path.expandvars(pattern)
    label, equals, path = text.partition("=")
    if equals and path.startswith("~") and not os.path.lexists(text):
        return label + equals + os.path.expanduser(path)  # noqa: PTH111 - text, not yet a path
    return os.path.expanduser(text)  # noqa: PTH111


def make_path_key(parts: Sequence[str]) -> tuple[object, ...]:
    """Make the sort key of a path's names, each in natural order."""
    return tuple(make_natural_key(part) for part in parts)


def is_outside_folders(path: Path, within: Sequence[str]) -> bool:
    """Check whether a path leads out of these directories, which must be resolved. False if there are none."""
    real = Path(os.path.realpath(path))
    return bool(within) and not any(real.is_relative_to(folder) for folder in within)


def list_files(argument: PathArgument, exclude: Sequence[str], within: Sequence[str] = ()) -> FileListing:
    """List the regular files of `argument`, except hidden, temporary and excluded ones and links out of `within`."""
    listing = FileListing()
    seen: set[tuple[int, int]] = set()
    links: list[Path] = []
    folders: list[Path] = []
    several = len(argument.entries) > 1
    for entry in reversed(argument.entries):
        # A pattern may match unintended files; a single file is read whatever its name.
        folder = os.path.isdir(entry)  # noqa: PTH112 - false, not an error, where access is denied
        if several and (reason := _find_skip_reason(entry, argument.base, exclude, folder=folder)):
            listing.ignored.append(UnreadFile(entry, reason))
        elif folder:
            folders.append(entry)
        else:
            _list_file(entry, argument.base, seen, listing)
    # Links come last: a target inside the tree keeps its real name.
    while folders or links:
        path = folders.pop() if folders else links.pop(0)
        try:
            status = path.stat()
            if not stat.S_ISDIR(status.st_mode):
                _list_file(path, argument.base, seen, listing)
                continue
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            folders.extend(_scan_folder(path, argument.base, exclude, listing, seen, links, within))
        except OSError as error:
            _record_denied_path(path, error, listing)
    listing.files.sort(key=lambda f: make_path_key(f.parts))
    listing.ignored.sort(key=lambda i: make_natural_key(str(i.path)))
    return listing


def _parse_path_argument(path_or_text: str | Path) -> PathArgument:
    """Parse one argument as typed."""
    label, path = split_label(path_or_text)
    text = os.fspath(path_or_text)
    path_text = text if label is None else str(path)
    if fetched.is_address(text.partition("=")[2]) or fetched.is_address(text):
        argument = _make_existing_argument(str(path), label, redact(text))
    else:
        argument = _make_existing_argument(path_text, label) or _make_pattern_argument(path_text, label)
    if argument is None:
        hint = "check the spelling and the directory"
        if not _MAGIC.isdisjoint(text):
            hint = "the pattern matches nothing"
        if label is None or os.sep in label:  # perhaps no label was meant
            path_text = text
        raise TracekitError(f"{make_displayable(path_text)}: no such file or directory", hint)
    return argument


def _make_existing_argument(path_text: str, label: str | None, text: str = "") -> PathArgument | None:
    """Build the argument for an existing path; None if it does not exist. `text` is how it was typed."""
    text = text or path_text
    path = Path(os.path.abspath(path_text))  # noqa: PTH100 - `resolve` would lose the name of a link
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        raise TracekitError(
            f"{make_displayable(text)}: cannot be read: {error.strerror}", "check the permissions"
        ) from error
    _refuse_special_mode(make_displayable(text), mode)
    if stat.S_ISREG(mode) and fetched.is_archive(path):
        path = fetched.extract_archive(path)
        return PathArgument(text, label, path, (path,))
    if stat.S_ISDIR(mode):
        return PathArgument(text, label, path, (path,))
    return PathArgument(text, label, path.parent, (path,), loose=label is None)


def _make_pattern_argument(text: str, label: str | None) -> PathArgument | None:
    """Build the argument for a glob pattern; None if nothing matches."""
    if not _MAGIC & set(text) or "\0" in text:
        return None
    literal, magic = split_pattern(text)
    pattern = os.path.join(glob.escape(str(literal)), magic)  # noqa: PTH118 - a pattern, not a path
    matches = sorted(glob.iglob(pattern, recursive=True), key=make_natural_key)  # noqa: PTH207
    # `**` yields a directory and its contents: the directory alone is enough.
    names = set(matches)
    tops = [path for path in map(Path, matches) if not any(str(parent) in names for parent in path.parents)]
    if not tops:
        return None
    if len(tops) == 1:
        return _make_existing_argument(str(tops[0]), label, text)
    return PathArgument(text, label, _find_common_argument_folder(tops), tuple(tops))


def _find_common_argument_folder(paths: Iterable[Path]) -> Path:
    """Find the deepest directory that contains all paths."""
    return Path(os.path.commonpath([path.parent for path in paths]))


def split_pattern(text: str) -> tuple[Path, str]:
    """Split a pattern into its existing part and the part to expand."""
    parts = Path(os.path.abspath(text)).parts  # noqa: PTH100
    for length in range(len(parts) - 1, 0, -1):
        literal = Path(*parts[:length])
        if os.path.isdir(literal):  # noqa: PTH112 - false, not an error, for names too long
            return literal, os.path.join(*parts[length:])  # noqa: PTH118
    return Path(os.sep), text


def _scan_folder(
    folder: Path,
    base: Path,
    exclude: Sequence[str],
    listing: FileListing,
    seen: set[tuple[int, int]],
    links: list[Path],
    within: Sequence[str],
) -> Iterator[Path]:
    """List a folder: yields its real directories, last first, and adds files to `listing` and links to `links`."""
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda e: make_natural_key(e.name), reverse=True)
    for entry in entries:
        path = Path(entry.path)
        # `DirEntry.is_dir` raises for circular links.
        is_folder = os.path.isdir(path) if entry.is_symlink() else entry.is_dir()  # noqa: PTH112
        reason = _find_skip_reason(path, base, exclude, folder=is_folder)
        if reason is not None:
            listing.ignored.append(UnreadFile(path, reason))
        elif entry.is_symlink() and is_outside_folders(path, within):
            listing.ignored.append(UnreadFile(path, _OUT_OF_REACH))
        elif entry.is_symlink():
            links.append(path)
        elif entry.is_dir():
            yield path
        else:
            _list_file(path, base, seen, listing)


def _find_skip_reason(path: Path, base: Path, exclude: Sequence[str], *, folder: bool) -> Reason | None:
    """Explain why an entry of a directory is skipped; None if it is not."""
    name = path.name
    relative = os.path.relpath(path, base)
    for pattern in exclude:
        if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(relative, pattern):
            data = Data(pattern=make_displayable(pattern))
            return Reason("excluded", f"excluded by {make_displayable(pattern)!r}", data)
    if name.startswith("."):
        return Reason("hidden", "hidden")
    if name.lower().endswith(_TEMPORARY) and not folder:
        return _TEMPORARY_NAME
    return None


def _list_file(path: Path, base: Path, seen: set[tuple[int, int]], listing: FileListing) -> None:
    """Add a file to `listing`, unless it is a link to a file already listed."""
    try:
        status = path.stat()
    except OSError as error:
        _record_denied_path(path, error, listing)
        return
    if not stat.S_ISREG(status.st_mode):
        listing.ignored.append(UnreadFile(path, Reason("not-a-file", "not a regular file")))
        return
    key = (status.st_dev, status.st_ino)
    if path.is_symlink() and key in seen:
        reason = Reason("link", "a link to a file that is read under its own name")
        listing.ignored.append(UnreadFile(path, reason, state="duplicate"))
        return
    seen.add(key)
    parts = Path(os.path.relpath(path, base)).parts
    listing.files.append(FoundFile(path, parts, status.st_size, status.st_mtime_ns, status.st_ino))


def _record_denied_path(path: Path, error: OSError, listing: FileListing) -> None:
    """Record a path that the system did not let us read."""
    text = _BROKEN_LINKS.get(error.errno or 0)
    if text is not None and path.is_symlink():
        listing.ignored.append(UnreadFile(path, Reason("link", text)))
        return
    reason = explain_os_error(error)
    listing.ignored.append(UnreadFile(path, reason, state="unreadable"))
    message = f"{make_displayable(str(path))} {reason.text}"
    listing.notes.append(Note("error", UNREADABLE, message, data=reason.note_data()))
