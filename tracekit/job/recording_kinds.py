"""Kinds of recordings of a job's sources, from the measured table `recordings`."""

from __future__ import annotations

from tracekit.job.frames import text_or_none, whole_or_none
from tracekit.model.keys import row_dicts
from tracekit.model.recording_kinds import Classified, Count
from tracekit.model.recording_summary import Recorded, summarize
from tracekit.model.report import Recording
from tracekit.model.trace import Measurements


def summarize_recordings(measured: Measurements) -> tuple[Recording, ...]:
    """Summarize the kinds of all sources, those that limit the answer first."""
    return summarize(classified(measured).values(), measured.notes)


def classified(measured: Measurements) -> dict[tuple[str, int | None], Recorded]:
    """Map each (source, process id) to its classified process."""
    counts: dict[tuple[str, int | None], list[Count]] = {}
    kinds: dict[tuple[str, int | None], tuple[str, str]] = {}
    for row in row_dicts(measured["recordings"]):
        key = str(row["source"]), whole_or_none(row["pid"])
        kinds[key] = str(row["tool"]), str(row["kind"])
        counts.setdefault(key, []).append(
            Count(str(row["name"]), int(row["count"]), text_or_none(row["label"]))
        )
    return {
        key: Recorded(key[0], tool, Classified(kind, tuple(counts[key])))
        for key, (tool, kind) in kinds.items()
    }
