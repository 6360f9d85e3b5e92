"""Opening of an SQLite file without side effects: checks its header and makes a private copy if SQLite would write."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from tracekit.model.errors import TraceFormatError, make_format_error, make_os_read_error
from tracekit.model.inputs.note_codes import Data, Reason, explain_os_error
from tracekit.model.records import dataclass
from tracekit.model.system.temporaries import new_folder

MAGIC = b"SQLite format 3\0"
LFS = b"version https://git-lfs"
_JOURNAL_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
_AGAIN = "export it again: nsys export --type sqlite REPORT.nsys-rep"


@dataclass(frozen=True, slots=True)
class OpeningWarning:
    """A warning about an opened file: state `no-log`, `interrupted-writer` or `cut`, and its text."""

    state: str
    text: str


_NO_LOG = OpeningWarning("no-log", "written with a write-ahead log, which is not there: its last rows may be missing")
_INTERRUPTED = OpeningWarning(
    "interrupted-writer", "a writer was interrupted, or is still at work: read as it was before"
)


@dataclass(frozen=True, slots=True)
class Opening:
    """How to open a file: the URI, its expected size, and warnings.

    `plain` is the path if only the file itself is read; None for a copy or if a journal is read too.
    """

    uri: str
    size_bytes: int
    warnings: tuple[OpeningWarning, ...] = ()
    plain: Path | None = None


_EMPTY = Reason("empty-file", "empty file (0 bytes): the export was interrupted, or the disk was full")
_POINTER = Reason("lfs-pointer", "Git LFS pointer: the file itself was not downloaded")
_NEVER_ENDED = Reason("interrupted-export", "the export was interrupted: its first page was never written")
_OTHER = Reason("no-database", "not an SQLite database")


def explain_unreadable_database(head: bytes, size_bytes: int) -> Reason | None:
    """Explain why a file with this header and size is not a complete SQLite database; None if it may be."""
    if not size_bytes:
        return _EMPTY
    if head.startswith(LFS):
        return _POINTER
    if not head[:16].strip(b"\0"):
        return _NEVER_ENDED
    if not head.startswith(MAGIC):
        return _OTHER
    if len(head) < 100:
        text = f"only {len(head)} bytes of an SQLite database are there"
        return Reason("no-database", text, Data(size_bytes=len(head)))
    return None


def read_database_size(head: bytes) -> int:
    """Read the database size in bytes from its header; 0 if the header does not have it."""
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(head[28:32], "big")
    # The page count is valid only if the last writer maintained it.
    valid = head[24:28] == head[92:96]
    return page * pages if valid and page >= 512 and not page & (page - 1) else 0


@contextmanager
def prepare_opening(path: Path) -> Iterator[Opening]:
    """Find how to open `path` without writing next to it. Removes copies at the end.

    Raises `TraceFormatError` if the file cannot be an SQLite database.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            head = stream.read(100)
    except OSError as error:
        raise make_os_read_error(path, error) from error
    reason = explain_unreadable_database(head, size)
    if reason is not None:
        raise make_format_error(path, reason, "fetch it: git lfs pull" if reason == _POINTER else _AGAIN)
    full_bytes = read_database_size(head)
    wal, journal = _find_companion(path, "-wal"), _find_companion(path, "-journal")
    logged = head[18] == 2 or head[19] == 2
    if journal is not None and not _is_hot_journal(journal):
        journal = None
    if not logged:
        wal = None
    if wal is None and journal is None and full_bytes <= size:
        without_log = (_NO_LOG,) if logged else ()
        yield Opening(_make_sqlite_uri(path, "mode=ro&immutable=1"), size, without_log, path)
        return
    with _copy_privately(path) as copy:
        warnings = _complete_private_copy(path, copy, wal, journal, full_bytes)
        mode = "mode=rw" if wal is not None or journal is not None else "mode=ro&immutable=1"
        yield Opening(
            _make_sqlite_uri(copy, mode), size + _get_companion_size(wal) + _get_companion_size(journal), warnings
        )


def _complete_private_copy(
    path: Path, copy: Path, wal: Path | None, journal: Path | None, full_bytes: int
) -> tuple[OpeningWarning, ...]:
    """Copy the journals and pad a truncated copy to its full size. Returns the warnings about the copy."""
    try:
        for companion, suffix in ((wal, "-wal"), (journal, "-journal")):
            if companion is not None:
                shutil.copyfile(companion, f"{copy}{suffix}")
        if journal is not None:
            _clear_super_journal(Path(f"{copy}-journal"))
            return (_INTERRUPTED,)
        if wal is not None:
            return ()
        missing = full_bytes - copy.stat().st_size
        if missing <= 0:
            return ()
        lost = f"{missing:,} of {full_bytes:,} bytes are missing at its end"
        with suppress(OSError):
            # Sparse zeros take no disk space, and SQLite reads every other page.
            os.truncate(copy, full_bytes)
        return (OpeningWarning("cut", f"{lost}: rows are lost"),)
    except OSError as error:
        raise _build_copy_error(path, error) from error


@contextmanager
def _copy_privately(path: Path) -> Iterator[Path]:
    """Copy the file to a private folder that is removed at the end."""
    with new_folder() as folder:
        copy = folder / "copy.sqlite"
        try:
            shutil.copyfile(path, copy)
        except OSError as error:
            raise _build_copy_error(path, error) from error
        yield copy


def _build_copy_error(path: Path, error: OSError) -> TraceFormatError:
    """Build the error for a file that could not be copied."""
    text = f"cannot be copied to be read: {error.strerror or type(error).__name__}"
    return make_format_error(path, replace(explain_os_error(error), text=text), "make room in $TMPDIR")


def _find_companion(path: Path, suffix: str) -> Path | None:
    """Find a non-empty companion file with this suffix; None if there is none."""
    companion = Path(f"{path}{suffix}")
    try:
        return companion if companion.is_file() and companion.stat().st_size else None
    except OSError:
        return None


def _get_companion_size(companion: Path | None) -> int:
    """Read the size of a file in bytes; 0 for None."""
    return 0 if companion is None else companion.stat().st_size


def _is_hot_journal(journal: Path) -> bool:
    """Check whether a rollback journal still has changes to undo."""
    try:
        with journal.open("rb") as stream:
            return stream.read(8) == _JOURNAL_MAGIC
    except OSError:
        return False


def _clear_super_journal(journal: Path) -> None:
    """Clear the super-journal name at the end of a copied journal: SQLite would open that file, and may delete it."""
    with journal.open("r+b") as stream:
        stream.seek(0, os.SEEK_END)
        size = stream.tell()
        if size >= 8:
            stream.seek(-8, os.SEEK_END)
            if stream.read(8) == _JOURNAL_MAGIC:
                stream.seek(-8, os.SEEK_END)
                stream.write(bytes(8))


def _make_sqlite_uri(path: Path, options: str) -> str:
    """Build the SQLite URI of a file. Escapes its name."""
    return f"file:{quote(os.fsencode(path.absolute()))}?{options}"
