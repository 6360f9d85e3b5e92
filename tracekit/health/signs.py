"""Mapping of reader and discovery notes to known problems: codes to keys of `PROBLEMS`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from tracekit.model.inputs.note_codes import (
    FILTERED_ROWS,
    IGNORED,
    IMPOSSIBLE_TIMES,
    INTERLEAVED,
    LATE_ENDS,
    LOST_KERNELS,
    MISSED,
    OF_ERRORS,
    OPENED,
    OVERLONG,
    UNREADABLE,
    UNUSABLE_KERNELS,
    Data,
)
from tracekit.model.records import dataclass
from tracekit.model.trace import Failure, Note, NoteSeverity


@dataclass(frozen=True, slots=True)
class Symptom:
    """One observed problem: its key in `PROBLEMS`, its files, and the fields that the table leaves open.

    `severity` overrides the table's.
    """

    code: str
    places: tuple[str, ...] = ()
    what: str = ""
    count: int = 0
    remedy: str = ""
    severity: NoteSeverity | None = None


_PROFILES = (*(".nsys-rep", ".qdrep", ".qdstrm", ".sqlite", ".json", ".json.gz"), *(".pickle", ".pkl", ".snap"))
_PACKED = re.compile(r"\.(?:gz|zst|xz|bz2|zip)\Z")

NAMED = frozenset({"archive", "other-text"})
"""Problems whose reason data describe the file and the remedy."""

_BY_REASON: Mapping[str, str] = {
    **{code: code for code in NAMED},
    "newer-report": "newer-report",
    "refused-report": "refused-report",
    "cut-stream": "truncated-trace",
    "ray-check": "ray-check",
    "lfs-pointer": "lfs-pointer",
    "empty-file": "empty-file",
    "stream-only": "stream-only",
    "no-report": "truncated-report",
    "being-written": "being-written",
    "no-nsys": "no-nsys",
    "interrupted-export": "interrupted-export",
    "stale-export": "stale-export",
    "forbidden": "forbidden",
}
"""Problem of a file that is not read, by reason code."""

_BY_REFUSAL: Mapping[str, str] = {
    **_BY_REASON,
    "truncated-report": "truncated-report",
    "damaged-database": "truncated-database",
    "cut-snapshot": "truncated-trace",
    "damaged-snapshot": "truncated-trace",
}
"""Problem of a file that could not be read, by error code."""

_OF_VERSIONS = frozenset({"newer-report", "refused-report"})
"""Problems whose reason data describe them, including versions."""

_BY_STATE: Mapping[str, str] = {
    "no-log": "wal-missing",
    "cut": "truncated-database",
    "interrupted-writer": "open-database",
}
"""Problem of a database, by the state in which it was opened."""

_OF_TRACE = frozenset(
    {
        *("truncated", "damaged", "gzip-truncated", "gzip-damaged", "gzip-crc", "packed-truncated"),
        *("packed-damaged", "packed-crc", "not-an-event", "too-long"),
    }
)
"""Codes of notes on data that a trace lost because it is truncated or damaged."""

_BY_NOTE: Mapping[str, str] = {
    IMPOSSIBLE_TIMES: IMPOSSIBLE_TIMES,
    UNUSABLE_KERNELS: UNUSABLE_KERNELS,
    LOST_KERNELS: LOST_KERNELS,
    LATE_ENDS: LATE_ENDS,
    OVERLONG: "odd-times",
    FILTERED_ROWS: FILTERED_ROWS,
    "unpaired": "odd-times",
    "no-time": "odd-times",
    "no-duration": "odd-times",
    "bad-duration": "odd-times",
    "open-ranges": "open-ranges",
    "nvtx-empty-domains": "empty-domains",
    "lost-rows": "lost-rows",
    "open": "never-closed",
    "missing": "missing-files",
    "duplicate": "same-identity",
    "stale-export": "stale-export",
    "same-content": "same-content",
    "capture": "capture-problem",
    "elsewhere": "elsewhere",
    "lost-capture": "lost-capture",
    "no-effect": "no-effect",
}
_IN_OWN_WORDS = frozenset(
    {
        *("other-loss", "same-content", "capture-problem", "no-effect"),
        *("elsewhere", "lost-capture"),
        *(UNUSABLE_KERNELS, LOST_KERNELS, FILTERED_ROWS),
    }
)
_COUNTED = frozenset({"open-ranges", "missing-files", "odd-times", IMPOSSIBLE_TIMES, LATE_ENDS})


def find_note_symptoms(
    notes: Sequence[Note], failures: Sequence[Failure] = (), nsys: Collection[str] = ()
) -> Iterator[Symptom]:
    """Convert notes and failures to symptoms, at most one each. `nsys` are the names of nsys sources."""
    ignored = {note.source for note in notes if note.code == IGNORED}
    mixed = {note.source for note in notes if note.code == INTERLEAVED}
    for note in notes:
        if note.source in mixed:
            continue  # the kind of recording reports it and causes the damage inside
        if note.code == IGNORED:
            yield from _find_ignored_file_symptom(note)
        elif note.code == UNREADABLE or (note.code == MISSED and note.source not in ignored):
            # Discovery also lists the files it misses among the ignored ones.
            yield _build_refusal_symptom(note.data.text("why"), note.data, note.source, note.message)
        elif note.code != MISSED:
            yield from _find_note_symptom(note, note.source in nsys)
    for failure in failures:
        yield _build_refusal_symptom(failure.code, failure.data, failure.source, failure.problem, failure.hint)


def _find_note_symptom(note: Note, of_nsys: bool) -> Iterator[Symptom]:
    """Convert one note on a file that was read to a symptom, if it is a problem."""
    if note.code.startswith(OF_ERRORS):
        yield Symptom("broken-question", (note.source,), note.message)
        return
    if note.code == "packed-bomb":
        yield Symptom("archive", (note.source,), note.message, severity=note.severity)
        return
    problem = _map_note_to_problem(note, of_nsys)
    if problem is not None:
        what = note.message if problem in _IN_OWN_WORDS else ""
        count = note.count if problem in _COUNTED else 0
        yield Symptom(problem, (note.source,), what, count, severity=_find_softer_severity(note))


def _map_note_to_problem(note: Note, of_nsys: bool) -> str | None:
    """Map a note to its problem; None if nothing went wrong."""
    if note.code == "conflict" and note.severity == "warning":
        return "conflict"
    if note.code == OPENED:
        return _BY_STATE.get(note.data.text("state"))
    if note.code in _BY_NOTE:
        return _BY_NOTE[note.code]
    if note.severity != "data_loss":
        return None
    if of_nsys:
        return "truncated-database" if note.code == "damaged" else "other-loss"
    return "truncated-trace" if note.code in _OF_TRACE else "other-loss"


def _find_softer_severity(note: Note) -> NoteSeverity | None:
    """Find the severity of a note that is less certain than the table; None for the table's severity."""
    # nsys warns about most captures that begin or end while the program runs.
    if note.code == "lost-rows" and note.data.get("certain") is False:
        return "warning"
    if note.code == "lost-capture" and note.severity == "warning":
        return "warning"
    return None


