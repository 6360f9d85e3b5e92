"""`tracekit cache`: show or clear the cache."""

from __future__ import annotations

import json

import click

from tracekit.cli import options as opt
from tracekit.cli.help_pages import GroupedCommand
from tracekit.cli.text_tables import encode_rows, format_text_columns
from tracekit.model.errors import TracekitError
from tracekit.model.system import cache
from tracekit.model.text.labels import make_displayable
from tracekit.model.units import format_quantity

_CACHE_CONTENTS = {
    "measured": "measurements of profiles",
    "nsys": "exports of .nsys-rep files",
    "reports": "reports",
    "fetched": "copies of remote files, and of members of archives",
}


@click.command(name="cache", cls=GroupedCommand, short_help="Show the cache, or clear it.")
@click.option("--clear", is_flag=True, help="Remove every entry that no running tracekit reads.")
@opt.add_results("sizes")
@opt.verbose
def command(*, clear: bool, requested: opt.RequestedOutputs, verbose: bool) -> int:
    """Show the place, the size and the size limit of the cache."""
    del verbose
    from tracekit.cli import report_outputs as out

    targets = out.list_targets(requested)
    directory = cache.locate_cache()
    if directory is None:
        problem = "no place for the cache: the home directory is unknown"
        raise TracekitError(problem, f"name one in {cache.CACHE_VARIABLE}")
    reason = cache.why_unusable()
    if reason is not None:
        problem = f"{make_displayable(str(directory))}: nothing is cached: {reason}"
        raise TracekitError(problem, f"name an empty directory in {cache.CACHE_VARIABLE}")
    limit = cache.read_cache_limit()
    counts = {kind: _count_cache_entries(kind, clear=clear) for kind in cache.KINDS}

    def make_output(target: out.OutputTarget) -> str | bytes:
        if target.format == "json":
            kinds = {kind: {"files": files, "bytes": size} for kind, (files, size) in counts.items()}
            state = {"path": str(directory), "limit_bytes": limit, "kinds": kinds}
            return json.dumps(state, indent=2) + "\n"
        if target.format != "text":
            rows = [{"kind": kind, "files": files, "bytes": size} for kind, (files, size) in counts.items()]
            return encode_rows(rows, target.format)
        texts = [
            {"": _CACHE_CONTENTS[kind], "files": f"{files:,}", "size": format_quantity(size, "bytes")}
            for kind, (files, size) in counts.items()
        ]
        place, most = make_displayable(str(directory)), format_quantity(limit, "bytes")
        title = f"{'removed from' if clear else 'cache in'} {place} (at most {most})"
        return f"{title}\n{format_text_columns(texts, width=target.width)}\n"

    out.write_results(targets, make_output)
    return 0


def _count_cache_entries(kind: str, *, clear: bool) -> tuple[int, int]:
    """Count (files, bytes) of one kind of cache entries; with `clear`, remove them and count the removed ones."""
    sizes = [size for _, size, path in cache.list_cache_entries(kind) if not clear or cache.remove_if_unlocked(path)]
    return len(sizes), sum(sizes)
