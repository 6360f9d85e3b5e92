"""Reader of Nsight Systems reports (`.nsys-rep`, `.qdrep`): exports them with an installed nsys, then reads the export."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tracekit.discover.contents import digest_content
from tracekit.discover.nsys_files import FOREIGN, get_export_path, is_stale
from tracekit.model.errors import TraceFormatError, TracekitError, make_format_error
from tracekit.model.inputs.note_codes import Data, Reason
from tracekit.model.text.labels import make_displayable
from tracekit.model.trace import Note, Source, Trace, Want
from tracekit.readers.nsys import export as nsys_export
from tracekit.readers.nsys.files import REPORT_MAGIC, find_export_problem, has_journal

_ABSENT = Reason("no-export", "not there")
_STALE = Reason("stale-export", "older than the report")


def sniff(head: bytes) -> bool:
    """Check whether a file begins like an Nsight Systems report."""
    return head.startswith(REPORT_MAGIC)


def describe_dependencies(path: Path) -> tuple[str, ...] | None:
    """Describe the export that is read for a report: digest and flaw of the one next to it, and the cache state."""
    export_path = get_export_path(path)
    flaw = _find_export_flaw(export_path, path)
    if flaw is _ABSENT:
        return nsys_export.describe_export_state(path)
    if has_journal(export_path):
        return None
    of_report = nsys_export.describe_export_state(path) if flaw is not None else ()
    return (digest_content(export_path), "" if flaw is None else flaw.text, *of_report)


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the Traces of a report, one per process. Raises only `TraceFormatError`.

    The source is, in this order: the export next to the report if it is not older; a cached export or a new one made by
    nsys in tracekit's cache; an older or damaged export next to the report, with a note.
    """
    export_path = get_export_path(source.path)
    flaw = _find_export_flaw(export_path, source.path)
    if flaw is None:
        return _read_export(source, export_path, want, on_bytes, ())
    with contextlib.ExitStack() as stack:
        try:
            export = stack.enter_context(nsys_export.open_export_of_report(source.path))
        except TracekitError as error:
            refusal = _convert_to_report_error(source.path, error)
            return _read_flawed_export(source, export_path, want, on_bytes, (flaw, refusal))
        how = "now" if export.made else "before, and kept"
        message = f"exported by nsys {export.version} {how}"
        data = Data(version=export.version, made=export.made)
        note = Note("info", "exported", message, source.name, data=data)
        return _read_export(source, export.path, want, on_bytes, (note,))


def _convert_to_report_error(path: Path, error: TracekitError) -> TraceFormatError:
    """Convert an error to one about this report."""
    if isinstance(error, TraceFormatError):
        return make_format_error(path, Reason(error.code, error.problem, error.data), error.hint, error.where)
    return TraceFormatError(path, error.problem, error.hint)


def _find_export_flaw(export: Path, report: Path) -> Reason | None:
    """Explain why the export next to a report cannot replace it; None if it can."""
    if not os.path.isfile(export):  # noqa: PTH113 - false, not an error, where access is denied
        return _ABSENT
    problem = find_export_problem(export)
    if problem is None and is_stale(export, report):
        return _STALE
    return problem


def _read_flawed_export(
    source: Source,
    export: Path,
    want: Want,
    on_bytes: Callable[[int], None] | None,
    reasons: tuple[Reason, TraceFormatError],
) -> list[Trace]:
    """Read a flawed export because the report cannot be exported. Raises the export error if the flawed export fails too."""
    flaw, refusal = reasons
    if flaw in (_ABSENT, FOREIGN):
        raise refusal
    message = f"{make_displayable(export.name)} is read ({flaw.text}), since of the report: {refusal.problem}"
    data = Data(flaw=flaw.code, why=refusal.code)
    note = Note("warning", "stale-export", message, source.name, data=data)
    try:
        return _read_export(source, export, want, on_bytes, (note,))
    except TraceFormatError:
        raise refusal from None


def _read_export(
    source: Source, export: Path, want: Want, on_bytes: Callable[[int], None] | None, notes: tuple[Note, ...]
) -> list[Trace]:
    """Read an export as the Traces of its report. Adds `notes` to the first Trace."""
    from tracekit.readers.nsys import read as read_export

    try:
        traces = read_export(replace(source, path=export), want, on_bytes)
    except TraceFormatError as error:
        raise _convert_to_report_error(source.path, error) from error
    return [
        replace(
            trace,
            source=replace(trace.source, path=source.path, reader=source.reader),
            notes=(*(() if place else notes), *trace.notes),
        )
        for place, trace in enumerate(traces)
    ]
