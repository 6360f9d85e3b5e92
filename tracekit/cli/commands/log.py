"""`tracekit log`: send a report to an experiment tracker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt
from tracekit.cli import terminal
from tracekit.cli.help_pages import GroupedCommand
from tracekit.model.errors import TracekitError

if TYPE_CHECKING:
    from tracekit.pipeline.options import Options


@click.command(name="log", cls=GroupedCommand, short_help="Send the report to TensorBoard, MLflow or W&B.")
@opt.add_paths(required=True)
@click.option(
    "--to",
    "targets",
    multiple=True,
    required=True,
    metavar="SYSTEM=TARGET",
    help="tensorboard=DIR, mlflow=URI or wandb=PROJECT. Repeatable.",
)
@click.option(
    "--run",
    metavar="ID",
    help="Run to add the report to: an id in MLflow or W&B, a directory below that of TensorBoard "
    "[default: a new run].",
)
@opt.selection
@opt.questions
@opt.jobs
@opt.cache
@opt.work
@opt.quiet
@opt.reading
def command(*, paths: tuple[str, ...], targets: tuple[str, ...], run: str | None, options: Options, quiet: bool) -> int:
    """Send the report to an experiment tracker: metrics by step, and the report as a page.

    PATH is anything that `tracekit analyze` accepts. Times are in seconds, sizes in bytes. W&B stays offline with
    WANDB_MODE=offline.
    """
    from tracekit.logs import send_report
    from tracekit.logs.points import ExportedReport, extract_points, summarize_for_tracker
    from tracekit.pipeline import report_cache
    from tracekit.render import RenderOptions, render
    from tracekit.render.html import render_html

    wanted = [_parse_log_target(text) for text in targets]
    report = report_cache.analyze_cached(list(paths), replace(options, timeline=True)).report
    markdown, data = str(render(report, "md")), str(render(report, "json"))
    page = render_html(report, RenderOptions())
    logged = ExportedReport(report.title, extract_points(report), summarize_for_tracker(report), page, markdown, data)
    for system, target in wanted:
        place = send_report(logged, system, target, run)
        if not quiet:
            terminal.print_message(f"{system}: {len(logged.points):,} numbers → {place}")
    return 0


def _parse_log_target(text: str) -> tuple[str, str]:
    """Parse `SYSTEM=TARGET`; raises `TracekitError` for anything else."""
    system, _, target = text.partition("=")
    if not system or not target:
        raise TracekitError(f"--to {text!r} is not SYSTEM=TARGET", "write tensorboard=DIR, mlflow=URI or wandb=PROJECT")
    return system, target
