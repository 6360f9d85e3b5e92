"""Symptoms for each kind of recording, with the sentence and command that `analyze` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tracekit.health.signs import Symptom
from tracekit.health.symptoms import Capture
from tracekit.model.recording_kinds import KINDS
from tracekit.model.recording_summary import ClassifiedSource, summarize_by_kind
from tracekit.model.report import Recording
from tracekit.model.sources import Note


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
