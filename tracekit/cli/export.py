"""`tracekit export`: the traces of all ranks as one timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracekit.cli import terminal

if TYPE_CHECKING:
    from tracekit.pipeline.timeline.document import Exported

_SHOWN = 10


@click.command(name="export", short_help="Merge the traces of all ranks into one timeline.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="PATH...")
@click.option(
    "--perfetto",
    "target",
    required=True,
    type=click.Path(),
    metavar="FILE.json.gz",
    help="Write the timeline here, for ui.perfetto.dev or chrome://tracing (.json: not compressed).",
)
@click.option("--ranks", metavar="SPEC", help="Only these ranks: 0,2,8-15.")
@click.option("--steps", metavar="SPEC", help="Only these steps: 3,10-20.")
@click.option("--stages", multiple=True, metavar="GLOB", help="Only these stages. Repeatable.")
@click.option(
    "--exclude", multiple=True, metavar="GLOB", help="Leave out files of this name. Repeatable."
)
@click.option("--python", is_flag=True, help="Keep Python functions: many, and large.")
@click.option(
    "--recorded-clocks", is_flag=True, help="Do not correct the clocks of ranks against each other."
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Files read at once [default: the cores, as far as memory allows].",
)
@click.option("--strict", is_flag=True, help="Exit with 2 if any file could not be read.")
@terminal.quiet_option
@terminal.verbose_option
def command(  # noqa: PLR0913 - one per option
    *,
    paths: tuple[str, ...],
    target: str,
    ranks: str | None,
    steps: str | None,
    stages: tuple[str, ...],
    exclude: tuple[str, ...],
    python: bool,
    recorded_clocks: bool,
    jobs: int | None,
    strict: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Merge the traces of all ranks into one timeline, with steps, stages and findings above them.

    PATH is a directory of profiles, a file, or a pattern. Nothing that was recorded is left out but
    Python functions; clocks of hosts that are certainly off are corrected, and that is said.
    """
    from tracekit.model.errors import TracekitError
    from tracekit.pipeline import run as pipeline
    from tracekit.pipeline.timeline import document

    if target == "-":
        raise TracekitError("--perfetto -: a timeline goes to a file", "--perfetto out.json.gz")
    options = pipeline.Options(
        ranks=ranks,
        steps=steps,
        stages=stages,
        exclude=exclude,
        jobs=jobs,
        progress=not quiet,
    )
    exported = document.export(
        list(paths), target, options, python=python, correct_clocks=not recorded_clocks
    )
    for failure in exported.failures[:_SHOWN]:
        terminal.tell_problem(f"{failure.source}: {failure.problem}", failure.hint)
    if (more := len(exported.failures) - _SHOWN) > 0:
        terminal.tell(f"tracekit: {more:,} more files could not be read")
    if not quiet:
        _tell(exported, target, verbose=verbose)
    return 2 if strict and exported.failures else 0


def _tell(exported: Exported, target: str, *, verbose: bool) -> None:
    """Nothing; says what the timeline holds and what was done to its clocks."""
    rows = sum(exported.rows.values())
    processes = len({lane.number for lane in exported.lanes})
    told = exported.annotations
    terminal.tell(
        f"{rows:,} rows of {processes:,} {'process' if processes == 1 else 'processes'}, "
        f"{told.count:,} steps, stages and findings"
    )
    for table, count in sorted(exported.rows.items()) if verbose else ():
        terminal.tell(f"  {table.replace('_', ' ')}: {count:,}")
    if told.omitted:
        terminal.tell(f"  {told.omitted:,} of the shortest steps, stages and findings left out")
    _tell_clocks(exported, verbose=verbose)
    for reason in exported.apart:
        terminal.tell(f"not on one clock: {reason}")
    terminal.tell(f"wrote {target}")
    if exported.is_among_inputs:
        terminal.tell(
            "  it lies among the profiles: leave it out when you read them again (--exclude)"
        )


def _tell_clocks(exported: Exported, *, verbose: bool) -> None:
    """Nothing; says by how much which clocks were corrected."""
    from tracekit.model.units import show
    from tracekit.render.escape import printable

    by_name = {lane.name: lane for lane in exported.lanes if lane.offset_ns}
    shown = list(by_name.values()) if verbose else list(by_name.values())[:_SHOWN]
    for lane in shown:
        spread = show(lane.uncertainty_ns, "ns")
        terminal.tell(
            f"clock of {printable(lane.name)} corrected by {show(-(lane.offset_ns or 0), 'ns')}"
            f" (± {spread})"
        )
    if len(by_name) > len(shown):
        terminal.tell(f"  and of {len(by_name) - len(shown):,} more (-v shows all)")
