"""`tracekit inspect`: which files are read, as what, and which are not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracekit.cli import terminal
from tracekit.cli.layout import columns

if TYPE_CHECKING:
    from tracekit.discover import Discovery

_SHOWN_IGNORED = 20


@click.command(name="inspect", short_help="Show which files are read, and as what.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="PATH...")
@click.option(
    "--exclude", multiple=True, metavar="GLOB", help="Leave out files of this name. Repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@terminal.verbose_option
def command(
    *, paths: tuple[str, ...], exclude: tuple[str, ...], as_json: bool, verbose: bool
) -> int:
    """Show which files are read, and as what: format, run, role, rank, step … and what is ignored.

    Nothing is analysed: only names, manifests and the first bytes of each file are looked at.
    """
    from tracekit.discover import inspect_rows
    from tracekit.pipeline import run as pipeline

    discovery = pipeline.discover(paths, pipeline.Options(exclude=exclude))
    rows = inspect_rows(discovery)
    shown = _as_json(discovery, rows) if as_json else _as_text(discovery, rows, verbose=verbose)
    terminal.say(shown + "\n")
    return 0 if discovery.sources else 2


def _as_json(discovery: Discovery, rows: Sequence[Mapping[str, object]]) -> str:
    """Everything that was found, as JSON."""
    value = {
        "title": discovery.title,
        "sources": rows,
        "ignored": [{"file": _shown(i.path), "reason": i.reason} for i in discovery.ignored],
        "notes": [
            {"severity": n.severity, "code": n.code, "source": n.source, "message": n.message}
            for n in discovery.notes
        ],
    }
    return json.dumps(value, indent=1, default=str)


def _shown(path: Path) -> str:
    """The path as a person would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _as_text(discovery: Discovery, rows: Sequence[Mapping[str, object]], *, verbose: bool) -> str:
    """A table of the files, then what was ignored and what is odd; what no file has is left out."""
    from tracekit.model.units import show

    table: list[dict[str, Any]] = []
    for row in rows:
        world = row["world_size"]
        rank = row["rank"] if world is None or row["rank"] is None else f"{row['rank']}/{world}"
        rest = {
            name: value
            for name, value in row.items()
            if name not in ("size_bytes", "world_size", "notes")
        }
        size = show(int(str(row["size_bytes"])), "bytes")
        table.append({**rest, "rank": rank, "size": size, "notes": row["notes"]})
    lines = [f"{discovery.title}: {len(rows):,} {'file' if len(rows) == 1 else 'files'} to read"]
    if table:
        lines += ["", columns(table, right=("step", "pid", "size", "replica"))]
    ignored = discovery.ignored
    if ignored:
        lines += ["", f"Ignored: {len(ignored):,}"]
        limit = len(ignored) if verbose else _SHOWN_IGNORED
        lines.append(
            columns([{"file": _shown(i.path), "reason": i.reason} for i in ignored[:limit]])
        )
        if len(ignored) > limit:
            lines.append(f"… and {len(ignored) - limit:,} more (-v)")
    if discovery.notes:
        lines += ["", "Notes"]
        notes = discovery.notes
        lines.append(
            columns(
                [{"source": n.source, "severity": n.severity, "note": n.message} for n in notes]
            )
        )
    return "\n".join(lines)
