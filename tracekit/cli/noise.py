"""`tracekit noise`: measure run-to-run noise of one setting, for `tracekit compare --noise`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt

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
@opt.exports("noise", "json=FILE, json=- (standard output)")
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
def command(  # noqa: PLR0913 - what is given, one by one
    *,
    paths: tuple[str, ...],
    logs: tuple[str, ...],
    output: str | None,
    exports: tuple[str, ...],
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
    from tracekit.compare.noise_report import report_noise
    from tracekit.model.files import refuse_unwritable
    from tracekit.pipeline import comparing

    json_paths = out.json_paths(exports, as_json=False)
    if output is not None and output not in json_paths:
        json_paths.append(output)
    if output is not None and output != out.STANDARD_OUTPUT:
        refuse_unwritable(output)
    side, noise = comparing.noise_of(paths, options, drop_first=choices.drop_first, logs=logs)
    if not quiet and out.STANDARD_OUTPUT not in json_paths:
        answer = out.Target("text", out.STANDARD_OUTPUT)
        out.write(report_noise(noise, side), answer, top=top, verbose=verbose)
    out.write_json(noise_file.to_json(noise), json_paths, quiet=quiet)
    return 0
