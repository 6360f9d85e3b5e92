"""Codes for everything tracekit reports about a file or a process, with structured data.

Code that acts on a report matches the code and reads the data; the sentence is for people only.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping

from tracekit.model.records import dataclass

Datum = str | int | float | bool | tuple[str, ...]


class Data(Mapping[str, Datum]):
    """Immutable data of a code: numbers and texts by name, without None values."""

    __slots__ = ("_values",)

    def __init__(self, /, **values: Datum | None) -> None:
        self._values = {name: value for name, value in values.items() if value is not None}

    def __getitem__(self, name: str) -> Datum:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"Data({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def text(self, name: str) -> str:
        """Get a text by name; empty if there is none."""
        value = self._values.get(name, "")
        return value if isinstance(value, str) else ""


NO_DATA = Data()

UNKNOWN = "unknown"
"""Code of notes that an older tracekit saved without a code."""

UNREADABLE = "unreadable"
"""Code of notes on files that could not be read; their data contains the reason."""

NO_EVENTS, NO_TIMES = "no-events", "no-usable-events"
"""Codes of notes on traces without events, or without an event that has a usable time."""

IGNORED, MISSED = "ignored", "not-read"
"""Codes of notes on skipped files, and on skipped files that look like profiles; their data contains the reason."""

RECOGNIZED = "recognized"
"""Code of notes on recognized files that are not read; their data contains the `kind` of recording."""

IMPOSSIBLE_TIMES, UNUSABLE_KERNELS, LOST_KERNELS = ("impossible-times", "unusable-kernels", "lost-kernels")
"""Codes of notes on rows with impossible times, and on launches whose kernels are missing for that reason."""

OVERLONG = "overlong-ops"
"""Code of notes on device ops longer than the whole recording."""

LATE_ENDS = "late-ends"
"""Code of notes on device ops that overlapped the next op and were cut to end at its start."""

INTERLEAVED, MERGED_RANKS = "interleaved-processes", "merged-ranks"
"""Codes of notes on files with more than one process: by accident, or merged on purpose."""

OF_TIMES = frozenset({IMPOSSIBLE_TIMES, UNUSABLE_KERNELS, LOST_KERNELS, OVERLONG})
"""Codes of notes on rows that are missing because of their times, not because the file is damaged."""

FILTERED_ROWS = "filtered-rows"
"""Code of notes on files from which rows were removed after recording."""

OPENED = "opened"
"""Code of a reader's note on the state in which it found a database."""

OF_ERRORS = "failed:"
"""Prefix of codes of notes on errors of tracekit; the question follows."""

