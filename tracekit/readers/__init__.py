"""Formats that can be read. A new one is a file with `sniff` and `read`, and one line in `READERS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tracekit.readers import gunzip
from tracekit.trace import Source, Tool, Trace, Want

HEAD_BYTES = 2**16
"""How much of a file's text a reader sees to claim it."""


@dataclass(frozen=True, slots=True)
class Reader:
    """One format: `sniff` tells it by its first (inflated) bytes, `read` gives its Traces."""

    name: str
    tool: Tool
    sniff: Callable[[bytes], bool]
    read: Callable[[Source, Want, Callable[[int], None] | None], list[Trace]]


def _reader(name: str, tool: Tool) -> Reader:
    """The format that a file of this directory reads."""
    module = import_module(f"tracekit.readers.{name}")
    return Reader(name, tool, module.sniff, module.read)


READERS: tuple[Reader, ...] = (
    _reader("chrome", "torch"),
    _reader("driver_log", "log"),
    _reader("memory_log", "log"),
    _reader("memory_timeline", "torch_memory"),
    _reader("nsys", "nsys"),
    _reader("nsys_rep", "nsys"),
    _reader("torch_memory", "torch_memory"),
)


def head(path: Path) -> tuple[bytes, str]:
    """(the first bytes of a file's text, why there are none); gzip is inflated."""
    for careful in (False, True):
        try:
            for block in gunzip.blocks(path, [], size=HEAD_BYTES, careful=careful):
                return block, ""
        except gunzip.Unproven:
            continue
        except OSError as error:
            return b"", error.strerror or str(error)
    return b"", "the file holds no text"
