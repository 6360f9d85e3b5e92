"""What readers and discovery say about a file → what is wrong with it (a code of `AILMENTS`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tracekit.model.trace import NO_EVENTS, NO_TIMES, Note, NoteSeverity

FAILED, IGNORED, MISSED = "unreadable", "ignored", "not-read"
"""Codes of notes on sources that failed, on files that were passed over, and on those of them that are missed."""


"""Codes of notes on a trace that holds nothing, and on one of which nothing has a place in time."""

OPENED = "opened"
"""Code of what a reader notes about the state in which it found a database."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """One thing found wrong: its code in `AILMENTS`, the files it is about, and what the table leaves open.

    `severity` where it is not that of the table.
    """

    code: str
    places: tuple[str, ...] = ()
    what: str = ""
    count: int = 0
    remedy: str = ""
    severity: NoteSeverity | None = None


_PROFILES = (
    *(".nsys-rep", ".qdrep", ".qdstrm", ".sqlite", ".json", ".json.gz"),
    *(".pickle", ".pkl", ".snap"),
)
_PACKED = re.compile(r"\.(?:gz|zst|xz|bz2|zip)\Z")

# Said of a file that could not be read or was passed over: the first that matches.
_SAID = tuple(
    (code, re.compile(pattern, re.IGNORECASE))
    for code, pattern in (
        ("newer-report", r"^recorded by .* cannot read"),
        ("refused-report", r"^it ends as whole reports do"),
        ("archive", r"\b(?:unpack it first|decompress it first|nothing to read in it)"),
        ("other-text", r"\bconvert it first"),
        ("truncated-trace", r"stream is empty, cut off or damaged"),
        ("ray-check", r"Ray's check"),
        ("lfs-pointer", r"git lfs|lfs pointer"),
        ("empty-file", r"\b0 bytes|\bempty file"),
        ("stream-only", r"never made a report"),
        ("truncated-report", r"named like an Nsight Systems report"),
        ("being-written", r"being written|still writing|is writing"),
        ("no-nsys", r"\bno nsys\b"),
        ("interrupted-export", r"export was interrupted|first page"),
        ("stale-export", r"export that is older"),
        ("forbidden", r"permission denied|not permitted"),
    )
)
_OF_VERSIONS = frozenset({"newer-report", "refused-report"})
"""What names versions, before what nsys says: that is told, not what the table has for it."""

_OPENED = (
    ("wal-missing", re.compile(r"write-ahead log|-wal\b")),
    ("truncated-database", re.compile(r"\bmissing at its end\b")),
    ("open-database", re.compile(r"\bwriter\b")),
)
_CUT = re.compile(
    r"cut off|truncat|malformed|damaged|missing|ends early|not complete|ends inside", re.IGNORECASE
)
_PERHAPS = re.compile(r"\b(?:might|may|could) (?:not )?have\b", re.IGNORECASE)
_OF_TRACE = frozenset(
    {"truncated", "damaged", "gzip-truncated", "gzip-damaged", "gzip-crc", "packed-truncated",
     "packed-damaged", "packed-crc", "packed-bomb", "not-an-event", "too-long"}
)  # fmt: skip
_BY_NOTE = {
    "no-gpu-rows": "no-kernels",
    NO_EVENTS: "empty-trace",
    NO_TIMES: "no-times",
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
    "no-effect": "no-effect",
}
_CUT_KINDS = {
    ".sqlite": "truncated-database",
    ".nsys-rep": "truncated-report",
    ".qdrep": "truncated-report",
    ".json": "truncated-trace",
    ".gz": "truncated-trace",
}
_IN_OWN_WORDS = frozenset(
    {"other-loss", "same-content", "no-times", "capture-problem", "no-effect"}
)
_COUNTED = frozenset({"open-ranges", "missing-files", "odd-times"})
NAMED = frozenset({"archive", "other-text"})
"""What its reason names in full: what it is, and behind a colon what to do."""


def signs(notes: Sequence[Note], nsys: Collection[str]) -> Iterator[Symptom]:
    """What the notes tell, one symptom a note; `nsys` are the names of sources that nsys recorded."""
    ignored = {note.source for note in notes if note.code == IGNORED}
    for note in notes:
        name = note.source
        if note.code == IGNORED:
            yield from _passed_over(note)
        elif note.code == MISSED:
            # Discovery notes what it misses, and lists it among what it passed over too.
            if name not in ignored:
                yield _failed(note)
        elif note.code == FAILED:
            yield _failed(note)
        elif note.code.startswith("failed:"):
            yield Symptom("broken-question", (name,), note.message)
        elif code := _code(note, name in nsys):
            what = note.message if code in _IN_OWN_WORDS else ""
            count = note.count if code in _COUNTED else 0
            yield Symptom(code, (name,), what, count, severity=_softened(note))


def _code(note: Note, of_nsys: bool) -> str | None:
    """The ailment that a note by itself means, None where nothing went wrong."""
    if note.code == "conflict":
        return "conflict" if note.severity == "warning" else None
    if note.code == OPENED:
        return next((code for code, pattern in _OPENED if pattern.search(note.message)), None)
    if note.code in _BY_NOTE:
        return _BY_NOTE[note.code]
    if note.severity != "data_loss":
        return None
    if of_nsys:
        return "truncated-database" if note.code == "damaged" else "other-loss"
    return "truncated-trace" if note.code in _OF_TRACE else "other-loss"


def _softened(note: Note) -> NoteSeverity | None:
    """What a symptom is where a note is less sure than the table of ailments; None leaves it to the table."""
    if note.code == "no-gpu-rows" and note.severity == "info":
        return "info"
    # nsys says so of most captures that begin or end while the program runs.
    return "warning" if note.code == "lost-rows" and _PERHAPS.search(note.message) else None


def _passed_over(note: Note) -> Iterator[Symptom]:
    """What is wrong with a file that nobody reads; nothing where it is no profile, or read in another form."""
    name = _PACKED.sub("", note.source.lower())
    code = _first_said(note.message)
    if code in NAMED:
        yield _of_reason(code, note.source, note.message)
    elif note.message.startswith("temporary"):
        if name.rpartition(".")[0].endswith(_PROFILES):
            yield Symptom("temporary-file", (note.source,))
    elif name.endswith(_PROFILES) and code is not None:
        yield Symptom(code, (note.source,))


def _of_reason(code: str, name: str, reason: str) -> Symptom:
    """A symptom whose reason says what the file is and, behind a colon, what to do."""
    what, _, remedy = reason.partition(": ")
    return Symptom(code, (name,), what, remedy=remedy)


def _first_said(text: str) -> str | None:
    """The code of the first known reason in `text`."""
    return next((code for code, pattern in _SAID if pattern.search(text)), None)


def _failed(note: Note) -> Symptom:
    """Why a file could not be read; in its own words where it is none of what is known."""
    problem, _, hint = note.message.partition("\n")
    said = _first_said(problem)
    if said in NAMED:
        return _of_reason(said, note.source, problem)
    if said is None and _CUT.search(problem):
        name = note.source.lower()
        said = next((code for end, code in _CUT_KINDS.items() if name.endswith(end)), None)
    if said in _OF_VERSIONS:
        return Symptom(said, (note.source,), problem.partition(": ")[0])
    if said is not None:
        return Symptom(said, (note.source,))
    return Symptom("unreadable", (note.source,), problem, remedy=hint)
