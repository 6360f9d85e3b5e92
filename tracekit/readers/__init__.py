"""Registry of the profile formats that tracekit reads.

To add a format, write a module here with `sniff` and `read`, and add one line to `READERS`.
A reader's module is imported only when a file may be in its format, because some imports are slow
(SQLite, for example, when only traces are read).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tracekit.model.inputs.note_codes import Data, Reason, explain_os_error
from tracekit.model.inputs.sources import Source, Tool, Want
from tracekit.model.records import dataclass
from tracekit.readers import unpack

if TYPE_CHECKING:
    from tracekit.model.trace import Trace

_MAGIC_BYTES = 16
HEAD_BYTES = 2**16
"""Bytes at the start of a file's text that readers see when they decide whether to claim it."""


def list_no_companions(path: Path) -> tuple[str, ...] | None:
    """List the other files that most readers depend on: none."""
    del path
    return ()


@dataclass(frozen=True, slots=True)
class Reader:
    """One format and the module that reads it.

    If `hint` is set, it matches the first bytes of every file of the format.
    `looks_beside`: the module has a function `describe_dependencies`, because it reads more than the one file.
    `one_by_one`: the module has a generator `each`, which builds a file's Traces one at a time.
    """

    name: str
    tool: Tool
    file: str
    hint: bytes = b""
    looks_beside: bool = False
    one_by_one: bool = False

    @property
    def module(self) -> ModuleType:
        """Module that reads the format, imported on first use."""
        return import_module(f"tracekit.readers.{self.file}")

    @property
    def sniff(self) -> Callable[[bytes], bool]:
        """Function that recognizes the format by the first uncompressed bytes."""
        function: Callable[[bytes], bool] = self.module.sniff
        return function

    @property
    def read(self) -> Callable[[Source, Want, Callable[[int], None] | None], list[Trace]]:
        """Function that reads the Traces of a file."""
        function: Callable[[Source, Want, Callable[[int], None] | None], list[Trace]]
        function = self.module.read
        return function

    def each(self, source: Source, want: Want, on_bytes: Callable[[int], None] | None) -> Iterator[tuple[Trace, int]]:
        """Yield each Trace of a file with the number of Traces that follow it."""
        if self.one_by_one:
            yield from self.module.each(source, want, on_bytes)
            return
        traces = self.read(source, want, on_bytes)
        while traces:
            yield traces.pop(0), len(traces)

    @property
    def describe_dependencies(self) -> Callable[[Path], tuple[str, ...] | None]:
        """Function that describes the state of the other files that a profile depends on.

        It returns None if that state may change at any time.
        """
        if not self.looks_beside:
            return list_no_companions
        function: Callable[[Path], tuple[str, ...] | None] = self.module.describe_dependencies
        return function

    def claims(self, start: bytes) -> bool:
        """Check whether a file that begins with `start` is in this format."""
        return re.match(self.hint, start) is not None and self.sniff(start)


_FIRST_KEY = (
    rb'\s*+(?:\[\s*+)?\{\s*+"'
    rb"(?:segment|device|host_|allocator_|external_|address|total_size|blocks)"
)
"""Start of a memory snapshot in JSON; traces hardly ever start like this."""

_FIRST_DUMP_KEY = (
    rb'(?:\xef\xbb\xbf)?\s*+\{\s*+"(?:entries|version|pg_config|pg_status|comm_lib_version|nccl_comm_state|rank)"'
)
"""Start of a flight recorder in JSON; traces hardly ever start like this."""

_NOT_OBJECTS = rb"(?!\s*+(?:\{|\[\s*+\{))"
"""Start of a text that is neither a JSON object nor a list of objects."""

READERS: tuple[Reader, ...] = (
    Reader("nsys", "nsys", "nsys", rb"SQLite|\0", looks_beside=True, one_by_one=True),
    Reader("nsys_rep", "nsys", "nsys.report", rb"NVIDIA", looks_beside=True),
    Reader("flight_recorder", "log", "hangs.flight_recorder", rb"\x80|" + _FIRST_DUMP_KEY, looks_beside=True),
    Reader("ras", "log", "hangs.ras", _NOT_OBJECTS + rb'|\s*+\{\s*+"nccl'),
    Reader("driver_log", "log", "driver_log", looks_beside=True),
    Reader("tensorboard", "log", "driver_log.tensorboard", rb"(?s:.{3}\0{5})", looks_beside=True),
    Reader("wandb", "log", "driver_log.wandb", rb":W&B", looks_beside=True),
    Reader("mlflow", "log", "driver_log.mlflow", rb"SQLite", looks_beside=True),
    Reader("memory_log", "log", "memory_log"),
    Reader("thread_stacks", "log", "hangs.thread_stacks", _NOT_OBJECTS + rb'|\s*+\[\s*+\{\s*+"pid"'),
    Reader("watchdog_log", "log", "hangs.watchdog_log", _NOT_OBJECTS),
    Reader("engine_log", "log", "engine_log"),
    Reader("request_log", "log", "request_log", rb"\s*+\{"),
    Reader("ray_timeline", "log", "ray_timeline", rb"(?:\xef\xbb\xbf)?\s*+\["),
    Reader("memory_timeline", "torch_memory", "torch_memory.timeline", rb"\s*+\[\s*+\["),
    Reader("torch_memory", "torch_memory", "torch_memory", rb"\x80|\s*+<|" + _FIRST_KEY),
    Reader("chrome", "torch", "chrome"),
)

TRAINING_LOGS = frozenset({"driver_log", "tensorboard", "wandb", "mlflow"})
"""Names of the readers of training logs."""

HANG_FILES = frozenset({"flight_recorder", "ras", "thread_stacks", "watchdog_log"})
"""Names of the readers of files that a job leaves when it hangs."""

SERVER_LOGS = frozenset({"engine_log", "request_log", "ray_timeline"})
"""Names of the readers of logs of rollout engines, machines and Ray."""


def read_text_head(path: Path) -> tuple[bytes, Reason | None]:
    """Read the first bytes of a file's text, uncompressed.

    Returns (bytes, None), or (empty bytes, the reason).
    """
    for careful in (False, True):
        start = bytearray()
        try:
            for block in unpack.unpack_blocks(path, [], size=HEAD_BYTES, careful=careful):
                start += block
                if len(start) >= HEAD_BYTES:
                    break
        except unpack.Unproven:
            continue
        except OSError as error:
            text = error.strerror or type(error).__name__
            return b"", replace(explain_os_error(error), text=text)
        return bytes(start[:HEAD_BYTES]), None if start else _explain_missing_text(path)
    return b"", _explain_missing_text(path)


def _explain_missing_text(path: Path) -> Reason:
    """Explain why a file that could be opened has no text."""
    form = detect_file_compression(path)
    if not form:
        return Reason("no-text", "the file holds no text")
    text = f"the file holds no text: its {form} stream is empty, cut off or damaged"
    return Reason("cut-stream", text, Data(form=form))


def find_reader(name: str) -> Reader:
    """Find a reader by its name."""
    return next(reader for reader in READERS if reader.name == name)


def detect_file_compression(path: Path) -> str:
    """Name the compression of a file: gzip, Zstandard, xz, bzip2 or zip.

    The name is empty for an uncompressed file and for one that cannot be opened.
    """
    try:
        with path.open("rb") as stream:
            return unpack.name_compression(stream.read(_MAGIC_BYTES))
    except OSError:
        return ""
