"""Kinds of recordings of a job's sources, from the measured table `recordings`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracekit.job.run_log.stages import list_logged_steps
from tracekit.model.recording.kinds import Classification, RecordingCount
from tracekit.model.recording.summary import ClassifiedSource, summarize_by_kind
from tracekit.model.report import Recording
from tracekit.model.trace import Measurements


def summarize_recordings(measured: Measurements) -> tuple[Recording, ...]:
    """Summarize the kinds of all sources, those that limit the answer first."""
    return summarize_by_kind(_count_run_steps_once(measured), measured.notes)


def _count_run_steps_once(measured: Measurements) -> Iterator[ClassifiedSource]:
    """Yield all classified processes; of several logs of one run, only the one that answers use counts steps."""
    counted = {
        (steps.log.run, steps.log.source): RecordingCount("steps", len(steps.log))
        for steps in list_logged_steps(measured)
    }
    runs = {run for run, _ in counted}
    run_of = measured.frame("recordings").distinct("source", "run")
    run_of_source = dict(zip(run_of.values("source"), run_of.values("run"), strict=True))
    for part in map_classified_processes(measured).values():
        run = run_of_source[part.source]
        if part.classified.kind != "driver-log" or run not in runs:
            yield part
            continue
        count = counted.get((run, part.source))
        others = tuple(one for one in part.classified.counts if one.name != "steps")
        counts = others if count is None else (count, *others)
        yield replace(part, classified=replace(part.classified, counts=counts))


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
