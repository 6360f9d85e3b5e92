"""Formats that can be read. A new one is a file with `sniff` and `read`, and one line in `READERS`.

A file here is imported when something may be of its format: who has traces does not wait for what reads databases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tracekit.model.codes import Data, Reason, why_unread
from tracekit.model.records import dataclass
from tracekit.model.sources import Source, Tool, Want
from tracekit.readers import unpack

if TYPE_CHECKING:
    from tracekit.model.trace import Trace

_MAGIC_BYTES = 16
HEAD_BYTES = 2**16
"""How much of a file's text a reader sees to claim it."""


def nothing_beside(path: Path) -> tuple[str, ...] | None:
    """What most readers read besides the file: nothing."""
    del path
    return ()


@dataclass(frozen=True, slots=True)
class Reader:
    """One format, and the file here that reads it.

    Where `hint` is said, the first bytes of every file of the format match that expression. `looks_beside`
    says that its file has a function `beside`: what it reads is not in the file alone; `one_by_one`
    that it has a function `each`: of several Traces each is made when it is asked for.
    """

    name: str
    tool: Tool
    file: str
    hint: bytes = b""
    looks_beside: bool = False
    one_by_one: bool = False

    @property
    def module(self) -> ModuleType:
        """The file that reads it, imported now."""
        return import_module(f"tracekit.readers.{self.file}")

    @property
    def sniff(self) -> Callable[[bytes], bool]:
        """The function that tells the format by the first (inflated) bytes."""
        function: Callable[[bytes], bool] = self.module.sniff
        return function

    @property
    def read(self) -> Callable[[Source, Want, Callable[[int], None] | None], list[Trace]]:
        """The function that gives the Traces of a file."""
        function: Callable[[Source, Want, Callable[[int], None] | None], list[Trace]]
        function = self.module.read
        return function

    def each(
        self, source: Source, want: Want, on_bytes: Callable[[int], None] | None
    ) -> Iterator[tuple[Trace, int]]:
        """Each Trace of a file, and how many follow it."""
        if self.one_by_one:
            yield from self.module.each(source, want, on_bytes)
            return
        traces = self.read(source, want, on_bytes)
        while traces:
            yield traces.pop(0), len(traces)

    @property
    def beside(self) -> Callable[[Path], tuple[str, ...] | None]:
        """The function that tells the state of all else that is read for a file; None where that may change at any time."""
        if not self.looks_beside:
            return nothing_beside
        function: Callable[[Path], tuple[str, ...] | None] = self.module.beside
        return function

    def claims(self, start: bytes) -> bool:
        """Whether a file that begins so is of this format."""
        return re.match(self.hint, start) is not None and self.sniff(start)


_FIRST_KEY = (
    rb'\s*+(?:\[\s*+)?\{\s*+"'
    rb"(?:segment|device|host_|allocator_|external_|address|total_size|blocks)"
)
"""How a memory snapshot begins that is JSON, and hardly a trace."""

READERS: tuple[Reader, ...] = (
    Reader("nsys", "nsys", "nsys", rb"SQLite|\0", looks_beside=True, one_by_one=True),
    Reader("nsys_rep", "nsys", "nsys.report", rb"NVIDIA", looks_beside=True),
    Reader("driver_log", "log", "driver_log"),
    Reader("memory_log", "log", "memory_log"),
    Reader("memory_timeline", "torch_memory", "torch_memory.timeline", rb"\s*+\[\s*+\["),
    Reader("torch_memory", "torch_memory", "torch_memory", rb"\x80|\s*+<|" + _FIRST_KEY),
    Reader("chrome", "torch", "chrome"),
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


def reader_named(name: str) -> Reader:
    """The reader of that name."""
    return next(reader for reader in READERS if reader.name == name)


def form_of(path: Path) -> str:
    """How a file is packed: gzip, Zstandard, xz, bzip2 or zip; empty for one that is plain or cannot be opened."""
    try:
        with path.open("rb") as stream:
            return unpack.form_name(stream.read(_MAGIC_BYTES))
    except OSError:
        return ""
