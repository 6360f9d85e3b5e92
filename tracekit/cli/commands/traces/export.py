"""`tracekit export`: convert profiles, or a saved report, comparison or measurements, to another format."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt
from tracekit.cli import terminal
from tracekit.cli.help_pages import GroupedCommand
from tracekit.model.errors import TraceFormatError, TracekitError, make_os_read_error
from tracekit.model.records import dataclass
from tracekit.model.text.labels import choose_plural

if TYPE_CHECKING:
    from tracekit.cli.report_outputs import OutputTarget
    from tracekit.compare.comparison import Comparison
    from tracekit.model.report import Report
    from tracekit.pipeline.options import Options
    from tracekit.pipeline.timeline.document import ExportedTimeline

_MAX_LISTED_CLOCKS = 10
_SNIFFED_BYTES = 4096
_OWN_SCHEMA = re.compile(rb'"schema"\s*:\s*"tracekit\.')


@dataclass(frozen=True, slots=True)
class _Manner:
    """How an export reads and prints."""

    options: Options
    quiet: bool
    verbose: bool
    python: bool = False
    recorded_clocks: bool = False
    critical_path: bool = False
    time_range: str | None = None
    top: int = 10
    strict: bool = False


@click.command(name="export", cls=GroupedCommand, short_help="Convert profiles or a saved report to another format.")
@opt.add_paths()
@opt.add_results(
    "result",
    opt.EXPORT_FORMATS,
    folders=opt.FOLDER_FORMATS,
    is_moved=True,
    flags=("-f", "--to", "--format"),
)
@click.option("--perfetto", type=click.Path(), metavar="FILE", hidden=True, help="Same as --to perfetto -o FILE.")
@opt.selection
@click.option("--python", is_flag=True, help="Timeline: keep Python functions, which make it much larger.")
@click.option("--recorded-clocks", is_flag=True, help="Timeline: do not correct the clocks of ranks.")
@click.option("--critical-path", is_flag=True, help="Timeline: draw the critical path of the run.")
@click.option("--range", "time_range", metavar="FROM:TO", help="Timeline: only this time: 12ms:40ms, or 'step 3'.")
@opt.top
@opt.jobs
@opt.cache
@opt.add_strict()
@opt.quiet
@opt.verbose
@opt.reading
def command(  # noqa: PLR0913 - what is given, one by one
    *,
    paths: tuple[str, ...],
    requested: opt.RequestedOutputs,
    perfetto: str | None,
    python: bool,
    recorded_clocks: bool,
    critical_path: bool,
    time_range: str | None,
    options: Options,
    top: int,
    strict: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Convert profiles, or a saved report or comparison, to another format.

    PATH is a directory of profiles, a file, a glob pattern, or a file that tracekit saved (-o x.json, --save x.tkm).
    `--to perfetto` merges the traces of all ranks into one timeline for ui.perfetto.dev, with steps, stages and
    findings above them. Clock offsets between ranks are corrected. `--range` limits it to a part of the time, as the page
    and the report print it; rows that cross the edge are clipped.
    """
    from tracekit.cli import report_outputs as out

    if perfetto is not None:
        requested = replace(requested, files=(*requested.files, perfetto), format="perfetto")
    targets = out.list_targets(requested)
    shown = replace(options, details=True)
    manner = _Manner(shown, quiet, verbose, python, recorded_clocks, critical_path, time_range, top, strict)
    others = [target for target in targets if target.format != "perfetto"]
    if time_range is not None and len(others) == len(targets):
        raise TracekitError(
            "--range limits a timeline, and none is written", "add --to perfetto; --steps limits a report to some steps"
        )
    status = 0
    for target in targets:
        if target.format == "perfetto":
            status = _export_timeline(paths, target.path, manner)
    is_default = not (requested.format or requested.files)
    if is_default and (len(paths) > 1 or Path(paths[0]).is_dir()):
        raise click.UsageError("no format is named: --to perfetto, html, md, json, csv or tkm")
    return max(status, _export_report(paths, others, manner, is_saved=is_default)) if others else status


def write_page(paths: Sequence[str], page: Path, options: Options, *, quiet: bool, verbose: bool) -> int:
    """Write the report of profiles or of a saved file as a page, and return the exit status."""
    from tracekit.cli.report_outputs import OutputTarget

    manner = _Manner(replace(options, details=True), quiet=quiet, verbose=verbose)
    return _export_report(paths, [OutputTarget("html", str(page))], manner)


def _export_report(
    paths: Sequence[str], targets: Sequence[OutputTarget], manner: _Manner, *, is_saved: bool = False
) -> int:
    """Write the report of profiles or of a saved file (known with `is_saved`), and return the exit status."""
    if len(paths) == 1 and (is_saved or _is_saved(Path(paths[0]))):
        _convert_saved(Path(paths[0]), targets, manner)
        return 0
    return _export_analysis(paths, targets, manner)


