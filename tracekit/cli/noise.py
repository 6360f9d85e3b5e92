"""`tracekit noise`: how much runs of one and the same setting differ, for `tracekit compare --noise`."""

from __future__ import annotations

import click

from tracekit.cli import terminal


@click.command(name="noise", short_help="Measure how much equal runs differ.")
@click.argument("paths", nargs=-1, type=click.Path(), metavar="[RUN]...")
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
@click.option("--ranks", metavar="SPEC", help="Only these ranks: 0,2,8-15.")
@click.option("--steps", metavar="SPEC", help="Only these steps: 3,10-20.")
@click.option(
    "--exclude", multiple=True, metavar="GLOB", help="Leave out files of this name. Repeatable."
)
@click.option(
    "--drop-first",
    type=click.IntRange(min=0),
    metavar="N",
    help="Leave out the first N steps of every run [default: those known to be warm-up].",
)
@terminal.top_option
@click.option("-j", "--jobs", type=click.IntRange(min=1), metavar="N", help="Files read at once.")
@terminal.quiet_option
@terminal.verbose_option
def command(  # noqa: PLR0913 - one per option
    *,
    paths: tuple[str, ...],
    logs: tuple[str, ...],
    output: str | None,
    ranks: str | None,
    steps: str | None,
    exclude: tuple[str, ...],
    drop_first: int | None,
    top: int,
    jobs: int | None,
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
    from tracekit.pipeline import run as pipeline

    if output is not None and output != out.STANDARD_OUTPUT:
        refuse_unwritable(output)
    options = pipeline.Options(
        ranks=ranks, steps=steps, exclude=exclude, jobs=jobs, progress=not quiet
    )
    side, found = comparing.noise_of(paths, options, drop_first=drop_first, logs=logs)
    if output == out.STANDARD_OUTPUT:
        terminal.say(noise_file.to_json(found))
        return 0
    if not quiet:
        shown = out.Target("text", out.STANDARD_OUTPUT)
        out.write(as_report(found, side), shown, top=top, verbose=verbose)
    if output is not None:
        write_atomically(output, noise_file.to_json(found).encode())
        if not quiet:
            terminal.tell(f"wrote {output}")
    return 0
