"""`tracekit analyze`: read profiles, print the answer, write the reports."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

import click

from tracekit.cli import cluster, terminal, work

if TYPE_CHECKING:
    from tracekit.cli.outputs import Target
    from tracekit.model.report import Report
    from tracekit.model.trace import Measurements

_SHOWN_FAILURES = 10


@click.command(name="analyze", short_help="Report where the time went, and what to do about it.")
@click.argument("paths", nargs=-1, type=click.Path(), metavar="PATH...")
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="Also write the report here; the suffix is the format (.html .md .json .txt). Repeatable.",
)
@click.option(
    "--save",
    type=click.Path(),
    metavar="FILE.tkm",
    help="Also save the measurements: any command takes that file instead of the profiles.",
)
@click.option(
    "--export",
    "exports",
    multiple=True,
    metavar="KIND=PATH",
    help="Also write the report as KIND: csv=DIR, parquet=DIR, openmetrics=FILE, json=- (standard output). Repeatable.",
)
@click.option(
    "--plots",
    type=click.Path(),
    metavar="DIR",
    help="Also write every chart there, as PNG and as SVG (needs matplotlib).",
)
@click.option("--ranks", metavar="SPEC", help="Only these ranks: 0,2,8-15.")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="K",
    help="Read K ranks only, spread over all; the rest, maybe a straggler, is not read.",
)
@click.option("--steps", metavar="SPEC", help="Only these steps: 3,10-20.")
@click.option("--stages", multiple=True, metavar="GLOB", help="Only these stages. Repeatable.")
@click.option(
    "--exclude", multiple=True, metavar="GLOB", help="Leave out files of this name. Repeatable."
)
@terminal.top_option
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Files read at once [default: the cores, as far as memory allows].",
)
@cluster.options
@work.options
@click.option(
    "--device-memory",
    metavar="SIZE",
    help="Memory of each GPU (80GiB): peaks as a share of it, steps until it is full [default: as a trace records it].",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with 2 if any profile was refused or could not be read, or tracekit failed at one.",
)
@terminal.quiet_option
@terminal.verbose_option
def command(  # noqa: PLR0913 - one per option
    *,
    paths: tuple[str, ...],
    outputs: tuple[str, ...],
    save: str | None,
    exports: tuple[str, ...],
    plots: str | None,
    ranks: str | None,
    sample: int | None,
    steps: str | None,
    stages: tuple[str, ...],
    exclude: tuple[str, ...],
    tokens: float | None,
    samples: float | None,
    images: float | None,
    device_memory: str | None,
    top: int,
    jobs: int | None,
    engine: Literal["local", "ray"],
    ray_address: str | None,
    on_every_node: tuple[str, ...],
    strict: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Report where the time went, and what to do about it.

    PATH is a directory of profiles, a file, a pattern, or measurements saved with --save. Several
    directories, or label=PATH, are several runs. With --engine ray each node reads the files that it sees.
    """
    from tracekit.cli import outputs as out
    from tracekit.job.device_size import parse_device_memory
    from tracekit.model import files
    from tracekit.pipeline import run as pipeline
    from tracekit.pipeline import saved

    cluster.need_paths(paths, on_every_node, "PATH")
    targets = [*map(out.file_target, outputs), *map(out.export_target, exports)]
    if not quiet and not any(target.printed for target in targets):
        targets.insert(0, out.Target("text", out.STANDARD_OUTPUT))
    out.only_one_printed(targets)
    if save:
        files.refuse_unwritable(save)
    if plots is not None:
        out.refuse_plots(plots)

    options = pipeline.Options(
        ranks=ranks,
        steps=steps,
        stages=stages,
        exclude=exclude,
        sample=sample,
        jobs=jobs,
        progress=not quiet,
        work=work.told(tokens, samples, images),
        device_memory=None if device_memory is None else parse_device_memory(device_memory),
        engine=engine,
        ray_address=ray_address,
        on_every_node=on_every_node,
    )
    started = time.monotonic()
    result = pipeline.analyze(paths, options=options)
    elapsed_s = time.monotonic() - started

    if save:  # first: it is what cannot be had again without reading everything
        saved.save(result.measurements, save)
    for target in targets:
        out.write(result.report, target, top=top, verbose=verbose)
    drawn = out.write_plots(result.report, plots) if plots is not None else 0
    _tell_failures(result.measurements)
    if not quiet:
        _tell_work(result.measurements, elapsed_s, [*targets, *_saved(save)])
        if plots is not None:
            terminal.tell(f"wrote {drawn:,} images to {plots}")
    read_none = not result.measurements.sources
    failed = result.failed or not _all_read(result.report)
    return 2 if read_none or (strict and failed) else 0


def _all_read(report: Report) -> bool:
    """Whether no file that may be a profile was refused or could not be read."""
    return not {"refused", "unreadable"} & dict(report.files).keys()


def _saved(path: str | None) -> list[Target]:
    """The saved measurements as an output."""
    from tracekit.cli.outputs import Target

    return [Target("measurements", path)] if path else []


def _tell_failures(measurements: Measurements) -> None:
    """Nothing; names the first files that could not be read, whatever else is printed."""
    for failure in measurements.failures[:_SHOWN_FAILURES]:
        terminal.tell_problem(f"{failure.source}: {failure.problem}", failure.hint)
    more = len(measurements.failures) - _SHOWN_FAILURES
    if more > 0:
        terminal.tell(f"tracekit: {more:,} more files could not be read; the report names them")


def _tell_work(measurements: Measurements, elapsed_s: float, targets: list[Target]) -> None:
    """Nothing; says what was read, and where it was written to."""
    from tracekit.model.units import show

    sizes = {source.name: source.size_bytes for source in measurements.sources}
    count, size = len(sizes), show(sum(sizes.values()), "bytes")
    took = show(round(elapsed_s * 1e9), "ns")
    terminal.tell(f"read {count:,} {'file' if count == 1 else 'files'}, {size} in {took}")
    for target in targets:
        if not target.printed:
            terminal.tell(f"wrote {target.path}")
