"""Reading of the event array block by block: by the scanner, and by `recovery` where text is damaged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from tracekit.readers.chrome import recovery
from tracekit.readers.chrome.places import CONTEXT_BYTES, ResumePoint, find_resume_point
from tracekit.readers.chrome.recovery import RecoveryAction, RecoveryVerdict
from tracekit.readers.chrome.scan import END, MORE, Scanner
from tracekit.readers.loss import ScanLosses

SMALLEST_STRETCH, LARGEST_STRETCH = 2**12, 2**20
"""Bytes shown to the scanner after damage: doubled from the smallest to the largest."""

BRIDGE_BYTES = 2**14
"""Bytes of a new block that are copied after the rest of the block before it."""

_SEPARATORS = re.compile(rb"[ \t\n\r,]*+")


class TextWindow:
    """Window over the text of a file: the part that was read in and not yet dropped."""

    def __init__(self, blocks: Iterator[bytes], offset: int = 0) -> None:
        self.at_end = False
        self._blocks = blocks
        self._data = b""
        self._position = 0
        self._offset = offset
        self._bridged: bytes | None = None
        """Block whose first bytes are already in `_data`, after `_rest_length` older ones."""
        self._rest_length = 0

    @property
    def offset(self) -> int:
        """Offset of the `view` in the text."""
        return self._offset + self._position

    @property
    def view(self) -> memoryview:
        """Text that was read in and not yet dropped."""
        return memoryview(self._data)[self._position :]

    def remaining(self) -> Iterator[bytes]:
        """Iterate over the blocks of the text from the `view` on; the object must not be used afterwards."""
        here = self._data[self._position : None if self._bridged is None else self._rest_length]
        bridged = (self._bridged or b"")[max(0, self._position - self._rest_length) :]
        return chain([block for block in (here, bridged) if block], self._blocks)

    def drop(self, count: int) -> None:
        """Advance by `count` bytes."""
        self._position += count

    def grow(self) -> None:
        """Read in at least as much text as there is, to avoid frequent copies of long elements.

        If little text is left, it gets only the first bytes of the new block, enough for the element that the
        two blocks share. Then the block itself becomes the text, which saves copying it.
        """
        if self._bridged is not None:
            block, self._bridged = self._bridged, None
            if self._position >= self._rest_length:
                self._offset += self._rest_length
                self._position -= self._rest_length
                self._data = block
            else:
                remaining = self._data[self._position : self._rest_length]
                self._replace(remaining + block)
            return
        remaining = self._data[self._position :]
        blocks = self._read(max(1, len(remaining)))
        if len(blocks) != 1:
            self._replace(b"".join([remaining, *blocks]))
        elif 0 < len(remaining) < BRIDGE_BYTES < len(blocks[0]) // 4:
            self._bridged, self._rest_length = blocks[0], len(remaining)
            self._replace(remaining + blocks[0][:BRIDGE_BYTES])
        elif remaining:
            self._replace(remaining + blocks[0])
        else:
            self._replace(blocks[0])

    def _read(self, wanted: int) -> list[bytes]:
        """Read the next blocks, of at least `wanted` bytes unless the text ends."""
        blocks: list[bytes] = []
        while wanted > 0:
            block = next(self._blocks, None)
            if block is None:
                self.at_end = True
                break
            blocks.append(block)
            wanted -= len(block)
        return blocks

    def _replace(self, data: bytes) -> None:
        """Replace the text; `data` starts with the bytes that were not dropped."""
        self._offset += self._position
        self._position = 0
        self._data = data

    def skip_separators(self) -> None:
        """Drop whitespace and commas."""
        separators = _SEPARATORS.match(self._data, self._position)
        if separators is not None:
            self._position = separators.end()


def read_events(text: TextWindow, scanner: Scanner, losses: ScanLosses, max_event_bytes: int) -> bool:
    """Read the event array; returns whether its closing bracket was found.

    Afterwards `text` is at the bytes after the array. The scanner has all complete events, and `losses`
    counts the others.
    """
    return _EventArrayReader(text, scanner, losses, max_event_bytes).read()


class _ResumePointSearch:
    """Search of a growing text by `find_resume_point`, without looking at any byte twice."""

    def __init__(self, text: TextWindow) -> None:
        self._text = text
        self._searched_from = self._found_at = -1
        self._place: ResumePoint | None = None
        self._searched_to = (-1, False)

    def find(self, start: int) -> ResumePoint | int:
        """Find the first resume point in the text's view from `start` on, as `find_resume_point` does."""
        text = self._text
        offset, view = text.offset, text.view
        searched_to = (offset + len(view), text.at_end)
        first = start
        if self._searched_from <= offset + start <= self._found_at:
            first = self._found_at - offset
            if self._place is not None or searched_to == self._searched_to:
                if self._place is None:
                    return first
                return ResumePoint(first, self._place.ends_array)
        else:
            self._searched_from = offset + start
        match = find_resume_point(view, first, at_end=text.at_end)
        if isinstance(match, ResumePoint):
            self._place, self._found_at = match, offset + match.position
        else:
            self._place, self._found_at = None, offset + match
        self._searched_to = searched_to
        return match


