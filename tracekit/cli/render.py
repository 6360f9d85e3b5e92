"""`tracekit render`: a saved report or saved measurements in another form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli import terminal
from tracekit.errors import TraceFormatError, TracekitError

if TYPE_CHECKING:
    from tracekit.report import Report


@click.command(name="render", short_help="Show a saved report in another format.")
@click.argument("path", type=click.Path(), metavar="FILE")
@click.option(
    "-f", "--format", "wanted", metavar="FORMAT", help="text, html, md, json, csv or parquet."
)
@click.option("-o", "--output", type=click.Path(), metavar="FILE", help="Write it here.")
@terminal.top_option
@terminal.verbose_option
def command(*, path: str, wanted: str | None, output: str | None, top: int, verbose: bool) -> int:
    """Show a report saved with -o x.json, or measurements saved with --save x.tkm, in another format.

    The format is that of -f, else the one -o ends in, else text.
    """
    from tracekit.cli import outputs as out

    where = output or out.STANDARD_OUTPUT
    if wanted:
        target = out.export_target(f"{wanted}={where}")
    else:
        target = (
            out.Target("text", where) if where == out.STANDARD_OUTPUT else out.file_target(where)
        )
    out.write(_report(Path(path)), target, top=top, verbose=verbose)
    if not target.printed:
        terminal.tell(f"wrote {target.path}")
    return 0


def _report(path: Path) -> Report:
    """The report in a file of either saved form."""
    from tracekit.render import from_json

    try:
        with path.open("rb") as file:
            if file.read(2) == b"PK":
                return _judged(path)
            file.seek(0)
            return from_json(file.read().decode("utf-8"))
    except OSError as error:
        hint = "check that it exists and that you may read it"
        raise TraceFormatError(path, f"cannot be read: {error.strerror}", hint) from error
    except UnicodeDecodeError as error:
        hint = "give a report (-o x.json) or measurements (--save x.tkm) that tracekit wrote"
        raise TraceFormatError(path, "neither a report nor measurements", hint) from error
    except TraceFormatError:
        raise
    except TracekitError as error:
        raise TraceFormatError(path, error.problem, error.hint) from error


def _judged(path: Path) -> Report:
    """The report on saved measurements."""
    from tracekit import pipeline, saved

    return pipeline.judge(saved.load(path))
