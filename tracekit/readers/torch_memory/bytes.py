"""Extraction of a memory snapshot's pickle from a plain file, a compressed file, or a `_memory_viz` HTML page."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from pathlib import Path

from tracekit.model.errors import TraceFormatError, make_format_error, make_os_read_error
from tracekit.model.inputs import unpacked_size
from tracekit.model.inputs.note_codes import TOO_LARGE, Data, Reason
from tracekit.readers import unpack
from tracekit.readers.loss import DataLoss

MAX_BYTES = 2 * 2**30
"""Largest pickle that is read: about 12 million actions with stacks, using five times its size in memory."""

_FREE_INFLATED, _MOST_INFLATED = 2**24, 200
"""Largest inflated size without a check, and largest expansion above it. Real snapshots compress at most 30-fold."""

_MAGIC_BYTES = 16

_PAGE = (b"local_files", b"add_local_files")
_IN_PAGE = re.compile(rb'"base64"\s*:\s*"([A-Za-z0-9+/]*+={0,2})"')
_KEYS = (b"segments", b"device_traces", b"segment_type", b"host_segments")

_NEITHER = (
    (
        b"version https://git-lfs",
        Reason("lfs-pointer", "a Git LFS pointer: the file itself was not downloaded"),
        "git lfs pull",
    ),
    (
        b"PK\x03\x04",
        Reason("no-snapshot", "a zip archive, as torch.save writes, and no snapshot"),
        "torch.cuda.memory._dump_snapshot writes one",
    ),
    (b"SQLite format 3", Reason("no-snapshot", "an SQLite database, and no snapshot"), ""),
)


def is_pickled_snapshot(head: bytes) -> bool:
    """Check whether text begins like a memory snapshot: a pickle with its keys, or a page with one."""
    if head[:1] == b"\x80":
        return head[1:2] in (b"\2", b"\3", b"\4", b"\5") and any(key in head for key in _KEYS)
    return head.lstrip()[:1] == b"<" and any(mark in head for mark in _PAGE)


def read_pickle(path: Path, on_bytes: Callable[[int], None] | None = None, max_bytes: int = MAX_BYTES) -> bytes:
    """Read the bytes of the pickle in a file. Raises `TraceFormatError` if there is none, or if it exceeds `max_bytes`.

    `on_bytes` is called with the bytes of the file read so far.
    """
    try:
        size = path.stat().st_size
        data = _read_inflated(path, size, max_bytes, on_bytes)
    except OSError as error:
        raise make_os_read_error(path, error, "check the file and its permissions") from error
    except MemoryError as error:
        raise make_format_error(path, TOO_LARGE, _SMALLER) from error
    if data[:1] == b"\x80":
        return data
    for magic, reason, hint in _NEITHER:
        if data.startswith(magic):
            raise make_format_error(path, reason, hint)
    if data[:4096].lstrip()[:1] == b"<":
        return _decode_page(data, path)
    return data


_SMALLER = "record fewer entries (max_entries of _record_memory_history)"


def _read_inflated(path: Path, size: int, max_bytes: int, on_bytes: Callable[[int], None] | None) -> bytes:
    """Read the file's bytes, inflated."""
    with path.open("rb") as file:
        packed = unpack.is_packed(file.read(_MAGIC_BYTES))
        if size > max_bytes:
            raise _build_pickle_limit_error(path, size, max_bytes)
        if not packed:
            file.seek(0)
            data = file.read(max_bytes + 1)
            if len(data) > max_bytes:
                raise _build_pickle_limit_error(path, len(data), max_bytes)
            if on_bytes is not None:
                on_bytes(len(data))
            return data
    max_size = min(max_bytes, max(_FREE_INFLATED, size * _MOST_INFLATED))
    try:
        return _inflate_snapshot(path, max_size, on_bytes, careful=False)
    except unpack.Unproven:
        return _inflate_snapshot(path, max_size, on_bytes, careful=True)


def _inflate_snapshot(path: Path, max_bytes: int, on_bytes: Callable[[int], None] | None, *, careful: bool) -> bytes:
    """Decompress at most `max_bytes` bytes. Raises `TraceFormatError` at any loss, because part of a pickle is useless."""
    pieces = bytearray()
    losses: list[DataLoss] = []
    for block in unpack.unpack_blocks(path, losses, careful=careful, on_bytes=on_bytes):
        pieces += block
        if len(pieces) > max_bytes:
            raise _build_pickle_limit_error(path, len(pieces), max_bytes)
    if losses and losses[0].kind == "packed-bomb":
        max_bytes = unpacked_size.limit_unpacked_bytes(path.stat().st_size)
        problem = f"{unpacked_size.BOMB}, to {max_bytes:,} bytes or more: over the limit"
        reason = Reason("too-many", problem, Data(count=losses[0].offset, most=max_bytes))
        raise make_format_error(path, reason, "unpack it first")
    if losses:
        problem = f"the compressed file is cut off or damaged at byte {losses[0].offset:,}"
        reason = Reason("cut-snapshot", problem, Data(offset=losses[0].offset))
        raise make_format_error(path, reason, "copy it again: part of a pickle cannot be read")
    return bytes(pieces)


def _decode_page(data: bytes, path: Path) -> bytes:
    """Decode the snapshot in a `_memory_viz` page."""
    if not any(mark in data for mark in _PAGE):
        reason = Reason("no-snapshot", "a page or XML, and no snapshot")
        raise make_format_error(path, reason, "name the pickle itself")
    snapshots = [match[1] for match in _IN_PAGE.finditer(data)]
    if len(snapshots) != 1:
        problem = f"a page that holds {len(snapshots)} snapshots, not one"
        raise make_format_error(path, Reason("no-snapshot", problem), "name the pickle itself")
    try:
        return base64.b64decode(snapshots[0], validate=True)
    except binascii.Error as error:
        problem = f"the snapshot in the page is damaged: {error}"
        raise make_format_error(path, Reason("damaged-snapshot", problem), "write the page again") from error


def _build_pickle_limit_error(path: Path, size: int, max_size: int) -> TraceFormatError:
    """Build the error for a file above the size limit."""
    problem = f"a pickle of {size:,} bytes or more: over {max_size:,}"
    return make_format_error(path, Reason("too-many", problem, Data(count=size, most=max_size)), _SMALLER)
