"""Local copies of remote files and of archive members, as a directory.

Copies are cached (`model/cache.py`, kind `fetched`) and reused while size and version (tag, checksum or time) of the
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
from tracekit.discover.stores import MOST_FILES, Listed, Original, parts
from tracekit.model import cache, expansion
from tracekit.model.errors import TracekitError
from tracekit.model.files import Sign, is_settled, sign_of
from tracekit.model.labels import shown
from tracekit.model.redaction import redact, shown_cause
from tracekit.model.temporaries import new_folder
from tracekit.model.units import show

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


def here(path: str | Path) -> Path:
    """Return a local path: `path` itself, or copies if it is an address or an archive."""
    if isinstance(path, str) and is_address(path):
        return of_address(path)
    return of_archive(Path(path)) if is_archive(Path(path)) else Path(path)


@once
def of_address(address: str) -> Path:
    """Fetch the files at an address, which may be a pattern, once per process: the directory (or file) of copies.

    Raises `TracekitError` if there is nothing, the store cannot be reached, or its package is not installed.
    """
    return _copied(address, stores.listed(address))


def of_archive(path: Path) -> Path:
    """Extract an archive's members: the directory of copies. Raises `TracekitError` if the archive cannot be read."""
    return _of_archive(path, sign_of(path.stat()))


@once
def _of_archive(path: Path, sign: Sign) -> Path:
    """Extract an archive in this state (`sign`), once per process."""
    import tarfile
    import zipfile

    name = path.name.partition(".")[0] or "archive"
    # Without a settled state copies are not reused: the file may change again and keep its times.
    state = f"{path} {sign}" if is_settled(sign, time.time_ns()) else None
    try:
        with ExitStack() as stack:
            if path.name.lower().endswith(".zip"):
                members = list(_zipped(stack.enter_context(zipfile.ZipFile(path)), state, name))
            else:
                members = list(_tarred(stack.enter_context(tarfile.open(path)), state, name))
            _refuse_twice(path, members)
            if len(members) > MOST_FILES:
                problem = f"{shown(str(path))}: {len(members):,} files"
                raise TracekitError(problem, "unpack a part of them")
            most = expansion.most_bytes(path.stat().st_size)
            return _copied(str(path), Listed(tuple(members), (name,)), most)
    except (
        OSError,
        EOFError,
        zipfile.BadZipFile,
        tarfile.TarError,
        ValueError,
        RuntimeError,
    ) as error:
        raise TracekitError(
            f"{shown(str(path))}: the archive cannot be read: {error}",
            "unpack what can be had of it first",
        ) from error


# Archives


def _zipped(archive: zipfile.ZipFile, state: str | None, top: str) -> Iterator[Original]:
    """List the files of a zip archive."""
    for member in archive.infolist():
        if not member.is_dir():
            if member.flag_bits & _ENCRYPTED:
                raise TracekitError(
                    f"{shown(str(archive.filename))}: {shown(member.filename)} is encrypted", _UNZIP
                )
            opened = partial(archive.open, member)
            names = top, *parts(member.filename)
            yield Original(names, member.file_size, state and f"{state} {member.CRC}", opened)


def _refuse_twice(path: Path, members: Iterable[Original]) -> None:
    """Raise `TracekitError` if two members of a zip archive have the same name, because the choice is ambiguous.

    Tar archives are updated by appending the new version of a file, so there the last one counts.
    """
    if path.name.lower().endswith(".zip"):
        counts = Counter("/".join(member.parts[1:]) for member in members)
        twice = next((name for name, count in counts.items() if count > 1), None)
        if twice is not None:
            problem = f"{shown(str(path))}: {counts[twice]} members are called {shown(twice)}"
            raise TracekitError(problem, _UNZIP)


def _tarred(archive: tarfile.TarFile, state: str | None, top: str) -> Iterator[Original]:
    """List the regular files of a tar archive, without links and devices."""
    for member in archive:
        if member.isreg():
            opened = partial(_of_tar, archive, member)
            names = top, *parts(member.name)
            yield Original(names, member.size, state and f"{state} {member.offset}", opened)


