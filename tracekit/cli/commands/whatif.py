"""`tracekit whatif`: replay a run with changes and predict its step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt
from tracekit.cli.help_pages import GroupedCommand

if TYPE_CHECKING:
    from tracekit.pipeline.options import Options


@click.command(name="whatif", cls=GroupedCommand, short_help="Predict the step with a change.")
@opt.add_paths()
@click.option(
    "-c",
    "--change",
    "changes",
    multiple=True,
    metavar="CHANGE",
    help="A change: 'scale device rank=2 factor=0.8', or JSON. Repeatable; each adds to those before it.",
)
@opt.add_results("result", ("text", "json", "md", "html", "csv"), folders=("csv",))
@opt.ranks
@opt.steps
@opt.exclude
@opt.top
@opt.jobs
@opt.cache
@opt.quiet
@opt.verbose
@opt.reading
def command(
    *,
    paths: tuple[str, ...],
    changes: tuple[str, ...],
    requested: opt.RequestedOutputs,
    options: Options,
    top: int,
    quiet: bool,
    verbose: bool,
) -> int:
    """Replay a run with changes: predict its step, and show the critical path after them.

    PATH is the profile of one run. The replay builds the dependencies between host threads, launches, streams and ranks,
    and times all of it again. Without `--change` it shows the critical path and where each rank's time went.

    \b
    tracekit whatif run/ --change 'scale device rank=2 factor=0.8'
    tracekit whatif run/ --change 'unwait by=aten::item' --change 'remove op=HtoD.*Pageable host=aten::to'
    """  # noqa: D301 - \b keeps click from wrapping
    from tracekit.cli import report_outputs as out
    from tracekit.pipeline.replaying import ask_what_if

    del verbose
    targets = out.list_targets(requested, quiet=quiet)
    report = ask_what_if(paths, changes, options)
    for target in targets:
        out.write_report(report, target, top=top, verbose=True)
    return 0
