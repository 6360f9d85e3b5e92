"""`tracekit inspect`: list the files that are read, with their format, and those that are ignored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracekit.cli import options as opt
from tracekit.cli import terminal
from tracekit.cli.layout import columns, listed
from tracekit.model.labels import plural

if TYPE_CHECKING:
    from tracekit.discover import Discovery
    from tracekit.pipeline.options import Options

_SHOWN_IGNORED = 20


@click.command(name="inspect", short_help="Show which files are read, and as what.")
@opt.paths()
@opt.exclude
@opt.as_json
@opt.exports("list", "json=FILE, json=- (standard output)")
@opt.verbose
@opt.reading
def command(
    *,
    paths: tuple[str, ...],
    options: Options,
    as_json: bool,
    exports: tuple[str, ...],
    verbose: bool,
) -> int:
    """Show which files are read, and as what: format, run, role, rank, step … and what is ignored.

    Nothing is analysed: only names, manifests and the first bytes of each file are looked at.
    """
    from tracekit.cli import outputs as out
    from tracekit.discover import inspect_rows
    from tracekit.pipeline import run as pipeline

    json_paths = out.json_paths(exports, as_json=as_json)
    discovery = pipeline.discover(paths, options)
    rows = inspect_rows(discovery)
    if json_paths:
        out.write_json(_as_json(discovery, rows) + "\n", json_paths)
    if out.STANDARD_OUTPUT not in json_paths:
        terminal.say(_as_text(discovery, rows, verbose=verbose) + "\n")
    return 0 if discovery.sources else 2


def _as_json(discovery: Discovery, rows: Sequence[Mapping[str, object]]) -> str:
    """Encode the discovery as JSON."""
    from tracekit.cli.contracts import INSPECT

    value = {
        "title": discovery.title,
        "sources": rows,
        "ignored": [
            {
                "file": _as_typed(ignored.path),
                "reason": ignored.reason.text,
                "code": ignored.reason.code,
            }
            for ignored in discovery.ignored
        ],
        "notes": [
            {
                "severity": note.severity,
                "code": note.code,
                "source": note.source,
                "message": note.message,
            }
            for note in discovery.notes
        ],
        "schema": INSPECT,
    }
    return json.dumps(value, indent=1, default=str)


def _as_typed(path: Path) -> str:
    """Shorten a path to be relative to the working directory, if it is below."""
    folder = Path.cwd()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _as_text(discovery: Discovery, rows: Sequence[Mapping[str, object]], *, verbose: bool) -> str:
    """Format the files as a table without empty columns, then the ignored files and the notes."""
    lines = [f"{discovery.title}: {len(rows):,} {plural(len(rows), 'file')} to read"]
    if rows:
        table = [_line(row) for row in rows]
        lines += ["", columns(table, right=("step", "pid", "size", "replica"))]
    if discovery.ignored:
        lines += _ignored(discovery, verbose=verbose)
    if discovery.notes:
        table = [
            {"source": note.source, "severity": note.severity, "note": note.message}
            for note in discovery.notes
        ]
        lines += ["", "Notes", columns(table)]
    return "\n".join(lines)


def _line(row: Mapping[str, object]) -> dict[str, Any]:
    """Format a file's row: rank with world size, and its size with a unit."""
    from tracekit.model.units import show

    line = dict(row)
    world_size, size_bytes, notes = map(line.pop, ("world_size", "size_bytes", "notes"))
    if world_size is not None and line["rank"] is not None:
        line["rank"] = f"{line['rank']}/{world_size}"
    return {**line, "size": show(int(str(size_bytes)), "bytes"), "notes": notes}


def _ignored(discovery: Discovery, *, verbose: bool) -> list[str]:
    """Format the files that are not read, limited unless `verbose`."""
    table = []
    for entry in discovery.ignored:
        table.append({"file": _as_typed(entry.path), "reason": entry.reason.text})
    return ["", *listed(f"Ignored: {len(table):,}", table, _SHOWN_IGNORED, verbose=verbose)]