class _EventArrayReader:
    """Reader of one event array."""

    def __init__(self, text: TextWindow, scanner: Scanner, losses: ScanLosses, max_event_bytes: int) -> None:
        self.text = text
        self.places = _ResumePointSearch(text)
        self.scanner = scanner
        self.losses = losses
        self.max_event_bytes = max_event_bytes
        self.stretch: int | None = None
        """Least number of bytes shown to the scanner, once there was damage; None before.

        An element that never closes makes the scanner run through all text it is shown. The bound prevents
        many such elements from each costing the rest of the file: see rule 17.
        """

    def read(self) -> bool:
        """Read the array; returns whether its end was found."""
        while True:
            view = self.text.view
            limit = self._limit(view)
            if limit is None:
                self.text.grow()
                continue
            consumed, state = self.scanner.feed(view[:limit])
            self.text.drop(consumed)
            if state == END:
                return True
            self.text.skip_separators()
            is_all = limit == len(view)
            left = len(view) - limit < len(self.text.view)
            if state == MORE and is_all and not self.text.at_end:
                self.text.grow()
            elif state == MORE and not left:
                if is_all:
                    self.losses.add("truncated", self.text.offset, 0)
                    return False
                self.stretch = min(max(2 * (self.stretch or 0), SMALLEST_STRETCH), LARGEST_STRETCH)
            elif state == MORE and not is_all and self.stretch:
                self.stretch = 0
            else:
                found_end = self._recover()
                if found_end is not None:
                    return found_end

    def _limit(self, view: memoryview) -> int | None:
        """Compute how much text to show to the scanner; None if more text must be read to decide."""
        if self.stretch is None or not view:
            return len(view)
        place = self.places.find(max(1, self.stretch))
        if isinstance(place, ResumePoint):
            return place.position
        if self.text.at_end or len(view) >= self.max_event_bytes:
            return len(view)
        return None

    def _recover(self) -> bool | None:
        """Get past the element at the start of the text.

        Returns whether the array's end follows (True) or the text ended (False). None: reading goes on with
        the next element.
        """
        repair = True
        while True:
            verdict = recovery.judge_element(
                self.text.view,
                self.places.find(1),
                at_end=self.text.at_end,
                max_bytes=self.max_event_bytes,
                repair=repair,
            )
            if verdict.action is RecoveryAction.MORE:
                self.text.grow()
            elif verdict.action is RecoveryAction.REPAIRED and not self._takes(verdict.text):
                repair = False
            else:
                return self._follow(verdict)

    def _takes(self, event: bytes) -> bool:
        """Check whether the scanner accepts a repaired event; if not, the event is too long."""
        return self.scanner.feed(event) == (len(event), MORE)

    def _follow(self, verdict: RecoveryVerdict) -> bool | None:
        """Apply a verdict: drop the text it covers and record the loss. Returns the same as `_recover`."""
        action, start = verdict.action, self.text.offset
        if action in (RecoveryAction.DAMAGED, RecoveryAction.TOO_LONG):
            return self._search(verdict)
        self.text.drop(verdict.length)
        if action is RecoveryAction.PASS:
            self.losses.add("not-an-event", start, verdict.length)
        elif action is RecoveryAction.REPAIRED:
            self.losses.add("repaired", start, 0)
        elif action is RecoveryAction.CUT:
            self.losses.add("truncated", start, verdict.length)
            return False
        else:
            return self._resume("damaged", start, ends_array=action is RecoveryAction.ARRAY_END)
        return None

    def _search(self, verdict: RecoveryVerdict) -> bool | None:
        """Drop text up to the next resume point. Returns the same as `_recover`."""
        start = self.text.offset
        kind = "too-long" if verdict.action is RecoveryAction.TOO_LONG else "damaged"
        position = 1
        while True:
            match = self.places.find(position)
            if isinstance(match, ResumePoint):
                self.text.drop(match.position)
                return self._resume(kind, start, ends_array=match.ends_array)
            if self.text.at_end:
                break
            passed = max(0, match - CONTEXT_BYTES)
            self.text.drop(passed)
            position = match - passed
            self.text.grow()
        valid = max(0, start + verdict.length - self.text.offset)
        last = recovery.judge_text_end(self.text.view, valid)
        self.text.drop(last.length)
        if last.action is RecoveryAction.ARRAY_END:
            return self._resume(kind, start, ends_array=True)
        if kind == "damaged":
            self.losses.add("truncated", start, self.text.offset - start)
        else:
            self.losses.add(kind, start, self.text.offset - start)
            self.losses.add("truncated", self.text.offset, 0)
        return False

    def _resume(self, kind: str, start: int, *, ends_array: bool) -> bool | None:
        """Record the damage before the resume point. Returns the same as `_recover`."""
        self.losses.add(kind, start, self.text.offset - start)
        self.stretch = 0
        if ends_array:
            self.text.drop(1)
            return True
        return None
