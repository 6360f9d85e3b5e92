"""`tracekit cache`: show or clear the cache."""

from __future__ import annotations

import json

import click

from tracekit.cli import options as opt
from tracekit.cli import terminal
from tracekit.cli.layout import columns
from tracekit.model import cache
from tracekit.model.errors import TracekitError
from tracekit.model.labels import shown
from tracekit.model.units import show

_WHAT = {
    "measured": "what was measured of profiles",
    "nsys": "exports of .nsys-rep files",
    "reports": "reports",
    "fetched": "copies of what lies elsewhere, and of members of archives",
}


@click.command(name="cache", short_help="Show what is kept for the next run, or clear it.")
@click.option("--clear", is_flag=True, help="Remove all that no running tracekit reads.")
@opt.as_json
@opt.verbose
def command(*, clear: bool, as_json: bool, verbose: bool) -> int:
    """Show where tracekit keeps what it need not do twice, how much that is, and how much it may be."""
    del verbose
    directory = cache.above()
    if directory is None:
        problem = "there is no place to keep anything: no home directory is known"
        raise TracekitError(problem, f"name one in {cache.CACHE_VARIABLE}")
    reason = cache.why_unusable()
    if reason is not None:
        problem = f"{shown(str(directory))}: nothing is cached: {reason}"
        raise TracekitError(problem, f"name an empty directory in {cache.CACHE_VARIABLE}")
    limit = cache.limit_bytes()
    counts = {kind: _counted(kind, clear=clear) for kind in cache.KINDS}
    if as_json:
        kinds = {kind: {"files": files, "bytes": size} for kind, (files, size) in counts.items()}
        state = {"path": str(directory), "limit_bytes": limit, "kinds": kinds}
        terminal.say((json.dumps(state, indent=2) + "\n").encode("utf-8"))
        return 0
    rows = [
        {"": _WHAT[kind], "files": f"{files:,}", "size": show(size, "bytes")}
        for kind, (files, size) in counts.items()
    ]
    title = "removed from" if clear else "kept in"
    terminal.say(f"{title} {shown(str(directory))} (at most {show(limit, 'bytes')})\n")
    terminal.say(columns(rows) + "\n")
    return 0


def _counted(kind: str, *, clear: bool) -> tuple[int, int]:
    """Count (files, bytes) of one kind of cache entries; with `clear`, remove them and count the removed ones."""
    sizes = [size for _, size, path in cache.entries(kind) if not clear or cache.removed(path)]
    return len(sizes), sum(sizes)
