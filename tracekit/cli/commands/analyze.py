"""`tracekit analyze`: measure profiles, print the summary, write reports."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tracekit.cli import config_file, terminal
from tracekit.cli import options as opt
from tracekit.cli.help_pages import GroupedCommand
from tracekit.model.text.labels import choose_plural

if TYPE_CHECKING:
    from tracekit.cli.report_outputs import OutputTarget
    from tracekit.model.inputs.sources import Read
    from tracekit.pipeline.options import Options


@click.command(
    name="analyze", cls=GroupedCommand, short_help="Report where step time and GPU memory go, and what to fix."
)
@opt.add_paths(required=False)
@opt.add_results(
    "report",
    opt.REPORT_FORMATS,
    exports="csv=DIR, parquet=DIR, openmetrics=FILE, json=- (standard output)",
    folders=opt.FOLDER_FORMATS,
)
@click.option(
    "--save",
    type=click.Path(),
    metavar="FILE.tkm",
    help="Also save the measurements. Reports, comparisons and SQL accept them in place of the profiles.",
)
@click.option(
    "--plots",
    type=click.Path(),
    metavar="DIR",
    help="Also write every chart to DIR as PNG and SVG (needs matplotlib).",
)
@opt.selection
@opt.questions
@opt.top
@opt.jobs
@opt.cache
@opt.cluster
@opt.work
@opt.device_memory
@opt.gpu_hour_price
@config_file.config
@opt.add_strict("a profile is refused, unreadable, or fails to be analyzed")
@opt.quiet
@opt.verbose
@opt.reading
def command(  # noqa: PLR0913 - what is given, one by one
    *,
    paths: tuple[str, ...],
    requested: opt.RequestedOutputs,
    save: str | None,
    plots: str | None,
    options: Options,
    top: int,
    strict: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Report where step time and GPU memory go, and what to fix.

    PATH is a directory of profiles, a file, a glob pattern, or measurements saved with --save. For
    several runs, give several directories, or label=PATH for each. With --engine ray, each node reads
    its own files.
    """
    from tracekit.cli import report_outputs as out
    from tracekit.pipeline import report_cache

    opt.require_paths(paths, options.on_every_node, "PATH")
    if verbose and (config_path := config_file.get_config_path()) is not None:
        terminal.print_message(f"options from {config_path}")
    targets = out.list_targets(requested, quiet=quiet)
    if save:
        out.check_saved_path(save)
    if plots is not None:
        out.refuse_plots(plots)

    details = _needs_details(targets, save, plots, verbose, strict)
    options = replace(options, details=details, timeline=any(target.format == "html" for target in targets))
    started = time.monotonic()
    result = report_cache.analyze_cached(paths, options)
    elapsed_s = time.monotonic() - started

    if save:  # save first: recomputing it takes another full read
        from tracekit.pipeline.cache import saved_measurements

        saved_measurements.save(result.measurements, save)
    for target in targets:
        out.write_report(result.report, target, top=top, verbose=verbose)
    image_count = 0 if plots is None else out.write_plots(result.report, plots)
    terminal.print_failures(result.failures, where_all="; the report names them")
    if not quiet:
        _print_work(result.read, elapsed_s)
        _print_written_files(targets, save)
        if plots is not None:
            terminal.print_message(_describe_images(image_count, plots))
    unread = {"refused", "unreadable"} & dict(result.report.files).keys()
    return 2 if not result.read.count or (strict and (result.failed or unread)) else 0


def _needs_details(targets: list[OutputTarget], *others: object) -> bool:
    """Check whether any output shows more than the terminal does, or any of the `others` is set.

    The others are saved files, plots, -v, and --strict, which also reports errors in details.
    """
    return any(others) or any(target.format != "text" for target in targets)


def _describe_images(count: int, folder: str) -> str:
    """Describe the images in a folder, or why there is none."""
    if not count:
        return "wrote no image: nothing in this report has a chart"
    return f"wrote {count:,} {choose_plural(count, 'image')} to {folder}"


def _print_work(read: Read, elapsed_s: float) -> None:
    """Print how much was read."""
    from tracekit.model.units import format_quantity

    size, duration = (format_quantity(read.size_bytes, "bytes"), format_quantity(round(elapsed_s * 1e9), "ns"))
    terminal.print_message(f"read {read.count:,} {choose_plural(read.count, 'file')}, {size} in {duration}")


def _print_written_files(targets: list[OutputTarget], save: str | None) -> None:
    """Print which files were written, the saved measurements last."""
    files = [target.path for target in targets if not target.printed]
    for path in [*files, save] if save else files:
        terminal.print_message(f"wrote {path}")
