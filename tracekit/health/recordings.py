"""Symptoms of the kinds of recordings, with the sentence and command of `analyze`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tracekit.health.signs import Symptom
from tracekit.health.symptoms import Capture
from tracekit.model.recording_kinds import KINDS
from tracekit.model.recording_summary import Recorded, summarize
from tracekit.model.report import Recording
from tracekit.model.sources import Note


def recordings_of(captures: Iterable[Capture], notes: Sequence[Note]) -> tuple[Recording, ...]:
    """Summarize the kinds of these captures, and of the files that are known and not read."""
    recorded = [
        Recorded(capture.source.name, capture.source.tool, capture.recording)
        for capture in captures
        if capture.recording is not None
    ]
    return summarize(recorded, notes)


def symptoms_of(recordings: Iterable[Recording], nsys: frozenset[str]) -> Iterator[Symptom]:
    """Give a symptom for each kind that is not a normal recording; `nsys` are the names of sources of nsys."""
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
