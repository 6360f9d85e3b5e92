"""`tracekit doctor`: diagnose a capture, with causes and remedies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt
from tracekit.cli import terminal
from tracekit.cli.help_pages import GroupedCommand
from tracekit.cli.text_tables import encode_rows
from tracekit.model.text.labels import choose_plural
from tracekit.model.text.wrapping import NARROWEST_PROSE, wrap_words

if TYPE_CHECKING:
    from tracekit.health.checks import Diagnosis
    from tracekit.pipeline.doctor import CaptureExamination
    from tracekit.pipeline.options import Options

_SHOWN, _SHOWN_PLACES, _LONGEST_PLACE = 12, 3, 80
_SEVERITY_MARKS = {
    "error": ("unreadable", "red"),
    "data_loss": ("lost", "red"),
    "warning": ("warning", "yellow"),
    "info": ("note", "cyan"),
}


@click.command(name="doctor", cls=GroupedCommand, short_help="Diagnose a capture: problems, causes and fixes.")
@opt.add_paths()
@opt.exclude
@opt.add_results("examination")
@opt.add_strict("data was lost or is unreadable")
@opt.jobs
@opt.quiet
@opt.verbose
@opt.reading
def command(
    *,
    paths: tuple[str, ...],
    options: Options,
    requested: opt.RequestedOutputs,
    strict: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Diagnose a capture: problems, their causes and how to fix them.

    Finds files that are unreadable or truncated, captures without GPU work, missing ranks and steps, reports of
    dead workers, and the wrong session directory of Ray.
    """
    from tracekit.cli import report_outputs as out
    from tracekit.cli.compiled_parts import REMEDY, describe_missing_parts
    from tracekit.health.checks import GRAVE, Diagnosis
    from tracekit.pipeline.doctor import examine_captures

    targets = out.list_targets(requested)
    if not quiet and (phrase := describe_missing_parts()):
        terminal.print_problem(phrase, REMEDY)
    examination = examine_captures(paths, options)

    def make_output(target: out.OutputTarget) -> str | bytes:
        if target.format == "text":
            color = target.printed and terminal.get_page_width()[1]
            return "\n".join(_format_examination(examination, target.width, verbose=verbose, color=color)) + "\n"
        if target.format == "json":
            return _encode_examination(examination) + "\n"
        rows = [asdict(d) | {"places": ", ".join(d.places)} for d in examination.diagnoses]
        return encode_rows(rows, target.format, names=[field.name for field in fields(Diagnosis)])

    out.write_results(targets, make_output, quiet=quiet)
    grave = any(diagnosis.severity in GRAVE for diagnosis in examination.diagnoses)
    unread = {"refused", "unreadable"} & dict(examination.file_counts).keys()
    return 2 if not examination.read_count or unread or (strict and grave) else 0


def _encode_examination(examination: CaptureExamination) -> str:
    """Encode the examination as JSON."""
    from tracekit.cli.json_contracts import DOCTOR
    from tracekit.pipeline.doctor import summarize_examination

    value = {
        "title": examination.title,
        "file_count": examination.source_count,
        "read_count": examination.read_count,
        "ignored_count": examination.ignored_count,
        "files": dict(examination.file_counts),
        "held": summarize_examination(examination),
        "diagnoses": [asdict(diagnosis) for diagnosis in examination.diagnoses],
        "recordings": [asdict(recording) for recording in examination.recordings],
        "schema": DOCTOR,
    }
    return json.dumps(value, indent=1)


def _format_examination(
    examination: CaptureExamination, width: int | None, *, verbose: bool, color: bool
) -> Iterator[str]:
    """Format the examination as lines of text: diagnoses, most severe first, then the contents."""
    from tracekit.pipeline.doctor import summarize_examination
    from tracekit.render.escape import make_printable

    diagnoses = examination.diagnoses
    summary = "nothing wrong was found"
    if diagnoses:
        summary = f"{len(diagnoses):,} {choose_plural(len(diagnoses), 'thing')} to know"
    yield f"{make_printable(examination.title)}: {summary}"
    limit = len(diagnoses) if verbose else _SHOWN
    for diagnosis in diagnoses[:limit]:
        yield ""
        yield from _format_diagnosis(diagnosis, width, verbose=verbose, color=color)
    if len(diagnoses) > limit:
        yield ""
        yield f"… and {len(diagnoses) - limit:,} more (-v)"
    yield ""
    yield make_printable(" · ".join(summarize_examination(examination)))


def _format_diagnosis(diagnosis: Diagnosis, width: int | None, *, verbose: bool, color: bool) -> Iterator[str]:
    """Format one diagnosis: problem, files, cause, remedy."""
    from tracekit.render.escape import make_printable

    mark, style = _SEVERITY_MARKS[diagnosis.severity]
    places, place_length = diagnosis.places, None
    if not verbose:
        places, place_length = places[:_SHOWN_PLACES], _LONGEST_PLACE
    first, *further = _wrap_labelled(mark, make_printable(diagnosis.what), width)
    yield first.replace(mark, click.style(mark, fg=style, bold=True), 1) if color else first
    yield from further
    if places:
        more = len(diagnosis.places) - len(places)
        listed = ", ".join(make_printable(place, place_length) for place in places)
        if more:
            listed += f" and {more:,} more"
        yield from _wrap_labelled("  files", listed, width)
    yield from _wrap_labelled("  cause", make_printable(diagnosis.cause), width)
    yield from _wrap_labelled("  to do", make_printable(diagnosis.remedy), width)


def _wrap_labelled(label: str, text: str, width: int | None) -> list[str]:
    """Wrap text after its label, further lines below the text; without `width` it stays on one line."""
    room = None if width is None else max(width - len(label) - 2, NARROWEST_PROSE)
    first, *further = [text] if room is None else wrap_words(text, room) or [""]
    return [f"{label}: {first}", *(f"{' ' * len(label)}  {line}" for line in further)]
