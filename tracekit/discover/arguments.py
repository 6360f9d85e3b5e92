"""What the user named (files, directories, patterns, `label=path`) → the regular files meant by it."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from operator import itemgetter
from pathlib import Path
from typing import Literal

from tracekit.discover import fetched
from tracekit.model.codes import UNREADABLE, Data, Reason, why_unread
from tracekit.model.errors import TracekitError
from tracekit.model.labels import natural, plural, shown
from tracekit.model.records import dataclass
from tracekit.model.redaction import redact, remember
from tracekit.model.sources import Note

_MAGIC = frozenset("*?[")
_TEMPORARY = (".tmp", ".temp", ".part", ".partial", ".swp", "~", ".crdownload")
_BROKEN_LINKS = {
    errno.ELOOP: "a link in a circle of links",
    errno.ENOENT: "a link to nothing",
}
_OUT_OF_REACH = Reason("link", "a link out of the directories that may be read")
_TEMPORARY_NAME = Reason("temporary", "temporary: being written, or left by a process that died")


State = Literal["refused", "unreadable", "duplicate", "no profile"]
"""What a file is that is not read: one that looks like a profile and no reader takes, one that the system does
not let us read, one whose content or recording is read from another file, or nothing that was asked for."""


FileCounts = tuple[tuple[str, int], ...]
"""How many files are in each state: `read` first, then those of these that any is in."""

_PLURALS = {"refused": "refused", "unreadable": "unreadable", "duplicate": "duplicates"}


def counted(read: int, failed: int, states: Mapping[str, int]) -> FileCounts:
    """The counts of files by state; those that `failed` when they were read are refused. No profile is not counted."""
    counts = {**states, "refused": states.get("refused", 0) + failed}
    unread = ((state, counts.get(state, 0)) for state in _PLURALS)
    return ("read", read), *filter(itemgetter(1), unread)


def accounted(counts: FileCounts) -> str:
    """`26 files: 22 read, 2 refused, 1 unreadable, 1 duplicate`."""
    total = sum(map(itemgetter(1), counts))
    states = (f"{n:,} {plural(n, state, _PLURALS.get(state, state))}" for state, n in counts)
    return f"{total:,} {plural(total, 'file')}: {', '.join(states)}"


@dataclass(frozen=True, slots=True)
class Argument:
    """One thing named by the user: a directory, the matches of a pattern, or files named one by one.

    `base` is what names are relative to; `entries` are files and directories in it. `loose` marks
    files that were named one by one: whether they are one run, only their names can tell.
    """

    text: str
    label: str | None
    base: Path
    entries: tuple[Path, ...]
    loose: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """One regular file; `parts` are its names below the argument's base, `nodes` those of a cluster that see it.

    No node means here. Inode and time of change tell whether a path is the same file on several nodes.
    """

    path: Path
    parts: tuple[str, ...]
    size_bytes: int
    mtime_ns: int | None = None
    inode: int | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ignored:
    """A file or directory that is not read, and why; `state` is what that means for the answer."""

    path: Path
    reason: Reason
    nodes: tuple[str, ...] = ()
    state: State = "no profile"

    @property
    def name(self) -> str:
        """The path as it can be printed; names may hold bytes that are no text."""
        return shown(str(self.path))


@dataclass(slots=True)
class Listing:
    """The files of one argument, in natural order, and what was passed over."""

    files: list[Found] = field(default_factory=list[Found])
    ignored: list[Ignored] = field(default_factory=list[Ignored])
    notes: list[Note] = field(default_factory=list[Note])


def read_arguments(paths: Sequence[str | Path]) -> tuple[Argument, ...]:
    """The arguments in the order given; files without a label are one argument, as a shell pattern gives them.

    An existing path is taken as it is, whatever characters it holds; then comes a pattern that matches,
    then `label=path`. A `Path` is never split at `=`.
    """
    arguments: list[Argument] = []
    files: dict[Path, str] = {}
    place = 0
    for path in paths:
        argument = _read_argument(path)
        if not argument.loose:
            arguments.append(argument)
            continue
        if not files:
            place = len(arguments)
        files.setdefault(argument.entries[0], argument.text)
    if files:
        base = _common_folder(files)
        text = f"{len(files)} files" if len(files) > 1 else next(iter(files.values()))
        arguments.insert(place, Argument(text, None, base, tuple(files), loose=True))
    return tuple(arguments)


def split_label(given: str | Path) -> tuple[str | None, Path]:
    """(label, path) of an argument: the one place that knows what `label=path` means.

    What exists or matches as it is typed has no label, whatever characters it holds, nor has a `Path`.
    """
    text = os.fspath(given)
    remember(text)
    if fetched.is_address(text):
        return None, fetched.of_address(text)
    label, equals, path = text.partition("=")
    if label and equals and isinstance(given, str) and fetched.is_address(path):
        return label, fetched.of_address(path)
    named = isinstance(given, str) and bool(label and equals and path)
    if not named or os.path.lexists(text) or _pattern(text, None) is not None:
        return None, Path(text)
    return label, Path(os.path.expanduser(path))  # noqa: PTH111 - the path may be a pattern


def refuse_missing(paths: Sequence[str | Path]) -> None:
    """Nothing; raises `TracekitError` for the first argument that leads to no file and no directory."""
    for path in paths:
        _read_argument(path)


def refuse_special(path: str | Path) -> None:
    """Nothing; raises `TracekitError` for a pipe, a socket or a device: opening one may wait for ever."""
    with contextlib.suppress(OSError, ValueError):
        _refuse_special(shown(os.fspath(path)), os.stat(path).st_mode)  # noqa: PTH116 - what is no path is suppressed


def _refuse_special(text: str, mode: int) -> None:
    """Raise for whatever is neither a file nor a directory."""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    kind = kinds.get(stat.S_IFMT(mode), "a device")
    raise TracekitError(
        f"{text}: {kind}, and a file is wanted",
        "write what comes out of it to a file, and give that",
    )


def expanded(pattern: str) -> str:
    """The pattern with `~`, also after `label=`, and variables as they are on this machine."""
    text = os.path.expandvars(pattern)
    label, equals, path = text.partition("=")
    if equals and path.startswith("~") and not os.path.lexists(text):
        return label + equals + os.path.expanduser(path)  # noqa: PTH111 - text, not yet a path
    return os.path.expanduser(text)  # noqa: PTH111


def leads_out(path: Path, within: Sequence[str]) -> bool:
    """Whether a path leads out of these directories, themselves without links; of none of them nothing does."""
    real = Path(os.path.realpath(path))
    return bool(within) and not any(map(real.is_relative_to, within))


def list_files(argument: Argument, exclude: Sequence[str], within: Sequence[str] = ()) -> Listing:
    """Every regular file meant by `argument`, except hidden, temporary and excluded ones, and links out of `within`."""
    listing = Listing()
    seen: set[tuple[int, int]] = set()
    links: list[Path] = []
    folders: list[Path] = []
    several = len(argument.entries) > 1
    for entry in reversed(argument.entries):
        # A pattern names files that nobody meant; a single file is read whatever it is called.
        folder = os.path.isdir(entry)  # noqa: PTH112 - false, not an error, where access is denied
        if several and (reason := _pass_over(entry, argument.base, exclude, folder=folder)):
            listing.ignored.append(Ignored(entry, reason))
        elif folder:
            folders.append(entry)
        else:
            _take_file(entry, argument.base, seen, listing)
    # Links come last: what they lead to keeps its real name where the tree holds it too.
    while folders or links:
        path = folders.pop() if folders else links.pop(0)
        try:
            status = path.stat()
            if not stat.S_ISDIR(status.st_mode):
                _take_file(path, argument.base, seen, listing)
                continue
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            folders.extend(_take_folder(path, argument.base, exclude, listing, seen, links, within))
        except OSError as error:
            _refuse(path, error, listing)
    listing.files.sort(key=lambda f: tuple(map(natural, f.parts)))
    listing.ignored.sort(key=lambda i: natural(str(i.path)))
    return listing


def _read_argument(given: str | Path) -> Argument:
    """One argument as typed."""
    label, path = split_label(given)
    text = os.fspath(given)
    path_text = text if label is None else str(path)
    if fetched.is_address(text.partition("=")[2]) or fetched.is_address(text):
        argument = _existing(str(path), label, redact(text))
    else:
        argument = _existing(path_text, label) or _pattern(path_text, label)
    if argument is None:
        hint = "check the spelling and the directory"
        if not _MAGIC.isdisjoint(text):
            hint = "the pattern matches nothing"
        if label is None or os.sep in label:  # perhaps no label was meant
            path_text = text
        raise TracekitError(f"{shown(path_text)}: no such file or directory", hint)
    return argument


def _existing(given: str, label: str | None, text: str = "") -> Argument | None:
    """The argument for a path that exists, None where there is none; `text` is how it was typed."""
    text = text or given
    path = Path(os.path.abspath(given))  # noqa: PTH100 - `resolve` would lose the name of a link
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        raise TracekitError(
            f"{shown(text)}: cannot be read: {error.strerror}", "check the permissions"
        ) from error
    _refuse_special(shown(text), mode)
    if stat.S_ISREG(mode) and fetched.is_archive(path):
        path = fetched.of_archive(path)
        return Argument(text, label, path, (path,))
    if stat.S_ISDIR(mode):
        return Argument(text, label, path, (path,))
    return Argument(text, label, path.parent, (path,), loose=label is None)


def _pattern(text: str, label: str | None) -> Argument | None:
    """The argument for a glob pattern, None where nothing matches."""
    if not _MAGIC & set(text) or "\0" in text:
        return None
    literal, magic = split_pattern(text)
    pattern = os.path.join(glob.escape(str(literal)), magic)  # noqa: PTH118 - a pattern, not a path
    matches = sorted(glob.iglob(pattern, recursive=True), key=natural)  # noqa: PTH207
    # `**` yields a directory and what is in it: the directory alone is enough.
    names = set(matches)
    tops = [path for path in map(Path, matches) if names.isdisjoint(map(str, path.parents))]
    if not tops:
        return None
    if len(tops) == 1:
        return _existing(str(tops[0]), label, text)
    return Argument(text, label, _common_folder(tops), tuple(tops))


def _common_folder(paths: Iterable[Path]) -> Path:
    """The nearest directory that all of them lie in."""
    return Path(os.path.commonpath([path.parent for path in paths]))


def split_pattern(text: str) -> tuple[Path, str]:
    """The part of a pattern that exists as written, and the part to expand."""
    parts = Path(os.path.abspath(text)).parts  # noqa: PTH100
    for length in range(len(parts) - 1, 0, -1):
        literal = Path(*parts[:length])
        if os.path.isdir(literal):  # noqa: PTH112 - false, not an error, for names too long
            return literal, os.path.join(*parts[length:])  # noqa: PTH118
    return Path(os.sep), text


def _take_folder(
    folder: Path,
    base: Path,
    exclude: Sequence[str],
    listing: Listing,
    seen: set[tuple[int, int]],
    links: list[Path],
    within: Sequence[str],
) -> Iterator[Path]:
    """The real directories in `folder`, last first; its files go to `listing`, its links to `links`."""
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda e: natural(e.name), reverse=True)
    for entry in entries:
        path = Path(entry.path)
        # Asking an entry whether it is a directory raises where links form a circle.
        is_folder = os.path.isdir(path) if entry.is_symlink() else entry.is_dir()  # noqa: PTH112
        reason = _pass_over(path, base, exclude, folder=is_folder)
        if reason is not None:
            listing.ignored.append(Ignored(path, reason))
        elif entry.is_symlink() and leads_out(path, within):
            listing.ignored.append(Ignored(path, _OUT_OF_REACH))
        elif entry.is_symlink():
            links.append(path)
        elif entry.is_dir():
            yield path
        else:
            _take_file(path, base, seen, listing)


def _pass_over(path: Path, base: Path, exclude: Sequence[str], *, folder: bool) -> Reason | None:
    """Why a name met in a directory is not looked at; None where it is."""
    name = path.name
    relative = os.path.relpath(path, base)
    for pattern in exclude:
        if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(relative, pattern):
            data = Data(pattern=shown(pattern))
            return Reason("excluded", f"excluded by {shown(pattern)!r}", data)
    if name.startswith("."):
        return Reason("hidden", "hidden")
    if name.lower().endswith(_TEMPORARY) and not folder:
        return _TEMPORARY_NAME
    return None


def _take_file(path: Path, base: Path, seen: set[tuple[int, int]], listing: Listing) -> None:
    """Put one file into `listing`, once for each file on disk that a link leads to."""
    try:
        status = path.stat()
    except OSError as error:
        _refuse(path, error, listing)
        return
    if not stat.S_ISREG(status.st_mode):
        listing.ignored.append(Ignored(path, Reason("not-a-file", "not a regular file")))
        return
    key = (status.st_dev, status.st_ino)
    if path.is_symlink() and key in seen:
        reason = Reason("link", "a link to a file that is read under its own name")
        listing.ignored.append(Ignored(path, reason, state="duplicate"))
        return
    seen.add(key)
    parts = Path(os.path.relpath(path, base)).parts
    listing.files.append(Found(path, parts, status.st_size, status.st_mtime_ns, status.st_ino))


def _refuse(path: Path, error: OSError, listing: Listing) -> None:
    """Name what the system does not let us read."""
    text = _BROKEN_LINKS.get(error.errno or 0)
    if text is not None and path.is_symlink():
        listing.ignored.append(Ignored(path, Reason("link", text)))
        return
    reason = why_unread(error)
    listing.ignored.append(Ignored(path, reason, state="unreadable"))
    message = f"{shown(str(path))} {reason.text}"
    listing.notes.append(Note("error", UNREADABLE, message, data=reason.note_data()))
