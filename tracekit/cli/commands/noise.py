"""`tracekit noise`: measure run-to-run noise of one setting, for `tracekit compare --noise`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt

if TYPE_CHECKING:
    from tracekit.compare.changes import ComparisonChoices
    from tracekit.pipeline.options import Options


@click.command(name="noise", short_help="Measure how much equal runs differ.")
@opt.add_paths("[RUN]...", required=False)
@click.option(
    "--steps-from",
    "logs",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="Step times of a run without a profiler: a driver's log, or CSV of step,seconds. Repeatable, one a run.",
)
@click.option("-o", "--output", type=click.Path(), metavar="FILE", help="Write the noise here, as JSON.")
@opt.add_exports("noise", "json=FILE, json=- (standard output)")
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
    choices: ComparisonChoices,
    top: int,
    quiet: bool,
    verbose: bool,
) -> int:
    """Measure how much equal runs differ.

    RUN is a directory of profiles of one run, a report or saved measurements. Record the same setting several
    times, at least four, each in a launch of its own, and give the file to `tracekit compare --noise FILE`.
    """
    from tracekit.cli import report_outputs as out
    from tracekit.compare import noise as noise_file
    from tracekit.compare.reports.noise_report import build_noise_report
    from tracekit.model.system.files import check_writable
    from tracekit.pipeline import comparing

    json_paths = out.parse_json_paths(exports, as_json=False)
    if output is not None and output not in json_paths:
        json_paths.append(output)
    if output is not None and output != out.STANDARD_OUTPUT:
        check_writable(output)
    side, noise = comparing.calibrate_run_noise(paths, options, drop_first=choices.drop_first, logs=logs)
    if not quiet and out.STANDARD_OUTPUT not in json_paths:
        answer = out.OutputTarget("text", out.STANDARD_OUTPUT)
        out.write_report(build_noise_report(noise, side), answer, top=top, verbose=verbose)
    out.write_json_outputs(noise_file.write_noise_json(noise), json_paths, quiet=quiet)
    return 0
