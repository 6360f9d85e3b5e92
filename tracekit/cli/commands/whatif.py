"""`tracekit whatif`: replay a run with changes and predict its step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt
from tracekit.cli.help_pages import GroupedCommand

if TYPE_CHECKING:
    from tracekit.pipeline.options import Options


_OF_MEMORY = """
With `--memory`, PATH is a memory snapshot of PyTorch with its history (`_record_memory_history`). The history is replayed
through a model of the caching allocator. Without `--change`, every change that applies is tried, alone and together.

\b
tracekit whatif --memory snapshot.pickle
tracekit whatif --memory snapshot.pickle -c expandable -c offload=optimizer
tracekit whatif --memory snapshot.pickle --device-memory 80GiB --micro-batch 4

\b
expandable           use expandable segments
max_split=128MB      do not split blocks of this size or more
gc=0.8               give unused segments back above this share of --device-memory
empty_cache@STAGE    empty the cache at each end of a range
scale=SITE:0.5       multiply the size of the allocations of a site (a pattern)
micro_batch=0.5      multiply the micro-batch: activations scale
offload=optimizer    keep optimizer state on the host between optimizer steps
kv_cache=0.4         give the KV cache of an engine this share of --device-memory
"""


def _read_micro_batches(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Read one micro-batch, or two."""
    texts = value.split(",") if value else []
    sizes = [int(text) if text.strip().isdecimal() else 0 for text in texts]
    if len(sizes) > 2 or not all(0 < size <= 10**6 for size in sizes):
        raise click.BadParameter("one number of samples from 1 on, or two: 4,8")
    return tuple(sizes)


@click.command(
    name="whatif", cls=GroupedCommand, short_help="Predict the step with fixes or changes.", epilog=_OF_MEMORY
)
@opt.add_paths()
@click.option(
    "-c",
    "--change",
    "changes",
    multiple=True,
    metavar="CHANGE",
    help="A change as words (see above) or JSON. Repeatable: each adds to those before it.",
)
@click.option(
    "--memory", "of_memory", is_flag=True, help="Predict the peak memory instead, by replaying the allocator's history."
)
@click.option(
    "--micro-batch",
    "micro_batches",
    metavar="N[,N]",
    callback=_read_micro_batches,
    help="With --memory: micro-batch of the snapshot, or of two (the higher peak is that of the larger): finds the largest that fits --device-memory.",
)
@opt.add_results("result", ("text", "json", "md", "html", "csv"), folders=("csv",))
@opt.ranks
@opt.steps
@opt.exclude
@opt.device_memory
@opt.top
@opt.jobs
@opt.cache
@opt.quiet
@opt.verbose
@opt.reading
def command(  # noqa: PLR0913 - one per option
    *,
    paths: tuple[str, ...],
    changes: tuple[str, ...],
    of_memory: bool,
    micro_batches: tuple[int, ...],
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
    from tracekit.pipeline.replaying import ask_memory_what_if, ask_what_if

    del verbose
    if micro_batches and not of_memory:
        raise click.UsageError("--micro-batch needs --memory")
    targets = out.list_targets(requested, quiet=quiet)
    if of_memory:
        report = ask_memory_what_if(paths, changes, options, micro_batches)
    else:
        report = ask_what_if(paths, changes, options)
    for target in targets:
        out.write_report(report, target, top=top, verbose=True)
    return 0
