"""Local copies of remote files and of archive members, as a directory.

Copies are cached (`model/system/cache.py`, kind `fetched`) and reused while size and version (tag, checksum or time) of the
original are unchanged. Nothing is written anywhere else. If caching is off, the copies last as long as the process.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tracekit.discover import stores
from tracekit.discover.stores import MOST_FILES, RemoteListing, StoredFile, split_safe_path
from tracekit.model.errors import TracekitError
from tracekit.model.inputs import unpacked_size
from tracekit.model.system import cache
from tracekit.model.system.files import Sign, is_sign_settled, make_file_sign
from tracekit.model.system.temporaries import new_folder
from tracekit.model.text.labels import make_displayable
from tracekit.model.text.redaction import get_safe_cause, redact
from tracekit.model.units import format_quantity

if TYPE_CHECKING:
    import tarfile
    import zipfile

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_ARCHIVE = re.compile(r"(?i).*\.(?:zip|tar|tgz|tbz2?|txz|tar\.(?:gz|bz2|xz))\Z")
PIECE_BYTES = 1 << 20
_INDEX = cache.INDEX
_ENCRYPTED = 1
_UNZIP = "unpack it first (unzip), and name the directory"

_held = ExitStack()
atexit.register(_held.close)

watchers: list[Callable[[str, int, int], None]] = []
"""Callbacks after each fetched file, with: address, files fetched so far, total number of files."""


def is_address(text: str) -> bool:
    """Check whether the text is the address of a store, not a local path."""
    return bool(_ADDRESS.match(text))


def is_archive(path: Path) -> bool:
    """Check whether a file is an archive of several files. A compressed single file is not."""
    if not _ARCHIVE.match(path.name) or not path.is_file():
        return False
    import tarfile
    import zipfile

    try:
        if path.name.lower().endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                return len(archive.infolist()) > 1
        return tarfile.is_tarfile(path)
    except (OSError, zipfile.BadZipFile, tarfile.TarError, ValueError):
        return False


def get_local_path(path: str | Path) -> Path:
    """Return a local path: `path` itself, or copies if it is an address or an archive."""
    if isinstance(path, str) and is_address(path):
        return fetch_address(path)
    return extract_archive(Path(path)) if is_archive(Path(path)) else Path(path)


@once
def fetch_address(address: str) -> Path:
    """Fetch the files at an address, which may be a pattern, once per process: the directory (or file) of copies.

    Raises `TracekitError` if there is nothing, the store cannot be reached, or its package is not installed.
    """
    return _copy_originals(address, stores.list_remote_files(address))


def extract_archive(path: Path) -> Path:
    """Extract an archive's members: the directory of copies. Raises `TracekitError` if the archive cannot be read."""
    return _extract_archive_state(path, make_file_sign(path.stat()))


@once
def _extract_archive_state(path: Path, sign: Sign) -> Path:
    """Extract an archive in this state (`sign`), once per process."""
    import tarfile
    import zipfile

    name = path.name.partition(".")[0] or "archive"
    # Without a settled state copies are not reused: the file may change again and keep its times.
    state = f"{path} {sign}" if is_sign_settled(sign, time.time_ns()) else None
    try:
        with ExitStack() as stack:
            if path.name.lower().endswith(".zip"):
                members = list(_list_zip_members(stack.enter_context(zipfile.ZipFile(path)), state, name))
            else:
                members = list(_list_tar_members(stack.enter_context(tarfile.open(path)), state, name))
            _refuse_repeated_members(path, members)
            if len(members) > MOST_FILES:
                problem = f"{make_displayable(str(path))}: {len(members):,} files"
                raise TracekitError(problem, "unpack a part of them")
            most = unpacked_size.limit_unpacked_bytes(path.stat().st_size)
            return _copy_originals(str(path), RemoteListing(tuple(members), (name,)), most)
    except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, ValueError, RuntimeError) as error:
        raise TracekitError(
            f"{make_displayable(str(path))}: the archive cannot be read: {error}", "unpack what can be had of it first"
        ) from error


# Archives


def _list_zip_members(archive: zipfile.ZipFile, state: str | None, top: str) -> Iterator[StoredFile]:
    """List the files of a zip archive."""
    for member in archive.infolist():
        if not member.is_dir():
            if member.flag_bits & _ENCRYPTED:
                raise TracekitError(
                    f"{make_displayable(str(archive.filename))}: {make_displayable(member.filename)} is encrypted",
                    _UNZIP,
                )
            opened = partial(archive.open, member)
            names = top, *split_safe_path(member.filename)
            yield StoredFile(names, member.file_size, state and f"{state} {member.CRC}", opened)


def _refuse_repeated_members(path: Path, members: Iterable[StoredFile]) -> None:
    """Raise `TracekitError` if two members of a zip archive have the same name, because the choice is ambiguous.

    Tar archives are updated by appending the new version of a file, so there the last one counts.
    """
    if path.name.lower().endswith(".zip"):
        counts = Counter("/".join(member.parts[1:]) for member in members)
        twice = next((name for name, count in counts.items() if count > 1), None)
        if twice is not None:
            problem = f"{make_displayable(str(path))}: {counts[twice]} members are called {make_displayable(twice)}"
            raise TracekitError(problem, _UNZIP)


