"""What does not lie on this machine as files: addresses of other stores, and members of archives, as a directory of copies.

A copy is kept in the cache (`model/cache.py`, kind `fetched`) and taken again while its original is told to be the same, by
size and by what its store says of it (a tag, a checksum, a time). Nothing is written anywhere else. Where nothing may
be kept the copies last as long as the process.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import cache as once
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from tracekit.model import cache
from tracekit.model.errors import TracekitError
from tracekit.model.labels import shown
from tracekit.model.records import dataclass
from tracekit.model.units import show

if TYPE_CHECKING:
    import tarfile
    import zipfile

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_ARCHIVE = re.compile(r"(?i).*\.(?:zip|tar|tgz|tbz2?|txz|tar\.(?:gz|bz2|xz))\Z")
_PROFILE = re.compile(
    r"(?i).*(?:\.(?:json|jsonl|pickle|pkl|snap|sqlite|nsys-rep|log|txt|manifest|tkm|csv|html)"
    r"(?:\.(?:gz|zst|xz|bz2|zip))?|\.(?:gz|zst|xz|bz2|zip))\Z"
)
"""How files may be called that are worth a look; others are fetched where they are small."""

SMALL_BYTES = 1 << 20
PIECE_BYTES = 1 << 20
MOST_FILES = 100_000
_INDEX = cache.INDEX
_SAME_BY = (
    "ETag",
    "etag",
    "md5Hash",
    "checksum",
    "content_md5",
    "blob_id",
    "LastModified",
    "last_modified",
    "mtime",
    "modified",
    "updated",
    "created",
    "date_time",
)
"""What stores say of a file that changes with it; the first that is known counts."""

_held = ExitStack()
atexit.register(_held.close)

watchers: list[Callable[[str, int, int], None]] = []
"""Who is told of every file that is fetched: the address, how many files are here by then, of how many."""


@dataclass(frozen=True, slots=True)
class _Original:
    """One file elsewhere: its names below what was asked for, its size, what tells it from another state of it."""

    parts: tuple[str, ...]
    size_bytes: int | None
    sign: str | None
    open: Callable[[], IO[bytes]]


def is_address(text: str) -> bool:
    """Whether the text is an address of a store, not a path of this machine."""
    return bool(_ADDRESS.match(text))


def is_archive(path: Path) -> bool:
    """Whether a file is an archive whose members are files of their own; a packed single file is none."""
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
    """The path itself, or that of copies where it is an address or an archive."""
    if isinstance(path, str) and is_address(path):
        return of_address(path)
    return of_archive(Path(path)) if is_archive(Path(path)) else Path(path)


@once
def of_address(address: str) -> Path:
    """The directory (or file) of copies of what lies at an address, which may be a pattern; looked at once a process.

    Raises `TracekitError` where nothing is there, the store cannot be asked, or the package that speaks to it is missing.
    """
    try:
        import fsspec
    except ImportError:
        raise TracekitError(
            f"{shown(address)}: addresses need fsspec", "pip install 'tracekit-rl[remote]'"
        ) from None
    try:
        store, path = fsspec.core.url_to_fs(address)
        originals, name, is_one = _listed(store, path)
    except FileNotFoundError:
        raise TracekitError(f"{shown(address)}: nothing is there", "check the address") from None
    except ImportError as error:
        raise TracekitError(f"{shown(address)}: {error}", "install what it names") from None
    except TracekitError:
        raise
    except Exception as error:
        raise TracekitError(
            f"{shown(address)}: cannot be listed: {type(error).__name__}: {error}",
            "check the address, and the variables that its store takes keys from",
        ) from error
    if not originals:
        raise TracekitError(f"{shown(address)}: nothing is there", "check the address")
    return _copied(address, name, originals, is_one=is_one)


def of_archive(path: Path) -> Path:
    """The directory of copies of the members of an archive; raises `TracekitError` for one that cannot be read."""
    status = path.stat()
    state = f"{path} {status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
    return _of_archive(path, state)


@once
def _of_archive(path: Path, state: str) -> Path:
    import tarfile
    import zipfile

    name = path.name.partition(".")[0] or "archive"
    try:
        with ExitStack() as stack:
            if path.name.lower().endswith(".zip"):
                originals = _zipped(stack.enter_context(zipfile.ZipFile(path)), state)
            else:
                originals = _tarred(stack.enter_context(tarfile.open(path)), state)
            return _copied(str(path), name, list(originals), is_one=False)
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


# What lies where


def _listed(store: Any, path: str) -> tuple[list[_Original], str, bool]:
    """(the files at a path or that match it, what they are called together, whether it is one file alone)."""
    pattern = not {"*", "?", "["}.isdisjoint(path)
    if pattern:
        base = path[: min(path.find(sign) for sign in "*?[" if sign in path)].rpartition("/")[0]
        matches = store.glob(path, detail=True)
        details = {name: matches[name] for name in matches if matches[name].get("type") == "file"}
    else:
        base = path.rstrip("/")
        detail = store.info(base)
        if detail.get("type") == "file":
            base = base.rpartition("/")[0]
            details = {path: detail}
        else:
            details = store.find(base, detail=True)
    is_one = not pattern and len(details) == 1 and path in details
    name = PurePosixPath(path if is_one else base or "all").name or "all"
    originals = []
    for full, detail in sorted(details.items()):
        original = _original(store, full, full[len(base) :].strip("/"), detail)
        if is_one or _is_worth(original):
            originals.append(original)
    return originals, name, is_one


def _original(store: Any, full: str, below: str, detail: dict[str, Any]) -> _Original:
    """One file of a store."""
    sign = next((f"{key} {detail[key]}" for key in _SAME_BY if detail.get(key)), None)
    size = detail.get("size")
    size_bytes = size if isinstance(size, int) else None
    return _Original(_parts(below), size_bytes, sign, partial(store.open, full, "rb"))


def _is_worth(original: _Original) -> bool:
    """Whether a file among others may be a profile or tell of one, by its name and size."""
    size = original.size_bytes
    return bool(_PROFILE.match(original.parts[-1])) or (size is not None and size <= SMALL_BYTES)


def _zipped(archive: zipfile.ZipFile, state: str) -> Iterator[_Original]:
    """The files of a zip archive."""
    for member in archive.infolist():
        if not member.is_dir():
            opened = partial(archive.open, member)
            parts = _parts(member.filename)
            yield _Original(parts, member.file_size, f"{state} {member.CRC}", opened)


def _tarred(archive: tarfile.TarFile, state: str) -> Iterator[_Original]:
    """The regular files of a tar archive; links and devices are none."""
    for member in archive:
        if member.isreg():
            opened = partial(_of_tar, archive, member)
            yield _Original(_parts(member.name), member.size, f"{state} {member.offset}", opened)


def _of_tar(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    """A regular file of a tar archive."""
    stream = archive.extractfile(member)
    assert stream is not None, "a regular file"
    return stream


def _parts(name: str) -> tuple[str, ...]:
    """The names of a path as it may stand below a directory of ours; raises `TracekitError` for one that leads out of it."""
    parts = tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))
    if not parts or ".." in parts or "\0" in name or max(map(len, parts)) > 255:
        raise TracekitError(
            f"{shown(name)!r}: no name that a file here may have", "rename it there"
        )
    return parts


# Copies


def _copied(text: str, name: str, originals: list[_Original], *, is_one: bool) -> Path:
    """The directory that holds copies of all originals and nothing else, or the one copy."""
    if len(originals) > MOST_FILES:
        raise TracekitError(f"{shown(text)}: {len(originals):,} files", "name a part of them")
    folder = _folder(text)
    top = folder / "copies" / name
    before = _index(folder)
    wanted = {"/".join(original.parts): original for original in originals}
    _remove_others(top, wanted)
    left = cache.limit_bytes()
    index: dict[str, list[Any]] = {}
    for number, (below, original) in enumerate(wanted.items(), 1):
        target = top.joinpath(*original.parts)
        entry = [original.size_bytes, original.sign]
        if original.sign is None or before.get(below) != entry or not target.is_file():
            _copy(text, original, target, left)
            for watcher in watchers:
                watcher(text, number, len(wanted))
        left -= target.stat().st_size
        index[below] = entry
    cache.put(folder / _INDEX, json.dumps(index).encode())
    cache.hold(_held, folder / _INDEX)
    cache.forget_oldest(cache.limit_bytes())
    return top.joinpath(*originals[0].parts) if is_one else top


def _folder(text: str) -> Path:
    """Where the copies of what has this name are kept."""
    parent = None if cache.is_off() else cache.folder("fetched")
    if parent is None:
        import tempfile

        temporary = tempfile.mkdtemp(prefix="tracekit-")
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return Path(temporary)
    folder = parent / hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    folder.mkdir(mode=0o700, exist_ok=True)
    cache.hold(_held, folder / _INDEX)
    return folder


def _index(folder: Path) -> dict[str, Any]:
    """The sizes and signs of what is there, by name; nothing where it is damaged."""
    with suppress(OSError, ValueError):
        index = json.loads((folder / _INDEX).read_bytes())
        if isinstance(index, dict):
            return index
    return {}


def _remove_others(top: Path, wanted: Iterable[str]) -> None:
    """Nothing; copies of what is not there any more are removed."""
    keep = set(wanted)
    for path in sorted(top.rglob("*"), reverse=True):
        if path.is_dir():
            with suppress(OSError):
                path.rmdir()  # only where it is empty
        elif path.relative_to(top).as_posix() not in keep:
            path.unlink(missing_ok=True)


def _copy(text: str, original: _Original, target: Path, most_bytes: int) -> None:
    """Nothing; afterwards the copy is whole, or not there: raises `TracekitError` where it cannot be had."""
    below = "/".join(original.parts)
    unfinished = target.with_name(f"{cache.PARTIAL}{os.urandom(8).hex()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with original.open() as source, unfinished.open("xb") as file:
            for piece in _pieces(source, most_bytes, text):
                file.write(piece)
        unfinished.replace(target)
    except TracekitError:
        raise
    except Exception as error:
        raise TracekitError(
            f"{shown(text)}: {shown(below)} cannot be fetched: {type(error).__name__}: {error}",
            "try again; what was fetched already is kept",
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _pieces(source: IO[bytes], most_bytes: int, text: str) -> Iterator[bytes]:
    """The bytes of a file; raises `TracekitError` after so many."""
    count = 0
    while piece := source.read(PIECE_BYTES):
        count += len(piece)
        if count > most_bytes:
            raise TracekitError(
                f"{shown(text)}: more than {show(cache.limit_bytes(), 'bytes')}, the most that is kept",
                f"name a part of it, or set {cache.LIMIT_VARIABLE}",
            )
        yield piece
