"""Loading of files: finding the reader that claims a file, and reading its Traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from glob import has_magic
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.discover import Sniffed
from tracekit.discover import discover as find
from tracekit.discover.arguments import list_paths
from tracekit.discover.fetched import get_local_path
from tracekit.discover.log_places import may_be_log
from tracekit.discover.nsys_files import FOREIGN
from tracekit.model.errors import TracekitError, make_format_error
from tracekit.model.inputs.note_codes import Reason
from tracekit.model.inputs.saved_files import sniff_saved_form
from tracekit.model.inputs.sources import Source, Want
from tracekit.readers import READERS, detect_file_compression, find_reader, foreign, read_text_head

if TYPE_CHECKING:
    from tracekit.model.trace import Trace

MAX_NAMED = 8
"""Most processes listed in an error message."""

_NO_FORMAT = Reason("no-format", "not a format that tracekit reads")


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
    """Load the Trace of one process: `load(path)["device_ops"]` is a pandas frame.

    `path` is a file, or an address that fsspec supports. With a `rank` or `pid` it may also be a
    directory. `rank` and `pid` select the process if a file or directory contains several.

    - `python`: add all Python functions; calls of nn.Module are always read.
    - `stacks`: add call stacks.
    - `args`: recorded arguments to keep (default: all).
    - `tables`: tables to build (default: all but those built only on request).
    - `columns`: nullable columns to fill; others may be <NA>, which reads large exports faster.

    Raises `TraceFormatError` for a file that cannot be read, and `TracekitError` if the selection is
    not exactly one process.
    """
    if len(list_paths(path)) != 1 or not isinstance(path, str | Path):
        raise TracekitError("load takes one path", "load_all(paths) takes several")
    path = get_local_path(path)
    if path.is_dir() and rank is None and pid is None:
        raise TracekitError(
            f"{path} is a directory", "load(path, rank=0), or load_all(path), or tracekit.analyze(path)"
        )
    traces: list[Trace] = []
    want = _make_want(python=python, stacks=stacks, args=args, tables=tables, columns=columns)
    for source in _find_path_sources(path):
        if path.is_dir() and (_contradicts_request(rank, source.rank) or _contradicts_request(pid, source.pid)):
            continue
        traces += _read_source_traces(source, want)
    chosen = [trace for trace in traces if rank in (None, trace.source.rank) and pid in (None, trace.source.pid)]
    if len(chosen) != 1:
        raise _make_selection_error(path, chosen, rank, pid)
    return chosen[0]


def load_all(
    path: str | Path | Sequence[str | Path],
    *,
    python: bool = False,
    stacks: bool = False,
    args: Sequence[str] | None = None,
    tables: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> list[Trace]:
    """Load the Traces of all processes of a file, of all files of a directory or pattern, or of several paths.

    The other arguments are those of `load`. Raises `TraceFormatError` for a file that cannot be read.
    """
    want = _make_want(python=python, stacks=stacks, args=args, tables=tables, columns=columns)
    traces: list[Trace] = []
    for source in chain.from_iterable(_find_path_sources(get_local_path(one)) for one in list_paths(path)):
        traces += _read_source_traces(source, want)
    return traces


def _make_want(
    *,
    python: bool,
    stacks: bool,
    args: Sequence[str] | None,
    tables: Sequence[str] | None,
    columns: Sequence[str] | None,
) -> Want:
    """Translate the arguments of `load` into a `Want`."""
    want = Want(python=python, stacks=stacks)
    if tables is not None:
        want = replace(want, tables=frozenset(tables))
    if args is not None:
        want = replace(want, args=tuple(args))
    if columns is not None:
        want = replace(want, columns=frozenset(columns))
    return want


def _find_path_sources(path: Path) -> Sequence[Source]:
    """Find the source of a file, or the sources in a directory or of a pattern."""
    if path.is_dir() or (has_magic(str(path)) and not path.exists()):
        return find([path], sniff=sniff).sources
    sniffed = sniff(path)
    if sniffed.reader is None:
        raise make_format_error(path, sniffed.reason or _NO_FORMAT, "see what can be read: tracekit inspect")
    return find([path], sniff=lambda _: sniffed).sources


def _read_source_traces(source: Source, want: Want) -> Sequence[Trace]:
    """Read the Traces of one source."""
    return find_reader(source.reader).read(source, want, None)


def _contradicts_request(asked: int | None, recorded: int | None) -> bool:
    """Check whether a source's number is known and is not the requested one."""
    return asked is not None and recorded is not None and asked != recorded


