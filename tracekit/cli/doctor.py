"""`tracekit doctor`: diagnose a capture, with causes and remedies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tracekit.cli import options as opt
from tracekit.cli import terminal
from tracekit.model.labels import plural

if TYPE_CHECKING:
    from tracekit.health.checks import Diagnosis
    from tracekit.pipeline.doctor import Examination
    from tracekit.pipeline.options import Options

_SHOWN, _SHOWN_PLACES, _LONGEST, _LONGEST_PLACE = 12, 3, 300, 80
_MARKS = {
    "error": ("not readable", "red"),
    "data_loss": ("lost", "red"),
    "warning": ("careful", "yellow"),
    "info": ("note", "cyan"),
}


@click.command(name="doctor", short_help="Show what went wrong in a capture, and what to do.")
@opt.paths()
@opt.exclude
@opt.as_json
@opt.exports("examination", "json=FILE, json=- (standard output)")
@opt.strict("anything was lost or is not readable")
@opt.jobs
@opt.quiet
@opt.verbose
@opt.reading
def command(
    *,
    paths: tuple[str, ...],
    options: Options,
    as_json: bool,
    exports: tuple[str, ...],
    strict: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Show what went wrong in a capture, where that comes from, and what to do.

    Every file is looked at: those that cannot be read or are cut off, captures without GPU work, ranks and
    steps that are missing, reports of dead workers, the wrong session directory of Ray.
    """
    from tracekit.cli import outputs as out
    from tracekit.cli.compiled import REMEDY, missing_phrase
    from tracekit.health.checks import GRAVE
    from tracekit.pipeline.doctor import examine

    json_paths = out.json_paths(exports, as_json=as_json)
    if not quiet and (phrase := missing_phrase()):
        terminal.tell_problem(phrase, REMEDY)
    examination = examine(paths, options)
    if json_paths:
        out.write_json(_as_json(examination) + "\n", json_paths, quiet=quiet)
    if out.STANDARD_OUTPUT not in json_paths:
        _, color = terminal.page()
        lines = _as_text(examination, verbose=verbose, color=color)
        terminal.say("\n".join(lines) + "\n")
    grave = any(diagnosis.severity in GRAVE for diagnosis in examination.diagnoses)
    unread = {"refused", "unreadable"} & dict(examination.file_counts).keys()
    return 2 if not examination.read_count or unread or (strict and grave) else 0


def _as_json(examination: Examination) -> str:
    """Encode the examination as JSON."""
    from tracekit.cli.contracts import DOCTOR
    from tracekit.pipeline.doctor import held

    value = {
        "title": examination.title,
        "file_count": examination.source_count,
        "read_count": examination.read_count,
        "ignored_count": examination.ignored_count,
        "files": dict(examination.file_counts),
        "held": held(examination),
        "diagnoses": list(map(asdict, examination.diagnoses)),
        "recordings": list(map(asdict, examination.recordings)),
        "schema": DOCTOR,
    }
    return json.dumps(value, indent=1)


def _as_text(examination: Examination, *, verbose: bool, color: bool) -> Iterator[str]:
    """Format the examination as lines of text: diagnoses, most severe first, then the contents."""
    from tracekit.pipeline.doctor import held
    from tracekit.render.escape import printable

    diagnoses = examination.diagnoses
    summary = "nothing wrong was found"
    if diagnoses:
        summary = f"{len(diagnoses):,} {plural(len(diagnoses), 'thing')} to know"
    yield f"{printable(examination.title)}: {summary}"
    limit = len(diagnoses) if verbose else _SHOWN
    for diagnosis in diagnoses[:limit]:
        yield ""
        yield from _lines(diagnosis, verbose=verbose, color=color)
    if len(diagnoses) > limit:
        yield ""
        yield f"… and {len(diagnoses) - limit:,} more (-v)"
    yield ""
    yield printable(" · ".join(held(examination)))


def _lines(diagnosis: Diagnosis, *, verbose: bool, color: bool) -> Iterator[str]:
    """Format one diagnosis: problem, files, cause, remedy."""
    from tracekit.render.escape import printable

    mark, style = _MARKS[diagnosis.severity]
    if color:
        mark = click.style(mark, fg=style, bold=True)
    places, place_length, text_length = diagnosis.places, None, None
    if not verbose:
        places, place_length, text_length = places[:_SHOWN_PLACES], _LONGEST_PLACE, _LONGEST
    yield f"{mark}: {printable(diagnosis.what, text_length)}"
    if places:
        more = len(diagnosis.places) - len(places)
        listed = ", ".join(printable(place, place_length) for place in places)
        if more:
            listed += f" and {more:,} more"
        yield f"  files: {listed}"
    yield f"  cause: {printable(diagnosis.cause)}"
    yield f"  to do: {printable(diagnosis.remedy)}"
