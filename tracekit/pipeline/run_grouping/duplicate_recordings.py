"""Detection of partial duplicates: files that repeat a recording, truncated or with something appended.

Byte-identical copies are found before reading (`discover.copies`). A profiler makes one recording of a process at a
time, so recordings of one process that begin, or whose windows begin, at the same nanosecond are the same one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from tracekit.analyses import Tables
from tracekit.model.inputs.note_codes import Data
from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES, concatenate_table_parts
from tracekit.model.tables.arrays import Coded, Columns
from tracekit.model.tables.frame import Frame
from tracekit.model.trace import Note
from tracekit.pipeline.wire_format.worker_tables import MeasuredSource

SAME_RECORDING = "same-recording"
"""Code of the notes on files that contain less of a recording than another file."""

_WINDOWS = ("steps", "stages")
_COMPARED_FACTS = ("rank", "step", "replica", "scope", "part")
"""Facts that cannot differ between files of one recording. The role can: a copy's new name may suggest another."""

Sources = list[tuple[MeasuredSource, ...]]


@dataclass(frozen=True, slots=True)
class _ProcessRecording:
    """One process of a source: its start, the starts of its windows, and its number of events."""

    part: MeasuredSource
    start_ns: int
    event_count: int
    window_starts: frozenset[int]

    @property
    def preference(self) -> tuple[int, int, int, int]:
        """Sort key of the files of one recording, best first: most events, fewest notes, smallest file, shortest name."""
        source = self.part.source
        return -self.event_count, len(self.part.notes), source.size_bytes, len(source.name)


def drop_duplicate_recordings(sources: Sequence[tuple[MeasuredSource, ...]]) -> Sources:
    """Empty the sources that repeat part of another's recording, and note which one counts.

    A table may contain rows of several sources: rows of duplicates are removed from all tables.
    """
    originals = _find_originals(list(chain.from_iterable(sources)))
    if not originals:
        return list(sources)
    counting = set(originals.values())
    return [tuple(_drop_duplicate_rows(part, originals, counting) for part in source) for source in sources]


def _find_originals(parts: Sequence[MeasuredSource]) -> dict[str, str]:
    """Map each duplicate source to the source that counts."""
    of_process: dict[tuple[object, ...], list[MeasuredSource]] = {}
    processes = Counter(part.source.name for part in parts)
    for part in parts:
        source = part.source
        is_single = processes[source.name] == 1 and source.pid is not None
        if source.tool == "torch" and is_single and part.original is None:
            process = source.run, source.node, source.host, source.pid
            of_process.setdefault(process, []).append(part)
    several = [same for same in of_process.values() if len(same) > 1]
    originals: dict[str, str] = {}
    if not several:
        return originals
    recordings = _collect_process_recordings(parts, {part.source.name for same in several for part in same})
    for same in several:
        of_same = [recordings[part.source.name] for part in same if part.source.name in recordings]
        originals |= _find_process_originals(of_same)
    return originals


def _find_process_originals(recordings: Iterable[_ProcessRecording]) -> dict[str, str]:
    """Map each duplicate among the recordings of one process to the most complete one."""
    counting: list[_ProcessRecording] = []
    originals: dict[str, str] = {}
    for recording in sorted(recordings, key=lambda r: r.preference):
        original = next((other for other in counting if _is_same_recording(recording, other)), None)
        if original is None:
            counting.append(recording)
        else:
            originals[recording.part.source.name] = original.part.source.name
    return originals


def _is_same_recording(less: _ProcessRecording, more: _ProcessRecording) -> bool:
    """Check whether two recordings have no conflicting facts, and begin together or share half of the smaller's windows."""
    for fact in _COMPARED_FACTS:
        pair = getattr(less.part.source, fact), getattr(more.part.source, fact)
        if None not in pair and pair[0] != pair[1]:
            return False
    shared = len(less.window_starts & more.window_starts)
    return less.start_ns == more.start_ns or 0 < len(less.window_starts) <= 2 * shared


def _collect_process_recordings(parts: Iterable[MeasuredSource], names: set[str]) -> dict[str, _ProcessRecording]:
    """Summarize the recordings of these sources with an absolute clock, by source name."""
    tables: dict[str, list[Columns]] = {"captures": [], "steps": [], "stages": []}
    of_name: dict[str, MeasuredSource] = {}
    for part in parts:
        of_name[part.source.name] = part
        for measured in part.tables.values():
            for table in tables.keys() & measured.keys():
                tables[table].append(measured[table])
    starts: dict[str, set[int]] = defaultdict(set)
    for table in _WINDOWS:
        rows = Frame.from_columns(concatenate_table_parts(TABLES[table], tables[table]))
        for row in rows.filter(rows.is_in("source", names)).rows("source", "ts_ns"):
            starts[row["source"]].add(row["ts_ns"])
    rows = Frame.from_columns(concatenate_table_parts(TABLES["captures"], tables["captures"]))
    rows = rows.filter(rows["absolute_time"] & rows.is_in("source", names))
    recordings: dict[str, _ProcessRecording] = {}
    for row in rows.rows("source", "ts_ns", "host_op_count", "device_op_count"):
        source, count = row["source"], row["host_op_count"] + row["device_op_count"]
        if count > 0:
            window_starts = frozenset(starts[source])
            recordings[source] = _ProcessRecording(of_name[source], row["ts_ns"], count, window_starts)
    return recordings


def _drop_duplicate_rows(part: MeasuredSource, originals: Mapping[str, str], counting: set[str]) -> MeasuredSource:
    """Drop rows of duplicate sources from a part; for a duplicate itself also drop its notes and faults."""
    tables: dict[str, Tables] = {}
    for question, frames in part.tables.items():
        tables[question] = {name: _drop_source_rows(rows, originals) for name, rows in frames.items()}
    name = part.source.name
    if name in originals:
        original = originals[name]
        message = f"the same recording as {original}, which contains as much or more and is used"
        notes = (Note("warning", SAME_RECORDING, message, name, data=Data(original=original)),)
        return replace(part, tables=tables, notes=notes, faults=(), original=original, graph=None)
    if name in counting:
        # The note "duplicate" said that both files are kept, before either was read.
        other_notes = tuple(note for note in part.notes if note.code != "duplicate")
        return replace(part, tables=tables, notes=other_notes)
    return replace(part, tables=tables)


def _drop_source_rows(rows: Columns, names: Mapping[str, str]) -> Columns:
    """Drop the rows of these sources."""
    source = rows["source"]
    assert isinstance(source, Coded), "names of sources are texts"
    is_kept = np.array([*(text not in names for text in source.texts), True])[source.codes]
    return rows if is_kept.all() else rows.where(is_kept)
