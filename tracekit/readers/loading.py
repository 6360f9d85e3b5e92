"""From one file to its Trace: which reader claims it, and what that reads of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.discover import Sniffed
from tracekit.discover import discover as find
from tracekit.discover.fetched import here
from tracekit.model.codes import Reason
from tracekit.model.errors import TracekitError, refused
from tracekit.model.sources import Source, Want
from tracekit.readers import READERS, foreign, form_of, head, reader_named
from tracekit.readers.no_profiles import no_profile

if TYPE_CHECKING:
    from tracekit.model.trace import Trace

MAX_NAMED = 8
"""So many processes are named in a message."""

_NO_FORMAT = Reason("no-format", "no format that tracekit reads")


def load(
    path: str | Path,
    *,
    rank: int | None = None,
    pid: int | None = None,
    python: bool = False,
    stacks: bool = False,
    args: Sequence[str] | None = None,
    tables: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> Trace:
    """The Trace of one process: `load(path)["device_ops"]` is a pandas frame.

    `path` is a file (or an address that fsspec knows) or, with a `rank` or `pid`, a directory too: the one process with these is read, where a file holds
    several or a directory holds many. `python` adds all Python functions (calls of nn.Module are read in any case), `stacks` call stacks;
    `args` limits the recorded arguments that are kept, `tables` the tables that are built, `columns` the
    nullable columns that must be filled (others may be <NA>, which reads large exports sooner). Raises
    `TraceFormatError` for a file that cannot be read, `TracekitError` where that is not one process.
    """
    path = here(path)
    if path.is_dir() and rank is None and pid is None:
        raise TracekitError(
            f"{path} is a directory",
            "load(path, rank=0), or load_all(path), or tracekit.analyze(path)",
        )
    traces: list[Trace] = []
    want = _want(python=python, stacks=stacks, args=args, tables=tables, columns=columns)
    for source in _sources(path):
        if path.is_dir() and (_differs(rank, source.rank) or _differs(pid, source.pid)):
            continue
        traces += _traces(source, want)
    chosen = [
        trace
        for trace in traces
        if rank in (None, trace.source.rank) and pid in (None, trace.source.pid)
    ]
    if len(chosen) != 1:
        raise _not_one(path, chosen, rank, pid)
    return chosen[0]


def load_all(
    path: str | Path,
    *,
    python: bool = False,
    stacks: bool = False,
    args: Sequence[str] | None = None,
    tables: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> list[Trace]:
    """The Traces of all processes of a file, or of all files of a directory; the rest is as for `load`.

    A file that cannot be read raises `TraceFormatError`.
    """
    want = _want(python=python, stacks=stacks, args=args, tables=tables, columns=columns)
    traces: list[Trace] = []
    for source in _sources(here(path)):
        traces += _traces(source, want)
    return traces


def _want(
    *,
    python: bool,
    stacks: bool,
    args: Sequence[str] | None,
    tables: Sequence[str] | None,
    columns: Sequence[str] | None,
) -> Want:
    """What to read, of what a caller asks for."""
    want = Want(python=python, stacks=stacks)
    if tables is not None:
        want = replace(want, tables=frozenset(tables))
    if args is not None:
        want = replace(want, args=tuple(args))
    if columns is not None:
        want = replace(want, columns=frozenset(columns))
    return want


def _sources(path: Path) -> Sequence[Source]:
    """The source that a file is, or those that a directory holds."""
    if path.is_dir():
        return find([path], sniff=sniff).sources
    sniffed = sniff(path)
    if sniffed.reader is None:
        raise refused(path, sniffed.reason or _NO_FORMAT, "see what can be read: tracekit inspect")
    return find([path], sniff=lambda _: sniffed).sources


def _traces(source: Source, want: Want) -> Sequence[Trace]:
    """The Traces of one file."""
    return reader_named(source.reader).read(source, want, None)


def _differs(asked: int | None, known: int | None) -> bool:
    """Whether a number that is known of a file is not the one that is asked for."""
    return asked is not None and known is not None and asked != known


def _not_one(
    path: Path, chosen: Sequence[Trace], rank: int | None, pid: int | None
) -> TracekitError:
    """That what was asked for is no process, or several, and how to ask for one."""
    asked = _numbers(rank, pid)
    if not chosen:
        return TracekitError(
            f"{path} holds no process with {asked}", f"see which there are: tracekit inspect {path}"
        )
    named = [_numbers(trace.source.rank, trace.source.pid) for trace in chosen[:MAX_NAMED]]
    more = f" and {len(chosen) - MAX_NAMED} more" if len(chosen) > MAX_NAMED else ""
    return TracekitError(
        f"{path} holds {len(chosen)} processes{asked and f' with {asked}'}: {'; '.join(named)}{more}",
        "load(path, rank=…) or load(path, pid=…) takes one of them, load_all(path) takes all",
    )


def _numbers(rank: int | None, pid: int | None) -> str:
    """The numbers of a process that are known, in words."""
    known = [("rank", rank), ("pid", pid)]
    return " ".join(f"{word} {number}" for word, number in known if number is not None)


def sniff(path: Path) -> Sniffed:
    """Which reader claims a file, by its content, and what is wrong with it; for no profile, what it is."""
    start, problem = head(path)
    form = form_of(path)
    refusal = foreign.refusal(start, packed=bool(form)) or (problem if form else None)
    if refusal is not None:
        return Sniffed(None, "torch", refusal, certain=True)
    aside = no_profile(start)
    if aside is not None:
        return Sniffed(None, "torch", aside, certain="kind" in aside.data)
    for reader in READERS:
        if not reader.claims(start):
            continue
        if form and reader.tool == "nsys":
            return Sniffed(None, "nsys", foreign.packed_nsys(form), certain=True)
        if reader.name == "nsys":
            return _sniffed_export(path)
        return Sniffed(reader.name, reader.tool)
    return Sniffed(None, "torch", problem or _NO_FORMAT)


def _sniffed_export(path: Path) -> Sniffed:
    """What an SQLite database is: an export of nsys, a faulty one, or none at all."""
    from tracekit.readers.nsys import files as nsys_files

    reason = nsys_files.export_problem(path)
    if nsys_files.is_claimed(path, reason):
        return Sniffed("nsys", "nsys", reason)
    return Sniffed(None, "torch", reason)
