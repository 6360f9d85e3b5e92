"""Reader of torch.profiler's memory timelines (`export_memory_timeline`): memory of each category over time.

Two forms exist, both JSON, optionally gzipped. `.json`: `[times in µs, levels]`, with a row of nine levels per time; the
first is always 0, the others are categories. `.raw.json.gz`: `[ns, action, ±bytes, category]` per change; action 1 is a
tensor from before the recording, at time -1. The device is not recorded. Sizes are those that the allocator reported to
the profiler (CUDA reports blocks, rounded up); tensors without a recorded allocation or free have sizes from their shapes.

Reading ends at the first invalid byte. Everything before it is valid, because no level depends on later rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.model.errors import TraceFormatError, make_format_error, make_os_read_error
from tracekit.model.inputs.note_codes import TOO_LARGE, Data, Reason
from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Coded, Columns, Frames, Nullable
from tracekit.model.tables.snapshots import CATEGORIES
from tracekit.model.trace import Note, Source, Trace, Want
from tracekit.readers import unpack
from tracekit.readers.loss import DataLoss

Ints = npt.NDArray[np.int64]

SPACE = rb"[ \t\n\r]{0,16}+"
INTEGER = rb"(?:-?[1-9][0-9]{0,18}+|0)"
"""At most 19 digits. Larger numbers become the largest 64-bit number, which exceeds every bound."""

COMMA = SPACE + rb"," + SPACE
LONGEST_BYTES = 1024
"""Longer than any item, in bytes."""

_TO_SPACES = bytes.maketrans(b"[],\t\n\r", b"      ")


class ArrayText:
    """A text with arrays of integers that is consumed from its start. `offset` counts the consumed bytes.

    Accepts JSON as programs write it: integers without fraction or exponent, at most 16 spaces between two tokens. Items
    are therefore short, and text that does not match an item is damage, however long it is.
    """

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._data = b""
        self.offset = 0

    def ahead(self) -> bytes:
        """Look at the next bytes: at least `LONGEST_BYTES`, unless the text ends before."""
        while len(self._data) < LONGEST_BYTES and self._fill():
            pass
        return self._data

    def take(self, pattern: re.Pattern[bytes]) -> bool:
        """Consume the pattern (at most `LONGEST_BYTES`) if the text continues with it. Returns whether it did."""
        match = pattern.match(self.ahead())
        if match is not None:
            self._drop(match.end())
        return match is not None

    def items(self, item: bytes) -> Iterator[bytes]:
        """Yield runs of complete array items, as text, up to the closing bracket, to damage, or to the end of the text.

        The bracket is not consumed. The item pattern must determine where an item ends: the last item in the
        text is accepted only if nothing else can follow it.
        """
        # Match spaces before a token only: the next block may continue the spaces after a comma.
        run = re.compile(rb"(?:" + SPACE + item + SPACE + rb",)*+")
        last = re.compile(SPACE + item)
        while True:
            items_match = run.match(self._data)
            if items_match is not None and items_match.end():
                yield self._drop(items_match.end())
            if len(self._data) >= LONGEST_BYTES or not self._fill():
                break
        last_match = last.match(self._data)
        if last_match is not None:
            yield self._drop(last_match.end())

    def _fill(self) -> bool:
        """Append the next block; returns False at the end of the text."""
        block = next(self._blocks, b"")
        self._data += block
        return bool(block)

    def _drop(self, count: int) -> bytes:
        """Consume and return the next `count` bytes."""
        front, self._data = self._data[:count], self._data[count:]
        self.offset += count
        return front


def parse_array_integers(text: bytes) -> Ints:
    """Parse the integers of a text that has only integers, brackets, commas and spaces."""
    return np.fromstring(text.translate(_TO_SPACES).decode("ascii"), np.int64, sep=" ")


MAX_CHANGES = 2**22
"""Most times, and most changes, kept per file: the first ones, in about 450 MB of memory."""

MAX_BYTES, MAX_NS = 2**50, 2**62
"""Limits: no device holds a pebibyte, and no clock reaches 2**62 ns. Larger numbers are damage."""

_EARLIEST_US = 10**14
"""Earliest plausible time (1973), for files whose list of times exceeds the sniffed head."""

_BEFORE = -1
"""Time of tensors from before the recording."""

_CHANGE_NUMBERS = COMMA.join((INTEGER, rb"[0-9]", INTEGER, rb"[0-9]{1,2}+"))
_CHANGE = rb"\[" + SPACE + _CHANGE_NUMBERS + SPACE + rb"\]"
_LEVELS = rb"\[" + SPACE + rb"0" + (COMMA + INTEGER) * len(CATEGORIES) + SPACE + rb"\]"

_OPEN = re.compile(SPACE + rb"\[" + SPACE)
_OPEN_TIMES = re.compile(_OPEN.pattern + rb"\[" + SPACE)
_TO_LEVELS = re.compile(SPACE + rb"\]" + COMMA + rb"\[" + SPACE)
_CLOSE = re.compile(SPACE + rb"\]")
_END = re.compile(SPACE + rb"\]" + SPACE + rb"\Z")
_NO_CHANGE = re.compile(_OPEN.pattern + rb"\]" + SPACE + rb"\Z")
_FIRST_CHANGE = re.compile(_OPEN.pattern + _CHANGE + rb"(?!" + COMMA + rb"\[" + SPACE + rb"[\[\]])")
"""A change, but not four times that levels follow."""

_KNOWN_ACTION = rb"(?:-1" + COMMA + rb"1|[1-9][0-9]{17,18}+" + COMMA + rb"[2-4])"
_KNOWN_NUMBERS = COMMA.join((_KNOWN_ACTION, rb"-?[0-9]{1,15}+", rb"[0-7]"))
_KNOWN_CHANGE = re.compile(_OPEN.pattern + rb"\[" + SPACE + _KNOWN_NUMBERS + SPACE + rb"\]")
_TIMES = re.compile(_OPEN_TIMES.pattern + rb"((?:" + INTEGER + COMMA + rb")*+)" + INTEGER + rb"?+")
_FIRST_LEVELS = re.compile(_TO_LEVELS.pattern + rb"(?:" + _LEVELS + rb"|\]" + SPACE + rb"\])")

_CUT = re.compile(rb"[], \t\n\r]*+\[{0,2}[-0-9, \t\n\r]*+\Z")
"""Possible rest of a truncated file: an unclosed item."""

_LOSSES = {
    "truncated": "the file ends within the timeline; everything whole before that was read",
    "damaged": "what follows is no memory timeline; everything before that was read",
    "timeline-cut": f"changes beyond the first {MAX_CHANGES:,} were left out",
    **unpack.LOSSES,
}


def sniff(head: bytes) -> bool:
    """Check whether text begins like a memory timeline. Nothing in it has a name, so only the numbers' shape decides."""
    if _FIRST_CHANGE.match(head):
        return _KNOWN_CHANGE.match(head) is not None
    times_match = _TIMES.match(head)
    if times_match is None:
        return False
    if _CLOSE.match(head, times_match.end()):
        return _FIRST_LEVELS.match(head, times_match.end()) is not None
    times = parse_array_integers(times_match[1])  # without the last one, which may be cut
    ordered = bool((times[1:] >= times[:-1]).all())
    return len(times) > 1 and bool(times[0] >= _EARLIEST_US) and ordered


