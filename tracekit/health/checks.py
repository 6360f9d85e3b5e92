"""Diagnosis of a capture: problems with cause and remedy, from reader notes and from comparing captures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tracekit.health.problems import PROBLEMS
from tracekit.health.signs import Symptom, find_note_symptoms
from tracekit.health.symptoms import Capture, find_capture_symptoms
from tracekit.model.recording.kinds import KINDS
from tracekit.model.recording.summary import ClassifiedSource, summarize_by_kind
from tracekit.model.records import dataclass
from tracekit.model.report import Recording
from tracekit.model.text.labels import make_natural_key
from tracekit.model.trace import Failure, Note, NoteSeverity

__all__ = ["GRAVE", "Capture", "Diagnosis", "diagnose"]

GRAVE: tuple[NoteSeverity, ...] = ("error", "data_loss")
"""Severities of lost or unreadable data."""

_ORDER = {code: place for place, code in enumerate(PROBLEMS)}
_GRAVITY = {"error": 0, "data_loss": 1, "warning": 2, "info": 3}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One problem of the capture: description, files, cause and remedy."""

    code: str
    severity: NoteSeverity
    what: str
    cause: str
    remedy: str
    count: int = 1
    places: tuple[str, ...] = ()


def diagnose(
    captures: Sequence[Capture],
    notes: Sequence[Note],
    failures: Sequence[Failure] = (),
    seen: Iterable[Symptom] = (),
    *,
    complete: bool = True,
) -> tuple[Diagnosis, ...]:
    """Diagnose a capture: one entry per problem, however many files it affects, most severe first.

    `notes` include ignored files (`codes.IGNORED`); `seen` are further symptoms. If the captures are not
    `complete`, the user selected a part, and missing ranks and steps are not problems.
    """
    nsys = frozenset(capture.source.name for capture in captures if capture.source.tool == "nsys")
    of_recordings = list(find_recording_symptoms(summarize_capture_kinds(captures, notes), nsys))
    # A recording kind covers in one sentence what several notes say.
    said = {symptom.code for symptom in of_recordings}
    by_kind: dict[tuple[str, str], list[Symptom]] = {}
    for symptom in (
        *(sign for sign in find_note_symptoms(notes, failures, nsys) if sign.code not in said),
        *seen,
        *of_recordings,
        *find_capture_symptoms(captures, complete=complete),
    ):
        by_kind.setdefault((symptom.code, symptom.what), []).append(symptom)
    return tuple(sorted((_merge_symptoms(symptoms) for symptoms in by_kind.values()), key=_rank_diagnosis))


def _rank_diagnosis(diagnosis: Diagnosis) -> tuple[object, ...]:
    """Build the sort key of a diagnosis: severity, order of the table, text."""
    gravity = _GRAVITY[diagnosis.severity]
    return gravity, _ORDER[diagnosis.code], make_natural_key(diagnosis.what)


def _merge_symptoms(symptoms_of_kind: Sequence[Symptom]) -> Diagnosis:
    """Merge symptoms of one kind into a diagnosis."""
    first = symptoms_of_kind[0]
    problem = PROBLEMS[first.code]
    names: set[str] = set()
    severities: list[NoteSeverity] = []
    for symptom in symptoms_of_kind:
        names.update(place for place in symptom.places if place)
        severities.append(symptom.severity or problem.severity)
    places = tuple(sorted(names, key=make_natural_key))
    count = sum(symptom.count for symptom in symptoms_of_kind) or len(places) or 1
    # Messages may contain braces: they are inserted, never used as a format.
    files = f"{len(places):,} {'file' if len(places) == 1 else 'files'}"
    what = first.what or problem.what.format(files=files, count=f"{count:,}")
    return Diagnosis(
        first.code,
        min(severities, key=_GRAVITY.__getitem__),
        what,
        problem.cause,
        first.remedy or problem.remedy,
        count,
        places,
    )


def summarize_capture_kinds(captures: Iterable[Capture], notes: Sequence[Note]) -> tuple[Recording, ...]:
    """Summarize the kinds of these captures, and of recognized files that are not read."""
    recorded = [
        ClassifiedSource(capture.source.name, capture.source.tool, capture.recording)
        for capture in captures
        if capture.recording is not None
    ]
    return summarize_by_kind(recorded, notes)


def find_recording_symptoms(recordings: Iterable[Recording], nsys: frozenset[str]) -> Iterator[Symptom]:
    """Yield a symptom for each abnormal kind of recording. `nsys` are the names of nsys sources."""
    for recording in recordings:
        kind = KINDS[recording.kind]
        if kind.severity is None:
            continue
        problem = kind.problem
        if problem == "empty-trace" and nsys.issuperset(recording.sources):
            problem = "empty-capture"
        yield Symptom(
            problem,
            recording.sources,
            recording.sentence.rstrip("."),
            recording.source_count,
            f"{recording.advice}: {recording.command}",
            kind.severity,
        )
