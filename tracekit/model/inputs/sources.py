"""Input files and their status: `Source`, `Note`, `Failure` and `Fault`. Must not import numpy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from tracekit.model.inputs.note_codes import NO_DATA, UNKNOWN, Data
from tracekit.model.records import dataclass

Tool = Literal["torch", "nsys", "torch_memory", "log"]
NoteSeverity = Literal["info", "warning", "data_loss", "error"]


@dataclass(frozen=True, slots=True)
class Note:
    """A property of a source that limits conclusions; shown in the report.

    `code` is one of `codes.CODES` with its `data`; `message` is the same in words.
    """

    severity: NoteSeverity
    code: str
    message: str
    source: str = ""
    count: int = 1
    offset: int | None = None
    data: Data = NO_DATA


@dataclass(frozen=True, slots=True)
class ReportedCapture:
    """A capture as reported by its process: the step, start and stop; None if unknown or not finished.

    `outcome` is "file", "elsewhere" (written by another program, to `where`) or "lost"; `because` lists missing parts and
    the reasons.
    """

    step: int | None
    scope: str | None = None
    start_unix_ns: int | None = None
    stop_unix_ns: int | None = None
    outcome: str | None = None
    where: str | None = None
    because: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Account:
    """A process's report about itself and its captures, from the manifest `name`; `discrete`: one capture per stage.

    An empty name marks a process without a manifest; `captures` are then those of other processes of its job.
    `ray_worker` is its id in a Ray timeline.
    """

    name: str
    pid: int | None
    host: str | None = None
    role: str | None = None
    rank: int | None = None
    world_size: int | None = None
    cores: str | None = None
    captures: tuple[ReportedCapture, ...] = ()
    discrete: bool = False
    ray_worker: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """One input file and its metadata, first from names and manifests, then completed by its reader.

    `name` is the displayed path (relative to the given directory). `scope` is the part of a run that the file covers, as
    recorded (`train`, `e2e`, `actor-update`), and `part` the piece of it (`mb1`, `part2`). `node` is the id of the cluster
    node that has the file; None if it is local or unknown. `content` is a digest of the content
    (`contents.digest_content`), computed when the file is measured. `cores` are the CPU cores that the process may use (`0-3,8`).
    `accounts` are those of processes that may have written this file, or that a Ray timeline is about. None means unknown, never 0.
    """

    path: Path
    name: str
    reader: str
    tool: Tool = "torch"
    run: str = ""
    role: str | None = None
    scope: str | None = None
    step: int | None = None
    rank: int | None = None
    world_size: int | None = None
    replica: int | None = None
    topology: str | None = None
    part: str | None = None
    host: str | None = None
    pid: int | None = None
    cores: str | None = None
    size_bytes: int = 0
    notes: tuple[Note, ...] = ()
    node: str | None = None
    content: str | None = None
    accounts: tuple[Account, ...] = ()

    def with_note(self, severity: NoteSeverity, code: str, message: str, data: Data = NO_DATA) -> Source:
        """Copy this source with one more note."""
        note = Note(severity, code, message, self.name, data=data)
        return replace(self, notes=(*self.notes, note))


ON_REQUEST = frozenset({"flows", "python_calls", "cpu_samples", "thread_states"})
"""Raw tables that are large, so they are read only on request; their threads are those of other tables."""


@dataclass(frozen=True, slots=True)
class Want:
    """Parts to read from a source; a light question reads little.

    `tables=None` means all cheap tables (everything but `ON_REQUEST`); `args=None` means every key. `columns` are the
    nullable columns needed (None: all): a reader may leave the others <NA> and drop arguments that columns were made from.
    `modules` requests the Python functions that are calls of a model's modules; `python` requests all of them.
    """

    tables: frozenset[str] | None = None
    args: tuple[str, ...] | None = None
    columns: frozenset[str] | None = None
    python: bool = False
    stacks: bool = False
    modules: bool = True

    def table(self, name: str) -> bool:
        """Whether table `name` is wanted."""
        if self.tables is None:
            return name not in ON_REQUEST
        return name in self.tables

    def column(self, name: str) -> bool:
        """Whether a nullable column is needed."""
        return self.columns is None or name in self.columns


@dataclass(frozen=True, slots=True)
class Read:
    """Number and total size of the files read."""

    count: int
    size_bytes: int


@dataclass(frozen=True)
class Failure:
    """A source that could not be read or measured, as data rather than an exception; `code` is one of `codes.CODES`."""

    source: str
    problem: str
    hint: str = ""
    code: str = UNKNOWN
    data: Data = NO_DATA


@dataclass(frozen=True, slots=True)
class Fault:
    """An error of tracekit while measuring or folding one question for one process in one source.

    The `tables` that the question should have written for that process are *failed*: neither absent (not recorded) nor
    empty (recorded without rows). `metrics` names its rows in the table `metrics`, which several questions fill.
    """

    question: str
    action: Literal["measured", "folded"]
    error: str
    source: str
    pid: int | None
    tables: tuple[str, ...]
    metrics: tuple[str, ...] = ()
    file: str = ""
    """The user's file that defines the question, which is then responsible for the error."""
