"""From one file to its Trace: which reader claims it, and what that reads of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.discover import Sniffed
from tracekit.discover import discover as find
from tracekit.model.codes import Reason
from tracekit.model.errors import TracekitError, refused
from tracekit.model.sources import Want
from tracekit.readers import READERS, foreign, form_of, head, reader_named
from tracekit.readers.no_profiles import no_profile

if TYPE_CHECKING:
    from tracekit.model.trace import Trace

_NO_FORMAT = Reason("no-format", "no format that tracekit reads")


def load(
    path: str | Path,
    *,
    python: bool = False,
    stacks: bool = False,
    args: Sequence[str] | None = None,
    tables: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> Trace:
    """The Trace of one file: `load(path)["device_ops"]` is a pandas frame.

    `python` adds all Python functions (calls of nn.Module are read in any case), `stacks` call stacks;
    `args` limits the recorded arguments that are kept, `tables` the tables that are built, `columns` the
    nullable columns that must be filled (others may be <NA>, which reads large exports sooner). Raises
    `TraceFormatError` for a file that cannot be read, `TracekitError` for a directory or for a file that
    holds several processes.
    """
    path = Path(path)
    if path.is_dir():
        raise TracekitError(
            f"{path} is a directory", "load one file of it, or use tracekit.analyze"
        )
    sniffed = sniff(path)
    if sniffed.reader is None:
        raise refused(path, sniffed.reason or _NO_FORMAT, "see what can be read: tracekit inspect")
    want = Want(python=python, stacks=stacks)
    if tables is not None:
        want = replace(want, tables=frozenset(tables))
    if args is not None:
        want = replace(want, args=tuple(args))
    if columns is not None:
        want = replace(want, columns=frozenset(columns))
    source = find([path], sniff=lambda _: sniffed).sources[0]
    traces = reader_named(sniffed.reader).read(source, want, None)
    if len(traces) != 1:
        pids = ", ".join(str(trace.source.pid) for trace in traces)
        raise TracekitError(f"{path} holds {len(traces)} processes: {pids}", "use tracekit.analyze")
    return traces[0]


def sniff(path: Path) -> Sniffed:
    """Which reader claims a file, by its content, and what is wrong with it; for no profile, what it is."""
    start, problem = head(path)
    form = form_of(path)
    refusal = foreign.refusal(start, packed=bool(form)) or (problem if form else None)
    if refusal is not None:
        return Sniffed(None, "torch", refusal, certain=True)
    aside = no_profile(start)
    if aside is not None:
        return Sniffed(None, "torch", aside)
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
