"""What is known of files: `Source`, `Note`, and what became of them: `Failure`, `Fault`. Nothing here needs numpy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from tracekit.model.codes import NO_DATA, UNKNOWN, Data
from tracekit.model.records import dataclass

Tool = Literal["torch", "nsys", "torch_memory", "log"]
NoteSeverity = Literal["info", "warning", "data_loss", "error"]


@dataclass(frozen=True, slots=True)
class Note:
    """Something about a source that limits what can be concluded from it; the report shows it.

    `code` is one of `codes.CODES` with its `data`; `message` says the same to people.
    """

    severity: NoteSeverity
    code: str
    message: str
    source: str = ""
    count: int = 1
    offset: int | None = None
    data: Data = NO_DATA


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a process said it captured: the step, and from when to when; None is unknown, or not over.

    `outcome` is file, elsewhere (written by another, to `where`) or lost; `because` says what is missing, and why.
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
    """What a process says of itself and its captures, in the manifest of this name; `discrete`: one a stage.

    Without a name it is of a process that says nothing, and `captures` are those of the others of its job.
    """

    name: str
    pid: int | None
    host: str | None = None
    role: str | None = None
    rank: int | None = None
    world_size: int | None = None
    captures: tuple[Recorded, ...] = ()
    discrete: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """One file and what is known about it: from names and manifests at first, completed by its reader.

    `name` is the path as shown (relative to the directory given). `scope` is the part of a run that the
    file says it covers, as recorded (`train`, `e2e`, `actor-update`); `part` the piece of it (`mb1`,
    `part2`). `node` is the id of the node of a cluster that the file lies on: here, or not known any more, if
    None. `content` is the digest of what the file holds (`contents.content_digest`), made where it is measured.
    `accounts` are those of processes that this may be a file of. None is unknown, never 0.
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
    size_bytes: int = 0
    notes: tuple[Note, ...] = ()
    node: str | None = None
    content: str | None = None
    accounts: tuple[Account, ...] = ()

    def with_note(
        self, severity: NoteSeverity, code: str, message: str, data: Data = NO_DATA
    ) -> Source:
        """This source with one note more."""
        note = Note(severity, code, message, self.name, data=data)
        return replace(self, notes=(*self.notes, note))


ON_REQUEST = frozenset({"flows", "python_calls", "cpu_samples", "thread_states"})
"""The raw tables that are large, and whose threads are those of others."""


@dataclass(frozen=True, slots=True)
class Want:
    """What to read of a source: a light question reads little.

    `tables` None means all that is cheap (everything but `ON_REQUEST`); `args` None means every key. `columns`
    are the nullable columns that are needed: a reader may leave the others <NA> (None: all), and let go of
    arguments that columns were made of. `modules` are those Python functions that are calls of a model's
    modules; `python` means all of them.
    """

    tables: frozenset[str] | None = None
    args: tuple[str, ...] | None = None
    columns: frozenset[str] | None = None
    python: bool = False
    stacks: bool = False
    modules: bool = True

    def table(self, name: str) -> bool:
        """Whether `name` is wanted."""
        if self.tables is None:
            return name not in ON_REQUEST
        return name in self.tables

    def column(self, name: str) -> bool:
        """Whether a nullable column is needed."""
        return self.columns is None or name in self.columns


@dataclass(frozen=True, slots=True)
class Read:
    """How many files were read, and their bytes."""

    count: int
    size_bytes: int


@dataclass(frozen=True)
class Failure:
    """A source that could not be read or measured: data, not an exception; `code` is one of `codes.CODES`."""

    source: str
    problem: str
    hint: str = ""
    code: str = UNKNOWN
    data: Data = NO_DATA


@dataclass(frozen=True, slots=True)
class Fault:
    """An error of tracekit while it measured or folded what a question asks of one process in one source.

    The `tables` that the question should have written for that process are *failed*: neither absent, which
    is not recorded, nor empty, which is recorded without anything. `metrics` are the names of its rows in
    the table of that name, which several questions fill.
    """

    question: str
    action: Literal["measured", "folded"]
    error: str
    source: str
    pid: int | None
    tables: tuple[str, ...]
    metrics: tuple[str, ...] = ()
    file: str = ""
    """The user's file that the question is from, whose error it is then."""
