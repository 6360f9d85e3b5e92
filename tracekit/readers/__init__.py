"""Formats that can be read. A new one is a file with `sniff` and `read`, and one line in `READERS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from tracekit.model.codes import Data, Reason, why_unread
from tracekit.model.trace import Source, Tool, Trace, Want
from tracekit.readers import unpack

_MAGIC_BYTES = 16
HEAD_BYTES = 2**16
"""How much of a file's text a reader sees to claim it."""


def nothing_beside(path: Path) -> tuple[str, ...] | None:
    """What most readers read besides the file: nothing."""
    del path
    return ()


@dataclass(frozen=True, slots=True)
class Reader:
    """One format: `sniff` tells it by its first (inflated) bytes, `read` gives its Traces.

    `beside` tells the state of all else that it reads for a file; None where that may change at any time.
    """

    name: str
    tool: Tool
    sniff: Callable[[bytes], bool]
    read: Callable[[Source, Want, Callable[[int], None] | None], list[Trace]]
    beside: Callable[[Path], tuple[str, ...] | None] = nothing_beside


def _reader(name: str, tool: Tool, file: str = "") -> Reader:
    """The format that a file of this directory reads, by default the one of that name."""
    module = import_module(f"tracekit.readers.{file or name}")
    beside = getattr(module, "beside", nothing_beside)
    return Reader(name, tool, module.sniff, module.read, beside)


READERS: tuple[Reader, ...] = (
    _reader("driver_log", "log"),
    _reader("memory_log", "log"),
    _reader("memory_timeline", "torch_memory", "torch_memory.timeline"),
    _reader("nsys", "nsys"),
    _reader("nsys_rep", "nsys", "nsys.report"),
    _reader("torch_memory", "torch_memory"),
    _reader("chrome", "torch"),
)


def head(path: Path) -> tuple[bytes, Reason | None]:
    """(the first bytes of a file's text, why there are none); what is packed is unpacked for it."""
    for careful in (False, True):
        start = bytearray()
        try:
            for block in unpack.blocks(path, [], size=HEAD_BYTES, careful=careful):
                start += block
                if len(start) >= HEAD_BYTES:
                    break
        except unpack.Unproven:
            continue
        except OSError as error:
            text = error.strerror or type(error).__name__
            return b"", replace(why_unread(error), text=text)
        return bytes(start[:HEAD_BYTES]), None if start else _no_text(path)
    return b"", _no_text(path)


def _no_text(path: Path) -> Reason:
    """Why there is no text in a file that could be opened."""
    form = form_of(path)
    if not form:
        return Reason("no-text", "the file holds no text")
    text = f"the file holds no text: its {form} stream is empty, cut off or damaged"
    return Reason("cut-stream", text, Data(form=form))


def form_of(path: Path) -> str:
    """How a file is packed: gzip, Zstandard, xz, bzip2 or zip; empty for one that is plain or cannot be opened."""
    try:
        with path.open("rb") as stream:
            return unpack.form_name(stream.read(_MAGIC_BYTES))
    except OSError:
        return ""
