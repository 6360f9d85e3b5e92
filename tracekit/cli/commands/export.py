"""`tracekit export`: merge the traces of all ranks into one timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt
from tracekit.cli import terminal
from tracekit.model.text.labels import choose_plural

if TYPE_CHECKING:
    from tracekit.pipeline.options import Options
    from tracekit.pipeline.timeline.document import ExportedTimeline

_MAX_LISTED_CLOCKS = 10


@click.command(name="export", short_help="Merge the traces of all ranks into one timeline.")
@opt.add_paths()
@click.option(
    "--perfetto",
    "target",
    required=True,
    type=click.Path(),
    metavar="FILE.json.gz",
    help="Write the timeline here, for ui.perfetto.dev or chrome://tracing (.json: not compressed).",
)
@opt.ranks
@opt.steps
@opt.stages
@opt.exclude
@click.option("--python", is_flag=True, help="Keep Python functions: many, and large.")
@click.option("--recorded-clocks", is_flag=True, help="Do not correct the clocks of ranks against each other.")
@opt.jobs
@opt.add_strict()
@opt.quiet
@opt.verbose
@opt.reading
def command(
    *,
    paths: tuple[str, ...],
    target: str,
    python: bool,
    recorded_clocks: bool,
    options: Options,
    strict: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Merge the traces of all ranks into one timeline, with steps, stages and findings above them.

    PATH is a directory of profiles, a file, or a pattern. Nothing that was recorded is left out but
    Python functions; clocks of hosts that are certainly off are corrected, and that is said.
    """
    from tracekit.model.errors import TracekitError
    from tracekit.pipeline.timeline import document

    if target == "-":
        raise TracekitError("--perfetto -: a timeline goes to a file", "--perfetto out.json.gz")
    exported = document.export_timeline(list(paths), target, options, python=python, correct_clocks=not recorded_clocks)
    terminal.print_failures(exported.failures)
    if not quiet:
        _print_timeline(exported, target, verbose=verbose)
    return 2 if strict and exported.failures else 0


def _print_timeline(exported: ExportedTimeline, target: str, *, verbose: bool) -> None:
    """Print the contents of the timeline and its clock corrections."""
    rows = sum(exported.rows.values())
    processes = len({lane.number for lane in exported.lanes})
    annotations = exported.annotations
    terminal.print_message(
        f"{rows:,} rows of {processes:,} {choose_plural(processes, 'process', 'processes')}, "
        f"{annotations.count:,} steps, stages and findings"
    )
    if verbose:
        for table, count in sorted(exported.rows.items()):
            terminal.print_message(f"  {table.replace('_', ' ')}: {count:,}")
    if annotations.omitted:
        terminal.print_message(f"  {annotations.omitted:,} of the shortest steps, stages and findings left out")
    _print_clocks(exported, verbose=verbose)
    for reason in exported.apart:
        terminal.print_message(f"not on one clock: {reason}")
    terminal.print_message(f"wrote {target}")
    if exported.is_among_inputs:
        terminal.print_message("  it lies among the profiles: leave it out when you read them again (--exclude)")


def _print_clocks(exported: ExportedTimeline, *, verbose: bool) -> None:
    """Print the clock corrections."""
    from tracekit.model.units import format_quantity
    from tracekit.render.escape import make_printable

    lanes = list({lane.name: lane for lane in exported.lanes if lane.offset_ns}.values())
    limit = len(lanes) if verbose else _MAX_LISTED_CLOCKS
    for lane in lanes[:limit]:
        correction, spread = (format_quantity(-(lane.offset_ns or 0), "ns"), format_quantity(lane.uncertainty_ns, "ns"))
        terminal.print_message(f"clock of {make_printable(lane.name)} corrected by {correction} (± {spread})")
    if len(lanes) > limit:
        terminal.print_message(f"  and of {len(lanes) - limit:,} more (-v shows all)")
