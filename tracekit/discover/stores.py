"""Listing of remote stores by address: the files there, and possible driver logs above. Nothing is copied here.

Directories are listed one by one, so listing stops early if a store has too many files. Driver logs are searched where
they would be on the local machine (`log_places`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, Self
from urllib.parse import unquote

from tracekit.discover.log_places import MOST_LOGS, STEPS_UP, is_output_folder, may_be_log
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.system.installed import install_command
from tracekit.model.text.labels import make_displayable, make_natural_key
from tracekit.model.text.patterns import compile_lazily
from tracekit.model.text.redaction import get_safe_cause, redact

SMALL_BYTES = 1 << 20
MOST_FILES = 100_000
LOG_BYTES = 1 << 28
"""Most bytes of logs fetched from above the address."""

_PROFILE = compile_lazily(
    r"(?i).*(?:\.(?:json|jsonl|pickle|pkl|snap|sqlite|nsys-rep|log|txt|manifest|tkm|csv|html)"
    r"(?:\.(?:gz|zst|xz|bz2|zip))?|\.(?:gz|zst|xz|bz2|zip))\Z"
)
"""Names of possible profiles. Other files are fetched only if they are small."""

_SAME_BY = (
    "ETag",
    "etag",
    "md5Hash",
    "checksum",
    "content_md5",
    "Content-MD5",
    "Digest",
    "blob_id",
    "LastModified",
    "last_modified",
    "Last-Modified",
    "mtime",
    "modified",
    "updated",
    "created",
    "date_time",
)
"""Metadata keys of stores that change with the file; the first known one is used."""

_MAGIC, _MAGIC_OF_PAGES = compile_lazily(r"[*?\[]"), re.compile(r"\*")

_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "hf": "huggingface_hub",
    "ssh": "paramiko",
    "sftp": "paramiko",
    "http": "aiohttp",
    "https": "aiohttp",
    "hdfs": "pyarrow",
    "abfs": "adlfs",
    "az": "adlfs",
}
"""Package that accesses each kind of store."""

_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, hold the keys",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS names the file of keys",
    "hf": "HF_TOKEN holds the key",
    "abfs": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY hold the keys",
    "ssh": "ssh://USER@HOST/PATH, with a key in ~/.ssh or in an agent",
    "hdfs": "HADOOP_HOME, JAVA_HOME and CLASSPATH tell where Hadoop's libraries are",
    "http": "copy it here by a program that can log in, and name the copy",
}
_SAME_KEYS = {"s3a": "s3", "gcs": "gs", "az": "abfs", "sftp": "ssh", "https": "http"}
_BUCKETS = ("s3", "gs", "abfs")
"""Stores whose first path part is a bucket."""

_REFUSED = compile_lazily("Credential|Authenti|Unauthorized|Forbidden|AccessDenied")
_UNREACHED = compile_lazily("Endpoint|Connect|Timeout|gaierror")
"""Patterns of exception class names; the packages with the classes may not be installed."""


class Stream(Protocol):
    """Readable stream of bytes."""

    def read(self, count: int, /) -> bytes: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One remote file: its path below the directory of copies, its size, and a sign that changes with its content.

    `is_asked` is false for files found above the address; failing to fetch them is not an error.
    """

    parts: tuple[str, ...]
    size_bytes: int | None
    sign: str | None
    open: Callable[[], AbstractContextManager[Stream]]
    is_asked: bool = True


@dataclass(frozen=True, slots=True)
class RemoteListing:
    """Files at an address. `base` is the path of the requested directory, or of the directory of the one file."""

    originals: tuple[StoredFile, ...]
    base: tuple[str, ...]
    is_one: bool = False


def _strip_url_query(address: str) -> str:
    """Strip the query of a URL."""
    return address.partition("?")[0]


def list_remote_files(address: str) -> RemoteListing:
    """List the files at an address, which may be a pattern. Raises `TracekitError` if there are none or access fails."""
    try:
        import fsspec
    except ImportError:
        raise TracekitError(f"{_format_address(address)}: addresses need fsspec", install_command("remote")) from None
    scheme = address.partition("://")[0].lower()
    store = None
    try:
        store, path = fsspec.core.url_to_fs(address)
        found = _list_store_path(store, path, is_folder=address.endswith("/"))
    except TracekitError:
        raise
    except Exception as error:  # noqa: BLE001 - each store has errors of its own
        raise _build_store_error(address, scheme, store, error) from get_safe_cause(error)
    if not any(original.is_asked for original in found.originals):
        raise _build_nothing_there_error(address, scheme, store)
    return found


