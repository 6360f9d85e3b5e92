"""`tracekit noise`: measure run-to-run noise of one setting, for `tracekit compare --noise`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt
from tracekit.cli.help_pages import GroupedCommand

if TYPE_CHECKING:
    from tracekit.compare.changes import ComparisonChoices
    from tracekit.pipeline.options import Options


@click.command(name="noise", cls=GroupedCommand, short_help="Measure run-to-run noise.")
@opt.add_paths("[RUN]...", required=False)
@click.option(
    "--steps-from",
    "logs",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="Step times of a run without a profiler: a driver log, or CSV of step,seconds. Repeatable.",
)
@opt.add_results("noise", ("text", "json", "md", "html"), fallback="json")
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
    requested: opt.RequestedOutputs,
    options: Options,
    choices: ComparisonChoices,
    top: int,
    quiet: bool,
    verbose: bool,
) -> int:
    """Measure run-to-run noise: how much equal runs differ.

    RUN is a directory of profiles of one run, a report or saved measurements. Record one setting at least four
    times, each in a new launch, and pass the file to `tracekit compare --noise FILE`.
    """
    from tracekit.cli import report_outputs as out
    from tracekit.compare import noise as noise_file
    from tracekit.compare.reports.noise_report import build_noise_report
    from tracekit.pipeline import comparing

    targets = out.list_targets(requested, quiet=quiet)
    side, noise = comparing.calibrate_run_noise(paths, options, drop_first=choices.drop_first, logs=logs)
    report = build_noise_report(noise, side)
    for target in targets:
        if target.format == "json":
            out.write_results([target], lambda _: noise_file.write_noise_json(noise), quiet=quiet)
        else:
            out.write_report(report, target, top=top, verbose=verbose)
    return 0
