"""`tracekit open`: write the report as a page, and open it in a browser."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt
from tracekit.cli import terminal
from tracekit.cli.help_pages import GroupedCommand

if TYPE_CHECKING:
    from tracekit.pipeline.options import Options

_PAGE_SUFFIXES = (".html", ".htm")


@click.command(name="open", cls=GroupedCommand, short_help="Open the report in a browser.")
@opt.add_paths()
@opt.selection
@opt.jobs
@opt.cache
@opt.quiet
@opt.verbose
@opt.reading
def command(*, paths: tuple[str, ...], options: Options, quiet: bool, verbose: bool) -> int:
    """Write the report to a temporary page, print its path, and open it in a browser.

    PATH is anything that `tracekit export` accepts, or an existing page. Without a display, only the path is printed.
    """
    from tracekit.cli.commands.traces import export

    status, page = 0, Path(paths[0])
    if len(paths) > 1 or not (page.is_file() and page.suffix.lower() in _PAGE_SUFFIXES):
        page = Path(tempfile.mkdtemp(prefix="tracekit-")) / "report.html"
        status = export.write_page(paths, page, options, quiet=quiet, verbose=verbose)
    terminal.write_output(f"{page.resolve()}\n")
    if has_display():
        webbrowser.open(page.resolve().as_uri())
    return status


def has_display() -> bool:
    """Check whether a browser can open a window here."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