def _list_store_path(store: Any, path: str, *, is_folder: bool) -> RemoteListing:
    """List the files at a path of a store, or those that match it."""
    magic = _MAGIC_OF_PAGES if "://" in path else _MAGIC
    if start := magic.search(path):
        base = path[: start.start()].rpartition("/")[0]
        matches = store.glob(path, detail=True)
        details = {name: matches[name] for name in matches if matches[name].get("type") == "file"}
        names = _split_store_folder(base)[-1:]
        matching = [_move_remote_file(original, names) for original in _select_likely_profiles(store, base, details)]
        return RemoteListing(tuple(matching), names)
    base = path.rstrip("/")
    detail = {"type": "directory"} if is_folder else store.info(base)
    is_one = detail.get("type") == "file" and not _is_directory_page(base, detail)
    if is_one:
        folder = (_strip_url_query(base) if "://" in base else base).rpartition("/")[0]
        originals = [_describe_remote_file(store, base, base[len(folder) :], detail)]
    else:
        folder = base
        originals = list(_select_likely_profiles(store, base, dict(_walk_store(store, base))))
    names = _split_store_folder(folder)
    up = 0
    while not is_one and up < min(STEPS_UP, len(names) - 1) and is_output_folder(names[-1 - up]):
        up += 1
    kept = names[-1 - up :]
    below = [_move_remote_file(original, kept) for original in originals]
    return RemoteListing((*below, *_list_remote_logs(store, folder, kept)), kept, is_one)


def _is_directory_page(path: str, detail: Mapping[str, Any]) -> bool:
    """Check whether a file is a web server's directory listing."""
    return detail.get("mimetype") == "text/html" and not path.lower().endswith((".html", ".htm"))


def _walk_store(store: Any, base: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every visible file below a directory with its full name. Raises `TracekitError` above `MOST_FILES`."""
    waiting, seen, count = [base], {base}, 0
    while waiting:
        for detail in store.ls(waiting.pop(), detail=True):
            full = detail["name"].rstrip("/")
            below = full.removeprefix(f"{base}/")
            # A directory page may link to anything.
            if below == full or full in seen or "/." in f"/{below}" or _is_page_variant(full):
                continue
            if detail.get("type") == "directory":
                seen.add(full)
                waiting.append(full)
                continue
            count += 1
            if count > MOST_FILES:
                raise TracekitError(f"{_format_address(base)}: more than {MOST_FILES:,} files", "name a part of them")
            yield full, detail


def _is_page_variant(full: str) -> bool:
    """Check whether a link is a variant of the same page, such as another sort order."""
    return "://" in full and "?" in full


def _select_likely_profiles(store: Any, base: str, details: Mapping[str, Mapping[str, Any]]) -> Iterator[StoredFile]:
    """Yield the files that may be profiles or describe one, by name and size."""
    for full, detail in sorted(details.items()):
        original = _describe_remote_file(store, full, full[len(base) :], detail)
        size = original.size_bytes
        if _PROFILE.match(original.parts[-1]) or (size is not None and size <= SMALL_BYTES):
            yield original


def _describe_remote_file(store: Any, full: str, below: str, detail: Mapping[str, Any]) -> StoredFile:
    """Build the description of one file of a store."""
    if _get_version_sign(detail) is None and "://" in full:
        detail = {**detail, **store.info(full)}  # a directory page has only names
    size = detail.get("size")
    size_bytes = size if isinstance(size, int) else None
    opened: Callable[[], AbstractContextManager[Stream]] = partial(store.open, full, "rb")
    if "://" in full:
        below = unquote(_strip_url_query(below))
        opened = partial(store.open, full, "rb", block_size=0)  # not every web server supports ranges
    elif size_bytes and hasattr(store, "ftp"):
        opened = partial(_SftpFile, store, full, size_bytes)
    return StoredFile(split_safe_path(below), size_bytes, _get_version_sign(detail), opened)


class _SftpFile:
    """An SFTP file that requests a whole piece at once, because single packets would each wait for the network."""

    def __init__(self, store: Any, full: str, size_bytes: int) -> None:
        self._file, self._at, self._size_bytes = store.open(full, "rb"), 0, size_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, count: int, /) -> bytes:
        """Read the next bytes."""
        count = min(count, self._size_bytes - self._at)
        piece = b"".join(self._file.readv([(self._at, count)])) if count else b""
        self._at += len(piece)
        return piece


def _get_version_sign(detail: Mapping[str, Any]) -> str | None:
    """Build a sign from the metadata that changes with the file; None if unknown."""
    return next((f"{key} {detail[key]}" for key in _SAME_BY if detail.get(key)), None)


def _list_remote_logs(store: Any, folder: str, base_names: tuple[str, ...]) -> Iterator[StoredFile]:
    """Yield the possible driver logs above a directory, by name, up to `LOG_BYTES` in total."""
    left = LOG_BYTES
    for up in range(1, len(base_names)):
        folder = folder.rpartition("/")[0]
        try:
            details = {entry["name"]: entry for entry in store.ls(folder, detail=True)}
            names = [
                name
                for name in details
                if name.rpartition("/")[0] == folder
                and details[name].get("type") == "file"
                and may_be_log(name.rpartition("/")[2])
            ]
            logs = [
                _describe_remote_file(store, name, name[len(folder) :], details[name])
                for name in sorted(names, key=make_natural_key)[:MOST_LOGS]
            ]
        except Exception:  # noqa: BLE001, S112 - as where a directory of this machine cannot be read
            continue
        for log in logs:
            left -= log.size_bytes or 0
            if left >= 0:
                yield _move_remote_file(log, base_names[:-up], is_asked=False)


def _move_remote_file(original: StoredFile, base_names: tuple[str, ...], *, is_asked: bool = True) -> StoredFile:
    """Move a file below these directories."""
    names = (*base_names, *original.parts)
    return StoredFile(names, original.size_bytes, original.sign, original.open, is_asked)


def _split_store_folder(base: str) -> tuple[str, ...]:
    """Split a store's directory into names, without the host of a web server. At least one name."""
    _, is_web, rest = base.rpartition("://")
    names = rest.split("/")
    if is_web:
        names = [unquote(name) for name in names[1:]]
    return tuple(name for name in names if name not in ("", ".", "..")) or ("all",)


def split_safe_path(name: str) -> tuple[str, ...]:
    """Split a path into names that are safe below a local directory. Raises `TracekitError` if it leads out of it."""
    names = tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))
    if not names or ".." in names or "\0" in name or max(len(part) for part in names) > 255:
        raise TracekitError(f"{make_displayable(name)!r}: no name that a file here may have", "rename it there")
    return names


