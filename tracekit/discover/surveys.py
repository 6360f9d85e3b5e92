"""Surveys of arguments: the files of each, as one machine sees them, classified by content.

All disk access of discovery happens here, once. Everything else works on names and on these results. Surveys of several
machines can be merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from tracekit.discover import nsys_files as nsys_pairs
from tracekit.discover.arguments import FoundFile, PathArgument, UnreadFile, list_files
from tracekit.discover.contents import find_same_contents
from tracekit.discover.logs import find_nearest_log
from tracekit.discover.manifests import Manifest, is_manifest, read_manifest
from tracekit.model.errors import TraceFormatError, TracekitError
from tracekit.model.inputs.note_codes import UNREADABLE, Data, Reason, explain_os_error
from tracekit.model.inputs.sources import Note, Tool
from tracekit.model.records import dataclass
from tracekit.model.text.labels import make_displayable

_LFS = b"version https://git-lfs.github.com/spec/"
_LFS_LIMIT_BYTES = 1024
_NO_SNAPSHOT = Reason("no-snapshot", "pickle, but no memory snapshot")
_LFS_POINTER = Reason("lfs-pointer", "Git LFS pointer: the file itself was not downloaded")
_PICKLES = dict.fromkeys((".pickle", ".pkl", ".snap"), _NO_SNAPSHOT)
FOLDERS_ABOVE = 6
"""Most directory names above the argument that are parsed: enough for every known layout."""


@dataclass(frozen=True, slots=True)
class Sniffed:
    """Result of sniffing a file: its reader and problem, or why no reader takes it."""

    reader: str | None
    tool: Tool = "torch"
    reason: Reason | None = None
    certain: bool = False
    """Whether the reason follows from the content alone, whatever the file's name."""


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """A file that the system did not let us read, with the reason."""

    reason: Reason


Sniff = Callable[[Path], Sniffed]
Verdict = Sniffed | Manifest | Note | UnreadableFile | Reason
"""Classification of a file: readable, a manifest, an unusable manifest, unreadable, or the reason why no reader takes it."""

Log = tuple[FoundFile, Sniffed] | Note | None
"""The driver's log above a directory, a note if it is ambiguous, or None."""


@dataclass(frozen=True, slots=True)
class SurveyedFile:
    """One file, its classification, and the directory names above the argument, which may describe it.

    `content` is a digest of the content, if another file on its machine has the same content.
    """

    found: FoundFile
    verdict: Verdict
    above: tuple[str, ...] = ()
    content: str | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """Files of one argument in natural order, ignored files, and a function that searches for a log above."""

    argument: PathArgument
    files: tuple[SurveyedFile, ...]
    ignored: tuple[UnreadFile, ...]
    notes: tuple[Note, ...]
    log_above: Callable[[], Log]


def survey_argument(argument: PathArgument, exclude: Sequence[str], sniff: Sniff, within: Sequence[str] = ()) -> Survey:
    """Survey the files of `argument` on this machine. The log above is searched on demand.

    With `within`, links and the search never leave these directories.
    """
    listing = list_files(argument, exclude, within)
    above = tuple(make_displayable(part) for part in argument.base.parts[-FOLDERS_ABOVE:])
    files = tuple(SurveyedFile(found, _classify_file(found, sniff), above) for found in listing.files)

    def log_above() -> Log:
        return find_nearest_log(argument, exclude, lambda found: _sniff_driver_log(found, sniff), within)

    return Survey(argument, files, tuple(listing.ignored), tuple(listing.notes), log_above)


def add_content_digests(surveys: Sequence[Survey]) -> list[Survey]:
    """Add content digests to files with the same content as another file in any of these surveys of this machine."""
    paths: list[Path] = []
    for looked in chain.from_iterable(surveyed.files for surveyed in surveys):
        if isinstance(looked.verdict, Sniffed) and looked.verdict.reader:
            paths.append(looked.found.path)
    contents = find_same_contents(paths)
    completed: list[Survey] = []
    for surveyed in surveys:
        files = (replace(file, content=contents.get(file.found.path)) for file in surveyed.files)
        completed.append(replace(surveyed, files=tuple(files)))
    return completed


def name_surveyed_file(looked: SurveyedFile, name: str) -> SurveyedFile:
    """Name a file. Its manifest and notes use this name."""
    verdict = looked.verdict
    if isinstance(verdict, Manifest):
        notes = tuple(replace(note, source=name) for note in verdict.notes)
        return replace(looked, verdict=replace(verdict, name=name, notes=notes))
    if isinstance(verdict, Note):
        return replace(looked, verdict=replace(verdict, source=name))
    return looked


def _sniff_driver_log(file: FoundFile, sniff: Sniff) -> Sniffed | None:
    """Sniff a file; None unless it is a driver's log."""
    verdict = _classify_file(file, sniff)
    if isinstance(verdict, Sniffed) and verdict.reader == "driver_log":
        return verdict
    return None


def _classify_file(file: FoundFile, sniff: Sniff) -> Verdict:
    """Classify one file by its head. `name_surveyed_file` names it later."""
    suffix = file.path.suffix.lower()
    if nsys_pairs.is_ray_check(file.path.name):
        return nsys_pairs.RAY_CHECK
    if not file.size_bytes:
        return nsys_pairs.explain_empty_file(suffix)
    try:
        with file.path.open("rb", buffering=0) as stream:
            stream.read(1)
        if _is_lfs_pointer(file):
            return _LFS_POINTER
        if is_manifest(file.path, file.size_bytes):
            return read_manifest(file.path, "")
        sniffed = _sniff_safely(file.path, sniff)
    except OSError as error:
        return UnreadableFile(explain_os_error(error))
    return sniffed if sniffed.reader is not None else _explain_no_reader(sniffed, suffix)


def _sniff_safely(path: Path, sniff: Sniff) -> Sniffed:
    """Sniff a file. Converts errors to a refusal with a reason."""
    try:
        return sniff(path)
    except TraceFormatError as error:
        return Sniffed(None, reason=Reason(error.code, error.problem, error.data))
    except TracekitError as error:
        return Sniffed(None, reason=Reason(UNREADABLE, error.problem))


def _explain_no_reader(sniffed: Sniffed, suffix: str) -> Reason:
    """Explain why no reader takes a file: by its content if certain, else by its suffix."""
    reason = sniffed.reason or _explain_unknown_suffix(suffix)
    if sniffed.certain:
        return reason
    return nsys_pairs.explain_unread_nsys_file(suffix) or _PICKLES.get(suffix, reason)


def _explain_unknown_suffix(suffix: str) -> Reason:
    """Explain that no reader takes files with this suffix."""
    text = f"no reader takes {make_displayable(suffix) or 'files without a suffix'}"
    return Reason("no-format", text, Data(suffix=make_displayable(suffix)))


def _is_lfs_pointer(file: FoundFile) -> bool:
    """Check whether a file is only a Git LFS pointer."""
    if file.size_bytes > _LFS_LIMIT_BYTES:
        return False
    with file.path.open("rb") as stream:
        return stream.read(len(_LFS)) == _LFS