def _list_tar_members(archive: tarfile.TarFile, state: str | None, top: str) -> Iterator[StoredFile]:
    """List the regular files of a tar archive, without links and devices."""
    for member in archive:
        if member.isreg():
            opened = partial(_open_tar_member, archive, member)
            names = top, *split_safe_path(member.name)
            yield StoredFile(names, member.size, state and f"{state} {member.offset}", opened)


def _open_tar_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    """Open a regular file of a tar archive."""
    stream = archive.extractfile(member)
    assert stream is not None, "a regular file"
    return stream


# Copies


def _copy_originals(text: str, listing: RemoteListing, most_bytes: int | None = None) -> Path:
    """Copy all originals into a directory without other files. Returns the directory, or the only copy.

    Copies of archive members are limited to `most_bytes` in total.
    """
    folder, shown_text = _make_copy_folder(text), redact(text)
    top = folder / "copies"
    before = _read_copy_index(folder)
    wanted = {"/".join(original.parts): original for original in listing.originals}
    _remove_stale_copies(top, wanted)
    limit = cache.read_cache_limit()
    is_bomb = most_bytes is not None and most_bytes < limit
    left = most_bytes if is_bomb and most_bytes is not None else limit
    index: dict[str, list[Any]] = {}
    for number, (below, original) in enumerate(wanted.items(), 1):
        target = top.joinpath(*original.parts)
        entry = [original.size_bytes, original.sign]
        if original.sign is None or before.get(below) != entry or not target.is_file():
            try:
                _fetch_copy(shown_text, original, target, left, _build_copy_limit_error(shown_text, is_bomb=is_bomb))
            except TracekitError:
                if original.is_asked:
                    raise
                continue
            for watcher in watchers:
                watcher(shown_text, number, len(wanted))
        left -= target.stat().st_size
        index[below] = entry
    cache.write_cache_file(folder / _INDEX, json.dumps(index).encode())
    cache.hold_cache_entry(_held, folder / _INDEX)
    cache.evict_oldest(cache.read_cache_limit())
    return top.joinpath(*(listing.originals[0].parts if listing.is_one else listing.base))


def _make_copy_folder(text: str) -> Path:
    """Create the folder for copies of the original with this name."""
    parent = None if cache.is_cache_off() else cache.make_kind_folder("fetched")
    if parent is None:
        return _held.enter_context(new_folder())
    folder = parent / hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    folder.mkdir(mode=0o700, exist_ok=True)
    cache.hold_cache_entry(_held, folder / _INDEX)
    return folder


def _read_copy_index(folder: Path) -> dict[str, Any]:
    """Read sizes and signs of the copies by name. Empty if the index is damaged."""
    with suppress(OSError, ValueError):
        index = json.loads((folder / _INDEX).read_bytes())
        if isinstance(index, dict):
            return index
    return {}


def _remove_stale_copies(top: Path, wanted: Iterable[str]) -> None:
    """Remove copies whose original no longer exists."""
    keep = set(wanted)
    for path in sorted(top.rglob("*"), reverse=True):
        if path.is_dir():
            with suppress(OSError):
                path.rmdir()  # only if empty
        elif path.relative_to(top).as_posix() not in keep:
            path.unlink(missing_ok=True)


def _build_copy_limit_error(text: str, *, is_bomb: bool) -> TracekitError:
    """Build the error for too many bytes: the archive expands too much, or the copies exceed the cache limit."""
    if is_bomb:
        return TracekitError(f"{make_displayable(text)}: {unpacked_size.BOMB}", "unpack it first, or a part of it")
    return TracekitError(
        f"{make_displayable(text)}: more than {format_quantity(cache.read_cache_limit(), 'bytes')}, the most that is kept",
        f"name a part of it, or set {cache.LIMIT_VARIABLE}",
    )


def _fetch_copy(text: str, original: StoredFile, target: Path, most_bytes: int, too_large: TracekitError) -> None:
    """Copy one file completely or not at all. Raises `TracekitError` if it cannot be fetched."""
    below = "/".join(original.parts)
    unfinished = target.with_name(f"{cache.PARTIAL}{os.urandom(8).hex()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with original.open() as source, unfinished.open("xb") as file:
            for piece in _read_limited_pieces(source, most_bytes, too_large):
                file.write(piece)
            _refuse_short_copy(file.tell(), original.size_bytes)
        unfinished.replace(target)
    except TracekitError:
        raise
    except Exception as error:  # noqa: BLE001 - each store raises its own errors
        raise TracekitError(
            f"{make_displayable(text)}: {make_displayable(below)} cannot be fetched: {type(error).__name__}: {error}",
            "try again; what was fetched already is kept",
        ) from get_safe_cause(error)
    finally:
        unfinished.unlink(missing_ok=True)


def _refuse_short_copy(count: int, size_bytes: int | None) -> None:
    """Raise `OSError` if a file ended before its size."""
    if size_bytes is not None and count < size_bytes:
        raise OSError(f"it ended after {count:,} of {size_bytes:,} bytes")


def _read_limited_pieces(source: stores.Stream, most_bytes: int, too_large: TracekitError) -> Iterator[bytes]:
    """Read a file in pieces. Raises `too_large` beyond `most_bytes`."""
    count = 0
    while piece := source.read(PIECE_BYTES):
        count += len(piece)
        if count > most_bytes:
            raise too_large
        yield piece
