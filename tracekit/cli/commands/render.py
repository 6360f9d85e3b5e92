"""`tracekit render`: convert a saved report, comparison or measurements to another format."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt
from tracekit.model.errors import TraceFormatError, TracekitError, make_os_read_error

if TYPE_CHECKING:
    from tracekit.cli.report_outputs import OutputTarget
    from tracekit.compare.comparison import Comparison
    from tracekit.model.report import Report


@click.command(name="render", short_help="Show a saved report or comparison in another format.")
@click.argument("path", type=click.Path(), metavar="FILE")
@click.option(
    "-f",
    "--format",
    "wanted",
    metavar="FORMAT",
    help="text, html, md, json, csv or parquet; of a comparison also junit or github.",
)
@click.option("-o", "--output", type=click.Path(), metavar="FILE", help="Write it here.")
@opt.top
@opt.verbose
def command(*, path: str, wanted: str | None, output: str | None, top: int, verbose: bool) -> int:
    """Show what was saved in another format: a report or a comparison (-o x.json), or measurements (--save x.tkm).

    The format is that of -f, else the one -o ends in, else text.
    """
    from tracekit.cli import ci_outputs

    report, comparison = _load_saved(Path(path))
    target = _parse_render_target(wanted, output, compared=comparison is not None)
    gates = comparison.gates if comparison else ()
    ci_outputs.write_gate_targets(report, gates, [target], comparison=comparison, top=top, verbose=verbose)
    return 0


def _parse_render_target(wanted: str | None, output: str | None, *, compared: bool) -> OutputTarget:
    """Parse the target and its format; comparisons support more formats."""
    from tracekit.cli import report_outputs as out

    formats = opt.COMPARISON_FORMATS if compared else opt.REPORT_FORMATS
    files = (output,) if output else ()
    return out.list_targets(opt.RequestedOutputs(files, (), wanted, formats, opt.FOLDER_FORMATS, is_moved=True))[0]


def _load_saved(path: Path) -> tuple[Report, Comparison | None]:
    """Load the report of any saved file, and the comparison if the file contains one."""
    from tracekit.discover.arguments import refuse_special
    from tracekit.pipeline import run as pipeline
    from tracekit.pipeline.cache import saved_measurements

    refuse_special(path)
    try:
        if saved_measurements.sniff_saved_form(path) == "measurements":
            return pipeline.judge(saved_measurements.load(path)), None
        return _decode_saved_json(path.read_bytes().decode("utf-8"))
    except OSError as error:
        hint = "check that it exists and that you may read it"
        raise make_os_read_error(path, error, hint) from error
    except UnicodeDecodeError as error:
        hint = "give what tracekit wrote: -o x.json, or measurements (--save x.tkm)"
        problem = "neither a report nor measurements"
        raise TraceFormatError(path, problem, hint, code="unfit") from error
    except TraceFormatError:
        raise
    except TracekitError as error:
        raise TraceFormatError(path, error.problem, error.hint, code="unfit") from error


def _decode_saved_json(text: str) -> tuple[Report, Comparison | None]:
    """Decode a report or comparison from JSON; raises `TracekitError` for a comparison with impossible numbers."""
    from tracekit.compare import comparison
    from tracekit.model.report import SCHEMA, Report
    from tracekit.render.json import read_schema_json

    value = read_schema_json(text, {SCHEMA: Report, comparison.SCHEMA: comparison.Comparison})
    if isinstance(value, Report):
        return value, None
    step = value.headline
    if all(factor is None or factor > 0 for factor in (step.ratio, step.low, step.high)):
        with contextlib.suppress(ArithmeticError):
            return value.report(), value
    raise TracekitError(
        "not a comparison: its numbers are none that one has", "write it again: tracekit compare … -o comparison.json"
    )