@dataclass(slots=True)
class _TimelineChanges:
    """Changes read so far, in time order, and why reading ended early, if it did."""

    ts_ns: list[Ints] = field(default_factory=list[Ints])
    category: list[npt.NDArray[np.int8]] = field(default_factory=list[npt.NDArray[np.int8]])
    change: list[Ints] = field(default_factory=list[Ints])
    rows: int = 0
    count: int = 0
    odd: int = 0
    ended: str = ""
    offset: int = 0
    without_level: int = 0

    def add(self, ts_ns: Ints, category: Ints, change: Ints) -> None:
        """Append changes."""
        self.ts_ns.append(ts_ns)
        self.category.append(category.astype(np.int8))
        self.change.append(change)
        self.count += len(change)


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the single Trace of the file, with the table `memory_categories`. Raises only `TraceFormatError`.

    `on_bytes` is called with the bytes of the file read so far.
    """
    path = Path(source.path)
    losses: list[DataLoss] = []
    try:
        try:
            timeline = _read_timeline(ArrayText(unpack.unpack_blocks(path, [], on_bytes=on_bytes)), path)
        except unpack.Unproven:
            careful = unpack.unpack_blocks(path, losses, careful=True, on_bytes=on_bytes)
            timeline = _read_timeline(ArrayText(careful), path)
        table = _make_categories_table(timeline)
    except OSError as error:
        raise make_os_read_error(path, error, "check the file and its permissions") from error
    except MemoryError as error:
        raise make_format_error(path, TOO_LARGE) from error
    times = table["ts_ns"]
    assert isinstance(times, Nullable), "tensors may be from before the recording"
    meta = {
        "absolute_time": bool(times.values[~times.missing][-1:].max(initial=0) > 10**17),
        "element_count": timeline.rows,
        "text_bytes": timeline.offset,
    }
    tables = Frames({"memory_categories": table} if want.table("memory_categories") else {})
    return [Trace(source, tables, tuple(_note_timeline_losses(timeline, losses, source.name)), meta)]


def _read_timeline(text: ArrayText, path: Path) -> _TimelineChanges:
    """Read a timeline of either form."""
    head = text.ahead()
    timeline = _TimelineChanges()
    if _FIRST_CHANGE.match(head) or _NO_CHANGE.match(head):
        _add_raw_changes(text, timeline)
    elif _OPEN_TIMES.match(head):
        _add_level_changes(text, timeline, path)
    else:
        problem = "no memory timeline: neither changes nor times with levels"
        hint = "torch.profiler's export_memory_timeline writes one"
        raise TraceFormatError(path, problem, hint, code="no-snapshot")
    is_complete = not timeline.ended and text.take(_END)
    if not is_complete and not timeline.ended:
        left = text.ahead()
        cut = len(left) < LONGEST_BYTES and _CUT.match(left) is not None
        timeline.ended = "truncated" if cut else "damaged"
    timeline.offset = text.offset
    if not is_complete and not timeline.rows:
        problem = f"nothing whole is in it: it is {timeline.ended or 'damaged'} before the first level"
        reason = Reason("damaged-snapshot", problem, Data(offset=text.offset))
        raise make_format_error(path, reason, "copy it again", f"byte {text.offset}")
    return timeline


def _add_raw_changes(text: ArrayText, timeline: _TimelineChanges) -> None:
    """Add the changes of the raw form to the timeline."""
    text.take(_OPEN)
    last = _BEFORE
    for run in text.items(_CHANGE):
        rows = parse_array_integers(run).reshape(-1, 4)
        ts, action, change, category = rows.T
        before = np.append(last, ts[:-1])
        ok = (ts >= before) & (ts < MAX_NS) & (change > -MAX_BYTES) & (change < MAX_BYTES)
        sound_count = _count_leading(ok)
        if sound_count < len(ok):
            timeline.ended = "damaged"
        if timeline.count + sound_count > MAX_CHANGES:
            sound_count, timeline.ended = MAX_CHANGES - timeline.count, "timeline-cut"
        unknown = category >= len(CATEGORIES)
        odd = unknown | (action < 1) | (action > 4)
        timeline.odd += int(np.count_nonzero(odd[:sound_count]))
        known_category = np.where(unknown, CATEGORIES.index("unknown"), category)
        timeline.add(ts[:sound_count].copy(), known_category[:sound_count], change[:sound_count].copy())
        timeline.rows += sound_count
        if timeline.ended:
            return
        last = int(ts[-1])


def _add_level_changes(text: ArrayText, timeline: _TimelineChanges, path: Path) -> None:
    """Add the changes between consecutive levels to the timeline."""
    text.take(_OPEN_TIMES)
    times = _read_level_times(text, path)
    if not text.take(_TO_LEVELS):
        return
    usable = _count_leading((times >= np.append(_BEFORE, times[:-1])) & (times < MAX_NS // 1000))
    ts = np.where(times[:usable] < 0, _BEFORE, times[:usable] * 1000)
    if usable > 1 and ts[0] == ts[1]:  # torch dates tensors from before the recording this way
        ts[0] = _BEFORE
    last = np.zeros(len(CATEGORIES), np.int64)
    for run in text.items(_LEVELS):
        rows = parse_array_integers(run).reshape(-1, 1 + len(CATEGORIES))[:, 1:]
        ok: npt.NDArray[np.bool_] = np.all((rows > -MAX_BYTES) & (rows < MAX_BYTES), axis=1)
        sound_count = min(_count_leading(ok), usable - timeline.rows)
        change = np.diff(rows[:sound_count], axis=0, prepend=last[np.newaxis])
        row, category = np.nonzero(change)
        if sound_count < len(rows):
            timeline.ended = "damaged"
        if timeline.count + len(row) > MAX_CHANGES:
            sound_count, timeline.ended = int(row[MAX_CHANGES - timeline.count]), "timeline-cut"
            row, category = row[row < sound_count], category[row < sound_count]
        timeline.add(ts[timeline.rows + row], category, change[row, category])
        timeline.rows += sound_count
        if timeline.ended:
            break
        last = rows[-1]
    text.take(_CLOSE)
    timeline.without_level = len(times) - timeline.rows
    if timeline.without_level and not timeline.ended and _END.match(text.ahead()):
        timeline.ended = "damaged"


def _read_level_times(text: ArrayText, path: Path) -> Ints:
    """Read the times of a file of levels."""
    parts, count = [np.empty(0, np.int64)], 0
    for run in text.items(INTEGER + rb"(?=" + SPACE + rb"[],])"):
        parts.append(parse_array_integers(run))
        count += len(parts[-1])
        if count > MAX_CHANGES:
            problem = f"a memory timeline of over {MAX_CHANGES:,} times"
            reason = Reason("too-many", problem, Data(count=count, most=MAX_CHANGES))
            raise make_format_error(path, reason, "profile fewer steps")
    return np.concatenate(parts)


def _count_leading(ok: npt.NDArray[np.bool_]) -> int:
    """Count the leading true values."""
    return len(ok) if ok.all() else int(ok.argmin())


def _make_categories_table(timeline: _TimelineChanges) -> Columns:
    """Build the table: one row per time and changed category, in that order."""
    table = TABLES["memory_categories"]
    if not timeline.count:
        return table.no_rows()
    ts, change = np.concatenate(timeline.ts_ns), np.concatenate(timeline.change)
    category = np.concatenate(timeline.category)
    sound_count = min(_find_impossible_level(change, category == code) for code in range(len(CATEGORIES)))
    if sound_count < len(ts):
        timeline.ended = "damaged"
        ts, category, change = ts[:sound_count], category[:sound_count], change[:sound_count]
    key = np.cumsum(np.append(False, ts[1:] != ts[:-1])[: len(ts)]) * len(CATEGORIES) + category
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    net = np.add.reduceat(change[order], first) if len(first) else change
    first, net = first[net != 0], net[net != 0]
    rows = order[first]
    category = category[rows]
    level = np.zeros(len(rows), np.int64)
    for code in range(len(CATEGORIES)):
        is_category = category == code
        level[is_category] = np.cumsum(net[is_category])
    before = ts[rows] < 0
    columns: dict[str, Any] = {
        "ts_ns": Nullable(np.where(before, 0, ts[rows]), before),
        "category": Coded(category, CATEGORIES),
        "change_bytes": net,
        "level_bytes": level,
    }
    return table.cast(columns, len(rows))


def _find_impossible_level(change: Ints, is_category: npt.NDArray[np.bool_]) -> int:
    """Find the row at which a category's changes sum to an impossible level; the number of rows if none does."""
    rows = np.flatnonzero(is_category)
    # Floats do not overflow and are exact up to the bound.
    far = np.abs(np.cumsum(change[rows], dtype=np.float64)) >= MAX_BYTES
    return int(rows[far.argmax()]) if far.any() else len(change)


def _note_timeline_losses(timeline: _TimelineChanges, losses: list[DataLoss], source: str) -> Iterator[Note]:
    """Build the notes on data loss and unknown values."""
    for loss in losses:
        yield Note("data_loss", loss.kind, _LOSSES[loss.kind], source, loss.count, loss.offset)
    if timeline.ended:
        message = f"{_LOSSES[timeline.ended]} ({timeline.rows:,} rows, to byte {timeline.offset:,})"
        data = Data(rows=timeline.rows)
        yield Note("data_loss", timeline.ended, message, source, offset=timeline.offset, data=data)
    if timeline.without_level:
        message = "times without a level were left out"
        yield Note("data_loss", "no-level", message, source, timeline.without_level)
    if timeline.odd:
        message = f"changes of an action or category unknown here: they count as {CATEGORIES[-1]}"
        yield Note("warning", "not-understood", message, source, timeline.odd)
    if not timeline.count and not timeline.ended:
        message = "an empty timeline: nothing was recorded on the device that was asked for"
        yield Note("info", "timeline-empty", message, source)
