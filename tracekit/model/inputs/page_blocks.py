"""Data of the explorer page for one process: columns of numbers, and their packed form for transport and storage.

    magic, then compressed:  length of the header (8 bytes), header (JSON), one column after the other

Unpacking trusts no input: it checks every size before use. `pipeline.cache.page_checks` checks the values.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.inputs.graph_columns import GraphKey, get_graph_key
from tracekit.model.inputs.sources import Source
from tracekit.model.records import dataclass

deflate: Any
try:
    from isal import isal_zlib as deflate
except ImportError:
    deflate = zlib

Numbers = npt.NDArray[np.integer[Any]]

MAGIC = b"tracekit page 1\n"
"""First bytes of the packed form; the number is its version."""

MAX_UNPACKED_BYTES = 1 << 30
"""Memory limit for the data of one process."""

_HEAD_LENGTH_BYTES = 8
_FASTEST = 1
_KINDS = ("u1", "u2", "u4", "u8")


class DamagedPageError(ValueError):
    """Bytes or columns that are not the page data of a process."""


@dataclass(frozen=True, slots=True, eq=False)
class PageBlocks:
    """Data of the explorer page for one process; no columns for a process without rows.

    `numbers` are columns by name, in the narrowest unsigned type. Times count from `base_ns`, a recorded instant. Names are
    positions in `names`. Call paths are positions in the columns `path.*`, stored + 1 (0: none). `threads` are the names
    of the host threads.
    """

    source: Source
    base_ns: int
    numbers: Mapping[str, Numbers]
    names: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PackedPage:
    """Data of the explorer page for one process, packed."""

    source: Source
    data: bytes = field(repr=False)

    @property
    def key(self) -> GraphKey:
        """Process of the data."""
        return get_graph_key(self.source)


def pack_page_blocks(blocks: PageBlocks) -> bytes:
    """Pack the page data of a process, without its source."""
    forms = [(name, f"u{array.dtype.itemsize}", len(array)) for name, array in blocks.numbers.items()]
    head = json.dumps([blocks.base_ns, forms, blocks.names, blocks.threads]).encode("ascii")
    columns = (array.astype(f"<u{array.dtype.itemsize}", copy=False).tobytes() for array in blocks.numbers.values())
    content = b"".join((len(head).to_bytes(_HEAD_LENGTH_BYTES, "little"), head, *columns))
    packed: bytes = deflate.compress(content, _FASTEST)
    return MAGIC + packed


def unpack_page_blocks(source: Any, data: bytes) -> PageBlocks:
    """Unpack the page data of a process. Raises `DamagedPageError` for malformed data."""
    if not data.startswith(MAGIC):
        raise DamagedPageError("another form")
    content = _inflate_content(data[len(MAGIC) :])
    head_end = _HEAD_LENGTH_BYTES + int.from_bytes(content[:_HEAD_LENGTH_BYTES], "little")
    try:
        base, forms, names, threads = json.loads(content[_HEAD_LENGTH_BYTES:head_end])
        numbers = _read_page_columns(content, head_end, forms)
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedPageError(f"malformed: {error}") from error
    if isinstance(base, bool) or not isinstance(base, int) or not -(2**61) < base < 2**61:
        raise DamagedPageError("no instant that times count from")
    return PageBlocks(source, base, numbers, _check_texts(names), _check_texts(threads))


def _inflate_content(data: bytes) -> bytes:
    """Inflate the packed form, up to the memory limit."""
    unpacker = deflate.decompressobj()
    try:
        content: bytes = unpacker.decompress(data, MAX_UNPACKED_BYTES)
    except deflate.error as error:
        raise DamagedPageError(f"damaged: {error}") from error
    if not unpacker.eof:
        raise DamagedPageError("incomplete, or more than the memory limit")
    return content


def _read_page_columns(content: bytes, place: int, forms: Any) -> dict[str, Numbers]:
    """Read the columns that follow the header. Raises `ValueError` or `TypeError` if they do not fit."""
    numbers: dict[str, Numbers] = {}
    for name, kind, length in forms:
        if kind not in _KINDS or isinstance(length, bool) or not isinstance(length, int) or length < 0:
            raise ValueError("a column of an unknown form")
        if not isinstance(name, str) or name in numbers:
            raise ValueError("a column without a name of its own")
        dtype = np.dtype("<" + kind)
        end = place + length * dtype.itemsize
        if end > len(content):
            raise ValueError("a column behind the end")
        numbers[name] = np.frombuffer(content, dtype, length, place)
        place = end
    if place != len(content):
        raise ValueError("bytes behind the last column")
    return numbers


def _check_texts(texts: Any) -> tuple[str, ...]:
    """Check a list of texts."""
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise DamagedPageError("not a list of texts")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise DamagedPageError("not a text") from error
    return tuple(texts)