def _export_timeline(paths: Sequence[str], target: str, manner: _Manner) -> int:
    """Write the timeline of all ranks, and return the exit status."""
    from tracekit.pipeline.timeline import document
    from tracekit.pipeline.timeline.time_ranges import parse_time_range

    exported = document.export_timeline(
        list(paths),
        target,
        manner.options,
        python=manner.python,
        correct_clocks=not manner.recorded_clocks,
        critical_path=manner.critical_path,
        time_range=None if manner.time_range is None else parse_time_range(manner.time_range),
    )
    terminal.print_failures(exported.failures)
    if not manner.quiet:
        _print_timeline(exported, target, verbose=manner.verbose)
    return 2 if manner.strict and exported.failures else 0


def _export_analysis(paths: Sequence[str], targets: Sequence[OutputTarget], manner: _Manner) -> int:
    """Analyze profiles, write the report or the measurements, and return the exit status."""
    from tracekit.pipeline import report_cache
    from tracekit.pipeline.cache import saved_measurements

    _refuse_gate_formats(targets)
    timeline = any(target.format == "html" for target in targets)
    result = report_cache.analyze_cached(paths, replace(manner.options, timeline=timeline))
    for target in targets:
        if target.format == "tkm":
            saved_measurements.save(result.measurements, target.path)
            if not manner.quiet:
                terminal.print_message(f"wrote {target.path}")
        else:
            _write_report(result.report, None, target, manner)
    terminal.print_failures(result.failures)
    return 2 if not result.read.count or (manner.strict and result.failed) else 0


def _convert_saved(path: Path, targets: Sequence[OutputTarget], manner: _Manner) -> None:
    """Write a saved report, comparison or measurements to every target."""
    from tracekit.cli import ci_outputs

    report, comparison = _load_saved(path)
    if comparison is None:
        _refuse_gate_formats(targets)
    elif not comparison.gates:
        ci_outputs.refuse_gate_formats(targets)
    for target in targets:
        if target.format == "tkm":
            raise TracekitError(f"{path}: tkm contains measurements, and this file has none", "give the profiles")
        _write_report(report, comparison, target, manner)


def _write_report(report: Report, comparison: Comparison | None, target: OutputTarget, manner: _Manner) -> None:
    """Write a report or comparison to a target."""
    from tracekit.cli import ci_outputs

    gates = comparison.gates if comparison else ()
    ci_outputs.write_gate_targets(
        report,
        gates,
        [target],
        comparison=comparison,
        top=manner.top,
        verbose=manner.verbose,
        quiet=manner.quiet,
    )


def _refuse_gate_formats(targets: Sequence[OutputTarget]) -> None:
    """Raise `TracekitError` for a format that only the gate of a comparison has."""
    from tracekit.cli import ci_outputs

    for target in targets:
        if target.format in ci_outputs.GATE_FORMATS:
            formats = opt.join_choices(opt.REPORT_FORMATS)
            raise TracekitError(f"{target.format} is a format of gates, and a report has none", f"--to {formats}")


def _is_saved(path: Path) -> bool:
    """Check whether a file begins like a report, a comparison or measurements that tracekit saved."""
    from tracekit.model.inputs.saved_files import sniff_saved_form

    if sniff_saved_form(path) is not None:
        return True
    with contextlib.suppress(OSError, ValueError):
        if path.is_file():
            with path.open("rb") as file:
                return _OWN_SCHEMA.search(file.read(_SNIFFED_BYTES)) is not None
    return False


def _print_timeline(exported: ExportedTimeline, target: str, *, verbose: bool) -> None:
    """Print the contents of the timeline and its clock corrections."""
    rows = sum(exported.rows.values())
    processes = len({lane.number for lane in exported.lanes})
    annotations = exported.annotations
    terminal.print_message(
        f"{rows:,} rows of {processes:,} {choose_plural(processes, 'process', 'processes')}, "
        f"{annotations.count:,} steps, stages and findings"
    )
    if verbose:
        for table, count in sorted(exported.rows.items()):
            terminal.print_message(f"  {table.replace('_', ' ')}: {count:,}")
    if annotations.omitted:
        terminal.print_message(f"  {annotations.omitted:,} of the shortest steps, stages and findings left out")
    _print_clocks(exported, verbose=verbose)
    for reason in exported.apart:
        terminal.print_message(f"not on one clock: {reason}")
    terminal.print_message(f"wrote {target}")
    if exported.is_among_inputs:
        terminal.print_message("  it lies among the profiles: leave it out when you read them again (--exclude)")


def _print_clocks(exported: ExportedTimeline, *, verbose: bool) -> None:
    """Print the clock corrections."""
    from tracekit.model.units import format_quantity
    from tracekit.render.escape import make_printable

    lanes = list({lane.name: lane for lane in exported.lanes if lane.offset_ns}.values())
    limit = len(lanes) if verbose else _MAX_LISTED_CLOCKS
    for lane in lanes[:limit]:
        correction, spread = (format_quantity(-(lane.offset_ns or 0), "ns"), format_quantity(lane.uncertainty_ns, "ns"))
        terminal.print_message(f"clock of {make_printable(lane.name)} corrected by {correction} (± {spread})")
    if len(lanes) > limit:
        terminal.print_message(f"  and of {len(lanes) - limit:,} more (-v shows all)")


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
        hint = "name an output: --to perfetto or -o report.html; without one, give a report or measurements that tracekit saved"
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