def _find_ignored_file_symptom(note: Note) -> Iterator[Symptom]:
    """Convert a note on an ignored file to a symptom, if the file was a profile that nothing replaces."""
    name = _PACKED.sub("", note.source.lower())
    why = note.data.text("why")
    problem = _BY_REASON.get(why)
    if problem in NAMED:
        yield _build_described_symptom(problem, note.data, note.source)
    elif why == "temporary":
        if name.rpartition(".")[0].endswith(_PROFILES):
            yield Symptom("temporary-file", (note.source,))
    elif name.endswith(_PROFILES) and problem is not None:
        yield Symptom(problem, (note.source,))


def _build_described_symptom(problem: str, data: Data, source: str) -> Symptom:
    """Build the symptom of a file whose data describe it and the remedy."""
    return Symptom(problem, (source,), data.text("what"), remedy=data.text("remedy"))


def _build_refusal_symptom(code: str, data: Data, source: str, message: str, hint: str = "") -> Symptom:
    """Build the symptom of a file that could not be read. Uses its own message if the error is not a known problem."""
    problem = _BY_REFUSAL.get(code)
    if problem is None:
        return Symptom(UNREADABLE, (source,), message, remedy=hint)
    if problem in NAMED:
        return _build_described_symptom(problem, data, source)
    what = data.text("what") if problem in _OF_VERSIONS else ""
    return Symptom(problem, (source,), what)
