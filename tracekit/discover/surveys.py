"""What lies where an argument points, as one machine sees it, and the union of what several see.

All that discovery asks of the disk is asked here, once; the rest is told by names and by what is said here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from pathlib import Path

from tracekit.discover import nsys_files as nsys_pairs
from tracekit.discover.arguments import Argument, Found, Ignored, list_files
from tracekit.discover.contents import same_contents
from tracekit.discover.logs import nearest
from tracekit.discover.manifests import Manifest, is_manifest, read_manifest
from tracekit.model.codes import UNREADABLE, Data, Reason, why_unread
from tracekit.model.errors import TraceFormatError, TracekitError
from tracekit.model.labels import shown
from tracekit.model.records import dataclass
from tracekit.model.sources import Note, Tool

_LFS = b"version https://git-lfs.github.com/spec/"
_LFS_LIMIT_BYTES = 1024
_NO_SNAPSHOT = Reason("no-snapshot", "pickle, but no memory snapshot")
_LFS_POINTER = Reason("lfs-pointer", "Git LFS pointer: the file itself was not downloaded")
_PICKLES = dict.fromkeys((".pickle", ".pkl", ".snap"), _NO_SNAPSHOT)
FOLDERS_ABOVE = 6
"""So many directories above the one given may say something: enough for every known layout."""


@dataclass(frozen=True, slots=True)
class Sniffed:
    """What a look at a file told: the reader that takes it and what is wrong with it, or why none takes it."""

    reader: str | None
    tool: Tool = "torch"
    reason: Reason | None = None
    certain: bool = False
    """Whether the reason is what its content alone tells, whatever it is called."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """That the system did not let us read a file, and why."""

    reason: Reason


Sniff = Callable[[Path], Sniffed]
Verdict = Sniffed | Manifest | Note | Unreadable | Reason
"""What one file is: something a reader takes, a manifest, an unusable one, nothing to be read, or why it is none."""

Log = tuple[Found, Sniffed] | Note | None
"""The driver's log above a directory, the reason why it cannot be told, or that there is none."""


@dataclass(frozen=True, slots=True)
class Looked:
    """One file, what it is, and the directories above the argument, which may say something of it.

    `content` is a digest of what it holds, where another file of its machine was found to hold the same.
    """

    found: Found
    verdict: Verdict
    above: tuple[str, ...] = ()
    content: str | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """The files of one argument in natural order, what was passed over, and how to look for a log above."""

    argument: Argument
    files: tuple[Looked, ...]
    ignored: tuple[Ignored, ...]
    notes: tuple[Note, ...]
    log_above: Callable[[], Log]


def survey(
    argument: Argument, exclude: Sequence[str], sniff: Sniff, within: Sequence[str] = ()
) -> Survey:
    """What lies where `argument` points, here; the log above is looked for when it is asked for.

    Nothing leads out of the directories `within`, where there are any.
    """
    listing = list_files(argument, exclude, within)
    above = tuple(map(shown, argument.base.parts[-FOLDERS_ABOVE:]))
    files = tuple(Looked(found, _read_head(found, sniff), above) for found in listing.files)

    def log_above() -> Log:
        return nearest(argument, exclude, lambda found: _as_log(found, sniff), within)

    return Survey(argument, files, tuple(listing.ignored), tuple(listing.notes), log_above)


def with_contents(surveys: Sequence[Survey]) -> list[Survey]:
    """The same surveys, of this machine, with the content of files that hold the same as another in any of them."""
    paths: list[Path] = []
    for looked in chain.from_iterable(map(attrgetter("files"), surveys)):
        if isinstance(looked.verdict, Sniffed) and looked.verdict.reader:
            paths.append(looked.found.path)
    contents = same_contents(paths)
    completed: list[Survey] = []
    for surveyed in surveys:
        files = (replace(file, content=contents.get(file.found.path)) for file in surveyed.files)
        completed.append(replace(surveyed, files=tuple(files)))
    return completed


def called(looked: Looked, name: str) -> Looked:
    """The same file; what it is says that it is called `name`."""
    verdict = looked.verdict
    if isinstance(verdict, Manifest):
        notes = tuple(replace(note, source=name) for note in verdict.notes)
        return replace(looked, verdict=replace(verdict, name=name, notes=notes))
    if isinstance(verdict, Note):
        return replace(looked, verdict=replace(verdict, source=name))
    return looked


def _as_log(found: Found, sniff: Sniff) -> Sniffed | None:
    """What a file is if it is a driver's log."""
    verdict = _read_head(found, sniff)
    if isinstance(verdict, Sniffed) and verdict.reader == "driver_log":
        return verdict
    return None


def _read_head(found: Found, sniff: Sniff) -> Verdict:
    """What one file is; `called` gives it its name."""
    suffix = found.path.suffix.lower()
    if nsys_pairs.is_ray_check(found.path.name):
        return nsys_pairs.RAY_CHECK
    if not found.size_bytes:
        return nsys_pairs.empty_file(suffix)
    try:
        with found.path.open("rb", buffering=0) as stream:
            stream.read(1)
        if _is_lfs_pointer(found):
            return _LFS_POINTER
        if is_manifest(found.path, found.size_bytes):
            return read_manifest(found.path, "")
        sniffed = _sniffed(found.path, sniff)
    except OSError as error:
        return Unreadable(why_unread(error))
    return sniffed if sniffed.reader is not None else _why_not(sniffed, suffix)


def _sniffed(path: Path, sniff: Sniff) -> Sniffed:
    """What `sniff` tells of a file, also where it refuses the file."""
    try:
        return sniff(path)
    except TraceFormatError as error:
        return Sniffed(None, reason=Reason(error.code, error.problem, error.data))
    except TracekitError as error:
        return Sniffed(None, reason=Reason(UNREADABLE, error.problem))


def _why_not(sniffed: Sniffed, suffix: str) -> Reason:
    """Why no reader takes a file: by its content where that is certain, else by its suffix."""
    reason = sniffed.reason or _no_format(suffix)
    if sniffed.certain:
        return reason
    return nsys_pairs.unread(suffix) or _PICKLES.get(suffix, reason)


def _no_format(suffix: str) -> Reason:
    """That no reader takes files of that suffix."""
    text = f"no reader takes {shown(suffix) or 'files without a suffix'}"
    return Reason("no-format", text, Data(suffix=shown(suffix)))


def _is_lfs_pointer(found: Found) -> bool:
    """Whether a file only stands for one that Git LFS keeps elsewhere."""
    if found.size_bytes > _LFS_LIMIT_BYTES:
        return False
    with found.path.open("rb") as stream:
        return stream.read(len(_LFS)) == _LFS
