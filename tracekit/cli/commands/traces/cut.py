"""`tracekit cut`: write the smallest trace that still shows a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt
from tracekit.cli import terminal
from tracekit.cli.help_pages import GroupedCommand

if TYPE_CHECKING:
    from tracekit.pipeline.options import Options
    from tracekit.pipeline.timeline.cutting.search import CutResult

_MOST_LISTED = 10


@click.command(name="cut", cls=GroupedCommand, short_help="Write the smallest trace that shows a finding.")
@opt.add_paths()
@click.option("--finding", metavar="N|RULE", help="The finding: its number in the report, or its rule.")
@click.option("--range", "time_range", metavar="FROM:TO", help="Cut this time instead: 12ms:40ms, or 'step 3'.")
@click.option(
    "-o", "--output", required=True, metavar="FILE", help="x.json.gz or x.sqlite; for several ranks a folder."
)
@click.option("--anonymize", is_flag=True, help="Replace names that are not public, such as your functions and files.")
@opt.ranks
@opt.exclude
@opt.jobs
@opt.cache
@opt.quiet
@opt.verbose
@opt.reading
def command(
    *,
    paths: tuple[str, ...],
    finding: str | None,
    time_range: str | None,
    output: str,
    anonymize: bool,
    options: Options,
    quiet: bool,
    verbose: bool,
) -> int:
    """Write the smallest trace that still shows a finding, to attach it to an issue.

    PATH is a directory of profiles or a file. Tries windows around the finding from small to large, and analyzes each.
    From the first that shows the finding with a similar share of the step, leaves out rows and arguments that the rule
    does not read. Numbers in the finding can differ from those of the whole profile. Never changes inputs.

    \b
    tracekit cut run/ --finding 1 -o small.json.gz
    tracekit cut run/ --finding straggler -o cut/ --anonymize
    tracekit cut rank0.json.gz --range 'step 3' -o step3.json.gz

    A Chrome trace stays a Chrome trace, an export of nsys an SQLite file. Memory snapshots and logs cannot be cut.
    `--anonymize` keeps names made of listed identifiers only: operators, CUDA and NCCL calls, library kernels, stages. Times and shapes stay.
    """  # noqa: D301 - click reads the escape
    from tracekit.pipeline.timeline.cutting.search import cut_profile
    from tracekit.pipeline.timeline.time_ranges import parse_time_range

    if (finding is None) == (time_range is None):
        raise click.UsageError("name one of --finding and --range")
    asked = None if time_range is None else parse_time_range(time_range)
    result = cut_profile(list(paths), output, finding=finding, time_range=asked, anonymize=anonymize, options=options)
    if not quiet:
        _print_cut(result, anonymize=anonymize, verbose=verbose)
    return 0


def _print_cut(result: CutResult, *, anonymize: bool, verbose: bool) -> None:
    """Print the contents and the size of a cut."""
    from tracekit.model.text.labels import choose_plural
    from tracekit.model.units import format_quantity
    from tracekit.render.escape import make_printable

    before, after = (format_quantity(size, "bytes") for size in (result.before_bytes, result.after_bytes))
    listed = result.sources if verbose else result.sources[:_MOST_LISTED]
    more = len(result.sources) - len(listed)
    lines = [
        *([] if result.finding is None else [f"shows {result.finding.rule}: {make_printable(result.finding.claim)}"]),
        f"kept {make_printable(result.kept)}",
        f"from {', '.join(map(make_printable, listed))}{f' and {more:,} more' if more else ''}",
        f"size {after}, {format_quantity(result.share, 'ratio')} of {before}",
    ]
    if anonymize:
        count = result.renamed_count
        lines.append(f"replaced {count:,} {choose_plural(count, 'name', 'names')}: read the cut before you publish it")
    terminal.write_output("".join(f"{line}\n" for line in lines))
    for path in result.files:
        terminal.print_message(f"wrote {path}")