# Errors


def _format_address(address: str) -> str:
    """Make the address printable."""
    return make_displayable(address)


def _build_store_error(address: str, scheme: str, store: Any, error: Exception) -> TracekitError:
    """Translate a store's error: credentials, network, missing files, a missing package, or its own message."""
    family = _SAME_KEYS.get(scheme, scheme)
    causes = list(_list_error_causes(error))
    if isinstance(error, ImportError):
        package = _PACKAGES.get(scheme)
        hint = f"pip install {package}" if package else "install what it names"
        return TracekitError(f"{_format_address(address)}: {error}", hint)
    told = redact(str(error).partition("\n")[0])
    if any(_is_access_refused(cause) for cause in causes):
        hint = _KEYS.get(family, "check the keys that its store asks for")
        return TracekitError(f"{_format_address(address)}: access is refused: {told}", hint)
    if unreached := next((cause for cause in causes if _is_unreachable(cause)), None):
        told = redact(str(unreached).partition("\n")[0])
        hint = "check the host in the address, and the network"
        if family == "s3":
            hint = "check AWS_ENDPOINT_URL, and the network"
        return TracekitError(f"{_format_address(address)}: cannot be reached: {told}", hint)
    if isinstance(error, FileNotFoundError):
        return _build_nothing_there_error(address, scheme, store)
    kind = type(error).__name__
    hint = _KEYS.get(family, "check the address, and the keys that its store asks for")
    return TracekitError(f"{_format_address(address)}: cannot be listed: {kind}: {told}", hint)


def _build_nothing_there_error(address: str, scheme: str, store: Any) -> TracekitError:
    """Build the error for an empty address. Checks whether the bucket exists."""
    if _SAME_KEYS.get(scheme, scheme) in _BUCKETS and store is not None:
        bucket = address.partition("://")[2].partition("/")[0]
        try:
            is_there = store.exists(bucket)
        except Exception:  # noqa: BLE001 - assume that it exists
            is_there = True
        if not is_there:
            return TracekitError(
                f"{_format_address(address)}: there is no bucket {make_displayable(bucket)!r}", "check its name"
            )
    return TracekitError(f"{_format_address(address)}: nothing is there", "check the address")


def _list_error_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def _is_access_refused(error: BaseException) -> bool:
    """Check whether a store refused the credentials."""
    is_named = bool(_REFUSED.search(type(error).__name__))
    return is_named or isinstance(error, PermissionError) or _get_http_status(error) in (401, 403)


def _is_unreachable(error: BaseException) -> bool:
    """Check whether a store did not answer."""
    from socket import gaierror

    if isinstance(error, ConnectionError | TimeoutError | gaierror):
        return True
    return bool(_UNREACHED.search(type(error).__name__)) and _get_http_status(error) is None


def _get_http_status(error: BaseException) -> int | None:
    """Read the HTTP status of an error; None if it has none."""
    status = getattr(error, "status", None)
    return status if isinstance(status, int) else None