CODES: Mapping[str, str] = {
    # Why a file is not read.
    UNKNOWN: "saved by an older tracekit, which had no codes",
    "archive": "it must be unpacked by other means; what: its kind, remedy: how to unpack it",
    "being-written": "a report that changed moments ago and that nsys cannot export; age_s, says",
    "cannot-be-read": "the system gave an error while it was read; errno",
    "changed-meanwhile": "a report changed while nsys read it",
    "cut-snapshot": "a packed memory snapshot that ends early; offset",
    "cut-stream": "a packed file without text: empty, cut off or damaged; form",
    "cut-dump": "a flight-recorder dump, or stacks of threads, that end early or are damaged; offset",
    "cut-pickle": "a memory snapshot that ends within its instructions; offset",
    "damaged-database": "a database of SQLite that is cut off or damaged; says: SQLite's words, missing_bytes",
    "damaged-snapshot": "a memory snapshot, or a timeline of memory, that is cut off or damaged; offset",
    "empty-file": "0 bytes",
    "excluded": "left out by a pattern of the user; pattern",
    "export-read": "a report whose export is read instead",
    "export-timeout": "nsys took too long to export a report; version: of the nsys here, limit_s",
    "forbidden": "the system does not let us read it; errno",
    "foreign-database": "a SQLite database, but not an export of nsys",
    "hidden": "its name begins with a dot",
    "internal-error": "an error in tracekit; error: its class",
    "interrupted-export": "a database whose first page nsys never wrote",
    "lfs-pointer": "a pointer of Git LFS in place of the file",
    "link": "a link that leads nowhere, in a circle, or to a file that is read under its own name",
    "manifest": "it cannot be used as a manifest; fields: fields filled by a manifest in use",
    "named-twice": "named before, and counted once",
    "newer-report": "a report of a newer nsys; what, wrote: its version, here: that of the nsys here, says: nsys's words",
    "no-database": "it has not the head of a database; size_bytes where part of the head is there",
    "no-dump": "not a flight-recorder dump, or with instructions that no dump needs; offset",
    "no-events-list": "JSON without a list of events, or with nothing whole in it",
    "no-export": "nsys made no export; says: nsys's words",
    "no-format": "no reader takes it; suffix",
    "no-nsys": "a report, and no nsys here to export it; wrote: the version that wrote it",
    "no-profile": "in a known format, and no profile of training; what, kind: of recording, form",
    "no-report": "named like a report of nsys, but contains none",
    "no-snapshot": "no memory snapshot, or no timeline of memory; offset",
    "no-text": "it can be opened, but contains no text",
    "node-lost": "the node or the worker that should have read it is gone",
    "not-a-file": "neither a file nor a directory",
    "other-text": "text in another encoding; what: which, remedy: how to convert it, encoding",
    "out-of-memory": "larger than the available memory",
    "ray-check": "left by Ray's check that nsys works",
    "refused-report": "a report with its whole end that the nsys here cannot export; what, wrote, here, says",
    "same-content": "its content is that of another file, which is read",
    "stale-export": "an export that is older than its report, or damaged; flaw, why",
    "stream-of-report": "a stream of nsys whose report is here too",
    "stream-only": "a stream of nsys that was never made a report",
    "temporary": "a temporary name: being written, or left by a process that died",
    "too-many": "more of something than is read; count, most",
    "truncated-report": "a report that is cut off or damaged; here: the version of nsys here, says: nsys's words",
    "unfit": "saved measurements, noise or a report of tracekit that cannot be used",
    # Notes on skipped files and on selections.
    IGNORED: "a file that was passed over; why: a code of above, and that code's data",
    RECOGNIZED: "a file that is known and not read; kind: of recording, form, why, and that code's data",
    "left-out": "sources outside the selection; by: rank, step or stage",
    MISSED: "a file that looks like a profile and that no reader takes; why, and that code's data",
    "apart": "files that share nothing are shown as several runs; runs",
    "nothing": "an argument without a profile",
    "same-recording": "the recording of another source; original",
    "sampled": "ranks that a sample left out; read, ranks",
    UNREADABLE: "a file without read permission, or a failure; why, and that code's data",
    # Notes of discovery, of manifests and of logs above.
    "capture": "problems that a process reported while profiling; problems",
    "conflict": "two sources contradict each other on one file; field, told_by, said, used",
    "duplicate": "two sources of one role, scope, step, rank and process; other",
    "elsewhere": "captures written elsewhere, by another tool or host; where, host",
    "lost-capture": "captures that a process did not write, or only in part; because, steps",
    "log": "several driver logs, and no way to choose one; files",
    "missing": "files that a process wrote and that are missing here; first: the first one",
    "no-effect": "options of the configuration without effect, as the process reports",
    "node": "message of a cluster node on a pattern",
    "open": "a process that never finished profiling; role, rank, pid, host",
    "shared-rank": "several processes claim one rank; rank, pids",
    # Notes of every reader.
    "bad-duration": "durations that cannot be, and count as 0",
    "base-time": "the time zero of the file is not recorded, or is not a time",
    IMPOSSIBLE_TIMES: "rows at time zero or days away from all others, left out; zero, far: how many",
    UNUSABLE_KERNELS: "launches whose kernel has an impossible time and was left out; launches: of how many",
    LOST_KERNELS: "launches at the start of the recording without a kernel row; launches: of how many",
    LATE_ENDS: "device ops that ended after the next op of their stream, cut to end before it; cut_ns",
    OVERLONG: "device ops longer than the whole recording, left out",
    FILTERED_ROWS: "operators were removed after the recording; left: how many are in the file",
    INTERLEAVED: "two processes wrote one file at the same time; repeated: launch ids that occur twice",
    MERGED_RANKS: "a file of several ranks, read as one process per rank; ranks: their labels",
    NO_EVENTS: "a trace without a single event",
    NO_TIMES: "a trace without a usable event; no_start, no_phase: how many lack it",
    "no-duration": "events without an end",
    "no-name": "rows whose name is not in the file",
    "no-time": "events without a usable start",
    "no-rank": "a flight-recorder dump whose name contains no rank",
    "no-rank-label": "events of processes without a rank label",
    "negative-time": "rows from before the recording began",
    "not-understood": "unknown content, left out",
    "unlinked-left-out": "device work without a recorded launch, under a selection of steps",
    # Losses in a text or its compression.
    "damaged": "damage that was passed over; size_bytes, or of a database table, rows, says",
    "gzip-crc": "a gzip stream with another checksum",
    "gzip-damaged": "a gzip stream that is damaged",
    "gzip-truncated": "a gzip stream that ends early",
    "metadata": "metadata outside the events that could not be read; size_bytes",
    "no-level": "times of a memory timeline without a level",
    "not-an-event": "elements other than objects; size_bytes",
    "packed-bomb": "a packed file read only in its first part",
    "packed-crc": "a packed file with another checksum",
    "packed-damaged": "a packed file that is damaged",
    "packed-truncated": "a packed file that ends early",
    "phase": "events of a phase that is not read",
    "unpaired": "begin or end events without their counterpart",
    "repaired": "elements of invalid JSON that were repaired; size_bytes",
    "timeline-cut": "changes beyond the limit",
    "timeline-empty": "a memory timeline without anything in it",
    "too-long": "elements beyond the limit of size; size_bytes",
    "truncated": "a text that ends too early; size_bytes or rows",
    # Logs.
    "log-cut": "values beyond the limit",
    "log-empty": "a log without a number",
    "log-joined": "logs that are starts of one run",
    "log-line": "lines that are not whole",
    "log-long-line": "lines beyond the limit",
    "log-not-finite": "values that are not finite numbers",
    "log-other-runs": "other runs in the same store",
    "log-repeated": "steps that were logged again",
    "log-runs": "logs of several runs in one directory",
    "log-unit": "amounts in no known unit",
    # nsys.
    "bad-json": "records of GPU metrics whose JSON cannot be read",
    "bad-size": "memory operations of an impossible size",
    "capture-range": "the range that was captured ended with a late recording",
    "cpu-columns": "a table of samples or of threads on CPUs that lacks columns; table",
    "cpu-rows": "samples of a CPU, or records of threads on one, that do not say enough; table",
    "exported": "a report that nsys exported; version, made: now, and not before",
    "generic-events": "generic events other than GPU metrics",
    "host-memory": "allocations on the host, which are not shown",
    "lost-rows": "nsys says that it lost rows; certain: not only that it may have, says",
    "memory-relative": "memory that was taken before the recording began",
    "no-gpu-rows": "no work of a GPU; called: although CUDA was called",
    "not-a-number": "values of a column other than integers; table, column",
    "nvtx-empty-domains": "domains of NVTX without a range",
    OPENED: "the state of a database; state: no-log, interrupted-writer or cut",
    "open-ranges": "ranges that never closed",
    "other-processes": "processes with nothing but calls of the operating system",
    "profiler-warning": "other warnings of nsys; says",
    "rank-rule": "source of the ranks; rule",
    "time-shift": "a shift of all times that was undone; shift_ns",
    "unmatched-launches": "device work without its launch",
    # Memory snapshots.
    "from-profile": "a snapshot that torch made from a profile",
    "no-history": "a snapshot without a history",
    "odd-segments": "segments that are not the sum of their blocks; segments",
    "pending-free": "blocks that wait for other streams; size_bytes",
    "ring-buffer": "older entries were dropped; device, entries, certain",
    "time-order": "a history with decreasing times; device",
    "unbalanced": "a history that disagrees with the blocks; device, off_bytes",
    "unlike-blocks": "allocations without a block in use; device",
}
"""Meaning and data of each code. `failed:<question>` is an error of tracekit in that question."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a file is not read, or is read as something else: a code with its data, and a sentence."""

    code: str
    text: str
    data: Data = NO_DATA

    def note_data(self) -> Data:
        """Build the data of a note for this reason: its code as `why`, plus its own data."""
        return Data(why=self.code, **self.data)


TOO_LARGE = Reason("out-of-memory", "too large for the available memory")


class UnsupportedPackingError(OSError):
    """An unsupported compression: its name, and the remedy."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(errno.EINVAL, f"{what}: {remedy}")
        self.what = what
        self.remedy = remedy


def explain_os_error(error: OSError) -> Reason:
    """Convert an OSError to the reason why a file cannot be read."""
    text = f"cannot be read: {error.strerror or type(error).__name__}"
    if isinstance(error, UnsupportedPackingError):
        return Reason("archive", text, Data(what=error.what, remedy=error.remedy))
    if error.errno == errno.ENOMEM:
        return Reason("out-of-memory", text)
    denied = error.errno in (errno.EACCES, errno.EPERM)
    return Reason("forbidden" if denied else "cannot-be-read", text, Data(errno=error.errno))