def _make_selection_error(path: Path, chosen: Sequence[Trace], rank: int | None, pid: int | None) -> TracekitError:
    """Make the error for a selection of no process, or of several, with how to select one."""
    asked = _format_rank_and_pid(rank, pid)
    if not chosen:
        return TracekitError(f"{path} holds no process with {asked}", f"see which there are: tracekit inspect {path}")
    named = [_format_rank_and_pid(trace.source.rank, trace.source.pid) for trace in chosen]
    if len({trace.source.name for trace in chosen}) > 1:
        named = [f"{process} in {trace.source.name}".strip() for process, trace in zip(named, chosen, strict=True)]
    more = f" and {len(chosen) - MAX_NAMED} more" if len(chosen) > MAX_NAMED else ""
    return TracekitError(
        f"{path} holds {len(chosen)} processes{asked and f' with {asked}'}: {'; '.join(named[:MAX_NAMED])}{more}",
        "load(path, rank=…), load(path, pid=…) or load(FILE) takes one of them, load_all(path) takes all",
    )


def _format_rank_and_pid(rank: int | None, pid: int | None) -> str:
    """Format the known ones of rank and pid."""
    known = [("rank", rank), ("pid", pid)]
    return " ".join(f"{word} {number}" for word, number in known if number is not None)


def sniff(path: Path) -> Sniffed:
    """Find the reader that claims a file by its content, and the reason if it is faulty or not a profile."""
    if sniff_saved_form(path) == "measurements":  # otherwise refused as a zip archive
        return Sniffed(None, "torch", foreign.describe_saved_file("measurements"), certain=True)
    return _sniff_profile(path)


def _sniff_profile(path: Path) -> Sniffed:
    """Find the reader that claims a file, other than saved measurements, by its content."""
    start, problem = read_text_head(path)
    form = detect_file_compression(path)
    refusal = foreign.explain_unsupported_format(start, packed=bool(form)) or (problem if form else None)
    if refusal is not None:
        return Sniffed(None, "torch", refusal, certain=True)
    aside = foreign.identify_non_profile(start)
    if aside is not None:
        return Sniffed(None, "torch", aside, certain="kind" in aside.data)
    for reader in READERS:
        if not reader.claims(start):
            continue
        if form and reader.tool == "nsys":
            return Sniffed(None, "nsys", foreign.explain_compressed_nsys(form), certain=True)
        if reader.name == "nsys":
            return _sniff_sqlite_file(path)
        # An engine that starts in the driver's process prints before the first step.
        is_training = reader.name == "engine_log" and _is_long_training_log(path)
        return Sniffed("driver_log" if is_training else reader.name, reader.tool)
    return _sniff_below_head(path, problem)


def _sniff_below_head(path: Path, problem: Reason | None) -> Sniffed:
    """Classify a file that no reader claims by its first bytes: a log with a long beginning, or none."""
    if problem is None and _is_long_training_log(path):
        return Sniffed("driver_log", "log")
    if problem is None and _is_long_watchdog_log(path):
        return Sniffed("watchdog_log", "log")
    return Sniffed(None, "torch", problem or _NO_FORMAT)


def _is_long_training_log(path: Path) -> bool:
    """Check whether a file named like a log contains a training step below its first bytes."""
    if not may_be_log(path.name):
        return False
    from tracekit.readers import driver_log

    try:
        return driver_log.has_step_below(path)
    except OSError:
        return False


def _is_long_watchdog_log(path: Path) -> bool:
    """Check whether a file named like a log has lines of the watchdog of collectives below its first bytes."""
    if not may_be_log(path.name):
        return False
    from tracekit.readers.hangs import watchdog_log

    try:
        return watchdog_log.has_watchdog_below(path)
    except OSError:
        return False


def _sniff_sqlite_file(path: Path) -> Sniffed:
    """Classify an SQLite database: an nsys export, a faulty one, a store of MLflow, or none."""
    from tracekit.readers.nsys import files as nsys_files

    reason = nsys_files.find_export_problem(path)
    if reason == FOREIGN and _is_store_of_mlflow(path):
        return Sniffed("mlflow", "log")
    if nsys_files.is_read_as_export(path, reason):
        return Sniffed("nsys", "nsys", reason)
    return Sniffed(None, "torch", reason)


def _is_store_of_mlflow(path: Path) -> bool:
    """Check whether a database is a store of MLflow. An export does not import its reader."""
    from tracekit.readers.driver_log import mlflow

    return mlflow.has_metrics(path)
