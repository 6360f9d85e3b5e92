"""`tracekit whatif`: replay a run with changes and predict its step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt
from tracekit.cli.help_pages import GroupedCommand

if TYPE_CHECKING:
    from tracekit.pipeline.options import Options


@click.command(name="whatif", cls=GroupedCommand, short_help="Predict the step with fixes or changes.")
@opt.add_paths()
@click.option(
    "-c",
    "--change",
    "changes",
    multiple=True,
    metavar="CHANGE",
    help="A change as words (see above) or JSON. Repeatable: each adds to those before it.",
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
    """Predict the step of a run with changes, and its critical path.

    PATH is the profile of one run. It is replayed as a dependency graph of host threads, launches, streams and ranks.
    Without `--change`, it predicts the step with the fixes of the findings, one after the other.
    The report also has the critical path, and the owner of all time without device work.

    \b
    tracekit whatif run/
    tracekit whatif run/ -c 'scale device rank=2 factor=0.8'
    tracekit whatif run/ -c 'unwait by=aten::item' -c 'scale collective op=ReduceScatter factor=0.5'

    A change is a verb, its target (host, device, collective or range), and fields. Patterns P are regular expressions.

    \b
    scale factor=F     multiply the length of host, device or collective work, or of a range
    set to_us=N        shorten it to N µs
    remove             remove ops, collectives or a range
    unwait             let calls return without waiting for the device
    unblock op=P       make copies asynchronous
    hide               wait for reductions only at the end of their pass (until=P: inside row P)
    accumulate op=P    reduce gradients once per step of the optimizer
    fuse               run ops that follow one another as one (factor=F: times their length)
    equalise           let ops last as long as on the median rank (across=step: as in the median step)
    prefetch           prepare a range=P on other threads, or begin collectives one earlier
    graph              launch all ops of a stage or range with one call

    Further fields select work: rank=, step=, stage=, range= (around it), row= (innermost op), by= (an op around it), op= (kernel,
    copy or collective), group= (process group). docs/whatif.md lists every field.
    """  # noqa: D301 - click reads the escape
    from tracekit.cli import report_outputs as out
    from tracekit.pipeline.replaying import ask_what_if

    del verbose
    targets = out.list_targets(requested, quiet=quiet)
    report = ask_what_if(paths, changes, options)
    for target in targets:
        out.write_report(report, target, top=top, verbose=True)
    return 0
