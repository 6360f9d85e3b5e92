"""`tracekit doctor`: what went wrong in a capture, where that comes from, and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tracekit.cli import terminal

if TYPE_CHECKING:
    from tracekit.health.checks import Diagnosis
    from tracekit.pipeline.doctor import Examination

_SHOWN, _SHOWN_PLACES, _LONGEST = 12, 3, 300
_MARKS = {
    "error": ("not readable", "red"),
    "data_loss": ("lost", "red"),
    "warning": ("careful", "yellow"),
    "info": ("note", "cyan"),
}


@click.command(name="doctor", short_help="Show what went wrong in a capture, and what to do.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="PATH...")
@click.option(
    "--exclude", multiple=True, metavar="GLOB", help="Leave out files of this name. Repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--strict", is_flag=True, help="Exit with 2 if anything was lost or is not readable.")
@click.option("-j", "--jobs", type=click.IntRange(min=1), metavar="N", help="Files read at once.")
@terminal.quiet_option
@terminal.verbose_option
def command(
    *,
    paths: tuple[str, ...],
    exclude: tuple[str, ...],
    as_json: bool,
    strict: bool,
    jobs: int | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """Show what went wrong in a capture, where that comes from, and what to do.

    Every file is looked at: those that cannot be read or are cut off, captures without GPU work, ranks and
    steps that are missing, reports of dead workers, the wrong session directory of Ray.
    """
    from tracekit.health.checks import GRAVE
    from tracekit.pipeline import run as pipeline
    from tracekit.pipeline.doctor import examine

    options = pipeline.Options(exclude=exclude, jobs=jobs, progress=not quiet)
    examination = examine(paths, options)
    _, color = terminal.page()
    shown = (
        _as_json(examination)
        if as_json
        else "\n".join(_as_text(examination, verbose=verbose, color=color))
    )
    terminal.say(shown + "\n")
    grave = any(d.severity in GRAVE for d in examination.diagnoses)
    unread = {"refused", "unreadable"} & dict(examination.file_counts).keys()
    return 2 if not examination.read_count or unread or (strict and grave) else 0


def _as_json(examination: Examination) -> str:
    """The examination as JSON."""
    from tracekit.pipeline.doctor import held

    value = {
        "title": examination.title,
        "file_count": examination.source_count,
        "read_count": examination.read_count,
        "ignored_count": examination.ignored_count,
        "files": dict(examination.file_counts),
        "held": held(examination),
        "diagnoses": [asdict(d) for d in examination.diagnoses],
    }
    return json.dumps(value, indent=1)


def _as_text(examination: Examination, *, verbose: bool, color: bool) -> Iterator[str]:
    """The lines for a person: the gravest first, then what is there."""
    from tracekit.pipeline.doctor import held
    from tracekit.render.escape import printable

    diagnoses = examination.diagnoses
    count = f"{len(diagnoses):,} {'thing' if len(diagnoses) == 1 else 'things'} to know"
    yield f"{printable(examination.title)}: {count if diagnoses else 'nothing wrong was found'}"
    most = len(diagnoses) if verbose else _SHOWN
    for diagnosis in diagnoses[:most]:
        yield ""
        yield from _lines(diagnosis, verbose=verbose, color=color)
    if len(diagnoses) > most:
        yield ""
        yield f"… and {len(diagnoses) - most:,} more (-v)"
    yield ""
    yield printable(" · ".join(held(examination)))


def _lines(diagnosis: Diagnosis, *, verbose: bool, color: bool) -> Iterator[str]:
    """One diagnosis: what and where, why, what to do."""
    from tracekit.render.escape import printable

    mark, style = _MARKS[diagnosis.severity]
    mark = click.style(mark, fg=style, bold=True) if color else mark
    most = len(diagnosis.places) if verbose else _SHOWN_PLACES
    places = ", ".join(
        printable(place, None if verbose else 80) for place in diagnosis.places[:most]
    )
    more = f" and {len(diagnosis.places) - most:,} more" if len(diagnosis.places) > most else ""
    yield f"{mark}: {printable(diagnosis.what, None if verbose else _LONGEST)}"
    if places:
        yield f"  files: {places}{more}"
    yield f"  cause: {printable(diagnosis.cause)}"
    yield f"  to do: {printable(diagnosis.remedy)}"
