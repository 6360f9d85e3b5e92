"""Summary of classified sources and recognized files as one `Recording` per kind, for `analyze` and `doctor`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracekit.model.inputs.note_codes import RECOGNIZED
from tracekit.model.inputs.sources import Note
from tracekit.model.recording.kinds import (
    KINDS,
    SAVED,
    Classification,
    RecordingCount,
    RecordingGroup,
    RecordingKind,
    Remedy,
    make_count_key,
    shorten_label,
)
from tracekit.model.records import dataclass
from tracekit.model.report import Recording
from tracekit.model.text.labels import make_natural_key

MAX_SOURCES = 50
"""Maximum number of sources named in one `Recording`, and of labels per name in its data."""


@dataclass(frozen=True, slots=True)
class ClassifiedSource:
    """One classified source, the input of `summarize_by_kind`."""

    source: str
    tool: str
    classified: Classification


_PLACE = {code: place for place, code in enumerate(KINDS)}
_GRAVITY = {"error": 0, "data_loss": 1, "warning": 2, "info": 3, None: 4}


def summarize_by_kind(recorded: Iterable[ClassifiedSource], notes: Iterable[Note] = ()) -> tuple[Recording, ...]:
    """Summarize these sources and notes as one `Recording` per kind, most severe first, normal ones last.

    A file has one kind: the first of `KINDS` among its processes.
    """
    of_source = _group_by_source(recorded)
    if any(parts[0].classified.kind != "driver-log" for parts in of_source.values()):
        # Next to a profile, a driver log is expected.
        of_source = {source: parts for source, parts in of_source.items() if parts[0].classified.kind != "driver-log"}
    by_kind: dict[tuple[str, bool], list[ClassifiedSource]] = {}
    for parts in of_source.values():
        for part in parts:
            by_kind.setdefault((part.classified.kind, part.tool == "nsys"), []).append(part)
    for note in notes:
        if note.code == RECOGNIZED and note.data.text("kind") in KINDS:
            if of_source and note.data.text("kind") == SAVED:
                continue  # results are often saved next to their profiles
            part = ClassifiedSource(note.source, "", _classify_note(note))
            by_kind.setdefault((part.classified.kind, False), []).append(part)
    recordings = [_make_recording(KINDS[code], parts, len(of_source)) for (code, _), parts in by_kind.items()]
    return tuple(sorted(recordings, key=_order_recordings))


def _group_by_source(recorded: Iterable[ClassifiedSource]) -> dict[str, list[ClassifiedSource]]:
    """Group the processes by source and keep those of the source's kind."""
    of_source: dict[str, list[ClassifiedSource]] = {}
    for part in recorded:
        others = of_source.setdefault(part.source, [])
        if others and _PLACE[part.classified.kind] < _PLACE[others[0].classified.kind]:
            others.clear()
        if not others or others[0].classified.kind == part.classified.kind:
            others.append(part)
    return of_source


def _classify_note(note: Note) -> Classification:
    """Classify a recognized file that no reader takes."""
    labels = ((name, note.data.text(name)) for name in ("form", "backend"))
    counts = tuple(RecordingCount(name, 1, label) for name, label in labels if label)
    return Classification(note.data.text("kind"), counts)


def _order_recordings(recording: Recording) -> tuple[int, int]:
    return _GRAVITY[KINDS[recording.kind].severity], _PLACE[recording.kind]


def _make_recording(kind: RecordingKind, parts: Sequence[ClassifiedSource], total: int) -> Recording:
    """Build the `Recording` of one kind."""
    counts: dict[str, int] = {}
    labels: dict[str, dict[str, int]] = {}
    for part in parts:
        for counted in part.classified.counts:
            counts[counted.name] = counts.get(counted.name, 0) + counted.count
            if counted.label is not None:
                of_name = labels.setdefault(counted.name, {})
                of_name[counted.label] = of_name.get(counted.label, 0) + counted.count
    sources = tuple(sorted({part.source for part in parts}, key=make_natural_key))
    tools = frozenset(part.tool for part in parts)
    group = RecordingGroup(sources, tools, counts, labels, total)
    remedy = kind.remedy(group) if callable(kind.remedy) else kind.remedy or Remedy("", "")
    data = [*counts.items()]
    for name, of_name in labels.items():
        most = sorted(of_name.items(), key=make_count_key)[:MAX_SOURCES]
        data += [(f"{name} {shorten_label(label)}", count) for label, count in most]
    return Recording(
        kind=kind.code,
        sentence=kind.sentence(group),
        advice=remedy.advice,
        command=remedy.command,
        sources=sources[:MAX_SOURCES],
        source_count=len(sources),
        data=tuple(sorted(data)),
    )