def _of_tar(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    """Open a regular file of a tar archive."""
    stream = archive.extractfile(member)
    assert stream is not None, "a regular file"
    return stream


# Copies


def _copied(text: str, found: Listed, most_bytes: int | None = None) -> Path:
    """Copy all originals into a directory without other files. Returns the directory, or the only copy.

    Copies of archive members are limited to `most_bytes` in total.
    """
    folder, shown_text = _folder(text), redact(text)
    top = folder / "copies"
    before = _index(folder)
    wanted = {"/".join(original.parts): original for original in found.originals}
    _remove_others(top, wanted)
    limit = cache.limit_bytes()
    is_bomb = most_bytes is not None and most_bytes < limit
    left = most_bytes if is_bomb and most_bytes is not None else limit
    index: dict[str, list[Any]] = {}
    for number, (below, original) in enumerate(wanted.items(), 1):
        target = top.joinpath(*original.parts)
        entry = [original.size_bytes, original.sign]
        if original.sign is None or before.get(below) != entry or not target.is_file():
            try:
                _copy(shown_text, original, target, left, _too_large(shown_text, is_bomb=is_bomb))
            except TracekitError:
                if original.is_asked:
                    raise
                continue
            for watcher in watchers:
                watcher(shown_text, number, len(wanted))
        left -= target.stat().st_size
        index[below] = entry
    cache.put(folder / _INDEX, json.dumps(index).encode())
    cache.hold(_held, folder / _INDEX)
    cache.forget_oldest(cache.limit_bytes())
    return top.joinpath(*(found.originals[0].parts if found.is_one else found.base))


def _folder(text: str) -> Path:
    """Create the folder for copies of the original with this name."""
    parent = None if cache.is_off() else cache.folder("fetched")
    if parent is None:
        return _held.enter_context(new_folder())
    folder = parent / hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    folder.mkdir(mode=0o700, exist_ok=True)
    cache.hold(_held, folder / _INDEX)
    return folder


def _index(folder: Path) -> dict[str, Any]:
    """Read sizes and signs of the copies by name. Empty if the index is damaged."""
    with suppress(OSError, ValueError):
        index = json.loads((folder / _INDEX).read_bytes())
        if isinstance(index, dict):
            return index
    return {}


def _remove_others(top: Path, wanted: Iterable[str]) -> None:
    """Remove copies whose original no longer exists."""
    keep = set(wanted)
    for path in sorted(top.rglob("*"), reverse=True):
        if path.is_dir():
            with suppress(OSError):
                path.rmdir()  # only if empty
        elif path.relative_to(top).as_posix() not in keep:
            path.unlink(missing_ok=True)


def _too_large(text: str, *, is_bomb: bool) -> TracekitError:
    """Build the error for too many bytes: the archive expands too much, or the copies exceed the cache limit."""
    if is_bomb:
        return TracekitError(f"{shown(text)}: {expansion.BOMB}", "unpack it first, or a part of it")
    return TracekitError(
        f"{shown(text)}: more than {show(cache.limit_bytes(), 'bytes')}, the most that is kept",
        f"name a part of it, or set {cache.LIMIT_VARIABLE}",
    )


def _copy(
    text: str, original: Original, target: Path, most_bytes: int, too_large: TracekitError
) -> None:
    """Copy one file completely or not at all. Raises `TracekitError` if it cannot be fetched."""
    below = "/".join(original.parts)
    unfinished = target.with_name(f"{cache.PARTIAL}{os.urandom(8).hex()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with original.open() as source, unfinished.open("xb") as file:
            for piece in _pieces(source, most_bytes, too_large):
                file.write(piece)
            _refuse_short(file.tell(), original.size_bytes)
        unfinished.replace(target)
    except TracekitError:
        raise
    except Exception as error:  # noqa: BLE001 - each store raises its own errors
        raise TracekitError(
            f"{shown(text)}: {shown(below)} cannot be fetched: {type(error).__name__}: {error}",
            "try again; what was fetched already is kept",
        ) from shown_cause(error)
    finally:
        unfinished.unlink(missing_ok=True)


def _refuse_short(count: int, size_bytes: int | None) -> None:
    """Raise `OSError` if a file ended before its size."""
    if size_bytes is not None and count < size_bytes:
        raise OSError(f"it ended after {count:,} of {size_bytes:,} bytes")


def _pieces(source: stores.Stream, most_bytes: int, too_large: TracekitError) -> Iterator[bytes]:
    """Read a file in pieces. Raises `too_large` beyond `most_bytes`."""
    count = 0
    while piece := source.read(PIECE_BYTES):
        count += len(piece)
        if count > most_bytes:
            raise too_large
        yield piece
