"""`tracekit inspect`: list the files that are read, with their format, and those that are ignored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracekit.cli import options as opt
from tracekit.cli.help_pages import GroupedCommand
from tracekit.cli.text_tables import encode_rows, format_fitting_columns, format_listing, format_text_columns
from tracekit.model.text.labels import choose_plural

if TYPE_CHECKING:
    from tracekit.discover import Discovery
    from tracekit.pipeline.options import Options

_MAX_LISTED_IGNORED = 20
_NUMBER_COLUMNS = ("step", "pid", "size", "replica")
_KEPT_COLUMNS = ("file", "rank", "step", "notes")
"""Columns that every terminal shows, however narrow."""


@click.command(name="inspect", cls=GroupedCommand, short_help="List the files that are read, and their formats.")
@opt.add_paths()
@opt.exclude
@opt.add_results("list")
@opt.verbose
@opt.reading
def command(*, paths: tuple[str, ...], options: Options, requested: opt.RequestedOutputs, verbose: bool) -> int:
    """List the files that are read, with format, run, role, rank and step, and the files that are ignored.

    Reads only names, manifests and the first bytes of each file; analyzes nothing.
    """
    from tracekit.cli import report_outputs as out
    from tracekit.discover import INSPECT_COLUMNS, list_inspect_rows
    from tracekit.pipeline import run as pipeline

    targets = out.list_targets(requested)
    discovery = pipeline.discover_sources(paths, options)
    rows = list_inspect_rows(discovery)

    def make_output(target: out.OutputTarget) -> str | bytes:
        if target.format == "text":
            return _format_discovery(discovery, rows, width=target.width, verbose=verbose) + "\n"
        if target.format == "json":
            return _encode_discovery(discovery, rows) + "\n"
        return encode_rows(rows, target.format, names=INSPECT_COLUMNS)

    out.write_results(targets, make_output)
    return 0 if discovery.sources else 2


def _encode_discovery(discovery: Discovery, rows: Sequence[Mapping[str, object]]) -> str:
    """Encode the discovery as JSON."""
    from tracekit.cli.json_contracts import INSPECT

    value = {
        "title": discovery.title,
        "sources": rows,
        "ignored": [
            {"file": _shorten_path(ignored.path), "reason": ignored.reason.text, "code": ignored.reason.code}
            for ignored in discovery.ignored
        ],
        "notes": [
            {"severity": note.severity, "code": note.code, "source": note.source, "message": note.message}
            for note in discovery.notes
        ],
        "schema": INSPECT,
    }
    return json.dumps(value, indent=1, default=str)


def _shorten_path(path: Path) -> str:
    """Shorten a path to be relative to the working directory, if it is below."""
    folder = Path.cwd()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _format_discovery(
    discovery: Discovery, rows: Sequence[Mapping[str, object]], *, width: int | None, verbose: bool
) -> str:
    """Format the files as a table without empty columns, then the ignored files and the notes."""
    lines = [f"{discovery.title}: {len(rows):,} {choose_plural(len(rows), 'file')} to read"]
    if rows:
        table = [_format_source_row(row) for row in rows]
        lines += ["", format_fitting_columns(table, _NUMBER_COLUMNS, width, keep=_KEPT_COLUMNS)]
    if discovery.ignored:
        lines += _format_ignored(discovery, width=width, verbose=verbose)
    if discovery.notes:
        table = [{"source": note.source, "severity": note.severity, "note": note.message} for note in discovery.notes]
        lines += ["", "Notes", format_text_columns(table, width=width)]
    return "\n".join(lines)


def _format_source_row(row: Mapping[str, object]) -> dict[str, Any]:
    """Format a file's row: rank with world size, and its size with a unit."""
    from tracekit.model.units import format_quantity

    line = dict(row)
    world_size, size_bytes, notes = line.pop("world_size"), line.pop("size_bytes"), line.pop("notes")
    if world_size is not None and line["rank"] is not None:
        line["rank"] = f"{line['rank']}/{world_size}"
    return {**line, "size": format_quantity(int(str(size_bytes)), "bytes"), "notes": notes}


def _format_ignored(discovery: Discovery, *, width: int | None, verbose: bool) -> list[str]:
    """Format the files that are not read, limited unless `verbose`."""
    table = [{"file": _shorten_path(entry.path), "reason": entry.reason.text} for entry in discovery.ignored]
    return ["", *format_listing(f"Ignored: {len(table):,}", table, _MAX_LISTED_IGNORED, verbose=verbose, width=width)]
