"""`tracekit noise`: how much runs of one and the same setting differ, for `tracekit compare --noise`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt
from tracekit.cli import terminal

if TYPE_CHECKING:
    from tracekit.compare.changes import Choices
    from tracekit.pipeline.options import Options


@click.command(name="noise", short_help="Measure how much equal runs differ.")
@opt.paths("[RUN]...", required=False)
@click.option(
    "--steps-from",
    "logs",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="Step times of a run without a profiler: a driver's log, or CSV of step,seconds. Repeatable, one a run.",
)
@click.option(
    "-o", "--output", type=click.Path(), metavar="FILE", help="Write the noise here, as JSON."
)
@opt.ranks
@opt.steps
@opt.exclude
@opt.drop_first
@opt.top
@opt.jobs
@opt.cache
@opt.quiet
@opt.verbose
@opt.reading
@opt.statistics
def command(
    *,
    paths: tuple[str, ...],
    logs: tuple[str, ...],
    output: str | None,
    options: Options,
    choices: Choices,
    top: int,
    quiet: bool,
    verbose: bool,
) -> int:
    """Measure how much equal runs differ.

    RUN is a directory of profiles of one run, a report or saved measurements. Record the same setting several
    times, at least four, each in a launch of its own, and give the file to `tracekit compare --noise FILE`.
    """
    from tracekit.cli import outputs as out
    from tracekit.compare import noise as noise_file
    from tracekit.compare.noise_report import as_report
    from tracekit.model.files import refuse_unwritable, write_atomically
    from tracekit.pipeline import comparing

    if output is not None and output != out.STANDARD_OUTPUT:
        refuse_unwritable(output)
    side, noise = comparing.noise_of(paths, options, drop_first=choices.drop_first, logs=logs)
    if output == out.STANDARD_OUTPUT:
        terminal.say(noise_file.to_json(noise))
        return 0
    if not quiet:
        answer = out.Target("text", out.STANDARD_OUTPUT)
        out.write(as_report(noise, side), answer, top=top, verbose=verbose)
    if output is not None:
        write_atomically(output, noise_file.to_json(noise).encode())
        if not quiet:
            terminal.tell(f"wrote {output}")
    return 0
