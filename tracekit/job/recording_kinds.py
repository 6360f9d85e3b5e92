"""Kinds of recordings of a job's sources, from the measured table `recordings`."""

from __future__ import annotations

from tracekit.model.recording.kinds import Classification, RecordingCount
from tracekit.model.recording.summary import ClassifiedSource, summarize_by_kind
from tracekit.model.report import Recording
from tracekit.model.trace import Measurements


def summarize_recordings(measured: Measurements) -> tuple[Recording, ...]:
    """Summarize the kinds of all sources, those that limit the answer first."""
    return summarize_by_kind(map_classified_processes(measured).values(), measured.notes)


def map_classified_processes(measured: Measurements) -> dict[tuple[str, int | None], ClassifiedSource]:
    """Map each (source, process id) to its classified process."""
    counts: dict[tuple[str, int | None], list[RecordingCount]] = {}
    kinds: dict[tuple[str, int | None], tuple[str, str]] = {}
    for row in measured.frame("recordings").rows():
        key = row["source"], row["pid"]
        kinds[key] = row["tool"], row["kind"]
        counts.setdefault(key, []).append(RecordingCount(row["name"], row["count"], row["label"]))
    return {
        key: ClassifiedSource(key[0], tool, Classification(kind, tuple(counts[key])))
        for key, (tool, kind) in kinds.items()
    }
